"""Rows of data sent to ranks that do not expect them."""

from itertools import count

import numpy as np

#: two rounds in a row must not be confused: a rank may start the next while others end this one
_TAGS = (7001, 7002)
_rounds = count()


def deliver(communicator, outgoing, dtype):
    """Send arrays of records and receive those meant for this rank.  Collective.

    outgoing : {rank: (n,) records of ``dtype``}.  Returns the received records in one array, in
    the order of their senders' ranks, what was sent to oneself included.

    Only ranks that have something to say to one another exchange messages.  T. Hoefler et al.,
    PPoPP 2010, "Scalable communication protocols for dynamic sparse data exchange" (NBX).
    """
    from mpi4py import MPI

    tag = _TAGS[next(_rounds) % 2]
    received = {communicator.rank: outgoing.get(communicator.rank, np.empty(0, dtype))}
    buffers = [
        np.ascontiguousarray(records).view(np.uint8) for r, records in outgoing.items() if r != communicator.rank
    ]
    ranks = [rank for rank in outgoing if rank != communicator.rank]
    sends = [communicator.Issend(buffer, rank, tag) for buffer, rank in zip(buffers, ranks, strict=True)]
    barrier, status = None, MPI.Status()
    while True:
        if communicator.Iprobe(MPI.ANY_SOURCE, tag, status):
            buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            communicator.Recv(buffer, status.source, tag)
            received[status.source] = buffer.view(dtype)
        elif barrier is None:
            if MPI.Request.Testall(sends):
                barrier = communicator.Ibarrier()
        elif barrier.Test():
            return np.concatenate([received[rank] for rank in sorted(received)])
