"""Time integration: velocity Verlet, alone or with a thermostat.

An ensemble is two half steps around the force evaluation and, for the log, the energy that the
thermostat has taken out (``reservoir_energy``), so that ``E_total + reservoir_energy`` is
conserved.  ``state()`` and ``restore()`` carry what a restart needs; random numbers are
functions of seed, step and atom id and need nothing.
"""

import math

import numpy as np

from dpmd.kernels.integrate import chain_half_step, drift, kick
from dpmd.kernels.random import standard_normals, step_generator

from .units import temperature

#: streams of random numbers
VELOCITIES, LANGEVIN, CSVR = range(3)


class Ramp:
    """A quantity, such as a temperature (K), that changes linearly over the steps of a run."""

    def __init__(self, start, end=None, steps=0, first=0):
        self.start, self.end, self.steps, self.first = start, start if end is None else end, steps, first

    def span(self, first, last):
        """The ramp is to reach from step ``first`` to step ``last``."""
        self.first, self.steps = first, last - first

    def __call__(self, step):
        if self.steps == 0:
            return self.start
        return self.start + (self.end - self.start) * min((step - self.first) / self.steps, 1.0)

    @property
    def changes(self):
        """Whether its value depends on the step."""
        return self.steps != 0 and self.end != self.start


class Fix:
    """Something that acts at given stages of a step.  Override what is needed.

    ``first_half``, ``moved`` once all have moved the atoms, then new forces, ``after_forces``, ``second_half``, and
    ``end_of_step`` once the step's number has been raised.  ``start`` is called when a run begins, with forces known.
    The time step is ``system.timestep``: nothing that depends on it is to be kept, for it may change.

    Each class says for itself (a property, where it depends on the instance) whether a total momentum of
    zero stays zero: ``momentum_conserved``.  Helpers that others are made of are declared ``abstract=True``.
    """

    name = ""
    #: eV taken out of the atoms
    reservoir_energy = 0.0
    #: whether it moves the atoms
    integrates = False
    #: whether it adds to the model's forces
    changes_forces = False
    #: whether it changes the cell
    changes_cell = False
    #: whether it reads the virial at every step
    needs_virial = False

    def __init_subclass__(cls, abstract=False, **more):
        super().__init_subclass__(**more)
        if not (abstract or "momentum_conserved" in vars(cls)):
            raise TypeError(f"{cls.__name__} must say whether a total momentum of zero stays zero: momentum_conserved")

    def span(self, first, last):
        """The coming run goes from step ``first`` to ``last``: ramps reach from one to the other."""

    def start(self, system, restarted=False):
        """Before the first step."""

    def first_half(self, system):
        """Before the forces."""

    def moved(self, system):
        """After the first halves of all, before the forces: may correct where atoms went."""

    def after_forces(self, system):
        """May change ``system.forces``."""

    def minimizing_forces(self, system):
        """Like :meth:`after_forces`, while a minimisation goes on."""
        self.after_forces(system)

    def second_half(self, system):
        """After the forces."""

    def end_of_step(self, system):
        """After the second halves of all."""

    def potential_energy(self):
        """eV, of forces that this adds and that count in the total energy."""
        return 0.0

    def not_conserved(self):
        """Why the total energy plus ``reservoir_energy`` does not stay as it is; "" where it does."""
        return ""

    def state(self):
        """Numbers and arrays to be kept in a checkpoint."""
        return {}

    def restore(self, state):
        """Take over what :meth:`state` returned."""


#: ``momentum_conserved`` of what acts on all atoms alike: a group of them exchanges momentum with the others
unless_group = property(lambda self: self.group is None)


class Group:
    """Some of the atoms, by id.

    chosen : (largest id + 1,) bool; name : for messages.
    """

    def __init__(self, chosen, name=""):
        self.chosen, self.name = np.asarray(chosen, bool), name

    def mask(self, system):
        """(n,) bool, in the present order of the atoms."""
        return self.chosen[system.ids]

    def n_atoms(self, system):
        """Of the whole system."""
        return int(system.sum(int(np.count_nonzero(self.mask(system)))))


class VelocityVerlet(Fix):
    """NVE: constant energy.  W. C. Swope et al., J. Chem. Phys. 76, 637 (1982).

    v += a dt/2, x += v dt, new forces, v += a dt/2.

    group : the atoms to move, None for all.
    """

    name = "NVE, velocity Verlet"
    momentum_conserved = unless_group
    integrates = True

    def __init__(self, group=None):
        self.group = group

    def degrees_of_freedom(self, system):
        """3 N, less 3 where the total momentum is conserved (and zero), and for every group, as LAMMPS counts."""
        n = system.n_atoms if self.group is None else self.group.n_atoms(system)
        return 3 * n - (3 if n > 1 and (self.momentum_conserved or self.group is not None) else 0)

    def kinetic_energy(self, system):
        """eV, of the atoms that are moved."""
        if self.group is None:
            return system.kinetic_energy
        return 0.5 * float(np.trace(system.twice_kinetic_tensor(self.group.mask(system))))

    def temperature(self, system):
        """K, of the atoms that are moved."""
        return temperature(self.kinetic_energy(system), self.degrees_of_freedom(system), system.constants)

    def scale_velocities(self, system, factor):
        """Multiply the velocities of the atoms that are moved; factor : a number or (3,)."""
        if self.group is None:
            system.scale_velocities(factor)
        else:
            system.velocities[self.group.mask(system)] *= factor

    def transform_velocities(self, system, matrix):
        """v <- v matrix of the atoms that are moved."""
        if self.group is None:
            system.transform_velocities(matrix)
        else:
            chosen = self.group.mask(system)
            system.velocities[chosen] = system.velocities[chosen] @ matrix

    def kick(self, system):
        """Half a step of the velocities."""
        if self.group is None:
            system.kick(0.5 * system.timestep)
        else:
            inverse = system.inverse_masses * self.group.mask(system)
            kick(system.velocities, system.forces, inverse, 0.5 * system.timestep)

    def drift(self, system, fraction=1.0):
        """A step of the positions, or part of one."""
        if self.group is None:
            system.drift(fraction * system.timestep)
        else:
            drift(
                system.positions, system.velocities * self.group.mask(system)[:, None], fraction * system.timestep
            )  # fmt: skip

    def first_half(self, system):
        self.kick(system)
        self.drift(system)

    def second_half(self, system):
        self.kick(system)


class Chain:
    """A Nose-Hoover chain on some kinetic energy.  G. J. Martyna et al., Mol. Phys. 87, 1117 (1996).

    length : thermostats; drag : of the velocities, 0 for none; cycles : smaller steps per half step.
    """

    def __init__(self, length=3, drag=0.0, cycles=1):
        self.eta, self.velocity = np.zeros(length), np.zeros(length)
        self.drag, self.cycles = drag, cycles
        self.energy = 0.0

    def half_step(self, twice_kinetic, target, mass, kt, timestep, frequency=0.0):
        """Move the chain by half a step; returns the factor by which to scale the velocities.

        twice_kinetic : of what is thermostatted, and target : its value in equilibrium, eV;
        mass : (length,) eV ps^2; kt : eV; frequency : 1/ps, which the drag is relative to.
        """
        drag = 1.0 - timestep * frequency * self.drag / self.cycles
        factor, self.energy = chain_half_step(
            self.eta, self.velocity, mass, twice_kinetic, target, kt, timestep, self.cycles, drag
        )  # fmt: skip
        return factor

    def measure(self, target, mass, kt):
        """Take the energy, eV, of the present motion at other targets than those of the last half step."""
        self.energy = target * self.eta[0] + 0.5 * float(mass @ self.velocity**2) + kt * float(self.eta[1:].sum())

    def state(self, prefix):
        """What a restart needs, as {prefix_name: value}."""
        return {f"{prefix}_eta": self.eta, f"{prefix}_velocity": self.velocity, f"{prefix}_energy": self.energy}

    def restore(self, prefix, state):
        """Take over what :meth:`state` returned."""
        self.eta, self.velocity = np.array(state[f"{prefix}_eta"]), np.array(state[f"{prefix}_velocity"])
        self.energy = float(state[f"{prefix}_energy"])


class NoseHooverChain(VelocityVerlet):
    """NVT by a chain of thermostats.  G. J. Martyna et al., Mol. Phys. 87, 1117 (1996).

    Chain velocities u_k with masses Q_1 = f k T tau^2, Q_k = k T tau^2 are moved by half a step
    before and after the Verlet step; the atoms' velocities are scaled by exp(-u_1 dt/2).
    Conserved: E + sum Q_k u_k^2 / 2 + f k T eta_1 + sum_{k>1} k T eta_k.

    target : function of the step giving T (K); relaxation_time : tau, ps.
    A system at rest stays at rest: there is nothing to scale.
    """

    momentum_conserved = unless_group

    def __init__(self, target, relaxation_time, chain_length=3, drag=0.0, cycles=1, group=None):
        super().__init__(group)
        self.name = f"NVT, Nose-Hoover chain of {chain_length}, relaxation time {relaxation_time:g} ps"
        self.target, self.relaxation_time = target, relaxation_time
        self.chain = Chain(chain_length, drag, cycles)

    @property
    def reservoir_energy(self):
        """eV, of the chain."""
        return self.chain.energy

    @property
    def scalar(self):
        """eV, f_ID of scripts."""
        return self.reservoir_energy

    def span(self, first, last):
        self.target.span(first, last)

    def not_conserved(self):
        return "the target temperature changes" if self.target.changes else ""

    def start(self, system, restarted=False):
        if not restarted:  # a ramp may begin anew
            self.chain.measure(*self._chain_targets(system, system.step))

    def _chain_targets(self, system, step):
        """f k T, masses (eV ps^2) and k T of the chain at a step."""
        kt, freedom = system.constants.boltzmann * self.target(step), self.degrees_of_freedom(system)
        mass = np.full(len(self.chain.eta), kt * self.relaxation_time**2)
        mass[0] *= freedom
        return freedom * kt, mass, kt

    def thermostat_half_step(self, system, step):
        """Move the chain and scale the atoms' velocities."""
        target, mass, kt = self._chain_targets(system, step)
        factor = self.chain.half_step(
            2 * self.kinetic_energy(system), target, mass, kt, system.timestep, 1 / self.relaxation_time
        )
        self.scale_velocities(system, factor)

    def first_half(self, system):
        self.thermostat_half_step(system, system.step + 1)
        super().first_half(system)

    def second_half(self, system):
        super().second_half(system)
        self.thermostat_half_step(system, system.step + 1)

    def state(self):
        return self.chain.state("thermostat")

    def restore(self, state):
        self.chain.restore("thermostat", state)


class Langevin(VelocityVerlet):
    """NVT by friction and noise on every atom, splitting BAOAB.

    B. Leimkuhler and C. Matthews, J. Chem. Phys. 138, 174102 (2013): kick dt/2, drift dt/2,
    v <- c v + sqrt((1 - c^2) k T / m) noise with c = exp(-dt / tau), drift dt/2, kick dt/2.
    The total momentum fluctuates, so all 3 N degrees of freedom count.

    relaxation_time : tau = 1 / friction, ps; seed : of the noise.
    """

    momentum_conserved = False

    def __init__(self, target, relaxation_time, seed):
        super().__init__()
        self.name = f"NVT, Langevin (BAOAB), 1/friction {relaxation_time:g} ps"
        self.target, self.relaxation_time, self.seed = target, relaxation_time, seed
        self.reservoir_energy = 0.0

    def first_half(self, system):
        self.kick(system)
        self.drift(system, 0.5)
        energy = system.constants.boltzmann * self.target(system.step)
        decay = math.exp(-system.timestep / self.relaxation_time)
        self.reservoir_energy -= system.add_noise(self.seed, LANGEVIN, decay, energy)
        self.drift(system, 0.5)

    def state(self):
        return {"reservoir_energy": self.reservoir_energy}

    def restore(self, state):
        self.reservoir_energy = float(state["reservoir_energy"])


def rescaling_factor(kinetic, freedom, kt, decay, generator):
    """Factor by which stochastic rescaling multiplies velocities (its sign included).

    G. Bussi, D. Donadio and M. Parrinello, J. Chem. Phys. 126, 014101 (2007), eq. A7: with
    c = exp(-dt / tau), K' = f k T / 2, one normal number r and s = sum of f - 1 squared ones,
    K_new / K = c + (1 - c) K' (r^2 + s) / (f K) + 2 r sqrt(c (1 - c) K' / (f K)).

    kinetic : K, eV; freedom : f; kt : k T, eV; decay : c.
    """
    if kinetic == 0.0 or freedom == 0 or decay == 1.0:
        return 1.0
    r = generator.standard_normal()
    s = generator.chisquare(freedom - 1) if freedom > 1 else 0.0
    ratio, c = 0.5 * kt / kinetic, decay  # K' / (f K)
    factor = c + (1 - c) * ratio * (r * r + s) + 2 * r * math.sqrt(c * (1 - c) * ratio)
    return math.copysign(math.sqrt(factor), r + math.sqrt(c / ((1 - c) * ratio)) if ratio > 0 else 1.0)


class StochasticVelocityRescaling(VelocityVerlet):
    """NVT by rescaling all velocities with a random factor; see :func:`rescaling_factor`.

    relaxation_time : tau, ps; seed : of the random numbers.
    """

    momentum_conserved = unless_group

    def __init__(self, target, relaxation_time, seed):
        super().__init__()
        self.name = f"NVT, stochastic velocity rescaling, relaxation time {relaxation_time:g} ps"
        self.target, self.relaxation_time, self.seed = target, relaxation_time, seed
        self.reservoir_energy = 0.0

    def second_half(self, system):
        super().second_half(system)
        kinetic, kt = system.kinetic_energy, system.constants.boltzmann * self.target(system.step + 1)
        generator = step_generator(self.seed, system.step, CSVR)
        decay = math.exp(-system.timestep / self.relaxation_time)
        factor = rescaling_factor(kinetic, self.degrees_of_freedom(system), kt, decay, generator)
        system.scale_velocities(factor)
        self.reservoir_energy += kinetic * (1 - factor**2)

    def state(self):
        return {"reservoir_energy": self.reservoir_energy}

    def restore(self, state):
        self.reservoir_energy = float(state["reservoir_energy"])


def create(settings, steps, seed):
    """The ensemble that a validated ``[ensemble]`` section describes; steps : over which ramps extend."""
    from .barostats import BerendsenBarostat, Coupling, NoseHooverBarostat
    from .fixes import BerendsenThermostat, LangevinForce, StochasticRescaling, Together

    def ramp(values):
        return Ramp(*values, steps=steps if len(values) == 2 else 0)

    tau = settings.relaxation_time_ps
    target = ramp(settings.temperature_K) if settings.type in ("nvt", "npt") else None
    if settings.type == "nve":
        return VelocityVerlet()
    if settings.type == "nvt":
        if settings.thermostat == "nose-hoover":
            return NoseHooverChain(target, tau, settings.chain_length)
        if settings.thermostat == "langevin":
            return Langevin(target, tau, seed)
        if settings.thermostat == "csvr":
            return StochasticVelocityRescaling(target, tau, seed)
    parts = {}
    if settings.type in ("npt", "nph"):
        coupling = Coupling.of_kind(
            settings.coupling, ramp(settings.pressure_bar), settings.pressure_relaxation_time_ps
        )
        if settings.barostat == "mtk":
            chain = target is not None and settings.thermostat == "nose-hoover"
            barostat = NoseHooverBarostat(
                coupling, target if chain else None, tau, settings.chain_length, settings.chain_length,
                cell_target=target,
            )  # fmt: skip
            if chain or target is None:
                return barostat
            parts["barostat"] = barostat
        else:
            chain = settings.thermostat == "nose-hoover" and target is not None
            integrator = (
                NoseHooverChain(target, tau, settings.chain_length) if chain else VelocityVerlet()
            )
            parts |= {
                "integrator": integrator,
                "barostat": BerendsenBarostat(coupling, settings.bulk_modulus_bar),
            }
    else:
        parts["integrator"] = VelocityVerlet()
    if target is not None and settings.thermostat != "nose-hoover":
        parts["thermostat"] = {
            "csvr": lambda: StochasticRescaling(target, tau, seed),
            "langevin": lambda: LangevinForce(target, tau, seed),
            "berendsen": lambda: BerendsenThermostat(target, tau),
        }[settings.thermostat]()
    return Together(parts)


def draw_velocities(system, kelvin, seed, zero_drift=True):
    """Give the atoms Maxwell-Boltzmann velocities at exactly ``kelvin``, total momentum zero.

    Every atom's velocity depends only on the seed, its id and mass, apart from the common
    shift and scale.
    """
    noise = standard_normals(seed, 0, system.ids, VELOCITIES)
    system.velocities = noise * np.sqrt(system.constants.boltzmann * kelvin * system.inverse_masses)[:, None]
    freedom = 3 * system.n_atoms
    if zero_drift and system.n_atoms > 1:
        system.remove_drift()
        freedom -= 3
    current = temperature(system.kinetic_energy, freedom, system.constants)
    if current > 0:
        system.velocities *= math.sqrt(kelvin / current)
