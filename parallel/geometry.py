"""Geometry of domain decompositions: grids of boxes, halos, messages.  Pure functions, no MPI.

A periodic or open cell is cut by a grid ``(n_a, n_b, n_c)`` along its lattice vectors into equal
boxes.  Every box is a parallelepiped with edge vectors ``a_d / n_d``.  The *halo* of a box is
the region outside it that is nearer than the ghost cutoff; the atoms in it are the box's ghosts.

Three shapes of halo are told apart, because programs differ in which they send:

``"culled"``       exactly the points nearer than the cutoff (rounded edges and corners);
``"rectangular"``  the parallelepiped whose six faces lie one cutoff outside the box's faces;
``"whole"``        complete neighbour boxes: every box that has a point nearer than the cutoff.

Always culled <= rectangular, and culled <= whole.

Two levels of boxes occur: *nodes* (which share memory) own boxes of the cell, and the *ranks* of
a node own boxes of the node's box.  :func:`node_exchange` and :func:`staged_exchange`
count what crosses the network in the two usual schemes.

Units: length in Å, area in Å^2, volume in Å^3.  A volume times the density of atoms (1/Å^3) is a
number of atoms.  ``cell`` is a (3, 3) array whose rows are lattice vectors.
"""

from dataclasses import dataclass
from itertools import product
from math import ceil, inf, pi, prod

import numpy as np

HALO_SHAPES = ("culled", "rectangular", "whole")

# A halo that ends within this fraction of a box's height on a box face does not reach the next box.
_TOUCHING = 1e-9


# ---------------------------------------------------------------------------------------------
# one parallelepiped


def check_cell(cell):
    """The cell as a (3, 3) float array; ValueError if it is not three independent vectors."""
    cell = np.asarray(cell, dtype=float)
    if cell.shape == (3,):
        cell = np.diag(cell)
    if cell.shape != (3, 3):
        raise ValueError(f"a cell is three lattice vectors, shape (3, 3); got shape {cell.shape}")
    if not np.isfinite(cell).all():
        raise ValueError("the cell holds numbers that are not finite")
    lengths = np.linalg.norm(cell, axis=1)
    if abs(np.linalg.det(cell)) <= 1e-12 * prod(lengths) or min(lengths) == 0:
        raise ValueError("the lattice vectors of the cell are linearly dependent (zero volume)")
    return cell


def volume(cell):
    """Volume of the parallelepiped, Å^3."""
    return float(abs(np.linalg.det(check_cell(cell))))


def edge_lengths(cell):
    """Lengths of the three lattice vectors, Å, shape (3,)."""
    return np.linalg.norm(check_cell(cell), axis=1)


def face_areas(cell):
    """Areas of the three pairs of faces, Å^2, shape (3,): face ``d`` is spanned by the other two vectors."""
    cell = check_cell(cell)
    return np.array([np.linalg.norm(np.cross(cell[d - 2], cell[d - 1])) for d in range(3)])


def heights(cell):
    """Distances between the three pairs of opposite faces, Å, shape (3,): ``h_d = V / A_d``."""
    return volume(cell) / face_areas(cell)


def box_edges(cell, grid):
    """Edge vectors (3, 3), Å, of one box of a grid of equal boxes."""
    return check_cell(cell) / np.array(check_grid(grid), dtype=float)[:, None]


def check_grid(grid):
    """The grid as a tuple of three positive integers; ValueError otherwise."""
    numbers = tuple(int(n) for n in grid)
    if len(numbers) != 3 or any(n < 1 or n != g for n, g in zip(numbers, grid, strict=True)):
        raise ValueError(f"a grid is three positive integers; got {tuple(grid)}")
    return numbers


def distance_to_box(edges, points, lower=(0.0, 0.0, 0.0), upper=(1.0, 1.0, 1.0)):
    """Distance of fractional points to the box ``lower <= t <= upper``, Å, exact for any angles.

    edges : (3, 3) Å, the vectors that fractional coordinates refer to.
    points : (..., 3) fractional coordinates.  ``lower`` and ``upper`` broadcast against them.

    The nearest point minimises ``|sum_d (p_d - t_d) e_d|`` with bounds on ``t``: a convex problem
    whose solution lies inside one of the 27 faces of all dimensions (each ``t_d`` at its lower
    bound, at its upper bound, or free).  On each face the free coordinates follow from normal
    equations; the smallest distance among feasible faces is the answer.
    """
    edges = check_cell(edges)
    points, lower, upper = np.broadcast_arrays(np.asarray(points, dtype=float), lower, upper)
    metric = edges @ edges.T
    best = np.full(points.shape[:-1], inf)
    for face in product((-1, 0, 1), repeat=3):
        free = [d for d in range(3) if face[d] == 0]
        fixed = [d for d in range(3) if face[d] != 0]
        excess = np.zeros(points.shape)
        for d in fixed:
            excess[..., d] = points[..., d] - (lower if face[d] < 0 else upper)[..., d]
        feasible = np.ones(points.shape[:-1], dtype=bool)
        if free:
            solve = -np.linalg.solve(metric[np.ix_(free, free)], metric[np.ix_(free, fixed)])
            excess[..., free] = excess[..., fixed] @ solve.T
            nearest = points[..., free] - excess[..., free]
            tolerance = 1e-12
            feasible = ((nearest >= lower[..., free] - tolerance) & (nearest <= upper[..., free] + tolerance)).all(-1)
        squared = np.einsum("...i,ij,...j->...", excess, metric, excess)
        best = np.where(feasible, np.minimum(best, squared), best)
    return np.sqrt(np.maximum(best, 0.0))


# ---------------------------------------------------------------------------------------------
# halo of one box


def _check_cutoff(cutoff):
    if not (np.isfinite(cutoff) and cutoff >= 0):
        raise ValueError(f"the ghost cutoff must be a finite length >= 0 Å; got {cutoff}")
    return float(cutoff)


def halo_volume(edges, cutoff, shape="culled"):
    """Volume of the halo of a box, Å^3, the box itself excluded.

    edges : (3, 3) Å, edge vectors of the box (or (3,): lengths of a rectangular one).
    cutoff : Å.  shape : one of :data:`HALO_SHAPES`.

    Culled: Steiner's formula for a convex body.  Faces add ``2 r (A_1 + A_2 + A_3)``.  The four
    parallel edges of each direction carry cylinder sectors whose angles sum to ``2 pi`` (the
    exterior angles of a parallelogram), so edges add ``pi r^2 (L_1 + L_2 + L_3)``; the eight
    corners together add one ball, ``4/3 pi r^3``.  This holds for any angles.

    Rectangular: ``V (prod_d (1 + 2 r / h_d) - 1)`` with the heights ``h_d``.

    Whole: the number of neighbour boxes times ``V``.
    """
    edges, r = check_cell(edges), _check_cutoff(cutoff)
    if shape == "culled":
        return float(2 * r * face_areas(edges).sum() + pi * r**2 * edge_lengths(edges).sum() + 4 / 3 * pi * r**3)
    if shape == "rectangular":
        return float(volume(edges) * (np.prod(1 + 2 * r / heights(edges)) - 1))
    if shape == "whole":
        return len(neighbor_offsets(edges, r)) * volume(edges)
    raise ValueError(f"unknown halo shape {shape!r}; choose one of {', '.join(HALO_SHAPES)}")


def shells(edges, cutoff):
    """Layers of boxes that the halo reaches along each axis, tuple of 3: ``ceil(r / h_d)``."""
    r = _check_cutoff(cutoff)
    return tuple(max(0, ceil(r / h - _TOUCHING)) for h in heights(edges))


def neighbor_offsets(edges, cutoff, shape="culled"):
    """Boxes of an endless grid with a point in the halo of box (0, 0, 0): offsets (n, 3) of int.

    ``"culled"`` keeps boxes nearer than the cutoff; ``"rectangular"`` keeps the full block of
    ``prod(2 shells_d + 1) - 1`` boxes.  ``"whole"`` means the same boxes as culled.

    The distance of two equal boxes displaced by ``o`` is the distance of the point ``o`` to the
    box ``[-1, 1]^3`` (the Minkowski difference of two unit cubes).
    """
    r = _check_cutoff(cutoff)
    reach = shells(edges, r)
    axes = [np.arange(-n, n + 1) for n in reach]
    offsets = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    offsets = offsets[(offsets != 0).any(1)]
    if shape == "rectangular" or len(offsets) == 0:
        return offsets
    if shape not in HALO_SHAPES:
        raise ValueError(f"unknown halo shape {shape!r}; choose one of {', '.join(HALO_SHAPES)}")
    distance = distance_to_box(edges, offsets, (-1.0, -1.0, -1.0), (1.0, 1.0, 1.0))
    return offsets[distance < r * (1 - _TOUCHING)]


def neighbor_boxes(grid, index, offsets, periodic=(True, True, True)):
    """Distinct other boxes of a finite grid that lie at the given offsets from box ``index``.

    On periodic axes offsets wrap around, so that a box may be reached several times (as several
    images) or be the box itself; both count once or not at all here, since one message can carry
    all images.  On open axes offsets beyond the edge are dropped.  Returns (n, 3) sorted indices.
    """
    grid = np.array(check_grid(grid))
    boxes = np.asarray(index) + np.asarray(offsets).reshape(-1, 3)
    open_axes = ~np.asarray(periodic, dtype=bool)
    inside = ((boxes >= 0) & (boxes < grid))[:, open_axes].all(1)
    boxes = np.unique(boxes[inside] % grid, axis=0)
    return boxes[(boxes != np.asarray(index)).any(1)]


# ---------------------------------------------------------------------------------------------
# choice of grids


def factor_triples(count):
    """All ordered ways to write ``count`` as a product of three positive integers."""
    if int(count) != count or count < 1:
        raise ValueError(f"the number of boxes must be a positive integer; got {count}")
    count = int(count)
    divisors = [d for d in range(1, int(count**0.5) + 1) if count % d == 0]
    divisors = sorted({*divisors, *(count // d for d in divisors)})
    return [(x, y, count // (x * y)) for x in divisors for y in divisors if count % (x * y) == 0]


def halo_surface(cell, grid, cutoff=0.0, periodic=(True, True, True)):
    """What a good grid minimises, per box: mean halo volume (Å^3), or area (Å^2) if cutoff is 0.

    With ``p_d`` the fraction of faces across axis ``d`` that have a neighbour (1 if periodic,
    ``(n_d - 1) / n_d`` if open) the halo is the rectangular one,
    ``V (prod_d (1 + 2 p_d r / h_d) - 1)``; its slope at ``r = 0`` is the shared surface
    ``2 sum_d p_d A_d``.
    """
    grid = check_grid(grid)
    edges = box_edges(cell, grid)
    shared = np.array([1.0 if p else (n - 1) / n for p, n in zip(periodic, grid, strict=True)])
    if _check_cutoff(cutoff) == 0:
        return float(2 * (shared * face_areas(edges)).sum())
    return float(volume(edges) * (np.prod(1 + 2 * shared * cutoff / heights(edges)) - 1))


def choose_grid(cell, count, cutoff=0.0, periodic=(True, True, True)):
    """The grid of ``count`` boxes with the smallest :func:`halo_surface`; ties: the first axis cut least."""
    triples = np.array(factor_triples(count))
    fractions = np.where(periodic, 1.0, (triples - 1) / triples)
    areas = face_areas(cell) * triples / count  # of the boxes: A_d / (n_e n_f)
    if _check_cutoff(cutoff) == 0:
        surfaces = (fractions * areas).sum(1)
    else:
        surfaces = (1 + 2 * fractions * cutoff * areas / (volume(cell) / count)).prod(1)
    return tuple(int(n) for n in triples[surfaces <= surfaces.min() * (1 + 1e-9)][0])


def choose_nested_grid(cell, nodes, ranks_per_node, cutoff=0.0, periodic=(True, True, True)):
    """Grid of nodes, then grid of the ranks within one node's box: two tuples.

    Nodes come first since their halos cross the network; ranks of a node share memory.
    """
    node_grid = choose_grid(cell, nodes, cutoff, periodic)
    return node_grid, choose_grid(box_edges(cell, node_grid), ranks_per_node, cutoff)


# ---------------------------------------------------------------------------------------------
# what one halo exchange sends


@dataclass(frozen=True)
class Exchange:
    """One forward halo exchange (positions to ghosts), counted per node.

    scheme : ``"node"`` or ``"staged"``; shape : of the halo.
    messages : received per node from other nodes.
    messages_within : between ranks of the node through messages (0 when memory is shared).
    volume : Å^3 of halo received from other nodes; times density = atoms.
    volume_within : Å^3 passed between ranks of the node.
    rounds : exchanges that must follow one another because later ones forward earlier ones' atoms.
    largest : Å^3, the largest single message from another node.
    """

    scheme: str
    shape: str
    messages: float
    messages_within: float
    volume: float
    volume_within: float
    rounds: int
    largest: float


def node_exchange(cell, node_grid, cutoff, shape="culled"):
    """Node-based scheme: one message per pair of neighbouring nodes, received into shared memory.

    All boxes are alike in a periodic cell, so one node is counted.  Images of the node itself
    need no message: their volume counts as ``volume_within``.
    """
    edges = box_edges(cell, node_grid)
    offsets = neighbor_offsets(edges, cutoff, shape)
    own = (offsets % np.array(node_grid) == 0).all(1)
    others = neighbor_boxes(node_grid, (0, 0, 0), offsets)
    parts = _halo_parts(edges, cutoff, offsets, shape)
    _, owner = np.unique(offsets[~own] % np.array(node_grid), axis=0, return_inverse=True)
    per_message = np.bincount(owner.ravel(), parts[~own]) if len(others) else np.zeros(1)
    return Exchange("node", shape, len(others), 0, float(parts[~own].sum()), float(parts[own].sum()),
                    1 if len(others) else 0, float(per_message.max()))  # fmt: skip


def staged_exchange(cell, node_grid, rank_grid, cutoff):
    """Rank-based six-way exchange: along one axis after the other, with the two adjacent ranks only.

    Along axis ``d`` a rank needs ``s_d = ceil(r / h_d)`` swaps in each direction: the first passes
    own atoms, each further one forwards ghosts of the one before.  Later axes forward the ghosts of
    earlier axes, so the halo is rectangular.  With ``w_d = 2 r / h_d`` and box volume ``V`` the axes
    receive ``V w_1``, ``V (1 + w_1) w_2`` and ``V (1 + w_1)(1 + w_2) w_3``.  Of the ranks of a node
    only those at its faces, a fraction ``1 / m_d`` for ``m_d`` ranks along ``d``, receive from
    another node.  Rounds: ``sum_d s_d``, the two directions of a swap at once.  An axis with one
    rank needs no message.
    """
    node_grid, rank_grid = check_grid(node_grid), check_grid(rank_grid)
    grid = tuple(n * m for n, m in zip(node_grid, rank_grid, strict=True))
    edges = box_edges(cell, grid)
    h, reach, ranks = heights(edges), shells(edges, cutoff), prod(rank_grid)
    messages = messages_within = inter = within = largest = 0.0
    rounds, block = 0, volume(edges)
    for d in range(3):
        received = ranks * block * 2 * cutoff / h[d]
        crossing = 0.0 if node_grid[d] == 1 else 1 / rank_grid[d]
        inter += received * crossing
        within += received * (1 - crossing)
        if grid[d] > 1:
            messages += 2 * reach[d] * ranks * crossing
            messages_within += 2 * reach[d] * ranks * (1 - crossing)
            rounds += reach[d]
        if crossing:
            largest = max(largest, block * min(1.0, cutoff / h[d]))
        block *= 1 + 2 * cutoff / h[d]
    received = float(inter), float(within)
    return Exchange("staged", "rectangular", messages, messages_within, *received, rounds, float(largest))


def _halo_parts(edges, cutoff, offsets, shape):
    """Å^3 of the halo of box (0, 0, 0) that lies in each of the boxes at ``offsets``, shape (n,)."""
    if len(offsets) == 0:
        return np.zeros(0)
    if shape == "whole":
        return np.full(len(offsets), volume(edges))
    if shape == "rectangular":
        return volume(edges) * _depths(edges, cutoff, offsets).prod(1)
    return _culled_parts(edges, cutoff, offsets)


def _depths(edges, cutoff, offsets):
    """Share of the boxes at ``offsets``, along each axis, that the rectangular halo takes; shape of offsets."""
    reach = cutoff / heights(edges)
    return np.where(offsets == 0, 1.0, np.clip(reach - (np.abs(offsets) - 1), 0.0, 1.0))


def _culled_parts(edges, cutoff, offsets, samples=24):
    """Culled halo per neighbour box: share of ``samples``^3 midpoints nearer than the cutoff.

    The points fill what the rectangular halo takes of the box.  The shares are scaled so that their sum is
    Steiner's exact volume; what remains is an error of about 1/samples of the smallest (corner) parts.
    """
    ticks = (np.arange(samples) + 0.5) / samples
    points = np.stack(np.meshgrid(ticks, ticks, ticks, indexing="ij"), -1).reshape(-1, 3)
    half = offsets[_first_half(offsets)]  # the halo is point symmetric
    depths = _depths(edges, cutoff, half)
    starts = np.where(half < 0, 1 - depths, 0.0)  # the side that faces the box
    parts = np.array(
        [
            (distance_to_box(edges, o + start + depth * points) < cutoff).mean() * depth.prod()
            for o, start, depth in zip(half, starts, depths, strict=True)
        ]
    )
    table = {tuple(o): p for o, p in zip(half, parts, strict=True)}
    values = np.array([table[tuple(o)] if tuple(o) in table else table[tuple(-o)] for o in offsets])
    # A box that is touched in a corner too small for the sampling still gets its message.
    return values * halo_volume(edges, cutoff, "culled") / values.sum() if values.sum() else values


def _first_half(offsets):
    """Mask of one offset of every pair (o, -o)."""
    return np.array([tuple(o) > (0, 0, 0) for o in offsets])
