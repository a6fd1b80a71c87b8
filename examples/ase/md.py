"""Molecular dynamics of 64 water molecules: with ASE's integrator, and with dpmd's own.

Both call the same operators; dpmd's loop does without ASE's bookkeeping and keeps the networks in single
precision by default.  Callbacks see the running simulation's arrays, without copies.
"""

import sys
import time
from pathlib import Path

import ase.io
import numpy as np
from ase import units
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution

from dpmd import DP, Simulation

WATER = Path(__file__).resolve().parent.parent / "water"
steps = 20 if "--quick" in sys.argv else 400
atoms = ase.io.read(WATER / "water.extxyz")

# --- ASE's integrator: any of its thermostats, constraints, biases
scripted = atoms.copy()
scripted.calc = DP(WATER / "water.dp")
MaxwellBoltzmannDistribution(scripted, temperature_K=330, rng=np.random.default_rng(0))
dynamics = Langevin(scripted, 0.5 * units.fs, temperature_K=330, friction=0.01 / units.fs, fixcm=False)
begin = time.perf_counter()
dynamics.run(steps)
elapsed = time.perf_counter() - begin
print(f"ASE, double  {1e3 * elapsed / steps:6.2f} ms/step, {scripted.get_temperature():.0f} K at the end")

# --- dpmd's own loop
simulation = Simulation.from_atoms(
    atoms, WATER / "water.dp", ensemble="nvt", thermostat="langevin", temperature_K=330, timestep_fs=0.5
)
temperatures = []
simulation.every(5, lambda s: temperatures.append(s.observables()["temperature_K"]))


def stop_when_hot(simulation):
    """A condition that ends the run: it can be resumed."""
    if temperatures[-1] > 1000:
        simulation.stop(f"{temperatures[-1]:.0f} K")


simulation.every(5, stop_when_hot)
simulation.run(1)  # compiles, if this is the first time
begin = time.perf_counter()
simulation.resume(steps)
elapsed = time.perf_counter() - begin
print(f"dpmd, mixed  {1e3 * elapsed / steps:6.2f} ms/step, {temperatures[-1]:.0f} K at the end")
assert simulation.system.step == steps + 1
assert 150 < temperatures[-1] < 600
