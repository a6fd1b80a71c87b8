"""Commands that make and change boxes, atoms, groups and velocities."""

import math
from dataclasses import dataclass

import numpy as np

from dpmd.kernels.integrate import change_of_cell

from ..ensembles import Group
from ..fixes import remove_momentum, remove_rotation
from ..system import System
from ..units import temperature
from .computes import Displacement, Temperature
from .datafile import STYLES, announced_atoms, read_data
from .language import ScriptError
from .parkmiller import ParkMiller, velocity_noise
from .schedule import Schedule


def _positive(word, what):
    if not word.isdigit() or int(word) < 1:
        raise ScriptError(f"{what} must be a positive whole number, not {word!r}")
    return int(word)


def _options(words, table, what):
    """``{keyword: values}``; table: {keyword: number of values}."""
    found, position = {}, 0
    while position < len(words):
        name = words[position]
        if name not in table or position + table[name] >= len(words):
            raise ScriptError(
                f"{what}: unexpected {name!r} (or its value is missing); known: {', '.join(table) or 'none'}"
            )
        found[name] = words[position + 1 : position + 1 + table[name]]
        position += 1 + table[name]
    return found


# --------------------------------------------------------------------- systems


def _before_others(session, command):
    """Refuse to change the number of atoms once something keeps values of each."""
    keep = [name for name, compute in session.computes.items() if isinstance(compute, Displacement)]
    later = [*session.fixes, *session.dumps, *keep]
    if later:
        raise ScriptError(f"{command} must come before fixes, dumps and compute msd (here: {', '.join(later)})")


def _install(
    session, ids, types, positions, low, cell, triclinic, velocities=None, images=None, charges=None, molecules=None,
    origins=None,
):
    """Make a System and the tables by id; positions (n, 3) Å as in the script's coordinates.

    origins : (n,) ids of the atoms whose groups these belong to, 0 for none but ``all``; None: no groups are kept.
    """
    n = len(ids)
    size = int(max(ids, default=0)) + 1
    session.type_of = np.zeros(size, np.int32)
    session.charge_of, session.molecule_of = np.zeros(size), np.zeros(size, np.int64)
    session.type_of[ids] = types
    if charges is not None:
        session.charge_of[ids], session.molecule_of[ids] = charges, molecules
    session.first_low, session.first_length = np.array(low, float), np.diag(cell).copy()
    session.low = np.zeros(3)
    session.triclinic = bool(triclinic)
    step = session.system.step if session.system is not None else 0
    session.system = System(
        ids=np.array(ids, np.int64), types=np.full(n, -1, np.int32), masses=np.zeros(n) + 1e-300,
        positions=np.ascontiguousarray(positions, float) - low,
        velocities=np.zeros((n, 3)) if velocities is None else np.array(velocities, float),
        images=None if images is None else np.array(images, np.int32),
        cell=np.array(cell, float), periodic=np.array([a == "p" for a, _ in session.faces]), type_names=(),
        origin=np.array(low, float), constants=session.units.constants, step=step,
    )  # fmt: skip
    for group in session.groups.values():
        if group is not None:
            flags = np.zeros(size, bool)
            if origins is not None:
                flags[ids] = group.chosen[origins]
            group.chosen = flags  # in place: computes hold it, too
    if all(m is not None for m in session.masses):
        session.update_masses()
    session.changed()


#: of read_data and create_box: room for what may come; only further atom types mean something here
_EXTRA = {
    f"extra/{what}": 1
    for what in (
        "atom/types", "bond/types", "angle/types", "dihedral/types", "improper/types", "bond/per/atom",
        "angle/per/atom", "dihedral/per/atom", "improper/per/atom", "special/per/atom",
    )
}  # fmt: skip
#: of read_data: parts of other files or sections
_OTHER_FILES = {"add": 1, "offset": 5, "shift": 3, "group": 1, "fix": 3}


def _extra_types(options, what):
    """Atom types that ``extra/atom/types`` adds; all numbers of ``extra/...`` are checked."""
    for name, (value,) in ((n, v) for n, v in options.items() if n.startswith("extra/")):
        if not value.isdigit():
            raise ScriptError(f"{what} {name} takes a whole number, not {value!r}")
    return int(options.get("extra/atom/types", ["0"])[0])


def read_data_command(session, words):
    """Command ``read_data``."""
    path, options = words[0], _options(words[1:], {"nocoeff": 0, **_EXTRA, **_OTHER_FILES}, "read_data")
    refused = [name for name in options if name in _OTHER_FILES]
    if refused:
        raise ScriptError(f"read_data {refused[0]} is not supported; give one complete file")
    if session.system is not None:
        raise ScriptError("there is a box already; use 'clear' before another read_data")
    session.log("Reading data file ...")
    session.require_memory(session.processes.on_root(lambda: announced_atoms(path)), "read_data")
    data = session.processes.on_root(lambda: read_data(path, session.atom_style))
    session.n_types, session.labels = data.n_types + _extra_types(options, "read_data"), data.labels
    session.masses = [data.masses.get(t) for t in range(1, session.n_types + 1)]
    _describe_box(session, data.low, data.cell, data.triclinic)
    session.log("  1 by 1 by 1 MPI processor grid\n  reading atoms ...")
    _install(
        session, data.ids, data.types, data.positions, data.low, data.cell, data.triclinic,
        data.velocities / session.units.velocity, data.images * [a == "p" for a, _ in session.faces], data.charges,
        data.molecules,
    )  # fmt: skip
    _check_faces(session)
    session.bonded = data.bonded
    session.log(f"  {len(data.ids)} atoms")


def _describe_box(session, low, cell, triclinic):
    a, b = (" ".join(f"{v:.8g}" for v in corner) for corner in (low, np.array(low) + np.diag(cell)))
    tilt = f" with tilt ({cell[1, 0]:.8g} {cell[2, 0]:.8g} {cell[2, 1]:.8g})" if triclinic else ""
    session.log(f"  {'triclinic' if triclinic else 'orthogonal'} box = ({a}) to ({b}){tilt}")


def _wrap(system):
    """Bring atoms back into the box along periodic directions, and count it in their images."""
    turns = np.floor(system.positions @ np.linalg.inv(system.cell)) * system.periodic
    moved = turns.any(axis=1)
    system.positions[moved] -= turns[moved] @ system.cell
    system.images[moved] += turns[moved].astype(np.int32)


def _through_fractions(system):
    """Round positions as LAMMPS does in triclinic boxes, whose atoms it keeps as fractions while it reads them.

    Random velocities of ``loop geom`` depend on the last bit.
    """
    (a, _, _), (xy, b, _), (xz, yz, c) = system.cell
    x, y, z = system.positions.T
    u = 1.0 / a * x + -xy / (a * b) * y + (yz * xy - b * xz) / (a * b * c) * z
    v = 1.0 / b * y + -yz / (b * c) * z
    w = 1.0 / c * z
    system.positions = np.stack([a * u + xy * v + xz * w, b * v + yz * w, c * w], axis=1)


def _fit_faces(session, first=False):
    """Let faces s and m follow the atoms, which may have come or moved."""
    schedule = Schedule(None, session.faces, session.first_low, session.first_length, 1, 0, True, on_lost="ignore")
    schedule.low = session.low
    schedule.place_faces(session.system, first)


def _check_faces(session):
    """Refuse atoms outside fixed faces; wrap atoms into the box, and fit the faces that follow them."""
    system = session.system
    largest = float(np.abs(system.positions).max(initial=0.0))
    if largest > 1e3 * float(np.diag(system.cell).max()) + 1e5:
        raise ScriptError(f"atoms lie up to {largest:.3g} Å away from the box; are coordinates and box right?")
    for axis in np.flatnonzero(~system.periodic):
        if session.faces[axis] != ("f", "f") or session.thermo.lost == "ignore":
            continue
        fraction = (system.positions @ np.linalg.inv(system.cell))[:, axis]
        outside = (fraction < 0) | (fraction > 1)
        if outside.any():
            raise ScriptError(
                f"{int(outside.sum())} atoms (first: id {system.ids[outside][0]}) are outside the box along "
                f"{'xyz'[axis]}, which is fixed; use boundary s there or a larger box"
            )
    _wrap(system)
    if session.triclinic:
        _through_fractions(system)
    _fit_faces(session, first=True)


def boundary(session, words):
    """Command ``boundary``."""
    if session.system is not None:
        raise ScriptError("boundary must come before the box is made; use change_box ... boundary later")
    session.faces = _faces(words)


def _faces(words):
    faces = []
    for word in words:
        if len(word) not in (1, 2) or set(word) - set("pfsm") or (("p" in word) and set(word) != {"p"}):
            raise ScriptError(f"boundary {word!r}: one or two letters of p, f, s, m (p only for both faces)")
        faces.append((word[0], word[-1]))
    return faces


def create_box(session, words):
    """Command ``create_box``."""
    n_types = _positive(words[0], "the number of atom types")
    room = [f"{kind}/types" for kind in ("bond", "angle", "dihedral", "improper")]
    room += [name for name in _EXTRA if name.endswith("per/atom")]
    _extra_types(_options(words[2:], dict.fromkeys(room, 1), "create_box"), "create_box")
    region = session.region(words[1])
    if session.system is not None:
        raise ScriptError("there is a box already; use 'clear' first")
    if region.box is None:
        raise ScriptError("create_box needs a region of style block or prism")
    low, cell = region.box
    session.n_types, session.masses = n_types, [None] * n_types
    triclinic = region.kind == "prism"
    _install(session, np.zeros(0, int), np.zeros(0, int), np.zeros((0, 3)), low, cell, triclinic)
    session.log("Created " + ("triclinic" if triclinic else "orthogonal") + " box")


def replicate(session, words):
    """Command ``replicate``."""
    system = session.require_box()
    _before_others(session, "replicate")
    counts = [_positive(w, "replicate") for w in words[:3]]
    if words[3:] and words[3:] != ["bbox"]:
        raise ScriptError(f"replicate: {words[3]!r} is not supported")
    session.require_memory(math.prod(counts) * len(system), "replicate")
    low = session.bounds()[0].copy()
    order = np.argsort(system.ids)
    shifts = np.array(
        [(a, b, c) for c in range(counts[2]) for b in range(counts[1]) for a in range(counts[0])], float
    )  # fmt: skip
    # unwrapped, so that molecules across a face stay whole
    x = system.unwrapped_positions[order] + system.origin
    n, copies = len(order), len(shifts)
    ids = system.ids[order]
    molecules, copy = np.tile(session.molecule_of[ids], copies), np.repeat(np.arange(copies), n)
    molecules += copy * int(molecules.max(initial=0)) * (molecules > 0)
    _install(
        session, np.tile(ids, copies) + copy * int(ids.max(initial=0)), np.tile(session.type_of[ids], copies),
        np.concatenate([x + shift @ system.cell for shift in shifts]), low, system.cell * np.array(counts)[:, None],
        session.triclinic, np.tile(system.velocities[order], (copies, 1)), None,
        np.tile(session.charge_of[ids], copies), molecules, np.tile(ids, copies),
    )  # fmt: skip
    _wrap(session.system)
    _describe_box(session, low, session.system.cell, session.triclinic)
    session.log(f"  {n * copies} atoms")


def change_box(session, words):
    """Command ``change_box``."""
    system = session.require_box()
    session.settle_variables(words)
    if words[0] != "all":
        session.group_or_all(words[0])
    rest, length = words[1:], session.lattice_spacing
    units = "lattice"
    if "units" in rest:
        at = rest.index("units")
        units, rest = (rest[at + 1 : at + 2] or [""])[0], rest[:at] + rest[at + 2 :]
    new_low, new = session.bounds()[0].copy(), system.cell.copy()
    saved_low, saved = new_low.copy(), new.copy()

    def apply():
        """The new box; atoms stay where they are."""
        if not (np.diag(new) > 0).all():
            raise ScriptError(f"change_box: the box would have no volume (edges {np.diag(new)})")
        system.positions = system.positions + system.origin - new_low
        system.cell = new.copy()
        system.origin, session.low = new_low.copy(), np.zeros(3)

    while rest:
        name, rest = rest[0], rest[1:]
        if name == "triclinic":
            session.triclinic = True
        elif name == "ortho":
            if np.any(np.tril(new, -1)):
                raise ScriptError("change_box ortho: the box is tilted; set xy, xz, yz to 0 first")
            session.triclinic = False
        elif name == "boundary" and len(rest) >= 3:
            session.faces, rest = _faces(rest[:3]), rest[3:]
            system.periodic = np.array([a == "p" for a, _ in session.faces])
        elif name == "remap":  # atoms keep their fractions of the box as it was saved
            mask = session.group_mask(words[0])
            from_saved = system.positions[mask] + new_low - saved_low
            system.positions[mask] = from_saved @ change_of_cell(saved, new)
            saved, saved_low = new.copy(), new_low.copy()
        elif name == "set":
            saved, saved_low = new.copy(), new_low.copy()
        elif name in ("x", "y", "z") and rest:
            k = "xyz".index(name)
            kind, count = rest[0], {"final": 2, "delta": 2, "scale": 1, "volume": 0}.get(rest[0])
            if count is None or len(rest) < 1 + count:
                raise ScriptError(f"change_box {name}: {kind!r} is not final LO HI, delta LO HI, scale F or volume")
            scale = length()[k] if units == "lattice" and kind in ("final", "delta") and session.lattice else 1.0
            values, rest = [session.number(w, "change_box") for w in rest[1 : 1 + count]], rest[1 + count :]
            if kind == "final":
                new_low[k], high = values[0] * scale, values[1] * scale
            elif kind == "delta":
                high = new_low[k] + new[k, k] + values[1] * scale
                new_low[k] += values[0] * scale
            elif kind == "scale":
                middle, half = new_low[k] + new[k, k] / 2, new[k, k] * values[0] / 2
                new_low[k], high = middle - half, middle + half
            else:
                others = [a for a in range(3) if a != k]
                kept = np.prod(np.diag(saved)) / np.prod(np.diag(new)[others])
                middle = new_low[k] + new[k, k] / 2
                new_low[k], high = middle - kept / 2, middle + kept / 2
            new[k, k] = high - new_low[k]
            apply()
        elif name in ("xy", "xz", "yz") and len(rest) >= 2:
            row, column = {"xy": (1, 0), "xz": (2, 0), "yz": (2, 1)}[name]
            if not session.triclinic:
                raise ScriptError(f"change_box {name}: the box is orthogonal; use 'change_box all triclinic' first")
            value = session.number(rest[1], "change_box")
            if rest[0] not in ("final", "delta"):
                raise ScriptError(f"change_box {name}: {rest[0]!r} is not final or delta")
            new[row, column] = value + (new[row, column] if rest[0] == "delta" else 0.0)
            rest = rest[2:]
            apply()
        else:
            raise ScriptError(f"change_box: unexpected {name!r}")
    session.first_low, session.first_length = new_low.copy(), np.diag(new).copy()
    _fit_faces(session)
    _describe_box(session, session.bounds()[0], system.cell, session.triclinic)
    session.changed()


# --------------------------------------------------------------------- lattices, regions, atoms

_BASES = {
    "sc": [(0, 0, 0)], "bcc": [(0, 0, 0), (0.5, 0.5, 0.5)],
    "fcc": [(0, 0, 0), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)],
    "diamond": [
        (0, 0, 0), (0, 0.5, 0.5), (0.5, 0, 0.5), (0.5, 0.5, 0), (0.25, 0.25, 0.25), (0.25, 0.75, 0.75),
        (0.75, 0.25, 0.75), (0.75, 0.75, 0.25),
    ],
    "hcp": [(0, 0, 0), (0.5, 0.5, 0), (0.5, 5 / 6, 0.5), (0, 1 / 3, 0.5)],
}  # fmt: skip


@dataclass
class Lattice:
    """vectors : (3, 3) Å, rows; basis : fractions of them; spacing : (3,) Å, of lattice units."""

    vectors: np.ndarray
    basis: np.ndarray
    spacing: np.ndarray


def lattice(session, words):
    """Command ``lattice``."""
    style = words[0]
    if style == "none":
        session.lattice = None
        return
    if style not in (*_BASES, "custom"):
        raise ScriptError(f"lattice {style!r} is not supported; known: {', '.join(_BASES)}, custom, none")
    if len(words) < 2:
        raise ScriptError("lattice takes a style and the lattice constant")
    scale = session.number(words[1], "lattice")
    if scale <= 0:
        raise ScriptError("the lattice constant must be above 0")
    vectors, basis, rest = np.eye(3), list(_BASES.get(style, [])), words[2:]
    if style == "hcp":
        vectors = np.diag([1.0, math.sqrt(3.0), math.sqrt(8.0 / 3.0)])
    spacing = origin = None
    orient = np.eye(3)
    while rest:
        name, count = (
            rest[0],
            {"a1": 3, "a2": 3, "a3": 3, "basis": 3, "origin": 3, "orient": 4, "spacing": 3}.get(rest[0]),
        )
        if count is None or len(rest) <= count:
            raise ScriptError(f"lattice: unexpected {name!r}")
        if name == "orient":
            if rest[1] not in "xyz":
                raise ScriptError(f"lattice orient: {rest[1]!r} is not x, y or z")
            orient["xyz".index(rest[1])] = [session.number(w, "lattice orient") for w in rest[2:5]]
        else:
            values = [session.number(w, f"lattice {name}") for w in rest[1:4]]
            if name == "basis":
                basis.append(tuple(values))
            elif name == "origin":
                origin = np.array(values)
            elif name == "spacing":
                spacing = np.array(values)
            else:
                vectors[int(name[1]) - 1] = values
        rest = rest[1 + count :]
    if not basis:
        raise ScriptError("lattice custom needs at least one 'basis X Y Z'")
    if (np.linalg.norm(orient, axis=1) == 0).any():
        raise ScriptError("lattice orient: a direction is zero")
    rotation = (orient / np.linalg.norm(orient, axis=1)[:, None]).T
    if abs(np.linalg.det(rotation) - 1) > 1e-6:
        raise ScriptError("lattice orient: the three directions must be orthogonal and right-handed")
    turned = vectors @ rotation
    corners = np.array([(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]) @ turned
    extent = corners.max(axis=0) - corners.min(axis=0)
    session.lattice = Lattice(scale * turned, np.array(basis, float), scale * (extent if spacing is None else spacing))
    if origin is not None:
        session.lattice.basis = session.lattice.basis + origin
    s = session.lattice.spacing
    session.log(f"Lattice spacing in x,y,z = {s[0]:.8g} {s[1]:.8g} {s[2]:.8g}")


@dataclass
class Region:
    """contains(positions) -> mask; box : (low, cell) of blocks and prisms."""

    kind: str
    contains: object
    box: tuple | None = None


def region(session, words):
    """Command ``region``."""
    name, style, rest = words[0], words[1], words[2:]
    if style == "delete":
        session.regions.pop(name, None)
        return
    counts = {"block": 6, "prism": 9, "sphere": 4, "cylinder": 6, "union": None, "intersect": None}
    if style not in counts:
        raise ScriptError(f"region style {style!r} is not supported; known: {', '.join(counts)}")
    if style in ("union", "intersect"):
        if not rest or not rest[0].isdigit() or len(rest) < 1 + int(rest[0]):
            raise ScriptError(f"region {style} takes N and N region names")
        counts[style] = 1 + int(rest[0])
    given, options = rest[: counts[style]], _options(rest[counts[style] :], {"units": 1, "side": 1}, "region")
    if len(given) < counts[style]:
        raise ScriptError(f"region {style} takes {counts[style]} values")
    in_lattice = options.get("units", ["lattice"])[0] == "lattice"
    unit = session.lattice_spacing() if in_lattice else np.ones(3)
    session.regions[name] = made = _region_of(session, style, given, unit)
    if options.get("side", ["in"])[0] == "out":
        inside = made.contains
        made.contains, made.box = (lambda x: ~inside(x)), None


def _region_of(session, style, given, unit):
    if style in ("union", "intersect"):
        parts = []
        for word in given[1:]:
            parts.append(session.region(word).contains)
        combine = np.logical_or if style == "union" else np.logical_and
        return Region(style, lambda x: combine.reduce([p(x) for p in parts]))

    def value(word, axis, side=0):
        if word in ("INF", "EDGE"):
            if session.system is None or word == "INF":
                return math.inf * side
            return session.bounds()[0 if side < 0 else 1][axis]
        return session.number(word, f"region {style}") * unit[axis]

    if style in ("block", "prism"):
        low = np.array([value(given[2 * k], k, -1) for k in range(3)])
        high = np.array([value(given[2 * k + 1], k, 1) for k in range(3)])
        if not (high > low).all():
            raise ScriptError(f"region {style}: upper bounds must be above the lower ones")
        if style == "block":
            box = (low, np.diag(high - low)) if np.isfinite(high - low).all() else None
            return Region(style, lambda x: ((x >= low) & (x <= high)).all(axis=1), box)
        cell = np.diag(high - low)
        cell[1, 0], cell[2, 0], cell[2, 1] = value(given[6], 0), value(given[7], 0), value(given[8], 1)
        inverse = np.linalg.inv(cell)
        return Region(
            style, lambda x: (((x - low) @ inverse >= 0) & ((x - low) @ inverse <= 1)).all(axis=1), (low, cell)
        )  # fmt: skip
    if style == "sphere":
        centre, radius = np.array([value(given[k], k) for k in range(3)]), value(given[3], 0)
        return Region(style, lambda x: ((x - centre) ** 2).sum(axis=1) <= radius**2)
    if given[0] not in ("x", "y", "z"):
        raise ScriptError("region cylinder: the first value is x, y or z")
    axis = "xyz".index(given[0])
    others = [k for k in range(3) if k != axis]
    c1, c2 = (value(given[1 + k], others[k]) for k in range(2))
    radius, low, high = value(given[3], others[0]), value(given[4], axis, -1), value(given[5], axis, 1)
    return Region(
        style,
        lambda x: ((x[:, others[0]] - c1) ** 2 + (x[:, others[1]] - c2) ** 2 <= radius**2)
        & (x[:, axis] >= low) & (x[:, axis] <= high),
    )  # fmt: skip


def create_atoms(session, words):
    """Command ``create_atoms``."""
    system = session.require_box()
    _before_others(session, "create_atoms")
    new_type = _positive(words[0], "create_atoms: the type")
    if new_type > session.n_types:
        raise ScriptError(f"create_atoms: type {new_type} is above the number of types, {session.n_types}")
    style, rest = words[1], words[2:]
    if style == "random" and rest and rest[0].isdigit() and int(rest[0]) > 10_000_000:
        raise ScriptError("create_atoms random: more than 1e7 atoms")
    low, cell, inverse = session.bounds()[0], system.cell, np.linalg.inv(system.cell)
    counts = {"box": 0, "region": 1, "single": 3, "random": 3}
    if style not in counts or len(rest) < counts[style]:
        raise ScriptError("create_atoms takes TYPE box, TYPE region ID, TYPE single X Y Z or TYPE random N SEED REGION")
    given, rest = rest[: counts[style]], rest[counts[style] :]
    types_of_basis, options = {}, {}
    while rest:
        if rest[0] == "basis" and len(rest) >= 3:
            types_of_basis[_positive(rest[1], "basis")], rest = _positive(rest[2], "basis type"), rest[3:]
        elif rest[0] == "units" and len(rest) >= 2:
            options["units"], rest = rest[1], rest[2:]
        else:
            raise ScriptError(f"create_atoms: {rest[0]!r} is not supported; known: basis, units")
    inside = session.region(given[-1]) if style in ("region", "random") and given[-1] != "NULL" else None
    if style == "single":
        unit = session.lattice_spacing() if options.get("units", "lattice") == "lattice" else np.ones(3)
        x = np.array([[session.number(w, "create_atoms") * u for w, u in zip(given, unit, strict=True)]])
        types = np.array([new_type])
    elif style == "random":
        n, stream = _positive(given[0], "create_atoms random: N"), ParkMiller(_positive(given[1], "the seed"))
        rows = []
        for _ in range(1000 * n):
            point = low + stream.uniform(3) @ cell
            if inside is None or inside.contains(point[None])[0]:
                rows.append(point)
            if len(rows) == n:
                break
        x, types = np.array(rows).reshape(-1, 3), np.full(len(rows), new_type)
    else:
        x, types = _lattice_points(session, low, cell, new_type, types_of_basis)
        if inside is not None:
            keep = inside.contains(x)
            x, types = x[keep], types[keep]
    fraction = (x - low) @ inverse
    periodic = system.periodic
    keep = (
        (periodic | ((fraction >= -1e-9) & (fraction <= 1 + 1e-9))).all(axis=1)
        if style == "single"
        else np.ones(len(x), bool)
    )
    x, types = x[keep], types[keep]
    order = np.argsort(system.ids)
    old_ids, n = system.ids[order], len(x)
    start = int(old_ids.max(initial=0))
    first = (session.first_low, session.first_length)
    _install(
        session, np.concatenate([old_ids, start + 1 + np.arange(n)]),
        np.concatenate([session.type_of[old_ids], types]),
        np.concatenate([system.positions[order] + system.origin, x]), system.origin, cell, session.triclinic,
        np.concatenate([system.velocities[order], np.zeros((n, 3))]),
        np.concatenate([system.images[order], np.zeros((n, 3), np.int32)]),
        np.concatenate([session.charge_of[old_ids], np.zeros(n)]),
        np.concatenate([session.molecule_of[old_ids], np.zeros(n, np.int64)]),
        np.concatenate([old_ids, np.zeros(n, int)]),
    )  # fmt: skip
    session.first_low, session.first_length = first
    _fit_faces(session)
    session.log(f"Created {n} atoms")


def _lattice_points(session, low, cell, new_type, types_of_basis):
    """Points of the lattice in the box (upper faces excluded where periodic) and their types."""
    made = session.lattice
    if made is None:
        raise ScriptError("create_atoms box or region needs a 'lattice' command first")
    periodic = session.system.periodic
    corners = low + np.array([(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]) @ cell
    cells = corners @ np.linalg.inv(made.vectors)
    first, last = np.floor(cells.min(axis=0) - 1).astype(int), np.ceil(cells.max(axis=0) + 1).astype(int)
    if np.prod((last - first).astype(float)) * len(made.basis) > 1e9:
        raise ScriptError("create_atoms: more than 1e9 lattice points; check lattice and region units")
    # fewer are kept of a region, but all are looked at
    session.require_memory(int(np.prod(last - first + 1)) * len(made.basis), "create_atoms")
    grid = np.stack(np.meshgrid(*(np.arange(a, b + 1) for a, b in zip(first, last, strict=True)), indexing="ij"), -1)
    # as LAMMPS numbers them: z slowest, then y, x and the basis
    grid = grid.transpose(2, 1, 0, 3).reshape(-1, 3)
    points = (grid[:, None, :] + made.basis[None]).reshape(-1, 3) @ made.vectors
    number = np.tile(np.arange(1, len(made.basis) + 1), len(grid))
    fraction = (points - low) @ np.linalg.inv(cell)
    small = 1e-6 / np.diag(cell)
    keep = ((fraction >= -small) & np.where(periodic, fraction < 1 - small, fraction <= 1 + small)).all(axis=1)
    types = np.array([types_of_basis.get(b, new_type) for b in range(1, len(made.basis) + 1)])[number - 1]
    return points[keep], types[keep]


def displace_atoms(session, words):
    """Command ``displace_atoms``."""
    system = session.require_box()
    session.settle_variables(words)
    mask = session.group_mask(words[0])
    style, rest = words[1], words[2:]
    counts = {"move": 3, "ramp": 6, "random": 4, "rotate": 7}
    if style not in counts or len(rest) < counts[style]:
        raise ScriptError(
            "displace_atoms takes move DX DY DZ, ramp ..., random DX DY DZ SEED or rotate X Y Z RX RY RZ DEGREES"
        )
    options = _options(rest[counts[style] :], {"units": 1}, "displace_atoms")
    unit = np.ones(3)
    if options.get("units", ["lattice"])[0] == "lattice":
        unit = session.lattice_spacing()
    x = system.positions
    if style == "ramp":
        axis, along = "xyz".find(rest[0][-1]), "xyz".find(rest[3])
        if axis < 0 or along < 0:
            raise ScriptError("displace_atoms ramp takes x|y|z LO HI x|y|z CLO CHI")
        (a, b), (c, d) = ([session.number(w, "displace_atoms ramp") for w in rest[k : k + 2]] for k in (1, 4))
        a, b, c, d = a * unit[axis], b * unit[axis], c * unit[along], d * unit[along]
        fraction = np.clip((x[mask, along] + system.origin[along] - c) / (d - c), 0, 1)
        x[mask, axis] += a + fraction * (b - a)
    elif style == "rotate":
        values = np.array([session.number(w, "displace_atoms rotate") for w in rest[:7]])
        centre, axis = values[:3] * unit - system.origin, values[3:6]
        if not np.linalg.norm(axis) > 0:
            raise ScriptError("displace_atoms rotate: the axis is zero")
        k, angle = axis / np.linalg.norm(axis), math.radians(values[6])
        r = system.unwrapped_positions[mask] - centre
        turned = r * math.cos(angle) + np.cross(k, r) * math.sin(angle) + np.outer(r @ k, k) * (1 - math.cos(angle))
        x[mask], system.images[mask] = turned + centre, 0
    else:
        amounts = np.array([session.number(w, "displace_atoms") for w in rest[:3]]) * unit
        if style == "move":
            x[mask] += amounts
        else:
            noise = velocity_noise(_positive(rest[3], "the seed"), system.ids, x + system.origin, "geom")
            x[mask] += (2 * noise * amounts)[mask]
    _wrap(system)
    _fit_faces(session)
    session.changed()


def atom_style(session, words):
    """Command ``atom_style``."""
    if words[0] not in STYLES:
        raise ScriptError(f"atom_style {words[0]!r} is not supported; known: {', '.join(STYLES)}")
    session.atom_style = words[0]


def mass(session, words):
    """Command ``mass``."""
    session.require_box()
    value = session.number(words[1], "mass")
    if value <= 0:
        raise ScriptError(f"a mass must be above 0, not {value:g}")
    for t in session.type_range(words[0]):
        session.masses[t - 1] = value
    if all(m is not None for m in session.masses):
        session.update_masses()


# --------------------------------------------------------------------- groups


def group(session, words):
    """Command ``group``."""
    system, name, style, rest = session.require_box(), words[0], words[1], words[2:]
    if name == "all":
        raise ScriptError("the group all is all atoms; choose another name")
    if style == "delete":
        session.groups.pop(name, None)
        return
    chosen = (
        session.group_mask(name).copy()
        if name in session.groups and style not in ("clear", "empty")
        else np.zeros(len(system), bool)
    )
    values = {"type": session.type_of[system.ids], "id": system.ids, "molecule": session.molecule_of[system.ids]}
    if style in values:
        chosen |= _select(values[style], rest, session if style == "type" else None)
    elif style == "region":
        if not rest:
            raise ScriptError("group ID region takes the id of a region")
        chosen |= session.region(rest[0]).contains(system.positions + system.origin)
    elif style in ("subtract", "union", "intersect"):
        if not rest:
            raise ScriptError(f"group {style} needs names of groups")
        masks = [session.group_mask(w) for w in rest]
        if style == "union":
            chosen |= np.logical_or.reduce(masks)
        elif style == "intersect":
            chosen |= np.logical_and.reduce(masks)
        else:
            chosen |= masks[0] & ~np.logical_or.reduce([*masks[1:], np.zeros_like(masks[0])])
    elif style not in ("empty", "clear", "static"):
        raise ScriptError(
            f"group {style!r} is not supported; known: type, id, molecule, region, subtract, union, intersect, empty, "
            "clear, delete"
        )
    flags = np.zeros(int(system.ids.max(initial=0)) + 1, bool)
    flags[system.ids[chosen]] = True
    session.groups[name] = Group(flags, name)
    session.log(f"{int(chosen.sum())} atoms in group {name}")


def _select(values, words, session):
    """Mask of values that the words name: numbers, ranges a:b:step, types with *, or a comparison."""
    if not words:
        raise ScriptError("group needs values")
    compare = {
        "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal
    }  # fmt: skip
    try:
        if words[0] in compare:
            return compare[words[0]](values, int(words[1]))
        if words[0] == "<>":
            return (values >= int(words[1])) & (values <= int(words[2]))
        mask = np.zeros(len(values), bool)
        for word in words:
            if session is not None and "*" in word:
                mask |= np.isin(values, list(session.type_range(word)))
                continue
            low, *more = (int(w) for w in word.split(":"))
            high, step = more[0] if more else low, more[1] if len(more) > 1 else 1
            mask |= (values >= low) & (values <= high) & ((values - low) % step == 0)
        return mask
    except (ValueError, IndexError, ZeroDivisionError):
        raise ScriptError(f"group: cannot read {' '.join(words)!r}; examples: 1 3, 1:10, <= 5, <> 2 8") from None


# --------------------------------------------------------------------- velocities


def velocity(session, words):
    """Command ``velocity``."""
    system, style, rest = session.require_box(), words[1], words[2:]
    named = session.group_or_all(words[0])
    session.update_masses()
    session.settle_variables(words)
    counts = {"create": 2, "set": 3, "scale": 1, "ramp": 6, "zero": 1}
    if style not in counts or len(rest) < counts[style]:
        raise ScriptError("velocity takes create T SEED, set VX VY VZ, scale T, ramp ..., or zero linear|angular")
    options = _options(
        rest[counts[style] :],
        {"dist": 1, "sum": 1, "mom": 1, "rot": 1, "temp": 1, "bias": 1, "loop": 1, "rigid": 1, "units": 1}, "velocity",
    )  # fmt: skip
    mask = slice(None) if named is None else named.mask(system)
    n = system.n_atoms if named is None else named.n_atoms(system)
    add = options.get("sum", ["no"])[0] == "yes"
    unit = session.lattice_spacing() if options.get("units", ["lattice"])[0] == "lattice" else np.ones(3)
    speed = unit / session.units.velocity  # Å/ps of a velocity of 1 along each axis
    if style == "create":
        _create_velocities(session, system, named, mask, n, rest, options)
    elif style == "scale":
        _scale_to(session, system, mask, n, session.number(rest[0], "velocity scale"), options)
    elif style == "zero":
        if rest[0] not in ("linear", "angular"):
            raise ScriptError("velocity zero takes linear or angular")
        (remove_momentum if rest[0] == "linear" else remove_rotation)(system, mask)
    elif style == "set":
        for axis, word in enumerate(rest[:3]):
            if word != "NULL":
                value = session.number(word, "velocity set") * speed[axis]
                system.velocities[mask, axis] = value + (system.velocities[mask, axis] if add else 0.0)
    else:
        axis, along = "xyz".find(rest[0][-1]), "xyz".find(rest[3])
        if axis < 0 or along < 0 or rest[0][:1] != "v":
            raise ScriptError("velocity ramp takes vx|vy|vz VLO VHI x|y|z CLO CHI")
        a, b = (session.number(w, "velocity ramp") * speed[axis] for w in rest[1:3])
        c, d = (session.number(w, "velocity ramp") * unit[along] for w in rest[4:6])
        if c == d:
            raise ScriptError("velocity ramp: CLO and CHI are the same")
        x = system.positions[mask, along] + system.origin[along]
        value = a + np.clip((x - c) / (d - c), 0, 1) * (b - a)
        system.velocities[mask, axis] = value + (system.velocities[mask, axis] if add else 0.0)
    session.changed()


def _scale_to(session, system, mask, n, kelvin, options, keep_zero=False):
    if "temp" in options:
        source = session.compute(options["temp"][0])
        if not isinstance(source, Temperature):
            raise ScriptError(f"velocity: compute {options['temp'][0]} is not of style temp")
        current = source.scalar()
    else:
        kinetic = 0.5 * float(np.trace(system.twice_kinetic_tensor(None if isinstance(mask, slice) else mask)))
        current = temperature(kinetic, 3 * n - 3, session.units.constants)
    if kelvin < 0:
        raise ScriptError("a temperature must not be negative")
    if current > 0:
        system.velocities[mask] *= math.sqrt(kelvin / current)
    elif kelvin > 0 and not keep_zero and n > 1:
        raise ScriptError("velocity: the atoms are at rest, so they cannot be scaled to a temperature; use create")


def _create_velocities(session, system, named, mask, n, rest, options):
    kelvin, seed = session.number(rest[0], "velocity create: T"), _positive(rest[1], "velocity create: the seed")
    if seed > 2147483646:
        raise ScriptError("velocity create: the seed must be below 2147483647")
    loop, kind = options.get("loop", ["all"])[0], options.get("dist", ["uniform"])[0]
    if loop not in ("all", "local", "geom") or kind not in ("uniform", "gaussian"):
        raise ScriptError("velocity create: loop is all, local or geom; dist is uniform or gaussian")
    if named is not None and not np.any(mask):
        return
    before = system.velocities[mask].copy()
    x = system.positions + system.origin
    chosen = np.zeros(len(system), bool)
    chosen[mask] = True
    noise = velocity_noise(seed, system.ids, x, loop, kind == "gaussian", chosen)
    system.velocities[mask] = (noise / np.sqrt(system.masses)[:, None])[mask]
    if options.get("mom", ["yes"])[0] == "yes":
        remove_momentum(system, mask)
    if options.get("rot", ["no"])[0] == "yes":
        remove_rotation(system, mask)
    _scale_to(session, system, mask, n, kelvin, options, keep_zero=True)
    if options.get("sum", ["no"])[0] == "yes":
        system.velocities[mask] += before
