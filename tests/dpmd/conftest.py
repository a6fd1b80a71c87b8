"""Fixtures for md-run and ensembles.

``water_run`` : function that writes an input file for 24 water atoms with a small model into a
folder and runs it there with changed settings; returns the exit code and what was printed.
``argon`` : the module argon.py beside this file.
"""

import copy
import importlib.util
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest

from dpmd import cli

BASE = {
    "structure": {"file": "start.extxyz", "masses_u": {"H": 2.0}},
    "model": {"file": "model"},
    "ensemble": {"type": "nve", "temperature_K": 300.0},
    "run": {"steps": 20, "timestep_fs": 0.5, "precision": "double", "threads": 1},
    "thermo": {"every": 5},
    "output": [{"file": "out.extxyz", "every": 5, "velocities": True, "forces": True}],
}


def to_toml(settings):
    def value(v):
        if isinstance(v, dict):
            return "{ " + ", ".join(f"{k} = {value(x)}" for k, x in v.items()) + " }"
        if isinstance(v, list):
            return "[" + ", ".join(value(x) for x in v) + "]"
        return str(v).lower() if isinstance(v, bool) else f'"{v}"' if isinstance(v, str) else repr(v)

    lines = []
    for section, content in settings.items():
        for table in content if isinstance(content, list) else [content]:
            lines.append(f"[[{section}]]" if isinstance(content, list) else f"[{section}]")
            lines += [f"{key} = {value(v)}" for key, v in table.items() if v is not None]
    return "\n".join(lines) + "\n"


def merged(base, changes):
    settings = copy.deepcopy(base)
    for section, content in changes.items():
        if isinstance(content, dict) and isinstance(settings.get(section), dict):
            settings[section].update(content)
        else:
            settings[section] = content
    return settings


@pytest.fixture(scope="session")
def small_water(find_cases):
    """ASE Atoms: 24 atoms of water in a cube of 6.2 Å."""
    case = find_cases(models=["water_md0"], structures=["wsmall24_6.2A"])[0].load()
    return ase.Atoms(np.array(["O", "H"])[case["atype"]], case["coord"], cell=case["box"], pbc=True)


@pytest.fixture
def water_run(tmp_path, monkeypatch, capsys, find_model, small_water):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpmd.cli._launchers", ())
    ase.io.write("start.extxyz", small_water, format="extxyz")
    (tmp_path / "model").write_bytes(find_model("water_md0.dp").read_bytes())

    def run(*flags, text=None, name="run", **changes):
        (tmp_path / f"{name}.toml").write_text(to_toml(merged(BASE, changes)) if text is None else text)
        with pytest.raises(SystemExit) as exit_:
            cli.md_run([f"{name}.toml", *flags])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out + captured.err

    return run


@pytest.fixture
def thermo_columns():
    """Function: path of a thermo CSV file -> {name: array}."""

    def read(path):
        rows = [line.split(",") for line in Path(path).read_text(encoding="utf-8").splitlines()]
        return {name: np.array([float(row[k]) for row in rows[1:]]) for k, name in enumerate(rows[0])}

    return read


@pytest.fixture(scope="session")
def argon():
    spec = importlib.util.spec_from_file_location("dpmd_tests_argon", Path(__file__).with_name("argon.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
