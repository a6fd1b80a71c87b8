"""How minimisations end: in double precision where rounding stalls them, and told where they have not converged.

The minimum is that of a perfect crystal: all forces are zero by symmetry, and its energy is known in double.
"""

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import bulk

from dpmd import Potential, Simulation
from dpmd.minimize import Minimizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/copper/copper.dp"
#: eV/Å: far below what float32 resolves
TIGHT = 1e-8


@pytest.fixture(scope="module")
def perfect():
    return bulk("Cu", cubic=True, a=3.63) * (2, 2, 2)


@pytest.fixture(scope="module")
def minimum(perfect):
    """Energy of the perfect crystal in double precision, eV."""
    return Potential(MODEL, "cpu", threads=1).evaluate(perfect)["energy"]


@pytest.fixture
def copper_run(water_run, perfect):
    """``water_run`` with displaced copper in mixed precision, minimised and nothing else."""
    shaken = perfect.copy()
    shaken.positions += np.random.default_rng(0).normal(0, 0.08, shaken.positions.shape)

    def run(*flags, steps=0, **minimize):
        ase.io.write("start.extxyz", shaken, format="extxyz")
        return water_run(
            "--overwrite", *flags, structure={"masses_u": None}, model={"file": str(MODEL)}, output=[],
            run={"steps": steps, "precision": "mixed", "timestep_fs": 2.0},
            minimize={"method": "cg", "force_tolerance_eV_A": TIGHT, "max_iterations": 300, **minimize},
        )  # fmt: skip

    return run


def summary():
    return json.loads(Path("run.summary.json").read_text())["minimization"]


@pytest.mark.parametrize("method", ["cg", "fire"])
def test_the_end_is_in_double_where_rounding_stalls(copper_run, minimum, method):
    code, text = copper_run(method=method, max_iterations=1000)
    assert code == 0, text
    assert "force tolerance; energy" in text
    assert "in double precision from iteration" in text
    assert "has not converged" not in text
    found = summary()
    assert found["converged"] is True
    assert found["largest_force_eV_A"][1] <= TIGHT
    assert found["energy_eV"][1] == pytest.approx(minimum, abs=1e-9)
    assert 0 < found["double_from_iteration"] < found["iterations"]


@pytest.mark.gpu
def test_the_end_is_in_double_on_a_gpu(copper_run, minimum, gpu):
    code, text = copper_run("--device", "cuda")
    assert code == 0, text
    assert "device      cuda:0" in text
    assert "in double precision from iteration" in text
    assert summary()["energy_eV"][1] == pytest.approx(minimum, abs=1e-7)


def test_no_double_where_nothing_stalls(copper_run):
    _, text = copper_run(force_tolerance_eV_A=1e-3)
    assert "force tolerance; energy" in text
    assert "in double precision" not in text
    assert summary()["double_from_iteration"] is None


def test_unconverged_is_told_and_goes_on(copper_run):
    code, text = copper_run(max_iterations=3, steps=2)
    assert code == 0, text
    (warning,) = [line for line in text.splitlines() if "has not converged" in line]
    assert warning.startswith("WARNING: run.toml:")
    assert "max iterations after 3 iterations" in warning
    assert "force_tolerance_eV_A = 1e-08, max_iterations = 3" in warning
    assert summary()["converged"] is False
    assert summary()["reason"] == "max iterations"
    assert "for 2 steps" in text


@pytest.mark.parametrize("flags", [(), ("--on-unconverged", "error")])
def test_unconverged_stops_on_request(copper_run, flags):
    request = {} if flags else {"on_unconverged": "error"}
    code, text = copper_run(*flags, max_iterations=3, steps=2, **request)
    assert code == 1
    assert "Stopped at step 0 of 2: the minimisation has not converged (on_unconverged)" in text
    assert summary()["converged"] is False
    assert Path("run.checkpoint.h5").exists()
    assert copper_run(*flags, force_tolerance_eV_A=0.1, steps=2, **request)[0] == 0


def test_what_falls_while_the_cell_relaxes_is_the_enthalpy(copper_run, thermo_columns):
    code, text = copper_run(pressure_bar=50000.0, force_tolerance_eV_A=1e-3)
    assert code == 0, text
    assert "; enthalpy E + P (V - V0) " in text
    thermo = thermo_columns("run.thermo.csv")
    expected = thermo["potential_eV"][0] + 50000.0 / 1602176.634 * (thermo["volume_A3"][0] - (2 * 3.63) ** 3)
    assert summary()["enthalpy_eV"][1] == pytest.approx(expected, abs=1e-4)
    assert "energy_eV" not in summary()


def test_energy_tolerances_below_rounding_are_met_in_double(copper_run, minimum):
    _, text = copper_run(force_tolerance_eV_A=0.0, energy_tolerance=1e-13)
    assert "energy tolerance; energy" in text
    assert "in double precision from iteration" in text
    assert summary()["energy_eV"][1] == pytest.approx(minimum, abs=1e-7)


def test_from_python_and_operators_are_as_before(perfect, minimum):
    shaken = perfect.copy()
    shaken.positions += np.random.default_rng(1).normal(0, 0.05, shaken.positions.shape)
    simulation = Simulation.from_atoms(shaken, MODEL, device="cpu", threads=1, precision="mixed")
    operators = simulation.operators
    result = Minimizer(simulation, "cg", force_tolerance=TIGHT, norm="max").run()
    assert result.converged
    assert result.double_from is not None
    assert result.energies[2] == pytest.approx(minimum, abs=1e-9)
    assert simulation.operators is operators
