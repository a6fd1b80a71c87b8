"""The sub-commands of ``dpmd``: what they print and write, and how they refuse."""

import json
import re
import sys
from pathlib import Path

import ase.io
import ase.neighborlist
import numpy as np
import pytest

from dpmd import cli, doctor
from dpmd.commands import COMMANDS

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture
def dpmd(capsys):
    """Function: arguments -> (exit code, what was printed)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            cli.dpmd([str(a) for a in arguments])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out + captured.err

    return run


@pytest.fixture
def labelled_water(tmp_path, small_water, find_model):
    """An extended XYZ file of four frames, labelled by a model; and the labels."""
    from ase.calculators.singlepoint import SinglePointCalculator

    from dpmd import DP

    random = np.random.default_rng(0)
    calculator, frames = DP(find_model("water_md1.pb"), threads=1), []
    for _ in range(4):
        atoms = small_water.copy()
        atoms.rattle(0.02, rng=random)
        results = {n: calculator.get_property(n, atoms) for n in ("energy", "forces", "stress")}
        atoms.calc = SinglePointCalculator(atoms, **results)
        frames.append(atoms)
    ase.io.write(tmp_path / "water.extxyz", frames)
    return tmp_path / "water.extxyz", frames


@pytest.mark.parametrize("command", [c.name for c in COMMANDS])
def test_help(dpmd, command):
    code, text = dpmd(command, "--help")
    assert code == 0
    assert text.startswith(f"usage: dpmd {command}")
    code, text = dpmd("--help")
    assert command in text


def test_only_the_chosen_command_is_imported(dpmd, monkeypatch, find_model):
    for name in [name for name in sys.modules if name.startswith("dpmd.commands.")]:
        monkeypatch.delitem(sys.modules, name)
    assert dpmd("info", find_model("water_md0.dp"))[0] == 0
    loaded = {name for name in sys.modules if name.startswith("dpmd.commands.")}
    assert loaded == {"dpmd.commands.info", "dpmd.commands.common"}


def test_wrong_model(dpmd, tmp_path):
    code, text = dpmd("info", tmp_path / "none.pb")
    assert (code, text) == (2, f"ERROR: {tmp_path / 'none.pb'}: no such file\n")


@pytest.mark.parametrize("suffix", ["dp", "yaml", "dptab"])
def test_convert(dpmd, find_model, tmp_path, suffix):
    output = tmp_path / f"model.{suffix}"
    code, text = dpmd("convert", find_model("water_md0.pth"), "-o", output)
    assert code == 0, text
    code, text = dpmd("info", output)
    assert "O H" in text
    code, text = dpmd("convert", find_model("water_md0.pth"), "-o", output)
    assert code == 2
    assert "exists; choose another name or give --overwrite" in text
    assert dpmd("convert", find_model("water_md0.pth"), "-o", output, "--overwrite")[0] == 0


@pytest.mark.parametrize("suffix", ["dp", "dptab"])
def test_compress(dpmd, find_model, tmp_path, suffix):
    output = tmp_path / f"model.{suffix}"
    code, text = dpmd("compress", find_model("water_md0.dp"), "-o", output)
    assert code == 0, text
    rms = float(text.split("rms ")[1].split(" of")[0])
    assert rms < 1e-8
    code, text = dpmd("info", output)
    assert code == 0
    if suffix == "dp":
        assert "compressed     yes" in text


def test_compress_for_a_structure(dpmd, find_model, labelled_water, tmp_path):
    model, output = find_model("water_md0.dp"), tmp_path / "model.dptab"
    structure = tmp_path / "water.extxyz"
    ase.io.write(structure, labelled_water[1][0])

    def largest_error(*options):
        code, text = dpmd("compress", model, "-o", output, "--structure", structure, "--overwrite", *options)
        assert code == 0, text
        return float(text.split("largest ")[1].split(" eV")[0]), text

    assert largest_error()[0] < 1e-8
    error, text = largest_error("--rank", "3")
    assert ": 3 of " in text, text
    assert error > 1e-6  # too few, and it is said
    code, text = dpmd("compress", model, "-o", tmp_path / "other.dptab", "--rank", "0")
    assert code == 2
    assert "--rank 0: give 1 or more" in text
    code, text = dpmd("compress", model, "-o", tmp_path / "other.dp", "--rank", "3")
    assert code == 2
    assert not (tmp_path / "other.dp").exists()


def test_mean_neighbors_of_a_structure(find_model, labelled_water):
    from dpmd.compress import _mean_neighbors
    from dpmd.models import load
    from dpmd.potential import assign_types

    model, atoms = load(find_model("water_md0.dp")), labelled_water[1][0]
    types = assign_types(atoms.symbols, model.type_map)
    found = _mean_neighbors(model, atoms, types)
    i, j = ase.neighborlist.neighbor_list("ij", atoms, model.cutoff)
    for a in range(2):
        for b in range(2):
            pairs = np.count_nonzero((types[i] == a) & (types[j] == b))
            assert found[a, b] == pytest.approx(pairs / np.count_nonzero(types == a), abs=1e-12)


# --------------------------------------------------------------------- test, model-devi, neighbor-stat


def errors(text):
    """``{label: (mae, rmse)}`` of the last table that was printed."""
    rows = {}
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#"):
            rows = {}
        elif len(words) == 4 and words[0] in ("Energy", "Energy/atom", "Force", "Virial", "Virial/atom"):
            rows[words[0]] = (float(words[1]), float(words[2]))
    return rows


def test_errors_of_a_model(dpmd, find_model, labelled_water, tmp_path):
    from dpmd import DP
    from dpmd.units import stress_from_virial

    path, frames = labelled_water
    model = find_model("water_md0.pb")
    code, text = dpmd("test", model, "-s", path, "-d", tmp_path / "detail")
    assert code == 0, text
    calculator, energies, forces, stresses = DP(model, threads=1), [], [], []
    for atoms in frames:
        energies.append(calculator.get_potential_energy(atoms) - atoms.get_potential_energy())
        forces.append(calculator.get_forces(atoms) - atoms.get_forces())
        stresses.append(calculator.get_stress(atoms) - atoms.get_stress())
    found = errors(text)
    assert found["Energy"][1] == pytest.approx(np.sqrt(np.mean(np.square(energies))), rel=1e-5)
    assert found["Energy/atom"][0] == pytest.approx(np.mean(np.abs(energies)) / 24, rel=1e-5)
    assert found["Force"][0] == pytest.approx(np.mean(np.abs(forces)), rel=1e-5)
    detail = np.loadtxt(tmp_path / "detail.f.out")
    assert detail.shape == (4 * 24, 6)
    virial = np.loadtxt(tmp_path / "detail.v.out")
    difference = (virial[0, 9:] - virial[0, :9]).reshape(3, 3)
    volume = frames[0].get_volume()
    np.testing.assert_allclose(stress_from_virial(difference, volume), stresses[0], atol=1e-6)
    code, text = dpmd("test", model, "-s", path, "-d", tmp_path / "detail")
    assert code == 2
    assert errors(dpmd("test", model, "-s", path, "-n", 1)[1])["Energy"][0] == pytest.approx(abs(energies[0]), rel=1e-4)


#: {model: (data set, {quantity: (mean absolute error, root of the mean square)})} of ``dp test`` of DeePMD-kit 3.2.0
DP_TEST = {
    "water": ("water_dft", {
        "Energy": (5.527939e-02, 5.527939e-02), "Energy/atom": (2.879135e-04, 2.879135e-04),
        "Force": (3.331499e-02, 4.689867e-02),
    }),
    "copper": ("copper", {
        "Energy": (4.868902e-02, 6.271140e-02), "Energy/atom": (4.508242e-04, 5.806611e-04),
        "Force": (1.282620e-02, 2.654780e-02), "Virial": (3.002779e-01, 5.686660e-01),
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", ["water", "copper"])
def test_equals_dp_test(dpmd, find_model, name):
    data, expected = DP_TEST[name]
    code, text = dpmd("test", find_model(f"{name}.dp"), "-s", DATA / "sets" / data)
    assert code == 0, text
    found = errors(text)
    for label, values in expected.items():
        assert found[label] == pytest.approx(values, abs=1e-6)


def test_parity_plot(dpmd, find_model, labelled_water, tmp_path):
    pytest.importorskip("matplotlib")
    code, text = dpmd("test", find_model("water_md0.pb"), "-s", labelled_water[0], "-p", tmp_path / "parity.png")
    assert code == 0, text
    assert (tmp_path / "parity.png").read_bytes().startswith(b"\x89PNG")


def test_several_sets_are_weighted_by_their_values(dpmd, find_model, labelled_water, tmp_path):
    path, frames = labelled_water
    frames[0].write(tmp_path / "one.extxyz")
    (tmp_path / "list").write_text(f"{path}\n# a comment\n{tmp_path / 'one.extxyz'}\n")
    code, text = dpmd("test", find_model("water_md0.pb"), "-f", tmp_path / "list")
    assert code == 0, text
    assert text.count("# ") == 3
    assert "# 5 frames of 2 data sets" in text


def test_nothing_to_compare(dpmd, find_model, small_water, tmp_path):
    small_water.write(tmp_path / "bare.extxyz")
    code, text = dpmd("test", find_model("water_md0.pb"), "-s", tmp_path / "bare.extxyz")
    assert code == 2
    assert "no energies, forces or virials" in text
    assert dpmd("test", find_model("water_md0.pb"))[0] == 2


@pytest.mark.parametrize(
    ("flags", "file"),
    [
        ([], "plain"),
        (["--atomic"], "atomic"),
        (["--real_error"], "real"),
    ],
)
def test_equals_dp_model_devi(dpmd, find_model, tmp_path, flags, file):
    """The files of DeePMD-kit 3.2.0, line by line; numbers may differ in the last digit."""
    reference = (DATA / "model_devi" / f"{file}.out").read_text().splitlines()
    data = DATA / "sets" / "water_md"
    models = [find_model(f"water_md{k}.pb") for k in range(4)]
    code, text = dpmd("model-devi", "-m", *models, "-s", data, "-o", tmp_path / "devi.out", "--frequency", 10, *flags)
    assert code == 0, text
    lines = (tmp_path / "devi.out").read_text().splitlines()
    assert lines[1] == reference[1]
    assert len(lines) == len(reference)
    for found, expected in zip(lines[2:], reference[2:], strict=True):
        assert len(found) == len(expected)
        np.testing.assert_allclose(np.fromstring(found, sep=" "), np.fromstring(expected, sep=" "), rtol=2e-6)


def test_model_devi_by_hand(dpmd, find_model, labelled_water, tmp_path):
    from dpmd import DP

    path, frames = labelled_water
    models = [find_model(f"water_md{k}.pb") for k in range(2)]
    output = tmp_path / "devi.out"
    code, text = dpmd("model-devi", "-m", *models, "-s", path, "-o", output, "--frequency", 5, "--atomic")
    assert code == 0, text
    forces = np.array([DP(m, threads=1).get_forces(frames[2]) for m in models])
    expected = np.linalg.norm(forces[0] - forces[1], axis=1) / 2
    row = np.loadtxt(output)[2]
    assert row[0] == 10
    np.testing.assert_allclose(row[8:], expected, rtol=1e-5)
    np.testing.assert_allclose(row[4:7], [expected.max(), expected.min(), expected.mean()], rtol=1e-5)
    assert dpmd("model-devi", "-m", *models, "-s", path, "-o", output)[0] == 2
    assert "two or more" in dpmd("model-devi", "-m", models[0], "-s", path, "-o", tmp_path / "x")[1]


def test_neighbor_stat(dpmd, find_model, labelled_water):
    from ase.neighborlist import neighbor_list

    path, frames = labelled_water
    code, text = dpmd("neighbor-stat", "-s", path, "-m", find_model("water_md0.pb"), "-r", 4.0)
    assert code == 0, text
    nearest, most = np.inf, np.zeros(2, int)
    for atoms in frames:
        i, j, d = neighbor_list("ijd", atoms, 4.0)
        nearest = min(nearest, d.min())
        for k, symbol in enumerate("OH"):
            chosen = i[atoms.symbols[j] == symbol]
            most[k] = max(most[k], np.bincount(chosen).max())
    assert float(text.split("min_nbor_dist: ")[1].split()[0]) == pytest.approx(nearest, abs=1e-8)
    assert f"max_nbor_size: {most.tolist()}" in text
    assert "all types" in dpmd("neighbor-stat", "-s", path, "-r", 4.0, "--mixed-type")[1]


# --------------------------------------------------------------------- doctor


def statuses(text):
    """``{name: status}`` of the report."""
    rows = [line[2:].split("  ") for line in text.splitlines() if line[2:4] in ("ok", "--", "!!")]
    return {row[1].strip(): row[0] for row in rows}


def test_doctor_of_this_machine(dpmd):
    code, text = dpmd("doctor")
    assert code == 0, text
    found = statuses(text)
    assert found["cpu, double"] == found["cpu, mixed"] == found["versions"] == "ok"
    assert "computes right" in text


def test_numbers_of_the_trial_are_those_of_the_reference():
    from dpmd.kernels.neighbors import NeighborListBuilder
    from dpmd.kernels.reference import ReferenceOperators
    from dpmd.models import load
    from dpmd.parallel.batch import Batch

    atoms, stored = doctor.trial_structure()
    model = load(doctor.TRIAL_MODEL)
    types = np.array([model.type_map.index(s) for s in atoms.symbols], np.int32)
    cell, periodic = atoms.cell.array[None], atoms.pbc[None]
    batch = Batch(atoms.positions, types, [0, len(types)], cell, periodic, model.cutoff, NeighborListBuilder(2))
    result = ReferenceOperators(model).evaluate(batch.positions, batch.types, batch.neighbors, batch.forces)
    assert result.energies[0] == pytest.approx(float(stored["energy"]), abs=1e-10)
    np.testing.assert_allclose(batch.fold(batch.forces), stored["forces"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.virials[0], stored["virial"], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("packages", "probe", "gpus", "expected", "words"),
    [
        ((), None, [], {"MPI": "--", "GPU": "--"}, "pip install '.[mpi]'"),
        ((), None, ["NVIDIA H200"], {"GPU": "--"}, "pip install '.[cuda12]'"),
        (("mpi4py",), "4.1.0|MPICH Version: 4.3", [], {"MPI": "ok"}, "mpi4py 4.1.0 with MPICH"),
        (("mpi4py",), None, [], {"MPI": "!!"}, "finds no MPI library (cannot load)"),
        (("cupy",), None, ["NVIDIA H200"], {"GPU": "!!"}, "answers: cannot load"),
        (("cupy",), "14.0 13000 12090\nNVIDIA H200|139|9.0", ["NVIDIA H200"], {"GPU 0": "ok"}, "139 GiB"),
    ],
)
def test_doctor_elsewhere(dpmd, monkeypatch, packages, probe, gpus, expected, words):
    """With and without MPI and GPUs, which this machine may or may not have: the right words, exit code 0."""
    there = doctor.importlib.util.find_spec

    def find_spec(name, package=None):
        return (name in packages or None) if name in ("mpi4py", "cupy") else there(name, package)

    monkeypatch.setattr(doctor.importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(doctor, "_probe", lambda *_: (probe, "" if probe else "cannot load"))
    monkeypatch.setattr(doctor, "_gpus_of_driver", lambda: gpus)
    code, text = dpmd("doctor")
    assert code == 0, text
    assert words in text
    found = statuses(text)
    assert {name: found[name] for name in expected} == expected


def test_doctor_notices_wrong_numbers(dpmd, monkeypatch, tmp_path):
    stored = json.loads(doctor.TRIAL_RESULTS.read_text())
    stored["energy"] += 0.01
    (tmp_path / "wrong.json").write_text(json.dumps(stored))
    monkeypatch.setattr(doctor, "TRIAL_RESULTS", tmp_path / "wrong.json")
    code, text = dpmd("doctor")
    assert code == 1
    assert "computes wrong numbers" in text


# --------------------------------------------------------------------- report


def test_report(dpmd, water_run, tmp_path):
    pytest.importorskip("matplotlib")
    analyses = [{"type": "rdf", "cutoff_A": 5.0, "every": 5}, {"type": "msd", "every": 1}, {"type": "vdos", "every": 1}]
    assert water_run(analysis=analyses)[0] == 0
    code, text = dpmd("report", tmp_path)
    assert code == 0, text
    page = (tmp_path / "run.report.html").read_text()
    assert "data:image/svg+xml;base64," in page
    assert "molecular dynamics with Deep Potential" in page  # the log
    assert "http" not in page  # self-contained
    assert dpmd("report", tmp_path)[0] == 2  # does not overwrite
    for suffix, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        assert dpmd("report", tmp_path, "-o", tmp_path / f"page.{suffix}")[0] == 0
        assert (tmp_path / f"page.{suffix}").read_bytes().startswith(start)


def test_report_says_what_the_log_says(water_run, tmp_path):
    """The drift with its error, and the phases under the names of the log's table."""
    from dpmd import report

    code, text = water_run(run={"steps": 60})
    assert code == 0, text
    run = report.find(tmp_path)
    drift, error = re.search(r"drift (\S+) \+- (\S+) meV", text).groups()
    value, unit, _ = report._facts(run)[-1]
    assert float(value) == pytest.approx(float(drift), rel=0.1)
    assert float(re.search(r"± (\S+) meV/atom/ns", unit)[1]) == pytest.approx(float(error), rel=0.1)
    shares = {name.removeprefix("force: "): float(share) for name, share in re.findall(
        r"^ +(force: \w+|neighbor|integrate|output|other) +\S+ +(\S+) +\S+$", text, re.M
    )}  # fmt: skip
    shares["force"] = shares.pop("assembly")
    total = sum(run.summary["phases"].values())
    assert set(shares) <= set(run.summary["phases"])
    for name, share in shares.items():
        assert 100 * run.summary["phases"][name] / total == pytest.approx(share, abs=0.3), name


def test_report_chooses_a_run(dpmd, tmp_path):
    code, text = dpmd("report", tmp_path)
    assert code == 2
    assert "no finished run here" in text
    for name in ("a", "b"):
        (tmp_path / f"{name}.summary.json").write_text("{}")
    code, text = dpmd("report", tmp_path)
    assert code == 2
    assert "a, b" in text
    assert "--name" in text
