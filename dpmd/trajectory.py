"""Writers of trajectories: extended XYZ, ASE's own format, LAMMPS dump.

A writer knows how much it has written (``position``), so that a continued run can cut off what
lies beyond its checkpoint and append.
"""

from pathlib import Path

import ase.io
import numpy as np
from ase.io.extxyz import write_extxyz

from dpmd.models.files import written_whole

from .errors import InputError
from .simulation import Hook

_formats = {".extxyz": "extxyz", ".xyz": "extxyz", ".traj": "traj", ".dump": "lammps-dump", ".lammpstrj": "lammps-dump"}


def format_of(path, stated=None):
    """The format for a file name.  Raises InputError if neither suffix nor ``stated`` tells."""
    suffix = Path(path).suffix.lower()
    if stated is None and suffix not in _formats:
        raise InputError(
            f"cannot tell the format of {path} from its suffix; use one of {', '.join(_formats)} or set format"
        )
    return stated or _formats[suffix]


class _TextWriter:
    """A text file that can be cut at a byte position."""

    def __init__(self, path, position):
        self.file = open(path, "w" if position is None else "r+", encoding="utf-8")  # noqa: SIM115
        if position is not None:
            self.file.truncate(position)
            self.file.seek(position)

    def position(self):
        self.file.flush()
        return self.file.tell()

    def close(self):
        self.file.close()


class ExtendedXYZ(_TextWriter):
    """Extended XYZ as ASE writes and reads it: cell, energy, stress, forces, velocities."""

    def write(self, system, velocities, forces, unwrap, of_atoms=None):
        atoms = system.to_ase(velocities, forces, unwrap)
        order = np.argsort(system.ids)
        for name, values in (of_atoms or {}).items():
            atoms.set_array(name, values[order])
        if not velocities:
            del atoms.arrays["masses"]  # only needed to tell velocities from momenta
        write_extxyz(self.file, [atoms], write_results=True)
        self.file.flush()


class LammpsDump(_TextWriter):
    """LAMMPS text dump, ``dump custom``, atoms in id order, velocities in Å/ps.

    A cell that is not lower triangular is rotated to one, with positions, velocities and forces,
    as LAMMPS needs (its manual, "Triclinic simulation boxes").
    """

    def write(self, system, velocities, forces, unwrap, of_atoms=None):
        order = np.argsort(system.ids)
        cell, rotation = lower_triangular(system.cell)
        positions = (system.unwrapped_positions if unwrap else system.positions)[order] @ rotation
        low, cell = _box_around(positions, cell, system.periodic)
        names = ["id", "type", "element"] + (["xu", "yu", "zu"] if unwrap else ["x", "y", "z"])
        columns = [system.ids[order], system.types[order] + 1, system.names()[order], *positions.T]
        if not unwrap:
            names += ["ix", "iy", "iz"]
            columns += [*system.images[order].T]
        if velocities:
            names += ["vx", "vy", "vz"]
            columns += [*(system.velocities[order] @ rotation).T]
        if forces:
            names += ["fx", "fy", "fz"]
            columns += [*(system.forces[order] @ rotation).T]
        for name, values in (of_atoms or {}).items():
            values = values[order]
            if values.ndim == 2:
                values = (rotation.T @ values.reshape(-1, 3, 3) @ rotation).reshape(-1, 9)
                names += [f"{name}[{k}]" for k in range(1, 10)]
                columns += [*values.T]
            else:
                names.append(name)
                columns.append(values)
        flags = " ".join("pp" if p else "ff" for p in system.periodic)
        (lx, _, _), (xy, ly, _), (xz, yz, lz) = cell
        lines = ["ITEM: TIMESTEP", str(system.step), "ITEM: NUMBER OF ATOMS", str(len(system))]
        if abs(xy) + abs(xz) + abs(yz) > 0:
            below, above = min(0.0, xy, xz, xy + xz), max(0.0, xy, xz, xy + xz)
            lines.append(f"ITEM: BOX BOUNDS xy xz yz {flags}")
            lines.append(f"{low[0] + below:.16e} {low[0] + lx + above:.16e} {xy:.16e}")
            lines.append(f"{low[1] + min(0.0, yz):.16e} {low[1] + ly + max(0.0, yz):.16e} {xz:.16e}")
            lines.append(f"{low[2]:.16e} {low[2] + lz:.16e} {yz:.16e}")
        else:
            lines.append(f"ITEM: BOX BOUNDS {flags}")
            lines += [f"{start:.16e} {start + size:.16e}" for start, size in zip(low, (lx, ly, lz), strict=True)]
        lines.append("ITEM: ATOMS " + " ".join(names))
        forms = ["{:.12g}" if np.asarray(c).dtype.kind == "f" else "{}" for c in columns]
        form = " ".join(forms)
        lines += [form.format(*row) for row in zip(*(np.asarray(c).tolist() for c in columns), strict=True)]
        self.file.write("\n".join(lines) + "\n")
        self.file.flush()


def _box_around(positions, cell, periodic):
    """Lower corner and cell of a box that holds all atoms, widened along open directions that need it."""
    low, cell = np.zeros(3), cell.copy()
    for k in np.flatnonzero(~periodic):
        if cell[k, :k].any() or cell[k + 1 :, k].any() or len(positions) == 0:
            continue  # tilted: the box stays as it is
        begin, end = min(0.0, positions[:, k].min()), max(cell[k, k], positions[:, k].max())
        low[k], cell[k, k] = begin, end - begin
    return low, cell


class AseTrajectory:
    """ASE's binary trajectory; its position is a number of frames."""

    def __init__(self, path, position):
        self.path, self.frames = path, position or 0
        if position is not None:
            self._cut(Path(path), position)
        self.file = ase.io.trajectory.Trajectory(path, "w" if position is None else "a")

    @staticmethod
    def _cut(path, frames):
        """Keep the first frames; the file appears whole or the old one stays."""
        trajectory = ase.io.trajectory.Trajectory
        with written_whole(path) as beside, trajectory(path) as old, trajectory(beside, "w") as new:
            for number in range(frames):
                new.write(old[number])

    def write(self, system, velocities, forces, unwrap, of_atoms=None):
        self.file.write(system.to_ase(velocities, forces, unwrap))
        self.frames += 1

    def position(self):
        return self.frames

    def close(self):
        self.file.close()


_writers = {"extxyz": ExtendedXYZ, "traj": AseTrajectory, "lammps-dump": LammpsDump}


def length(path, kind):
    """How much a file of format ``kind`` (or other text) holds: bytes, or frames of ASE's format.

    Raises InputError if that cannot be told.
    """
    try:
        if kind == "traj":
            with ase.io.trajectory.Trajectory(path) as file:
                return len(file)
        return Path(path).stat().st_size
    except Exception as error:  # a damaged binary file: many kinds of errors
        raise InputError(f"{path} cannot be continued: {error}") from error


def lower_triangular(cell):
    """The lower-triangular form of a cell and the rotation to it.

    Returns ``(cell', rotation)`` with ``cell' = cell @ rotation``; row vectors are rotated by
    multiplying with ``rotation`` on the right.  A left-handed cell gets a reflection.
    """
    cell = np.asarray(cell, float)
    if np.array_equal(cell, np.tril(cell)) and (np.diag(cell) > 0).all():
        return cell.copy(), np.eye(3)
    q, r = np.linalg.qr(cell.T)
    sign = np.sign(np.diag(r))
    rotation = q * sign
    return np.tril((r * sign[:, None]).T), rotation


class Trajectory(Hook):
    """Writes frames every so many steps.

    settings : a validated ``[[output]]`` section; path : where it goes; position : to continue
    from, or None to start anew; opened : False on ranks that only hand in their atoms.
    """

    several_ranks = True

    def __init__(self, settings, path, position=None, opened=True):
        self.every, self.path = settings.every, Path(path)
        self.format = format_of(path, settings.format)
        self.options = dict(velocities=settings.velocities, forces=settings.forces, unwrap=settings.unwrap)
        self.energies, self.virials = settings.atom_energies, settings.atom_virials
        self.writer = _writers[self.format](path, position) if opened else None

    def __call__(self, simulation):
        of_atoms = {}
        system = simulation.system
        if self.energies or self.virials:
            energies, virials = simulation.evaluate_atoms()
            of_atoms |= {"atom_energy": energies} if self.energies else {}
            of_atoms |= {"atom_virial": virials.reshape(-1, 9)} if self.virials else {}
            of_atoms = dict(zip(of_atoms, system.gathered(*of_atoms.values()), strict=True))
        whole = system.whole()
        if self.writer:
            self.writer.write(whole, **self.options, of_atoms=of_atoms)

    def position(self):
        """What to keep of the file if the run goes on from here."""
        return self.writer.position()

    def finish(self, simulation):
        if self.writer:
            self.writer.close()
