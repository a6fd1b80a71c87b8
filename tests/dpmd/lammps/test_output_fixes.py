"""Fixes that only look: print, ave/time and vector, on numbers that are known (LAMMPS prints the same)."""

from pathlib import Path

import numpy as np

SCRIPT = """
units metal
region box block 0 40 0 40 0 40
create_box 1 box
create_atoms 1 single 1 20 20
create_atoms 1 single 30 20 20
mass 1 16
pair_style deepmd water_md0.pb
pair_coeff * * O
timestep 0.001
group one id 1
velocity one set 10 0 0
velocity all set NULL NULL 20
variable s equal step
variable l equal 100-step
compute m all msd
fix 1 all nve
fix one all ave/time 2 3 10 v_s v_l file one.txt
fix running all ave/time 2 3 10 v_s ave running file running.txt
fix window all ave/time 2 3 10 v_s ave window 2 file window.txt
fix late all ave/time 2 3 10 v_s start 15 file late.txt title1 "# late" title2 "# step s"
fix rows all ave/time 1 2 10 c_m mode vector file rows.txt format " %.9g"
fix v all vector 10 v_s c_m[1] c_m[4]
fix p all print 10 "at $s: ${l}" file p.txt title "# two numbers"
fix q all print 15 "quiet $s" screen no file q.txt
thermo_style custom step f_one[1] f_one[2] f_running f_window f_late f_rows[4]
thermo 10
thermo_modify format float %.12g
run 30
print "vector $(f_v[1][1]) $(f_v[2][1]) $(f_v[4][1]) $(f_v[4][2]:%.9g) $(f_v[4][3]:%.9g) $(f_one:%g)"
"""


def lines(name):
    return Path(name).read_text().splitlines()


def test_outputs(script):
    log = script(SCRIPT).splitlines()
    head = "# Time-averaged data for fix"
    assert lines("one.txt") == [f"{head} one", "# TimeStep v_s v_l", "10 8 92", "20 18 82", "30 28 72"]
    assert lines("running.txt")[2:] == ["10 8", "20 13", "30 18"]
    assert lines("window.txt")[2:] == ["10 8", "20 13", "30 23"]
    assert lines("late.txt") == ["# late", "# step s", "20 18", "30 28"]
    assert lines("p.txt") == ["# two numbers", "at 0: 100", "at 10: 90", "at 20: 80", "at 30: 70"]
    assert [line for line in log if line.startswith("at ")] == lines("p.txt")[1:]
    assert lines("q.txt") == ["# Fix print output for fix q", "quiet 0", "quiet 15", "quiet 30"]
    assert not any(line.startswith("quiet") for line in log)
    # in 0.001 ps steps: half of (10 t)^2 along x, (20 t)^2 along z
    squares = [np.mean([(0.001 * k) ** 2 for k in (10 * n - 1, 10 * n)]) for n in (1, 2, 3)]
    expected = [[50 * s, 0, 400 * s, 450 * s] for s in squares]
    rows = [line.split() for line in lines("rows.txt")[3:]]
    assert rows[::5] == [["10", "4"], ["20", "4"], ["30", "4"]]
    values = [float(row[1]) for k, row in enumerate(rows) if k % 5]
    assert np.allclose(values, np.ravel(expected), rtol=1e-8)
    # LAMMPS's thermo output: zeros until there is a mean
    at = next(k for k, line in enumerate(log) if line.split()[:1] == ["Step"])
    table = [line.split() for line in log[at + 1 : at + 10] if line.split()[0] in ("0", "10", "20", "30")]
    assert np.array(table, float)[:, :6].tolist() == [
        [0, 0, 0, 0, 0, 0], [10, 8, 92, 8, 8, 0], [20, 18, 82, 13, 13, 18], [30, 28, 72, 18, 23, 28],
    ]  # fmt: skip
    assert np.allclose(np.array(table, float)[:, 6], [0, *(e[3] for e in expected)], rtol=1e-8)
    vector = next(line for line in log if line.startswith("vector ")).split()[1:]
    assert vector == ["0", "10", "30", "0.045", "0.405", "28"]
