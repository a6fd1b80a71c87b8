"""Random velocities as LAMMPS draws them.

The minimal standard generator of S. K. Park and K. W. Miller, Commun. ACM 31, 1192 (1988):
seed <- 16807 seed mod (2^31 - 1).
"""

import struct

import numpy as np
from numba import njit


@njit(cache=True)
def _numbers(seed, n, gaussian):
    """n numbers, uniform in (0, 1) or normal (polar method), and the seed afterwards."""
    out = np.empty(n)
    saved, have = 0.0, False
    for k in range(n):
        if not gaussian:
            seed = 16807 * seed % 2147483647
            out[k] = seed / 2147483647.0
            continue
        if have:
            out[k], have = saved, False
            continue
        while True:
            seed = 16807 * seed % 2147483647
            a = 2.0 * (seed / 2147483647.0) - 1.0
            seed = 16807 * seed % 2147483647
            b = 2.0 * (seed / 2147483647.0) - 1.0
            r = a * a + b * b
            if 0.0 < r < 1.0:
                break
        factor = np.sqrt(-2.0 * np.log(r) / r)
        saved, have = a * factor, True
        out[k] = b * factor
    return out, seed


class ParkMiller:
    """A stream of random numbers from a positive seed."""

    def __init__(self, seed):
        self.seed = int(seed)

    def uniform(self, n):
        """n numbers in (0, 1)."""
        numbers, self.seed = _numbers(self.seed, n, False)
        return numbers

    def normal(self, n):
        """n standard normal numbers."""
        numbers, self.seed = _numbers(self.seed, n, True)
        return numbers


def seed_from_position(seed, position):
    """Seed of an atom at ``position`` (3,) for ``loop geom``: one-at-a-time hash of B. Jenkins."""
    value = 0
    for byte in struct.pack("<i", seed) + struct.pack("<3d", *position):
        signed = byte - 256 if byte > 127 else byte
        value = (value + signed) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    value = (value + (value << 15)) & 0xFFFFFFFF
    return (value & 0x7FFFFFF) or 1


def velocity_noise(seed, ids, positions, loop="all", gaussian=False, mask=None):
    """(n, 3) numbers around zero for atoms ``ids``.

    loop : all: one stream in id order; geom: one per position; local: one stream in the atoms' present order, of
    those in ``mask`` (n,) only.
    """
    if loop == "geom":
        rows = []
        for position in positions:
            stream = ParkMiller(seed_from_position(seed, position))
            stream.uniform(5)
            rows.append(stream.normal(3) if gaussian else stream.uniform(3) - 0.5)
        return np.array(rows).reshape(-1, 3)
    stream = ParkMiller(seed)
    if loop == "all":
        n = int(ids.max(initial=0))
    else:
        n = int(mask.sum())
        stream.uniform(100)
    numbers = (stream.normal(3 * n) if gaussian else stream.uniform(3 * n) - 0.5).reshape(n, 3)
    if loop == "all":
        return numbers[ids - 1]
    noise = np.zeros((len(ids), 3))
    noise[mask] = numbers
    return noise
