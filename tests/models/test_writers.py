"""Models written as .dp and .yaml are the same function when they are read again."""

import h5py
import numpy as np
import pytest

from dpmd.kernels.neighbors import NeighborListBuilder
from dpmd.kernels.reference import ReferenceOperators
from dpmd.models import ModelError, load
from dpmd.models.tables import tabulate
from dpmd.models.writers import write
from dpmd.parallel.batch import Batch


def energy_and_forces(model, values):
    box = values["box"].reshape(-1, 3)
    periodic = np.full((1, 3), len(box) > 0)
    batch = Batch(
        values["coord"].reshape(-1, 3), values["atype"].astype(np.int32), [0, len(values["atype"])],
        (box if len(box) else np.eye(3))[None], periodic, model.cutoff, NeighborListBuilder(model.n_types),
    )  # fmt: skip
    result = ReferenceOperators(model).evaluate(
        batch.positions, batch.types, batch.neighbors, batch.forces,
        frame_parameters=values["fparam"].ravel() if "fparam" in values else None,
        atomic_parameters=values["aparam"].reshape(batch.n_local, -1) if "aparam" in values else None,
    )  # fmt: skip
    return result.energies[0], batch.fold(batch.forces)


@pytest.mark.reference_cases(structures=["wsmall24_6.2A", "cu4_conv"])
def test_written_model_is_the_same_function(reference_case, tmp_path):
    model, values = load(reference_case.model), reference_case.load()
    if reference_case.model.stat().st_size > 20e6:
        pytest.skip("large")
    energy, forces = energy_and_forces(model, values)
    path = tmp_path / "model.dp"
    write(model, path)
    again = load(path)
    assert again.type_map == model.type_map
    assert again.compressed == model.compressed
    found = energy_and_forces(again, values)
    assert found[0] == pytest.approx(energy, abs=1e-12 * max(1, abs(energy)))
    np.testing.assert_allclose(found[1], forces, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["f_exclude.pb", "f_faparam.dp"])
def test_text_form(name, find_model, find_cases, tmp_path):
    model = load(find_model(name))
    write(model, tmp_path / "model.yaml")
    stem, _, suffix = name.partition(".")
    case = next(c for c in find_cases(models=[stem], structures=["wsmall24_6.2A"]) if c.model.suffix == f".{suffix}")
    values = case.load()
    found, expected = energy_and_forces(load(tmp_path / "model.yaml"), values), energy_and_forces(model, values)
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])


def test_differences_are_reported(find_model, tmp_path):
    assert any("sel" in note for note in write(load(find_model("water_md0.pb")), tmp_path / "a.dp"))
    assert write(load(find_model("water_md0.dp")), tmp_path / "b.dp") == []


def test_other_suffixes_are_refused(find_model, tmp_path):
    with pytest.raises(ModelError, match=r"\.dp, \.yaml or \.dptab"):
        write(load(find_model("water_md0.dp")), tmp_path / "model.pb")
    assert not list(tmp_path.iterdir())


def test_own_format(find_model, tmp_path):
    model = tabulate(load(find_model("water_md0.dp")))
    assert write(model, tmp_path / "model.dptab") == []
    assert load(tmp_path / "model.dptab").type_map == model.type_map


def test_tables_do_not_tell_where_the_model_was(find_model, tmp_path):
    """The name of the file that it was made of, and not the folder, which would tell users and paths."""
    model = load(find_model("water_md0.dp").resolve())
    write(model, tmp_path / "model.dptab")
    assert "of water_md0.dp:" in load(tmp_path / "model.dptab").source.format
    with h5py.File(tmp_path / "model.dptab") as file:
        assert str(find_model("water_md0.dp").parent) not in file.attrs["json"]
