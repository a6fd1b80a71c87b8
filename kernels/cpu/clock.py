"""Reading the monotonic clock inside compiled kernels, so that a step can be timed by phase.

The address of ``clock_gettime`` is an argument, not a constant, since numba can then keep the
compiled kernel in its cache.
"""

import ctypes
import time

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _clock_address():
    try:
        return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    except (AttributeError, OSError, TypeError):
        return 0  # no such clock here: phases read 0 s


CLOCK_ADDRESS = _clock_address()
CLOCK_ID = getattr(time, "CLOCK_MONOTONIC", 0)


@intrinsic
def read_clock(typing_context, address, clock_id):
    """Seconds of the clock at ``address`` (int64), 0.0 if the address is 0.  For compiled code only."""

    def generate(context, builder, signature, arguments):
        int32, int64, double = ir.IntType(32), ir.IntType(64), ir.DoubleType()
        spec = cgutils.alloca_once(builder, ir.LiteralStructType([int64, int64]))
        result = cgutils.alloca_once_value(builder, ir.Constant(double, 0.0))
        with builder.if_then(builder.icmp_signed("!=", arguments[0], ir.Constant(int64, 0))):
            function_type = ir.FunctionType(int32, [int32, spec.type])
            function = builder.inttoptr(arguments[0], function_type.as_pointer())
            builder.call(function, [builder.trunc(arguments[1], int32), spec])
            seconds = builder.sitofp(builder.load(cgutils.gep_inbounds(builder, spec, 0, 0)), double)
            nanoseconds = builder.sitofp(builder.load(cgutils.gep_inbounds(builder, spec, 0, 1)), double)
            total = builder.fadd(seconds, builder.fmul(nanoseconds, ir.Constant(double, 1e-9)))
            builder.store(total, result)
        return builder.load(result)

    return types.float64(types.int64, types.int64), generate
