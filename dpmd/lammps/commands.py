"""The table of commands.

From it come the parser's checks, ``md-run --help-lammps`` and the list of what is unsupported.  To
add a command, add a line to COMMANDS; styles of fixes, computes and dumps have tables of their own.
"""

import difflib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..ensembles import Fix
from ..errors import InputError
from . import structure
from .computes import COMPUTES, KEYWORDS, Pressure, Temperature
from .datafile import write_data
from .dumps import COLUMNS, DUMPS
from .fixes import FIXES
from .language import FUNCTIONS, RANDOM, STEP_FUNCTIONS, ScriptError, UnknownName, Variables
from .log import MULTI, ONE, ThermoStyle
from .minimization import MIN_STYLES, min_modify, min_style, minimize
from .restart import read_restart, write_restart
from .session import Pair
from .unitstyles import UNITS


@dataclass(frozen=True)
class Command:
    """One command.

    usage : its arguments; required ones first, optional ones in brackets, ``...`` for any number more.
    run : function(session, words), or None for commands that the interpreter itself executes.
    styles : (position of the style's name among the words, table of styles), if it has styles.
    """

    name: str
    usage: str
    help: str
    run: Callable | None
    styles: tuple[int, dict] | None = None

    @property
    def least(self):
        """Fewest arguments."""
        return len(re.sub(r"\[.*", "", self.usage).replace("...", "").split())

    @property
    def most(self):
        """Most arguments, None if there is no limit."""
        return None if "[" in self.usage or "..." in self.usage else self.least

    def check_count(self, n):
        """Raises ScriptError for too few or too many arguments."""
        if n < self.least or (self.most is not None and n > self.most):
            raise ScriptError(f"{self.name} takes: {self.usage or 'no arguments'}; {n} given")


# --------------------------------------------------------------------- settings


def _yes(word):
    if word not in ("yes", "no", "on", "off"):
        raise ScriptError(f"{word!r} is not yes or no")
    return word in ("yes", "on")


def _whole(session, word, what, least=0):
    value = session.number(word, what)
    if value != int(value) or value < least:
        raise ScriptError(f"{what} must be a whole number of at least {least}, not {word!r}")
    return int(value)


def _units(session, words):
    if session.system is not None:
        raise ScriptError("units must come before the box is made")
    if words[0] not in UNITS:
        raise ScriptError(f"units {words[0]!r} is not supported with Deep Potentials here; known: {', '.join(UNITS)}")
    session.units = UNITS[words[0]]
    session.timestep, session.skin = session.units.timestep, session.units.skin


def _dimension(session, words):
    if words[0] != "3":
        raise ScriptError("only dimension 3 is supported: Deep Potentials are trained in three dimensions")


def _neighbor(session, words):
    skin = session.number(words[0], "neighbor: the skin")
    if not 0 <= skin <= 10:
        raise ScriptError(f"neighbor: a skin of {words[0]} Å is not between 0 and 10; 2.0 is usual")
    session.skin = skin


def _neigh_modify(session, words):
    rest = list(words)
    while rest:
        name, rest = rest[0], rest[1:]
        if name in ("every", "delay") and rest:
            setattr(session, name, _whole(session, rest[0], f"neigh_modify {name}", 1 if name == "every" else 0))
        elif name == "check" and rest:
            session.check = _yes(rest[0])
        elif name == "exclude":
            raise ScriptError("neigh_modify exclude is not supported: a Deep Potential has no pairs to leave out")
        elif name not in ("one", "page", "binsize", "once", "cluster", "include") or not rest:
            raise ScriptError(f"neigh_modify {name!r} is not supported; known: every, delay, check, one, page, binsize")
        rest = rest[1:]


def _timestep(session, words):
    value = session.number(words[0], "timestep")
    if value <= 0:
        raise ScriptError(f"the time step must be above 0, not {words[0]}")
    if session.system is not None:
        session.time_offset = (session.time(), session.system.step)
    session.timestep = value


def _reset_timestep(session, words):
    system = session.require_box()
    for name, fix in session.fixes.items():
        if getattr(fix, "time_dependent", False):
            style = session.fix_styles[name]
            raise ScriptError(f"reset_timestep: fix {name} ({style}) counts steps; unfix it first")
    at = session.time()
    system.step = _whole(session, words[0], "reset_timestep")
    session.time_offset = (at, system.step)
    if words[1:2] == ["time"] and len(words) == 3:
        session.time_offset = (session.number(words[2], "reset_timestep time"), system.step)


def _box(session, words):
    if words[:1] != ["tilt"] or words[1] not in ("large", "small"):
        raise ScriptError("box takes: tilt large|small")  # every tilt is taken: nothing to keep


def _accepted(session, words):
    """Means nothing here."""


def _zero_style(session, words):
    if words[0] not in ("zero", "none"):
        raise ScriptError(f"style {words[0]!r}: bonded interactions are not supported; only the styles zero and none")


#: weights of neighbours over one, two and three bonds that go with a name
_FORCE_FIELDS = {"amber": (0, 0, 0.5), "charmm": (0, 0, 0), "dreiding": (0, 0, 1)}


def _special_bonds(session, words):
    rest, lj, coul = list(words), (0, 0, 0), (0, 0, 0)
    while rest:
        name, rest = rest[0], rest[1:]
        if name in ("lj", "coul", "lj/coul") and len(rest) >= 3:
            values, rest = [session.number(w, "special_bonds") for w in rest[:3]], rest[3:]
            lj, coul = values if "lj" in name else lj, values if "coul" in name else coul
        elif name in _FORCE_FIELDS:
            lj = coul = _FORCE_FIELDS[name]
        elif name in ("angle", "dihedral", "one/five") and rest:
            rest = rest[1:]
        else:
            known = ", ".join(_FORCE_FIELDS)
            raise ScriptError(f"special_bonds: unexpected {name!r}; known: {known}, lj|coul|lj/coul and three numbers")
    session.leaves_out_bonded = not all(map(max, lj, coul))


# --------------------------------------------------------------------- the potential

#: {keyword of pair_style deepmd: number of values (None: up to the next keyword)}
PAIR_KEYWORDS = {
    "out_file": 1, "out_freq": 1, "fparam": None, "aparam": None, "fparam_from_compute": 1, "aparam_from_compute": 1,
    "atomic": 0, "relative": 1, "relative_v": 1, "virtual_len": None, "spin_norm": None,
}  # fmt: skip
_PAIR_REFUSED = {
    "fparam_from_fix": "parameters from fixes",
    "ttm": "the two-temperature model",
    "charge_spin": "charge-spin models",
}


def _pair_style(session, words):
    if words[0] != "deepmd":
        raise ScriptError(f"pair_style {words[0]!r} is not supported; dpmd computes with 'pair_style deepmd MODEL'")
    rest = words[1:]
    stop = next((k for k, w in enumerate(rest) if w in PAIR_KEYWORDS or w in _PAIR_REFUSED), len(rest))
    models = rest[:stop]
    pair = Pair(models)
    if len(models) > 2 and models[-2].isdigit():  # the old form: models, frequency, file
        pair.out_every, pair.out_file, pair.models = int(models[-2]), models[-1], models[:-2]
    if not pair.models:
        raise ScriptError("pair_style deepmd needs at least one model file")
    rest = rest[stop:]
    while rest:
        name, rest = rest[0], rest[1:]
        if name in _PAIR_REFUSED:
            raise ScriptError(f"pair_style deepmd {name}: {_PAIR_REFUSED[name]} are not supported")
        if name not in PAIR_KEYWORDS:
            raise ScriptError(f"pair_style deepmd: unknown keyword {name!r}; known: {', '.join(PAIR_KEYWORDS)}")
        count = PAIR_KEYWORDS[name]
        if count is None:
            count = next((k for k, w in enumerate(rest) if w in PAIR_KEYWORDS or w in _PAIR_REFUSED), len(rest))
        values, rest = rest[:count], rest[count:]
        if len(values) < count or (PAIR_KEYWORDS[name] is None and not values):
            raise ScriptError(f"pair_style deepmd: {name} lacks its value")
        if name == "out_file":
            pair.out_file = values[0]
        elif name == "out_freq":
            pair.out_every = _whole(session, values[0], "out_freq")
        elif name == "atomic":
            pair.per_atom = True
        elif name in ("relative", "relative_v"):
            setattr(pair, name, session.number(values[0], name))
        elif name == "fparam":
            pair.frame = [session.number(v, name) for v in values]
        elif name == "aparam":
            pair.atomic = [session.number(v, name) for v in values]
        elif name == "fparam_from_compute":
            pair.frame_compute = values[0]
        elif name == "aparam_from_compute":
            pair.atomic_compute = values[0]
    missing = session.processes.on_root(lambda: [path for path in pair.models if not Path(path).is_file()])
    if missing:
        raise ScriptError(f"model file {missing[0]} does not exist (looked for in {Path.cwd()})")
    session.pair = pair
    session.changed()


def _pair_coeff(session, words):
    if session.pair is None:
        raise UnknownName("pair_style", "", "pair_coeff comes after pair_style")
    session.require_box()
    if words and (
        len(words) < 2 or any(list(session.type_range(w)) != list(range(1, session.n_types + 1)) for w in words[:2])
    ):
        raise ScriptError("pair_coeff of a Deep Potential covers all types: pair_coeff * * [ELEMENTS]")
    if len(words) - 2 > session.n_types:
        raise ScriptError(f"pair_coeff names {len(words) - 2} types, but there are {session.n_types}")
    session.pair.names, session.pair.set = list(words[2:]), True
    session.changed()


# --------------------------------------------------------------------- fixes, computes, dumps


def _table_entry(table, style, what):
    if style not in table:
        near = difflib.get_close_matches(style, table, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(table)}"
        raise ScriptError(f"{what} {style!r} is not supported; {hint}")
    return table[style]


def _fix(session, words):
    name, group, style = words[:3]
    session.require_box()
    entry = _table_entry(FIXES, style, "fix")
    chosen, session.current_id = session.group_or_all(group), name
    if style.startswith("press/") or style in ("setforce", "addforce", "momentum"):
        session.update_masses()
    made = entry[2](session, chosen, words[3:])
    old = session.fixes.get(name)
    if old is not None and hasattr(old, "close"):
        old.close()
    state = session.restored.pop((name, style), None)
    if state and isinstance(made, Fix):
        made.restore(state)
        session.log(f"State of fix {name} taken over from the restart file")
    session.fixes[name], session.fix_styles[name] = made, style


def _unfix(session, words):
    gone = session.fix(words[0])
    if hasattr(gone, "close"):
        gone.close()
    del session.fixes[words[0]]
    session.fix_styles.pop(words[0], None)


def _check_own_compute(session, fix_id, target, name, compute_id):
    """Raises ScriptError for ``fix_modify temp`` or ``press`` by a compute other than what the fix looks at itself."""
    source = session.compute(compute_id)
    if session.system is None:
        return
    if name == "temp":
        own = getattr(target, "group", None)
        masks = [np.ones(session.system.ids.max(initial=0) + 1, bool) if g is None else g.chosen
                 for g in (own, source.group)]  # fmt: skip
        ids = session.system.ids
        if isinstance(source, Temperature) and np.array_equal(masks[0][ids], masks[1][ids]):
            return
        what = "the temperature of the fix's own group"
    else:
        whole = isinstance(source, Pressure) and source.kinetic and source.virial
        if whole and getattr(session.compute(source.temperature), "group", None) is None:
            return
        what = "the pressure of all atoms"
    raise ScriptError(
        f"fix_modify {fix_id} {name} {compute_id}: fixes look at {what} here, and this compute is another; leave it "
        "out if that will do"
    )


def _fix_modify(session, words):
    target, rest = session.fix(words[0]), words[1:]
    while rest:
        name, value, rest = rest[0], rest[1:2], rest[2:]
        if not value:
            raise ScriptError(f"fix_modify {name} lacks its value")
        if name == "energy":
            if not hasattr(target, "counts"):
                style = session.fix_styles[words[0]]
                raise ScriptError(f"fix {words[0]} ({style}) has no potential energy: fix_modify energy does nothing")
            target.counts = _yes(value[0])
        elif name in ("temp", "press"):
            _check_own_compute(session, words[0], target, name, value[0])
        elif name not in ("virial", "dynamic/dof", "respa"):
            raise ScriptError(f"fix_modify {name!r} is not supported; known: energy, press, temp, virial")


def _compute(session, words):
    name, group, style = words[:3]
    session.require_box()
    entry = _table_entry(COMPUTES, style, "compute")
    if name in session.computes:
        raise ScriptError(f"compute {name} is defined already; use uncompute first")
    if style in ("msd", "com"):
        session.update_masses()
    session.computes[name] = entry[2](session, session.group_or_all(group), words[3:])


def _uncompute(session, words):
    session.compute(words[0])
    del session.computes[words[0]]


def _compute_modify(session, words):
    target, rest = session.compute(words[0]), words[1:]
    while rest:
        name, value, rest = rest[0], rest[1:2], rest[2:]
        if name in ("extra/dof", "extra") and value and hasattr(target, "extra"):
            target.extra = session.number(value[0], "compute_modify")
        elif name not in ("dynamic/dof", "dynamic") or not value:
            raise ScriptError(f"compute_modify {name!r} is not supported; known: dynamic/dof, extra/dof")


def _dump(session, words):
    name, group, style, every, path = words[:5]
    session.require_box()
    entry = _table_entry(DUMPS, style, "dump")
    if name in session.dumps:
        raise ScriptError(f"dump {name} is defined already; use undump first")
    n = _whole(session, every, "dump: N", 1)
    session.dumps[name] = entry[2](session, session.group_or_all(group), n, path, words[5:])


def _undump(session, words):
    session.dump(words[0]).close()
    del session.dumps[words[0]]


def _dump_modify(session, words):
    dump, rest = session.dump(words[0]), words[1:]
    while rest:
        taken = dump.modify(rest[0], rest[1:])
        rest = rest[1 + taken :]


def one_frame(session, words):
    """The Dump that ``write_dump`` is to write."""
    session.require_box()
    group, style, path, rest = words[0], words[1], words[2], words[3:]
    entry = _table_entry(DUMPS, style, "dump")
    at = rest.index("modify") if "modify" in rest else len(rest)
    made = entry[2](session, session.group_or_all(group), 1, path, rest[:at])
    rest = rest[at + 1 :]
    while rest:
        taken = made.modify(rest[0], rest[1:])
        rest = rest[1 + taken :]
    return made


def _write_dump(session, words):
    made = one_frame(session, words)
    made.write()
    made.close()


# --------------------------------------------------------------------- thermo


def _thermo(session, words):
    session.thermo.every = words[0] if words[0].startswith("v_") else _whole(session, words[0], "thermo")


def _thermo_style(session, words):
    style, rest = words[0], [n for w in words[1:] for n in session.expand_star(w)]
    if style not in ("one", "multi", "custom"):
        raise ScriptError(f"thermo_style {style!r} is not supported; known: one, multi, custom")
    if (style == "custom") != bool(rest):
        raise ScriptError("thermo_style custom needs keywords; one and multi take none")
    for name in rest:
        session.column(name)
    columns = tuple(rest) or (MULTI if style == "multi" else ONE)
    session.thermo = ThermoStyle(session.thermo.every, style, columns)  # with the defaults of thermo_modify


def _thermo_modify(session, words):
    before = session.thermo.temperature
    session.thermo.modify(words)
    pressure = session.computes.get(session.thermo.pressure)
    if session.thermo.temperature != before and isinstance(pressure, Pressure):
        pressure.temperature = session.thermo.temperature  # its kinetic part, too


# --------------------------------------------------------------------- running


def _run(session, words):
    steps, rest = _whole(session, words[0], "run"), words[1:]
    begin = end = every = None
    commands = []
    while rest:
        name, rest = rest[0], rest[1:]
        if name == "upto":
            steps -= session.require_box().step
            if steps < 0:
                raise ScriptError(f"run {words[0]} upto: step {session.system.step} is beyond that already")
        elif name in ("start", "stop") and rest:
            value, rest = _whole(session, rest[0], f"run {name}"), rest[1:]
            begin, end = (value, end) if name == "start" else (begin, value)
        elif name in ("pre", "post") and rest:
            rest = rest[1:]
        elif name == "every" and len(rest) >= 2:
            every, commands, rest = _whole(session, rest[0], "run every", 1), rest[1:], []
        else:
            raise ScriptError(f"run: unexpected {name!r}; known: upto, start, stop, pre, post, every")
    if every is None:
        if not any(f.integrates for f in session.fixes.values() if isinstance(f, Fix)):
            session.log.warning("No fixes with time integration, atoms won't move")
        session.run(steps, begin, end)
        return
    while steps > 0:  # each part is a run of its own, for ramps too, as in LAMMPS
        now = min(every, steps)
        session.run(now, begin, end)
        steps -= now
        for command in commands:
            if command != "NULL":
                session.execute(command)


def _rerun(session, words):
    from .rerun import rerun

    rerun(session, words)


def _timer(session, words):
    rest = list(words)
    while rest:
        name, rest = rest[0], rest[1:]
        if name == "timeout" and rest:
            value, rest = rest[0], rest[1:]
            if value in ("off", "unlimited"):
                session.deadline = None
                continue
            try:
                parts = [float(p) for p in value.split(":")]
            except ValueError:
                raise ScriptError(f"timer timeout {value!r}: write seconds, MM:SS or HH:MM:SS") from None
            seconds = 0.0
            for part in parts:
                seconds = 60 * seconds + part
            session.deadline = time.monotonic() + seconds
        elif name == "every" and rest:
            rest = rest[1:]
        elif name not in ("off", "loop", "normal", "full", "sync", "nosync"):
            raise ScriptError(f"timer {name!r} is not supported; known: timeout, every, off, loop, normal, full")


def _restart(session, words):
    every = _whole(session, words[0], "restart")
    if every and not 2 <= len(words) <= 3:
        raise ScriptError("restart takes N FILE or N FILE1 FILE2, or 0")
    session.restart_rules = [(every, words[1:])] if every else []


def _write_restart_command(session, words):
    write_restart(session, words[0])


def _read_restart_command(session, words):
    read_restart(session, words[0])


def _write_data_command(session, words):
    known = {"nocoeff": 0, "nofix": 0, "nolabelmap": 0, "pair": 1, "types": 1, "triclinic/general": 0}
    structure._options(words[1:], known, "write_data")
    session.require_box()
    path = words[0].replace("*", str(session.system.step))
    title = f"LAMMPS data file written by dpmd, timestep = {session.system.step}, units = {session.units.name}"
    if any(m is not None for m in session.masses):
        session.update_masses()
    _on_root(session, path, lambda: write_data(path, title, session))
    session.log(f"System init for write_data ...\nWrote {path}")


# --------------------------------------------------------------------- words and files


def _on_root(session, path, function):
    """Let root alone write to ``path``; ScriptError on all ranks where it cannot."""

    def write():
        try:
            function()
        except OSError as error:
            raise ScriptError(f"{path} cannot be written: {error.strerror or error}") from error

    session.processes.on_root(write)


def _write_line(path, mode, text):
    with open(path, mode, encoding="utf-8") as file:
        file.write(text + "\n")


def _print(session, words):
    text = session.variables.substitute(words[0])
    rest, screen = words[1:], True
    while rest:
        name, value, rest = rest[0], rest[1:2], rest[2:]
        if not value or name not in ("file", "append", "screen", "universe"):
            raise ScriptError(f"print: unexpected {name!r}; known: file, append, screen")
        if name == "screen":
            screen = _yes(value[0])
        elif name in ("file", "append"):
            path, mode = value[0], "w" if name == "file" else "a"
            _on_root(session, path, lambda path=path, mode=mode: _write_line(path, mode, text))
    if screen:
        session.log(text)


def _variable(session, words):
    session.variables.define(words[0], words[1], words[2:])


def _log(session, words):
    if words[1:] not in ([], ["append"]):
        raise ScriptError("log takes FILE [append] or none")
    path = None if words[0] == "none" else words[0]
    session.processes.on_root(lambda: session.log.open(path, words[1:] == ["append"]))


def _echo(session, words):
    if words[0] not in ("none", "screen", "log", "both"):
        raise ScriptError("echo takes none, screen, log or both")
    session.log.echo_screen, session.log.echo_file = words[0] in ("screen", "both"), words[0] in ("log", "both")


def _clear(session, words):
    session.reset()


def _shell(session, words):
    if words[0] != "mkdir":
        raise ScriptError(f"shell {words[0]!r} is not supported (only mkdir): do it outside of the script")
    for path in words[1:]:
        _on_root(session, path, lambda path=path: os.makedirs(path, exist_ok=True))


_NOTE = "accepted; means nothing here"

#: in the order of a typical script
COMMANDS = [
    Command("units", "metal|real", "unit style and the constants that go with it", _units),
    Command("dimension", "3", "three dimensions", _dimension),
    Command(
        "boundary", "X Y Z",
        "p periodic, f fixed, s shrink-wrapped, m the same with a minimum", structure.boundary,
    ),
    Command(
        "atom_style", "STYLE ...",
        "atomic, charge, bond, angle, molecular, full: columns of data files", structure.atom_style,
    ),
    Command("atom_modify", "KEYWORD ...", _NOTE, _accepted),
    Command("box", "tilt large|small", "any tilt is allowed here", _box),
    Command(
        "read_data", "FILE [nocoeff] [extra/atom/types N]",
        "structure from a data file, compressed or not (.gz, .bz2, .xz)", structure.read_data_command,
    ),
    Command("read_restart", "FILE [remap]", "state from a restart file that dpmd wrote", _read_restart_command),
    Command("lattice", "STYLE [SCALE ...]", "sc, bcc, fcc, hcp, diamond, custom", structure.lattice),
    Command("region", "ID STYLE ...", "block, prism, sphere, cylinder, union, intersect", structure.region),
    Command("create_box", "N REGION [...]", "an empty box with N atom types", structure.create_box),
    Command("create_atoms", "TYPE STYLE ...", "box, region, single, random", structure.create_atoms),
    Command("replicate", "NX NY NZ [bbox]", "copies of the box", structure.replicate),
    Command(
        "change_box", "GROUP ...",
        "x, y, z, xy, xz, yz, triclinic, ortho, boundary, remap, set, units", structure.change_box,
    ),
    Command("displace_atoms", "GROUP STYLE ...", "move, ramp, random, rotate", structure.displace_atoms),
    Command("mass", "TYPE VALUE", "mass of one or several types", structure.mass),
    Command(
        "pair_style", "deepmd MODEL... [KEYWORDS]",
        "the model, or several for their deviation: " + ", ".join(PAIR_KEYWORDS), _pair_style,
    ),
    Command("pair_coeff", "[* * ELEMENTS...]", "which model type each atom type is; NULL: ignored", _pair_coeff),
    Command("bond_style", "zero|none ...", "no bonded interactions", _zero_style),
    Command("angle_style", "zero|none ...", "no bonded interactions", _zero_style),
    Command("dihedral_style", "zero|none ...", "no bonded interactions", _zero_style),
    Command("improper_style", "zero|none ...", "no bonded interactions", _zero_style),
    Command("bond_coeff", "...", _NOTE + " (styles zero)", _accepted),
    Command("angle_coeff", "...", _NOTE + " (styles zero)", _accepted),
    Command("dihedral_coeff", "...", _NOTE + " (styles zero)", _accepted),
    Command("improper_coeff", "...", _NOTE + " (styles zero)", _accepted),
    Command("special_bonds", "KEYWORD ...", "accepted; all neighbours count here, bonded or not", _special_bonds),
    Command("neighbor", "SKIN bin|nsq|multi", "by how much lists reach beyond the cutoff", _neighbor),
    Command("neigh_modify", "KEYWORD VALUE ...", "every, delay, check: when lists are rebuilt", _neigh_modify),
    Command("group", "ID STYLE ...", "type, id, molecule, region, subtract, union, intersect, ...", structure.group),
    Command(
        "velocity", "GROUP STYLE ...",
        "create, set, scale, ramp, zero: loop local draws in the atoms' present order, LAMMPS's on one process "
        "until a run sorts them; set and ramp take lattice units unless units box is given", structure.velocity,
    ),
    Command("timestep", "DT", "time step", _timestep),
    Command("reset_timestep", "N [time T]", "number of the present step", _reset_timestep),
    Command("compute", "ID GROUP STYLE ...", "a quantity to be computed", _compute, (2, COMPUTES)),
    Command("compute_modify", "ID ...", "extra/dof, dynamic/dof", _compute_modify),
    Command("uncompute", "ID", "forgets a compute", _uncompute),
    Command("fix", "ID GROUP STYLE ...", "integrators, thermostats, barostats, forces, averages", _fix, (2, FIXES)),
    Command("fix_modify", "ID ...", "energy, temp, press, virial", _fix_modify),
    Command("unfix", "ID", "forgets a fix", _unfix),
    Command("thermo", "N|v_NAME", "steps between lines of output, or a variable that tells the next step", _thermo),
    Command("thermo_style", "one|multi|custom ...", "columns: " + ", ".join(KEYWORDS), _thermo_style),
    Command(
        "thermo_modify", "KEYWORD VALUE ...",
        "format (line, float, int, none, 3, -1, 2*4, NAME), colname, temp, press, norm, lost, line, flush",
        _thermo_modify,
    ),
    Command(
        "dump", "ID GROUP STYLE N FILE ...",
        "a trajectory; columns of custom: " + ", ".join(COLUMNS), _dump, (2, DUMPS),
    ),
    Command(
        "dump_modify", "ID KEYWORD ...",
        "sort, append, format, element, every N|v_NAME, delay, first, unwrap, ...", _dump_modify,
    ),
    Command("undump", "ID", "ends a dump", _undump),
    Command("write_dump", "GROUP STYLE FILE ...", "one frame", _write_dump, (1, DUMPS)),
    Command("restart", "N [FILE] [FILE2]", "restart files every N steps", _restart),
    Command("write_restart", "FILE ...", "a restart file now", _write_restart_command),
    Command("write_data", "FILE [nocoeff] ...", "a data file now", _write_data_command),
    Command("min_style", "STYLE ...", ", ".join(MIN_STYLES), min_style, (0, MIN_STYLES)),
    Command("min_modify", "KEYWORD VALUE ...", "dmax, line, norm, and parameters of fire", min_modify),
    Command(
        "minimize", "ETOL FTOL MAXITER MAXEVAL",
        "minimises the energy (with fix box/relax the enthalpy)", minimize,
    ),
    Command("run", "N [upto] [start N] [stop N] [pre no] [post no] [every M COMMANDS]", "runs N steps", _run),
    Command(
        "rerun", "FILE... KEYWORD ...",
        "evaluates the frames of a dump: first, last, every, skip, start, stop, dump", _rerun,
    ),
    Command("timer", "KEYWORD ...", "timeout HH:MM:SS ends runs in order", _timer),
    Command(
        "variable", "NAME STYLE ...",
        ", ".join(Variables.STYLES) + "; functions: " + ", ".join([*FUNCTIONS, *STEP_FUNCTIONS, *RANDOM]), _variable,
    ),
    Command("if", 'CONDITION then "COMMAND" ... [elif ...] [else ...]', "commands under a condition", None),
    Command("include", "FILE", "commands of another file", None),
    Command("label", "NAME", "a place to jump to", None),
    Command("jump", "FILE|SELF [LABEL]", "goes on at a label", None),
    Command("next", "VARIABLE ...", "next value; skips the following jump when there is none", None),
    Command("quit", "[STATUS]", "ends the script", None),
    Command("print", '"TEXT" [file|append NAME] [screen yes|no]', "a line of output, variables replaced", _print),
    Command("log", "FILE [append]", "log file; none for no log", _log),
    Command("echo", "none|screen|log|both", "where commands are repeated", _echo),
    Command("clear", "", "forgets all but variables", _clear),
    Command("shell", "mkdir DIRECTORY...", "makes directories", _shell),
    Command("plugin", "...", _NOTE + ": Deep Potentials are built in", _accepted),
    Command("newton", "...", _NOTE, _accepted),
    Command("package", "...", _NOTE, _accepted),
    Command("suffix", "...", _NOTE, _accepted),
    Command("processors", "...", _NOTE, _accepted),
    Command("balance", "...", _NOTE, _accepted),
    Command("comm_modify", "...", _NOTE, _accepted),
    Command("comm_style", "...", _NOTE, _accepted),
    Command("run_style", "verlet", "velocity Verlet", _accepted),
    Command("info", "...", _NOTE, _accepted),
]  # fmt: skip

BY_NAME = {command.name: command for command in COMMANDS}

#: on several ranks these are content with a part of the atoms on each; the others find all atoms on every rank
CONTENT_WITH_PARTS = {
    "run", "rerun", "minimize", "min_style", "min_modify", "thermo", "thermo_style", "thermo_modify", "dump",
    "dump_modify", "undump", "write_dump", "restart", "write_restart", "unfix", "fix_modify", "uncompute", "timestep",
    "neighbor", "neigh_modify", "variable", "print", "log", "echo", "timer", "shell",
}  # fmt: skip


def help_text(name=None):
    """The manual of all commands, or of one command or style.  Raises InputError for unknown names."""
    if name is None:
        lines = ["LAMMPS scripts may use these commands (md-run --help-lammps COMMAND tells more):", ""]
        lines += [f"  {c.name:15s} {c.help.split(': ')[0]}" for c in COMMANDS]
        return "\n".join(lines)
    lines = []
    if name in BY_NAME:
        command = BY_NAME[name]
        lines += [f"{command.name} {command.usage}", f"    {command.help}"]
        if command.styles:
            lines += ["", "styles:"]
            lines += [f"    {s:22s} {entry[0]}\n    {'':22s} {entry[1]}" for s, entry in command.styles[1].items()]
    for command in COMMANDS:
        if command.styles and name in command.styles[1] and command.name != "write_dump":
            usage, text, *_ = command.styles[1][name]
            lines += [f"{command.name} ... {name} {usage}", f"    {text}"]
    if not lines:
        near = difflib.get_close_matches(name, BY_NAME, 1)
        raise InputError(f"no LAMMPS command or style {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return "\n".join(lines)
