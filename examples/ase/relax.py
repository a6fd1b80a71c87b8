"""Relax atoms and cell together: a strained and rattled copper cell finds its lattice constant."""

import sys
from pathlib import Path

import numpy as np
from ase.build import bulk
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS

from dpmd import DP

MODEL = Path(__file__).resolve().parent.parent / "copper" / "copper.dp"
quick = "--quick" in sys.argv

atoms = bulk("Cu", cubic=True, a=3.75) * (1 if quick else 2)
atoms.set_cell(atoms.cell.array @ [[1, 0.03, 0], [0, 1, -0.02], [0.01, 0, 1]], scale_atoms=True)
atoms.rattle(0.05, seed=1)
atoms.calc = DP(MODEL)

optimizer = BFGS(FrechetCellFilter(atoms), logfile=None)
optimizer.run(fmax=1e-3, steps=200)

lattice = (atoms.get_volume() / len(atoms) * 4) ** (1 / 3)
print(f"{optimizer.nsteps} steps; largest force {np.abs(atoms.get_forces()).max():.1e} eV/Å, "
      f"largest stress {np.abs(atoms.get_stress()).max():.1e} eV/Å^3")  # fmt: skip
print(f"lattice constant {lattice:.4f} Å, energy {atoms.get_potential_energy() / len(atoms):.4f} eV/atom")
assert optimizer.converged()
assert 3.5 < lattice < 3.7
