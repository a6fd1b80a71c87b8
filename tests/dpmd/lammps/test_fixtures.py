"""Scripts that were run by LAMMPS with DeePMD-kit: thermo output, model deviation and per-atom values."""

import gzip
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpmd.lammps.interpreter import run_script

DATA = Path(__file__).resolve().parents[2] / "data" / "lammps"
PROGRAM = Path(__file__).parent / "programs" / "scripts.py"
SCRIPTS = [
    "water_md0_nve", "water_nve", "water_tri_nve", "water_nopbc", "water_mixedbc_ppf", "cu_nve", "water_nvt",
    "water_npt_iso", "water_tri_npt", "water_sp_real_units", "water_sp_peratom", "water_tri_sp_peratom", "faparam",
    "devi", "devi2", "devi_atomic", "devi_rel",
]  # fmt: skip
OPTIONS = SimpleNamespace(
    device="cpu", precision="double", threads=1, no_tabulate=False, no_low_rank=False, rank=None,
    max_displacement=1.0, check=False,
)  # fmt: skip


def read_log(path):
    """Thermo columns {name: array} of the last run in a log."""
    lines = path.read_text().splitlines()
    start = max(k for k, line in enumerate(lines) if line.split()[:1] == ["Step"])
    end = next(k for k, line in enumerate(lines) if line.startswith("Loop time") and k > start)
    rows = np.array([[float(v) for v in line.split()] for line in lines[start + 1 : end]])
    return dict(zip(lines[start].split(), rows.T, strict=True))


def read_columns(path):
    """Rows of the last frame of a dump."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        text = file.read().split("ITEM: ATOMS")[-1]
    return np.array([[float(v) for v in line.split()] for line in text.splitlines()[1:]])


def largest_error(name, ours, theirs):
    """Relative error; of pressure components relative to the largest, of tilts to the edge."""
    n = min(len(ours["Step"]), len(theirs["Step"]))
    mine, yours = ours[name][:n], theirs[name][:n]
    scale = np.abs(yours)
    if name.startswith("P") and name[1:] in ("xx", "yy", "zz", "xy", "xz", "yz"):
        scale = np.max([np.abs(theirs[k][:n]) for k in ("Pxx", "Pyy", "Pzz", "Pxy", "Pxz", "Pyz")], axis=0)
    elif name in ("Xy", "Xz", "Yz"):
        scale = theirs["Lx"][:n]
    return float((np.abs(mine - yours) / np.where(scale > 0, scale, 1.0)).max())


@pytest.fixture
def prepare(find_model):
    """Function: a stored script, at most 50 steps of it, into a folder as in.script."""

    def put(name, target):
        text = (DATA / f"{name}.in").read_text()
        for data in re.findall(r"\S+\.lmp", text):
            shutil.copy(DATA / data, target)
        text = re.sub(r"\.\./models/(\S+)", lambda match: str(find_model(match[1])), text)
        text = re.sub(r"^run +(\d+)", lambda m: f"run {min(int(m[1]), 50)}", text, flags=re.M)
        (target / "in.script").write_text(text)

    return put


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name, prepare, tmp_path, monkeypatch):
    prepare(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run_script("in.script", OPTIONS) == 0
    compare(name, tmp_path)


@pytest.mark.parametrize(
    ("n", "decomposition", "names"),
    [
        (2, "node", ["water_tri_npt", "water_mixedbc_ppf", "devi_atomic", "faparam"]),
        pytest.param(2, "node", SCRIPTS, marks=pytest.mark.long),
        pytest.param(3, "rank", SCRIPTS, marks=pytest.mark.long),
    ],
)
def test_scripts_on_several_ranks(n, decomposition, names, prepare, tmp_path, mpi_run):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")
    for name in names:
        (tmp_path / name).mkdir()
        prepare(name, tmp_path / name)
    code, text = mpi_run(n, PROGRAM, decomposition, *(str(tmp_path / name) for name in names))
    assert code == 0, text
    for name in names:
        compare(name, tmp_path / name)


def compare(name, where):
    """The output in ``where`` is what LAMMPS left."""
    ours, theirs = read_log(where / "log.lammps"), read_log(DATA / f"{name}.log")
    assert list(ours) == list(theirs)
    n = min(len(ours["Step"]), len(theirs["Step"]))
    assert n >= min(len(theirs["Step"]), 6)
    assert np.array_equal(ours["Step"][:n], theirs["Step"][:n])
    errors = {column: largest_error(column, ours, theirs) for column in ours}
    print(name, {k: f"{v:.1e}" for k, v in errors.items()})
    assert max(errors.values()) < 1e-6, errors
    if (DATA / f"{name}.md.out").exists():
        a, b = (path.read_text().splitlines() for path in (where / f"{name}.md.out", DATA / f"{name}.md.out"))
        assert a[0] == b[0]
        mine, yours = (np.array([[float(v) for v in line.split()] for line in lines[1:]]) for lines in (a, b))
        assert mine.shape == yours.shape
        assert np.abs(mine - yours).max() < 1e-6
    if (DATA / f"{name}.peratom.dump.gz").exists():
        mine, yours = read_columns(where / f"{name}.peratom.dump"), read_columns(DATA / f"{name}.peratom.dump.gz")
        assert np.abs(mine[:, 2] - yours[:, 2]).max() < 1e-9
        assert np.abs(mine[:, 3:] - yours[:, 3:]).max() < 1e-9 * np.abs(yours[:, 3:]).max()
