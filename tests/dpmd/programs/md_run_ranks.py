"""md-run under mpiexec, for tests: notes each rank's process id; ``FAIL=RANK`` makes one rank fail at step 5.
``EMULATED_GPUS=N`` pretends that there are N GPUs, emulated on the CPU with kernels compiled into ``KERNELS``.

mpiexec -n N python md_run_ranks.py FILE [options of md-run]
"""

import importlib.util
import os
from pathlib import Path

from dpmd import cli, devices, safety

rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
Path(f"pid.{rank}").write_text(str(os.getpid()))

if os.environ.get("FAIL") == rank:
    check = safety.Safety.__call__

    def failing(self, simulation):
        if simulation.system.step == 5:
            raise OSError("this rank's disk is on fire")
        check(self, simulation)

    safety.Safety.__call__ = failing

if there := int(os.environ.get("EMULATED_GPUS", "0")):
    path = Path(__file__).parents[2] / "kernels" / "emulated_device.py"
    spec = importlib.util.spec_from_file_location("dpmd_tests_emulated_device", path)
    emulation = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emulation)

    def emulated(index):
        device = emulation.EmulatedDevice(os.environ["KERNELS"])
        device.index = index
        return device

    devices.CudaDevice, devices.available = emulated, lambda: None
    devices.count, devices.identity = lambda: there, lambda index: f"GPU {index}"

cli.md_run()
