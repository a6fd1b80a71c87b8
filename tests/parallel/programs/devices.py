"""Run under mpiexec: several devices against one, in double precision.

    mpiexec -n N python -m mpi4py devices.py KERNELS WATER_MODEL COPPER_MODEL WATER_STRUCTURE [gpu]

The devices are emulated on the CPU, with compiled kernels kept in the folder KERNELS; with ``gpu`` they are
GPUs, rank k taking number k modulo their count.  Prints a line per system and for some of the ensembles; ends
with an error if energy, forces or virial differ by more than 1e-10, or trajectories by more than 1e-9 Å.
"""

import importlib.util
import sys
from pathlib import Path

import ase.build
import ase.io
import ase.parallel
import numpy as np
from equality import shaken, strained
from mpi4py import MPI

from dpmd.barostats import Coupling, NoseHooverBarostat
from dpmd.device_system import DeviceSystem
from dpmd.ensembles import Langevin, NoseHooverChain, Ramp, StochasticVelocityRescaling, VelocityVerlet, draw_velocities
from dpmd.kernels.cuda import CudaDevice, CudaOperators
from dpmd.parallel import Processes
from dpmd.parallel.device_domain import DeviceDomain
from dpmd.parallel.device_exchange import StagedExchange, make_exchange
from dpmd.potential import Potential
from dpmd.simulation import Simulation

ase.parallel.world.comm = ase.parallel.DummyMPI()
LIMIT, SKIN = 1e-10, 0.4
ENSEMBLES = (
    lambda: VelocityVerlet(),
    lambda: NoseHooverChain(Ramp(300.0), 0.05),
    lambda: Langevin(Ramp(300.0), 0.1, seed=7),
    lambda: StochasticVelocityRescaling(Ramp(300.0), 0.05, seed=7),
    # fast and far from its pressure, so that the cell changes much in a few steps
    lambda: NoseHooverBarostat(Coupling.of_kind("tri", Ramp(20000.0), 0.03), Ramp(300.0), 0.05),
)


def emulated(folder):
    path = Path(__file__).parents[2] / "kernels" / "emulated_device.py"
    spec = importlib.util.spec_from_file_location("dpmd_tests_emulated_device", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EmulatedDevice(folder)


def systems(water):
    """(name, model number, ASE Atoms); ``water``: 24 atoms in a cube of 6.2 Å, ``copper``: unit cells."""
    slab = water.repeat((2, 1, 1))
    slab.cell[2, 2] += 9.0
    slab.pbc = (True, True, False)
    molecule = water[:3].copy()  # with four ranks at least one is empty
    molecule.pbc, molecule.cell[:] = False, 60 * np.eye(3)
    cell = ase.build.bulk("Cu", cubic=True)
    return [
        ("water", 0, water.repeat((1, 2, 1))),
        ("triclinic water", 0, strained(water)),
        ("slab, open", 0, slab),
        ("three atoms, open", 0, molecule),
        ("copper", 1, shaken(cell.repeat((2, 2, 2)))),
        ("thin box", 1, shaken(cell.repeat((1, 1, 8)))),
        ("one cell", 1, shaken(cell)),
    ]


def evaluate(operators, domain, system):
    """Energy, forces in id order (on root) and virial after steps that move atoms and ghosts, and atoms to others."""
    for step in range(3):
        if step:
            system.velocities = np.sin(system.ids)[:, None] * np.ones(3)
            system.drift(0.02 if step == 1 else 0.6)
        domain.update(system)
        result = operators.evaluate(domain.positions, domain.types, domain.neighbors, domain.forces)
        system.take(domain.fold(domain.forces), result)
        if step == 1:
            system.virial  # noqa: B018  evaluates again: forces must still be right afterwards
    energy, virial, whole = system.energy, system.virial, system.whole()
    beside = operators.evaluate(
        domain.positions, domain.types, domain.neighbors, np.zeros_like(domain.forces), atomic_virials=True
    )
    (virials,) = system.gathered(domain.fold(beside.atomic_virials))
    if whole is None:
        return None
    # in id order on root; with one process nobody has sorted them
    order = np.argsort(whole.ids)
    alone = system.processes.size == 1
    return np.array([energy]), whole.forces[order], virial, virials[order] if alone else virials


def on_root(processes, system, part):
    """All atoms on root, or (``part``) rank k takes every size-th atom from k on."""
    records = system.records()
    mine = records[processes.rank :: processes.size] if part else records[: None if processes.root else 0]
    return system.with_atoms(mine, processes)


def main(folder, water_model, copper_model, water, kind="emulated"):
    world = MPI.COMM_WORLD
    processes = Processes(world, 1)
    device = CudaDevice(world.rank % count_of_gpus()) if kind == "gpu" else emulated(folder)
    potentials = [Potential(path, "cpu", "double", 1, skin=SKIN) for path in (water_model, copper_model)]
    processes.root_first(lambda: device.compile(("atoms.cu",), {}))
    operators = [
        [processes.root_first(lambda p=p: CudaOperators(p.model, "double", device)) for p in potentials]
        for _ in range(2)
    ]
    exchanges = [make_exchange(device, processes)]
    if kind != "gpu":
        device.identity = f"the one of rank {world.rank}"
        exchanges.append(make_exchange(device, processes))
    elif exchanges[0].recordable:
        exchanges.append(StagedExchange(device, processes))
    if processes.root:
        print(f"{world.size} ranks, {device.name}, halos {' and '.join(e.description for e in exchanges)}")
    failures = []

    def check(name, errors, limit):
        print(f"{name}: " + ", ".join(f"{what} {error:.1e}" for what, error in errors.items()), flush=True)
        if not all(error <= limit for error in errors.values()):
            failures.append(name)

    def domain(model, *several):
        return DeviceDomain(model.cutoff, SKIN, model.n_types, device, *several)

    for number, (name, which, atoms) in enumerate(systems(ase.io.read(water))):
        potential, several = potentials[which], operators[1][which]
        start = potential.system(atoms)
        exchange = exchanges[number % len(exchanges)]
        system = DeviceSystem(on_root(processes, start, number % 2), device)
        boxes = domain(potential.model, processes, exchange)
        found = evaluate(several, boxes, system)
        statistics = boxes.statistics()
        if processes.root:
            alone = operators[0][which]
            expected = evaluate(alone, domain(potential.model), DeviceSystem(start, device))
            errors = {
                what: np.abs(a - b).max() / max(np.abs(b).max(), 1e-3)
                for what, a, b in zip(("energy", "forces", "virial", "virials of atoms"), found, expected, strict=True)
            }
            shares = f"{len(start)} atoms, grid {statistics['node_grid']}, each {statistics['atoms_per_rank']}"
            check(f"{name}, {shares}", errors, LIMIT)

    model, atoms = potentials[0].model, ase.io.read(water).repeat((1, 1, 2))
    for number, ensemble in enumerate(ENSEMBLES[max(world.size - 2, 0) :: 3]):
        start = potentials[0].system(atoms)
        draw_velocities(start, 900.0, seed=3)
        start.timestep = 5e-4
        exchange = exchanges[(number + 1) % len(exchanges)]
        system, boxes = DeviceSystem(on_root(processes, start, False), device), domain(model, processes, exchange)
        simulation = Simulation(system, operators[1][0], boxes, ensemble())
        boxes.with_virial = simulation.ensemble.needs_virial
        simulation.run(1)
        begun = set(system.ids.tolist())
        simulation.run(19, restarted=True)
        moved = processes.sum(len(begun - set(system.ids.tolist())))
        observables, whole = simulation.observables(), system.whole()
        if processes.root:
            other = DeviceSystem(start, device)
            alone = Simulation(other, operators[0][0], domain(model), ensemble())
            alone.run(1)
            alone.run(19, restarted=True)
            order = np.argsort(other.ids)
            errors = {
                "positions": np.abs(whole.unwrapped_positions - other.unwrapped_positions[order]).max(),
                "velocities": 1e-3 * np.abs(whole.velocities - other.velocities[order]).max(),
                "forces": 1e-3 * np.abs(whole.forces - other.forces[order]).max(),
            }
            for key, value in alone.observables().items():
                errors[key] = 1e-2 * abs(observables[key] - value) / max(1.0, abs(value))
            check(f"{alone.ensemble.name}, {boxes.rebuilds} lists, {moved} atoms moved to others", errors, 1e-9)
            if boxes.rebuilds != alone.domain.rebuilds or (world.size > 1 and not moved):
                failures.append(f"{boxes.rebuilds} lists instead of {alone.domain.rebuilds}, {moved} atoms moved")
    failures = world.bcast(failures)
    if failures:
        sys.exit(f"these differ: {'; '.join(failures)}" if processes.root else 1)


def count_of_gpus():
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


if __name__ == "__main__":
    main(*sys.argv[1:])
