"""Parallel efficiency on this machine: the same system on one rank and on all, step by step in turn.

    mpiexec -n 2 python scaling.py ../water/water.dp ../water/water.extxyz --replicate 4 4 4

Steps of both are measured in turn, one thread per rank, so that other programs disturb both alike.
Printed are the best and the median step of each, the efficiency T_1 / (n T_n), and the share of
communication (positions to ghosts and forces back) in a step, with and without waiting for other
ranks.  Where cores or memory are shared with other programs, ranks that run at once slow one another
down; therefore the shares are evaluated one after the other, too: T_1 / (sum of the shares) is what
decomposition itself costs.
"""

import argparse
import time

import ase.io
import ase.parallel
import numpy as np
from mpi4py import MPI

from dpmd.parallel import NodeDomain, OneProcess, Processes, RankDomain
from dpmd.potential import Potential


def sleep_until_all_are_here(world):
    """A barrier that leaves the core to others."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def step(potential, domain, system):
    """Seconds of one force evaluation: (all of it, communication)."""
    begin = time.perf_counter()
    system.positions += 1e-3 * np.sin(system.ids)[:, None]
    domain.update(system)
    before = time.perf_counter()
    potential.operators.evaluate(domain.positions, domain.types, domain.neighbors, domain.forces)
    after = time.perf_counter()
    domain.fold(domain.forces)
    end = time.perf_counter()
    return end - begin, (before - begin) + (end - after)


def evaluate(potential, domain):
    """Seconds to evaluate this rank's atoms, without communication."""
    begin = time.perf_counter()
    spare = np.zeros_like(domain.forces)
    potential.operators.evaluate(domain.positions, domain.types, domain.neighbors, spare)
    return time.perf_counter() - begin


def main():
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("structure")
    parser.add_argument("--replicate", type=int, nargs=3, default=[4, 4, 4])
    parser.add_argument("--precision", default="mixed")
    parser.add_argument("--decomposition", choices=("node", "rank"), default="node")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    ase.parallel.world.comm = ase.parallel.DummyMPI()
    world = MPI.COMM_WORLD
    processes = Processes(world, 1 if options.decomposition == "rank" else None)
    one, several = (Potential(options.model, precision=options.precision, threads=1) for _ in range(2))
    whole = one.system(ase.io.read(options.structure).repeat(options.replicate))
    part = whole.with_atoms(whole.records()[: None if processes.root else 0], processes)
    kind = RankDomain if options.decomposition == "rank" else NodeDomain
    serial, domain = one.domain(), kind(processes, one.model.cutoff, 1.0, one.model.n_types)
    assert isinstance(whole.processes, OneProcess)
    alone, together, in_turn = [], [], []
    for k in range(-1, options.steps):
        if processes.root:
            times = step(one, serial, whole)
            alone += [times[0]] if k >= 0 else []
        sleep_until_all_are_here(world)
        waited = processes.waiting
        times = step(several, domain, part)
        waited = processes.waiting - waited
        means = processes.sum(np.array([times[1], waited])) / world.size
        together += [(processes.largest(times[0]), *means)] if k >= 0 else []
        mine = 0.0
        for rank in range(world.size):
            sleep_until_all_are_here(world)
            if rank == world.rank:
                mine = evaluate(several, domain)
        sleep_until_all_are_here(world)
        in_turn += [processes.sum(mine)] if k >= 0 else []
    if processes.root:
        together = np.array(together)
        best, middle = (f(alone) / f(together[:, 0]) / world.size for f in (np.min, np.median))
        shares = np.median(together[:, 1:] / together[:, :1], axis=0)
        print(
            f"{len(whole)} atoms, {options.precision}: 1 rank {min(alone):.3f} s at best, "
            f"{np.median(alone):.3f} median; {world.size} ranks {together[:, 0].min():.3f} and "
            f"{np.median(together[:, 0]):.3f}\n"
            f"parallel efficiency {best:.3f} (best steps), {middle:.3f} (median); communication "
            f"{100 * shares[0]:.1f} % of a step, of which waiting {100 * shares[1]:.1f} %\n"
            f"1 rank / sum of shares evaluated in turn: {min(alone) / min(in_turn):.3f} (best), "
            f"{np.median(alone) / np.median(in_turn):.3f} (median)"
        )


if __name__ == "__main__":
    main()
