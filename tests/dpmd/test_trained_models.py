"""The bundled trained models: error against their data, precision, conservation."""

from pathlib import Path

import ase.io
import numpy as np
import pytest

from dpmd.models.cache import load_for_operators
from dpmd.potential import Potential
from dpmd.preflight import force_error

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = Path(__file__).resolve().parents[1] / "data" / "sets"


def rms(values):
    return np.sqrt((np.asarray(values) ** 2).mean())


def test_water_against_a_validation_frame():
    """The figures that ``dp test`` of DeePMD-kit 3.2.0 prints for it."""
    folder = DATA / "water_dft"
    kinds, names = np.loadtxt(folder / "type.raw", dtype=int), (folder / "type_map.raw").read_text().split()
    x, box, energy, force = (
        np.load(folder / "set.000" / f"{name}.npy")[0].astype(float) for name in ("coord", "box", "energy", "force")
    )
    potential = Potential(EXAMPLES / "water" / "water.dp", precision="double")
    atoms = ase.Atoms(np.array(names)[kinds], x.reshape(-1, 3), cell=box.reshape(3, 3), pbc=True)
    result = potential.evaluate(atoms)
    assert abs(result["energy"] - energy) == pytest.approx(5.527939e-02, abs=1e-6)
    assert rms(result["forces"].ravel() - force) == pytest.approx(4.689867e-02, abs=1e-7)
    assert np.abs(result["forces"].ravel() - force).mean() == pytest.approx(3.331499e-02, abs=1e-7)


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
