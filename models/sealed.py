"""HDF5 files that notice damage: a digest of everything in them."""

import hashlib

import h5py
import numpy as np

_ATTRIBUTE = "sha256"


def _digest(file):
    """SHA-256 of all names, attributes and arrays, in order of their names."""
    digest = hashlib.sha256()

    def add(name, node):
        digest.update(name.encode())
        for key in sorted(node.attrs):
            if (name, key) != ("", _ATTRIBUTE):
                digest.update(f"{key}={node.attrs[key]!r}".encode())
        if isinstance(node, h5py.Dataset):
            array = np.ascontiguousarray(node[()])
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.data)

    add("", file)
    names = []
    file.visit(names.append)
    for name in sorted(names):
        add(name, file[name])
    return digest.hexdigest()


def seal(file):
    """Store the digest of an open file's content; nothing may be added afterwards."""
    file.attrs[_ATTRIBUTE] = _digest(file)


def check_seal(file):
    """Raise ValueError if the content is not what was sealed."""
    if file.attrs.get(_ATTRIBUTE) != _digest(file):
        raise ValueError("its content does not match its checksum")
