"""Dumps: trajectories and per-atom values in LAMMPS's formats."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..binary_trajectories import DcdFile, XtcFile
from ..simulation import Hook
from .language import ScriptError, c_format


@dataclass(frozen=True)
class Column:
    """A per-atom value: ``get(session)`` gives (n,) in the present order of the atoms."""

    help: str
    get: Callable
    integer: bool = False
    text: bool = False


def _position(axis):
    return lambda s: s.system.positions[:, axis] + s.system.origin[axis]


def _unwrapped(axis):
    return lambda s: s.system.unwrapped_positions[:, axis] + s.system.origin[axis]


def _scaled(axis, unwrapped=False):
    def get(s):
        x = s.system.unwrapped_positions if unwrapped else s.system.positions
        low, _ = s.bounds()
        return ((x + s.system.origin - low) @ np.linalg.inv(s.system.cell))[:, axis]

    return get


def _velocity(axis):
    return lambda s: s.system.velocities[:, axis] * s.units.velocity


def _force(axis):
    def get(s):
        s.need_forces()
        return s.system.forces[:, axis] * s.units.energy

    return get


def _image(axis):
    return lambda s: s.system.images[:, axis]


def _by_id(name):
    return lambda s: getattr(s, name)[s.system.ids]


COLUMNS = {
    "id": Column("number of the atom", lambda s: s.system.ids, integer=True),
    "type": Column("type of the script", _by_id("type_of"), integer=True),
    "element": Column("element (dump_modify element)", None, text=True),
    "mass": Column("mass", lambda s: s.system.masses),
    "mol": Column("molecule", _by_id("molecule_of"), integer=True),
    "q": Column("charge of the data file", _by_id("charge_of")),
    "proc": Column("process", lambda s: np.full(len(s.system), s.system.processes.rank), integer=True),
    "procp1": Column("process + 1", lambda s: np.full(len(s.system), s.system.processes.rank + 1), integer=True),
    **{n: Column("position", _position(k)) for k, n in enumerate(("x", "y", "z"))},
    **{n: Column("scaled position", _scaled(k)) for k, n in enumerate(("xs", "ys", "zs"))},
    **{n: Column("unwrapped position", _unwrapped(k)) for k, n in enumerate(("xu", "yu", "zu"))},
    **{n: Column("scaled unwrapped position", _scaled(k, True)) for k, n in enumerate(("xsu", "ysu", "zsu"))},
    **{n: Column("image count", _image(k), integer=True) for k, n in enumerate(("ix", "iy", "iz"))},
    **{n: Column("velocity", _velocity(k)) for k, n in enumerate(("vx", "vy", "vz"))},
    **{n: Column("force", _force(k)) for k, n in enumerate(("fx", "fy", "fz"))},
}


class Dump(Hook):
    """What all dumps share: when they are due, which atoms, which file.

    On several ranks each looks at its own atoms; root puts all of them into the file.
    every : steps, or a variable ``v_NAME`` that tells the next one; path : with ``*`` for one file per frame,
    ``.gz`` compressed.
    """

    several_ranks = True
    fields: tuple[str, ...] = ()

    def __init__(self, session, group, every, path, words):
        self.session, self.group, self.every, self.pattern = session, group, every, path
        self.append = self.first = self.unwrap = self.image = self.time = self.units = False
        self.sort, self.scaled, self.pad, self.elements = None, True, 0, None
        self.precision, self.formats, self.float_format, self.int_format = 1000.0, {}, "%g", "%d"
        self.line_format, self.labels, self.file = None, {}, None
        self.last_written = self.next = None
        self.delay = 0
        if "%" in path:
            raise ScriptError("file names with % (one file per process) are not supported; leave it out")
        if path.endswith(".bin"):
            raise ScriptError("binary .bin dumps are not supported; use a text, .gz, dcd or xtc dump")
        self.set_up(words)

    def set_up(self, words):
        """Read the arguments after the file name."""
        if words:
            raise ScriptError(f"unexpected {words[0]!r} after the file name")

    def modify(self, name, words):
        """One keyword of dump_modify; returns how many words it took."""

        def flag():
            if not words or words[0] not in ("yes", "no", "on", "off", "true", "false"):
                raise ScriptError(f"dump_modify {name} takes yes or no")
            return words[0] in ("yes", "on", "true")

        if name in ("append", "first", "unwrap", "image", "time", "units"):
            setattr(self, name, flag())
        elif name == "scale":
            self.scaled = flag()
        elif name in ("flush", "pbc", "header", "buffer", "thermo"):
            flag()  # nothing to do here: files are flushed at each frame
        elif name == "sort":
            if not words or not (words[0] in ("id", "off") or words[0].lstrip("-").isdigit()):
                raise ScriptError("dump_modify sort takes id, off, or the number of a column")
            self.sort = words[0] if words[0] in ("id", "off") else int(words[0])
        elif name == "every":
            if words and words[0].startswith("v_"):
                self.every, self.next = words[0], None
            elif words and words[0].isdigit() and int(words[0]) > 0:
                self.every = int(words[0])
            else:
                raise ScriptError("dump_modify every takes a number of steps, or a variable v_NAME that tells the next")
        elif name == "delay":
            if not words or not words[0].isdigit():
                raise ScriptError("dump_modify delay takes the first step")
            self.delay = int(words[0])
        elif name == "pad":
            self.pad = int(words[0]) if words and words[0].isdigit() else 0
        elif name == "precision":
            try:
                self.precision = float(words[0])
            except (IndexError, ValueError):
                raise ScriptError("dump_modify precision takes a number") from None
        elif name == "element":
            n = self.session.n_types
            if len(words) < n:
                raise ScriptError(f"dump_modify element takes {n} names, one per atom type")
            self.elements = words[:n]
            return n
        elif name == "colname":
            if len(words) < 2:
                raise ScriptError("dump_modify colname takes a column and its name")
            self.labels[words[0]] = words[1]
            return 2
        elif name == "format":
            return self._set_format(words)
        else:
            raise ScriptError(
                f"dump_modify {name!r} is not supported; known: append, colname, delay, element, every, first, flush, "
                "format, image, pad, pbc, precision, scale, sort, time, units, unwrap"
            )
        return 1

    def _set_format(self, words):
        if words and words[0] == "none":
            self.formats, self.float_format, self.int_format, self.line_format = {}, "%g", "%d", None
            return 1
        if len(words) < 2:
            raise ScriptError("dump_modify format takes float, int, line or a column number, and a format")
        which, form = words[0], words[1]
        if which != "line":
            c_format(form, 1)
        if which == "float":
            self.float_format = form
        elif which == "int":
            self.int_format = form
        elif which == "line":
            self.line_format = form.split()
        elif which.isdigit():
            self.formats[int(which)] = form
        else:
            raise ScriptError(f"dump_modify format {which!r}: use float, int, line or the number of a column")
        return 2

    # ------------------------------------------------------------------ frames

    def due(self, step, first=False):
        if step < self.delay or step == self.last_written:
            return False
        if isinstance(self.every, str):
            if self.next is None or self.next < step:
                self.next = self.session.next_step(self.every)
            return step == self.next or (first and self.first)
        return step % self.every == 0 or (first and self.first)

    def __call__(self, simulation):
        self.write()
        self.last_written = self.session.system.step
        if isinstance(self.every, str):
            self.next = self.session.next_step(self.every)

    def path(self):
        """The file for the present step."""
        step = str(self.session.system.step).zfill(self.pad)
        return self.pattern.replace("*", step)

    def open_text(self):
        """The file to write the present frame to."""
        path = self.path()
        try:
            if "*" in self.pattern or self.file is None:
                mode = "a" if self.append else "w"
                opener = gzip.open if path.endswith(".gz") else open
                self.file = opener(path, mode + "t", encoding="utf-8")
        except OSError as error:
            raise ScriptError(f"dump file {path} cannot be written: {error.strerror or error}") from error
        return self.file

    def names(self, ids):
        """Element or type of each atom, as text."""
        types = self.session.type_of[ids]
        if self.elements is None:
            return types.astype(str)
        return np.array(["", *self.elements])[types]

    def write(self):
        """Write the present frame.  Collective."""
        session = self.session
        columns = session.settle_atoms(self.look)
        ids, *columns = session.system.gathered(session.system.ids, *columns)
        session.processes.on_root(lambda: self._put_chosen(ids, columns))

    def _put_chosen(self, ids, columns):
        chosen = np.arange(len(ids)) if self.group is None else np.flatnonzero(self.group.chosen[ids])
        order = chosen[np.argsort(ids[chosen])]
        self.put(ids[order], *(column[order] for column in columns))

    def look(self):
        """What is to be written of this rank's atoms: a list of arrays (n, ...)."""
        raise NotImplementedError

    def put(self, ids, *columns):
        """Write what was looked at, of the group's atoms in id order, to the file."""
        raise NotImplementedError

    def frame_done(self):
        """Flush, or close a file of its own."""
        self.file.flush()
        if "*" in self.pattern:
            self.close()

    def close(self):
        """Close the file."""
        if self.file is not None:
            self.file.close()
            self.file = None


class CustomDump(Dump):
    """``dump custom``: the columns that the script names."""

    def set_up(self, words):
        if not words:
            raise ScriptError("dump custom needs columns, such as id type x y z")
        self.fields = tuple(w for word in words for w in self.session.expand_star(word))
        for name in self.fields:
            if name not in COLUMNS and name[:2] not in ("c_", "f_"):
                raise ScriptError(f"column {name!r} is not supported; known: {', '.join(COLUMNS)}, c_ID, c_ID[i], f_ID")

    def columns(self):
        """Names of the columns of this frame."""
        return self.fields

    def look(self):
        known = [(name, COLUMNS.get(name)) for name in self.columns() if name != "element"]
        return [
            np.asarray(column.get(self.session) if column else self.session.atom_column(name)) for name, column in known
        ]

    def put(self, ids, *columns):
        session, system, columns = self.session, self.session.system, iter(columns)
        values, forms = [], []
        for k, name in enumerate(self.columns(), 1):
            if name == "element":
                column, form = self.names(ids), "%s"
            else:
                known, column = COLUMNS.get(name), next(columns)
                integer = bool(known and known.integer)
                if self.line_format and k <= len(self.line_format):
                    form = self.line_format[k - 1]
                else:
                    form = self.formats.get(k, self.int_format if integer else self.float_format)
                if integer:
                    form = form.replace("ld", "d")
            values.append(column)
            forms.append(form)
        if isinstance(self.sort, int):
            by = np.argsort(values[abs(self.sort) - 1], kind="stable")
            values = [v[by[:: -1 if self.sort < 0 else 1]] for v in values]
        file = self.open_text()
        head = []
        if self.units:
            head += ["ITEM: UNITS", session.units.name]
        if self.time:
            head += ["ITEM: TIME", f"{session.time():.16g}"]
        low, high = session.bounds()
        flags = session.boundary_flags()
        head += ["ITEM: TIMESTEP", str(system.step), "ITEM: NUMBER OF ATOMS", str(len(ids))]
        if session.triclinic:
            xy, xz, yz = system.cell[1, 0], system.cell[2, 0], system.cell[2, 1]
            left, right = min(0.0, xy, xz, xy + xz), max(0.0, xy, xz, xy + xz)
            head.append(f"ITEM: BOX BOUNDS xy xz yz {flags}")
            head.append(f"{low[0] + left:.16e} {high[0] + right:.16e} {xy:.16e}")
            head.append(f"{low[1] + min(0.0, yz):.16e} {high[1] + max(0.0, yz):.16e} {xz:.16e}")
            head.append(f"{low[2]:.16e} {high[2]:.16e} {yz:.16e}")
        else:
            head.append(f"ITEM: BOX BOUNDS {flags}")
            head += [f"{a:.16e} {b:.16e}" for a, b in zip(low, high, strict=True)]
        head.append("ITEM: ATOMS " + " ".join(self.labels.get(n, n) for n in self.columns()))
        form = " ".join(forms)
        rows = [form % row for row in zip(*(v.tolist() for v in values), strict=True)]
        file.write("\n".join(head + rows) + "\n")
        self.frame_done()


class AtomDump(CustomDump):
    """``dump atom``: id, type, scaled positions."""

    def set_up(self, words):
        Dump.set_up(self, words)

    def columns(self):
        names = ("xs", "ys", "zs") if self.scaled else ("x", "y", "z")
        return ("id", "type", *names, *(("ix", "iy", "iz") if self.image else ()))


class XyzDump(Dump):
    """``dump xyz``: element (or type) and position."""

    def look(self):
        return [self.session.system.positions + self.session.system.origin]

    def put(self, ids, x):
        file = self.open_text()
        form = f"%s {self.float_format} {self.float_format} {self.float_format}"
        rows = [form % (name, *r) for name, r in zip(self.names(ids), x.tolist(), strict=True)]
        file.write("\n".join([str(len(ids)), f" Atoms. Timestep: {self.session.system.step}", *rows]) + "\n")
        self.frame_done()


class ExtendedXyzDump(Dump):
    """``dump extxyz``: cell, elements, positions, velocities and forces."""

    def look(self):
        session, system = self.session, self.session.system
        session.need_forces()
        x = system.positions - (session.bounds()[0] - system.origin)
        v, f = system.velocities * session.units.velocity, system.forces * session.units.energy
        self.energy = session.energy() * session.units.energy  # a sum over ranks, which root alone must not ask for
        return [system.types, np.hstack([x, v, f])]

    def put(self, ids, types, values):
        system = self.session.system
        names = self.names(ids) if self.elements else np.array([*system.type_names, "X"])[types]
        lattice = " ".join(f"{c:.16g}" for c in system.cell.ravel())
        pbc = " ".join("T" if p else "F" for p in system.periodic)
        file = self.open_text()
        file.write(
            f'{len(ids)}\nTimestep={system.step} pbc="{pbc}" Lattice="{lattice}" '
            f"Energy={self.energy:.16g} "
            "Properties=species:S:1:pos:R:3:vel:R:3:forces:R:3\n"
        )
        form = "%s" + " %.12g" * 9
        rows = zip(names, values.tolist(), strict=True)
        file.write("".join(form % (name, *r) + "\n" for name, r in rows))
        self.frame_done()


class _BinaryDump(Dump):
    def set_up(self, words):
        super().set_up(words)
        if "*" in self.pattern:
            raise ScriptError("one file per frame is not supported for this style")

    def look(self):
        system = self.session.system
        return [(system.unwrapped_positions if self.unwrap else system.positions) + system.origin]

    def there(self):
        return self.append and Path(self.pattern).exists()


class DcdDump(_BinaryDump):
    """``dump dcd``: positions in single precision."""

    def put(self, ids, x):
        session = self.session
        if self.file is None:
            every = 1 if isinstance(self.every, str) else self.every
            self.file = DcdFile(self.pattern, len(x), session.system.step, every, session.timestep, self.there())
        self.file.write(x, session.system.cell, session.system.step)


class XtcDump(_BinaryDump):
    """``dump xtc``: positions in nm, as whole multiples of 1 / precision."""

    def put(self, ids, x):
        session = self.session
        if self.file is None:
            self.file = XtcFile(self.pattern, self.precision, self.there())
        picoseconds = session.time() / session.units.time
        self.file.write(x / 10, session.system.cell / 10, session.system.step, picoseconds)


#: {style: (arguments, help, class)}
DUMPS = {
    "custom": ("COLUMNS...", "the columns that are named", CustomDump),
    "atom": ("", "id, type and scaled positions", AtomDump),
    "xyz": ("", "element or type and positions", XyzDump),
    "extxyz": ("", "extended xyz with cell, velocities, forces", ExtendedXyzDump),
    "dcd": ("", "positions, binary, single precision", DcdDump),
    "xtc": ("", "positions, binary, GROMACS", XtcDump),
}
#: the same by the names of LAMMPS's compressed styles: a file whose name ends in .gz is compressed in any style
DUMPS |= {f"{style}/gz": DUMPS[style] for style in ("custom", "atom", "xyz")}
