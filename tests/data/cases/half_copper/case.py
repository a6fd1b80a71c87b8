"""Energies, pressures and dynamics of copper in mixed and half, against double.

The right values are double's own: within 0.1 meV/atom and 10 bar in mixed, 1 meV/atom and 50 bar in half, at each
lattice constant and in displaced cells; in steps of 0.01 A the energy is a smooth curve.  The total energy in NVE
is as quiet as the integrator leaves it, 0.007 meV/atom; 0.3 in half, where rounding is felt.
A CPU without products of bfloat16 computes half as mixed.
"""

import numpy as np
from ase.build import bulk, fcc100

from dpmd import DP, Simulation
from dpmd.potential import Potential
from dpmd.units import BAR

#: meV/atom and bar from double, meV/atom from a fourth-order curve, noise in meV/atom
LIMITS = {"double": (1e-9, 1e-6, 0.02, 0.02), "mixed": (0.1, 10, 0.1, 0.02), "half": (1.0, 50, 0.3, 0.3)}


def values(atoms, precision):
    """Energy (meV/atom) and pressure (bar) by the calculator, structures one by one."""
    calculator, found = DP("copper.dp", precision=precision, threads=1, device="cpu"), []
    for cell in atoms:
        cell.calc = calculator
        found.append((1e3 * cell.get_potential_energy() / len(cell), -BAR * cell.get_stress()[:3].mean()))
    return np.array(found).T


def together(atoms, precision):
    """Energies and pressures of structures that are evaluated in one call, and share blocks."""
    results = Potential("copper.dp", precision=precision, threads=1, device="cpu").evaluate(atoms)
    return np.array([
        (1e3 * r["energy"] / len(a), BAR * np.trace(r["virial"]) / 3 / a.get_volume())
        for r, a in zip(results, atoms, strict=True)
    ]).T  # fmt: skip


def noise(precision):
    """Standard deviation of the total energy in NVE, meV/atom."""
    atoms = bulk("Cu", "fcc", a=3.62, cubic=True) * (2, 2, 2)
    simulation = Simulation.from_atoms(
        atoms, "copper.dp", ensemble="nve", timestep_fs=2.0, precision=precision, initial_temperature_K=600,
        device="cpu", threads=1,
    )  # fmt: skip
    total = []
    simulation.every(5, lambda s: total.append(s.system.energy + s.system.kinetic_energy))
    simulation.run(500)
    return 1e3 * np.std(total[20:]) / len(atoms)


def check(case):
    lattice = np.arange(3.55, 3.651, 0.01)
    crystals = [bulk("Cu", "fcc", a=a, cubic=True) for a in lattice]
    displaced = [bulk("Cu", "fcc", a=a, cubic=True) * (3, 3, 3) for a in (3.55, 3.6, 3.65)]
    displaced.append(fcc100("Cu", (3, 3, 6), a=3.62, vacuum=8.0))  # a surface: unlike atoms in one block
    for seed, atoms in enumerate(displaced):
        atoms.rattle(0.1, seed=seed)
    reference = [values(crystals, "double"), together(crystals, "double"), values(displaced, "double")]
    for precision, (energy, pressure, curve, quiet) in LIMITS.items():
        found = [values(crystals, precision), together(crystals, precision), values(displaced, precision)]
        for (e, p), (e0, p0) in zip(found, reference, strict=True):
            assert np.abs(e - e0).max() < energy, precision
            assert np.abs(p - p0).max() < pressure, precision
        x = lattice - 3.6
        for e, _ in found[:2]:
            assert np.abs(e - np.polyval(np.polyfit(x, e, 4), x)).max() < curve, precision
        assert noise(precision) < quiet, precision
