"""Lengths and times in wrong units: one warning before step 0 that asks for them, and none for right inputs.

What is right follows from the inputs: water stretched ten times has no two atoms within the model's cutoff;
in Bohr, its bonds are 0.5 or 1.8 Å long; a time step of 0.0005 fs is one of 0.5 fs given in ps.
"""

import re

import ase.io

TOML = """
[structure]
file = "{file}"
[model]
file = "{model}"
[ensemble]
type = "nvt"
temperature_K = 300
[run]
steps = 4
timestep_fs = {step}
"""
SCRIPT = """
units metal
read_data {file}
mass 1 16
mass 2 2
pair_style deepmd water.dp
pair_coeff * * O H
velocity all create 300 1
fix 1 all nve
timestep {step}
thermo 1
run 4
"""


def warnings(text):
    """Those before step 0."""
    return [line for line in re.split(r"\n +Step ", text)[0].splitlines() if line.startswith("WARNING")]


def check(case):
    water = ase.io.read("water.extxyz")
    factors = {"nm": 10, "small": 0.529, "large": 1.89, "right": 1}
    for name, factor in factors.items():
        atoms = water.copy()
        atoms.set_cell(atoms.cell * factor, scale_atoms=True)
        atoms.write(f"{name}.extxyz")
        atoms.write(f"{name}.lmp", format="lammps-data", specorder=["O", "H"], masses=False)
        (case.folder / f"{name}.toml").write_text(TOML.format(file=f"{name}.extxyz", model="water.dp", step=0.5))
        (case.folder / f"{name}.in").write_text(SCRIPT.format(file=f"{name}.lmp", step=0.0005))
    for name in factors:
        for kind in ("toml", "in") if name in ("nm", "right") else ("toml",):
            text = case.md_run(f"{name}.{kind}", exit_code=None)
            units = [line for line in warnings(text) if "nm" in line]
            assert len(units) == (name != "right"), text
            assert all("Bohr" in line for line in units)
            if name in ("nm", "right"):
                assert len(warnings(text)) == len(units), text
    for name, file, words in (
        ("ps.toml", TOML.format(file="right.extxyz", model="water.dp", step=0.0005), "was 0.5 fs meant"),
        ("fs.in", SCRIPT.format(file="right.lmp", step=0.5), "was 0.5 fs meant"),
    ):
        (case.folder / name).write_text(file)
        (told,) = warnings(case.md_run(name, exit_code=None))
        assert words in told
    (case.folder / "crystal.toml").write_text(TOML.format(file="copper.extxyz", model="copper.dp", step=2))
    assert not warnings(case.md_run("crystal.toml"))
