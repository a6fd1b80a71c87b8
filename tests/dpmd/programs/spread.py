"""Run under mpiexec: what several ranks compute together against one process, through the Python interface.

    mpiexec -n N python spread.py WATER_MODEL OTHER_WATER_MODEL STRUCTURE

For each situation the same simulation runs spread over all ranks and, on root, alone.  Prints a line per
situation with the largest relative difference; ends with an error where one is larger than allowed.
"""

import sys
from pathlib import Path

import ase.io
import ase.parallel
import numpy as np
from mpi4py import MPI

from dpmd import Potential, Simulation
from dpmd.minimize import BoxRelaxation, Minimizer
from dpmd.model_deviation import Committee, ModelDeviation
from dpmd.parallel import OneProcess, Processes

ase.parallel.world.comm = ase.parallel.DummyMPI()
#: growth of rounding over 50 steps or a minimisation
LIMIT = 1e-7
# fast and far from its pressure, so that the cell changes much in a few steps
PRESSURE = {"pressure_bar": 20000.0, "pressure_relaxation_time_ps": 0.03}
WARM = {"temperature_K": 300.0, "relaxation_time_ps": 0.02}
ENSEMBLES = {
    "npt iso": {"ensemble": "npt", "thermostat": "csvr", **PRESSURE, **WARM},
    "npt aniso": {"ensemble": "npt", "thermostat": "nose-hoover", "coupling": "aniso", **PRESSURE, **WARM},
    "npt tri": {"ensemble": "npt", "thermostat": "nose-hoover", "coupling": "tri", **PRESSURE, **WARM},
    "nph tri": {"ensemble": "nph", "coupling": "tri", **PRESSURE},
    "npt langevin": {"ensemble": "npt", "thermostat": "langevin", "coupling": "tri", **PRESSURE, **WARM},
    "npt weak": {
        "ensemble": "npt", "thermostat": "berendsen", "barostat": "berendsen", "coupling": "aniso", **PRESSURE, **WARM,
    },
}  # fmt: skip
MINIMISERS = {
    "cg": ("cg", None), "sd": ("sd", None), "fire": ("fire", None), "quickmin": ("quickmin", None),
    "cg with a box": ("cg", ((0, 1, 2),)), "sd with a tilting box": ("sd", ()),
}  # fmt: skip


def state(simulation):
    """On root: cell, energy, virial, positions, velocities, forces and the conserved energy; None elsewhere."""
    values, whole = simulation.observables(), simulation.system.whole()
    if whole is None:
        return None
    order = np.argsort(whole.ids)
    return [
        whole.cell, whole.energy, whole.virial, whole.unwrapped_positions[order], whole.velocities[order],
        whole.forces[order], values["conserved_eV"], values["pressure_bar"],
    ]  # fmt: skip


def dynamics(make, options, steps):
    simulation = make(**options)
    seen = []
    simulation.every(10, lambda s: seen.append(s.system.sum(len(s.system)) + s.observables()["pressure_bar"]))
    simulation.run(steps)
    return simulation, [np.array(seen)]


def minimised(make, method, together):
    simulation = make()
    box = None
    if together is not None:
        box = BoxRelaxation({k: 100.0 if k < 3 else 0.0 for k in range(3 if together else 6)}, together, 5e-3)
    # few iterations: differences of rounding grow on the way
    result = Minimizer(simulation, method, 0.0, 1e-3, 8, 60, 0.1, 0.0005, "max", box).run()
    assert not simulation.system.carried
    return simulation, [result.energies, result.force_norms, result.largest_forces, result.iterations]


def deviation(make, committee, name):
    simulation = make(**ENSEMBLES["npt tri"])
    processes = simulation.system.processes
    path = Path(f"{name}.{processes.size}.out")
    hook = ModelDeviation(5, path, committee, atomic=True, opened=processes.root)
    simulation.hooks.append(hook)
    simulation.run(20)
    hook.close()
    return simulation, [np.loadtxt(path)] if processes.root else []


def reductions(make):
    """No sums and maxima over ranks at a step but those that it needs."""
    # nve: whether to rebuild lists, and whether all is well
    needed = {"nve": 2, "langevin": 3, "csvr": 3, "nose-hoover": 4, "npt": 7}
    for kind, most in needed.items():
        options = {} if kind == "nve" else {"ensemble": "nvt", "thermostat": kind, **WARM}
        if kind == "npt":  # a slow cell, so that not every step builds lists
            options |= {"ensemble": "npt", "thermostat": "nose-hoover", "coupling": "tri", "pressure_bar": 1.0}
        simulation = make(**options)
        processes, calls, seen = simulation.system.processes, [], []
        for name in ("sum", "largest"):
            wanted = getattr(processes, name)
            setattr(processes, name, lambda value, wanted=wanted, calls=calls: calls.append(1) or wanted(value))
        simulation.every(1, lambda s, calls=calls, seen=seen: seen.append((len(calls), s.domain.rebuilds)))
        simulation.run(10)
        later = seen[1:]  # the first step may sum what is there before it
        quiet = [b[0] - a[0] for a, b in zip(later, later[1:], strict=False) if a[1] == b[1]]
        assert quiet, "lists were built at every step"
        assert max(quiet) <= most, f"{kind}: {max(quiet)} reductions in a step, {most} needed"
        for name in ("sum", "largest"):
            delattr(processes, name)
    return simulation, []


def per_atom(make):
    simulation = make()
    simulation.run(3)
    system = simulation.system
    ids, *values = system.gathered(system.ids, *simulation.evaluate_atoms())
    return simulation, [v[np.argsort(ids)] for v in values if v is not None]


def difference(a, b):
    """Largest difference relative to the largest value."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-3))


def main(model, other, structure):
    world = MPI.COMM_WORLD
    potentials = [Potential(path, device="cpu", precision="double", threads=1, skin=0.3) for path in (model, other)]
    atoms = ase.io.read(structure).repeat((2, 1, 1))
    shaken = atoms.copy()
    shaken.rattle(0.03, seed=1)
    committee = Committee(potentials[0], potentials[1:])
    situations = {
        name: (dynamics, atoms, (options, 50 if options.get("thermostat") in ("csvr", "nose-hoover") else 20))
        for name, options in ENSEMBLES.items()
    }
    situations |= {name: (minimised, shaken, arguments) for name, arguments in MINIMISERS.items()}
    situations |= {"model deviation": (deviation, atoms, (committee, "devi")), "per atom": (per_atom, shaken, ())}
    situations["reductions"] = (reductions, atoms, ())
    few = shaken[: max(world.size - 1, 2)]
    few.set_cell(12 * np.eye(3))
    situations["npt with empty ranks"] = (dynamics, few, (ENSEMBLES["npt aniso"], 10))
    situations["cg with empty ranks"] = (minimised, few, ("cg", ()))
    failed = []
    for k, (name, (function, start, arguments)) in enumerate(situations.items()):
        processes = Processes(world, (1, 2, None)[k % 3])
        decomposition = "rank" if k % 3 == 0 else "node"

        def make(processes=processes, decomposition=decomposition, start=start, **options):
            return Simulation.from_atoms(
                start, potentials[0], processes=processes, decomposition=decomposition, timestep_fs=0.5,
                initial_temperature_K=300.0, **options,
            )  # fmt: skip

        several, found = function(make, *arguments)
        found += state(several) or []
        if processes.root:
            alone, expected = function(lambda make=make, **o: make(processes=OneProcess(), **o), *arguments)
            expected += state(alone)
            worst = max(difference(a, b) for a, b in zip(found, expected, strict=True))
            grown = abs(np.linalg.det(alone.system.cell)) / start.get_volume() - 1
            print(f"{name}: {worst:.1e}; volume {100 * grown:+.1f} %, {alone.domain.rebuilds} lists")
            failed += [] if worst <= LIMIT else [name]
        several.domain.free()
    if world.bcast(failed):
        sys.exit(f"differences larger than {LIMIT}: {', '.join(failed)}" if world.rank == 0 else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
