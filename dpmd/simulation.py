"""The simulation loop.

It knows no file format, no model and no hardware: forces come from operators, lists and ghosts
from the domain, time integration from the ensemble, and everything optional is a hook.
"""

import time

import numpy as np

from dpmd.parallel.domain import UnusableStructure

from .errors import RunError
from .units import DENSITY, pressure_tensor, temperature

_components = tuple((a, b, "xyz".index(a), "xyz".index(b)) for a, b in ("xx", "yy", "zz", "xy", "xz", "yz"))


class Timers(dict):
    """Seconds per phase of the loop; in whichever this rank waits for others, that counts as waiting.

    processes : :class:`dpmd.parallel.Processes`, which count it.
    """

    def __init__(self, processes):
        super().__init__(force=0.0, neighbor=0.0, communication=0.0, integrate=0.0, output=0.0, waiting=0.0)
        self._processes, self._compiling, self._aside = processes, None, (0.0, 0.0)

    def begin(self, compiling=None):
        """Start from zero; ``compiling.seconds``, if given, count in no phase from now on."""
        self.update(dict.fromkeys(self, 0.0))
        self._compiling = compiling

    def _seconds_aside(self):
        return self._processes.waiting, self._compiling.seconds if self._compiling else 0.0

    def start(self):
        """Begin a phase; returns the time now."""
        self._aside = self._seconds_aside()
        return time.perf_counter()

    def lap(self, phase, since):
        """Add the time since ``since`` to ``phase``; returns the time now."""
        now, before = time.perf_counter(), self._aside
        self._aside = self._seconds_aside()
        waited, compiled = (after - old for after, old in zip(self._aside, before, strict=True))
        self[phase] += now - since - waited - compiled
        self["waiting"] += waited
        return now


class Hook:
    """Something to do every so many steps.  Override what is needed.

    every : steps; called after the step when ``step % every == 0``, and at the first step.
    """

    every = 1
    #: True if it knows that a rank's system is a part of the whole; others are refused on several ranks
    several_ranks = False

    def due(self, step, first=False):
        """Whether to be called at this step; ``first``: before the first step of a run."""
        return first or step % self.every == 0

    def start(self, simulation):
        """Before the first step (forces are known)."""

    def __call__(self, simulation):
        """At a step that is due."""

    def saving(self, simulation, last):
        """Before a checkpoint is written: time for files that are to be no older; ``last``: of this run."""

    def state(self):
        """Numbers and arrays that a run needs to go on from a checkpoint."""
        return {}

    def finish(self, simulation):
        """After the last step, also when the run is stopped early."""


class Callback(Hook):
    """Calls ``function(simulation)`` every so many steps, on every rank."""

    several_ranks = True

    def __init__(self, every, function):
        self.every, self.function = every, function

    def __call__(self, simulation):
        self.function(simulation)


class Simulation:
    """Atoms, forces and time.

    >>> simulation = Simulation.from_atoms(atoms, "water.dp", ensemble="nvt", temperature_K=330)
    >>> simulation.every(10, lambda s: print(s.system.step, s.system.energy))
    >>> simulation.run(1000)
    >>> simulation.resume(1000)

    system : :class:`dpmd.system.System`; operators : :class:`dpmd.kernels.operators.Operators`;
    domain : such as :class:`dpmd.parallel.SerialDomain`; ensemble : see :mod:`dpmd.ensembles`;
    parameters : ``frame_parameters`` and ``atomic_parameters`` for the operators;
    hooks : called in order.
    """

    def __init__(self, system, operators, domain, ensemble, hooks=(), parameters=None):
        self.system, self.operators, self.domain, self.ensemble = system, operators, domain, ensemble
        self.hooks, self.parameters = list(hooks), parameters or {}
        self.timers = Timers(system.processes)
        self.steps_done, self._total_mass = 0, None
        #: how often forces were computed
        self.evaluations = 0
        #: this rank's atoms with more neighbours than the model's sel, summed over evaluations
        self.overflowed = 0
        #: a hook or a signal sets this to a reason, and the run ends after the step
        self.stop_reason = None
        #: True once a step was left by an error, so that the state belongs to no time
        self.failed = False
        #: ps and the step at which the present time step began to count
        self._origin = (0.0, 0)

    @classmethod
    def from_atoms(cls, atoms, model, **options):
        """A simulation of ASE Atoms with a model file, ready to :meth:`run`.

        atoms : ASE Atoms, which are not changed; model : path, or a :class:`dpmd.Potential` to share.

        Options: ensemble (``"nve"`` unless told; nvt, npt, nph) with the keys of an input file's ``[ensemble]``
        (``temperature_K=330``, ``thermostat="langevin"``, ``pressure_bar=1``, ...: see ``md-run --help-input``);
        timestep_fs (0.5); initial_temperature_K; seed; steps, over which ramps extend; device (``"auto"``), precision
        (``"mixed"``), threads (all cores), skin (1 Å), tabulate, low_rank, rank, as for Potential; fparam, aparam;
        on_overflow (``"warn"``); hooks; safe (True), max_displacement (1 Å); processes, decomposition, balance,
        halo_precision for several ranks.
        :func:`dpmd.building.simulation` explains each.  Raises InputError for whatever does not fit.
        """
        from .building import simulation

        return simulation(atoms, model, **options)

    def every(self, steps, function):
        """Call ``function(simulation)`` every so many steps, and at the first one.

        The arrays of ``simulation.system`` are the simulation's own, not copies: positions, velocities
        and forces may be read and changed in place; to keep them, copy.  Atoms are in spatial order,
        which changes now and then; ``system.ids`` tells who is who.  Returns the hook.

        On a GPU (:class:`dpmd.device_system.DeviceSystem`) arrays that are read are copies and cannot be
        written to: assign new ``positions`` or ``velocities`` instead.

        On several ranks each calls the function, and its arrays hold the rank's part of the atoms, which
        come and go.  ``system.sum(x)`` adds up a number or array over ranks; ``system.whole()`` is the
        system with all atoms on root, in id order, and None elsewhere; ``system.energy``, ``virial``,
        ``kinetic_energy`` and ``observables()`` are sums too.  All ranks must ask for these together, and
        decide alike.
        """
        self.hooks.append(Callback(steps, function))
        return self.hooks[-1]

    @property
    def timestep(self):
        """ps; it may be changed at any time, and counts from the next step on."""
        return self.system.timestep

    @timestep.setter
    def timestep(self, ps):
        if not ps > 0:
            raise ValueError(f"the time step must be above 0 ps, not {ps}")
        self._origin, self.system.timestep = (self.time, self.system.step), ps

    @property
    def time(self):
        """ps, of the present step."""
        begin, step = self._origin
        return begin + (self.system.step - step) * (self.timestep or 0.0)

    def stop(self, reason="stopped by a callback"):
        """End the run after the present step."""
        self.stop_reason = reason

    def resume(self, steps):
        """Go on where the last run ended or was stopped; what was due at the present step is not done again.

        After changing positions or the cell, call :meth:`run` instead.
        """
        self.stop_reason = None
        self.run(steps, restarted=True)

    def compute_forces(self, rebuilt=False, minimizing=False):
        """Forces, energy and virial at the present positions; lists and ghosts brought up to date.

        ``rebuilt``: the lists have just been rebuilt; ``minimizing``: without forces that have no energy.
        """
        clock = self.timers.start()
        try:
            rebuilt = rebuilt or self.domain.update(self.system)
        except UnusableStructure as error:
            raise RunError(f"step {self.system.step}: {error}") from error
        clock = self.timers.lap("neighbor" if rebuilt else "communication", clock)
        domain, system = self.domain, self.system
        result = self.operators.evaluate(
            domain.positions, domain.types, domain.neighbors, domain.forces, **self.present_parameters()
        )
        clock = self.timers.lap("force", clock)
        self.overflowed += system.take(domain.fold(domain.forces), result)
        self.evaluations += 1
        clock = self.timers.lap("communication", clock)
        (self.ensemble.minimizing_forces if minimizing else self.ensemble.after_forces)(system)
        self.timers.lap("integrate", clock)

    def count_overflows(self):
        """Atoms with more neighbours than the model's sel, of the whole system: their mean over evaluations.

        Collective.
        """
        self.overflowed += self.system.overflowed_meanwhile()
        return float(self.system.sum(self.overflowed)) / max(self.evaluations, 1)

    def present_parameters(self):
        """``parameters``, and those of each atom that the system carries as ``atomic_parameters`` (n, k)."""
        carried = self.system.carried.get("atomic_parameters")
        return self.parameters if carried is None else self.parameters | {"atomic_parameters": carried}

    def evaluate_atoms(self):
        """Energies (n,) and virials (n, 3, 3) of the atoms, eV, at the present positions.

        Each pair's share of the virial belongs to the neighbour, as in DeePMD-kit; they sum to W.
        One more evaluation: for outputs, not for every step.
        """
        domain = self.domain
        result = self.operators.evaluate(
            domain.positions, domain.types, domain.neighbors, np.zeros_like(domain.forces), atomic_virials=True,
            **self.present_parameters(),
        )  # fmt: skip
        return result.atomic_energies, domain.fold(result.atomic_virials).copy()

    def run(self, steps, restarted=False):
        """Advance by ``steps`` steps, or fewer if a hook asks to stop.

        ``restarted``: forces came from a checkpoint, and what was due at this step is done.
        Hooks finish in reverse order, after an error too.
        """
        alone = sorted({type(hook).__name__ for hook in self.hooks if not hook.several_ranks})
        if alone and self.system.processes.size > 1:
            raise RunError.everywhere_raised(f"{', '.join(alone)}: not available on several ranks; use one")
        if restarted:
            self.domain.rebuild(self.system)
        else:
            self.compute_forces()
        if steps and not self.timestep:
            raise RunError("no time step is set: simulation.timestep = 0.0005  # ps")
        self.failed = True
        try:
            self.ensemble.start(self.system, restarted)
            for hook in self.hooks:
                hook.start(self)
            if not restarted:
                self.call_hooks(first=True)
            for _ in range(steps):
                if self.stop_reason:
                    break
                self._step()
                self.call_hooks()
            self.failed = False
        finally:
            clock = self.timers.start()
            for hook in reversed(self.hooks):
                hook.finish(self)
            self.timers.lap("output", clock)

    def _step(self):
        clock = self.timers.start()
        self.ensemble.first_half(self.system)
        self.timers.lap("integrate", clock)
        self.compute_forces()
        clock = self.timers.start()
        self.ensemble.second_half(self.system)
        self.system.step += 1
        self.steps_done += 1
        self.ensemble.end_of_step(self.system)
        self.timers.lap("integrate", clock)

    def call_hooks(self, first=False):
        """Call the hooks that are due at the present step."""
        clock = self.timers.start()
        for hook in self.hooks:
            if hook.due(self.system.step, first):
                hook(self)
        self.timers.lap("output", clock)

    # ------------------------------------------------------------------ what the log shows

    def _mass(self):
        """u, of the whole system; summed when first asked for."""
        if self._total_mass is None:
            self._total_mass = float(self.system.sum(self.system.masses.sum()))
        return self._total_mass

    def observables(self):
        """Step, time (ps), temperature (K), energies (eV), volume (Å^3), pressure and its tensor (bar), density.

        Pressures, volume and density (g/cm^3) are NaN unless all three directions are periodic.
        """
        system = self.system
        tensor, volume = np.full((3, 3), np.nan), np.nan
        kinetic = system.kinetic_energy
        if system.periodic.all():
            volume = system.volume
            tensor = pressure_tensor(2 * system.kinetic_tensor, system.virial, volume, system.constants)
        total = system.energy + kinetic
        return {
            "step": system.step,
            "time_ps": self.time,
            "temperature_K": temperature(kinetic, self.ensemble.degrees_of_freedom(system), system.constants),
            "potential_eV": system.energy,
            "kinetic_eV": kinetic,
            "total_eV": total,
            "conserved_eV": total + self.ensemble.reservoir_energy,
            "pressure_bar": np.trace(tensor) / 3,
            "volume_A3": volume,
            **{f"p{a}{b}_bar": tensor[i, j] for a, b, i, j in _components},
            "density_g_cm3": self._mass() / volume * DENSITY,
        }
