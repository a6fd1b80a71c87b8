"""What a Deep Potential model is, whatever file it came from.

Readers (:mod:`dpmd.models.readers`) turn a file into these plain, validated records and
resolve every rule that depends on the file's origin (skip connections, meaning of excluded
types, single-precision cutoffs, scaled outputs), so operators need no knowledge of formats.

Units: length in Å, energy in eV.  ``T`` is the number of atom types, ``M`` the width of the
embedding network, ``A`` the number of axis neurons.

Model: L. Zhang et al., "End-to-end symmetry preserving inter-atomic potential energy model
for finite and extended systems", NeurIPS 2018 (DeepPot-SE, descriptor ``se_e2_a``).
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """One layer ``y = skip(x) + timestep * activation(x @ weight + bias)``.

    weight : (n_in, n_out); bias : (n_out,); timestep : (n_out,) or None (ones);
    activation : a name known to :mod:`dpmd.models.networks`;
    skip : ``"none"``, ``"add"`` (``x``, n_out = n_in) or ``"double"`` (``(x, x)``, n_out = 2 n_in).
    """

    weight: np.ndarray
    bias: np.ndarray
    timestep: np.ndarray | None
    activation: str
    skip: str = "none"

    @property
    def n_in(self):
        return self.weight.shape[0]

    @property
    def n_out(self):
        return self.weight.shape[1]


@dataclass(frozen=True, eq=False)
class Network:
    """A chain of dense layers."""

    layers: tuple[DenseLayer, ...]

    @property
    def n_in(self):
        return self.layers[0].n_in

    @property
    def n_out(self):
        return self.layers[-1].n_out

    @property
    def widths(self):
        """Output widths of the layers, e.g. ``(25, 50, 100)``."""
        return tuple(layer.n_out for layer in self.layers)


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """An embedding network as piecewise quintic polynomials of its scalar input.

    Two uniform sections, ``[lower, upper)`` in steps of ``fine_step`` and ``[upper, maximum]``
    in steps of ``coarse_step``; continued linearly on both sides (DP Compress: D. Lu et al.,
    J. Chem. Theory Comput. 18, 5559 (2022)).

    coefficients : (rows, M, 6) float64, ``G_m(x) = sum_c coefficients[q, m, c] * dx**c`` with
    ``dx`` the distance from the start of row ``q``.
    """

    lower: float
    upper: float
    maximum: float
    fine_step: float
    coarse_step: float
    coefficients: np.ndarray

    @property
    def n_fine(self):
        """Rows of the fine section."""
        return int((self.upper - self.lower) / self.fine_step)

    @property
    def n_out(self):
        return self.coefficients.shape[1]


@dataclass(frozen=True, eq=False)
class LowRankBasis:
    """The outputs of an embedding for far neighbours as combinations of a few functions.

    precision : the mode whose tolerance it was made for;
    split : it holds for normalised inputs below this (far neighbours);
    functions : their table; expansion : (rank, M), ``G(x) = functions(x) @ expansion``;
    error : largest error of the force on a pair that was measured, in units of usual forces, see
    :class:`dpmd.models.tables.PairErrors`; everywhere : usual neighbours are all far ones.
    """

    precision: str
    split: float
    functions: EmbeddingTable
    expansion: np.ndarray
    error: float = 0.0
    everywhere: bool = False

    @property
    def rank(self):
        return len(self.expansion)


@dataclass(frozen=True, eq=False)
class Embedding:
    """The embedding of one (centre type, neighbour type) pair: a network, its table, or both.

    At least one is present.  ``table_from_file`` tells tables that the model file carried
    (they *are* the model) from tables that dpmd made of the network.  ``low_rank``: bases for
    far neighbours, at most one per precision mode.
    """

    network: Network | None
    table: EmbeddingTable | None = None
    table_from_file: bool = False
    low_rank: tuple[LowRankBasis, ...] = ()

    def basis(self, precision):
        """The :class:`LowRankBasis` for a precision mode, or None."""
        return next((b for b in self.low_rank if b.precision == precision), None)

    @property
    def n_out(self):
        return self.network.n_out if self.network is not None else self.table.n_out


class PairRule(IntEnum):
    """What a (centre type, neighbour type) pair contributes to the descriptor.

    With ``n`` real neighbours of that type, ``sel`` slots, and ``P`` the contribution of an
    empty slot, the section adds:

    INCLUDED : sum over real neighbours + (sel - n) P
    SKIPPED  : nothing (``exclude_types`` in TensorFlow graphs)
    MASKED   : (sel - n) P (``exclude_types`` elsewhere: only real rows are zeroed)
    REMOVED  : sel P (``pair_exclude_types``: the neighbours leave the list)
    """

    INCLUDED = 0
    SKIPPED = 1
    MASKED = 2
    REMOVED = 3


@dataclass(frozen=True, eq=False)
class SmoothDescriptor:
    """Parameters of the ``se_e2_a`` descriptor.

    rcut, rcut_smth : Å, as the file states them.
    switch_start, switch_end, switch_width : Å, the values the file's backend computes with
        (TensorFlow graphs hold them in single precision).
    sel : neighbours per type that the model's function refers to; part of the function, since
        empty slots contribute wherever the mean is not zero.
    axis_neuron : A, columns of the second factor of ``D = T T[:, :A]^T``.
    neighbor_count : the divisor of the environment average, normally ``sum(sel)``.
    radial_mean, radial_std, angular_std : (T,) statistics of the environment matrix per centre.
    protection : Å, added to distances in denominators (``env_protection``).
    embeddings : ``embeddings[centre][neighbour]``, or None where the pair never contributes.
    pair_rules : (T, T) of :class:`PairRule`.
    shared_selection : when an atom has more neighbours than ``sel``: True keeps the
        ``sum(sel)`` nearest of any type first (PyTorch, dpmodel), then the nearest ``sel`` of
        each type; False keeps the nearest ``sel`` of each type (TensorFlow).
    """

    rcut: float
    rcut_smth: float
    switch_start: float
    switch_end: float
    switch_width: float
    sel: tuple[int, ...]
    axis_neuron: int
    neighbor_count: int
    radial_mean: np.ndarray
    radial_std: np.ndarray
    angular_std: np.ndarray
    embeddings: tuple[tuple[Embedding | None, ...], ...]
    pair_rules: np.ndarray
    type_one_side: bool
    protection: float = 0.0
    shared_selection: bool = False
    kind: str = "se_e2_a"

    @property
    def n_types(self):
        return len(self.sel)

    @property
    def n_embedding(self):
        """M, the width of the embedding."""
        return next(e.n_out for row in self.embeddings for e in row if e is not None)

    @property
    def n_out(self):
        return self.n_embedding * self.axis_neuron

    def unique_embeddings(self):
        """The distinct embeddings, with the (centre, neighbour) pairs that use each."""
        users = {}
        for centre, row in enumerate(self.embeddings):
            for neighbor, embedding in enumerate(row):
                if embedding is not None:
                    users.setdefault(id(embedding), (embedding, []))[1].append((centre, neighbor))
        return list(users.values())

    def map_embeddings(self, function):
        """A copy with ``function(embedding, pairs)`` in place of each distinct embedding."""
        new = {id(e): function(e, pairs) for e, pairs in self.unique_embeddings()}
        rows = tuple(tuple(None if e is None else new[id(e)] for e in row) for row in self.embeddings)
        return replace(self, embeddings=rows)


@dataclass(frozen=True, eq=False)
class EnergyFitting:
    """Parameters of the atomic energy: one network per centre type.

    ``e_i = networks[t](D_i, f~, a~_i) [- networks[t](0, f~, a~_i)] + energy_bias[t]``,
    ``f~ = (frame parameters - fparam_mean) * fparam_inverse_std``, likewise ``a~_i``.

    energy_bias : (T,) eV, all constant shifts of the file added up.
    subtract_vacuum : (T,) bool, whether the bracket applies (``atom_ener``).
    silent_types : types whose atoms have energy 0 (but are neighbours).
    default_fparam : frame parameters to use when the user gives none, or None.
    """

    networks: tuple[Network, ...]
    energy_bias: np.ndarray
    subtract_vacuum: np.ndarray
    fparam_mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    fparam_inverse_std: np.ndarray = field(default_factory=lambda: np.zeros(0))
    aparam_mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    aparam_inverse_std: np.ndarray = field(default_factory=lambda: np.zeros(0))
    default_fparam: np.ndarray | None = None
    silent_types: frozenset[int] = frozenset()

    @property
    def n_fparam(self):
        return len(self.fparam_mean)

    @property
    def n_aparam(self):
        return len(self.aparam_mean)


@dataclass(frozen=True)
class ModelSource:
    """Where a model came from; shown by ``dpmd info`` and in the log.

    format : e.g. ``"TensorFlow graph (.pb)"``; backend : the program that wrote it;
    version : the file's own version string, "" if it has none;
    min_neighbor_distance : Å, shortest distance of the training data, or None;
    warnings : sentences about inconsistencies of the file;
    digest : SHA-256, hexadecimal, of the bytes that the model was read from, "" if it came from no file.
    """

    path: str
    format: str
    backend: str = ""
    version: str = ""
    min_neighbor_distance: float | None = None
    warnings: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True, eq=False)
class DeepPotentialModel:
    """An energy model: descriptor, fitting networks and the names of its types.

    type_map : element (or other) names, in the order of the model's types.
    precision : ``"float64"`` or ``"float32"``, what the file's networks are stored in.
    """

    type_map: tuple[str, ...]
    descriptor: SmoothDescriptor
    fitting: EnergyFitting
    precision: str
    source: ModelSource

    @property
    def n_types(self):
        return len(self.type_map)

    @property
    def cutoff(self):
        """Å, beyond which atoms do not interact."""
        return self.descriptor.switch_end

    @property
    def compressed(self):
        """True if the file carried tables in place of (or beside) its embedding networks."""
        return any(e.table_from_file for e, _ in self.descriptor.unique_embeddings())
