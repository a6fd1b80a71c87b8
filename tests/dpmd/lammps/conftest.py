"""Fixture ``script``: runs the text of a script in a folder with water.lmp and small models."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpmd.lammps.interpreter import run_script

DATA = Path(__file__).resolve().parents[2] / "data"
OPTIONS = SimpleNamespace(
    device="cpu",
    precision="double",
    threads=1,
    no_tabulate=False,
    no_low_rank=False,
    rank=None,
    max_displacement=1.0,
    check=False,
)
HEAD = """
units metal
boundary p p p
atom_style atomic
neighbor 2.0 bin
read_data water.lmp
mass 1 16
mass 2 2
pair_style deepmd water_md0.pb
pair_coeff * * O H
timestep 0.0005
thermo 5
"""


@pytest.fixture(scope="session")
def script_options():
    return OPTIONS


@pytest.fixture
def head():
    return HEAD


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Function: text, -var values -> the log's text.  The exit code must be 0.  exact=True : without tables."""
    monkeypatch.chdir(tmp_path)
    for name in ("water.lmp", "water24.lmp", "wtri192.lmp"):
        shutil.copy(DATA / "lammps" / name, tmp_path)
    for name in ("water_md0.pb", "water_md1.pb", "f_faparam.pb"):
        (tmp_path / name).symlink_to(DATA / "models" / name)

    def run(text, log="log.lammps", exact=False, **variables):
        Path("in.script").write_text(text)
        values = [(k, v if isinstance(v, list) else [str(v)]) for k, v in variables.items()]
        options = SimpleNamespace(**vars(OPTIONS) | {"no_tabulate": exact})
        assert run_script("in.script", options, values, log) == 0
        return Path(log).read_text()

    return run
