"""Operations and bytes of each operator of a Deep Potential step, per atom.

Counting rules.  A multiplication or an addition is one FLOP, a fused multiply-add two; a division,
square root or activation function counts as :data:`FLOPS_PER_FUNCTION`.  Only the forward pass and
the gradient with respect to positions are counted (no weight gradients).

Symbols: ``n`` neighbours within the cutoff that a kernel visits, ``L`` entries of the list with
skin, ``S = sum(sel)`` slots, ``M`` functions of the embedding, ``A`` axis neurons, ``w`` bytes per
number.

=============  =======================================================================================
environment    per list entry a distance test (8 FLOP); per neighbour ``r``, ``1/r``, switch polynomial
               and its derivative, 4 components and their 12 derivatives: 50 FLOP
table          forward ``n M 18``: Horner's rule for a quintic is 5 fused operations (10), the outer
               product with the 4 components of ``R`` another 4 (8).
               gradient ``n M 36``: value and derivative by Horner (18), ``dE/dR_c = sum_m T'_cm G_m``
               (8), ``sum_c T'_cm R_c`` (8), times ``G'`` summed over ``m`` (2)
network        in place of the table: forward ``2 sum_l w_l w_{l+1}`` and activations per neighbour,
               gradient as much again, products with ``R`` ``8 M`` forward and ``16 M`` backward
descriptor     ``D = T^T T_A``: ``8 M A`` forward, ``16 M A`` for the gradient (both factors)
low rank       ``M`` of the table becomes ``rank``; expanding ``T`` costs ``8 rank M`` per neighbour type
               forward, as much backward, unless the expansion is folded into the first fitting layer
fitting        ``2 sum_l w_l w_{l+1}`` forward with ``w_0 = M A``, as much for the gradient; activations
force, virial  per neighbour 4 x 3 fused operations for the force, 9 for the virial: 42 FLOP
=============  =======================================================================================
"""

import itertools
from dataclasses import dataclass
from math import pi

from .errors import PerformanceModelError, unknown

FLOPS_PER_FUNCTION = 20

#: Candidates tested per neighbour found by a cell list with cells of one cutoff: (3 r)^3 / (4/3 pi r^3).
CANDIDATES_PER_ENTRY = 27 / (4 / 3 * pi)

PRECISIONS = ("double", "mixed", "half")

#: Bytes of a number inside the networks.  Positions, forces and energies are 8 bytes in all modes.
WORD_BYTES = {"double": 8, "mixed": 4, "half": 4}

#: Peak rate that each kind of operation may use.
PEAK_FOR = {
    "double": {"embedding": "double", "gemm": "double", "first_gemm": "double"},
    "mixed": {"embedding": "single", "gemm": "single", "first_gemm": "single"},
    # Only the fitting network's first layer is large enough for reduced inputs to pay.
    "half": {"embedding": "single", "gemm": "single", "first_gemm": "half"},
}

#: The same for dpmd's kernels on GPUs: all layers on tensor cores; in mixed, three bf16 products replace one of fp32.
GPU_PEAK_FOR = PEAK_FOR | {
    "mixed": {"embedding": "single", "gemm": "split", "first_gemm": "split"},
    "half": {"embedding": "single", "gemm": "half", "first_gemm": "half"},
}

#: Up to so many atoms per GPU one chain of kernels serves all types.
FEW_ATOMS = 600


@dataclass(frozen=True)
class Engine:
    """How a program runs a step, as far as counts depend on it.

    padded : kernels visit all ``sel`` slots instead of the real neighbours.
    stores_environment : the environment matrix (4 numbers per slot), its derivative (12) and the
        vectors (3) are stored in padded arrays and read back.
    private_data : every rank has its own copy of tables and temporary arrays that compete for the
        node's memory system.
    decomposition : ``"rank"``, one box per rank and six-way staged exchange; ``"node"``, one box
        per node, one message per neighbouring node, atoms dealt equally to the ranks.
    whole_atoms : a thread evaluates whole atoms, so the busiest has ``ceil(n / threads)``.
    operators, operators_per_type, operators_per_pair : operators started per step: fixed, per centre type
        (fitting network), per pair of types (embedding).
    gpu_kernels : on GPUs, products as in :data:`GPU_PEAK_FOR` and one chain for few atoms.
    gpu_list_operators : launches that take as long as building a list on a GPU, waits of the host included: 1.6 ms
        for small systems on an H200.
    """

    name: str
    title: str
    padded: bool
    stores_environment: bool
    private_data: bool
    decomposition: str
    whole_atoms: bool
    operators: int
    operators_per_type: int
    operators_per_pair: int
    gpu_kernels: bool = False
    gpu_list_operators: int = 0

    def launches(self, sizes, few=False):
        """Operators started per step and rank; ``few``: those of one type serve all."""
        types = 1 if few else sizes.n_types
        return self.operators + self.operators_per_type * types + self.operators_per_pair * types**2


ENGINES = {
    engine.name: engine
    for engine in (
        # A TensorFlow graph: 3 hidden layers x (product, activation) x (forward, gradient) per type;
        # slice, table, table gradient, padding, reshape per pair; inputs, environment, force, virial once.
        Engine(
            "deepmd-kit",
            "DeePMD-kit, compressed kernels that stop at the last neighbour",
            False,
            True,
            True,
            "rank",
            False,
            10,
            12,
            5,
        ),
        Engine(
            "deepmd-kit-padded", "DeePMD-kit, kernels over all sel slots", True, True, True, "rank", False, 10, 12, 5
        ),
        Engine(
            "node-based-2024",
            "the node-based code published for Fugaku in 2024 (no graph, thread pool, RDMA)",
            False,
            False,
            False,
            "node",
            True,
            10,
            0,
            0,
        ),
        Engine(
            "dpmd",
            "dpmd: fused kernels, node-shared halos, equal shares of atoms",
            False,
            False,
            False,
            "node",
            True,
            6,
            4,
            0,
            True,
            190,
        ),
        Engine("dpmd-rank", "dpmd with one box per rank", False, False, False, "rank", True, 6, 4, 0, True, 190),
    )
}


def find_engine(name):
    """An :class:`Engine` by name."""
    if isinstance(name, Engine):
        return name
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    return ENGINES[name]


@dataclass(frozen=True)
class Operator:
    """One operator, per atom and step.

    phase : which phase of a run's timing it belongs to.
    kind : ``"gemm"``, ``"first_gemm"``, ``"embedding"`` (limited by arithmetic) or ``"traffic"``
        (limited by gathers and temporary arrays).
    flops : FLOP; ``bytes`` : bytes that must move between memory and cores.
    """

    name: str
    phase: str
    kind: str
    flops: float
    bytes: float


@dataclass(frozen=True)
class Workload:
    """What one atom costs, and what one rank must hold.

    operators : per atom and step.
    launches : operators started per step and rank.
    table_bytes : all embedding tables; ``table_gather`` : bytes of table rows read per atom.
    atom_bytes, ghost_bytes : memory per owned atom and per ghost.
    neighbors : mean number within the cutoff.
    """

    operators: tuple[Operator, ...]
    launches: int
    table_bytes: float
    table_gather: float
    atom_bytes: float
    ghost_bytes: float
    neighbors: float

    @property
    def flops(self):
        """FLOP per atom and step."""
        return sum(o.flops for o in self.operators)

def count(sizes, system, precision="double", engine="dpmd", skin=2.0, rebuild_every=50):
    """The :class:`Workload` of a model on a system.

    sizes : :class:`~dpmd.perfmodel.sizes.ModelSizes`; system : :class:`~dpmd.perfmodel.systems.PhysicalSystem`.
    precision : ``"double"``, ``"mixed"`` or ``"half"``.
    skin : Å; rebuild_every : steps between builds of the neighbour list.
    """
    engine = find_engine(engine)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if skin < 0 or rebuild_every < 1:
        raise PerformanceModelError(f"skin must be >= 0 Å and rebuild_every >= 1; got {skin} and {rebuild_every}")
    word = WORD_BYTES[precision]
    neighbors = system.neighbors if system.neighbors is not None else system.neighbors_within(sizes.cutoff)
    neighbors = min(neighbors, sum(sizes.sel))
    entries = max(system.neighbors_within(sizes.cutoff + skin), neighbors)
    visited = sum(sizes.sel) if engine.padded or not sizes.tabulated else neighbors
    operators = (
        _neighbor_list(entries, rebuild_every),
        _environment(sizes, engine, neighbors, entries, word),
        _embedding(sizes, visited, word),
        _descriptor(sizes, word),
        *_fitting(sizes, word),
        _force(sizes, engine, neighbors),
    )
    functions = sizes.rank or sizes.width
    return Workload(
        operators=operators,
        launches=engine.launches(sizes),
        table_bytes=sizes.table_bytes(word) if sizes.tabulated else 0.0,
        table_gather=2 * visited * functions * 6 * word if sizes.tabulated else 0.0,
        atom_bytes=_atom_bytes(sizes, engine, entries, word),
        ghost_bytes=150.0,  # position, force, type, id, image, and their communication buffers
        neighbors=neighbors,
    )


def _neighbor_list(entries, rebuild_every):
    candidates = entries * CANDIDATES_PER_ENTRY
    # Of each candidate index and position are read; of each entry an index is written.
    return Operator(
        "neighbour list",
        "neighbor",
        "traffic",
        8 * candidates / rebuild_every,
        (28 * candidates + 4 * entries) / rebuild_every,
    )


def _environment(sizes, engine, neighbors, entries, word):
    flops = 8 * entries + 50 * neighbors + 2 * FLOPS_PER_FUNCTION * neighbors
    if engine.stores_environment:
        # Vector, environment row and derivative per slot, and the slot's index.
        moved = sum(sizes.sel) * ((3 + 4 + 12) * word + word)
    else:
        moved = entries * (4 + 24)
    return Operator("environment", "geometry", "traffic", flops, moved)


def _embedding(sizes, visited, word):
    if not sizes.tabulated:
        return Operator(
            "embedding network",
            "embedding",
            "embedding",
            visited * _embedding_network(sizes),
            2 * visited * sizes.width * word,
        )
    functions = sizes.width
    if sizes.rank is not None:
        near = min(sizes.direct_neighbors, visited)
        functions = (near * sizes.width + (visited - near) * sizes.rank) / max(visited, 1)
    return Operator("embedding table", "embedding", "embedding", visited * functions * (18 + 36), 0.0)


def _embedding_network(sizes):
    """FLOP per visited slot: the network forward and its gradient, and the products with ``R``."""
    widths = (1, *sizes.embedding)
    products = sum(2 * a * b for a, b in itertools.pairwise(widths))
    functions = FLOPS_PER_FUNCTION * sum(sizes.embedding)
    return 2 * products + functions + (8 + 16) * sizes.width


def _descriptor(sizes, word):
    flops = 24 * sizes.n_descriptor
    if sizes.rank is not None and not sizes.folded:
        flops += 2 * 8 * sizes.rank * sizes.width * sizes.n_types
    # D is written and read, so is its gradient.
    return Operator("descriptor", "descriptor", "gemm", flops, 4 * sizes.n_descriptor * word)


def _fitting(sizes, word):
    widths = (sizes.n_descriptor, *sizes.fitting, 1)
    products = [2 * a * b for a, b in itertools.pairwise(widths)]
    functions = FLOPS_PER_FUNCTION * sum(sizes.fitting)
    moved = 4 * sum(sizes.fitting) * word
    return (
        Operator("fitting, first layer", "fitting", "first_gemm", 2 * products[0], 0.0),
        Operator("fitting, other layers", "fitting", "gemm", 2 * sum(products[1:]) + functions, moved),
    )


def _force(sizes, engine, neighbors):
    slots = sum(sizes.sel) if engine.stores_environment else neighbors
    # Forces of neighbours are read and written, 3 numbers of 8 bytes each.
    return Operator(
        "force and virial", "force", "traffic", 42 * slots, 0.0 if engine.stores_environment else neighbors * 48
    )


def _atom_bytes(sizes, engine, entries, word):
    """Memory per owned atom, bytes.

    Every engine keeps positions, velocities, forces and the list (4 bytes per entry).  A graph of
    operators holds what it passes on: vectors (3), environment (4), its derivative (12) and gradient (4)
    per slot and an index; descriptor and gradient; four arrays per layer of the fitting network.
    Without tables also all layers of the embedding and their gradients, per slot.  dpmd works on
    blocks of atoms whose buffers belong to the rank, not to the atom.
    """
    stored = 200 + 4 * entries
    if not engine.stores_environment:
        return stored + 48
    stored += sum(sizes.sel) * ((3 + 4 + 12 + 4) * word + 4)
    stored += 2 * sizes.n_descriptor * word + 4 * sum(sizes.fitting) * word
    if not sizes.tabulated:
        stored += sum(sizes.sel) * 3 * sum(sizes.embedding) * word
    return stored
