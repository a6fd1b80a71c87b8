"""Model deviation: formulas, spelled out atom by atom."""

import numpy as np
import pytest

from dpmd import committee

MODELS, FRAMES, N = 4, 2, 5


@pytest.fixture
def values():
    random = np.random.default_rng(0)
    return (
        random.normal(size=(MODELS, FRAMES)),
        random.normal(size=(MODELS, FRAMES, N, 3)),
        random.normal(size=(MODELS, FRAMES, 3, 3)),
    )


def test_forces(values):
    _, forces, _ = values
    found, relative = committee.force_deviation(forces), committee.force_deviation(forces, 0.3)
    for k in range(FRAMES):
        for i in range(N):
            mean = sum(forces[m, k, i] for m in range(MODELS)) / MODELS
            spread = sum(((forces[m, k, i] - mean) ** 2).sum() for m in range(MODELS)) / MODELS
            assert found[k, i] == pytest.approx(spread**0.5)
            assert relative[k, i] == pytest.approx(spread**0.5 / (np.linalg.norm(mean) + 0.3))


def test_virials(values):
    _, _, virials = values
    found = committee.virial_deviation(virials, N)
    lammps = committee.virial_deviation(virials, N, 0.3)
    python = committee.virial_deviation(virials, np.full(FRAMES, N), 0.3, componentwise=False)
    mean = virials.mean(axis=0) / N
    for k in range(FRAMES):
        for a in range(3):
            for b in range(3):
                spread = (sum((virials[m, k, a, b] / N - mean[k, a, b]) ** 2 for m in range(MODELS)) / MODELS) ** 0.5
                assert found[k, a, b] == pytest.approx(spread)
                assert lammps[k, a, b] == pytest.approx(spread / (abs(mean[k, a, b]) + 0.3))
                assert python[k, a, b] == pytest.approx(spread / (np.sqrt((mean[k] ** 2).sum()) + 0.3))


def test_energies_and_columns(values):
    energies, forces, virials = values
    energy = committee.energy_deviation(energies, N)
    np.testing.assert_allclose(energy, energies.std(axis=0) / N)
    np.testing.assert_allclose(
        committee.energy_deviation(energies[:1], N, reference=energies[1]), np.abs(energies[0] - energies[1]) / N
    )
    virial, force = committee.virial_deviation(virials, N), committee.force_deviation(forces)
    columns = committee.summary(virial, force, energy)
    assert columns.shape == (FRAMES, len(committee.COLUMNS))
    expected = [
        virial[1].max(), virial[1].min(), ((virial[1] ** 2).sum() / 9) ** 0.5, force[1].max(), force[1].min(),
        force[1].mean(), energy[1],
    ]  # fmt: skip
    np.testing.assert_allclose(columns[1], expected)
