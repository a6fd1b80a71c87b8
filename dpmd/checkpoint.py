"""Checkpoints: HDF5 files from which a run goes on bit for bit.

Kept are positions, velocities and forces in full precision, the cell, the thermostat, how far each
output file had been written, and the samples of analyses, whose files are written anew.  Random
numbers need no state (see :mod:`dpmd.kernels.random`).  Writing one makes the running job sort its
atoms and rebuild its lists, which the continued run does too, so both add up numbers in the same order.
"""

import io
import json
import signal
import time
from pathlib import Path

import h5py
import numpy as np

from dpmd.models.files import written_whole
from dpmd.models.sealed import check_seal, seal

from . import __version__
from .errors import InputError
from .simulation import Hook
from .system import System

FORMAT_VERSION = 2
#: so often several ranks ask one another whether anyone was told to stop
_STEPS_BETWEEN_TALKS = 10
#: stands for the wall-time limit where signals have their numbers
_LATE = 1000
_arrays = (
    "ids", "types", "masses", "positions", "velocities", "images", "forces", "cell", "origin", "periodic", "virial",
)  # fmt: skip


def write(path, system, ensemble, timestep, outputs, model_id, settings):
    """Write a checkpoint; the file appears whole or the old one stays.

    timestep : ps; outputs : {key: {"position": ..., "format": ..., "state": {name: array}}}; model_id : text that
    identifies the model; settings : {name: value} that a continued run is compared with.
    """
    whole = _packed(system, ensemble, timestep, outputs, model_id, settings)
    try:
        with written_whole(path) as beside, open(beside, "wb") as file:
            file.write(whole.getbuffer())
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror or error}") from error


def _packed(system, ensemble, timestep, outputs, model_id, settings):
    # in memory first: HDF5 does not survive a disk that becomes full
    whole = io.BytesIO()
    with h5py.File(whole, "w") as file:
        file.attrs["dpmd_checkpoint"] = FORMAT_VERSION
        file.attrs["dpmd_version"] = __version__
        file.attrs["step"], file.attrs["energy"], file.attrs["timestep_ps"] = system.step, system.energy, timestep
        file.attrs["type_names"] = json.dumps(system.type_names)
        described = {key: {k: v for k, v in kept.items() if k != "state"} for key, kept in outputs.items()}
        file.attrs["outputs"], file.attrs["settings"] = json.dumps(described), json.dumps(settings)
        file.attrs["model"] = model_id
        file.attrs["ensemble"] = ensemble.name
        for name in _arrays:
            file.create_dataset(name, data=getattr(system, name), fletcher32=np.size(getattr(system, name)) > 1)
        for name, value in ensemble.state().items():
            file.create_dataset(f"ensemble_state/{name}", data=value)
        for number, kept in enumerate(outputs.values()):
            for name, value in kept["state"].items():
                file.create_dataset(f"output_state/{number}/{name}", data=value)
        seal(file)
    return whole


def read(path):
    """``(system, info)`` of a checkpoint; info has timestep_ps, outputs, settings, model, ensemble, ensemble_state.

    Raises InputError if the file is missing, damaged or of another kind.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(
            f"{path}: no checkpoint to continue from; leave out --continue to start anew, "
            "or set [checkpoint] file if it is elsewhere"
        )
    try:
        with h5py.File(path, "r") as file:
            version = int(file.attrs["dpmd_checkpoint"])
            if version > FORMAT_VERSION:
                raise InputError(f"{path}: written by a newer dpmd ({file.attrs['dpmd_version']}); update dpmd")
            check_seal(file)
            arrays = {name: file[name][()] for name in _arrays if name in file}
            system = System(
                type_names=tuple(json.loads(file.attrs["type_names"])),
                step=int(file.attrs["step"]),
                timestep=float(file.attrs["timestep_ps"]),
                energy=float(file.attrs["energy"]),
                **arrays,
            )
            state, outputs = file.get("ensemble_state", {}), json.loads(file.attrs["outputs"])
            for number, kept in enumerate(outputs.values()):
                samples = file.get(f"output_state/{number}", {})
                kept["state"] = {name: samples[name][()] for name in samples}
            info = {
                "timestep_ps": float(file.attrs["timestep_ps"]),
                "outputs": outputs,
                "settings": json.loads(file.attrs["settings"]),
                "model": str(file.attrs["model"]),
                "ensemble": str(file.attrs["ensemble"]),
                "ensemble_state": {name: state[name][()] for name in state},
            }
    except InputError:
        raise
    except Exception as error:  # h5py raises many kinds for a damaged file
        raise InputError(f"{path}: not a dpmd checkpoint, or damaged ({error})") from error
    return system, info


class Checkpoint(Hook):
    """Writes checkpoints every so many steps, at the end, and on request.

    outputs : {key: hook with ``position()``, ``state()`` and ``format``}; those hooks must come earlier in the
    list, so that they have written the present step and are still open at the end.
    settings : kept, so that a continued run can tell what has changed.
    """

    several_ranks = True

    def __init__(self, every, path, model_id, outputs, settings):
        self.every, self.path, self.model_id, self.outputs = every, Path(path), model_id, outputs
        self.settings = settings
        self.written_at = None
        #: whether there is something to keep before the first step
        self.relaxed = False

    def start(self, simulation):
        self.first_step = simulation.system.step

    def __call__(self, simulation):
        if simulation.system.step == self.first_step:
            return  # nothing has happened yet
        self._write(simulation)

    def _write(self, simulation, last=False):
        for hook in simulation.hooks:
            hook.saving(simulation, last)
        simulation.domain.rebuild(simulation.system)
        whole, ensemble = simulation.system.whole(), simulation.ensemble
        if whole is not None:
            outputs = {
                key: {"position": hook.position(), "format": hook.format, "state": hook.state()}
                for key, hook in self.outputs.items()
            }
            write(self.path, whole, ensemble, simulation.system.timestep, outputs, self.model_id, self.settings)
        self.written_at = simulation.system.step

    def finish(self, simulation):
        step = simulation.system.step
        if not simulation.failed and step != self.written_at and (self.relaxed or step != self.first_step):
            self._write(simulation, last=True)


class SoftStop(Hook):
    """Ends the run in order on SIGINT, SIGTERM or when its time is up.

    walltime : s, or None.  A second SIGINT interrupts at once.
    """

    every = 1
    several_ranks = True

    def __init__(self, walltime=None):
        self.walltime, self.begin, self.signal = walltime, time.monotonic(), None
        self._old = {}

    def start(self, simulation):
        def handler(number, frame):
            if self.signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number

        for number in (signal.SIGINT, signal.SIGTERM):
            self._old[number] = signal.signal(number, handler)

    def __call__(self, simulation):
        processes = simulation.system.processes
        if processes.size > 1 and simulation.system.step % _STEPS_BETWEEN_TALKS:
            return
        late = self.walltime is not None and time.monotonic() - self.begin > self.walltime
        # all ranks have to stop at the same step, whichever was told to
        number = int(processes.largest(self.signal or (_LATE if late else 0)))
        if number == _LATE:
            simulation.stop_reason = "wall-time limit"
        elif number:
            self.signal = number
            simulation.stop_reason = f"signal {signal.Signals(number).name}"

    def finish(self, simulation):
        for number, handler in self._old.items():
            signal.signal(number, handler)
