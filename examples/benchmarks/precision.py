"""What a precision mode does to energies, pressures and dynamics, beside double.

    python precision.py ../copper/copper.dp ../copper/copper.extxyz                # on this CPU, one thread
    python precision.py ../water/water.dp ../water/water.extxyz --device cuda      # on the first GPU
    python precision.py copper.dp --lattice Cu,fcc,3.62 --copies 2                 # a perfect crystal

Errors: of the structure, of ``--rattled`` copies with displaced atoms, and of copies stretched by up to
``--strain`` along each edge, in 21 equal steps: largest differences of energy and pressure from double, and how
far the energy strays from a polynomial of fourth order through it, which is a curve of equally many points in
double.  Dynamics (with ``--picoseconds``): NVE from ``--temperature``; standard deviation of the total energy,
its drift with the standard error, and the time of a step.
"""

import argparse
import time

import ase.build
import ase.io
import numpy as np

from dpmd import Simulation
from dpmd.log import drift_per_atom
from dpmd.potential import Potential
from dpmd.units import BAR


def structure_of(options):
    """The structure that is asked for."""
    if options.lattice:
        symbol, lattice, constant = options.lattice.split(",")
        atoms = ase.build.bulk(symbol, lattice, a=float(constant), cubic=True)
    else:
        atoms = ase.io.read(options.structure)
    return atoms * 3 * (options.copies,)


def strained(atoms, strain):
    """A copy whose edges are longer by the factor 1 + strain."""
    copy = atoms.copy()
    copy.set_cell(copy.cell.array * (1 + strain), scale_atoms=True)
    return copy


def evaluate(potential, structures):
    """Energies (meV/atom) and pressures (bar, without the kinetic part), one structure at a time."""
    energies, pressures = [], []
    for atoms in structures:
        found = potential.evaluate(atoms)
        energies.append(1e3 * found["energy"] / len(atoms))
        pressures.append(BAR * np.trace(found["virial"]) / 3 / atoms.get_volume())
    return np.array(energies), np.array(pressures)


def from_fourth_order(x, y):
    """The largest distance of y(x) from the best polynomial of fourth order."""
    x = (x - x.mean()) / np.ptp(x)
    return np.abs(y - np.polyval(np.polyfit(x, y, 4), x)).max()


def dynamics(atoms, potential, options):
    """Noise (meV/atom), drift and its standard error (meV/atom/ns) and µs per atom and step in NVE."""
    simulation = Simulation.from_atoms(
        atoms, potential, ensemble="nve", timestep_fs=options.timestep, initial_temperature_K=options.temperature
    )
    times, energies = [], []
    every, per_ps = 20, round(1000 / options.timestep)
    simulation.every(every, lambda s: times.append(s.system.step * options.timestep / 1000))
    simulation.every(every, lambda s: energies.append(s.system.energy + s.system.kinetic_energy))
    simulation.run(per_ps // 5)  # compiles, and half of the kinetic energy becomes potential energy
    del times[:], energies[:]
    begin, steps = time.perf_counter(), round(options.picoseconds * per_ps)
    simulation.resume(steps)
    seconds = time.perf_counter() - begin
    noise = 1e3 * np.std(energies) / len(atoms)
    return noise, *block_drift(np.array(times), np.array(energies), len(atoms)), 1e6 * seconds / steps / len(atoms)


def block_drift(times, energies, n_atoms, blocks=10):
    """Slope of a line through the means of ``blocks`` pieces and its standard error, meV/atom/ns.

    Neighbouring energies are not independent, pieces nearly are.
    """
    n = len(times) // blocks * blocks
    means = (x[len(x) - n :].reshape(blocks, -1).mean(axis=1) for x in (times, energies))
    return drift_per_atom(*means, n_atoms)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("structure", nargs="?")
    parser.add_argument("--lattice", help="instead of a structure: symbol,lattice,constant, such as Cu,fcc,3.62")
    parser.add_argument("--copies", type=int, default=1, help="along each axis")
    parser.add_argument("--precisions", nargs="+", default=["double", "mixed", "half"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--strain", type=float, default=0.015, help="largest, along an edge")
    parser.add_argument("--rattled", type=int, default=4)
    parser.add_argument("--amplitude", type=float, default=0.05, help="standard deviation of displacements, Å")
    parser.add_argument("--picoseconds", type=float, default=0.0)
    parser.add_argument("--timestep", type=float, default=1.0, help="fs")
    parser.add_argument("--temperature", type=float, default=600.0, help="K")
    options = parser.parse_args()
    if not (options.structure or options.lattice):
        parser.error("a structure, or --lattice")

    atoms = structure_of(options)
    strains = np.linspace(-options.strain, options.strain, 21)
    curve = [strained(atoms, e) for e in strains]
    rattled = [strained(atoms, e) for e in np.linspace(-options.strain, options.strain, options.rattled)]
    for seed, copy in enumerate(rattled):
        copy.rattle(options.amplitude, seed=seed)
    reference = None
    for precision in options.precisions:
        potential = Potential(options.model, options.device, precision, options.threads)
        found = *evaluate(potential, curve), *evaluate(potential, rattled)
        if reference is None:
            reference = found if precision == "double" else None
            print(f"{len(atoms)} atoms; errors against double on {potential.device}")
        print(f"{precision}: {potential.operators.products}")
        if reference:
            de, dp, rattled_de, rattled_dp = (np.abs(a - b).max() for a, b in zip(found, reference, strict=True))
            print(
                f"  strained by up to {options.strain:g}: energy {de:.3f} meV/atom (from a fourth-order curve "
                f"{from_fourth_order(strains, found[0]):.3f}), pressure {dp:.1f} bar"
            )
            print(f"  and rattled: energy {rattled_de:.3f} meV/atom, pressure {rattled_dp:.1f} bar")
        if options.picoseconds:
            noise, drift, error, microseconds = dynamics(atoms, potential, options)
            print(
                f"  NVE {options.picoseconds:g} ps: noise {noise:.4f} meV/atom, drift {drift:.2f} +- {error:.2f} "
                f"meV/atom/ns, {microseconds:.2f} us/atom/step",
                flush=True,
            )


if __name__ == "__main__":
    main()
