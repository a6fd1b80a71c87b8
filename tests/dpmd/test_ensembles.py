"""Thermostats and integrators on springs: distributions, conservation, order of the error."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpmd.ensembles import (
    Langevin,
    NoseHooverChain,
    Ramp,
    StochasticVelocityRescaling,
    VelocityVerlet,
    create,
    draw_velocities,
)
from dpmd.simulation import Hook, Simulation
from dpmd.system import System
from dpmd.units import BOLTZMANN, temperature

N, KELVIN, TIMESTEP = 60, 300.0, 0.002


class Springs:
    """Operators: atoms bound to the origin by springs and to the next by quartic ones.

    The coupling is needed: independent springs never share energy, and a Nose-Hoover chain
    alone does not make them do so.
    """

    stiffness, coupling = np.linspace(0.5, 2.0, N)[:, None], 5.0

    def evaluate(self, positions, types, neighbors, forces):
        forces -= self.stiffness * positions
        energy = 0.5 * (self.stiffness * positions**2).sum()
        between = positions - np.roll(positions, -1, axis=0)
        r2 = (between**2).sum(axis=1, keepdims=True)
        pull = self.coupling * r2 * between
        forces += np.roll(pull, 1, axis=0) - pull
        energy += 0.25 * self.coupling * (r2**2).sum()
        return SimpleNamespace(energies=np.array([energy]), virials=np.zeros((1, 3, 3)), overflowed=0)


class OpenSpace:
    """Domain without neighbours or ghosts."""

    types = neighbors = None

    def update(self, system):
        self.positions, self.forces = system.positions, np.zeros_like(system.positions)
        return False

    rebuild = update

    def fold(self, values):
        return values


class Record(Hook):
    def __init__(self, every):
        self.every, self.kinetic, self.conserved, self.potential, self.work = every, [], [], [], []

    def __call__(self, simulation):
        values = simulation.observables()
        self.kinetic.append(values["kinetic_eV"])
        self.potential.append(values["potential_eV"])
        self.work.append(-(simulation.system.forces * simulation.system.positions).sum())
        self.conserved.append(values["conserved_eV"])


def run(ensemble, steps, every=10, seed=4, kelvin=KELVIN, timestep=TIMESTEP):
    system = System(
        ids=np.arange(1, N + 1), types=np.zeros(N, np.int32), masses=np.linspace(1.0, 60.0, N),
        positions=np.zeros((N, 3)), velocities=np.zeros((N, 3)), cell=np.eye(3), periodic=np.zeros(3, bool),
        type_names=("X",), timestep=timestep,
    )  # fmt: skip
    draw_velocities(system, 2 * kelvin, seed)
    record = Record(every)
    simulation = Simulation(system, Springs(), OpenSpace(), ensemble, [record])
    simulation.run(steps)
    return simulation, {name: np.array(getattr(record, name)) for name in ("kinetic", "potential", "conserved", "work")}


THERMOSTATS = {
    "nose-hoover": lambda: NoseHooverChain(Ramp(KELVIN), 0.05),
    "langevin": lambda: Langevin(Ramp(KELVIN), 0.1, seed=9),
    "csvr": lambda: StochasticVelocityRescaling(Ramp(KELVIN), 0.05, seed=9),
}


@pytest.mark.parametrize("name", THERMOSTATS)
def test_kinetic_energy_has_the_canonical_distribution(name):
    """Mean f k T / 2 and variance f (k T)^2 / 2; positions share the temperature: <x . dV/dx> = f k T."""
    ensemble = THERMOSTATS[name]()
    simulation, values = run(ensemble, 40000)
    freedom = ensemble.degrees_of_freedom(simulation.system)
    assert freedom == (3 * N if name == "langevin" else 3 * N - 3)
    kinetic = values["kinetic"][400:]
    assert kinetic.mean() == pytest.approx(freedom * BOLTZMANN * KELVIN / 2, rel=0.02)
    assert kinetic.var() == pytest.approx(freedom * (BOLTZMANN * KELVIN) ** 2 / 2, rel=0.2)
    assert values["work"][400:].mean() == pytest.approx(freedom * BOLTZMANN * KELVIN, rel=0.03)


@pytest.mark.parametrize("name", THERMOSTATS)
def test_conserved_energy_is_conserved(name):
    _, values = run(THERMOSTATS[name](), 5000)
    assert np.ptp(values["conserved"]) < 0.02 * values["kinetic"].mean()
    assert np.ptp(values["kinetic"] + values["potential"]) > 0.2 * values["kinetic"].mean()


def test_halving_the_step_quarters_the_energy_fluctuation():
    spread = [
        run(VelocityVerlet(), round(2 / step), every=round(0.02 / step), timestep=step)[1]["conserved"].std()
        for step in (0.002, 0.001, 0.0005)
    ]
    assert spread[0] / spread[1] == pytest.approx(4, rel=0.1)
    assert spread[1] / spread[2] == pytest.approx(4, rel=0.1)


def test_velocity_verlet_is_reversible():
    simulation, _ = run(VelocityVerlet(), 500)
    system = simulation.system
    system.velocities *= -1
    simulation.run(500, restarted=True)
    assert np.abs(system.positions).max() < 1e-10


def test_ramp():
    ramp = Ramp(100.0, 300.0, 1000)
    assert [ramp(0), ramp(500), ramp(1000), ramp(2000)] == [100, 200, 300, 300]
    ensemble = NoseHooverChain(Ramp(100.0, 600.0, 20000), 0.05)
    _, values = run(ensemble, 20000, every=20)
    k = 3 * (N - 1) * BOLTZMANN / 2
    assert values["kinetic"][180:220].mean() / k == pytest.approx(200, rel=0.15)
    assert values["kinetic"][780:820].mean() / k == pytest.approx(500, rel=0.15)


def test_chain_of_one_and_state():
    ensemble = NoseHooverChain(Ramp(KELVIN), 0.05, chain_length=1)
    run(ensemble, 200)
    other = NoseHooverChain(Ramp(KELVIN), 0.05, chain_length=1)
    other.restore(ensemble.state())
    assert other.reservoir_energy == ensemble.reservoir_energy != 0
    assert np.array_equal(other.chain.velocity, ensemble.chain.velocity)


def barostat_settings(thermostat, **changes):
    settings = dict(
        type="npt", thermostat=thermostat, barostat="mtk", coupling="iso", temperature_K=(KELVIN, 2 * KELVIN),
        relaxation_time_ps=0.1, chain_length=3, pressure_bar=(1.0,), pressure_relaxation_time_ps=0.5,
    )  # fmt: skip
    return SimpleNamespace(**settings | changes)


@pytest.mark.parametrize(("thermostat", "fixed"), [("csvr", 3), ("nose-hoover", 3), ("langevin", 0)])
def test_degrees_of_freedom_at_constant_pressure(thermostat, fixed):
    ensemble = create(barostat_settings(thermostat), 1000, 1)
    assert ensemble.degrees_of_freedom(SimpleNamespace(n_atoms=N)) == 3 * N - fixed


@pytest.mark.parametrize("thermostat", ["csvr", "nose-hoover"])
def test_cell_has_the_temperature_of_the_ramp(thermostat):
    """Its chain follows the ramp; its mass stays that of the start, in a continued run too."""
    simulation, _ = run(VelocityVerlet(), 1)
    system = simulation.system
    system.periodic, system.cell, system.step = np.ones(3, bool), np.eye(3) * 50, 0
    steps = 1000
    whole, continued = (create(barostat_settings(thermostat), steps, 1) for _ in range(2))
    whole.start(system)
    continued.restore(whole.state())
    system.step = steps
    continued.start(system, restarted=True)
    one, other = (getattr(e, "parts", {"barostat": e})["barostat"] for e in (whole, continued))
    assert np.array_equal(one.mass, other.mass)
    assert other._pressure_chain_targets(system, steps)[2] == pytest.approx(BOLTZMANN * 2 * KELVIN)


def test_velocities_are_drawn_per_atom_id():
    def system(ids):
        n = len(ids)
        return System(
            ids=ids, types=np.zeros(n, np.int32), masses=np.full(n, 12.0), positions=np.zeros((n, 3)),
            velocities=np.zeros((n, 3)), cell=np.eye(3), periodic=np.ones(3, bool), type_names=("C",),
        )  # fmt: skip

    ids = np.arange(1, 501)
    one, two = system(ids), system(ids[::-1].copy())
    draw_velocities(one, 400.0, seed=1)
    draw_velocities(two, 400.0, seed=1)
    assert np.allclose(one.velocities, two.velocities[::-1], atol=1e-12)
    assert temperature(one.kinetic_energy, 3 * 500 - 3) == pytest.approx(400, rel=1e-12)
    assert np.abs(one.masses @ one.velocities).max() < 1e-10
    single = system(ids[:1])
    draw_velocities(single, 400.0, seed=1)
    assert temperature(single.kinetic_energy, 3) == pytest.approx(400, rel=1e-12)
