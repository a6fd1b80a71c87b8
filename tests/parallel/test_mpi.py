"""Decompositions under mpiexec, all ranks on this machine, against one process."""

from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAM = Path(__file__).parent / "programs" / "equality.py"
MORE_RANKS = [pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3, 4, 8)]


@pytest.mark.parametrize("n", [6, *MORE_RANKS])
def test_forces_energy_and_virial_are_those_of_one_process(n, mpi_run, find_model):
    code, text = mpi_run(
        n, PROGRAM, find_model("water_md0.dp"), EXAMPLES / "copper" / "copper.dp",
        EXAMPLES / "water" / "water.extxyz", EXAMPLES / "copper" / "copper.extxyz",
    )  # fmt: skip
    assert code == 0, text
    print(text)
