"""Low-rank tables by shells: forces, energies at the split, choice of rank, storage."""

from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest

from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.cpu.operators import Tiling
from dpmd.kernels.reference import ReferenceOperators
from dpmd.models import dptab, load
from dpmd.models.lowrank import TOLERANCE, add_low_rank, describe_low_rank, with_outputs_first, without_low_rank
from dpmd.models.tables import can_tabulate, evaluate_table, radius_of_input, tabulate


def low_rank(model):
    return add_low_rank(tabulate(model))


def bases(model, precision):
    return [e.basis(precision) for e, _ in model.descriptor.unique_embeddings()]


@pytest.mark.reference_cases(largest=300)
def test_double(reference_case, evaluate, operators_of):
    """Within 1e-8 eV/Å of DeePMD-kit's exact networks."""
    if not can_tabulate(load(reference_case.model)):
        pytest.skip("relu cannot be tabulated")
    operators = operators_of(reference_case.model, CpuOperators, low_rank)
    result, reference = evaluate(operators, reference_case), reference_case.load()
    limit = 1e-6 if reference_case.model.stem == "f_float32" else 1e-8  # computed in single precision
    assert np.abs(result["forces"] - reference["force"]).max() < limit * max(1.0, np.abs(reference["force"]).max())
    assert np.abs(result["energies"] - reference["atom_energy"]).max() < 10 * limit


@pytest.mark.reference_cases(largest=300)
def test_mixed(reference_case, evaluate, operators_of):
    """Relative to the rms force, as mixed with full tables."""
    reference = reference_case.load()
    if not can_tabulate(load(reference_case.model)) or len(np.unique(reference["force"])) < 4:
        pytest.skip("no tables or no forces")
    operators = operators_of(reference_case.model, lambda m: CpuOperators(m, "mixed"), low_rank)
    difference = evaluate(operators, reference_case)["forces"] - reference["force"]
    rms = np.sqrt((reference["force"] ** 2).mean())
    assert np.sqrt((difference**2).mean()) < 2e-5 * max(rms, 0.1)


@pytest.mark.reference_cases(largest=300)
def test_half(reference_case, evaluate, operators_of):
    """Products of bfloat16: within 1 % of the rms force (random networks; trained ones 1.5e-3)."""
    reference = reference_case.load()
    if not can_tabulate(load(reference_case.model)) or len(np.unique(reference["force"])) < 4:
        pytest.skip("no tables or no forces")
    operators = operators_of(reference_case.model, lambda m: CpuOperators(m, "half"), low_rank)
    difference = evaluate(operators, reference_case)["forces"] - reference["force"]
    assert np.sqrt((difference**2).mean()) < 1e-2 * max(np.sqrt((reference["force"] ** 2).mean()), 0.1)


@pytest.mark.parametrize("name", ["water.dp", "copper.dp"])
def test_precision_on_trained_models(evaluate, name):
    """Errors relative to the rms force: double 1e-9, mixed 1e-5, half 3e-3."""
    folder = Path(__file__).parents[2] / "examples" / Path(name).stem
    atoms, model = ase.io.read(folder / f"{Path(name).stem}.extxyz"), load(folder / name)
    case = {
        "coord": atoms.positions, "box": atoms.cell.array,
        "atype": np.array([model.type_map.index(s) for s in atoms.symbols]),
    }  # fmt: skip
    case["coord"] = case["coord"] + 0.02 * np.random.default_rng(0).normal(size=case["coord"].shape)
    truth = evaluate(CpuOperators(model, "double"), case)["forces"]
    for precision, limit in (("double", 1e-9), ("mixed", 1e-5), ("half", 3e-3)):
        forces = evaluate(CpuOperators(low_rank(model), precision), case)["forces"]
        assert np.sqrt(((forces - truth) ** 2).mean()) < limit * np.sqrt((truth**2).mean()), precision


@pytest.mark.parametrize("name", ["water_md0.dp", "f_onesideF.dp"])
@pytest.mark.parametrize("precision", ["double", "mixed"])
def test_energy_hardly_steps_at_the_split(find_model, evaluate, name, precision):
    """A pair that crosses the split radius changes the energy by less than the tolerance times usual forces."""
    model = low_rank(load(find_model(name)))
    operators = CpuOperators(model, precision)
    d, crossed = model.descriptor, 0
    for embedding, pairs in d.unique_embeddings():
        basis = embedding.basis(precision)
        if basis is None or not np.isfinite(basis.split):
            continue
        crossed += 1
        a, b = pairs[0]
        radius = radius_of_input(d, a, basis.split)
        energies = [
            evaluate(operators, {
                "coord": np.array([[0.0, 0, 0], [r, 0, 0]]), "atype": np.array([a, b]), "box": np.zeros((0, 3)),
            }, skin=0.0)["energy"]
            for r in radius + np.array([-2e-6, -1e-6, 1e-6, 2e-6])
        ]  # fmt: skip
        step = energies[2] - energies[1] - 0.5 * (energies[1] - energies[0] + energies[3] - energies[2]) * 2
        assert abs(step) < {"double": 1e-8, "mixed": 2e-5}[precision]
    assert crossed or name != "water_md0.dp"


def test_fast_paths_agree_with_the_basis_itself(find_model, evaluate):
    """With G replaced by U V in the reference operators the results are the same to rounding."""
    model = add_low_rank(tabulate(load(find_model("water_md0.dp"))), rank=24)

    class WithBases(ReferenceOperators):
        def _embed(self, embedding, x):
            value, slope = super()._embed(embedding, x)
            basis = embedding.basis("double")
            far = x < basis.split
            u, u_slope = evaluate_table(basis.functions, x[far])
            value[far], slope[far] = u @ basis.expansion, u_slope @ basis.expansion
            return value, slope

    rng = np.random.default_rng(3)
    grid = np.stack(np.meshgrid(*[np.arange(3) * 2.1] * 3), -1).reshape(-1, 3)
    case = {
        "coord": grid + 0.3 * rng.random((27, 3)), "atype": rng.integers(0, 2, 27), "box": np.eye(3) * 6.3,
    }  # fmt: skip
    result = evaluate(CpuOperators(model), case)
    truth = evaluate(WithBases(model, prefer_tables=True), case)
    scale = np.abs(truth["forces"]).max()
    assert np.abs(result["forces"] - truth["forces"]).max() < 1e-11 * scale
    assert np.abs(result["energies"] - truth["energies"]).max() < 1e-11 * np.abs(truth["energies"]).max()


def test_small_tiles_fit_a_small_memory(evaluate):
    """The setting for cores with 256 KiB of local memory: same forces, counted working set."""
    folder = Path(__file__).parents[2] / "examples" / "copper"
    atoms, model = ase.io.read(folder / "copper.extxyz"), low_rank(load(folder / "copper.dp"))
    noise = 0.05 * np.random.default_rng(0).normal(size=(len(atoms), 3))
    case = {"coord": atoms.positions + noise, "box": atoms.cell.array, "atype": np.zeros(len(atoms), int)}
    usual, small = CpuOperators(model, "mixed", 1), CpuOperators(model, "mixed", 1, Tiling(atoms=4, depth=128))
    forces = [evaluate(operators, case)["forces"] for operators in (usual, small)]
    assert np.abs(forces[0] - forces[1]).max() < 1e-5
    counted = small.working_set()
    counted.pop("tables")
    assert sum(counted.values()) < 256 * 1024


def test_rank_follows_the_tolerance(find_model):
    model = low_rank(load(find_model("water_md0.dp")))
    for loose, tight in zip(bases(model, "mixed"), bases(model, "double"), strict=True):
        assert loose.error <= TOLERANCE["mixed"]
        assert tight.error <= TOLERANCE["double"]
    text = describe_low_rank(model, "mixed")
    assert all(name in text for name in model.type_map)
    assert all(b is None for b in bases(without_low_rank(model), "double"))
    assert {b.rank for b in bases(add_low_rank(model, rank=17), "mixed")} == {17}


def test_outputs_as_first_functions():
    """Another basis of the same span: the same outputs, of which the first are functions themselves."""
    model = low_rank(load(Path(__file__).parents[2] / "examples" / "copper" / "copper.dp"))
    basis = bases(model, "double")[0]
    changed = with_outputs_first(basis, 16, 1e6)
    x = np.linspace(basis.functions.lower, basis.functions.upper, 1000)
    functions, new = evaluate_table(basis.functions, x)[0], evaluate_table(changed.functions, x)[0]
    assert np.abs(new @ changed.expansion - functions @ basis.expansion).max() < 1e-11
    assert np.abs(new[:, :16] - (functions @ basis.expansion)[:, :16]).max() < 1e-11
    assert with_outputs_first(basis, basis.rank, 1e6) is None
    assert with_outputs_first(basis, 16, 1.0) is None


def test_stored_in_table_files(find_model, tmp_path):
    model = low_rank(load(find_model("water_md0.dp")))
    path = tmp_path / "a.dptab"
    dptab.write(model, path)
    for old, new in zip(bases(model, "mixed"), bases(load(path), "mixed"), strict=True):
        assert (old.split, old.error) == (new.split, new.error)
        assert np.array_equal(old.expansion, new.expansion)
        assert np.array_equal(old.functions.coefficients, new.functions.coefficients)


def test_files_without_bases_are_still_read(find_model, tmp_path):
    path = tmp_path / "a.dptab"
    dptab.write(tabulate(load(find_model("water_md0.dp"))), path)
    assert bases(load(path), "double") == [None] * len(load(path).descriptor.unique_embeddings())


@pytest.mark.parametrize("name", ["water_md0.dp", "water_md0_c.pb"])
def test_tables_of_the_first_version_are_made_anew(find_model, tmp_path, monkeypatch, name):
    """They were not checked at short distances.  What came with the model stays: networks, or the file's tables."""
    path, model = tmp_path / "a.dptab", load(find_model(name))
    monkeypatch.setattr(dptab, "FORMAT_VERSION", 1)
    dptab.write(low_rank(model), path)
    monkeypatch.undo()
    read = load(path)
    for (old, _), (new, _) in zip(
        model.descriptor.unique_embeddings(), read.descriptor.unique_embeddings(), strict=True
    ):
        assert new.low_rank == ()
        assert (new.table is None) == (old.table is None)
    assert all(b is not None for b in bases(low_rank(read), "double"))


def test_models_without_tables_are_left_alone(find_model):
    model = load(find_model("water_md0.dp"))
    exact = replace(model, descriptor=model.descriptor.map_embeddings(lambda e, _: replace(e, table=None)))
    assert bases(add_low_rank(exact), "double") == [None] * len(exact.descriptor.unique_embeddings())
