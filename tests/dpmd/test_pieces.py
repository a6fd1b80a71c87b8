"""Pieces that several thermostats and barostats are made of."""

import numpy as np
import pytest

from dpmd.barostats import flip_tilts
from dpmd.ensembles import rescaling_factor
from dpmd.system import System


@pytest.mark.parametrize("freedom", [1, 2, 5, 300])
def test_moments_of_the_rescaling_factor(freedom):
    """K after a step: mean c K + (1 - c) f kT / 2, variance 2 c (1 - c) K kT + (1 - c)^2 f (kT)^2 / 2."""
    kinetic, kt, c = 3.0, 0.9, 0.6
    generator = np.random.default_rng(5)
    after = np.array([kinetic * rescaling_factor(kinetic, freedom, kt, c, generator) ** 2 for _ in range(20000)])
    variance = 2 * c * (1 - c) * kinetic * kt + (1 - c) ** 2 * freedom * kt**2 / 2
    assert after.mean() == pytest.approx(c * kinetic + (1 - c) * freedom * kt / 2, abs=4 * (variance / 20000) ** 0.5)
    assert after.var() == pytest.approx(variance, rel=0.06)


def test_unwrapped_positions_stay_when_tilts_flip():
    random = np.random.default_rng(2)
    cell = np.array([[10.0, 0, 0], [7.0, 9.0, 0], [-6.5, 6.0, 8.0]])
    system = System(
        ids=np.arange(1, 6), types=np.zeros(5, np.int32), masses=np.ones(5), positions=random.random((5, 3)) @ cell,
        velocities=np.zeros((5, 3)), cell=cell.copy(), periodic=np.ones(3, bool), type_names=("X",),
        images=random.integers(-3, 4, (5, 3)).astype(np.int32),
    )  # fmt: skip
    before = system.unwrapped_positions
    flip_tilts(system)
    assert np.allclose(system.unwrapped_positions, before, atol=1e-12)
    assert (np.abs(np.array([system.cell[1, 0], system.cell[2, 0], system.cell[2, 1]])) < [5, 5, 4.5]).all()
    # the same lattice
    numbers = system.cell @ np.linalg.inv(cell)
    assert np.allclose(numbers, np.round(numbers), atol=1e-12)
    assert np.linalg.det(numbers) == pytest.approx(1)
