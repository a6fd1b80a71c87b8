"""The bundled trained models: error against their data, precision, conservation."""

from pathlib import Path

import ase.io
import numpy as np
import pytest

from dpmd.models.cache import load_for_operators
from dpmd.potential import Potential
from dpmd.preflight import force_error

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def rms(values):
    return np.sqrt((np.asarray(values) ** 2).mean())


def test_water_against_its_validation_data(shared_file):
    """The figures that ``dp test`` of DeePMD-kit 3.2.0 prints for 40 frames."""
    folder = shared_file("data/water/data_3")
    kinds = np.loadtxt(folder / "type.raw", dtype=int)
    coordinates, boxes, energies, forces = (
        np.concatenate([np.load(part / f"{name}.npy") for part in sorted(folder.glob("set.*"))])[:40].astype(float)
        for name in ("coord", "box", "energy", "force")
    )
    potential = Potential(EXAMPLES / "water" / "water.dp", precision="double")
    symbols = np.array((folder / "type_map.raw").read_text().split())[kinds]
    energy_errors, force_errors = [], []
    for x, box, energy, force in zip(coordinates, boxes, energies, forces, strict=True):
        atoms = ase.Atoms(symbols, x.reshape(-1, 3), cell=box.reshape(3, 3), pbc=True)
        result = potential.evaluate(atoms)
        energy_errors.append(result["energy"] - energy)
        force_errors.append(result["forces"].ravel() - force)
    assert rms(energy_errors) == pytest.approx(7.047939e-02, abs=1e-6)
    assert np.abs(energy_errors).mean() == pytest.approx(5.752426e-02, abs=1e-6)
    assert rms(force_errors) == pytest.approx(4.183532e-02, abs=1e-6)
    assert np.abs(force_errors).mean() == pytest.approx(3.216626e-02, abs=1e-6)


@pytest.mark.parametrize("name", ["water", "copper"])
def test_tables_and_single_precision_change_little(name):
    """Tables: <= 1e-7 eV/Å; mixed precision: <= 5e-6 of the rms force."""
    atoms = ase.io.read(EXAMPLES / name / f"{name}.extxyz")
    atoms.rattle(0.08, seed=1)
    for precision in ("double", "mixed"):
        potential = Potential(EXAMPLES / name / f"{name}.dp", precision=precision)
        system, domain = potential.system(atoms), potential.domain()
        domain.rebuild(system)
        error = force_error(potential.loaded.exact, potential.operators, domain, system, {})
        if precision == "double":
            assert error["force_max"] < 1e-7
        else:
            assert error["force_rms"] < 5e-6 * error["rms_force"]
            assert error["energy"] < 5e-6  # eV/atom; copper: 1.6e-6


def test_tables_are_cached(tmp_path, monkeypatch, find_model):
    monkeypatch.setattr("dpmd.models.cache.user_cache_path", lambda name: tmp_path / name)
    path = find_model("water_md0.dp")
    first = load_for_operators(path)
    assert "made in" in first.description
    again = load_for_operators(path)
    assert "from the cache" in again.description
    for (a, _), (b, _) in zip(
        first.model.descriptor.unique_embeddings(), again.model.descriptor.unique_embeddings(), strict=True
    ):
        assert np.array_equal(a.table.coefficients, b.table.coefficients)
    (cached,) = (tmp_path / "dpmd").iterdir()
    cached.write_bytes(cached.read_bytes()[:-1000])  # a damaged cache is made again
    assert "made in" in load_for_operators(path).description
