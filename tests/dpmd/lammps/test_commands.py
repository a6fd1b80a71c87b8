"""Commands of scripts: what they do, seen in logs and files."""

import re
from pathlib import Path

import numpy as np
import pytest

from dpmd.errors import InputError, RunError

DPGEN = """
variable        NSTEPS          equal {steps}
variable        THERMO_FREQ     equal 5
variable        DUMP_FREQ       equal 5
variable        TEMP            equal 330.000000
variable        PRES            equal 1.000000
variable        TAU_T           equal 0.100000
variable        TAU_P           equal 0.500000

units           metal
boundary        {boundary}
atom_style      atomic

neighbor        1.0 bin

box          tilt large
if "${{restart}} > 0" then "read_restart dpgen.restart.*" else "read_data water.lmp"
{triclinic}
mass            1 16.000000
mass            2 2.000000
pair_style      deepmd {models} out_freq ${{THERMO_FREQ}} out_file model_devi.out {extra}
pair_coeff      * *

thermo_style    custom step temp pe ke etotal press vol lx ly lz xy xz yz
thermo          ${{THERMO_FREQ}}
dump            1 all custom ${{DUMP_FREQ}} traj/*.lammpstrj id type x y z fx fy fz
restart         5 dpgen.restart

if "${{restart}} == 0" then "velocity        all create ${{TEMP}} 585 mom yes rot yes dist gaussian"
fix             1 all {ensemble}

timestep        0.000500
run             ${{NSTEPS}} upto
"""
NPT = "npt temp ${TEMP} ${TEMP} ${TAU_T} iso ${PRES} ${PRES} ${TAU_P}"
TWO = "water_md0.pb water_md1.pb"


def thermo(log, run=-1):
    """Columns of one of the runs in a log's text."""
    blocks = re.findall(r"^ *Step .*?(?=^Loop time)", log, re.M | re.S)
    names, *rows = [line.split() for line in blocks[run].splitlines() if not line.startswith(("WARN", "Mem"))]
    rows = [r for r in rows if len(r) == len(names) and r[0].isdigit()]
    return dict(zip(names, np.array(rows, float).T, strict=True))


@pytest.mark.parametrize(
    ("ensemble", "extra", "boundary", "models"),
    [
        (NPT, "", "p p p", TWO),
        ("nvt temp ${TEMP} ${TEMP} ${TAU_T}", "relative 1.0", "p p p", TWO),
        ("nvt temp ${TEMP} ${TEMP} ${TAU_T}", "atomic", "s s s", TWO),
        (NPT.replace("iso", "tri"), "relative_v 0.5", "p p p", TWO),
        ("nve", "fparam 0.25 -0.4 aparam 0.1", "p p p", "f_faparam.pb"),
    ],
    ids=["npt", "nvt relative", "nopbc atomic", "npt-t", "fparam"],
)
def test_dpgen(script, ensemble, extra, boundary, models):
    Path("traj").mkdir()
    triclinic = "change_box   all triclinic" if "p" in boundary else ""
    fields = dict(ensemble=ensemble, extra=extra, boundary=boundary, models=models, triclinic=triclinic)
    log = script(DPGEN.format(steps=10, **fields), restart=0)
    assert list(thermo(log)["Step"]) == [0, 5, 10]
    assert sorted(p.name for p in Path("traj").iterdir()) == ["0.lammpstrj", "10.lammpstrj", "5.lammpstrj"]
    if " " in models:
        assert len(Path("model_devi.out").read_text().splitlines()) == 4
    # DP-GEN goes on with -v restart 1, to the same total number of steps
    log = script(DPGEN.format(steps=15, **fields), restart=1)
    assert list(thermo(log)["Step"]) == [10, 15]
    if " " in models:
        steps = [int(line.split()[0]) for line in Path("model_devi.out").read_text().splitlines()[1:]]
        assert steps == [0, 5, 10, 15]


@pytest.mark.parametrize("fix", ["npt temp 330 330 0.1 aniso 1 1 0.5", "langevin 330 330 0.1 77\nfix 2 all nve"])
def test_restart_is_exact(script, head, fix):
    tail = f"fix 1 all {fix}\nrestart 5 r\nthermo_modify format float %.17g\n"
    whole = script(head + "velocity all create 330 5\n" + tail + "run 10\nwrite_data whole.data\n")
    again = (
        "read_restart r.5\n" + "\n".join(head.splitlines()[6:]) + "\n" + tail + "run 10 upto\nwrite_data again.data\n"
    )
    log = script(again)
    assert thermo(log)["TotEng"][-1] == thermo(whole)["TotEng"][-1]
    assert Path("whole.data").read_text() == Path("again.data").read_text()


def test_everything_unsupported_is_listed(script, head):
    text = (
        head
        + "kspace_style pppm 1e-4\nfix 1 all nvt/sphere temp 1 1 1\nrunn 5\npython f source x\ndump 1 all h5md 5 f\n"
    )
    text += 'if "1 == 1" then "pair_style hybrid deepmd m lj/cut 5"\nrun\nfix 1 all npt temp 300 300\nrun 5\n'
    with pytest.raises(InputError) as error:
        script(text)
    message = str(error.value)
    for line, word in enumerate(
        ("kspace_style", "nvt/sphere", "did you mean 'run'", "python", "h5md", "hybrid", "run takes"), 13
    ):
        assert f"in.script:{line}: " in message
        assert word in message
    assert not Path("log.lammps").exists()


MISTAKES = """
units metal
atom_style atomic
read_data water.lmp
mass 1 16
mass 2 two                                         # a number
pair_style deepmd water_md0.pb nowhere.pb          # no such file
pair_coeff * * O H
group o type 1
group h subtract all oxygen                        # no such group
region r sphere 1 1 1 -2 units box
velocity all create 300 0                          # the seed
timestep -0.001                                    # positive
compute m o msd com maybe                          # yes or no
compute s all stress/atom NULL virial
fix 1 all npt temp 300 300 0.1 iso 1 1 zero        # a number
fix 2 all ave/time 5 5 7 c_m[4]                    # a multiple
fix 3 all print 5 "step $(step) ${none}"           # no such variable
fix 4 all spring/self 1.0 xw                       # directions
variable e equal pe*c_gone
thermo_style custom step temp v_e v_none f_1       # two of them unknown
dump 1 all custom 5 traj/*.dump id c_s c_s[7] x    # no folder, which column, no such column
dump 2 all custom none a.dump id                   # a number
dump_modify 3 sort id                              # no such dump
run 10 start                                       # no value
minimize 0 -1 5 5                                  # no value
if "$(pe) > 0" then "print 5"
unfix 9                                            # no value
run 5 upto
reset_timestep -5                                  # no value
"""


def test_all_mistakes_are_listed_with_their_lines(script):
    text = MISTAKES.lstrip("\n").replace("mass 2 two", "mass 2 2\nmass 2 two", 1)
    with pytest.raises(InputError) as error:
        script(text)
    found = {}
    for line in str(error.value).splitlines():
        _, number, what = line.split(":", 2)
        found.setdefault(int(number), []).append(what)
    expected = {n for n, line in enumerate(text.splitlines(), 1) if "#" in line}
    assert set(found) == expected, error.value
    assert list(Path().glob("*.dump")) == []
    assert not Path("log.lammps").exists()


def test_what_only_results_can_tell_is_no_mistake(script, head):
    """Values of a run, files that the script writes itself, loops, and what depends on them."""
    log = script(
        head
        + "velocity all create 330 5\nfix 1 all nve\nrun 2\nvariable e equal $(pe)\nvariable f equal sqrt($e+1e6)\n"
        'if "$(temp) > 1e9" then "print hot" "quit 1"\n'
        "print $(v_f/(step-1)) file e.txt\nwrite_data w.data\nshell mkdir made\ndump 1 all atom 1 made/a.*\n"
        "variable n loop 2\nlabel top\nrun $(1+ceil(v_e*0))\nnext n\njump SELF top\nundump 1\nwrite_restart r.*\n"
        "clear\nread_data w.data\nprint $(count(all))\nclear\nread_restart r.*\nprint $(step)\n"
    )
    assert "\n192\n" in log
    assert log.rstrip().splitlines()[-2] == "4"


AGAIN = "units metal\natom_style atomic\nmass 1 16\nmass 2 2\npair_style deepmd water_md0.pb\npair_coeff * * O H\n"


@pytest.mark.parametrize(
    "text",
    [
        "write_data a.lmp\nclear\n@read_data a.lmp\nrun 1\nwrite_data b.lmp\nclear\n@read_data b.lmp\nrun 1\n",
        "write_data a.lmp\nclear\n@read_data a.lmp\ndump 1 all atom 1 b.lammpstrj\nrestart 1 p.rst q.rst\nrun 2\n"
        "write_restart r.*\nclear\nread_restart r.*\npair_style deepmd water_md0.pb\npair_coeff * * O H\n"
        "rerun b.lammpstrj dump x y z\nclear\nread_restart q.rst\n",
        "write_data stale.lmp\nclear\n@read_data stale.lmp\nrun 1\n",
        'print "run 1" file stale.in\ninclude stale.in\n',
        'print "run 1" file stale.in\nprint "quit" append stale.in\njump stale.in\n',
        "region half block 0 3 INF INF INF INF\ngroup left region half\nrun 0\n",
    ],
)
def test_scripts_that_read_what_they_wrote(script, head, text):
    """In stages; also where a damaged file of that name is left of an earlier run."""
    for name in ("stale.lmp", "stale.in"):
        Path(name).write_text("garbage\n")
    body = text.replace("@read_data", AGAIN.split("mass")[0] + "read_data")
    for line in ("run", "dump", "restart"):  # masses come with the data file
        body = body.replace(f"lmp\n{line} ", f"lmp\n{AGAIN[AGAIN.index('pair_style') :]}fix 1 all nve\n{line} ")
    script(head + "fix 1 all nve\nrun 1\n" + body)


def test_mistakes_of_a_file_jumped_to_are_told_once(script, head):
    Path("other.in").write_text("label here\nrun 1\nfrobnicate\n")
    with pytest.raises(InputError) as error:
        script(head + "log nowhere/log\njump other.in here\n")
    told = str(error.value).splitlines()
    assert [line.split(": ")[0] for line in told] == [f"in.script:{len(head.splitlines()) + 1}", "other.in:3"], told


def test_language(script):
    log = script(
        "variable a equal 3*(2+1)^2-1\nvariable b index x y z\nvariable s string 'hello world'\n"
        "variable f format a %.2f\nvariable n loop 3\n"
        'print "a=$a ${b} ${s} ${f} $(v_a/2:%.3f)"\n'
        "label top\n"
        'print "n=${n}"\n'
        'if "$n == 2" then "print two" elif "$n > 2" "print three" else "print one" &\n  "print again"\n'
        "next n\njump SELF top\n"
        'print """triple "quoted" text"""\nshell mkdir made\nquit 0\nprint never\n'
    )
    assert "\na=26 x hello world 26.00 13.000\n" in log
    assert re.findall(r"^n=(\d)$", log, re.M) == ["1", "2", "3"]
    assert re.findall(r"^(one|two|three|again)$", log, re.M) == ["one", "again", "two", "three"]
    assert 'triple "quoted" text' in log
    assert "\nnever\n" not in log
    assert Path("made").is_dir()


def test_fixes_computes_outputs(script, head):
    log = script(
        head + "velocity all create 330 5 loop geom\ngroup O type 1\ngroup H subtract all O\n"
        "compute m O msd com yes\ncompute p all pressure thermo_temp virial\ncompute r all rdf 20 1 1 1 2 cutoff 5.0\n"
        "compute q all property/atom vx fx\ncompute s all reduce max c_q[1] c_q[2]\ncompute kea all ke/atom\n"
        "compute st all stress/atom NULL virial\ncompute sum all reduce sum c_st[1] c_st[2] c_st[3]\n"
        "fix 1 all nph iso 1 1 0.5\nfix 2 all temp/csvr 330 330 0.1 99\nfix 3 all momentum 5 linear 1 1 1 angular\n"
        "fix 4 O recenter INIT INIT INIT\nfix 5 all ave/time 1 5 5 c_m[*] file msd.txt\n"
        "fix 6 all ave/time 5 1 5 c_r[*] mode vector file rdf.txt\nfix 7 all vector 5 c_p c_m[4]\n"
        'fix 8 all print 5 "step $(step) pe ${pe}" file p.txt screen no\nvariable pe equal pe\n'
        "variable tr equal -(c_sum[1]+c_sum[2]+c_sum[3])/(3*vol)\n"
        "thermo_style custom step temp pe ke etotal press vol enthalpy density c_m[4] c_p v_tr c_s[1] econserve\n"
        "dump 1 O atom 5 a.dump\ndump 2 all xyz 5 a.xyz\ndump_modify 2 element O H\n"
        "dump 3 all extxyz 5 a.extxyz\n"
        "dump 4 all dcd 5 a.dcd\ndump 5 all xtc 5 a.xtc\n"
        "dump 6 all custom 5 c.dump.gz id element xs xu ix vx fx c_kea mass\n"
        "dump_modify 6 element O H sort id\ndump_modify 4 unwrap yes\nrun 10\nunfix 2\nrun 5\nundump 1\n"
        "write_data out.data\n"
        "print $(f_7[1][2])\n"
    )
    first, second = thermo(log, 0), thermo(log, 1)
    assert list(first["Step"]) == [0, 5, 10]
    assert list(second["Step"]) == [10, 15]
    assert np.allclose(first["v_tr"], first["c_p"], rtol=1e-6)
    drift = np.ptp(first["Econserve"])
    assert drift < 0.5 * np.ptp(first["TotEng"])  # removed momentum is not counted
    assert len(Path("msd.txt").read_text().splitlines()) == 2 + 3
    assert len(Path("p.txt").read_text().splitlines()) == 1 + 5  # step 10 at the end of a run and at the start of one
    rdf = Path("rdf.txt").read_text().splitlines()
    assert rdf[3].split() == ["0", "20"]
    assert rdf[4].split()[:2] == ["1", "0.125"]
    assert len(Path("a.dump").read_text().splitlines()) == 4 * (9 + 64)
    import ase.io

    frames = ase.io.read("a.extxyz", ":")
    assert len(frames) == 4
    assert len(frames[0]) == 192
    assert Path("a.dcd").stat().st_size == 4 * (3 * (192 * 4 + 8) + 56) + 276
    assert len(Path("a.xyz").read_text().splitlines()) == 4 * 194


def test_ave_time_overwrite_keeps_the_last_means_alone(script, head):
    script(
        head + "variable s equal step\nfix 1 all ave/time 1 1 5 v_s ave running file all.txt\n"
        "fix 2 all ave/time 1 1 5 v_s ave running overwrite file last.txt\n"
        "compute r all rdf 4 cutoff 5.0\nfix 3 all ave/time 5 1 5 c_r[*] mode vector overwrite file rdf.txt\nrun 20\n"
    )
    title, names, *rows = Path("all.txt").read_text().splitlines()
    assert rows == ["0 0", "5 2.5", "10 5", "15 7.5", "20 10"]
    last = Path("last.txt").read_text().splitlines()
    assert last == [title.replace("fix 1", "fix 2"), names, "20 10"]
    rdf = [line.split() for line in Path("rdf.txt").read_text().splitlines()]
    assert rdf[3] == ["20", "4"]
    assert [row[0] for row in rdf[4:]] == ["1", "2", "3", "4"]


def test_minimise(script, head):
    log = script(
        head + "displace_atoms all random 0.05 0.05 0.05 7 units box\nmin_style cg\nminimize 0 1e-4 200 2000\n"
        "min_style fire\nminimize 0 1e-4 500 5000\nthermo_modify format float %.15g\nrun 0\n"
    )
    energies = [float(v) for v in re.findall(r"final =\n\s+\S+\s+\S+\s+(\S+)", log)]
    assert energies[0] < energies[0] + 1
    assert "Stopping criterion" in log
    assert energies[1] <= energies[0] + 1e-8 * 192


def test_box_relax(script):
    log = script(
        "units metal\natom_style atomic\nlattice fcc 4.0\nregion b block 0 1 0 1 0 1\ncreate_box 2 b\n"
        "create_atoms 1 box\n"
        "mass * 16\npair_style deepmd water_md0.pb\npair_coeff * * O H\nneighbor 1.0 bin\n"
        "displace_atoms all random 0.1 0.1 0.1 3 units box\nchange_box all triclinic\n"
        "thermo_style custom step pe press pxx pyy pzz pxy lx ly lz xy\nthermo 50\n"
        "fix 1 all box/relax tri 1000.0 vmax 0.005\nminimize 0 1e-8 300 3000\nunfix 1\n"
    )
    last = {k: v[-1] for k, v in thermo(log).items()}
    assert last["Pxx"] == pytest.approx(1000, abs=10)
    assert last["Pzz"] == pytest.approx(1000, abs=10)
    assert last["Pxy"] == pytest.approx(0, abs=10)


def test_structure_commands(script):
    log = script(
        "units metal\natom_style atomic\nboundary p p s\nlattice bcc 3.0\nregion b block 0 3 0 3 0 2\n"
        "create_box 2 b\nregion s sphere 1.5 1.5 1 0.9\ncreate_atoms 1 box basis 2 2\n"
        "create_atoms 1 single 0.25 0.25 0.25\n"
        "replicate 2 1 1\nmass 1 16\nmass 2 2\ngroup in region s\ngroup some id <> 3 7\ngroup both intersect in some\n"
        'variable n equal count(in)\nprint "$n $(count(all)) $(mass(all)) $(xcm(some,x)) $(bound(all,zmax))"\n'
        "change_box all x scale 1.1 remap units box\nchange_box all z final -1 20 units box\n"
        "displace_atoms some move 0.1 0 0 units box\nvelocity all set 0.1 NULL 0\nwrite_data made.data\nclear\n"
        'boundary p p s\natom_style atomic\nread_data made.data\nprint "$(lx) $(lz) $(count(all))"\n'
    )
    assert "19.8 6.00120084 92" in log
    assert "Created 45 atoms" in log


def test_displaced_atoms_are_wrapped(script):
    """As in LAMMPS, so that regions and files see them in the box; random numbers are LAMMPS's."""
    script(
        "units metal\natom_style atomic\nlattice fcc 3.6\nregion b block 0 2 0 2 0 2\ncreate_box 1 b\n"
        "create_atoms 1 box\nmass 1 63.546\ndisplace_atoms all random 0.1 0.2 0.3 4711 units box\n"
        "write_dump all custom d.txt id x y z ix modify format float %.15g\n"
    )
    rows = np.loadtxt("d.txt", skiprows=9)
    # LAMMPS 22 Jul 2025
    assert np.allclose(rows[0], [1, 7.13034857224224, 7.13690735052196, 0.00276033380197376, -1], rtol=0, atol=1e-13)
    assert np.allclose(rows[4], [5, 3.6388391190855, 7.13814894004639, 0.103853039445287, 0], rtol=0, atol=1e-13)


def test_velocities_by_position_in_a_triclinic_box(script, head):
    """They depend on the last bit of positions, which LAMMPS rounds when it reads a box with a tilt line."""
    script(
        head + "velocity all create 300 87287 loop geom\n"
        "write_dump all custom v.txt id vx vy vz modify sort id format float %.12g\n"
        "velocity all ramp vx 0 1 y 0 10 sum yes\n"
        "write_dump all custom w.txt id y vx modify sort id format float %.12g\n"
    )
    rows, ramped = np.loadtxt("v.txt", skiprows=9), np.loadtxt("w.txt", skiprows=9)
    # LAMMPS 22 Jul 2025
    assert np.allclose(rows[1], [2, -7.47318210049, -2.71312246043, -2.96513221391], rtol=1e-10)
    assert np.allclose(rows[2], [3, 5.42900888712, -1.38596862089, -5.92661801556], rtol=1e-10)
    assert np.allclose(ramped[:, 2] - rows[:, 1], np.clip(ramped[:, 1] / 10, 0, 1), rtol=0, atol=1e-9)


def test_order_of_the_atoms_of_a_diamond(script):
    """Ids and the numbers of ``basis`` are LAMMPS's."""
    script(
        "units metal\natom_style atomic\nlattice diamond 4.0\nregion b block 0 1 0 1 0 1\ncreate_box 2 b\n"
        "create_atoms 1 box basis 6 2\nmass * 1\nwrite_dump all custom d.txt id type x y z modify sort id\n"
    )
    rows = np.loadtxt("d.txt", skiprows=9)
    assert np.allclose(rows[[1, 5, 7]], [[2, 1, 0, 2, 2], [6, 2, 1, 3, 3], [8, 1, 3, 3, 1]])


def test_deformation_over_several_runs(script, head):
    """Rates refer to the box at the start of a run, or of the span that several runs share."""
    log = script(
        head + "change_box all triclinic\nvelocity all create 300 5\nfix 1 all nve\nthermo_style custom step lx lz xy\n"
        "thermo_modify format float %.10g\nfix 2 all deform 1 x erate 1.0 z vel 2.0 xy erate 5.0 units box\n"
        "run 10\nrun 10\nunfix 2\nfix 2 all deform 1 z vel 2.0 units box\n"
        "run 10 start 20 stop 40\nrun 10 start 20 stop 40\n"
    )
    once, twice, half, whole = (thermo(log, k) for k in range(4))
    edge = 12.4447
    assert np.allclose([once["Lx"][-1], twice["Lx"][-1]], [edge * 1.005, edge * 1.005**2], rtol=1e-9)
    assert np.allclose([once["Xy"][-1], twice["Xy"][-1]], [0.025 * edge, 0.05 * edge], rtol=1e-8)
    assert np.allclose(
        [v["Lz"][-1] for v in (once, twice, half, whole)], edge + 0.01 * np.arange(1, 5), rtol=1e-9
    )  # fmt: skip


def test_tilts_under_pressure_are_not_scaled_by_edges(script, head):
    """A tilt that has a pressure of its own does not grow with the edge."""
    log = script(
        head.replace("water.lmp", "wtri192.lmp") + "velocity all create 330 5\nthermo_style custom step xy xz yz lz\n"
        "thermo_modify format float %.12g\nfix 1 all npt temp 330 330 0.1 x 1 100 0.5 z 10 10 0.5 yz 0 0 1.0\nrun 10\n"
    )
    # LAMMPS 22 Jul 2025
    assert thermo(log)["Yz"][-1] == pytest.approx(2.11547678075, rel=1e-9)
    assert thermo(log)["Xz"][-1] == pytest.approx(-1.12064007705, rel=1e-9)
    assert thermo(log)["Xy"][-1] == pytest.approx(1.61780594826, rel=1e-9)


def test_energy_of_a_constant_force_counts_from_the_origin(script, head):
    log = script(
        head + "change_box all z final -3 16 units box\ngroup O type 1\nfix 1 O addforce 0 0 -0.01\nrun 0\n"
        "print 'difference $(f_1-0.01*count(O)*xcm(O,z):%.9f)'\n"
    )
    assert "\ndifference 0.000000000\n" in log.replace("-0.000000000", "0.000000000")


#: {boundary: thermo output at step 0 and 2} of LAMMPS 22 Jul 2025 with DeePMD-kit 3.2.0
TILTED = {
    "s s s": (
        "-29942.0699218 17338.7748458 1851.52807682 0.145972890587 12.4198947563 12.6709643798 0.0705528642836",
        "-29942.052835 17590.8135064 1849.73395038 0.143518763039 12.4166337277 12.6562626088 0.0655641957281",
    ),
    "m s p": (
        "-29943.7106336 23521.4698373 1900.32137762 0 12.4446611404 12.6805893633 0",
        "-29943.6770037 23716.7043013 1900.18270629 0 12.4446611404 12.6670569393 0",
    ),
}


@pytest.mark.parametrize("boundary", TILTED)
def test_faces_of_a_tilted_box_follow_the_atoms(script, head, boundary):
    text = head.replace("p p p", boundary).replace("water.lmp", "wtri192.lmp").replace("thermo 5", "thermo 2")
    log = script(
        text + "neigh_modify every 1 delay 0 check no\nvelocity all create 330 5\nfix 1 all nve\n"
        "thermo_style custom step pe press vol xlo xhi yhi zlo\nthermo_modify format float %.15g\nrun 2\n"
    )
    ours = np.array(list(thermo(log).values())[1:]).T
    theirs = np.array([row.split() for row in TILTED[boundary]], float)
    assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-10)


def test_general_triclinic_and_dialects(script):
    Path("a.data").write_text(
        "units = lj\n\n2 atoms  # two\n3 bonds\n 2 atom types\n3 0 0 avec\n0 0 -3 bvec\n0 3 0 cvec\n"
        "1 2 3 abc origin\n\n"
        "Masses\n\n1 16 # O\n2 2 # H\n\nPair Coeffs\n\n1 x\n\nAtoms # I like it\n\n2\t1 2 0.5 1.5  2.5 3 -1 0 0\n"
        "1 1 1 -0.5 1 2 3 0 0 0\n\nVelocities\n\n1 0 0 1\n2 0 1 0\n\nBonds\n\n1 1 1 2"
    )
    script(
        "units metal\natom_style full\nbond_style zero\nread_data a.data\nbond_coeff *\nspecial_bonds lj 0 0 0\n"
        "write_data b.data\nwrite_dump all custom c.dump id type q mol x y z vx vy vz\n"
    )
    rows = [line.split() for line in Path("c.dump").read_text().splitlines()[9:]]
    assert [r[:4] for r in rows] == [["1", "1", "-0.5", "1"], ["2", "2", "0.5", "1"]]
    assert np.allclose(np.array(rows[1][4:], float), [1.5, 2, 3.5, 0, 0, 1])  # y of the general box is z of the new one


def test_rerun_gives_the_same_energies(script, head):
    run = script(
        head + "velocity all create 330 5\nfix 1 all nve\ndump 1 all custom 5 d.dump id type x y z ix iy iz\n"
        "dump_modify 1 format float %.17g\nthermo_modify format float %.15g\nrun 15\n"
    )
    again = script(head + "thermo_modify format float %.15g\nrerun d.dump first 5 every 5 dump x y z box yes\n")
    assert list(thermo(again)["Step"]) == [5, 10, 15]
    assert np.allclose(thermo(again)["E_pair"], thermo(run)["E_pair"][1:], rtol=0, atol=1e-8)


def test_real_units_give_the_same_motion(script, head):
    tail = (
        "velocity all create 330 5\nfix 1 all nvt temp 330 330 {}\nthermo_style custom step temp pe press vol\nrun 10\n"
    )
    metal = thermo(script(head + tail.format(0.1)))
    text = head.replace("units metal", "units real").replace("timestep 0.0005", "timestep 0.5")
    real = thermo(script(text + tail.format(100.0)))
    assert np.allclose(real["Temp"], metal["Temp"], rtol=1e-6)
    assert np.allclose(real["PotEng"], metal["PotEng"] * 23.0605498, rtol=1e-7)
    assert np.allclose(real["Press"] * 1.01325, metal["Press"], rtol=1e-4)


def test_fixes_that_change_the_box_or_the_forces(script, head):
    log = script(
        head.replace("p p p", "p p f").replace("read_data water.lmp", "read_data water.lmp nocoeff")
        + "change_box all z final -3 16 units box\nvelocity all create 330 5\ngroup O type 1\n"
        "region low block INF INF INF INF INF 3 units box\ngroup low region low\nfix 1 all nve\n"
        "fix 2 all deform 1 x final 0 13 y scale 1.01 remap x units box\n"
        "fix 3 all wall/reflect zlo EDGE zhi 14.0 units box\nfix 4 low setforce 0 0 NULL\nfix 5 O addforce 0.1 0 0\n"
        "fix 6 all temp/berendsen 330 100 0.01\nthermo_style custom step temp lx ly f_4[1] f_5 xlo xhi\nrun 10\n"
    )
    values = {k: v[-1] for k, v in thermo(log).items()}
    assert values["Lx"] == pytest.approx(13)
    assert values["Ly"] == pytest.approx(12.4447 * 1.01)
    assert values["Temp"] < 300
    log = script(
        head + "velocity all create 330 5\nfix 1 all nve\nfix 2 all press/berendsen iso 1 1 0.1 modulus 20000\n"
        "fix 3 all print 5 'T=$(temp)'\ntimer timeout 10:00\nrun 5 every 5 'print again'\nrun 10 upto\n"
    )
    assert list(thermo(log)["Step"]) == [5, 10]
    assert "\nagain\n" in log
    assert thermo(log, -1)["Volume"][-1] > 12.4447**3


def test_loops_and_clear(script, head):
    log = script(
        "variable a loop 2\nlabel next_a\n"
        "" + head + "change_box all x scale 1.0$a y scale 1.0$a z scale 1.0$a remap units box\n"
        'run 0\nvariable e equal pe\nprint "E $a $e"\nclear\nnext a\njump SELF next_a\n'
    )
    found = re.findall(r"^E (\d) (\S+)$", log, re.M)
    assert [k for k, _ in found] == ["1", "2"]
    assert float(found[0][1]) != float(found[1][1])


@pytest.mark.parametrize("coupling", ["iso 1 1 0.0001", "tri 1e12 1e12 0.0001"])
def test_barostat_that_is_too_fast_stops(script, head, coupling):
    with pytest.raises(RunError, match="longer relaxation time"):
        script(head + f"velocity all create 330 5\nfix 1 all npt temp 330 330 0.1 {coupling}\nrun 50\n")


def test_atoms_at_rest_are_pointed_out(script, head):
    assert "thermostats only scale" in script(head + "fix 1 all nvt temp 330 330 0.1\nrun 1\n")
