"""dpmd's own model file, ``.dptab``: HDF5, self-contained, with networks and tables.

Layout (version 2): root attribute ``dpmd_table_format`` = 2; attribute ``json`` with all
scalars, ``sha256`` of everything; ``embedding_of`` (T, T) indexes the distinct embeddings, -1
for none; groups ``embedding/<k>`` and ``fitting/<t>`` hold
``layer/<l>/{weight,bias,timestep}``, ``table/coefficients`` and
``low_rank/<precision>/{expansion,coefficients}``.

Version 1 had the same layout.  Its tables and bases were not checked at short distances, where forces were off:
what dpmd made of networks is left out on reading, and made anew as for any other model file.
"""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import h5py
import numpy as np

from .errors import ModelError
from .files import written_whole
from .parameters import (
    DeepPotentialModel,
    DenseLayer,
    Embedding,
    EmbeddingTable,
    EnergyFitting,
    LowRankBasis,
    ModelSource,
    Network,
    SmoothDescriptor,
)
from .sealed import check_seal, seal

FORMAT_NAME = "dpmd table (.dptab)"
FORMAT_VERSION = 2
FORMAT_ATTRIBUTE = "dpmd_table_format"

_descriptor_scalars = (
    "rcut", "rcut_smth", "switch_start", "switch_end", "switch_width", "sel", "axis_neuron", "neighbor_count",
    "type_one_side", "protection", "shared_selection", "kind",
)  # fmt: skip
_descriptor_arrays = ("radial_mean", "radial_std", "angular_std", "pair_rules")
_fitting_arrays = (
    "energy_bias", "subtract_vacuum", "fparam_mean", "fparam_inverse_std", "aparam_mean", "aparam_inverse_std",
)  # fmt: skip
_table_scalars = ("lower", "upper", "maximum", "fine_step", "coarse_step")


def _put(group, name, array):
    group.create_dataset(name, data=array, fletcher32=np.size(array) > 0)


def _write_network(group, network):
    for number, layer in enumerate(network.layers):
        g = group.create_group(f"layer/{number}")
        g.attrs["activation"], g.attrs["skip"] = layer.activation, layer.skip
        _put(g, "weight", layer.weight)
        _put(g, "bias", layer.bias)
        if layer.timestep is not None:
            _put(g, "timestep", layer.timestep)


def _read_network(group):
    if "layer" not in group:
        return None
    layers = []
    for number in range(len(group["layer"])):
        g = group[f"layer/{number}"]
        timestep = g["timestep"][()] if "timestep" in g else None
        layers.append(
            DenseLayer(g["weight"][()], g["bias"][()], timestep, str(g.attrs["activation"]), str(g.attrs["skip"]))
        )
    return Network(tuple(layers))


def _write_table(group, table):
    for name in _table_scalars:
        group.attrs[name] = getattr(table, name)
    _put(group, "coefficients", table.coefficients)


def _read_table(group):
    return EmbeddingTable(
        coefficients=group["coefficients"][()], **{name: float(group.attrs[name]) for name in _table_scalars}
    )


def write(model, path):
    """Write ``model`` to ``path``; the file appears whole or not at all.

    Of the file that the model came from it keeps the name, and not the folder, which is nobody else's business.
    """
    path = Path(path)
    d, f = model.descriptor, model.fitting
    unique = [e for e, _ in d.unique_embeddings()]
    number_of = {id(e): k for k, e in enumerate(unique)}
    scalars = {
        "type_map": model.type_map,
        "precision": model.precision,
        "source": asdict(model.source) | {"path": Path(model.source.path).name},
        "descriptor": {name: getattr(d, name) for name in _descriptor_scalars},
        "silent_types": sorted(f.silent_types),
        "default_fparam": None if f.default_fparam is None else list(f.default_fparam),
    }
    with written_whole(path) as beside, h5py.File(beside, "w") as file:
        file.attrs[FORMAT_ATTRIBUTE] = FORMAT_VERSION
        file.attrs["json"] = json.dumps(scalars)
        for name in _descriptor_arrays:
            _put(file, f"descriptor/{name}", getattr(d, name))
        rows = [[-1 if e is None else number_of[id(e)] for e in row] for row in d.embeddings]
        _put(file, "embedding_of", np.array(rows))
        for k, embedding in enumerate(unique):
            group = file.create_group(f"embedding/{k}")
            group.attrs["table_from_file"] = embedding.table_from_file
            if embedding.network is not None:
                _write_network(group, embedding.network)
            if embedding.table is not None:
                _write_table(group.create_group("table"), embedding.table)
            for basis in embedding.low_rank:
                low_rank = group.create_group(f"low_rank/{basis.precision}")
                _write_table(low_rank, basis.functions)
                low_rank.attrs["split"], low_rank.attrs["error"] = basis.split, basis.error
                low_rank.attrs["everywhere"] = basis.everywhere
                _put(low_rank, "expansion", basis.expansion)
        for name in _fitting_arrays:
            _put(file, f"fitting/{name}", getattr(f, name))
        for t, network in enumerate(f.networks):
            _write_network(file.create_group(f"fitting/{t}"), network)
        seal(file)


def _read(file, version):
    scalars = json.loads(file.attrs["json"])
    embeddings = []
    for k in range(len(file["embedding"])):
        group = file[f"embedding/{k}"]
        network, from_file = _read_network(group), bool(group.attrs["table_from_file"])
        table = _read_table(group["table"]) if "table" in group and (version > 1 or from_file) else None
        bases = tuple(
            LowRankBasis(
                precision, float(g.attrs["split"]), _read_table(g), g["expansion"][()], float(g.attrs["error"]),
                bool(g.attrs["everywhere"]),
            )
            for precision, g in group.get("low_rank", {}).items()
            if version > 1
        )  # fmt: skip
        embeddings.append(Embedding(network, table, from_file, bases))
    d = scalars["descriptor"]
    d["sel"] = tuple(d["sel"])
    descriptor = SmoothDescriptor(
        **d,
        **{name: file[f"descriptor/{name}"][()] for name in _descriptor_arrays},
        embeddings=tuple(
            tuple(None if k < 0 else embeddings[k] for k in row) for row in file["embedding_of"][()].tolist()
        ),
    )
    default = scalars["default_fparam"]
    fitting = EnergyFitting(
        networks=tuple(_read_network(file[f"fitting/{t}"]) for t in range(len(scalars["type_map"]))),
        default_fparam=None if default is None else np.array(default),
        silent_types=frozenset(scalars["silent_types"]),
        **{name: file[f"fitting/{name}"][()] for name in _fitting_arrays},
    )
    source = scalars["source"]
    source["warnings"] = tuple(source["warnings"])
    return DeepPotentialModel(
        tuple(scalars["type_map"]), descriptor, fitting, scalars["precision"], ModelSource(**source)
    )


def read(path, data=None):
    """The model in a ``.dptab`` file.  Raises ModelError if it is damaged or of a later version.

    data : the file's bytes, if they have been read.  ``source.digest`` is that of the model of which the tables
    were made.
    """
    try:
        with h5py.File(path if data is None else io.BytesIO(data), "r") as file:
            version = int(file.attrs[FORMAT_ATTRIBUTE])
            if version > FORMAT_VERSION:
                raise ModelError(
                    f"{path}: table format {version} is newer than this dpmd reads ({FORMAT_VERSION}); "
                    "update dpmd or make the table again with 'dpmd compress'"
                )
            check_seal(file)
            model = _read(file, version)
            made_from = f"{FORMAT_NAME} of {model.source.path}: {model.source.format}"
            return replace(model, source=replace(model.source, path=str(path), format=made_from))
    except ModelError:
        raise
    except Exception as error:  # h5py raises many kinds for a damaged file
        raise ModelError(
            f"{path}: damaged table file ({error}); make it again with 'dpmd compress MODEL -o {path}'"
        ) from error
