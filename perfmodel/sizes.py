"""Sizes of a Deep Potential model: all that its run time depends on."""

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from .errors import PerformanceModelError, check_positive, unknown


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a ``se_e2_a`` model with an energy fitting network.

    name : what tables and plots call it.
    cutoff : Å.
    sel : slots for neighbours of each type; its length is the number of types.
    embedding : widths of the embedding network, its last is ``M``.
    axis : ``A``, columns of the second factor of the descriptor.
    fitting : widths of the hidden layers of the fitting network.
    tabulated : embedding by quintic tables (a compressed model, or dpmd's own tables).
    table_rows : rows of one table.
    rank : functions per table after low-rank compression, or None for all ``M``.
    direct_neighbors : neighbours near enough to use the full row although ``rank`` is set.
    one_side : embedding networks depend on the neighbour's type only.
    folding : whether kernels may fold the basis into the first fitting layer (those on GPUs do not).
    """

    name: str
    cutoff: float
    sel: tuple[int, ...]
    embedding: tuple[int, ...]
    axis: int
    fitting: tuple[int, ...]
    tabulated: bool = True
    table_rows: int = 1360
    rank: int | None = None
    direct_neighbors: float = 0.0
    one_side: bool = False
    folding: bool = True

    def __post_init__(self):
        check_positive("the cutoff of the model", self.cutoff, "Å")
        for name in ("sel", "embedding", "fitting"):
            numbers = tuple(getattr(self, name))
            if not numbers or any(int(n) != n or n < 1 for n in numbers):
                raise PerformanceModelError(
                    f"model {self.name!r} has no usable sizes: {name} must be whole numbers >= 1, got {numbers}"
                )
            object.__setattr__(self, name, tuple(int(n) for n in numbers))

    @property
    def n_types(self):
        return len(self.sel)

    @property
    def width(self):
        """``M``, outputs of the embedding."""
        return self.embedding[-1]

    @property
    def folded(self):
        """Whether a low-rank basis is folded into the first fitting layer: all neighbours use it, and it is smaller."""
        return (
            self.folding
            and self.rank is not None
            and not self.direct_neighbors
            and self._folded_inputs < self.width * self.axis
        )

    @property
    def _folded_inputs(self):
        functions = self.rank * self.n_types
        return min(self.axis * functions, functions * (functions + 1) // 2)

    @property
    def n_descriptor(self):
        """Inputs of the fitting network: ``M A``; of ``n`` folded functions ``min(A n, n (n + 1) / 2)``."""
        return self._folded_inputs if self.folded else self.width * self.axis

    @property
    def n_tables(self):
        """Distinct embeddings: one per pair of types, or per neighbour type."""
        return self.n_types if self.one_side else self.n_types**2

    def table_bytes(self, word=8):
        """Bytes of all tables: rows x functions x 6 coefficients of ``word`` bytes each."""
        return self.n_tables * self.table_rows * (self.rank or self.width) * 6 * word


def _copper(name, embedding, sel=512):
    return ModelSizes(name, 8.0, (sel,), embedding, 16, (240, 240, 240))


def _water(name, embedding):
    return ModelSizes(name, 6.0, (46, 92), embedding, 16, (240, 240, 240))


#: Models of the literature by name: the networks of the published scaling studies.
NAMED_SIZES = {
    sizes.name: sizes
    for sizes in (
        _copper("copper-32-64-128", (32, 64, 128)),
        _copper("copper-25-50-100", (25, 50, 100), sel=500),
        _water("water-32-64-128", (32, 64, 128)),
        _water("water-25-50-100", (25, 50, 100)),
    )
}


def from_model(model, name=None, precision="mixed", neighbors=None):
    """Sizes of a :class:`~dpmd.models.DeepPotentialModel`.

    precision : whose low-rank tables count, if the model has any.
    neighbors : mean number within the cutoff, default 0.7 of ``sel``; those within the split radius of low-rank
        tables are taken to be as dense as all.
    """
    descriptor, fitting = model.descriptor, model.fitting
    embedding = next((e for row in descriptor.embeddings for e in row if e is not None), None)
    if embedding is None or not fitting.networks:
        raise PerformanceModelError(f"model {name or model.source.path!r} has no embedding or no fitting network")
    widths = embedding.network.widths if embedding.network is not None else (embedding.n_out,)
    table = embedding.table
    rank, near = _low_rank(descriptor, "mixed" if precision == "half" else precision)
    return ModelSizes(
        name=name or Path(model.source.path).stem or "model",
        cutoff=float(model.cutoff),
        sel=tuple(descriptor.sel),
        embedding=tuple(widths),
        axis=int(descriptor.axis_neuron),
        fitting=tuple(fitting.networks[0].widths[:-1]),
        tabulated=True,  # dpmd tabulates on load; use replace(..., tabulated=False) for --no-tabulate
        table_rows=int(table.coefficients.shape[0]) if table is not None else 1360,
        rank=rank,
        direct_neighbors=near * (0.7 * sum(descriptor.sel) if neighbors is None else float(neighbors)),
        one_side=bool(descriptor.type_one_side),
    )


def _low_rank(descriptor, precision):
    """Mean number of functions, or None if an embedding has no basis, and the part of the neighbours on full rows.

    Means over pairs of types, each as frequent as its ``sel``.
    """
    from dpmd.models.tables import radius_of_input  # the model that is given has loaded it

    ranks, near, weights = [], [], []
    for embedding, pairs in descriptor.unique_embeddings():
        basis = embedding.basis(precision)
        if basis is None:
            return None, 0.0
        for a, b in pairs:
            split = 0.0 if basis.everywhere else radius_of_input(descriptor, a, basis.split)
            ranks.append(basis.rank)
            near.append((split / descriptor.switch_end) ** 3)
            weights.append(descriptor.sel[b])
    return max(1, round(np.average(ranks, weights=weights))), float(np.average(near, weights=weights))


def from_dict(values):
    """Sizes from a dictionary, e.g. the ``model`` entry of a run's JSON summary."""
    known = {f.name for f in fields(ModelSizes)}
    needed = {"cutoff", "sel", "embedding", "axis", "fitting"}
    if missing := needed - set(values):
        raise PerformanceModelError(f"the model's sizes lack {', '.join(sorted(missing))}")
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
    return ModelSizes(**{"name": "model", **given})


def to_dict(sizes):
    """The inverse of :func:`from_dict`."""
    return asdict(sizes)


def find_sizes(model):
    """Sizes from whatever names a model.

    model : :class:`ModelSizes`, a loaded :class:`~dpmd.models.DeepPotentialModel`, a dictionary of
        sizes, a name of :data:`NAMED_SIZES`, a name such as ``"copper-25-50-100"`` with other
        widths, or the path of a model file or of a JSON file with sizes.  ``name:rank=24,tabulated=false``
        changes single entries.
    """
    if isinstance(model, ModelSizes):
        return model
    if isinstance(model, dict):
        return from_dict(model)
    if hasattr(model, "descriptor"):
        return from_model(model)
    if model is None or not str(model).strip():
        raise PerformanceModelError("a model is needed: a file, or a name such as copper-32-64-128")
    text, _, changes = str(model).partition(":")
    sizes = _find_named_or_file(text)
    return _changed(sizes, changes) if changes else sizes


def _find_named_or_file(text):
    if text in NAMED_SIZES:
        return NAMED_SIZES[text]
    path = Path(text)
    if path.suffix == ".json" and path.is_file():
        try:
            return from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise PerformanceModelError(f"{path}: no sizes of a model: {error}") from error
    if path.is_file():
        from dpmd import models  # files of models are read only when one is given

        try:
            return from_model(models.load(path), path.stem)
        except models.ModelError as error:
            raise PerformanceModelError(str(error)) from error
    if match := re.fullmatch(r"(copper|water)((?:-\d+)+)", text):
        widths = tuple(int(w) for w in match[2].strip("-").split("-"))
        return (_copper if match[1] == "copper" else _water)(text, widths)
    if path.suffix:
        raise PerformanceModelError(f"no model file {text!r}; named models: {', '.join(NAMED_SIZES)}")
    raise unknown("model", text, NAMED_SIZES)


def _changed(sizes, changes):
    values = {}
    for change in changes.split(","):
        key, _, value = change.partition("=")
        if key not in {f.name for f in fields(ModelSizes)}:
            raise unknown("size of a model", key, [f.name for f in fields(ModelSizes)])
        try:
            values[key] = json.loads(value)
        except json.JSONDecodeError:
            values[key] = value
    return replace(sizes, **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
