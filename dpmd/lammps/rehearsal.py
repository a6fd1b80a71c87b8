"""A script is gone through before it runs, so that its mistakes are listed together.

Commands are executed by the functions that run them, on a session of its own that computes no forces
and writes no files; a run only checks what it would use.  What depends on results - ``$(pe)``, files that
the script itself will write - cannot be known: such values are stood in for, and errors that may come of
that are not reported.  Where it cannot be known which commands follow, the rehearsal ends.
"""

import copy
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from dpmd.models import ModelError, load

from .. import preflight
from ..ensembles import Fix
from ..errors import InputError, RunError
from . import structure
from .commands import BY_NAME, one_frame
from .computes import KEYWORDS, Compute
from .dumps import CustomDump
from .fixes import AverageTime, OutputFix, Print
from .interpreter import Interpreter, Quit
from .language import ScriptError, UnknownName, Variables, condition, words_of_line
from .log import ScriptLog
from .minimization import limits
from .rerun import arguments
from .restart import read_restart
from .session import GROUP_FUNCTIONS, Session, load_potential

#: commands and seconds after which a rehearsal ends: loops may be long
_MOST, _SECONDS = 2000, 10.0
#: atoms above which random numbers are not drawn for a rehearsal
_LARGE = 100_000
#: thermo keywords that are known before anything runs
_GEOMETRY = {"atoms", "dt", "lx", "ly", "lz", "xlo", "xhi", "ylo", "yhi", "zlo", "zhi", "xy", "xz", "yz", "vol"}
#: commands that define nothing: it does not matter whether they are executed
_HARMLESS = {"print", "log", "echo", "write_data", "write_restart", "write_dump", "quit", "info"}
#: whose success depends on positions, which are unknown after a run
_OF_POSITIONS = {"change_box", "replicate", "create_atoms"}


#: what a data file and, with the rest, a restart file keep of a session
_OF_DATA_FILES = (
    "system", "triclinic", "n_types", "masses", "labels", "type_of", "charge_of", "molecule_of", "first_low",
    "first_length", "low",
)  # fmt: skip
_OF_RESTART_FILES = (*_OF_DATA_FILES, "groups", "faces", "atom_style", "units", "timestep", "time_offset")


class _Enough(Exception):
    """What follows cannot be known."""


class _RehearsedVariables(Variables):
    """Variables of which some have values that cannot be known."""

    def __init__(self, outside):
        super().__init__(outside)
        self.uncertain = set()

    def _defined(self, name):
        if name in self.uncertain:
            self.outside.uncertain = True
        return super()._defined(name)

    def define(self, name, style, words):
        if style == "file" and name not in self and words and self.outside.promises(words[0]):
            style, words, self.outside.uncertain = "index", ["1"], True
        super().define(name, style, words)
        (self.uncertain.add if self.outside.uncertain else self.uncertain.discard)(name)


class _RehearsedSession(Session):
    """A session whose runs only check.

    report : function(what, message): a mistake in what was defined by command ``what``; findings :
    :class:`dpmd.log.Log` for what is found about the atoms of the first run, or None not to look at them;
    processes : the ranks that are to run the script.
    """

    def __init__(self, options, report, findings=None, processes=None):
        super().__init__(options, ScriptLog(None, None))
        self.silent, self.findings, self.seconds_looking = self.log, findings, 0.0
        self.ranks = processes or self.processes
        #: the model of a later pair_style and the skin of a later ``neighbor`` (or None), as far as they are plain
        self.to_come = None
        self.report, self.variables = report, _RehearsedVariables(self)
        #: whether a value was used that cannot be known
        self.uncertain = False
        #: whether positions and the step number have become unknown
        self.moved = self.step_unknown = False
        #: files and folders that the script will write, and what restart and data files will hold
        self.promised, self.folders, self.models, self.states = set(), set(), {}, {}

    def promises(self, path):
        """Whether the script will have written a file of this name; names may hold ``*``."""
        return any(p == path or Path(path).match(p) for p in self.promised)

    def keep(self, path):
        """Remember what a restart or data file of this name will hold, as far as it can be known."""
        self.promised.add(path)
        self.states[path] = {name: copy.copy(getattr(self, name)) for name in _OF_RESTART_FILES}

    def recall(self, path, names):
        """Take over from a file that the script will have written; positions and box are unknown.  False: not kept."""
        kept = next((state for p, state in self.states.items() if p == path or Path(path).match(p)), None)
        if kept is None:
            return False
        for name in names:
            setattr(self, name, copy.copy(kept[name]))
        self.moved = True
        return True

    # ------------------------------------------------------------------ values

    def value(self, name, indices=()):
        if name in KEYWORDS and not indices:
            self.require_box()
            known = name in _GEOMETRY and (not self.moved or name in ("atoms", "dt"))
            if known or (name == "step" and not self.step_unknown):
                return super().value(name)
        elif name.startswith("c_"):
            self._check_reference(name, indices, self.compute(name[2:]))
        elif name.startswith("f_"):
            self._check_reference(name, indices, self.fix(name[2:]))
        else:
            return super().value(name, indices)
        self.uncertain = True
        return 1.0

    @staticmethod
    def _check_reference(name, indices, source):
        kind = ("scalar", "vector", "array")[min(len(indices), 2)]
        if isinstance(source, Compute | Fix) and not hasattr(source, kind):
            raise ScriptError(f"{name} has no {kind}")
        known = isinstance(source, Compute) or (isinstance(source, AverageTime) and not source.vectors)
        if known and kind == "vector" and not 1 <= indices[0] <= source.width:
            raise ScriptError(f"{name}[{indices[0]}]: there are {source.width}")

    def function(self, name, words):
        if name == "is_file" and words and self.promises(words[0]):
            self.uncertain = True
            return 1.0
        if self.moved and name in GROUP_FUNCTIONS and words:
            self.group_or_all(words[0])
            self.uncertain = True
            return 1.0
        return super().function(name, words)

    def moment(self):
        self.uncertain = self.uncertain or self.step_unknown
        return super().moment()

    def column_of_rows(self, name):
        kind, base, indices = self._reference(name)
        source = self.compute(base) if kind == "c" else self.fix(base)
        if isinstance(source, Compute) and not hasattr(source, "array" if indices else "vector"):
            raise ScriptError(f"{name} is not a {'column of an array' if indices else 'vector'}")

    def need_forces(self):
        self.uncertain = True

    # ------------------------------------------------------------------ what a run would use

    def prepare(self):
        """Check everything that a run needs."""
        self.require_box()
        self.require_pair()
        self.update_masses()
        for path in self.pair.models:
            if path not in self.models:
                try:
                    self.models[path] = load(path)
                except ModelError as error:
                    raise ScriptError(f"{path}: {error}" if path not in str(error) else str(error)) from error
        model = self.models[self.pair.models[0]]
        potential = SimpleNamespace(model=model, type_map=model.type_map)
        self._model_types(potential)
        for path in self.pair.models:
            self._check_parameters(SimpleNamespace(model=self.models[path]))
        if not self.moved:
            self._check_cell(potential)
            if self.unexamined and len(self.system) > _LARGE:
                self.check_memory(model)
        if self.pair.frame_compute:
            self.compute(self.pair.frame_compute)
        if self.pair.atomic_compute:
            self.compute(self.pair.atomic_compute)
        for name, fix in self.fixes.items():
            if hasattr(fix, "coupling"):
                self._attempt(("fix", name), lambda fix=fix: fix.coupling.check(self.system))

    def require_memory(self, n_atoms, what):
        super().require_memory(n_atoms, what)
        if self.to_come is not None and self.system is not None and n_atoms > _LARGE:
            model, skin = self.to_come
            needed = self.predicted_memory(model, n_atoms, self.skin if skin is None else skin)
            preflight.check_memory(needed, n_atoms, what, self.ranks.machine_ranks)

    def look(self, steps):
        """Tell what is to be known about the atoms, by the model's lists and forces."""
        from ..job import Job

        if not self.unexamined or self.uncertain or not self.system.n_atoms:
            return
        self.unexamined, begin, log = False, time.perf_counter(), self.findings
        try:
            potential = load_potential(self.pair.models[0], self.options, self.skin, self.ranks)
        except ModelError as error:
            raise ScriptError(str(error)) from error
        model, system = potential.model, self.system
        system.types = self._model_types(potential)[self.type_of[system.ids] - 1]
        system.type_names, system.constants = tuple(potential.type_map), self.units.constants
        system._set_inverse_masses()
        log(f"  model       {model.source.path}: {potential.loaded.description}; {potential.precision}")
        rows, warnings = preflight.type_table(system)
        log.table(rows)
        part, inner = self.part(system, potential, preflight.SAMPLE)
        domain = potential.domain()
        domain.rebuild(part)
        nearest, counts = preflight.neighbor_facts(domain, part, model, inner)
        warnings += preflight.check_units(nearest, counts, system, model)
        warnings += preflight.check_distances(nearest, model, "")
        rows, more = preflight.check_selection(counts, model, self.options.on_overflow, "")
        warnings += more
        log.table(rows)
        if nearest:
            log(f"  shortest    {preflight.shortest_text(nearest, model)}")
        log(f"  memory      about {self.predicted_memory(model, len(system), self.skin) / 2**20:.0f} MiB predicted")
        speed = preflight.expected_speed(
            potential, system, float(counts.mean.sum()), 1e3 * self.timestep_ps, self.skin, self.ranks.size
        )  # fmt: skip
        if speed:
            log(f"  expected    {speed}")
        parameters = {"frame_parameters": self.pair.frame, "atomic_parameters": self.pair.atomic}
        if not (self.pair.frame_compute or self.pair.atomic_compute):
            if part.periodic.all():
                warnings += preflight.check_pressure(preflight.pressure(potential, part, domain, parameters))
            few, ids = self.part(part, potential, preflight.SAMPLE_OF_PRECISION)
            if ids is not None:
                domain.rebuild(few)
            Job.print_precision(log, potential, domain, part if ids is None else few, parameters)
        for text in warnings:
            log.warning(text)
        self.seconds_looking += time.perf_counter() - begin

    def run(self, steps, begin=None, end=None):
        self._attempt(None, self.prepare)
        if self.system is None:
            return
        if self.findings is not None and not self.moved and self.pair is not None and self.pair.set:
            self.log = self.findings
            self._attempt(None, lambda: self.check_run(steps))
            self._attempt(None, lambda: self.look(steps))
            self.log = self.silent
        self.check_outputs()
        self.moved = True
        self.system.step += steps

    def check_outputs(self):
        """What thermo output, fixes and dumps look at, and whether their folders exist."""
        self._attempt(("thermo_modify", ""), lambda: self.compute(self.thermo.temperature))
        self._attempt(("thermo_modify", ""), lambda: self.compute(self.thermo.pressure))
        for what, every in (
            (("thermo", ""), self.thermo.every), *((("dump", name), dump.every) for name, dump in self.dumps.items())
        ):  # fmt: skip
            if isinstance(every, str):
                self._attempt(what, lambda every=every: self.variables.number(every[2:]))
        for name in self.thermo.columns:
            if name not in KEYWORDS:
                self._attempt(("thermo_style", ""), lambda name=name: self.number_of(name))
        for name, source in self.computes.items():
            wanted = getattr(source, "temperature", "NULL")
            if isinstance(wanted, str) and wanted != "NULL":
                self._attempt(("compute", name), lambda wanted=wanted: self.compute(wanted))
            for column in getattr(source, "columns_of_atoms", ()):
                self._attempt(("compute", name), lambda column=column: self._check_column(column))
        for name, fix in self.fixes.items():
            if isinstance(fix, Print):
                self._attempt(("fix", name), lambda fix=fix: self.variables.substitute(fix.text))
            elif isinstance(fix, OutputFix):
                look = self.column_of_rows if getattr(fix, "vectors", False) else self.number_of
                for value in fix.names:
                    self._attempt(("fix", name), lambda look=look, value=value: look(value))
        for name, dump in self.dumps.items():
            self._attempt(("dump", name), lambda dump=dump: self.check_folder(dump.pattern))
            if type(dump) is CustomDump:
                for column in dump.fields:
                    self._attempt(("dump", name), lambda column=column: self._check_column(column))
        for _, paths in self.restart_rules:
            for path in paths:
                self._attempt(("restart", ""), lambda path=path: self.check_folder(path))
                self.keep(path)
                self.keep(f"{path}.*")

    def _check_column(self, name):
        from .dumps import COLUMNS

        if name not in COLUMNS:
            self.atom_source(name)

    def check_folder(self, path):
        """Raises ScriptError if the folder of an output file will not be there."""
        folder = os.path.normpath(os.path.dirname(path) or ".")
        if not os.path.isdir(folder) and folder not in self.folders:
            raise ScriptError(
                f"{path} cannot be written: there is no folder {folder} ('shell mkdir {folder}' makes it)"
            )

    def _attempt(self, what, look):
        before, self.uncertain = self.uncertain, False
        try:
            look()
        except UnknownName as error:
            self.report(what, error)
        except InputError as error:
            if not self.uncertain:
                self.report(what, error)
        finally:
            self.uncertain = before


def _to_come(lines):
    """What lists are to be made of: ``(model, skin or None)``, or None if the script does not say so plainly."""
    model = skin = None
    for line in lines:
        words = line.text.split()
        if words[:2] == ["pair_style", "deepmd"] and model is None and len(words) > 2 and Path(words[2]).is_file():
            with suppress(ModelError):
                model = load(words[2])
        elif words[:1] == ["neighbor"] and len(words) > 1:
            with suppress(ValueError):
                skin = float(words[1])
    return model and (model, skin)


class Rehearsal(Interpreter):
    """Goes through a script; ``problems`` is {``file:line``: [messages]} afterwards."""

    def __init__(self, options, variables=(), findings=None, processes=None):
        super().__init__(_RehearsedSession(options, self._report, findings, processes))
        for name, values in variables:
            self.session.variables.set_from_command_line(name, values)
        self.problems, self.count, self.end = {}, 0, time.monotonic() + _SECONDS
        #: (kind, id) of what would be defined if its command had no mistake, and where things were defined
        self.suspects, self.places = set(), {}

    def go(self, lines):
        """Rehearse; returns ``problems``."""
        self.session.to_come = _to_come(lines)
        try:
            self.run(lines)
        except (_Enough, Quit, MemoryError):
            pass
        except InputError as error:  # of a jump: it has its place already
            self._report(None, error)
        finally:
            self.session.close_files()
        return self.problems

    def _report(self, what, error, place=None):
        if isinstance(error, UnknownName) and {(error.kind, error.name), (error.kind, "*")} & self.suspects:
            return
        for message in str(error).splitlines():
            elsewhere = re.match(r"(\S+:\d+): (.+)", message)  # in a file that was included or jumped to
            where, message = elsewhere.groups() if elsewhere else (place, message)
            known = self.problems.setdefault(where or self.places.get(what, self.place.where), [])
            if message not in known:
                known.append(message)

    # ------------------------------------------------------------------ one command

    def execute(self, line):
        self.count += 1
        if self.count > _MOST or time.monotonic() - self.session.seconds_looking > self.end:
            raise _Enough
        self.place, session, words = line, self.session, []
        outer, session.uncertain = session.uncertain, False
        try:
            words = session.variables.words(line.text)
            if not words or words[0] not in BY_NAME:
                return
            name, rest = words[0], words[1:]
            BY_NAME[name].check_count(len(rest))
            if session.moved and (name in _OF_POSITIONS or (name == "velocity" and "scale" in rest)):
                session.uncertain = True
            instead = getattr(self, f"_instead_{name}", None)
            if instead is not None:
                instead(rest)
            elif BY_NAME[name].run is None or name == "next":
                getattr(self, f"_{name}")(rest)
            else:
                BY_NAME[name].run(session, rest)
            self.places[(name, rest[0] if name in ("fix", "compute", "dump") else "")] = line.where
        except (InputError, RunError) as error:
            if isinstance(error, UnknownName) or not session.uncertain:
                self._report(None, error, line.where)
            self._suspect(words or words_of_line(line.text))
        finally:
            session.uncertain = outer

    def _suspect(self, words):
        """Later commands may rightly refer to what a failed one would have defined."""
        name = words[0] if words else ""
        if name in ("jump", "next", "label", "include", "clear", "if"):
            raise _Enough
        if name in ("read_data", "read_restart", "create_box"):
            self.suspects.add(("box", ""))
        if name in ("pair_style", "pair_coeff"):
            self.suspects |= {("pair_style", "*"), ("pair_coeff", "*")}
        if name in ("fix", "compute", "dump", "group", "region", "variable"):
            self.suspects.add((name, words[1] if len(words) > 1 else "*"))
        if name == "read_restart":
            self.suspects.add(("group", "*"))

    # ------------------------------------------------------------------ control

    def _if(self, words):
        if self.session.uncertain:
            return self._either(words)
        substitute = self.session.variables.substitute
        tests = [words[0]] + [words[k + 1] for k, w in enumerate(words[:-1]) if w == "elif"]
        for test in tests:
            chosen = condition(substitute(test))
            if self.session.uncertain:
                return self._either(words)
            if chosen:
                break
        super()._if(words)

    def _either(self, words):
        """A condition that cannot be known."""
        for word in words[1:]:
            inner = words_of_line(word)
            if inner and inner[0] in BY_NAME and inner[0] not in _HARMLESS:
                raise _Enough

    def _jump(self, words):
        if self.session.uncertain or (words[0] != "SELF" and self.session.promises(words[0])):
            raise _Enough
        super()._jump(words)

    def _include(self, words):
        if self.session.promises(words[0]):
            raise _Enough
        super()._include(words)

    def _quit(self, words):
        if self.session.uncertain:
            raise _Enough
        super()._quit(words)

    # ------------------------------------------------------------------ commands that act outside

    def _redirected(self, words, keywords=("file", "append")):
        """The words with the names of output files replaced by that of the null device."""
        words = list(words)
        for k in range(1, len(words)):
            if words[k - 1] in keywords:
                self.session.promised.add(words[k])
                self.session.check_folder(words[k])
                words[k] = os.devnull
        return words

    def _instead_print(self, words):
        BY_NAME["print"].run(self.session, [words[0], *self._redirected(words[1:])])

    def _instead_fix(self, words):
        if words[2] in ("print", "ave/time"):
            at = 5 if words[2] == "print" else 3
            words = [*words[:at], *self._redirected(words[at:])]
        BY_NAME["fix"].run(self.session, words)

    def _instead_restart(self, words):
        BY_NAME["restart"].run(self.session, words)
        self.session.promised |= {w for p in words[1:] for w in (p, f"{p}.*")}

    def _instead_log(self, words):
        if words[0] != "none":
            self.session.check_folder(words[0])
        self.session.promised.add(words[0])
        BY_NAME["log"].run(self.session, [os.devnull, *words[1:]])

    def _instead_echo(self, words):
        BY_NAME["echo"].run(self.session, words)

    def _instead_shell(self, words):
        if words[0] == "mkdir":
            self.session.folders |= {os.path.normpath(w) for w in words[1:]}

    def _instead_clear(self, words):
        self.session.reset()
        self.session.moved = self.session.step_unknown = False
        self.suspects = {s for s in self.suspects if s[0] == "variable"}

    def _instead_read_data(self, words):
        session = self.session
        if session.system is not None or not session.promises(words[0]):
            BY_NAME["read_data"].run(session, words)
        elif session.recall(words[0], _OF_DATA_FILES):
            session.system.step, session.system.periodic = 0, np.array([a == "p" for a, _ in session.faces])
        else:
            self.suspects.add(("box", ""))

    def _instead_read_restart(self, words):
        session = self.session
        if session.system is not None or not session.promises(words[0]):
            read_restart(session, words[0])
        elif session.recall(words[0], _OF_RESTART_FILES):
            session.step_unknown = True
        else:
            self.suspects |= {("box", ""), ("group", "*")}

    def _instead_velocity(self, words):
        session = self.session
        if session.system is not None and len(session.system) > _LARGE:
            session.group_or_all(words[0])
            return
        BY_NAME["velocity"].run(session, words)

    def _instead_displace_atoms(self, words):
        if self.session.system is not None and len(self.session.system) > _LARGE:
            self.session.group_or_all(words[0])
            return
        BY_NAME["displace_atoms"].run(self.session, words)

    def _instead_write_data(self, words):
        known = {"nocoeff": 0, "nofix": 0, "nolabelmap": 0, "pair": 1, "types": 1, "triclinic/general": 0}
        structure._options(words[1:], known, "write_data")
        self._will_write(words[0])

    def _instead_write_restart(self, words):
        self._will_write(words[0])

    def _instead_write_dump(self, words):
        made = one_frame(self.session, words)
        if type(made) is CustomDump:
            for column in made.fields:
                self.session._check_column(column)
        self._will_write(words[2])

    def _will_write(self, path):
        self.session.promised.add(path)
        self.session.require_box()
        self.session.check_folder(path)
        self.session.keep(path)

    def _instead_dump(self, words):
        self.session.promised.add(words[4])
        BY_NAME["dump"].run(self.session, words)

    def _instead_minimize(self, words):
        limits(self.session, words)
        self.session.run(0)
        self.session.step_unknown = True

    def _instead_reset_timestep(self, words):
        BY_NAME["reset_timestep"].run(self.session, words)
        self.session.step_unknown = False

    def _instead_run(self, words):
        if self.session.step_unknown and "upto" in words:
            words = ["0", *words[1:]]
            self.session.require_box().step = 0
        BY_NAME["run"].run(self.session, words)

    def _instead_rerun(self, words):
        files, _, _ = arguments(self.session, words)
        for path in files:
            if not Path(path).is_file() and not self.session.promises(path):
                raise ScriptError(f"{path}: there is no such file")
        self.session.run(0)
        self.session.step_unknown = True
