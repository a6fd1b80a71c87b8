"""Phonons of copper from finite displacements in a supercell."""

import sys
import tempfile
from pathlib import Path

import numpy as np
from ase.build import bulk
from ase.phonons import Phonons

from dpmd import DP

MODEL = Path(__file__).resolve().parent.parent / "copper" / "copper.dp"
size = 3 if "--quick" in sys.argv else 6
TERAHERTZ = 241.79893  # per eV

atoms = bulk("Cu", a=3.59)
with tempfile.TemporaryDirectory() as folder:
    phonons = Phonons(atoms, DP(MODEL), supercell=(size, size, size), delta=0.02, name=f"{folder}/phonons")
    phonons.run()
    phonons.read(acoustic=True)

# at Gamma the acoustic frequencies are zero to rounding, imaginary or not: no need for ASE to warn of it
special = atoms.cell.bandpath("GXLK", npoints=4).special_points
frequencies = {name: TERAHERTZ * phonons.band_structure(np.array([special[name]]), verbose=False)[0] for name in "GXLK"}
print("frequencies (THz)")
for name, values in frequencies.items():
    print(f"  {name}  {'  '.join(f'{value:6.3f}' for value in values)}")
assert np.abs(frequencies["G"]).max() < 0.05, "acoustic modes"
assert 3 < frequencies["X"].min() < frequencies["X"].max() < 10
