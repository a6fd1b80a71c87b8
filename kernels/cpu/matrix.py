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


def _tile(vectors, n_rows=TILE_ROWS):
    @kernel
    def tile(code, a, from_a, stride_a, b, from_b, depth, c, to_c, stride_c, add):
        width = vectors * code.lanes
        a, b, c = a + from_a, b + from_b, c + to_c
        rows = [a + stride_a * r for r in range(n_rows)]
        sums = [code.zeros(vectors) for _ in rows]
        with code.when(add > 0):
            for r, row_sums in enumerate(sums):
                for v, total in enumerate(row_sums):
                    total.set(c.vector(stride_c * r + v * code.lanes))
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
_row_1, _row_2, _row_3 = (_tile(v, 1) for v in (1, 2, 3))


@njit(**OPTIONS)
def multiply(a, stride_a, b, depth, columns, c, stride_c, rows, step):
    """``c[:rows, :columns] = a[:rows, :depth] b`` for flat arrays.

    ``columns`` is a whole number of vectors.  The tiles of a panel go through ``step`` rows of b
    before the next ones, so that those stay in the fast cache.  Cost: 2 rows depth columns flops.
    """
    lane = VECTOR_BYTES // c.itemsize
    column, panel = 0, 0
    while column < columns:
        vectors = min((columns - column) // lane, _VECTORS)
        for k in range(0, depth, step):
            n, from_b = min(step, depth - k), panel + k * vectors * lane
            for i in range(0, rows, TILE_ROWS):
                from_a, to_c = i * stride_a + k, i * stride_c + column
                if vectors == 3:
                    _tile_3(a, from_a, stride_a, b, from_b, n, c, to_c, stride_c, k)
                elif vectors == 2:
                    _tile_2(a, from_a, stride_a, b, from_b, n, c, to_c, stride_c, k)
                else:
                    _tile_1(a, from_a, stride_a, b, from_b, n, c, to_c, stride_c, k)
        panel += depth * vectors * lane
        column += vectors * lane


# --------------------------------------------------------------------- factors rounded to bfloat16


def pack_matrix_half(b):
    """As :func:`pack_matrix` in bfloat16: pairs of rows interleaved, two numbers in each int32; flat."""
    depth, columns = b.shape
    lane = VECTOR_BYTES // 4
    bits = np.zeros((round_up(depth, 2), round_up(columns, lane)), np.float32)
    bits[:depth, :columns] = b
    bits = bits.view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    paired = (bits[0::2] | (bits[1::2] << 16)).view(np.int32)
    panels = np.split(paired, range(_VECTORS * lane, paired.shape[1], _VECTORS * lane), axis=1)
    return np.concatenate([panel.ravel() for panel in panels])


@njit(**OPTIONS)
def _multiply_row(a, b, depth, columns, c):
    """``c[:columns] = a[:depth] b`` for one row; b : from :func:`pack_matrix`."""
    lane = VECTOR_BYTES // c.itemsize
    column, panel = 0, 0
    while column < columns:
        vectors = min((columns - column) // lane, _VECTORS)
        if vectors == 3:
            _row_3(a, 0, 0, b, panel, depth, c, column, 0, 0)
        elif vectors == 2:
            _row_2(a, 0, 0, b, panel, depth, c, column, 0, 0)
        else:
            _row_1(a, 0, 0, b, panel, depth, c, column, 0, 0)
        panel += depth * vectors * lane
        column += vectors * lane


@kernel
def _mean_row(code, a, stride_a, columns, rows, share, mean):
    """``mean[k] = share * sum_i a[i, k]`` for whole vectors of columns."""
    with code.loop(0, columns, code.lanes) as k:
        total = code.variable(a.vector(k))
        with code.loop(1, rows) as i:
            total.add((a + i * stride_a).vector(k))
        mean.put(k, total.get() * code.fill(share))


@kernel
def _round_differences(code, a, stride_a, mean, depth, rounded, stride, rows):
    """Rows of ``a`` less ``mean`` as bfloat16, two in each number of ``rounded``."""
    with code.loop(0, rows) as i:
        source, target = a + i * stride_a, rounded + i * stride
        with code.loop(0, depth, code.lanes) as k:
            target.put(k / 2, code.rounded(source.vector(k) - mean.vector(k)))


def _tile_half(vectors):
    @kernel
    def tile(code, a, from_a, stride_a, b, from_b, depth, c, to_c, stride_c, before, from_before, stride_before):
        """c = before + a b; ``depth`` counts pairs; a and b hold int32."""
        width = vectors * code.lanes
        a, b, c, before = a + from_a, b + from_b, c + to_c, before + from_before
        rows = [a + stride_a * r for r in range(TILE_ROWS)]
        sums = [
            [code.variable(before.vector(stride_before * r + v * code.lanes)) for v in range(vectors)]
            for r in range(TILE_ROWS)
        ]
        with code.loop(0, depth) as k:
            columns = [b.vector(k * width + v * code.lanes, code.int_vector) for v in range(vectors)]
            for row, row_sums in zip(rows, sums, strict=True):
                x = code.fill(row.raw(k))
                for column, total in zip(columns, row_sums, strict=True):
                    total.set(code.add_products_of_pairs(total.get(), x, column))
        for r, row_sums in enumerate(sums):
            for v, total in enumerate(row_sums):
                c.put(stride_c * r + v * code.lanes, total.get())

    return tile


_tile_half_1, _tile_half_2, _tile_half_3 = (_tile_half(v) for v in (1, 2, 3))


@njit(**OPTIONS)
def multiply_half(a, stride_a, n, middle, rounded, b, b_half, depth, columns, c, stride_c, rows, step):
    """:func:`multiply` of single-precision numbers, about the mean row in bfloat16.

    ``c[i] = m b + (a[i] - m) b`` with ``m`` the mean of the first ``n`` of the ``rows``: its product is taken in
    single precision; in the other one, which is small where the rows are alike, both factors are rounded.
    So what rounding of b adds to the sum of the n rows is nothing, whatever their mean is.

    middle : scratch for 2 rows of a or c; rounded : int32 scratch for ``rows`` of half of ``depth``, in whole
    vectors; b, b_half : from :func:`pack_matrix` and :func:`pack_matrix_half`.
    """
    lane = VECTOR_BYTES // c.itemsize
    pairs = (depth + 1) // 2
    whole = (depth + lane - 1) // lane * lane
    stride = whole // 2
    mean, base = middle[: middle.size // 2], middle[middle.size // 2 :]
    _mean_row(a, stride_a, whole, n, np.float32(1 / n), mean)
    _multiply_row(mean, b, depth, columns, base)
    _round_differences(a, stride_a, mean, depth, rounded, stride, rows)
    column, panel = 0, 0
    while column < columns:
        vectors = min((columns - column) // lane, _VECTORS)
        for k in range(0, pairs, step):
            n_k, from_b = min(step, pairs - k), panel + k * vectors * lane
            for i in range(0, rows, TILE_ROWS):
                from_a, to_c = i * stride + k, i * stride_c + column
                before, from_before, stride_before = (c, to_c, stride_c) if k > 0 else (base, column, 0)
                if vectors == 3:
                    _tile_half_3(
                        rounded, from_a, stride, b_half, from_b, n_k, c, to_c, stride_c, before, from_before,
                        stride_before,
                    )  # fmt: skip
                elif vectors == 2:
                    _tile_half_2(
                        rounded, from_a, stride, b_half, from_b, n_k, c, to_c, stride_c, before, from_before,
                        stride_before,
                    )  # fmt: skip
                else:
                    _tile_half_1(
                        rounded, from_a, stride, b_half, from_b, n_k, c, to_c, stride_c, before, from_before,
                        stride_before,
                    )  # fmt: skip
        panel += pairs * vectors * lane
        column += vectors * lane
