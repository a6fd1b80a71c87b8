"""Random numbers of formulas, ``random(lo,hi,seed)`` and ``normal(mu,sigma,seed)``.

The lagged Fibonacci generator of G. Marsaglia, A. Zaman and W. W. Tsang, Statist. Probab. Lett. 9, 35 (1990),
in the form of F. James, Comput. Phys. Commun. 60, 329 (1990); numbers are multiples of 2^-24.
"""

import math


class Marsaglia:
    """A stream of random numbers from a seed of 1 to 900000000."""

    def __init__(self, seed):
        high, low = divmod(seed - 1, 30082)
        i, j, k, m = high // 177 % 177 + 2, high % 177 + 2, low // 169 % 178 + 1, low % 169
        self._u = []
        for _ in range(97):
            value, bit = 0.0, 0.5
            for _ in range(24):
                i, j, k = j, k, i * j % 179 * k % 179
                m = (53 * m + 1) % 169
                if m * k % 64 >= 32:
                    value += bit
                bit /= 2
            self._u.append(value)
        self._c, self._a, self._b, self._saved = 362436 / 2**24, 96, 32, None
        self.uniform()

    def uniform(self):
        """A number in [0, 1)."""
        u = self._u
        value = (u[self._a] - u[self._b]) % 1.0
        u[self._a] = value
        self._a, self._b = (self._a - 1) % 97, (self._b - 1) % 97
        self._c -= 7654321 / 2**24
        if self._c < 0:
            self._c += 16777213 / 2**24
        return (value - self._c) % 1.0

    def normal(self):
        """A standard normal number (polar method)."""
        if self._saved is not None:
            value, self._saved = self._saved, None
            return value
        while True:
            a, b = 2 * self.uniform() - 1, 2 * self.uniform() - 1
            r = a * a + b * b
            if 0 < r < 1:
                break
        factor = math.sqrt(-2 * math.log(r) / r)
        self._saved = a * factor
        return b * factor
