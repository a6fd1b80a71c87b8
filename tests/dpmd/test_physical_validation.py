"""Thermostats and barostats sample their ensembles: checked by the package physical_validation.

On argon (Lennard-Jones atoms, forces shifted to zero at the cutoff: a liquid of 64, a crystal of 32) in
place of a Deep Potential, so that long trajectories cost minutes.  Run with ``-m long``; needs
physical-validation.
"""

from types import SimpleNamespace

import numba
import numpy as np
import pytest

from dpmd import ensembles, fixes
from dpmd.kernels.operators import Evaluation
from dpmd.parallel import SerialDomain
from dpmd.simulation import Simulation
from dpmd.system import System
from dpmd.units import BAR, BOLTZMANN

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

EPSILON, SIGMA, CUTOFF, MASS = 0.0104, 3.4, 6.5, 39.948
TIMESTEP = 0.005  # ps
BASE = dict(
    relaxation_time_ps=0.3, chain_length=3, barostat="mtk", pressure_relaxation_time_ps=0.4, coupling="iso",
    bulk_modulus_bar=1000.0, thermostat="csvr", temperature_K=(120.0,), pressure_bar=None,
)  # fmt: skip


@numba.njit
def _evaluate(positions, first, count, indices, forces, virial):
    energy = 0.0
    s6c = (SIGMA / CUTOFF) ** 6
    at_cutoff, slope = 4 * EPSILON * (s6c * s6c - s6c), -24 * EPSILON * (2 * s6c * s6c - s6c) / CUTOFF
    for i in range(len(first)):
        for k in range(first[i], first[i] + count[i]):
            d = positions[indices[k]] - positions[i]
            r2 = (d * d).sum()
            if r2 >= CUTOFF * CUTOFF:
                continue
            r = np.sqrt(r2)
            s6 = (SIGMA * SIGMA / r2) ** 3
            energy += 0.5 * (4 * EPSILON * (s6 * s6 - s6) - at_cutoff - slope * (r - CUTOFF))
            f = -24 * EPSILON * (2 * s6 * s6 - s6) / r - slope  # dE/dr
            for a in range(3):
                forces[i, a] += f * d[a] / r
                for b in range(3):
                    virial[a, b] -= 0.5 * f * d[a] * d[b] / r
    return energy


class Argon:
    """Operators of a Lennard-Jones liquid."""

    def evaluate(self, positions, types, neighbors, forces, **_):
        virial = np.zeros((3, 3))
        energy = _evaluate(positions, neighbors.first, neighbors.count, neighbors.indices, forces, virial)
        return Evaluation(np.array([energy]), virial[None], np.zeros(len(neighbors.first)), None, 0)


def argon(positions, edge, kelvin):
    n = len(positions)
    system = System(
        ids=np.arange(1, n + 1), types=np.zeros(n, np.int32), masses=np.full(n, MASS), positions=positions,
        velocities=np.zeros((n, 3)), cell=np.eye(3) * edge, periodic=np.ones(3, bool), type_names=("Ar",),
    )  # fmt: skip
    ensembles.draw_velocities(system, kelvin, 7)
    return system


def liquid(kelvin):
    """64 atoms that melt at once."""
    edge = 14.6
    return argon((np.indices((4, 4, 4)).reshape(3, -1).T + 0.5) * edge / 4, edge, kelvin)


def crystal(kelvin):
    """32 atoms, 2 x 2 x 2 face-centred cells: its cell keeps its shape when lengths and tilts are free."""
    basis = np.array([(0, 0, 0), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)])
    corners = np.indices((2, 2, 2)).reshape(3, -1).T
    edge = 10.7
    return argon(((corners[:, None] + basis).reshape(-1, 3) + 0.25) * edge / 2, edge, kelvin)


def with_fix(kind):
    """Velocity Verlet and a thermostat beside it, as fixes of LAMMPS scripts are."""

    def create(values, timestep, steps, seed):
        thermostat = kind(timestep, ensembles.Ramp(*values.temperature_K), values.relaxation_time_ps, seed)
        return fixes.Together(timestep, {"1": ensembles.VelocityVerlet(timestep), "2": thermostat})

    return create


#: {name: (factory of the ensemble, settings)}
THERMOSTATS = {name: (ensembles.create, {"thermostat": name}) for name in ("csvr", "nose-hoover", "langevin")} | {
    "fix temp/csvr": (with_fix(fixes.StochasticRescaling), {}),
    "fix langevin": (with_fix(fixes.LangevinForce), {}),
}


def sample(structure=liquid, steps=40000, create=ensembles.create, **settings):
    """Ensemble, system and observables {name: array} every 5 steps, after a fifth of the run."""
    values = SimpleNamespace(**(BASE | settings))
    system = structure(values.temperature_K[0])
    ensemble = create(values, TIMESTEP, steps, 11)
    simulation = Simulation(system, Argon(), SerialDomain(CUTOFF, 1.5, 1), ensemble)
    simulation.run(steps // 5)
    rows = []
    for _ in range(steps // 5):
        for _ in range(5):
            simulation._step()
        rows.append((system.kinetic_energy, system.energy, system.volume))
    observed = zip(("kinetic_energy", "potential_energy", "volume"), np.array(rows).T, strict=True)
    return ensemble, system, dict(observed)


def as_data(pv, ensemble, system, values, kelvin, bar=None):
    units = pv.data.UnitData(
        kb=BOLTZMANN, energy_str="eV", energy_conversion=96.4853, length_str="A", length_conversion=0.1,
        volume_str="A^3", volume_conversion=1e-3, temperature_str="K", temperature_conversion=1.0, pressure_str="bar",
        pressure_conversion=1.0, time_str="ps", time_conversion=1.0,
    )  # fmt: skip
    n = len(system)
    fixed = 3 * n - ensemble.degrees_of_freedom(system)
    state = {"volume": float(values["volume"][0])} if bar is None else {"pressure": bar}
    observed = {k: v for k, v in values.items() if k != "volume" or bar is not None}
    return pv.data.SimulationData(
        units=units, dt=TIMESTEP,
        system=pv.data.SystemData(
            natoms=n, nconstraints=0, ndof_reduction_tra=fixed, ndof_reduction_rot=0, mass=np.full(n, MASS)
        ),
        ensemble=pv.data.EnsembleData("NVT" if bar is None else "NPT", natoms=n, temperature=kelvin, **state),
        observables=pv.data.ObservableData(
            **observed, total_energy=values["kinetic_energy"] + values["potential_energy"]
        ),
    )  # fmt: skip


@pytest.fixture
def pv():
    return pytest.importorskip("physical_validation")


def check(pv, data):
    """Both samples' kinetic energies, and the ratio of their distributions, all in standard errors."""
    for one in data:
        # deviations of mean and width of the kinetic energy
        assert max(np.abs(pv.kinetic_energy.distribution(one, strict=False, verbosity=0))) < 4
    assert max(np.abs(pv.ensemble.check(*data, verbosity=0))) < 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("thermostat", THERMOSTATS)
def test_constant_temperature(thermostat, pv):
    create, settings = THERMOSTATS[thermostat]
    data = []
    for kelvin in (115.0, 122.0):
        sampled = sample(type="nvt", create=create, temperature_K=(kelvin,), **settings)
        data.append(as_data(pv, *sampled, kelvin))
    check(pv, data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("thermostat", ["csvr", "nose-hoover", "langevin"])
def test_constant_pressure(thermostat, pv):
    """Volumes at two pressures are related by exp(-(P2 - P1) V / kT)."""
    data = []
    for bar in (1000.0, 1300.0):
        sampled = sample(type="npt", thermostat=thermostat, temperature_K=(115.0,), pressure_bar=(bar,))
        data.append(as_data(pv, *sampled, 115.0, bar))
    check(pv, data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("coupling", ["aniso", "tri"])
def test_constant_pressure_of_a_crystal(coupling, pv):
    data = []
    for bar in (1000.0, 1800.0):
        sampled = sample(
            crystal, type="npt", thermostat="nose-hoover", coupling=coupling, temperature_K=(50.0,), pressure_bar=(bar,)
        )
        data.append(as_data(pv, *sampled, 50.0, bar))
    check(pv, data)


def test_volume_of_an_ideal_pressure():
    """Mean virial pressure equals the barostat's."""
    pressures = []
    settings = dict(BASE, type="npt", thermostat="nose-hoover", pressure_bar=(1000.0,), coupling="aniso")
    system = liquid(120.0)
    ensemble = ensembles.create(SimpleNamespace(**settings), TIMESTEP, 20000, 3)
    simulation = Simulation(system, Argon(), SerialDomain(CUTOFF, 1.5, 1), ensemble)
    simulation.run(4000)
    conserved = [simulation.observables()["conserved_eV"]]
    for _ in range(16000):
        simulation._step()
        tensor = (system.twice_kinetic_tensor() + system.virial) / system.volume * BAR
        pressures.append(np.diag(tensor))
        conserved.append(simulation.observables()["conserved_eV"])
    assert np.mean(pressures, axis=0) == pytest.approx([1000, 1000, 1000], abs=60)
    assert np.ptp(conserved) < 0.03
