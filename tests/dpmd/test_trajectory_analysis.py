"""Analyses against cases that are known exactly, alone and during a run."""

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


def test_diffusion_of_a_random_walk():
    steps = np.random.default_rng(2).normal(0, 0.1, size=(2000, 50, 3))
    msd = analysis.mean_square_displacement(np.cumsum(steps, axis=0))
    times = 0.01 * np.arange(2000)
    assert analysis.diffusion_coefficient(times, msd) == pytest.approx(3 * 0.01 / 0.01 / 6, rel=0.1)
    assert np.isnan(analysis.diffusion_coefficient(times[:2], msd[:2]))


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


def test_files_are_kept(water_run):
    """A second run does not overwrite; a continued one writes beside."""
    section = {"analysis": [{"type": "msd", "every": 1}]}
    assert water_run(**section)[0] == 0
    before = Path("msd.csv").read_text()
    code, text = water_run(**section)
    assert code == 2
    assert "msd.csv" in text
    code, text = water_run("--continue", **section, run={"steps": 30})
    assert code == 0, text
    assert Path("msd.csv").read_text() == before
    assert len(table("msd.from20.csv")["time_ps"]) == 10
    assert "msd from step 20 on: msd.from20.csv; earlier samples are in msd.csv" in text


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"type": "rdf"}, "needs cutoff_A"),
        ({"type": "rfd"}, "did you mean 'rdf'"),
        ({"type": "msd", "file": "nowhere/msd.csv"}, "does not exist"),
        ({"type": "msd", "file": "out.extxyz"}, "are the same file"),
    ],
)
def test_mistakes_are_named(water_run, section, words):
    code, text = water_run(analysis=[section])
    assert code == 2
    assert words in text
