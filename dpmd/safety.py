"""Stops a run that has gone wrong, names the atoms, and keeps the last good frame."""

from pathlib import Path

import ase.io
import numpy as np

from .errors import RunError
from .simulation import Hook


class Safety(Hook):
    """Checks after each step that energy, forces and displacements are sane.

    max_displacement : Å per step; failure_path : where the last good and the bad frame go;
    stop_on_overflow : also stop when an atom has more neighbours than the model's sel; every : steps.
    Raises :class:`~dpmd.errors.RunError` naming the worst atoms.
    """

    def __init__(self, max_displacement, failure_path, stop_on_overflow=False, every=1):
        self.every = every
        self.max_displacement, self.failure_path = max_displacement, Path(failure_path)
        self.stop_on_overflow, self.good = stop_on_overflow, None

    def __call__(self, simulation):
        system = simulation.system
        if self.stop_on_overflow and simulation.overflows:
            raise RunError(
                f"step {system.step}: {simulation.most_overflowed} atoms have more neighbours than the model's sel, "
                'and on_overflow is "error". Use a model with larger sel, or on_overflow = "warn"'
            )
        force, speed = system.largest_norms()
        displacement = speed * simulation.ensemble.timestep
        if np.isfinite(system.energy) and np.isfinite(force) and displacement <= self.max_displacement:
            self.good = system.copy(self.good)
            return
        raise RunError(self._report(simulation, displacement))

    def _report(self, simulation, displacement):
        system = simulation.system
        forces = np.linalg.norm(np.nan_to_num(system.forces, nan=np.inf, posinf=np.inf), axis=1)
        speeds = np.linalg.norm(np.nan_to_num(system.velocities, nan=np.inf, posinf=np.inf), axis=1)
        if not np.isfinite(system.energy):
            what = f"the energy is {system.energy}"
        elif not np.isfinite(forces).all():
            what = f"the forces on {int((~np.isfinite(forces)).sum())} atoms are not numbers"
        else:
            what = f"an atom moves {displacement:.3g} Å per step (limit {self.max_displacement:g} Å, max_displacement)"
        lines = [f"step {system.step}: {what}.", "The worst atoms:", "      id  element  position / Å"]
        lines[-1] += "                        |force| eV/Å   speed Å/ps   nearest neighbour"
        worst = np.lexsort((-speeds, -forces))[:5]
        for i in worst:
            x, y, z = system.positions[i]
            lines.append(
                f"{system.ids[i]:8d}  {system.names()[i]:7s}  {x:9.4f} {y:9.4f} {z:9.4f}  {forces[i]:16.6g} "
                f"{speeds[i]:12.5g}   {self._nearest(simulation, i)}"
            )
        frames = [self.good.to_ase()] if self.good is not None else []
        bad = system.to_ase(forces=False)
        bad.calc = None
        ase.io.write(self.failure_path, [*frames, bad], format="extxyz")
        if self.good is not None:
            lines.append(f"The last good frame (step {self.good.step}) and the bad one are in {self.failure_path}.")
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
        j = row[k] if row[k] < len(system) else domain.owners[row[k] - len(system)]
        return f"{system.names()[j]} (id {system.ids[j]}) at {distance[k]:.3f} Å"
