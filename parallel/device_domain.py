"""GPUs that own boxes of the cell, or one that owns every atom: the domain of :class:`SerialDomain`, on devices.

Wrapping, spatial order, ghosts and neighbour lists as there, from the same rules; the host reads the
numbers of ghosts and neighbours at a rebuild, and one flag a step (whether the skin is used up).

On each device, in ``atoms``:   local atoms | ghosts from other ranks | images of local atoms
and in ``forces``:              local atoms | ghosts from other ranks

A halo is sent as rows of ``atoms``, whose fourth number, the row of ``forces``, the sender sets to what
the receiver has told it; so it arrives where it belongs.  Forces on it go back by the same routes and are
added as integers, in whatever order, so a run is bitwise repeatable.  With several ranks every part has
room to spare, so that steps which were recorded stay valid while atoms come and go: the atoms there have
type -1, and centres to spare are all one of them, which has no neighbours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpmd.kernels.cuda.operators import FIXED_SCALE

from .device_exchange import make_exchange
from .migration import deliver
from .partition import IMBALANCE_LIMIT, Partition, divide_cell, equal_boundaries
from .processes import OneProcess

#: part of the skin that may be used up for the next forces to be computed before the host has looked
_NEAR = 0.95
#: cells per cutoff length of the search for neighbours
_CELLS_PER_CUTOFF = 2
#: Å, by which halos are larger than asked for, against rounding
_ROUNDING = 1e-6


def _with_room(counts):
    """Room for numbers of atoms (-1: none ever) that fluctuate, as those in a box of a liquid do."""
    return np.where(counts < 0, 0, counts + np.sqrt(np.maximum(counts, 0)).astype(np.int64) + 32)


@dataclass
class DeviceNeighbors:
    """Neighbours on the device: rows (centres, stride) int32, counts (centres, T) int32 by type.

    n : local atoms, which come first among the centres; the rest is room to spare;
    centres : (centres,) int32, local atoms by type; type_counts : how many of each;
    generation : changes when arrays have moved, so that recorded steps are void; version : with every build;
    follow : moves the ghosts, to be called before every evaluation, and give_back, to be called after it,
    brings the forces on them to their owners; recordable : whether both can be part of a recorded step;
    with_virial : whether every evaluation computes the virial too; else reading it costs one more;
    ahead : set by the operators: evaluates this list, while the host still waits to hear whether that is good;
    returns is_ahead, whether it did.
    """

    n: int
    rows: Any
    counts: Any
    centres: Any
    type_counts: list
    generation: int
    version: int
    follow: Callable
    give_back: Callable = lambda: None
    recordable: bool = True
    with_virial: bool = False
    ahead: Callable = None
    is_ahead: bool = False

    @property
    def count(self):
        """(n,) int32, on the host."""
        counts = self.counts[: self.n].sum(axis=1)
        return counts.get() if hasattr(counts, "get") else counts

    @property
    def mean(self):
        """Neighbours per centre in the list."""
        return float(self.counts.sum()) / max(self.n, 1)


class DeviceDomain:
    """See :class:`dpmd.parallel.SerialDomain`; systems are :class:`dpmd.device_system.DeviceSystem`.

    cutoff, skin : Å; n_types : the model's; device : a :class:`dpmd.kernels.cuda.CudaDevice`;
    processes : the ranks that share the system, each a node of its own with one device, default this
    process alone; exchange : how they talk, see :mod:`dpmd.parallel.device_exchange`.
    with_virial : whether evaluations compute the virial too, for ensembles that read it at every step.
    With several ranks all methods are collective, and the system passed to :meth:`update` holds any
    part of the atoms at first and those of this rank's box afterwards.
    """

    scheme, balance = "GPU", "atoms"

    def __init__(self, cutoff, skin, n_types, device, processes=None, exchange=None, with_virial=False):
        self.with_virial = with_virial
        self.cutoff, self.skin, self.n_types, self.device = float(cutoff), float(skin), n_types, device
        self.processes = processes or OneProcess()
        self._several = self.processes.size > 1
        if self._several and self.processes.n_nodes < self.processes.size:
            raise ValueError("each rank must be a node of its own: Processes(communicator, ranks_per_node=1)")
        self.exchange = make_exchange(device, processes) if self._several and exchange is None else exchange
        self.neighbors = self.partition = None
        self.rebuilds, self.n_ghosts, self.imbalance = 0, 0, 1.0
        self._kernels = device.compile(("atoms.cu",), {})
        self._flag = device.flag()
        self._stride, self._generation = 0, 0
        self._rows = self._owners = self._numbers = self._reference = self._check = self._rooms = None
        self._layout = self._windows_of = None
        self._small = {}
        self.reset_counters()

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
            self.device.store(array, values)
        return array

    # ------------------------------------------------------------------ lists

    def rebuild(self, system):
        """Divide the cell, wrap and sort the atoms, find ghosts and neighbours anew.

        From positions and ids alone, whatever went before.
        """
        system.settle()
        self._rebuild(system, True)

    def _rebuild(self, system, anew):
        """As :meth:`rebuild`; unless ``anew`` boxes and room stay as they are where they suffice."""
        reach, inverse = self.cutoff + self.skin, np.linalg.inv(system.cell)
        self._cell = self._upload("cell", system.cell, np.float64)
        self._inverse = self._upload("inverse", inverse, np.float64)
        self._periodic = self._upload("periodic", system.periodic, np.int32)
        self._halo = (reach + _ROUNDING) * np.linalg.norm(inverse, axis=0)
        self._sort(system, reach, inverse, anew)
        self._find_ghosts(system, reach, anew)
        self._build(system, reach)
        n, room = len(system), self._room
        if self._reference is None or len(self._reference) != room:
            self._reference = self.device.zeros((room, 4), np.float64)
            self._check = None
        self._reference[:n] = system.atoms[:n]
        self._reference_cell = system.cell.copy()
        self.rebuilds += 1
        self._flag.clear()
        self._near_limit = self._several

    def _keys(self, system, reach, inverse):
        """Wrap the atoms; returns what sorts them, (n,) int64."""
        n, device = len(system), self.device
        bits = (31 - int(self.n_types).bit_length()) // 3
        parts = np.clip(np.floor(2 / (reach * np.linalg.norm(inverse, axis=0))), 1, 2 ** (bits - 1))
        keys = device.empty(n, np.int64)
        self._kernels.threads(
            "wrap_atoms", n, n, system.atoms, system.device_array("images"), system.device_array("types"),
            self.n_types, self._cell, self._inverse, self._periodic, self._upload("parts", parts, np.int32), bits,
            system.device_array("ids"), keys,
        )  # fmt: skip
        system.forget()
        return keys

    def _sort(self, system, reach, inverse, anew):
        keys, stay = self._keys(system, reach, inverse), len(system)
        if self._several:
            self._divide(system, inverse, reach, anew)
            leaving = self._migrate(system)
            keys = self._keys(system, reach, inverse)  # of those that arrived, too
            keys[leaving] = np.iinfo(np.int64).max
            stay = len(keys) - len(leaving)
        elif self.partition is None or not np.array_equal(self.partition.cell, system.cell):
            self.partition = Partition(system.cell.copy(), (1, 1, 1), system.periodic, equal_boundaries((1, 1, 1)))
        if len(keys):
            system.permute(self.device.xp.argsort(keys)[:stay])

    def _divide(self, system, inverse, reach, anew):
        """The partition: new if asked for, or if boxes have become too unequal."""
        p, cell, old = self.processes, system.cell, self.partition
        if anew or self.imbalance > 1.1 * max(self._least_imbalance, IMBALANCE_LIMIT):
            new, self._least_imbalance = divide_cell(
                p, cell, system.periodic, system.positions @ inverse, p.size, reach
            )
            if old is None or not old.same_as(new):
                self.partition, self._rooms = new, None
        elif not np.array_equal(old.cell, cell):
            self.partition = Partition(cell.copy(), old.grid, old.periodic, old.boundaries)

    def _migrate(self, system):
        """Hand atoms outside of this box to their ranks and append those that arrive; returns who left."""
        n, device, p, grid = len(system), self.device, self.processes, self.partition.grid
        boxes, inner = device.empty(n, np.int32), [b[1:-1] for b in self.partition.boundaries]
        self._kernels.threads(
            "find_boxes", n, n, system.atoms, self._inverse, device.upload(np.array(grid, np.int32)),
            device.upload(np.concatenate([*inner, [0.0]])), boxes,
        )  # fmt: skip
        leaving = device.xp.flatnonzero(boxes != p.rank) if n else device.zeros(0, np.int64)
        records, owners = system.take_out(leaving), device.download(boxes[leaving])
        arrived = deliver(p.world, {int(r): records[owners == r] for r in np.unique(owners)}, records.dtype)
        if len(arrived):
            system.append(arrived)
        return leaving

    # ------------------------------------------------------------------ ghosts

    def _find_ghosts(self, system, reach, anew):
        n, device, xp, me = len(system), self.device, self.device.xp, self.processes.rank
        types = system.device_array("types")
        if self._windows_of is not self.partition:  # a new one for every shape of the cell
            self._windows_of = self.partition
            others = [box for box, _ in self.partition.neighbors(me, reach) if box != me] if self._several else []
            self._boxes = [*others, me]
            lower, upper = self.partition.limits(np.array(self._boxes))
            self._corners = np.concatenate([lower - self._halo, upper + self._halo], axis=1)
            self._windows = device.upload(self._corners)
        boxes, windows = self._boxes, self._windows
        common = (system.atoms, types, self._inverse, self._periodic)
        number = device.empty((len(boxes), n), np.int32)
        for k, box in enumerate(boxes):
            self._kernels.threads(
                "find_images", n, n, *common, windows[k], int(box == me), number[k], None, 0, 0, None, None, None
            )  # fmt: skip
        last = xp.cumsum(number.reshape(-1), dtype=np.int32).reshape(number.shape)
        ends = device.download(last[:, -1].copy()) if n else np.zeros(len(boxes), np.int64)
        begins = np.concatenate([[0], ends[:-1]])
        counts = np.full(self.processes.size, -1)
        counts[boxes] = ends - begins

        self._lay_out(system, counts, anew)
        self._owners.fill(-1)
        self._shifts.fill(0)
        for k, box in enumerate(boxes):
            place, row = self._places[box]
            place, row = int(place - begins[k]), int(row - place)
            self._kernels.threads(
                "find_images", n, n, *common, windows[k], int(box == me), number[k], last[k] - number[k], place, row,
                self._owners, self._entry_rows, self._shifts,
            )  # fmt: skip
        self._share_types(types, n)
        if self._several:
            system.atoms[n : self._room] = 0
        self._follow = partial(self._place_ghosts, system)
        self._follow()

    def _lay_out(self, system, counts, anew):
        """Places of local atoms, ghosts and messages, the same as before where they suffice.

        counts : (size,) ghosts for each rank, -1 for ranks that are no neighbours.
        Every rank learns the numbers of all, so that each knows where its atoms go at the others.
        """
        kinds, me = self.n_types + 1, self.processes.rank
        if not self._several and self._layout is not None and counts[0] <= self._rooms[0, kinds]:
            self.n_ghosts = int(counts[0])
            return
        if self._several or self._rooms is None:
            types, found = system.device_array("types"), np.zeros(kinds, np.int64)
            if len(types):
                found = self.device.download(self.device.xp.bincount(types + 1, minlength=kinds))
            self._type_counts = np.concatenate([found[1:], found[:1]])
        known = self.processes.everywhere(np.concatenate([self._type_counts, counts]))
        enough = _with_room(known)
        if self._rooms is None:
            self._rooms = enough.copy()
        if anew:  # rounding depends on how many centres are evaluated together, not on the room for ghosts
            self._rooms[:, :kinds] = enough[:, :kinds]
        self._rooms = np.where(known > self._rooms, enough, self._rooms)
        if not self._several:
            self._rooms[:, :kinds] = known[:, :kinds]  # they never change
        local, pairs = self._rooms[:, :kinds].sum(axis=1), self._rooms[:, kinds:].copy()
        room, images = int(local[me]), int(pairs[me, me])
        np.fill_diagonal(pairs, 0)
        # places[r]: of the first entry for rank r, and the row of forces which that has there
        starts, rows = np.cumsum(pairs[me]) - pairs[me], local + pairs[:me].sum(axis=0)
        self._places = dict(enumerate(zip(starts, rows, strict=True)))
        n_outgoing, n_incoming = int(pairs[me].sum()), int(pairs[:, me].sum())
        self._places[me] = n_outgoing, 0
        bases = room + np.cumsum(pairs[:, me]) - pairs[:, me]
        self.n_ghosts = int(np.maximum(known[:, kinds + me], 0).sum())
        counts = known[:, :kinds].sum(axis=1)
        self.imbalance = float(counts.max() * len(counts) / max(counts.sum(), 1))

        n_force_rows = room + n_incoming
        total = n_force_rows + images
        system.reserve(room, total, n_force_rows)
        layout = (system.generation, room, *self._rooms[me], *pairs[me], *pairs[:, me])
        if layout != self._layout:
            self._layout = layout
            self._generation += 1
            device, entries = self.device, n_outgoing + images
            self._room, self._n_outgoing, self._images_first = room, n_outgoing, n_force_rows
            self._owners, self._entry_rows = device.empty(entries, np.int32), device.empty(entries, np.int32)
            self._shifts = device.empty((entries, 3), np.int32)
            self.types = device.empty(total, np.int32)
            self._outgoing = device.zeros((n_outgoing, 4), np.float64)
            self._returned = self._outgoing.view(np.int64)  # by then positions have been sent
            self.positions, self.forces = system.atoms[:total], system.force_rows[:n_force_rows]
            self._outgoing_types = device.empty(n_outgoing, np.int32)
            if self._several:
                out = [(int(r), slice(starts[r], starts[r] + pairs[me, r])) for r in np.flatnonzero(pairs[me])]
                back = [(int(r), slice(bases[r], bases[r] + pairs[r, me])) for r in np.flatnonzero(pairs[:, me])]
                self._out, self._back = out, back
                self._send_types = self._prepare(out, self._outgoing_types, back, self.types)
                self._send_positions = self._prepare(out, self._outgoing, back, self.positions)
                self._return_forces = self._prepare(back, self.forces, out, self._returned)
                self._messages, self._message_rows = len(out) + len(back), n_outgoing + n_incoming

    def _prepare(self, sends, sent, receives, received):
        """A function that sends slices of rows of one array and receives others of another: [(rank, slice)]."""
        return self.exchange.prepare(
            [(rank, sent[rows]) for rank, rows in sends], [(rank, received[rows]) for rank, rows in receives]
        )

    def _share_types(self, types, n):
        """The types of all atoms and ghosts; -1 where there is none."""
        self.types[n:] = -1
        self.types[:n] = types
        self._kernels.threads(
            "share_types", len(self._owners), len(self._owners), self._n_outgoing, self._images_first, types,
            self._owners, self._outgoing_types, self.types,
        )  # fmt: skip
        if self._several:
            self._send_types()

    def _place_ghosts(self, system):
        self._kernels.threads(
            "place_ghosts", len(self._owners), len(self._owners), self._n_outgoing, self._images_first, system.atoms,
            self._outgoing, self._owners, self._entry_rows, self._shifts, self._cell,
        )  # fmt: skip
        if self._several:
            self._send_positions()

    def _give_back(self):
        """Forces on ghosts from other ranks go to their owners."""
        if self._several:
            self._return_forces()
            self._add_returned(self.forces)

    def _add_returned(self, rows):
        self._kernels.threads("add_returned", self._n_outgoing, self._n_outgoing, self._owners, self._returned, rows)

    def _return_to_owners(self, rows):
        """As :meth:`_give_back` for other rows (of forces, k) int64 on the device."""
        four = self.device.zeros((len(rows), 4), np.int64)
        send = self._prepare(self._back, four, self._out, self._returned)
        for first in range(0, rows.shape[1], 3):
            part = rows[:, first : first + 3]
            four[:, : part.shape[1]] = part
            send()
            self._add_returned(four)
            part[...] = four[:, : part.shape[1]]

    # ------------------------------------------------------------------ neighbours

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
        n, room, total = len(system), self._room, len(self.positions)
        low, high = self._extent(system)
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
        order = xp.argsort(bins, kind="stable")  # so that spare rows do not change who comes first
        n_bins = int(np.prod(shape)) * self.n_types
        if self._numbers is None or len(self._numbers) != n_bins + 1:
            self._numbers = xp.arange(n_bins + 1, dtype=np.int32)
        start = xp.searchsorted(bins[order], self._numbers).astype(np.int32)
        candidates = device.empty((total, 4), np.float32)
        kernels.threads("gather_candidates", total, total, system.atoms, order, origin_on_device, candidates)
        longest = device.zeros(1, np.int32)
        have = self.neighbors
        counts, centres = (have.counts, have.centres) if have is not None else (None, None)
        type_counts = [int(c) for c in self._rooms[self.processes.rank, : self.n_types]]
        if counts is None or len(counts) != room:
            counts = device.zeros((room, self.n_types), np.int32)
            centres = None
            self._generation += 1
        if centres is None or len(centres) != sum(type_counts):
            centres = device.empty(sum(type_counts), np.int32)
            self._generation += 1
        if self._several or have is None:
            self._list_centres(centres, type_counts, room)
        while True:
            if self._rows is None or self._rows.shape != (room, self._stride):
                self._rows = None
                self._rows = device.empty((room, self._stride), np.int32)
                self._generation += 1
            kernels.warps(
                "build_rows", room, room, system.atoms, self.types, candidates, start, low, inverse_size,
                shape_on_device, origin_on_device, self.n_types, np.float32((reach + margin) ** 2), self._stride,
                self._rows, counts, longest,
            )  # fmt: skip
            found = int(longest[0])
            if found <= self._stride:
                break
            self._stride = (int(1.04 * found) + 4) // 4 * 4
        self.neighbors = DeviceNeighbors(
            n, self._rows, counts, centres, type_counts, self._generation, self.rebuilds, self._follow,
            self._give_back, not self._several or self.exchange.recordable, self.with_virial,
        )  # fmt: skip

    def _list_centres(self, centres, type_counts, room):
        """Local atoms by type, as they are sorted; the last row, which is no atom, where there is room to spare."""
        first = place = 0
        for kind, there in zip(type_counts, self._type_counts, strict=False):
            centres[place : place + there] = self.device.xp.arange(first, first + there, dtype=np.int32)
            centres[place + there : place + kind] = room - 1
            first, place = first + there, place + kind

    def _extent(self, system):
        """Corners (low, high), Å, of a box around all atoms, ghosts included."""
        if system.periodic.all():
            ends = self._corners[-1].reshape(2, 3, 1) * system.cell  # of its own window, along each lattice vector
            return ends.min(axis=0).sum(axis=0), ends.max(axis=0).sum(axis=0)
        xp, here, known = self.device.xp, self.positions[:, :3], (self.types >= 0)[:, None]
        corners = xp.stack([xp.where(known, here, np.inf).min(axis=0), xp.where(known, here, -np.inf).max(axis=0)])
        low, high = self.device.download(corners)
        low, high = np.where(np.isfinite([low, high]), [low, high], 0.0)
        return low, high

    # ------------------------------------------------------------------ a step

    def update(self, system):
        """Follow the atoms' motion: rebuild if the skin may be used up; returns True if so.

        Ghosts move at the next evaluation, see :class:`DeviceNeighbors`.
        """
        if self.neighbors is None or self._moved(system):
            self._rebuild(system, self.neighbors is None)
            return True
        return False

    def _moved(self, system):
        """True, on all ranks, if two atoms can have come nearer than the list allows for."""
        free = self.skin
        if not np.array_equal(system.cell, self._reference_cell):
            change = np.linalg.norm(system.cell - self._reference_cell, axis=1)
            # images are displaced by no more lattice vectors than this along each of them
            free -= float((np.floor(1 + self._halo) * system.periodic) @ change)
            self._upload("cell", system.cell, np.float64)
        if free <= 0:
            return True
        key = (free, len(system), system.generation)
        if self._check is None or self._check_key != key:
            n = len(system)
            self._check_key, self._check = key, self._kernels.prepared(
                "check_motion", n, n, system.atoms, self._reference, (0.5 * free) ** 2, (_NEAR * 0.5 * free) ** 2,
                self._flag.pointer,
            )  # fmt: skip
        self._check()
        self._flag.mark()
        if self.neighbors.ahead is not None and not self._near_limit:
            # the list was far from used up a step ago, so it is most likely still good: the GPU need not wait
            self.neighbors.is_ahead = self.neighbors.ahead()
        used_up, near = self._flag.read()
        self._near_limit = self._several or bool(near)  # several would have to go ahead together
        return bool(self.processes.largest(used_up))

    def fold(self, values):
        """Sums over local atoms and their images elsewhere of values (rows of forces, ...).

        Those of the step were added up by then, and stay on the device as they are.  Others, forces in fixed
        point (rows, 4) on the device or numbers on the host, come back as (n, 3) or (n, ...), eV/Å or eV.
        """
        if values is self.forces:
            self.exchanges += 1
            return values
        n, device = self.neighbors.n, self.device
        host = isinstance(values, np.ndarray) and values.dtype != np.int64
        if host and not self._several:
            return values[:n]
        rows = values
        if host:
            rows = device.upload(np.rint(values.reshape(len(values), -1) * FIXED_SCALE).astype(np.int64))
        if self._several:
            self._return_to_owners(rows)
        rows = device.download(rows[:n]) / FIXED_SCALE
        return rows.reshape(n, *values.shape[1:]) if host else rows[:, :3]

    # ------------------------------------------------------------------ counters

    def reset_counters(self):
        """Count exchanges from here on."""
        self.exchanges = 0

    def statistics(self):
        """As of :class:`~dpmd.parallel.NodeDomain`, each rank being a node.  Collective."""
        p, n, bytes_per_row = self.processes, self.neighbors.n, 32
        numbers = p.everywhere(np.array([n, self.n_ghosts, self._messages, self._message_rows], float))

        def spread(values):
            return [float(values.min()), float(values.mean()), float(values.max())]

        atoms, ghosts, messages, rows = numbers.T
        return {
            "scheme": self.scheme, "node_grid": list(self.partition.grid), "balance": self.balance,
            "messages_per_step": float(messages.sum()), "bytes_per_step": float(bytes_per_row * rows.sum()),
            "atoms_per_rank": spread(atoms), "atoms_per_node": spread(atoms), "ghosts_per_node": spread(ghosts),
            "imbalance": float(atoms.max() / max(atoms.mean(), 1e-300)),
            "early_per_rank": [0.0, 0.0, 0.0],
        }  # fmt: skip
