"""Stops a run that has gone wrong, names the atoms, and keeps the last good frame."""

import sys
import warnings
from itertools import chain
from pathlib import Path

import ase.io
import numpy as np

from dpmd.models.files import written_whole
from dpmd.models.tables import checked_distance

from .errors import RunError
from .preflight import neighbor_facts
from .simulation import Hook


def unchecked(limit):
    """A sentence for pairs nearer than ``limit`` (Å), see :func:`dpmd.models.tables.checked_distance`."""
    return (
        f"Below {limit:g} Å nothing was checked: tables of embedding networks need not agree with the model there "
        "(exact networks: --no-tabulate, or tabulate=False in Python)"
    )


class Safety(Hook):
    """Checks after each step that energy, forces and displacements are sane.

    max_displacement : Å per step; failure_path : where the last good and the bad frame go;
    stop_on_overflow : also stop when an atom has more neighbours than the model's sel; every : steps;
    warn : is called with a text, once, if two atoms come nearer than tables were checked.
    Raises :class:`~dpmd.errors.RunError` naming the worst atoms.
    """

    several_ranks = True

    def __init__(self, max_displacement, failure_path, stop_on_overflow=False, every=1, warn=None):
        self.every, self.warn = every, warn
        self.max_displacement, self.failure_path = max_displacement, Path(failure_path)
        self.stop_on_overflow, self.good = stop_on_overflow, None
        self.seen, self._simulation = (0, 0), None  # overflowed atoms and evaluations, and whose
        self._checked = None

    def start(self, simulation):
        if simulation is not self._simulation:
            self.seen, self._simulation = (0, 0), simulation

    def __call__(self, simulation):
        system = simulation.system
        force, speed = system.largest_norms()
        displacement = speed * system.timestep
        insane = not (np.isfinite([force, system.own_energy]).all() and displacement <= self.max_displacement)
        overflowed = self.stop_on_overflow and simulation.overflowed > self.seen[0]
        closeness = self._closeness(simulation.operators)
        insane, overflowed, closeness = system.processes.largest(np.array([insane, overflowed, closeness], float))
        if overflowed:
            lately = system.sum(simulation.overflowed - self.seen[0]) / (simulation.evaluations - self.seen[1])
            raise RunError.everywhere_raised(
                f"step {system.step}: {int(np.ceil(lately))} atoms have more neighbours than the model's sel, "
                'and on_overflow is "error". Use a model with larger sel, or on_overflow = "warn"'
            )
        self.seen = simulation.overflowed, simulation.evaluations
        if not insane:
            if closeness > 0:
                self._tell(simulation, closeness)
            self.good = system.copy(self.good)
            return
        raise RunError.everywhere_raised(self._report(simulation, system.processes.largest(displacement)))

    def _closeness(self, operators):
        """Å, by how much two atoms of this process have been nearer than tables were checked; 0 if not, or if told."""
        if self.warn is None:
            return 0.0
        if self._checked is None:
            self._checked = checked_distance(operators.model)
        return max(self._checked - operators.nearest, 0.0)

    def _tell(self, simulation, closeness):
        """Collective, and to be reached by all ranks together."""
        system, limit = simulation.system, self._checked
        who, nearest = "two atoms", limit - closeness
        if hasattr(simulation.domain.neighbors, "indices"):
            pairs, _ = neighbor_facts(simulation.domain, system, simulation.operators.model)
            if pairs:
                (a, b), (distance, i, j) = min(pairs.items(), key=lambda item: item[1])
                if distance < limit:
                    who, nearest = f"atoms {i} and {j} ({a}-{b})", distance
        self.warn(
            f"by step {system.step} {who} have come as near as {nearest:.3f} Å. {unchecked(limit)}"
        )
        self.warn = None

    def _report(self, simulation, displacement):
        """The message, complete on root, where the frames are written too."""
        system = simulation.system
        forces = np.linalg.norm(np.nan_to_num(system.forces, nan=np.inf, posinf=np.inf), axis=1)
        speeds = np.linalg.norm(np.nan_to_num(system.velocities, nan=np.inf, posinf=np.inf), axis=1)
        bad_forces = int(system.sum(int((~np.isfinite(forces)).sum())))
        if not np.isfinite(system.energy):
            what = f"the energy is {system.energy}"
        elif bad_forces:
            what = f"the forces on {bad_forces} atoms are not numbers"
        elif not np.isfinite(displacement):
            what = "the velocity of an atom is not a number"
        else:
            what = f"an atom moves {displacement:.3g} Å per step (limit {self.max_displacement:g} Å, max_displacement)"
        lines = [f"step {system.step}: {what}.", "The worst atoms:", "      id  element  position / Å"]
        lines[-1] += "                        |force| eV/Å   speed Å/ps   nearest neighbour"
        worst = []
        for i in np.lexsort((-speeds, -forces))[:5]:
            x, y, z = system.positions[i]
            text = (
                f"{system.ids[i]:8d}  {system.names()[i]:7s}  {x:9.4f} {y:9.4f} {z:9.4f}  {forces[i]:16.6g} "
                f"{speeds[i]:12.5g}   {self._nearest(simulation, i)}"
            )
            worst.append((-forces[i], -speeds[i], text))
        good, bad = self.good.whole() if self.good is not None else None, system.whole()
        collected = system.processes.collect(worst)
        if collected is None:
            return "\n".join(lines)
        lines += [text for *_, text in sorted(chain.from_iterable(collected))[:5]]
        frames = [good.to_ase()] if good is not None else []
        bad = bad.to_ase(forces=False)
        bad.calc = None
        with written_whole(self.failure_path) as beside:
            ase.io.write(beside, [*frames, bad], format="extxyz")
        if good is not None:
            lines.append(f"The last good frame (step {good.step}) and the bad one are in {self.failure_path}.")
        else:
            lines.append(f"It is so from the first step on; that frame is in {self.failure_path}.")
        lines.append(
            "What helps: a smaller time step; relaxing the structure first; looking at whether the model was trained "
            "on such distances (dpmd info MODEL tells the shortest one it has seen)."
        )
        return "\n".join(lines)

    @staticmethod
    def _nearest(simulation, i):
        """Text about the nearest neighbour of local atom ``i`` in the present list."""
        domain, system = simulation.domain, simulation.system
        if not hasattr(domain.neighbors, "indices"):
            return "not looked up: the list is on the GPU"
        row = domain.neighbors.indices[domain.neighbors.first[i] :][: domain.neighbors.count[i]]
        if len(row) == 0:
            return "none within the cutoff"
        with np.errstate(all="ignore"):
            distance = np.linalg.norm(domain.positions[row] - domain.positions[i], axis=1)
        k = int(np.argmin(np.nan_to_num(distance, nan=np.inf)))
        name = (*system.type_names, "X")[domain.types[row[k]]]
        return f"{name} (id {domain.ids[row[k]]}) at {distance[k]:.3f} Å"


class OverflowWarning(Hook):
    """Warns, once, by Python's warnings, when an atom has more neighbours than the model's sel."""

    several_ranks = True
    warned = False

    def __call__(self, simulation):
        if simulation.overflowed and not self.warned:
            self.warned = True
            warn_of_overflow(f"step {simulation.system.step}: atoms")


def warn_of_overflow(who):
    """One of Python's warnings, at the line that called dpmd, by way of ASE or not."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("dpmd", "ase"):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{who} have more neighbours than the model's sel: the nearest count, as in DeePMD-kit, and the energy is not "
        'smooth there; on_overflow="error" refuses that',
        stacklevel=level,
    )
