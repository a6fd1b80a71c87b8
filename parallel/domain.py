"""The atoms that one process computes, and the ghost atoms around them.

Local atoms come first, in spatial order; ghost atoms follow.  With one process the ghosts are
periodic images of its own atoms, so small cells (several images of an atom), slabs, clusters
and triclinic cells take the same path as large boxes.
"""

import numba
import numpy as np

from dpmd.kernels.neighbors import NeighborListBuilder

_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}


#: beyond this the memory of any one machine is used up
_MOST_IMAGES = 2e8


class UnusableStructure(ValueError):
    """Positions or a cell for which no neighbour list can be made; the message says why."""


def complete_cell(cell, periodic):
    """The cell with unit vectors in place of missing (zero) open lattice vectors.

    cell : (3, 3), rows are lattice vectors, Å; periodic : (3,) bool.
    Raises ValueError if the result is singular or a periodic vector is missing.
    """
    cell = np.array(cell, float).reshape(3, 3)
    missing = np.linalg.norm(cell, axis=1) < 1e-10
    if (missing & np.asarray(periodic, bool)).any():
        raise ValueError(f"lattice vector {'abc'[int(np.argmax(missing & periodic))]} is zero but periodic")
    if missing.any():
        # orthonormal directions outside the span of the vectors that are there
        _, sizes, directions = np.linalg.svd(cell)
        cell[missing] = directions[int((sizes > 1e-10).sum()) :][: missing.sum()]
    lengths = np.linalg.norm(cell, axis=1)
    if abs(np.linalg.det(cell)) < 1e-6 * lengths.prod():
        raise ValueError("the lattice vectors are (nearly) linearly dependent")
    return cell


@numba.njit(**_OPTIONS)
def _wrap(positions, images, cell, inverse, periodic):
    """Move atoms into the cell along periodic directions, counting crossings in ``images``.

    Positions inside are not touched, so wrapping twice is the same as wrapping once.
    """
    for i in range(len(positions)):
        for k in range(3):
            if not periodic[k]:
                continue
            for _ in range(3):  # rounding may leave an atom on the upper face
                f = positions[i, 0] * inverse[0, k] + positions[i, 1] * inverse[1, k] + positions[i, 2] * inverse[2, k]
                n = np.floor(f)
                if n == 0.0:
                    break
                images[i, k] += np.int32(n)
                for c in range(3):
                    positions[i, c] -= n * cell[k, c]


@numba.njit(**_OPTIONS)
def _morton_codes(positions, low, size):
    """Position of each atom's cell on a Z-order curve, so that near atoms get near numbers."""
    codes = np.empty(len(positions), np.uint64)
    for i in range(len(positions)):
        code = np.uint64(0)
        for k in range(3):
            c = np.uint64(max((positions[i, k] - low[k]) / size, 0.0))
            for bit in range(20):
                code |= ((c >> np.uint64(bit)) & np.uint64(1)) << np.uint64(3 * bit + k)
        codes[i] = code
    return codes


@numba.njit(**_OPTIONS)
def _find_images(positions, types, inverse, periodic, halo, owners, shifts):
    """Images of local atoms within ``halo`` (fractions of the cell) outside of the cell.

    Fills ``owners`` and ``shifts`` as far as they reach; returns the number of images.
    """
    n = 0
    first, last = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for i in range(len(positions)):
        if types[i] < 0:
            continue
        for k in range(3):
            if periodic[k]:
                f = positions[i, 0] * inverse[0, k] + positions[i, 1] * inverse[1, k] + positions[i, 2] * inverse[2, k]
                first[k], last[k] = np.ceil(-halo[k] - f), np.floor(1 + halo[k] - f)
        for a in range(first[0], last[0] + 1):
            for b in range(first[1], last[1] + 1):
                for c in range(first[2], last[2] + 1):
                    if a == 0 and b == 0 and c == 0:
                        continue
                    if n < len(owners):
                        owners[n] = i
                        shifts[n, 0], shifts[n, 1], shifts[n, 2] = a, b, c
                    n += 1
    return n


@numba.njit(**_OPTIONS)
def _place_ghosts(everything, n_local, owners, shifts, cell):
    for g in range(len(owners)):
        for c in range(3):
            everything[n_local + g, c] = everything[owners[g], c] + (
                shifts[g, 0] * cell[0, c] + shifts[g, 1] * cell[1, c] + shifts[g, 2] * cell[2, c]
            )


@numba.njit(**_OPTIONS)
def _fold_ghosts(values, n_local, owners):
    """Add the rows (each flattened) of ghosts to those of their owners, in order."""
    for g in range(len(owners)):
        for c in range(values.shape[1]):
            values[owners[g], c] += values[n_local + g, c]


@numba.njit(**_OPTIONS)
def _largest_displacement(positions, reference):
    largest = 0.0
    for i in range(len(positions)):
        d = 0.0
        for c in range(3):
            d += (positions[i, c] - reference[i, c]) ** 2
        if not d < np.inf:
            return np.inf
        largest = max(largest, d)
    return np.sqrt(largest)


def check_usable(system, reach):
    """Refuse what the loops over atoms and images within ``reach`` (Å) cannot bear: :class:`UnusableStructure`."""
    if not np.isfinite(system.cell).all():
        raise UnusableStructure("the cell is not made of finite numbers")
    inverse = np.linalg.inv(system.cell)
    fractions = system.positions @ inverse
    if not np.isfinite(fractions).all():
        bad = system.ids[~np.isfinite(fractions).all(axis=1)]
        raise UnusableStructure(f"positions are not finite numbers (atoms {', '.join(map(str, bad[:5]))})")
    if np.abs(fractions[:, system.periodic]).max(initial=0.0) > 1e9:
        raise UnusableStructure("an atom is more than 1e9 cells away from the cell: its position has no digits left")
    halo = 2 * reach * np.linalg.norm(inverse, axis=0)
    images = len(system.positions) * (np.prod(1 + halo * system.periodic) - 1)
    if images > _MOST_IMAGES:
        raise UnusableStructure(
            f"the cell is so small that {len(system.positions)} atoms need {images:.2g} periodic images within "
            f"{reach:g} Å"
        )


class SerialDomain:
    """One process that owns every atom.

    cutoff : Å, of the model; skin : Å, by which lists and halo reach further, so that they stay
    valid while atoms move; n_types : the model's; threads : for building lists.

    A *system* is anything with ``positions`` (n, 3), ``types`` (n,), ``ids`` (n,), ``images``
    (n, 3), ``forces`` (n, 3), ``cell`` (3, 3), ``periodic`` (3,) and ``permute(order)``.

    After :meth:`update`, ``positions`` and ``types`` (local and ghost atoms), ``neighbors`` and
    the zeroed buffer ``forces`` are what the operators take; ``ids`` tells who the atoms are.
    """

    def __init__(self, cutoff, skin, n_types, threads=1):
        self.cutoff, self.skin = float(cutoff), float(skin)
        self._builder = NeighborListBuilder(n_types, threads)
        self.neighbors = None
        self.rebuilds = 0
        self._owners, self._shifts = np.empty(0, np.int32), np.empty((0, 3), np.int32)

    @property
    def n_ghosts(self):
        return len(self.positions) - self._n_local

    def rebuild(self, system):
        """Wrap and sort the atoms, find ghosts and neighbours anew.

        Raises :class:`UnusableStructure` for positions that are not finite, and for absurd cells.

        The order depends on positions and ids alone, not on what went before, so a run that
        rebuilds when it writes a checkpoint goes on exactly as one that starts from it.
        """
        reach = self.cutoff + self.skin
        check_usable(system, reach)
        inverse = np.linalg.inv(system.cell)
        _wrap(system.positions, system.images, system.cell, inverse, system.periodic)
        if len(system.positions):
            codes = _morton_codes(system.positions, system.positions.min(axis=0), 0.5 * reach)
            system.permute(np.lexsort((system.ids, codes)))
        n = self._n_local = len(system.positions)

        halo = reach * np.linalg.norm(inverse, axis=0)
        arguments = (system.positions, system.types, inverse, system.periodic, halo)
        n_ghosts = _find_images(*arguments, self._owners, self._shifts)
        if n_ghosts > len(self._owners):
            room = int(1.1 * n_ghosts) + 64
            self._owners, self._shifts = np.empty(room, np.int32), np.empty((room, 3), np.int32)
            _find_images(*arguments, self._owners, self._shifts)
        self.owners, self.shifts = self._owners[:n_ghosts], self._shifts[:n_ghosts]

        self.positions, self.forces = np.empty((n + n_ghosts, 3)), np.zeros((n + n_ghosts, 3))
        self.types = np.concatenate([system.types, system.types[self.owners]])
        self.ids = np.concatenate([system.ids, system.ids[self.owners]])
        self._reference, self._reference_cell = system.positions.copy(), system.cell.copy()
        self._forward(system)
        self.neighbors = self._builder.build(self.positions, self.types, n, reach)
        self.rebuilds += 1

    def update(self, system):
        """Follow the atoms' motion: rebuild if the skin may be used up, else move the ghosts.

        Returns True if it rebuilt (and reordered the atoms of the system).
        """
        if self.neighbors is None or self._moved(system) > self.skin:
            self.rebuild(system)
            return True
        self._forward(system)
        self.forces.fill(0.0)
        return False

    def _moved(self, system):
        """By how much, Å, two atoms can have come nearer since the list was built."""
        displaced = 2 * _largest_displacement(system.positions, self._reference)
        if self.n_ghosts and not np.array_equal(system.cell, self._reference_cell):
            change = np.linalg.norm(system.cell - self._reference_cell, axis=1)
            displaced += float(np.abs(self.shifts).max(axis=0) @ change)
        return displaced

    def _forward(self, system):
        self.positions[: self._n_local] = system.positions
        _place_ghosts(self.positions, self._n_local, self.owners, self.shifts, system.cell)

    def free(self):
        """Give shared memory back; there is none."""

    def reset_counters(self):
        """Count from here on; there is nothing to count."""

    def fold(self, values):
        """Sums (n_local, ...) of a per-atom array over local atoms and their ghosts.

        ``values`` : (local and ghost atoms, ...) float64; changed in place.
        """
        _fold_ghosts(values.reshape(len(values), int(np.prod(values.shape[1:]))), self._n_local, self.owners)
        return values[: self._n_local]
