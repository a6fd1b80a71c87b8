"""Every fix of scripts against LAMMPS, and with the time step set before and after it.

What LAMMPS printed is kept in ``data/lammps/fixes.json``; ``python test_fixes.py LMP`` makes it anew with a LAMMPS
(program LMP) that has DeePMD-kit's pair style.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dpmd.errors import InputError
from dpmd.lammps.fixes import FIXES

DATA = Path(__file__).resolve().parents[2] / "data"
STORED = DATA / "lammps" / "fixes.json"
HEAD = """units metal
boundary p p p
atom_style atomic
read_data {data}
mass 1 16
mass 2 2
pair_style deepmd {model}
pair_coeff * * O H
timestep {early}
velocity all create 330 2345
group o type 1
group h type 2
compute ko o ke
compute kh h ke
compute co o com
compute ch h com
variable twice equal 2*temp
thermo 4
thermo_modify norm no
"""
TAIL = """timestep 0.0005
run 12
timestep 0.0008
run 8
"""
#: the temperature and kinetic energies tell of any force or velocity that differs
_ALWAYS = "step temp pe c_ko c_kh"
_BOX = "lx ly lz xlo ylo zlo press"
_TILTS = "xy xz yz"
_ENERGY = "f_2 ecouple econserve"
_VECTOR = "f_2[1] f_2[2] f_2[3]"
_CENTRES = "c_co[1] c_co[2] c_co[3] c_ch[1] c_ch[2] c_ch[3]"
NVE = "fix 1 all nve\n"
#: {name: (fixes, further columns)}; the fix that it is about has the id 2
CASES = {
    "nve": ("fix 2 all nve", ""),
    "nve of a group": ("fix 2 o nve", ""),
    "nvt": ("fix 2 all nvt temp 330 200 0.05 tchain 2 tloop 2 drag 0.3", _ENERGY),
    "nvt of groups": ("fix 2 o nvt temp 600 600 0.02\nfix 3 h nvt temp 100 100 0.03 tchain 1", _ENERGY),
    # LAMMPS's ecouple of isotropic cells counts 3 k T for the one degree of freedom of the cell; its motion does not
    "npt iso": ("fix 2 all npt temp 330 330 0.05 iso 20000 60000 0.1", _BOX),
    # LAMMPS keeps forces of the chains' later links, of the target before, for a step: 1e-6 of ecouple
    "npt with ramps": ("fix 2 all npt temp 330 200 0.05 aniso 20000 40000 0.1", _BOX),
    "npt aniso": (
        "fix 2 all npt temp 330 330 0.05 aniso 20000 40000 0.1 couple xy pchain 2 ploop 2 drag 0.4 mtk no "
        "fixedpoint 1 2 3", f"{_BOX} {_ENERGY}",
    ),
    "npt x z": ("fix 2 all npt temp 330 330 0.05 x 50000 50000 0.1 z 10000 10000 0.05 nreset 6", f"{_BOX} {_ENERGY}"),
    # LAMMPS's energy of a stress is Tr s h h^T, not Tr s h^T h, which the forces come from, in tilted cells
    "npt x xy xz": (
        "change_box all triclinic xy final 1.0 xz final -0.8 yz final 0.5 remap units box\n"
        "fix 2 all npt temp 330 330 0.05 x 30000 30000 0.1 xy 5000 -9000 0.1 xz 3000 3000 0.2 nreset 5",
        f"{_BOX} {_TILTS}",
    ),
    "npt tri": (
        "change_box all triclinic xy final 1.0 xz final -0.8 yz final 0.5 remap units box\n"
        "fix 2 all npt temp 330 330 0.05 tri 30000 30000 0.1", f"{_BOX} {_TILTS} {_ENERGY}",
    ),
    "npt scaled tilts": (
        "change_box all triclinic xy final 1.0 xz final -0.8 yz final 0.5 remap units box\n"
        "fix 2 all npt temp 330 330 0.05 aniso 30000 30000 0.1 scaleyz no flip no", f"{_BOX} {_TILTS} {_ENERGY}",
    ),
    "nph": ("fix 2 all nph aniso 20000 30000 0.1 pchain 0", f"{_BOX} {_ENERGY}"),
    "nph and langevin": ("fix 1 all nph iso 20000 20000 0.1\nfix 2 all langevin 0 0 0.05 7 tally yes", f"{_BOX} f_2"),
    "langevin": (NVE + "fix 2 o langevin 0 0 0.05 7 tally yes", _ENERGY),
    "langevin, no tally": (NVE + "fix 2 h langevin 0 0 0.05 7 zero yes", "ecouple"),
    "temp/berendsen": (NVE + "fix 2 all temp/berendsen 400 200 0.02", _ENERGY),
    "temp/berendsen of a group": (NVE + "fix 2 h temp/berendsen 100 100 0.02", _ENERGY),
    "press/berendsen iso": (NVE + "fix 2 all press/berendsen iso 20000 60000 0.1 modulus 100000", f"{_BOX} ecouple"),
    "press/berendsen x y": (
        NVE + "fix 2 all press/berendsen x 20000 60000 0.1 y 20000 60000 0.1 couple xy modulus 50000",
        f"{_BOX} ecouple",
    ),
    "press/berendsen aniso": (NVE + "fix 2 all press/berendsen aniso 0 90000 0.1 modulus 40000", f"{_BOX} ecouple"),
    "momentum": (
        "velocity all set 3 -2 1 sum yes\n" + NVE + "fix 2 o momentum 3 linear 1 0 1 angular rescale", _CENTRES,
    ),
    "momentum, angular": ("velocity all set 3 -2 1 sum yes\n" + NVE + "fix 2 all momentum 2 angular", _CENTRES),
    "recenter": (
        "velocity all set 3 -2 1 sum yes\n" + NVE + "fix 2 o recenter INIT 3.0 NULL units box",
        f"{_CENTRES} f_2 {_VECTOR}",
    ),
    "recenter, shift": (
        NVE + "fix 2 o recenter 0.5 NULL INIT shift h units fraction", f"{_CENTRES} f_2 {_VECTOR}",
    ),
    "recenter in a box that changes": (
        "fix 1 all npt temp 330 330 0.05 aniso 20000 40000 0.1\n"
        "fix 2 all recenter 0.5 0.4 INIT units fraction", f"{_BOX} {_CENTRES} f_2 {_VECTOR}",
    ),
    "setforce": (NVE + "fix 2 o setforce NULL 0.2 0", _VECTOR),
    "addforce": (NVE + "fix 2 h addforce 0.3 -0.2 0.1\nfix_modify 2 energy yes", f"f_2 {_VECTOR} etotal"),
    "spring/self": (NVE + "fix 2 o spring/self 3.0 xz\nfix_modify 2 energy yes", "f_2 etotal"),
    "wall/reflect": (
        "change_box all boundary p p f\nvelocity all set NULL NULL 20 sum yes\n" + NVE
        + "fix 2 h wall/reflect zlo EDGE zhi 6.1 units box\nfix 3 o wall/reflect zlo 0.1 zhi EDGE units box", _CENTRES,
    ),
    "deform": (NVE + "fix 2 all deform 2 x scale 1.02 y vel 5 z erate 1.5", f"{_BOX} {_CENTRES}"),
    "deform, faces": (
        NVE + "fix 2 all deform 1 x final -0.1 6.4 y delta -0.1 0.3 z trate -2 remap none", f"{_BOX} {_CENTRES}",
    ),
    "deform, tilts": (
        "change_box all triclinic\n" + NVE + "fix 2 all deform 1 xy erate 3 xz final 0.4 yz delta 0.2 z scale 0.99",
        f"{_BOX} {_TILTS}",
    ),
    "print": (
        NVE + 'fix 2 all print 6 "$(step) $(v_twice:%.10g) ${twice}" file printed.txt screen no title "# T"', "",
    ),
    "ave/time": (
        NVE + "fix 2 all ave/time 2 2 4 c_thermo_temp v_twice file mean.txt\n"
        "fix 3 all ave/time 1 3 4 c_thermo_temp ave running start 8\n"
        "fix 4 all ave/time 1 1 4 c_thermo_temp ave window 2\n"
        "fix 5 all ave/time 4 1 4 c_thermo_temp mode vector file vector.txt",
        "f_2[1] f_2[2] f_3 f_4",
    ),
    "vector": (
        NVE + "fix 2 all vector 2 c_thermo_temp v_twice\nvariable first equal f_2[1][2]\n"
        "fix 3 all vector 4 c_thermo_temp\nvariable other equal f_3[1]", "v_first v_other",
    ),
}  # fmt: skip
#: fixes whose numbers are random in LAMMPS too, or that need a minimisation: tests of their own, below
OTHERWISE = {"temp/csvr", "box/relax"}
FILES = {"print": ["printed.txt"], "ave/time": ["mean.txt", "vector.txt"], "vector": ["vector.txt"]}
#: commands after the runs
_RESET = "reset_timestep 3\ntimestep 0.0007\nrun 9\n"
AFTER = dict.fromkeys(("nvt", "npt with ramps", "temp/berendsen", "langevin", "deform", "recenter", "momentum"), _RESET)
AFTER["vector"] = 'print "$(f_2[11][1]) $(f_2[11][2]) $(f_3[1]) $(f_3[6])" file vector.txt\n'


def text(name, early="0.0005", data="water24.lmp", model="water_md0.pb"):
    """A case's script; early : time step before the fixes, which another one follows."""
    fixes, columns = CASES[name]
    head = HEAD.format(early=early, data=data, model=model)
    style = f"thermo_style custom {_ALWAYS} {columns}\nthermo_modify format float %.15g\n"
    end = "write_dump all custom end.dump id x y z vx vy vz modify sort id\n"
    return head + fixes + "\n" + style + TAIL + AFTER.get(name, "") + end


def tables(log):
    """Rows of numbers of all tables of a log."""
    rows, inside = [], False
    for line in log.splitlines():
        if line.split()[:1] == ["Step"]:
            inside = True
        elif line.startswith("Loop time"):
            inside = False
        elif inside and not line.startswith("WARNING"):
            rows.append([float(word) for word in line.split()])
    return rows


def lines_of_numbers(content):
    """A file's lines without comments, as lists of numbers."""
    return [[float(w) for w in line.split()] for line in content.splitlines() if not line.startswith("#")]


def test_every_fix_has_a_case():
    mentioned = {line.split()[3] for fixes, _ in CASES.values() for line in fixes.splitlines() if line[:4] == "fix "}
    assert mentioned | OTHERWISE == set(FIXES)


@pytest.mark.parametrize("name", CASES)
def test_as_lammps(name, script):
    """All columns at all steps, and at once: a time step after the fixes is that of the run."""
    exact = name.startswith("recenter")  # puts atoms nearer to one another than tables are good for
    log = script(text(name), exact=exact)
    stored = json.loads(STORED.read_text(encoding="utf-8"))[name]
    end = Path("end.dump").read_text(encoding="utf-8")
    rows, wanted = np.array(tables(log)), np.array(stored["rows"])
    assert rows.shape == wanted.shape
    # rounding grows in some steps of hot water
    scale = np.maximum(np.abs(wanted).max(axis=0), 1e-3)
    worst = (np.abs(rows - wanted) / scale).max(axis=0)
    assert worst.max() < 1e-6, dict(zip(f"{_ALWAYS} {CASES[name][1]}".split(), worst, strict=True))
    for file, content in stored["files"].items():
        for mine, theirs in zip(
            lines_of_numbers(Path(file).read_text(encoding="utf-8")), lines_of_numbers(content), strict=True
        ):  # fmt: skip
            assert mine == pytest.approx(theirs, rel=2e-6, abs=1e-6)

    late = script(text(name, early="0.00001"), exact=exact)
    assert tables(late) == rows.tolist()
    assert Path("end.dump").read_text(encoding="utf-8") == end


def test_walls_turn_atoms_back_wherever_their_fix_stands(script):
    """LAMMPS applies them after the integration, whatever the order of the commands."""
    last = text("wall/reflect")
    edge = "zhi EDGE units box"
    first = last.replace(NVE, "", 1).replace(edge, f"{edge}\n{NVE.strip()}", 1)
    assert first.index("wall/reflect") < first.index(" nve")
    rows = tables(script(last))
    assert tables(script(first)) == rows


SHORT = HEAD.format(early="0.0005", data="water24.lmp", model="water_md0.pb")


def test_csvr(script):
    """The reservoir gains what the group loses; nobody else is scaled; f_ID is ecouple."""
    style = f"thermo_style custom {_ALWAYS} {_ENERGY}\nthermo_modify format float %.15g\nthermo 1\n"
    run = "run 1\nwrite_dump o custom one.dump id vx vy vz modify sort id\nrun 99\n"
    seen = {}
    for fix in ("fix 2 h temp/csvr 100 100 0.02 77\n", "fix 2 all temp/csvr 330 330 1e9 77\n"):
        rows = np.array(tables(script(SHORT + NVE + fix + style + run))).T
        columns = dict(zip(f"{_ALWAYS} {_ENERGY}".split(), rows, strict=True))
        assert np.array_equal(columns["f_2"], columns["ecouple"])
        assert np.ptp(columns["econserve"]) < 3e-3
        seen[fix] = columns, Path("one.dump").read_text(encoding="utf-8")
    (cooled, others), (free, same) = seen.values()
    assert others == same
    assert cooled["c_kh"][-30:].mean() < 0.6 * free["c_kh"][-30:].mean()
    assert cooled["f_2"][-1] > 0.3


REFUSED = {
    "compute c o temp\nfix_modify 2 temp c": "fix_modify 2 temp c: .* of the fix's own group",
    "compute c o temp\ncompute p all pressure c\nfix_modify 1 press p": "fix_modify 1 press p: .* the pressure of all",
    "thermo_style custom step f_1": "f_1 has no scalar",
    "thermo_style custom step f_3": "f_3 has no scalar",
    "thermo_style custom step f_2[1]": r"f_2 has no vector",
    "fix_modify 2 energy yes": r"fix 2 \(langevin\) has no potential energy",
    "fix_modify 3 energy yes": r"fix 3 \(setforce\) has no potential energy",
    "fix 4 all ave/time 1 1 1 c_thermo_temp\nreset_timestep 0": r"fix 4 \(ave/time\) counts steps",
    "fix 4 all vector 1 c_thermo_temp\nreset_timestep 0": r"fix 4 \(vector\) counts steps",
}


def test_computes_that_fixes_look_at_anyway_are_taken(script):
    lines = "compute c all temp\ncompute p all pressure c\nfix_modify 1 temp c\nfix_modify 1 press p\n"
    script(SHORT + "fix 1 all npt temp 300 300 0.1 iso 0 0 1\n" + lines + "run 1\n")


COPPER_MODEL = Path(__file__).resolve().parents[3] / "examples/copper/copper.dp"
COPPER = """units metal
lattice fcc 3.62
region b block 0 3 0 3 0 3
create_box 1 b
create_atoms 1 box
mass 1 63.546
pair_style deepmd ${model}
pair_coeff * *
velocity all create 300 12345
region low block INF INF INF INF INF 5.0 units box
group low region low
fix 1 all nve
"""


def test_pressure_follows_the_temperature_of_thermo_modify(script):
    """LAMMPS hands the compute on to thermo_press; its numbers, for the compressed model."""
    text = COPPER + "compute c low temp\nthermo_modify temp c\nthermo_style custom step press pxx\n"
    text += "thermo_modify temp c\nrun 0\n"
    (row,) = tables(script(text, model=COPPER_MODEL))
    assert row[1:] == pytest.approx([-30853.64, -30838.30], abs=0.05)


def test_parts_of_a_run_have_ramps_of_their_own(script):
    """run N every M: each part goes through the whole ramp, as in LAMMPS, whose temperatures these are."""
    text = COPPER + "fix 2 all temp/berendsen 300 900 0.02\nthermo_style custom step temp elaplong\nthermo 5\n"
    log = script(text + "run 20 every 5 'print x'\n", model=COPPER_MODEL)
    rows = {int(row[0]): row for row in map(str.split, log.splitlines()) if len(row) == 3 and row[0] in ("5", "10")}
    assert float(rows[5][1]) == pytest.approx(375.914, abs=2e-3)
    assert float(rows[10][1]) == pytest.approx(415.949, abs=2e-3)


@pytest.mark.parametrize("line", REFUSED)
def test_refused_before_anything_runs(line, script):
    fixes = NVE + "fix 2 all langevin 300 300 0.1 5 tally yes\nfix 3 o setforce 0 0 0\n"
    with pytest.raises(InputError, match=rf"in.script:2\d: .*{REFUSED[line]}"):
        script(SHORT + fixes + line + "\nrun 1\n")
    assert not Path("log.lammps").exists() or "Loop time" not in Path("log.lammps").read_text(encoding="utf-8")


#: {what: (arguments of box/relax, {thermo keyword of a pressure: bar})}
RELAXED = {
    "iso": ("iso 5000 vmax 0.005", {"press": 5000}),
    "aniso": ("aniso 8000 couple xy vmax 0.005", {"press": 8000, "pzz": 8000}),
    "x z": ("x 7000 z 7000 vmax 0.005", {"pxx": 7000, "pzz": 7000}),
    "tri": ("tri 6000 vmax 0.005", {"pxx": 6000, "pyy": 6000, "pzz": 6000, "pxy": 0, "pxz": 0, "pyz": 0}),
}


@pytest.mark.parametrize("name", RELAXED)
def test_box_relax(name, script):
    """The cell ends at the pressure; what is coupled keeps its ratio, what is not coupled stays."""
    arguments, wanted = RELAXED[name]
    names = ["step", "pxx", "pyy", "pzz", "pxy", "pxz", "pyz", "press", "lx", "ly", "lz", "vol"]
    head = SHORT + ("change_box all triclinic\n" if name == "tri" else "") + "change_box all x scale 1.01 remap\n"
    log = script(
        head + f"velocity all set 0 0 0\nfix 2 all box/relax {arguments}\nthermo_style custom {' '.join(names)}\n"
        "thermo_modify format float %.15g\nthermo 1\nminimize 0 1e-4 1500 9000\n"
    )  # fmt: skip
    columns = dict(zip(names, np.array(tables(log)).T, strict=True))
    for key, pressure in wanted.items():
        assert columns[key][-1] == pytest.approx(pressure, abs=5), key
    ratio = columns["lx"] / columns["ly"]
    assert (np.ptp(ratio) < 1e-12) == (name in ("iso", "aniso"))
    assert (np.ptp(columns["ly"]) == 0) == (name == "x z")
    growth = np.abs(np.diff(columns["lx"]) / columns["lx"][:-1])
    assert 0.002 < growth.max() < 0.0051


def make(lmp):
    """Run LAMMPS on all cases, and keep what it printed."""
    stored = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            script = text(name, data=DATA / "lammps" / "water24.lmp", model=DATA / "models" / "water_md0.pb")
            (Path(folder) / "in.script").write_text(script, encoding="utf-8")
            subprocess.run([lmp, "-in", "in.script"], cwd=folder, check=True, capture_output=True)
            log = (Path(folder) / "log.lammps").read_text(encoding="utf-8")
            files = {f: (Path(folder) / f).read_text(encoding="utf-8") for f in FILES.get(name, ())}
        stored[name] = {"rows": tables(log), "files": files}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in stored.items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    make(sys.argv[1])
