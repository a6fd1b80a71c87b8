"""What commands import: help and version come at once, since nothing that computes is loaded for them."""

import json
import subprocess
import sys

import pytest

from dpmd.commands import COMMANDS

#: packages that take 0.1 s to 1 s to import, and need not be there to print a text
HEAVY = {"ase", "cupy", "google.protobuf", "h5py", "matplotlib", "mpi4py", "numba", "scipy", "yaml"}
PERFORMANCE = ("measure", "fit", "evaluate", "predict", "recommend", "machines")
PROGRAM = """\
import json, sys
from {module} import {function}
for arguments in {commands}:
    try:
        {function}(arguments)
    except SystemExit as end:
        assert not end.code, arguments
sys.stderr.write(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    ("module", "function", "commands"),
    [
        ("dpmd.cli", "md_run", [["--version"], ["--help"], ["--help-input"]]),
        ("dpmd.cli", "dpmd", [["--version"], ["--help"], *([command.name, "--help"] for command in COMMANDS)]),
        ("dpmd.perfmodel.cli", "main", [["--help"], *([name, "--help"] for name in PERFORMANCE), ["machines"]]),
    ],
    ids=["md-run", "dpmd", "dp-perf"],
)
def test_help_imports_nothing_heavy(module, function, commands):
    code = PROGRAM.format(module=module, function=function, commands=commands)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") >= len(commands) - 2
    modules = set(json.loads(done.stderr))
    assert module in modules
    assert not modules & HEAVY
