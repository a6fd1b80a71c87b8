"""Domains spread over MPI ranks: nodes own boxes, and the ranks of a node share its atoms.

A *node* is a group of ranks that share memory.  Positions, types, ids and forces of the atoms of
a node's box and of the ghost atoms around it exist once, in shared arrays.  Each rank owns an
equal share of the atoms, whichever part of the box they are in, and evaluates them.  Per step:

    every rank stores its atoms' new positions in the shared array
    -- the ranks of the node wait for one another --
    for each neighbouring node one rank sends what that node needs, and receives straight into
    the shared array; ghosts that are images of the node's own atoms are copied
    -- wait --
    every rank gathers the positions near its share and evaluates its atoms: first, while messages
    travel, those that need no ghost of another node
    -- wait --
    forces on ghosts, summed over the ranks of the node, go back by the same messages
    -- wait --
    every rank sums what concerns its own atoms

The scheme is that of J. Li et al., SC24, arXiv:2410.22867 (node-based parallelisation with
intra-node load balance).  All sums run in a fixed order, so a run is the same to the last bit
when repeated with the same ranks, nodes and threads.
"""

from dataclasses import replace
from time import perf_counter

import numba
import numpy as np

from dpmd.kernels.neighbors import NeighborListBuilder

from .domain import UnusableStructure, _largest_displacement, _wrap, check_usable
from .migration import deliver
from .partition import divide_cell, share_of_rank, sorted_in_space
from .shared import NodeMemory

_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
#: evaluation starts before messages have arrived if every rank of the node has this many atoms that need none
LEAST_EARLY = 128
#: how a node's atoms are shared out
BALANCES = ("atoms", "work", "measured")
#: how positions of ghosts travel
HALO_PRECISIONS = ("double", "single")

_COUNT, _BORDER, _FORWARD, _REVERSE = range(7010, 7014)
_border = np.dtype([("position", np.float64, 3), ("id", np.int64), ("type", np.int32)])


@numba.njit(**_OPTIONS)
def _sum_rows(first, sources, rows, out):
    """out[i] = sum of rows[sources[k]] for k in first[i] : first[i + 1], in that order."""
    for i in range(len(out)):
        x = y = z = 0.0
        for k in range(first[i], first[i + 1]):
            row = rows[sources[k]]
            x += row[0]
            y += row[1]
            z += row[2]
        out[i, 0], out[i, 1], out[i, 2] = x, y, z


@numba.njit(**_OPTIONS)
def _take_displaced(positions, atoms, shifts, cell, out):
    """out[i] = positions[atoms[i]] + shifts[i] @ cell."""
    for i in range(len(atoms)):
        for c in range(3):
            out[i, c] = positions[atoms[i], c] + (
                shifts[i, 0] * cell[0, c] + shifts[i, 1] * cell[1, c] + shifts[i, 2] * cell[2, c]
            )


@numba.njit(**_OPTIONS)
def _take(positions, atoms, out):
    for i in range(len(atoms)):
        for c in range(3):
            out[i, c] = positions[atoms[i], c]


@numba.njit(**_OPTIONS)
def _mark_used(first, count, indices, used):
    for i in range(len(first)):
        for k in range(first[i], first[i] + count[i]):
            used[indices[k]] = True


@numba.njit(**_OPTIONS)
def _renumber(first, count, indices, numbers):
    for i in range(len(first)):
        for k in range(first[i], first[i] + count[i]):
            indices[k] = numbers[indices[k]]


@numba.njit(**_OPTIONS)
def _mark_rows_beyond(first, count, indices, limit, marked):
    """marked[i] = whether row i names an atom from ``limit`` on."""
    for i in range(len(first)):
        marked[i] = False
        for k in range(first[i], first[i] + count[i]):
            if indices[k] >= limit:
                marked[i] = True
                break


def _rows_by_target(targets, n):
    """``(first, sources)``: the positions in ``targets`` that hold 0, 1, ... n - 1, each in rising order."""
    inside = np.flatnonzero((targets >= 0) & (targets < n))
    order = np.argsort(targets[inside], kind="stable")
    sources = inside[order]
    return np.searchsorted(targets[sources], np.arange(n + 1)).astype(np.int64), sources.astype(np.int64)


class _Route:
    """What one rank exchanges with one other node (or, without a partner, copies within its own).

    partner : world rank, or None; atoms, shifts : what is sent, indices of node atoms and lattice
    vectors; ghosts : slice of the node's atoms that is received; returned : slice of the rows of
    forces that come back for ``atoms``; first, sources : where the forces on ``ghosts`` are; reference :
    positions that were sent, and received, when the list was built.
    """

    def __init__(self, partner, atoms, shifts):
        self.partner, self.atoms, self.shifts = partner, atoms.astype(np.int64), shifts.astype(np.float64)
        self.out = np.empty((len(atoms), 3))
        self.ghosts = self.returned = None


class DistributedDomain:
    """What both schemes have in common: who owns which atom, shares, lists, balance, counters.

    processes : :class:`~dpmd.parallel.processes.Processes`; cutoff, skin (Å), n_types, threads :
    see :class:`~dpmd.parallel.domain.SerialDomain`, whose interface this is; balance : one of
    :data:`BALANCES`.  With "work" atoms count as many times as they have neighbours, with
    "measured" as their rank's time suggests; then the order of atoms, hence rounding, depends on
    the past, and with "measured" on the machine's mood.

    The system passed to :meth:`update` holds any part of the atoms at first (root may hold all)
    and this rank's share afterwards.  All methods are collective.
    """

    #: Å, by which a coordinate of a ghost differs at most from its atom's
    halo_error = 0.0

    def __init__(self, processes, cutoff, skin, n_types, threads=1, balance="atoms"):
        if balance not in BALANCES:
            raise ValueError(f"balance {balance!r} is not one of {', '.join(BALANCES)}")
        self.processes, self.cutoff, self.skin, self.balance = processes, float(cutoff), float(skin), balance
        self._node = processes.node
        self._memory = NodeMemory(processes)
        self._builder = NeighborListBuilder(n_types, threads)
        self._work = self._cost = None
        self._evaluation_began = self._evaluation_time = 0.0
        self._evaluations = 0
        self._requests, self._arriving, self._n_gathered = [], False, 0
        self.neighbors = self.partition = None
        self.rebuilds = self._n_ghosts = 0
        self.reset_counters()

    @property
    def n_ghosts(self):
        """Ghost atoms of this box, counted by its first rank alone: sums over ranks are over boxes."""
        return self._n_ghosts if self._node.rank == 0 else 0

    # ------------------------------------------------------------------ building anew

    def rebuild(self, system):
        """Wrap the atoms, send each to the node and rank that own it, find ghosts and neighbours."""
        self._fetch()
        reach = self.cutoff + self.skin
        self._check(system, reach)
        inverse = np.linalg.inv(system.cell)
        _wrap(system.positions, system.images, system.cell, inverse, system.periodic)
        self._divide_cell(system, inverse)
        records = self._collect_node(system, inverse)
        self._take_share(system, records, reach)
        self._find_ghosts(system, inverse, reach)
        self._largest_shift = self.processes.largest(self._largest_shift)  # any two atoms may come nearer
        self._build_list(reach)
        self._prepare_sums()
        self._reference, self._reference_cell = system.positions.copy(), system.cell.copy()
        self.rebuilds += 1
        self._evaluation_time, self._evaluations = 0.0, 0
        self._start_evaluation()

    def _check(self, system, reach):
        """Raise UnusableStructure on all ranks if it has to be on one."""
        problem = ""
        try:
            check_usable(system, reach)
        except UnusableStructure as error:
            problem = str(error)
        if self.processes.largest(len(problem)):
            problems = self.processes.broadcast(self.processes.collect(problem))
            error = UnusableStructure(next(filter(None, problems)))
            error.everywhere = True
            raise error

    def _divide_cell(self, system, inverse):
        """The partition for the present cell and atoms."""
        partition, _ = divide_cell(
            self.processes, system.cell, system.periodic, system.positions @ inverse, self.processes.n_nodes,
            self.cutoff + self.skin,
        )  # fmt: skip
        if self.partition is None or not self.partition.same_as(partition):
            self.partition = partition  # else the old one, which remembers its neighbours

    def _collect_node(self, system, inverse):
        """The records of all atoms of this node, in shared memory."""
        p = self.processes
        atoms = system.records()
        work = self._measured_work(len(atoms))
        both = np.empty(len(atoms), np.dtype([("atom", atoms.dtype), ("work", np.float64)]))
        both["atom"], both["work"] = atoms, work
        owners = self.partition.owners(system.positions @ inverse)
        outgoing = {}
        for node in np.unique(owners):
            ranks = p.ranks_of[node]
            outgoing[p.rank if node == p.node_index else ranks[p.rank % len(ranks)]] = both[owners == node]
        arrived = deliver(p.world, outgoing, both.dtype)
        counts = self._node.allgather(len(arrived))
        records = self._memory.array("records", sum(counts), dtype=both.dtype)
        begin = sum(counts[: self._node.rank])
        records[begin : begin + len(arrived)] = arrived
        self._memory.synchronize()
        return records

    def _measured_work(self, n):
        """Work (n,) of each atom of this rank so far, as ``balance`` counts it."""
        if self._work is None or self.balance == "atoms" or len(self._work) != n:
            return np.ones(n)
        if self.balance == "measured" and n and self._evaluations:
            cost = self._evaluation_time / self._evaluations / n
            self._cost = cost if self._cost is None else 0.5 * (self._cost + cost)
            return np.full(n, self._cost)
        return self._work

    def _take_share(self, system, records, reach):
        """Give the system this rank's share, and publish it in the node's arrays."""
        positions, ids = np.ascontiguousarray(records["atom"]["positions"]), records["atom"]["ids"]
        work = None if self.balance == "atoms" else records["work"]
        chosen = share_of_rank(positions, ids, work, self._node.size, self._node.rank)
        chosen = sorted_in_space(chosen, positions, ids, 0.5 * reach)
        system.set_records(records["atom"][chosen])
        counts = self._node.allgather(len(chosen))
        self._n_own, self._n_node = len(chosen), sum(counts)
        self._start = sum(counts[: self._node.rank])
        self._own = slice(self._start, self._start + self._n_own)

    def _publish(self, system, n_ghosts):
        """Room in the node's arrays for its atoms and ghosts; own atoms are stored."""
        total = self._n_node + n_ghosts
        self._positions = self._memory.array("positions", total, (3,))
        self._types = self._memory.array("types", total, dtype=np.int32)
        self._ids = self._memory.array("ids", total, dtype=np.int64)
        self._positions[self._own] = system.positions
        self._types[self._own], self._ids[self._own] = system.types, system.ids
        self._n_ghosts = n_ghosts
        #: the first ghost whose position arrives while others are used
        self._first_late = total

    def _build_list(self, reach):
        """The list of own atoms; ``_needed`` are the node's atoms and ghosts that occur in it."""
        self._memory.synchronize()
        own = self._positions[self._own]
        candidates = np.zeros(0, np.int64)
        if self._n_own:
            low, high = own.min(axis=0) - reach - 1e-5, own.max(axis=0) + reach + 1e-5
            near = ((self._positions >= low) & (self._positions <= high)).all(axis=1)
            near[self._own] = False
            candidates = np.flatnonzero(near)
        positions = np.concatenate([own, self._positions[candidates]])
        types = np.concatenate([self._types[self._own], self._types[candidates]])
        found = self._builder.build(positions, types, self._n_own, reach)

        used = np.zeros(len(positions), bool)
        _mark_used(found.first, found.count, found.indices, used)
        used[: self._n_own] = True
        numbers = (np.cumsum(used) - 1).astype(np.int32)
        _renumber(found.first, found.count, found.indices, numbers)
        self._needed = candidates[used[self._n_own :]]
        self.neighbors = replace(found, late=self._late_centres(found), fetch=self._fetch)
        self.positions, self.types = positions[used], types[used]
        self.ids = np.concatenate([self._ids[self._own], self._ids[self._needed]])
        self._work = found.count.astype(float) + 1.0

    def _late_centres(self, found):
        """(own atoms,) bool: who is evaluated when all messages are here; None where nobody is before that.

        Every rank of the node has as many early ones, or they would wait for one another.
        """
        if self.processes.n_nodes == 1 or self._first_late == len(self._positions):
            return None
        self._n_early = int(np.searchsorted(self._needed, self._first_late))
        late = np.empty(self._n_own, bool)
        _mark_rows_beyond(found.first, found.count, found.indices, self._n_own + self._n_early, late)
        least = min(self._node.allgather(self._n_own - int(late.sum())))
        if least < LEAST_EARLY:
            return None
        late |= np.cumsum(~late) > least
        return late

    # ------------------------------------------------------------------ per step

    def update(self, system):
        """Follow the atoms' motion: rebuild if the skin may be used up, else move the ghosts.

        Returns True if it rebuilt (and handed atoms to other ranks).  Otherwise ghosts that only late
        centres need may arrive later: see :class:`~dpmd.kernels.neighbors.NeighborList`.
        """
        self._fetch()
        moved = np.inf if self.neighbors is None else self._moved(system)
        if self.processes.largest(moved) > self.skin:
            self.rebuild(system)
            return True
        self._positions[self._own] = system.positions
        self._memory.synchronize()
        self._send_positions(system.cell)
        self.positions[: self._n_own] = system.positions
        self.forces.fill(0.0)
        self._arriving, self._n_gathered = True, 0
        if self.neighbors.late is None:
            self._fetch()
        else:
            self._memory.synchronize()
            self._gather(self._n_early)
        self._start_evaluation()
        return False

    def _fetch(self, wait=True):
        """See :class:`~dpmd.kernels.neighbors.NeighborList`."""
        if not self._arriving:
            return
        if not wait:
            self._test(self._requests)
            return
        self._wait(self._requests)
        self._store_arrived()
        self._memory.synchronize()
        self._gather(len(self._needed))
        self._arriving = False

    def _store_arrived(self):
        """After messages have arrived: they were received in place."""

    def _gather(self, stop):
        """Copy the next needed positions from the node's array, up to ``stop``."""
        own, done = self._n_own, self._n_gathered
        _take(self._positions, self._needed[done:stop], self.positions[own + done : own + stop])
        self._n_gathered = stop

    def _moved(self, system):
        """By how much, Å, two atoms can have come nearer since the list was built, as seen here."""
        displaced = 2 * _largest_displacement(system.positions, self._reference)
        if not np.array_equal(system.cell, self._reference_cell):
            change = np.linalg.norm(system.cell - self._reference_cell, axis=1)
            displaced += float(self._largest_shift @ change)
        return displaced

    def fold(self, values):
        """Sums (own atoms, ...) of a per-atom array over own atoms and their images elsewhere.

        values : (len(positions), ...) float64, such as ``forces``.
        """
        self._fetch()
        if values is self.forces:
            self.exchanges += 1
            self._evaluation_time += perf_counter() - self.processes.waiting - self._evaluation_began
            self._evaluations += 1
            return self._fold_forces()
        columns = values.reshape(len(values), int(np.prod(values.shape[1:])))
        folded = np.empty((self._n_own, columns.shape[1]))
        for first in range(0, columns.shape[1], 3):
            part = columns[:, first : first + 3]
            self._memory.synchronize()  # others may still be reading
            self.forces[:, : part.shape[1]] = part
            folded[:, first : first + 3] = self._fold_forces()[:, : part.shape[1]]
        return folded.reshape(self._n_own, *values.shape[1:])

    def _start_evaluation(self):
        self._evaluation_began = perf_counter() - self.processes.waiting

    def _counted(self, n_bytes):
        """Note a message to another box."""
        self.messages += 1
        self.message_bytes += n_bytes

    def _wait(self, requests):
        from mpi4py import MPI

        with self.processes.wait():
            MPI.Request.Waitall(requests)

    @staticmethod
    def _test(requests):
        from mpi4py import MPI

        MPI.Request.Testall(requests)

    def free(self):
        """Give shared memory back; the domain is of no use afterwards."""
        self._memory.free()

    # ------------------------------------------------------------------ counters

    def reset_counters(self):
        """Count messages from here on."""
        self.messages = self.message_bytes = self.exchanges = 0

    def statistics(self):
        """What the exchange cost so far: a dict, the same on every rank.

        messages_per_step, bytes_per_step : positions and forces, between boxes, all boxes
        together; atoms_per_rank, atoms_per_node, ghosts_per_node : (least, mean, most);
        early_per_rank : atoms that may be evaluated while messages travel, of those the same;
        imbalance : most over mean atoms per rank; halo_error_A : see :attr:`halo_error`.
        """
        p, first = self.processes, self._node.rank == 0
        steps = max(self.exchanges, 1)

        def spread(value, counted, number):
            total = p.sum(float(value if counted else 0))
            most = p.largest(np.array([-value, value], float) if counted else np.full(2, -np.inf))
            return [0.0 - float(most[0]), float(total / number), float(most[1])]

        atoms = spread(self._n_own, True, p.size)
        late = self.neighbors.late
        sums = p.sum(np.array([self.messages, self.message_bytes], float))
        return {
            "scheme": self.scheme, "node_grid": list(self.partition.grid), "balance": self.balance,
            "messages_per_step": float(sums[0] / steps), "bytes_per_step": float(sums[1] / steps),
            "atoms_per_rank": atoms,
            "early_per_rank": spread(0 if late is None else int((~late).sum()), True, p.size),
            "atoms_per_node": spread(self._n_node, first, p.n_nodes),
            "ghosts_per_node": spread(self._n_ghosts, first, p.n_nodes),
            "imbalance": atoms[2] / max(atoms[1], 1e-300), "halo_error_A": self.halo_error,
        }  # fmt: skip


class NodeDomain(DistributedDomain):
    """The node-based scheme: one message per pair of neighbouring nodes, any number of shells away.

    halo_precision : of positions that travel.  "single": as float32 offsets from the positions at which
    the list was built, which both sides know; it halves these messages.  An offset of 0.5 Å is off by
    1.5e-8 Å at most, and a bond of 100 eV/Å^2 by 1.5e-6 eV/Å, as in mixed precision.  Forces always travel
    in float64: rounded, they would not sum to zero.
    """

    scheme = "node"

    def __init__(self, processes, cutoff, skin, n_types, threads=1, balance="atoms", halo_precision="double"):
        if halo_precision not in HALO_PRECISIONS:
            raise ValueError(f"halo_precision {halo_precision!r} is not one of {', '.join(HALO_PRECISIONS)}")
        super().__init__(processes, cutoff, skin, n_types, threads, balance)
        self.halo_precision = halo_precision
        if halo_precision == "single":  # half a unit in the last place of an offset, which the skin bounds
            self.halo_error = self.skin * 2.0**-24

    def _units(self, box, reach):
        """What a node's ranks share out among them: ``[(box, shifts)]``, and how many come first that are images.

        An image of the node's own atoms is a unit per lattice vector, another node is one unit;
        unit ``k`` belongs to rank ``k % size`` of the node.
        """
        neighbors = self.partition.neighbors(box, reach)
        images = [(box, row[None]) for other, rows in neighbors if other == box for row in rows]
        return images + [pair for pair in neighbors if pair[0] != box], len(images)

    def _find_ghosts(self, system, inverse, reach):
        """Decide what goes to whom, and fetch the ghosts' positions, types and ids."""
        node, me, ranks = self._node, self.processes.node_index, self.processes.ranks_of
        units, n_images = self._units(me, reach)
        own = self._memory.array("positions", self._n_node, (3,))
        own[self._own] = system.positions
        self._memory.synchronize()
        fractions = own @ inverse

        routes = {}
        for k in range(node.rank, len(units), node.size):
            (other, shifts), partner = units[k], None
            if k >= n_images:  # the rank of the other node to which this node was dealt
                there = [box for box, _ in self._units(other, reach)[0]]
                partner = ranks[other][there.index(me) % len(ranks[other])]
            routes[k] = _Route(partner, *self.partition.halo(fractions, other, shifts, reach))
        counts = self._exchange_counts(routes)
        first_late = self._lay_out(routes, counts, n_images, len(units))
        self._publish(system, self._ghost_total)
        self._first_late = first_late
        self._home = self._memory.array("home", self._n_node + self._ghost_total, dtype=np.int64)
        self._sent = self._memory.array("sent", self._returned_total, dtype=np.int64)
        self._memory.synchronize()
        self._fetch_ghosts(routes, system.cell)
        self._routes = list(routes.values())
        shifts = [np.abs(route.shifts).max(axis=0) for route in self._routes if len(route.shifts)]
        self._largest_shift = np.max(shifts, axis=0) if shifts else np.zeros(3)

    def _exchange_counts(self, routes):
        """{unit: (sent, received)} atoms of all units of this node."""
        numbers = {k: np.zeros(1, np.int64) for k in routes}
        world = self.processes.world
        requests = [world.Irecv(numbers[k], r.partner, _COUNT) for k, r in routes.items() if r.partner is not None]
        requests += [
            world.Isend(np.array([len(r.atoms)]), r.partner, _COUNT) for r in routes.values() if r.partner is not None
        ]
        self._wait(requests)
        mine = {k: (len(r.atoms), len(r.atoms) if r.partner is None else int(numbers[k][0])) for k, r in routes.items()}
        return {k: pair for part in self._node.allgather(mine) for k, pair in part.items()}

    def _lay_out(self, routes, counts, n_images, n_units):
        """Places of ghosts after the node's atoms, and of returning forces, unit after unit.

        Returns the place of the first ghost of another node.
        """
        ghost, returned = self._n_node, 0
        first_late = ghost + sum(counts[k][1] for k in range(n_images))
        for k in range(n_units):
            sent, received = counts[k]
            back = 0 if k < n_images else sent  # forces on images of own atoms need not travel
            if k in routes:
                routes[k].ghosts, routes[k].returned = slice(ghost, ghost + received), slice(returned, returned + back)
            ghost, returned = ghost + received, returned + back
        self._ghost_total, self._returned_total = ghost - self._n_node, returned
        return first_late

    def _fetch_ghosts(self, routes, cell):
        world, home = self.processes.world, self._home
        home[self._own] = np.arange(self._own.start, self._own.stop)
        outgoing, incoming, requests = [], [], []
        for route in routes.values():
            _take_displaced(self._positions, route.atoms, route.shifts, cell, route.out)
            ghosts = route.ghosts
            if route.partner is None:
                home[ghosts] = route.atoms
                self._positions[ghosts] = route.out
                self._types[ghosts], self._ids[ghosts] = self._types[route.atoms], self._ids[route.atoms]
                continue
            home[ghosts] = np.arange(ghosts.start, ghosts.stop)
            self._sent[route.returned] = route.atoms
            rows = np.empty(len(route.atoms), _border)
            rows["position"], rows["id"], rows["type"] = route.out, self._ids[route.atoms], self._types[route.atoms]
            outgoing.append(rows)
            incoming.append((ghosts, np.empty(ghosts.stop - ghosts.start, _border)))
            requests.append(world.Irecv(incoming[-1][1].view(np.uint8), route.partner, _BORDER))
            requests.append(world.Isend(rows.view(np.uint8), route.partner, _BORDER))
            self._counted(rows.nbytes)
        self._wait(requests)
        for ghosts, rows in incoming:
            self._positions[ghosts] = rows["position"]
            self._types[ghosts], self._ids[ghosts] = rows["type"], rows["id"]

    def _prepare_sums(self):
        """Where each rank's private forces are, and which of them are added for which atom.

        The node's rows of forces: those of rank 0 (own atoms, then needed ones), of rank 1, ...,
        then those that come back from other nodes.
        """
        counts = self._node.allgather(len(self.positions))
        begin, total = sum(counts[: self._node.rank]), sum(counts)
        self._rows = self._memory.array("forces", total + self._returned_total, (3,))
        atom_of_row = self._memory.array("atom of row", total, dtype=np.int64)
        mine = slice(begin, begin + len(self.positions))
        self.forces = self._rows[mine]
        self.forces.fill(0.0)
        atom_of_row[mine] = np.concatenate([np.arange(self._own.start, self._own.stop), self._needed])
        self._memory.synchronize()
        home = self._home[atom_of_row]
        self._first, self._sources = _rows_by_target(np.concatenate([home, self._sent]) - self._start, self._n_own)
        self._folded = np.empty((self._n_own, 3))
        for route in self._routes:
            route.incoming = self._positions[route.ghosts]
            route.home_rows = self._rows[total + route.returned.start : total + route.returned.stop]
            if route.partner is not None:
                route.back = np.empty((len(route.incoming), 3))
                route.first, route.sources = _rows_by_target(home - route.ghosts.start, len(route.incoming))
                if self.halo_precision == "single":
                    route.reference = route.out.copy(), route.incoming.copy()
                    route.offsets = tuple(np.empty(rows.shape, np.float32) for rows in route.reference)
        self._memory.synchronize()

    def _foreign(self):
        """The routes to other nodes."""
        return [route for route in self._routes if route.partner is not None]

    def _send_positions(self, cell):
        """Positions on their way to and from other nodes; images of own atoms are placed."""
        world, single = self.processes.world, self.halo_precision == "single"
        foreign = self._foreign()
        self._requests = [
            world.Irecv(route.offsets[1] if single else route.incoming, route.partner, _FORWARD) for route in foreign
        ]
        for route in foreign:
            _take_displaced(self._positions, route.atoms, route.shifts, cell, route.out)
            rows = route.out
            if single:
                rows = np.subtract(rows, route.reference[0], out=route.offsets[0], casting="same_kind")
            self._requests.append(world.Isend(rows, route.partner, _FORWARD))
            self._counted(rows.nbytes)
        for route in self._routes:
            if route.partner is None:
                _take_displaced(self._positions, route.atoms, route.shifts, cell, route.incoming)

    def _store_arrived(self):
        if self.halo_precision == "single":
            for route in self._foreign():
                np.add(route.reference[1], route.offsets[1], out=route.incoming)

    def _fold_forces(self):
        world, requests = self.processes.world, []
        self._memory.synchronize()
        foreign = self._foreign()
        for route in foreign:
            requests.append(world.Irecv(route.home_rows, route.partner, _REVERSE))
        for route in foreign:
            _sum_rows(route.first, route.sources, self._rows, route.back)
            requests.append(world.Isend(route.back, route.partner, _REVERSE))
            self._counted(route.back.nbytes)
        self._wait(requests)
        if self.processes.n_nodes > 1:
            self._memory.synchronize()
        _sum_rows(self._first, self._sources, self._rows, self._folded)
        return self._folded
