"""Thermo output: formats and titles of columns, values per atom."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpmd.errors import InputError

_TABLE = Path(__file__).resolve().parents[2] / "data/lammps/thermo_modify.txt"
TRIES = [block for block in _TABLE.read_text(encoding="utf-8").split("\n\n") if not block.startswith("# ")]
BOX = """
units metal
lattice sc 4.1
region b block 0 3 0 3 0 2
create_box 2 b
create_atoms 1 box
mass * 16
reset_timestep 40
pair_style deepmd water_md0.pb
pair_coeff * * O H
"""
COLUMNS = "thermo_style custom step lx ly lz atoms xlo vol dt\n"


def table(log):
    """The lines of the thermo output of the last run."""
    lines = log.splitlines()
    begin = max(k for k, line in enumerate(lines) if line.startswith("Per MPI"))
    end = max(k for k, line in enumerate(lines) if line.startswith("Loop time"))
    return [line for line in lines[begin + 1 : end] if not line.startswith("------------ Step")]


@pytest.mark.parametrize("block", TRIES, ids=lambda block: block.splitlines()[0].replace(" ", "_"))
def test_as_lammps_prints_it(block, script):
    first, *expected = block.strip("\n").splitlines()
    modify, _, again = first.partition(" & ")
    text = BOX + COLUMNS + f"thermo_modify {modify}\n" + (COLUMNS if again else "") + "run 0\n"
    if expected == ["!"]:
        with pytest.raises(InputError, match=r"in\.script:12: "):
            script(text)
    else:
        assert table(script(text)) == [line[2:] for line in expected]


def test_there_are_formats():
    assert len(TRIES) >= 30


#: thermo columns, and whether LAMMPS (22 Jul 2025) divides them by the number of atoms with norm yes
NORMED = {
    "pe": 1, "ke": 1, "etotal": 1, "epair": 1, "evdwl": 1, "enthalpy": 1, "econserve": 1, "temp": 0, "press": 0,
    "vol": 0, "density": 0, "v_e": 1, "v_h": 1, "v_t": 0, "c_t": 0, "c_t[1]": 1, "c_k": 1, "c_p": 0, "c_p[1]": 0,
    "c_m[4]": 0, "c_c[1]": 0, "c_s": 1, "c_a": 0, "c_x": 0, "c_2[1]": 1, "f_n": 1, "f_f": 1, "f_f[1]": 1, "f_s": 1,
    "f_v[1]": 1, "f_v[2]": 0, "f_w": 1,
}  # fmt: skip


def test_what_is_per_atom_with_norm_yes(script, head):
    text = head + (
        "velocity all create 300 5\ncompute t all temp\ncompute k all ke\ncompute p all pressure t\n"
        "compute m all msd\ncompute c all com\ncompute e all pe/atom\ncompute s all reduce sum c_e\n"
        "compute a all reduce ave c_e\ncompute x all reduce max c_e\ncompute 2 all reduce sum c_e c_e\n"
        "variable e equal pe+ke\nvariable h equal 2*enthalpy\nvariable t equal c_k\n"
        "fix n all nvt temp 300 300 0.1\ngroup o type 1\nfix f o addforce 0.1 0.2 0.3\nfix s all spring/self 0.5\n"
        "fix v all ave/time 1 1 1 c_k c_t\nfix w all ave/time 1 1 1 c_k\n"
        f"thermo_style custom step {' '.join(NORMED)}\nrun 5\n"
        "print \"whole $(pe:%.12g) $(v_h:%.12g) $(c_k:%.12g)\"\nthermo_modify norm yes format float %.12g\nrun 0\n"
        "print \"atom $(pe:%.12g) $(v_h:%.12g) $(c_k:%.12g)\"\n"
    )  # fmt: skip
    text = text.replace("run 5", "thermo_modify format float %.12g\nrun 5")
    log = script(text)
    lines = log.splitlines()
    ends = [k for k, line in enumerate(lines) if line.startswith("Loop time")]
    whole, atom = (np.array(lines[k - 1].split()[1:], float) for k in ends)
    n = 192
    for name, a, b in zip(NORMED, whole, atom, strict=True):
        assert a == pytest.approx(b * (n if NORMED[name] else 1), rel=1e-9, abs=0), name
        assert a != 0, name
    whole, atom = (np.array(line.split()[1:], float) for line in lines if line.startswith(("whole ", "atom ")))
    np.testing.assert_allclose(whole / atom, [n, n, 1], rtol=1e-9)


#: step, swiggle, cwiggle, vdisplace and ramp of the lines that LAMMPS prints
LINES = (
    """
0 1 1 1 5 / 3 2.618034 1.8244295 1.006 5.6 / 10 1 5 1.02 7 / 13 -0.61803399 4.1755705 1.026 7.6 / 20 1 1 1.04 9 /
23 2.618034 1.8244295 1.046 9.6 / 25 3 3 1.05 10
""",
    """
25 3 3 1.05 6.5625 / 30 1 5 1.06 6.875 / 33 -0.61803399 4.1755705 1.066 7.0625 / 40 1 1 1.08 7.5
""",
)


def test_variables_that_tell_the_next_step_of_output(script, head):
    log = script(
        head + "timestep 0.001\nfix 1 all nve\n"
        "variable s equal stagger(10,3)\nvariable l equal logfreq(1,3,10)\nvariable r equal stride(4,20,5)\n"
        "variable w equal swiggle(1,2,0.02)\nvariable c equal cwiggle(1,2,0.02)\nvariable d equal vdisplace(1,2)\n"
        "variable p equal ramp(5,10)\nthermo v_s\nthermo_style custom step v_w v_c v_d v_p\n"
        "dump 1 all custom 1 1.dump id\ndump_modify 1 every v_l\ndump 2 all custom 1 2.dump id\n"
        "dump_modify 2 every v_r\ndump 3 all custom/gz 5 3.dump.gz id\ndump_modify 3 delay 8\n"
        "run 25\nrun 15 start 0 stop 80\n"
    )
    lines = log.splitlines()
    begins = [k for k, line in enumerate(lines) if line.split()[:1] == ["Step"]]
    for begin, right in zip(begins, LINES, strict=True):
        right = np.array([row.split() for row in right.split("/")], float)
        rows = [line.split() for line in lines[begin + 1 : begin + 1 + len(right)]]
        np.testing.assert_allclose(np.array(rows, float), right, rtol=1e-7)
        assert lines[begin + 1 + len(right)].startswith("Loop time")
    for name, opener, right in (
        ("1.dump", open, [1, 2, 3, 10, 20, 30]), ("2.dump", open, [4, 9, 14, 19]),
        ("3.dump.gz", gzip.open, [10, 15, 20, 25, 30, 35, 40]),
    ):  # fmt: skip
        with opener(name, "rt") as file:
            text = file.read().splitlines()
        assert [int(text[k + 1]) for k, line in enumerate(text) if line == "ITEM: TIMESTEP"] == right
    with pytest.raises(InputError, match="v_s, which tells the next step of output, is 3 at step 3"):
        script(head + "fix 1 all nve\nvariable s equal 3\nthermo v_s\nrun 5\n")
