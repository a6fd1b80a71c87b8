"""Arrays that all ranks of a node see in the same memory."""

import numpy as np


class NodeMemory:
    """Named arrays in MPI shared windows that grow when asked for more.

    communicator : of the ranks of the node.  Stores become visible to the other ranks at
    :meth:`synchronize`.
    """

    def __init__(self, communicator):
        self.communicator = communicator
        self._windows = {}
        #: seconds spent waiting for the other ranks of the node
        self.waiting = 0.0

    def array(self, name, rows, columns=(), dtype=np.float64):
        """The first ``rows`` rows of array ``name``, shape (rows, \\*columns).

        Contents are lost when it has to grow.  Collective: all ranks ask for the same.
        """
        from mpi4py import MPI

        dtype = np.dtype(dtype)
        row = dtype.itemsize * int(np.prod(columns, dtype=np.int64))
        window, room = self._windows.get(name, (None, -1))
        if rows > room:
            if window is not None:
                window.Unlock_all()
                window.Free()
            room = int(1.2 * rows) + 16
            owner = self.communicator.rank == 0
            window = MPI.Win.Allocate_shared(room * row if owner else 0, 1, comm=self.communicator)
            window.Lock_all()
            self._windows[name] = window, room
        memory, _ = window.Shared_query(0)
        return np.ndarray((rows, *columns), dtype, buffer=memory)

    def synchronize(self):
        """Wait for the ranks of the node; afterwards each sees what the others stored before."""
        from time import perf_counter

        if self.communicator.size == 1:
            return
        begin = perf_counter()
        for window, _ in self._windows.values():
            window.Sync()
        self.communicator.Barrier()
        for window, _ in self._windows.values():
            window.Sync()
        self.waiting += perf_counter() - begin

    def free(self):
        """Give the memory back.  Collective."""
        for window, _ in self._windows.values():
            window.Unlock_all()
            window.Free()
        self._windows.clear()
