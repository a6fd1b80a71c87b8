"""The classic scheme: one box per rank, halos passed on along one axis after the other.

S. Plimpton, J. Comput. Phys. 117, 1 (1995), "spatial decomposition".  The baseline that the
node-based scheme is measured against.
"""

import numba
import numpy as np

from .geometry import heights
from .node_domain import _OPTIONS, DistributedDomain, _border, _take_displaced

_COUNTS, _ATOMS, _POSITIONS, _FORCES = range(7020, 7028, 2)  # one tag more for the other direction
#: Å, by which halos are larger than asked for, against rounding
_ROUNDING = 1e-6


@numba.njit(**_OPTIONS)
def _add_rows(rows, atoms, out):
    """out[atoms[i]] += rows[i], in order."""
    for i in range(len(atoms)):
        for c in range(3):
            out[atoms[i], c] += rows[i, c]


class _Swap:
    """What is passed on in one direction: to one adjacent rank, and from the one on the other side.

    to, source : world ranks; tag : 0 or 1, the direction; atoms, shifts : what is sent; ghosts :
    slice of what is received.
    """

    def __init__(self, to, source, tag, atoms, shift):
        self.to, self.source, self.tag, self.atoms = to, source, tag, atoms
        self.shifts = np.tile(np.array(shift, float), (len(atoms), 1))
        self.out, self.ghosts = np.empty((len(atoms), 3)), None


class RankDomain(DistributedDomain):
    """Every rank has a box of its own and exchanges with the two adjacent ranks along each axis.

    Each rank must be a node of its own: ``Processes(communicator, ranks_per_node=1)``.
    """

    scheme = "rank"

    def _adjacent(self, axis, direction):
        """World rank next along ``axis``, or MPI's null process, and the shift that its frame needs."""
        from mpi4py import MPI

        partition = self.partition
        index, n = partition.index(self.processes.node_index).copy(), partition.grid[axis]
        index[axis] += direction
        shift = np.zeros(3)
        if not 0 <= index[axis] < n:
            if not partition.periodic[axis]:
                return MPI.PROC_NULL, shift
            index[axis] %= n
            shift[axis] = -direction
        return self.processes.ranks_of[np.ravel_multi_index(index, partition.grid)][0], shift

    def _find_ghosts(self, system, inverse, reach):
        """Pass on atoms near the faces until nobody has any that are wanted further on."""
        width = (reach + _ROUNDING) / heights(system.cell)
        lower, upper = self.partition.limits(self.processes.node_index)
        atoms = np.empty(len(system), _border)
        atoms["position"], atoms["id"], atoms["type"] = system.positions, system.ids, system.types
        self._swaps = []
        for axis in range(3):
            everything = np.arange(len(atoms))
            pools = {-1: everything, 1: everything}
            while True:
                height = (atoms["position"] @ inverse)[:, axis]
                swaps = []
                for tag, direction in enumerate((-1, 1)):
                    (to, shift), (source, _) = self._adjacent(axis, direction), self._adjacent(axis, -direction)
                    pool = pools[direction]
                    near = (
                        height[pool] >= upper[axis] - width[axis]
                        if direction > 0
                        else height[pool] <= lower[axis] + width[axis]
                    )
                    swaps.append(_Swap(to, source, tag, pool[near] if to >= 0 else pool[:0], shift))
                if self.processes.sum(sum(len(swap.atoms) for swap in swaps)) == 0:
                    break
                for direction, swap, rows in zip((-1, 1), swaps, self._pass_on(atoms, swaps, system.cell), strict=True):
                    swap.ghosts = slice(len(atoms), len(atoms) + len(rows))
                    atoms = np.concatenate([atoms, rows])
                    pools[direction] = np.arange(swap.ghosts.start, swap.ghosts.stop)
                self._swaps.append(swaps)
        ghosts = atoms[len(system) :]
        self._publish(system, len(ghosts))
        self._positions[len(system) :] = ghosts["position"]
        self._types[len(system) :], self._ids[len(system) :] = ghosts["type"], ghosts["id"]
        shifts = np.abs(np.floor(ghosts["position"] @ inverse)).max(axis=0, initial=0.0)
        self._largest_shift = np.where(self.partition.periodic, shifts, 0.0)

    def _pass_on(self, atoms, swaps, cell):
        """Send the records that ``swaps`` name; returns what arrives for each."""
        world = self.processes.world
        numbers = [np.zeros(1, np.int64) for _ in swaps]
        requests = [world.Irecv(n, s.source, _COUNTS + s.tag) for n, s in zip(numbers, swaps, strict=True)]
        requests += [world.Isend(np.array([len(s.atoms)]), s.to, _COUNTS + s.tag) for s in swaps]
        self._wait(requests)
        arrived, outgoing = [np.empty(int(n[0]), _border) for n in numbers], []
        requests = [
            world.Irecv(a.view(np.uint8), s.source, _ATOMS + s.tag) for a, s in zip(arrived, swaps, strict=True)
        ]
        for swap in swaps:
            rows = atoms[swap.atoms]
            rows["position"] += swap.shifts @ cell
            outgoing.append(rows)
            requests.append(world.Isend(rows.view(np.uint8), swap.to, _ATOMS + swap.tag))
            self._note(swap.to, rows.nbytes)
        self._wait(requests)
        return arrived

    def _prepare_sums(self):
        self.forces = np.zeros((len(self.positions), 3))
        self._gathered = np.zeros((len(self._positions), 3))
        for swap in (swap for swaps in self._swaps for swap in swaps):
            swap.incoming, swap.back = self._positions[swap.ghosts], np.empty((len(swap.atoms), 3))
            swap.forces = self._gathered[swap.ghosts]

    def _send_positions(self, cell):
        world = self.processes.world
        for swaps in self._swaps:
            requests = [world.Irecv(s.incoming, s.source, _POSITIONS + s.tag) for s in swaps]
            for swap in swaps:
                _take_displaced(self._positions, swap.atoms, swap.shifts, cell, swap.out)
                requests.append(world.Isend(swap.out, swap.to, _POSITIONS + swap.tag))
                self._note(swap.to, swap.out.nbytes)
            self._wait(requests)

    def _fold_forces(self):
        world, gathered = self.processes.world, self._gathered
        gathered.fill(0.0)
        gathered[self._own] = self.forces[: self._n_own]
        gathered[self._needed] = self.forces[self._n_own :]
        for swaps in reversed(self._swaps):
            requests = [world.Irecv(s.back, s.to, _FORCES + s.tag) for s in swaps]
            for swap in swaps:
                requests.append(world.Isend(swap.forces, swap.source, _FORCES + swap.tag))
                self._note(swap.source, swap.forces.nbytes)
            self._wait(requests)
            for swap in swaps:
                _add_rows(swap.back, swap.atoms, gathered)
        return gathered[: self._n_own]

    def _note(self, rank, n_bytes):
        if rank >= 0 and rank != self.processes.rank:
            self._counted(n_bytes)
