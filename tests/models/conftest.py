"""Model files with changed contents, for the tests of readers.

``edited_dp``, ``edited_pb`` and ``edited_pth`` are functions that copy a fixture model, let a
function change it, and return the path of the copy.
"""

import json
import zipfile

import h5py
import numpy as np
import pytest

from dpmd.models.readers import graphdef


def _resolved(node, read, below=False):
    """A copy of a tree with ``read(leaf)`` in place of the leaves below ``@variables``."""
    if isinstance(node, dict):
        return {key: _resolved(value, read, below or key == "@variables") for key, value in node.items()}
    if isinstance(node, list):
        return [_resolved(value, read, below) for value in node]
    return read(node) if below and node is not None else node


@pytest.fixture(scope="session")
def dp_tree(find_model):
    """Function: name of a ``.dp`` model -> its tree, with arrays below ``@variables``."""

    def tree(name):
        with h5py.File(find_model(name)) as file:
            return _resolved(json.loads(file.attrs["json"]), lambda leaf: file[leaf][()])

    return tree


def write_dp(path, tree):
    """Write a tree as an HDF5 model."""
    with h5py.File(path, "w") as file:

        def stored(array):
            name = f"/variable_{len(file):04d}"
            file[name] = array
            return name

        file.attrs["json"] = json.dumps(_resolved(tree, stored))


@pytest.fixture
def edited_dp(dp_tree, tmp_path):
    """Function ``(name, edit)``: ``edit(tree)`` changes the tree of the model."""

    def edited(name, edit):
        tree = dp_tree(name)
        edit(tree)
        write_dp(tmp_path / "edited.dp", tree)
        return tmp_path / "edited.dp"

    return edited


class GraphEditor:
    """A graph whose nodes and constants can be changed."""

    def __init__(self, data):
        self.message = graphdef._GraphDef.FromString(data)

    @property
    def names(self):
        return [node.name.decode() for node in self.message.node]

    def node(self, name):
        return next(node for node in self.message.node if node.name == name.encode())

    def remove(self, name):
        self.message.node.remove(self.node(name))

    def attribute(self, name, key):
        return next(a.value for a in self.node(name).attr if a.key == key.encode())

    def set(self, name, value):
        """Set constant ``name``; it is added if there is none."""
        if name not in self.names:
            node = self.message.node.add(name=name.encode(), op=b"Const")
            node.attr.add(key=b"value")
        tensor = self.attribute(name, "value").tensor
        tensor.Clear()
        if isinstance(value, (str, bytes)):
            tensor.dtype = 7
            tensor.string_val.append(value.encode() if isinstance(value, str) else value)
            return
        value = np.asarray(value)
        tensor.dtype = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}[value.dtype.name]
        for n in value.shape:
            tensor.shape.dim.add(size=n)
        tensor.content = value.tobytes()

    def get(self, name):
        return graphdef.Graph(self.message.SerializeToString()).constant(name)

    def edit_script(self, edit):
        script = json.loads(self.get("train_attr/training_script"))
        edit(script)
        self.set("train_attr/training_script", json.dumps(script))


@pytest.fixture
def edited_pb(find_model, tmp_path):
    """Function ``(name, edit)``: ``edit(graph)`` changes a :class:`GraphEditor`."""

    def edited(name, edit):
        graph = GraphEditor(find_model(name).read_bytes())
        edit(graph)
        path = tmp_path / "edited.pb"
        path.write_bytes(graph.message.SerializeToString())
        return path

    return edited


@pytest.fixture
def edited_pth(find_model, tmp_path):
    """Function ``(name, edit)``: ``edit(members)`` changes a dict of member names and bytes.

    Names are without the top folder.
    """

    def edited(name, edit, compression=zipfile.ZIP_STORED):
        with zipfile.ZipFile(find_model(name)) as archive:
            members = {n.split("/", 1)[1]: archive.read(n) for n in archive.namelist()}
        edit(members)
        path = tmp_path / "edited.pth"
        with zipfile.ZipFile(path, "w", compression) as archive:
            for member, data in members.items():
                archive.writestr(f"top/{member}", data)
        return path

    return edited
