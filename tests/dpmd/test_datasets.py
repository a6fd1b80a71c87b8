"""Readers of labelled structures."""

import ase
import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

from dpmd import datasets
from dpmd.errors import InputError

N, FRAMES = 3, 4
TYPES = np.array([1, 0, 1])


def arrays(seed=0):
    random = np.random.default_rng(seed)
    return {
        "coord": random.normal(size=(FRAMES, 3 * N)),
        "box": np.tile(5 * np.eye(3).ravel(), (FRAMES, 1)) + random.normal(0, 0.1, (FRAMES, 9)),
        "energy": random.normal(size=FRAMES),
        "force": random.normal(size=(FRAMES, 3 * N)),
        "virial": random.normal(size=(FRAMES, 9)),
    }


def write_npy(folder, values, cuts=(2,), names=("H", "O")):
    """A DeePMD system whose frames are cut into several sets."""
    folder.mkdir(parents=True)
    np.savetxt(folder / "type.raw", TYPES, fmt="%d")
    if names:
        (folder / "type_map.raw").write_text("\n".join(names) + "\n")
    ends = [0, *cuts, FRAMES]
    for k, (a, b) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        (folder / f"set.{k:03d}").mkdir()
        for name, value in values.items():
            np.save(folder / f"set.{k:03d}" / f"{name}.npy", value[a:b])


def check(data, values):
    np.testing.assert_allclose(data.positions.reshape(FRAMES, -1), values["coord"], atol=1e-12)
    np.testing.assert_allclose(data.cells.reshape(FRAMES, -1), values["box"], atol=1e-12)
    np.testing.assert_allclose(data.energies, values["energy"], atol=1e-12)
    np.testing.assert_allclose(data.forces.reshape(FRAMES, -1), values["force"], atol=1e-12)
    np.testing.assert_allclose(data.virials.reshape(FRAMES, -1), values["virial"], atol=1e-12)
    assert data.periodic.all()


def test_npy_sets_are_joined(tmp_path):
    values = arrays()
    write_npy(tmp_path / "system", values)
    (data,) = datasets.read(tmp_path / "system")
    check(data, values)
    assert data.type_map == ("H", "O")
    np.testing.assert_array_equal(data.types_in(("O", "H"))[0], [0, 1, 0])
    assert len(data[:3]) == 3


def test_raw_files(tmp_path):
    values = arrays()
    np.savetxt(tmp_path / "type.raw", TYPES, fmt="%d")
    (tmp_path / "type_map.raw").write_text("H O\n")
    for name, value in values.items():
        np.savetxt(tmp_path / f"{name}.raw", value, fmt="%.15g")
    check(datasets.read(tmp_path)[0], values)
    one = {name: value[:1] for name, value in values.items()}
    for name, value in one.items():
        np.savetxt(tmp_path / f"{name}.raw", value, fmt="%.15g")
    (data,) = datasets.read(tmp_path)
    assert (len(data), data.energies.shape, data.forces.shape) == (1, (1,), (1, N, 3))


def test_mixed_types(tmp_path):
    values = arrays()
    values["real_atom_types"] = np.array([[0, 1, 1], [1, 1, 1], [0, -1, 1], [0, 0, 0]])
    write_npy(tmp_path / "mixed", values)
    (data,) = datasets.read(tmp_path / "mixed")
    np.testing.assert_array_equal(data.n_atoms, [3, 3, 2, 3])
    structures = list(data.structures())
    assert [str(a.symbols) for a in structures] == ["HO2", "O3", "HO", "H3"]
    np.testing.assert_allclose(structures[2].positions, data.positions[2][[0, 2]])


def test_folders_below(tmp_path):
    for k, name in enumerate(["b", "deep/a"]):
        write_npy(tmp_path / name, arrays(k))
    assert [d.name for d in datasets.read(tmp_path)] == [str(tmp_path / "b"), str(tmp_path / "deep/a")]


def test_open_boundaries(tmp_path):
    values = arrays()
    del values["box"]
    write_npy(tmp_path / "open", values)
    with pytest.raises(InputError, match="nopbc"):
        datasets.read(tmp_path / "open")
    (tmp_path / "open" / "nopbc").touch()
    (data,) = datasets.read(tmp_path / "open")
    assert data.cells is None
    assert not next(data.structures()).pbc.any()


def test_names_of_types(tmp_path):
    write_npy(tmp_path / "nameless", arrays(), names=None)
    (data,) = datasets.read(tmp_path / "nameless")
    np.testing.assert_array_equal(data.types_in(("O", "H"))[0], TYPES)
    with pytest.raises(InputError, match="type 1, but the model has only 1"):
        data.types_in(("O",))
    write_npy(tmp_path / "named", arrays())
    with pytest.raises(InputError, match="no type for O"):
        datasets.read(tmp_path / "named")[0].types_in(("H", "Cu"))


@pytest.mark.parametrize("damage", ["short", "text", "missing", "types"])
def test_damage_is_named(tmp_path, damage):
    folder = tmp_path / "system"
    write_npy(folder, arrays())
    if damage == "short":
        np.save(folder / "set.000" / "force.npy", np.zeros(5))
    elif damage == "text":
        (folder / "set.000" / "force.npy").write_text("nothing")
    elif damage == "missing":
        (folder / "set.001" / "coord.npy").unlink()
    else:
        (folder / "type_map.raw").write_text("H\n")
    with pytest.raises(InputError, match=r"force\.npy|coord\.npy|type_map\.raw"):
        datasets.read(folder)


def labelled(seed):
    random = np.random.default_rng(seed)
    atoms = ase.Atoms("OH2", random.normal(size=(3, 3)), cell=[5, 6, 7], pbc=True)
    stress = random.normal(size=6)
    atoms.calc = SinglePointCalculator(atoms, energy=float(seed), forces=random.normal(size=(3, 3)), stress=stress)
    return atoms


def test_extended_xyz(tmp_path):
    """Frames are grouped by composition; the stress becomes a virial and comes back."""
    frames = [labelled(0), labelled(1), ase.Atoms("H", cell=[4, 4, 4], pbc=True), labelled(2)]
    ase.io.write(tmp_path / "frames.extxyz", frames)
    water, hydrogen = datasets.read(tmp_path / "frames.extxyz")
    np.testing.assert_allclose(water.energies, [0, 1, 2])
    assert hydrogen.energies is None
    volume = frames[0].get_volume()
    np.testing.assert_allclose(water.virials[1, 1, 2], -volume * frames[1].get_stress()[3], atol=1e-5)
    again = list(water.structures())
    np.testing.assert_allclose(again[2].get_stress(), frames[3].get_stress(), atol=1e-7)
    np.testing.assert_allclose(again[2].get_forces(), frames[3].get_forces(), atol=1e-7)


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        datasets.read(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"type\.raw"):
        datasets.read(tmp_path)
    (tmp_path / "x.extxyz").write_text("this is not xyz\n")
    with pytest.raises(InputError, match="cannot be read as structures"):
        datasets.read(tmp_path / "x.extxyz")


def test_dpdata(tmp_path):
    dpdata = pytest.importorskip("dpdata")
    values = arrays()
    values["box"] = np.tile(5 * np.eye(3).ravel(), (FRAMES, 1))
    write_npy(tmp_path / "system", values, cuts=())
    system = dpdata.LabeledSystem(str(tmp_path / "system"), fmt="deepmd/npy")
    (data,) = datasets.read(system)
    check(data, values)


def test_ase_reads_it(tmp_path):
    write_npy(tmp_path / "system", arrays())
    frames = datasets.read_deepmd(tmp_path / "system", index=slice(None))
    assert len(frames) == FRAMES
