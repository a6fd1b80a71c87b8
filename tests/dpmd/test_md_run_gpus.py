"""md-run with one GPU per MPI rank, emulated on the CPU, against one process without."""

import re
import shutil
from pathlib import Path

import ase.io
import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")

PROGRAM = Path(__file__).parent / "programs" / "md_run_ranks.py"
ENDINGS = ("checkpoint.h5", "thermo.csv", "extxyz")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++ to emulate kernels with")
    return str(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def run(water_run, mpi_run, kernels):
    """Function: md-run of an input for 48 atoms of water; 0 GPUs: in this process, else N ranks."""

    def start(name, gpus, steps, *flags, **run):
        settings = {
            "ensemble": {"type": "nvt", "thermostat": "csvr", "relaxation_time_ps": 0.01, "temperature_K": 600.0},
            "structure": {"replicate": [2, 1, 1]}, "checkpoint": {"every": 10}, "thermo": {"every": 1},
            "run": {"steps": steps, "skin": 0.3, "device": "cuda" if gpus else "cpu", "timestep_fs": 0.5, **run},
            "output": [{"file": f"{name}.extxyz", "every": 10, "velocities": True, "forces": True}],
        }  # fmt: skip
        if not gpus:
            return water_run(*flags, name=name, **settings)
        code, text = water_run("--check", "--overwrite", "--device", "cpu", name=name, **settings)  # writes the input
        assert code == 0, text
        arguments = (f"{name}.toml", *flags)
        return mpi_run(gpus, PROGRAM, *arguments, EMULATED_GPUS=str(min(gpus, 2)), KERNELS=kernels)

    return start


def assert_same(thermo_columns, one, other):
    a, b = thermo_columns(f"{one}.thermo.csv"), thermo_columns(f"{other}.thermo.csv")
    for key in a:
        assert b[key] == pytest.approx(a[key], rel=1e-7, abs=1e-7), key
    frames, others = ase.io.read(f"{one}.extxyz", ":"), ase.io.read(f"{other}.extxyz", ":")
    assert len(frames) == len(others) == 3
    for first, second in zip(frames, others, strict=True):
        assert np.abs(first.positions - second.positions).max() < 1e-7
        assert np.abs(first.get_velocities() - second.get_velocities()).max() < 1e-6
        assert np.abs(first.get_forces() - second.get_forces()).max() < 1e-6


def test_run_and_restart_on_other_numbers_of_gpus(run, thermo_columns):
    code, text = run("cpu", 0, 20)
    assert code == 0, text
    code, text = run("whole", 2, 20)
    assert code == 0, text
    assert "rank 1 cuda:1" in text
    assert "halos by MPI through the hosts' memory" in text
    assert "fewer GPUs would be about as fast" in text
    assert '"scheme": "GPU"' in Path("whole.summary.json").read_text()
    assert_same(thermo_columns, "cpu", "whole")

    code, text = run("parts", 2, 10)
    assert code == 0, text
    for ending in ENDINGS:
        shutil.copy(f"parts.{ending}", f"kept.{ending}")
    for gpus in (2, 3, 0):
        for ending in ENDINGS:
            shutil.copy(f"kept.{ending}", f"parts.{ending}")
        code, text = run("parts", gpus, 20, "--continue")
        assert code == 0, text
        if gpus == 2:  # the same number: every bit
            for ending in ("thermo.csv", "extxyz"):
                assert Path(f"parts.{ending}").read_bytes() == Path(f"whole.{ending}").read_bytes()
        assert_same(thermo_columns, "cpu", "parts")
    code, text = run("shared", 3, 1, balance="work")
    assert code == 0, text
    assert "3 ranks share 2 GPUs" in text
    assert "GPUs get boxes with equally many atoms" in text


def test_more_ranks_than_gpus_compute_on_cpus_unless_told_otherwise(run):
    code, text = run("many", 3, 1, device="auto")
    assert code == 0, text
    assert "3 ranks compute on CPUs, for there are 2 GPUs" in text
    assert "device      cpu" in text


def test_overflow_counts_every_atom_once(run, small_water):
    """However many GPUs there are, in the unit of a run on CPUs."""
    small_water = small_water.copy()
    small_water.set_cell(small_water.cell * 0.8, scale_atoms=True)
    ase.io.write("start.extxyz", small_water, format="extxyz")
    for gpus in (0, 2):
        code, text = run(f"with{gpus}", gpus, 6, max_displacement=3.0, skin=0.1)
        assert code == 0, text
        told = re.search(r"(\S+) atoms, on average over the steps, had more", text)
        assert float(told[1]) == 48, text
