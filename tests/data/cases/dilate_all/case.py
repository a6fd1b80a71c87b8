"""``dilate all`` is the default of a barostat, so that it changes nothing.

Values of LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings), the same with and without it.
"""

from pathlib import Path

import numpy as np
import pytest


def check(case):
    script = Path("in.lammps").read_text()
    case.md_run("in.lammps")
    with_it = case.thermo()
    Path("without").write_text(script.replace(" dilate all", ""))
    case.md_run("without", "-log", "without.log")
    without = case.thermo(log="without.log")
    for name in without:
        np.testing.assert_array_equal(with_it[name], without[name])
    assert with_it["Step"][-1] == 5
    assert with_it["Temp"][-1] == pytest.approx(291.45716, abs=1e-5)
    assert with_it["E_pair"][-1] == pytest.approx(-0.30551914, abs=1e-7)
    assert with_it["Press"][-1] == pytest.approx(-28156.472, abs=0.01)
    assert with_it["Volume"][-1] == pytest.approx(1280.4305, abs=1e-4)
    Path("part").write_text(script.replace("dilate all", "dilate some").replace("mass 1", "group some id 1:5\nmass 1"))
    output = case.md_run("part", exit_code=2)
    assert "part:12: fix npt: dilate some is not supported" in output
