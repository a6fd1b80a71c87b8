"""md-run from an input file to its results."""

import json
import signal
import subprocess
import sys
import time

import ase.io
import h5py
import numpy as np
import pytest


def test_a_run_and_what_it_leaves(water_run, tmp_path, thermo_columns, small_water):
    code, text = water_run(
        output=[
            {"file": "out.extxyz", "every": 5, "velocities": True, "forces": True},
            {"file": "out.traj", "every": 10, "forces": True},
            {"file": "out.dump", "every": 10, "forces": True, "unwrap": True},
        ]
    )
    assert code == 0, text
    for word in ("ns/day", "atom-steps/s", "drift", "force: embedding", "neighbor", "precision double", "cutoff 6"):
        assert word in text
    assert (tmp_path / "run.log").read_text().strip() == text.strip()
    thermo = thermo_columns("run.thermo.csv")
    assert list(thermo["step"]) == [0, 5, 10, 15, 20]
    assert thermo["temperature_K"][0] == pytest.approx(300, rel=1e-9)
    assert np.ptp(thermo["total_eV"]) < 2e-3
    frames = ase.io.read("out.extxyz", index=":")
    assert [a.info["step"] for a in frames] == [0, 5, 10, 15, 20]
    assert frames[0].get_potential_energy() == pytest.approx(thermo["potential_eV"][0], abs=1e-6)
    assert np.abs(frames[0].get_momenta().sum(axis=0)).max() < 1e-5
    moved = frames[0].positions - small_water.positions
    assert np.abs(moved - np.round(moved / 6.2) * 6.2).max() < 1e-6
    traj = ase.io.read("out.traj", index=":")
    assert len(traj) == 3
    assert traj[-1].get_forces() == pytest.approx(frames[-1].get_forces(), abs=1e-6)
    dump = ase.io.read("out.dump", format="lammps-dump-text", index=":")
    assert len(dump) == 3
    assert dump[-1].positions.mean(axis=0) == pytest.approx(frames[0].positions.mean(axis=0), abs=3.2)
    summary = json.loads((tmp_path / "run.summary.json").read_text())
    assert summary["atoms"] == 24
    assert summary["steps"] == 20
    assert sum(summary["phases"].values()) == pytest.approx(summary["seconds_per_step"], rel=0.05)


def test_outputs_are_never_overwritten_without_asking(water_run):
    assert water_run()[0] == 0
    code, text = water_run()
    assert code == 2
    assert "out.extxyz" in text
    assert "--continue" in text
    assert "--overwrite" in text
    assert water_run("--overwrite")[0] == 0


ENSEMBLES = {
    "nve": {"type": "nve"},
    "nose-hoover": {"type": "nvt", "thermostat": "nose-hoover", "relaxation_time_ps": 0.01},
    "langevin": {"type": "nvt", "thermostat": "langevin", "relaxation_time_ps": 0.02},
    "csvr": {"type": "nvt", "thermostat": "csvr", "relaxation_time_ps": 0.01},
}
FILES = ("run.thermo.csv", "out.extxyz", "out.dump")


def restart_settings(ensemble, steps, **run):
    """Checkpoints every 20 steps, lists rebuilt often, outputs at odd intervals."""
    return {
        "ensemble": ENSEMBLES[ensemble],
        "checkpoint": {"every": 20},
        "thermo": {"every": 1},
        "output": [
            {"file": "out.extxyz", "every": 3, "velocities": True, "forces": True},
            {"file": "out.traj", "every": 7},
            {"file": "out.dump", "every": 4, "velocities": True},
        ],
        "run": {"steps": steps, "threads": 2, "skin": 0.05, **run},
    }


@pytest.mark.parametrize("ensemble", ENSEMBLES)
@pytest.mark.parametrize("precision", ["double", "mixed"])
def test_two_parts_equal_the_whole(water_run, tmp_path, ensemble, precision):
    """20 + 20 steps with a checkpoint between, against 40 with the same checkpoints: every bit."""
    assert water_run(**restart_settings(ensemble, 40, precision=precision))[0] == 0
    whole = {name: (tmp_path / name).read_bytes() for name in FILES}
    frames = ase.io.read("out.traj", index=":")
    assert water_run("--overwrite", **restart_settings(ensemble, 20, precision=precision))[0] == 0
    assert len((tmp_path / "run.thermo.csv").read_bytes()) < len(whole["run.thermo.csv"])
    code, text = water_run("--continue", **restart_settings(ensemble, 40, precision=precision))
    assert code == 0, text
    for name in FILES:
        assert (tmp_path / name).read_bytes() == whole[name], name
    again = ase.io.read("out.traj", index=":")
    assert len(again) == len(frames) == 6
    assert np.array_equal(again[-1].positions, frames[-1].positions)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "SIGKILL", "wall time"])
def test_stopped_from_outside_and_continued(water_run, tmp_path, how):
    """A run that is stopped or killed goes on from its checkpoint to the same end."""
    walltime = {"walltime_h": 0.5 / 3600} if how == "wall time" else {}
    settings = restart_settings("csvr", 400, **walltime)
    settings["checkpoint"] = {"every": 1}  # so that the moment of the stop does not matter
    water_run("--check", **settings)
    process = subprocess.Popen(
        [sys.executable, "-c", "from dpmd.cli import md_run; md_run()", "run.toml"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if how != "wall time":
        wait_for(lambda: (tmp_path / "out.dump").exists() and (tmp_path / "out.dump").stat().st_size > 20000)
        process.send_signal(getattr(signal, how))
    code = process.wait(timeout=60)
    assert code == {"SIGTERM": 143, "SIGINT": 130, "SIGKILL": -9, "wall time": 0}[how]
    if how != "SIGKILL":
        assert "go on with --continue" in (tmp_path / "run.log").read_text()
    done = len((tmp_path / "run.thermo.csv").read_text().splitlines())
    assert 1 < done < 400
    settings["run"].pop("walltime_h", None)
    code, text = water_run("--continue", **settings)
    assert code == 0, text
    stopped = {name: (tmp_path / name).read_bytes() for name in FILES}
    assert water_run("--overwrite", **settings)[0] == 0
    for name in FILES:
        assert (tmp_path / name).read_bytes() == stopped[name], name


def test_first_start_and_later_ones_agree(water_run, tmp_path, monkeypatch):
    """Kernels just compiled and kernels from the cache give the same bits."""
    precision = {"run": {"precision": "mixed"}}
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    water_run("--check", **precision)
    results = []
    for _ in range(2):
        command = [sys.executable, "-c", "from dpmd.cli import md_run; md_run()", "run.toml", "--overwrite"]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
        results.append([(tmp_path / name).read_bytes() for name in ("run.thermo.csv", "out.extxyz")])
    assert results[0] == results[1]


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_pressure_is_the_trace_of_its_tensor(water_run, thermo_columns):
    assert water_run()[0] == 0
    thermo = thermo_columns("run.thermo.csv")
    trace = thermo["pxx_bar"] + thermo["pyy_bar"] + thermo["pzz_bar"]
    assert trace / 3 == pytest.approx(thermo["pressure_bar"], rel=1e-12)


def test_continuing_a_finished_run_is_nothing_to_do(water_run):
    assert water_run()[0] == 0
    code, text = water_run("--continue")
    assert code == 0
    assert "Nothing to do" in text


def test_continuing_with_other_settings_says_so(water_run):
    assert water_run()[0] == 0
    code, text = water_run(
        "--continue",
        structure={"masses_u": {"H": 3.0}},
        ensemble={"type": "nvt", "temperature_K": 500.0},
        run={"steps": 22, "precision": "mixed"},
    )
    assert code == 0, text
    assert "WARNING: structure.masses_u was {'H': 2.0} and is {'H': 3.0}, which is not used" in text
    assert "WARNING: run.precision was 'double' and is 'mixed', which holds now" in text
    assert "ensemble changes" in text


def test_columns_of_the_table_are_chosen_and_kept(water_run, thermo_columns):
    """Density: 8 O and 16 H of 2 u in a cube of 6.2 Å; 1 u is 1.66054e-24 g."""
    from dpmd.options import THERMO_COLUMNS

    chosen = {"every": 5, "columns": ["density_g_cm3", "temperature_K"]}
    assert water_run()[0] == 0
    thermo = thermo_columns("run.thermo.csv")
    assert tuple(thermo) == THERMO_COLUMNS
    assert thermo["density_g_cm3"] == pytest.approx((8 * 15.999 + 16 * 2.0) * 1.66053907 / 6.2**3, rel=1e-6)
    assert water_run("--overwrite", thermo=chosen)[0] == 0
    header = ["step", "time_ps", "density_g_cm3", "temperature_K"]
    assert list(thermo_columns("run.thermo.csv")) == header
    code, text = water_run("--continue", run={"steps": 30})  # keeps them
    assert code == 0, text
    thermo = thermo_columns("run.thermo.csv")
    assert list(thermo) == header
    assert thermo["step"][-1] == 30
    other = {"every": 5, "columns": ["temperature_K"]}
    code, text = water_run("--continue", thermo=other, run={"steps": 40})
    assert code == 2
    assert "run.toml:" in text
    assert "has the columns step, time_ps, density_g_cm3, temperature_K and cannot go on with" in text
    code, text = water_run("--overwrite", thermo={"columns": ["temprature_K"]})
    assert code == 2
    assert "did you mean 'temperature_K'" in text


@pytest.mark.parametrize("kind", ["npt", "nph"])
def test_more_steps_under_a_pressure_ramp_say_so(water_run, kind):
    """1000 -> 5000 bar over 20 steps is 5000 at step 20; over 80 steps 2000."""
    ramp = {"type": kind, "pressure_bar": [1000.0, 5000.0]}
    assert water_run(ensemble=ramp)[0] == 0
    _, text = water_run("--continue", "--check", ensemble=ramp, run={"steps": 80})
    assert "WARNING: run.steps was 20 and is 80, over all of which pressure_bar extends: at step 20" in text
    assert "the target pressure goes from 5000 to 2000 bar" in text
    _, text = water_run("--continue", "--check", ensemble=ramp | {"pressure_bar": 5000.0}, run={"steps": 80})
    assert "run.steps was" not in text
    _, text = water_run("--continue", "--check", ensemble=ramp | {"pressure_bar": [0.0, 4000.0]})
    assert "WARNING: pressure_bar changed: at step 20 the target pressure goes from 5000 to 4000 bar" in text


def test_motion_as_a_whole_is_no_heat(water_run, thermo_columns, tmp_path):
    water_run("--check")
    atoms = ase.io.read("start.extxyz")
    atoms.set_velocities(np.random.default_rng(0).normal(size=(24, 3)) * 0.05 + [0.4, 0, 0])
    ase.io.write("start.extxyz", atoms, format="extxyz")
    code, text = water_run(ensemble={"type": "nvt"})
    assert code == 0
    assert "moves as a whole" in text
    assert thermo_columns("run.thermo.csv")["temperature_K"][0] < 5000
    with h5py.File("run.checkpoint.h5") as file:
        momentum = file["masses"][()] @ file["velocities"][()]
    assert np.abs(momentum).max() < 1e-9


def test_check_runs_nothing(water_run, tmp_path):
    code, text = water_run("--check")
    assert code == 0
    for word in ("mass/u", "shortest", "sel", "memory", "cell", "precision", "nothing was run"):
        assert word in text
    assert not (tmp_path / "out.extxyz").exists()
    assert not (tmp_path / "run.log").exists()


def test_command_line_overrides_the_file(water_run):
    code, text = water_run("--precision", "mixed", "--threads", "2", "--skin", "0.7", "--no-tabulate")
    assert code == 0
    for word in ("precision mixed", "2 threads", "skin 0.7", "exact networks"):
        assert word in text


def test_help_lists_every_key(capsys):
    from dpmd import cli
    from dpmd.options import SECTIONS

    with pytest.raises(SystemExit) as exit_:
        cli.md_run(["--help-input"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for section in SECTIONS:
        assert section.title in text
        for option in section.options:
            assert f"    {option.name} " in text
            assert option.help in text


def test_frozen_at_zero_temperature_stays(water_run, thermo_columns):
    """Zero velocities in NVE start a descent, and the energy is conserved all the same."""
    assert water_run(structure={"velocities": "zero"})[0] == 0
    thermo = thermo_columns("run.thermo.csv")
    assert thermo["temperature_K"][0] == 0
    assert thermo["temperature_K"][-1] > 0


def test_open_cluster_and_replicated_slab(water_run, thermo_columns):
    assert water_run(structure={"periodic": [False, False, False]})[0] == 0
    assert np.isnan(thermo_columns("run.thermo.csv")["pressure_bar"]).all()
    code, text = water_run(
        "--overwrite", structure={"periodic": [True, True, False], "replicate": [2, 1, 1]}, run={"steps": 5}
    )
    assert code == 0
    assert "48 atoms" in text
    assert "ppo" in text
