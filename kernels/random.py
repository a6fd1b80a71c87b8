"""Counter-based random numbers: a function of seed, step and atom id alone.

Philox-4x32-10 (J. Salmon et al., SC11, "Parallel random numbers: as easy as 1, 2, 3"): the
numbers do not depend on the order of atoms, ranks, threads or device, and a restart needs no
generator state.
"""

import numpy as np
from numba import njit

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)


@njit(cache=True)
def philox(c0, c1, c2, c3, k0, k1):
    """Ten rounds on a counter of four and a key of two 32-bit words (held in uint64)."""
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> np.uint64(32)) ^ c1 ^ k0, p1 & _LOW, (p0 >> np.uint64(32)) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@njit(cache=True)
def _normals(seed, step, ids, stream, out):
    scale = 1.0 / 4294967296.0
    shift = np.uint64(32)
    k0, k1 = np.uint64(seed) & _LOW, np.uint64(seed) >> shift
    s0, s1 = np.uint64(step) & _LOW, (np.uint64(step) >> shift) ^ (np.uint64(stream) << np.uint64(24))
    for i in range(len(ids)):
        number = np.uint64(ids[i])
        a, b, c, d = philox(number & _LOW, number >> shift, s0, s1 & _LOW, k0, k1)
        # Box-Muller: two pairs, of which three numbers are used
        r = np.sqrt(-2.0 * np.log((np.float64(a) + 0.5) * scale))
        angle = 2.0 * np.pi * (np.float64(b) + 0.5) * scale
        out[i, 0], out[i, 1] = r * np.cos(angle), r * np.sin(angle)
        r = np.sqrt(-2.0 * np.log((np.float64(c) + 0.5) * scale))
        out[i, 2] = r * np.cos(2.0 * np.pi * (np.float64(d) + 0.5) * scale)


def standard_normals(seed, step, ids, stream=0):
    """Standard normal numbers (n, 3) for atoms ``ids`` (n,) at a step.

    stream : 0..255, tells apart uses at the same step (initial velocities, thermostat, ...).
    """
    out = np.empty((len(ids), 3))
    _normals(seed, step, np.asarray(ids, np.int64), stream, out)
    return out


def step_generator(seed, step, stream=0):
    """A numpy Generator for numbers that belong to the whole system at a step."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, stream, step]))
