"""Arrays that all ranks of a node see in the same memory."""

import shutil

import numpy as np

#: where MPI keeps shared memory on Linux
_SHARED_FOLDER = "/dev/shm"


class NodeMemory:
    """Named arrays in MPI shared windows that grow when asked for more; private ones on a rank alone.

    processes : :class:`~dpmd.parallel.processes.Processes`.  Stores become visible to the other ranks
    of the node at :meth:`synchronize`.
    """

    def __init__(self, processes):
        self._processes, self.communicator = processes, processes.node
        self._windows, self._memory = {}, {}

    def array(self, name, rows, columns=(), dtype=np.float64):
        """The first ``rows`` rows of array ``name``, shape (rows, \\*columns).

        Contents are lost when it has to grow.  Collective: all ranks ask for the same.  Raises
        MemoryError where the machine has too little shared memory.
        """
        dtype = np.dtype(dtype)
        needed = rows * dtype.itemsize * int(np.prod(columns, dtype=np.int64))
        if name not in self._memory or needed > len(self._memory[name]):
            self._memory[name] = None
            self._memory[name] = self._allocate(name, int(1.2 * needed) + 1024)
        return np.ndarray((rows, *columns), dtype, buffer=self._memory[name])

    def _allocate(self, name, n_bytes):
        """A new buffer of ``n_bytes`` in place of the old one."""
        if self.communicator.size == 1:
            return memoryview(bytearray(n_bytes))
        from mpi4py import MPI

        if name in self._windows:
            old = self._windows.pop(name)
            old.Unlock_all()
            old.Free()
        owner = self.communicator.rank == 0
        if owner:
            self._check_room(n_bytes)
        window = MPI.Win.Allocate_shared(n_bytes if owner else 0, 1, comm=self.communicator)
        window.Lock_all()
        self._windows[name] = window
        return window.Shared_query(0)[0]

    @staticmethod
    def _check_room(n_bytes):
        try:
            free = shutil.disk_usage(_SHARED_FOLDER).free
        except OSError:
            return
        if n_bytes > free:
            raise MemoryError(
                f"{n_bytes / 2**20:.0f} MiB of shared memory wanted, {free / 2**20:.0f} MiB left in {_SHARED_FOLDER}; "
                "containers limit it (--shm-size); --ranks-per-node 1 needs none"
            )

    def synchronize(self):
        """Wait for the ranks of the node; afterwards each sees what the others stored before."""
        if self.communicator.size == 1:
            return
        for window in self._windows.values():
            window.Sync()
        with self._processes.wait():
            self.communicator.Barrier()
        for window in self._windows.values():
            window.Sync()

    def free(self):
        """Give the memory back.  Collective."""
        for window in self._windows.values():
            window.Unlock_all()
            window.Free()
        self._windows.clear()
        self._memory.clear()
