"""A script that uses nearly everything, on several ranks and on one: the same files."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpmd import checkpoint
from dpmd.lammps.interpreter import run_script

PROGRAM = Path(__file__).parent / "programs" / "scripts.py"
SCRIPT = """
units metal
boundary p p p
atom_style atomic
neighbor 0.5 bin
neigh_modify every 1 delay 0 check yes
read_data water.lmp
mass 1 16
mass 2 2
pair_style deepmd MODELS/water_md0.pb MODELS/water_md1.pb out_file devi.out out_freq 5 atomic
pair_coeff * * O H
timestep 0.0005
thermo 5
group oxygen type 1
group hydrogen subtract all oxygen
group few id 1:12
velocity all create 330 87287 mom yes rot yes
velocity few set 0 NULL 0.1 sum yes
write_dump all custom first.dump id type x fx fy fz

compute msd oxygen msd com yes
compute rdf all rdf 20 1 1 1 2 cutoff 4.0
compute com hydrogen com
compute ke all ke/atom
compute pe all pe/atom
compute stress oxygen stress/atom NULL virial
compute sum all reduce sum c_pe c_ke
compute most hydrogen reduce max c_ke x
compute least hydrogen reduce min fx c_stress[1]
variable force equal "fmax + fnorm/10"
variable x equal "xcm(oxygen,x) + vcm(few,z) + bound(all,ymax) + bound(few,zmin) + ke(few) + mass(all)"
thermo_style custom step temp pe etotal press pxx pxy vol density c_msd[4] c_com[1] c_sum[1] c_sum[2] c_most[1] &
    c_least[2] v_force v_x f_spring f_add[1] nbuild

fix move all nve
fix warm hydrogen langevin 330 330 0.1 4711 zero yes
fix spring few spring/self 0.5 xy
fix add oxygen addforce 0.01 0 0
fix_modify add energy yes
fix stop all momentum 4 linear 1 1 0 angular rescale
fix means all ave/time 2 3 10 c_rdf[*] file rdf.txt mode vector
fix some all ave/time 1 5 10 v_force c_com[2] c_most[2] file some.txt
fix lines all print 5 "at ${x} $(step) $(c_sum[1])" file lines.txt screen no
dump a all custom 5 a.dump id type element x y z ix vx fx c_pe c_stress[2] c_ke
dump_modify a element O H sort id
dump b oxygen xyz 10 b.xyz
dump c hydrogen extxyz 10 c.extxyz
dump d all atom 10 d.*.dump
dump e all xtc 10 e.xtc
restart 10 state.*.h5
run 20

if "$(pe) < 1e9" then "variable which string low" else "variable which string high"
print "energy is ${which}: $(pe:%.8f) $(c_least[1]:%.8f)" append lines2.txt
variable shift equal "0.001*pe/atoms"
displace_atoms few move v_shift 0 0 units box
write_data now.data
unfix warm
unfix stop
undump e
fix box all npt temp 330 330 0.05 tri 5000 5000 0.1
unfix move
change_box all triclinic
run 10
unfix box
thermo_style custom step pe vol press
unfix spring
unfix add
fix relax all box/relax iso 0.0 vmax 0.001
min_style cg
minimize 0 1e-3 5 50
write_restart final.h5
undump a
undump b
undump c
undump d

clear
units metal
atom_style atomic
neighbor 0.5 bin
read_restart state.20.h5
pair_style deepmd MODELS/water_md0.pb
pair_coeff * * O H
fix move all nvt temp 300 300 0.05
thermo 5
run 5
unfix move
group some id <= 30
fix hold some setforce 0 NULL 0
min_style fire
minimize 0 1e-3 5 50

clear
units metal
atom_style atomic
boundary p p s
neighbor 1.0 bin
read_data water.lmp
pair_style deepmd MODELS/water_md0.pb
mass 1 16
mass 2 2
pair_coeff * * O H
velocity all create 300 1 loop geom dist gaussian
fix move all nve
fix wall all wall/reflect zlo EDGE zhi EDGE units box
thermo_style custom step pe zlo zhi lz
thermo 2
run 10
rerun a.dump first 5 dump x y z
"""


def numbers_and_words(path):
    """A text file's words, with # for each number, and the numbers."""
    text = path.read_text()
    if path.name == "log.lammps":  # without times and what depends on the number of ranks
        tables = r"^ *Step[^\n]*\n(?: *-?\d[^\n]*\n)*|^  Energy initial[^\n]*\n[^\n]*"
        text = "\n".join(re.findall(tables, text, re.M))
    number = r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?"
    return re.sub(number, "#", text).split(), np.array(re.findall(number, text), float)


@pytest.mark.parametrize(
    ("n", "decomposition"),
    [(3, "node"), *(pytest.param(*more, marks=pytest.mark.long) for more in ((2, "rank"), (4, "node")))],
)
def test_all_files_are_those_of_one_process(n, decomposition, mpi_run, script_options, tmp_path, monkeypatch):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")
    data = Path(__file__).resolve().parents[2] / "data"
    for name in ("one", "several"):
        (tmp_path / name).mkdir()
        shutil.copy(data / "lammps" / "water.lmp", tmp_path / name)
        (tmp_path / name / "in.script").write_text(SCRIPT.replace("MODELS", str(data / "models")))
    code, text = mpi_run(n, PROGRAM, decomposition, str(tmp_path / "several"))
    assert code == 0, text
    monkeypatch.chdir(tmp_path / "one")
    assert run_script("in.script", script_options) == 0
    files = sorted(p.name for p in Path().iterdir())
    assert files == sorted(p.name for p in (tmp_path / "several").iterdir())
    for name in files:
        if name.endswith(".h5"):
            (expected, _), (found, _) = (checkpoint.read(tmp_path / k / name) for k in ("one", "several"))
            for array in ("ids", "positions", "velocities", "forces"):
                one, several = (getattr(s, array)[np.argsort(s.ids)] for s in (expected, found))
                np.testing.assert_allclose(several, one, rtol=0, atol=1e-7, err_msg=f"{name}: {array}")
        if name.endswith((".h5", ".xtc")):
            continue
        (words, expected), (same, found) = (numbers_and_words(tmp_path / k / name) for k in ("one", "several"))
        assert words == same, name
        assert len(expected) == len(found), name
        scale = np.maximum(np.abs(expected), 1.0)
        assert (np.abs(found - expected) / scale).max(initial=0.0) < 2e-6, name


@pytest.mark.parametrize(
    ("options", "message"), [((), "in.script:2"), (("--device", "cuda"), "several ranks use CPUs only")]
)
def test_errors_are_reported_once(options, message, mpi_run, tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")
    (tmp_path / "in.script").write_text("units metal\nread_data missing.lmp\n")
    program = Path(__file__).parents[1] / "programs" / "md_run_ranks.py"
    code, text = mpi_run(2, program, "in.script", "-log", "none", *options, cwd=tmp_path)
    assert code == 2, text
    assert text.count("ERROR:") == 1
    assert message in text
