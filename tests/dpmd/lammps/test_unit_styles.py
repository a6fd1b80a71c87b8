"""Arguments of fixes in real units are those in metal units, converted: the same motion."""

from pathlib import Path

import numpy as np
import pytest

from dpmd.lammps.fixes import FIXES

#: {style: arguments}; ps, bar and ev are one picosecond, bar and electronvolt in the unit style
CASES = {
    "nve": "",
    "nvt": "temp 330 200 $(0.02*v_ps)",
    "npt": "temp 330 330 $(0.02*v_ps) aniso $(20000*v_bar) $(40000*v_bar) $(0.1*v_ps)",
    "nph": "iso $(20000*v_bar) $(20000*v_bar) $(0.1*v_ps)",
    "langevin": "330 330 $(0.02*v_ps) 7 tally yes",
    "temp/csvr": "500 500 $(0.01*v_ps) 7",
    "temp/berendsen": "500 500 $(0.01*v_ps)",
    "press/berendsen": "x $(20000*v_bar) $(60000*v_bar) $(0.1*v_ps) modulus $(90000*v_bar)",
    "setforce": "$(0.2*v_ev) NULL $(-0.1*v_ev)",
    "addforce": "$(0.2*v_ev) 0 $(-0.1*v_ev)",
    "spring/self": "$(30*v_ev)",
    "deform": "1 x vel $(5/v_ps) y erate $(2/v_ps) z trate $(-20/v_ps)",
    "box/relax": "x $(20000*v_bar) y $(10000*v_bar)",
}
#: without arguments that have a unit
OTHERS = {"momentum", "recenter", "wall/reflect", "print", "ave/time", "vector"}
#: values of ps, bar and ev
UNITS = {"metal": (1, 1, 1), "real": (1000, 0.986923267, 23.060549)}
INTEGRATORS = ("nve", "nvt", "npt", "nph")


def test_every_fix_is_in_the_table():
    assert set(CASES) | OTHERS == set(FIXES)


@pytest.mark.parametrize("style", CASES)
def test_motion_in_real_units(style, script, head):
    found = []
    for unit, (ps, bar, ev) in UNITS.items():
        text = head.replace("units metal", f"units {unit}").replace("timestep 0.0005", "timestep $(0.0005*v_ps)")
        text += "group O type 1\nvelocity all create 330 5\n"
        if style not in INTEGRATORS:
            text += "fix 1 all nve\n"
        text += f"fix 2 {'all' if style in (*INTEGRATORS, 'box/relax') else 'O'} {style} {CASES[style]}\n"
        if style in ("addforce", "spring/self"):
            text += "fix_modify 2 energy yes\n"
        text += "thermo_style custom step pe epair ke econserve vol\nthermo_modify format float %.15g norm no\n"
        text += "minimize 0 0 5 50\n" if style == "box/relax" else "run 10\n"
        log = script(
            text + "write_dump all custom end.dump id x y z vx vy vz modify sort id format float %.15g\n",
            ps=ps, bar=bar, ev=ev,
        )  # fmt: skip
        rows = np.array([line.split() for line in Path("end.dump").read_text().splitlines()[9:]], float)
        table = [line.split() for line in log[log.rindex("Step") : log.rindex("Loop time")].splitlines()]
        last = np.array(table[-1], float)
        assert last[1] != last[2] or style not in ("addforce", "spring/self")
        found.append(np.concatenate([rows[:, 1:4].ravel(), ps * rows[:, 4:].ravel(), last[1:5] / ev, last[5:]]))
    assert np.allclose(found[0], found[1], rtol=2e-7, atol=2e-5)
