"""Matrix products whose right factor is constant, and therefore packed once.

``c = a b`` is computed in tiles of ``TILE_ROWS`` rows by three vectors that stay in registers:
per step of the depth 3 vectors of ``b`` and 8 numbers of ``a`` are read for 24 multiply-adds, so
the arithmetic units are the limit (98 % of their peak measured on Zen 4; OpenBLAS, which has to
pack both factors anew for every call, reached 76 to 85 %).

``a`` and ``c`` are row-major with their own strides; ``c`` is written in whole vectors, and rows
are computed ``TILE_ROWS`` at a time, so both need room for that many.
"""

from typing import NamedTuple

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
#: of rows with few alike: those that :func:`multiply_half` expands about
_few_1, _few_2, _few_3 = (_tile(v, 3) for v in (1, 2, 3))


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
#
# Rounding every input to 8 bits would be felt: an energy is a small difference of large sums, and what the
# rounding of a weight adds is the same for all atoms that are alike, so that it does not average out (20 meV
# per atom and 2 kbar in crystals of copper).  But the centres of a block are alike.  With m the mean of their
# rows, u_1 and u_2 two directions in which they differ most, and x_i = m + t_i1 u_1 + t_i2 u_2 + d_i,
#
#     x_i b  =  m b + t_i1 (u_1 b) + t_i2 (u_2 b)  +  d_i b
#
# needs three products in single precision for the block, and only those of the small d_i with bfloat16.  The
# identity holds for any m, t and u.  As the d_i add up to nothing, errors of b leave the block's sum alone.


class Frame(NamedTuple):
    """Scratch of :func:`multiply_half`; widths in whole vectors of the widest matrix.

    rows : (3 width,) m, u_1 and u_2; products : (3 width,) theirs; along : (3 rows,) square of a row's
    distance from what is found so far, t_1, t_2; rounded : (rows width / 2,) int32, pairs of d.
    """

    rows: np.ndarray
    products: np.ndarray
    along: np.ndarray
    rounded: np.ndarray


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


def _add_rows(n):
    @kernel
    def add(code, total, x, stride, depth):
        """total += the sum of n rows of x."""
        with code.loop(0, depth, code.lanes) as k:
            result = total.vector(k)
            for i in range(n):
                result = result + (x + stride * i).vector(k)
            total.put(k, result)

    return add


_add_1, _add_8 = _add_rows(1), _add_rows(8)


@kernel
def _scale_row(code, x, factor, depth):
    """x *= factor."""
    with code.loop(0, depth, code.lanes) as k:
        x.put(k, x.vector(k) * code.fill(code.number(factor)))


@kernel
def _difference(code, x, at_x, mean, depth, target, at_target):
    """target[at_target:] = x[at_x:] - mean."""
    x, target = x + at_x, target + at_target
    with code.loop(0, depth, code.lanes) as k:
        target.put(k, x.vector(k) - mean.vector(k))


@kernel
def _subtract(code, target, at_target, factor, x, at_x, depth):
    """target[at_target:] -= factor x[at_x:]."""
    target, x = target + at_target, x + at_x
    with code.loop(0, depth, code.lanes) as k:
        target.put(k, target.vector(k) - x.vector(k) * code.fill(code.number(factor)))


@kernel
def _squares(code, x, stride, mean, depth, rows, squares):
    """squares[i] = |x_i - mean|^2."""
    with code.loop(0, rows, TILE_ROWS) as i:
        totals, group = code.zeros(TILE_ROWS), x + i * stride
        with code.loop(0, depth, code.lanes) as k:
            m = mean.vector(k)
            for r, total in enumerate(totals):
                d = (group + stride * r).vector(k) - m
                total.add(d * d)
        for r, total in enumerate(totals):
            squares.put_number(i + r, code.sum(total.get()))


@kernel
def _project(code, x, stride, mean, u, at_u, depth, rows, along, at_along):
    """along[i] = (x_i - mean) . u."""
    u, along = u + at_u, along + at_along
    with code.loop(0, rows, TILE_ROWS) as i:
        totals, group = code.zeros(TILE_ROWS), x + i * stride
        with code.loop(0, depth, code.lanes) as k:
            m, direction = mean.vector(k), u.vector(k)
            for r, total in enumerate(totals):
                total.add(((group + stride * r).vector(k) - m) * direction)
        for r, total in enumerate(totals):
            along.put_number(i + r, code.sum(total.get()))


@kernel
def _round_rest(code, x, stride, vectors, width, along, n_along, depth, rows, rounded, to_stride):
    """Pairs of d_i = x_i - m - t_i1 u_1 - t_i2 u_2 in bfloat16."""
    mean, first, second = (vectors + width * k for k in range(3))
    with code.loop(0, rows) as i:
        source, target = x + i * stride, rounded + i * to_stride
        t, s = (code.fill((along + n_along * k)[i]) for k in (1, 2))
        with code.loop(0, depth, code.lanes) as k:
            rest = source.vector(k) - mean.vector(k) - t * first.vector(k) - s * second.vector(k)
            target.put(k / 2, code.rounded(rest))


@njit(**OPTIONS)
def _square(x):
    """|x|^2."""
    total = np.float32(0)
    for k in range(x.size):
        total += x[k] * x[k]
    return total


@njit(**OPTIONS)
def _expand(x, stride, n, depth, rows, directions, frame):
    """Fill ``frame`` for rows of whole vectors ``x``, of which the first ``n`` count; see :func:`multiply_half`."""
    width, n_along = frame.rows.size // 3, frame.along.size // 3
    mean, squares = frame.rows[:width], frame.along[:n_along]
    mean[:] = 0
    whole = n // 8 * 8
    for i in range(0, whole, 8):
        _add_8(mean, x[i * stride :], stride, depth)
    for i in range(whole, n):
        _add_1(mean, x[i * stride :], stride, depth)
    _scale_row(mean, 1 / n, depth)
    if directions:
        _squares(x, stride, mean, depth, rows, squares)
        rounding = np.float32(1e-12) * _square(mean[:depth]) + np.float32(1e-30)
        for k in (1, 2):
            farthest = 0
            for i in range(n):
                if squares[i] > squares[farthest]:
                    farthest = i
            u, along = k * width, k * n_along
            _difference(x, farthest * stride, mean, depth, frame.rows, u)
            if k == 2:
                _subtract(frame.rows, u, frame.along[n_along + farthest], frame.rows, width, depth)
            # not from squares, which lose all their digits where u_1 explains the differences
            size = _square(frame.rows[u : u + depth])
            factor = 0.0
            if size > rounding:
                factor = 1 / np.sqrt(np.float64(size))
            _scale_row(frame.rows[u:], factor, depth)
            rounding += np.float32(1e-10) * size
            _project(x, stride, mean, frame.rows, u, depth, rows, frame.along, along)
            for i in range(n):
                squares[i] -= frame.along[along + i] ** 2
    else:
        frame.rows[width:] = 0
        frame.along[:] = 0
    _round_rest(
        x, stride, frame.rows, width, frame.along, n_along, depth, rows, frame.rounded, depth // 2
    )  # fmt: skip


def _tile_half(vectors):
    @kernel
    def tile(
        code, a, from_a, stride_a, b, from_b, depth, c, to_c, stride_c, add, base, from_base, stride_base, along,
        from_along, stride_along,
    ):  # fmt: skip
        """``depth`` counts pairs; a and b hold int32.  Without ``add``, sums begin with the products of the frame."""
        width = vectors * code.lanes
        a, b, c, base, along = a + from_a, b + from_b, c + to_c, base + from_base, along + from_along
        rows = [a + stride_a * r for r in range(TILE_ROWS)]
        sums = [code.zeros(vectors) for _ in rows]
        with code.when(add > 0):
            for r, row_sums in enumerate(sums):
                for v, total in enumerate(row_sums):
                    total.set(c.vector(stride_c * r + v * code.lanes))
        with code.when(add < 1):
            for v in range(vectors):
                m, u, w = ((base + stride_base * k).vector(v * code.lanes) for k in range(3))
                for r, row_sums in enumerate(sums):
                    t, s = (code.fill((along + stride_along * k)[r]) for k in (1, 2))
                    row_sums[v].set(m + t * u + s * w)
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
def multiply_half(a, stride_a, n, directions, frame, b, b_half, depth, columns, c, stride_c, rows, step):
    """:func:`multiply` of single-precision numbers with rows, but for what they share, rounded to bfloat16.

    Of the ``rows`` the first ``n`` count.  directions : whether u_1 and u_2 are taken out too, which costs as
    much as a tenth of the product.  Numbers of a from ``depth`` to the next whole vector must be 0, or
    the same in all rows.  frame : a :class:`Frame`; b, b_half : from :func:`pack_matrix` and
    :func:`pack_matrix_half`.  Products are exact and summed in single precision.
    """
    lane = VECTOR_BYTES // c.itemsize
    pairs = (depth + 1) // 2
    whole = (depth + lane - 1) // lane * lane
    stride, width, n_along = whole // 2, frame.rows.size // 3, frame.along.size // 3
    base, along = frame.products, frame.along
    _expand(a, stride_a, n, whole, rows, directions, frame)
    column, panel, panel_half = 0, 0, 0
    while column < columns:
        vectors = min((columns - column) // lane, _VECTORS)
        if vectors == 3:
            _few_3(frame.rows, 0, width, b, panel, depth, base, column, width, 0)
        elif vectors == 2:
            _few_2(frame.rows, 0, width, b, panel, depth, base, column, width, 0)
        else:
            _few_1(frame.rows, 0, width, b, panel, depth, base, column, width, 0)
        for k in range(0, pairs, step):
            n_k, from_b = min(step, pairs - k), panel_half + k * vectors * lane
            for i in range(0, rows, TILE_ROWS):
                from_a, to_c = i * stride + k, i * stride_c + column
                if vectors == 3:
                    _tile_half_3(
                        frame.rounded, from_a, stride, b_half, from_b, n_k, c, to_c, stride_c, k, base, column,
                        width, along, i, n_along,
                    )  # fmt: skip
                elif vectors == 2:
                    _tile_half_2(
                        frame.rounded, from_a, stride, b_half, from_b, n_k, c, to_c, stride_c, k, base, column,
                        width, along, i, n_along,
                    )  # fmt: skip
                else:
                    _tile_half_1(
                        frame.rounded, from_a, stride, b_half, from_b, n_k, c, to_c, stride_c, k, base, column,
                        width, along, i, n_along,
                    )  # fmt: skip
        panel += depth * vectors * lane
        panel_half += pairs * vectors * lane
        column += vectors * lane
