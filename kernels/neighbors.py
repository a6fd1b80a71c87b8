"""Neighbour lists: all neighbours of the local atoms within a cutoff, in O(N).

Periodic images and other nodes' atoms are explicit ghost atoms, so the list knows no cell:
any lattice, any mix of periodic and open directions, and cells smaller than the cutoff are
the same case.

Cost per build (a: atoms, n: neighbours per atom within the list cutoff, cells of half a
cutoff): 125 cells hold about 125 / (8 * 4.19) n = 3.7 n candidates per centre, 6 flops each,
and a row of n 4-byte indices is written.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

from .threads import run_shares

#: cells per cutoff length; two gives the fewest candidates per visited cell for liquids
_CELLS_PER_CUTOFF = 2
#: candidates are compared in single precision; Å added to the cutoff for its rounding
_ROUNDING = 1e-5
_OPTIONS = {"cache": True, "nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}


def _nothing_to_fetch(wait=True):
    """All positions are here."""


@dataclass
class NeighborList:
    """Full neighbour list in rows.

    The neighbours of centre ``i`` are ``indices[first[i] : first[i] + count[i]]`` (int32, into
    local and ghost atoms), sorted by type; atoms within ``cutoff`` (Å) and possibly a rounding
    more.  ``indices`` may hold unused room between rows.

    Positions of ghosts may still be on their way: rows of the centres in ``late`` (centres,) bool name
    some, and ``fetch()`` returns when they are there.  ``fetch(wait=False)`` returns at once, but moves
    messages on, which in most MPI libraries happens only while one of their functions runs.
    """

    first: np.ndarray
    count: np.ndarray
    indices: np.ndarray
    cutoff: float
    late: np.ndarray | None = None
    fetch: Callable = _nothing_to_fetch

    @property
    def n_centres(self):
        return len(self.first)


@numba.njit(**_OPTIONS)
def _sort_into_cells(positions, types, n_types, low, inverse_size, shape):
    """Counting sort of the atoms by (cell, type); atoms of negative type are left out."""
    n = len(positions)
    n_bins = shape[0] * shape[1] * shape[2] * n_types
    start = np.zeros(n_bins + 1, np.int64)
    bin_of = np.full(n, -1, np.int64)
    for i in range(n):
        if types[i] < 0:
            continue
        c = np.int64(0)
        for k in range(3):
            c = c * shape[k] + min(max(np.int64((positions[i, k] - low[k]) * inverse_size[k]), 0), shape[k] - 1)
        bin_of[i] = c * n_types + types[i]
        start[bin_of[i] + 1] += 1
    for b in range(n_bins):
        start[b + 1] += start[b]
    order = np.empty(start[n_bins], np.int32)
    fill = start[:n_bins].copy()
    for i in range(n):
        if bin_of[i] >= 0:
            order[fill[bin_of[i]]] = i
            fill[bin_of[i]] += 1
    return order, start


@numba.njit(**_OPTIONS)
def _stencil(cell, shape):
    """Ranges ``x0, x1, y0, y1, z0, z1`` of the cells around ``cell`` that may hold its neighbours."""
    x, y, z = cell // (shape[1] * shape[2]), (cell // shape[2]) % shape[1], cell % shape[2]
    return (
        max(x - _CELLS_PER_CUTOFF, 0), min(x + _CELLS_PER_CUTOFF + 1, shape[0]),
        max(y - _CELLS_PER_CUTOFF, 0), min(y + _CELLS_PER_CUTOFF + 1, shape[1]),
        max(z - _CELLS_PER_CUTOFF, 0), min(z + _CELLS_PER_CUTOFF + 1, shape[2]),
    )  # fmt: skip


@numba.njit(**_OPTIONS)
def _most_candidates(cells, shape, n_types, start):
    """The largest number of atoms in the cells around one of ``cells``."""
    most = 0
    for cell in cells:
        x0, x1, y0, y1, z0, z1 = _stencil(cell, shape)
        held = 0
        for x in range(x0, x1):
            for y in range(y0, y1):
                column = (x * shape[1] + y) * shape[2]
                held += start[(column + z1) * n_types] - start[(column + z0) * n_types]
        most = max(most, held)
    return most


@numba.njit(**_OPTIONS)
def _gather_candidates(cell, shape, n_types, order, start, positions, origin, offsets, candidate):
    """Atoms of the cells around ``cell``, type by type, as single-precision offsets from ``origin``.

    Returns the number of candidates.
    """
    x0, x1, y0, y1, z0, z1 = _stencil(cell, shape)
    x_origin, y_origin, z_origin = positions[origin, 0], positions[origin, 1], positions[origin, 2]
    m = 0
    for t in range(n_types):
        for x in range(x0, x1):
            for y in range(y0, y1):
                for z in range(z0, z1):
                    b = ((x * shape[1] + y) * shape[2] + z) * n_types + t
                    for k in range(start[b], start[b + 1]):
                        j = order[k]
                        offsets[0, m] = positions[j, 0] - x_origin
                        offsets[1, m] = positions[j, 1] - y_origin
                        offsets[2, m] = positions[j, 2] - z_origin
                        candidate[m] = j
                        m += 1
    return m


@numba.njit(**_OPTIONS)
def _fill_share(
    share, cells, cell_shares, positions, n_local, n_types, order, start, shape, cutoff, first, count, indices, room
):
    """Write the rows of the centres in one share of the cells to its part of ``indices``.

    Each share has ``room`` places.  Returns the room that is certainly enough; if it exceeds
    ``room`` the rows are incomplete and the call has to be repeated with more.
    """
    cutoff2 = np.float32(cutoff * cutoff)
    cells = cells[cell_shares[share] : cell_shares[share + 1]]
    most = _most_candidates(cells, shape, n_types, start)
    offsets, distance2 = np.empty((3, most), np.float32), np.empty(most, np.float32)
    candidate = np.empty(most, np.int32)
    p, end, total = share * room, (share + 1) * room, 0
    for cell in cells:
        first_atom, last_atom = start[cell * n_types], start[(cell + 1) * n_types]
        origin = order[first_atom]
        m = _gather_candidates(cell, shape, n_types, order, start, positions, origin, offsets, candidate)
        for k in range(first_atom, last_atom):
            i = order[k]
            if i >= n_local:
                continue
            x = np.float32(positions[i, 0] - positions[origin, 0])
            y = np.float32(positions[i, 1] - positions[origin, 1])
            z = np.float32(positions[i, 2] - positions[origin, 2])
            for q in range(m):
                dx, dy, dz = offsets[0, q] - x, offsets[1, q] - y, offsets[2, q] - z
                distance2[q] = dx * dx + dy * dy + dz * dz
            n = 0
            if p + m <= end:
                for q in range(m):  # branch-free: always write, advance when near enough
                    indices[p + n] = candidate[q]
                    n += (distance2[q] < cutoff2) & (candidate[q] != i)
                first[i], count[i] = p, n
                p += n
            else:
                for q in range(m):
                    n += (distance2[q] < cutoff2) & (candidate[q] != i)
            total += n
    return total + most


@numba.njit(**_OPTIONS)
def _occupied_cells(order, start, n_types, n_local, n_cells):
    """Cells that hold a local atom, and how many local atoms precede each (cells + 1,)."""
    cells, before = np.empty(n_cells, np.int64), np.zeros(n_cells + 1, np.int64)
    n = 0
    for cell in range(n_cells):
        held = 0
        for k in range(start[cell * n_types], start[(cell + 1) * n_types]):
            held += order[k] < n_local
        if held:
            cells[n] = cell
            before[n + 1] = before[n] + held
            n += 1
    return cells[:n], before[: n + 1]


def _cell_grid(positions, cutoff):
    """Lower corner, inverse cell sizes (1/Å) and shape of a grid of cells of half a cutoff.

    Cells grow where the atoms are so sparse that most would be empty.
    """
    low, high = positions.min(axis=0), positions.max(axis=0)
    extent = np.maximum(high - low, 1e-3)
    size = cutoff / _CELLS_PER_CUTOFF
    while np.prod(np.ceil(extent / size)) > 4 * len(positions) + 64:
        size *= 1.26
    shape = np.maximum(np.floor(extent / size), 1).astype(np.int64)
    return low, shape / extent, shape


class NeighborListBuilder:
    """Builds lists, keeping its buffers between calls.

    n_types : number of atom types of the model; threads : shares that are filled at once.
    """

    def __init__(self, n_types, threads=1):
        self.n_types, self.threads = n_types, threads
        self._indices, self._room = np.empty(0, np.int32), 0

    def build(self, positions, types, n_local, cutoff):
        """Neighbours of atoms ``0 .. n_local - 1`` among all atoms.

        positions : (atoms, 3) float64, Å, finite; types : (atoms,) int32, negative for atoms
        that are nobody's neighbour and have none; cutoff : Å, skin included.
        Returns a :class:`NeighborList` that is valid until the next call.
        """
        first, count = np.zeros(n_local, np.int64), np.zeros(n_local, np.int32)
        if n_local == 0:
            return NeighborList(first, count, self._indices[:0], cutoff)
        low, inverse_size, shape = _cell_grid(positions, cutoff)
        order, start = _sort_into_cells(positions, types, self.n_types, low, inverse_size, shape)
        cells, before = _occupied_cells(order, start, self.n_types, n_local, int(np.prod(shape)))
        shares = np.searchsorted(before, np.linspace(0, before[-1], self.threads + 1)).astype(np.int64)
        while True:
            needed = run_shares(
                _fill_share, self.threads, cells, shares, positions, n_local, self.n_types, order, start, shape,
                cutoff + _ROUNDING, first, count, self._indices, self._room,
            )  # fmt: skip
            if max(needed) <= self._room:
                return NeighborList(first, count, self._indices, cutoff)
            self._room = int(1.1 * max(needed)) + 64
            self._indices = np.empty(self.threads * self._room, np.int32)


@numba.njit(**_OPTIONS)
def survey(positions, types, chosen, first, count, indices, cutoff, sel):
    """Distances and numbers of neighbours within ``cutoff`` (Å) of the centres in a list.

    positions, types : of local atoms and ghosts; chosen : (centres,) bool, which centres to look at; first, count,
    indices : of :class:`NeighborList`; sel : (T,) neighbours of each type that a model has room for.
    Returns ``(nearest, pairs, most, total, overflowing, alone)``: (T, T) Å, from type to type, inf where there
    is no pair; (T, T, 2) its atoms, centre first; (T,) the most and the sum of neighbours of each type, and
    centres with more than ``sel``; centres without any neighbour.
    """
    n_types = len(sel)
    nearest, pairs = np.full((n_types, n_types), np.inf), np.zeros((n_types, n_types, 2), np.int64)
    most, total = np.zeros(n_types, np.int64), np.zeros(n_types, np.int64)
    overflowing, mine, alone = np.zeros(n_types, np.int64), np.zeros(n_types, np.int64), 0
    for i in range(len(first)):
        if not chosen[i] or types[i] < 0:
            continue
        mine[:] = 0
        for slot in range(first[i], first[i] + count[i]):
            j = indices[slot]
            d = 0.0
            for c in range(3):
                d += (positions[j, c] - positions[i, c]) ** 2
            if d < cutoff * cutoff:
                mine[types[j]] += 1
                if d < nearest[types[i], types[j]]:
                    nearest[types[i], types[j]] = d
                    pairs[types[i], types[j], 0], pairs[types[i], types[j], 1] = i, j
        alone += mine.sum() == 0
        for t in range(n_types):
            most[t] = max(most[t], mine[t])
            total[t] += mine[t]
            overflowing[t] += mine[t] > sel[t]
    return np.sqrt(nearest), pairs, most, total, overflowing, alone
