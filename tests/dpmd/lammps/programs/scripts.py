"""Run under mpiexec: LAMMPS scripts on several ranks, each ``in.script`` in a folder of its own.

mpiexec -n N python scripts.py node|rank FOLDER...
"""

import os
import sys
from types import SimpleNamespace

import ase.parallel
from mpi4py import MPI

from dpmd.lammps.interpreter import run_script
from dpmd.parallel import Processes

ase.parallel.world.comm = ase.parallel.DummyMPI()


def main(decomposition, *folders):
    options = SimpleNamespace(
        device="cpu", precision="double", threads=1, no_tabulate=False, no_low_rank=False, rank=None,
        max_displacement=1.0, check=False, decomposition=decomposition, balance="atoms", halo_precision="double",
    )  # fmt: skip
    processes = Processes(MPI.COMM_WORLD, 1 if decomposition == "rank" else None)
    for folder in folders:
        os.chdir(folder)
        assert run_script("in.script", options, processes=processes) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
