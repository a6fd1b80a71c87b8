"""Frozen TensorFlow graphs (``.pb``), plain and compressed.

Weights are constants under the names of their variables.  The training input, stored as text in
files since version 2.0, tells what the constants do not: activation functions, excluded types,
vacuum energies.  Rules of this origin: cutoffs in single precision; fitting networks skip from
the second layer on and never double; excluded pairs add nothing, not even for empty slots; the
output is multiplied by ``out_std``.
"""

import json

import numpy as np

from ..errors import ModelError
from ..parameters import DeepPotentialModel, EnergyFitting, ModelSource
from . import building, se_e2_a
from .graphdef import Graph

FORMAT = "TensorFlow graph (.pb)"

#: readers of descriptors: kind -> function(graph, script, n_types, n_descriptor)
DESCRIPTORS = {se_e2_a.KIND: se_e2_a.from_graph}


def read(path, data):
    """:class:`DeepPotentialModel` from the bytes of a graph."""
    graph = Graph(data)
    if not graph.matching(r"(descrpt_attr|fitting_attr|model_attr|t_ntypes|t_rcut)"):
        raise ModelError("not a Deep Potential model: the graph has no descriptor attributes (descrpt_attr)")
    script = _training_script(graph)
    model_script = _section(script, "model")
    descriptor_script, fitting_script = (_section(model_script, name) for name in ("descriptor", "fitting_net"))
    _refuse_composites(graph, model_script)
    kind = _descriptor_kind(graph, descriptor_script)
    if kind not in DESCRIPTORS:
        raise building.unsupported(f"descriptor {kind!r}")
    _refuse_other_fittings(graph, model_script, fitting_script)
    n_types = _number_of_types(graph)
    type_map, warnings = _type_map(graph, n_types)
    fitting, n_descriptor = _fitting(graph, fitting_script, n_types)
    descriptor = DESCRIPTORS[kind](graph, descriptor_script, n_types, n_descriptor)
    return DeepPotentialModel(
        type_map=type_map,
        descriptor=descriptor,
        fitting=fitting,
        precision=_precision(graph),
        source=ModelSource(
            path=path,
            format=FORMAT,
            backend="TensorFlow",
            version=graph.text("model_attr/model_version") or "",
            min_neighbor_distance=_min_neighbor_distance(graph),
            warnings=(*warnings, *_warnings(graph, model_script)),
        ),
    )


# --------------------------------------------------------------------- what kind of model


def _training_script(graph):
    text = graph.text("train_attr/training_script")
    if text is None:
        return {}
    try:
        script = json.loads(text)
    except ValueError as error:
        raise ModelError(f"the training input stored in the file is not valid JSON: {error}") from error
    if not isinstance(script, dict):
        raise ModelError("the training input stored in the file is not a JSON object")
    return script


def _section(script, name):
    found = script.get(name) or {}
    if not isinstance(found, dict):
        raise ModelError(f"section {name!r} of the training input is not a JSON object")
    return found


def _descriptor_kind(graph, script):
    """The descriptor's name, from the operations and the training input."""
    if graph.matching(r"descrpt_attr_\d+/") or len(graph.of_kind("ProdEnvMatA", "ProdEnvMatR", "ProdEnvMatAMix")) > 1:
        shown = "hybrid"
    elif graph.of_kind("ProdEnvMatR", "DescrptSeR"):
        shown = "se_e2_r"
    elif graph.of_kind("ProdEnvMatAMix"):
        shown = "se_atten"
    elif graph.of_kind("DescrptNorot", "Descrpt"):
        shown = "DescrptNorot (DeePMD-kit 0.x)"
    elif graph.matching(r"filter_type_all/(matrix_\d+_\d+_\d+$|TabulateFusionSeT)"):
        shown = "se_e3"
    elif graph.of_kind("ProdEnvMatA", "DescrptSeA"):
        shown = "se_e2_a"
    else:
        shown = "of an unknown kind"
    stated = script.get("type")
    # the training input names kinds more finely, e.g. se_a_ef and se_a_mask
    return shown if stated is None else building.canonical_descriptor(stated)


# Patterns of node names, with what they show: of models made of several parts ...
_COMPOSITE_NODES = (
    (r"modifier_attr/|dipole_charge/", "a long-range (DPLR) model with a dipole-charge modifier"),
    (r"spin_attr/", "a spin model (DeepSPIN)"),
    (r"(model_attr/)*t_tab_(info|data)", "a model with a short-range table (use_srtab, ZBL)"),
    (r"(descrpt_attr|fitting_attr|model_attr)\w*_model\d+/", "a linear combination of models"),
    (r"(descrpt_attr|fitting_attr|model_attr)\w*_(qm|qmmm)/", "a pairwise DPRc model"),
)
# ... and of other ways from the descriptor to the energy.
_OTHER_NODES = (
    (r"(type_embed_net/|t_typeebd)", "a model with type embedding"),
    (r"attention_layer", "a model with attention"),
    (r"share_\w+/", "layer sharing between fitting networks (layer_name)"),
    (r"fitting_attr_\w+/", "a multitask model"),
    (r"layer_\d+/matrix", "one fitting network for all types"),
)
_COMPOSITE_SECTIONS = {
    "spin": "a spin model (DeepSPIN)",
    "modifier": "a model with a modifier (DPLR)",
    "use_srtab": "a model with a short-range table (use_srtab, ZBL)",
}


def _refuse_composites(graph, model_script):
    for pattern, what in _COMPOSITE_NODES:
        if graph.matching(pattern):
            raise building.unsupported(what)
    for section, what in _COMPOSITE_SECTIONS.items():
        if model_script.get(section):
            raise building.unsupported(what)
    if model_script.get("type") not in (None, "standard"):
        raise building.unsupported(f"a model of type {str(model_script['type'])[:40]!r}")


def _refuse_other_fittings(graph, model_script, fitting_script):
    for fitting in (graph.text("model_attr/model_type"), fitting_script.get("type")):
        if fitting not in (None, "", "ener"):
            raise building.unsupported(f"fitting {str(fitting)[:40]!r}")
    for pattern, what in _OTHER_NODES:
        if graph.matching(pattern):
            raise building.unsupported(what)
    if model_script.get("type_embedding"):
        raise building.unsupported("a model with type embedding")
    if fitting_script.get("tot_ener_zero"):
        raise building.unsupported("a total energy shifted to zero (tot_ener_zero)")
    if fitting_script.get("use_aparam_as_mask"):
        raise building.unsupported("atomic parameters used as a mask (use_aparam_as_mask)")
    if fitting_script.get("dim_case_embd"):
        raise building.unsupported("a case embedding in a TensorFlow graph")


def _warnings(graph, model_script):
    """What the training input asks for and TensorFlow graphs do not do."""
    for key in ("pair_exclude_types", "atom_exclude_types"):
        if model_script.get(key):
            yield f"The training input sets {key}, which TensorFlow models ignore, and so does dpmd."
    # a compressed file's training input is that of the compression, so the graph itself is asked
    if computed := graph.reduced_precision():
        yield (
            f"Trained and run by TensorFlow with products in {computed} (mixed_precision); dpmd takes the same "
            "float32 weights at its own precision, so its numbers are closer to the exact network than "
            "DeePMD-kit's, and differ from them by about 5e-4 of the rms force."
        )


# --------------------------------------------------------------------- attributes


def _number_of_types(graph):
    value = graph.constant("descrpt_attr/ntypes")
    if value is not None:
        return building.integer(value, "descrpt_attr/ntypes", 1, 10_000)
    mean = graph.constant("descrpt_attr/t_avg")
    if mean is None or not np.ndim(mean):
        raise ModelError("the graph does not tell its number of types (descrpt_attr/ntypes)")
    return building.integer(len(mean), "the number of types", 1, 10_000)


def _type_map(graph, n_types):
    """``(names, warnings)``; files of the first versions have no names."""
    names = (graph.text("model_attr/tmap") or "").split()
    if not names:
        return tuple(f"type_{t}" for t in range(n_types)), ["The file does not name its atom types."]
    if len(names) != n_types:
        raise ModelError(f"the type map names {len(names)} types, but the descriptor has {n_types}")
    return building.type_names(names), []


def _min_neighbor_distance(graph):
    return building.positive_or_none(graph.constant("train_attr/min_nbor_dist"), "min_nbor_dist")


def _precision(graph):
    """Precision of the weights."""
    names = graph.matching(r"(filter_type_\w+/matrix_|layer_\d+_type_\d+/matrix$|final_layer_type_\d+/matrix$)")
    return building.canonical_precision(*(graph.constant(n).dtype.name for n in names if graph.nodes[n].op == "Const"))


# --------------------------------------------------------------------- fitting networks


def _fitting(graph, script, n_types):
    """``(EnergyFitting, width of the descriptor)``."""
    n_fparam, n_aparam = (_dimension(graph, f"fitting_attr/{name}") for name in ("dfparam", "daparam"))
    networks = [_fitting_network(graph, script, t) for t in range(n_types)]
    widths = {net.n_in for net in networks}
    if len(widths) != 1:
        raise ModelError(f"fitting networks differ in their number of inputs: {sorted(widths)}")
    bias = _per_type(graph, ["fitting_attr/t_bias_atom_e"], n_types, 0.0)
    out_bias = _per_type(graph, _in_model_scope("t_out_bias"), n_types, 0.0)
    out_std = _output_scale(graph, n_types)
    if not np.all(out_std > 0):
        raise ModelError("out_std holds values that are not positive")
    fitting = EnergyFitting(
        networks=tuple(
            net if factor == 1 else building.scaled_output(net, factor)
            for net, factor in zip(networks, out_std, strict=True)
        ),
        energy_bias=bias * out_std + out_bias,
        subtract_vacuum=_vacuum_flags(graph, script, n_types),
        **_parameter_statistics(graph, n_fparam, n_aparam),
        default_fparam=_default_fparam(script, n_fparam),
    )
    return fitting, widths.pop() - n_fparam - n_aparam


def _dimension(graph, name):
    value = graph.constant(name)
    return 0 if value is None else building.integer(value, name, 0, 10_000)


def _in_model_scope(name):
    # since version 3 the scope is doubled
    return [f"model_attr/{name}", f"model_attr/model_attr/{name}"]


def _per_type(graph, names, n_types, default):
    for name in names:
        value = graph.constant(name)
        if value is not None:
            return building.vector(value, name, n_types)
    return np.full(n_types, default)


def _output_scale(graph, n_types):
    """``out_std`` (T,), or ones where the graph holds the constant without using it."""
    used = [name for name in _in_model_scope("t_out_std") if graph.users(name)]
    return _per_type(graph, used, n_types, 1.0)


def _fitting_network(graph, script, centre):
    layers = []
    while f"layer_{len(layers)}_type_{centre}/matrix" in graph.nodes:
        layers.append(_hidden_layer(graph, script, f"layer_{len(layers)}_type_{centre}", first=not layers))
    name = f"final_layer_type_{centre}"
    layers.append(
        building.dense_layer(
            graph.constant(f"{name}/matrix"), graph.constant(f"{name}/bias"), None, "linear", "none", name
        )
    )
    return building.network(layers, f"the fitting network of type {centre}", n_out=1)


def _hidden_layer(graph, script, name, first):
    weight = building.array(graph.constant(f"{name}/matrix"), f"{name}/matrix", (-1, -1))
    skip = "none" if first else building.skip_by_width(*weight.shape, doubling=False)
    timestep = graph.constant(f"{name}/idt")
    if timestep is not None and skip == "none":
        raise ModelError(f"{name} has a time step (idt), but no skip connection")
    activation = se_e2_a.activation_of(graph, script, f"{name}/bias")
    return building.dense_layer(weight, graph.constant(f"{name}/bias"), timestep, activation, skip, name)


def _vacuum_flags(graph, script, n_types):
    """Types from whose energy the network's value at a descriptor of zero is subtracted.

    Types beyond the end of ``atom_ener`` are not subtracted.  Without the training input, a
    network that the graph evaluates twice shows the subtraction.
    """
    if "atom_ener" in script:
        energies = list(script["atom_ener"] or [])[:n_types]
        flags = [e is not None for e in energies]
        return np.array(flags + [False] * (n_types - len(flags)))
    return np.array([
        sum(user.op == "MatMul" for user in graph.users(f"final_layer_type_{t}/matrix")) > 1 for t in range(n_types)
    ])  # fmt: skip


def _parameter_statistics(graph, n_fparam, n_aparam):
    found = {}
    for name, length in (("fparam", n_fparam), ("aparam", n_aparam)):
        for ours, theirs in (("mean", "avg"), ("inverse_std", "istd")):
            constant = f"fitting_attr/t_{name}_{theirs}"
            value = graph.constant(constant) if length else np.zeros(0)
            found[f"{name}_{ours}"] = building.vector(value, constant, length)
    return found


def _default_fparam(script, n_fparam):
    value = script.get("default_fparam")
    return None if value is None or not n_fparam else building.vector(value, "default_fparam", n_fparam)
