"""The serial domain: ghosts, wrapping, order, and when lists are built anew."""

import numpy as np
import pytest

from dpmd.parallel import SerialDomain
from dpmd.parallel.domain import complete_cell
from dpmd.parallel.geometry import heights
from dpmd.system import System

CELLS = {
    "cube": np.eye(3) * 7.0,
    "tilt of exactly one half": np.array([[7.0, 0, 0], [3.5, 7, 0], [-3.5, 3.5, 7]]),
    "tilt beyond one half": np.array([[7.0, 0, 0], [12.0, 7, 0], [-9, 8, 7]]),
    "needle": np.array([[2.1, 0, 0], [0, 30, 0], [0, 0, 30]]),
    "left-handed": np.array([[0, 7.0, 0], [7, 0, 0], [0.4, 0.3, 8]]),
}
DIRECTIONS = {"ppp": (1, 1, 1), "ppo": (1, 1, 0), "poo": (1, 0, 0), "opo": (0, 1, 0), "ooo": (0, 0, 0)}


def make_system(cell, periodic, n=40, seed=2):
    rng = np.random.default_rng(seed)
    return System(
        ids=rng.permutation(n) + 1, types=rng.integers(0, 2, n).astype(np.int32), masses=np.ones(n),
        positions=(rng.random((n, 3)) * 1.6 - 0.3) @ cell, velocities=np.zeros((n, 3)), cell=cell.copy(),
        periodic=np.array(periodic, bool), type_names=("A", "B"),
    )  # fmt: skip


def pairs_by_brute_force(positions, cell, periodic, cutoff):
    """Sorted distances below the cutoff from each atom to all images of all atoms."""
    reach = np.where(periodic, np.ceil(cutoff / heights(cell)).astype(int) + 2, 0)
    shifts = np.array(
        [[a, b, c] for a in range(-reach[0], reach[0] + 1) for b in range(-reach[1], reach[1] + 1)
         for c in range(-reach[2], reach[2] + 1)]
    )  # fmt: skip
    images = (positions[None] + (shifts @ cell)[:, None]).reshape(-1, 3)
    distances = np.linalg.norm(images[None] - positions[:, None], axis=-1)
    return [np.sort(row[(row < cutoff) & (row > 0)]) for row in distances]


@pytest.mark.parametrize("directions", DIRECTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_neighbours_against_all_images(cell, directions):
    cutoff, periodic = 4.0, np.array(DIRECTIONS[directions], bool)
    system = make_system(CELLS[cell], periodic)
    original = system.positions.copy()[np.argsort(system.ids)]
    domain = SerialDomain(cutoff, 0.8, 2)
    domain.update(system)
    assert np.allclose(system.unwrapped_positions[np.argsort(system.ids)], original, atol=1e-12)
    fractions = system.positions @ np.linalg.inv(system.cell)
    assert ((fractions[:, periodic] >= 0) & (fractions[:, periodic] < 1)).all()
    expected = pairs_by_brute_force(system.positions, system.cell, periodic, cutoff)
    for i in range(len(system)):
        row = domain.neighbors.indices[domain.neighbors.first[i] :][: domain.neighbors.count[i]]
        found = np.linalg.norm(domain.positions[row] - domain.positions[i], axis=1)
        found = np.sort(found[found < cutoff])
        assert len(found) == len(expected[i]), f"{cell}, {directions}: atom {system.ids[i]}"
        assert np.abs(found - expected[i]).max(initial=0) < 1e-12


def test_order_depends_on_positions_and_ids_only():
    one, two = make_system(CELLS["cube"], (1, 1, 1)), make_system(CELLS["cube"], (1, 1, 1))
    two.permute(np.random.default_rng(0).permutation(len(two)))
    for system in (one, two):
        SerialDomain(4.0, 1.0, 2).rebuild(system)
    assert np.array_equal(one.ids, two.ids)
    before = one.positions.copy()
    SerialDomain(4.0, 1.0, 2).rebuild(one)  # wrapping and sorting twice is the same as once
    assert np.array_equal(one.positions, before)


def test_wrapping_an_atom_just_below_the_cell():
    system = make_system(CELLS["cube"], (1, 1, 1), n=2)
    system.positions[:] = [[-1e-18, 3, 3], [7.0, 1, 1]]
    domain = SerialDomain(3.0, 0.5, 2)
    domain.rebuild(system)
    assert ((system.positions >= 0) & (system.positions < 7)).all()


def test_lists_are_rebuilt_when_the_skin_is_used_up():
    system = make_system(CELLS["cube"], (1, 1, 1))
    domain = SerialDomain(3.0, 1.0, 2)
    assert domain.update(system)
    system.positions[3] += [0.3, 0.3, 0.0]  # 2 x 0.42 < 1
    assert not domain.update(system)
    system.positions[3] += [0.1, 0.1, 0.0]  # 2 x 0.57 > 1
    assert domain.update(system)
    assert domain.rebuilds == 2


def test_lists_are_rebuilt_when_the_cell_changes():
    system = make_system(CELLS["cube"], (1, 1, 1))
    domain = SerialDomain(3.0, 0.5, 2)
    domain.update(system)
    for factor, expected in ((1.0005, False), (1.2, True)):
        system.positions *= factor
        system.cell *= factor
        assert domain.update(system) == expected


def test_ghosts_follow_and_their_forces_come_home():
    system = make_system(CELLS["tilt beyond one half"], (1, 1, 1))
    domain = SerialDomain(3.0, 1.0, 2)
    domain.update(system)
    system.positions += 0.01
    domain.update(system)
    n = len(system)
    shift = domain.positions[n:] - system.positions[domain.owners]
    assert np.allclose(shift, domain.shifts @ system.cell, atol=1e-12)
    folded = domain.fold(np.ones((n + domain.n_ghosts, 3)))
    assert np.array_equal(folded[:, 0], 1 + np.bincount(domain.owners, minlength=n))


def test_motion_that_is_not_a_number_forces_a_rebuild_not_a_hang():
    system = make_system(CELLS["cube"], (0, 0, 0))
    domain = SerialDomain(3.0, 1.0, 2)
    domain.update(system)
    system.positions[0, 0] = np.nan
    assert domain._moved(system) == np.inf


def test_missing_and_singular_cells():
    cell = complete_cell([[4, 1, 0], [0, 0, 0], [0, 0, 0]], (True, False, False))
    assert abs(np.linalg.det(cell)) > 1
    with pytest.raises(ValueError, match="zero but periodic"):
        complete_cell([[4, 0, 0], [0, 0, 0], [0, 0, 5]], (True, True, True))
    with pytest.raises(ValueError, match="dependent"):
        complete_cell([[4, 0, 0], [8, 1e-9, 0], [0, 0, 5]], (True, True, True))
