"""Activation functions over arrays, with derivatives.

Everything but relu is made of tanh, which is written with explicit vectors.
"""

import math

from llvmlite import ir
from numba import njit

from dpmd.models.networks import silut_constants

from .simd import INT64, OPTIONS, Value, kernel

LINEAR, TANH, RELU, RELU6, SOFTPLUS, SIGMOID, GELU, SILU, SILUT = range(9)
_codes = {
    "linear": LINEAR, "tanh": TANH, "relu": RELU, "relu6": RELU6, "softplus": SOFTPLUS, "sigmoid": SIGMOID,
    "gelu": GELU, "silu": SILU,
}  # fmt: skip


def activation_code(name):
    """Number and parameters ``(code, (threshold, slope, offset))`` of a canonical activation name."""
    if name.startswith("silut:"):
        threshold = float(name.split(":")[1])
        return SILUT, (threshold, *silut_constants(threshold))
    return _codes[name], (0.0, 0.0, 0.0)


def _polynomial(code, x, coefficients):
    """Horner's scheme, highest power first."""
    result = code.fill(coefficients[0])
    for c in coefficients[1:]:
        result = result * x + code.fill(c)
    return result


def _tanh_double(code, x):
    """tanh in double precision, about 2 ulp, without branches.

    tanh|x| = e / (e + 2), e = expm1(2|x|) = 2^k p + (2^k - 1), p = expm1(f), 2|x| = k ln 2 + f,
    |f| <= ln(2) / 2, p by its Taylor series to f^13.  2^k is made by writing exponent bits: adding
    1.5 2^52 leaves k in the lowest bits of the sum.
    """
    builder, int_vector = code.builder, ir.VectorType(INT64, code.lanes)
    a = code.function("minnum", code.function("fabs", x) * 2.0, code.fill(40.0))
    k = code.function("rint", a * 1.4426950408889634)
    f = (a - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = _polynomial(code, f, [1 / math.factorial(n) for n in range(13, 1, -1)])
    p = p * f * f + f
    shifted = builder.fadd(k.value, code.fill(1.5 * 2.0**52).value)
    biased = builder.add(builder.bitcast(shifted, int_vector), ir.Constant(int_vector, [1023] * code.lanes))
    bits = builder.shl(biased, ir.Constant(int_vector, [52] * code.lanes))
    scale = Value(code, builder.bitcast(bits, code.vector_type))
    e = scale * p + (scale - 1.0)
    return code.function("copysign", e / (e + 2.0), x)


def _tanh_single(code, x):
    """tanh in single precision: odd rational minimax approximation of degree 13/6, error 3e-7.

    Exactly 1 beyond 7.9, so that the derivative 1 - tanh^2 is 0 there.
    """
    limit = code.fill(7.90531110763549805)
    a = code.function("minnum", code.function("fabs", x), limit)
    s = a * a
    p = _polynomial(code, s, [
        -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
        1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
    ])  # fmt: skip
    q = _polynomial(code, s, [
        1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03,
    ])  # fmt: skip
    t = code.select(a < code.fill(7.9), a * p / q, code.fill(1.0))
    return code.function("copysign", t, x)


def _tanh(code, x):
    return _tanh_single(code, x) if isinstance(code.element, ir.FloatType) else _tanh_double(code, x)


@kernel
def _replace_by_tanh(code, z, n):
    with code.loop(0, n, code.lanes) as i:
        z.put(i, _tanh(code, z.vector(i)))


@kernel
def _tanh_and_slope(code, z, slope, n):
    with code.loop(0, n, code.lanes) as i:
        t = _tanh(code, z.vector(i))
        z.put(i, t)
        slope.put(i, code.fill(1.0) - t * t)


@njit(**OPTIONS)
def activate(code, parameters, z, slope):
    """Replace ``z`` (1-D, whole vectors) by its activation and put the derivative into ``slope``."""
    F = z.dtype.type
    n = z.size
    one, half, zero = F(1), F(0.5), F(0)
    threshold, k, offset = F(parameters[0]), F(parameters[1]), F(parameters[2])
    if code == TANH:
        _tanh_and_slope(z, slope, n)
        return
    # the argument of tanh, and tanh, pass through ``slope``
    for i in range(n):
        x = z[i]
        if code == GELU:
            slope[i] = F(0.7978845608028654) * (x + F(0.044715) * x * x * x)
        elif code == SILUT and x >= threshold:
            slope[i] = k * (x - threshold)
        else:
            slope[i] = half * x
    _replace_by_tanh(slope, n)
    for i in range(n):
        x, t = z[i], slope[i]
        s = half * (one + t)  # the logistic function, where t = tanh(x / 2)
        if code == LINEAR:
            slope[i] = one
        elif code == RELU:
            z[i], slope[i] = max(x, zero), one if x > 0 else zero
        elif code == RELU6:
            z[i], slope[i] = min(max(x, zero), F(6)), one if (x > 0) & (x < 6) else zero
        elif code == SOFTPLUS:
            z[i], slope[i] = max(x, zero) + F(math.log1p(math.exp(-abs(x)))), s
        elif code == SIGMOID:
            z[i], slope[i] = s, s * (one - s)
        elif code == GELU:
            inner_slope = F(0.7978845608028654) * (one + F(3 * 0.044715) * x * x)
            z[i], slope[i] = x * s, s + half * x * (one - t * t) * inner_slope
        elif code == SILUT and x >= threshold:
            z[i], slope[i] = t + offset, k * (one - t * t)
        else:
            z[i], slope[i] = x * s, s + x * s * (one - s)
