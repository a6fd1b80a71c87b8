"""Boxes, halos and shares, without MPI."""

import importlib.util
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dpmd.parallel import geometry
from dpmd.parallel.partition import Partition, balanced_boundaries, equal_boundaries, histograms, share_of_rank

CELLS = {
    "cube": np.eye(3) * 12.0,
    "skewed": np.array([[9.0, 0, 0], [4, 10, 0], [-3, 3, 11]]),
    "thin": np.diag([3.0, 8.0, 30.0]),
}
GRIDS = [(1, 1, 1), (1, 2, 3), (3, 1, 2)]
DIRECTIONS = [(1, 1, 1), (1, 1, 0), (0, 0, 0)]


def uneven(grid):
    """Boundaries that are not equally spaced."""
    return tuple(np.linspace(0, 1, n + 1) ** 1.4 for n in grid)


@pytest.mark.parametrize("periodic", DIRECTIONS)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("cell", CELLS)
def test_every_box_gets_the_images_that_are_near_it(cell, grid, periodic):
    """Against all images of all atoms, by distance to the box."""
    cell, reach = CELLS[cell], 4.0
    partition = Partition(cell, grid, np.array(periodic, bool), uneven(grid))
    fractions = np.random.default_rng(1).random((80, 3))
    owners = partition.owners(fractions)
    got = {box: set() for box in range(partition.n_boxes)}
    for box in range(partition.n_boxes):
        mine = np.flatnonzero(owners == box)
        for other, shifts in partition.neighbors(box, reach):
            assert box in dict(partition.neighbors(other, reach))
            atoms, rows = partition.halo(fractions[mine], other, shifts, reach)
            got[other] |= {(mine[a], *row) for a, row in zip(atoms, rows, strict=True)}
    most = [2 if p else 0 for p in periodic]
    for box in got:
        lower, upper = partition.limits(box)
        wanted = set()
        for shift in product(*(range(-m, m + 1) for m in most)):
            near = geometry.distance_to_box(cell, fractions + shift, lower, upper) < reach
            near &= (owners != box) | any(shift)
            wanted |= {(atom, *shift) for atom in np.flatnonzero(near)}
        assert wanted <= got[box]
        # what is sent beyond that lies next to a face of a skewed box
        assert len(got[box]) <= 1.2 * len(wanted) + 5


@pytest.mark.parametrize("n", [0, 1, 3, 10, 97])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_shares_are_equal_and_complete_whatever_the_order(n, ranks):
    rng = np.random.default_rng(n)
    positions, ids = rng.random((n, 3)) * [5, 20, 1], rng.permutation(n) + 1
    shares = [share_of_rank(positions, ids, None, ranks, rank) for rank in range(ranks)]
    assert sorted(np.concatenate(shares)) == list(range(n))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    order = rng.permutation(n)
    again = [share_of_rank(positions[order], ids[order], None, ranks, rank) for rank in range(ranks)]
    for one, two in zip(shares, again, strict=True):
        assert set(ids[one]) == set(ids[order][two])


def test_shares_of_equal_work():
    rng = np.random.default_rng(3)
    positions, work = rng.random((400, 3)), rng.random(400) ** 4
    shares = [share_of_rank(positions, np.arange(400), work, 5, rank) for rank in range(5)]
    assert sorted(np.concatenate(shares)) == list(range(400))
    loads = [work[share].sum() for share in shares]
    assert max(loads) < 1.1 * np.mean(loads)


def test_boundaries_follow_the_atoms():
    """A slab with vacuum: equal boxes are uneven in atoms, moved ones are not."""
    fractions = np.random.default_rng(4).random((3000, 3)) * [1, 1, 0.3]
    grid, low, high = (1, 2, 4), np.zeros(3), np.ones(3)
    loads = []
    for boundaries in (
        equal_boundaries(grid),
        balanced_boundaries(grid, histograms(fractions, low, high), low, high),
    ):
        partition = Partition(np.eye(3) * 10, grid, np.ones(3, bool), boundaries)
        loads.append(np.bincount(partition.owners(fractions), minlength=8))
        assert all((np.diff(b) > 0).all() for b in boundaries)
    assert loads[0].max() > 1000
    assert loads[1].max() < 1.15 * 3000 / 8


def test_savings_at_the_published_set_up(capsys):
    """The study of examples/benchmarks on three nodes: >= 75 % fewer messages, >= 55 % fewer bytes."""
    path = Path(__file__).resolve().parents[2] / "examples" / "benchmarks" / "decomposition.py"
    spec = importlib.util.spec_from_file_location("decomposition", path)
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    savings = study.published(study.NODES, 3, *study.PUBLISHED_GRIDS)
    for shape in ("culled", "rectangular"):
        assert savings[shape][0] > 0.75
        assert savings[shape][1] > 0.55
    assert "within a node they differ by 1 at most" in capsys.readouterr().out
