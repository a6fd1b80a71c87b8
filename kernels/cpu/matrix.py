"""Matrix products whose right factor is constant, and therefore packed once.

``c = a b`` is computed in tiles of ``TILE_ROWS`` rows by three vectors that stay in registers:
per step of the depth 3 vectors of ``b`` and 8 numbers of ``a`` are read for 24 multiply-adds, so
the arithmetic units are the limit (98 % of their peak measured on Zen 4; OpenBLAS, which has to
pack both factors anew for every call, reached 76 to 85 %).

``a`` and ``c`` are row-major with their own strides; ``c`` is written in whole vectors, and rows
are computed ``TILE_ROWS`` at a time, so both need room for that many.
"""

import numpy as np
from numba import njit

from .simd import OPTIONS, REGISTERS, VECTOR_BYTES, kernel, lanes, round_up

TILE_ROWS = 8 if REGISTERS == 32 else 4
_VECTORS = 3  # of a tile; the last panel of a matrix may have fewer


def pack_matrix(b, dtype):
    """``b`` (depth, columns) as panels of 3 vectors, each (depth, width), padded with zeros; flat."""
    depth, columns = b.shape
    lane = lanes(np.dtype(dtype))
    padded = np.zeros((depth, round_up(columns, lane)), dtype)
    padded[:, :columns] = b
    return np.concatenate([panel.ravel() for panel in np.split(padded, _cuts(padded.shape[1], lane), axis=1)])


def _cuts(columns, lane):
    return range(_VECTORS * lane, columns, _VECTORS * lane)


def _tile(vectors):
    @kernel
    def tile(code, a, from_a, stride_a, b, from_b, depth, c, to_c, stride_c):
        width = vectors * code.lanes
        a, b, c = a + from_a, b + from_b, c + to_c
        rows = [a + stride_a * r for r in range(TILE_ROWS)]
        sums = [code.zeros(vectors) for _ in rows]
        with code.loop(0, depth) as k:
            columns = [b.vector(k * width + v * code.lanes) for v in range(vectors)]
            for row, row_sums in zip(rows, sums, strict=True):
                x = code.fill(row[k])
                for column, total in zip(columns, row_sums, strict=True):
                    total.add(x * column)
        for r, row_sums in enumerate(sums):
            for v, total in enumerate(row_sums):
                c.put(stride_c * r + v * code.lanes, total.get())

    return tile


_tile_1, _tile_2, _tile_3 = (_tile(v) for v in (1, 2, 3))


@njit(**OPTIONS)
def multiply(a, stride_a, b, depth, columns, c, stride_c, rows):
    """``c[:rows, :columns] = a[:rows, :depth] b`` for flat arrays.

    ``columns`` is a whole number of vectors.  Cost: 2 rows depth columns flops.
    """
    lane = VECTOR_BYTES // c.itemsize
    column, from_b = 0, 0
    while column < columns:
        vectors = min((columns - column) // lane, _VECTORS)
        for i in range(0, rows, TILE_ROWS):
            from_a, to_c = i * stride_a, i * stride_c + column
            if vectors == 3:
                _tile_3(a, from_a, stride_a, b, from_b, depth, c, to_c, stride_c)
            elif vectors == 2:
                _tile_2(a, from_a, stride_a, b, from_b, depth, c, to_c, stride_c)
            else:
                _tile_1(a, from_a, stride_a, b, from_b, depth, c, to_c, stride_c)
        from_b += depth * vectors * lane
        column += vectors * lane
