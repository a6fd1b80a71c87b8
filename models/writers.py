"""Writers of model files: the backend-independent tree (``.dp``, ``.yaml``) and ``.dptab``.

The tree is DeePMD-kit's own (``deepmd.dpmodel``, version 3.2; what each key means stands in
:mod:`dpmd.models.readers.dpmodel`).  A rule that a file of another origin follows and the tree cannot
state is folded into the parameters where that is exact, and refused otherwise.
"""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import yaml

from . import dptab
from .errors import ModelError
from .files import written_whole
from .networks import activation
from .parameters import DenseLayer, Embedding, Network, PairRule

_VERSION = "3.2.0"  # of DeePMD-kit, whose layout is written


class _Variable:
    """An array of the tree, until its format decides how it is stored."""

    def __init__(self, value, single):
        self.array = np.asarray(value, np.float32 if single else np.float64)


def write(model, path):
    """Write a model; the suffix of ``path`` tells the format: ``.dp``, ``.yaml``, ``.yml`` or ``.dptab``.

    Returns a list of sentences about differences, which is normally empty.  Raises ModelError for
    another suffix, and for models that the format cannot express.  The file appears whole or not at all.
    """
    path = Path(path)
    if path.suffix == ".dptab":
        dptab.write(model, path)
        return []
    if path.suffix not in (".dp", ".yaml", ".yml"):
        raise ModelError(f"{path}: models are written as .dp, .yaml or .dptab; choose one of these suffixes")
    tree, notes = model_tree(model)
    with written_whole(path) as beside:
        (_write_hdf5 if path.suffix == ".dp" else _write_yaml)(tree, beside)
    return notes


def model_tree(model):
    """``(tree, notes)``: the whole content of a file, and sentences about what differs."""
    model, notes = _expressible(model)
    single = model.precision == "float32"
    source = model.source
    variables = {}
    if source.min_neighbor_distance is not None:
        variables["min_nbor_dist"] = _Variable(source.min_neighbor_distance, False)
    n_types = model.n_types
    rules = model.descriptor.pair_rules
    tree = {
        "software": "dpmd",
        "version": _VERSION,
        "backend": source.backend or "dpmd",
        "model": {
            "@class": "Model",
            "type": "standard",
            "@version": 2,
            "type_map": list(model.type_map),
            "descriptor": _descriptor_node(model, single),
            "fitting": _fitting_node(model),
            "atom_exclude_types": sorted(model.fitting.silent_types),
            "pair_exclude_types": _unordered_pairs(rules == PairRule.REMOVED),
            "rcond": None,
            "preset_out_bias": None,
            "@variables": {
                "out_bias": _Variable(np.zeros((1, n_types, 1)), False),
                "out_std": _Variable(np.ones((1, n_types, 1)), False),
            },
        },
        "model_def_script": _training_input(model),
        "@variables": variables,
    }
    return tree, notes


def _training_input(model):
    """The ``model`` section of a training input that describes this model."""
    d, f = model.descriptor, model.fitting
    return {
        "type_map": list(model.type_map),
        "descriptor": {
            "type": "se_e2_a", "rcut": d.rcut, "rcut_smth": d.rcut_smth, "sel": list(d.sel),
            "axis_neuron": d.axis_neuron, "type_one_side": d.type_one_side, "precision": model.precision,
        },
        "fitting_net": {
            "type": "ener", "neuron": list(f.networks[0].widths[:-1]), "numb_fparam": f.n_fparam,
            "numb_aparam": f.n_aparam, "precision": model.precision,
        },
    }  # fmt: skip


# --------------------------------------------------------------------- rules of other origins


def _expressible(model):
    """``(model, notes)``: the same function, by the rules of the backend-independent tree."""
    notes, d, f = [], model.descriptor, model.fitting
    if not d.shared_selection:
        notes.append(
            "if an atom has more neighbours than sel, the new format keeps the nearest of all types first, the old "
            "one the nearest of each type"
        )
    if d.switch_end - d.switch_start != d.switch_width:
        change = abs(d.switch_end - d.switch_start - d.switch_width)
        notes.append(f"the old file subtracts its cutoffs in single precision; the width changes by {change:.1e} Å")
    d = replace(d, rcut=d.switch_end, rcut_smth=d.switch_start)
    if d.neighbor_count != sum(d.sel):
        # the descriptor is quadratic in 1 / neighbor_count: the first layer takes the factor up
        factor = (sum(d.sel) / d.neighbor_count) ** 2
        f = replace(f, networks=tuple(_scaled_inputs(n, factor, d.n_out, model) for n in f.networks))
        d = replace(d, neighbor_count=sum(d.sel))
    d = _with_stated_exclusions(d, model)
    shape = next(n for n in f.networks if n is not None)
    f = replace(f, networks=tuple(shape if n is None else n for n in f.networks))
    return replace(model, descriptor=d, fitting=f), notes


def _scaled_inputs(network, factor, n_scaled, model):
    if network is None:
        return None
    first = network.layers[0]
    if first.skip != "none":
        raise ModelError(
            f"{model.source.path}: its 'sel' was changed after training, and the first fitting layer passes its "
            "inputs on; the new format cannot express that"
        )
    weight = first.weight.copy()
    weight[:n_scaled] *= factor
    return Network((replace(first, weight=weight), *network.layers[1:]))


def _with_stated_exclusions(d, model):
    """Pairs that add nothing at all, as the tree can say it: excluded, or with an embedding of zero.

    ``exclude_types`` masks neighbours only, so that empty slots still count where the mean is not zero.
    """
    rules, embeddings = d.pair_rules.copy(), [list(row) for row in d.embeddings]
    template = next(e for row in embeddings for e in row if e is not None)
    for centre, neighbor in np.argwhere(rules == PairRule.SKIPPED):
        if d.sel[neighbor] == 0:
            continue
        masked = d.radial_mean[centre] == 0 and rules[neighbor, centre] in (PairRule.SKIPPED, PairRule.MASKED)
        rules[centre, neighbor] = PairRule.MASKED if masked else PairRule.INCLUDED
        if not masked or not d.type_one_side:
            embeddings[centre][neighbor] = _zero_embedding(template, model)
    zeroed = (rules == PairRule.INCLUDED) & (d.pair_rules == PairRule.SKIPPED)
    one_side = d.type_one_side and not zeroed.any()
    return replace(d, pair_rules=rules, embeddings=tuple(map(tuple, embeddings)), type_one_side=one_side)


def _zero_embedding(template, model):
    layers = []
    for layer in template.network.layers if template.network is not None else ():
        if activation(layer.activation)(np.zeros(1))[0][0] != 0:
            raise ModelError(
                f"{model.source.path}: excluded types with the activation {layer.activation!r} cannot be "
                "expressed in the new format"
            )
        layers.append(
            DenseLayer(np.zeros_like(layer.weight), np.zeros(layer.n_out), layer.timestep, layer.activation, layer.skip)
        )
    table = template.table and replace(template.table, coefficients=np.zeros_like(template.table.coefficients))
    return Embedding(Network(tuple(layers)) if layers else None, table, template.table_from_file)


def _unordered_pairs(mask):
    return [[int(a), int(b)] for a, b in np.argwhere(mask) if a <= b]


# --------------------------------------------------------------------- nodes


def _name(activation_name):
    return "none" if activation_name == "linear" else activation_name


def _network_node(kind, network, precision, **more):
    single = precision == "float32"
    hidden = network.layers if kind == "EmbeddingNetwork" else network.layers[:-1]
    return {
        "@class": kind,
        "@version": 2 if kind == "EmbeddingNetwork" else 1,
        "in_dim": network.n_in,
        "neuron": [layer.n_out for layer in hidden],
        "activation_function": _name(network.layers[0].activation),
        "resnet_dt": any(layer.timestep is not None for layer in network.layers),
        "precision": precision,
        **more,
        "layers": [
            {
                "@class": "Layer",
                "@version": 2,
                "bias": True,
                "use_timestep": layer.timestep is not None,
                "activation_function": _name(layer.activation),
                "resnet": layer.skip != "none",
                "precision": precision,
                "trainable": True,
                "@variables": {
                    "w": _Variable(layer.weight, single),
                    "b": _Variable(layer.bias, single),
                    "idt": None if layer.timestep is None else _Variable(layer.timestep, single),
                },
            }
            for layer in network.layers
        ],
    }


def _collection(dimensions, n_types, kind, networks):
    return {
        "@class": "NetworkCollection", "@version": 1, "ndim": dimensions, "ntypes": n_types, "network_type": kind,
        "networks": networks,
    }  # fmt: skip


def _listed_embeddings(d):
    """Embeddings in the order of the tree: by neighbour, or centre + T * neighbour."""
    if not d.type_one_side:
        return [d.embeddings[centre][neighbor] for neighbor in range(d.n_types) for centre in range(d.n_types)]
    columns = zip(*d.embeddings, strict=True)
    return [next((e for e in column if e is not None), None) for column in columns]


def _descriptor_node(model, single):
    d, precision = model.descriptor, model.precision
    listed = _listed_embeddings(d)
    networks = [
        None if e is None or e.network is None else _network_node("EmbeddingNetwork", e.network, precision, bias=True)
        for e in listed
    ]
    some = next((n for n in networks if n is not None), None)
    statistics = np.zeros((2, d.n_types, sum(d.sel), 4))
    statistics[0, :, :, 0] = d.radial_mean[:, None]
    statistics[1, :, :, 0], statistics[1, :, :, 1:] = d.radial_std[:, None], d.angular_std[:, None, None]
    tables = [None if e is None or not e.table_from_file else e.table for e in listed]
    compressed = any(table is not None for table in tables)
    node = {
        "@class": "Descriptor",
        "type": "se_e2_a",
        "@version": 3 if compressed else 2,
        "rcut": d.rcut,
        "rcut_smth": d.rcut_smth,
        "sel": list(d.sel),
        "neuron": some["neuron"] if some else [d.n_embedding],
        "axis_neuron": d.axis_neuron,
        "resnet_dt": some["resnet_dt"] if some else False,
        "trainable": True,
        "type_one_side": d.type_one_side,
        "exclude_types": _unordered_pairs(d.pair_rules == PairRule.MASKED),
        "env_protection": d.protection,
        "set_davg_zero": False,
        "activation_function": some["activation_function"] if some else "tanh",
        "precision": precision,
        "embeddings": _collection(1 if d.type_one_side else 2, d.n_types, "embedding_network", networks),
        "env_mat": {"rcut": d.rcut, "rcut_smth": d.rcut_smth, "protection": d.protection, "use_exp_switch": False},
        "@variables": {"davg": _Variable(statistics[0], False), "dstd": _Variable(statistics[1], False)},
        "type_map": list(model.type_map),
        "spin": None,
    }
    if compressed:
        node["compress"] = {
            "@variables": {
                "compress_data": [_Variable(_table_rows(t), single) for t in tables],
                "compress_info": [_Variable(_table_range(t), False) for t in tables],
            }
        }
    return node


def _table_rows(table):
    return np.zeros(0) if table is None else table.coefficients.reshape(len(table.coefficients), -1)


def _table_range(table):
    if table is None:
        return np.zeros(6)
    return [table.lower, table.upper, table.maximum, table.fine_step, table.coarse_step, -1.0]


def _fitting_node(model):
    f, precision, n_types = model.fitting, model.precision, model.n_types
    networks = [_network_node("FittingNetwork", n, precision, out_dim=1, bias_out=True) for n in f.networks]

    def optional(values, length):
        return _Variable(values, False) if length else None

    vacuum = [float(f.energy_bias[t]) if f.subtract_vacuum[t] else None for t in range(n_types)]
    return {
        "@class": "Fitting",
        "type": "ener",
        "@version": 4,
        "var_name": "energy",
        "ntypes": n_types,
        "dim_descrpt": model.descriptor.n_out,
        "mixed_types": False,
        "dim_out": 1,
        "neuron": networks[0]["neuron"],
        "resnet_dt": networks[0]["resnet_dt"],
        "numb_fparam": f.n_fparam,
        "numb_aparam": f.n_aparam,
        "dim_case_embd": 0,
        "default_fparam": None if f.default_fparam is None else [float(v) for v in f.default_fparam],
        "rcond": None,
        "tot_ener_zero": False,
        "trainable": [True] * len(f.networks[0].layers),
        "atom_ener": vacuum if any(v is not None for v in vacuum) else [],
        "activation_function": networks[0]["activation_function"],
        "precision": precision,
        "layer_name": None,
        "use_aparam_as_mask": False,
        "spin": None,
        "exclude_types": [],
        "nets": _collection(1, n_types, "fitting_network", networks),
        "@variables": {
            "bias_atom_e": _Variable(f.energy_bias[:, None], False),
            "case_embd": None,
            "fparam_avg": optional(f.fparam_mean, f.n_fparam),
            "fparam_inv_std": optional(f.fparam_inverse_std, f.n_fparam),
            "aparam_avg": optional(f.aparam_mean, f.n_aparam),
            "aparam_inv_std": optional(f.aparam_inverse_std, f.n_aparam),
        },
        "type_map": list(model.type_map),
    }


# --------------------------------------------------------------------- files


def _stored(node, store):
    """The tree with every variable replaced by ``store(array)``."""
    if isinstance(node, _Variable):
        return store(node.array)
    if isinstance(node, dict):
        return {key: _stored(value, store) for key, value in node.items()}
    return [_stored(item, store) for item in node] if isinstance(node, list) else node


def _write_hdf5(tree, path):
    with h5py.File(path, "w") as file:
        count = 0

        def store(array):
            nonlocal count
            name = f"/variable_{count:04d}"
            file.create_dataset(name, data=array)
            count += 1
            return name

        file.attrs["json"] = json.dumps(_stored(tree, store))


def _write_yaml(tree, path):
    def store(array):
        return {
            "@class": "np.ndarray", "@is_variable": True, "@version": 1, "dtype": array.dtype.name,
            "value": array.tolist(),
        }  # fmt: skip

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    with open(path, "w", encoding="utf-8") as file:
        yaml.dump(_stored(tree, store), file, Dumper=dumper, sort_keys=False)
