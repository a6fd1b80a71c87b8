"""Minima of displaced copper atoms, compared with those of LAMMPS (tests/data/lammps/copper_minimize.json)."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dpmd.errors import RunError
from dpmd.lammps.interpreter import run_script

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests/data/lammps"
CASES = json.loads((DATA / "copper_minimize.json").read_text())["cases"]
#: eV/Å^3 per bar, as LAMMPS has it
BAR = 1 / 1.6021765e6
#: the others take longer than their worth at every run of the tests
QUICK = ("cg", "box/relax iso 1000", "box/relax tri 1000")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.long]) for n in CASES])
def test_same_minimum_as_lammps(name, script):
    theirs = CASES[name]
    text = (DATA / "copper_minimize.in").read_text() + "\n".join(theirs["commands"])
    log = script(text, model=ROOT / "examples/copper/copper.dp")
    table = re.search(r"^ *Step .*?(?=^Loop time)", log, re.M | re.S)[0].splitlines()
    first, ours = (dict(zip(table[0].split(), map(float, row.split()), strict=True)) for row in (table[1], table[-1]))
    n, pressure = 256, float(name.split()[-1]) if "relax" in name else 0.0
    assert "Stopping criterion = force tolerance" in log
    # the same displaced atoms to start with
    assert first["PotEng"] == pytest.approx(theirs["first"], abs=1e-9 * n)
    assert ours["PotEng"] == pytest.approx(theirs["PotEng"], abs=1e-8 * n)
    # where LAMMPS ran out of iterations ours is a little lower
    enthalpy, expected = (values["PotEng"] + pressure * BAR * values["Volume"] for values in (ours, theirs))
    assert expected - 3e-9 * n < enthalpy < expected + 3e-10 * n
    if "relax" in name:
        diagonal, shear = ("Pxx", "Pyy", "Pzz"), ("Pxy", "Pxz", "Pyz")
        assert np.allclose([ours[k] for k in diagonal], pressure, rtol=0, atol=0.02)
        assert np.allclose([ours[k] for k in shear], 0, rtol=0, atol=0.02)
        assert ours["Volume"] == pytest.approx(theirs["Volume"], rel=3e-6)
    else:
        assert ours["Pxx"] == pytest.approx(theirs["Pxx"], abs=0.01)


def test_stress_that_is_not_hydrostatic(script):
    """Each direction has its pressure, as far as the strain from the first cell is small."""
    text = (DATA / "copper_minimize.in").read_text().replace("block 0 4 0 4 0 4", "block 0 2 0 2 0 2")
    text = re.sub("(?m)^displace_atoms.*", "", text).replace("fcc 3.6", "fcc 3.62")
    log = script(
        text + "fix 1 all box/relax x 4000 y 1000 z -2000 vmax 0.01\nminimize 0 1e-9 500 5000\n",
        model=ROOT / "examples/copper/copper.dp",
    )
    table = re.search(r"^ *Step .*?(?=^Loop time)", log, re.M | re.S)[0].splitlines()
    values = dict(zip(table[0].split(), map(float, table[-1].split()), strict=True))
    assert [values[k] for k in ("Pxx", "Pyy", "Pzz")] == pytest.approx([4000, 1000, -2000], abs=120)
    assert values["Lx"] < values["Ly"] < values["Lz"]


def test_mixed_precision_ends_in_double(script, script_options):
    """What LAMMPS reaches in double precision, to 1e-9 eV per atom, from an md-run in mixed."""
    theirs = CASES["cg"]
    text = (DATA / "copper_minimize.in").read_text() + "\n".join(theirs["commands"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_options, "precision", "mixed")
        log = script(text, model=ROOT / "examples/copper/copper.dp")
    assert "Stopping criterion = force tolerance" in log
    assert "Networks computed in double precision from iteration" in log
    assert "has not converged" not in log
    energy = float(re.search(r"Energy initial, next-to-last, final =\n.* (\S+)\n", log)[1])
    assert energy == pytest.approx(theirs["PotEng"], abs=1e-9 * 256)


@pytest.mark.parametrize("wanted", ["warn", "error"])
def test_unconverged_is_told(script, script_options, wanted):
    text = (DATA / "copper_minimize.in").read_text()
    arguments = [("model", [str(ROOT / "examples/copper/copper.dp")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_options, "on_unconverged", wanted, raising=False)
        Path("in.script").write_text(text + "minimize 0 1e-8 2 100\nprint 'went on'\n")
        if wanted == "error":
            with pytest.raises(RunError, match="has not converged"):
                run_script("in.script", script_options, arguments, "log.lammps")
        else:
            assert run_script("in.script", script_options, arguments, "log.lammps") == 0
        log = Path("log.lammps").read_text()
        assert "WARNING: the minimisation has not converged: max iterations after 2 iterations" in log
        assert ("went on" in log) == (wanted == "warn")
        # so many iterations are all that is asked for
        Path("in.script").write_text(text + "minimize 0 0 2 100\n")
        assert run_script("in.script", script_options, arguments, "log.lammps") == 0
        assert "has not converged" not in Path("log.lammps").read_text()
