"""Bad input: a clear message, exit code 2 before anything runs, 1 in mid-run."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest

from dpmd import Simulation, checkpoint, cli


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
        (
            {"output": [{"file": "a.traj", "every": 1}, {"file": "a.traj", "every": 2}]},
            ["a trajectory and a trajectory are the same file"],
        ),
        ({"output": [{"file": "none/a.traj", "every": 1}]}, ["folder that does not exist"]),
        ({"output": [{"every": 1}]}, ["lacks 'file'"]),
        ({"structure": {"index": 7}}, ["no frame 7"]),
        ({"run": {"continue": True}}, ["no checkpoint"]),
        ({"run": {"seed": 2**64}}, ["seed", "out of range"]),
        ({"run": {"threads": 10**6}}, ["threads", "at most 4096"]),
        ({"run": {"name": "nodir/x"}}, ["the log", "folder that does not exist"]),
        ({"checkpoint": {"file": "nodir/x.h5"}}, ["the checkpoint", "folder that does not exist"]),
        ({"checkpoint": {"file": "run.thermo.csv"}}, ["the checkpoint and the thermo table are the same file"]),
        ({"checkpoint": {"file": "model"}}, ["the checkpoint and the model are the same file"]),
        ({"output": [{"file": "start.extxyz", "every": 1}]}, ["and the structure are the same file"]),
        ({"output": [{"file": "run.toml", "every": 1, "format": "extxyz"}]}, ["and the input file are the same"]),
        ({"output": [{"file": "./run.log", "every": 1, "format": "extxyz"}]}, ["and the log are the same file"]),
        ({"output": [{"file": "a" * 300 + ".traj", "every": 1}]}, ["no usable file name"]),
        ({"structure": {"file": "x" * 5000}}, ["structure file"]),
        ({"structure": {"masses_u": 5}}, ["masses_u must be like"]),
        ({"structure": {"masses_u": {"Zz": 1.0}}}, ["'Zz' is not a chemical symbol"]),
        ({"structure": {"elements": ["O", "H"]}}, ["elements names the types of LAMMPS data files"]),
        ({"structure": {"replicate": [10000, 10000, 10000]}}, ["copies of 24 atoms"]),
        ({"ensemble": {"temperature_K": float("inf")}}, ["temperature_K", "out of range"]),
        ({"ensemble": {"type": "nvt", "relaxation_time_ps": 1e-5}}, ["shorter than the time step"]),
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
    assert not (tmp_path / "run.log").exists()


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


def test_two_spellings_of_one_file(water_run, tmp_path):
    (tmp_path / "link.traj").symlink_to(tmp_path / "a.traj")
    (tmp_path / "d").mkdir()
    for other in ("link.traj", "d/../a.traj"):
        code, text = water_run(output=[{"file": "a.traj", "every": 1}, {"file": other, "every": 1}])
        assert code == 2
        assert "are the same file" in text


@pytest.mark.parametrize("name", ["out.extxyz", "run.log", "run.summary.json", "run.thermo.csv"])
def test_no_file_of_the_user_is_overwritten(water_run, tmp_path, name):
    (tmp_path / name).write_text("precious")
    code, text = water_run()
    assert code == 2
    assert name in text
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("case", ["gone", "shorter", "other format", "new output exists", "damaged checkpoint"])
def test_outputs_that_cannot_be_continued(water_run, tmp_path, case):
    assert water_run()[0] == 0
    changes = {"run": {"steps": 25}}
    path = tmp_path / "out.extxyz"
    before = path.read_bytes()
    if case == "gone":
        path.unlink()
    if case == "shorter":
        path.write_bytes(before[:100])
    if case == "other format":
        changes["output"] = [{"file": "out.extxyz", "every": 5, "format": "lammps-dump"}]
    if case == "new output exists":
        (tmp_path / "mine.traj").write_bytes(b"precious")
        changes["output"] = [{"file": "mine.traj", "every": 5}]
    if case == "damaged checkpoint":
        checkpoint = tmp_path / "run.checkpoint.h5"
        data = bytearray(checkpoint.read_bytes())
        place = data.index(np.float64(0.0005).tobytes())  # the time step
        data[place] ^= 1
        checkpoint.write_bytes(data)
    code, text = water_run("--continue", **changes)
    assert code == 2, text
    assert "Traceback" not in text
    if case != "gone" and case != "shorter":
        assert path.read_bytes() == before
    if case == "new output exists":
        assert (tmp_path / "mine.traj").read_bytes() == b"precious"


def test_other_spelling_of_an_output_goes_on(water_run, tmp_path):
    assert water_run()[0] == 0
    output = [{"file": "./out.extxyz", "every": 5, "velocities": True, "forces": True}]
    assert water_run("--continue", run={"steps": 30}, output=output)[0] == 0
    assert len(ase.io.read("out.extxyz", index=":")) == 7


def test_constraints_are_refused(water_run):
    from ase.constraints import FixAtoms

    water_run("--check")
    atoms = ase.io.read("start.extxyz")
    atoms.set_constraint(FixAtoms([0]))
    ase.io.write("start.traj", atoms)
    code, text = water_run(structure={"file": "start.traj"})
    assert code == 2
    assert "FixAtoms" in text


@pytest.mark.parametrize("change", ["tiny cell", "far away"])
def test_absurd_geometry(water_run, change):
    water_run("--check")

    def spoil(atoms):
        if change == "tiny cell":
            atoms.set_cell([0.01, 0.01, 0.01])
        else:
            atoms.positions[0] += 1e14

    rewrite(spoil)
    code, text = water_run()
    assert code == 2
    assert ("cell is so small" in text) or ("cells away" in text)


def test_a_closed_pipe_does_not_end_the_run(water_run, tmp_path):
    water_run("--check")
    command = f"{sys.executable} -c 'from dpmd.cli import md_run; md_run()' run.toml | head -1"
    subprocess.run(["bash", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    assert json.loads((tmp_path / "run.summary.json").read_text())["steps"] == 20


def test_a_full_disk_is_a_clear_stop(water_run, tmp_path):
    water_run("--check", run={"steps": 400})
    command = f"ulimit -f 40; exec {sys.executable} -c 'import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    command += "from dpmd.cli import md_run; md_run()' run.toml"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    assert not list(tmp_path.glob("*.tmp"))


def test_a_failure_is_in_the_log(water_run, tmp_path):
    assert water_run(run={"steps": 500, "timestep_fs": 12.0}, ensemble={"temperature_K": 600.0})[0] == 1
    assert "The worst atoms" in (tmp_path / "run.log").read_text()


def test_file_names_with_at_signs_and_marked_encoding(water_run, tmp_path, small_water):
    ase.io.write(tmp_path / "water@300 K.extxyz", small_water, format="extxyz")
    assert water_run("--check", structure={"file": "water@300 K.extxyz"})[0] == 0
    text = (tmp_path / "run.toml").read_text()
    assert water_run("--check", text="\ufeff" + text)[0] == 0


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


def test_launcher_without_mpi4py_is_refused(water_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setattr("dpmd.cli._launchers", (("PMI_RANK", "PMI_SIZE"),))
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    code, text = water_run()
    assert code == 2
    for word in ("launcher", "pip install '.[mpi]'", "--threads"):
        assert word in text


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


def test_checkpoint_on_a_full_disk(tmp_path, small_water, find_model):
    """One sentence, and the checkpoint before stays."""
    simulation = Simulation.from_atoms(small_water.repeat(2), find_model("water_md0.dp"), initial_temperature_K=300)
    simulation.run(0)
    path = tmp_path / "checkpoint.h5"
    settings = (simulation.ensemble, 0.0005, {}, "model", {})
    checkpoint.write(path, simulation.system, *settings)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(OSError, match=r"checkpoint.h5: cannot be written: File too large$"):
            checkpoint.write(path, simulation.system, *settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.h5"]


@pytest.mark.parametrize(
    ("section", "content", "words"),
    [
        ("ensemble", {"type": "nvt", "pressure_bar": 1.0}, 'nothing here: it is for type = "npt"'),
        ("ensemble", {"type": "nve", "thermostat": "langevin"}, "thermostat would do nothing"),
        ("ensemble", {"type": "nvt", "chain_length": 5}, "chain_length would do nothing"),
        ("ensemble", {"type": "npt", "pressure_bar": 1.0, "bulk_modulus_bar": 1e3}, "bulk_modulus_bar would do"),
        ("minimize", {"method": "fire", "pressure_bar": 1e3}, "no other relaxes the cell"),
        ("minimize", {"method": "cg", "coupling": "tri"}, "coupling would do nothing"),
        ("analysis", [{"type": "msd", "bins": 20}], "bins would do nothing"),
    ],
)
def test_keys_that_nothing_uses_are_refused_before_files_are_touched(water_run, section, content, words):
    code, text = water_run()
    assert code == 0, text
    kept = Path("run.thermo.csv").read_bytes()
    code, text = water_run("--overwrite", **{section: content})
    assert code == 2
    assert words in text
    assert re.search(r"run\.toml:\d+: ", text)
    assert Path("run.thermo.csv").read_bytes() == kept
