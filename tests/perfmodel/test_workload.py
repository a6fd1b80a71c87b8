"""Counts against independent sums, hand calculations and published values."""

from dataclasses import replace

import numpy as np
import pytest

from dpmd.perfmodel import NAMED_SIZES, NAMED_SYSTEMS, PerformanceModelError, find_sizes, find_system
from dpmd.perfmodel.published import operation_counts
from dpmd.perfmodel.workload import ENGINES, FLOPS_PER_FUNCTION, count

COPPER, WATER = NAMED_SYSTEMS["copper"], NAMED_SYSTEMS["water"]
TABLE = NAMED_SIZES["copper-32-64-128"]


def operator(workload, name):
    return next(o for o in workload.operators if o.name == name)


def test_table_counts_every_multiplication_of_a_small_kernel():
    """Run the kernel on numbers that count operations, forward and backward, for one neighbour."""

    class Counter(float):
        total = 0

        def _count(self, other):
            Counter.total += 1
            return Counter(1.0)

        __add__ = __mul__ = __radd__ = __rmul__ = _count

    one, width = Counter(1.0), 3
    for _ in range(width):
        value = one
        for _ in range(5):
            value = value * one + one  # Horner
        for _ in range(4):
            one * value + one  # T_cm += R_c G_m
    forward = Counter.total
    Counter.total = 0
    for _ in range(width):
        value, slope = one, None
        for power in range(5):
            slope = slope * one + value if power else value
            value = value * one + one
        dot = one
        for c in range(4):
            one * value + one  # dE/dR_c
            dot = dot * one if c == 0 else dot * one + one
        dot * one + one  # times the slope, summed over m
    backward = Counter.total
    sizes = replace(TABLE, embedding=(1, width))
    found = operator(count(sizes, replace(COPPER, neighbors=1)), "embedding table").flops
    assert found == width * (18 + 36)
    assert forward == width * 18
    # The first derivative step is free and one sum starts without an addition: at most 10 % fewer.
    assert 0.9 * width * 36 <= backward <= width * 36


def test_fitting_and_descriptor_by_hand():
    workload = count(TABLE, COPPER, "double")
    assert operator(workload, "fitting, first layer").flops == 2 * 2 * 2048 * 240
    others = 2 * 2 * (240 * 240 + 240 * 240 + 240) + 720 * FLOPS_PER_FUNCTION
    assert operator(workload, "fitting, other layers").flops == others
    assert operator(workload, "descriptor").flops == 24 * 128 * 16


def test_published_tabulated_counts_within_a_quarter():
    points = operation_counts()
    tabulated = [p for p in points if "tabulated" in p.what]
    assert len(tabulated) == 2
    for point in tabulated:
        assert abs(point.error) < 0.25
        assert "32-64-128" in point.note
        assert "slots" in point.note
    assert len([p for p in points if "without tables" in p.what]) == 3


def test_tables_save_about_what_the_literature_says():
    """Embedding network over table: 5.7 for the products by the published formula, (1 + 10 d1) / 56 with d1 = 32."""
    table = count(TABLE, COPPER, engine="deepmd-kit-padded")
    network = count(replace(TABLE, tabulated=False), COPPER, engine="deepmd-kit-padded")
    ratio = operator(network, "embedding network").flops / operator(table, "embedding table").flops
    assert 5 < ratio < 9


def test_padding_and_low_rank_change_only_the_embedding():
    plain = count(TABLE, COPPER, engine="deepmd-kit")
    padded = count(TABLE, COPPER, engine="deepmd-kit-padded")
    ratio = operator(padded, "embedding table").flops / operator(plain, "embedding table").flops
    assert ratio == pytest.approx(512 / COPPER.neighbors_within(8.0))
    assert operator(padded, "descriptor") == operator(plain, "descriptor")
    low = count(replace(TABLE, rank=32), COPPER)
    assert operator(low, "embedding table").flops == pytest.approx(operator(plain, "embedding table").flops / 4)
    near = count(replace(TABLE, rank=32, direct_neighbors=1e9), COPPER)
    assert operator(near, "embedding table").flops == pytest.approx(operator(plain, "embedding table").flops)


def test_bytes_follow_the_precision():
    double, mixed = (count(TABLE, COPPER, p, "deepmd-kit") for p in ("double", "mixed"))
    assert double.table_bytes == 2 * mixed.table_bytes == 1360 * 128 * 6 * 8
    assert double.atom_bytes > mixed.atom_bytes
    water = count(NAMED_SIZES["water-32-64-128"], WATER, "double")
    assert water.table_bytes == 4 * double.table_bytes


def test_memory_without_tables_is_dominated_by_the_embedding():
    network = replace(NAMED_SIZES["copper-32-64-128"], tabulated=False)
    workload = count(network, COPPER, "double", "deepmd-kit")
    assert workload.atom_bytes > 512 * 128 * 8  # one G, 2.4 GB for 4,600 atoms as published
    assert pytest.approx(2.4e9, rel=0.01) == 4600 * 512 * 128 * 8


def test_neighbors_from_density_match_a_crystal_and_measured_ones_win():
    from ase.build import bulk
    from ase.neighborlist import neighbor_list

    atoms = bulk("Cu", "fcc", a=10.9026 / 3, cubic=True)
    found = len(neighbor_list("i", atoms, 8.0)) / len(atoms)
    assert COPPER.neighbors_within(8.0) == pytest.approx(found, rel=0.03)
    assert count(TABLE, replace(COPPER, neighbors=100)).neighbors == 100
    assert count(TABLE, replace(COPPER, neighbors=9999)).neighbors == 512


def test_find_sizes(tmp_path):
    assert find_sizes("copper-25-50-100").sel == (500,)
    assert find_sizes("water-10-20").embedding == (10, 20)
    changed = find_sizes("copper-32-64-128:tabulated=false,rank=24")
    assert not changed.tabulated
    assert changed.rank == 24
    path = tmp_path / "sizes.json"
    path.write_text('{"cutoff": 5, "sel": [20, 30], "embedding": [8, 16], "axis": 4, "fitting": [32, 32]}')
    assert find_sizes(str(path)).n_tables == 4
    assert find_sizes(find_sizes("copper-32-64-128")) is TABLE


def test_find_sizes_of_a_loaded_model():
    models = pytest.importorskip("dpmd.models", exc_type=ImportError)

    def network(n_in, *widths):
        layers = []
        for n_out in widths:
            layers.append(models.DenseLayer(np.zeros((n_in, n_out)), np.zeros(n_out), None, "tanh"))
            n_in = n_out
        return models.Network(tuple(layers))

    embedding = models.Embedding(network(1, 25, 50, 100))
    descriptor = models.SmoothDescriptor(
        6.0, 0.5, 0.5, 6.0, 5.5, (46, 92), 16, 138, np.zeros(2), np.ones(2), np.ones(2),
        ((embedding, embedding), (embedding, embedding)), np.zeros((2, 2)), True,
    )  # fmt: skip
    fitting = models.EnergyFitting((network(1600, 240, 240, 240, 1),) * 2, np.zeros(2), np.zeros(2, bool))
    model = models.DeepPotentialModel(
        ("O", "H"), descriptor, fitting, "float64", models.ModelSource("water.pb", "test")
    )
    sizes = find_sizes(model)
    assert (sizes.name, sizes.cutoff, sizes.sel) == ("water", 6.0, (46, 92))
    assert (sizes.embedding, sizes.fitting, sizes.n_tables) == ((25, 50, 100), (240, 240, 240), 2)


def test_find_system(tmp_path):
    assert find_system("copper", 1_000_000).atoms == 1_000_000
    path = tmp_path / "box.toml"
    path.write_text('atoms = 800\ncell = [[10, 0, 0], [0, 20, 0], [5, 0, 40]]\ntimestep_fs = 2.0\nensemble = "npt"\n')
    system = find_system(str(path))
    assert system.density == pytest.approx(0.1)
    assert system.reductions == 4
    bigger = find_system(str(path), 6400)
    np.testing.assert_allclose(bigger.cell_matrix, 2 * system.cell_matrix)
    (tmp_path / "like.toml").write_text('like = "water"\natoms = 300\n')
    assert find_system(str(tmp_path / "like.toml")).ensemble == "nvt"
    from ase.build import bulk
    from ase.io import write

    write(tmp_path / "cu.cif", bulk("Cu", cubic=True))
    assert find_system(str(tmp_path / "cu.cif")).atoms == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find_sizes("coper-32-64-128"), "did you mean"),
        (lambda: find_sizes("none.pb"), "no model file"),
        (lambda: find_sizes(""), "a model is needed"),
        (lambda: find_sizes({"cutoff": 6.0}), "lack axis, embedding, fitting, sel"),
        (lambda: find_sizes("copper-32-64-128:rnk=3"), "did you mean rank"),
        (lambda: replace(TABLE, fitting=()), "no usable sizes"),
        (lambda: find_system("watr"), "did you mean water"),
        (lambda: find_system("copper", -5), "at least 1"),
        (lambda: find_system("missing.data"), "no file"),
        (lambda: replace(COPPER, density=0.0), "positive"),
        (lambda: replace(COPPER, ensemble="nph"), "unknown ensemble"),
        (lambda: count(TABLE, COPPER, "single"), "unknown precision"),
        (lambda: count(TABLE, COPPER, engine="lammps"), "unknown engine"),
        (lambda: count(TABLE, COPPER, skin=-1), "skin"),
    ],
)
def test_impossible_input(call, message):
    with pytest.raises(PerformanceModelError, match=message):
        call()


def test_engines_are_described():
    assert all(e.title and e.decomposition in ("rank", "node") for e in ENGINES.values())
