"""Physical systems: how many atoms, how dense, in which cell.  All that a run time depends on."""

import tomllib
from dataclasses import dataclass, fields, replace
from math import pi
from pathlib import Path

import numpy as np

from ..parallel import geometry
from .errors import PerformanceModelError, check_positive, check_positive_integer, unknown


@dataclass(frozen=True)
class PhysicalSystem:
    """A system of atoms.

    name : what tables and plots call it.
    atoms : number of atoms.
    density : atoms / Å^3.
    cell : three lattice vectors (rows, Å), or None for a cube of ``atoms / density``.
    ensemble : ``"nve"`` needs no global sums, ``"nvt"`` two per step (kinetic energy, thermostat),
        ``"npt"`` four (and pressure).
    timestep_fs : fs.
    neighbors : measured mean number of neighbours within the model's cutoff, or None: from density.
    """

    name: str
    atoms: int
    density: float
    cell: tuple | None = None
    ensemble: str = "nve"
    timestep_fs: float = 1.0
    neighbors: float | None = None

    def __post_init__(self):
        check_positive_integer("the number of atoms", self.atoms)
        check_positive("the density", self.density, "atoms per Å^3")
        check_positive("the time step", self.timestep_fs, "fs")
        if self.ensemble not in REDUCTIONS_PER_STEP:
            raise unknown("ensemble", self.ensemble, REDUCTIONS_PER_STEP)

    @property
    def cell_matrix(self):
        """(3, 3) Å."""
        if self.cell is not None:
            return geometry.check_cell(self.cell)
        return np.eye(3) * (self.atoms / self.density) ** (1 / 3)

    @property
    def reductions(self):
        """Global sums per step."""
        return REDUCTIONS_PER_STEP[self.ensemble]

    def neighbors_within(self, radius):
        """Mean number of neighbours within ``radius`` (Å) of an atom.

        ``N = 4/3 pi r^3 density - 1``: a condensed phase is nearly incompressible, so a ball centred
        on an atom holds as many atoms as any other ball, and one of them is the centre itself.
        """
        return max(4 / 3 * pi * radius**3 * self.density - 1, 0.0)

    def with_atoms(self, atoms):
        """The same material in a cell of ``atoms`` atoms, its shape kept."""
        scale = (atoms / self.atoms) ** (1 / 3)
        cell = None if self.cell is None else tuple(map(tuple, np.asarray(self.cell, dtype=float) * scale))
        return replace(self, atoms=int(atoms), cell=cell)


#: Global sums per step that each ensemble needs.
REDUCTIONS_PER_STEP = {"nve": 0, "nvt": 2, "npt": 4}

#: Materials by name: density of the boxes of the published scaling studies.
NAMED_SYSTEMS = {
    # 108 fcc atoms in a cube of 10.9026 Å, and 192 atoms of water in a cube of 12.4447 Å.
    "copper": PhysicalSystem("copper", 108, 108 / 10.9026**3, timestep_fs=1.0),
    "water": PhysicalSystem("water", 192, 192 / 12.4447**3, ensemble="nvt", timestep_fs=0.5),
}


def find_system(system, atoms=None):
    """A system from whatever names it: a :class:`PhysicalSystem`, a name, a TOML file or a structure file.

    TOML keys are the fields of :class:`PhysicalSystem` (``cell`` with three rows, or ``density``), and
    ``like = "copper"`` starts from a named one.  ``atoms`` rescales the system to another size.
    """
    if not isinstance(system, PhysicalSystem):
        system = _find(system)
    if atoms is not None:
        system = system.with_atoms(check_positive_integer("the number of atoms", atoms))
    return system


def _find(text):
    if text is None:
        raise PerformanceModelError("a system is needed: copper, water, a TOML file or a structure file")
    if str(text) in NAMED_SYSTEMS:
        return NAMED_SYSTEMS[str(text)]
    path = Path(text)
    if path.is_file():
        return _from_toml(path) if path.suffix == ".toml" else _from_structure(path)
    if path.suffix:
        raise PerformanceModelError(f"no file {str(text)!r} to read a system from")
    raise unknown("system", text, NAMED_SYSTEMS)


def _from_toml(path):
    try:
        values = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise PerformanceModelError(f"{path}: {error}") from error
    values = values.get("system", values)
    known = [f.name for f in fields(PhysicalSystem)]
    for key in values:
        if key not in (*known, "like"):
            raise unknown(f"key of a system ({path})", key, [*known, "like"])
    start = {"name": path.stem}
    if "like" in values:
        base = _find(values.pop("like"))
        start |= {k: getattr(base, k) for k in ("density", "ensemble", "timestep_fs")}
    values = start | values
    if values.get("cell") is not None:
        values["cell"] = tuple(map(tuple, values["cell"]))
        values.setdefault("atoms", None)
        if values["atoms"] is not None and "density" not in values:
            values["density"] = values["atoms"] / geometry.volume(values["cell"])
    if values.get("atoms") is None or "density" not in values:
        raise PerformanceModelError(f"{path}: a system needs atoms and one of density, cell, like")
    return PhysicalSystem(**values)


def _from_structure(path):
    import ase.io

    try:
        frame = ase.io.read(path)
    except Exception as error:  # ase raises many kinds for files that it cannot read
        raise PerformanceModelError(f"{path} is no structure file that ase can read: {error}") from error
    if abs(frame.cell.volume) < 1e-6:
        raise PerformanceModelError(f"{path} has no cell; state density or cell in a TOML file")
    cell = tuple(map(tuple, np.asarray(frame.cell)))
    return PhysicalSystem(path.stem, len(frame), len(frame) / frame.cell.volume, cell)
