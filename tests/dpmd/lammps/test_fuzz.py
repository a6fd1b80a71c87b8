"""Mutated scripts and data files give clear errors: never a traceback, never a hang."""

import random
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpmd.errors import InputError, RunError
from dpmd.lammps.datafile import read_data
from dpmd.lammps.interpreter import Interpreter, mistakes, unsupported
from dpmd.lammps.language import split_lines
from dpmd.lammps.log import ScriptLog
from dpmd.lammps.session import Session

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
DATA = """water

3 atoms
2 atom types
0.0 8.0 xlo xhi
0.0 8.5 ylo yhi
0.0 9.0 zlo zhi
0.5 0.2 0.1 xy xz yz

Masses

1 16.0 # O
2 2.0 # H

Atoms # atomic

1 1 1.0 1.0 1.0 0 0 0
2 2 1.9 1.2 1.1 0 0 0
3 2 0.7 1.9 1.0 0 0 0

Velocities

1 0.1 0.2 0.3
2 -0.1 0.2 0.3
3 0.1 -0.2 0.3
"""
SCRIPTS = [
    """units metal
boundary p p p
atom_style atomic
variable T equal 300+2*sqrt(4)
variable n index 2
if "${n} > 1" then "read_data small.data" else "print no"
replicate 1 1 2
mass 1 16.0
pair_style deepmd water_md0.pb water_md1.pb out_freq 1 out_file devi.out relative 1.0
pair_coeff * * O H
neighbor 1.0 bin
neigh_modify every 1 delay 0 check yes
group o type 1
velocity all create ${T} 4928 mom yes rot yes dist gaussian
timestep 0.0005
compute m all msd com yes
compute r all rdf 10 1 2 cutoff 4.0
compute c all centroid/stress/atom NULL virial
fix 1 all npt temp $T 330 0.1 tri 1.0 1.0 0.5 tchain 3 drag 0.1
fix 2 all momentum 1 linear 1 1 1 angular
fix 3 all ave/time 1 1 1 c_r[*] mode vector file r.txt
fix 4 all print 1 "x $(step) ${T}" screen no
thermo_style custom step temp pe ke etotal press vol lx xy c_m[4] v_T
thermo_modify format float %.10g lost warn
thermo 1
dump 1 all custom 1 d.txt id type xs yu ix vx fy c_c[1]
dump_modify 1 sort id element O H format float %.8g
restart 1 r.1 r.2
run 1
""",
    """units real
boundary p p p
atom_style atomic
lattice sc 8.0
region b block 0 1 0 1 0 1 units lattice
create_box 2 b
create_atoms 1 single 0.1 0.1 0.1
create_atoms 2 random 2 4711 NULL
mass * 16.0
pair_style deepmd water_md0.pb
pair_coeff * *
change_box all triclinic xy final 0.5 units box
displace_atoms all random 0.1 0.1 0.1 99 units box
group g id 1:2
fix 1 g nve
fix 2 all langevin 300 300 100.0 48279
fix 3 all spring/self 1.0 xyz
fix_modify 3 energy yes
fix 5 g setforce 0.0 NULL 0.0
min_style cg
min_modify dmax 0.1
minimize 1e-4 1e-4 2 5
reset_timestep 0
run 1 upto
write_data out.data
write_restart out.restart
""",
]
VALUES = [
    "", "0", "-1", "1e300", "nan", "inf", "abc", "3.5", "999999999", "*", "1*2", "$", "${", "$(", "$(1/0)", "${T}",
    "$(v_T", '"', "'", "&", "#", "NULL", "all", "[", "c_m[9]", "v_q", "f_1", "yes", "%s", "1:0:0", "<", "==", "\\", "ö",
    "\t", "-", ".",
]  # fmt: skip


def mutate(text, rng):
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 2, 3])):
        k = rng.randrange(len(lines))
        words = lines[k].split(" ")
        kind = rng.randrange(7)
        at = rng.randrange(len(words))
        if kind == 0:
            del lines[k]
            lines = lines or [""]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[k])
        elif kind == 2:
            del words[at]
            lines[k] = " ".join(words)
        elif kind == 3:
            words.insert(at, rng.choice(VALUES))
            lines[k] = " ".join(words)
        elif kind == 4 and lines[k]:
            at = rng.randrange(len(lines[k]))
            lines[k] = lines[k][:at] + rng.choice("$\"'#(){}[]&-+*/ e9.\0") + lines[k][at + 1 :]
        elif kind == 5:
            other = lines[rng.randrange(len(lines))].split(" ")
            words[at] = rng.choice(other)
            lines[k] = " ".join(words)
        else:
            words[at] = rng.choice(VALUES)
            lines[k] = " ".join(words)
        if lines[min(k, len(lines) - 1)].startswith("run"):
            lines[min(k, len(lines) - 1)] = rng.choice(["run 1", "run", "run x", "run -1", "run 1 every", "run 1 upto"])
    return "\n".join(lines)


@pytest.fixture
def folder(script):
    Path("small.data").write_text(DATA)
    warnings.simplefilter("ignore")
    yield

    warnings.resetwarnings()


def _alarm(*_):
    raise TimeoutError("hangs")


def attempt(text):
    """Run a script's text; only the two kinds of errors that users see may come.

    What goes through without an error must have been found faultless before.
    """
    session = Session(OPTIONS, ScriptLog(None, None))
    message = "none"
    try:
        Path("in.fuzz").write_text(text, encoding="utf-8")
        lines = split_lines(text, "in.fuzz")
        before = set(Path().iterdir())
        found = mistakes("in.fuzz", OPTIONS)
        assert set(Path().iterdir()) == before
        if not unsupported(lines):
            Interpreter(session).run(lines)
            assert not found
    except (InputError, RunError) as error:
        message = str(error)
    except Exception as error:
        if type(error).__name__ != "Quit":
            raise
    finally:
        session.close_files()
    assert message


def fuzz(seed, count, make, check):
    rng = random.Random(seed)
    old = signal.signal(signal.SIGALRM, _alarm)
    try:
        for _ in range(count):
            text = make(rng)
            signal.alarm(60)
            try:
                check(text)
            except Exception as error:
                Path("failing.txt").write_text(text)
                raise AssertionError(f"{type(error).__name__}: {error}\n--- for this input:\n{text}") from error
            finally:
                signal.alarm(0)
    finally:
        signal.signal(signal.SIGALRM, old)


def read(text):
    Path("fuzz.data").write_text(text, encoding="utf-8")
    message = "fuzz.data"
    try:
        read_data("fuzz.data", random.choice(["atomic", "charge", "full"]))
    except InputError as error:
        message = str(error)
    assert "fuzz.data" in message


def run_with(text):
    Path("small.data").write_text(text, encoding="utf-8")
    attempt(SCRIPTS[0])


@pytest.mark.parametrize("k", [0, 1])
def test_scripts(folder, k):
    fuzz(k, 100, lambda rng: mutate(SCRIPTS[k], rng), attempt)


def test_data_files(folder):
    fuzz(2, 1500, lambda rng: mutate(DATA, rng), read)
    fuzz(3, 40, lambda rng: mutate(DATA, rng), run_with)


@pytest.mark.long
@pytest.mark.parametrize("k", [0, 1])
def test_many_scripts(folder, k):
    fuzz(10 + k, 1500, lambda rng: mutate(SCRIPTS[k], rng), attempt)


@pytest.mark.long
def test_many_data_files(folder):
    fuzz(20, 1000, lambda rng: mutate(DATA, rng), run_with)
