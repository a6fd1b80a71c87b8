"""Thermostats and barostats sample their ensembles: checked by the package physical_validation.

On liquid argon (see argon.py) in place of a Deep Potential, so that long trajectories cost minutes.  Run
with ``-m long``, on a GPU with ``-m "long and gpu"``; needs physical-validation.
"""

import numpy as np
import pytest

from dpmd.units import BAR, BOLTZMANN

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """None, or the GPU on which atoms are moved."""
    return None if request.param == "cpu" else request.getfixturevalue("gpu")


def sample(argon, device, steps=40000, **settings):
    """Observables {name: array} every 5 steps, after a fifth of the run."""
    simulation = argon.simulation(steps, device, **settings)
    simulation.run(steps // 5)
    rows, system = [], simulation.system
    for _ in range(steps // 5):
        for _ in range(5):
            simulation._step()
        rows.append((system.kinetic_energy, system.energy, system.volume))
    names = ("kinetic_energy", "potential_energy", "volume")
    return simulation.ensemble, dict(zip(names, np.array(rows).T, strict=True))


def as_data(pv, argon, ensemble, values, kelvin, bar=None):
    units = pv.data.UnitData(
        kb=BOLTZMANN, energy_str="eV", energy_conversion=96.4853, length_str="A", length_conversion=0.1,
        volume_str="A^3", volume_conversion=1e-3, temperature_str="K", temperature_conversion=1.0, pressure_str="bar",
        pressure_conversion=1.0, time_str="ps", time_conversion=1.0,
    )  # fmt: skip
    fixed = 3 if ensemble.degrees_of_freedom(argon.liquid(1.0)) < 3 * argon.N else 0
    state = {"volume": float(values["volume"][0])} if bar is None else {"pressure": bar}
    observed = {k: v for k, v in values.items() if k != "volume" or bar is not None}
    return pv.data.SimulationData(
        units=units, dt=argon.TIMESTEP,
        system=pv.data.SystemData(
            natoms=argon.N, nconstraints=0, ndof_reduction_tra=fixed, ndof_reduction_rot=0,
            mass=np.full(argon.N, argon.MASS),
        ),
        ensemble=pv.data.EnsembleData("NVT" if bar is None else "NPT", natoms=argon.N, temperature=kelvin, **state),
        observables=pv.data.ObservableData(
            **observed, total_energy=values["kinetic_energy"] + values["potential_energy"]
        ),
    )  # fmt: skip


@pytest.fixture
def pv():
    return pytest.importorskip("physical_validation")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("thermostat", ["csvr", "nose-hoover", "langevin"])
def test_constant_temperature(thermostat, device, argon, pv):
    data = []
    for kelvin in (115.0, 122.0):
        ensemble, values = sample(argon, device, type="nvt", thermostat=thermostat, temperature_K=(kelvin,))
        data.append(as_data(pv, argon, ensemble, values, kelvin))
    for one in data:
        # deviations of mean and width of the kinetic energy in standard errors
        assert max(np.abs(pv.kinetic_energy.distribution(one, strict=False, verbosity=0))) < 4
    assert max(np.abs(pv.ensemble.check(*data, verbosity=0))) < 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("thermostat", ["csvr", "nose-hoover", "langevin"])
def test_constant_pressure(thermostat, device, argon, pv):
    data = []
    for bar in (1000.0, 1300.0):
        ensemble, values = sample(
            argon, device, type="npt", thermostat=thermostat, temperature_K=(115.0,), pressure_bar=(bar,)
        )  # fmt: skip
        data.append(as_data(pv, argon, ensemble, values, 115.0, bar))
    for one in data:
        assert max(np.abs(pv.kinetic_energy.distribution(one, strict=False, verbosity=0))) < 4
    # the two volume distributions are related by exp(-(P2 - P1) V / kT): slope fitted, in standard errors
    assert max(np.abs(pv.ensemble.check(*data, verbosity=0))) < 4


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
