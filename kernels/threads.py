"""Shares of work on several cores: one compiled function, called once per share.

Compiled functions release the interpreter's lock, so plain threads do.  (numba's own parallel
loops compile the whole kernel again inside each loop, which doubles the first start.)
"""

import os
from concurrent.futures import ThreadPoolExecutor

_pools = {}  # of this process, by number of extra threads


def usable_cores():
    """The set of cores that this process may use (its affinity mask, not the machine's)."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:
        return set(range(os.cpu_count() or 1))


def available_cores():
    """How many cores this process may use."""
    return len(usable_cores())


def run_shares(function, n_shares, *arguments):
    """``function(share, *arguments)`` for every share at the same time; the results, in order.

    The first share runs in the calling thread.
    """
    if n_shares == 1:
        return [function(0, *arguments)]
    key = (os.getpid(), n_shares)  # threads do not survive a fork
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(n_shares - 1, "dpmd")
    others = [_pools[key].submit(function, share, *arguments) for share in range(1, n_shares)]
    first = function(0, *arguments)
    return [first, *(other.result() for other in others)]
