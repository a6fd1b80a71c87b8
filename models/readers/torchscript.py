"""TorchScript archives (``.pth``), plain and compressed, without PyTorch.

An archive is a zip file of stored members: ``data.pkl`` describes the objects, ``data/<key>``
hold their numbers.  Nothing of it is executed.  The objects are translated to the
backend-independent tree, whose rules are those of this origin, too.
"""

import io
import math
import zipfile

import numpy as np

from ..errors import ModelError
from ..parameters import ModelSource
from . import building, pickles
from .dpmodel import model_from_tree, with_variables

FORMAT = "TorchScript archive (.pth)"

_MODEL_CLASSES = {
    "SpinEnergyModel": "a spin model",
    "SpinModel": "a spin model",
    "DPZBLModel": "a model with a short-range table (ZBL)",
    "LinearEnergyModel": "a linear combination of models",
    "DipoleModel": "fitting 'dipole'",
    "PolarModel": "fitting 'polar'",
    "DOSModel": "fitting 'dos'",
    "PropertyModel": "fitting 'property'",
    "DenoiseModel": "a denoising model",
}
_DESCRIPTOR_CLASSES = {
    "DescrptSeA": "se_e2_a",
    "DescrptSeR": "se_e2_r",
    "DescrptSeT": "se_e3",
    "DescrptSeTTebd": "se_e3_tebd",
    "DescrptDPA1": "dpa1",
    "DescrptSeAttenV2": "se_atten_v2",
    "DescrptDPA2": "dpa2",
    "DescrptDPA3": "dpa3",
    "DescrptHybrid": "hybrid",
}
_FREEZE = "freeze it first: dp --pt freeze"


def read(path, data):
    """:class:`DeepPotentialModel` from the bytes of an archive."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeError) as error:
        raise ModelError(f"damaged or incomplete archive: {error}") from error
    with archive:
        members = _Members(archive, len(data))
        root = pickles.load(members.read("data.pkl", pickles.MAXIMUM_BYTES))
        if not isinstance(root, pickles.Record) or not root.module.startswith("__torch__"):
            raise building.unsupported("a PyTorch checkpoint (.pt)", _FREEZE)
        return _model(path, root, members)


class _Members:
    """The members of an archive below its top folder, read within bounds."""

    def __init__(self, archive, archive_size):
        self._archive = archive
        names = archive.namelist()
        folders = {n.removesuffix("data.pkl") for n in names if n.count("/") == 1 and n.endswith("/data.pkl")}
        if len(folders) != 1:
            self._refuse_other_archives(names)
            raise ModelError("not a Deep Potential model: the zip archive is not one of PyTorch (it has no data.pkl)")
        self._folder = folders.pop()
        # members are stored as they are, so that all of them together are smaller than the file
        self.archive_size = archive_size
        self._budget = archive_size
        self._cache = {}
        if self._has("byteorder") and self.read("byteorder", 100).strip() != b"little":
            raise ModelError("the archive was written on a big-endian machine, which is not supported")
        if not (self._has("constants.pkl") or any("/code/" in name for name in names)):
            raise building.unsupported("a PyTorch checkpoint (.pt)", _FREEZE)

    @staticmethod
    def _refuse_other_archives(names):
        if any(name.endswith(("model.json", "metadata.json")) or "aotinductor" in name for name in names):
            raise building.unsupported(
                "an exported PyTorch program (.pt2, .pte)", "convert it: dp convert-backend MODEL model.dp"
            )

    def _has(self, name):
        return self._folder + name in self._archive.NameToInfo

    def read(self, name, largest):
        """Bytes of member ``name``, at most ``largest``; read once however often it is asked for."""
        if name not in self._cache:
            self._cache[name] = self._bytes(name, largest)
        return self._cache[name]

    def _bytes(self, name, largest):
        if not self._has(name):
            raise ModelError(f"damaged archive: member {name} is missing")
        info = self._archive.getinfo(self._folder + name)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ModelError(f"member {name} of the archive is compressed or encrypted, which PyTorch never does")
        self._budget -= info.file_size
        if info.file_size > largest or self._budget < 0:
            raise ModelError(f"damaged archive: member {name} is larger than it can be")
        try:
            return self._archive.read(info)
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, ValueError) as error:
            raise ModelError(f"damaged archive: member {name} cannot be read ({error})") from error

    def storage(self, key, n_bytes):
        """Exactly ``n_bytes`` of storage ``key``."""
        found = self.read(f"data/{key}", 2**40)
        if len(found) < n_bytes:
            raise ModelError(f"damaged archive: storage {key} has {len(found)} bytes, expected {n_bytes}")
        return found[:n_bytes]


# --------------------------------------------------------------------- objects to tree


def _model(path, root, members):
    """Translate the objects to a tree, and the tree to a model."""
    if root.kind in _MODEL_CLASSES or root.kind != "EnergyModel":
        raise building.unsupported(_MODEL_CLASSES.get(root.kind, f"a model of class {root.kind[:60]!r}"))
    atomic = _record(root, "atomic_model", "atomic_model")
    descriptor = _record(atomic, "descriptor", "descriptor")
    kind = _DESCRIPTOR_CLASSES.get(descriptor.kind, descriptor.kind)
    if kind not in _DESCRIPTOR_TREES:
        raise building.unsupported(f"descriptor {kind[:60]!r}")
    fitting = _record(atomic, "fitting_net", "fitting_net")
    if fitting.kind != "EnergyFittingNet":
        raise building.unsupported(f"fitting of class {fitting.kind[:60]!r}")

    def resolve(leaf):
        return leaf.array(members.storage) if isinstance(leaf, pickles.Tensor) else leaf

    tree = {
        "type": "standard",
        "type_map": atomic.get("type_map"),
        "pair_exclude_types": _masked_pairs(atomic.get("pair_excl"), resolve),
        "atom_exclude_types": _masked_types(atomic.get("atom_excl"), resolve),
        "@variables": {"out_bias": atomic.get("out_bias"), "out_std": atomic.get("out_std")},
        "descriptor": {"type": kind, **_DESCRIPTOR_TREES[kind](descriptor, resolve)},
        "fitting": _fitting_tree(fitting, resolve),
    }
    distance = root.get("min_nbor_dist")
    source = ModelSource(
        path=path,
        format=FORMAT,
        backend="PyTorch",
        min_neighbor_distance=building.positive_or_none(
            None if distance is None else resolve(distance), "min_nbor_dist"
        ),
    )
    return model_from_tree(with_variables(tree, resolve, members.archive_size), source)


def _record(parent, name, where):
    found = parent.get(name)
    if not isinstance(found, pickles.Record):
        raise ModelError(f"the archive has no object {where!r}")
    return found


def _children(parent, name):
    """The members of a list of modules or parameters, in order; [] if there is no such list."""
    holder = parent.get(name)
    found = []
    while isinstance(holder, pickles.Record) and str(len(found)) in (holder.state or {}):
        found.append(holder.get(str(len(found))))
    return found


def _se_e2_a_tree(descriptor, resolve):
    block = _record(descriptor, "sea", "descriptor.sea")
    layers = _record(block, "filter_layers", "descriptor.sea.filter_layers")
    tree = {
        name: block.get(name)
        for name in ("rcut", "rcut_smth", "sel", "axis_neuron", "type_one_side", "env_protection", "precision")
    }
    tree["exclude_types"] = _masked_pairs(block.get("emask"), resolve)
    tree["embeddings"] = {"ndim": layers.get("ndim"), "networks": _network_trees(layers)}
    tree["@variables"] = {"davg": block.get("mean"), "dstd": block.get("stddev")}
    if block.get("compress"):
        tree["compress"] = {"@variables": {name: _children(block, name) for name in ("compress_data", "compress_info")}}
    return tree


#: translators of descriptors: kind -> function(record, resolve) -> tree
_DESCRIPTOR_TREES = {"se_e2_a": _se_e2_a_tree}


def _network_trees(collection):
    return [
        {"layers": [_layer_tree(layer) for layer in _children(net, "layers")]}
        for net in _children(collection, "networks")
    ]


def _layer_tree(layer):
    if not isinstance(layer, pickles.Record) or not {"activate_name", "resnet"} <= set(layer.state or ()):
        raise ModelError("damaged archive: a layer of a network is incomplete")
    return {
        "activation_function": layer.get("activate_name"),
        "resnet": layer.get("resnet"),
        "@variables": {"w": layer.get("matrix"), "b": layer.get("bias"), "idt": layer.get("idt")},
    }


def _fitting_tree(fitting, resolve):
    layers = _record(fitting, "filter_layers", "fitting_net.filter_layers")
    names = ("numb_fparam", "numb_aparam", "dim_case_embd", "default_fparam", "mixed_types", "use_aparam_as_mask",
             "precision")  # fmt: skip
    variables = ("bias_atom_e", "case_embd", "fparam_avg", "fparam_inv_std", "aparam_avg", "aparam_inv_std")
    return {
        "type": "ener",
        **{name: fitting.get(name) for name in names},
        "atom_ener": _vacuum_entries(fitting.get("remove_vaccum_contribution")),
        "exclude_types": fitting.get("exclude_types") or _masked_types(fitting.get("emask"), resolve),
        "nets": {"ndim": layers.get("ndim", 1), "networks": _network_trees(layers)},
        "@variables": {name: fitting.get(name) for name in variables},
    }


def _vacuum_entries(flags):
    """``atom_ener`` as far as it matters: an entry, or None, for each flag of the archive."""
    return [0.0 if flag else None for flag in flags or []]


def _mask(record, length, resolve):
    """The 0/1 mask of an exclusion object, or None where nothing is excluded."""
    if record is None:
        return None
    mask = record.get("type_mask") if isinstance(record, pickles.Record) else None
    if mask is None:
        raise ModelError("damaged archive: an exclusion has no mask")
    return building.vector(resolve(mask), "type_mask", length) if length else building.array(resolve(mask), "type_mask")


def _masked_pairs(record, resolve):
    """``exclude_types`` from a mask over (T + 1)^2 pairs, the last type being the empty slot."""
    mask = _mask(record, None, resolve)
    if mask is None:
        return []
    n = math.isqrt(mask.size)
    if n * n != mask.size:
        raise ModelError(f"damaged archive: a mask over pairs of types has {mask.size} values")
    pairs = np.argwhere(mask.reshape(n, n)[:-1, :-1] == 0)
    return [[int(a), int(b)] for a, b in pairs]


def _masked_types(record, resolve):
    """``exclude_types`` from a mask over types."""
    mask = _mask(record, None, resolve)
    return [] if mask is None else [int(t) for t in np.flatnonzero(mask.reshape(-1) == 0)]
