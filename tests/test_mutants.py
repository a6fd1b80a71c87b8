"""The list of mutants (mutants.py, which runs them) is complete and up to date."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("dpmd_tests_mutants", Path(__file__).with_name("mutants.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_that_is_registered_has_mutants(mutants):
    assert mutants.problems() == []


def test_what_is_wrong_with_a_list_is_told(mutants, monkeypatch):
    """A name without mutants, an old text that is gone, a test that is gone, a name that is not registered."""
    kept = [mutant for mutant in mutants.MUTANTS if "compute ke" not in mutant.of]
    first, second, third, *rest = kept
    second = replace(second, old="no such text")
    third = replace(third, tests=("tests/test_mutants.py::test_that_is_not_there",), of=("fix nowhere", *third.of))
    monkeypatch.setattr(mutants, "MUTANTS", [first, second, third, *rest])
    found = "\n".join(mutants.problems())
    assert "compute ke has 0 mutants" in found
    assert "'no such text' occurs 0 times" in found
    assert "there is no test tests/test_mutants.py::test_that_is_not_there" in found
    assert "'fix nowhere' is not registered" in found
    assert len(found.splitlines()) == 4


def test_mutants_are_python(mutants):
    for mutant in mutants.MUTANTS:
        text = (mutants.ROOT / mutant.path).read_text(encoding="utf-8")
        compile(text.replace(mutant.old, mutant.new), mutant.path, "exec")
