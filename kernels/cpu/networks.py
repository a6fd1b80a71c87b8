"""Packed networks over blocks of inputs.

Arrays are flat and rows padded to whole vectors: layer ``l`` has rows of ``width[l]`` numbers, of
which the first ``n_out`` count.  Padding columns hold finite numbers that meet zero weights.
"""

import numpy as np
from numba import njit

from .activations import activate
from .matrix import TILE_ROWS, multiply, multiply_half
from .packing import (
    ACTIVATION,
    BACKWARD,
    BIAS,
    FORWARD,
    HALF_BACKWARD,
    HALF_FORWARD,
    N_IN,
    N_OUT,
    SKIP,
    STEP,
    TIMESTEP,
    WIDTH_IN,
    WIDTH_OUT,
)
from .simd import OPTIONS, VECTOR_BYTES, kernel, round_up


@kernel
def _add_to_rows(code, y, width, x, rows):
    """y[i, k] += x[k] for every row."""
    with code.loop(0, rows) as i:
        row = y + i * width
        with code.loop(0, width, code.lanes) as k:
            row.put(k, row.vector(k) + x.vector(k))


@kernel
def _multiply_rows(code, y, width, x, rows):
    """y[i, k] *= x[k] for every row."""
    with code.loop(0, rows) as i:
        row = y + i * width
        with code.loop(0, width, code.lanes) as k:
            row.put(k, row.vector(k) * x.vector(k))


@kernel
def _multiply_by(code, y, x, n):
    """y[k] *= x[k]."""
    with code.loop(0, n, code.lanes) as k:
        y.put(k, y.vector(k) * x.vector(k))


@kernel
def _add_columns(code, y, at_y, stride_y, x, at_x, stride_x, columns, rows):
    """y[i, k] += x[i, k] for whole vectors of columns."""
    y, x = y + at_y, x + at_x
    with code.loop(0, rows) as i:
        to, add = y + i * stride_y, x + i * stride_x
        with code.loop(0, columns, code.lanes) as k:
            to.put(k, to.vector(k) + add.vector(k))


@njit(**OPTIONS)
def _add_block(y, at_y, stride_y, x, at_x, stride_x, columns, rows):
    """y[i, k] += x[i, k] for any number of columns."""
    lane = VECTOR_BYTES // y.itemsize
    whole = columns // lane * lane
    _add_columns(y, at_y, stride_y, x, at_x, stride_x, whole, rows)
    for i in range(rows):
        for k in range(whole, columns):
            y[at_y + i * stride_y + k] += x[at_x + i * stride_x + k]


@njit(**OPTIONS)
def _add_skip(kind, n_in, x, stride_x, y, stride_y, rows):
    """y += x (kind 1) or (x, x) (kind 2), row by row."""
    for copy in range(kind):
        _add_block(y, copy * n_in, stride_y, x, 0 * n_in, stride_x, n_in, rows)


@njit(**OPTIONS)
def _layer_forward(numbers, half, frame, layer, parameters, x, stride_x, y, slope, n, rows, directions):
    """y = skip(x) + timestep * activation(x W + b); slope = timestep * activation'.

    half : weights in bfloat16, or None (it is compiled for either); frame, directions : see
    :func:`dpmd.kernels.cpu.matrix.multiply_half`; n : how many rows count.
    """
    width, step = layer[WIDTH_OUT], layer[STEP]
    in_half = layer[HALF_FORWARD] >= 0
    if half is not None:  # noqa: SIM102 (numba leaves code out by this condition alone)
        if in_half:
            multiply_half(
                x, stride_x, n, directions, frame, numbers[layer[FORWARD] :], half[layer[HALF_FORWARD] :], layer[N_IN],
                width, y, width, rows, step,
            )  # fmt: skip
    if not in_half:
        multiply(x, stride_x, numbers[layer[FORWARD] :], layer[N_IN], width, y, width, rows, step)
    _add_to_rows(y, width, numbers[layer[BIAS] :], rows)
    activate(layer[ACTIVATION], parameters, y[: rows * width], slope[: rows * width])
    if layer[TIMESTEP] >= 0:
        _multiply_rows(y, width, numbers[layer[TIMESTEP] :], rows)
        _multiply_rows(slope, width, numbers[layer[TIMESTEP] :], rows)
    _add_skip(layer[SKIP], layer[N_IN], x, stride_x, y, width, rows)


@njit(**OPTIONS)
def energy_and_gradient(
    numbers, half, frame, layers, parameters, first, last, x, stride_x, n, rows, work, energies
):
    """Scalar outputs of layers ``first .. last - 1`` and, in place of ``x``, their gradient.

    x : flat, rows of ``stride_x``, of which ``n`` count; rows : a multiple of TILE_ROWS; energies : (rows,), filled.
    work : flat scratch for values and slopes of every layer and two gradients
    (:func:`fitting_scratch` gives its size); half, frame : see :func:`_layer_forward`.
    In half the first layer's products, both ways, are expanded about directions too: they are what energies and
    forces of unlike atoms in a block (at surfaces, of different structures) suffer from.
    Cost per row: 4 sum(n_in n_out) flops.
    """
    values, stride = x, stride_x
    position, widest = 0, 0
    for layer in range(first, last):
        width = layers[layer, WIDTH_OUT]
        widest = max(widest, width)
        y, slope = work[position : position + rows * width], work[position + rows * width : position + 2 * rows * width]
        _layer_forward(
            numbers, half, frame, layers[layer], parameters[layer], values, stride, y, slope, n, rows,
            layer == first,
        )  # fmt: skip
        values, stride = y, width
        position += 2 * rows * width
    for i in range(rows):
        energies[i] = values[i * stride]

    front, back = position, position + rows * widest
    gradient = work[front : front + rows * stride]
    gradient[:] = 0
    for i in range(rows):
        gradient[i * stride] = 1
    for layer in range(last - 1, first - 1, -1):
        n_in, n_out, step = layers[layer, N_IN], layers[layer, N_OUT], layers[layer, STEP]
        width_in, width = layers[layer, WIDTH_IN], layers[layer, WIDTH_OUT]
        position -= 2 * rows * width
        slope = work[position + rows * width : position + 2 * rows * width]
        _multiply_by(slope, gradient, rows * width)
        through, stride = (x, stride_x) if layer == first else (work[back : back + rows * width_in], width_in)
        weights, in_half = numbers[layers[layer, BACKWARD] :], layers[layer, HALF_BACKWARD] >= 0
        if half is not None:  # noqa: SIM102
            if in_half:
                multiply_half(
                    slope, width, n, layer == first, frame, weights, half[layers[layer, HALF_BACKWARD] :], n_out,
                    width_in, through, stride, rows, step,
                )  # fmt: skip
        if not in_half:
            multiply(slope, width, weights, n_out, width_in, through, stride, rows, step)
        for copy in range(layers[layer, SKIP]):
            _add_block(through, 0 * n_in, stride, gradient, copy * n_in, width, n_in, rows)
        gradient = through
        front, back = back, front


def fitting_scratch(packed, rows):
    """Numbers of scratch that :func:`energy_and_gradient` needs for blocks of ``rows``."""
    most = 0
    for first, last in zip(packed.first[:-1], packed.first[1:], strict=True):
        widths = packed.layers[first:last, WIDTH_OUT]
        most = max(most, rows * int(2 * widths.sum() + 2 * widths.max(initial=1)))
    return most


def embedding_scratch(packed, rows):
    """Numbers of scratch that :func:`value_and_slope` needs for ``rows`` inputs."""
    return 5 * round_up(rows, TILE_ROWS) * int(packed.layers[:, [WIDTH_IN, WIDTH_OUT]].max(initial=1))


@njit(**OPTIONS)
def value_and_slope(numbers, layers, parameters, first, last, x, results, work):
    """Outputs and derivatives of a network of one input, for every number in ``x`` (n,).

    results : flat, n equal rows that begin with the outputs, then the derivatives, each as wide as
    the last layer; work : see :func:`embedding_scratch`.
    Forward mode: y1' = skip(y1) + activation'(z) * (y1 W).
    """
    n = x.size
    rows = -(-n // TILE_ROWS) * TILE_ROWS
    room = work.size // 5
    values, slopes, stride = work[:room], work[room : 2 * room], np.int64(1)
    for i in range(rows):
        values[i] = x[min(i, n - 1)]
        slopes[i] = 1
    spare_value, spare_slope = 2, 3
    for layer in range(first, last):
        n_in, width = layers[layer, N_IN], layers[layer, WIDTH_OUT]
        new_values = work[spare_value * room : (spare_value + 1) * room]
        new_slopes = work[spare_slope * room : (spare_slope + 1) * room]
        derivative = work[4 * room : 5 * room]
        multiply(slopes, stride, numbers[layers[layer, FORWARD] :], n_in, width, new_slopes, width, rows, n_in)
        _layer_forward(
            numbers, None, None, layers[layer], parameters[layer], values, stride, new_values, derivative, n, rows,
            False,
        )  # fmt: skip
        _multiply_by(new_slopes, derivative, rows * width)
        _add_skip(layers[layer, SKIP], n_in, slopes, stride, new_slopes, width, rows)
        values, slopes, stride = new_values, new_slopes, width
        spare_value, spare_slope = 2 - spare_value, 4 - spare_slope
    row = results.size // n
    for i in range(n):
        for k in range(stride):
            results[i * row + k] = values[i * stride + k]
            results[i * row + stride + k] = slopes[i * stride + k]
