"""Every compute and thermo keyword of scripts: values that LAMMPS printed, and atoms in free flight."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpmd.lammps.computes import COMPUTES, KEYWORDS
from dpmd.lammps.interpreter import run_script
from dpmd.lammps.session import Session

DATA = Path(__file__).resolve().parents[2] / "data"
LAMMPS = json.loads((DATA / "lammps/computes.json").read_text())

#: {style: where its values are in computes.json: columns of thermo output, files, columns of the atoms}
STORED = {
    "temp": ("Temp", "c_temp_H", "c_temp_free", "c_temp_one"),
    "pe": ("PotEng", "c_pe_pair"),
    "ke": ("c_ke_all", "c_ke_few"),
    "pressure": ("Press", "c_pressure_plain", "c_pressure_null", "c_pressure_ke", "c_pressure_H"),
    "msd": ("c_msd_few", "c_msd_com"),
    "com": ("c_com_all", "c_com_few"),
    "reduce": ("c_reduce_sum", "c_reduce_ave", "c_reduce_min", "c_reduce_max", "c_reduce_one"),
    "rdf": ("rdf_all", "rdf_types", "rdf_few"),
    "pe/atom": (slice(1, 2),),
    "ke/atom": (slice(2, 3),),
    "centroid/stress/atom": (slice(3, 12), slice(12, 21)),
    "property/atom": (slice(21, 43),),
}
#: keywords of the clock, which cannot be compared with LAMMPS
CLOCK = {"cpu", "tpcpu", "spcpu", "cpuremain", "timeremain"}


def module(path):
    spec = importlib.util.spec_from_file_location(f"dpmd_tests_{path.stem}", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


stored = module(DATA / "lammps/make_computes.py")


@pytest.fixture(scope="module", params=stored.UNITS)
def results(request, tmp_path_factory, script_options):
    """(dpmd's results of computes.in, LAMMPS's), in one unit style."""
    folder = tmp_path_factory.mktemp("computes")
    for name in ("lammps/computes.in", "lammps/wtri192.lmp", "models/water_md0.pb"):
        shutil.copy(DATA / name, folder)
    variables = [(name, [value]) for name, value in {"unit": request.param, **stored.UNITS[request.param]}.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_script("computes.in", script_options, variables, "log.lammps") == 0
    return stored.results(folder), LAMMPS[request.param]


def test_every_name_is_in_a_table():
    assert set(STORED) | {style for style, *_ in FLIGHT} == set(COMPUTES)
    assert {KEYWORDS[k][0] for k in set(KEYWORDS) - CLOCK} <= set(LAMMPS["metal"]["thermo"])


def close(ours, theirs, what):
    ours, theirs = np.array(ours), np.array(theirs)
    assert ours.shape == theirs.shape, what
    assert np.abs(ours - theirs).max() <= 1e-8 * np.abs(theirs).max() + 1e-11, (what, ours, theirs)


@pytest.mark.parametrize("style", STORED)
def test_computes_as_in_lammps(style, results):
    ours, theirs = results
    for place in STORED[style]:
        if isinstance(place, slice):
            for k in range(place.start, place.stop):
                close([row[k] for row in ours["atoms"]], [row[k] for row in theirs["atoms"]], f"column {k}")
        elif place in theirs:
            close(ours[place], theirs[place], place)
        else:
            columns = [c for c in theirs["thermo"] if c.partition("[")[0] == place]
            assert columns
            for c in columns:
                close(ours["thermo"][c], theirs["thermo"][c], c)


def test_keywords_as_in_lammps(results):
    ours, theirs = results
    for keyword in set(KEYWORDS) - CLOCK:
        title = KEYWORDS[keyword][0]
        close(ours["thermo"][title], theirs["thermo"][title], title)


# ------------------------------------------------------------------ free flight

BOLTZMANN, ENERGY, BAR = 8.617343e-5, 1.0364269e-4, 1.6021765e6  # LAMMPS, metal units
BOX, TIME = 40.0, 0.1
#: beyond each other's reach: the forces are zero
TYPES, MASSES = np.array([1, 1, 2, 2]), np.array([16.0, 16.0, 2.0, 2.0])
START = np.array([[1.0, 2.0, 3.0], [20.0, 20.0, 20.0], [30.0, 5.0, 12.0], [10.0, 30.0, 31.0]])
VELOCITIES = np.array([[-20.0, 10.0, 0.0], [0.0, 0.0, 30.0], [5.0, 6.0, -7.0], [0.0, 0.0, 0.0]])
END = START + VELOCITIES * TIME  # the first leaves the box
KINETIC = 0.5 * ENERGY * MASSES * (VELOCITIES**2).sum(axis=1)
TENSOR = ENERGY * (MASSES[:, None] * VELOCITIES).T @ VELOCITIES
H = TYPES == 2


def centre(x, chosen=slice(None)):
    return MASSES[chosen] @ x[chosen] / MASSES[chosen].sum()


def moved(chosen, com):
    away = (END - START)[chosen]
    away = away - (centre(END, chosen) - centre(START, chosen) if com else 0)
    return [*(away**2).mean(axis=0), (away**2).sum(axis=1).mean()]


def stress(i, j):
    """Atom 3's m v_i v_j, with the sign and the unit of stress/atom."""
    return -BAR * ENERGY * MASSES[2] * VELOCITIES[2, i] * VELOCITIES[2, j]


#: of centroid/stress/atom; the first six are those of stress/atom
ORDER = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)]
#: (style, group and arguments, formula, its value); # : the compute's name; sum() : over the atoms
FLIGHT = [
    ("temp", "all temp", "c_#", 2 * KINETIC.sum() / (9 * BOLTZMANN)),
    ("temp", "H temp", "c_#", 2 * KINETIC[H].sum() / (3 * BOLTZMANN)),
    ("temp", "all temp", "c_#[1]", TENSOR[0, 0]),
    ("temp", "all temp", "c_#[4]", TENSOR[0, 1]),
    ("temp", "H temp", "c_#[5]", ENERGY * MASSES[2] * VELOCITIES[2, 0] * VELOCITIES[2, 2]),
    ("ke", "all ke", "c_#", KINETIC.sum()),
    ("ke", "H ke", "c_#", KINETIC[H].sum()),
    ("pressure", "all pressure thermo_temp", "c_#", np.trace(TENSOR) / (3 * BOX**3) * BAR),
    ("pressure", "all pressure thermo_temp", "c_#[4]", TENSOR[0, 1] / BOX**3 * BAR),
    ("pressure", "all pressure NULL virial", "c_#", 0.0),
    ("pressure", "all pressure thermo_temp virial", "c_#", 0.0),
    *(("msd", "all msd", f"c_#[{k + 1}]", moved(slice(None), False)[k]) for k in range(4)),
    *(("msd", "all msd com yes", f"c_#[{k + 1}]", moved(slice(None), True)[k]) for k in range(4)),
    ("msd", "H msd com yes", "c_#[4]", moved(H, True)[3]),
    *(("com", "all com", f"c_#[{k + 1}]", centre(END)[k]) for k in range(3)),
    ("com", "H com", "c_#[2]", centre(END, H)[1]),
    ("reduce", "all reduce sum c_kinetic", "c_#", KINETIC.sum()),
    ("reduce", "H reduce ave c_kinetic", "c_#", KINETIC[H].mean()),
    ("reduce", "all reduce min vx vy", "c_#[1]", -20.0),
    ("reduce", "H reduce min xu", "c_#", END[3, 0]),
    ("reduce", "all reduce max vx vz", "c_#[2]", 30.0),
    ("reduce", "H reduce max c_numbers[2]", "c_#", 4.0),
    ("pe/atom", "all pe/atom", "sum(c_#)-epair", 0.0),
    ("ke/atom", "all ke/atom", "sum(c_#)", KINETIC.sum()),
    ("ke/atom", "third ke/atom", "sum(c_#)", KINETIC[2]),
    ("stress/atom", "third stress/atom thermo_temp", "sum(c_#[1])", stress(0, 0)),
    ("stress/atom", "third stress/atom NULL", "sum(c_#[4])", stress(0, 1)),
    ("stress/atom", "third stress/atom NULL virial", "sum(c_#[1])", 0.0),
    *(
        ("stress/atom", "third stress/atom thermo_temp ke", f"sum(c_#[{k}])", stress(*axes))
        for k, axes in enumerate(ORDER[:6], 1)
    ),
    *(
        ("centroid/stress/atom", "third centroid/stress/atom thermo_temp", f"sum(c_#[{k}])", stress(*axes))
        for k, axes in enumerate(ORDER, 1)
    ),
    ("property/atom", "third property/atom vz", "sum(c_#)", -7.0),
    ("property/atom", "third property/atom id type xu ix mass", "sum(c_#[3])", END[2, 0]),
    ("property/atom", "all property/atom ix", "sum(c_#)", -1.0),
]


@pytest.fixture(scope="module")
def flight(tmp_path_factory, script_options):
    """Values of FLIGHT after 0.1 ps of free flight."""
    lines = [
        "units metal", "boundary p p p", f"region box block 0 {BOX} 0 {BOX} 0 {BOX}", "create_box 2 box",
        *(f"create_atoms {t} single {x} {y} {z}" for t, (x, y, z) in zip(TYPES, START, strict=True)),
        "mass 1 16", "mass 2 2", "pair_style deepmd water_md0.pb", "pair_coeff * * O H", "timestep 0.001",
        "group H type 2", "group third id 3",
    ]  # fmt: skip
    for k, (x, y, z) in enumerate(VELOCITIES, 1):
        lines += [f"group a{k} id {k}", f"velocity a{k} set {x} {y} {z}"]
    lines += ["compute kinetic all ke/atom", "compute numbers all property/atom type id", "fix 1 all nve"]
    formulas = []
    for k, (_, arguments, formula, _) in enumerate(FLIGHT):
        formula = formula.replace("#", f"v{k}")
        lines.append(f"compute v{k} {arguments}")
        if formula.startswith("sum("):
            values, formula = formula[4:].split(")")
            lines.append(f"compute s{k} all reduce sum {values}")
            formula = f"c_s{k}{formula}"
        formulas.append(formula)
    lines += ["run 100", *(f'print "value {k} $({formula}:%.15g)"' for k, formula in enumerate(formulas))]
    folder = tmp_path_factory.mktemp("flight")
    shutil.copy(DATA / "models/water_md0.pb", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("in.flight").write_text("\n".join(lines) + "\n")
        assert run_script("in.flight", script_options, [], "log.lammps") == 0
        found = [line.split() for line in Path("log.lammps").read_text().splitlines() if line.startswith("value ")]
    return {int(k): float(value) for _, k, value in found}


@pytest.mark.parametrize("style", sorted({style for style, *_ in FLIGHT}))
def test_free_flight(style, flight):
    for k, (of_style, arguments, formula, value) in enumerate(FLIGHT):
        if of_style == style:
            assert flight[k] == pytest.approx(value, rel=1e-9, abs=1e-9), (arguments, formula)


# ------------------------------------------------------------------ lattices, virials, clocks

LATTICE = """
units metal
lattice bcc 3.05
region box block 0 3 0 3 0 3
create_box 2 box
create_atoms 1 box basis 2 2
mass 1 16
mass 2 2
pair_style deepmd water_md0.pb
pair_coeff * * O H
compute r all rdf 40 1 1 1 2 2 2 * * cutoff 4.0
fix 1 all ave/time 1 1 1 c_r[*] mode vector file rdf.txt format " %.12g"
run 0
"""


def test_distribution_of_a_lattice(script):
    """A body-centred lattice: 8 of the other type at sqrt(3)/2 a, 6 of one's own at a; no atom is its own neighbour."""
    script(LATTICE)
    rows = np.array([line.split() for line in Path("rdf.txt").read_text().splitlines()[4:]], float)
    r, volume = rows[:, 1], (3 * 3.05) ** 3
    assert np.allclose(r, 0.05 + 0.1 * np.arange(40))
    shells = 4 / 3 * np.pi * np.diff((0.1 * np.arange(41)) ** 3) / volume
    near, far = int(3.05 * np.sqrt(3) / 2 / 0.1), int(3.05 / 0.1)
    shown = ((2, 26, {far: 6}), (4, 27, {near: 8}), (6, 26, {far: 6}), (8, 53, {near: 8, far: 6}))
    for column, others, counts in shown:
        expected = np.zeros(40)
        for k, number in counts.items():
            expected[k] = number
        assert np.allclose(rows[:, column], expected / (shells * others), rtol=1e-9)
        assert np.allclose(rows[:, column + 1], np.cumsum(expected), rtol=1e-9)


def test_stress_of_atoms(script, head):
    """stress/atom is the symmetric part of centroid/stress/atom, whose values are compared with LAMMPS's above."""
    log = script(
        head + "group few id 3:40\nvelocity all create 330 5\n"
        "compute c few centroid/stress/atom thermo_temp\ncompute s few stress/atom thermo_temp\n"
        "compute v few stress/atom NULL virial\ncompute k few stress/atom thermo_temp ke\n"
        "compute all all stress/atom thermo_temp\ncompute sum all reduce sum c_all[*]\n"
        "dump 1 all custom 1 s.dump id c_c[*] c_s[*] c_v[*] c_k[*]\ndump_modify 1 sort id format float %.15g\nrun 0\n"
        'print "sums $(c_sum[1]/vol) $(c_sum[4]/vol) $(c_sum[6]/vol) $(pxx) $(pxy) $(pyz)"\n'
    )
    rows = np.array([line.split() for line in Path("s.dump").read_text().splitlines()[9:]], float)
    centroid, symmetric, virial, kinetic = rows[:, 1:10], rows[:, 10:16], rows[:, 16:22], rows[:, 22:28]
    assert np.flatnonzero(symmetric.any(axis=1)).tolist() == list(range(2, 40))
    assert np.allclose(symmetric[:, :3], centroid[:, :3], rtol=1e-12)
    assert np.allclose(symmetric[:, 3:], (centroid[:, 3:6] + centroid[:, 6:]) / 2, rtol=1e-12, atol=1e-6)
    assert np.allclose(virial + kinetic, symmetric, rtol=1e-9, atol=1e-6)
    assert (kinetic[2:40, :3] < 0).all()
    sums = [float(word) for word in log.partition("\nsums ")[2].split()[:6]]
    assert np.allclose(sums[:3], -np.array(sums[3:]), rtol=1e-6)


def test_keywords_of_the_clock(script, head, monkeypatch):
    monkeypatch.setattr(Session, "seconds", lambda self: 2.0)
    log = script(
        head + "fix 1 all nve\ntimer timeout 1:00:00\nthermo_style custom step cpu tpcpu spcpu cpuremain timeremain\n"
        "run 20\n"
        'timer timeout off\nrun 0\nprint "left $(timeremain)"\n'
    )
    row = next(line.split() for line in log.splitlines() if line.split()[:2] == ["5", "2"])
    assert [float(v) for v in row[1:5]] == pytest.approx([2.0, 5 * 0.0005 / 2, 5 / 2, 2 * 15 / 5])
    assert 3590 < float(row[5]) <= 3600
    assert "\nleft 0\n" in log
