"""Node-based against rank-based decomposition: what is sent, and how evenly atoms are spread.

    python decomposition.py                      the published strong-scaling set-up, counted
    mpiexec -n 8 python decomposition.py --here  both schemes timed on this machine

**The published set-up** (J. Li et al., SC24, arXiv:2410.22867): 540,000 copper atoms on 12,000
nodes of Fugaku, four ranks each, ghost cutoff 8 + 2 Å.  The halos are found by the code that runs
under MPI (:mod:`dpmd.parallel.partition`), for real positions, without computing forces: *dry
ranks*.  The unit cell of 10.79 Å with 90 atoms is a crystal of 108 sites with 18 left empty at
random, shaken by 0.1 Å.  Counted are positions, 24 bytes per ghost in double precision; forces
return the same way.

**Here**: random atoms of that density; positions to ghosts and forces back, no potential.
"""

import argparse
import time

import numpy as np

from dpmd.parallel import geometry
from dpmd.parallel.partition import Partition, equal_boundaries, share_of_rank

CELL_EDGE, ATOMS_PER_CELL, COPIES = 10.79, 90, (20, 15, 20)
GHOST_CUTOFF = 10.0
BYTES = 24
NODES, RANKS_PER_NODE = 12_000, 4
#: of 12,000 nodes and the ranks of a node: boxes of 10.79 x 5.4 x 10.79 Å and 45 atoms, the machine's torus
PUBLISHED_GRIDS = (20, 30, 20), (2, 1, 2)


def copper(seed=1):
    """Positions (540000, 3) Å and cell (3, 3) Å of the published set-up."""
    rng = np.random.default_rng(seed)
    corners = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
    sites = (corners + np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])).reshape(-1, 3) / 3
    cells = np.stack(np.meshgrid(*map(np.arange, COPIES), indexing="ij"), -1).reshape(-1, 3)
    kept = np.argsort(rng.random((len(cells), len(sites))), axis=1)[:, :ATOMS_PER_CELL]
    positions = ((cells[:, None] + sites[kept] + 0.05) * CELL_EDGE).reshape(-1, 3)
    lengths = CELL_EDGE * np.array(COPIES)
    return (positions + rng.normal(0, 0.1, positions.shape)) % lengths, np.diag(lengths)


def halo_sent(partition, fractions, owners, box, home, shape):
    """Messages and atoms that ``box`` sends to boxes of other nodes, and messages within its node.

    home : function of a box number telling its node.
    """
    mine = fractions[owners == box]
    messages = atoms = within = 0
    for other, shifts in partition.neighbors(box, GHOST_CUTOFF):
        if home(other) == home(box):
            within += other != box
            continue
        messages += 1
        atoms += len(partition.halo(mine, other, shifts, GHOST_CUTOFF, shape)[0])
    return np.array([messages, atoms, within])


def published(n_nodes, sample, node_grid=None, rank_grid=None):
    """Count and print the published set-up on ``n_nodes`` nodes, from ``sample`` of them.

    Grids of nodes, and of ranks in a node, are chosen for the smallest halo unless given.  Returns
    {halo shape: saved fractions of messages and bytes} against direct exchange between ranks.
    """
    positions, cell = copper()
    periodic = np.ones(3, bool)
    if node_grid is None:
        node_grid, rank_grid = geometry.choose_nested_grid(cell, n_nodes, RANKS_PER_NODE, GHOST_CUTOFF)
    grid = tuple(int(n) for n in np.array(node_grid) * rank_grid)
    nodes = Partition(cell, node_grid, periodic, equal_boundaries(node_grid))
    ranks = Partition(cell, grid, periodic, equal_boundaries(grid))
    fractions = positions @ np.linalg.inv(cell)
    node_of_atom, rank_of_atom = nodes.owners(fractions), ranks.owners(fractions)
    chosen = np.random.default_rng(2).choice(n_nodes, min(sample, n_nodes), replace=False)

    def node_of_rank(rank):
        return int(np.ravel_multi_index(ranks.index(rank) // rank_grid, node_grid))

    print(
        f"\n{len(positions):,} copper atoms on {n_nodes:,} nodes ({' x '.join(map(str, node_grid))}) of "
        f"{RANKS_PER_NODE} ranks ({' x '.join(map(str, rank_grid))}), ghost cutoff {GHOST_CUTOFF:g} Å; "
        f"per node and step, mean of {len(chosen)} nodes"
    )
    print(f"{'scheme':28s} {'halo':12s} {'messages':>9s} {'within':>7s} {'ghosts':>8s} {'kB':>7s}  rounds")
    savings = {}
    for shape in geometry.HALO_SHAPES:
        by_node, by_rank = np.zeros(3), np.zeros(3)
        for node in chosen:
            by_node += halo_sent(nodes, fractions, node_of_atom, node, lambda box: box, shape)
            corner = nodes.index(node) * rank_grid
            for offset in np.ndindex(*rank_grid):
                rank = int(np.ravel_multi_index(corner + offset, grid))
                by_rank += halo_sent(ranks, fractions, rank_of_atom, rank, node_of_rank, shape)
        for name, (messages, atoms, within) in (("node", by_node / len(chosen)), ("direct", by_rank / len(chosen))):
            title = {"node": "node-based (ours)", "direct": "rank-based, direct"}[name]
            print(f"{title:28s} {shape:12s} {messages:9.1f} {within:7.1f} {atoms:8.0f} {BYTES * atoms / 1e3:7.1f}  1")
        savings[shape] = 1 - by_node[:2] / by_rank[:2]
    staged = geometry.staged_exchange(cell, node_grid, rank_grid, GHOST_CUTOFF)
    atoms = staged.volume * len(positions) / geometry.volume(cell)
    print(
        f"{'rank-based, staged 6-way':28s} {'rectangular':12s} {staged.messages:9.1f} {staged.messages_within:7.1f} "
        f"{atoms:8.0f} {BYTES * atoms / 1e3:7.1f}  {staged.rounds}"
    )
    for shape, (messages, volume) in savings.items():
        print(
            f"node-based against direct, {shape}: {100 * messages:.1f} % fewer messages and {100 * volume:.1f} % fewer "
            "bytes between nodes"
        )
    print_balance(positions, node_of_atom, rank_of_atom, chosen, ranks.n_boxes)
    return savings


def print_balance(positions, node_of_atom, rank_of_atom, chosen, n_ranks):
    """Atoms per rank in both schemes; within a node they differ by one at most in ours."""
    ids = np.arange(len(positions))
    worst, shares = 0, []
    for node in chosen:
        mine = np.flatnonzero(node_of_atom == node)
        counts = [
            len(share_of_rank(positions[mine], ids[mine], None, RANKS_PER_NODE, r)) for r in range(RANKS_PER_NODE)
        ]
        worst = max(worst, max(counts) - min(counts))
        shares += counts
    boxes = np.bincount(rank_of_atom, minlength=n_ranks)
    print(
        f"atoms per rank: node-based {min(shares)} / {np.mean(shares):.2f} / {max(shares)} (least / mean / most), "
        f"within a node they differ by {worst} at most; rank-based {boxes.min()} / {boxes.mean():.2f} / {boxes.max()}"
    )


def here(atoms_per_rank, steps):
    """Time both schemes with the ranks that MPI has started."""
    from mpi4py import MPI

    from dpmd.parallel import NodeDomain, OneProcess, Processes, RankDomain
    from dpmd.system import System

    world = MPI.COMM_WORLD
    n = atoms_per_rank * world.size
    edge = (n * CELL_EDGE**3 / ATOMS_PER_CELL) ** (1 / 3)
    numbers = np.arange(n if world.rank == 0 else 0)
    whole = System(
        ids=numbers + 1, types=np.zeros(len(numbers), np.int32), masses=np.ones(len(numbers)),
        positions=np.random.default_rng(3).random((len(numbers), 3)) * edge, velocities=np.zeros((len(numbers), 3)),
        cell=np.eye(3) * edge, periodic=np.ones(3, bool), type_names=("Cu",), n_atoms=n, processes=OneProcess(),
    )  # fmt: skip
    if world.rank == 0:
        print(f"{n} atoms on {world.size} ranks; a step is positions to ghosts and forces back")
        print("scheme  ranks/box  boxes  messages/step  kB/step  ghosts/box  ms/step  atoms per rank")
    sizes = [k for k in sorted({1, 2, 4, world.size}) if k <= world.size]
    for kind, k in [(RankDomain, 1), *((NodeDomain, k) for k in sizes)]:
        processes = Processes(world, k)
        system = whole.with_atoms(whole.records(), processes)
        domain = kind(processes, GHOST_CUTOFF - 2, 2.0, 1)
        domain.rebuild(system)
        domain.fold(domain.forces)
        world.Barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            domain.update(system)
            domain.fold(domain.forces)
        elapsed = processes.largest(time.perf_counter() - begin) / steps
        found = domain.statistics()
        if world.rank == 0:
            least, mean, most = found["atoms_per_rank"]
            print(
                f"{kind.scheme:7s} {k:9d} {processes.n_nodes:6d} {found['messages_per_step']:14.1f} "
                f"{found['bytes_per_step'] / 1e3:8.1f} {found['ghosts_per_node'][1]:11.0f} {1e3 * elapsed:8.3f}  "
                f"{least:.0f} / {mean:.1f} / {most:.0f}"
            )
        domain.free()


def main(arguments=None):
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[768, 2160, 6000, NODES])
    parser.add_argument("--sample", type=int, default=12, help="nodes whose halos are found (default 12)")
    parser.add_argument("--here", action="store_true", help="time this machine, under mpiexec")
    parser.add_argument("--atoms-per-rank", type=int, default=500)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(arguments)
    if options.here:
        here(options.atoms_per_rank, options.steps)
        return
    for n in options.nodes:
        published(n, options.sample)
    savings = published(NODES, options.sample, *PUBLISHED_GRIDS)
    print(
        "\nThe published claim is a reduction of communication by 81 %; whether of time or of volume, and against "
        "which baseline, its\nabstract does not say.  Against direct rank-based exchange, the last set-up above has "
        f"{100 * savings['culled'][0]:.0f} % fewer messages and {100 * savings['culled'][1]:.0f} % fewer\nbytes "
        "(culled halos)."
    )


if __name__ == "__main__":
    main()
