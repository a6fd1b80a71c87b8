"""Many independent structures as one set of atoms, so that the operators see them in one call.

The local atoms of all structures come first, structure by structure, then the periodic images of
all of them.  Structures share nothing: for building the one neighbour list they are put side by
side, further apart than the cutoff; the operators get the true positions.
"""

import numba
import numpy as np

from dpmd.kernels.neighbors import NeighborListBuilder

from .domain import _find_images, _fold_ghosts, _wrap

_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
#: Å between the nearest atoms of neighbouring structures, beyond the cutoff
_GAP = 1.0


@numba.njit(**_OPTIONS)
def _images_of_all(positions, types, offsets, inverses, periodic, halos, owners, shifts, structure_of):
    """Images of the atoms of every structure; fills the arrays as far as they reach, returns the number."""
    n = 0
    for s in range(len(offsets) - 1):
        a, b = offsets[s], offsets[s + 1]
        room = min(n, len(owners))
        found = _find_images(
            positions[a:b], types[a:b], inverses[s], periodic[s], halos[s], owners[room:], shifts[room:]
        )
        for k in range(room, min(n + found, len(owners))):
            owners[k] += a
            structure_of[k] = s
        n += found
    return n


@numba.njit(**_OPTIONS)
def _wrap_all(positions, images, offsets, cells, inverses, periodic):
    for s in range(len(offsets) - 1):
        a, b = offsets[s], offsets[s + 1]
        _wrap(positions[a:b], images[a:b], cells[s], inverses[s], periodic[s])


@numba.njit(**_OPTIONS)
def _place(positions, n_local, offsets, owners, shifts, structure_of, cells, distance, apart):
    """Positions of the images, and all positions ``apart`` in a row along x, ``distance`` (Å) between structures."""
    n_structures = len(offsets) - 1
    low, high = np.full((n_structures, 3), np.inf), np.full(n_structures, -np.inf)
    for g in range(len(owners)):
        cell, i = cells[structure_of[g]], owners[g]
        for c in range(3):
            positions[n_local + g, c] = positions[i, c] + (
                shifts[g, 0] * cell[0, c] + shifts[g, 1] * cell[1, c] + shifts[g, 2] * cell[2, c]
            )
    structure = np.empty(len(positions), np.int32)
    for s in range(n_structures):
        structure[offsets[s] : offsets[s + 1]] = s
    structure[n_local:] = structure_of
    for i in range(len(positions)):
        s = structure[i]
        for c in range(3):
            low[s, c] = min(low[s, c], positions[i, c])
        high[s] = max(high[s], positions[i, 0])
    start = np.zeros(n_structures)
    for s in range(1, n_structures):
        length = high[s - 1] - low[s - 1, 0] if high[s - 1] >= low[s - 1, 0] else 0.0  # none without atoms
        start[s] = start[s - 1] + length + distance
    for i in range(len(positions)):
        s = structure[i]
        apart[i, 0] = positions[i, 0] - low[s, 0] + start[s]
        apart[i, 1] = positions[i, 1] - low[s, 1]
        apart[i, 2] = positions[i, 2] - low[s, 2]


class Batch:
    """Atoms, images and neighbours of independent structures.

    positions : (atoms of all structures, 3) Å, structure by structure; types : their types in the
    model; offsets : (structures + 1,) first atom of each structure; cells : (structures, 3, 3) Å,
    not singular; periodic : (structures, 3) bool; cutoff : Å; builder : a
    :class:`~dpmd.kernels.neighbors.NeighborListBuilder`, whose buffers are used.

    Afterwards ``positions``, ``types`` (local atoms and images), ``neighbors``, ``offsets`` and the
    zeroed buffer ``forces`` are what the operators take.  The list is valid until the builder's next.
    """

    def __init__(self, positions, types, offsets, cells, periodic, cutoff, builder: NeighborListBuilder):
        n = self.n_local = len(positions)
        self.offsets = np.asarray(offsets, np.int64)
        cells = np.ascontiguousarray(cells, float)
        periodic = np.ascontiguousarray(periodic, bool)
        inverses = np.linalg.inv(cells)
        wrapped, types = np.array(positions, float), np.ascontiguousarray(types, np.int32)
        _wrap_all(wrapped, np.zeros((n, 3), np.int32), self.offsets, cells, inverses, periodic)
        halos = cutoff * np.linalg.norm(inverses, axis=1)
        room = 32 * n
        while True:
            owners, structure_of = np.empty(room, np.int32), np.empty(room, np.int32)
            shifts = np.empty((room, 3), np.int32)
            n_images = _images_of_all(
                wrapped, types, self.offsets, inverses, periodic, halos, owners, shifts, structure_of
            )
            if n_images <= room:
                break
            room = n_images
        self._owners = owners[:n_images]
        self.positions = np.concatenate([wrapped, np.empty((n_images, 3))])
        self.types = np.concatenate([types, types[self._owners]])
        apart = np.empty_like(self.positions)
        _place(
            self.positions, n, self.offsets, self._owners, shifts[:n_images], structure_of[:n_images], cells,
            cutoff + _GAP, apart,
        )  # fmt: skip
        self.neighbors = builder.build(apart, self.types, n, cutoff)
        self.forces = np.zeros_like(self.positions)

    def pairs(self):
        """``(centre, other, distance)`` of every pair in the list, both ways round; distances in Å."""
        rows = self.neighbors
        centre = np.repeat(np.arange(rows.n_centres), rows.count)
        skipped = rows.first - np.concatenate([[0], np.cumsum(rows.count)[:-1]])
        other = rows.indices[np.repeat(skipped, rows.count) + np.arange(len(centre))]
        return centre, other, np.linalg.norm(self.positions[other] - self.positions[centre], axis=1)

    def fold(self, values):
        """Sums (n_local, ...) of a per-atom array over local atoms and their images; changes ``values``."""
        _fold_ghosts(values.reshape(len(values), -1), self.n_local, self._owners)
        return values[: self.n_local]
