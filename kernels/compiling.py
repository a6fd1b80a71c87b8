"""When compiled functions are not in the cache yet: to say so, and to keep that time out of measurements."""

import time
from contextlib import contextmanager
from threading import Lock

from numba.core import event


class _Listener(event.Listener):
    def __init__(self, told):
        self.seconds, self._told, self._open, self._lock, self._begin = 0.0, told, 0, Lock(), 0.0

    def on_start(self, event):
        with self._lock:
            self._open += 1
            first, self._told = self._told, None
            if self._open == 1:
                self._begin = time.perf_counter()
        if first is not None:
            first()

    def on_end(self, event):
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self.seconds += time.perf_counter() - self._begin


@contextmanager
def compilation(told=None):
    """A context whose value has ``seconds``, spent in it on compiling what no cache held.

    told : function without arguments, called when the first compilation begins.
    """
    listener = _Listener(told)
    event.register("numba:compile", listener)
    try:
        yield listener
    finally:
        event.unregister("numba:compile", listener)
