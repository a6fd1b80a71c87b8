"""What the readers make of intact files: same contents whatever the format, all fields, all rules."""

import itertools
import json

import numpy as np
import pytest
import yaml

from dpmd.models import PairRule, load
from dpmd.models.networks import evaluate

# --------------------------------------------------------------------- formats agree


def assert_same_networks(one, other):
    assert one.widths == other.widths
    for a, b in zip(one.layers, other.layers, strict=True):
        np.testing.assert_array_equal(a.weight, b.weight)
        np.testing.assert_array_equal(a.bias, b.bias)
        assert (a.activation, a.skip) == (b.activation, b.skip)
        assert (a.timestep is None) == (b.timestep is None)
        if a.timestep is not None:
            np.testing.assert_array_equal(a.timestep, b.timestep)


def assert_same_model(one, other):
    """All that is computed is the same, but for the rules that differ between backends."""
    assert one.type_map == other.type_map
    assert one.precision == other.precision
    a, b = one.descriptor, other.descriptor
    for name in ("rcut", "rcut_smth", "sel", "axis_neuron", "neighbor_count", "type_one_side", "protection", "kind"):
        assert getattr(a, name) == getattr(b, name), name
    for name in ("switch_start", "switch_end", "switch_width"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-7), name
    for name in ("radial_mean", "radial_std", "angular_std"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    np.testing.assert_array_equal(a.pair_rules == PairRule.INCLUDED, b.pair_rules == PairRule.INCLUDED)
    for i, j in np.argwhere(a.pair_rules == PairRule.INCLUDED):
        assert_same_networks(a.embeddings[i][j].network, b.embeddings[i][j].network)
    f, g = one.fitting, other.fitting
    for x, y in zip(f.networks, g.networks, strict=True):
        assert_same_networks(x, y)
    for name in ("energy_bias", "subtract_vacuum", "fparam_mean", "fparam_inverse_std", "aparam_mean",
                 "aparam_inverse_std"):  # fmt: skip
        np.testing.assert_array_equal(getattr(f, name), getattr(g, name))
    assert f.silent_types == g.silent_types


@pytest.mark.parametrize("name", ["water_md0", "f_onesideF", "f_exclude", "f_faparam"])
@pytest.mark.parametrize("formats", [("pb", "dp"), ("dp", "pth")])
def test_formats_agree(find_model, name, formats):
    assert_same_model(*(load(find_model(f"{name}.{suffix}")) for suffix in formats))


def test_yaml_and_json_are_the_same_tree(find_model, dp_tree, tmp_path):
    def written(node):
        if isinstance(node, dict):
            return {key: written(value) for key, value in node.items()}
        if isinstance(node, list):
            return [written(value) for value in node]
        if isinstance(node, (np.ndarray, np.generic)):
            return {"@class": "np.ndarray", "@is_variable": True, "dtype": str(node.dtype), "value": node.tolist()}
        return node

    tree = written(dp_tree("f_faparam.dp"))
    (tmp_path / "model.yaml").write_text(yaml.dump(tree, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    (tmp_path / "model.json").write_text(json.dumps(tree))
    expected = load(find_model("f_faparam.dp"))
    for name in ("model.yaml", "model.json"):
        found = load(tmp_path / name)
        assert_same_model(found, expected)
        assert found.source.format == "backend-independent YAML"
        assert found.source.version == "3.2.0"


@pytest.mark.parametrize("name", ["water_md0.pb", "water_md0.dp", "water_md0.pth", "f_exclude_c.pb"])
@pytest.mark.parametrize("suffix", [".pb", ".dp", ".pth", ".yaml", ""])
def test_names_do_not_matter(find_model, tmp_path, name, suffix):
    renamed = tmp_path / f"model{suffix}"
    renamed.symlink_to(find_model(name))
    assert load(renamed).source.format == load(find_model(name)).source.format
    assert load(str(renamed)).source.path == str(renamed)


# --------------------------------------------------------------------- fields


def test_water_fields(find_model):
    model = load(find_model("water_md0.pb"))
    d, f = model.descriptor, model.fitting
    assert model.type_map == ("O", "H")
    assert (d.rcut, d.rcut_smth, d.sel, d.axis_neuron, d.neighbor_count) == (6.0, 0.5, (46, 92), 4, 138)
    assert (d.n_embedding, d.n_out, model.cutoff) == (24, 96, 6.0)
    assert d.type_one_side
    assert [layer.skip for layer in d.embeddings[0][1].network.layers] == ["none", "double", "double"]
    assert {layer.activation for layer in d.embeddings[0][1].network.layers} == {"tanh"}
    assert f.networks[0].widths == (24, 24, 24, 1)
    assert [layer.skip for layer in f.networks[0].layers] == ["none", "add", "add", "none"]
    assert [layer.timestep is None for layer in f.networks[0].layers] == [True, False, False, True]
    assert f.networks[0].layers[-1].activation == "linear"
    assert f.energy_bias == pytest.approx([-93.57400553, -187.14801107])
    assert model.source.min_neighbor_distance == pytest.approx(0.88543857)
    assert model.source.version == "1.1"
    assert not model.compressed
    assert not model.source.warnings
    assert load(find_model("f_exclude.pb")).source.min_neighbor_distance is None


def test_arrays_are_double_and_contiguous(model_path):
    model = load(model_path)
    networks = [*model.fitting.networks,
                *(e.network for e, _ in model.descriptor.unique_embeddings() if e.network)]  # fmt: skip
    for net in networks:
        for layer in net.layers:
            assert layer.weight.dtype == layer.bias.dtype == np.float64
            assert layer.weight.flags.c_contiguous
            assert layer.weight.flags.writeable
            assert layer.bias.shape == (layer.n_out,)
    assert model.descriptor.n_out + model.fitting.n_fparam + model.fitting.n_aparam == networks[0].n_in


def test_one_sided_embeddings_are_shared(find_model):
    for name in ("water_md0.pb", "water_md0.dp", "water_md0.pth", "water_md0_c.pb", "water_md0_c.pth"):
        (o, h), (o2, h2) = load(find_model(name)).descriptor.embeddings
        assert o is o2
        assert h is h2
        assert o is not h
    for name in ("f_onesideF.pb", "f_onesideF.dp", "f_onesideF.pth"):
        descriptor = load(find_model(name)).descriptor
        assert not descriptor.type_one_side
        assert len(descriptor.unique_embeddings()) == 4


def test_frame_and_atom_parameters(find_model):
    fitting = load(find_model("f_faparam.pb")).fitting
    assert (fitting.n_fparam, fitting.n_aparam) == (2, 1)
    assert fitting.fparam_mean == pytest.approx([0.19223371, 0.34228866])
    assert fitting.aparam_inverse_std == pytest.approx([3.23421526])
    assert fitting.default_fparam is None


def test_activations_and_precision(find_model):
    def used(model):
        embedding = model.descriptor.embeddings[0][0].network
        return embedding.layers[0].activation, model.fitting.networks[0].layers[0].activation

    assert used(load(find_model("f_relu6.pb"))) == ("relu6", "relu")
    assert used(load(find_model("f_linear_tanh.pb"))) == ("linear", "tanh")
    assert load(find_model("f_float32.pb")).precision == "float32"
    assert load(find_model("water_md0.pth")).precision == "float64"


def test_skip_connections_of_graphs(find_model):
    rectangular = load(find_model("f_rect_nets.pb"))
    layers = rectangular.descriptor.embeddings[0][0].network.layers
    assert [layer.skip for layer in layers] == ["none", "add", "none", "double"]
    assert [layer.skip for layer in rectangular.fitting.networks[0].layers] == ["none"] * 4
    layers = load(find_model("f_resnetdt.pb")).descriptor.embeddings[0][0].network.layers
    assert [layer.timestep is None for layer in layers] == [True, False, False]


def test_vacuum_and_exclusion(find_model):
    assert load(find_model("f_atomener.pb")).fitting.subtract_vacuum.tolist() == [True, True]
    assert load(find_model("water_md0.pb")).fitting.subtract_vacuum.tolist() == [False, False]
    graph = load(find_model("f_exclude.pb")).descriptor
    assert graph.pair_rules.tolist() == [[PairRule.SKIPPED] * 2, [PairRule.SKIPPED, PairRule.INCLUDED]]
    assert graph.embeddings[0] == (None, None)
    for name in ("f_exclude.dp", "f_exclude.pth"):
        rules = load(find_model(name)).descriptor.pair_rules
        assert rules.tolist() == [[PairRule.MASKED] * 2, [PairRule.MASKED, PairRule.INCLUDED]]


def test_overflow_rule_follows_the_backend(find_model):
    shared = [load(find_model(f"water_md0.{s}")).descriptor.shared_selection for s in ("pb", "dp", "pth")]
    assert shared == [False, True, True]


# --------------------------------------------------------------------- tables


def assert_tables_match_networks(compressed, plain):
    """The tables are those of the right networks: values at the starts of rows are the networks'."""
    for i, j in itertools.product(range(plain.n_types), repeat=2):
        embedding = compressed.descriptor.embeddings[i][j]
        if embedding is None:
            continue
        assert embedding.table_from_file
        table = embedding.table
        starts = table.lower + table.fine_step * np.arange(0, table.n_fine, 37)
        network = plain.descriptor.embeddings[i][j].network
        np.testing.assert_allclose(
            table.coefficients[: table.n_fine : 37, :, 0], evaluate(network, starts[:, None]), atol=1e-9
        )


@pytest.mark.parametrize("name", ["water_md0_c.pb", "water_md0_c.pth", "f_exclude_c.pb"])
def test_tables(find_model, name):
    compressed = load(find_model(name))
    assert compressed.compressed
    table = compressed.descriptor.embeddings[1][1].table
    assert (table.lower, table.fine_step, table.coarse_step) == (-1.0, 0.01, 0.1)
    assert table.maximum == 5 * table.upper
    assert table.coefficients.shape == (round((table.upper + 1) / 0.01 + 4 * table.upper / 0.1), 24, 6)
    assert_tables_match_networks(compressed, load(find_model(name.replace("_c.", "."))))


def test_compressed_archives_keep_their_networks(find_model):
    compressed, plain = load(find_model("water_md0_c.pth")), load(find_model("water_md0.pth"))
    for j in range(2):
        assert_same_networks(compressed.descriptor.embeddings[0][j].network, plain.descriptor.embeddings[0][j].network)
    assert load(find_model("water_md0_c.pb")).descriptor.embeddings[0][0].network is None
