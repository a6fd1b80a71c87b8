"""Formulas of dpmd.parallel.geometry against counted points and brute-force enumeration."""

from itertools import product
from math import ceil, pi, prod

import numpy as np
import pytest

from dpmd.parallel import geometry

CELLS = {
    "cube": np.eye(3) * 10.0,
    "brick": np.diag([4.0, 9.0, 17.0]),
    "triclinic": np.array([[8.0, 0.0, 0.0], [2.5, 7.0, 0.0], [-1.5, 2.0, 9.0]]),
    "sharp": np.array([[10.0, 0.0, 0.0], [7.0, 6.0, 0.0], [5.0, 3.0, 5.0]]),
}
cells = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())


def sample_around(cell, margin, count=200_000, seed=1):
    """Random fractional points of the cell extended by ``margin`` (Å) on all faces, and the sampled volume."""
    reach = margin / geometry.heights(cell)
    points = np.random.default_rng(seed).uniform(-reach, 1 + reach, (count, 3))
    return points, geometry.volume(cell) * np.prod(1 + 2 * reach)


def distance_by_descent(edges, point):
    """Slow independent distance to the unit box: bounded least squares by scipy."""
    from scipy.optimize import lsq_linear

    result = lsq_linear(edges.T, point @ edges, bounds=(0, 1), tol=1e-14)
    return np.sqrt(2 * result.cost)


@cells
def test_heights_times_areas_are_the_volume(cell):
    np.testing.assert_allclose(geometry.heights(cell) * geometry.face_areas(cell), geometry.volume(cell))


@cells
def test_distance_to_box_agrees_with_bounded_least_squares(cell):
    points = np.random.default_rng(2).uniform(-1.5, 2.5, (60, 3))
    expected = [distance_by_descent(cell, p) for p in points]
    np.testing.assert_allclose(geometry.distance_to_box(cell, points), expected, atol=1e-5)


@cells
@pytest.mark.parametrize("cutoff", [1.0, 6.0, 12.0])
def test_culled_halo_volume_equals_counted_points(cell, cutoff):
    points, sampled = sample_around(cell, cutoff)
    near = geometry.distance_to_box(cell, points)
    share = ((near > 0) & (near < cutoff)).mean()
    error = 4 * sampled * np.sqrt(share / len(points))
    assert geometry.halo_volume(cell, cutoff, "culled") == pytest.approx(share * sampled, abs=error)


@cells
def test_halo_shapes_are_ordered_and_start_with_the_surface(cell):
    for cutoff in (0.5, 5.0, 11.0):
        volumes = {shape: geometry.halo_volume(cell, cutoff, shape) for shape in geometry.HALO_SHAPES}
        assert volumes["culled"] <= volumes["rectangular"]
        assert volumes["culled"] <= volumes["whole"]
    thin = geometry.halo_volume(cell, 1e-6, "rectangular") / 1e-6
    assert thin == pytest.approx(2 * geometry.face_areas(cell).sum(), rel=1e-5)
    assert geometry.halo_surface(cell, (1, 1, 1)) == pytest.approx(thin, rel=1e-5)


def test_cube_by_hand():
    edges, r = np.eye(3) * 10.0, 4.0
    assert geometry.halo_volume(edges, r, "rectangular") == pytest.approx(18**3 - 1000)
    assert geometry.halo_volume(edges, r, "culled") == pytest.approx(600 * r + 30 * pi * r**2 + 4 / 3 * pi * r**3)
    assert geometry.halo_volume(edges, r, "whole") == pytest.approx(26_000)


@cells
@pytest.mark.parametrize("cutoff", [3.0, 8.0, 14.0])
def test_neighbor_offsets_hold_every_box_that_contains_a_halo_point(cell, cutoff):
    points, _ = sample_around(cell, cutoff, count=60_000)
    near = geometry.distance_to_box(cell, points)
    seen = {tuple(o) for o in np.floor(points[(near > 0) & (near < cutoff)]).astype(int)} - {(0, 0, 0)}
    listed = {tuple(o) for o in geometry.neighbor_offsets(cell, cutoff)}
    assert seen <= listed
    full = {tuple(o) for o in geometry.neighbor_offsets(cell, cutoff, "rectangular")}
    assert listed <= full
    assert len(full) == prod(2 * n + 1 for n in geometry.shells(cell, cutoff)) - 1


def test_boxes_that_only_touch_the_halo_are_no_neighbors():
    assert len(geometry.neighbor_offsets(np.eye(3) * 5.0, 5.0)) == 26
    assert geometry.shells(np.eye(3) * 5.0, 10.0) == (2, 2, 2)
    assert len(geometry.neighbor_offsets(np.eye(3) * 5.0, 0.0)) == 0


def test_culling_drops_the_far_corners():
    # Boxes of 5 Å, cutoff 7 Å: (2, 2, 2) is sqrt(3) 5 = 8.66 Å away, (2, 2, 0) 7.07 Å, (2, 1, 1) 5 Å.
    offsets = np.abs(geometry.neighbor_offsets(np.eye(3) * 5.0, 7.0))
    assert (offsets.sum(1) <= 4).all()
    assert len(offsets) == 26 + 6 * 9


def test_neighbor_boxes_wrap_merge_images_and_respect_open_axes():
    offsets = geometry.neighbor_offsets(np.eye(3) * 10.0, 8.0)
    assert len(geometry.neighbor_boxes((4, 4, 4), (0, 0, 0), offsets)) == 26
    assert len(geometry.neighbor_boxes((2, 2, 2), (0, 1, 0), offsets)) == 7
    assert len(geometry.neighbor_boxes((1, 1, 1), (0, 0, 0), offsets)) == 0
    assert len(geometry.neighbor_boxes((4, 4, 4), (0, 0, 0), offsets, (False, True, True))) == 17
    assert len(geometry.neighbor_boxes((4, 4, 4), (0, 3, 0), offsets, (False, False, False))) == 7


@pytest.mark.parametrize("count", [1, 2, 12, 30, 97])
def test_factor_triples_are_complete(count):
    brute = {t for t in product(range(1, count + 1), repeat=2) if count % prod(t) == 0}
    assert set(geometry.factor_triples(count)) == {(*t, count // prod(t)) for t in brute}


@cells
@pytest.mark.parametrize("count", [1, 8, 12, 60])
@pytest.mark.parametrize("cutoff", [0.0, 6.0])
def test_chosen_grid_has_the_smallest_halo(cell, count, cutoff):
    grid = geometry.choose_grid(cell, count, cutoff)
    assert prod(grid) == count
    edges = geometry.box_edges(cell, grid)
    for other in geometry.factor_triples(count):
        rival = geometry.box_edges(cell, other)
        if cutoff:
            best, value = (geometry.halo_volume(e, cutoff, "rectangular") for e in (edges, rival))
        else:
            best, value = geometry.face_areas(edges).sum(), geometry.face_areas(rival).sum()
        assert best <= value * (1 + 1e-6)


def test_grid_of_a_slab_with_open_sides_avoids_useless_cuts():
    slab = np.diag([100.0, 100.0, 30.0])
    assert geometry.choose_grid(slab, 16) == (4, 4, 1)
    rod = np.diag([20.0, 20.0, 30.0])
    assert geometry.choose_grid(rod, 2, periodic=(True, True, False)) == (1, 1, 2)


@pytest.mark.parametrize("shape", ["culled", "rectangular"])
@pytest.mark.parametrize("cell", [CELLS["brick"] * 4, CELLS["triclinic"] * 4], ids=["brick", "triclinic"])
def test_node_exchange_agrees_with_counting_boxes_and_atoms(cell, shape):
    """Enumerate nodes and sampled atoms one by one, for a grid with wrap-around."""
    grid, cutoff = (3, 2, 1), 7.0
    edges = geometry.box_edges(cell, grid)
    points, sampled = sample_around(edges, cutoff, count=40_000, seed=3)
    if shape == "culled":
        inside = geometry.distance_to_box(edges, points) < cutoff
    else:
        inside = np.ones(len(points), dtype=bool)
    owners = np.floor(points[inside]).astype(int)
    foreign = (owners % grid != 0).any(1)
    unit = sampled / len(points)
    counted = geometry.node_exchange(cell, grid, cutoff, shape)
    assert counted.volume == pytest.approx(foreign.sum() * unit, rel=0.03)
    assert counted.volume_within == pytest.approx((~foreign & (owners != 0).any(1)).sum() * unit, rel=0.06)
    assert counted.messages == len(np.unique(owners[foreign] % grid, axis=0))


@pytest.mark.parametrize("shape", geometry.HALO_SHAPES)
def test_all_shapes_conserve_the_halo_volume(shape):
    cell, node_grid, cutoff = np.diag([40.0, 30.0, 50.0]), (4, 3, 5), 8.0
    node = geometry.node_exchange(cell, node_grid, cutoff, shape)
    halo = geometry.halo_volume(geometry.box_edges(cell, node_grid), cutoff, shape)
    assert node.volume + node.volume_within == pytest.approx(halo)


def test_staged_exchange_by_simulation():
    """Forward 1-D intervals of ghosts swap by swap and count messages and volume."""
    lengths, cutoff = np.array([5.0, 12.0, 9.0]), 8.0
    node_grid, rank_grid = (3, 4, 5), (2, 2, 1)
    cell = np.diag(lengths * np.array(node_grid) * rank_grid)
    extent, volume, swaps, rounds = lengths.copy(), 0.0, 0, 0
    for d in range(3):
        area = np.prod(np.delete(extent, d))
        for shell in range(ceil(cutoff / lengths[d])):
            thickness = min(lengths[d], cutoff - shell * lengths[d])
            volume += 2 * thickness * area
            swaps += 2
            rounds += 1
        extent[d] += 2 * cutoff
    staged = geometry.staged_exchange(cell, node_grid, rank_grid, cutoff)
    assert staged.messages + staged.messages_within == pytest.approx(4 * swaps)
    assert staged.volume + staged.volume_within == pytest.approx(4 * volume)
    assert staged.rounds == rounds
    # Along the third axis each rank borders another node, along the others every second one.
    assert staged.messages == pytest.approx(4 * (2 * 2 / 2 + 2 * 1 / 2 + 2 * 1))


def test_one_node_sends_nothing():
    cell = np.eye(3) * 12.0
    one = (1, 1, 1)
    for exchange in (geometry.node_exchange(cell, one, 8.0), geometry.staged_exchange(cell, one, one, 8.0)):
        assert exchange.messages == 0
        assert exchange.volume == 0
        assert exchange.rounds == 0
        assert exchange.volume_within > 0


def test_published_fugaku_set_up():
    """540,000 copper atoms on 20 x 30 x 20 nodes, 4 ranks each: the node-based scheme's savings."""
    cell = np.diag([20 * 10.79, 15 * 10.79, 20 * 10.79])
    node_grid, rank_grid, cutoff = (20, 30, 20), (2, 1, 2), 10.0
    assert geometry.choose_nested_grid(cell, 12_000, 4)[1] == rank_grid
    for shape in ("culled", "rectangular"):
        node = geometry.node_exchange(cell, node_grid, cutoff, shape)
        rank_box = geometry.box_edges(cell, np.multiply(node_grid, rank_grid))
        assert node.messages <= 44
        assert node.volume / (4 * geometry.halo_volume(rank_box, cutoff, shape)) < 0.45


@pytest.mark.parametrize(
    "call",
    [
        lambda: geometry.check_cell([[1, 0, 0], [2, 0, 0], [0, 0, 1]]),
        lambda: geometry.check_cell(np.ones((2, 3))),
        lambda: geometry.check_grid((0, 1, 1)),
        lambda: geometry.check_grid((1.5, 1, 1)),
        lambda: geometry.factor_triples(-4),
        lambda: geometry.halo_volume(np.eye(3), -1.0),
        lambda: geometry.halo_volume(np.eye(3), 1.0, "round"),
    ],
)
def test_impossible_input_is_refused(call):
    with pytest.raises(ValueError, match=r"."):
        call()
