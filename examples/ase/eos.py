"""Equation of state of copper: all volumes in one call, and a fit."""

import sys
from pathlib import Path

import numpy as np
from ase.build import bulk
from ase.eos import EquationOfState
from ase.units import GPa

from dpmd import Potential
from dpmd.units import BAR

MODEL = Path(__file__).resolve().parent.parent / "copper" / "copper.dp"
number = 7 if "--quick" in sys.argv else 21

crystals = [bulk("Cu", cubic=True, a=a) for a in np.linspace(3.45, 3.75, number)]
results = Potential(MODEL).evaluate(crystals)

volumes = np.array([atoms.get_volume() for atoms in crystals])
energies = np.array([result["energy"] for result in results])
volume, energy, modulus = EquationOfState(volumes, energies, eos="birchmurnaghan").fit()
print(
    f"lattice constant {volume ** (1 / 3):.4f} Å, energy {energy / 4:.4f} eV/atom, bulk modulus {modulus / GPa:.0f} GPa"
)

# the virial tells the same: pressure = tr W / 3V is minus the slope of the energy
pressures = np.array([np.trace(result["virial"]) for result in results]) / (3 * volumes)
slopes = -np.gradient(energies, volumes, edge_order=2)
print(f"pressure from -5 % to +5 %: {pressures[0] * BAR / 1e3:.0f} to {pressures[-1] * BAR / 1e3:.0f} kbar; "
      f"by differences {slopes[0] * BAR / 1e3:.0f} to {slopes[-1] * BAR / 1e3:.0f}")  # fmt: skip
assert 3.5 < volume ** (1 / 3) < 3.7
assert 80 < modulus / GPa < 220
