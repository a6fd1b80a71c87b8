"""Loading a model ready for use: tables made once and kept in the user's cache directory."""

import time
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from . import dptab
from .errors import ModelError
from .lowrank import add_low_rank, without_low_rank
from .parameters import DeepPotentialModel
from .readers import load
from .tables import NotSmooth, can_tabulate, checked_distance, tabulate, without_tables

#: part of the cache key: raise it when tables are made differently
TABLE_VERSION = 5


@dataclass(frozen=True)
class LoadedModel:
    """model : as operators take it; exact : as the file has it; description : how embeddings are evaluated,
    for the log.
    """

    model: DeepPotentialModel
    exact: DeepPotentialModel
    description: str

    @property
    def digest(self):
        """SHA-256, hexadecimal, of the bytes that the model was read from."""
        return self.exact.source.digest


def load_for_operators(path, tabulate_embeddings=True, low_rank=True, rank=None):
    """Load a model file and make or fetch its tables.

    tabulate_embeddings : False for exact embedding networks.
    low_rank : False for full table rows at all distances; rank : functions per embedding, instead of
        as many as the tolerance needs (see :mod:`dpmd.models.lowrank`).
    Returns :class:`LoadedModel`.  Raises ModelError as :func:`dpmd.models.load` does.
    """
    exact = load(path)
    if not tabulate_embeddings:
        return LoadedModel(without_tables(exact), exact, "exact networks (asked for)")
    if not can_tabulate(exact):
        return LoadedModel(exact, exact, "exact networks (relu cannot be tabulated)")
    embeddings = [e for e, _ in exact.descriptor.unique_embeddings()]
    own = all(e.table is not None for e in embeddings)
    if own and not low_rank:
        return LoadedModel(without_low_rank(exact), exact, "the file's own tables")
    if own and rank is None and any(e.low_rank for e in embeddings):
        return LoadedModel(exact, exact, "the file's own tables and low-rank bases")
    kind = f"rank{rank or ''}" if low_rank else "full"
    cached = user_cache_path("dpmd") / f"{exact.source.digest[:32]}-{TABLE_VERSION}-{kind}.dptab"
    model, how = _from_cache(cached, exact), "from the cache"
    if model is None:
        begin = time.perf_counter()
        try:
            model = tabulate(exact)
        except NotSmooth:
            return LoadedModel(exact, exact, "exact networks (not smooth enough for tables)")
        if low_rank:
            model = add_low_rank(model, rank=rank)
        how = f"made in {time.perf_counter() - begin:.1f} s"
        _keep(model, cached)
    if own:
        return LoadedModel(model, exact, f"the file's own tables, low-rank bases {how}")
    tables = [e.table for e, _ in model.descriptor.unique_embeddings()]
    steps = [step for table in tables for step in (table.fine_step, table.coarse_step)]
    reach = checked_distance(model)
    text = f"quintic tables, {how}, steps {min(steps):.2g} to {max(steps):.2g}, checked from {reach:g} Å on"
    return LoadedModel(model, exact, text)


def _from_cache(path, exact):
    """The model with the tables of a cache file, or None unless they were made of this very model."""
    try:
        model = dptab.read(path) if path.exists() else None
    except (ModelError, OSError):
        return None  # a damaged or unreadable cache is made again
    if model is None or model.source.digest != exact.source.digest or not _same_parameters(exact, model):
        return None
    return replace(model, source=exact.source)


def _same_parameters(exact, tabulated):
    """Whether two records hold the same parameters; tables that the first one lacks do not count."""
    if is_dataclass(exact):
        names = {f.name for f in fields(exact)} - {"source", "low_rank"}
        if getattr(exact, "table", True) is None:
            names.remove("table")
        return type(exact) is type(tabulated) and all(
            _same_parameters(getattr(exact, name), getattr(tabulated, name)) for name in names
        )
    if isinstance(exact, tuple):
        return len(exact) == len(tabulated) and all(map(_same_parameters, exact, tabulated))
    if isinstance(exact, np.ndarray):
        return np.array_equal(exact, tabulated)
    return exact == tabulated


def _keep(model, path):
    """Store a table; a full or read-only disk only costs the time to make it again."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        dptab.write(model, path)
    except OSError:
        pass
