"""The ``se_e2_a`` descriptor (DeepPot-SE) in files of the three backends.

``from_graph`` reads TensorFlow graphs; ``from_tree`` reads the backend-independent tree, which
also PyTorch archives are translated to.
"""

import re

import numpy as np

from ..errors import ModelError
from ..parameters import Embedding, PairRule, SmoothDescriptor
from . import building

KIND = "se_e2_a"

# --------------------------------------------------------------------- backend-independent tree


def from_tree(node, n_types, removed_pairs=frozenset()):
    """:class:`SmoothDescriptor` from a descriptor node of the backend-independent tree.

    removed_pairs : ordered pairs of types that the model takes off the neighbour list
        (``pair_exclude_types``).
    """
    _refuse_variants(node)
    rcut, rcut_smth = building.cutoffs(node.get("rcut"), node.get("rcut_smth"))
    sel = building.selection(node.get("sel"), n_types)
    variables = node["@variables"]
    mean, radial_std, angular_std = building.slot_statistics(
        variables.get("davg"), variables.get("dstd"), n_types, sum(sel)
    )
    excluded = building.pairs_of_types(node.get("exclude_types") or [], n_types, "exclude_types")
    rules = building.pair_rules(sel, excluded, PairRule.MASKED, removed_pairs)
    one_side, embeddings = _embeddings_of_tree(node, n_types, rules, mean)
    axis_neuron = building.integer(node.get("axis_neuron"), "axis_neuron", 1)
    building.check_embeddings(embeddings, rules, axis_neuron)
    protection = building.number(node.get("env_protection") or 0.0, "env_protection")
    if protection < 0:
        raise ModelError(f"env_protection is {protection:g}, expected zero or a positive distance")
    return SmoothDescriptor(
        rcut=rcut,
        rcut_smth=rcut_smth,
        switch_start=rcut_smth,
        switch_end=rcut,
        switch_width=rcut - rcut_smth,
        sel=sel,
        axis_neuron=axis_neuron,
        neighbor_count=sum(sel),
        radial_mean=mean,
        radial_std=radial_std,
        angular_std=angular_std,
        embeddings=embeddings,
        pair_rules=rules,
        type_one_side=one_side,
        protection=protection,
        shared_selection=True,
    )


def _refuse_variants(node):
    """Refuse variants of the descriptor that compute something else."""
    if node.get("spin") is not None:
        raise building.unsupported("a descriptor with spin")
    if (node.get("env_mat") or {}).get("use_exp_switch"):
        raise building.unsupported("the exponential switching function")
    if "@variables" not in node:
        raise ModelError("the descriptor has no statistics (davg, dstd)")


def _embeddings_of_tree(node, n_types, rules, mean):
    """``(one_side, embeddings[centre][neighbour])``; sets rules to SKIPPED where nothing contributes.

    Networks and tables are stored at index ``neighbour`` or ``centre + T * neighbour``.
    """
    collection = node.get("embeddings")
    if not isinstance(collection, dict):
        raise ModelError("the descriptor has no embedding networks")
    dimensions = building.integer(collection.get("ndim"), "ndim of the embedding networks", 0, 2)
    if dimensions == 0:
        raise building.unsupported("one embedding network for all types")
    one_side = dimensions == 1
    if bool(node.get("type_one_side", one_side)) != one_side:
        raise ModelError(f"type_one_side is {not one_side}, but there are {dimensions} indices to embedding networks")
    networks = _items(collection.get("networks"), n_types**dimensions, "embedding networks")
    tables = _tables_of_tree(node, len(networks))
    parts = enumerate(zip(networks, tables, strict=True))
    found = [_embedding_of_tree(net, table, f"embedding network {k}") for k, (net, table) in parts]
    rows = []
    for centre in range(n_types):
        row = [found[neighbor if one_side else centre + n_types * neighbor] for neighbor in range(n_types)]
        for neighbor in range(n_types):
            # an excluded pair without network adds nothing if empty slots are zero
            if row[neighbor] is None and rules[centre, neighbor] != PairRule.INCLUDED and mean[centre] == 0:
                rules[centre, neighbor] = PairRule.SKIPPED
            if rules[centre, neighbor] == PairRule.SKIPPED:
                row[neighbor] = None
        rows.append(tuple(row))
    return one_side, tuple(rows)


def _items(value, length, name):
    if not isinstance(value, (list, tuple)) or len(value) != length:
        found = len(value) if isinstance(value, (list, tuple)) else "no"
        raise ModelError(f"there are {found} {name}, expected {length}")
    return value


def _tables_of_tree(node, length):
    """``(range, coefficients)`` of each network of a compressed descriptor, None where there is no table."""
    compress = node.get("compress")
    if not compress:
        return [None] * length
    variables = compress.get("@variables") or {}
    ranges = _items(variables.get("compress_info"), length, "table ranges")
    tables = _items(variables.get("compress_data"), length, "tables")
    return [None if t is None or np.size(t) == 0 else (r, t) for r, t in zip(ranges, tables, strict=True)]


def _embedding_of_tree(net, table, name):
    network = None if net is None else building.network(layers_of_tree(net, name), name, n_in=1)
    if table is not None:
        table = building.embedding_table(*table, f"table of {name}")
        if network is not None and network.n_out != table.n_out:
            raise ModelError(f"{name} has {network.n_out} outputs, but its table has {table.n_out}")
    if network is None and table is None:
        return None
    return Embedding(network, table, table_from_file=table is not None)


def layers_of_tree(net, name):
    """The layers of a network node; its ``resnet`` flags and the widths decide on skip connections."""
    if not isinstance(net, dict) or not isinstance(net.get("layers"), (list, tuple)):
        raise ModelError(f"{name} has no layers")
    layers = []
    for number, layer in enumerate(net["layers"], 1):
        missing = {"@variables", "activation_function", "resnet"} - set(layer)
        if missing:
            raise ModelError(f"{name}, layer {number} does not tell its {sorted(missing)[0]}")
        variables = layer["@variables"]
        layers.append(
            building.dense_layer(
                variables.get("w"),
                variables.get("b"),
                variables.get("idt"),
                layer["activation_function"],
                building.skip_by_width if layer["resnet"] else "none",
                f"{name}, layer {number}",
            )
        )
    return layers


# --------------------------------------------------------------------- TensorFlow graph

_TABLE_OPS = ("TabulateFusionSeA", "TabulateFusion")


def from_graph(graph, script, n_types, n_descriptor):
    """:class:`SmoothDescriptor` from a TensorFlow graph.

    script : the ``descriptor`` section of the training input, {} in files without it;
    n_descriptor : width of the descriptor, known from the fitting networks.
    """
    environment = graph.of_kind("ProdEnvMatA", "DescrptSeA")
    if len(environment) != 1:
        raise ModelError(f"the graph computes {len(environment)} environment matrices, expected one")
    environment = environment[0]
    # the graph holds single-precision cutoffs and subtracts them in single precision
    start, end = np.float32(environment.floating("rcut_r_smth")), np.float32(environment.floating("rcut_r"))
    rcut, rcut_smth = building.cutoffs(_stated(script, "rcut", end), _stated(script, "rcut_smth", start))
    building.cutoffs(end, start)
    sel = building.selection(environment.integers("sel_a"), n_types, "sel_a")
    mean, radial_std, angular_std = building.slot_statistics(
        graph.constant("descrpt_attr/t_avg"), graph.constant("descrpt_attr/t_std"), n_types, sum(sel)
    )
    if script.get("env_protection"):
        raise building.unsupported("env_protection in a TensorFlow graph")
    one_side, found = _embeddings_of_graph(graph, script, n_types, sel)
    excluded = _excluded_pairs(graph, script, n_types, sel, found)
    rules = building.pair_rules(sel, excluded, PairRule.SKIPPED)
    embeddings = tuple(
        tuple(found.get((i, j)) if rules[i, j] != PairRule.SKIPPED else None for j in range(n_types))
        for i in range(n_types)
    )
    axis_neuron = _axis_neuron(script, n_descriptor, embeddings)
    building.check_embeddings(embeddings, rules, axis_neuron)
    return SmoothDescriptor(
        rcut=rcut,
        rcut_smth=rcut_smth,
        switch_start=float(start),
        switch_end=float(end),
        switch_width=float(end - start),
        sel=sel,
        axis_neuron=axis_neuron,
        neighbor_count=_neighbor_count(graph, sel, n_types),
        radial_mean=mean,
        radial_std=radial_std,
        angular_std=angular_std,
        embeddings=embeddings,
        pair_rules=rules,
        type_one_side=one_side,
    )


def _stated(script, key, single):
    """The distance that the training input states, if it is the one that the graph holds."""
    stated = script.get(key)
    if isinstance(stated, (int, float)) and np.float32(stated) == single:
        return float(stated)
    return float(single)


def _neighbor_count(graph, sel, n_types):
    """The divisor: the slots at training time, which may differ from today's ``sel``."""
    original = graph.constant("descrpt_attr/original_sel")
    if original is None:
        return sum(sel)
    return sum(building.selection(original, n_types, "original_sel"))


def _axis_neuron(script, n_descriptor, embeddings):
    width = next((e.n_out for row in embeddings for e in row if e is not None), None)
    if width is None:
        raise ModelError("all pairs of types are excluded, or their embeddings are missing")
    axis_neuron, rest = divmod(n_descriptor, width)
    stated = script.get("axis_neuron", axis_neuron)
    if rest or axis_neuron < 1 or stated != axis_neuron:
        raise ModelError(
            f"fitting networks expect a descriptor of {n_descriptor} numbers, which embeddings of width {width} "
            f"and axis_neuron {stated!r} do not give"
        )
    return axis_neuron


def _excluded_pairs(graph, script, n_types, sel, found):
    if "exclude_types" in script:
        return building.pairs_of_types(script["exclude_types"] or [], n_types, "exclude_types")
    if graph.constant("train_attr/training_script") is not None:
        return set()
    # files without the training input: excluded pairs are those without network
    slots = [j for j in range(n_types) if sel[j]]
    return {(i, j) for i in range(n_types) for j in slots if (i, j) not in found}


def _embeddings_of_graph(graph, script, n_types, sel):
    """``(one_side, {(centre, neighbour): embedding})``; one-sided embeddings are shared by all centres."""
    one_side = bool(graph.matching(r"filter_type_all/"))
    if one_side == bool(graph.matching(r"filter_type_\d+/")):
        raise ModelError("the embedding networks of the graph are neither one-sided nor two-sided")
    tables = graph.of_kind(*_TABLE_OPS)
    read = _tables_of_graph(graph, tables, sel) if tables else _networks_of_graph(graph, script, n_types, one_side)
    if not one_side:
        return False, {(int(scope), j): embedding for (scope, j), embedding in read.items() if int(scope) < n_types}
    return True, {(i, j): embedding for (_, j), embedding in read.items() for i in range(n_types)}


def _networks_of_graph(graph, script, n_types, one_side):
    """``{(scope, neighbour): Embedding}`` with scope ``"all"`` or the centre type as text."""
    found = {}
    for scope in ["all"] if one_side else [str(i) for i in range(n_types)]:
        for neighbor in range(n_types):
            layers = []
            # nodes are numbered from one
            while f"filter_type_{scope}/matrix_{len(layers) + 1}_{neighbor}" in graph.nodes:
                layers.append(_embedding_layer(graph, script, f"filter_type_{scope}", len(layers) + 1, neighbor))
            if layers:
                name = f"the embedding network of {scope} and {neighbor}"
                found[scope, neighbor] = Embedding(building.network(layers, name, n_in=1))
    return found


def _embedding_layer(graph, script, scope, number, neighbor):
    def part(what):
        return f"{scope}/{what}_{number}_{neighbor}"

    weight = building.array(graph.constant(part("matrix")), part("matrix"), (-1, -1))
    skip = building.skip_by_width(*weight.shape)
    # "idt" exists in every layer of a resnet_dt network, but acts only beside a skip connection
    timestep = graph.constant(part("idt")) if skip != "none" else None
    bias = graph.constant(part("bias"))
    activation = activation_of(graph, script, part("bias" if bias is not None else "matrix"))
    return building.dense_layer(weight, bias, timestep, activation, skip, part("matrix"))


def _tables_of_graph(graph, operations, sel):
    """``{(scope, neighbour): Embedding}`` of a compressed graph.

    Operations are numbered over the pairs that exist, so the number says little; the slice of
    the environment matrix that an operation works on tells its neighbour type.
    """
    starts = {4 * sum(sel[:j]): j for j in range(len(sel)) if sel[j]}
    found = {}
    for node in operations:
        scope = re.match(r"filter_type_(all|\d+)/", node.name)
        if not scope or len(node.inputs) < 4:
            raise ModelError(f"table {node.name[:100]!r} is in an unexpected place of the graph")
        neighbor = starts.get(_first_column(graph, node.inputs[3]))
        if neighbor is None or (scope[1], neighbor) in found:
            raise ModelError(f"cannot tell the neighbour type of table {node.name}")
        table = building.embedding_table(
            graph.value_of(node.inputs[1]), graph.value_of(node.inputs[0]), f"table {node.name}"
        )
        found[scope[1], neighbor] = Embedding(None, table, table_from_file=True)
    return found


def _first_column(graph, name):
    """First column of the environment matrix in the slice that feeds node ``name``; None if unclear."""
    node = graph.upstream(name, "Slice", ("Reshape", "Identity", "Cast"))
    if node is None or len(node.inputs) < 2:
        return None
    begin = graph.value_of(node.inputs[1])
    return int(begin[-1]) if begin is not None and np.shape(begin) == (2,) else None


# --------------------------------------------------------------------- activation functions of graphs

_ACTIVATION_OPS = {
    "Tanh": "tanh",
    "Relu": "relu",
    "Relu6": "relu6",
    "Softplus": "softplus",
    "Sigmoid": "sigmoid",
    "Gelu": "gelu",
    "GeluCustom": "gelu",
}
_BEFORE_ACTIVATION = {"MatMul", "BiasAdd", "Add", "AddV2", "Reshape"}


def activation_of(graph, script, parameter):
    """Name of the activation after the layer that holds constant ``parameter`` (its bias).

    The training input names it; files without one show it by the operation that follows.
    """
    if "activation_function" in script:
        return script["activation_function"]
    names = [parameter]
    for _ in range(4):
        # a network that is evaluated twice has two users everywhere
        users = [user for name in names for user in graph.users(name)]
        kinds = {user.op for user in users}
        if len(kinds) == 1 and kinds <= set(_ACTIVATION_OPS):
            return _ACTIVATION_OPS[kinds.pop()]
        if not kinds or not kinds <= _BEFORE_ACTIVATION:
            break
        names = [user.name for user in users]
    raise ModelError(f"cannot tell the activation function after {parameter}: the file holds no training input")
