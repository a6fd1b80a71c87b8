"""Ensembles, minimisers, committees and values per atom on several MPI ranks, against one process."""

from pathlib import Path

import ase.io
import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")

PROGRAM = Path(__file__).parent / "programs" / "spread.py"


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 4))])
def test_the_same_as_one_process(n, mpi_run, find_model, small_water, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ase.io.write("start.extxyz", small_water)
    code, text = mpi_run(n, PROGRAM, find_model("water_md0.dp"), find_model("water_md1.pb"), "start.extxyz")
    assert code == 0, text
    assert text.count("volume") == 17
