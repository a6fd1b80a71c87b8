"""Elastic constants by finite strains, as the scripts do that come with LAMMPS: results in variables, restart files.

Values of LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings), same script.
"""

from pathlib import Path

import pytest

RIGHT = {"C11": 152.9786206731, "C44": 80.2759091162778, "sum": 233.2545}


def check(case):
    lines = [line.split(" = ") for line in case.md_run("in.lammps").splitlines()]
    found = {words[0]: float(words[1]) for words in lines if len(words) == 2 and words[0] in RIGHT}
    assert found == pytest.approx(RIGHT, rel=1e-6)
    # what stands after the strained cells is looked at before anything runs
    script = Path("in.lammps").read_text()
    Path("wrong").write_text(script + "fix 1 all nvt temp 300 300\nthermo_style custom step volume\nunfix none\n")
    output = case.md_run("wrong", exit_code=2)
    for number in (35, 36, 37):
        assert f"wrong:{number}: " in output
    assert "C11" not in output
