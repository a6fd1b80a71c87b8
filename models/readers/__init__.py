"""Readers of model files: ``load(path)`` recognises a file by its content, whatever its name.

Each kind of file has a module; each descriptor kind has one, too, and is registered with the
modules of the files that can hold it (their ``DESCRIPTORS``).  To add a descriptor, write such a
module and its operators; to add a file format, add a line to ``FORMATS``.

Files are untrusted: whatever bytes they hold, ``load`` returns a model or raises
:class:`~dpmd.models.errors.ModelError` with the file's name, and runs nothing from them.
"""

import hashlib
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import h5py
import numpy as np

from .. import errors
from . import building, dpmodel, tensorflow, torchscript

_MODELS = "a .pb, .pth, .dp, .yaml or .dptab file"
_CONVERT = "convert it: dp convert-backend MODEL model.dp"
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# protobuf cannot hold more, and no published model of this kind is larger
_LARGEST_FILE = 2 * 2**30


@dataclass(frozen=True)
class Format:
    """A kind of file: ``recognises(head)`` looks at the first bytes, ``read(path, data)`` returns a model."""

    name: str
    recognises: Callable[[bytes], bool]
    read: Callable[[str, bytes], object]


def _is_hdf5(head):
    return head.startswith(_HDF5_SIGNATURE)


def _is_zip(head):
    return head.startswith(b"PK\x03\x04")


def _is_pickle(head):
    return len(head) > 1 and head[0] == 0x80 and head[1] in range(1, 6)


def _is_text(head):
    # control characters other than white space: not text.  The end may cut a character in two.
    return not any(byte < 32 and byte not in b"\t\n\r\f" for byte in head)


def _is_graph(head):
    # field 1 of GraphDef, a node, opens the file
    return head.startswith(b"\n")


def _read_hdf5(path, data):
    try:
        file = h5py.File(io.BytesIO(data), "r")
    except OSError as error:
        raise errors.ModelError(f"damaged or incomplete HDF5 file ({error})") from error
    with file:
        if "dpmd_table_format" not in file.attrs:
            return dpmodel.read_hdf5(path, file, len(data))
    from .. import dptab

    return dptab.read(path, data)


def _read_text(path, data):
    if _looks_like_pbtxt(data):
        raise building.unsupported(
            "a TensorFlow graph in text form (.pbtxt)", "convert it: dp convert-from pbtxt -i MODEL -o model.pb"
        )
    if data.lstrip().startswith(b"{") and (b'"base_code"' in data or b'"program"' in data):
        raise building.unsupported("a Paddle model (.json)", _CONVERT)
    try:
        return dpmodel.read_yaml(path, data)
    except errors.ModelError as error:
        if kind := _other_text(data):
            raise errors.ModelError(f"this is {kind}, not a model; a model is {_MODELS}") from error
        raise


def _other_text(data):
    """What a text that is no model seems to be, or None."""
    text = data[:100_000].decode("utf-8", "replace")
    if re.search(r"^\s*\[\[?\s*(structure|model|run|ensemble)\s*\]", text, re.MULTILINE):
        return "an input file of md-run (TOML)"
    if re.search(r"^\s*(pair_style|pair_coeff|read_data|fix|run)\s", text, re.MULTILINE):
        return "a LAMMPS script"
    if re.search(r"^\s*\d+\s+atoms\b", text, re.MULTILINE) or re.match(r"\s*\d+\s*\n", text):
        return "a structure"
    return None


def kind_of_binary(path):
    """The name of the kind of binary file, of those that models are in, that ``path`` is; None for others."""
    with open(path, "rb") as file:
        head = file.read(4096)
    found = next((kind.name for kind in FORMATS if kind.recognises(head)), None)
    return None if found == "text" else found


def _looks_like_pbtxt(data):
    return data.lstrip().startswith((b"node {", b"node{"))


def _refuse_pickle(path, data):
    raise building.unsupported("a bare pickle or an old PyTorch checkpoint", "freeze it first: dp --pt freeze")


#: in the order of trial
FORMATS = (
    Format("HDF5", _is_hdf5, _read_hdf5),
    Format("zip archive", _is_zip, torchscript.read),
    Format("pickle", _is_pickle, _refuse_pickle),
    Format("text", _is_text, _read_text),
    Format("TensorFlow graph", _is_graph, tensorflow.read),
)


def _all_bytes(path):
    """The content of a file that can be read; what cannot be is refused."""
    if os.path.isdir(path):
        inside = set(os.listdir(path))
        if inside & {"saved_model.pb", "saved_model.pbtxt"}:
            raise building.unsupported("a TensorFlow SavedModel directory", _CONVERT)
        raise errors.ModelError("this is a directory; give the path of a model file")
    if not os.path.exists(path):
        raise errors.ModelError("no such file")
    if not os.path.isfile(path):
        raise errors.ModelError("not a regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST_FILE:
            raise errors.ModelError(f"the file has {size / 2**30:.1f} GiB, more than any model that dpmd reads")
        data = file.read(_LARGEST_FILE)
    if not data:
        raise errors.ModelError("the file is empty")
    return data


def _printable(message):
    """Text that any terminal takes, whatever the file put into it."""
    return str(message).encode("utf-8", "backslashreplace").decode()


def load(path):
    """Read a model file.

    path : a TensorFlow graph (``.pb``), TorchScript archive (``.pth``), backend-independent
        model (``.dp``, ``.yaml``), or dpmd's own table file (``.dptab``); names do not matter.

    The file is read once: the parameters of the :class:`~dpmd.models.parameters.DeepPotentialModel` that is
    returned and its ``source.digest`` belong to the same bytes, whatever happens to the file.  Raises
    :class:`~dpmd.models.errors.ModelError` if the file is missing, damaged, or of another kind.
    """
    path = os.fsdecode(path)
    try:
        # absurd numbers overflow on their way to the checks that refuse them
        with np.errstate(all="ignore"):
            data = _all_bytes(path)
            for kind in FORMATS:
                if kind.recognises(data[:4096]):
                    model = kind.read(path, data)
                    digest = hashlib.sha256(data).hexdigest()
                    return replace(model, source=replace(model.source, digest=digest))
            raise errors.ModelError(
                "not a model file: neither a TensorFlow graph, nor a TorchScript archive, nor HDF5, nor text"
            )
    except errors.ModelError as error:
        message = _printable(error)
        raise errors.ModelError(message if message.startswith(path) else f"{path}: {message}") from error
    except OSError as error:
        detail = _printable(error.strerror or error)
        raise errors.ModelError(f"{path}: damaged, or cannot be read ({detail})") from error
    # Damage can surface anywhere between bytes and records; whatever it trips over, the
    # remedy is the same for the user.
    except Exception as error:
        detail = _printable(f"{type(error).__name__}: {error}")[:200]
        raise errors.ModelError(f"{path}: damaged, or not written as expected ({detail})") from error
