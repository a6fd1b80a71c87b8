"""Many structures in one evaluation."""

import ase
import numpy as np
import pytest

from dpmd import Potential, potential
from dpmd.errors import InputError


def structures(water):
    """Structures of all kinds: small and large, periodic, slab, cluster, one atom, unwrapped."""
    slab = water.copy()
    slab.set_cell([6.2, 6.2, 25.0])
    slab.pbc = [True, True, False]
    sheared = water.repeat((2, 1, 1))
    sheared.set_cell(sheared.cell.array @ [[1, 0, 0], [0.3, 1, 0], [0, -0.2, 1]], scale_atoms=True)
    moved = water.copy()
    moved.positions += [13.0, -40.0, 3.0]
    tiny = ase.Atoms("OH2", [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]], cell=[3.2] * 3, pbc=True)
    cluster = ase.Atoms(water.symbols[:9], water.positions[:9])
    return [water, slab, tiny, cluster, ase.Atoms("O"), sheared, moved, water.repeat((1, 2, 2)), cluster]


@pytest.fixture(scope="module")
def water_potential(find_model):
    return Potential(find_model("water_md0.pb"))


@pytest.mark.parametrize("atoms_per_call", [30, 200, 10**6])
def test_list_equals_one_by_one(water_potential, small_water, monkeypatch, atoms_per_call):
    monkeypatch.setattr(potential, "BATCH_ATOMS", atoms_per_call)
    many = structures(small_water)
    together = water_potential.evaluate(many, atomic_virials=True)
    for atoms, found in zip(many, together, strict=True):
        alone = water_potential.evaluate(atoms, atomic_virials=True)
        assert found["energy"] == pytest.approx(alone["energy"], abs=1e-9)
        for name in ("forces", "energies", "virial", "virials"):
            np.testing.assert_allclose(found[name], alone[name], rtol=0, atol=1e-10, err_msg=f"{name} of {atoms}")


def test_parameters_of_each_structure(find_model, find_cases):
    """Frame parameters per structure or for all, atomic parameters as a list."""
    faparam = Potential(find_model("f_faparam.pb"))
    case = find_cases(models=["f_faparam"], structures=["wsmall24_6.2A"])[0].load()
    atoms = ase.Atoms(np.array(["O", "H"])[case["atype"]], case["coord"].reshape(-1, 3), cell=case["box"], pbc=True)
    fparam, aparam = case["fparam"].ravel(), case["aparam"].reshape(24, -1)
    expected = faparam.evaluate(atoms, fparam, aparam)
    assert expected["energy"] == pytest.approx(float(case["energy"]), abs=1e-8)
    order = np.random.default_rng(0).permutation(24)
    other = faparam.evaluate(atoms, fparam + 0.1, aparam)
    found = faparam.evaluate(
        [atoms, atoms[order], atoms], [fparam, fparam, fparam + 0.1], [aparam, aparam[order], aparam]
    )
    for got, wanted in zip(found, (expected, expected, other), strict=True):
        assert got["energy"] == pytest.approx(wanted["energy"], abs=1e-9)
    same = faparam.evaluate([atoms, atoms], fparam, [aparam, aparam])
    assert same[1]["energy"] == pytest.approx(expected["energy"], abs=1e-9)


def test_nothing_to_do(water_potential):
    assert water_potential.evaluate([]) == []
    empty = water_potential.evaluate([ase.Atoms(), ase.Atoms("O")])
    assert empty[0]["energy"] == 0.0
    assert empty[0]["forces"].shape == (0, 3)


def test_messages_name_the_structure(water_potential, small_water):
    with pytest.raises(InputError, match="structure 1: the model has no type for Cu"):
        water_potential.evaluate([small_water, ase.Atoms("Cu")])
    bad = small_water.copy()
    bad.positions[4, 0] = np.inf
    with pytest.raises(InputError, match="structure 2: the position of atom 4"):
        water_potential.evaluate([small_water, small_water, bad])
    flat = small_water.copy()
    flat.cell[2] = flat.cell[1]
    with pytest.raises(InputError, match=r"structure 1: .*linearly dependent"):
        water_potential.evaluate([small_water, flat])
    with pytest.raises(InputError, match=r"types: 1 arrays given for 2"):
        water_potential.evaluate([small_water, small_water], types=[[0]])
