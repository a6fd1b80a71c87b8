"""What ``--check-precision`` prints and how it judges."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk

from dpmd import preflight
from dpmd.kernels.cpu import CpuOperators
from dpmd.potential import Potential

COPPER = Path(__file__).resolve().parents[2] / "examples" / "copper" / "copper.dp"


def report(precision="double", atoms=None, shift=0.0, **parameters):
    """The report on a crystal, by operators whose energies are wrong by ``shift`` eV per atom."""
    potential = Potential(COPPER, "cpu", precision, 1)
    fitting = potential.model.fitting
    wrong = replace(potential.model, fitting=replace(fitting, energy_bias=np.array(fitting.energy_bias) + shift))
    potential.operators = CpuOperators(wrong, precision, 1)
    system = potential.system(bulk("Cu", "fcc", a=3.62, cubic=True) if atoms is None else atoms)
    domain = potential.domain()
    domain.rebuild(system)
    before = [a.copy() for a in (domain.positions, domain.neighbors.count, system.positions, system.cell, system.ids)]
    found = preflight.precision_report(potential, domain, system, parameters)
    after = domain.positions, domain.neighbors.count, system.positions, system.cell, system.ids
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    return found


def test_perfect_crystal_has_no_ratio():
    _, rows, verdict, fine = report("mixed")
    of_run = [row for row in rows if row[0] == "mixed, as in this run"]
    assert [row[1] for row in of_run] == ["-3 %", "as it is", "+3 %"]
    assert all(row[-1] == "- (no forces)" for row in rows[1:])
    assert all(row[3].endswith(" bar") for row in of_run)
    assert fine
    assert "is fine here" in verdict


def test_wrong_energies_are_found():
    """An error of 2 meV per atom, which no force shows."""
    _, rows, verdict, fine = report(shift=2e-3)
    assert not fine
    assert "NOT fine" in verdict
    assert "within 2 meV/atom" in verdict
    assert all(float(row[2].split()[0]) == pytest.approx(2e-3, rel=1e-3) for row in rows[1:])
    assert report(shift=5e-4)[3]


def test_pressure_is_judged(monkeypatch):
    """Operators whose pressure is 100 bar too high, with right energies and forces."""
    evaluate = CpuOperators.evaluate

    def pressed(self, *arguments, **options):
        result = evaluate(self, *arguments, **options)
        if self.precision == "mixed":
            result.virials[0] += np.eye(3) * 100 / preflight.BAR * 3.62**3  # 100 bar in the cell as it is
        return result

    monkeypatch.setattr(CpuOperators, "evaluate", pressed)
    _, rows, verdict, fine = report("mixed")
    assert not fine
    assert "limits: 1 meV/atom, 50 bar" in verdict
    row = next(row for row in rows if row[:2] == ("mixed, as in this run", "as it is"))
    assert float(row[3].split()[0]) == pytest.approx(100, abs=2)


def test_open_structures_have_no_pressure():
    atoms = bulk("Cu", "fcc", a=3.62, cubic=True)
    atoms.pbc = False
    atoms.rattle(0.05, seed=1)
    _, rows, verdict, fine = report("mixed", atoms)
    assert fine
    assert "bar" not in verdict
    assert all(row[3] == "-" and float(row[-1]) < 1e-4 for row in rows[1:])


def test_large_pressures_may_be_wrong_by_a_part_of_them():
    """Single precision in a crystal at 600 kbar: 50 bar are a ten-thousandth of it."""
    _, rows, verdict, fine = report("mixed", bulk("Cu", "fcc", a=2.95, cubic=True))
    assert max(float(row[3].split()[0]) for row in rows[1:]) > 10
    assert fine, verdict
