"""Kills md-run at each moment of writing a file, goes on, and compares with a run that was not stopped.

Arguments: a folder with run.toml and what it names; the files to compare.  Moments are: half of a file written,
before and after it gets its name, and the ends of steps.  Prints how many kills there were.
"""

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

from dpmd import cli
from dpmd.simulation import Simulation

SOURCE, NAMES = Path(sys.argv[1]), sys.argv[2:]
FSYNC, REPLACE, STEP = os.fsync, os.replace, Simulation._step


class Killer:
    """Kills this process at moment number ``fatal``."""

    def __init__(self, fatal):
        self.fatal, self.moments = fatal, 0
        os.fsync, os.replace, Simulation._step = self.fsync, self.replace, self.step

    def moment(self, prepare=lambda: None):
        self.moments += 1
        if self.moments == self.fatal:
            prepare()
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(self, descriptor):
        self.moment(lambda: os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2))
        FSYNC(descriptor)

    def replace(self, *names):
        self.moment()
        REPLACE(*names)
        self.moment()

    def step(self, simulation):
        STEP(simulation)
        if simulation.system.step % 5 == 2:
            self.moment()


def in_child(folder, *options, fatal=0):
    """Exit code, and number of moments, of a run in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        killer, code = Killer(fatal), 1
        Simulation._step = lambda simulation: killer.step(simulation)
        try:
            cli.md_run(["run.toml", *options])
        except SystemExit as error:
            code = error.code
        os.write(writer, str(killer.moments).encode())
        os._exit(code)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    moments = os.read(reader, 20)
    os.close(reader)
    return os.waitstatus_to_exitcode(status), int(moments or 0)


def fresh(name):
    folder = SOURCE.parent / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOURCE, folder)
    return folder


os.chdir(fresh("warm"))
with contextlib.suppress(SystemExit):
    cli.md_run(["run.toml"])  # loads all kernels, which children have then
whole = fresh("whole")
code, moments = in_child(whole)
assert code == 0, code
assert moments > 10, moments
expected = {name: (whole / name).read_bytes() for name in NAMES}
went_on = 0
for fatal in range(1, moments + 1):
    folder = fresh("part")
    code, _ = in_child(folder, fatal=fatal)
    assert code == -signal.SIGKILL, (fatal, code)
    for name in NAMES:
        there = (folder / name).read_text() if (folder / name).exists() else ""
        if there.startswith("# "):  # an analysis: whole, whenever it is there
            assert there.endswith("\n"), (fatal, name)
        elif name != "run.thermo.csv":
            assert not (folder / name).exists(), (fatal, name, there)
    has_state = (folder / "run.checkpoint.h5").exists()
    went_on += has_state
    code, _ = in_child(folder, "--continue" if has_state else "--overwrite")
    assert code == 0, (fatal, code)
    for name in NAMES:
        assert (folder / name).read_bytes() == expected[name], (fatal, name)
print(f"{moments} kills, {went_on} continued")
