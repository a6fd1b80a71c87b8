"""md-run under mpiexec, for tests: notes each rank's process id; ``FAIL=RANK`` makes one rank fail at step 5.

mpiexec -n N python md_run_ranks.py FILE [options of md-run]
"""

import os
from pathlib import Path

from dpmd import cli, safety

rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
Path(f"pid.{rank}").write_text(str(os.getpid()))

if os.environ.get("FAIL") == rank:
    check = safety.Safety.__call__

    def failing(self, simulation):
        if simulation.system.step == 5:
            raise OSError("this rank's disk is on fire")
        check(self, simulation)

    safety.Safety.__call__ = failing

cli.md_run()
