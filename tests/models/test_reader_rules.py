"""Rules that depend on a file's origin, on models with changed contents."""

import numpy as np
import pytest

from dpmd.models import PairRule, load
from dpmd.models.networks import evaluate


def energy_of_zero_descriptor(model, centre):
    """Network output and bias for a descriptor of zeros."""
    net = model.fitting.networks[centre]
    return evaluate(net, np.zeros((1, net.n_in)))[0, 0] + model.fitting.energy_bias[centre]


def set_array(container, key, change):
    """Replace an array by ``change(copy of it)``."""
    container[key] = change(np.array(container[key]))


# --------------------------------------------------------------------- backend-independent tree


def test_atom_exclude_types(edited_dp):
    model = load(edited_dp("water_md0.dp", lambda tree: tree["model"].update(atom_exclude_types=[1])))
    assert model.fitting.silent_types == {1}


def test_exclude_types_of_the_fitting(edited_dp, find_model):
    plain = load(find_model("water_md0.dp"))

    def edit(tree, bias):
        tree["model"]["fitting"]["exclude_types"] = [0]
        tree["model"]["@variables"]["out_bias"] = np.array([[[bias], [2.0]]])

    model = load(edited_dp("water_md0.dp", lambda tree: edit(tree, 0.0)))
    assert model.fitting.silent_types == {0}
    model = load(edited_dp("water_md0.dp", lambda tree: edit(tree, 3.0)))
    # the model's own bias is added after the fitting has been silenced
    assert model.fitting.silent_types == frozenset()
    assert energy_of_zero_descriptor(model, 0) == 3.0
    assert energy_of_zero_descriptor(model, 1) == pytest.approx(energy_of_zero_descriptor(plain, 1) + 2.0)


def test_pair_exclude_types(edited_dp):
    model = load(edited_dp("water_md0.dp", lambda tree: tree["model"].update(pair_exclude_types=[[0, 1]])))
    assert model.descriptor.pair_rules.tolist() == [
        [PairRule.INCLUDED, PairRule.REMOVED],
        [PairRule.REMOVED, PairRule.INCLUDED],
    ]
    assert model.descriptor.embeddings[0][1] is not None


def test_excluded_pair_without_network(edited_dp):
    def edit(tree, mean, excluded):
        d = tree["model"]["descriptor"]
        d["embeddings"]["networks"][0] = None
        d["exclude_types"] = excluded
        set_array(d["@variables"], "davg", lambda a: a * mean)

    model = load(edited_dp("f_onesideF.dp", lambda tree: edit(tree, 0.0, [[0, 0]])))
    assert model.descriptor.pair_rules[0, 0] == PairRule.SKIPPED
    assert model.descriptor.embeddings[0][0] is None
    # empty slots contribute where the mean is not zero, so that the network is needed there
    for mean, excluded in ((1.0, [[0, 0]]), (0.0, [])):
        with pytest.raises(ValueError, match="embedding of neighbour type 0 around type 0 is missing"):
            load(edited_dp("f_onesideF.dp", lambda tree, m=mean, e=excluded: edit(tree, m, e)))


def test_two_sided_index(edited_dp):
    def edit(tree):
        networks = tree["model"]["descriptor"]["embeddings"]["networks"]
        for k, net in enumerate(networks):
            net["layers"][0]["@variables"]["b"][0] = k

    embeddings = load(edited_dp("f_onesideF.dp", edit)).descriptor.embeddings
    first = [[embeddings[i][j].network.layers[0].bias[0] for j in range(2)] for i in range(2)]
    assert first == [[0, 2], [1, 3]]


def test_type_without_slots(edited_dp):
    def edit(tree):
        d = tree["model"]["descriptor"]
        d["sel"] = [46, 0]
        for key in ("davg", "dstd"):
            set_array(d["@variables"], key, lambda a: a[:, :46])

    d = load(edited_dp("water_md0.dp", edit)).descriptor
    assert d.pair_rules.tolist() == [[PairRule.INCLUDED, PairRule.SKIPPED]] * 2
    assert [row[1] for row in d.embeddings] == [None, None]
    assert d.neighbor_count == 46


def test_out_std_is_ignored_with_a_warning(edited_dp, edited_pth, find_model):
    plain = load(find_model("water_md0.dp"))

    def edit(tree):
        tree["model"]["@variables"]["out_std"] = np.array([[[0.643], [40.5]]])

    model = load(edited_dp("water_md0.dp", edit))
    assert len(model.source.warnings) == 1
    assert "0.643, 40.5" in model.source.warnings[0]
    np.testing.assert_array_equal(model.fitting.energy_bias, plain.fitting.energy_bias)
    np.testing.assert_array_equal(
        model.fitting.networks[1].layers[-1].weight, plain.fitting.networks[1].layers[-1].weight
    )
    ones = np.ones(2).tobytes()

    def edit_archive(members):
        # the storage that holds two ones is out_std
        (member,) = [name for name, data in members.items() if data == ones and name.startswith("data/")]
        members[member] = np.array([1.0, 2.0]).tobytes()

    assert "out_std = 1, 2" in load(edited_pth("water_md0.pth", edit_archive)).source.warnings[0]


def test_out_bias_and_fitting_bias_are_added(edited_dp, find_model):
    plain = load(find_model("water_md0.dp"))
    tree_bias = np.array([[[1.5], [-2.5]]])
    model = load(edited_dp("water_md0.dp", lambda t: t["model"]["@variables"].update(out_bias=tree_bias)))
    np.testing.assert_allclose(model.fitting.energy_bias, plain.fitting.energy_bias + np.array([1.5, -2.5]))


def test_resnet_flag_decides(edited_dp):
    def edit(tree):
        layers = tree["model"]["descriptor"]["embeddings"]["networks"][0]["layers"]
        layers[1]["resnet"] = False

    layers = load(edited_dp("water_md0.dp", edit)).descriptor.embeddings[0][0].network.layers
    assert [layer.skip for layer in layers] == ["none", "none", "double"]


@pytest.mark.parametrize(("width", "skip"), [(1, "add"), (2, "double"), (3, "none")])
def test_first_embedding_layer_may_skip(edited_dp, width, skip):
    def edit(tree):
        for net in tree["model"]["descriptor"]["embeddings"]["networks"]:
            first, second = net["layers"][:2]
            set_array(first["@variables"], "w", lambda a: a[:, :width])
            set_array(first["@variables"], "b", lambda a: a[:width])
            set_array(second["@variables"], "w", lambda a: a[:width])

    layers = load(edited_dp("water_md0.dp", edit)).descriptor.embeddings[0][0].network.layers
    assert layers[0].skip == skip


def test_fitting_layers_double_and_skip_from_the_first(edited_dp):
    def edit(tree):
        # 96 inputs: 96 outputs skip, 192 double
        for net in tree["model"]["fitting"]["nets"]["networks"]:
            shapes = [(96, 96), (96, 192), (192, 24), (24, 1)]
            for layer, shape in zip(net["layers"], shapes, strict=True):
                layer["@variables"].update(w=np.ones(shape), b=None, idt=None)

    layers = load(edited_dp("water_md0.dp", edit)).fitting.networks[0].layers
    assert [layer.skip for layer in layers] == ["add", "double", "none", "none"]
    # biases that are missing are zero
    assert not layers[0].bias.any()
    assert layers[1].bias.shape == (192,)


@pytest.mark.parametrize(
    ("energies", "flags"),
    [([], [False, False]), ([None, None], [False, False]), ([None], [False, False]), ([-93.0], [True, True]),
     ([None, -187.0], [False, True]), ([-93.0, None], [True, False])],
)  # fmt: skip
def test_vacuum_energies_of_the_tree(edited_dp, energies, flags):
    model = load(edited_dp("water_md0.dp", lambda t: t["model"]["fitting"].update(atom_ener=energies)))
    assert model.fitting.subtract_vacuum.tolist() == flags


def test_case_embedding_is_folded(edited_dp, find_model):
    plain = load(find_model("water_md0.dp"))
    extra = np.random.default_rng(0).normal(size=(3, 24))
    case = np.array([0.0, 1.0, 0.5])

    def edit(tree):
        fitting = tree["model"]["fitting"]
        fitting["dim_case_embd"] = 3
        fitting["@variables"]["case_embd"] = case
        for net in fitting["nets"]["networks"]:
            set_array(net["layers"][0]["@variables"], "w", lambda a: np.concatenate([a, extra]))

    first = load(edited_dp("water_md0.dp", edit)).fitting.networks[0].layers[0]
    expected = plain.fitting.networks[0].layers[0]
    np.testing.assert_array_equal(first.weight, expected.weight)
    np.testing.assert_allclose(first.bias, expected.bias + case @ extra)


def test_default_frame_parameters(edited_dp):
    model = load(edited_dp("f_faparam.dp", lambda t: t["model"]["fitting"].update(default_fparam=[0.1, 0.2])))
    assert model.fitting.default_fparam.tolist() == [0.1, 0.2]
    model = load(edited_dp("water_md0.dp", lambda t: t["model"]["fitting"].update(default_fparam=[0.1, 0.2])))
    assert model.fitting.default_fparam is None


def test_protection(edited_dp):
    model = load(edited_dp("water_md0.dp", lambda t: t["model"]["descriptor"].update(env_protection=0.01)))
    assert model.descriptor.protection == 0.01


def test_compressed_tree(edited_dp, find_model):
    graph = load(find_model("water_md0_c.pb")).descriptor

    def edit(tree):
        tables = [graph.embeddings[0][j].table for j in range(2)]
        tree["model"]["descriptor"]["@version"] = 3
        tree["model"]["descriptor"]["compress"] = {
            "@variables": {
                "compress_data": [t.coefficients.reshape(len(t.coefficients), -1) for t in tables],
                "compress_info": [np.array([t.lower, t.upper, t.maximum, 0.01, 0.1, -1]) for t in tables],
            }
        }

    model = load(edited_dp("water_md0.dp", edit))
    for j in range(2):
        embedding = model.descriptor.embeddings[1][j]
        np.testing.assert_array_equal(embedding.table.coefficients, graph.embeddings[1][j].table.coefficients)
        assert embedding.network is not None
    assert model.compressed


def test_double_precision_cutoffs(edited_dp):
    d = load(edited_dp("water_md0.dp", lambda t: t["model"]["descriptor"].update(rcut_smth=1.8))).descriptor
    assert (d.switch_start, d.switch_end, d.switch_width) == (1.8, 6.0, 6.0 - 1.8)


# --------------------------------------------------------------------- TensorFlow graphs


def test_single_precision_cutoffs(edited_pb):
    def edit(graph):
        graph.attribute("ProdEnvMatA", "rcut_r_smth").f = 1.8
        graph.edit_script(lambda s: s["model"]["descriptor"].update(rcut_smth=1.8))

    d = load(edited_pb("water_md0.pb", edit)).descriptor
    start, end = np.float32(1.8), np.float32(6.0)
    assert d.rcut_smth == 1.8
    assert (d.switch_start, d.switch_end, d.switch_width) == (float(start), 6.0, float(end - start))
    assert d.switch_width != 6.0 - 1.8
    assert d.switch_width != 6.0 - float(start)


def test_graph_without_training_input(edited_pb, find_model):
    """Activation functions, skip connections and vacuum energies show in the graph itself."""
    for name in ("f_relu6.pb", "f_resnetdt.pb", "f_atomener.pb", "f_exclude.pb", "f_exclude_c.pb"):
        expected = load(find_model(name))
        model = load(edited_pb(name, lambda graph: graph.remove("train_attr/training_script")))
        assert model.fitting.subtract_vacuum.tolist() == expected.fitting.subtract_vacuum.tolist()
        np.testing.assert_array_equal(model.descriptor.pair_rules, expected.descriptor.pair_rules)
        assert model.descriptor.axis_neuron == expected.descriptor.axis_neuron
        for one, other in zip(model.fitting.networks, expected.fitting.networks, strict=True):
            assert [x.activation for x in one.layers] == [x.activation for x in other.layers]
        one, other = (m.descriptor.embeddings[1][1].network for m in (model, expected))
        if other is not None:
            assert [x.activation for x in one.layers] == [x.activation for x in other.layers]
            assert [x.timestep is None for x in one.layers] == [x.timestep is None for x in other.layers]
    with pytest.raises(ValueError, match="cannot tell the activation function"):
        load(edited_pb("f_linear_tanh.pb", lambda graph: graph.remove("train_attr/training_script")))


def test_one_sided_exclusion_needs_the_training_input(edited_pb):
    def edit(graph):
        graph.edit_script(lambda s: s["model"]["descriptor"].update(exclude_types=[[1, 0]]))

    d = load(edited_pb("water_md0.pb", edit)).descriptor
    assert d.pair_rules.tolist() == [[PairRule.INCLUDED, PairRule.SKIPPED], [PairRule.SKIPPED, PairRule.INCLUDED]]
    assert d.embeddings[0][1] is None
    assert d.neighbor_count == 138


def test_output_statistics_of_graphs_are_folded(edited_pb, find_model):
    plain = load(find_model("water_md0.pb"))

    def edit(graph, scope):
        for name, value in (("t_out_bias", [1.0, 2.0]), ("t_out_std", [3.0, 0.5])):
            graph.set(f"{scope}/{name}", np.array(value).reshape(1, 2, 1))

    model = load(edited_pb("water_md0.pb", lambda graph: edit(graph, "model_attr/model_attr")))
    for t, (shift, factor) in enumerate([(1.0, 3.0), (2.0, 0.5)]):
        expected = energy_of_zero_descriptor(plain, t) * factor + shift
        assert energy_of_zero_descriptor(model, t) == pytest.approx(expected, rel=1e-14)
    assert not model.source.warnings


def test_unused_output_scale_is_ignored(edited_pb, find_model):
    """A constant that nothing in the graph uses has no effect."""

    def edit(graph):
        graph.set("model_attr/model_attr/t_out_std", np.full((1, 2, 1), 2.0))
        node = graph.node("strided_slice_31")
        node.input[0] = b"Const"

    np.testing.assert_array_equal(
        load(edited_pb("water_md0.pb", edit)).fitting.energy_bias, load(find_model("water_md0.pb")).fitting.energy_bias
    )


def test_original_sel_is_the_divisor(edited_pb):
    edited = edited_pb("water_md0.pb", lambda g: g.set("descrpt_attr/original_sel", np.array([50, 100], np.int32)))
    d = load(edited).descriptor
    assert d.neighbor_count == 150
    assert d.sel == (46, 92)
    edited = edited_pb("water_md0.pb", lambda g: g.remove("descrpt_attr/original_sel"))
    assert load(edited).descriptor.neighbor_count == 138


def test_import_prefix_is_stripped(edited_pb, find_model):
    def edit(graph):
        for node in graph.message.node:
            node.name = b"load/" + node.name
            for k, name in enumerate(node.input):
                node.input[k] = b"load/" + name

    model = load(edited_pb("water_md0_c.pb", edit))
    assert model.type_map == ("O", "H")
    assert model.descriptor.embeddings[0][1].table is not None


def test_table_section_follows_the_slice(edited_pb, find_model):
    """The order of table operations says nothing; the slice that feeds them does."""

    def edit(graph):
        one = graph.attribute("filter_type_all/Slice/begin", "value").tensor
        other = graph.attribute("filter_type_all/Slice_2/begin", "value").tensor
        one.content, other.content = other.content, one.content

    plain, swapped = load(find_model("water_md0_c.pb")), load(edited_pb("water_md0_c.pb", edit))
    for j in range(2):
        np.testing.assert_array_equal(
            plain.descriptor.embeddings[0][j].table.coefficients,
            swapped.descriptor.embeddings[0][1 - j].table.coefficients,
        )


def test_tables_of_types_without_slots(edited_pb, find_model):
    """The section of a type without slots begins where the next one does."""

    def edit(graph):
        graph.attribute("ProdEnvMatA", "sel_a").list.i[:] = [0, 138]
        graph.remove("filter_type_all/TabulateFusionSeA_1")

    descriptor = load(edited_pb("water_md0_c.pb", edit)).descriptor
    assert descriptor.embeddings[1][0] is None
    np.testing.assert_array_equal(
        descriptor.embeddings[1][1].table.coefficients,
        load(find_model("water_md0_c.pb")).descriptor.embeddings[1][0].table.coefficients,
    )


def test_repeated_values_and_shapes_of_constants(edited_pb, find_model):
    """One value stands for all, also in place of the last ones; biases may be rows."""

    def edit(graph):
        tensor = graph.attribute("descrpt_attr/t_avg", "value").tensor
        tensor.ClearField("content")
        tensor.double_val.append(0.0)
        tensor = graph.attribute("layer_0_type_1/bias", "value").tensor
        tensor.ClearField("content")
        tensor.double_val.extend([0.5, 0.25])
        bias = graph.get("layer_0_type_0/bias")
        graph.set("layer_0_type_0/bias", bias[None])

    model = load(edited_pb("water_md0.pb", edit))
    np.testing.assert_array_equal(model.descriptor.radial_mean, [0, 0])
    np.testing.assert_array_equal(model.fitting.networks[1].layers[0].bias, [0.5] + 23 * [0.25])
    np.testing.assert_array_equal(
        model.fitting.networks[0].layers[0].bias, load(find_model("water_md0.pb")).fitting.networks[0].layers[0].bias
    )


@pytest.mark.parametrize(("energies", "flags"), [([-93.0], [True, False]), ([None, -187.0], [False, True])])
def test_vacuum_energies_of_graphs(edited_pb, energies, flags):
    def edit(graph):
        graph.edit_script(lambda s: s["model"]["fitting_net"].update(atom_ener=energies))

    assert load(edited_pb("f_atomener.pb", edit)).fitting.subtract_vacuum.tolist() == flags


def test_time_steps_without_skip_are_ignored(edited_pb):
    def edit(graph):
        graph.set("filter_type_all/idt_1_0", np.full((1, 6), 0.5))

    layers = load(edited_pb("water_md0.pb", edit)).descriptor.embeddings[0][0].network.layers
    assert layers[0].timestep is None


def test_fitting_layers_of_graphs_never_double(edited_pb):
    def edit(graph):
        for t in range(2):
            graph.set(f"layer_0_type_{t}/matrix", np.ones((96, 96)))
            graph.set(f"layer_0_type_{t}/bias", np.ones(96))
            graph.set(f"layer_1_type_{t}/matrix", np.ones((96, 192)))
            graph.set(f"layer_1_type_{t}/bias", np.ones(192))
            graph.remove(f"layer_1_type_{t}/idt")
            graph.set(f"layer_2_type_{t}/matrix", np.ones((192, 24)))
            graph.remove(f"layer_2_type_{t}/idt")

    layers = load(edited_pb("water_md0.pb", edit)).fitting.networks[0].layers
    assert [layer.skip for layer in layers] == ["none", "none", "none", "none"]


def test_unnamed_types_and_ignored_settings(edited_pb):
    model = load(edited_pb("water_md0.pb", lambda g: g.set("model_attr/tmap", "")))
    assert model.type_map == ("type_0", "type_1")
    assert "does not name" in model.source.warnings[0]
    edited = edited_pb(
        "water_md0.pb", lambda g: g.edit_script(lambda s: s["model"].update(pair_exclude_types=[[0, 1]]))
    )
    assert "pair_exclude_types" in load(edited).source.warnings[0]


@pytest.mark.parametrize(("kind", "name"), [(19, "float16"), (14, "bfloat16")])
def test_products_in_reduced_precision_are_told(edited_pb, kind, name):
    """Whatever the training input says: compression replaces it by its own."""

    def cast(graph):
        node = graph.message.node.add(name=b"layer_0_type_0/Cast", op=b"Cast")
        for key, number in ((b"SrcT", 1), (b"DstT", kind)):
            node.attr.add(key=key).value.type = number

    (warning,) = load(edited_pb("f_float32.pb", cast)).source.warnings
    assert name in warning
    assert "mixed_precision" in warning


# --------------------------------------------------------------------- TorchScript archives


def test_masks_of_archives(edited_pth):
    ones = np.ones(9, np.int32).tobytes()

    def exclude(members, mask):
        (member,) = [name for name, data in members.items() if data == ones]
        members[member] = mask.astype(np.int32).tobytes()

    mask = np.ones((3, 3))
    mask[0, 1] = mask[1, 0] = 0
    rules = load(edited_pth("water_md0.pth", lambda m: exclude(m, mask))).descriptor.pair_rules
    assert rules.tolist() == [[PairRule.INCLUDED, PairRule.MASKED], [PairRule.MASKED, PairRule.INCLUDED]]


def test_silent_types_of_archives(edited_pth):
    both = np.ones(2, np.int32).tobytes()

    def edit(members):
        (member,) = [name for name, data in members.items() if data == both]
        members[member] = np.array([1, 0], np.int32).tobytes()

    assert load(edited_pth("water_md0.pth", edit)).fitting.silent_types == {1}
