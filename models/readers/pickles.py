"""A reader of the pickles in PyTorch archives that cannot run code.

Python's unpickler is a small machine that may call anything it is told to.  This one knows only
the operations that archives are made of; globals come from a short list, and become inert
records.  Tensors stay descriptions until they are asked for.  Every violation is a ModelError.
"""

import pickletools
from dataclasses import dataclass

import numpy as np

from ..errors import ModelError
from .building import unsupported

_STORAGE_DTYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": None,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_LIST_BUILDERS = {"build_intlist", "build_doublelist", "build_boollist", "build_tensorlist"}
_TENSOR_BUILDERS = {"_rebuild_tensor", "_rebuild_tensor_v2"}

_PUSHED_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PUSHED_ARGUMENTS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
_EMPTY = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_SMALL_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

#: largest size of a stream and number of its operations; real ones have about 10 kB
MAXIMUM_BYTES = 64 * 2**20
_MAXIMUM_OPERATIONS = 20_000_000


class Record:
    """An object of the archive: the name of its class, and its attributes if it has any."""

    __slots__ = ("kind", "module", "state")

    def __init__(self, module, kind):
        self.module, self.kind, self.state = module, kind, None

    def get(self, name, default=None):
        """Attribute ``name``, or ``default``."""
        return self.state.get(name, default) if isinstance(self.state, dict) else default


@dataclass(frozen=True)
class Storage:
    """A block of ``size`` numbers stored in the archive under ``key``."""

    key: str
    kind: str
    size: int


@dataclass(frozen=True)
class Tensor:
    """A view of a storage, checked to lie inside it."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self, read_storage):
        """The numbers; ``read_storage(key, n_bytes)`` returns the bytes of a storage."""
        dtype = _STORAGE_DTYPES[self.storage.kind]
        if dtype is None:
            raise unsupported("network precision 'bfloat16'")
        dtype = np.dtype(dtype)
        raw = read_storage(self.storage.key, self.storage.size * dtype.itemsize)
        numbers = np.frombuffer(raw, dtype)
        strides = [s * dtype.itemsize for s in self.strides]
        return np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, strides, writeable=False).copy()


def _natural(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40


def _tensor(storage, offset, shape, strides, *_):
    """A :class:`Tensor`; its elements must lie in the storage and be no more than the storage has."""
    valid = (
        isinstance(storage, Storage)
        and _natural(offset)
        and isinstance(shape, tuple)
        and isinstance(strides, tuple)
        and len(shape) == len(strides) <= 8
        and all(map(_natural, shape))
        and all(map(_natural, strides))
    )
    if not valid:
        raise ModelError("damaged archive: a tensor is described wrongly")
    count, last = 1, offset
    for n, stride in zip(shape, strides, strict=True):
        count *= n
        last += (n - 1) * stride
    if count and (last >= storage.size or count > storage.size):
        raise ModelError("damaged archive: a tensor reaches beyond its storage")
    return Tensor(storage, offset if count else 0, shape, strides)


def _storage(identifier):
    """A :class:`Storage` from a persistent id ``("storage", class, key, device, size)``."""
    valid = isinstance(identifier, tuple) and len(identifier) == 5 and identifier[0] == "storage"
    if valid:
        _, kind, key, _, size = identifier
        valid = isinstance(kind, Record) and kind.module == "torch" and isinstance(key, str) and _natural(size)
    if not valid:
        raise ModelError("damaged archive: a storage is described wrongly")
    if not key.isalnum():
        raise ModelError(f"damaged archive: a storage is named {key[:40]!r}")
    return Storage(key, kind.kind, size)


def _global(argument):
    """An inert record for an allowed global, given as ``"module name"``."""
    module, _, name = argument.partition(" ")
    allowed = (
        (module == "torch" and name in _STORAGE_DTYPES)
        or (module == "torch._utils" and name in (*_TENSOR_BUILDERS, "_rebuild_parameter"))
        or (module == "torch.jit._pickle" and name in (*_LIST_BUILDERS, "restore_type_tag"))
        or (module == "collections" and name == "OrderedDict")
        or module == "__torch__"
        or module.startswith("__torch__.")
    )
    if not allowed:
        raise ModelError(f"the archive asks to call {f'{module}.{name}'[:100]}, which no model needs; refused")
    return Record(module, name)


def _called(function, arguments):
    """The result of one of the few known functions."""
    if not isinstance(function, Record) or not isinstance(arguments, tuple):
        raise ModelError("damaged archive: something that is not a function is called")
    if function.module == "collections":
        return {}
    if function.module == "torch._utils" and function.kind in _TENSOR_BUILDERS and len(arguments) >= 4:
        return _tensor(*arguments)
    if function.module in ("torch._utils", "torch.jit._pickle") and function.kind not in _TENSOR_BUILDERS and arguments:
        return arguments[0]
    raise ModelError(f"damaged archive: {function.kind[:60]} is called wrongly")


class _Machine:
    """The state of reading one stream."""

    def __init__(self):
        self.stack = []
        self.marks = []
        self.memo = {}

    def pop(self, kind=None):
        floor = self.marks[-1] if self.marks else 0
        if len(self.stack) <= floor:
            raise ModelError("damaged archive: its object stream takes more than it has put down")
        value = self.stack.pop()
        if kind is not None and not isinstance(value, kind):
            raise ModelError("damaged archive: its object stream mixes up objects")
        return value

    def pop_marked(self):
        if not self.marks:
            raise ModelError("damaged archive: its object stream misses a mark")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def top(self, kind):
        value = self.pop(kind)
        self.stack.append(value)
        return value

    def set_items(self, values):
        target = self.top(dict)
        if len(values) % 2:
            raise ModelError("damaged archive: a dictionary misses a value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not (key is None or isinstance(key, (str, int, float))):
                raise ModelError("damaged archive: a dictionary has a key that is neither text nor number")
            target[key] = value

    def step(self, name, argument):
        """One operation."""
        stack = self.stack
        if name in _PUSHED_ARGUMENTS:
            stack.append(argument)
        elif name in _PUSHED_VALUES:
            stack.append(_PUSHED_VALUES[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise ModelError("damaged archive: its object stream recalls an object that it never stored")
            stack.append(self.memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT"):
            # numbers are given out one after the other
            if argument > len(self.memo):
                raise ModelError("damaged archive: its object stream stores an object at an impossible place")
            self.memo[argument] = self.top(object)
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self.pop_marked()))
        elif name in _SMALL_TUPLES:
            stack.append(tuple(reversed([self.pop() for _ in range(_SMALL_TUPLES[name])])))
        elif name == "APPEND":
            value = self.pop()
            self.top(list).append(value)
        elif name == "APPENDS":
            values = self.pop_marked()
            self.top(list).extend(values)
        elif name == "SETITEM":
            value, key = self.pop(), self.pop()
            self.set_items([key, value])
        elif name == "SETITEMS":
            self.set_items(self.pop_marked())
        elif name == "GLOBAL":
            stack.append(_global(argument))
        elif name == "REDUCE":
            arguments, function = self.pop(), self.pop()
            stack.append(_called(function, arguments))
        elif name == "NEWOBJ":
            self.pop(tuple)
            kind = self.pop(Record)
            if not kind.module.startswith("__torch__"):
                raise ModelError("damaged archive: an object of an unexpected class is made")
            stack.append(Record(kind.module, kind.kind))
        elif name == "BUILD":
            state = self.pop()
            self.top(Record).state = state
        elif name == "BINPERSID":
            stack.append(_storage(self.pop()))
        elif name != "PROTO":
            raise ModelError(f"the archive's object stream uses operation {name}, which no model needs; refused")


def load(data):
    """The object at the root of a pickle stream: records, dicts, lists, tensors, plain values."""
    if len(data) > MAXIMUM_BYTES:
        raise ModelError(f"the object stream of the archive has {len(data)} bytes, which cannot be meant")
    machine = _Machine()
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if operation.name == "STOP":
                return machine.pop()
            if count > _MAXIMUM_OPERATIONS:
                raise ModelError("the object stream of the archive is longer than any model needs")
            machine.step(operation.name, argument)
    except ModelError:
        raise
    # what the parser of operations raises on a truncated or damaged stream
    except (ValueError, KeyError, IndexError, UnicodeError, OverflowError) as error:
        raise ModelError(f"damaged archive: its object stream is broken ({error})") from error
    raise ModelError("damaged archive: its object stream ends too early")
