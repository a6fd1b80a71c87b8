"""A format for a range of thermo columns: ``thermo_modify format 4*8 %20.6f``.

The row is that of LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings).
"""

import pytest


def check(case):
    lines = case.md_run("in.lammps").splitlines()
    row = lines[next(k for k, line in enumerate(lines) if line.split()[:1] == ["Step"]) + 1]
    right = (-0.416740, -26.418024, 0.000000, -32524.877322, 1280.824056)
    cells = [row[-20 - 21 * k :][:20] for k in reversed(range(5))]
    assert [len(cell.strip().partition(".")[2]) for cell in cells] == [6] * 5
    assert row[: -21 * 5 + 1].split() == ["0", "0", row.split()[2]]
    values = [float(cell) for cell in cells]
    assert values[0] == pytest.approx(right[0], abs=2e-6)
    assert values[1] == pytest.approx(right[1], abs=2e-6)
    assert values[2] == right[2]
    assert values[3] == pytest.approx(right[3], abs=1e-3)
    assert values[4] == right[4]
