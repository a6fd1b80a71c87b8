"""Parallel efficiency on this machine: the same system on one rank and on all, step by step in turn.

    mpiexec -n 2 python scaling.py ../water/water.dp ../water/water.extxyz --replicate 4 4 4

Steps of both are measured in turn, one thread per rank, so that other programs disturb both alike, and
compared pair by pair: printed are the best steps and the quartiles of the pairs' efficiencies
T_1 / (n T_n), and the shares of a step that go into communication (positions to ghosts and forces back)
and into waiting for other ranks.  Where cores or memory are shared with other programs, ranks that run at
once slow one another down; therefore the shares are evaluated one after the other, too:
T_1 / (sum of the shares) is what decomposition itself costs.

``--ranks-per-node 1`` pretends that every rank is a node, so that messages travel and atoms are evaluated
meanwhile.  The table at the end of md-run shows the same phases for a whole run.
"""

import argparse
import time

import ase.io
import ase.parallel
import numpy as np
from mpi4py import MPI

from dpmd.parallel import Processes
from dpmd.potential import Potential


def sleep_until_all_are_here(world):
    """A barrier that leaves the core to others."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def seconds_waited(domain):
    """Seconds that this rank has waited so far."""
    return domain.processes.waiting if hasattr(domain, "processes") else 0.0


def evaluate(potential, domain, forces):
    """Seconds to evaluate this rank's atoms, without waiting for messages."""
    begin = time.perf_counter() - seconds_waited(domain)
    potential.operators.evaluate(domain.positions, domain.types, domain.neighbors, forces)
    return time.perf_counter() - seconds_waited(domain) - begin


def step(potential, domain, system):
    """Seconds of one force evaluation: (all of it, communication, waiting)."""
    begin, waited = time.perf_counter(), seconds_waited(domain)
    system.positions += 1e-3 * np.sin(system.ids)[:, None]
    domain.update(system)
    evaluation = evaluate(potential, domain, domain.forces)
    domain.fold(domain.forces)
    total, waited = time.perf_counter() - begin, seconds_waited(domain) - waited
    return total, total - evaluation - waited, waited


def quartiles(values):
    """Text: median (lower to upper quartile)."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main():
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("structure")
    parser.add_argument("--replicate", type=int, nargs=3, default=[4, 4, 4])
    parser.add_argument("--precision", default="mixed")
    parser.add_argument("--decomposition", choices=("node", "rank"), default="node")
    parser.add_argument("--ranks-per-node", type=int)
    parser.add_argument("--steps", type=int, default=24, help="pairs of steps, default 24")
    options = parser.parse_args()
    ase.parallel.world.comm = ase.parallel.DummyMPI()
    world = MPI.COMM_WORLD
    processes = Processes(world, 1 if options.decomposition == "rank" else options.ranks_per_node)
    one, several = (Potential(options.model, precision=options.precision, threads=1) for _ in range(2))
    whole = one.system(ase.io.read(options.structure).repeat(options.replicate))
    part = whole.with_atoms(whole.records()[: None if processes.root else 0], processes)
    serial, domain = one.domain(), several.domain(processes, options.decomposition)
    rows = []
    for _ in range(options.steps + 1):
        alone = step(one, serial, whole)[0] if processes.root else 0.0
        sleep_until_all_are_here(world)
        times = step(several, domain, part)
        together, spent = processes.largest(times[0]), processes.sum(np.array(times[1:])) / world.size
        mine = 0.0
        for rank in range(world.size):
            sleep_until_all_are_here(world)
            if rank == world.rank:
                mine = evaluate(several, domain, np.zeros_like(domain.forces))
        sleep_until_all_are_here(world)
        rows.append((alone, together, *spent, processes.sum(mine)))
    early = domain.statistics()["early_per_rank"][1]
    if processes.root:
        alone, together, moving, waiting, in_turn = np.array(rows[1:]).T  # the first builds lists
        print(
            f"{len(whole)} atoms, {options.precision}, {options.steps} pairs of steps: 1 rank {alone.min():.3f} s at "
            f"best, {np.median(alone):.3f} median; {world.size} ranks on {processes.n_nodes} nodes "
            f"{together.min():.3f} and {np.median(together):.3f}\n"
            f"parallel efficiency: best steps {alone.min() / together.min() / world.size:.3f}; pairs "
            f"{quartiles(alone / together / world.size)}\n"
            f"communication {quartiles(100 * moving / together)} % of a step, waiting "
            f"{quartiles(100 * waiting / together)} %; {early:.0f} atoms per rank may be evaluated while messages "
            f"travel\n1 rank / sum of shares evaluated in turn: best {alone.min() / in_turn.min():.3f}; pairs "
            f"{quartiles(alone / in_turn)}"
        )


if __name__ == "__main__":
    main()
