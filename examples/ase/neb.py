"""Nudged elastic band: a vacancy in copper changes places with a neighbour."""

import sys
from pathlib import Path

import numpy as np
from ase.build import bulk
from ase.mep import NEB
from ase.optimize import BFGS, FIRE

from dpmd import DP

MODEL = Path(__file__).resolve().parent.parent / "copper" / "copper.dp"
quick = "--quick" in sys.argv
calculator = DP(MODEL)

crystal = bulk("Cu", cubic=True, a=3.60) * (2 if quick else 3)
neighbor = int(np.argsort(crystal.get_distances(0, range(len(crystal)), mic=True))[1])
# atom "neighbor" jumps into the place of atom 0, which is taken away
initial, final = crystal.copy(), crystal.copy()
final.positions[neighbor] += crystal.get_distance(neighbor, 0, mic=True, vector=True)
for image in (initial, final):
    del image[0]
    image.calc = calculator
    BFGS(image, logfile=None).run(fmax=0.01, steps=100)

images = [initial, *(initial.copy() for _ in range(3 if quick else 5)), final]
for image in images:
    image.calc = calculator
band = NEB(images, climb=True, allow_shared_calculator=True, method="improvedtangent")
band.interpolate(mic=True)
optimizer = FIRE(band, logfile=None)
optimizer.run(fmax=0.05, steps=150)

energies = np.array([image.get_potential_energy() for image in images])
print("energies along the band (eV):", np.round(energies - energies[0], 3))
print(f"barrier {energies.max() - energies[0]:.3f} eV, after {optimizer.nsteps} steps")
assert optimizer.converged()
assert 0.2 < energies.max() - energies[0] < 1.5
