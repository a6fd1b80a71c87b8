"""Files that are not read: other kinds of models, damage, and malice.

Whatever the bytes, ``load`` returns a model or raises a ModelError that names the file.
"""

import json
import os
import pickle
import random
import struct
import zipfile

import h5py
import numpy as np
import pytest

from dpmd.models import ModelError, load
from dpmd.models.readers import pickles


def refusal(path):
    """The message of the ModelError that loading ``path`` raises, without the file's name."""
    with pytest.raises(ModelError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


# --------------------------------------------------------------------- other kinds of models


def test_other_models_are_refused_by_name(refused_model):
    path, words = refused_model
    message = refusal(path)
    assert words in message
    assert message.endswith("is not supported; dpmd reads se_e2_a (DeepPot-SE) energy models")


@pytest.mark.parametrize(
    ("words", "edit"),
    [
        ("fitting 'dipole'", lambda m: m["fitting"].update(type="dipole")),
        ("'linear'", lambda m: m.update(type="linear")),
        ("'zbl'", lambda m: m.update(type="zbl")),
        ("'spin_ener'", lambda m: m.update(type="spin_ener")),
        ("mixed_types", lambda m: m["fitting"].update(mixed_types=True)),
        ("tot_ener_zero", lambda m: m["fitting"].update(tot_ener_zero=True)),
        ("use_aparam_as_mask", lambda m: m["fitting"].update(use_aparam_as_mask=True)),
        ("layer_name", lambda m: m["fitting"].update(layer_name=["a", None, None, None])),
        ("spin", lambda m: m["fitting"].update(spin={"use_spin": [True]})),
        ("exponential switching", lambda m: m["descriptor"]["env_mat"].update(use_exp_switch=True)),
        ("'bfloat16'", lambda m: m["descriptor"].update(precision="bfloat16")),
        ("'float16'", lambda m: m["fitting"].update(precision="float16")),
        ("'float16'", lambda m: first_layer(m).update(w=np.ones((1, 6), np.float16))),
        ("'swish'", lambda m: m["descriptor"]["embeddings"]["networks"][0]["layers"][0].update(
            activation_function="swish")),
        ("version 9", lambda m: m["descriptor"].update({"@version": 9})),
    ],
)  # fmt: skip
def test_other_trees(edited_dp, words, edit):
    message = refusal(edited_dp("water_md0.dp", lambda tree: edit(tree["model"])))
    assert words in message


def first_layer(model):
    return model["descriptor"]["embeddings"]["networks"][0]["layers"][0]["@variables"]


def script_edit(section, **values):
    return lambda graph: graph.edit_script(lambda s: (s["model"][section] if section else s["model"]).update(values))


@pytest.mark.parametrize(
    ("words", "edit"),
    [
        ("fitting 'dipole'", lambda g: g.set("model_attr/model_type", "dipole")),
        ("short-range table", lambda g: g.set("model_attr/t_tab_info", np.ones(4))),
        ("DPLR", lambda g: g.set("modifier_attr/type", "dipole_charge")),
        ("spin", lambda g: g.set("spin_attr/ntypes_spin", np.array(1, np.int32))),
        ("linear combination", lambda g: g.set("descrpt_attr_model0/t_avg", np.ones(4))),
        ("DPRc", lambda g: g.set("descrpt_attr_qmmm/t_avg", np.ones(4))),
        ("layer sharing", lambda g: g.set("share_first_type_0/matrix", np.ones(4))),
        ("type embedding", lambda g: g.set("type_embed_net/matrix_1", np.ones(4))),
        ("one fitting network for all types", lambda g: g.set("layer_0/matrix", np.ones(4))),
        ("'se_a_ef'", script_edit("descriptor", type="se_a_ef")),
        ("'pairwise_dprc'", script_edit("", type="pairwise_dprc")),
        ("'dos'", script_edit("fitting_net", type="dos")),
        ("tot_ener_zero", script_edit("fitting_net", tot_ener_zero=True)),
        ("use_aparam_as_mask", script_edit("fitting_net", use_aparam_as_mask=True)),
        ("case embedding", script_edit("fitting_net", dim_case_embd=2)),
        ("'float16'", lambda g: g.set("layer_0_type_0/matrix", np.ones((96, 24), np.float16))),
        ("env_protection", script_edit("descriptor", env_protection=0.1)),
    ],
)
def test_other_graphs(edited_pb, words, edit):
    message = refusal(edited_pb("water_md0.pb", edit))
    assert words in message
    assert "is not supported; dpmd reads se_e2_a" in message


def test_graph_that_is_no_model(edited_pb):
    def edit(graph):
        for name in graph.names:
            if "attr/" in name:
                graph.remove(name)

    assert "not a Deep Potential model" in refusal(edited_pb("water_md0.pb", edit))


# --------------------------------------------------------------------- files that are no models


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (bytes(range(256)) * 4, "not a model file"),
        (b"not a model", "no section 'model'"),
        (b"a: [1, 2\nb: }", "YAML"),
        (b"[" * 100_000, "YAML"),
        (b"model: 3\n", "no section 'model'"),
        (b"model: {type: standard}\n", "no section 'descriptor'"),
        (b"\xff\xfehello there", "not UTF-8"),
        (b'{"program": {"regions": []}, "base_code": {}}', "Paddle"),
        (b'node {\n  name: "train_attr/training_script"\n', ".pbtxt"),
        (pickle.dumps({"model": 1}, protocol=2), "pickle"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"PK\x03\x04", "archive"),
        (b"\n", "no section 'model'"),
        (b"\n\x05\n\x03abc", "not a Deep Potential model"),
    ],
)
def test_files_that_are_no_models(tmp_path, content, words):
    path = tmp_path / "file.pb"
    path.write_bytes(content)
    assert words in refusal(path)


def test_paths_that_are_no_files(tmp_path):
    assert refusal(tmp_path / "missing.pb") == "no such file"
    assert "directory" in refusal(tmp_path)
    (tmp_path / "m.savedmodel").mkdir()
    (tmp_path / "m.savedmodel" / "saved_model.pb").touch()
    assert "SavedModel" in refusal(tmp_path / "m.savedmodel")
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "not a regular file"
    (tmp_path / "locked.pb").write_bytes(b"x")
    (tmp_path / "locked.pb").chmod(0)
    if not os.access(tmp_path / "locked.pb", os.R_OK):
        assert "cannot be read" in refusal(tmp_path / "locked.pb")


def test_other_archives(edited_pth, tmp_path):
    def checkpoint(members):
        del members["constants.pkl"]

    assert "checkpoint (.pt)" in refusal(edited_pth("water_md0.pth", checkpoint))
    plain = {"data.pkl": pickle.dumps({"model": {}}, protocol=2), "constants.pkl": b"x"}
    assert "checkpoint (.pt)" in refusal(edited_pth("water_md0.pth", lambda m: (m.clear(), m.update(plain))))
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/model/extra/model.json", "{}")
    assert ".pt2" in refusal(tmp_path / "m.pt2")
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "not one of PyTorch" in refusal(tmp_path / "m.zip")
    edited = edited_pth("water_md0.pth", lambda m: m.update(byteorder=b"big"))
    assert "big-endian" in refusal(edited)


def test_hdf5_that_is_no_model(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = np.ones(3)
    assert "no attribute 'json'" in refusal(tmp_path / "data.h5")
    with h5py.File(tmp_path / "data.h5", "a") as file:
        file.attrs["json"] = "[" * 100_000
    assert "json" in refusal(tmp_path / "data.h5")
    with h5py.File(tmp_path / "data.h5", "a") as file:
        file.attrs["json"] = 3.0
    assert "not text" in refusal(tmp_path / "data.h5")


def test_table_files_are_passed_on(tmp_path):
    with h5py.File(tmp_path / "model.pb", "w") as file:
        file.attrs["dpmd_table_format"] = 1
    assert "no attribute 'json'" not in refusal(tmp_path / "model.pb")


# --------------------------------------------------------------------- numbers that cannot be


@pytest.mark.parametrize(
    ("words", "edit"),
    [
        ("not finite", lambda m: first_layer(m)["w"].__setitem__((0, 0), np.nan)),
        ("not finite", lambda m: m["fitting"]["@variables"]["bias_atom_e"].__setitem__(0, np.inf)),
        ("not positive", lambda m: m["descriptor"]["@variables"]["dstd"].__imul__(0)),
        ("not positive", lambda m: m["descriptor"]["@variables"]["dstd"].__imul__(-1)),
        ("not positive", lambda m: m["@variables"]["out_std"].__imul__(0)),
        ("differs between neighbour slots", lambda m: m["descriptor"]["@variables"]["davg"].__setitem__((0, 3, 0), 1)),
        ("angular", lambda m: m["descriptor"]["@variables"]["davg"].__setitem__((0, slice(None), 2), 1)),
        ("angular", lambda m: m["descriptor"]["@variables"]["dstd"].__setitem__((0, slice(None), 2), 7)),
        ("davg has", lambda m: m["descriptor"].update(sel=[46, 93])),
        ("sel has 1 values", lambda m: m["descriptor"].update(sel=[46])),
        ("whole number", lambda m: m["descriptor"].update(sel=[46, -1])),
        ("rcut is -6", lambda m: m["descriptor"].update(rcut=-6)),
        ("rcut is 0", lambda m: m["descriptor"].update(rcut=0)),
        ("rcut_smth is 6", lambda m: m["descriptor"].update(rcut_smth=6)),
        ("rcut_smth is -1", lambda m: m["descriptor"].update(rcut_smth=-1)),
        ("rcut is not a number", lambda m: m["descriptor"].update(rcut="6")),
        ("axis_neuron", lambda m: m["descriptor"].update(axis_neuron=25)),
        ("96 inputs, expected 120", lambda m: m["descriptor"].update(axis_neuron=5)),
        ("96 inputs, expected 97", lambda m: m["fitting"].update(numb_fparam=1) or m["fitting"]["@variables"].update(
            fparam_avg=np.zeros(1), fparam_inv_std=np.ones(1))),
        ("bias of embedding network 0, layer 1 has 5", lambda m: first_layer(m).update(b=np.ones(5))),
        ("layer 1 has 5 outputs, but layer 2 has 6", lambda m: first_layer(m).update(w=np.ones((1, 5)), b=None)),
        ("2 inputs, expected 1", lambda m: first_layer(m).update(w=np.ones((2, 6)))),
        ("type map", lambda m: m.update(type_map=["O", "O"])),
        ("type map", lambda m: m.update(type_map=None)),
        ("expected a whole number from 0 to 1", lambda m: m["descriptor"].update(exclude_types=[[0, 2]])),
        ("not a list of pairs", lambda m: m["descriptor"].update(exclude_types=[0])),
        ("fparam_avg is missing", lambda m: m["fitting"].update(numb_fparam=1) or [
            layer_zero(net).update(w=np.ones((97, 24))) for net in m["fitting"]["nets"]["networks"]]),
        ("fitting networks, expected", lambda m: m["fitting"]["nets"]["networks"].pop()),
        ("does not tell its resnet", lambda m: m["fitting"]["nets"]["networks"][0]["layers"][0].pop("resnet")),
        ("all pairs of types are excluded", lambda m: m["descriptor"].update(exclude_types=[[0, 0], [0, 1], [1, 1]]) or
            m["descriptor"]["embeddings"].update(networks=[None, None]) or
            m["descriptor"]["@variables"]["davg"].__imul__(0)),
    ],
)  # fmt: skip
def test_impossible_numbers(edited_dp, words, edit):
    message = refusal(edited_dp("water_md0.dp", lambda tree: edit(tree["model"])))
    assert words in message


def layer_zero(net):
    return net["layers"][0]["@variables"]


@pytest.mark.parametrize(
    ("words", "edit"),
    [
        ("impossible", {"compress_info": [np.array([1.0, -1.0, 5.0, 0.01, 0.1, -1])]}),
        ("rows", {"compress_info": [np.array([-1.0, 2.0, 10.0, 0.01, 0.1, -1])]}),
        ("expected 6", {"compress_info": [np.ones(4)]}),
        ("(rows, 6 x width)", {"compress_data": [np.ones((140, 143))]}),
        ("but its table has", {"compress_data": [np.ones((140, 60))]}),
        ("not finite", {"compress_data": [np.full((140, 144), np.nan)]}),
        ("tables, expected 2", {"compress_data": [np.ones((140, 144))] * 3}),
        ("is missing", {"compress_info": [None]}),
    ],
)
def test_impossible_tables(edited_dp, words, edit):
    def compress(tree):
        variables = {
            "compress_info": [np.array([-1.0, 0.0, 4.0, 0.01, 0.1, -1])],
            "compress_data": [np.ones((140, 144))],
        }
        variables |= edit
        doubled = {key: value * 2 if len(value) == 1 else value for key, value in variables.items()}
        tree["model"]["descriptor"]["compress"] = {"@variables": doubled}

    assert words in refusal(edited_dp("water_md0.dp", compress))


# --------------------------------------------------------------------- damage


def mutations(data, n, seed):
    """Copies of ``data``: cut at several places, and with some bytes changed."""
    rng = random.Random(seed)
    for k in range(n):
        damaged = bytearray(data)
        if k % 3 == 0:
            del damaged[rng.randrange(len(damaged)) :]
        else:
            # every second time near one end, where the structure is
            reach = len(damaged) if k % 2 else min(4000, len(damaged))
            for _ in range(rng.randint(1, 12)):
                place = rng.randrange(reach)
                damaged[place if rng.random() < 0.5 else -1 - place] = rng.randrange(256)
        yield bytes(damaged)


def loads_or_refuses(path):
    """False if the file is refused; anything but a model or a proper refusal fails the test."""
    message = f"{path}: "
    try:
        load(path)
    except ModelError as error:
        message = str(error)
    else:
        return True
    assert message.startswith(f"{path}: ")
    return False


@pytest.mark.parametrize("name", ["water_md0.pb", "f_exclude.dp", "f_exclude.pth", "f_hybrid.pb"])
def test_damaged_files(find_model, tmp_path, name):
    path = tmp_path / "damaged"
    results = []
    for damaged in mutations(find_model(name).read_bytes(), 120, seed=len(name)):
        path.write_bytes(damaged)
        results.append(loads_or_refuses(path))
    assert results.count(False) >= 60


@pytest.mark.parametrize("name", ["water_md0_c.pb", "water_md0_c.pth"])
def test_truncated_compressed_files(find_model, tmp_path, name):
    data = find_model(name).read_bytes()
    for fraction in (0.0001, 0.1, 0.5, 0.9, 0.9999):
        (tmp_path / "cut").write_bytes(data[: int(len(data) * fraction)])
        refusal(tmp_path / "cut")


def test_damaged_object_streams(edited_pth):
    """The archive's checksums hide the objects from random damage; here they are right."""
    for seed in range(100):

        def edit(members, seed=seed):
            (members["data.pkl"],) = mutations(members["data.pkl"], 1, seed) if seed % 3 == 0 else [
                list(mutations(members["data.pkl"], 3, seed))[2]
            ]  # fmt: skip

        loads_or_refuses(edited_pth("f_faparam.pth", edit))


def test_damaged_trees(tmp_path, find_model):
    with h5py.File(find_model("f_faparam.dp")) as file:
        text = file.attrs["json"].encode()
        arrays = {name: file[name][()] for name in file}
    path = tmp_path / "damaged.dp"
    for damaged in mutations(text, 60, seed=3):
        with h5py.File(path, "w") as file:
            file.attrs.create("json", damaged.replace(b"\0", b" "), dtype=h5py.string_dtype())
            for name, array in arrays.items():
                file[name] = array
        loads_or_refuses(path)


def test_values_of_other_kinds_anywhere(edited_dp):
    """Any node of the tree replaced by something else."""
    rng = random.Random(5)

    def places(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield node, key
            if isinstance(node[key], (dict, list)):
                yield from places(node[key])

    def edit(tree):
        found = list(places(tree["model"]))
        container, key = rng.choice(found)
        container[key] = rng.choice([None, -1, 1e300, "text", [], {}, [[]], True, [1, "a"], {"a": 1}])

    for _ in range(50):
        try:
            path = edited_dp("f_exclude.dp", edit)
        except (TypeError, ValueError):  # not writable as HDF5
            continue
        loads_or_refuses(path)


# --------------------------------------------------------------------- malice


def replaced_stream(stream):
    return lambda members: members.update({"data.pkl": stream})


STORAGE = b"(X\x07\x00\x00\x00storagectorch\nDoubleStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def number_(value):
    return b"\x8a\x08" + struct.pack("<q", value)


def tensor(offset, shape, strides, storage=STORAGE):
    """Operations that make a tensor of a storage of four numbers."""
    sizes = [b"(" + b"".join(map(number_, values)) + b"t" for values in (shape, strides)]
    return REBUILD + b"(" + storage + number_(offset) + sizes[0] + sizes[1] + b"\x89)tR"


@pytest.mark.parametrize(
    "stream",
    [
        b"cos\nsystem\n(X\x0c\x00\x00\x00touch hackedtR.",
        b"cbuiltins\neval\n(X\x01\x00\x00\x001tR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
        b"(X\x02\x00\x00\x00lsios\nsystem\n.",
        b"ctorch\nload\n)R.",
        b"ctorch._utils\n__builtins__\n)R.",
        b"ccollections\nnamedtuple\n)R.",
        b"\x82\x01.",
    ],
)
def test_code_is_never_run(edited_pth, stream, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no model needs; refused" in refusal(edited_pth("water_md0.pth", replaced_stream(b"\x80\x02" + stream)))
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (tensor(0, [5], [1]), "beyond its storage"),
        (tensor(1, [4], [1]), "beyond its storage"),
        (tensor(0, [2, 2], [3, 1]), "beyond its storage"),
        (tensor(0, [2], [10**9]), "beyond its storage"),
        (tensor(0, [10**9], [0]), "beyond its storage"),
        (tensor(0, [2**62, 2**62], [1, 1]), "described wrongly"),
        (tensor(-1, [2], [1]), "described wrongly"),
        (tensor(0, [2], [-1]), "described wrongly"),
        (tensor(0, [2, 2], [1]), "described wrongly"),
        (tensor(0, [2], [1], b"K\x01"), "described wrongly"),
        (STORAGE.replace(b"\x01\x00\x00\x000", b"\x09\x00\x00\x00../../etc"), "a storage is named"),
        (b"Nr\xff\xff\xff\xff", "impossible place"),
        (b"h\x05", "recalls an object"),
        (b"R", "more than it has put down"),
        (b"t", "misses a mark"),
        (b"}(K\x01u", "misses a value"),
        (b"}(K\x01K\x01\x86K\x01u", "neither text nor number"),
        (b"X\xff\xff\xff\x7fabc", "broken"),
        (b"K\x01K\x01\x81", "mixes up"),
        (b"N" * 100, "PyTorch checkpoint"),
    ],
)
def test_impossible_streams(edited_pth, stream, words):
    assert words in refusal(edited_pth("water_md0.pth", replaced_stream(b"\x80\x02" + stream + b".")))


def test_tensors_that_are_inside(tmp_path):
    """The bounds are exact: the last element may be the storage's last."""
    numbers = np.arange(4.0).tobytes()
    for offset, shape, strides, expected in (
        (0, [4], [1], [0, 1, 2, 3]),
        (1, [2], [2], [1, 3]),
        (0, [2, 2], [1, 2], [[0, 2], [1, 3]]),
        (3, [1], [100], [3]),
        (0, [0, 5], [5, 1], np.zeros((0, 5))),
    ):
        found = pickles.load(b"\x80\x02" + tensor(offset, shape, strides) + b".").array(lambda key, size: numbers)
        np.testing.assert_array_equal(found, expected)


def test_storage_that_is_too_short(edited_pth):
    def edit(members):
        for name in [n for n in members if n.startswith("data/")]:
            members[name] = members[name][:4]

    assert "bytes, expected" in refusal(edited_pth("water_md0.pth", edit))


def test_compressed_members_are_refused(edited_pth):
    edited = edited_pth("water_md0.pth", lambda members: None, compression=zipfile.ZIP_DEFLATED)
    assert "which PyTorch never does" in refusal(edited)


def test_links_out_of_hdf5_are_refused(find_model, tmp_path):
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.ones((1, 6))
    for link in (h5py.ExternalLink(str(other), "/x"), h5py.SoftLink("/variable_0002")):
        path = tmp_path / "link.dp"
        path.write_bytes(find_model("water_md0.dp").read_bytes())
        with h5py.File(path, "a") as file:
            del file["variable_0000"]
            file["variable_0000"] = link
        assert "not allowed in a model" in refusal(path)
    with h5py.File(path, "a") as file:
        del file["variable_0000"]
        file.create_dataset("variable_0000", (1, 6), "f8", external=[(str(tmp_path / "raw"), 0, 48)])
    assert "not allowed in a model" in refusal(path)


def test_huge_claims_allocate_nothing(find_model, edited_pb, tmp_path):
    """Shapes of terabytes without the data."""

    def edit(graph):
        tensor_ = graph.attribute("descrpt_attr/t_avg", "value").tensor
        tensor_.ClearField("content")
        for dim in tensor_.shape.dim:
            dim.size = 2**40
        tensor_.double_val.append(0.0)

    assert "its shape is" in refusal(edited_pb("water_md0.pb", edit))
    path = tmp_path / "huge.dp"
    path.write_bytes(find_model("water_md0.dp").read_bytes())
    with h5py.File(path, "a") as file:
        del file["variable_0000"]
        file.create_dataset("variable_0000", (2**20, 2**20), "f8")
    assert "larger than what the file stores" in refusal(path)
    with h5py.File(path, "a") as file:
        del file["variable_0000"]
        file.create_dataset("variable_0000", (2**20, 2**20), "f8", chunks=(1024, 1024), compression="gzip")
    assert "larger than what the file stores" in refusal(path)


def test_yaml_runs_nothing_and_does_not_explode(tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text("model: !!python/object/apply:os.system ['touch hacked']\n")
    assert "YAML" in refusal(path)
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12)]
    tree = {"descriptor": {"type": "se_e2_a", "rcut": 6, "rcut_smth": 1, "sel": [1], "@variables": {}},
            "fitting": {"type": "ener"}, "type_map": ["O"], "type": "standard"}  # fmt: skip
    text = json.dumps(tree).replace('"@variables": {}', '"@variables": {davg: {dtype: float64, value: *a11}}')
    path.write_text("\n".join([*lines, f"model: {text}"]))
    assert "larger than the text" in refusal(path)


YAML_HEAD = "{type: standard, type_map: [O], fitting: {}, descriptor: {type: se_e2_a, rcut: 6, rcut_smth: 1, sel: [1], "


def test_yaml_that_refers_to_itself(tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text(f"model: {YAML_HEAD}'@variables': {{davg: {{value: &a [*a]}}}}}}}}\n")
    assert "larger than the text" in refusal(path)
    path.write_text(f"model: {YAML_HEAD}loop: &b [*b], '@variables': {{}}}}}}\n")
    assert "davg is missing" in refusal(path)


def test_one_array_used_very_often(tmp_path):
    """Thousands of layers that are all the same one: 60 kB of text, 70 MB of numbers."""
    weight = json.dumps({"value": [[0] * 31] * 31})
    path = tmp_path / "model.yaml"
    path.write_text(
        f"layer: &l {{activation_function: tanh, resnet: true, '@variables': {{w: {weight}}}}}\n"
        "statistics: &s {davg: {value: [0, 0, 0, 0]}, dstd: {value: [1, 1, 1, 1]}}\n"
        f"model: {YAML_HEAD}'@variables': *s, "
        f"embeddings: {{ndim: 1, networks: [{{layers: [{', '.join(9000 * ['*l'])}]}}]}}}}}}\n"
    )
    assert "more numbers than its file can hold" in refusal(path)
