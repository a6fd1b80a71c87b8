"""Decompositions under mpiexec, all ranks on this machine, against one process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install dpmd[mpi]")

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
MORE_RANKS = [pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3, 4, 8)]


@pytest.mark.parametrize("n", [6, *MORE_RANKS])
def test_forces_energy_and_virial_are_those_of_one_process(n, find_model):
    examples = ROOT / "examples"
    environment = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    run = subprocess.run(
        [
            MPIEXEC, "-n", str(n), sys.executable, "-m", "mpi4py", PROGRAMS / "equality.py",
            find_model("water_md0.dp"), examples / "copper" / "copper.dp",
            examples / "water" / "water.extxyz", examples / "copper" / "copper.extxyz",
        ],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)
