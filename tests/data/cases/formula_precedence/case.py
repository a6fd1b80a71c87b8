"""Formulas as LAMMPS reads them: unary minus before ^, ^ from left to right, halves rounded up, 20 digits.

The right lines were printed by LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings) from the same script.
"""


def check(case):
    lines = case.md_run("in.lammps").splitlines()
    assert "minus-square 4 4" in lines
    assert "tower 64" in lines
    assert "round -2 0 3" in lines
    assert "third 0.33333333333333331483" in lines
    assert 'quoted "${x}"' in lines
