"""The backend-independent tree, from HDF5 (``.dp``, ``.hlo``) or YAML files.

The tree is a JSON-like object; arrays are leaves below keys named ``@variables``.  The reader of
PyTorch archives translates its objects to the same tree.  Rules of this origin: distances in
double precision; each layer carries its own ``resnet`` flag; only real neighbours of excluded
pairs are masked; ``out_std`` does not act on energies.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

import h5py
import numpy as np
import yaml

from ..errors import ModelError
from ..parameters import DeepPotentialModel, DenseLayer, EnergyFitting, ModelSource, Network
from . import building, se_e2_a

FORMAT_HDF5 = "backend-independent HDF5 (.dp)"
FORMAT_YAML = "backend-independent YAML"

#: readers of descriptors: kind -> function(node, n_types, removed_pairs)
DESCRIPTORS = {se_e2_a.KIND: se_e2_a.from_tree}

# the newest layout of each kind of node that is known here
_NEWEST = {"the model": 2, "the descriptor": 3, "the fitting": 4}


class Variables(Mapping):
    """The content of an ``@variables`` node; ``resolve`` turns a leaf into an array when it is asked for."""

    def __init__(self, leaves, resolve):
        self._leaves = leaves
        self._resolve = resolve

    def __getitem__(self, key):
        leaf = self._leaves[key]
        return [self._value(item) for item in leaf] if isinstance(leaf, list) else self._value(leaf)

    def _value(self, leaf):
        return None if leaf is None else self._resolve(leaf)

    def __iter__(self):
        return iter(self._leaves)

    def __len__(self):
        return len(self._leaves)


def with_variables(tree, resolve, file_size):
    """The tree with every ``@variables`` object replaced by :class:`Variables`.

    resolve : function from leaf to array; file_size : bytes, limits what all arrays may take
        together, since a small file can refer to the same array very often.
    """
    done = {}
    budget = 2**26 + 16 * file_size

    def within_budget(leaf):
        nonlocal budget
        found = resolve(leaf)
        budget -= getattr(found, "nbytes", 0)
        if budget < 0:
            raise ModelError("the model refers to more numbers than its file can hold")
        return found

    def convert(node):
        if not isinstance(node, (dict, list)):
            return node
        # parts that a YAML file repeats by reference stay shared
        if id(node) not in done:
            done[id(node)] = type(node)()
            if isinstance(node, list):
                done[id(node)].extend(convert(item) for item in node)
            else:
                for key, value in node.items():
                    is_leaf = key == "@variables" and isinstance(value, dict)
                    done[id(node)][key] = Variables(value, within_budget) if is_leaf else convert(value)
        return done[id(node)]

    return convert(tree)


# --------------------------------------------------------------------- HDF5 files


def read_hdf5(path, file, size):
    """:class:`DeepPotentialModel` from an open HDF5 file of ``size`` bytes."""
    if "json" not in file.attrs:
        raise ModelError("not a Deep Potential model: the HDF5 file has no attribute 'json'")
    text = file.attrs["json"]
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    # h5py marks bytes that are not UTF-8 with lone surrogates
    if not isinstance(text, str) or any("\ud800" <= c <= "\udfff" for c in set(text)):
        raise ModelError("attribute 'json' of the HDF5 file is not text")
    tree = _parsed(json.loads, text, "attribute 'json' of the HDF5 file")
    cache = {}

    def resolve(name):
        if name not in cache:
            cache[name] = _dataset(file, name)
        return cache[name]

    return model_from_file(path, FORMAT_HDF5, with_variables(tree, resolve, size))


def _dataset(file, name):
    """The array of a dataset that lies in this very file; links to elsewhere are not followed."""
    if not isinstance(name, str):
        raise ModelError("a variable of the model is not the name of a dataset")
    group = file
    for part in [p for p in name.split("/") if p]:
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
        if link is None:
            raise ModelError(f"dataset {name[:100]!r} is missing")
        if not isinstance(link, h5py.HardLink):
            raise ModelError(f"dataset {name[:100]!r} is a link to another place, which is not allowed in a model")
        group = group[part]
    if not isinstance(group, h5py.Dataset) or group.dtype.kind not in "fiu" or group.shape is None:
        raise ModelError(f"dataset {name[:100]!r} does not hold numbers")
    if group.external or group.is_virtual:
        raise ModelError(f"dataset {name[:100]!r} keeps its data in another file, which is not allowed in a model")
    # data that were never written, or that decompress to a thousand times their size
    if group.nbytes > 1000 * group.id.get_storage_size() + 64 or (group.chunks is None and _incomplete(group)):
        raise ModelError(f"dataset {name[:100]!r} is larger than what the file stores of it")
    return group[()]


def _incomplete(dataset):
    return dataset.id.get_storage_size() < dataset.nbytes


def _parsed(parser, text, name):
    try:
        return parser(text)
    except RecursionError as error:
        raise ModelError(f"{name} is nested too deeply") from error
    except (ValueError, yaml.YAMLError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise ModelError(f"{name} is not valid, or damaged: {first_line[:200]}") from error


# --------------------------------------------------------------------- YAML files


def read_yaml(path, data):
    """:class:`DeepPotentialModel` from the bytes of a YAML (or JSON) file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    # the C loader is a hundred times faster, and as safe
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    tree = _parsed(lambda t: yaml.load(t, Loader=loader), text, "the YAML text")
    if not isinstance(tree, dict) or "model" not in tree:
        raise ModelError("not a Deep Potential model: the text has no section 'model'")
    tree = with_variables(tree, lambda leaf: _written_array(leaf, len(text)), len(text))
    return model_from_file(path, FORMAT_YAML, tree)


def _written_array(leaf, text_length):
    """An array from its YAML form ``{dtype: ..., value: nested lists}``."""
    if isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
        return np.asarray(leaf)
    if isinstance(leaf, list) or not isinstance(leaf, dict) or "value" not in leaf:
        raise ModelError("a variable of the model is not an array")
    # repeated references make small texts describe huge arrays
    value, size = leaf["value"], 1
    for _ in range(8):
        if isinstance(value, list):
            size *= len(value)
            value = value[0] if value else None
    if size > text_length or isinstance(value, list):
        raise ModelError("an array of the model is larger than the text that holds it")
    dtype = np.dtype(str(leaf.get("dtype", "float64")))
    if dtype.kind not in "fiu":
        raise ModelError(f"an array of the model is of type {dtype}, expected numbers")
    try:
        return np.array(leaf["value"], dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"an array of the model is damaged: {error}") from error


# --------------------------------------------------------------------- the tree


def model_from_file(path, format_name, tree):
    """:class:`DeepPotentialModel` from the tree of a whole file."""
    if not isinstance(tree, dict) or not isinstance(tree.get("model"), dict):
        raise ModelError("not a Deep Potential model: there is no section 'model'")
    return model_from_tree(
        tree["model"],
        ModelSource(
            path=path,
            format=format_name,
            backend=str(tree.get("backend") or "")[:100],
            version=str(tree.get("version") or "")[:100],
            min_neighbor_distance=_min_neighbor_distance(tree),
        ),
    )


def _min_neighbor_distance(tree):
    for place in ("@variables", "constants"):
        found = tree.get(place)
        if isinstance(found, Mapping) and found.get("min_nbor_dist") is not None:
            return building.positive_or_none(found["min_nbor_dist"], "min_nbor_dist")
    return building.positive_or_none(tree.get("min_nbor_dist"), "min_nbor_dist")


def model_from_tree(node, source):
    """:class:`DeepPotentialModel` from the ``model`` node of a tree whose arrays are :class:`Variables`."""
    kind = node.get("type", "standard")
    if kind != "standard":
        raise building.unsupported(f"a model of type {str(kind)[:40]!r}")
    _check_version(node, "the model")
    descriptor_node, fitting_node = (_child(node, name) for name in ("descriptor", "fitting"))
    descriptor_kind = building.canonical_descriptor(descriptor_node.get("type"))
    if descriptor_kind not in DESCRIPTORS:
        raise building.unsupported(f"descriptor {descriptor_kind!r}")
    type_map = building.type_names(node.get("type_map"))
    n_types = len(type_map)
    for child, name in ((descriptor_node, "the descriptor"), (fitting_node, "the fitting")):
        _check_version(child, name)
    removed = building.pairs_of_types(node.get("pair_exclude_types") or [], n_types, "pair_exclude_types")
    descriptor = DESCRIPTORS[descriptor_kind](descriptor_node, n_types, removed)
    out_bias, warnings = _output_statistics(node, n_types)
    return DeepPotentialModel(
        type_map=type_map,
        descriptor=descriptor,
        fitting=_fitting(
            fitting_node,
            n_types,
            descriptor.n_out,
            out_bias,
            building.set_of_types(node.get("atom_exclude_types") or [], n_types, "atom_exclude_types"),
        ),
        precision=building.canonical_precision(
            descriptor_node.get("precision", "default"), fitting_node.get("precision", "default")
        ),
        source=replace(source, warnings=(*source.warnings, *warnings)),
    )


def _child(node, name):
    found = node.get(name)
    if not isinstance(found, dict):
        raise ModelError(f"the model has no section {name!r}")
    return found


def _check_version(node, name):
    version = building.integer(node.get("@version", 1), f"version of {name}")
    if version > _NEWEST[name]:
        raise ModelError(f"the layout of {name} is version {version}; dpmd knows versions up to {_NEWEST[name]}")


def _output_statistics(node, n_types):
    """``(out_bias (T,), warnings)`` of a model node."""
    variables = node.get("@variables") or {}
    bias, deviation = variables.get("out_bias"), variables.get("out_std")
    bias = np.zeros(n_types) if bias is None else building.vector(bias, "out_bias", n_types)
    warnings = []
    if deviation is not None:
        deviation = building.vector(deviation, "out_std", n_types)
        if not np.all(deviation > 0):
            raise ModelError("out_std holds values that are not positive")
        if not np.all(deviation == 1):
            warnings.append(
                f"The file holds out_std = {', '.join(f'{v:g}' for v in deviation)}, which this kind of file does "
                "not apply to energies; a TensorFlow graph converted from it would multiply by it."
            )
    return bias, warnings


# --------------------------------------------------------------------- fitting networks


def _refuse_other_fittings(node):
    if node.get("type", "ener") != "ener":
        raise building.unsupported(f"fitting {str(node['type'])[:40]!r}")
    if node.get("mixed_types"):
        raise building.unsupported("one fitting network for all types (mixed_types)")
    if node.get("tot_ener_zero"):
        raise building.unsupported("a total energy shifted to zero (tot_ener_zero)")
    if node.get("use_aparam_as_mask"):
        raise building.unsupported("atomic parameters used as a mask (use_aparam_as_mask)")
    if any(name is not None for name in node.get("layer_name") or []):
        raise building.unsupported("layer sharing between fitting networks (layer_name)")
    if node.get("spin") is not None:
        raise building.unsupported("a spin model")


def _fitting(node, n_types, n_descriptor, out_bias, excluded_atoms):
    """:class:`EnergyFitting`; ``excluded_atoms`` are the types that the whole model silences."""
    _refuse_other_fittings(node)
    variables = _variables(node)
    n_fparam, n_aparam, n_case = (
        building.integer(node.get(name) or 0, name, 0, 10_000)
        for name in ("numb_fparam", "numb_aparam", "dim_case_embd")
    )
    case = _optional_vector(variables, "case_embd", n_case)
    networks = [
        building.folded_case_embedding(net, case, f"the fitting network of type {t}")
        for t, net in enumerate(_fitting_networks(node, n_types, n_descriptor + n_fparam + n_aparam + n_case))
    ]
    bias = variables.get("bias_atom_e")
    bias = np.zeros(n_types) if bias is None else building.vector(bias, "bias_atom_e", n_types)
    vacuum = _vacuum_flags(node, n_types)
    # a type excluded here loses network and fitting bias, but keeps the bias of the model;
    # a type excluded by the model loses everything
    for t in building.set_of_types(node.get("exclude_types") or [], n_types, "exclude_types of the fitting"):
        networks[t], bias[t], vacuum[t] = _silenced(networks[t]), 0.0, False
        if out_bias[t] == 0:
            excluded_atoms = excluded_atoms | {t}
    default = node.get("default_fparam") if n_fparam else None
    return EnergyFitting(
        networks=tuple(networks),
        energy_bias=bias + out_bias,
        subtract_vacuum=vacuum,
        fparam_mean=_optional_vector(variables, "fparam_avg", n_fparam),
        fparam_inverse_std=_optional_vector(variables, "fparam_inv_std", n_fparam),
        aparam_mean=_optional_vector(variables, "aparam_avg", n_aparam),
        aparam_inverse_std=_optional_vector(variables, "aparam_inv_std", n_aparam),
        default_fparam=None if default is None else building.vector(default, "default_fparam", n_fparam),
        silent_types=frozenset(excluded_atoms),
    )


def _variables(node):
    found = node.get("@variables")
    if not isinstance(found, Mapping):
        raise ModelError("the fitting has no variables (bias_atom_e, ...)")
    return found


def _optional_vector(variables, name, length):
    return building.vector(variables.get(name), name, length) if length else np.zeros(0)


def _fitting_networks(node, n_types, n_in):
    collection = node.get("nets")
    networks = collection.get("networks") if isinstance(collection, dict) else None
    if not isinstance(networks, (list, tuple)):
        raise ModelError("the fitting has no networks")
    if collection.get("ndim", 1) != 1 or len(networks) != n_types:
        raise ModelError(f"there are {len(networks)} fitting networks, expected one for each of the {n_types} types")
    for centre, net in enumerate(networks):
        name = f"the fitting network of type {centre}"
        yield building.network(se_e2_a.layers_of_tree(net, name), name, n_in=n_in, n_out=1)


def _silenced(net):
    """A network of the same shape whose output is zero."""
    last = net.layers[-1]
    end = DenseLayer(np.zeros_like(last.weight), np.zeros_like(last.bias), None, "linear", "none")
    return Network((*net.layers[:-1], end))


def _vacuum_flags(node, n_types):
    """Types from whose energy the network's value at a descriptor of zero is subtracted.

    Those with an entry in ``atom_ener``; also, if there is any entry, those beyond its end.
    """
    energies = list(node.get("atom_ener") or [])
    if all(e is None for e in energies):
        return np.zeros(n_types, dtype=bool)
    flags = [e is not None for e in energies[:n_types]]
    return np.array(flags + [True] * (n_types - len(flags)))
