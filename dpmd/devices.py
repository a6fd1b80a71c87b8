"""Where a run computes: choosing a device, and moving a simulation there."""

import re

from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.cuda import CudaDevice, CudaOperators, DeviceError, available, count, identity
from dpmd.kernels.threads import available_cores
from dpmd.parallel.device_domain import DeviceDomain
from dpmd.parallel.domain import UnusableStructure, check_usable

from .device_system import DeviceSystem
from .errors import InputError

#: with fewer atoms on each GPU, fewer GPUs are about as fast: halos straight from GPU to GPU, and through the hosts.
#: Estimated from steps of one GPU (0.22 ms and 43 ns per atom), not measured
FEWEST_PER_GPU = {True: 2000, False: 6000}


def _check_name(device):
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise InputError(f"device {device!r}: choose auto, cpu, cuda or cuda:i with the number of a GPU")


def device_of_rank(device, processes):
    """``(device, remark)`` of this rank when several share a system.  Collective.

    device : what was asked for.  "cuda" gives ranks of a machine its GPUs in turn, "cuda:i" all of them
    one GPU; "auto" means GPUs if each rank can have one of its own.  Returns ``"cpu"`` or ``"cuda:i"``,
    and a remark for the log where GPUs are not used as they might be.
    """
    _check_name(device)
    if processes.size == 1 or device == "cpu":
        return device, ""
    here = count()
    index = int(device.partition(":")[2] or (processes.machine_rank % here if here else 0))
    mine = identity(index) if index < here else ""
    gpus = processes.broadcast(processes.collect(mine))
    different = len(set(gpus) - {""})
    if device != "auto":
        remark = ""
        if different < len(gpus) and all(gpus):
            remark = f"{len(gpus)} ranks share {different} GPU{'s' * (different > 1)}: one rank per GPU is faster"
        return f"cuda:{index}", remark
    if different == len(gpus):
        return f"cuda:{index}", ""
    if not different:
        return "cpu", ""
    return "cpu", (
        f"{len(gpus)} ranks compute on CPUs, for there are {different} GPUs: start as many ranks as GPUs "
        '(mpiexec -n), or let ranks share them by device = "cuda"'
    )


def make_operators(model, device, precision, threads):
    """Operators on ``device``: ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:i"``.

    Returns ``(operators, name of the device)``.  Raises InputError for devices that are not there.
    """
    _check_name(device)
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
    On several ranks each has a part of the system, and all methods are collective.
    Lists are built and the model is evaluated once, so that a lack of memory shows before step 0.

    needs_virial : whether the ensemble reads the virial at every step; parameters : as for Simulation.
    Raises InputError when the GPU's memory does not suffice.
    """

    def __init__(self, potential, system, needs_virial=False, parameters=None):
        device, model = potential.operators.device, potential.model
        try:
            check_usable(system, model.cutoff + potential.skin)
            self.operators = potential.operators_for(system.n_atoms / system.processes.size)
            self.system = DeviceSystem(system, device)
            self.domain = domain = DeviceDomain(
                model.cutoff, potential.skin, model.n_types, device, system.processes, with_virial=needs_virial
            )  # fmt: skip
            domain.rebuild(self.system)
            kept = domain.forces.copy()  # a run that goes on starts with those of its checkpoint
            evaluation = self.operators.evaluate(
                domain.positions, domain.types, domain.neighbors, domain.forces, **(parameters or {})
            )
            evaluation.virials.sum()  # what outputs ask for needs memory too
            evaluation.overflowed  # noqa: B018  of no step: forgotten
            domain.forces[...] = kept
            device.synchronize()
        except UnusableStructure as error:
            raise InputError(f"structure: {error}") from error
        except (DeviceError, *device.memory_errors) as error:
            raise InputError(
                f"device cuda:{device.index}: {len(system)} atoms do not fit into its memory ({error}). Use fewer "
                "atoms, a smaller skin, mixed or half precision, more GPUs, or --device cpu"
            ) from error

    def ranks_text(self):
        """``(who uses which GPU and how halos travel, advice or an empty text)`` for the log of several ranks."""
        p, device, exchange = self.system.processes, self.operators.device, self.domain.exchange
        names = p.collect(f"cuda:{device.index} {device.name}")
        if names is None:
            return "", ""
        where = "; ".join(f"rank {rank} {name}" for rank, name in enumerate(names[:8]))
        advice, least = "", FEWEST_PER_GPU[exchange.recordable]
        if self.system.n_atoms < least * p.size:
            advice = (
                f"{self.system.n_atoms / p.size:.0f} atoms per GPU: fewer GPUs would be about as fast; "
                f"another one pays from {least} atoms each on"
            )
        return f"{where}{'; ...' if len(names) > 8 else ''}; halos {exchange.description}", advice

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
