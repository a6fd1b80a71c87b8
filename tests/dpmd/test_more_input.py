"""Constant pressure, minimisation, committees and values of atoms from the TOML input."""

import ase.io
import numpy as np
import pytest

from dpmd import checkpoint

COUPLINGS = [
    ("npt", "nose-hoover", "mtk", "tri"),
    ("npt", "csvr", "mtk", "aniso"),
    ("npt", "langevin", "mtk", "iso"),
    ("nph", "csvr", "mtk", "iso"),
    ("npt", "berendsen", "berendsen", "iso"),
    ("nvt", "berendsen", "mtk", "iso"),
]


def ensemble(kind, thermostat, barostat, coupling):
    heat = {"thermostat": thermostat} if kind in ("nvt", "npt") else {}
    cell = {"barostat": barostat, "coupling": coupling, "pressure_bar": 1.0, "pressure_relaxation_time_ps": 0.5}
    return {"type": kind, "temperature_K": 300.0, **heat, **(cell if kind in ("npt", "nph") else {})}


@pytest.mark.parametrize("case", COUPLINGS, ids="-".join)
def test_continued_run_is_exact(water_run, tmp_path, thermo_columns, case):
    settings = dict(ensemble=ensemble(*case), checkpoint={"every": 10}, output=[])
    code, text = water_run(**settings, run={"steps": 10})
    assert code == 0, text
    assert water_run("--continue", **settings, run={"steps": 20})[0] == 0
    first = (tmp_path / "run.thermo.csv").read_bytes()
    assert water_run("--overwrite", **settings, run={"steps": 20})[0] == 0
    assert (tmp_path / "run.thermo.csv").read_bytes() == first
    values = thermo_columns(tmp_path / "run.thermo.csv")
    assert (np.ptp(values["volume_A3"]) > 0) == (case[0] != "nvt")


def test_conserved_energy(water_run, tmp_path, thermo_columns):
    drift = []
    for timestep in (0.5, 0.25):
        settings = ensemble("npt", "nose-hoover", "mtk", "tri")
        assert water_run(
            "--overwrite", ensemble=settings, output=[], run={"steps": int(50 / timestep), "timestep_fs": timestep}
        )[0] == 0  # fmt: skip
        values = thermo_columns(tmp_path / "run.thermo.csv")
        drift.append(np.ptp(values["conserved_eV"]))
        assert drift[-1] < 0.05 * np.ptp(values["total_eV"]) + 2e-3
    assert drift[1] < 0.5 * drift[0]


def test_pressure_is_needed(water_run):
    code, text = water_run(ensemble={"type": "npt", "temperature_K": 300.0})
    assert code == 2
    assert "pressure_bar" in text


def test_minimise_with_cell(water_run):
    """Without velocities, since nothing moves; the result is in the checkpoint too."""
    code, text = water_run(
        run={"steps": 0}, ensemble={"temperature_K": None},
        minimize={
            "method": "cg", "force_tolerance_eV_A": 1e-3, "max_iterations": 800, "pressure_bar": 20000.0,
            "coupling": "tri",
        },
    )  # fmt: skip
    assert code == 0, text
    assert "Minimised by cg" in text
    last = ase.io.read("out.extxyz", -1)
    assert np.abs(last.get_forces()).max() < 2e-3
    assert -last.get_stress()[:3] * 1602176.634 == pytest.approx([20000] * 3, abs=200)
    system, _ = checkpoint.read("run.checkpoint.h5")
    assert system.volume == pytest.approx(last.get_volume(), rel=1e-9)


@pytest.mark.parametrize("method", ["sd", "fire", "quickmin"])
def test_other_minimisers(water_run, method):
    code, text = water_run(
        structure={"velocities": "zero"}, run={"steps": 0}, ensemble={"temperature_K": None},
        minimize={"method": method, "force_tolerance_eV_A": 0.0, "max_iterations": 20},
    )  # fmt: skip
    assert code == 0, text
    before, after = (float(w) for w in text.split("; energy ")[1].split(" eV")[0].split(" -> "))
    assert after < before


def test_committee_and_atoms(water_run, tmp_path, find_model):
    (tmp_path / "second.pb").write_bytes(find_model("water_md1.pb").read_bytes())
    settings = dict(
        model={"committee": ["second.pb"], "deviation_every": 5, "relative_eV_A": 1.0},
        output=[
            {"file": "a.extxyz", "every": 10, "atom_energies": True, "atom_virials": True},
            {"file": "a.dump", "every": 10, "atom_energies": True, "atom_virials": True},
        ],
        checkpoint={"every": 10},
    )
    assert water_run(**settings, run={"steps": 10})[0] == 0
    code, text = water_run("--continue", **settings, run={"steps": 20})
    assert code == 0, text
    files = ("run.model_devi.out", "a.dump", "a.extxyz")
    first = {name: (tmp_path / name).read_bytes() for name in files}
    assert water_run("--overwrite", **settings, run={"steps": 20})[0] == 0
    for name in files:
        assert (tmp_path / name).read_bytes() == first[name], name
    frame = ase.io.read("a.extxyz", -1)
    assert frame.arrays["atom_energy"].sum() == pytest.approx(frame.get_potential_energy(), abs=1e-6)
    assert len((tmp_path / "run.model_devi.out").read_text().splitlines()) == 6
