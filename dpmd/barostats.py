"""Constant pressure: the equations of Martyna, Tobias and Klein, and Berendsen's weak coupling.

The cell is lower triangular: a = (lx, 0, 0), b = (xy, ly, 0), c = (xz, yz, lz).  Six
components, in the order xx yy zz yz xz xy, may each be coupled to a pressure.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from .ensembles import Chain, Fix, NoseHooverChain, Ramp, unless_group
from .errors import InputError, RunError
from .units import pressure_tensor

#: rows and columns of the six components, in the order xx yy zz yz xz xy
ROW, COLUMN = np.array([0, 1, 2, 1, 0, 0]), np.array([0, 1, 2, 2, 2, 1])
COMPONENTS = ("xx", "yy", "zz", "yz", "xz", "xy")
#: tilts beyond this part of an edge are brought back by choosing other lattice vectors
_FLIP = 0.6
_NO_STRESS = np.zeros(6)


@dataclass
class Coupling:
    """To what pressure, and how fast, each of the six components follows.

    targets : {component 0..5: Ramp of the pressure}, bar (or the unit of the constants);
    times : {component: relaxation time, ps}; together : groups of the first three that share
    their mean pressure, e.g. ``((0, 1, 2),)`` for an isotropic cell.
    hydrostatic : only the mean of the targets counts (as for iso, aniso and tri); scaled_tilts : components
    that grow with the edge whose tilt they are.
    """

    targets: dict[int, Ramp]
    times: dict[int, float]
    together: tuple[tuple[int, ...], ...] = ()
    hydrostatic: bool = True
    scaled_tilts: tuple[int, ...] = (3, 4, 5)
    extra: dict = field(default_factory=dict)

    @property
    def isotropic(self):
        return self.together == ((0, 1, 2),) and not self.tilting

    @property
    def tilting(self):
        return any(k > 2 for k in self.targets)

    @classmethod
    def of_kind(cls, kind, target, time):
        """``iso``: one length; ``aniso``: three lengths; ``tri``: lengths and tilts."""
        components = range(6 if kind == "tri" else 3)
        shear = {k: Ramp(0.0) for k in components if k > 2}
        return cls(
            {k: target for k in components if k < 3} | shear, dict.fromkeys(components, time),
            ((0, 1, 2),) if kind == "iso" else (), scaled_tilts=() if kind == "tri" else (3, 4, 5),
        )  # fmt: skip

    def check(self, system):
        """Raises InputError where the cell cannot be coupled like that."""
        for k in self.targets:
            for axis in {int(ROW[k]), int(COLUMN[k])}:
                if not system.periodic[axis]:
                    raise InputError(
                        f"a barostat acts on {COMPONENTS[k]}, but direction {'xyz'[axis]} is not periodic; "
                        "couple periodic directions only"
                    )
        if not np.array_equal(system.cell, np.tril(system.cell)):
            raise InputError(
                "the barostat needs a lower-triangular cell (a along x, b in the xy plane); rotate the structure"
            )

    def average(self, pressures):
        """The pressures (6,), those that act together replaced by their mean; a list."""
        pressures = [float(p) for p in pressures]
        for group in self.together:
            mean = sum(pressures[k] for k in group) / len(group)
            for k in group:
                pressures[k] = mean
        return pressures

    def span(self, first, last):
        for ramp in self.targets.values():
            ramp.span(first, last)


def pressure_components(system, kinetic=None):
    """(6,) bar, in the order xx yy zz yz xz xy; kinetic : the sum of m v v (3, 3), eV, if it is known."""
    kinetic = system.twice_kinetic_tensor() if kinetic is None else kinetic
    return pressure_tensor(kinetic, system.virial, system.volume, system.constants)[COLUMN, ROW]


def flip_tilts(system):
    """Bring tilts back to at most half an edge: the same lattice by other vectors."""
    cell = system.cell
    for row, axis in ((2, 1), (2, 0), (1, 0)):
        if system.periodic[axis] and system.periodic[row] and abs(cell[row, axis]) > _FLIP * cell[axis, axis]:
            system.shift_vector(row, axis, -round(cell[row, axis] / cell[axis, axis]))


class NoseHooverBarostat(NoseHooverChain):
    """NPT and NPH of Martyna, Tobias and Klein, with chains on atoms and cell.

    G. J. Martyna, D. J. Tobias, M. L. Klein, J. Chem. Phys. 101, 4177 (1994); M. Parrinello and
    A. Rahman, J. Appl. Phys. 52, 7182 (1981); integrated symmetrically in time as M. Tuckerman
    et al., J. Phys. A 39, 5629 (2006).  With strain rates w and masses W = (N + 1) k T tau^2:

        W dw/dt = V (P - P_0) + [sum m v^2 over coupled directions] / (n N)
        dv/dt = F/m - (w + tr w / (n N)) v,  dh/dt = w h,  dx/dt = v + w x

    target : T (K) of the step, or None for NPH; cell_target : T of the cell's chain where another
    thermostat holds the atoms, None: target, or for NPH the temperature at the start;
    coupling : :class:`Coupling`; chain lengths; drag : damping of both chains; martyna : include
    the 1/N terms; reference_every : steps after which, and after a run's beginning, a stress that is not
    hydrostatic refers to the present cell, 0 for never.
    """

    changes_cell = True
    needs_virial = True
    momentum_conserved = unless_group

    def __init__(
        self, coupling, target=None, relaxation_time=0.1, chain_length=3, pressure_chain=3, drag=0.0,
        cycles=1, pressure_cycles=1, martyna=True, fixed_point=None, reference_every=0, flip=True, group=None,
        cell_target=None,
    ):  # fmt: skip
        super().__init__(target, relaxation_time, chain_length, drag, cycles, group)
        kind = "NPH" if target is None else "NPT"
        self.name = f"{kind}, Martyna-Tobias-Klein, pressure relaxation time {max(coupling.times.values()):g} ps"
        self.coupling, self.martyna, self.flip = coupling, martyna, flip
        self.pressure_chain = Chain(pressure_chain, drag, pressure_cycles) if pressure_chain else None
        self.drag = drag / pressure_cycles
        #: step at which the run began
        self.first = 0
        self.fixed_point, self.reference_every = fixed_point, reference_every
        self.cell_target = target if cell_target is None else cell_target
        self.components = np.array(sorted(coupling.targets))
        self.diagonal = self.components[self.components < 3]
        self.frequency = 1 / np.array([coupling.times.get(k, math.inf) for k in range(6)])
        self.fastest = float(self.frequency.max())
        #: strain rates, 1/ps, and the kinetic temperature that sets their mass, K
        self.rate, self.mass_temperature = np.zeros(6), None
        self.reference_cell = self.reference_volume = None

    def span(self, first, last):
        self.first = first
        if self.cell_target is not None:
            self.cell_target.span(first, last)
        self.coupling.span(first, last)

    def not_conserved(self):
        if self.cell_target is not None and self.cell_target.changes:
            return "the target temperature changes"
        return "the target pressure changes" if any(r.changes for r in self.coupling.targets.values()) else ""

    def start(self, system, restarted=False):
        self.coupling.check(system)
        if self.reference_cell is None or (self.reference_every and not restarted):
            self.reference_cell, self.reference_volume = system.cell.copy(), system.volume
        if self.fixed_point is None:
            self.fixed_point = system.origin + np.diag(system.cell) / 2
        if self.cell_target is not None:
            if self.mass_temperature is None or not restarted:
                self.mass_temperature = self.cell_target(system.step)
        elif self.mass_temperature is None:
            self.mass_temperature = self.temperature(system) or 300.0
        kt = system.constants.boltzmann * self.mass_temperature
        self.mass = np.zeros(6)
        self.mass[self.components] = (system.n_atoms + 1) * kt / self.frequency[self.components] ** 2
        if not restarted:  # ramps may begin anew
            if self.target is not None:
                super().start(system)
            if self.pressure_chain is not None:
                self.pressure_chain.measure(*self._pressure_chain_targets(system, system.step))
            self._energy = self._barostat_energy(system, system.step)

    # ------------------------------------------------------------------ pieces of a half step

    def _pressure_chain_targets(self, system, step):
        """Twice the kinetic energy of the cell in equilibrium, masses (eV ps^2) and k T of its chain at a step."""
        boltzmann = system.constants.boltzmann
        kt = boltzmann * (self.mass_temperature if self.cell_target is None else self.cell_target(step))
        # as LAMMPS: the masses are those of the start
        mass = np.full(len(self.pressure_chain.eta), boltzmann * self.mass_temperature / self.fastest**2)
        return kt if self.coupling.isotropic else len(self.components) * kt, mass, kt

    def _chain_half_step(self, system, step):
        """The chain on the cell, at the temperature of a step."""
        if self.pressure_chain is None:
            return
        target, mass, kt = self._pressure_chain_targets(system, step)
        self.rate *= self.pressure_chain.half_step(
            float(self.mass @ self.rate**2), target, mass, kt, system.timestep, self.fastest
        )  # fmt: skip

    def _target_pressure(self, step):
        """Mean target at a step, bar, and what exceeds it in the reference cell (3, 3), bar Å, or None."""
        wanted = {k: ramp(step) for k, ramp in self.coupling.targets.items()}
        mean = sum(wanted[k] for k in self.diagonal.tolist()) / max(len(self.diagonal), 1)
        if self.coupling.hydrostatic:
            return mean, None
        targets = np.zeros(6)
        targets[list(wanted)] = list(wanted.values())
        excess = np.zeros((3, 3))
        excess[ROW, COLUMN] = excess[COLUMN, ROW] = targets
        excess -= mean * np.eye(3)  # as LAMMPS, whose target is 0 in directions that are not coupled
        inverse = np.linalg.inv(self.reference_cell.T)
        return mean, self.reference_volume * inverse @ excess @ inverse.T

    def _rate_half_step(self, system):
        """Half a step of the strain rates under the difference of pressures."""
        half, scale = system.timestep / 2, system.constants.pressure
        mean, sigma = self._target_pressure(system.step + 1)
        h = system.cell.T
        stress = _NO_STRESS if sigma is None else (h @ sigma @ h.T)[ROW, COLUMN]  # bar Å^3
        tensor, kinetic = system.twice_kinetic_tensor(), 0.0  # a sum over all ranks: once
        current = self.coupling.average(pressure_components(system, tensor))
        if self.martyna and len(self.diagonal):
            kinetic = sum(tensor[k, k] for k in self.diagonal.tolist()) / (len(self.diagonal) * system.n_atoms)
        drag, volume = 1.0 - system.timestep * self.fastest * self.drag, system.volume
        for k in self.components.tolist():
            force = ((current[k] - (mean if k < 3 else 0.0)) * volume - stress[k]) / scale
            if k < 3:
                force += kinetic
            self.rate[k] = (self.rate[k] + half * force / self.mass[k]) * drag
        if not (np.abs(half * self.rate) < 0.1).all():
            raise RunError.everywhere_raised(
                f"step {system.step}: the barostat strains the cell by {half * np.abs(self.rate).max():.3g} in half a "
                "step. Use a longer relaxation time of the pressure (1000 steps are usual), a smaller time step, or "
                "relax the structure first"
            )

    def _scale_velocities(self, system):
        """Half a step of the velocities under the strain rate alone."""
        half, quarter, w = system.timestep / 2, system.timestep / 4, self.rate.tolist()
        diagonal = self.diagonal.tolist()
        extra = sum(w[k] for k in diagonal) / (len(diagonal) * system.n_atoms) if self.martyna else 0.0
        x, y, z = (math.exp(-quarter * (w[k] + extra)) for k in range(3))
        xy, xz, yz = (-half * w[k] if self.coupling.tilting else 0.0 for k in (5, 4, 3))
        # a shear between two halves of the growth
        self.transform_velocities(
            system, np.array([[x * x, 0, 0], [y * xy * x, y * y, 0], [z * xz * x, z * yz * y, z * z]])
        )  # fmt: skip

    def _strain(self, system):
        """Half a step of the cell, and of the atoms with it; the fixed point stays where it is."""
        half, w, old = system.timestep / 2, self.rate.tolist(), system.cell.tolist()
        lengths, (xy, xz, yz) = [old[k][k] for k in range(3)], (old[1][0], old[2][0], old[2][1])
        growth = [math.exp(half * rate) for rate in w[:3]]
        free = [k in self.coupling.targets for k in range(6)]

        def tilts(xy, xz, yz):
            """A quarter step of the tilts, symmetric in its parts."""

            def move(value, part, rate, source):
                expand = math.exp(part * half / 2 * rate)
                return (value * expand + part * half * source) * expand

            if free[4]:
                xz = move(xz, 0.25, w[0], w[5] * yz + w[4] * lengths[2])
            if free[3]:
                yz = move(yz, 0.5, w[1], w[3] * lengths[2])
            if free[5]:
                xy = move(xy, 0.5, w[0], w[5] * lengths[1])
            if free[4]:
                xz = move(xz, 0.25, w[0], w[5] * yz + w[4] * lengths[2])
            return xy, xz, yz

        if self.coupling.tilting:
            xy, xz, yz = tilts(xy, xz, yz)
        scaled = self.coupling.scaled_tilts
        xy, xz, yz = (
            value * growth[COLUMN[k]] if k in scaled else value for k, value in ((5, xy), (4, xz), (3, yz))
        )  # fmt: skip
        if self.coupling.tilting:
            xy, xz, yz = tilts(xy, xz, yz)
        new = np.array(
            [[lengths[0] * growth[0], 0, 0], [xy, lengths[1] * growth[1], 0], [xz, yz, lengths[2] * growth[2]]]
        )
        system.map_cell(new)
        system.origin = (system.origin - self.fixed_point) * np.array(growth) + self.fixed_point

    # ------------------------------------------------------------------ the step

    def first_half(self, system):
        self._chain_half_step(system, system.step)
        if self.target is not None:
            self.thermostat_half_step(system, system.step + 1)
        if self.reference_every and (system.step + 1 - self.first) % self.reference_every == 0:
            self.reference_cell, self.reference_volume = system.cell.copy(), system.volume
        self._rate_half_step(system)
        self._scale_velocities(system)
        self.kick(system)
        self._strain(system)
        self.drift(system)
        self._strain(system)
        if self.flip and self.coupling.tilting:
            flip_tilts(system)

    def second_half(self, system):
        self.kick(system)
        self._scale_velocities(system)
        self._rate_half_step(system)
        if self.target is not None:
            self.thermostat_half_step(system, system.step + 1)
        self._chain_half_step(system, system.step + 1)
        self._energy = self._barostat_energy(system, system.step + 1)

    _energy = 0.0

    def _barostat_energy(self, system, step):
        """eV, of the cell's motion, of the work against the pressure, and of the cell's chain."""
        mean, sigma = self._target_pressure(step)
        energy = 0.5 * float(self.mass @ self.rate**2)
        if len(self.diagonal):
            energy += mean * (system.volume - self.reference_volume) / system.constants.pressure
        if sigma is not None:
            h = system.cell.T
            energy += 0.5 * float(np.trace(sigma @ h.T @ h)) / system.constants.pressure
        return energy + (self.pressure_chain.energy if self.pressure_chain else 0.0)

    @property
    def reservoir_energy(self):
        """eV, of chains and cell."""
        return (self.chain.energy if self.target is not None else 0.0) + self._energy

    def state(self):
        state = self.chain.state("thermostat") | {
            "rate": self.rate, "fixed_point": np.array(self.fixed_point), "mass_temperature": self.mass_temperature,
            "reference_cell": self.reference_cell, "reference_volume": self.reference_volume, "energy": self._energy,
        }  # fmt: skip
        return state | (self.pressure_chain.state("pressure") if self.pressure_chain else {})

    def restore(self, state):
        self.chain.restore("thermostat", state)
        if self.pressure_chain:
            self.pressure_chain.restore("pressure", state)
        self.rate, self.fixed_point = np.array(state["rate"]), np.array(state["fixed_point"])
        self.mass_temperature, self._energy = float(state["mass_temperature"]), float(state["energy"])
        self.reference_cell, self.reference_volume = np.array(state["reference_cell"]), float(state["reference_volume"])


class BerendsenBarostat(Fix):
    """Weak coupling of the cell to a pressure.

    H. J. C. Berendsen et al., J. Chem. Phys. 81, 3684 (1984): at every step lengths are multiplied
    by [1 - dt / tau (P_0 - P) / modulus]^(1/3).  It brings a system to its density, but the volume's
    fluctuations are not those of any ensemble.

    coupling : lengths only; modulus : bulk modulus, bar, that tau refers to.
    """

    name = "Berendsen barostat"
    changes_cell = True
    needs_virial = True
    momentum_conserved = True

    def not_conserved(self):
        return "the work of the Berendsen barostat is not counted"

    def __init__(self, coupling, modulus=10.0, fixed_point=None):
        self.coupling, self.modulus, self.fixed_point = coupling, modulus, fixed_point

    def span(self, first, last):
        self.coupling.span(first, last)

    def start(self, system, restarted=False):
        self.coupling.check(system)
        if self.fixed_point is None:
            self.fixed_point = system.origin + np.diag(system.cell) / 2

    def end_of_step(self, system):
        current = self.coupling.average(pressure_components(system))
        growth = np.ones(3)
        for k, ramp in self.coupling.targets.items():
            difference = ramp(system.step) - current[k]
            growth[k] = max(1 - system.timestep / self.coupling.times[k] * difference / self.modulus, 0.5) ** (1 / 3)
        system.map_cell(system.cell * growth)
        system.origin = (system.origin - self.fixed_point) * growth + self.fixed_point

    def state(self):
        return {"fixed_point": np.array(self.fixed_point)}

    def restore(self, state):
        self.fixed_point = np.array(state["fixed_point"])
