"""The simulation loop.

It knows no file format, no model and no hardware: forces come from operators, lists and ghosts
from the domain, time integration from the ensemble, and everything optional is a hook.
"""

import time

import numpy as np

from .units import pressure, temperature


class Timers(dict):
    """Seconds per phase of the loop."""

    def __init__(self):
        super().__init__(force=0.0, neighbor=0.0, communication=0.0, integrate=0.0, output=0.0)

    def lap(self, phase, since):
        """Add the time since ``since`` to ``phase``; returns the time now."""
        now = time.perf_counter()
        self[phase] += now - since
        return now


class Hook:
    """Something to do every so many steps.  Override what is needed.

    every : steps; called after the step when ``step % every == 0``, and at the first step.
    """

    every = 1

    def due(self, step, first=False):
        """Whether to be called at this step; ``first``: before the first step of a run."""
        return first or step % self.every == 0

    def start(self, simulation):
        """Before the first step (forces are known)."""

    def __call__(self, simulation):
        """At a step that is due."""

    def finish(self, simulation):
        """After the last step, also when the run is stopped early."""


class Simulation:
    """Atoms, forces and time.

    system : :class:`dpmd.system.System`; operators : :class:`dpmd.kernels.operators.Operators`;
    domain : :class:`dpmd.parallel.SerialDomain`; ensemble : see :mod:`dpmd.ensembles`;
    parameters : ``frame_parameters`` and ``atomic_parameters`` for the operators;
    hooks : called in order.
    """

    def __init__(self, system, operators, domain, ensemble, hooks=(), parameters=None):
        self.system, self.operators, self.domain, self.ensemble = system, operators, domain, ensemble
        self.hooks, self.parameters = list(hooks), parameters or {}
        self.timers = Timers()
        self.steps_done = 0
        #: how often forces were computed
        self.evaluations = 0
        #: evaluations in which some atom had more neighbours than the model's sel, and the most of them
        self.overflows, self.most_overflowed = 0, 0
        #: a hook or a signal sets this to a reason, and the run ends after the step
        self.stop_reason = None
        #: True once a step was left by an error, so that the state belongs to no time
        self.failed = False

    def compute_forces(self, rebuilt=False):
        """Forces, energy and virial at the present positions; lists and ghosts brought up to date.

        ``rebuilt``: the lists have just been rebuilt.
        """
        clock = time.perf_counter()
        rebuilt = rebuilt or self.domain.update(self.system)
        clock = self.timers.lap("neighbor" if rebuilt else "communication", clock)
        domain, system = self.domain, self.system
        result = self.operators.evaluate(
            domain.positions, domain.types, domain.neighbors, domain.forces, **self.parameters
        )
        clock = self.timers.lap("force", clock)
        system.forces[:] = domain.fold(domain.forces)
        self.evaluations += 1
        system.energy, system.virial = float(result.energies[0]), result.virials[0]
        if result.overflowed:
            self.overflows += 1
            self.most_overflowed = max(self.most_overflowed, result.overflowed)
        self.ensemble.after_forces(system)
        self.timers.lap("communication", clock)

    def evaluate_atoms(self):
        """Energies (n,) and virials (n, 3, 3) of the atoms, eV, at the present positions.

        Each pair's share of the virial belongs to the neighbour, as in DeePMD-kit; they sum to W.
        One more evaluation: for outputs, not for every step.
        """
        domain = self.domain
        result = self.operators.evaluate(
            domain.positions, domain.types, domain.neighbors, np.zeros_like(domain.forces), atomic_virials=True,
            **self.parameters,
        )  # fmt: skip
        return result.atomic_energies, domain.fold(result.atomic_virials).copy()

    def run(self, steps, restarted=False):
        """Advance by ``steps`` steps, or fewer if a hook asks to stop.

        ``restarted``: forces came from a checkpoint, and what was due at this step is done.
        Hooks finish in reverse order, after an error too.
        """
        if restarted:
            self.domain.rebuild(self.system)
        else:
            self.compute_forces()
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
            for hook in reversed(self.hooks):
                hook.finish(self)

    def _step(self):
        clock = time.perf_counter()
        self.ensemble.first_half(self.system)
        self.timers.lap("integrate", clock)
        self.compute_forces()
        clock = time.perf_counter()
        self.ensemble.second_half(self.system)
        self.system.step += 1
        self.steps_done += 1
        self.ensemble.end_of_step(self.system)
        self.timers.lap("integrate", clock)

    def call_hooks(self, first=False):
        """Call the hooks that are due at the present step."""
        clock = time.perf_counter()
        for hook in self.hooks:
            if hook.due(self.system.step, first):
                hook(self)
        self.timers.lap("output", clock)

    # ------------------------------------------------------------------ what the log shows

    def observables(self):
        """Step, time (ps), temperature (K), energies (eV), pressure (bar) and volume (Å^3).

        Pressure and volume are NaN unless all three directions are periodic.
        """
        system, kinetic = self.system, self.system.kinetic_energy
        periodic = system.periodic.all()
        total = system.energy + kinetic
        return {
            "step": system.step,
            "time_ps": system.step * self.ensemble.timestep,
            "temperature_K": temperature(kinetic, self.ensemble.degrees_of_freedom(system), system.constants),
            "potential_eV": system.energy,
            "kinetic_eV": kinetic,
            "total_eV": total,
            "conserved_eV": total + self.ensemble.reservoir_energy,
            "pressure_bar": pressure(kinetic, system.virial, system.volume, system.constants)
            if periodic
            else float("nan"),
            "volume_A3": system.volume if periodic else float("nan"),
        }
