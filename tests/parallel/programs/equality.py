"""Run under mpiexec: forces, energy and virial of every decomposition against one process.

    mpiexec -n N python equality.py WATER_MODEL COPPER_MODEL WATER_STRUCTURE COPPER_STRUCTURE

Prints a line per system and decomposition; ends with an error if any differs by more than 1e-10, if evaluation
while messages travel changes a bit, or if rounded halos differ by more than they say.
"""

import sys

import ase.build
import ase.io
import ase.parallel
import numpy as np
from mpi4py import MPI

from dpmd.kernels.cpu.operators import Tiling
from dpmd.parallel import NodeDomain, OneProcess, Processes, RankDomain, node_domain
from dpmd.potential import Potential

ase.parallel.world.comm = ase.parallel.DummyMPI()
LIMIT = 1e-10
LONG = "water that is longer than halos"
#: per rank; the systems are small
node_domain.LEAST_EARLY = 8


def strained(atoms):
    """The same atoms in a skewed cell."""
    atoms = atoms.copy()
    atoms.set_cell(atoms.cell.array @ np.array([[1, 0, 0], [0.3, 1, 0], [-0.2, 0.25, 1]]), scale_atoms=True)
    return atoms


def shaken(atoms):
    atoms = atoms.copy()
    atoms.rattle(0.05, seed=3)
    return atoms


def systems(water, copper):
    """(name, model number, ASE Atoms) of every kind of system; ``water``: 64 molecules, ``copper``: a crystal."""
    slab = water.copy()
    slab.cell[2, 2] += 25.0
    open_slab = slab.copy()
    open_slab.pbc = (True, True, False)
    molecule = water[:21].copy()
    molecule.pbc = False
    molecule.cell[:] = 60 * np.eye(3)
    molecule.positions += 20.0
    cell = ase.build.bulk("Cu", cubic=True)
    thin = ase.build.bulk("Cu", cubic=True).repeat((1, 1, 12))
    return [
        ("water", 0, water),
        ("triclinic water", 0, strained(water)),
        ("slab with vacuum", 0, slab),
        ("slab, open", 0, open_slab),
        ("21 atoms in a large box", 0, molecule),
        ("copper", 1, copper),
        ("thin box", 1, shaken(thin)),
        ("small cell", 1, shaken(cell)),
        ("replicated cell", 1, shaken(cell).repeat((2, 2, 3))),
        (LONG, 0, water.repeat((6, 1, 1))),
    ]


def evaluate(potential, domain, system, at_once=False):
    """Energy, forces in id order (on root) and virial after three steps that move atoms and ghosts.

    at_once : wait for all messages before anything is evaluated.
    """
    for step in range(3):
        system.positions += (0.02 if step == 2 else 0.3) * np.sin(system.ids)[:, None] * (step > 0)
        rebuilt = domain.update(system)
        assert rebuilt == (step < 2)
        if at_once:
            domain.neighbors.fetch()
        result = potential.operators.evaluate(domain.positions, domain.types, domain.neighbors, domain.forces)
        system.forces = domain.fold(domain.forces).copy()
    sums = system.sum(np.concatenate([result.energies, result.virials.ravel()]))
    records = system.processes.gather(system.records())
    forces = None if records is None else records["forces"][np.argsort(records["ids"])]
    return sums[0], forces, sums[1:]


def overlap_changes_nothing(potential, whole, processes):
    """Compares, to the last bit, and returns how many atoms were evaluated while messages travelled."""
    results = []
    for at_once in (False, True):
        system = whole.with_atoms(whole.records()[: None if processes.root else 0], processes)
        domain = NodeDomain(processes, potential.model.cutoff, 0.5, potential.model.n_types)
        results.append(evaluate(potential, domain, system, at_once))
        early = domain.statistics()["early_per_rank"]
        domain.free()
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)
    return early


def rounded_halo(potential, whole, processes):
    """Largest errors of ghosts (Å) and forces (eV/Å) of float32 offsets against float64."""
    results, moved = {}, []
    for precision in node_domain.HALO_PRECISIONS:
        system = whole.with_atoms(whole.records()[: None if processes.root else 0], processes)
        domain = NodeDomain(
            processes, potential.model.cutoff, 0.5, potential.model.n_types, halo_precision=precision
        )  # fmt: skip
        forces = evaluate(potential, domain, system)[1]
        results[precision] = domain.positions.copy(), forces, domain.halo_error
        domain.reset_counters()
        domain.update(system)
        domain.fold(domain.forces)
        moved.append(domain.statistics()["bytes_per_step"])
        domain.free()
    double, single = results["double"], results["single"]
    error = processes.largest(np.abs(single[0] - double[0]).max(initial=0.0))
    assert double[2] == 0
    assert moved[1] / moved[0] == (12 + 24) / (24 + 24)  # positions and forces
    assert 0 < error < single[2] < 4e-8
    if processes.root:
        of_forces = np.abs(single[1] - double[1]).max()
        assert 0 < of_forces < 1e-6
        return float(error), float(of_forces)
    return None


def main(water_model, copper_model, water, copper):
    world = MPI.COMM_WORLD
    potentials = [Potential(path, precision="double", threads=1, skin=0.5) for path in (water_model, copper_model)]
    for potential in potentials:  # few atoms fill a block, so that some are evaluated before messages have arrived
        potential.operators.tiling = Tiling(atoms=8)
    worst = 0.0
    kinds = [(NodeDomain, k) for k in (1, 2, 4) if k <= max(world.size, 1)] + [(RankDomain, 1)]
    for name, number, atoms in systems(ase.io.read(water), ase.io.read(copper)):
        potential = potentials[number]
        whole = potential.system(atoms)
        expected = evaluate(potential, potential.domain(), potential.system(atoms)) if world.rank == 0 else None
        for kind, ranks_per_node in kinds:
            processes = Processes(world, ranks_per_node)
            system = whole.with_atoms(whole.records()[: None if processes.root else 0], processes)
            model = potential.model
            domain = kind(processes, model.cutoff, 0.5, model.n_types, balance="work" if number else "atoms")
            found = evaluate(potential, domain, system)
            counts = domain.statistics()
            if processes.root:
                errors = [
                    np.abs(a - b).max() / max(np.abs(b).max(), 1e-3) for a, b in zip(found, expected, strict=True)
                ]
                worst = max(worst, *errors)
                print(
                    f"{name}, {len(atoms)} atoms, {kind.scheme}, {world.size} ranks, {ranks_per_node} per node, grid "
                    f"{counts['node_grid']}: energy {errors[0]:.1e}, forces {errors[1]:.1e}, virial {errors[2]:.1e}; "
                    f"atoms per rank {counts['atoms_per_rank']}"
                )
            domain.free()
            if name == LONG and kind is NodeDomain and 1 < processes.n_nodes <= 4:
                early = overlap_changes_nothing(potential, whole, processes)
                assert early[1] > 0, early
                rounded = rounded_halo(potential, whole, processes) if ranks_per_node == 2 else None
                if processes.root:
                    print(f"  early atoms per rank {early}; errors of rounded halos {rounded}")
    assert isinstance(whole.processes, OneProcess)
    if not world.bcast(worst) <= LIMIT:
        sys.exit(f"relative error {worst:.1e} > {LIMIT}" if world.rank == 0 else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
