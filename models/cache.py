"""Loading a model ready for use: tables made once and kept in the user's cache directory."""

import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from platformdirs import user_cache_path

from . import dptab
from .errors import ModelError
from .lowrank import add_low_rank, without_low_rank
from .parameters import DeepPotentialModel
from .readers import load
from .tables import NotSmooth, can_tabulate, checked_distance, tabulate, without_tables

#: part of the cache key: raise it when tables are made differently
TABLE_VERSION = 5


def file_digest(path):
    """SHA-256 of a file's content, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class LoadedModel:
    """model : as operators take it; exact : as the file has it; digest : of the file;
    description : how embeddings are evaluated, for the log.
    """

    model: DeepPotentialModel
    exact: DeepPotentialModel
    digest: str
    description: str


def load_for_operators(path, tabulate_embeddings=True, low_rank=True, rank=None):
    """Load a model file and make or fetch its tables.

    tabulate_embeddings : False for exact embedding networks.
    low_rank : False for full table rows at all distances; rank : functions per embedding, instead of
        as many as the tolerance needs (see :mod:`dpmd.models.lowrank`).
    Returns :class:`LoadedModel`.  Raises ModelError as :func:`dpmd.models.load` does.
    """
    exact = load(path)
    digest = file_digest(path)
    if not tabulate_embeddings:
        return LoadedModel(without_tables(exact), exact, digest, "exact networks (asked for)")
    if not can_tabulate(exact):
        return LoadedModel(exact, exact, digest, "exact networks (relu cannot be tabulated)")
    embeddings = [e for e, _ in exact.descriptor.unique_embeddings()]
    own = all(e.table is not None for e in embeddings)
    if own and not low_rank:
        return LoadedModel(without_low_rank(exact), exact, digest, "the file's own tables")
    if own and rank is None and any(e.low_rank for e in embeddings):
        return LoadedModel(exact, exact, digest, "the file's own tables and low-rank bases")
    kind = f"rank{rank or ''}" if low_rank else "full"
    cached = user_cache_path("dpmd") / f"{digest[:32]}-{TABLE_VERSION}-{kind}.dptab"
    model, how = _from_cache(cached, exact), "from the cache"
    if model is None:
        begin = time.perf_counter()
        try:
            model = tabulate(exact)
        except NotSmooth:
            return LoadedModel(exact, exact, digest, "exact networks (not smooth enough for tables)")
        if low_rank:
            model = add_low_rank(model, rank=rank)
        how = f"made in {time.perf_counter() - begin:.1f} s"
        _keep(model, cached)
    if own:
        return LoadedModel(model, exact, digest, f"the file's own tables, low-rank bases {how}")
    tables = [e.table for e, _ in model.descriptor.unique_embeddings()]
    steps = [step for table in tables for step in (table.fine_step, table.coarse_step)]
    reach = checked_distance(model)
    text = f"quintic tables, {how}, steps {min(steps):.2g} to {max(steps):.2g}, checked from {reach:g} Å on"
    return LoadedModel(model, exact, digest, text)


def _from_cache(path, exact):
    try:
        model = dptab.read(path) if path.exists() else None
    except (ModelError, OSError):
        return None  # a damaged or unreadable cache is made again
    return model and replace(model, source=exact.source)


def _keep(model, path):
    """Store a table; a full or read-only disk only costs the time to make it again."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        dptab.write(model, path)
    except OSError:
        pass
