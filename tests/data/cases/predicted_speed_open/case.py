"""The speed that is expected of a cluster without a cell: it was 100 times too low.

Right: what the same atoms in a large periodic cell are expected to reach, where there is nothing to exchange
either.  Predictions are compared with one another, not with the clock, which swings with the machine's load.
"""

import re

from ase.build import molecule
from ase.cluster import Octahedron

INPUT = """
[structure]
file = "{name}.extxyz"
initial_temperature_K = 300
[model]
file = "{model}.dp"
[ensemble]
type = "nvt"
temperature_K = 300
[run]
steps = 200
timestep_fs = 0.5
"""


def expected(case, atoms, model, name, box=None):
    atoms = atoms.copy()
    if box:
        atoms.set_cell([box] * 3)
        atoms.center()
        atoms.pbc = True
    atoms.write(f"{name}.extxyz")
    (case.folder / f"{name}.toml").write_text(INPUT.format(name=name, model=model))
    text = case.md_run(f"{name}.toml", "--check")
    return float(re.search(r"expected +(\S+) ns/day", text)[1])


def check(case):
    cluster = Octahedron("Cu", 5, cutoff=1)
    open_, box = expected(case, cluster, "copper", "open"), expected(case, cluster, "copper", "box", 30.0)
    assert 0.8 < open_ / box < 1.2
    alone = molecule("H2O")
    open_, box = expected(case, alone, "water", "one"), expected(case, alone, "water", "one_box", 30.0)
    assert 0.8 < open_ / box < 1.2
