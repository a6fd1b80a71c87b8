"""The benchmark scripts refuse at once, in one sentence, what would fail after minutes of measuring."""

import subprocess
import sys
from pathlib import Path

import pytest

from dpmd.kernels.cuda import available

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "benchmarks"


def run(script, *arguments, code):
    """What a script writes to its error stream."""
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr.splitlines()[-1]


@pytest.mark.parametrize("script", ["calculator.py", "cpu.py", "decomposition.py", "gpu.py", "sizes.py"])
def test_help(script):
    assert "usage: " in run(script, "--help", code=0)


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("cpu.py", ["--lmp", sys.executable], "--lmp and --peer-models belong together"),
        ("cpu.py", ["--peer-models", "."], "--lmp and --peer-models belong together"),
        ("cpu.py", ["--lmp", "nowhere/lmp", "--peer-models", "."], "nowhere/lmp: no program is there"),
        ("cpu.py", ["--lmp", sys.executable, "--peer-models", "."], "water.pb does not exist"),
        ("calculator.py", ["--peer", sys.executable], "--peer and --peer-model belong together"),
        ("gpu.py", ["--device", "0"], "this measures a GPU, and there is none to use"),
    ],
)
def test_refusals(script, arguments, words, tmp_path, monkeypatch):
    if script == "gpu.py" and available() is None:
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    assert words in run(script, *arguments, code=1 if script == "gpu.py" else 2)
    assert not list(tmp_path.iterdir())


def test_cpu_tells_where_it_is_and_leaves_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--systems", "copper", "--precisions", "mixed", "--threads", 1, "--steps", 2, "--rounds", 1)
    command = [sys.executable, str(SCRIPTS / "cpu.py"), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("round 1 of 1: copper, mixed, 1 thread(s): ") == 1
    assert "counted limit" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["cpu.json"]
