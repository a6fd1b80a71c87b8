"""md-run on several MPI ranks, all on this machine, against one process."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import ase.io
import numpy as np
import pytest

from dpmd.perfmodel.runs import read_runs

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")

PROGRAM = Path(__file__).parent / "programs" / "md_run_ranks.py"
#: the environment's own mpiexec rather than the system's
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
ENSEMBLES = {
    "nve": {"type": "nve"},
    "nose-hoover": {"type": "nvt", "thermostat": "nose-hoover", "relaxation_time_ps": 0.01},
    "langevin": {"type": "nvt", "thermostat": "langevin", "relaxation_time_ps": 0.02},
    "csvr": {"type": "nvt", "thermostat": "csvr", "relaxation_time_ps": 0.01},
    "npt": {
        "type": "npt", "thermostat": "csvr", "relaxation_time_ps": 0.01, "coupling": "tri", "pressure_bar": 20000.0,
        "pressure_relaxation_time_ps": 0.05,
    },
}  # fmt: skip


def start(n, *arguments, launcher=(), **environment):
    """mpiexec with n ranks of md-run in the current folder, patient with ranks that share cores."""
    environment |= {
        "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    return subprocess.Popen(
        [MPIEXEC, *launcher, "-n", str(n), sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def ranks(n, *arguments, **more):
    """Run to the end; returns the exit code and all output."""
    process = start(n, *arguments, **more)
    try:
        text, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, text


@pytest.fixture
def write_input(water_run):
    """Function: writes NAME.toml for ``water_run``'s system, checks it, and returns its name."""

    def write(name, **settings):
        settings.setdefault("output", [{"file": f"{name}.extxyz", "every": 10, "velocities": True, "forces": True}])
        code, text = water_run("--check", name=name, **settings)
        assert code == 0, text
        return f"{name}.toml"

    return write


def settings_of(ensemble, steps, **run):
    return {
        "ensemble": ENSEMBLES[ensemble],
        "structure": {"replicate": [2, 1, 1]},
        "run": {"steps": steps, "skin": 0.3, **run},
    }


def assert_same(thermo_columns, one, other, tolerance):
    """Thermo tables and last frames agree."""
    a, b = thermo_columns(f"{one}.thermo.csv"), thermo_columns(f"{other}.thermo.csv")
    for key in a:
        assert b[key] == pytest.approx(a[key], rel=tolerance, abs=tolerance), key
    first, second = ase.io.read(f"{one}.extxyz"), ase.io.read(f"{other}.extxyz")
    assert np.abs(first.cell - second.cell).max() < max(tolerance, 2e-8)
    assert np.abs(first.positions - second.positions).max() < max(tolerance, 2e-8)
    assert np.abs(first.get_forces() - second.get_forces()).max() < max(10 * tolerance, 2e-7)


def check_times(path, n, text):
    """Phases add up on every rank, waiting is one of them, and dp-perf reads the summary."""
    summary = json.loads(Path(path).read_text())
    spread = summary["parallel"]["phases_s"]
    assert all(least <= mean <= most for least, mean, most in spread.values())
    assert sum(mean for _, mean, _ in spread.values()) == pytest.approx(summary["seconds"], rel=0.1)  # of root
    assert spread["waiting"][0] > 0
    assert summary["phases"]["waiting"] == pytest.approx(spread["waiting"][1] / summary["steps"])
    assert re.search(r"^  waiting( +\d+\.\d{3}){3} ", text, re.M)
    (run,) = read_runs(path)
    assert run.layout.ranks == n
    assert run.engine == ("dpmd-rank" if summary["rank_grid"] else "dpmd")
    assert run.layout.rank_grid == (tuple(summary["rank_grid"]) if summary["rank_grid"] else None)
    assert run.slowest_pair_seconds > run.pair_seconds > 0


@pytest.mark.parametrize(
    ("ensemble", "n", "flags"),
    [
        ("nve", 4, ("--ranks-per-node", "2")),
        ("nose-hoover", 3, ("--decomposition", "rank")),
        ("langevin", 2, ("--balance", "work")),
        ("csvr", 3, ("--ranks-per-node", "1", "--halo-precision", "single")),
    ],
)
def test_trajectory_is_that_of_one_process(water_run, write_input, thermo_columns, ensemble, n, flags):
    steps = 200 if ensemble == "nve" else 60
    settings = settings_of(ensemble, steps)
    settings["analysis"] = [{"type": "rdf", "every": 5, "cutoff_A": 5.0, "file": "one.csv"}]
    write_input("one", **settings)
    assert water_run(name="one", **settings, output=[{"file": "one.extxyz", "every": 10, "forces": True}])[0] == 0
    settings["analysis"][0]["file"] = "several.csv"
    code, text = ranks(n, write_input("several", **settings), *flags)
    assert code == 0, text
    assert np.genfromtxt("several.csv", delimiter=",", skip_header=2) == pytest.approx(
        np.genfromtxt("one.csv", delimiter=",", skip_header=2), rel=1e-6
    )
    assert f"{n} ranks" in text
    assert text.count("Loop of") == 1
    rounded = "--halo-precision" in flags
    assert ("positions from other boxes travel as float32, off by 1.8e-08 Å at most" in text) == rounded
    assert_same(thermo_columns, "one", "several", 1e-6 if rounded else 1e-7)
    check_times("several.summary.json", n, text)


def test_restart_on_the_same_and_on_other_ranks(write_input, thermo_columns):
    settings = settings_of("npt", 40) | {"checkpoint": {"every": 20}, "thermo": {"every": 1}}
    assert ranks(3, write_input("whole", **settings))[0] == 0
    half = settings_of("npt", 20) | {"checkpoint": {"every": 20}, "thermo": {"every": 1}}
    assert ranks(3, write_input("parts", **half))[0] == 0
    for suffix in ("checkpoint.h5", "thermo.csv", "extxyz"):
        shutil.copy(f"parts.{suffix}", f"kept.{suffix}")
    code, text = ranks(3, write_input("parts", **settings), "--continue")
    assert code == 0, text
    for suffix in ("thermo.csv", "extxyz"):  # the same ranks: every bit
        assert Path(f"parts.{suffix}").read_bytes() == Path(f"whole.{suffix}").read_bytes()
    for suffix in ("checkpoint.h5", "thermo.csv", "extxyz"):
        shutil.copy(f"kept.{suffix}", f"parts.{suffix}")
    code, text = ranks(2, "parts.toml", "--continue", "--decomposition", "rank")
    assert code == 0, text
    assert_same(thermo_columns, "whole", "parts", 1e-7)


def test_minimisation_committee_and_values_of_atoms(water_run, write_input, thermo_columns, find_model):
    shutil.copy(find_model("water_md1.pb"), "other")
    settings = settings_of("nve", 10) | {
        "model": {"file": "model", "committee": ["other"], "deviation_every": 5, "deviation_atomic": True},
        "minimize": {"method": "cg", "max_iterations": 5, "pressure_bar": 0.0, "coupling": "tri"},
    }
    more = {"every": 5, "forces": True, "atom_energies": True, "atom_virials": True}
    write_input("one", **settings)
    assert water_run(name="one", **settings, output=[{"file": "one.extxyz", **more}])[0] == 0
    code, text = ranks(3, write_input("several", **settings, output=[{"file": "several.extxyz", **more}]))
    assert code == 0, text
    assert "Minimised by cg: 5 iterations" in text
    assert_same(thermo_columns, "one", "several", 1e-7)
    first, second = ase.io.read("one.extxyz"), ase.io.read("several.extxyz")
    for name in ("atom_energy", "atom_virial"):
        np.testing.assert_allclose(second.arrays[name], first.arrays[name], rtol=1e-6, atol=1e-7)
    one, several = (np.loadtxt(f"{name}.model_devi.out") for name in ("one", "several"))
    np.testing.assert_allclose(several, one, rtol=1e-5, atol=1e-12)


def test_atoms_are_evaluated_while_messages_travel(water_run, write_input, thermo_columns):
    settings = settings_of("nve", 10) | {"structure": {"replicate": [12, 2, 2]}}
    write_input("one", **settings)
    assert water_run(name="one", **settings, output=[{"file": "one.extxyz", "every": 10, "forces": True}])[0] == 0
    code, text = ranks(4, write_input("several", **settings), "--ranks-per-node", "2")
    assert code == 0, text
    assert "grid 2 x 1 x 1" in text
    assert int(re.search(r"up to (\d+) atoms per rank are evaluated while messages travel", text)[1]) > 150
    assert_same(thermo_columns, "one", "several", 1e-7)


def test_two_hosts(water_run, write_input, thermo_columns):
    version = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" not in version:
        pytest.skip("only MPICH's launcher can pretend that this machine is several")
    settings = settings_of("nve", 20)
    write_input("one", **settings)
    assert water_run(name="one", **settings, output=[{"file": "one.extxyz", "every": 10, "forces": True}])[0] == 0
    hosts = ("-launcher", "fork", "-hosts", "a:2,b:2")
    code, text = ranks(4, write_input("several", **settings), launcher=hosts)
    assert code == 0, text
    assert "2 boxes" in text
    assert_same(thermo_columns, "one", "several", 1e-9)


def test_wrong_input_is_reported_once(write_input):
    write_input("bad")
    Path("start.extxyz").write_text("not a structure")
    code, text = ranks(3, "bad.toml")
    assert code == 2, text
    assert text.count("ERROR:") == 1


def test_rounded_halos_are_for_nodes(write_input):
    code, text = ranks(2, write_input("bad"), "--halo-precision", "single", "--decomposition", "rank")
    assert code == 2, text
    assert "set that, or leave halo_precision out" in text


def test_a_run_that_goes_wrong_stops_all_ranks_with_one_report(write_input):
    code, text = ranks(3, write_input("bad", run={"max_displacement": 0.005}))
    assert code == 1, text
    assert text.count("The worst atoms:") == 1
    assert "nearest neighbour" in text
    assert "Traceback" not in text
    assert len(ase.io.read("bad.failed.extxyz")) == 24


def test_a_rank_that_fails_ends_the_job(write_input):
    begin = time.monotonic()
    code, text = ranks(3, write_input("bad"), FAIL="1")
    assert code != 0
    assert "rank 1 failed and ends the job" in text
    assert "disk is on fire" in text
    assert time.monotonic() - begin < 60


def wait_for(condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_killing_one_rank_ends_the_job_and_keeps_the_checkpoint(write_input):
    settings = settings_of("nve", 100000) | {"checkpoint": {"every": 5}}
    process = start(3, write_input("killed", **settings))
    wait_for(lambda: Path("killed.checkpoint.h5").exists())
    os.kill(int(Path("pid.1").read_text()), signal.SIGKILL)
    text, _ = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KILLED" in text.upper()
    settings["run"]["steps"] = 100000
    code, text = ranks(2, "killed.toml", "--continue", "--check")
    assert code == 0, text
    assert "from killed.checkpoint.h5, step" in text


def test_a_signal_to_one_rank_stops_all_in_order(write_input):
    process = start(3, write_input("stopped", **settings_of("nve", 100000)))
    wait_for(lambda: Path("stopped.extxyz").exists() and Path("stopped.extxyz").stat().st_size > 10000)
    os.kill(int(Path("pid.2").read_text()), signal.SIGTERM)
    text, _ = process.communicate(timeout=60)
    assert "signal SIGTERM" in text
    assert "go on with --continue" in text
    assert Path("stopped.checkpoint.h5").exists()
