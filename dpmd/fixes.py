"""Thermostats, constraints and forces that act beside the integrator, each a :class:`~dpmd.ensembles.Fix`.

Several of them, with one or more integrators, make up an ensemble: :class:`Together`.
"""

import math

import numpy as np

from dpmd.kernels.random import step_generator

from .ensembles import CSVR, LANGEVIN, Fix, rescaling_factor, unless_group
from .units import temperature


class Together(Fix):
    """Fixes, integrators among them, that act one after the other at each stage.

    parts : {name: Fix}, in the order in which they act.
    """

    def __init__(self, parts):
        self.parts = dict(parts)
        self.name = " + ".join(part.name for part in self.parts.values()) or "atoms at rest"

    @property
    def momentum_conserved(self):
        """Whether a total momentum of zero stays zero under each part."""
        return all(part.momentum_conserved for part in self.parts.values())

    @property
    def changes_forces(self):
        """Whether a part adds to the model's forces."""
        return any(part.changes_forces for part in self.parts.values())

    @property
    def changes_cell(self):
        """Whether a part changes the cell."""
        return any(part.changes_cell for part in self.parts.values())

    @property
    def needs_virial(self):
        """Whether a part reads the virial at every step."""
        return any(part.needs_virial for part in self.parts.values())

    @property
    def reservoir_energy(self):
        """eV, of all parts."""
        return sum(part.reservoir_energy for part in self.parts.values())

    def potential_energy(self):
        return sum(part.potential_energy() for part in self.parts.values())

    def not_conserved(self):
        return "; ".join(dict.fromkeys(filter(None, (part.not_conserved() for part in self.parts.values()))))

    def degrees_of_freedom(self, system):
        """3 N, less 3 where no part changes the total momentum (and it is zero)."""
        return 3 * system.n_atoms - (3 if self.momentum_conserved and system.n_atoms > 1 else 0)

    def span(self, first, last):
        for part in self.parts.values():
            part.span(first, last)

    def start(self, system, restarted=False):
        for part in self.parts.values():
            part.start(system, restarted)

    def first_half(self, system):
        for part in self.parts.values():
            part.first_half(system)
        for part in self.parts.values():
            part.moved(system)

    def after_forces(self, system):
        for part in self.parts.values():
            part.after_forces(system)

    def minimizing_forces(self, system):
        for part in self.parts.values():
            part.minimizing_forces(system)

    def second_half(self, system):
        for part in self.parts.values():
            part.second_half(system)

    def end_of_step(self, system):
        for part in self.parts.values():
            part.end_of_step(system)

    def state(self):
        return {f"{name}|{key}": value for name, part in self.parts.items() for key, value in part.state().items()}

    def restore(self, state):
        for name, part in self.parts.items():
            own = {key.split("|", 1)[1]: value for key, value in state.items() if key.startswith(f"{name}|")}
            if own:
                part.restore(own)


class GroupFix(Fix, abstract=True):
    """A fix on a group of atoms (None: all)."""

    def __init__(self, group=None):
        self.group = group

    def chosen(self, system):
        """A mask of the present atoms, or a slice of all."""
        return slice(None) if self.group is None else self.group.mask(system)

    def n_atoms(self, system):
        """Atoms of the group in the whole system."""
        return system.n_atoms if self.group is None else self.group.n_atoms(system)

    def kinetic_energy(self, system):
        """eV, of the group."""
        if self.group is None:
            return system.kinetic_energy
        return 0.5 * float(np.trace(system.twice_kinetic_tensor(self.group.mask(system))))

    def scale_velocities(self, system, factor):
        """v *= factor of the group."""
        if self.group is None:
            system.scale_velocities(factor)
        else:
            system.velocities[self.group.mask(system)] *= factor

    def freedom(self, system):
        """Degrees of freedom of the group, its total momentum fixed."""
        n = self.n_atoms(system)
        return 3 * n - (3 if n > 1 else 0)


class EnergyFix(GroupFix, abstract=True):
    """Forces with a potential energy, ``scalar`` (eV); counts : whether it is part of the total."""

    counts, scalar = False, 0.0

    def potential_energy(self):
        return self.scalar if self.counts else 0.0


class _Reservoir(GroupFix, abstract=True):
    """A thermostat that counts the energy it takes out."""

    def __init__(self, group=None):
        super().__init__(group)
        self.reservoir_energy = 0.0

    @property
    def scalar(self):
        """eV, the energy taken out: f_ID of scripts."""
        return self.reservoir_energy

    def span(self, first, last):
        self.target.span(first, last)

    def state(self):
        return {"reservoir_energy": self.reservoir_energy}

    def restore(self, state):
        self.reservoir_energy = float(state["reservoir_energy"])


class StochasticRescaling(_Reservoir):
    """Thermostat of Bussi, Donadio and Parrinello at the end of steps; see ``rescaling_factor``.

    target : Ramp of T (K); relaxation_time : ps; seed : of the random numbers.
    """

    momentum_conserved = unless_group

    def __init__(self, target, relaxation_time, seed, group=None):
        super().__init__(group)
        self.name = f"stochastic velocity rescaling, relaxation time {relaxation_time:g} ps"
        self.target, self.relaxation_time, self.seed = target, relaxation_time, seed

    def end_of_step(self, system):
        kinetic, kt = self.kinetic_energy(system), system.constants.boltzmann * self.target(system.step)
        generator = step_generator(self.seed, system.step, CSVR)
        decay = math.exp(-system.timestep / self.relaxation_time)
        factor = rescaling_factor(kinetic, self.freedom(system), kt, decay, generator)
        self.scale_velocities(system, factor)
        self.reservoir_energy += kinetic * (1 - factor**2)


class BerendsenThermostat(_Reservoir):
    """Weak coupling to a temperature: v *= sqrt(1 + dt / tau (T_0 / T - 1)).

    H. J. C. Berendsen et al., J. Chem. Phys. 81, 3684 (1984).  The kinetic energy is distributed too
    narrowly: no ensemble.
    """

    momentum_conserved = unless_group

    def __init__(self, target, relaxation_time, group=None):
        super().__init__(group)
        self.name = f"Berendsen thermostat, relaxation time {relaxation_time:g} ps"
        self.target, self.relaxation_time = target, relaxation_time

    def end_of_step(self, system):
        kinetic = self.kinetic_energy(system)
        current = temperature(kinetic, self.freedom(system), system.constants)
        if current <= 0:
            return
        ratio = system.timestep / self.relaxation_time
        factor2 = max(1 + ratio * (self.target(system.step) / current - 1), 0.0)
        self.scale_velocities(system, math.sqrt(factor2))
        self.reservoir_energy += kinetic * (1 - factor2)


class LangevinForce(_Reservoir):
    """Friction and noise as forces, F += -m v / tau + sqrt(2 m k T / (tau dt)) noise.

    T. Schneider and E. Stoll, Phys. Rev. B 17, 1302 (1978).  For use with a velocity Verlet
    integrator; the ensemble ``langevin`` of the TOML input has smaller errors of the time step.

    Of the two half kicks with a force F, before and after a step's end with velocity v, the work is
    dt F.v: the velocities of both differ from v by the same amount.  It counts half on each side, as in LAMMPS.

    zero : the noise adds up to zero over the group; tally : count the work.
    """

    momentum_conserved = False
    changes_forces = True

    def __init__(self, target, relaxation_time, seed, group=None, zero=False, tally=True):
        super().__init__(group)
        self.name = f"Langevin forces, 1/friction {relaxation_time:g} ps"
        self.target, self.relaxation_time, self.seed, self.zero, self.tally = target, relaxation_time, seed, zero, tally
        #: the first step of the run, if it is known
        self.first = None

    #: True between the first half of a step and its end, when forces are those of the next step
    _moving = False
    #: eV, work of the present forces in one half kick; and those forces
    _half, _added = 0.0, None

    def span(self, first, last):
        super().span(first, last)
        self.first = first

    def start(self, system, restarted=False):
        if system.step == self.first:  # as in LAMMPS, each run of a script counts for itself
            self.reservoir_energy = 0.0

    def first_half(self, system):
        self._moving = True

    def after_forces(self, system):
        step, tau = system.step + self._moving, self.relaxation_time
        strength = 2 * system.constants.boltzmann * self.target(step) / (tau * system.timestep)
        chosen = self._mask(system)
        self._added = system.add_langevin_forces(self.seed, step, LANGEVIN, tau, strength, chosen, self.zero)
        if not self._moving:
            self._half = self._half_work(system)

    def minimizing_forces(self, system):
        """None: friction and noise have no energy."""

    def end_of_step(self, system):
        self._moving = False
        before, self._half = self._half, self._half_work(system)
        self.reservoir_energy -= before + self._half

    def _mask(self, system):
        return None if self.group is None else self.group.mask(system)

    def _half_work(self, system):
        return 0.5 * system.timestep * system.power(self._added, self._mask(system)) if self.tally else 0.0

    def state(self):
        return super().state() | {"half_work": self._half}

    def restore(self, state):
        super().restore(state)
        # checkpoints of dpmd's first state lack it: the energy then begins lower by half a step's work
        self._half = float(state.get("half_work", 0.0))


class Momentum(GroupFix):
    """Removes linear (per direction) or angular momentum of the group every so many steps.

    rescale : keep the kinetic energy by scaling the velocities.
    """

    name = "momentum removed"
    momentum_conserved = unless_group

    def __init__(self, every, linear=None, angular=False, rescale=False, group=None):
        super().__init__(group)
        self.every, self.linear, self.angular, self.rescale = every, linear, angular, rescale

    def end_of_step(self, system):
        if system.step % self.every:
            return
        before = self.kinetic_energy(system)
        chosen = self.chosen(system)
        if self.linear is not None:
            remove_momentum(system, chosen, np.array(self.linear, bool))
        if self.angular:
            remove_rotation(system, chosen)
        after = self.kinetic_energy(system)
        if self.rescale and after > 0:
            system.velocities[chosen] *= math.sqrt(before / after)


def remove_momentum(system, chosen, directions=(True, True, True)):
    """Make the total momentum of the chosen atoms zero."""
    mass = system.masses[chosen]
    total = system.sum(mass.sum())
    if total > 0:
        drift = system.sum(mass @ system.velocities[chosen]) / total
        system.velocities[chosen] -= np.where(directions, drift, 0.0)


def remove_rotation(system, chosen):
    """Make the angular momentum of the chosen atoms about their centre of mass zero."""
    mass, x = system.masses[chosen], system.unwrapped_positions[chosen]
    total = system.sum(mass.sum())
    if total == 0:
        return
    r = x - system.sum(mass @ x) / total
    v = system.velocities[chosen]
    momentum = system.sum((mass[:, None] * np.cross(r, v)).sum(axis=0))
    inertia = system.sum((mass * (r * r).sum(axis=1)).sum()) * np.eye(3) - system.sum((mass[:, None] * r).T @ r)
    omega = np.linalg.pinv(inertia) @ momentum
    system.velocities[chosen] = v - np.cross(omega, r)


class SetForce(GroupFix):
    """Replaces force components; values : (3,) eV/Å, None where the force stays."""

    name = "forces set"
    changes_forces = True
    momentum_conserved = False

    def __init__(self, values, group=None):
        super().__init__(group)
        self.values, self.vector = values, np.zeros(3)

    def after_forces(self, system):
        chosen = self.chosen(system)
        #: eV/Å, total force on the group before it was replaced
        self.vector = system.sum(system.forces[chosen].sum(axis=0))
        for axis, value in enumerate(self.values):
            if value is not None:
                system.forces[chosen, axis] = value


class AddForce(EnergyFix):
    """Adds the same force, (3,) eV/Å, to each atom; its potential energy is -F.x."""

    name = "constant forces"
    changes_forces = True
    momentum_conserved = False

    def __init__(self, values, group=None):
        super().__init__(group)
        self.values, self.vector = np.array(values, float), np.zeros(3)

    def after_forces(self, system):
        chosen = self.chosen(system)
        self.vector = system.sum(system.forces[chosen].sum(axis=0))
        x = system.unwrapped_positions[chosen] + system.origin
        self.scalar = -float(system.sum((x @ self.values).sum()))
        system.forces[chosen] += self.values


class SpringSelf(EnergyFix):
    """A spring that ties each atom to where it was: F = -k (x - x0).

    stiffness : k, eV/Å^2; directions : (3,) bool.
    """

    name = "springs to the first positions"
    changes_forces = True
    momentum_conserved = False

    def __init__(self, stiffness, directions=(True, True, True), group=None):
        super().__init__(group)
        self.stiffness, self.directions = stiffness, np.array(directions, bool)
        self.anchors = None

    def remember(self, system):
        """Take the present positions, by id, as anchors."""
        self.anchors = np.zeros((int(system.ids.max(initial=0)) + 1, 3))
        self.anchors[system.ids] = system.unwrapped_positions

    def after_forces(self, system):
        if self.anchors is None:
            self.remember(system)
        chosen = self.chosen(system)
        away = (system.unwrapped_positions - self.anchors[system.ids])[chosen] * self.directions
        self.scalar = 0.5 * self.stiffness * float(system.sum((away * away).sum()))
        system.forces[chosen] -= self.stiffness * away

    def state(self):
        return {} if self.anchors is None else {"anchors": self.anchors}

    def restore(self, state):
        self.anchors = np.array(state["anchors"])


class Recenter(GroupFix):
    """Shifts the atoms so that the group's centre of mass stays where it is to be.

    target : (3,) Å (unwrapped) or functions that return it, NaN: where it was at the start of the run, None: free.
    shifted : the Group to shift, None for all.
    """

    name = "centre of mass held"
    momentum_conserved = True

    def __init__(self, target, group=None, shifted=None):
        super().__init__(group)
        self.target, self.shifted, self.vector, self.scalar = list(target), shifted, np.zeros(3), 0.0

    def centre(self, system):
        """(3,) Å, centre of mass of the group, unwrapped."""
        chosen = self.chosen(system)
        mass = system.masses[chosen]
        return system.sum(mass @ system.unwrapped_positions[chosen]) / system.sum(mass.sum()) + system.origin

    def start(self, system, restarted=False):
        centre = self.centre(system)
        self.fixed = [c if t != t else t for t, c in zip(self.target, centre, strict=True)]

    def first_half(self, system):
        centre = self.centre(system)
        wanted = [c if t is None else t() if callable(t) else t for t, c in zip(self.fixed, centre, strict=True)]
        shift = np.array(wanted) - centre
        system.positions[slice(None) if self.shifted is None else self.shifted.mask(system)] += shift
        self.vector, self.scalar = shift, float(np.linalg.norm(shift))


class WallReflect(GroupFix):
    """Walls that turn atoms back: the overshoot and the velocity change sign.

    walls : (axis, side -1 or 1, position Å or None for the cell's face).
    """

    name = "reflecting walls"
    momentum_conserved = False

    def __init__(self, walls, group=None):
        super().__init__(group)
        self.walls = walls

    def moved(self, system):
        chosen = np.arange(len(system)) if self.group is None else np.flatnonzero(self.group.mask(system))
        for axis, side, position in self.walls:
            if position is None:
                wall = 0.0 if side < 0 else system.cell[axis, axis]
            else:
                wall = position - system.origin[axis]
            x = system.positions[chosen, axis]
            beyond = chosen[(x - wall) * side > 0]
            system.positions[beyond, axis] = 2 * wall - system.positions[beyond, axis]
            system.velocities[beyond, axis] *= -1


class Deform(Fix):
    """Changes the cell in time; the atoms follow (or not).

    rules : {component 0..5 (xx yy zz yz xz xy): function(elapsed ps, fraction of the run, first
    value, first length of the edge or, for a tilt, of the edge that is tilted) -> value Å};
    every : steps; carry : whether atoms keep their fractions of the cell, or stay where they are;
    lows : {axis: function(fraction of the run, first coordinate of the lower face) -> coordinate Å}, without
    which a length changes about its middle.  A run that begins where its span does changes the cell that it finds,
    a later part of a span that of the first run.
    """

    name = "cell deformed"
    changes_cell = True
    momentum_conserved = True

    def __init__(self, every, rules, carry=True, lows=None):
        self.every, self.rules, self.carry, self.lows = every, rules, carry, lows or {}
        self.first, self.steps, self.begin, self.initial = 0, 0, None, None

    def span(self, first, last):
        self.first, self.steps = first, last - first

    def start(self, system, restarted=False):
        present = (system.cell.copy(), system.origin.copy())
        self.initial = self.initial or present
        self.begin = present if system.step == self.first else self.initial

    def end_of_step(self, system):
        if system.step % self.every:
            return
        elapsed = (system.step - self.first) * system.timestep
        fraction = (system.step - self.first) / self.steps if self.steps else 1.0
        cell, origin, (first_cell, first_origin) = system.cell.copy(), system.origin.copy(), self.begin
        for k, rule in self.rules.items():
            row, column = ((0, 0), (1, 1), (2, 2), (2, 1), (2, 0), (1, 0))[k]
            cell[row, column] = rule(elapsed, fraction, first_cell[row, column], first_cell[row, row])
            if k in self.lows:
                system.origin[k] = self.lows[k](fraction, first_origin[k])
            elif k < 3:
                system.origin[k] = first_origin[k] - (cell[k, k] - first_cell[k, k]) / 2
        if self.carry:
            system.map_cell(cell)
        else:
            system.cell = cell
            system.positions += origin - system.origin

    def state(self):
        return {} if self.initial is None else {"cell": self.initial[0], "origin": self.initial[1]}

    def restore(self, state):
        self.initial = np.array(state["cell"]), np.array(state["origin"])
