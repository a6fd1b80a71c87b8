"""Boxes that nodes own: a grid along the lattice vectors with movable boundaries.  No MPI.

All lengths in Å, positions within the cell in fractions of the lattice vectors.  Everything here
is a pure function of the cell, the boundaries and the positions, so that every rank finds the
same answer by itself and so that communication can be counted without any (see
``examples/benchmarks/decomposition.py``).
"""

from dataclasses import dataclass, field
from itertools import product

import numpy as np

from .domain import _morton_codes
from .geometry import choose_grid, distance_to_box, heights

#: a box at an open end of the grid reaches this far (fractions of the cell)
_FAR = 1e6
#: Å, by which halos are larger than asked for, against rounding
_ROUNDING = 1e-6
#: bins per axis of the histograms from which boundaries are placed
HISTOGRAM_BINS = 1024
#: boundaries move when the fullest box has this many times the mean, ...
IMBALANCE_LIMIT = 1.1
#: ... and if that makes it smaller by at least this factor
WORTHWHILE_GAIN = 0.95


@dataclass
class Partition:
    """A cell cut into boxes.

    cell : (3, 3) Å, rows are lattice vectors; grid : boxes along each; periodic : (3,) bool;
    boundaries : three increasing arrays (grid[d] + 1,) of fractions, 0 to 1 where periodic.  The
    first and last box of an open axis reach beyond the outer boundaries without end.

    Boxes are numbered with the last axis fastest.
    """

    cell: np.ndarray
    grid: tuple[int, int, int]
    periodic: np.ndarray
    boundaries: tuple[np.ndarray, np.ndarray, np.ndarray]
    _neighbors: dict = field(default_factory=dict, repr=False)

    @property
    def n_boxes(self):
        return int(np.prod(self.grid))

    def same_as(self, other):
        """Whether cell and boxes are the same."""
        return (
            self.grid == other.grid
            and np.array_equal(self.cell, other.cell)
            and all(map(np.array_equal, self.boundaries, other.boundaries))
        )

    def index(self, box):
        """Grid index (3,) of a box number, or (n, 3) of (n,) numbers."""
        return np.stack(np.unravel_index(box, self.grid), -1)

    def owners(self, fractions):
        """The boxes (n,) that hold fractional positions (n, 3), wrapped along periodic axes."""
        index = [
            np.clip(np.searchsorted(self.boundaries[d], fractions[:, d], side="right") - 1, 0, self.grid[d] - 1)
            for d in range(3)
        ]
        return np.ravel_multi_index(index, self.grid)

    def limits(self, boxes):
        """Lower and upper corners, each (..., 3) fractions, of boxes given by number."""
        index = self.index(boxes)
        lower = np.stack([self.boundaries[d][index[..., d]] for d in range(3)], -1)
        upper = np.stack([self.boundaries[d][index[..., d] + 1] for d in range(3)], -1)
        first, last = index == 0, index == np.array(self.grid) - 1
        open_axes = ~np.asarray(self.periodic, bool)
        return np.where(first & open_axes, -_FAR, lower), np.where(last & open_axes, _FAR, upper)

    def neighbors(self, box, reach):
        """What box ``box`` exchanges halos of width ``reach`` with.

        Returns ``[(other, shifts)]`` in increasing order of ``other``: its atoms within ``reach``
        of the other box, once displaced by one of ``shifts`` (m, 3) (lattice vectors), are ghosts
        there.  The box itself is listed if it meets its own periodic images.  Any two boxes
        agree on being neighbours: distances are computed the same way from both sides.
        """
        if (box, reach) not in self._neighbors:
            self._neighbors[box, reach] = self._find_neighbors(box, reach)
        return self._neighbors[box, reach]

    def _find_neighbors(self, box, reach):
        halo = (reach + 2 * _ROUNDING) / heights(self.cell)
        index, (lower, upper) = self.index(box), self.limits(box)
        axes = []
        for d in range(3):
            if not self.periodic[d]:
                axes.append([(k, 0) for k in range(self.grid[d])])
                continue
            shifts = range(int(np.floor(lower[d] - halo[d] - 1)), int(np.ceil(upper[d] + halo[d])) + 1)
            edges = self.boundaries[d]
            axes.append([
                (k, s) for k in range(self.grid[d]) for s in shifts
                if edges[k] + s < upper[d] + halo[d] and edges[k + 1] + s > lower[d] - halo[d]
            ])  # fmt: skip
        found = np.array(list(product(*axes))).reshape(-1, 3, 2)
        others, shifts = np.ravel_multi_index(found[:, :, 0].T, self.grid), found[:, :, 1]
        elsewhere = (found[:, :, 0] != index).any(1) | (shifts != 0).any(1)
        others, shifts = others[elsewhere], shifts[elsewhere]
        near = self._distances(box, others, shifts) < reach
        others, shifts = others[near], shifts[near]
        return [(int(other), -shifts[others == other]) for other in np.unique(others)]

    def _distances(self, box, others, shifts):
        """Å between ``box`` and ``others`` displaced by ``shifts``; from the lower box number of each pair."""
        sign = np.sign(shifts @ [9e12, 3e6, 1])  # of the first axis that is displaced, for a box and itself
        turned = (others < box) | ((others == box) & (sign < 0))
        one, two = np.where(turned, others, box), np.where(turned, box, others)
        shifts = np.where(turned[:, None], -shifts, shifts)
        (low_one, high_one), (low_two, high_two) = self.limits(one), self.limits(two)
        return distance_to_box(self.cell, np.zeros(3), low_two + shifts - high_one, high_two + shifts - low_one)

    def halo(self, fractions, other, shifts, reach, shape="culled"):
        """Atoms among ``fractions`` (n, 3) that are ghosts of box ``other``.

        shifts : (m, 3) as :meth:`neighbors` gives them; shape : see
        :mod:`dpmd.parallel.geometry`.  Returns ``(atoms, shifts)``, (k,) and (k, 3): an atom
        appears once per shift that brings it near.
        """
        if shape == "whole":
            return np.tile(np.arange(len(fractions)), len(shifts)), np.repeat(shifts, len(fractions), axis=0)
        width = (reach + _ROUNDING) / heights(self.cell)
        lower, upper = self.limits(other)
        atoms, rows = [], []
        for shift in shifts:
            moved = fractions + shift
            found = np.flatnonzero(((moved >= lower - width) & (moved <= upper + width)).all(1))
            if shape == "culled":
                # next to a face the width is the distance; beyond edges and corners it is less
                outside = ((moved[found] < lower) | (moved[found] > upper)).sum(axis=1)
                beyond = np.flatnonzero(outside > 1)
                if len(beyond):
                    far = distance_to_box(self.cell, moved[found[beyond]], lower, upper) > reach + _ROUNDING
                    found = np.delete(found, beyond[far])
            atoms.append(found)
            rows.append(np.broadcast_to(shift, (len(found), 3)))
        return np.concatenate(atoms), np.concatenate(rows)


def equal_boundaries(grid, low=(0.0, 0.0, 0.0), high=(1.0, 1.0, 1.0)):
    """Boundaries of equal boxes between ``low`` and ``high`` (fractions along each axis)."""
    return tuple(np.linspace(a, b, n + 1) for a, b, n in zip(low, high, grid, strict=True))


def histograms(fractions, low, high):
    """Atoms per bin along each axis, (3, HISTOGRAM_BINS) int64, between ``low`` and ``high``."""
    counts = np.zeros((3, HISTOGRAM_BINS), np.int64)
    for d in range(3):
        bins = (fractions[:, d] - low[d]) * (HISTOGRAM_BINS / (high[d] - low[d]))
        counts[d] = np.bincount(np.clip(bins.astype(np.int64), 0, HISTOGRAM_BINS - 1), minlength=HISTOGRAM_BINS)
    return counts


def balanced_boundaries(grid, counts, low, high):
    """Boundaries with equally many atoms between neighbouring ones along each axis.

    counts : :func:`histograms` of all atoms.  Within a bin atoms are taken as evenly spread, and
    every box keeps a thickness of at least a thousandth of an equal share.
    """
    boundaries = []
    for d, n in enumerate(grid):
        edges = np.linspace(low[d], high[d], HISTOGRAM_BINS + 1)
        # a little of everything everywhere, so that the sum grows strictly
        density = counts[d] + 1e-3 * max(counts[d].mean(), 1e-3)
        cumulative = np.concatenate([[0.0], np.cumsum(density)])
        boundaries.append(np.interp(np.arange(n + 1) / n * cumulative[-1], cumulative, edges))
    return tuple(boundaries)


def divide_cell(processes, cell, periodic, fractions, n_boxes, reach):
    """``(partition, imbalance)``: equal boxes, or balanced ones where that pays.  Collective.

    fractions : (n, 3), of the atoms of this process; reach : Å, of the halos; imbalance : atoms in the
    fullest box over the mean.  It depends on cell and positions alone, not on who has which atoms.
    """
    p, periodic = processes, np.asarray(periodic, bool)
    low, high = np.zeros(3), np.ones(3)
    if not periodic.all():
        ends = p.largest(np.concatenate([fractions, -fractions], axis=1).max(axis=0, initial=-np.inf))
        high = np.where(periodic, 1.0, ends[:3] + 1e-9)
        low = np.where(periodic, 0.0, -ends[3:] - 1e-9)
    if not np.isfinite([low, high]).all():
        low, high = np.zeros(3), np.ones(3)
    grid = choose_grid(cell * (high - low)[:, None], n_boxes, reach, tuple(periodic))

    def trial(boundaries):
        partition = Partition(cell.copy(), grid, periodic, boundaries)
        counts = p.sum(np.bincount(partition.owners(fractions), minlength=n_boxes))
        return partition, float(counts.max() * n_boxes / max(counts.sum(), 1))

    partition, imbalance = trial(equal_boundaries(grid, low, high))
    if imbalance > IMBALANCE_LIMIT:
        counts = p.sum(histograms(fractions, low, high))
        moved, better = trial(balanced_boundaries(grid, counts, low, high))
        if better < WORTHWHILE_GAIN * imbalance:
            return moved, better
    return partition, imbalance


def share_of_rank(positions, ids, work, ranks, rank):
    """Rank ``rank``'s atoms when a node's atoms are cut into ``ranks`` shares of equal work.

    positions : (n, 3) Å; ids : (n,) settle ties; work : (n,) per atom, or None for equal counts,
    which then differ by one at most.  Returns the indices of the share, sorted in space.

    Recursive bisection: ranks are halved, and atoms with them across the direction in which they
    reach furthest, so a share is compact whichever shape and corner it has.  Every rank follows
    only the branch that leads to it.  M. J. Berger and S. H. Bokhari, IEEE Trans. Comput. C-36,
    570 (1987).
    """
    atoms = np.arange(len(positions))
    sizes = np.diff((np.arange(ranks + 1) * len(positions)) // ranks)
    first, last = 0, ranks
    while last - first > 1:
        middle = (first + last) // 2
        if len(atoms):
            axis = int(np.argmax(np.ptp(positions[atoms], axis=0)))
            atoms = atoms[np.lexsort((ids[atoms], positions[atoms, axis]))]
        if work is None:
            cut = int(sizes[first:middle].sum())
        else:
            done = np.cumsum(work[atoms])
            target = (middle - first) / (last - first) * (done[-1] if len(atoms) else 0.0)
            cut = int(np.searchsorted(done - 0.5 * work[atoms], target))
        if rank < middle:
            atoms, last = atoms[:cut], middle
        else:
            atoms, first = atoms[cut:], middle
    return atoms


def sorted_in_space(atoms, positions, ids, size):
    """``atoms`` (indices) along a Z-order curve with cells of ``size`` Å; ties by id."""
    if len(atoms) == 0:
        return atoms
    chosen = positions[atoms]
    return atoms[np.lexsort((ids[atoms], _morton_codes(chosen, chosen.min(axis=0), size)))]
