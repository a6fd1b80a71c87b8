"""Machine files of the person who runs the tests must not change what the tests see."""

from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data" / "perf"


@pytest.fixture(autouse=True)
def _own_machine_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPMD_MACHINES", str(tmp_path / "machines"))


@pytest.fixture(scope="session")
def fugaku_runs():
    from dpmd.perfmodel.runs import read_runs

    return read_runs(DATA / "fugaku_runs.csv")


@pytest.fixture
def data():
    return DATA
