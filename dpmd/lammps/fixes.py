"""The fixes of LAMMPS scripts, each made of the classes that the TOML input uses.

A factory takes ``(session, group, words)`` and returns a :class:`~dpmd.ensembles.Fix` or, for
outputs, a :class:`~dpmd.simulation.Hook`.  Times, pressures and forces come in the units of the script.
"""

import math
from functools import partial
from pathlib import Path

import numpy as np

from dpmd.models.files import write_text

from .. import fixes
from ..barostats import COMPONENTS, BerendsenBarostat, Coupling, NoseHooverBarostat
from ..ensembles import NoseHooverChain, Ramp, VelocityVerlet
from ..minimize import BoxRelaxation
from ..simulation import Hook
from .language import ScriptError, c_format

#: arguments of each keyword of fix nvt, npt, nph
NOSE_HOOVER_KEYWORDS = {
    "temp": "Tstart Tstop Tdamp", "iso": "Pstart Pstop Pdamp", "aniso": "Pstart Pstop Pdamp",
    "tri": "Pstart Pstop Pdamp", "x": "Pstart Pstop Pdamp", "y": "Pstart Pstop Pdamp", "z": "Pstart Pstop Pdamp",
    "xy": "Pstart Pstop Pdamp", "yz": "Pstart Pstop Pdamp", "xz": "Pstart Pstop Pdamp",
    "couple": "none|xyz|xy|yz|xz", "tchain": "N", "pchain": "N", "mtk": "yes|no", "tloop": "N", "ploop": "N",
    "nreset": "N", "drag": "D", "dilate": "GROUP", "scalexy": "yes|no", "scaleyz": "yes|no", "scalexz": "yes|no",
    "flip": "yes|no", "fixedpoint": "X Y Z", "update": "dipole|dipole/dlm",
}  # fmt: skip
_COUPLED = {"none": (), "xyz": ((0, 1, 2),), "xy": ((0, 1),), "yz": ((1, 2),), "xz": ((0, 2),)}
_REFUSED = {"update": "atoms are points"}


def keywords(words, table, style):
    """``[(keyword, values)]`` of a fix's arguments, each with as many values as its table says."""
    found, position = [], 0
    while position < len(words):
        name = words[position]
        if name not in table:
            raise ScriptError(f"fix {style}: unknown keyword {name!r}; known: {', '.join(table)}")
        count = len(table[name].split())
        values = words[position + 1 : position + 1 + count]
        if len(values) < count:
            raise ScriptError(f"fix {style}: {name} takes {table[name]}")
        found.append((name, values))
        position += 1 + count
    return found


def _all_dilate(session, words, what):
    """Refuse ``dilate GROUP`` unless the group holds all atoms."""
    group = session.group_or_all(words[0])
    if group is not None and group.n_atoms(session.system) < session.system.n_atoms:
        raise ScriptError(f"{what}: dilate {words[0]} is not supported: all atoms follow the cell; use dilate all")


def _number(word, what, least=None):
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (least is not None and value < least):
        raise ScriptError(f"{what} must be a number{'' if least is None else f' of at least {least:g}'}, not {word!r}")
    return value


def _whole(word, what, least=0, most=10**15):
    value = _number(word, what, least)
    if value != int(value) or value > most:
        raise ScriptError(f"{what} must be a whole number of {least} to {most}, not {word!r}")
    return int(value)


def _yes(word, what):
    if word not in ("yes", "no", "on", "off"):
        raise ScriptError(f"{what} must be yes or no, not {word!r}")
    return word in ("yes", "on")


def _time(session, word, what):
    value = _number(word, what)
    if value <= 0:
        raise ScriptError(f"{what} must be above 0, not {word!r}")
    return value / session.units.time


def nve(session, group, words):
    """Factory of fix nve."""
    if words:
        raise ScriptError(f"fix nve takes no arguments, found {words[0]!r}")
    return VelocityVerlet(group)


def nose_hoover(style):
    """Factory of fix nvt, npt or nph."""

    def make(session, group, words):
        values = {}
        targets, times, together, hydrostatic = {}, {}, (), True
        for name, given in keywords(words, NOSE_HOOVER_KEYWORDS, style):
            if name in _REFUSED:
                raise ScriptError(f"fix {style}: {name} is not supported ({_REFUSED[name]})")
            if name == "dilate":
                _all_dilate(session, given, f"fix {style}")
                continue
            if name in ("iso", "aniso", "tri") or NOSE_HOOVER_KEYWORDS[name].startswith("Pstart"):
                start, stop = (_number(w, f"fix {style} {name}") for w in given[:2])
                time = _time(session, given[2], f"fix {style} {name}: Pdamp")
                parts = {"iso": "xyz", "aniso": "xyz", "tri": "xyz"}.get(name)
                if parts:
                    together = _COUPLED["xyz"] if name == "iso" else ()
                    for k in range(3):
                        targets[k], times[k] = Ramp(start, stop), time
                    if name == "tri":
                        for k in range(3, 6):
                            targets[k], times[k] = Ramp(0.0), time
                else:
                    k = COMPONENTS.index(name * 2 if len(name) == 1 else name)
                    targets[k], times[k], hydrostatic = Ramp(start, stop), time, False
            else:
                values[name] = given
        if (style == "nvt") == bool(targets):
            raise ScriptError(
                f"fix {style}: " + ("no pressure may be given" if targets else "no pressure given: iso, aniso, x ...")
            )
        if (style == "nph") == ("temp" in values):
            raise ScriptError(
                f"fix {style}: " + ("no temp may be given" if style == "nph" else "temp Tstart Tstop Tdamp is missing")
            )
        target = time = None
        if "temp" in values:
            start, stop = (_number(w, f"fix {style} temp", 0.0) for w in values["temp"][:2])
            time = _time(session, values["temp"][2], f"fix {style}: Tdamp")
            if min(start, stop) <= 0:
                raise ScriptError(f"fix {style}: the target temperatures must be above 0")
            target = Ramp(start, stop)
        chain = _whole(values.get("tchain", ["3"])[0], "tchain", 1, 100)
        pressure_chain = _whole(values.get("pchain", ["3"])[0], "pchain", 0, 100)
        drag = _number(values.get("drag", ["0"])[0], "drag", 0.0)
        cycles = _whole(values.get("tloop", ["1"])[0], "tloop", 1, 100)
        if style == "nvt":
            return NoseHooverChain(target, time, chain, drag, cycles, group)
        if "couple" in values:
            if values["couple"][0] not in _COUPLED:
                raise ScriptError(f"fix {style}: couple takes none, xyz, xy, yz or xz")
            together = _COUPLED[values["couple"][0]]
            for pair in together:
                if len({(targets[k].start, targets[k].end, times[k]) for k in pair if k in targets}) != 1 or any(
                    k not in targets for k in pair
                ):
                    raise ScriptError(f"fix {style}: coupled directions need the same pressures and damping times")
        if any(k > 2 for k in targets) and not session.triclinic:
            raise ScriptError(
                f"fix {style}: tilts can only change in a triclinic box; use 'change_box all triclinic' first"
            )
        scaled_tilts = tuple(
            k for k, n in ((3, "scaleyz"), (4, "scalexz"), (5, "scalexy"))
            if k not in targets and _yes(values.get(n, ["yes"])[0], n)
        )  # fmt: skip
        fixed = values.get("fixedpoint")
        return NoseHooverBarostat(
            Coupling(targets, times, together, hydrostatic, scaled_tilts), target, time or 0.1,
            chain, pressure_chain, drag, cycles, _whole(values.get("ploop", ["1"])[0], "ploop", 1, 100),
            _yes(values.get("mtk", ["yes"])[0], "mtk"),
            np.array([_number(w, "fixedpoint") for w in fixed]) if fixed else None,
            _whole(values.get("nreset", ["0"])[0], "nreset"), _yes(values.get("flip", ["yes"])[0], "flip"), group,
        )  # fmt: skip

    return make


def _targets(session, words, style, extra):
    """Ramp and time of ``Tstart Tstop Tdamp``, and the words after them."""
    if len(words) < 3 + extra:
        raise ScriptError(f"fix {style} takes {FIXES[style][0]}")
    start, stop = (_number(w, f"fix {style}: temperature", 0.0) for w in words[:2])
    return Ramp(start, stop), _time(session, words[2], f"fix {style}: Tdamp"), words[3:]


def langevin(session, group, words):
    """Factory of fix langevin."""
    target, time, rest = _targets(session, words, "langevin", 1)
    seed = _whole(rest[0], "fix langevin: seed", 1)
    options = dict(keywords(rest[1:], {"zero": "yes|no", "tally": "yes|no", "gjf": "no"}, "langevin"))
    if options.get("gjf", ["no"])[0] != "no":
        raise ScriptError("fix langevin gjf is not supported; leave it out")
    zero, tally = (_yes(options.get(name, ["no"])[0], f"fix langevin: {name}") for name in ("zero", "tally"))
    return fixes.LangevinForce(target, time, seed, group, zero, tally)


def csvr(session, group, words):
    """Factory of fix temp/csvr."""
    target, time, rest = _targets(session, words, "temp/csvr", 1)
    return fixes.StochasticRescaling(target, time, _whole(rest[0], "fix temp/csvr: seed", 1), group)


def temp_berendsen(session, group, words):
    """Factory of fix temp/berendsen."""
    target, time, rest = _targets(session, words, "temp/berendsen", 0)
    if rest:
        raise ScriptError(f"fix temp/berendsen: unexpected {rest[0]!r}")
    return fixes.BerendsenThermostat(target, time, group)


def press_berendsen(session, group, words):
    """Factory of fix press/berendsen."""
    table = {k: v for k, v in NOSE_HOOVER_KEYWORDS.items() if k in ("iso", "aniso", "x", "y", "z", "couple", "dilate")}
    table["modulus"] = "B"
    targets, times, together, modulus = {}, {}, (), 10.0
    for name, given in keywords(words, table, "press/berendsen"):
        if name == "dilate":
            _all_dilate(session, given, "fix press/berendsen")
        elif name == "modulus":
            modulus = _number(given[0], "modulus", 1e-300)
        elif name == "couple":
            if given[0] not in _COUPLED:
                raise ScriptError("fix press/berendsen: couple takes none, xyz, xy, yz or xz")
            together = _COUPLED[given[0]]
        else:
            start, stop = (_number(w, f"fix press/berendsen {name}") for w in given[:2])
            for k in range(3) if len(name) > 1 else ["xyz".index(name)]:
                targets[k], times[k] = Ramp(start, stop), _time(session, given[2], "Pdamp")
            together = _COUPLED["xyz"] if name == "iso" else together
    if not targets or any(k not in targets for pair in together for k in pair):
        raise ScriptError("fix press/berendsen: pressures of the coupled directions are missing")
    return BerendsenBarostat(Coupling(targets, times, together), modulus)


def momentum(session, group, words):
    """Factory of fix momentum."""
    if not words:
        raise ScriptError("fix momentum takes the number of steps")
    every = _whole(words[0], "fix momentum: N", 1)
    linear, angular, rescale, rest = None, False, False, words[1:]
    while rest:
        if rest[0] == "linear" and len(rest) >= 4:
            linear, rest = [_whole(w, "linear") for w in rest[1:4]], rest[4:]
        elif rest[0] in ("angular", "rescale"):
            angular, rescale, rest = angular or rest[0] == "angular", rescale or rest[0] == "rescale", rest[1:]
        else:
            raise ScriptError(f"fix momentum: unexpected {rest[0]!r}; known: linear X Y Z, angular, rescale")
    return fixes.Momentum(every, linear, angular, rescale, group)


def _part_of_box(session, axis, fraction):
    """Å, coordinate of a point at this part of the box's length."""
    low, high = session.bounds()
    return low[axis] + fraction * (high[axis] - low[axis])


def recenter(session, group, words):
    """Factory of fix recenter."""
    if len(words) < 3:
        raise ScriptError("fix recenter takes X Y Z")
    options = dict(keywords(words[3:], {"shift": "GROUP", "units": "box|lattice|fraction"}, "recenter"))
    units = options.get("units", ["lattice"])[0]
    target = []
    for axis, word in enumerate(words[:3]):
        if word in ("NULL", "INIT"):
            target.append(None if word == "NULL" else math.nan)
            continue
        value = _number(word, "fix recenter")
        if units == "fraction":  # of the box, which may change
            value = partial(_part_of_box, session, axis, value)
        elif units == "lattice":
            value *= session.lattice_spacing()[axis]
        target.append(value)
    shifted = session.group_or_all(options["shift"][0]) if "shift" in options else group
    return fixes.Recenter(target, group, shifted)


def _force_values(session, words, style):
    if len(words) < 3:
        raise ScriptError(f"fix {style} takes FX FY FZ")
    if len(words) > 3:
        raise ScriptError(f"fix {style}: {words[3]!r} is not supported")
    return [None if w == "NULL" else session.number(w, f"fix {style}") / session.units.energy for w in words[:3]]


def setforce(session, group, words):
    """Factory of fix setforce."""
    return fixes.SetForce(_force_values(session, words, "setforce"), group)


def addforce(session, group, words):
    """Factory of fix addforce."""
    values = _force_values(session, words, "addforce")
    return fixes.AddForce([0.0 if v is None else v for v in values], group)


def spring_self(session, group, words):
    """Factory of fix spring/self."""
    if not words:
        raise ScriptError("fix spring/self takes K [xyz|x|y|z|xy|xz|yz]")
    directions = words[1] if len(words) > 1 else "xyz"
    if set(directions) - set("xyz") or len(words) > 2:
        raise ScriptError(f"fix spring/self: {directions!r} is not one of xyz, xy, xz, yz, x, y, z")
    fix = fixes.SpringSelf(
        _number(words[0], "fix spring/self: K", 0.0) / session.units.energy, [c in directions for c in "xyz"], group
    )
    fix.remember(session.system)
    return fix


def wall_reflect(session, group, words):
    """Factory of fix wall/reflect."""
    walls, rest, units = [], words, "lattice"
    if "units" in words:
        at = words.index("units")
        units, rest = (words[at + 1 : at + 2] or [""])[0], words[:at] + words[at + 2 :]
        if units not in ("box", "lattice"):
            raise ScriptError("fix wall/reflect: units takes box or lattice")
    for face, value in zip(rest[::2], rest[1::2], strict=False):
        if face not in ("xlo", "xhi", "ylo", "yhi", "zlo", "zhi") or len(rest) % 2:
            raise ScriptError(f"fix wall/reflect: {face!r} is not a face with a value (xlo EDGE ...)")
        axis, side = "xyz".index(face[0]), -1 if face.endswith("lo") else 1
        if session.system.periodic[axis]:
            raise ScriptError(
                f"fix wall/reflect: direction {face[0]} is periodic; a wall needs boundary f, s or m there"
            )
        position = None
        if value != "EDGE":
            position = session.number(value, "fix wall/reflect")
            if units == "lattice":
                position *= session.lattice_spacing()[axis]
        walls.append((axis, side, position))
    if not walls:
        raise ScriptError("fix wall/reflect needs a face, such as zhi EDGE")
    return fixes.WallReflect(walls, group)


def deform(session, group, words):
    """Factory of fix deform."""
    if not words:
        raise ScriptError("fix deform takes N and what to change")
    every, rest, rules, lows, carry = _whole(words[0], "fix deform: N", 1), words[1:], {}, {}, True
    per_ps = session.units.time
    while rest:
        name, rest = rest[0], rest[1:]
        if name == "remap" and rest:
            if rest[0] not in ("x", "none"):
                raise ScriptError(f"fix deform remap {rest[0]} is not supported; use remap x or none")
            carry, rest = rest[0] == "x", rest[1:]
            continue
        if name in ("units", "flip") and rest:
            if name == "units" and rest[0] != "box":
                raise ScriptError("fix deform: use units box")
            rest = rest[1:]
            continue
        if name not in ("x", "y", "z", "xy", "xz", "yz") or not rest:
            raise ScriptError(f"fix deform: unknown {name!r}; known: x, y, z, xy, xz, yz, remap, units, flip")
        k = COMPONENTS.index(name * 2 if len(name) == 1 else name)
        kind, rest = rest[0], rest[1:]
        count = {"final": 2 if k < 3 else 1, "delta": 2 if k < 3 else 1, "scale": 1, "vel": 1, "erate": 1, "trate": 1}
        if kind not in count or len(rest) < count[kind] or (kind == "scale" and k > 2):
            raise ScriptError(
                f"fix deform {name}: {kind!r} is not supported; known: final, delta, scale, vel, erate, trate"
            )
        values = [_number(w, f"fix deform {name} {kind}") for w in rest[: count[kind]]]
        rest = rest[count[kind] :]
        rules[k] = _deform_rule(kind, values, k, per_ps)
        lows.pop(k, None)
        if k < 3 and kind in ("final", "delta"):
            lows[k] = partial(_deform_low, kind, values[0])
    if not rules:
        raise ScriptError("fix deform: nothing to change is given")
    if any(k > 2 for k in rules) and not session.triclinic:
        raise ScriptError("fix deform: tilts can only change in a triclinic box; use 'change_box all triclinic' first")
    return fixes.Deform(every, rules, carry, lows)


def _deform_low(kind, value, f, first):
    """Å, coordinate of the lower face where both faces are told what to do."""
    return first + f * (value - first if kind == "final" else value)


def _deform_rule(kind, values, k, per_ps):
    """Function of (elapsed ps, fraction of the run, first value, first edge) for one component."""
    rate = values[0] * per_ps
    if kind == "final":
        end = values[1] - values[0] if k < 3 else values[0]
        return lambda t, f, first, edge: first + f * (end - first)
    if kind == "delta":
        change = values[1] - values[0] if k < 3 else values[0]
        return lambda t, f, first, edge: first + f * change
    if kind == "scale":
        return lambda t, f, first, edge: first * (1 + f * (values[0] - 1))
    if kind == "vel":
        return lambda t, f, first, edge: first + t * rate
    if kind == "erate":
        return lambda t, f, first, edge: first + t * rate * edge
    return lambda t, f, first, edge: first * math.exp(t * rate)


def box_relax(session, group, words):
    """Factory of fix box/relax."""
    table = dict.fromkeys(("iso", "aniso", "tri", "x", "y", "z", "xy", "xz", "yz"), "P")
    table |= {
        "couple": "none|xyz|xy|yz|xz",
        "vmax": "FRACTION",
        "nreset": "N",
        "fixedpoint": "X Y Z",
        "dilate": "GROUP",
    }
    table |= {"scalexy": "yes|no", "scalexz": "yes|no", "scaleyz": "yes|no"}
    targets, together, vmax = {}, (), 1e-4
    for name, given in keywords(words, table, "box/relax"):
        if name in ("iso", "aniso", "tri"):
            p = _number(given[0], f"fix box/relax {name}")
            targets |= dict.fromkeys(range(3), p) | (dict.fromkeys(range(3, 6), 0.0) if name == "tri" else {})
            together = _COUPLED["xyz"] if name == "iso" else together
        elif name == "couple":
            if given[0] not in _COUPLED:
                raise ScriptError("fix box/relax: couple takes none, xyz, xy, yz or xz")
            together = _COUPLED[given[0]]
        elif name == "vmax":
            vmax = _number(given[0], "vmax", 1e-12)
        elif name == "dilate":
            _all_dilate(session, given, "fix box/relax")
        elif name not in ("nreset", "fixedpoint") and not name.startswith("scale"):
            targets[COMPONENTS.index(name * 2 if len(name) == 1 else name)] = _number(given[0], name)
    if not targets or any(k not in targets for pair in together for k in pair):
        raise ScriptError("fix box/relax: pressures of the (coupled) directions are missing: iso P, aniso P, x P ...")
    if any(k > 2 for k in targets) and not session.triclinic:
        raise ScriptError("fix box/relax: tilts can only change in a triclinic box; use 'change_box all triclinic'")
    return BoxRelaxation(targets, together, vmax)


# --------------------------------------------------------------------- outputs


class OutputFix(Hook):
    """A fix that only looks: ``scalar``, ``vector`` and ``array`` are what f_ID refers to."""

    several_ranks = True
    integrates = False
    #: whether the number of the step must go on
    time_dependent = False
    scalar, vector, array = None, None, None

    @property
    def width(self):
        """Values that are looked at."""
        return len(getattr(self, "names", ())) or 1

    #: the step that was looked at last: the first one of a run is the last one of the run before
    last = None

    def due(self, step, first=False):
        return step % self.every == 0 and step != self.last

    def __call__(self, simulation):
        self.last = simulation.system.step
        self.look()

    def look(self):
        """Take the values of the present step."""
        raise NotImplementedError

    def close(self):
        """Close the file, if there is one."""


def _open(session, path, append=False):
    """The file on root, None on other ranks."""

    def open_file():
        try:
            return open(path, "a" if append else "w", encoding="utf-8") if session.processes.root else None
        except OSError as error:
            raise ScriptError(f"{path} cannot be written: {error.strerror or error}") from error

    return session.processes.root_first(open_file)


class Print(OutputFix):
    """``fix print``: a line of text, variables replaced, every N steps."""

    def __init__(self, session, group, words):
        if len(words) < 2:
            raise ScriptError('fix print takes N "text"')
        self.session, self.every, self.text = session, _whole(words[0], "fix print: N", 1), words[1]
        self.screen, self.file, title, append = True, None, None, False
        for name, given in keywords(
            words[2:], {"file": "NAME", "append": "NAME", "screen": "yes|no", "title": "TEXT"}, "print"
        ):
            if name == "screen":
                self.screen = _yes(given[0], "screen")
            elif name == "title":
                title = given[0]
            else:
                self.path, append = given[0], name == "append"
                self.file = _open(session, self.path, append)
        if self.file is not None:
            text = f"# Fix print output for fix {session.current_id}" if title is None else title
            if text != "none" and not append:
                self.file.write(text + "\n")

    def due(self, step, first=False):
        return step % self.every == 0 and (first or step != self.last)  # as LAMMPS, at the start of each run, too

    def look(self):
        text = self.session.variables.substitute(self.text)
        if self.screen:
            self.session.log(text)
        if self.file is not None:
            self.file.write(text + "\n")
            self.file.flush()

    def close(self):
        if self.file is not None:
            self.file.close()


class AverageTime(OutputFix):
    """``fix ave/time``: means over Nrepeat values, Nevery steps apart, up to each multiple of Nfreq."""

    time_dependent = True
    _keywords = {
        "mode": "scalar|vector", "file": "NAME", "append": "NAME", "ave": "one|running|window", "start": "N",
        "off": "I",
        "overwrite": "", "format": "FORMAT", "title1": "TEXT", "title2": "TEXT", "title3": "TEXT",
    }  # fmt: skip

    def __init__(self, session, group, words):
        if len(words) < 4:
            raise ScriptError("fix ave/time takes Nevery Nrepeat Nfreq and values")
        self.session = session
        self.step_between, self.repeat, self.frequency = (_whole(w, "fix ave/time", 1) for w in words[:3])
        if self.frequency % self.step_between or (self.repeat - 1) * self.step_between >= self.frequency:
            raise ScriptError("fix ave/time: Nfreq must be a multiple of Nevery and hold Nrepeat values")
        self.every = self.step_between
        rest = words[3:]
        end = next((k for k, w in enumerate(rest) if w in self._keywords), len(rest))
        self.names = [n for w in rest[:end] for n in session.expand_star(w)]
        if not self.names:
            raise ScriptError("fix ave/time: no values given")
        self.vectors, self.file, self.format, self.start_step = False, None, "%g", 0
        self.average, self.window, titles, self.overwrite = "one", 1, {}, False
        rest = rest[end:]
        if "window" in rest:  # the one keyword value that takes a number itself
            at = rest.index("window")
            self.window = _whole((rest[at + 1 : at + 2] or ["?"])[0], "fix ave/time window", 1)
            rest = rest[: at + 1] + rest[at + 2 :]
        for name, given in keywords(rest, self._keywords, "ave/time"):
            if name == "mode":
                self.vectors = given[0] == "vector"
            elif name in ("file", "append"):
                self.path = given[0]
                self.file = _open(session, self.path, name == "append")
            elif name == "ave":
                self.average = given[0]
            elif name == "start":
                self.start_step = _whole(given[0], "start")
            elif name == "format":
                self.format = given[0].strip()
                c_format(self.format, 1.0)
            elif name == "overwrite":
                self.overwrite = True
            elif name.startswith("title"):
                titles[int(name[-1])] = given[0]
            else:
                raise ScriptError("fix ave/time off is not supported")
        #: text of the file before the means, where each takes the place of the last
        self.head = None
        if self.file is not None:
            self._write_titles(titles)
            if self.overwrite:
                self.file.close()
                self.head = Path(self.path).read_text(encoding="utf-8")
        self.total, self.count, self.history = 0.0, 0, []
        #: step of the next value
        self.next = None
        self._set_zero()

    def _set_zero(self):
        """Until the first mean, the values are 0, as in LAMMPS; those of vectors of unknown length are missing."""
        rows = self.session.rows_of(self.names[0]) if self.vectors else len(self.names)
        if rows is not None:
            self.scalar, self.vector = 0.0, np.zeros(rows)
            self.array = np.zeros((rows, len(self.names))) if self.vectors else None

    def _write_titles(self, titles):
        lines = [f"# Time-averaged data for fix {self.session.current_id}"]
        if self.vectors:
            lines += ["# TimeStep Number-of-rows", "# Row " + " ".join(self.names)]
        else:
            lines.append("# TimeStep " + " ".join(self.names))
        for k, text in titles.items():
            if k <= len(lines):
                lines[k - 1] = text
        self.file.write("\n".join(lines) + "\n")

    def due(self, step, first=False):
        if self.next is None or step > self.next:
            self.next = self._next_window(step)
        return step == self.next

    def _next_window(self, step):
        """First step of the next window that can be filled from ``step`` on and does not end before the start step."""
        length = (self.repeat - 1) * self.step_between
        end = -(-max(step + length, self.start_step) // self.frequency) * self.frequency
        return end - length

    def look(self):
        step = self.last
        self.next += self.step_between
        if self.vectors:
            columns = [self.session.column_of_rows(n) for n in self.names]
            if len({len(c) for c in columns}) != 1:
                raise ScriptError("fix ave/time: the vectors have different lengths")
            values = np.stack(columns, axis=1)
        else:
            values = np.array([self.session.number_of(n) for n in self.names])
        self.total, self.count = self.total + values, self.count + 1
        if self.count < self.repeat:
            return
        self.next = self._next_window(step + 1)
        mean = self.total / self.count
        self.total, self.count = 0.0, 0
        self.history.append(mean)
        if self.average == "one":
            self.history = self.history[-1:]
        elif self.average == "window":
            self.history = self.history[-self.window :]
        mean = np.mean(self.history, axis=0)
        self.array = mean if self.vectors else None
        self.vector = mean[:, 0] if self.vectors else mean
        self.scalar = float(np.ravel(mean)[0])
        self._write(step, mean)

    def _write(self, step, mean):
        if self.file is None:
            return
        rows = [
            " ".join(c_format(self.format, v) for v in np.atleast_1d(r)) for r in (mean if self.vectors else [mean])
        ]
        text = f"{step} {rows[0]}\n"
        if self.vectors:
            text = f"{step} {len(rows)}\n" + "".join(f"{k} {r}\n" for k, r in enumerate(rows, 1))
        if self.overwrite:
            write_text(self.path, self.head + text)
            return
        self.file.write(text)
        self.file.flush()

    def close(self):
        if self.file is not None:
            self.file.close()


class Vector(OutputFix):
    """``fix vector``: values kept every N steps, as vector or columns of an array."""

    time_dependent = True

    def __init__(self, session, group, words):
        if len(words) < 2:
            raise ScriptError("fix vector takes N and values")
        self.session, self.every = session, _whole(words[0], "fix vector: N", 1)
        if "nmax" in words:
            words = words[: words.index("nmax")]
        self.names = [n for w in words[1:] for n in session.expand_star(w)]
        self.rows = []

    def look(self):
        self.rows.append([self.session.number_of(n) for n in self.names])
        self.array = np.array(self.rows)
        self.vector = self.array[:, 0]
        self.scalar = float(self.vector[-1])


_NOSE_HOOVER_HELP = " ".join(f"[{k} {v}]" for k, v in NOSE_HOOVER_KEYWORDS.items() if k not in _REFUSED)

#: {style: (arguments, help, factory)}
FIXES = {
    "nve": ("", "constant energy, velocity Verlet", nve),
    "nvt": ("temp Tstart Tstop Tdamp [tchain N] [tloop N] [drag D]", "Nose-Hoover chain", nose_hoover("nvt")),
    "npt": (_NOSE_HOOVER_HELP, "Nose-Hoover chain and Martyna-Tobias-Klein barostat", nose_hoover("npt")),
    "nph": (_NOSE_HOOVER_HELP, "Martyna-Tobias-Klein barostat, no thermostat", nose_hoover("nph")),
    "langevin": ("Tstart Tstop Tdamp SEED [zero yes|no] [tally yes|no]", "friction and noise; with fix nve", langevin),
    "temp/csvr": ("Tstart Tstop Tdamp SEED", "stochastic velocity rescaling; with fix nve or nph", csvr),
    "temp/berendsen": ("Tstart Tstop Tdamp", "weak coupling to a temperature; with fix nve", temp_berendsen),
    "press/berendsen": (
        "iso|aniso|x|y|z Pstart Pstop Pdamp [couple ...] [modulus B]", "weak coupling to a pressure", press_berendsen,
    ),
    "momentum": ("N [linear X Y Z] [angular] [rescale]", "removes momentum every N steps", momentum),
    "recenter": ("X|INIT|NULL Y Z [shift GROUP] [units box|lattice|fraction]", "holds the centre of mass", recenter),
    "setforce": ("FX|NULL FY FZ", "replaces forces", setforce),
    "addforce": ("FX FY FZ", "adds forces", addforce),
    "spring/self": ("K [xyz|...]", "ties atoms to their present positions", spring_self),
    "wall/reflect": ("FACE EDGE|POSITION ... [units box|lattice]", "reflecting walls", wall_reflect),
    "deform": (
        "N x|y|z|xy|xz|yz final|delta|scale|vel|erate|trate VALUES ... [remap x|none]", "changes the box", deform,
    ),
    "box/relax": ("iso|aniso|tri|x|y|z|... P [couple ...] [vmax F]", "relaxes the box in minimize", box_relax),
    "print": ('N "text" [file|append NAME] [screen yes|no] [title TEXT]', "prints a line", Print),
    "ave/time": ("NEVERY NREPEAT NFREQ VALUES... [mode ...] [file NAME] [ave ...]", "averages over time", AverageTime),
    "vector": ("N VALUES...", "collects values", Vector),
}  # fmt: skip
