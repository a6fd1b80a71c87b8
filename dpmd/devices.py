"""Where a run computes: choosing a device, and moving a simulation there."""

import re

from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.cuda import CudaDevice, CudaOperators, DeviceError, available
from dpmd.kernels.threads import available_cores
from dpmd.parallel.device_domain import DeviceDomain
from dpmd.parallel.domain import UnusableStructure, check_usable

from .device_system import DeviceSystem
from .errors import InputError


def make_operators(model, device, precision, threads):
    """Operators on ``device``: ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:i"``.

    Returns ``(operators, name of the device)``.  Raises InputError for devices that are not there.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise InputError(f"device {device!r}: choose auto, cpu, cuda or cuda:i with the number of a GPU")
    try:
        if device == "cpu" or (device == "auto" and available() is not None):
            return CpuOperators(model, precision, threads), "cpu"
        index = int(device.partition(":")[2] or 0)
        operators = CudaOperators(model, precision, CudaDevice(index))
        operators.threads = threads or available_cores()  # of what the host still computes
        return operators, f"cuda:{index}"
    except DeviceError as error:
        if device == "auto":
            return CpuOperators(model, precision, threads), "cpu"
        raise InputError(f"{error}; --device cpu computes without a GPU") from error
    except ValueError as error:
        raise InputError(str(error)) from error


class DeviceRun:
    """A simulation's atoms, lists and operators on the GPU of a :class:`~dpmd.potential.Potential`.

    ``system``, ``operators`` and ``domain`` are what :class:`~dpmd.simulation.Simulation` takes.
    Lists are built and the model is evaluated once, so that a lack of memory shows before step 0.

    needs_virial : whether the ensemble reads the virial at every step; parameters : as for Simulation.
    Raises InputError when the GPU's memory does not suffice.
    """

    def __init__(self, potential, system, needs_virial=False, parameters=None):
        device, model = potential.operators.device, potential.model
        try:
            check_usable(system, model.cutoff + potential.skin)
            self.operators = potential.operators_for(len(system))
            self.system = DeviceSystem(system, device)
            self.domain = domain = DeviceDomain(model.cutoff, potential.skin, model.n_types, device, needs_virial)
            domain.rebuild(self.system)
            kept = domain.forces.copy()  # a run that goes on starts with those of its checkpoint
            evaluation = self.operators.evaluate(
                domain.positions, domain.types, domain.neighbors, domain.forces, **(parameters or {})
            )
            evaluation.virials.sum()  # what outputs ask for needs memory too
            domain.forces[...] = kept
            device.synchronize()
        except UnusableStructure as error:
            raise InputError(f"structure: {error}") from error
        except (DeviceError, *device.memory_errors) as error:
            raise InputError(
                f"device cuda:{device.index}: {len(system)} atoms do not fit into its memory ({error}). Use fewer "
                "atoms, a smaller skin, mixed or half precision, more GPUs, or --device cpu"
            ) from error

    def take_over(self, simulation):
        """Let a simulation of the same system go on here."""
        simulation.system, simulation.operators, simulation.domain = self.system, self.operators, self.domain

    def memory_text(self):
        """Predicted and actual use of the GPU's memory, for the log."""
        free, total, held = self.operators.device.memory()
        return (
            f"{self.predicted_memory() / 2**20:.0f} MiB predicted, {held / 2**20:.0f} MiB in use; "
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        )

    def predicted_memory(self):
        """Bytes on the GPU, counted from the arrays."""
        domain = self.domain
        return self.operators.predicted_memory(
            len(self.system), domain.n_ghosts, domain.stride, domain.with_virial
        )  # fmt: skip
