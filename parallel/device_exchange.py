"""Messages between GPUs of several ranks: by NCCL from one to the other, or by MPI through the host.

Both kinds are made by :func:`make_exchange` and have

``prepare(outgoing, incoming)``
    a function that sends and receives; both are lists of (rank, contiguous array on the device), in the
    order of ranks.  What it receives is there for whatever is launched after it.
``recordable``
    whether that function can be part of a recorded step;
``description``
    how messages travel, for the log.
"""

from functools import partial

import numpy as np

_HALO = 7040


def make_exchange(device, processes):
    """The exchange of this rank with the others.  Collective.

    NCCL wherever it is, except where ranks share a GPU, which it refuses.
    """
    identities = processes.broadcast(processes.collect(device.identity))
    problem = device.connection_problem() if len(set(identities)) == len(identities) else "ranks share a GPU"
    problem = next(filter(None, processes.broadcast(processes.collect(problem))), "")
    return StagedExchange(device, processes, problem) if problem else DirectExchange(device, processes)


class DirectExchange:
    """Straight from GPU to GPU, by NCCL."""

    recordable = True

    def __init__(self, device, processes):
        key = processes.on_root(device.connection_key)
        self._connection = device.connect(processes.size, key, processes.rank)
        self.description = f"{self._connection.description}, GPU to GPU"

    def prepare(self, outgoing, incoming):
        return partial(self._connection.exchange, outgoing, incoming)


class StagedExchange:
    """Through pinned memory of the host and MPI: for ranks that share a GPU, and where NCCL is missing."""

    recordable = False

    def __init__(self, device, processes, reason=""):
        self._device, self._processes = device, processes
        self.description = "by MPI through the hosts' memory" + (f": {reason}" if reason else "")

    def prepare(self, outgoing, incoming):
        from mpi4py import MPI

        device, processes, world = self._device, self._processes, self._processes.world

        def staged(messages):
            return [
                (rank, array, device.host_array(array.nbytes).view(array.dtype).reshape(array.shape))
                for rank, array in messages
            ]

        sends, receives = staged(outgoing), staged(incoming)

        def run():
            for _, array, host in sends:
                device.download(array, host)  # waits for what the last call received, too
            requests = [world.Irecv(host.view(np.uint8), rank, _HALO) for rank, _, host in receives]
            requests += [world.Isend(host.view(np.uint8), rank, _HALO) for rank, _, host in sends]
            with processes.wait():
                MPI.Request.Waitall(requests)
            for _, array, host in receives:
                device.store(array, host)

        return run
