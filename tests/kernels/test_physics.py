"""What must hold whatever the model: derivatives, symmetries, size consistency, smoothness."""

from dataclasses import replace

import numpy as np
import pytest

from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.cpu.operators import Tiling
from dpmd.kernels.neighbors import NeighborListBuilder
from dpmd.kernels.reference import ReferenceOperators
from dpmd.models import load
from dpmd.models.tables import tabulate

CELLS = {
    "cube": np.eye(3) * 6.2,
    "tilt of one half": np.array([[6.2, 0, 0], [3.1, 6.0, 0], [-3.1, 3.0, 6.4]]),
    "tilt beyond one half": np.array([[6.2, 0, 0], [9.5, 6.0, 0], [-7.7, 8.0, 6.4]]),
    "left-handed": np.array([[0, 6.2, 0], [6.0, 0.4, 0], [0.3, -0.2, 6.3]]),
    "flat": np.array([[15.0, 0, 0], [0, 15.0, 0], [0, 0, 2.6]]),
}


def molecules(cell, seed=3):
    """Eight water molecules on a jittered lattice of the cell, or as many as fit."""
    rng = np.random.default_rng(seed)
    shape = [max(1, round(length / 3.1)) for length in np.linalg.norm(cell, axis=1)]
    shape = [min(s, 3) for s in shape]
    positions, types = [], []
    molecule = np.array([[0, 0, 0], [0.757, 0.586, 0], [-0.757, 0.586, 0]])
    for n in np.ndindex(*shape):
        q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        centre = (np.array(n) + 0.5) / shape @ cell
        positions.append(molecule @ q + centre + rng.normal(0, 0.05, (3, 3)))
        types += [0, 1, 1]
    return np.concatenate(positions), np.array(types)


@pytest.fixture(scope="module", params=["reference", "cpu tables", "cpu exact"])
def operators(request, find_model):
    model = load(find_model("water_md0.dp"))
    if request.param == "reference":
        return ReferenceOperators(model)
    return CpuOperators(tabulate(model) if "tables" in request.param else model)


@pytest.mark.parametrize("name", CELLS)
def test_forces_and_virial_are_derivatives_of_the_energy(operators, evaluate, name):
    cell = CELLS[name]
    positions, types = molecules(cell)
    rng = np.random.default_rng(0)

    def energy(x, box):
        return evaluate(operators, {"coord": x, "box": box, "atype": types}, skin=0.0)["energy"]

    result = evaluate(operators, {"coord": positions, "box": cell, "atype": types})
    step = 1e-4
    direction = rng.normal(size=positions.shape)
    slope = (energy(positions + step * direction, cell) - energy(positions - step * direction, cell)) / (2 * step)
    assert slope == pytest.approx(-(result["forces"] * direction).sum(), abs=2e-6)
    assert np.abs(result["forces"].sum(axis=0)).max() < 1e-10

    for a, b in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (2, 0)):
        strain = np.zeros((3, 3))
        strain[a, b] = step
        plus, minus = np.eye(3) + strain, np.eye(3) - strain
        slope = (energy(positions @ plus, cell @ plus) - energy(positions @ minus, cell @ minus)) / (2 * step)
        assert slope == pytest.approx(-result["virial"][a, b], abs=2e-6), (name, a, b)
    assert np.allclose(result["virials"].sum(axis=0), result["virial"], atol=1e-10)
    assert result["energies"].sum() == pytest.approx(result["energy"], rel=1e-13)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("copies", [(2, 1, 1), (1, 2, 3)])
def test_energy_per_atom_does_not_depend_on_replication(operators, evaluate, name, copies):
    cell = CELLS[name]
    positions, types = molecules(cell)
    one = evaluate(operators, {"coord": positions, "box": cell, "atype": types})
    shifts = np.array(list(np.ndindex(*copies))) @ cell
    many = evaluate(
        operators,
        {
            "coord": (positions[None] + shifts[:, None]).reshape(-1, 3),
            "box": cell * np.array(copies)[:, None],
            "atype": np.tile(types, len(shifts)),
        },
    )
    assert many["energy"] / len(shifts) == pytest.approx(one["energy"], rel=1e-13)
    assert np.abs(many["forces"] - np.tile(one["forces"], (len(shifts), 1))).max() < 1e-11
    assert np.abs(many["virial"] / len(shifts) - one["virial"]).max() < 1e-10


def test_rotation_translation_and_order_change_nothing(operators, evaluate):
    cell = CELLS["tilt beyond one half"]
    positions, types = molecules(cell)
    one = evaluate(operators, {"coord": positions, "box": cell, "atype": types})
    rng = np.random.default_rng(1)
    q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    order = rng.permutation(len(types))
    moved = (positions + [3.3, -7.0, 100.0] + rng.integers(-2, 3, (len(types), 3)) @ cell) @ q
    two = evaluate(operators, {"coord": moved[order], "box": cell @ q, "atype": types[order]})
    assert two["energy"] == pytest.approx(one["energy"], rel=1e-13)
    assert np.abs(two["forces"] - one["forces"][order] @ q).max() < 1e-10
    assert np.abs(two["virial"] - q.T @ one["virial"] @ q).max() < 1e-10


def test_energy_is_continuous_where_a_neighbour_crosses_the_cutoff(operators, evaluate):
    """The empty slots' contribution takes over exactly what a neighbour at the cutoff gives."""
    cutoff = operators.model.cutoff
    energies = []
    for r in (cutoff - 1e-7, cutoff + 1e-7):
        arrays = {"coord": np.array([[0, 0, 0], [r, 0, 0]]), "box": np.zeros((0, 3)), "atype": np.array([0, 1])}
        energies.append(evaluate(operators, arrays)["energy"])
    assert energies[0] == pytest.approx(energies[1], abs=1e-11)


def test_skin_changes_nothing(operators, evaluate):
    positions, types = molecules(CELLS["cube"])
    arrays = {"coord": positions, "box": CELLS["cube"], "atype": types}
    one, two = evaluate(operators, arrays, skin=0.0), evaluate(operators, arrays, skin=2.5)
    assert np.abs(one["forces"] - two["forces"]).max() < 1e-12


@pytest.mark.parametrize("shared", [False, True])
def test_more_neighbours_than_sel(find_model, evaluate, shared):
    """The nearest are kept by the rule of the file's origin, and the atoms concerned are counted."""
    model = load(find_model("water_md0.dp"))
    descriptor = replace(model.descriptor, sel=(9, 14), shared_selection=shared)
    model = replace(model, descriptor=descriptor)
    positions, types = molecules(CELLS["cube"])
    arrays = {"coord": positions, "box": CELLS["cube"], "atype": types}
    reference = evaluate(ReferenceOperators(model), arrays)
    assert 0 < reference["overflowed"] <= len(types)
    # by hand, for one atom: distances to all images, the nearest of each type
    fast = evaluate(CpuOperators(tabulate(model)), arrays)
    assert fast["overflowed"] == reference["overflowed"]
    assert np.abs(fast["forces"] - reference["forces"]).max() < 1e-7
    assert fast["energy"] == pytest.approx(reference["energy"], abs=1e-8)
    full = evaluate(ReferenceOperators(load(find_model("water_md0.dp"))), arrays)
    assert full["overflowed"] == 0
    assert abs(full["energy"] - reference["energy"]) > 1e-4


def test_overflow_rule_by_hand(find_model, evaluate):
    """One oxygen with three hydrogens and sel 2: as if the farthest were absent for the oxygen."""
    model = load(find_model("water_md0.dp"))
    few = replace(model, descriptor=replace(model.descriptor, sel=(46, 2)))
    h = np.array([[1.0, 0, 0], [0, 1.1, 0], [0, 0, 1.5]])
    with_three = {"coord": np.vstack([[0, 0, 0], h]), "box": np.zeros((0, 3)), "atype": np.array([0, 1, 1, 1])}
    with_two = {"coord": np.vstack([[0, 0, 0], h[:2]]), "box": np.zeros((0, 3)), "atype": np.array([0, 1, 1])}
    for kind in (ReferenceOperators, lambda m: CpuOperators(m)):
        three, two = evaluate(kind(few), with_three), evaluate(kind(few), with_two)
        assert three["overflowed"] == 1
        assert three["energies"][0] == pytest.approx(two["energies"][0], abs=1e-12)


def test_same_bits_again_and_close_with_other_threads(find_model, evaluate, find_cases):
    model = tabulate(load(find_model("water_md0.dp")))
    case = find_cases(models=["water_md0"], structures=["wtri192"])[0]
    first = evaluate(CpuOperators(model, threads=2), case)
    again = evaluate(CpuOperators(model, threads=2), case)
    other = evaluate(CpuOperators(model, threads=5), case)
    assert np.array_equal(first["forces"], again["forces"])
    assert first["energy"] == again["energy"] == other["energy"]
    assert np.abs(first["forces"] - other["forces"]).max() < 1e-12


@pytest.mark.parametrize("threads", [1, 3])
def test_positions_may_arrive_while_other_centres_are_evaluated(find_model, threads):
    """Ghosts are nowhere until fetched; whoever needs none of them may be first."""
    model = load(find_model("water_md0.dp"))
    small = Tiling(atoms=2, exact_atoms=2)
    for operators in (
        ReferenceOperators(model),
        CpuOperators(tabulate(model), threads=threads, tiling=small),
        CpuOperators(model, threads=threads, tiling=small),
    ):
        arrive_late(operators)


def arrive_late(operators):
    positions, types = molecules(CELLS["flat"])
    order = np.argsort(positions[:, 0])
    positions, types = positions[order] * [3, 1, 1], types[order].astype(np.int32)  # a row along x
    n = len(positions) - 12
    found = NeighborListBuilder(2).build(positions, types, n, operators.model.cutoff)
    rows = [found.indices[a : a + b] for a, b in zip(found.first, found.count, strict=True)]
    late = np.array([(row >= n).any() for row in rows])
    assert 0 < late.sum() < n

    def evaluate(**more):
        forces = np.zeros_like(positions)
        return forces, operators.evaluate(here, types, replace(found, **more), forces)

    here = positions
    expected, whole = evaluate()
    waits = []

    def fetch(wait=True):
        waits.append(wait)
        if wait:
            here[n:] = positions[n:]
            if isinstance(operators, CpuOperators):  # it has not waited for them
                assert operators._timers.sum() > 0

    here = positions.copy()
    here[n:] = np.nan
    forces, result = evaluate(late=late, fetch=fetch)
    assert waits.count(True) == 1
    assert waits[-1]
    assert np.array_equal(result.atomic_energies, whole.atomic_energies)
    assert np.array_equal(result.virials, whole.virials)
    assert np.abs(forces - expected).max() < 1e-13


def test_batch_of_systems(find_model):
    """Energies and virials of independent structures in one call."""
    model = load(find_model("water_md0.dp"))
    positions, types = molecules(CELLS["cube"])
    far = np.concatenate([positions, positions[:12] * 1.01 + 500.0])
    kinds = np.concatenate([types, types[:12]]).astype(np.int32)
    neighbors = NeighborListBuilder(2).build(far, kinds, len(far), model.cutoff)
    for operators in (ReferenceOperators(model), CpuOperators(model)):
        forces = np.zeros_like(far)
        result = operators.evaluate(far, kinds, neighbors, forces, system_offsets=[0, len(positions), len(far)])
        second = np.zeros((12, 3))
        alone = operators.evaluate(
            far[-12:], kinds[-12:], NeighborListBuilder(2).build(far[-12:], kinds[-12:], 12, model.cutoff), second
        )
        assert result.energies[1] == pytest.approx(alone.energies[0], rel=1e-13)
        assert np.allclose(result.virials[1], alone.virials[0], atol=1e-11)
        assert np.allclose(forces[-12:], second, atol=1e-11)
