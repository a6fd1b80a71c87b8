"""Bad input: a clear message, exit code 2 before anything runs, 1 in mid-run."""

import ase.io
import numpy as np
import pytest

from dpmd import cli


def rewrite(change):
    """Change the start structure."""
    atoms = ase.io.read("start.extxyz")
    change(atoms)
    ase.io.write("start.extxyz", atoms, format="extxyz")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": {"timestep_fs": 25.0}}, ["run.toml:", "timestep_fs = 25.0", "at most 20"]),
        ({"run": {"timestep_fs": "fast"}}, ["timestep_fs", "a number in fs", "'fast'"]),
        ({"run": {"stepss": 5}}, ["run.toml:", "stepss", "did you mean 'steps'"]),
        ({"run": {"steps": -1}}, ["steps = -1", "at least 0"]),
        ({"run": {"precision": "dubble"}}, ["dubble", "did you mean 'double'"]),
        ({"run": {"threads": 0}}, ["threads = 0", "at least 1"]),
        ({"rum": {"steps": 5}}, ["unknown section [rum]", "did you mean 'run'"]),
        ({"structure": {"file": "nothing.xyz"}}, ["nothing.xyz", "does not exist", "start.extxyz"]),
        ({"model": {"file": "nothing.dp"}}, ["nothing.dp", "does not exist"]),
        ({"model": {"fparam": [1.0]}}, ["fparam", "takes 0 numbers", "1 given"]),
        ({"ensemble": {"type": "nvt", "temperature_K": None}}, ["nvt needs temperature_K"]),
        ({"ensemble": {"type": "nvt", "temperature_K": 0.0}}, ["above 0 K"]),
        ({"ensemble": {"temperature_K": None}}, ["initial_temperature_K"]),
        ({"structure": {"masses_u": {"H": -1.0}}}, ["mass of H", "positive"]),
        ({"structure": {"masses_u": {"He": 4.0}}}, ["no He"]),
        ({"structure": {"velocities": "file"}}, ["has no velocities"]),
        ({"structure": {"velocities": "zero"}, "ensemble": {"type": "nvt"}}, ["all velocities are zero"]),
        ({"output": [{"file": "a.pdb", "every": 1}]}, ["a.pdb", "suffix"]),
        ({"output": [{"file": "a.traj", "every": 1}, {"file": "a.traj", "every": 2}]}, ["two [[output]]"]),
        ({"output": [{"file": "none/a.traj", "every": 1}]}, ["folder none does not exist"]),
        ({"output": [{"every": 1}]}, ["lacks 'file'"]),
        ({"structure": {"index": 7}}, ["cannot be read"]),
        ({"run": {"continue": True}}, ["no checkpoint"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value[0],
)
def test_wrong_settings(water_run, tmp_path, changes, words):
    code, text = water_run(**changes)
    assert code == 2, text
    for word in words:
        assert word in text
    assert "Traceback" not in text
    assert not (tmp_path / "out.extxyz").exists()
    assert not (tmp_path / "run.thermo.csv").exists()


def test_every_mistake_is_listed_with_its_line(water_run):
    code, text = water_run(text='[run]\nstep = 5\ntimestep_fs = 99\n\n[model]\nfile = 3\n\n[structur]\nfile = "a"\n')
    assert code == 2
    for words in ("run.toml:2: unknown key 'step'", "run.toml:3: timestep_fs", "run.toml:6: file must be a text"):
        assert words in text
    assert "run.toml:8: unknown section [structur]" in text
    assert "[structure] (the atoms to start from) is missing" in text


def test_not_toml(water_run):
    code, text = water_run(text="structure water\nmodel graph.pb\n")
    assert code == 2
    assert "not valid TOML" in text


def test_missing_input_file(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.md_run(["nowhere.toml"])
    assert exit_.value.code == 2
    assert "no such input file" in capsys.readouterr().err


def test_element_that_the_model_lacks(water_run):
    water_run("--check")
    rewrite(lambda atoms: atoms.symbols.__setitem__(3, "N"))
    code, text = water_run()
    assert code == 2
    assert "no type for N" in text
    assert "O, H" in text


def test_position_that_is_not_a_number(water_run, tmp_path):
    water_run("--check")
    path = tmp_path / "start.extxyz"
    lines = path.read_text().splitlines()
    lines[6] = " ".join([*lines[6].split()[:2], "nan", *lines[6].split()[3:]])
    path.write_text("\n".join(lines) + "\n")
    code, text = water_run()
    assert code == 2
    assert "position of atom 5" in text


def test_overlapping_atoms(water_run):
    water_run("--check")

    def overlap(atoms):
        atoms.positions[7] = atoms.positions[2] + [0.01, 0, 6.2]  # through the periodic boundary

    rewrite(overlap)
    code, text = water_run()
    assert code == 2
    assert "atoms overlap" in text
    assert "atoms 3 and 8" in text


def test_singular_cell(water_run):
    water_run("--check")
    rewrite(lambda atoms: atoms.set_cell([[6.2, 0, 0], [6.2, 1e-9, 0], [0, 0, 6.2]]))
    code, text = water_run()
    assert code == 2
    assert "linearly dependent" in text


@pytest.mark.parametrize("damage", ["empty", "truncated", "text", "other kind"])
def test_damaged_or_other_models(water_run, tmp_path, find_model, damage):
    water_run("--check")
    good = (tmp_path / "model").read_bytes()
    content = {
        "empty": b"", "truncated": good[: len(good) // 2], "text": b"hello: [",
        "other kind": find_model("f_se_e3.pb").read_bytes(),
    }[damage]  # fmt: skip
    (tmp_path / "model").write_bytes(content)
    code, text = water_run()
    assert code == 2, text
    assert "model" in text
    assert "Traceback" not in text
    if damage == "other kind":
        assert "se_e3" in text
        assert "se_e2_a" in text


def test_launcher_is_refused(water_run, monkeypatch):
    monkeypatch.setattr("dpmd.cli._launchers", (("PMI_RANK", "PMI_SIZE"),))
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    code, text = water_run()
    assert code == 2
    assert "launcher" in text
    assert "--threads" in text


@pytest.mark.parametrize(
    ("timestep", "masses", "warned"), [(0.5, {"H": 1.008}, False), (1.0, {"H": 1.008}, True), (3.0, {"H": 4.0}, True)]
)
def test_long_time_steps_are_warned_about(water_run, timestep, masses, warned):
    code, text = water_run("--check", run={"timestep_fs": timestep}, structure={"masses_u": masses})
    assert code == 0
    assert ("WARNING: timestep_fs" in text) == warned


def test_odd_masses_are_warned_about(water_run):
    assert "WARNING: type 1 (H) has mass 12 u" in water_run("--check", structure={"masses_u": {"H": 12.0}})[1]


def test_blow_up_names_atoms_and_keeps_the_last_good_frame(water_run, tmp_path):
    code, text = water_run(run={"steps": 500, "timestep_fs": 12.0}, ensemble={"temperature_K": 600.0})
    assert code == 1, text
    assert "The worst atoms" in text
    assert "nearest neighbour" in text
    assert "Traceback" not in text
    good, bad = ase.io.read("run.failed.extxyz", index=":")
    assert np.isfinite(good.positions).all()
    assert np.isfinite(good.get_forces()).all()
    assert len(bad) == 24


def test_too_fast_from_the_start(water_run):
    code, text = water_run(run={"timestep_fs": 19.0}, ensemble={"temperature_K": 4000.0})
    assert code == 1
    assert "step 0: an atom moves" in text
    assert "from the first step on" in text


def test_more_neighbours_than_sel(water_run, tmp_path, find_model):
    """Warned about by default, refused on request."""
    import json

    import h5py

    path = tmp_path / "small_sel.dp"
    path.write_bytes(find_model("water_md0.dp").read_bytes())
    with h5py.File(path, "r+") as file:
        tree = json.loads(file.attrs["json"])
        descriptor = tree["model"]["descriptor"]
        descriptor["sel"] = [10, 10]
        for name in ("davg", "dstd"):
            place = descriptor["@variables"][name]
            values = file[place][()][:, :20]
            del file[place]
            file[place] = values
        file.attrs["json"] = json.dumps(tree)
    code, text = water_run("--check", model={"file": "small_sel.dp"})
    assert code == 0, text
    assert "more H neighbours" in text
    code, text = water_run("--on-overflow", "error", model={"file": "small_sel.dp"})
    assert code == 2
    assert "on_overflow" in text
    code, text = water_run(model={"file": "small_sel.dp"}, run={"steps": 3})
    assert code == 0
    assert "the nearest were kept" in text
