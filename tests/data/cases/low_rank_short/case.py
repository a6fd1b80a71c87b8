"""One pair of fcc copper shortened: tables and low-rank bases against exact networks, and a warning below 0.5 Å.

Right is what exact networks give in double precision.  The basis of trained copper was once used at all distances,
though sampled from 1.36 Å on: forces were off by 1.3e-3 eV/Å at 1.2 Å, 0.26 at 0.9 Å.
"""

import ase
import ase.io
import ase.units
import numpy as np
import pytest
from ase.build import bulk

from dpmd import Potential

RULE = {"double": 1e-9, "mixed": 5e-6}
SCRIPT = """
units metal
boundary f f f
read_data pair.data
pair_style deepmd copper.dp
pair_coeff * *
fix 1 all nve
timestep 0.0001
thermo 1
run 2
run 2
"""
DATA = """two atoms

2 atoms
1 atom types
0 30 xlo xhi
0 30 ylo yhi
0 30 zlo zhi

Masses

1 63.546

Atoms

1 1 15 15 15
2 1 15 15 {z}
"""


def shortened(r):
    crystal = bulk("Cu", "fcc", a=3.6, cubic=True) * (2, 2, 2)
    vector = crystal.get_distance(0, 1, mic=True, vector=True)
    crystal.positions[1] = crystal.positions[0] + vector * r / np.linalg.norm(vector)
    return crystal


def check(case):
    exact = Potential("copper.dp", device="cpu", tabulate=False)
    tables = [
        (precision, Potential("copper.dp", device="cpu", precision=precision, low_rank=low_rank))
        for precision in RULE
        for low_rank in (True, False)
    ]
    for r in (0.51, 0.7, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 2.0):
        atoms = shortened(r)
        right = exact.evaluate(atoms)["forces"]
        for precision, potential in tables:
            error = np.abs(potential.evaluate(atoms)["forces"] - right).max()
            assert error <= RULE[precision] * max(1.0, np.abs(right).max()), (precision, r, error)
    with pytest.warns(UserWarning, match=r"atoms 0\.450 Å apart. Below 0\.5 Å nothing was checked"):
        tables[0][1].evaluate(shortened(0.45))
    (case.folder / "in.pair").write_text(SCRIPT, encoding="utf-8")
    for distance, told in ((0.6, 0), (0.45, 1)):
        (case.folder / "pair.data").write_text(DATA.format(z=15 + distance), encoding="utf-8")
        printed = case.md_run("in.pair")
        assert printed.count("Below 0.5 Å nothing was checked") == told, printed
        assert printed.count(f"atoms 1 and 2 (Cu-Cu) have come as near as {distance:.3f} Å") == told, printed
    collide(case)


TOML = """
[structure]
file = "pair.extxyz"
[model]
file = "copper.dp"
[run]
steps = 60
timestep_fs = 0.1
[ensemble]
type = "nve"
"""


def collide(case):
    """A TOML run of two atoms that meet."""
    pair = ase.Atoms("Cu2", [[10, 10, 10], [10, 10, 11.0]], cell=[20] * 3)
    pair.set_velocities([[0, 0, 60 * 1e-3 / ase.units.fs], [0, 0, -60 * 1e-3 / ase.units.fs]])
    ase.io.write(case.folder / "pair.extxyz", pair)
    (case.folder / "pair.toml").write_text(TOML, encoding="utf-8")
    printed = case.md_run("pair.toml")
    assert printed.count("Below 0.5 Å nothing was checked") == 1, printed
    assert "atoms 1 and 2 (Cu-Cu) have come as near as 0.4" in printed
