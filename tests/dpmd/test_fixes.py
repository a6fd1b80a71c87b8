"""Every integrator, thermostat, barostat and fix by itself: analytic cases, energies, momenta, groups.

The atoms are free, or tied to one another; their positions are relative to a shifted origin, some have been wrapped,
and their ids are in no order.
"""

import inspect
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpmd.barostats import BerendsenBarostat, Coupling, NoseHooverBarostat
from dpmd.ensembles import (
    Fix,
    Group,
    Langevin,
    NoseHooverChain,
    Ramp,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from dpmd.errors import RunError
from dpmd.fixes import (
    AddForce,
    BerendsenThermostat,
    Deform,
    LangevinForce,
    Momentum,
    Recenter,
    SetForce,
    SpringSelf,
    StochasticRescaling,
    Together,
    WallReflect,
)
from dpmd.minimize import BoxRelaxation
from dpmd.simulation import Simulation
from dpmd.system import System
from dpmd.units import BAR, BOLTZMANN, MASS_VELOCITY

DT, EDGE = 0.002, 20.0


class Free:
    """Operators without forces."""

    def evaluate(self, positions, types, neighbors, forces):
        return SimpleNamespace(energies=np.zeros(1), virials=np.zeros((1, 3, 3)), overflowed=0)


class Bonds:
    """Operators: each atom is tied to the next, so forces add up to zero."""

    stiffness = 0.02

    def evaluate(self, positions, types, neighbors, forces):
        between = positions - np.roll(positions, -1, axis=0)
        pull = self.stiffness * between
        forces += np.roll(pull, 1, axis=0) - pull
        energy = 0.5 * self.stiffness * (between**2).sum()
        return SimpleNamespace(
            energies=np.array([energy]), virials=-(between.T @ pull)[None], overflowed=0
        )  # fmt: skip


class OpenSpace:
    """Domain without neighbours or ghosts."""

    types = neighbors = None

    def update(self, system):
        self.positions, self.forces = system.positions, np.zeros_like(system.positions)
        return False

    rebuild = update

    def fold(self, values):
        return values


def atoms(n=8, speed=3.0, seed=5):
    """A System of n atoms, total momentum zero."""
    rng = np.random.default_rng(seed)
    system = System(
        ids=rng.permutation(n) + 1, types=np.zeros(n, np.int32), masses=np.linspace(1.0, 60.0, n),
        positions=rng.uniform(2.0, EDGE - 2.0, (n, 3)), velocities=rng.normal(size=(n, 3)) * speed,
        cell=np.diag([EDGE, EDGE + 1, EDGE + 2]), periodic=np.ones(3, bool), type_names=("X",), timestep=DT,
        images=rng.integers(-1, 2, (n, 3)).astype(np.int32), origin=np.array([1.0, -2.0, 3.0]),
    )  # fmt: skip
    if n > 1:
        system.remove_drift()
    return system


def run(parts, system, steps, operators=Free, span=None):
    """Integrate; parts : a Fix or several.  Returns the Simulation."""
    ensemble = parts if isinstance(parts, Fix) else Together({str(k): part for k, part in enumerate(parts)})
    simulation = Simulation(system, operators(), OpenSpace(), ensemble)
    if span:
        ensemble.span(*span)
    simulation.run(steps)
    return simulation


def with_verlet(fix, group=None):
    """The fix, and an integrator beside it if it is none."""
    return Together({"moves": VelocityVerlet(group), "fix": fix} if not fix.integrates else {"fix": fix})


def coupling(bar=2000.0):
    """Of three lengths."""
    return Coupling.of_kind("aniso", Ramp(bar), 0.05)


#: {class: function(group) -> one of it}; those that take no group get None only
SAMPLES = {
    VelocityVerlet: lambda group: VelocityVerlet(group),
    NoseHooverChain: lambda group: NoseHooverChain(Ramp(3000.0), 0.02, group=group),
    Langevin: lambda group: Langevin(Ramp(3000.0), 0.02, 7),
    StochasticVelocityRescaling: lambda group: StochasticVelocityRescaling(Ramp(3000.0), 0.02, 7),
    NoseHooverBarostat: lambda group: NoseHooverBarostat(coupling(), Ramp(3000.0), 0.02, group=group),
    BerendsenBarostat: lambda group: BerendsenBarostat(coupling(), 20000.0),
    StochasticRescaling: lambda group: StochasticRescaling(Ramp(3000.0), 0.02, 7, group),
    BerendsenThermostat: lambda group: BerendsenThermostat(Ramp(3000.0), 0.02, group),
    LangevinForce: lambda group: LangevinForce(Ramp(3000.0), 0.02, 7, group),
    Momentum: lambda group: Momentum(2, (1, 0, 1), True, True, group),
    SetForce: lambda group: SetForce((0.3, None, -0.2), group),
    AddForce: lambda group: AddForce((0.3, 0.1, -0.2), group),
    SpringSelf: lambda group: SpringSelf(2.0, (True, False, True), group),
    Recenter: lambda group: Recenter((3.0, math.nan, None), group, group),
    WallReflect: lambda group: WallReflect([(0, 1, 12.0), (1, -1, None), (2, 1, None)], group),
    Deform: lambda group: Deform(2, {0: lambda t, f, first, edge: first + t, 5: lambda t, f, first, edge: t * edge}),
    BoxRelaxation: lambda group: BoxRelaxation({0: 0.0}),
    Together: lambda group: Together({"moves": VelocityVerlet(), "warms": LangevinForce(Ramp(3000.0), 0.02, 7)}),
}
GROUPED = [cls for cls in SAMPLES if "group" in inspect.signature(cls.__init__).parameters]


def test_every_fix_is_in_the_table():
    def below(cls):
        return {cls, *(found for child in cls.__subclasses__() for found in below(child))}

    known = {cls for cls in below(Fix) if cls.__module__.startswith("dpmd.") and "momentum_conserved" in vars(cls)}
    assert known == set(SAMPLES)


def test_a_fix_must_say_whether_it_conserves_momentum():
    with pytest.raises(TypeError, match=r"Silent must say .* momentum_conserved"):
        type("Silent", (VelocityVerlet,), {})
    assert not hasattr(Fix, "momentum_conserved")


GROUP_CASES = [(cls, grouped) for cls in SAMPLES for grouped in ([False, True] if cls in GROUPED else [False])]


@pytest.mark.parametrize(("cls", "grouped"), GROUP_CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_momentum_is_conserved_where_it_is_said_to_be(cls, grouped):
    system = atoms()
    group = Group(np.arange(9) % 2 == 1) if grouped else None
    fix = SAMPLES[cls](group)
    run(with_verlet(fix), system, 40, Bonds, span=(0, 40))
    momenta = system.masses[:, None] * system.velocities
    kept = np.abs(momenta.sum(axis=0)).max() < 1e-9 * np.abs(momenta).sum()
    assert kept == fix.momentum_conserved


@pytest.mark.parametrize("cls", GROUPED, ids=lambda cls: cls.__name__)
def test_only_the_group_is_acted_on(cls):
    """Others keep their state to the last bit when an integrator moves the group alone, and the group does not."""
    group = Group(np.arange(9) % 2 == 1)
    ends = []
    for fix in (SAMPLES[cls](group), VelocityVerlet(group)):
        system = atoms()
        system.velocities += (0.3, -0.2, 0.1)
        start = system.copy()
        run(with_verlet(fix, group), system, 8, Bonds, span=(0, 8))
        ends.append(system)
        chosen = group.mask(system)
        assert np.array_equal(system.velocities[~chosen], start.velocities[~chosen])
        if not fix.changes_cell:
            assert np.array_equal(system.positions[~chosen], start.positions[~chosen])
    mine, plain = ends
    if cls is not VelocityVerlet:
        assert np.abs(mine.positions - plain.positions)[chosen].max() > 1e-6
    # forces on others are those of the bonds
    bonds = np.zeros((8, 3))
    Bonds().evaluate(mine.positions, None, None, bonds)
    assert np.array_equal(mine.forces[~chosen], bonds[~chosen])


@pytest.mark.parametrize("cls", SAMPLES, ids=lambda cls: cls.__name__)
def test_state_goes_on(cls):
    """Ten steps and ten more with a fix that has taken over the first one's state: as twenty."""
    whole, parts = atoms(), atoms()
    first, second = SAMPLES[cls](None), SAMPLES[cls](None)
    once = with_verlet(SAMPLES[cls](None))
    run(once, whole, 20, Bonds, span=(0, 20))
    run(with_verlet(first), parts, 10, Bonds, span=(0, 20))
    ensemble = with_verlet(second)
    ensemble.restore(with_verlet(first).state())
    ensemble.span(0, 20)
    Simulation(parts, Bonds(), OpenSpace(), ensemble).run(10, restarted=True)
    if cls is not Recenter:  # which holds the centre of each run's beginning
        assert np.array_equal(whole.positions, parts.positions)
        assert np.array_equal(whole.velocities, parts.velocities)
    assert ensemble.reservoir_energy == once.reservoir_energy


# --------------------------------------------------------------------- energies


WITH_ENERGY = [cls for cls in SAMPLES if hasattr(SAMPLES[cls](None), "counts")]


@pytest.mark.parametrize("cls", WITH_ENERGY, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("grouped", [False, True])
def test_energy_is_consistent_with_forces(cls, grouped):
    """F = -dE/dx by central differences; nothing is counted before it is asked for."""
    fix = SAMPLES[cls](Group(np.arange(9) % 2 == 1) if grouped else None)
    system = atoms()
    fix.after_forces(system)  # springs remember
    assert fix.potential_energy() == 0.0
    fix.counts = True
    system.positions += np.random.default_rng(1).normal(size=system.positions.shape)

    def energy():
        system.forces[:] = 0.0
        fix.after_forces(system)
        return fix.potential_energy()

    energy()
    forces, slopes, h = system.forces.copy(), np.zeros_like(system.forces), 1e-4
    for place in np.ndindex(slopes.shape):
        values = []
        for sign in (1, -1):
            system.positions[place] += sign * h
            values.append(energy())
            system.positions[place] -= sign * h
        slopes[place] = (values[0] - values[1]) / (2 * h)
    np.testing.assert_allclose(forces, -slopes, atol=1e-8)
    assert np.abs(forces).max() > 0.1


def test_fixes_with_energy_are_these():
    assert set(WITH_ENERGY) == {AddForce, SpringSelf}


def test_energies_where_the_zero_is():
    """addforce: -F.x of unwrapped coordinates of the user; spring/self: 1/2 k d^2 of the directions it acts in."""
    system = atoms()
    add = AddForce((0.3, 0.1, -0.2))
    x = system.positions + system.images @ system.cell + system.origin
    system.forces[:] = 1.5
    add.after_forces(system)
    assert add.scalar == pytest.approx(-(x @ [0.3, 0.1, -0.2]).sum())
    np.testing.assert_allclose(add.vector, 8 * 1.5)
    np.testing.assert_allclose(system.forces, 1.5 + np.array([[0.3, 0.1, -0.2]] * 8))
    spring = SpringSelf(2.0, (True, False, True))
    spring.remember(system)
    system.positions[2] += (0.5, 0.7, -0.1)
    spring.after_forces(system)
    assert spring.scalar == pytest.approx(0.5 * 2.0 * (0.5**2 + 0.1**2))


def kinetic(system, chosen=slice(None)):
    """eV, of the chosen atoms."""
    return 0.5 * MASS_VELOCITY * float(system.masses[chosen] @ (system.velocities[chosen] ** 2).sum(axis=1))


THERMOSTATS = {
    "Langevin": (lambda: Langevin(Ramp(500.0, 900.0, 50), 0.05, 3), 1e-12),
    "StochasticVelocityRescaling": (lambda: StochasticVelocityRescaling(Ramp(500.0, 900.0, 50), 0.05, 3), 1e-12),
    "StochasticRescaling": (lambda: StochasticRescaling(Ramp(500.0, 900.0, 50), 0.05, 3), 1e-12),
    "BerendsenThermostat": (lambda: BerendsenThermostat(Ramp(500.0, 900.0, 50), 0.05), 1e-12),
    "LangevinForce": (lambda: LangevinForce(Ramp(500.0, 900.0, 50), 0.05, 3), None),
    "NoseHooverChain": (lambda: NoseHooverChain(Ramp(500.0), 0.05), 5e-4),
    "NoseHooverBarostat": (lambda: NoseHooverBarostat(coupling(200.0), Ramp(500.0), 0.05), 2e-3),
}


@pytest.mark.parametrize("name", THERMOSTATS)
def test_what_free_atoms_lose_the_reservoir_gains(name):
    """Without forces the kinetic energy plus the reservoir's stays: exactly where it is booked as it goes."""
    make, limit = THERMOSTATS[name]
    system, fix = atoms(n=20), make()
    before, seen = kinetic(system), []
    simulation = Simulation(system, Free(), OpenSpace(), with_verlet(fix))
    simulation.every(1, lambda s: seen.append(kinetic(s.system) + s.ensemble.reservoir_energy))
    ends = [system.forces.copy()]
    simulation.every(1, lambda s: ends.append(s.system.forces.copy()))
    simulation.run(100)
    assert abs(kinetic(system) - before) > 0.05 * before
    if limit is None:
        # at both ends half of dt F.v is counted, where the half kick's work differs by dt^2/8 F.a
        def half(forces):
            return DT**2 / 8 * float(((forces**2).sum(axis=1) * system.inverse_masses).sum())

        assert simulation.ensemble.not_conserved() == ""
        for energy, forces in zip(seen, ends[1:], strict=True):
            assert energy == pytest.approx(before + half(ends[1]) - half(forces), rel=1e-11)
    else:
        assert np.ptp(seen) < limit * before


def test_work_that_is_not_tallied():
    system = atoms()
    fix = LangevinForce(Ramp(500.0), 0.05, 3, tally=False)
    run([VelocityVerlet(), fix], system, 5)
    assert fix.scalar == fix.reservoir_energy == 0.0


def test_each_run_of_a_script_tallies_for_itself():
    """As in LAMMPS; runs of Python, which say nothing of spans, go on."""
    for spans, expected in (([(0, 5), (5, 10)], 0.0), ([None, None], None)):
        system, fix = atoms(), LangevinForce(Ramp(500.0), 0.05, 3)
        ensemble = Together({"1": VelocityVerlet(), "2": fix})
        for span in spans:
            before = fix.scalar
            simulation = run(ensemble, system, 0, span=span)
            assert fix.scalar == (before if expected is None else expected)
            simulation.run(5)
            assert fix.scalar != 0.0


def test_langevin_has_no_part_in_a_minimisation():
    system = atoms()
    simulation = Simulation(
        system, Bonds(), OpenSpace(), Together({"1": LangevinForce(Ramp(500.0), 0.05, 3), "2": AddForce((1.0, 0, 0))})
    )
    simulation.compute_forces(minimizing=True)
    bonds = np.zeros((8, 3))
    Bonds().evaluate(system.positions, None, None, bonds)
    np.testing.assert_allclose(system.forces, bonds + np.array([1.0, 0, 0]), atol=1e-12)


REASONS = [
    (lambda: NoseHooverChain(Ramp(300.0, 400.0, 10), 0.1), "the target temperature changes"),
    (lambda: NoseHooverChain(Ramp(300.0, 300.0, 10), 0.1), ""),
    (lambda: NoseHooverBarostat(coupling(), Ramp(300.0), 0.1), ""),
    (lambda: NoseHooverBarostat(coupling(), Ramp(300.0, 400.0, 10), 0.1), "the target temperature changes"),
    (lambda: NoseHooverBarostat(coupling(), cell_target=Ramp(300.0, 400.0, 10)), "the target temperature changes"),
    (
        lambda: NoseHooverBarostat(Coupling.of_kind("iso", Ramp(0.0, 9.0, 10), 1.0), Ramp(300.0)),
        "the target pressure changes",
    ),
    (lambda: BerendsenBarostat(coupling()), "the work of the Berendsen barostat is not counted"),
    (lambda: Langevin(Ramp(300.0, 400.0, 10), 0.1, 1), ""),
    (
        lambda: Together({"1": NoseHooverChain(Ramp(300.0, 400.0, 10), 0.1), "2": BerendsenBarostat(coupling())}),
        "the target temperature changes; the work of the Berendsen barostat is not counted",
    ),
    (lambda: Together({"1": VelocityVerlet(), "2": BerendsenThermostat(Ramp(300.0, 400.0, 10), 0.1)}), ""),
]


@pytest.mark.parametrize(("make", "reason"), REASONS)
def test_why_the_sum_does_not_stay(make, reason):
    assert make().not_conserved() == reason


PRESSURE = {"type": "npt", "pressure_bar": 1000.0}
#: {name: (ensemble, why there is no drift)}
RAMPS = {
    "chain": ({"type": "nvt", "thermostat": "nose-hoover", "temperature_K": [300.0, 350.0]}, "target temperature"),
    "pressure": (PRESSURE | {"temperature_K": 300.0, "pressure_bar": [0.0, 9000.0]}, "target pressure"),
    "berendsen": (PRESSURE | {"temperature_K": 300.0, "barostat": "berendsen"}, "Berendsen barostat"),
    "csvr": ({"type": "nvt", "temperature_K": [300.0, 350.0]}, None),
}


@pytest.mark.parametrize("name", RAMPS)
def test_no_drift_of_what_is_not_conserved(name, water_run):
    """Neither in the log nor in the summary, nor a panel on the report's page; csvr books all that it does."""
    from dpmd import report

    ensemble, reason = RAMPS[name]
    code, text = water_run(ensemble=ensemble)
    assert code == 0
    summary = json.loads(Path("run.summary.json").read_text(encoding="utf-8"))
    panels = report._panels(report.find(Path(), None))
    if reason is None:
        assert "drift" in text
        assert summary["drift_meV_per_atom_ns"] is not None
        assert summary["not_conserved"] is None
    else:
        assert reason in text
        assert "meV/atom/ns" not in text
        assert summary["drift_meV_per_atom_ns"] is None
        assert reason in summary["not_conserved"]
    assert (report._conserved in panels) == (reason is None)


# --------------------------------------------------------------------- integrators and thermostats


def test_velocity_verlet():
    """x = x0 + v0 t + F t^2 / 2m in a constant field, exactly."""
    system = atoms()
    x, v = system.positions.copy(), system.velocities.copy()
    force = np.array([0.3, -0.1, 0.2])
    run([VelocityVerlet(), AddForce(force)], system, 10)
    t, a = 10 * DT, force / (MASS_VELOCITY * system.masses[:, None])
    np.testing.assert_allclose(system.velocities, v + a * t, rtol=1e-12)
    np.testing.assert_allclose(system.positions, x + v * t + a * t**2 / 2, rtol=1e-12)


@pytest.mark.parametrize("make", [Langevin, LangevinForce], ids=lambda cls: cls.__name__)
def test_friction_and_noise(make):
    """At 0 K velocities decay as exp(-t / tau); from rest the mean kinetic energy is 3/2 k T (1 - exp(-2 t / tau))."""
    tau, steps = 0.1, 50
    for kelvin, speed in ((0.0, 2.0), (400.0, 0.0)):
        system = atoms(n=4000, speed=speed)
        start = kinetic(system)
        run(with_verlet(make(Ramp(kelvin), tau, 9)), system, steps)
        decay = math.exp(-2 * steps * DT / tau)
        wanted = start * decay + 1.5 * BOLTZMANN * kelvin * (1 - decay) * len(system)
        # 12,000 numbers: 1.3 % for one standard deviation of their mean square; Euler's steps: dt / tau
        assert kinetic(system) == pytest.approx(wanted, rel=0.04)


def test_noise_that_adds_up_to_zero():
    """Over the group; friction stays."""
    group = Group(np.arange(9) % 2 == 1)
    for zero in (False, True):
        system = atoms()
        LangevinForce(Ramp(400.0), 0.1, 9, group, zero).after_forces(system)
        chosen = group.mask(system)
        friction = -(MASS_VELOCITY * system.masses[:, None] * system.velocities)[chosen] / 0.1
        noise = system.forces[chosen] - friction
        assert (np.abs(noise.sum(axis=0)).max() < 1e-9 * np.abs(noise).max()) == zero
        assert np.abs(noise).max() > 0.01


@pytest.mark.parametrize("make", [StochasticVelocityRescaling, StochasticRescaling], ids=lambda cls: cls.__name__)
def test_stochastic_rescaling(make):
    """The mean of K follows c K + (1 - c) f k T / 2 from step to step; its variance in the end is f (k T)^2 / 2."""
    kelvin, tau, c = 400.0, 0.004, math.exp(-DT / 0.004)
    system = atoms(n=3, speed=1.0)  # with few degrees of freedom each of them counts
    fix, seen = make(Ramp(kelvin), tau, 11), []
    simulation = Simulation(system, Free(), OpenSpace(), with_verlet(fix))
    simulation.every(1, lambda s: seen.append(kinetic(s.system)))
    simulation.run(6000)
    seen, freedom = np.array(seen), 3 * 3 - 3
    mean = freedom * BOLTZMANN * kelvin / 2
    assert (seen[1:] - c * seen[:-1]).mean() == pytest.approx((1 - c) * mean, rel=0.05)
    assert seen[100:].var() == pytest.approx(freedom * (BOLTZMANN * kelvin) ** 2 / 2, rel=0.15)
    lag = np.corrcoef(seen[100:-1], seen[101:])[0, 1]
    assert lag == pytest.approx(c, abs=0.03)


def test_berendsen_relaxes_geometrically():
    """T - T0 shrinks by 1 - dt / tau per step."""
    system, n = atoms(speed=1.0), 30
    freedom = 3 * 8 - 3
    start = 2 * kinetic(system) / (freedom * BOLTZMANN)
    run([VelocityVerlet(), BerendsenThermostat(Ramp(700.0), 0.05)], system, n)
    end = 2 * kinetic(system) / (freedom * BOLTZMANN)
    assert end - 700 == pytest.approx((start - 700) * (1 - DT / 0.05) ** n, rel=1e-10)


def test_nose_hoover_chain():
    """The first step of a chain of one on free atoms, by hand: u' = (2 K - f k T) / (f k T tau^2), K' = -2 u K."""
    system, tau, kelvin = atoms(speed=1.0), 0.05, 700.0
    k, target = kinetic(system), (3 * 8 - 3) * BOLTZMANN * kelvin
    fix = NoseHooverChain(Ramp(kelvin), tau, chain_length=1)
    run(fix, system, 1)
    u = 0.0
    for _ in range(2):  # the half steps before and after the move
        u += DT / 4 * (2 * k - target) / (target * tau**2)
        k *= math.exp(-u * DT)
        u += DT / 4 * (2 * k - target) / (target * tau**2)
    assert kinetic(system) == pytest.approx(k, rel=1e-12)
    assert fix.chain.velocity[0] == pytest.approx(u, rel=1e-12)


# --------------------------------------------------------------------- barostats


def gas_pressure(system):
    """(3,) bar, diagonal of the pressure of free atoms."""
    return MASS_VELOCITY * (system.masses @ system.velocities**2) / np.linalg.det(system.cell) * BAR


@pytest.mark.parametrize("kind", ["iso", "aniso", "x and y"])
def test_berendsen_barostat(kind):
    """Lengths grow by (1 - dt / tau (P0 - P) / modulus)^(1/3), atoms keep their fractions, the middle stays."""
    tau, modulus, target = 0.05, 3000.0, 400.0
    system = atoms()
    p = gas_pressure(system)
    if kind == "x and y":
        made, axes, p = Coupling({0: Ramp(target), 1: Ramp(target)}, {0: tau, 1: tau}, ((0, 1),)), 2, [p[:2].mean()] * 2
    else:
        made, axes = Coupling.of_kind(kind, Ramp(target), tau), 3
        p = [p.mean()] * 3 if kind == "iso" else p
    growth = np.ones(3)
    growth[:axes] = (1 - DT / tau * (target - np.array(p)) / modulus) ** (1 / 3)
    before, middle = system.copy(), system.origin + np.diag(system.cell) / 2
    fix = BerendsenBarostat(made, modulus)
    fix.start(system)
    fix.end_of_step(system)
    assert np.abs(growth - 1).max() > 1e-4
    np.testing.assert_allclose(system.cell, before.cell * growth, rtol=1e-13)
    np.testing.assert_allclose(system.positions, before.positions * growth, rtol=1e-13)
    assert np.array_equal(system.velocities, before.velocities)
    np.testing.assert_allclose(system.origin + np.diag(system.cell) / 2, middle, rtol=1e-13)


def test_nose_hoover_barostat_on_free_atoms():
    """Strain rates after half a step: W w' = V (P - P0) + [sum m v^2 / (3 N)], W = (N + 1) k T tau^2."""
    system, tau, target = atoms(speed=20.0), 0.2, 400.0
    p, volume, k = gas_pressure(system), np.linalg.det(system.cell), kinetic(system)
    made = Coupling.of_kind("aniso", Ramp(target), tau)
    fix = NoseHooverBarostat(made, pressure_chain=0, cell_target=Ramp(300.0))
    fix.start(system)
    fix._rate_half_step(system)
    mass = 9 * BOLTZMANN * 300 * tau**2
    wanted = DT / 2 * ((p - target) * volume / BAR + 2 * k / (3 * 8)) / mass
    np.testing.assert_allclose(fix.rate[:3], wanted, rtol=1e-6)
    assert not fix.rate[3:].any()


def conserved_cases():
    for thermostat in ("csvr", "nose-hoover", "langevin", "berendsen"):
        yield f"nvt {thermostat}", dict(type="nvt", thermostat=thermostat)
        for shape in ("iso", "aniso", "tri"):
            yield f"npt {thermostat} {shape}", dict(
                type="npt", thermostat=thermostat, coupling=shape, pressure_bar=(600.0,)
            )  # fmt: skip
    for shape in ("iso", "aniso", "tri"):
        yield f"nph {shape}", dict(type="nph", coupling=shape, pressure_bar=(600.0,))
    for thermostat in ("csvr", "langevin", "berendsen"):
        yield f"nvt {thermostat} ramp", dict(type="nvt", thermostat=thermostat, temperature_K=(120.0, 240.0))
    yield "nve", dict(type="nve")


CONSERVED = dict(conserved_cases())


@pytest.mark.parametrize("name", CONSERVED)
def test_conserved_energy_of_argon(name, argon):
    """Of every ensemble of the TOML input, over 2 ps in which the reservoir takes part."""
    simulation = argon.simulation(400, **CONSERVED[name])
    simulation.system.timestep = 0.004
    seen, reservoir = [], []
    simulation.every(5, lambda s: seen.append(s.observables()["conserved_eV"]))
    simulation.every(5, lambda s: reservoir.append(s.ensemble.reservoir_energy))
    simulation.run(400)
    assert simulation.ensemble.not_conserved() == ""
    assert np.ptp(seen) < 1.5e-4 * argon.N
    if name != "nve":
        assert np.ptp(reservoir) > 10 * np.ptp(seen)


# --------------------------------------------------------------------- the others


def test_momentum_linear():
    """In the chosen directions, of the group, every so many steps; nobody else's."""
    system, group = atoms(), Group(np.arange(9) % 2 == 1)
    system.velocities += (1.0, 2.0, 3.0)
    fix, start = Momentum(3, (1, 0, 1), group=group), system.velocities.copy()
    system.step = 4
    fix.end_of_step(system)
    assert np.array_equal(system.velocities, start)
    system.step = 6
    fix.end_of_step(system)
    chosen = group.mask(system)
    mass = system.masses[chosen]
    mean = mass @ start[chosen] / mass.sum()
    np.testing.assert_allclose(system.velocities[chosen], start[chosen] - mean * (1, 0, 1), rtol=1e-12)


def angular_momentum(system, chosen=slice(None)):
    mass, v = system.masses[chosen, None], system.velocities[chosen]
    x = (system.positions + system.images @ system.cell)[chosen]
    return (mass * np.cross(x - (mass * x).sum(axis=0) / mass.sum(), v)).sum(axis=0)


def test_momentum_angular():
    """None is left, the linear momentum and the distances' rates of change stay."""
    system, group = atoms(), Group(np.arange(9) % 2 == 1)
    chosen = group.mask(system)
    before, momentum = system.velocities.copy(), system.masses[chosen] @ system.velocities[chosen]
    assert np.abs(angular_momentum(system, chosen)).max() > 10
    Momentum(1, angular=True, group=group).end_of_step(system)
    assert np.abs(angular_momentum(system, chosen)).max() < 1e-9
    np.testing.assert_allclose(system.masses[chosen] @ system.velocities[chosen], momentum, atol=1e-10)
    x = system.unwrapped_positions
    i, j = np.flatnonzero(chosen)[:2]
    approach = (x[i] - x[j]) @ (system.velocities[i] - system.velocities[j])
    assert approach == pytest.approx((x[i] - x[j]) @ (before[i] - before[j]), rel=1e-9)


@pytest.mark.parametrize("rescale", [False, True])
def test_momentum_rescaled(rescale):
    system = atoms()
    system.velocities += (1.0, 2.0, 3.0)
    before, moving = kinetic(system), 0.5 * MASS_VELOCITY * system.masses.sum() * 14.0
    Momentum(1, (1, 1, 1), rescale=rescale).end_of_step(system)
    assert kinetic(system) == pytest.approx(before - (0 if rescale else moving), rel=1e-12)


def test_setforce():
    system, group = atoms(), Group(np.arange(9) % 2 == 1)
    system.forces = np.random.default_rng(2).normal(size=(8, 3))
    before, chosen = system.forces.copy(), group.mask(system)
    fix = SetForce((0.3, None, -0.2), group)
    fix.after_forces(system)
    np.testing.assert_allclose(fix.vector, before[chosen].sum(axis=0), rtol=1e-12)
    wanted = before.copy()
    wanted[chosen, 0], wanted[chosen, 2] = 0.3, -0.2
    assert np.array_equal(system.forces, wanted)


def test_recenter():
    """The group's centre is put to 3, to where it was and left alone; a group is shifted, which may be another."""
    system, group, others = atoms(), Group(np.arange(9) % 2 == 1), Group(np.arange(9) % 2 == 0)
    system.velocities += (1.0, 2.0, 3.0)
    chosen = group.mask(system)

    def centre():
        mass = system.masses[chosen]
        return mass @ system.unwrapped_positions[chosen] / mass.sum() + system.origin

    first, start = centre(), system.positions.copy()
    fix = Recenter((3.0, math.nan, None), group, group)
    fix.start(system)
    system.positions += (0.5, -0.4, 0.3)
    fix.first_half(system)
    np.testing.assert_allclose(centre(), (3.0, first[1], first[2] + 0.3), rtol=1e-12)
    shift = np.array([3.0 - first[0] - 0.5, 0.4, 0.0])
    np.testing.assert_allclose(fix.vector, shift, atol=1e-12)
    assert fix.scalar == pytest.approx(np.linalg.norm(shift))
    np.testing.assert_allclose(system.positions[~chosen], start[~chosen] + (0.5, -0.4, 0.3), rtol=1e-14)
    # the next run begins where the centre is now
    fix.start(system)
    system.positions[:, 1] += 0.2
    fix.first_half(system)
    np.testing.assert_allclose(fix.vector, (0, -0.2, 0), atol=1e-12)
    # another group moves; a target may be a function
    fix, before = Recenter((lambda: 4.0, None, None), group, others), system.positions.copy()
    fix.start(system)
    fix.first_half(system)
    assert np.array_equal(system.positions[chosen], before[chosen])
    np.testing.assert_allclose(system.positions[~chosen] - before[~chosen], [[4.0 - centre()[0], 0, 0]] * 4, atol=1e-12)


def test_wall_reflect():
    """Beyond a wall: position mirrored, velocity turned; elsewhere and in other directions nothing."""
    system, group = atoms(3), Group([False, True, True, False])
    system.positions[:] = ((19.5, 5.0, -0.25), (19.5, 5.0, 21.5), (19.5, 5.0, 22.75))
    system.ids = np.array([3, 1, 2])
    system.velocities[:] = (1.0, 2.0, -3.0)
    # origin (1, -2, 3): x = 20 is 19 from the corner; the cell's faces in z lie at 0 and 22
    WallReflect([(0, 1, 20.0), (1, -1, -2.0), (2, -1, None), (2, 1, None)], group).moved(system)
    np.testing.assert_allclose(system.positions, ((19.5, 5.0, -0.25), (18.5, 5.0, 21.5), (18.5, 5.0, 21.25)))
    np.testing.assert_allclose(system.velocities, ((1, 2, -3), (-1, 2, -3), (-1, 2, 3)))
    WallReflect([(2, -1, None)]).moved(system)
    np.testing.assert_allclose(system.positions[0], (19.5, 5.0, 0.25))
    np.testing.assert_allclose(system.velocities[0], (1, 2, 3))


@pytest.mark.parametrize("carry", [True, False])
def test_deform(carry):
    """Lengths change about the middle or by their faces; atoms keep their fractions, or their places."""
    system = atoms()
    before, first_origin = system.copy(), system.origin.copy()
    rules = {
        0: lambda t, f, first, edge: first * (1 + t), 1: lambda t, f, first, edge: first + 2 * f,
        5: lambda t, f, first, edge: first + 3 * t * edge,
    }  # fmt: skip
    fix = Deform(2, rules, carry, {1: lambda f, first: first - 0.5 * f})
    fix.span(100, 110)
    system.step = 100
    fix.start(system)
    for step in (104, 105):  # at the second nothing is due
        system.step = step
        fix.end_of_step(system)
    t, f = 4 * DT, 0.4
    wanted = np.array([[EDGE * (1 + t), 0, 0], [3 * t * (EDGE + 1), EDGE + 1 + 2 * f, 0], [0, 0, EDGE + 2]])
    np.testing.assert_allclose(system.cell, wanted, rtol=1e-13)
    np.testing.assert_allclose(system.origin, first_origin - (EDGE * t / 2, 0.5 * f, 0), rtol=1e-13)
    if carry:
        fractions = system.positions @ np.linalg.inv(system.cell)
        np.testing.assert_allclose(fractions, before.positions @ np.linalg.inv(before.cell), rtol=1e-12)
    else:
        np.testing.assert_allclose(system.positions + system.origin, before.positions + first_origin, rtol=1e-13)
    # a run of its own begins with the present cell, a later part of this span with the first one
    fix.start(system)
    assert np.array_equal(fix.begin[0], before.cell)
    fix.span(105, 110)
    fix.start(system)
    assert np.array_equal(fix.begin[0], system.cell)


def test_together():
    """Sums over its parts, and whatever one of them does."""
    fixes = {"a": VelocityVerlet(), "b": LangevinForce(Ramp(300.0), 0.1, 1), "c": AddForce((1.0, 0, 0))}
    both = Together(fixes)
    fixes["c"].counts, fixes["c"].scalar, fixes["b"].reservoir_energy = True, 2.5, 1.25
    assert (both.potential_energy(), both.reservoir_energy) == (2.5, 1.25)
    assert both.changes_forces
    assert not any((both.changes_cell, both.needs_virial, both.momentum_conserved))
    assert Together({"a": BerendsenBarostat(coupling())}).needs_virial
    assert Together({"a": SAMPLES[Deform](None)}).changes_cell
    assert Together({}).momentum_conserved


# --------------------------------------------------------------------- the time step

@pytest.mark.parametrize("cls", SAMPLES, ids=lambda cls: cls.__name__)
def test_the_time_step_has_one_owner(cls):
    """Changed after everything was made, it is as if it had been so from the start; the time goes on."""
    ends = []
    for late in (False, True):
        system = atoms()
        system.timestep = 0.01 * DT if late else DT
        simulation = Simulation(system, Bonds(), OpenSpace(), with_verlet(SAMPLES[cls](None)))
        simulation.ensemble.span(0, 12)
        if late:
            simulation.timestep = DT
        simulation.run(12)
        simulation.timestep = DT / 2
        simulation.run(6)
        ends.append((system.positions, system.velocities, system.cell, simulation.time))
    for one, other in zip(*ends, strict=True):
        assert np.array_equal(one, other)
    assert simulation.time == pytest.approx(15 * DT)
    assert simulation.observables()["time_ps"] == simulation.time


def test_a_time_step_is_needed():
    simulation = Simulation(atoms(), Free(), OpenSpace(), VelocityVerlet())
    with pytest.raises(ValueError, match="above 0"):
        simulation.timestep = 0.0
    simulation.system.timestep = None
    with pytest.raises(RunError, match="no time step"):
        simulation.run(1)
