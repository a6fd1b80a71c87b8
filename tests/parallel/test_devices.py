"""One GPU per MPI rank, emulated on the CPU (and, marked ``gpu``, real ones), against one GPU."""

import shutil
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest

from dpmd.kernels.cuda import available, count

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")

PROGRAM = Path(__file__).parent / "programs" / "devices.py"
COPPER = Path(__file__).resolve().parents[2] / "examples" / "copper" / "copper.dp"


@pytest.fixture(scope="module")
def arguments(tmp_path_factory, find_cases, find_model):
    folder = tmp_path_factory.mktemp("kernels")
    case = find_cases(models=["water_md0"], structures=["wsmall24_6.2A"])[0].load()
    water = ase.Atoms(np.array(["O", "H"])[case["atype"]], case["coord"], cell=case["box"], pbc=True)
    ase.io.write(folder / "water.extxyz", water)
    return folder, find_model("water_md0_c.pb"), COPPER, folder / "water.extxyz"


@pytest.mark.parametrize("n", [2, 3, 4])
def test_emulated(n, mpi_run, arguments):
    if shutil.which("g++") is None:
        pytest.skip("no g++ to emulate kernels with")
    code, text = mpi_run(n, PROGRAM, *arguments)
    assert code == 0, text
    assert "by MPI through the hosts' memory: ranks share a GPU and by emulated NCCL, GPU to GPU" in text
    assert text.count("virials of atoms") == 7
    assert text.count("moved to others") == (1 if n == 4 else 2)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2, 3])
def test_ranks_share_a_gpu(n, mpi_run, arguments):
    reason = available()
    if reason:
        pytest.skip(reason)
    code, text = mpi_run(n, PROGRAM, *arguments, "gpu", CUDA_VISIBLE_DEVICES="0")
    assert code == 0, text
    assert "ranks share a GPU" in text


@pytest.mark.gpu
def test_a_gpu_for_each_rank(mpi_run, arguments):
    if count() < 2:
        pytest.skip("there are no two GPUs")
    code, text = mpi_run(min(count(), 4), PROGRAM, *arguments, "gpu")
    assert code == 0, text
    assert "by NCCL" in text
