"""Physical systems: how many atoms, how dense, in which cell.  All that a run time depends on."""

import gzip
import itertools
import re
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
    timestep_fs : fs; timestep_from : who says so, for tables; empty where it was given.
    neighbors : measured mean number of neighbours within the model's cutoff, or None: from density.
    local_density : atoms / Å^3 around an atom, where it is not the mean one (clusters, surfaces), or None.
    """

    name: str
    atoms: int
    density: float
    cell: tuple | None = None
    ensemble: str = "nve"
    timestep_fs: float = 1.0
    neighbors: float | None = None
    local_density: float | None = None
    timestep_from: str = ""

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
        return max(4 / 3 * pi * radius**3 * (self.local_density or self.density) - 1, 0.0)

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


#: Å, within which the neighbours of an atom tell the density around it
_LOCAL_RADIUS = 6.0


def closed_cell(cell, periodic, extents, vacuum):
    """Lattice vectors (3, 3), Å, of a periodic cell that costs what a partly open system costs.

    An open direction becomes as long as the atoms reach (see :func:`open_directions`) and ``vacuum`` (Å), so
    that no atom has an image within that reach.

    cell : (3, 3) Å; periodic : (3,) bool; extents : (3,) Å of the atoms along the open directions.
    """
    axes = open_directions(cell, periodic)
    lengths = np.where(periodic, 1.0, np.asarray(extents, float) + vacuum)
    return axes * lengths[:, None]


def open_directions(cell, periodic):
    """The rows of ``cell``, open ones replaced by unit vectors at right angles to the others; (3, 3)."""
    from ase.geometry import complete_cell

    return complete_cell(np.asarray(cell, float) * np.asarray(periodic, bool)[:, None])


def find_system(system, atoms=None):
    """A system from whatever names it: a :class:`PhysicalSystem`, a name or a file.

    Files: a structure that ASE reads, a LAMMPS data file (plain or gzipped), an input of ``md-run`` (TOML or
    LAMMPS script) or a TOML file with the fields of :class:`PhysicalSystem` (``cell`` with three rows, or
    ``density``; ``like = "copper"`` starts from a named one).  ``atoms`` rescales the system to another size.
    """
    if not isinstance(system, PhysicalSystem):
        system = _find(system)
    if atoms is not None:
        system = system.with_atoms(check_positive_integer("the number of atoms", atoms))
    return system


def _find(text):
    if text is None:
        raise PerformanceModelError("a system is needed: copper, water, a structure file or an input of md-run")
    if str(text) in NAMED_SYSTEMS:
        return NAMED_SYSTEMS[str(text)]
    path = Path(text)
    if path.is_file():
        return _from_file(path)
    if path.suffix:
        raise PerformanceModelError(f"no file {str(text)!r} to read a system from")
    raise unknown("system", text, NAMED_SYSTEMS)


def _from_file(path):
    if path.suffix == ".toml":
        return _from_toml(path)
    head = _head(path)
    if _BOX_LINE.search(head) and re.search(r"^\s*\d+\s+atoms\b", head, re.M):
        return _from_lammps_data(path)
    if re.search(r"^\s*pair_style\s", head, re.M):
        return _from_script(path, head)
    return _from_structure(path)


def _open(path):
    """A text file, gzipped or not."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return (gzip.open if packed else open)(path, "rt", encoding="utf-8", errors="replace")


def _head(path, size=50_000):
    try:
        with _open(path) as file:
            return file.read(size)
    except (OSError, EOFError) as error:
        raise PerformanceModelError(f"{path} cannot be read: {error}") from error


def _from_toml(path):
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PerformanceModelError(f"{path}: {error}") from error
    if isinstance(values.get("structure"), dict):
        return _from_input(path, values)
    values = values.get("system", values)
    known = [f.name for f in fields(PhysicalSystem)]
    for key in values:
        if key not in (*known, "like"):
            raise unknown(f"key of a system ({path})", key, [*known, "like"])
    start = {"name": path.stem}
    if "like" in values:
        base = _find(values.pop("like"))
        start |= {k: getattr(base, k) for k in ("density", "ensemble", "timestep_fs")}
    elif "timestep_fs" not in values:
        start["timestep_from"] = _ASSUMED
    values = start | values
    if values.get("cell") is not None:
        values["cell"] = tuple(map(tuple, values["cell"]))
        values.setdefault("atoms", None)
        if values["atoms"] is not None and "density" not in values:
            values["density"] = values["atoms"] / geometry.volume(values["cell"])
    if values.get("atoms") is None or "density" not in values:
        raise PerformanceModelError(f"{path}: a system needs atoms and one of density, cell, like")
    return PhysicalSystem(**values)


#: what tables say of a time step that nobody gave
_ASSUMED = "assumed; --timestep sets it"


def _usual_timestep(hydrogen):
    """(fs, who says so) where a file tells none: what md-run advises."""
    return {"timestep_fs": 0.5 if hydrogen else 1.0, "timestep_from": _ASSUMED}


def _from_input(path, values):
    """The system of a TOML input of md-run: its structure, replicated, its time step and ensemble."""
    section, run = values["structure"], values.get("run", {})
    if not isinstance(section.get("file"), str):
        raise PerformanceModelError(f"{path}: [structure] names no file")
    system = _from_file(path.parent / section["file"])
    return _with_input(path, system, section.get("replicate", (1, 1, 1)), run.get("timestep_fs"),
                       values.get("ensemble", {}).get("type", "nve"))  # fmt: skip


def _with_input(path, system, copies, timestep_fs, ensemble):
    """``system`` with the number of copies, time step (fs) and ensemble that an input of md-run gives it."""
    try:
        copies = [check_positive_integer("copies along a lattice vector", n) for n in copies]
        cell = tuple(map(tuple, np.asarray(system.cell) * np.array(copies)[:, None]))
        given = {} if timestep_fs is None else {"timestep_fs": float(timestep_fs), "timestep_from": ""}
        ensemble = {"nph": "npt"}.get(ensemble, ensemble)
        return replace(
            system, name=path.name, atoms=system.atoms * int(np.prod(copies)), cell=cell, ensemble=ensemble, **given
        )
    except (TypeError, ValueError) as error:
        raise PerformanceModelError(f"{path}: {error}") from error


_BOX_LINE = re.compile(r"^\s*(\S+)\s+(\S+)\s+([xyz])lo\s+\3hi", re.M)


def _from_lammps_data(path):
    """Atoms, box and the lightest mass of a LAMMPS data file; its atoms themselves are not needed."""
    header, masses = [], []
    with _open(path) as file:
        for line in file:
            words = line.split("#")[0].split()
            if words == ["Masses"]:
                masses = [float(row.split()[1]) for row in itertools.islice(file, 200) if _is_mass(row)]
            if words in (["Masses"], ["Atoms"]) or line.lstrip().startswith("Atoms"):
                break
            header.append(" ".join(words))
    text = "\n".join(header)
    try:
        atoms = int(re.search(r"^(\d+) atoms$", text, re.M)[1])
        bounds = {m[3]: float(m[2]) - float(m[1]) for m in _BOX_LINE.finditer(text)}
        tilts = re.search(r"^(\S+) (\S+) (\S+) xy xz yz", text, re.M)
        xy, xz, yz = map(float, tilts.groups()) if tilts else (0.0, 0.0, 0.0)
        cell = ((bounds["x"], 0.0, 0.0), (xy, bounds["y"], 0.0), (xz, yz, bounds["z"]))
    except (TypeError, KeyError, ValueError) as error:
        raise PerformanceModelError(f"{path}: the header of this LAMMPS data file has no atoms or no box") from error
    density = check_positive_integer("the number of atoms", atoms) / geometry.volume(geometry.check_cell(cell))
    return PhysicalSystem(path.name.split(".")[0], atoms, density, cell, **_usual_timestep(min(masses, default=9) < 3))


def _is_mass(row):
    words = row.split("#")[0].split()
    try:
        return len(words) == 2 and int(words[0]) > 0 and float(words[1]) > 0
    except ValueError:
        return False


def _from_script(path, text):
    """The system of a LAMMPS script that reads its atoms from a data file."""
    commands = [line.split("#")[0].split() for line in text.replace("&\n", " ").splitlines()]
    last = {words[0]: words[1:] for words in commands if len(words) > 1}
    data, units = last.get("read_data"), last.get("units", ["lj"])[0]
    if data is None or "$" in data[0]:
        raise PerformanceModelError(
            f"{path}: this script makes its atoms itself, or chooses the file by a variable; let it write_data FILE "
            "and give that file"
        )
    if units not in ("metal", "real"):
        raise PerformanceModelError(f"{path}: units {units} are not understood here; give its data file instead")
    fs = 1000.0 if units == "metal" else 1.0
    step = last.get("timestep", [None])[0]
    styles = {words[3].split("/")[0] for words in commands if words[:1] == ["fix"] and len(words) > 3}
    ensemble = next((e for e in ("npt", "nph", "nvt") if e in styles), "nvt" if "langevin" in styles else "nve")
    try:
        timestep = float(step) * fs if step else 1.0  # LAMMPS's own default, 1 fs in both units
        copies = [int(n) for n in last.get("replicate", "111")[:3]]
    except ValueError as error:
        raise PerformanceModelError(f"{path}: timestep and replicate need plain numbers here ({error})") from error
    return _with_input(path, _from_file(path.parent / data[0]), copies, timestep, ensemble)


def _from_structure(path):
    import ase.io

    try:
        frame = ase.io.read(path)
    except Exception as error:  # ase raises many kinds for files that it cannot read
        raise PerformanceModelError(f"{path} is no structure file that ase can read: {error}") from error
    periodic = np.array(frame.pbc) & (np.linalg.norm(frame.cell, axis=1) > 0)
    axes = open_directions(frame.cell, periodic)
    extents = np.ptp(frame.positions @ np.linalg.inv(axes), axis=0) if len(frame) else np.zeros(3)
    cell = tuple(map(tuple, closed_cell(frame.cell, periodic, extents, 2 * _LOCAL_RADIUS)))
    volume = geometry.volume(geometry.check_cell(cell))
    return PhysicalSystem(
        path.stem, len(frame), len(frame) / volume, cell, local_density=_local_density(frame.positions, cell),
        **_usual_timestep(1 in frame.numbers),
    )  # fmt: skip


def _local_density(positions, cell, most=500):
    """Atoms / Å^3 around an atom, from the neighbours of up to ``most`` atoms; None where it is the mean density.

    ``4/3 pi R^3 density = neighbours within R + 1``, as in :meth:`PhysicalSystem.neighbors_within`.
    """
    from scipy.spatial import cKDTree

    cell = np.asarray(cell)
    heights = abs(np.linalg.det(cell)) / np.linalg.norm(np.cross(cell[[1, 2, 0]], cell[[2, 0, 1]]), axis=1)
    reach = [range(-n, n + 1) for n in np.ceil(_LOCAL_RADIUS / heights).astype(int)]
    shifts = np.array(list(itertools.product(*reach))) @ cell
    # wrapped, so that images next to the cell are all that can be near
    inside = (positions @ np.linalg.inv(cell) % 1.0) @ cell
    images = (inside + shifts[:, None]).reshape(-1, 3)
    low, high = inside.min(axis=0) - _LOCAL_RADIUS, inside.max(axis=0) + _LOCAL_RADIUS
    tree = cKDTree(images[((images > low) & (images < high)).all(axis=1)])
    sample = inside[:: -(-len(inside) // most)]
    found = np.mean(tree.query_ball_point(sample, _LOCAL_RADIUS, return_length=True))
    density = found / (4 / 3 * pi * _LOCAL_RADIUS**3)
    mean = len(positions) / abs(np.linalg.det(cell))
    return float(density) if abs(density / mean - 1) > 0.1 else None
