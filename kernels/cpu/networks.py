"""Packed networks over blocks of inputs: matrix products by BLAS, one thread each."""

import numpy as np
from numba import njit

from .activations import OPTIONS, activate
from .packing import ACTIVATION, BIAS, N_IN, N_OUT, SKIP, TIMESTEP, WEIGHT


@njit(**OPTIONS)
def _add_skip(kind, x, y):
    """y += x (kind 1) or (x, x) (kind 2), row by row."""
    n = x.shape[1]
    if kind == 1:
        for i in range(x.shape[0]):
            for k in range(n):
                y[i, k] += x[i, k]
    elif kind == 2:
        for i in range(x.shape[0]):
            for k in range(n):
                y[i, k] += x[i, k]
                y[i, n + k] += x[i, k]


@njit(**OPTIONS)
def _layer_forward(numbers, layer, parameters, x, y, slope):
    """y = skip(x) + timestep * activation(x W + b); slope = timestep * activation'."""
    n_in, n_out = layer[N_IN], layer[N_OUT]
    weight = numbers[layer[WEIGHT] : layer[WEIGHT] + n_in * n_out].reshape((n_in, n_out))
    bias = numbers[layer[BIAS] : layer[BIAS] + n_out]
    np.dot(x, weight, y)
    for i in range(y.shape[0]):
        for k in range(n_out):
            y[i, k] += bias[k]
    activate(layer[ACTIVATION], parameters, y.reshape(y.size), slope.reshape(slope.size))
    if layer[TIMESTEP] >= 0:
        timestep = numbers[layer[TIMESTEP] : layer[TIMESTEP] + n_out]
        for i in range(y.shape[0]):
            for k in range(n_out):
                y[i, k] *= timestep[k]
                slope[i, k] *= timestep[k]
    _add_skip(layer[SKIP], x, y)


@njit(**OPTIONS)
def energy_and_gradient(numbers, layers, parameters, first, last, x, n, work, energies):
    """Scalar outputs of layers ``first .. last - 1`` and, in place of ``x``, their gradient.

    x : (rows, n_in), of which the first n are used; energies : (n,) filled.
    work : flat scratch for values and slopes of every layer and two gradients
    (:func:`fitting_scratch` gives its size).
    Cost per row: 4 sum(n_in n_out) flops.
    """
    rows = x.shape[0]
    values = x
    position = 0
    widest = 0
    for layer in range(first, last):
        n_out = layers[layer, N_OUT]
        widest = max(widest, layers[layer, N_IN] if layer > first else 0, n_out)
        y = work[position : position + n * n_out].reshape((n, n_out))
        slope = work[position + rows * n_out : position + rows * n_out + n * n_out].reshape((n, n_out))
        _layer_forward(numbers, layers[layer], parameters[layer], values[:n], y, slope)
        values = y
        position += 2 * rows * n_out
    for i in range(n):
        energies[i] = values[i, 0]

    front, back = position, position + rows * widest
    gradient = work[front : front + n].reshape((n, 1))
    gradient[:] = 1
    for layer in range(last - 1, first - 1, -1):
        n_in, n_out = layers[layer, N_IN], layers[layer, N_OUT]
        position -= 2 * rows * n_out
        slope = work[position + rows * n_out : position + rows * n_out + n * n_out].reshape((n, n_out))
        for i in range(n):
            for k in range(n_out):
                slope[i, k] *= gradient[i, k]
        weight = numbers[layers[layer, WEIGHT] : layers[layer, WEIGHT] + n_in * n_out].reshape((n_in, n_out))
        if layer == first:
            through = x[:n]
        else:
            through = work[back : back + n * n_in].reshape((n, n_in))
        np.dot(slope, weight.T, through)
        skip = layers[layer, SKIP]
        if skip > 0:
            for i in range(n):
                for k in range(n_in):
                    through[i, k] += gradient[i, k]
                    if skip == 2:
                        through[i, k] += gradient[i, n_in + k]
        gradient = through
        front, back = back, front


def fitting_scratch(packed, rows):
    """Numbers of scratch that :func:`energy_and_gradient` needs for blocks of ``rows``."""
    most = 0
    for first, last in zip(packed.first[:-1], packed.first[1:], strict=True):
        widths = packed.layers[first:last, N_OUT]
        most = max(most, rows * int(2 * widths.sum() + 2 * widths.max(initial=1)))
    return most


@njit(**OPTIONS)
def value_and_slope(numbers, layers, parameters, first, last, x, y, y1, work):
    """Outputs and derivatives of a network of one input.

    x : (n,); y, y1 : (n, n_out), filled; work : flat scratch, 5 n times the widest layer.
    Forward mode: y1' = skip(y1) + activation'(z) * (y1 W).
    """
    n = x.size
    widest = 1
    for layer in range(first, last):
        widest = max(widest, layers[layer, N_OUT])
    room = n * widest
    values, slopes = work[:n].reshape((n, 1)), work[room : room + n].reshape((n, 1))
    for i in range(n):
        values[i, 0] = x[i]
        slopes[i, 0] = 1
    spare_value, spare_slope = 2, 3
    for layer in range(first, last):
        n_in, n_out = layers[layer, N_IN], layers[layer, N_OUT]
        new_values = work[spare_value * room : spare_value * room + n * n_out].reshape((n, n_out))
        new_slopes = work[spare_slope * room : spare_slope * room + n * n_out].reshape((n, n_out))
        derivative = work[4 * room : 4 * room + n * n_out].reshape((n, n_out))
        weight = numbers[layers[layer, WEIGHT] : layers[layer, WEIGHT] + n_in * n_out].reshape((n_in, n_out))
        np.dot(slopes, weight, new_slopes)
        _layer_forward(numbers, layers[layer], parameters[layer], values, new_values, derivative)
        for i in range(n):
            for k in range(n_out):
                new_slopes[i, k] *= derivative[i, k]
        _add_skip(layers[layer, SKIP], slopes, new_slopes)
        values, slopes = new_values, new_slopes
        spare_value, spare_slope = 2 - spare_value, 4 - spare_slope
    n_out = values.shape[1]
    for i in range(n):
        for k in range(n_out):
            y[i, k] = values[i, k]
            y1[i, k] = slopes[i, k]
