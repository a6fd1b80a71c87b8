"""One GPU that owns every atom: the domain of :class:`SerialDomain`, on the device.

Wrapping, spatial order, ghosts and neighbour lists as there, from the same rules; the host reads the
numbers of ghosts and neighbours at a rebuild, and one flag a step (whether the skin is used up).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpmd.kernels.cuda.operators import FIXED_SCALE

#: cells per cutoff length of the search for neighbours
_CELLS_PER_CUTOFF = 2


@dataclass
class DeviceNeighbors:
    """Neighbours on the device: rows (centres, stride) int32, counts (centres, T) int32 by type.

    centres : (n,) int32, local atoms by type; type_counts : how many of each;
    generation : changes when arrays have moved, so that recorded steps are void; version : with every build;
    follow : moves the ghosts, to be called before every evaluation (recorded with it);
    with_virial : whether every evaluation computes the virial too; else reading it costs one more;
    ahead : set by the operators: evaluates this list; called while the host still waits to hear whether the
    list is good, and then is_ahead.
    """

    rows: Any
    counts: Any
    centres: Any
    type_counts: list
    generation: int
    version: int
    follow: Callable
    with_virial: bool = False
    ahead: Callable = None
    is_ahead: bool = False

    @property
    def count(self):
        """(centres,) int32, on the host."""
        return self.counts.sum(axis=1).get() if hasattr(self.counts, "get") else self.counts.sum(axis=1)

    @property
    def mean(self):
        """Neighbours per centre in the list."""
        return float(self.counts.sum()) / max(len(self.counts), 1)


class DeviceDomain:
    """See :class:`dpmd.parallel.SerialDomain`; systems are :class:`dpmd.device_system.DeviceSystem`.

    cutoff, skin : Å; n_types : the model's; device : a :class:`dpmd.kernels.cuda.CudaDevice`;
    with_virial : whether evaluations compute the virial too, for ensembles that read it at every step.
    """

    def __init__(self, cutoff, skin, n_types, device, with_virial=False):
        self.with_virial = with_virial
        self.cutoff, self.skin, self.n_types, self.device = float(cutoff), float(skin), n_types, device
        self.neighbors, self.rebuilds, self.n_ghosts = None, 0, 0
        self._kernels = device.compile(("atoms.cu",), {})
        self._flag = device.flag()
        self._stride, self._generation, self._limit2 = 0, 0, 0.0
        self._rows = self._owners = self._numbers = self._reference = self._check = None
        self._small = {}

    @property
    def stride(self):
        """Room for neighbours of a centre."""
        return self._stride

    # ------------------------------------------------------------------ small arrays

    def _upload(self, name, values, dtype):
        """Small numbers of a rebuild, kept at the same address so that recorded steps see new ones."""
        values = np.ascontiguousarray(values, dtype)
        if name not in self._small:
            self._small[name] = values.copy(), self.device.upload(values)
        known, array = self._small[name]
        if not np.array_equal(known, values):
            known[...] = values
            array[...] = self.device.upload(values)
        return array

    # ------------------------------------------------------------------ lists

    def rebuild(self, system):
        """Wrap and sort the atoms, find ghosts and neighbours anew; order from positions and ids alone."""
        reach, inverse = self.cutoff + self.skin, np.linalg.inv(system.cell)
        self._cell = self._upload("cell", system.cell, np.float64)
        self._inverse = self._upload("inverse", inverse, np.float64)
        self._periodic = self._upload("periodic", system.periodic, np.int32)
        self._sort(system, reach, inverse)
        self._find_ghosts(system, reach, inverse)
        self._build(system, reach)
        self.positions, self.forces = system.atoms, system.device_array("forces")
        if self._reference is None or len(self._reference) != len(system):
            self._reference = system.atoms[: len(system)].copy()
            self._check = None
        else:
            self._reference[...] = system.atoms[: len(system)]
        self._reference_cell, self._farthest = system.cell.copy(), None
        self.rebuilds += 1
        self._flag.clear()

    def _sort(self, system, reach, inverse):
        n, device = len(system), self.device
        bits = (31 - int(self.n_types).bit_length()) // 3
        parts = np.clip(np.floor(2 / (reach * np.linalg.norm(inverse, axis=0))), 1, 2 ** (bits - 1))
        keys = device.empty(n, np.int64)
        self._kernels.threads(
            "wrap_atoms", n, n, system.atoms, system.device_array("images"), system.device_array("types"),
            self.n_types, self._cell, self._inverse, self._periodic, self._upload("parts", parts, np.int32), bits,
            system.device_array("ids"), keys,
        )  # fmt: skip
        system.permute(device.xp.argsort(keys))

    def _find_ghosts(self, system, reach, inverse):
        n, device = len(system), self.device
        halo = self._upload("halo", reach * np.linalg.norm(inverse, axis=0), np.float64)
        types = system.device_array("types")
        number = device.empty(n, np.int32)
        arguments = (n, system.atoms, types, self._inverse, self._periodic, halo)
        self._kernels.threads("find_images", n, *arguments, None, number, None, None)
        last = device.xp.cumsum(number, dtype=np.int32)
        self.n_ghosts = int(last[-1]) if n else 0
        if self._owners is None or self.n_ghosts > len(self._owners):
            room = int(1.1 * self.n_ghosts) + 64
            self._owners, self._shifts = device.empty(room, np.int32), device.empty((room, 3), np.int32)
            self._generation += 1
        if self.n_ghosts:
            self._kernels.threads("find_images", n, *arguments, last - number, number, self._owners, self._shifts)
        self._number = self._upload("ghosts", [self.n_ghosts], np.int32)
        if system.reserve(n + len(self._owners)):
            self._generation += 1
        self._place_ghosts(system)
        self.types = types
        if self.n_ghosts:
            self.types = device.xp.concatenate([types, types[self._owners[: self.n_ghosts]]])

    def _place_ghosts(self, system):
        self._kernels.threads(
            "place_ghosts", len(self._owners), len(system), self._number, system.atoms, self._owners, self._shifts,
            self._cell,
        )  # fmt: skip

    def _bins(self, low, high, n, reach):
        """Inverse bin sizes (1/Å) and shape of a grid of bins of half the reach, larger where atoms are sparse."""
        extent = np.maximum(high - low, 1e-3)
        size = reach / _CELLS_PER_CUTOFF
        while np.prod(np.ceil(extent / size)) * self.n_types > 8 * n + 64:
            size *= 1.26
        shape = np.maximum(np.floor(extent / size), 1).astype(np.int64)
        return shape / extent, shape

    def _build(self, system, reach):
        device, kernels, xp = self.device, self._kernels, self.device.xp
        n, total = len(system), len(system) + self.n_ghosts
        low, high = self._extent(system, total, reach)
        inverse_size, shape = self._bins(low, high, total, reach)
        origin = 0.5 * (low + high)
        margin = 1e-5 + 4e-7 * float(np.abs(high - origin).max())  # candidates are compared in single precision
        low = self._upload("low", low, np.float64)
        inverse_size = self._upload("inverse_size", inverse_size, np.float64)
        shape_on_device = self._upload("shape", shape, np.int32)
        origin_on_device = self._upload("origin", origin, np.float64)
        bins = device.empty(total, np.int32)
        kernels.threads(
            "bin_atoms", total, total, system.atoms, self.types, low, inverse_size, shape_on_device, self.n_types, bins
        )  # fmt: skip
        order = xp.argsort(bins)
        n_bins = int(np.prod(shape)) * self.n_types
        if self._numbers is None or len(self._numbers) != n_bins + 1:
            self._numbers = xp.arange(n_bins + 1, dtype=np.int32)
        start = xp.searchsorted(bins[order], self._numbers).astype(np.int32)
        candidates = device.empty((total, 4), np.float32)
        kernels.threads("gather_candidates", total, total, system.atoms, order, origin_on_device, candidates)
        longest = device.zeros(1, np.int32)
        counts = self._counts(n)
        while True:
            if self._rows is None or self._rows.shape != (n, self._stride):
                self._rows = None
                self._rows = device.empty((n, self._stride), np.int32)
                self._generation += 1
            kernels.warps(
                "build_rows", n, n, system.atoms, self.types, candidates, start, low, inverse_size, shape_on_device,
                origin_on_device, self.n_types, np.float32((reach + margin) ** 2), self._stride, self._rows, counts,
                longest,
            )  # fmt: skip
            found = int(longest[0])
            if found <= self._stride:
                break
            self._stride = (int(1.04 * found) + 4) // 4 * 4
        if self.neighbors is None or len(self.neighbors.centres) != n:
            types = system.device_array("types")
            centres = xp.arange(n, dtype=np.int32)  # atoms are sorted by type
            type_counts = [int((types == t).sum()) for t in range(self.n_types)]
            self._generation += 1
        else:
            centres, type_counts = self.neighbors.centres, self.neighbors.type_counts
        self.neighbors = DeviceNeighbors(
            self._rows, counts, centres, type_counts, self._generation, self.rebuilds,
            partial(self._place_ghosts, system), self.with_virial,
        )  # fmt: skip

    def _extent(self, system, total, reach):
        """Corners (low, high), Å, of a box around all atoms, ghosts included."""
        if system.periodic.all():
            halo = reach * np.linalg.norm(np.linalg.inv(system.cell), axis=0)
            corners = np.array([[-h, 1 + h] for h in halo])
            points = np.stack(np.meshgrid(*corners, indexing="ij"), axis=-1).reshape(-1, 3) @ system.cell
            return points.min(axis=0), points.max(axis=0)
        here = system.atoms[:total, :3]
        corners = self.device.xp.stack([here.min(axis=0), here.max(axis=0)])
        low, high = np.nan_to_num(self.device.download(corners))
        return low, high

    def _counts(self, n):
        have = self.neighbors.counts if self.neighbors is not None else None
        if have is None or len(have) != n:
            self._generation += 1
            return self.device.zeros((n, self.n_types), np.int32)
        return have

    # ------------------------------------------------------------------ a step

    def update(self, system):
        """Follow the atoms' motion: rebuild if the skin may be used up; returns True if so.

        Ghosts move at the next evaluation, see :class:`DeviceNeighbors`.
        """
        if self.neighbors is None or self._moved(system):
            self.rebuild(system)
            return True
        return False

    def _moved(self, system):
        """True if two atoms can have come nearer than the list allows for."""
        free = self.skin
        if self.n_ghosts and not np.array_equal(system.cell, self._reference_cell):
            change = np.linalg.norm(system.cell - self._reference_cell, axis=1)
            free -= float(self._largest_shifts() @ change)
            self._upload("cell", system.cell, np.float64)
        if free <= 0:
            return True
        key = (free, system.atoms.shape, id(self._reference))
        if self._check is None or self._check_key != key:
            n = len(system)
            self._check_key, self._check = key, self._kernels.prepared(
                "check_motion", n, n, system.atoms, self._reference, (0.5 * free) ** 2, self._flag.pointer
            )  # fmt: skip
        self._check()
        self._flag.mark()
        if self.neighbors.ahead is not None:
            # the forces of a list that is most likely still good: the GPU need not wait for the host
            self.neighbors.ahead()
            self.neighbors.is_ahead = True
        return bool(self._flag.read())

    def _largest_shifts(self):
        """(3,) how many cell vectors the farthest ghosts are away from their owners."""
        if self._farthest is None:
            shifts = self._shifts[: self.n_ghosts]
            self._farthest = self.device.download(self.device.xp.abs(shifts).max(axis=0)).astype(float)
        return self._farthest

    def fold(self, forces):
        """Forces of ghosts were added to their owners by the kernels already.

        Those of the step stay on the device; others, in fixed point (n, 4), come back as (n, 3) eV/Å.
        """
        if forces is self.forces or forces.dtype != np.int64:
            return forces
        return self.device.download(forces)[:, :3] / FIXED_SCALE
