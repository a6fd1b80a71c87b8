"""Simulations built, watched, stopped and resumed from Python."""

import numpy as np
import pytest

from dpmd import Potential, Simulation
from dpmd.errors import InputError
from dpmd.simulation import Hook


@pytest.fixture
def model(find_model):
    return find_model("water_md0.pb")


def in_input_order(system, name):
    return getattr(system, name)[np.argsort(system.ids)]


@pytest.mark.parametrize("thermostat", [None, "csvr", "nose-hoover", "langevin"])
def test_resumed_equals_uninterrupted(model, small_water, thermostat):
    ensemble = {"ensemble": "nvt", "thermostat": thermostat, "temperature_K": 300} if thermostat else {}
    options = {**ensemble, "initial_temperature_K": 300, "timestep_fs": 0.5, "precision": "double", "threads": 1}
    whole, parts = (Simulation.from_atoms(small_water, model, **options) for _ in range(2))
    whole.run(12)
    parts.run(5)
    parts.resume(7)
    assert parts.system.step == whole.system.step == 12
    for name in ("positions", "velocities", "forces"):
        a, b = in_input_order(whole.system, name), in_input_order(parts.system, name)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


def test_callbacks_see_and_change_the_state(model, small_water):
    simulation = Simulation.from_atoms(small_water, model, initial_temperature_K=300, threads=1)
    steps, arrays = [], []

    def watch(s):
        steps.append(s.system.step)
        arrays.append(s.system.positions)

    hook = simulation.every(4, watch)
    assert isinstance(hook, Hook)
    simulation.run(12)
    assert steps == [0, 4, 8, 12]
    assert np.shares_memory(arrays[-1], simulation.system.positions)
    simulation.every(1, lambda s: s.system.velocities.fill(0.0))
    simulation.resume(1)
    assert simulation.system.kinetic_energy == 0.0


def test_stop_and_resume(model, small_water):
    simulation = Simulation.from_atoms(small_water, model, initial_temperature_K=300, threads=1)
    simulation.every(1, lambda s: s.stop("enough") if s.system.step == 3 else None)
    simulation.run(100)
    assert (simulation.system.step, simulation.stop_reason) == (3, "enough")
    simulation.resume(4)
    assert (simulation.system.step, simulation.stop_reason) == (7, None)


def test_velocities_of_the_atoms_are_used(model, small_water):
    atoms = small_water.copy()
    atoms.set_velocities(np.random.default_rng(0).normal(0, 0.01, (24, 3)))
    simulation = Simulation.from_atoms(atoms, Potential(model, threads=1), ensemble="nvt", temperature_K=300)
    np.testing.assert_allclose(simulation.system.to_ase().get_velocities(), atoms.get_velocities(), atol=1e-14)
    drawn = Simulation.from_atoms(small_water, Potential(model, threads=1), ensemble="nvt", temperature_K=300)
    assert drawn.observables()["temperature_K"] == pytest.approx(300)


def test_wrong_options_are_named(model, small_water):
    with pytest.raises(InputError, match="did you mean 'temperature_K'"):
        Simulation.from_atoms(small_water, model, ensemble="nvt", temperatur_K=300)
    with pytest.raises(InputError, match="needs a temperature"):
        Simulation.from_atoms(small_water, model, ensemble="nvt")
    with pytest.raises(InputError, match="no such file"):
        Simulation.from_atoms(small_water, "missing.dp")
