"""Time integration: velocity Verlet, alone or with a thermostat.

An ensemble is two half steps around the force evaluation and, for the log, the energy that the
thermostat has taken out (``reservoir_energy``), so that ``E_total + reservoir_energy`` is
conserved.  ``state()`` and ``restore()`` carry what a restart needs; random numbers are
functions of seed, step and atom id and need nothing.
"""

import math

import numpy as np

from dpmd.kernels.random import standard_normals, step_generator

from .units import BOLTZMANN, temperature

#: streams of random numbers
VELOCITIES, LANGEVIN, CSVR = range(3)


class Ramp:
    """A temperature (K) that changes linearly over the steps of a run."""

    def __init__(self, start, end=None, steps=0):
        self.start, self.end, self.steps = start, start if end is None else end, steps

    def __call__(self, step):
        if self.steps == 0:
            return self.end
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


class VelocityVerlet:
    """NVE: constant energy.  W. C. Swope et al., J. Chem. Phys. 76, 637 (1982).

    v += a dt/2, x += v dt, new forces, v += a dt/2.
    """

    name = "NVE, velocity Verlet"
    reservoir_energy = 0.0
    momentum_conserved = True

    def __init__(self, timestep):
        #: ps
        self.timestep = timestep

    def degrees_of_freedom(self, system):
        """3 N, less 3 where the total momentum is conserved (and zero)."""
        n = system.n_atoms
        return 3 * n - (3 if self.momentum_conserved and n > 1 else 0)

    def first_half(self, system):
        system.kick_and_drift(0.5 * self.timestep, self.timestep)

    def second_half(self, system):
        system.kick(0.5 * self.timestep)

    def state(self):
        """Numbers and arrays to be kept in a checkpoint."""
        return {}

    def restore(self, state):
        """Take over what :meth:`state` returned."""


class NoseHooverChain(VelocityVerlet):
    """NVT by a chain of thermostats.  G. J. Martyna et al., Mol. Phys. 87, 1117 (1996).

    Chain velocities u_k with masses Q_1 = f k T tau^2, Q_k = k T tau^2 are moved by half a step
    before and after the Verlet step; the atoms' velocities are scaled by exp(-u_1 dt/2).
    Conserved: E + sum Q_k u_k^2 / 2 + f k T eta_1 + sum_{k>1} k T eta_k.

    target : function of the step giving T (K); relaxation_time : tau, ps.
    A system at rest stays at rest: there is nothing to scale.
    """

    def __init__(self, timestep, target, relaxation_time, chain_length=3):
        super().__init__(timestep)
        self.name = f"NVT, Nose-Hoover chain of {chain_length}, relaxation time {relaxation_time:g} ps"
        self.target, self.relaxation_time = target, relaxation_time
        self.eta, self.eta_velocity = np.zeros(chain_length), np.zeros(chain_length)
        self.reservoir_energy = 0.0

    def _chain_half_step(self, system, step):
        energy = BOLTZMANN * self.target(step)
        freedom = self.degrees_of_freedom(system)
        weight = np.ones(len(self.eta))
        weight[0] = freedom
        mass = weight * energy * self.relaxation_time**2
        twice_kinetic = 2 * system.kinetic_energy
        u, half, quarter, eighth = self.eta_velocity, self.timestep / 2, self.timestep / 4, self.timestep / 8
        last = len(u) - 1

        def force(k):
            return ((twice_kinetic if k == 0 else mass[k - 1] * u[k - 1] ** 2) - weight[k] * energy) / mass[k]

        def push(k):
            """A quarter step of u_k under its force and the friction of u_(k+1)."""
            friction = math.exp(-eighth * u[k + 1]) if k < last else 1.0
            u[k] = (u[k] * friction + quarter * force(k)) * friction

        for k in range(last, -1, -1):
            push(k)
        scale = math.exp(-half * u[0])
        system.scale_velocities(scale)
        twice_kinetic *= scale * scale
        self.eta += half * u
        for k in range(last + 1):
            push(k)
        self.reservoir_energy = float(0.5 * (mass * u * u).sum() + energy * (weight * self.eta).sum())

    def first_half(self, system):
        self._chain_half_step(system, system.step)
        super().first_half(system)

    def second_half(self, system):
        super().second_half(system)
        self._chain_half_step(system, system.step + 1)

    def state(self):
        return {
            "eta": self.eta,
            "eta_velocity": self.eta_velocity,
            "reservoir_energy": self.reservoir_energy,
        }

    def restore(self, state):
        self.eta, self.eta_velocity = np.array(state["eta"]), np.array(state["eta_velocity"])
        self.reservoir_energy = float(state["reservoir_energy"])


class Langevin(VelocityVerlet):
    """NVT by friction and noise on every atom, splitting BAOAB.

    B. Leimkuhler and C. Matthews, J. Chem. Phys. 138, 174102 (2013): kick dt/2, drift dt/2,
    v <- c v + sqrt((1 - c^2) k T / m) noise with c = exp(-dt / tau), drift dt/2, kick dt/2.
    The total momentum fluctuates, so all 3 N degrees of freedom count.

    relaxation_time : tau = 1 / friction, ps; seed : of the noise.
    """

    momentum_conserved = False

    def __init__(self, timestep, target, relaxation_time, seed):
        super().__init__(timestep)
        self.name = f"NVT, Langevin (BAOAB), 1/friction {relaxation_time:g} ps"
        self.target, self.seed = target, seed
        self.decay = math.exp(-timestep / relaxation_time)
        self.reservoir_energy = 0.0

    def first_half(self, system):
        system.kick_and_drift(0.5 * self.timestep, 0.5 * self.timestep)
        before = system.kinetic_energy
        system.add_noise(self.seed, LANGEVIN, self.decay, BOLTZMANN * self.target(system.step))
        self.reservoir_energy += before - system.kinetic_energy
        system.drift(0.5 * self.timestep)

    def state(self):
        return {"reservoir_energy": self.reservoir_energy}

    def restore(self, state):
        self.reservoir_energy = float(state["reservoir_energy"])


class StochasticVelocityRescaling(VelocityVerlet):
    """NVT by rescaling all velocities with a random factor of the right distribution.

    G. Bussi, D. Donadio and M. Parrinello, J. Chem. Phys. 126, 014101 (2007), eq. A7: with
    c = exp(-dt / tau), K' = f k T / 2, one normal number r and s = sum of f - 1 squared ones,
    K_new / K = c + (1 - c) K' (r^2 + s) / (f K) + 2 r sqrt(c (1 - c) K' / (f K)).

    relaxation_time : tau, ps; seed : of the random numbers.
    """

    def __init__(self, timestep, target, relaxation_time, seed):
        super().__init__(timestep)
        self.name = f"NVT, stochastic velocity rescaling, relaxation time {relaxation_time:g} ps"
        self.target, self.seed = target, seed
        self.decay = math.exp(-timestep / relaxation_time)
        self.reservoir_energy = 0.0

    def second_half(self, system):
        super().second_half(system)
        kinetic = system.kinetic_energy
        freedom = self.degrees_of_freedom(system)
        if kinetic == 0.0 or freedom == 0 or self.decay == 1.0:
            return
        generator = step_generator(self.seed, system.step, CSVR)
        r = generator.standard_normal()
        s = generator.chisquare(freedom - 1) if freedom > 1 else 0.0
        ratio = 0.5 * BOLTZMANN * self.target(system.step + 1) / kinetic  # K' / (f K)
        c = self.decay
        factor = c + (1 - c) * ratio * (r * r + s) + 2 * r * math.sqrt(c * (1 - c) * ratio)
        scale = math.copysign(math.sqrt(factor), r + math.sqrt(c / ((1 - c) * ratio)) if ratio > 0 else 1.0)
        system.scale_velocities(scale)
        self.reservoir_energy += kinetic - system.kinetic_energy

    def state(self):
        return {"reservoir_energy": self.reservoir_energy}

    def restore(self, state):
        self.reservoir_energy = float(state["reservoir_energy"])


def create(settings, timestep, steps, seed):
    """The ensemble that a validated ``[ensemble]`` section describes."""
    if settings.type == "nve":
        return VelocityVerlet(timestep)
    target = Ramp(*settings.temperature_K, steps=steps if len(settings.temperature_K) == 2 else 0)
    tau = settings.relaxation_time_ps
    if settings.thermostat == "nose-hoover":
        return NoseHooverChain(timestep, target, tau, settings.chain_length)
    if settings.thermostat == "langevin":
        return Langevin(timestep, target, tau, seed)
    return StochasticVelocityRescaling(timestep, target, tau, seed)


def draw_velocities(system, kelvin, seed, zero_drift=True):
    """Give the atoms Maxwell-Boltzmann velocities at exactly ``kelvin``, total momentum zero.

    Every atom's velocity depends only on the seed, its id and mass, apart from the common
    shift and scale.
    """
    noise = standard_normals(seed, 0, system.ids, VELOCITIES)
    system.velocities = noise * np.sqrt(BOLTZMANN * kelvin * system.inverse_masses)[:, None]
    freedom = 3 * system.n_atoms
    if zero_drift and system.n_atoms > 1:
        system.remove_drift()
        freedom -= 3
    current = temperature(system.kinetic_energy, freedom)
    if current > 0:
        system.velocities *= math.sqrt(kelvin / current)
