"""Operators against stored results of DeePMD-kit: {cells} x {files} x {implementation}."""

import numpy as np
import pytest

from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.reference import ReferenceOperators
from dpmd.models import load
from dpmd.models.tables import can_tabulate, tabulate


def tolerance(case):
    """eV/Å: DeePMD-kit itself computes f_float32 in single precision."""
    return 1e-6 if case.model.stem == "f_float32" else 1e-9


def compare(result, reference, limit):
    n = len(reference["atype"])
    largest = max(1.0, np.abs(reference["force"]).max())
    assert abs(result["energy"] - reference["energy"]) < limit * n
    assert np.abs(result["energies"] - reference["atom_energy"]).max() < 10 * limit
    assert np.abs(result["forces"] - reference["force"]).max() < limit * largest
    assert np.abs(result["virial"].ravel() - reference["virial"]).max() < 10 * limit * n
    assert np.abs(result["virials"].reshape(-1, 9) - reference["atom_virial"]).max() < 10 * limit


@pytest.mark.reference_cases(largest=300)
def test_reference(reference_case, evaluate):
    model = load(reference_case.model)
    compare(evaluate(ReferenceOperators(model), reference_case), reference_case.load(), tolerance(reference_case))


@pytest.mark.reference_cases
def test_cpu_double(reference_case, evaluate, operators_of):
    """With the file's own tables, or with exact networks where it has none."""
    operators = operators_of(reference_case.model, CpuOperators, lambda model: model)
    compare(evaluate(operators, reference_case), reference_case.load(), tolerance(reference_case))


@pytest.mark.reference_cases(largest=300)
def test_cpu_tabulated(reference_case, evaluate, operators_of):
    """With tables made by dpmd: within 1e-7 eV/Å at default settings."""
    if not can_tabulate(load(reference_case.model)):
        pytest.skip("relu cannot be tabulated")
    operators = operators_of(reference_case.model, CpuOperators, tabulate)
    compare(evaluate(operators, reference_case), reference_case.load(), max(1e-7, tolerance(reference_case)))


@pytest.mark.reference_cases(largest=300)
def test_cpu_mixed(reference_case, evaluate, operators_of):
    """Single-precision networks: errors relative to the rms force."""
    if len(np.unique(reference_case.load()["force"])) < 4:
        pytest.skip("no forces to compare with")
    model = load(reference_case.model)
    operators = operators_of(
        reference_case.model, lambda m: CpuOperators(m, "mixed"), tabulate if can_tabulate(model) else lambda m: m
    )
    result, reference = evaluate(operators, reference_case), reference_case.load()
    rms = np.sqrt((reference["force"] ** 2).mean())
    assert np.sqrt(((result["forces"] - reference["force"]) ** 2).mean()) < 2e-5 * max(rms, 0.1)
    assert abs(result["energy"] - reference["energy"]) < 1e-5 * len(reference["atype"])
