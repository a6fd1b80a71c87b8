"""Thermostats and barostats sample their ensembles: checked by the package physical_validation.

On argon (see argon.py) in place of a Deep Potential, so that long trajectories cost minutes.  Run
with ``-m long``, on a GPU with ``-m "long and gpu"``; needs physical-validation.
"""

import numpy as np
import pytest

from dpmd import ensembles, fixes
from dpmd.units import BAR, BOLTZMANN

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """None, or the GPU on which atoms are moved."""
    return None if request.param == "cpu" else request.getfixturevalue("gpu")


def with_fix(kind):
    """Velocity Verlet and a thermostat beside it, as fixes of LAMMPS scripts are."""

    def create(values, steps, seed):
        thermostat = kind(ensembles.Ramp(*values.temperature_K), values.relaxation_time_ps, seed)
        return fixes.Together({"1": ensembles.VelocityVerlet(), "2": thermostat})

    return create


#: {name: settings}
THERMOSTATS = {name: {"thermostat": name} for name in ("csvr", "nose-hoover", "langevin")} | {
    "fix temp/csvr": {"create": with_fix(fixes.StochasticRescaling)},
    "fix langevin": {"create": with_fix(fixes.LangevinForce)},
}


def sample(argon, device, **settings):
    """Simulation, and observables {name: array} every 5 steps, after a fifth of the run."""
    steps = 40000 if device is None else 20000  # a step of so few atoms takes longest on a GPU
    simulation = argon.simulation(steps, device, **settings)
    simulation.run(steps // 5)
    rows, system = [], simulation.system
    for _ in range(steps // 5):
        for _ in range(5):
            simulation._step()
        rows.append((system.kinetic_energy, system.energy, system.volume))
    names = ("kinetic_energy", "potential_energy", "volume")
    return simulation, dict(zip(names, np.array(rows).T, strict=True))


def as_data(pv, argon, simulation, values, kelvin, bar=None):
    units = pv.data.UnitData(
        kb=BOLTZMANN, energy_str="eV", energy_conversion=96.4853, length_str="A", length_conversion=0.1,
        volume_str="A^3", volume_conversion=1e-3, temperature_str="K", temperature_conversion=1.0, pressure_str="bar",
        pressure_conversion=1.0, time_str="ps", time_conversion=1.0,
    )  # fmt: skip
    n = simulation.system.n_atoms
    fixed = 3 * n - simulation.ensemble.degrees_of_freedom(simulation.system)
    state = {"volume": float(values["volume"][0])} if bar is None else {"pressure": bar}
    observed = {k: v for k, v in values.items() if k != "volume" or bar is not None}
    return pv.data.SimulationData(
        units=units, dt=argon.TIMESTEP,
        system=pv.data.SystemData(
            natoms=n, nconstraints=0, ndof_reduction_tra=fixed, ndof_reduction_rot=0, mass=np.full(n, argon.MASS)
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
def test_constant_temperature(thermostat, device, argon, pv):
    data = []
    for kelvin in (115.0, 122.0):
        sampled = sample(argon, device, type="nvt", temperature_K=(kelvin,), **THERMOSTATS[thermostat])
        data.append(as_data(pv, argon, *sampled, kelvin))
    check(pv, data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("thermostat", ["csvr", "nose-hoover", "langevin"])
def test_constant_pressure(thermostat, device, argon, pv):
    """Volumes at two pressures are related by exp(-(P2 - P1) V / kT)."""
    data = []
    for bar in (1000.0, 1300.0):
        settings = dict(type="npt", thermostat=thermostat, temperature_K=(115.0,), pressure_bar=(bar,))
        data.append(as_data(pv, argon, *sample(argon, device, **settings), 115.0, bar))
    check(pv, data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("coupling", ["aniso", "tri"])
def test_constant_pressure_of_a_crystal(coupling, device, argon, pv):
    data = []
    for bar in (1000.0, 1800.0):
        settings = dict(type="npt", thermostat="nose-hoover", temperature_K=(50.0,), pressure_bar=(bar,))
        sampled = sample(argon, device, structure=argon.crystal, coupling=coupling, **settings)
        data.append(as_data(pv, argon, *sampled, 50.0, bar))
    check(pv, data)


def test_volume_of_an_ideal_pressure(device, argon):
    """Mean virial pressure equals the barostat's."""
    pressures = []
    simulation = argon.simulation(
        20000, device, type="npt", thermostat="nose-hoover", pressure_bar=(1000.0,), coupling="aniso"
    )  # fmt: skip
    system = simulation.system
    simulation.run(4000)
    conserved = [simulation.observables()["conserved_eV"]]
    for _ in range(16000):
        simulation._step()
        tensor = (system.twice_kinetic_tensor() + system.virial) / system.volume * BAR
        pressures.append(np.diag(tensor))
        conserved.append(simulation.observables()["conserved_eV"])
    assert np.mean(pressures, axis=0) == pytest.approx([1000, 1000, 1000], abs=60)
    assert np.ptp(conserved) < 0.03
