"""``thermo_modify norm yes``: energies per atom in columns, in variables and in immediate formulas.

Values of LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings), same script; a compute inside a variable is a total.
"""

import pytest

RIGHT = {
    "PotEng": -0.0038587073, "v_a": -0.0038587073, "TotEng": 0.03456028, "v_b": 0.03456028, "KinEng": 0.038418988,
    "v_c": 0.038418988, "Enthalpy": -0.18057969, "v_d": -0.18057969, "v_e": -0.41674038, "c_thermo_pe": -0.0038587073,
}  # fmt: skip


def check(case):
    output = case.md_run("in.lammps")
    found = {name: values[0] for name, values in case.thermo().items()}
    assert {name: found[name] for name in RIGHT} == pytest.approx(RIGHT, rel=1e-7)
    words = next(line for line in output.splitlines() if line.startswith("immediate")).split()[1:]
    assert [float(w) for w in words] == pytest.approx([RIGHT["PotEng"], RIGHT["KinEng"]], rel=1e-7)
