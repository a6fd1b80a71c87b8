"""The processes (ranks) that work on one system, and what they tell one another.

:class:`OneProcess` is the case without MPI; the rest of dpmd calls the same methods on either and
needs no case distinction.  Methods marked *collective* must be called by all ranks.

Reductions give every rank the same number to the last bit, so that what follows from it
(thermostats, decisions to stop) is the same everywhere.
"""

from contextlib import contextmanager
from time import perf_counter

import numpy as np


class OneProcess:
    """A process on its own: every sum is its own value."""

    size, rank, n_nodes, n_machines = 1, 0, 1, 1
    #: True on the one rank that reads input and writes output
    root = True
    #: ranks that share this machine's cores, and which of them this is
    machine_ranks, machine_rank = 1, 0
    #: seconds that this rank has waited for others, or for their messages
    waiting = 0.0

    def sum(self, value):
        """Sum of a number or array over all ranks.  Collective."""
        return value

    def largest(self, value):
        """Maximum of a number, or of each entry of an array, over all ranks.  Collective."""
        return value

    def gather(self, rows):
        """Rows (n, ...) of all ranks, in the order of ranks, on root; None elsewhere.  Collective."""
        return rows

    def everywhere(self, array):
        """The arrays of all ranks, which have one shape, stacked, on every rank.  Collective."""
        return np.asarray(array)[None]

    def collect(self, value):
        """A list of every rank's value (anything that can be pickled) on root; None elsewhere.  Collective."""
        return [value]

    def broadcast(self, value):
        """The value that root has (anything that can be pickled).  Collective."""
        return value

    def on_root(self, function):
        """The result of ``function()``, called by root alone.  Collective.

        What it raises, all ranks raise, marked ``everywhere = True``.
        """
        return function()

    def root_first(self, function):
        """``function()`` on every rank, on root before the others start; errors as in :meth:`on_root`."""
        return function()


class Processes(OneProcess):
    """The ranks of an MPI communicator, grouped into nodes.

    ranks_per_node : how many ranks that share memory form a node; default all of them.
    Nodes are numbered by their first rank.  Collective.
    """

    def __init__(self, communicator, ranks_per_node=None):
        from mpi4py import MPI

        self.world, self._maximum = communicator, MPI.MAX
        self.size, self.rank, self.root = communicator.size, communicator.rank, communicator.rank == 0
        machine = communicator.Split_type(MPI.COMM_TYPE_SHARED)
        self.machine_ranks, self.machine_rank = machine.size, machine.rank
        #: communicator of the ranks of this node
        self.node = machine.Split(machine.rank // (ranks_per_node or machine.size), machine.rank)
        self.n_machines = len(set(communicator.allgather(machine.bcast(self.rank))))
        first_ranks = communicator.allgather(self.node.bcast(self.rank))
        nodes = sorted(set(first_ranks))
        self.n_nodes, self.node_index = len(nodes), nodes.index(first_ranks[self.rank])
        #: world ranks of each node
        self.ranks_of = [[] for _ in nodes]
        for rank, first in enumerate(first_ranks):
            self.ranks_of[nodes.index(first)].append(rank)

    @contextmanager
    def wait(self):
        """A context whose time counts as waiting."""
        begin = perf_counter()
        yield
        self.waiting += perf_counter() - begin

    def sum(self, value):
        array = np.array(value)
        total = np.empty_like(array)
        with self.wait():
            self.world.Reduce(array, total)  # to one rank and back: the same bits everywhere
            self.world.Bcast(total)
        return total[()]

    def largest(self, value):
        array = np.array(value)
        result = np.empty_like(array)
        with self.wait():
            self.world.Allreduce(array, result, self._maximum)
        return result[()]

    def gather(self, rows):
        from mpi4py import MPI

        rows = np.ascontiguousarray(rows)
        with self.wait():
            counts = self.world.gather(len(rows))
        row = MPI.BYTE.Create_contiguous(rows.itemsize * int(np.prod(rows.shape[1:], dtype=int))).Commit()
        everything = np.empty((sum(counts), *rows.shape[1:]), rows.dtype) if self.root else None
        self.world.Gatherv([rows, len(rows), row], [everything, counts, row] if self.root else None)
        row.Free()
        return everything

    def everywhere(self, array):
        array = np.ascontiguousarray(array)
        everything = np.empty((self.size, *array.shape), array.dtype)
        with self.wait():
            self.world.Allgather(array, everything)
        return everything

    def collect(self, value):
        with self.wait():
            return self.world.gather(value)

    def broadcast(self, value):
        with self.wait():
            return self.world.bcast(value)

    def on_root(self, function):
        outcome = None
        if self.root:
            try:
                outcome = function(), None
            except Exception as error:  # whatever it is, all ranks are told
                outcome = None, error
        value, error = self.broadcast(outcome)
        if error is not None:
            error.everywhere = True
            raise error
        return value

    def root_first(self, function):
        results = []
        self.on_root(lambda: results.append(function()))
        return results[0] if self.root else function()
