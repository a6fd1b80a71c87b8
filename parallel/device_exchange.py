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

import os

import numpy as np

_HALO = 7040


def make_exchange(device, processes):
    """The exchange of this rank with the others.  Collective.

    NCCL wherever it is, except where ranks share a GPU, which it refuses.
    """
    identities = processes.broadcast(processes.collect(device.identity))
    problems = ["" if len(set(identities)) == len(identities) else "ranks share a GPU", _nccl_problem(device)]
    problem = next(filter(None, problems), "")
    problem = next(filter(None, processes.broadcast(processes.collect(problem))), "")
    return StagedExchange(device, processes, problem) if problem else NcclExchange(device, processes)


def _nccl_problem(device):
    """Why NCCL cannot be used, or an empty text."""
    # multicast is of no use to messages between two, and its set-up takes memory and permissions
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    try:
        from cupy.cuda import nccl

        nccl.get_version()
    except Exception as error:  # a missing CuPy, a missing library, a CuPy made without it
        return f"no NCCL ({error}); pip install nvidia-nccl-cu13 or -cu12"
    return ""


class NcclExchange:
    """Straight from GPU to GPU."""

    recordable = True

    def __init__(self, device, processes):
        from cupy.cuda import nccl

        self._nccl, self._stream = nccl, device.xp.cuda.get_current_stream
        key = processes.on_root(nccl.get_unique_id)
        self._communicator = nccl.NcclCommunicator(processes.size, key, processes.rank)
        version = nccl.get_version()
        self.description = f"by NCCL {version // 10000}.{version // 100 % 100}, GPU to GPU"

    def prepare(self, outgoing, incoming):
        nccl, communicator = self._nccl, self._communicator
        sends = [(array.data.ptr, array.nbytes, nccl.NCCL_UINT8, rank) for rank, array in outgoing]
        receives = [(array.data.ptr, array.nbytes, nccl.NCCL_UINT8, rank) for rank, array in incoming]

        def run():
            stream = self._stream().ptr
            nccl.groupStart()
            for message in receives:
                communicator.recv(*message, stream)
            for message in sends:
                communicator.send(*message, stream)
            nccl.groupEnd()

        return run


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
