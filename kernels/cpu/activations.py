"""Activation functions over arrays, with derivatives, written so that LLVM vectorises them.

The kernels are generic in the floating-point type: constants take the type of the array.
"""

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from dpmd.models.networks import silut_constants

LINEAR, TANH, RELU, RELU6, SOFTPLUS, SIGMOID, GELU, SILU, SILUT = range(9)
_codes = {
    "linear": LINEAR, "tanh": TANH, "relu": RELU, "relu6": RELU6, "softplus": SOFTPLUS, "sigmoid": SIGMOID,
    "gelu": GELU, "silu": SILU,
}  # fmt: skip

#: no flags that assume finite numbers: a diverging run must show as NaN, not as nonsense
FAST = {"reassoc", "contract", "nsz", "arcp", "afn"}
OPTIONS = dict(cache=True, nogil=True, fastmath=FAST, error_model="numpy", boundscheck=False)


def activation_code(name):
    """Number and parameters ``(code, (threshold, slope, offset))`` of a canonical activation name."""
    if name.startswith("silut:"):
        threshold = float(name.split(":")[1])
        return SILUT, (threshold, *silut_constants(threshold))
    return _codes[name], (0.0, 0.0, 0.0)


@intrinsic
def _power_of_two(typing_context, exponent):
    """2**exponent for an int64 within the range of normal doubles, by writing the exponent bits."""

    def generate(context, builder, signature, arguments):
        int64 = ir.IntType(64)
        biased = builder.add(arguments[0], ir.Constant(int64, 1023))
        return builder.bitcast(builder.shl(biased, ir.Constant(int64, 52)), ir.DoubleType())

    return types.float64(types.int64), generate


@njit(inline="always", error_model="numpy")
def _tanh_double(x):
    """tanh in double precision, about 2 ulp, without branches.

    tanh|x| = e / (e + 2), e = expm1(2|x|) = 2^k p + (2^k - 1), p = expm1(f), 2|x| = k ln 2 + f,
    |f| <= ln(2) / 2, p by its Taylor series to f^13.
    """
    a = min(2.0 * abs(x), 40.0)
    k = np.rint(a * 1.4426950408889634)
    f = (a - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = 1.0 / 6227020800.0
    p = p * f + 1.0 / 479001600.0
    p = p * f + 1.0 / 39916800.0
    p = p * f + 1.0 / 3628800.0
    p = p * f + 1.0 / 362880.0
    p = p * f + 1.0 / 40320.0
    p = p * f + 1.0 / 5040.0
    p = p * f + 1.0 / 720.0
    p = p * f + 1.0 / 120.0
    p = p * f + 1.0 / 24.0
    p = p * f + 1.0 / 6.0
    p = p * f + 0.5
    p = p * f * f + f
    scale = _power_of_two(np.int64(k))
    e = scale * p + (scale - 1.0)
    return math.copysign(e / (e + 2.0), x)


@njit(inline="always", error_model="numpy")
def _tanh_single(x):
    """tanh in single precision: odd rational minimax approximation of degree 13/6, error 3e-7."""
    a = min(abs(x), np.float32(7.90531110763549805))
    s = a * a
    p = np.float32(-2.76076847742355e-16) * s + np.float32(2.00018790482477e-13)
    p = p * s + np.float32(-8.60467152213735e-11)
    p = p * s + np.float32(5.12229709037114e-08)
    p = p * s + np.float32(1.48572235717979e-05)
    p = p * s + np.float32(6.37261928875436e-04)
    p = p * s + np.float32(4.89352455891786e-03)
    q = np.float32(1.19825839466702e-06) * s + np.float32(1.18534705686654e-04)
    q = q * s + np.float32(2.26843463243900e-03)
    q = q * s + np.float32(4.89352518554385e-03)
    t = a * p / q if a < np.float32(7.9) else np.float32(1)  # exactly 1, so that 1 - t^2 is 0
    return math.copysign(t, x)


def _tanh(x):
    raise NotImplementedError("compiled code only")


@overload(_tanh, inline="always")
def _choose_tanh(x):
    if x == types.float32:
        return lambda x: _tanh_single(x)
    return lambda x: _tanh_double(x)


@njit(**OPTIONS)
def activate(code, parameters, z, slope):
    """Replace ``z`` (1-D) by its activation and put the derivative into ``slope``."""
    F = z.dtype.type
    one, half = F(1), F(0.5)
    if code == TANH:
        for i in range(z.size):
            t = _tanh(z[i])
            z[i] = t
            slope[i] = one - t * t
    elif code == LINEAR:
        for i in range(z.size):
            slope[i] = one
    elif code == RELU:
        for i in range(z.size):
            slope[i] = one if z[i] > 0 else F(0)
            z[i] = max(z[i], F(0))
    elif code == RELU6:
        for i in range(z.size):
            slope[i] = one if (z[i] > 0) & (z[i] < 6) else F(0)
            z[i] = min(max(z[i], F(0)), F(6))
    elif code == SOFTPLUS:
        for i in range(z.size):
            slope[i] = half * (one + _tanh(half * z[i]))
            z[i] = max(z[i], F(0)) + F(math.log1p(math.exp(-abs(z[i]))))
    elif code == SIGMOID:
        for i in range(z.size):
            s = half * (one + _tanh(half * z[i]))
            z[i] = s
            slope[i] = s * (one - s)
    elif code == GELU:
        c, k = F(0.7978845608028654), F(0.044715)
        for i in range(z.size):
            x = z[i]
            t = _tanh(c * (x + k * x * x * x))
            z[i] = half * x * (one + t)
            slope[i] = half * (one + t) + half * x * (one - t * t) * c * (one + F(3) * k * x * x)
    else:  # SILU, SILUT
        threshold = F(parameters[0]) if code == SILUT else F(np.inf)
        k, offset = F(parameters[1]), F(parameters[2])
        for i in range(z.size):
            x = z[i]
            if x < threshold:
                s = half * (one + _tanh(half * x))
                z[i] = x * s
                slope[i] = s + x * s * (one - s)
            else:
                t = _tanh(k * (x - threshold))
                z[i] = t + offset
                slope[i] = k * (one - t * t)
