"""Inputs of users that once came out wrong, run as users run them and compared with the right values.

One folder a case in ``data/cases``: the input files, and ``case.py``, whose docstring says where the right
values come from and whose ``check(case)`` runs the input and asserts them.  The folder is copied; the
examples' models lie in the copy as ``water.dp`` and ``copper.dp``, their structures as ``water.extxyz`` and
``copper.extxyz``.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
CASES = sorted(path.parent.name for path in (ROOT / "tests/data/cases").glob("*/case.py"))


class Case:
    """What ``check`` works with; folder : Path of the copy, which is the working directory too."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, *command, exit_code=0, seconds=400, **environment):
        """Run one of dpmd's commands as a user does; returns what it printed, errors included.

        exit_code : the expected one, or None for any; environment : further variables.
        """
        program = Path(sys.executable).parent / command[0]
        done = subprocess.run(
            [program, *map(str, command[1:])], cwd=self.folder, env={**os.environ, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds,
        )  # fmt: skip
        assert exit_code in (None, done.returncode), f"exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def md_run(self, file, *options, **more):
        """``md-run`` in double precision on one thread of the CPU, unless the options say otherwise."""
        defaults = {"--precision": "double", "--threads": "1", "--device": "cpu"}
        for name, value in defaults.items():
            options = options if name in options else (*options, name, value)
        return self.run("md-run", file, *options, **more)

    def thermo(self, run=-1, log="log.lammps"):
        """Columns {name: array} of one run in the log of a script."""
        lines = (self.folder / log).read_text(encoding="utf-8").splitlines()
        start = [k for k, line in enumerate(lines) if line.split()[:1] == ["Step"]][run]
        end = next(k for k in range(start, len(lines)) if lines[k].startswith("Loop time"))
        rows = [line.split() for line in lines[start + 1 : end] if not line.startswith("WARNING")]
        return dict(zip(lines[start].split(), np.array(rows, float).T, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_case(name, tmp_path, monkeypatch):
    folder = tmp_path / name
    shutil.copytree(ROOT / "tests/data/cases" / name, folder)
    for kind in ("water", "copper"):
        for suffix in ("dp", "extxyz"):
            (folder / f"{kind}.{suffix}").symlink_to(ROOT / f"examples/{kind}/{kind}.{suffix}")
    monkeypatch.chdir(folder)
    spec = importlib.util.spec_from_file_location(f"dpmd_case_{name}", folder / "case.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.check(Case(folder))


def test_there_are_cases():
    assert len(CASES) >= 17
