"""Many small structures in one call: what screening and active learning need."""

import sys
import time
from pathlib import Path

import numpy as np
from ase.build import bulk

from dpmd import Potential

MODEL = Path(__file__).resolve().parent.parent / "copper" / "copper.dp"
number = 20 if "--quick" in sys.argv else 1000
random = np.random.default_rng(0)

structures = []
for k in range(number):
    atoms = bulk("Cu", cubic=True, a=random.uniform(3.5, 3.7)) * random.integers(1, 3, 3)
    if k % 2:
        del atoms[0]  # a vacancy
    atoms.rattle(0.05, rng=random)
    structures.append(atoms)
n_atoms = sum(map(len, structures))

potential = Potential(MODEL)
potential.evaluate(structures[:2])  # compiles, if this is the first time
begin = time.perf_counter()
together = potential.evaluate(structures)
middle = time.perf_counter()
alone = [potential.evaluate(atoms) for atoms in structures]
end = time.perf_counter()

difference = max(np.abs(a["forces"] - b["forces"]).max() for a, b in zip(together, alone, strict=True))
print(f"{number} structures, {n_atoms} atoms; largest difference of forces {difference:.0e} eV/Å")
print(f"together    {1e6 * (middle - begin) / n_atoms:6.1f} µs/atom")
print(f"one by one  {1e6 * (end - middle) / n_atoms:6.1f} µs/atom")
assert difference < 1e-9
