"""Messages, bytes and waiting of a run, from the same decomposition code that runs it."""

from dataclasses import dataclass
from functools import lru_cache
from math import log, prod, sqrt

import numpy as np

from ..parallel import geometry
from .errors import PerformanceModelError, check_positive_integer
from .workload import find_engine

#: Bytes of a position sent to a ghost, and of a force sent back.
POSITION_BYTES = FORCE_BYTES = 24


@dataclass(frozen=True)
class Layout:
    """How a run is spread over a machine.

    threads_per_rank : cores of a rank; on a machine with accelerators a rank drives one of them and
        the threads do not count.
    rank_grid : ranks along each lattice vector where a program reported it, or None: chosen.
    """

    nodes: int
    ranks_per_node: int
    threads_per_rank: int = 1
    rank_grid: tuple[int, int, int] | None = None

    def __post_init__(self):
        check_positive_integer("the number of nodes", self.nodes)
        check_positive_integer("the number of ranks per node", self.ranks_per_node)
        check_positive_integer("the number of threads per rank", self.threads_per_rank)
        if self.rank_grid is not None and prod(self.rank_grid) != self.ranks:
            raise PerformanceModelError(f"rank grid {self.rank_grid} does not hold {self.ranks} ranks")

    @property
    def ranks(self):
        return self.nodes * self.ranks_per_node

    def __str__(self):
        return f"{self.nodes} x {self.ranks_per_node} x {self.threads_per_rank}"


@dataclass(frozen=True)
class Communication:
    """Per step.

    messages : that the busiest rank receives (positions and forces), one after the other.
    node_bytes : that cross the network per node.
    boxes : of atoms, whose fullest one makes the others wait; ``atoms_per_box`` their mean.
    ghosts : per rank, mean.
    """

    messages: float
    node_bytes: float
    boxes: int
    atoms_per_box: float
    ghosts: float


def communication(engine, system, layout, ghost_cutoff):
    """Count the halo exchange of one step: :class:`Communication`.

    Rank-based programs exchange by six-way staged swaps; the node-based scheme sends one message per
    pair of neighbouring nodes, dealt over the ranks of the node.  Forces return by the same routes.
    """
    engine = find_engine(engine)
    cell = system.cell_matrix
    if layout.rank_grid is not None and system.cell is None:
        # Only the numbers of ranks are known: programs choose grids whose boxes are nearly cubes.
        edge = (system.atoms / system.density / layout.ranks) ** (1 / 3)
        cell = np.diag(edge * np.array(layout.rank_grid, dtype=float))
    key = tuple(map(tuple, cell))
    count = _node_based if engine.decomposition == "node" else _rank_based
    messages, volume, ghost_volume = count(
        key, layout.nodes, layout.ranks_per_node, layout.rank_grid, float(ghost_cutoff)
    )
    boxes = layout.nodes if engine.decomposition == "node" else layout.ranks
    return Communication(
        messages=2 * messages,
        node_bytes=volume * system.density * (POSITION_BYTES + FORCE_BYTES),
        boxes=boxes,
        atoms_per_box=system.atoms / boxes,
        ghosts=ghost_volume * system.density,
    )


@lru_cache(maxsize=4096)
def _rank_based(cell, nodes, ranks_per_node, rank_grid, cutoff):
    node_grid, inner = _grids(cell, nodes, ranks_per_node, rank_grid)
    counted = geometry.staged_exchange(cell, node_grid, inner, cutoff)
    rank_box = geometry.box_edges(cell, np.array(node_grid) * inner)
    messages = (counted.messages + counted.messages_within) / ranks_per_node
    return messages, counted.volume, geometry.halo_volume(rank_box, cutoff, "rectangular")


@lru_cache(maxsize=4096)
def _node_based(cell, nodes, ranks_per_node, rank_grid, cutoff):
    if rank_grid is None:
        node_grid = geometry.choose_grid(cell, nodes, cutoff)
    else:
        node_grid, _ = _grids(cell, nodes, ranks_per_node, rank_grid)
    counted = geometry.node_exchange(cell, node_grid, cutoff, "rectangular")
    halo = geometry.halo_volume(geometry.box_edges(cell, node_grid), cutoff, "rectangular")
    # Ghosts of the node are held once and mapped by all its ranks.
    return np.ceil(counted.messages / ranks_per_node), counted.volume, halo / ranks_per_node


def _grids(cell, nodes, ranks_per_node, rank_grid):
    """Node grid and the grid of ranks within a node; a reported rank grid is split as well as it can be."""
    if rank_grid is None:
        rank_grid = geometry.choose_grid(cell, nodes * ranks_per_node)
    splits = [
        inner
        for inner in geometry.factor_triples(ranks_per_node)
        if all(n % m == 0 for n, m in zip(rank_grid, inner, strict=True))
    ]
    if not splits:
        return geometry.choose_nested_grid(cell, nodes, ranks_per_node)
    node_grids = [tuple(n // m for n, m in zip(rank_grid, inner, strict=True)) for inner in splits]
    best = min(range(len(splits)), key=lambda i: geometry.halo_surface(cell, node_grids[i]))
    return node_grids[best], splits[best]


def extreme(count):
    """How many standard deviations the largest of ``count`` values lies above the mean: ``sqrt(2 ln count)``.

    The leading term for independent Gaussian values; 0 for a single one.
    """
    return sqrt(2 * log(count)) if count > 1 else 0.0


def box_spread(spread, atoms_per_box):
    """Relative standard deviation of the atoms per box: ``spread n^(-1/3)``.

    In a crystal or a liquid the number of atoms in a box varies only by what happens at its surface (whole
    lattice planes inside or outside, molecules on the boundary).  A plane more or less is one part in
    ``n^(1/3)``.  Poisson statistics (``n^(-1/2)``, an ideal gas) would be too large for big boxes.
    """
    return spread * np.maximum(atoms_per_box, 1.0) ** (-1 / 3)
