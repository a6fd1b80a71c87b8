"""Every kind of ``[[analysis]]`` during a run, on motion and structures that are known exactly."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpmd import options, trajectory_analysis
from dpmd.ensembles import VelocityVerlet
from dpmd.simulation import Simulation
from dpmd.system import System

STEP = 0.0005  # ps


class Motion:
    """Operators and domain in one: atoms of type t on springs of frequency ``terahertz[t]`` (0: free) about the middle.

    At every step atoms are wrapped and change places in memory, as in a real run.
    """

    types = neighbors = None

    def __init__(self, *terahertz):
        self.squared = (2 * np.pi * np.array(terahertz)) ** 2

    def update(self, system):
        system.permute(np.roll(np.arange(len(system)), 1))
        across = np.floor(system.positions / np.diag(system.cell)).astype(np.int32)
        system.positions, system.images = system.positions - across @ system.cell, system.images + across
        self.system, self.positions, self.forces = system, system.positions, np.zeros_like(system.positions)
        return False

    rebuild = update

    def evaluate(self, positions, types, neighbors, forces):
        system = self.system
        away = positions - np.diag(system.cell) / 2
        forces -= (self.squared[system.types] / system.inverse_masses)[:, None] * away
        return SimpleNamespace(energies=np.zeros(1), virials=np.zeros((1, 3, 3)), overflowed=0)

    def fold(self, values):
        return values


def observe(tmp_path, system, motion, steps, log=None, **section):
    """Run with one ``[[analysis]]``; returns the columns of its file.  log : a function of the log's lines."""
    defaults = {"file": None, "every": 1, "first_step": 0, "cutoff_A": None, "bins": 200}
    given = SimpleNamespace(**defaults | section | {"file": str(tmp_path / "out.csv")}, where=lambda name="": name)
    hook = trajectory_analysis.create(given, 6.0, log)
    Simulation(system, motion, motion, VelocityVerlet(), [hook]).run(steps)
    lines = [line for line in (tmp_path / "out.csv").read_text().splitlines() if not line.startswith("#")]
    rows = np.array([line.split(",") for line in lines[1:]], float)
    return dict(zip(lines[0].split(","), rows.T, strict=True))


def atoms(positions, velocities=None, types=None, box=20.0, masses=(16.0, 2.0)):
    n = len(positions)
    types = np.zeros(n, np.int32) if types is None else np.array(types, np.int32)
    return System(
        ids=np.arange(1, n + 1), types=types, masses=np.array(masses)[types], positions=np.array(positions, float),
        velocities=np.zeros((n, 3)) if velocities is None else np.array(velocities, float), cell=np.eye(3) * box,
        periodic=np.ones(3, bool), type_names=("O", "H"), timestep=STEP,
    )  # fmt: skip


def caesium_chloride(n=3, a=3.05):
    """Two simple cubic lattices, type 1 in the middle of the cubes of type 0; one of type 0 is missing."""
    corners = a * np.stack(np.meshgrid(*[np.arange(n)] * 3), axis=-1).reshape(-1, 3) + 0.1
    return atoms(np.concatenate([corners[1:], corners + a / 2]), None, [0] * (n**3 - 1) + [1] * n**3, n * a)


def test_radial_distribution_of_a_lattice(tmp_path):
    """8 of the other type at sqrt(3)/2 a, 6 of one's own at a, 12 at sqrt(2) a; one atom is missing."""
    table = observe(tmp_path, caesium_chloride(), Motion(0, 0), 2, type="rdf", cutoff_A=4.5, bins=45)
    r, volume = table["r_A"], 9.15**3
    assert np.allclose(r, 0.05 + 0.1 * np.arange(45))
    shells = 4 / 3 * np.pi * np.diff((0.1 * np.arange(46)) ** 3)
    # in all: 27 of H, 26 of O; pairs of H-O: each O has 8 H
    neighbors = {
        "O-O": {30: (27 * 6 - 12) / 26, 43: (27 * 12 - 24) / 26}, "O-H": {26: 8.0}, "H-O": {26: 8 * 26 / 27},
        "H-H": {30: 6.0, 43: 12.0},
    }  # fmt: skip
    for pair, shell in neighbors.items():
        expected = np.zeros(45)
        for k, number in shell.items():
            expected[k] = number
        assert np.allclose(table[f"n_{pair}"], np.cumsum(expected), rtol=1e-6)
        if pair != "H-O":  # g is symmetric and is written once
            density = {"O": 26, "H": 27}[pair[-1]] / volume
            assert np.allclose(table[f"g_{pair}"], expected / (shells * density), rtol=1e-6)
    assert "g_H-O" not in table


def test_radial_distribution_is_a_mean_over_frames(tmp_path):
    """Two atoms fly apart: at 3.05 A, and 0.1 A further at each of four samples."""
    system = atoms([[5.0, 5, 5], [8.05, 5, 5]], [[0, 0, 0], [0.1 / (2 * STEP), 0, 0]])
    table = observe(tmp_path, system, Motion(0, 0), 7, type="rdf", cutoff_A=4.0, bins=40, every=2)
    expected = np.zeros(40)
    expected[[30, 31, 32, 33]] = 0.25
    assert np.allclose(table["n_O-O"], np.cumsum(expected), rtol=1e-6)
    shell = 4 / 3 * np.pi * (3.2**3 - 3.1**3)
    assert table["g_O-O"][31] == pytest.approx(0.25 / (shell * 2 / 20.0**3), rel=1e-6)


def test_coordination_of_a_lattice(tmp_path):
    said = []
    table = observe(tmp_path, caesium_chloride(), Motion(0, 0), 2, said.append, type="coordination", cutoff_A=2.8)
    for pair, mean in {"O-O": 0, "O-H": 8, "H-O": 8 * 26 / 27, "H-H": 0}.items():
        assert any(f" {pair} " in line and f" {mean:.3f}" in line for line in said), said
    share = {name: column for name, column in table.items() if name.startswith("share_")}
    assert set(share) == {"share_O-O", "share_O-H", "share_H-O", "share_H-H"}
    assert table["neighbours"].tolist() == list(range(9))
    expected = {"O-O": {0: 1.0}, "H-H": {0: 1.0}, "O-H": {8: 1.0}, "H-O": {7: 8 / 27, 8: 19 / 27}}
    for pair, shares in expected.items():
        assert np.allclose(share[f"share_{pair}"], [shares.get(k, 0.0) for k in range(9)], atol=1e-7)


def test_displacement_of_free_flight(tmp_path):
    """Across faces, relative to the centre of mass of all atoms: |v - v_com|^2 t^2 of each type."""
    random = np.random.default_rng(1)
    types = np.array([0, 1, 1, 0, 1, 0, 1])
    velocities = random.normal(0, 200.0, (7, 3)) + np.array([500.0, 0, 0])
    system = atoms(random.random((7, 3)) * 20, velocities, types)
    relative = velocities - system.masses @ velocities / system.masses.sum()
    table = observe(tmp_path, system, Motion(0, 0), 100, type="msd", every=5, first_step=20)
    assert np.abs(system.images).max() >= 1
    times = 5 * STEP * np.arange(17)
    assert np.allclose(table["time_ps"], times)
    for t, name in enumerate("OH"):
        speed2 = (relative[types == t] ** 2).sum(axis=1).mean()
        assert np.allclose(table[f"msd_{name}_A2"], speed2 * times**2, rtol=1e-6, atol=1e-6)


def circles(radii, terahertz, types, box=20.0):
    """Atoms on circles about the middle of the box, each at a phase of its own."""
    phases = np.arange(len(types)) * 0.7
    omega = 2 * np.pi * np.array(terahertz)[types]
    out = np.stack([np.cos(phases), np.sin(phases), 0 * phases], axis=1)
    along = np.stack([-np.sin(phases), np.cos(phases), 0 * phases], axis=1)
    radii = np.array(radii)[types][:, None]
    return atoms(box / 2 + radii * out, omega[:, None] * radii * along, types, box)


def test_velocity_correlation_of_circular_motion(tmp_path):
    """cos(2 pi f t), normalised, with each type's frequency."""
    frequencies = (10.0, 25.0)
    system = circles((0.4, 0.2), frequencies, np.array([0, 1, 1, 0, 1]))
    table = observe(tmp_path, system, Motion(*frequencies), 300, type="vacf", every=3)
    times = 3 * STEP * np.arange(101)
    assert np.allclose(table["time_ps"], times)
    for name, frequency in zip("OH", frequencies, strict=True):
        assert np.allclose(table[f"vacf_{name}"], np.cos(2 * np.pi * frequency * times), atol=0.02)


def test_velocity_correlation_of_free_flight(tmp_path):
    system = atoms(np.zeros((3, 3)), np.diag([300.0, 200.0, 100.0]), [0, 1, 1])
    table = observe(tmp_path, system, Motion(0, 0), 10, type="vacf")
    for name in ("vacf_O", "vacf_H"):
        assert np.allclose(table[name], 1.0, rtol=1e-7)


def test_spectrum_of_circular_motion(tmp_path):
    """Peaks at the frequencies of the types; in the total each type has the weight m v^2."""
    frequencies = (10.0, 25.0)
    types = np.array([0, 1, 1, 0, 1])
    system = circles((0.4, 0.3), frequencies, types)
    weights = [(system.masses * (system.velocities**2).sum(axis=1))[types == t].sum() for t in (0, 1)]
    table = observe(tmp_path, system, Motion(*frequencies), 2000, type="vdos", every=2)
    f = table["frequency_THz"]
    assert np.allclose(np.diff(f), 0.5 / (499 * 2 * STEP), rtol=1e-4)
    assert np.allclose(table["wavenumber_per_cm"], f * 33.35640951981521, rtol=1e-7)
    for name, frequency in zip("OH", frequencies, strict=True):
        density = table[f"vdos_{name}"]
        assert f[np.argmax(density)] == pytest.approx(frequency, abs=1.1)
        assert np.trapezoid(density, f) == pytest.approx(1.0, rel=1e-6)
    parts = [np.trapezoid(np.where(np.abs(f - frequency) < 5, table["vdos_total"], 0), f) for frequency in frequencies]
    assert parts[0] / parts[1] == pytest.approx(weights[0] / weights[1], rel=0.05)


TESTED = {
    "rdf": test_radial_distribution_of_a_lattice,
    "coordination": test_coordination_of_a_lattice,
    "msd": test_displacement_of_free_flight,
    "vacf": test_velocity_correlation_of_circular_motion,
    "vdos": test_spectrum_of_circular_motion,
}


def test_every_analysis_has_a_test():
    section = next(s for s in options.SECTIONS if s.name == "analysis")
    choices = next(o for o in section.options if o.name == "type").choices
    assert set(TESTED) == set(trajectory_analysis.KINDS) == set(choices)
