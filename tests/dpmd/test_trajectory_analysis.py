"""Analyses against cases that are known exactly, alone and during a run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import ase
import numpy as np
import pytest
from ase.build import bulk

from dpmd import Simulation
from dpmd import trajectory_analysis as analysis
from dpmd.checkpoint import Checkpoint


def table(path):
    lines = Path(path).read_text().splitlines()
    assert lines[0].startswith("# ")
    titles = lines[1].split(",")
    numbers = np.array([line.split(",") for line in lines[2:]], float)
    return {title: numbers[:, k] for k, title in enumerate(titles)}


def test_ideal_gas_has_no_structure():
    random = np.random.default_rng(0)
    cell = np.array([[9.0, 0, 0], [2.0, 8.0, 0], [-1.0, 1.5, 10.0]])
    frames = [ase.Atoms("Ar150Ne50", random.random((200, 3)) @ cell, cell=cell, pbc=True) for _ in range(40)]
    r, g = analysis.pair_distribution(frames, cutoff=12.0, bins=24)  # beyond half the cell
    assert r[-1] == 11.75
    for pair in (("Ar", "Ar"), ("Ar", "Ne"), ("Ne", "Ar"), ("Ne", "Ne")):
        np.testing.assert_allclose(g[pair][4:], 1.0, atol=0.05)


def test_shells_of_a_crystal():
    copper = bulk("Cu", cubic=True, a=3.6)
    counter = analysis.PairCounter(1, 5.0, 500)
    counter.add(copper.positions, np.zeros(4, int), copper.cell.array, copper.pbc)
    _, n = counter.radial_distribution()
    for distance, within in ((2.4, 0), (2.6, 12), (3.7, 18), (4.5, 42)):
        assert n[0, 0, int(distance / 5.0 * 500)] == within
    assert analysis.coordination_numbers([copper], 3.0) == {("Cu", "Cu"): 12.0}
    assert counter.coordination[0][0] == {42: 4}


def test_displacement_of_straight_motion():
    velocities = np.random.default_rng(0).normal(size=(7, 3))
    positions = np.arange(50)[:, None, None] * velocities + 100.0
    expected = np.arange(50) ** 2 * (velocities**2).sum(axis=1).mean()
    np.testing.assert_allclose(analysis.mean_square_displacement(positions), expected, rtol=1e-9, atol=1e-8)


def test_displacement_is_the_plain_double_sum():
    positions = np.cumsum(np.random.default_rng(1).normal(size=(30, 4, 3)), axis=0)
    found = analysis.mean_square_displacement(positions)
    for lag in (1, 7, 29):
        assert found[lag] == pytest.approx(((positions[lag:] - positions[:-lag]) ** 2).sum(axis=2).mean())


def langevin_positions(n, frames, interval, relaxation_time, thermal, seed=0):
    """(frames, n, 3) of free particles with friction: the exact solution, at any interval.

    thermal : kT/m, the variance of a velocity component.  Velocity and displacement of an interval are drawn
    from their joint normal distribution (D. L. Ermak, H. Buckholz, J. Comput. Phys. 35, 169 (1980)).
    """
    random, tau = np.random.default_rng(seed), relaxation_time
    decay = np.exp(-interval / tau)
    drag = tau * (1 - decay)
    spread_v = thermal * (1 - decay**2)
    spread_x = thermal * tau * (2 * interval - tau * (3 - 4 * decay + decay**2))
    both = thermal * tau * (1 - decay) ** 2
    v, x, series = random.normal(0, thermal**0.5, (n, 3)), np.zeros((n, 3)), []
    for _ in range(frames):
        series.append(x)
        noise, other = random.normal(size=(2, n, 3))
        dv = spread_v**0.5 * noise
        dx = both / spread_v * dv + (spread_x - both**2 / spread_v) ** 0.5 * other
        x, v = x + drag * v + dx, decay * v + dv
    return np.array(series)


def test_diffusion_of_a_random_walk():
    steps = np.random.default_rng(2).normal(0, 0.1, size=(2000, 50, 3))
    found = analysis.diffusion_coefficient(np.cumsum(steps, axis=0), 0.01)
    assert found.reason == ""
    assert abs(found.coefficient - 0.5) < 3 * found.error < 0.1
    assert found.begin == 0.01


def test_diffusion_of_free_particles_with_friction():
    """D = kT tau / m; over many runs, deviations are as large as the errors say."""
    thermal, tau = 4.0, 0.1
    deviations = []
    for seed in range(20):
        series = langevin_positions(12, 1500, 0.05, tau, thermal, seed)
        found = analysis.diffusion_coefficient(series, 0.05)
        assert found.reason == ""
        assert found.begin >= 4 * tau
        deviations.append((found.coefficient - thermal * tau) / found.error)
    assert abs(np.mean(deviations)) < 3 / 20**0.5 * 1.2
    assert 0.7 < np.std(deviations) < 1.8


def test_no_diffusion_of_free_flight_and_of_short_runs():
    flight = np.arange(1000)[:, None, None] * np.random.default_rng(0).normal(size=(30, 3)) + 5.0
    found = analysis.diffusion_coefficient(flight, 0.01)
    assert "fly freely: the msd grows as t^2 " in found.reason
    assert np.isnan(found.coefficient)
    assert np.isnan(found.error)
    assert "too few" in analysis.diffusion_coefficient(flight[:90], 0.01).reason
    # ten relaxation times in all
    short = langevin_positions(200, 1000, 0.001, 0.1, 4.0)
    assert "fly freely" in analysis.diffusion_coefficient(short, 0.001).reason


def test_no_diffusion_where_the_displacement_bends():
    """Particles that are let go after having been tied: the second half of every lag is steeper."""
    times = 0.01 * np.arange(4000)
    random = np.random.default_rng(1)
    frequencies = np.geomspace(0.02, 5.0, 60)
    phases = random.random((60, 40, 3)) * 2 * np.pi
    waves = np.cos(2 * np.pi * frequencies * times[:, None])  # msd ~ t^0.4: never straight
    series = np.einsum("tk,knx->tnx", waves, np.cos(phases) * frequencies[:, None, None] ** -0.2)
    found = analysis.diffusion_coefficient(series, 0.01)
    assert "not a straight line" in found.reason


def test_no_motion_diffuses_with_zero():
    found = analysis.diffusion_coefficient(np.ones((200, 3, 3)), 0.1)
    assert (found.coefficient, found.error, found.reason) == (0.0, 0.0, "")


def test_velocity_correlation_is_the_plain_double_sum():
    velocities = np.random.default_rng(3).normal(size=(25, 3, 3))
    found = analysis.velocity_autocorrelation(velocities, weights=[1.0, 2.0, 3.0])
    plain = [
        np.average((velocities[lag:] * velocities[: 25 - lag]).sum(axis=2).mean(axis=0), weights=[1, 2, 3])
        for lag in range(25)
    ]
    np.testing.assert_allclose(found, np.array(plain) / plain[0], atol=1e-12)


def test_spectrum_of_oscillators():
    interval, terahertz = 0.002, 55.0
    times = interval * np.arange(2000)
    phases = np.random.default_rng(4).random((1, 20, 3)) * 2 * np.pi
    velocities = np.cos(2 * np.pi * terahertz * times[:, None, None] + phases)
    frequencies, density = analysis.vibrational_density_of_states(velocities, interval)
    assert frequencies[np.argmax(density)] == pytest.approx(terahertz, abs=0.6)
    assert np.trapezoid(density, frequencies) == pytest.approx(1.0)


def test_unwrapping():
    atoms = ase.Atoms("H", cell=[[4, 0, 0], [1, 4, 0], [0, 0, 4]], pbc=True)
    frames = []
    for k in range(20):
        moved = atoms.copy()
        moved.positions[:] = [0.9 * k, -0.7 * k, 0.3 * k]
        moved.wrap()
        frames.append(moved)
    found = analysis.unwrapped(frames)
    np.testing.assert_allclose(found[:, 0] - found[0, 0], np.outer(np.arange(20), [0.9, -0.7, 0.3]), atol=1e-12)


SECTIONS = [
    {"type": "rdf", "cutoff_A": 5.0, "every": 2, "bins": 50},
    {"type": "coordination", "cutoff_A": 1.3, "file": "bonds.csv"},
    {"type": "msd", "every": 2, "first_step": 4},
    {"type": "vacf", "every": 1},
    {"type": "vdos", "every": 1},
]


def test_during_a_run(water_run):
    code, text = water_run(analysis=SECTIONS)
    assert code == 0, text
    rdf, bonds, msd, vacf = (table(name) for name in ("rdf.csv", "bonds.csv", "msd.csv", "vacf.csv"))
    assert {"r_A", "g_O-O", "g_O-H", "g_H-H", "n_H-O"} <= set(rdf)
    near = rdf["r_A"] < 1.3
    assert rdf["n_O-H"][near][-1] == pytest.approx(2.0)
    assert bonds["share_O-H"][2] == pytest.approx(1.0)
    assert "Coordination O-H within 1.3 Å: 2.000" in text
    assert "Diffusion of O: cannot be given: 9 samples are too few" in text
    assert len(msd["time_ps"]) == 9
    assert msd["time_ps"][1] == pytest.approx(0.001)
    assert vacf["vacf_O"][0] == 1.0
    assert (Path("vdos.csv")).read_text().startswith("# vibrational density of states; steps 0 to 20, 21 samples")


def test_samples_are_saved_with_checkpoints(tmp_path, small_water, find_model):
    """So that a run that is killed loses none of those before the checkpoint from which it goes on."""
    hook = analysis.MeanSquareDisplacementHook(tmp_path / "msd.csv", 1)
    saver = Checkpoint(5, tmp_path / "checkpoint.h5", "model", {}, {})
    simulation = Simulation.from_atoms(
        small_water, find_model("water_md0.dp"), initial_temperature_K=300, threads=1, hooks=[hook, saver]
    )
    saved = []
    simulation.every(1, lambda s: saved.append(len(table(hook.path)["time_ps"]) if hook.path.exists() else 0))
    simulation.run(6)
    assert saved == [0, 0, 0, 0, 0, 6, 6]
    assert len(table(hook.path)["time_ps"]) == 7


NAMES = ("rdf.csv", "bonds.csv", "msd.csv", "vacf.csv", "vdos.csv")


def in_parts(steps):
    """Settings with checkpoints every 10 steps, and lists that are rebuilt often."""
    return {
        "analysis": SECTIONS, "run": {"steps": steps, "skin": 0.05}, "checkpoint": {"every": 10},
        "ensemble": {"type": "nvt", "thermostat": "csvr", "relaxation_time_ps": 0.01},
    }  # fmt: skip


def test_two_parts_write_the_file_of_the_whole(water_run):
    assert water_run(**in_parts(40))[0] == 0
    whole = {name: Path(name).read_bytes() for name in NAMES}
    assert water_run("--overwrite", **in_parts(20))[0] == 0
    assert b"steps 0 to 20," in Path("vacf.csv").read_bytes()
    Path("msd.csv").unlink()  # it can be written again from the samples
    code, text = water_run("--continue", **in_parts(40))
    assert code == 0, text
    assert "rdf.csv goes on with the 11 samples of the checkpoint" in text
    assert {name: Path(name).read_bytes() for name in NAMES} == whole


def test_killed_while_files_are_written(water_run, tmp_path):
    """At each write of a file and each renaming of a checkpoint or analysis, and between."""
    source = tmp_path / "source"
    source.mkdir()
    code, text = water_run("--check", **in_parts(20))
    assert code == 0, text
    for name in ("run.toml", "model", "start.extxyz"):
        shutil.copy(name, source)
    program = Path(__file__).parent / "programs" / "killed.py"
    done = subprocess.run(
        [sys.executable, program, source, "run.thermo.csv", *NAMES], capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    kills, continued = map(int, re.search(r"(\d+) kills, (\d+) continued", done.stdout).groups())
    # two checkpoints of six files and the summary, three moments each
    assert kills >= 3 * 13
    assert continued >= kills // 2


def test_a_kill_after_the_last_checkpoint_leaves_nothing_missing(water_run):
    assert water_run(**in_parts(20))[0] == 0
    whole = {name: Path(name).read_bytes() for name in NAMES}
    Path("msd.csv").unlink()
    rdf = Path("rdf.csv").read_text().splitlines()
    Path("rdf.csv").write_text("\n".join(["# radial distribution; steps 0 to 10, 6 samples", *rdf[1:]]))
    code, text = water_run("--continue", **in_parts(20))
    assert code == 0
    assert "msd.csv was written from the samples of the checkpoint" in text
    assert {name: Path(name).read_bytes() for name in NAMES} == whole


def test_fewer_steps_than_done_are_told(water_run):
    assert water_run(**in_parts(20))[0] == 0
    code, text = water_run("--continue", **in_parts(10))
    assert code == 0
    assert "run.toml:" in text
    assert "steps = 10, but the run has done 20 already" in text


def test_what_is_kept_when_a_run_is_repeated(water_run):
    """A second run does not overwrite; one that may leaves nothing to go on from that is not its own."""
    section = {"analysis": [{"type": "msd", "every": 1}]}
    assert water_run(**section)[0] == 0
    code, text = water_run(**section)
    assert code == 2
    assert "msd.csv" in text
    code, text = water_run("--overwrite", **section, run={"max_displacement": 1e-9})
    assert code == 1
    assert not Path("run.checkpoint.h5").exists()
    assert not Path("run.summary.json").exists()


def test_samples_are_not_mixed_with_others(water_run):
    assert water_run(analysis=[{"type": "rdf", "every": 5}])[0] == 0
    code, text = water_run("--continue", analysis=[{"type": "rdf", "every": 4}], run={"steps": 30})
    assert code == 2
    assert "rdf.csv was written as radial distribution (every = 5" in text
    assert "cannot go on as radial distribution (every = 4" in text
    code, text = water_run("--continue", analysis=[{"type": "msd"}], run={"steps": 30})
    assert code == 0, text
    assert "WARNING: rdf.csv was written until now and is no longer asked for" in text
    assert Path("msd.csv").read_text().startswith("# mean square displacement; steps 30 to 30")


def test_analyses_without_samples_and_with_too_many_are_told(water_run):
    section = {"type": "msd", "every": 3, "first_step": 19}
    code, text = water_run(analysis=[section])
    assert code == 0
    assert "msd.csv will not be written: its first sample is due at step 21, and steps = 20" in text
    assert not Path("msd.csv").exists()
    _, text = water_run("--check", "--overwrite", analysis=[section], run={"steps": 10**8})
    assert f"samples of msd.csv will take {24 * 24 * (10**8 // 3 - 6) / 2**30:.1f} GiB" in text


def test_distances_reach_to_the_cutoff_of_the_model(water_run):
    assert water_run(analysis=[{"type": "rdf", "bins": 60}], run={"steps": 0})[0] == 0
    assert table("rdf.csv")["r_A"][-1] == pytest.approx(5.95)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"type": "coordination"}, "needs cutoff_A"),
        ({"type": "rfd"}, "did you mean 'rdf'"),
        ({"type": "msd", "file": "nowhere/msd.csv"}, "does not exist"),
        ({"type": "msd", "file": "out.extxyz"}, "are the same file"),
    ],
)
def test_mistakes_are_named(water_run, section, words):
    code, text = water_run(analysis=[section])
    assert code == 2
    assert words in text
