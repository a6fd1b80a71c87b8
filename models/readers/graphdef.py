"""TensorFlow graphs (``GraphDef``) without TensorFlow: nodes, attributes and constants.

Only the parts of the public protocol-buffer schema that models need are described, at run time.
Unknown fields are skipped by protobuf.  Strings are read as bytes, so that a damaged name is an
ordinary mismatch.
"""

import re
from functools import cached_property

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ..errors import ModelError
from .building import unsupported

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "bytes": _FIELD.TYPE_BYTES,
    "int64": _FIELD.TYPE_INT64,
    "int32": _FIELD.TYPE_INT32,
    "float": _FIELD.TYPE_FLOAT,
    "double": _FIELD.TYPE_DOUBLE,
    "bool": _FIELD.TYPE_BOOL,
}

# message: {field: (number, type)}; "*" marks a repeated field.  A map is a repeated key and value.
_SCHEMA = {
    "GraphDef": {"node": (1, "NodeDef*")},
    "NodeDef": {"name": (1, "bytes"), "op": (2, "bytes"), "input": (3, "bytes*"), "attr": (5, "Attribute*")},
    "Attribute": {"key": (1, "bytes"), "value": (2, "AttrValue")},
    "AttrValue": {
        "list": (1, "ListValue"),
        "s": (2, "bytes"),
        "i": (3, "int64"),
        "f": (4, "float"),
        "b": (5, "bool"),
        "type": (6, "int32"),
        "tensor": (8, "Tensor"),
    },
    "ListValue": {"s": (2, "bytes*"), "i": (3, "int64*"), "f": (4, "float*")},
    "Tensor": {
        "dtype": (1, "int32"),
        "shape": (2, "Shape"),
        "content": (4, "bytes"),
        "float_val": (5, "float*"),
        "double_val": (6, "double*"),
        "int_val": (7, "int32*"),
        "string_val": (8, "bytes*"),
        "int64_val": (10, "int64*"),
        "bool_val": (11, "bool*"),
    },
    "Shape": {"dim": (2, "Dimension*")},
    "Dimension": {"size": (1, "int64")},
}


def _graph_message():
    """The message class of a graph, built from the schema above in a pool of its own."""
    package = "dpmd.graphdef"
    file = descriptor_pb2.FileDescriptorProto(name="dpmd/graphdef.proto", package=package, syntax="proto2")
    for message_name, fields in _SCHEMA.items():
        message = file.message_type.add(name=message_name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number)
            field.label = _FIELD.LABEL_REPEATED if kind.endswith("*") else _FIELD.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.GraphDef"))


_GraphDef = _graph_message()

# TensorFlow's numbers of element types
_STRING, _BFLOAT16, _HALF = 7, 14, 19
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?"}
_VALUE_FIELDS = {1: "float_val", 2: "double_val", 3: "int_val", 4: "int_val", 5: "int_val", 6: "int_val",
                 9: "int64_val", 10: "bool_val"}  # fmt: skip

#: elements that constants may have beyond those written out (a repeated value has any shape)
_LARGEST_FILL = 2**24
_LARGEST_TOTAL_FILL = 2**26
_PASSED_ON = ("Identity", "Cast")


def _tensor(message, name):
    """The value of a constant: an array, or bytes for a string."""
    kind = message.dtype
    if kind == _STRING:
        return bytes(message.string_val[0]) if message.string_val else b""
    if kind in (_BFLOAT16, _HALF):
        raise unsupported(f"network precision {'bfloat16' if kind == _BFLOAT16 else 'float16'!r} ({name})")
    if kind not in _DTYPES:
        raise ModelError(f"constant {name} is of unknown type {kind}")
    dtype = np.dtype(_DTYPES[kind])
    shape = [dim.size for dim in message.shape.dim]
    if len(shape) > 8 or any(n < 0 for n in shape):
        raise ModelError(f"constant {name} has the impossible shape {shape[:8]}")
    size = 1
    for n in shape:
        size *= n
    if message.content:
        if len(message.content) != size * dtype.itemsize:
            raise ModelError(f"constant {name} has {len(message.content)} bytes, but its shape is {shape}")
        return np.frombuffer(message.content, dtype).reshape(shape)
    values = getattr(message, _VALUE_FIELDS[kind])
    if len(values) > size or (size > len(values) and size > _LARGEST_FILL):
        raise ModelError(f"constant {name} has {len(values)} values, but its shape is {shape}")
    found = np.zeros(size, dtype)
    found[: len(values)] = values
    if values:
        found[len(values) :] = values[-1]
    return found.reshape(shape)


def _text(raw):
    return raw.decode("utf-8", "replace")


class Node:
    """One operation: ``name``, ``op``, names of its ``inputs``, and its attributes."""

    def __init__(self, message, prefix=""):
        self.name = _text(message.name).removeprefix(prefix)
        self.op = _text(message.op)
        # "name:0" is the first output of a node, "^name" an input that carries no data
        inputs = (_text(raw) for raw in message.input)
        self.inputs = [i.split(":")[0].removeprefix(prefix) for i in inputs if not i.startswith("^")]
        self._attributes = message.attr

    def attribute(self, key):
        """The message of attribute ``key``, or None."""
        return next((a.value for a in self._attributes if a.key == key.encode()), None)

    def floating(self, key):
        """A number of single precision, as the double of the same value."""
        return self._required(key).f

    def integers(self, key):
        """A list of integers."""
        return list(self._required(key).list.i)

    def _required(self, key):
        found = self.attribute(key)
        if found is None:
            raise ModelError(f"node {self.name} has no attribute {key!r}")
        return found


class Graph:
    """A frozen graph: nodes by name, constants by name."""

    def __init__(self, data):
        message = _GraphDef()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise ModelError("damaged or incomplete TensorFlow graph (not a valid protocol buffer)") from error
        names = [_text(node.name) for node in message.node]
        prefix = _common_prefix(names)
        self._filled = 0
        self.nodes = {}
        for node in message.node:
            found = Node(node, prefix)
            if found.name in self.nodes:
                raise ModelError(f"two nodes of the graph are named {found.name[:100]!r}")
            self.nodes[found.name] = found

    def constant(self, name):
        """The value of constant ``name``, or None where there is none of that name."""
        node = self.nodes.get(name)
        if node is None or node.op != "Const":
            return None
        value = node.attribute("value")
        if value is None:
            raise ModelError(f"constant {name} has no value")
        found = _tensor(value.tensor, name)
        if not isinstance(found, bytes) and found.nbytes > len(value.tensor.content):
            self._filled += found.size
            if self._filled > _LARGEST_TOTAL_FILL:
                raise ModelError("the constants of the graph are larger than any model needs")
        return found

    def reduced_precision(self):
        """``"float16"`` or ``"bfloat16"`` if some operations compute in it, else None."""
        kinds = {_HALF: "float16", _BFLOAT16: "bfloat16"}
        casts = (node.attribute("DstT") for node in self.nodes.values() if node.op == "Cast")
        return next((kinds[cast.type] for cast in casts if cast is not None and cast.type in kinds), None)

    def text(self, name):
        """A constant string, or None."""
        found = self.constant(name)
        if found is not None and not isinstance(found, bytes):
            raise ModelError(f"constant {name} is not a string")
        return None if found is None else _text(found)

    def value_of(self, name):
        """The constant that reaches ``name`` through copies, casts and packing; None if it is computed."""
        node = self._origin(name)
        if node is None:
            return None
        if node.op == "Pack":
            parts = [self.value_of(i) for i in node.inputs]
            return None if any(p is None or isinstance(p, bytes) for p in parts) else np.array(parts)
        return self.constant(node.name)

    def _origin(self, name):
        for _ in range(20):
            node = self.nodes.get(name)
            if node is None or node.op not in _PASSED_ON or not node.inputs:
                return node
            name = node.inputs[0]
        return None

    def upstream(self, name, op, through):
        """The first node of kind ``op`` met by following first inputs through nodes of kinds ``through``."""
        for _ in range(20):
            node = self.nodes.get(name)
            if node is None or node.op == op:
                return node
            if node.op not in through or not node.inputs:
                return None
            name = node.inputs[0]
        return None

    @cached_property
    def _users(self):
        users = {}
        for node in self.nodes.values():
            if not node.name.startswith("gradients"):
                for name in node.inputs:
                    users.setdefault(name, []).append(node)
        return users

    def users(self, name):
        """Nodes that use ``name``, itself or through copies of it; not those that compute derivatives."""
        found = []
        pending = [name]
        for current in pending:
            for node in self._users.get(current, ()):
                if node.op in _PASSED_ON and len(pending) < 20:
                    pending.append(node.name)
                else:
                    found.append(node)
        return found

    def matching(self, pattern):
        """Names of nodes that match a regular expression from the start."""
        return [name for name in self.nodes if re.match(pattern, name)]

    def of_kind(self, *ops):
        """Nodes of the given kinds, except those that compute derivatives."""
        return [n for n in self.nodes.values() if n.op in ops and not n.name.startswith("gradients")]


def _common_prefix(names):
    """The scope that the whole graph was imported under, e.g. ``"load/"``; usually ``""``."""
    landmark = "descrpt_attr/t_avg"
    found = {name[: -len(landmark)] for name in names if name.endswith("/" + landmark) or name == landmark}
    return found.pop() if len(found) == 1 else ""
