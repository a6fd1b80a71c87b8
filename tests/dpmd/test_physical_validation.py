"""Thermostats and barostats sample their ensembles: checked by the package physical_validation.

On liquid argon (64 Lennard-Jones atoms, forces shifted to zero at the cutoff) in place of a Deep
Potential, so that long trajectories cost minutes.  Run with ``-m long``; needs physical-validation.
"""

from types import SimpleNamespace

import numba
import numpy as np
import pytest

from dpmd import ensembles
from dpmd.kernels.operators import Evaluation
from dpmd.parallel import SerialDomain
from dpmd.simulation import Simulation
from dpmd.system import System
from dpmd.units import BAR, BOLTZMANN

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

N, EPSILON, SIGMA, CUTOFF, MASS = 64, 0.0104, 3.4, 6.5, 39.948
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


def liquid(kelvin):
    edge = 14.6
    grid = (np.indices((4, 4, 4)).reshape(3, -1).T + 0.5) * edge / 4
    system = System(
        ids=np.arange(1, N + 1), types=np.zeros(N, np.int32), masses=np.full(N, MASS), positions=grid,
        velocities=np.zeros((N, 3)), cell=np.eye(3) * edge, periodic=np.ones(3, bool), type_names=("Ar",),
    )  # fmt: skip
    ensembles.draw_velocities(system, kelvin, 7)
    return system


def sample(steps=40000, **settings):
    """Observables {name: array} every 5 steps, after a fifth of the run."""
    values = SimpleNamespace(**(BASE | settings))
    system = liquid(values.temperature_K[0])
    ensemble = ensembles.create(values, TIMESTEP, steps, 11)
    simulation = Simulation(system, Argon(), SerialDomain(CUTOFF, 1.5, 1), ensemble)
    simulation.run(steps // 5)
    rows = []
    for _ in range(steps // 5):
        for _ in range(5):
            simulation._step()
        rows.append((system.kinetic_energy, system.energy, system.volume))
    return ensemble, dict(zip(("kinetic_energy", "potential_energy", "volume"), np.array(rows).T, strict=True))


def as_data(pv, ensemble, values, kelvin, bar=None):
    units = pv.data.UnitData(
        kb=BOLTZMANN, energy_str="eV", energy_conversion=96.4853, length_str="A", length_conversion=0.1,
        volume_str="A^3", volume_conversion=1e-3, temperature_str="K", temperature_conversion=1.0, pressure_str="bar",
        pressure_conversion=1.0, time_str="ps", time_conversion=1.0,
    )  # fmt: skip
    fixed = 3 if ensemble.degrees_of_freedom(liquid(1.0)) < 3 * N else 0
    state = {"volume": float(values["volume"][0])} if bar is None else {"pressure": bar}
    observed = {k: v for k, v in values.items() if k != "volume" or bar is not None}
    return pv.data.SimulationData(
        units=units, dt=TIMESTEP,
        system=pv.data.SystemData(
            natoms=N, nconstraints=0, ndof_reduction_tra=fixed, ndof_reduction_rot=0, mass=np.full(N, MASS)
        ),
        ensemble=pv.data.EnsembleData("NVT" if bar is None else "NPT", natoms=N, temperature=kelvin, **state),
        observables=pv.data.ObservableData(
            **observed, total_energy=values["kinetic_energy"] + values["potential_energy"]
        ),
    )  # fmt: skip


@pytest.fixture
def pv():
    return pytest.importorskip("physical_validation")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("thermostat", ["csvr", "nose-hoover", "langevin"])
def test_constant_temperature(thermostat, pv):
    data = []
    for kelvin in (115.0, 122.0):
        ensemble, values = sample(type="nvt", thermostat=thermostat, temperature_K=(kelvin,))
        data.append(as_data(pv, ensemble, values, kelvin))
    for one in data:
        # deviations of mean and width of the kinetic energy in standard errors
        assert max(np.abs(pv.kinetic_energy.distribution(one, strict=False, verbosity=0))) < 4
    assert max(np.abs(pv.ensemble.check(*data, verbosity=0))) < 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("thermostat", ["csvr", "nose-hoover", "langevin"])
def test_constant_pressure(thermostat, pv):
    data = []
    for bar in (1000.0, 1300.0):
        ensemble, values = sample(type="npt", thermostat=thermostat, temperature_K=(115.0,), pressure_bar=(bar,))
        data.append(as_data(pv, ensemble, values, 115.0, bar))
    for one in data:
        assert max(np.abs(pv.kinetic_energy.distribution(one, strict=False, verbosity=0))) < 4
    # the two volume distributions are related by exp(-(P2 - P1) V / kT): slope fitted, in standard errors
    assert max(np.abs(pv.ensemble.check(*data, verbosity=0))) < 4


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
