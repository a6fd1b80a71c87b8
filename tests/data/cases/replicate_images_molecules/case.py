"""``replicate`` keeps molecules whole across a face, and numbers those of the copies anew.

Values of LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings), same input.
"""

from pathlib import Path

import numpy as np
import pytest

#: id mol type x y z xu yu zu ix iy iz
RIGHT = """
1 1 1 6 6    0.3  6 6    0.3 0 0 0
2 1 2 6 6.76 23.7 6 6.76 -0.3 0 0 -1
3 1 2 6 5.24 23.7 6 5.24 -0.3 0 0 -1
4 2 1 6 6    12.3 6 6    12.3 0 0 0
5 2 2 6 6.76 11.7 6 6.76 11.7 0 0 0
6 2 2 6 5.24 11.7 6 5.24 11.7 0 0 0
"""


def check(case):
    case.md_run("in.lammps")
    found = np.array([line.split() for line in Path("r.dump").read_text().splitlines()[9:]], float)
    right = np.array([line.split() for line in RIGHT.strip().splitlines()], float)
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-9)
    assert case.thermo()["TotEng"][0] == pytest.approx(-934.2168, abs=1e-4)
