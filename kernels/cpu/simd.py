"""Writing vector code inside compiled functions.

The hot loops are emitted with explicit vectors rather than left to the compiler's vectoriser: that
keeps sums in registers across whole neighbour lists, uses the machine's full width, and compiles
faster, since there is nothing to discover.  The vectors are LLVM's own, so the same code becomes
AVX-512, AVX2, NEON or SVE instructions.

A function decorated with :func:`kernel` *writes* code when numba compiles a call of it::

    @kernel
    def scale(code, array, factor, n):
        with code.loop(0, n, code.lanes) as i:
            array.put(i, array.vector(i) * code.fill(factor))

Array arguments arrive as :class:`Pointer` to their first element (they must be contiguous),
numbers as :class:`Value`; vectors have the type of the first array of floating-point numbers.
*Wide* vectors have as many lanes of double precision.
Python loops unroll, ``code.loop`` makes real loops.  Nothing checks bounds: whole vectors are read
and written, so arrays need room up to the next whole vector.
"""

import os
from contextlib import contextmanager
from functools import update_wrapper
from inspect import signature

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

INT32, INT64 = ir.IntType(32), ir.IntType(64)
#: rewriting that is allowed: no flags that assume finite numbers, a diverging run must show as NaN
FLAGS = ("reassoc", "contract", "nsz", "arcp")
#: of numba, for every compiled function of the CPU kernels
OPTIONS = {
    "cache": True, "nogil": True, "fastmath": {*FLAGS, "afn"}, "error_model": "numpy", "boundscheck": False,
    # all in one piece: a function that stayed separate could be bound, in the process that compiles it, to a copy
    # optimised differently from the one in the cache, and sums would differ in their last bits
    "forceinline": True,
}  # fmt: skip


def _machine():
    """Bytes per vector, number of vector registers, and whether there are products of bfloat16.

    Of the processor that numba compiles for.  SVE's width is only known on the machine itself;
    the environment variable DPMD_VECTOR_BYTES overrides the width, to tune or to compile for
    another machine.
    """
    features = os.environ.get("NUMBA_CPU_FEATURES") or llvm.get_host_cpu_features().flatten()
    features = {name[1:] for name in features.split(",") if name.startswith("+")}
    width, registers = 16, 16
    if "avx512f" in features:
        width, registers = 64, 32
    elif "avx" in features:
        width = 32
    elif "neon" in features or "sve" in features:
        registers = 32
        if "sve" in features and os.path.exists(_SVE_WIDTH):
            with open(_SVE_WIDTH) as file:
                width = min(int(file.read()), 64)
    width = int(os.environ.get("DPMD_VECTOR_BYTES", width))
    if "sve" in features and width > 16:
        llvm.set_option("dpmd", f"--aarch64-sve-vector-bits-min={8 * width}")
    return width, registers, "avx512bf16" in features


_SVE_WIDTH = "/proc/sys/abi/sve_default_vector_length"
VECTOR_BYTES, REGISTERS, HAS_BFLOAT16 = _machine()


class _BFloat16(ir.Type):
    """LLVM's 16-bit type with the exponent of single precision and 8 bits of fraction."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _BFloat16)

    def __hash__(self):
        return hash(_BFloat16)


BFLOAT16 = _BFloat16()


def lanes(dtype):
    """Numbers per vector of a floating-point type (numpy's or numba's)."""
    return VECTOR_BYTES // (dtype.bitwidth // 8 if isinstance(dtype, types.Float) else dtype.itemsize)


def round_up(n, multiple):
    """The smallest multiple that is at least ``n``."""
    return -(-n // multiple) * multiple


def aligned_zeros(shape, dtype):
    """An array of zeros that begins where a vector may: loads that cross cache lines cost twice."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(n + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n].view(dtype).reshape(shape)


class Value:
    """An integer, a floating-point number or a vector in the code being written."""

    def __init__(self, code, value):
        self.code, self.value = code, value

    @property
    def _integer(self):
        kind = self.value.type
        return isinstance(getattr(kind, "element", kind), ir.IntType)

    def _with(self, other, for_integers, for_floats):
        builder, other = self.code.builder, self.code.value(other, self.value.type)
        if self._integer:
            return Value(self.code, getattr(builder, for_integers)(self.value, other))
        return Value(self.code, getattr(builder, for_floats)(self.value, other, flags=FLAGS))

    def __add__(self, other):
        return self._with(other, "add", "fadd")

    def __sub__(self, other):
        return self._with(other, "sub", "fsub")

    def __mul__(self, other):
        return self._with(other, "mul", "fmul")

    def __truediv__(self, other):
        return self._with(other, "sdiv", "fdiv")

    def _compare(self, sign, other):
        builder, other = self.code.builder, self.code.value(other, self.value.type)
        if self._integer:
            return builder.icmp_signed(sign, self.value, other)
        return builder.fcmp_ordered(sign, self.value, other)

    def __lt__(self, other):
        return self._compare("<", other)

    def __gt__(self, other):
        return self._compare(">", other)


class Pointer:
    """The address of numbers of one type in memory."""

    def __init__(self, code, address):
        self.code, self.address = code, address

    def __add__(self, index):
        return Pointer(self.code, self.code.builder.gep(self.address, [self.code.value(index, INT64)]))

    def __getitem__(self, index):
        """The number at ``index``; integers are widened."""
        value = self.code.builder.load((self + index).address)
        if isinstance(value.type, ir.IntType) and value.type.width < 64:
            value = self.code.builder.sext(value, INT64)
        return Value(self.code, value)

    def raw(self, index):
        """The number at ``index`` as it is stored."""
        return Value(self.code, self.code.builder.load((self + index).address))

    def _vector_at(self, index, vector_type):
        return self.code.builder.bitcast((self + index).address, vector_type.as_pointer())

    def vector(self, index, vector_type=None):
        """The vector that starts at ``index``."""
        vector_type = vector_type or self.code.vector_type
        return Value(self.code, self.code.builder.load(self._vector_at(index, vector_type), align=4))

    def add_number(self, index, x):
        """Add the scalar ``x`` to the number at ``index``."""
        self.code.builder.store((self[index] + x).value, (self + index).address)

    def put_number(self, index, x):
        """Store the scalar ``x`` at ``index``."""
        self.code.builder.store(x.value, (self + index).address)

    def put(self, index, vector):
        self.code.builder.store(vector.value, self._vector_at(index, vector.value.type), align=4)


class Variable:
    """A value that changes, such as a running sum; kept in a register."""

    def __init__(self, code, initial):
        self.code = code
        self.room = cgutils.alloca_once(code.builder, initial.value.type)
        self.set(initial)

    def get(self):
        return Value(self.code, self.code.builder.load(self.room))

    def set(self, value):
        self.code.builder.store(value.value, self.room)

    def add(self, value):
        self.set(self.get() + value)


class _PointerVariable:
    """A pointer that moves."""

    def __init__(self, code, initial):
        self.code = code
        self.room = cgutils.alloca_once(code.builder, initial.address.type)
        self.set(initial)

    def get(self):
        return Pointer(self.code, self.code.builder.load(self.room))

    def set(self, pointer):
        self.code.builder.store(pointer.address, self.room)


class Code:
    """The place in a function where code is being written, for vectors of ``dtype``."""

    def __init__(self, builder, dtype):
        self.builder = builder
        self.lanes = lanes(dtype)
        self.element = ir.FloatType() if dtype == types.float32 else ir.DoubleType()
        self.vector_type = ir.VectorType(self.element, self.lanes)
        self.wide_type = ir.VectorType(ir.DoubleType(), self.lanes)
        self.int_vector = ir.VectorType(INT32, self.lanes)

    def value(self, x, kind):
        """``x`` as an LLVM value of type ``kind`` if it is a Python number."""
        if isinstance(x, Value):
            return x.value
        if isinstance(kind, ir.VectorType):
            return ir.Constant(kind, [x] * kind.count)  # the same in all lanes
        return ir.Constant(kind, x)

    def fill(self, x):
        """A vector whose lanes are all the number ``x``."""
        if not isinstance(x, Value):
            return Value(self, self.value(float(x), self.vector_type))
        n = self.lanes
        blank = ir.Constant(ir.VectorType(x.value.type, n), ir.Undefined)
        first = self.builder.insert_element(blank, x.value, ir.Constant(INT32, 0))
        return Value(self, self.builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(INT32, n), [0] * n)))

    def fill_wide(self, x):
        """A wide vector whose lanes are all the number ``x``, of double precision."""
        return self.fill(x) if isinstance(x, Value) else Value(self, self.value(float(x), self.wide_type))

    def narrowed(self, vector):
        """A wide vector in the precision of the others."""
        if vector.value.type == self.vector_type:
            return vector
        return Value(self, self.builder.fptrunc(vector.value, self.vector_type))

    def wide_integers(self, vector):
        """A wide vector cut to int32 and, as numbers again, to what is left of it: ``(whole, number)``."""
        whole = self.builder.fptosi(vector.value, self.int_vector)
        return Value(self, whole), self.wide_from_integers(Value(self, whole))

    def wide_from_integers(self, vector):
        """A vector of int32 as numbers of double precision."""
        return Value(self, self.builder.sitofp(vector.value, self.wide_type))

    def narrow(self, integer):
        """An integer as int32."""
        return Value(self, self.builder.trunc(integer.value, INT32))

    def part(self, vector, first, n):
        """``n`` lanes of a vector from ``first`` on."""
        order = ir.Constant(ir.VectorType(INT32, n), list(range(first, first + n)))
        return Value(self, self.builder.shuffle_vector(vector.value, vector.value, order))

    def number(self, x):
        """The scalar ``x`` in the type of the vectors' lanes."""
        if x.value.type == self.element:
            return x
        convert = self.builder.fptrunc if isinstance(self.element, ir.FloatType) else self.builder.fpext
        return Value(self, convert(x.value, self.element))

    def variable(self, initial):
        """A :class:`Variable`; pointers may vary, too."""
        return _PointerVariable(self, initial) if isinstance(initial, Pointer) else Variable(self, initial)

    def zeros(self, n):
        """``n`` running sums."""
        return [Variable(self, self.fill(0.0)) for _ in range(n)]

    def function(self, name, *arguments):
        """LLVM's own vector function ``llvm.<name>``, such as ``minnum``."""
        values = [a.value for a in arguments]
        kind = values[0].type
        bits = 32 if isinstance(kind.element, ir.FloatType) else 64
        return self.call(f"llvm.{name}.v{kind.count}f{bits}", kind, values)

    def call(self, name, result, values):
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [v.type for v in values]), name)
        return Value(self, self.builder.call(function, values))

    def rounded(self, vector):
        """A vector of single precision rounded to bfloat16."""
        return Value(self, self.builder.fptrunc(vector.value, ir.VectorType(BFLOAT16, self.lanes)))

    def add_products_of_pairs(self, total, a, b):
        """total + a_even b_even + a_odd b_odd; a, b : lanes of int32 that hold two bfloat16 each."""
        pairs = ir.VectorType(BFLOAT16, 2 * self.lanes)
        a, b = (self.builder.bitcast(v.value, pairs) for v in (a, b))
        return self.call(f"llvm.x86.avx512bf16.dpbf16ps.{8 * VECTOR_BYTES}", self.vector_type, [total.value, a, b])

    def select(self, condition, x, y):
        return Value(self, self.builder.select(condition, x.value, y.value))

    def smallest(self, a, b):
        """The smaller of two integers."""
        return self.select(a < b, a, Value(self, self.value(b, INT64)))

    def one_if(self, condition):
        """1 or 0."""
        return Value(self, self.builder.zext(condition, INT64))

    def lanes_from(self, first, vector):
        """``vector`` with zeros in the lanes below ``first`` (an integer)."""
        int_vector = ir.VectorType(INT64, self.lanes)
        numbers = Value(self, ir.Constant(int_vector, list(range(self.lanes))))
        blank = ir.Constant(int_vector, ir.Undefined)
        start = self.builder.insert_element(blank, first.value, ir.Constant(INT32, 0))
        zeros = ir.Constant(ir.VectorType(INT32, self.lanes), [0] * self.lanes)
        start = self.builder.shuffle_vector(start, start, zeros)
        return self.select(self.builder.icmp_signed(">=", numbers.value, start), vector, self.fill(0.0))

    @contextmanager
    def loop(self, start, stop, step=1):
        start, stop, step = (self.value(x, INT64) for x in (start, stop, step))
        with cgutils.for_range_slice(self.builder, start, stop, step) as (index, _):
            yield Value(self, index)

    @contextmanager
    def when(self, condition):
        with self.builder.if_then(condition):
            yield

    def sum(self, vector):
        """The sum over the lanes of one vector, a scalar."""
        bits = 32 if isinstance(self.element, ir.FloatType) else 64
        name = f"llvm.vector.reduce.fadd.v{self.lanes}f{bits}"
        function = self.builder.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(self.element, [self.element, self.vector_type])
            function = ir.Function(self.builder.module, kind, name)
        start = ir.Constant(self.element, 0.0)
        return Value(self, self.builder.call(function, [start, vector.value], fastmath=("reassoc",)))

    def _halves(self, a, b, low, high):
        def pick(order):
            mask = ir.Constant(ir.VectorType(INT32, self.lanes), order)
            return Value(self, self.builder.shuffle_vector(a.value, b.value, mask))

        return pick(low) + pick(high)

    def sums(self, vectors):
        """The sums over lanes of ``lanes`` vectors, as one vector, in order.

        A tree: each step adds the halves of two vectors into one.  The first steps stay within
        128 bits, where shuffles are cheapest.
        """
        n = self.lanes
        inner = min(16 // (VECTOR_BYTES // n), n)
        vectors = list(vectors)
        if inner == 4:
            bases = range(0, n, 4)
            low = [i for b in bases for i in (b, n + b, b + 1, n + b + 1)]
            high = [i for b in bases for i in (b + 2, n + b + 2, b + 3, n + b + 3)]
            vectors = [self._halves(a, b, low, high) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        width = inner // 2  # numbers that move together
        while len(vectors) > 1:
            bases = range(0, n, 2 * width)
            low = [x + i for b in bases for x in (b, n + b) for i in range(width)]
            high = [i + width for i in low]
            vectors = [self._halves(a, b, low, high) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
            width *= 2
        return vectors[0]


def kernel(write):
    """Turn ``write(code, *arguments)`` into a function that compiled code can call.

    If ``write`` is annotated ``-> int`` it returns an integer :class:`Value`, else nothing.
    """
    result = types.intp if write.__annotations__.get("return") is int else types.void

    def define(typing_context, *arguments):
        arrays = [a for a in arguments if isinstance(a, types.Array)]
        if any(a.layout != "C" for a in arrays):
            raise TypeError(f"{write.__name__}: arrays must be contiguous")
        dtype = next(a.dtype for a in arrays if isinstance(a.dtype, types.Float))

        def generate(context, builder, call, values):
            code = Code(builder, dtype)
            passed = []
            for kind, value in zip(call.args, values, strict=True):
                if isinstance(kind, types.Array):
                    data = cgutils.create_struct_proxy(kind)(context, builder, value).data
                    passed.append(Pointer(code, data))
                else:
                    passed.append(Value(code, value))
            returned = write(code, *passed)
            return returned.value if result is types.intp else context.get_dummy_value()

        kinds = [types.intp if isinstance(a, types.Integer) else a for a in arguments]
        return result(*kinds), generate

    update_wrapper(define, write)
    define.__signature__ = signature(write)  # numba asks how many arguments there are
    return intrinsic(define)
