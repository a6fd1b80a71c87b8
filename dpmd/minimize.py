"""Minimisation of the energy, or of the enthalpy if the cell relaxes too.

All minimisers see one vector of coordinates: the atoms' positions in the frame of the first cell
and, scaled to be about as stiff, the strains of the cell.  On several ranks each has its atoms' part
of a vector and all of the strains; sums and maxima over ranks are the same on all, and so are decisions.
"""

import math
from dataclasses import dataclass

import numpy as np

from .barostats import COLUMN, ROW
from .ensembles import Fix
from .errors import InputError

METHODS = ("cg", "sd", "fire", "quickmin")
_SMALL = 1e-8
_STUCK = "linesearch alpha is zero"
_CONVERGED = ("force tolerance", "energy tolerance")
#: eV, and eV per atom where networks compute in float32: smaller changes of the energy are not told from rounding
_UNRESOLVED, _UNRESOLVED_SINGLE = 1e-8, 1e-6
#: eV/Å, per component: smaller forces are felt to be rounded where networks compute in float32 (they are off by
#: some 1e-6 of the forces before the minimisation), and are computed in float64 from there on
_ROUNDED = 1e-4


class BoxRelaxation(Fix):
    """Lets the cell relax to given pressures during a minimisation.

    targets : {component 0..5 (xx yy zz yz xz xy): pressure, bar}; together : components that share one
    strain; largest : strain per iteration, at most.
    """

    name = "cell relaxed"
    changes_cell = True
    momentum_conserved = True

    def __init__(self, targets, together=(), largest=1e-4):
        self.targets, self.together, self.largest = targets, together, largest
        free = [k for k in sorted(targets) if not any(k in group for group in together)]
        #: components that move together, for each strain
        self.strains = [tuple(group) for group in together] + [(k,) for k in free]


@dataclass
class Outcome:
    """How a minimisation ended.

    energies : eV, at first, before the last iteration and at the end: the enthalpy E + P (V - V0) where the cell
    relaxes; force_norms, largest_forces : eV/Å, at first and at the end; double_from : the iteration from which
    networks computed in float64, None if they did not or did from the beginning.
    """

    reason: str
    iterations: int
    evaluations: int
    energies: tuple[float, float, float]
    force_norms: tuple[float, float]
    largest_forces: tuple[float, float]
    double_from: int | None = None

    @property
    def converged(self):
        """Whether it ended by one of its tolerances."""
        return self.reason in _CONVERGED

    @property
    def shortfall(self):
        """A sentence about a minimisation that has not converged: how it ended, and what may help."""
        helps = {
            "max iterations": "more iterations help",
            "max force evaluations": "more evaluations help",
            _STUCK: "the energy does not fall along the forces, so that fire may get further",
        }.get(self.reason)
        return (
            f"the minimisation has not converged: {self.reason} after {self.iterations} iterations, with a largest "
            f"force component of {self.largest_forces[1]:.2e} eV/Å" + (f"; {helps}" if helps else "")
        )


class Minimizer:
    """Moves a simulation's atoms downhill.

    Where rounding is felt in ``mixed`` or ``half`` precision (small forces, no way down, an energy that no longer
    changes), the networks are evaluated in float64 from there to the end, on the same device.

    simulation : its forces are used, its hooks are not called; method : one of METHODS.
    energy_tolerance : stop when the energy changes by less than this fraction; force_tolerance : eV/Å, stop
    when the norm of the force vector is below, to which a relaxing cell adds its forces in eV per unit of
    strain; both 0: never.
    largest_move : Å per iteration and atom; timestep : ps, of fire and quickmin; norm : ``two`` or ``max``.
    box : :class:`BoxRelaxation` or None.
    after : called with the simulation after each iteration.
    """

    def __init__(
        self, simulation, method="cg", energy_tolerance=0.0, force_tolerance=1e-6, iterations=1000, evaluations=10000,
        largest_move=0.1, timestep=0.001, norm="two", box=None, after=None,
    ):  # fmt: skip
        if method not in METHODS:
            raise InputError(f"minimisation method {method!r} is not one of {', '.join(METHODS)}")
        if box is not None and method in ("fire", "quickmin"):
            raise InputError(f"the cell cannot relax with {method}; use cg or sd")
        self.simulation, self.method, self.box, self.after = simulation, method, box, after
        self.energy_tolerance, self.force_tolerance = energy_tolerance, force_tolerance
        self.iterations, self.most_evaluations = iterations, evaluations
        self.largest_move, self.timestep, self.norm = largest_move, timestep, norm
        self.evaluations = 0
        self._strains = {}
        #: whether networks compute in less than float64
        self.rounded = getattr(simulation.operators, "precision", "double") != "double"
        #: eV
        self.unresolved = _UNRESOLVED_SINGLE * simulation.system.n_atoms if self.rounded else _UNRESOLVED

    # ------------------------------------------------------------------ coordinates

    @property
    def system(self):
        return self.simulation.system

    def _begin(self):
        system = self.system
        self.cell, self.volume = system.cell.copy(), system.volume
        self.strain = np.zeros(len(self.box.strains) if self.box else 0)
        #: Å per unit of strain
        self.stiffness = math.sqrt(max(system.n_atoms, 1)) * self.volume ** (1 / 3) / max(system.n_atoms, 1) ** (1 / 3)

    def _deformation(self, strain):
        """Cell rows are multiplied by this matrix from the right."""
        matrix = np.eye(3)
        for value, components in zip(strain, self.box.strains, strict=True):
            for k in components:
                matrix[COLUMN[k], ROW[k]] += value
        return matrix

    def _gradient(self):
        """Enthalpy, force on the atoms (first cell's frame) and on the strains (per Å)."""
        system = self.system
        energy = system.energy + self.simulation.ensemble.potential_energy()
        if not self.box:
            return energy, system.forces.copy(), np.zeros(0)
        deformation = self._deformation(self.strain)
        scale, volume = system.constants.pressure, system.volume
        targets = np.zeros((3, 3))
        diagonal = [k for k in self.box.targets if k < 3]
        for k, p in self.box.targets.items():
            targets[ROW[k], COLUMN[k]] = targets[COLUMN[k], ROW[k]] = p / scale
        mean = np.mean([self.box.targets[k] for k in diagonal]) / scale if diagonal else 0.0
        excess = targets.copy()
        excess[diagonal, diagonal] -= mean
        # -dH/dD = D^-T W - p V D^-T - V0 excess, for row vectors x' = x D
        inverse = np.linalg.inv(deformation).T
        slope = inverse @ (system.virial + system.virial.T) / 2 - mean * volume * inverse - self.volume * excess
        strain_force = np.array(
            [sum(slope[COLUMN[k], ROW[k]] for k in components) for components in self.box.strains]
        )  # fmt: skip
        enthalpy = energy + mean * (volume - self.volume)
        if np.any(excess):
            enthalpy += self.volume * float((excess * (deformation - np.eye(3))).sum())
        return enthalpy, system.forces @ deformation.T, strain_force / self.stiffness

    def _move(self, atoms, strains):
        """Displace atoms (first cell's frame, Å) and strains (Å)."""
        system = self.system
        if self.box:
            old = self._deformation(self.strain)
            self.strain = self.strain + strains / self.stiffness
            new = self._deformation(self.strain)
            # about the middle of the cell, so that coordinates of a box stay where they were
            centre = system.origin + np.diag(system.cell) / 2
            system.positions = (system.positions @ np.linalg.inv(old) + atoms) @ new
            system.cell = self.cell @ new
            system.origin = centre - np.diag(system.cell) / 2
        else:
            system.positions += atoms

    def _evaluate(self):
        self.simulation.compute_forces(minimizing=True)
        self.evaluations += 1
        return self._gradient()

    def _sharpen(self, state):
        """Compute in float64 from here on; returns what :meth:`_gradient` does."""
        self.simulation.operators = self.simulation.operators.in_double()
        self.rounded, self.unresolved = False, _UNRESOLVED
        state["searching"] = False
        return self._evaluate()

    def _dots(self, *pairs):
        """Products of pairs of vectors."""
        atoms = self.system.sum(np.array([(a[0] * b[0]).sum() for a, b in pairs]))
        return [float(part + a[1] @ b[1]) for part, (a, b) in zip(atoms, pairs, strict=True)]

    def _dot(self, a, b):
        return self._dots((a, b))[0]

    def _largest(self, atoms):
        """Greatest absolute value of a per-atom array, of all atoms."""
        return float(self.system.processes.largest(float(np.abs(atoms).max(initial=0.0))))

    def _largest_of(self, force):
        """Greatest component, eV/Å, of the atoms and of the strains."""
        return max(self._largest(force[0]), float(np.abs(force[1]).max(initial=0.0)))

    def _size(self, force):
        # as LAMMPS counts them: eV per unit of strain beside eV/Å
        strains = force[1] * self.stiffness
        if self.norm == "max":
            return max(self._largest(force[0]), float(np.abs(strains).max(initial=0.0)))
        return self._two_norm(force)

    def _two_norm(self, force):
        strains = force[1] * self.stiffness
        return math.sqrt(self._dot((force[0], strains), (force[0], strains)))

    # vectors whose atoms' part goes where the atoms go

    def _keep(self, name, vector):
        self.system.carried[name], self._strains[name] = vector

    def _kept(self, name):
        return self.system.carried[name], self._strains[name]

    # ------------------------------------------------------------------ the loop

    def run(self):
        """Minimise; returns an :class:`Outcome`."""
        operators = self.simulation.operators
        try:
            return self._run()
        finally:
            self.simulation.operators = operators
            for name in self._strains:
                del self.system.carried[name]

    def _run(self):
        self._begin()
        energy, *force = self._evaluate()
        first, first_norm = energy, self._two_norm(force)
        first_largest = self._largest(force[0])
        previous = energy
        state = {}
        reason, iteration, double_from = "max iterations", 0, None
        doubtful = False  # whether rounding decides
        while iteration < self.iterations:
            done = self._size(force) <= self.force_tolerance
            near = self._largest_of(force) < _ROUNDED and not (done and self.force_tolerance >= _ROUNDED)
            if self.rounded and (doubtful or near):
                double_from = iteration
                energy, *force = self._sharpen(state)
                done = self._size(force) <= self.force_tolerance
            if done:
                reason = "force tolerance"
                break
            if self.evaluations >= self.most_evaluations:
                reason = "max force evaluations"
                break
            if self.simulation.stop_reason:
                reason = self.simulation.stop_reason
                break
            iteration += 1
            self.system.step += 1
            step = self._damped_step if self.method in ("fire", "quickmin") else self._line_search
            previous = energy
            moved, energy, force = step(state, energy, force)
            if self.after is not None:
                self.after(self.simulation)
            if not math.isfinite(energy):
                reason = "energy is not a number"
                break
            doubtful = self.rounded and not moved
            if doubtful:
                continue
            if not moved:
                reason = _STUCK
                break
            change, size = abs(energy - previous), 0.5 * (abs(energy) + abs(previous) + _SMALL)
            quiet = state.get("quiet", True)
            if self.energy_tolerance and quiet and change < self.energy_tolerance * size:
                doubtful = self.rounded and self.energy_tolerance * size < self.unresolved
                if doubtful:
                    continue
                reason = "energy tolerance"
                break
        norm, largest = self._two_norm(force), self._largest(force[0])
        return Outcome(
            reason, iteration, self.evaluations, (first, previous, energy), (first_norm, norm),
            (first_largest, largest), double_from,
        )  # fmt: skip

    def _line_search(self, state, energy, force):
        """One step of conjugate gradients (Polak and Ribiere) or steepest descent.

        The first step goes as far as allowed at most; then the secant of the slope is followed until
        the slope has halved and the energy has not risen by more than its rounding errors: near the minimum
        it changes by less than them, while slopes still tell the way (the approximate
        Wolfe conditions of W. W. Hager and H. Zhang, SIAM J. Optim. 16, 170 (2005)).
        """
        fresh = self.method == "sd" or not state.get("searching")
        search = force if fresh else self._kept("search")
        slope, square = self._dots((search, force), (force, force))
        if slope <= 0:
            search, slope = force, square
        self._keep("search", search)
        self._keep("force", force)
        largest = self._largest(search[0])
        limit = self.largest_move / largest if largest > 0 else math.inf
        if self.box and np.abs(search[1]).max(initial=0.0) > 0:
            limit = min(limit, self.box.largest * self.stiffness / float(np.abs(search[1]).max()))
        alpha = min(state.get("alpha", limit), limit)
        at, accepted = 0.0, None
        for _ in range(12):
            self._move((alpha - at) * search[0], (alpha - at) * search[1])
            at = alpha
            new_energy, *new_force = self._evaluate()
            search = self._kept("search")
            new_slope = self._dot(search, new_force)
            rounding = self.unresolved + 1e-13 * abs(energy)
            if new_energy <= energy - 1e-4 * alpha * slope + rounding and abs(new_slope) <= 0.5 * abs(slope):
                accepted = True
                break
            if new_energy <= energy + rounding and new_slope > 0 and alpha >= limit:
                accepted = True
                break
            curvature = (slope - new_slope) / alpha
            wanted = slope / curvature if curvature > 0 else limit
            if new_energy > energy + rounding:
                wanted = min(wanted, 0.5 * alpha)
            wanted = min(max(wanted, 0.05 * alpha), limit, 5 * alpha)
            if abs(wanted - alpha) < 1e-3 * alpha:
                accepted = new_energy <= energy + rounding
                break
            alpha = wanted
        else:
            accepted = new_energy <= energy + rounding
        if not accepted:
            self._move(-at * search[0], -at * search[1])
            energy, *force = self._evaluate()
            searching, state["searching"] = state.get("searching"), False
            return bool(searching), energy, force
        beta = 0.0
        if self.method == "cg":
            new_square, mixed = self._dots((new_force, new_force), (new_force, self._kept("force")))
            beta = max(0.0, (new_square - mixed) / square)
        self._keep("search", [new_force[0] + beta * search[0], new_force[1] + beta * search[1]])
        state["searching"], state["alpha"] = True, alpha
        return True, new_energy, new_force

    def _damped_step(self, state, energy, force):
        """One step of FIRE (E. Bitzek et al., Phys. Rev. Lett. 97, 170201 (2006)) or quickmin.

        Quickmin keeps the part of the velocity along the force, or nothing if they point apart.
        """
        system = self.system
        if "dt" not in state:
            state |= {"dt": self.timestep, "mixing": 0.1, "uphill": 0}
            system.velocities[:] = 0.0
        f, v = force[0], system.velocities
        power, square, speed2 = map(float, system.sum(np.array([(f * v).sum(), (f * f).sum(), (v * v).sum()])))
        square = max(square, 1e-300)
        if self.method == "quickmin":
            v[:] = f * (power / square) if power > 0 else 0.0
        elif power > 0:
            v[:] = (1 - state["mixing"]) * v + state["mixing"] * math.sqrt(speed2 / square) * f
            if state["uphill"] > 20:
                state["dt"] = min(1.1 * state["dt"], 10 * self.timestep)
                state["mixing"] *= 0.99
            state["uphill"] += 1
        else:
            v[:] = 0.0
            state["dt"], state["mixing"], state["uphill"] = max(0.5 * state["dt"], 0.02 * self.timestep), 0.1, 0
        v += state["dt"] * f * system.inverse_masses[:, None]
        dt = state["dt"]
        fastest = self._largest(v)
        if fastest * dt > self.largest_move:
            dt = self.largest_move / fastest
        system.positions += dt * v
        energy, *force = self._evaluate()
        # just after a stop the energy hardly changes, which says nothing
        state["quiet"] = state["uphill"] > 5 or self.method == "quickmin"
        return True, energy, force
