"""LAMMPS data files, read in the dialects that occur and written so that LAMMPS reads them."""

import bz2
import contextlib
import gzip
import lzma
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpmd.models.files import write_text

from .language import ScriptError

#: columns before x y z of each atom style
STYLES = {
    "atomic": ("id", "type"),
    "charge": ("id", "type", "q"),
    "bond": ("id", "mol", "type"),
    "angle": ("id", "mol", "type"),
    "molecular": ("id", "mol", "type"),
    "full": ("id", "mol", "type", "q"),
}
_SECTIONS = (
    "Atoms", "Velocities", "Masses", "Bonds", "Angles", "Dihedrals", "Impropers", "Ellipsoids", "Lines", "Triangles",
    "Bodies", "Atom Type Labels", "Bond Type Labels", "Angle Type Labels", "Dihedral Type Labels",
    "Improper Type Labels", "Pair Coeffs", "PairIJ Coeffs", "Bond Coeffs", "Angle Coeffs", "Dihedral Coeffs",
    "Improper Coeffs", "BondBond Coeffs", "BondAngle Coeffs", "MiddleBondTorsion Coeffs", "EndBondTorsion Coeffs",
    "AngleTorsion Coeffs", "AngleAngleTorsion Coeffs", "BondBond13 Coeffs", "AngleAngle Coeffs",
)  # fmt: skip
_REFUSED = ("Ellipsoids", "Lines", "Triangles", "Bodies")


@dataclass
class DataFile:
    """What a data file holds.

    low : (3,) Å, corner; cell : (3, 3) Å, lower triangular; triclinic : whether the file says so;
    rotation : (3, 3) that brought a general cell to that form (row vectors, from the right).
    masses : {type: u}; labels : {type: name from a label or comment}; bonded : whether there are bonds.
    """

    title: str = ""
    low: np.ndarray = None
    cell: np.ndarray = None
    triclinic: bool = False
    rotation: np.ndarray = None
    n_types: int = 0
    ids: np.ndarray = None
    types: np.ndarray = None
    positions: np.ndarray = None
    images: np.ndarray = None
    charges: np.ndarray = None
    molecules: np.ndarray = None
    velocities: np.ndarray = None
    masses: dict = field(default_factory=dict)
    labels: dict = field(default_factory=dict)
    bonded: bool = False


def _split_sections(lines):
    """Header lines and {section: (hint, [(line number, text)])}."""
    names = {" ".join(name.split()): name for name in _SECTIONS}
    header, sections, current = [], {}, None
    for number, raw in enumerate(lines[1:], 2):
        text, _, comment = raw.partition("#")
        words = " ".join(text.split())
        if not words:
            continue
        if words in names:
            current = names[words]
            sections[current] = (comment.strip(), [])
        elif current is None:
            header.append((number, words))
        else:
            sections[current][1].append((number, text.split(), comment.strip()))
    return header, sections


def _numbers(words, count, kind, where, what):
    try:
        values = [kind(w) for w in words[:count]]
    except ValueError:
        values = []
    if len(values) != count or not np.isfinite(np.array(values, float)).all():
        raise ScriptError(f"{where}: expected {what}, found {' '.join(words)[:60]!r}")
    return values


def _read_header(data, header, path):
    bounds, tilts, vectors, origin = {}, (0.0, 0.0, 0.0), {}, None
    n_atoms = None
    for number, text in header:
        where, words = f"{path}:{number}", text.split()
        if re.search(r"\b[xyz]lo [xyz]hi$", text):
            bounds["xyz".index(words[-1][0])] = _numbers(words, 2, float, where, "two numbers before xlo xhi")
        elif text.endswith("xy xz yz"):
            tilts, data.triclinic = _numbers(words, 3, float, where, "three numbers before xy xz yz"), True
        elif words[-1] in ("avec", "bvec", "cvec"):
            vectors["abc".index(words[-1][0])] = _numbers(words, 3, float, where, f"three numbers before {words[-1]}")
        elif text.endswith("abc origin"):
            origin = _numbers(words, 3, float, where, "three numbers before abc origin")
        elif text.endswith("atom types"):
            (data.n_types,) = _numbers(words, 1, int, where, "a whole number before atom types")
        elif len(words) == 2 and words[1] == "atoms":
            (n_atoms,) = _numbers(words, 1, int, where, "a whole number before atoms")
        # counts of bonds and the like do not matter here
    if n_atoms is None or n_atoms < 0:
        raise ScriptError(f"{path}: the header has no line 'N atoms'; is it a LAMMPS data file?")
    if not 0 < data.n_types < 10000:
        raise ScriptError(f"{path}: the header has no sensible line 'N atom types'")
    if vectors:
        if len(vectors) != 3:
            raise ScriptError(f"{path}: a general triclinic box needs avec, bvec and cvec")
        general = np.array([vectors[k] for k in range(3)])
        if np.linalg.det(general) <= 0:
            raise ScriptError(f"{path}: avec, bvec, cvec are not a right-handed set of three directions")
        q, r = np.linalg.qr(general.T)
        sign = np.sign(np.diag(r))
        data.cell, data.rotation = np.tril((r * sign[:, None]).T), q * sign
        data.low, data.triclinic = np.array(origin or (0.0, 0.0, 0.0)), True
    else:
        low = np.array([bounds.get(k, (-0.5, 0.5))[0] for k in range(3)], float)
        high = np.array([bounds.get(k, (-0.5, 0.5))[1] for k in range(3)], float)
        data.low, data.cell = low, np.diag(high - low)
        data.cell[1, 0], data.cell[2, 0], data.cell[2, 1] = tilts
    if not (np.diag(data.cell) > 0).all():
        raise ScriptError(f"{path}: the box has no volume: edges {np.diag(data.cell)}; check xlo xhi and its fellows")
    if np.abs(data.cell).max() > 1e8 or np.diag(data.cell).min() < 1e-3:
        raise ScriptError(f"{path}: box edges of {np.diag(data.cell)} Å are not sensible; check the header")
    return n_atoms


def _columns(rows, style, hint, n_types, path):
    """Names of the columns of the Atoms section."""
    known = STYLES[style]
    width = min(len(words) for _, words, _ in rows)
    plain = len(known) + 3
    if width in (plain, plain + 3) or (width > plain and style == hint):
        return known
    fits = [name for name, columns in STYLES.items() if width in (len(columns) + 3, len(columns) + 6)]
    raise ScriptError(
        f"{path}:{rows[0][0]}: the rows of Atoms have {width} columns; atom_style {style} has {plain} or {plain + 3}"
        + (f". So many have: {', '.join(fits)}; set atom_style to what the file is" if fits else "")
    )


def announced_atoms(path):
    """How many atoms the header of a data file has; 0 where it cannot be read."""
    try:
        with open_text(path) as file:
            found = re.search(r"^\s*(\d+)\s+atoms\s*(#.*)?$", file.read(4000), re.MULTILINE)
    except ScriptError:
        return 0
    return int(found[1]) if found else 0


@contextlib.contextmanager
def open_text(path):
    """A text file to read, compressed if its name ends in .gz, .bz2 or .xz.  Raises ScriptError where it cannot be."""
    opener = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(Path(path).suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace") as file:
            yield file
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ScriptError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_data(path, style="atomic"):
    """Read a data file.  Raises ScriptError naming ``path:line`` and what was expected."""
    with open_text(path) as file:
        lines = file.read().splitlines()
    if not lines:
        raise ScriptError(f"{path}: the file is empty")
    data = DataFile(title=lines[0].strip())
    header, sections = _split_sections(lines)
    n_atoms = _read_header(data, header, path)
    for name in _REFUSED:
        if name in sections:
            raise ScriptError(f"{path}: section {name}: only point atoms are supported")
    for number, words, comment in sections.get("Masses", ("", []))[1]:
        (mass,) = _numbers(words[1:], 1, float, f"{path}:{number}", "a type and its mass")
        data.masses[words[0]] = mass
        if comment:
            data.labels[words[0]] = comment.split()[0]
    for number, words, _ in sections.get("Atom Type Labels", ("", []))[1]:
        if len(words) < 2:
            raise ScriptError(f"{path}:{number}: expected a type and its label")
        data.labels[words[0]] = words[1]
    by_label = {label: key for key, label in data.labels.items()} if "Atom Type Labels" in sections else {}
    data.bonded = bool(sections.get("Bonds", ("", []))[1])
    hint, rows = sections.get("Atoms", ("", []))
    if len(rows) < n_atoms:
        raise ScriptError(f"{path}: {n_atoms} atoms announced, {len(rows)} rows in the section Atoms")
    if n_atoms:
        _read_atoms(data, rows[:n_atoms], style, hint.split()[0] if hint else "", by_label, path)
    else:
        data.ids, data.types = np.zeros(0, int), np.zeros(0, int)
        data.positions, data.images = np.zeros((0, 3)), np.zeros((0, 3), np.int32)
        data.charges, data.molecules = np.zeros(0), np.zeros(0, int)
    data.velocities = np.zeros((len(data.ids), 3))
    if "Velocities" in sections:
        place = {int(i): k for k, i in enumerate(data.ids)}
        for number, words, _ in sections["Velocities"][1]:
            where = f"{path}:{number}"
            (atom,) = _numbers(words, 1, int, where, "an atom's id")
            if atom not in place:
                raise ScriptError(f"{where}: a velocity for atom {atom}, which is not in Atoms")
            data.velocities[place[atom]] = _numbers(words[1:], 3, float, where, "id vx vy vz")
    data.masses = {_type_of(k, by_label, data.n_types, path): m for k, m in data.masses.items()}
    data.labels = {int(k): v for k, v in data.labels.items() if k.isdigit()}
    if data.rotation is not None:
        data.positions = (data.positions - data.low) @ data.rotation + data.low
        data.velocities = data.velocities @ data.rotation
    return data


def _type_of(word, labels, n_types, where):
    word = labels.get(word, word)
    if not word.isdigit() or not 1 <= int(word) <= n_types:
        raise ScriptError(f"{where}: atom type {word!r} is not one of 1 to {n_types}")
    return int(word)


def _read_atoms(data, rows, style, hint, labels, path):
    names = _columns(rows, style, hint, data.n_types, path)
    n, before = len(rows), len(names)
    data.ids, data.types = np.zeros(n, np.int64), np.zeros(n, np.int32)
    data.positions, data.images = np.zeros((n, 3)), np.zeros((n, 3), np.int32)
    data.charges, data.molecules = np.zeros(n), np.zeros(n, np.int64)
    for k, (number, words, _) in enumerate(rows):
        where = f"{path}:{number}"
        what = " ".join((*names, "x y z"))
        data.positions[k] = _numbers(words[before:], 3, float, where, what)
        for name, word in zip(names, words, strict=False):
            if name == "type":
                data.types[k] = _type_of(word, labels, data.n_types, where)
            elif name == "id":
                (data.ids[k],) = _numbers([word], 1, int, where, what)
            elif name == "mol":
                (data.molecules[k],) = _numbers([word], 1, int, where, what)
            else:
                (data.charges[k],) = _numbers([word], 1, float, where, what)
        flags = words[before + 3 : before + 6]
        if len(words) == before + 6:
            data.images[k] = _numbers(flags, 3, int, where, "three image flags after x y z")
    if (data.ids < 1).any() or len(np.unique(data.ids)) != n:
        raise ScriptError(f"{path}: atom ids must be positive and all different")
    if int(data.ids.max()) > 100 * n + 1_000_000:
        raise ScriptError(f"{path}: the largest atom id is {data.ids.max()} for {n} atoms; renumber them")


def write_data(path, title, session):
    """Write the state of a session as a data file; velocities in the script's unit."""
    system, style = session.system, session.atom_style
    order = np.argsort(system.ids)
    low, high = session.bounds()
    cell = system.cell
    lines = [title, "", f"{len(system)} atoms", f"{session.n_types} atom types", ""]
    lines += [f"{a:.16g} {b:.16g} {k}lo {k}hi" for a, b, k in zip(low, high, "xyz", strict=True)]
    if session.triclinic:
        lines.append(f"{cell[1, 0]:.16g} {cell[2, 0]:.16g} {cell[2, 1]:.16g} xy xz yz")
    if all(m is not None for m in session.masses):
        lines += ["", "Masses", ""] + [f"{t} {m:.16g}" for t, m in enumerate(session.masses, 1)]
    lines += ["", f"Atoms # {style}", ""]
    x = system.positions + system.origin
    for k in order:
        i = system.ids[k]
        values = {
            "id": i, "type": session.type_of[i], "mol": session.molecule_of[i], "q": f"{session.charge_of[i]:.16g}"
        }  # fmt: skip
        head = " ".join(str(values[name]) for name in STYLES[style])
        a, b, c = system.images[k]
        lines.append(f"{head} {x[k, 0]:.16g} {x[k, 1]:.16g} {x[k, 2]:.16g} {a} {b} {c}")
    lines += ["", "Velocities", ""]
    v = system.velocities * session.units.velocity
    lines += [f"{system.ids[k]} {v[k, 0]:.16g} {v[k, 1]:.16g} {v[k, 2]:.16g}" for k in order]
    write_text(path, "\n".join(lines) + "\n")
