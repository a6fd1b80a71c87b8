"""Execution of scripts: control flow, the check before anything runs, errors with their place."""

import io
import re
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from dpmd.kernels.threads import available_cores
from dpmd.parallel import OneProcess

from .. import __version__
from ..errors import InputError, RunError
from ..log import Log
from ..options import defaults
from ..preflight import check_options, check_ranks
from .commands import BY_NAME, COMMANDS, CONTENT_WITH_PARTS
from .computes import KEYWORDS
from .dumps import COLUMNS
from .fixes import NOSE_HOOVER_KEYWORDS, keywords
from .language import Line, ScriptError, condition, read_lines, words_of_line
from .log import ScriptLog
from .session import Session

#: nesting of include
_DEEPEST = 20


def _suggest(word):
    import difflib

    near = difflib.get_close_matches(word, BY_NAME, 1, 0.75)
    return f"; did you mean {near[0]!r}?" if near else ""


def unsupported(lines, seen=()):
    """Everything in a script that cannot be run, as ``["file:line: what"]``, found without running it."""
    problems = []
    for line in lines:
        try:
            words = words_of_line(line.text)
            if words:
                problems += [f"{line.where}: {p}" for p in _problems_of(words)]
                problems += _included(words, line, seen)
            if words[:1] == ["print"]:  # what it will hold cannot be known
                seen = (*seen, *(file for key, file in pairwise(words) if key in ("file", "append")))
        except InputError as error:
            problems.append(f"{line.where}: {error}")
    return problems


def _included(words, line, seen):
    if words[0] != "include" or len(words) != 2 or "$" in words[1] or not Path(words[1]).is_file():
        return []
    if words[1] in seen or len(seen) > _DEEPEST:
        return []
    return unsupported(read_lines(words[1]), (*seen, words[1]))


def _problems_of(words):
    name, rest = words[0], words[1:]
    if "$" in name:
        return []
    if name not in BY_NAME:
        return [f"command {name!r} is not supported{_suggest(name)}"]
    command = BY_NAME[name]
    if name == "if":
        return _problems_of_if(rest)
    literal = not any("$" in w for w in rest)
    if literal:
        try:
            command.check_count(len(rest))
        except InputError as error:
            return [str(error)]
    if command.styles:
        position, table = command.styles
        if not any("$" in w for w in rest[: position + 1]) and len(rest) > position and rest[position] not in table:
            return [f"{name} style {rest[position]!r} is not supported; known: {', '.join(table)}"]
    try:
        _check_words(name, rest)
    except InputError as error:
        return [str(error)]
    if name == "pair_style" and rest and "$" not in rest[0] and rest[0] != "deepmd":
        return [f"pair_style {rest[0]!r} is not supported; dpmd computes with 'pair_style deepmd MODEL'"]
    if name == "units" and literal and rest[0] not in ("metal", "real"):
        return [f"units {rest[0]!r} is not supported; known: metal, real"]
    if name == "shell" and rest and rest[0] != "mkdir":
        return [f"shell {rest[0]!r} is not supported (only mkdir)"]
    if name == "variable" and len(rest) > 1 and literal:
        from .language import Variables

        if rest[1] not in Variables.STYLES:
            return [f"variable style {rest[1]!r} is not supported; known: {', '.join(Variables.STYLES)}"]
    if name == "run" and "every" in rest:
        at = rest.index("every")
        return [p for w in rest[at + 2 :] if w != "NULL" for p in _problems_of(words_of_line(w) or ["label"])]
    return []


def _check_words(name, words):
    """Raises ScriptError for unknown keywords, as far as they stand in the script literally."""
    if name == "fix" and words[2:3] and words[2] in ("nvt", "npt", "nph") and not any("$" in w for w in words):
        keywords(words[3:], NOSE_HOOVER_KEYWORDS, words[2])
    columns = {
        "thermo_style": (KEYWORDS, words[1:] if words[:1] == ["custom"] else []),
        "dump": (COLUMNS, words[5:] if words[2:3] == ["custom"] else []),
    }
    table, given = columns.get(name, ({}, []))
    unknown = [w for w in given if w not in table and "$" not in w and w[:2] not in ("c_", "f_", "v_")]
    if unknown:
        raise ScriptError(f"{name}: {', '.join(unknown)} not supported; known: {', '.join(table)}")


def _problems_of_if(words):
    if len(words) < 3 or words[1] != "then":
        return ['if takes: CONDITION then "COMMAND" ... [elif CONDITION ...] [else ...]']
    problems, skip = [], False
    for word in words[2:]:
        if skip or word in ("elif", "else"):
            skip = word == "elif"
            continue
        inner = words_of_line(word)
        if inner:
            problems += _problems_of(inner)
    return problems


def mistakes(path, options, variables=(), findings=None, processes=None):
    """Everything wrong in a script that can be known before it runs, as ``["file:line: what"]``, in order.

    findings : :class:`dpmd.log.Log` for what a look at the atoms of the first run tells, None for no look;
    processes : the ranks that are to run it.
    """
    from .rehearsal import Rehearsal

    lines = read_lines(path)
    problems = unsupported(lines, (str(path),))
    told = {problem.split(": ", 1)[0] for problem in problems}
    for where, messages in Rehearsal(options, variables, findings, processes).go(lines).items():
        if where not in told:
            problems += [f"{where}: {message}" for message in messages]

    def place(problem):
        file, _, number = problem.split(": ", 1)[0].rpartition(":")
        return (file != str(path), file, int(number) if number.isdigit() else 0)

    return sorted(problems, key=place)


class Quit(Exception):
    """Ends the script."""

    def __init__(self, status):
        self.status = status


class Interpreter:
    """Runs the lines of a script on a session.

    The session's ``execute`` is the way for commands that contain commands.
    """

    def __init__(self, session):
        self.session = session
        session.execute = self.execute_text
        self.place = None
        self.skip_jump = False
        self.depth = 0
        self.target = None

    # ------------------------------------------------------------------ one command

    def execute_text(self, text):
        """Execute a command given as text, at the place of the present line."""
        self.execute(Line(text, self.place.file, self.place.number))

    def execute(self, line):
        """Execute one line.  Errors get its place."""
        self.place = line
        session = self.session
        try:
            words = session.variables.words(line.text)
            if not words:
                return
            name, words = words[0], words[1:]
            if name not in BY_NAME:
                raise ScriptError(f"command {name!r} is not supported{_suggest(name)}")
            BY_NAME[name].check_count(len(words))
            if BY_NAME[name].run is not None and name != "next":
                if name not in CONTENT_WITH_PARTS:
                    session.assemble()
                BY_NAME[name].run(session, words)
            else:
                getattr(self, f"_{name}")(words)
        except (Quit, RunError):
            raise
        except InputError as error:
            error.everywhere = True  # all ranks execute the same
            if isinstance(error, ScriptError) or not str(error).startswith(f"{line.file}:"):
                raise InputError(*(f"{line.where}: {message}" for message in str(error).splitlines())) from error
            raise
        except RecursionError as error:
            error.everywhere = True
            raise InputError(f"{line.where}: commands are nested too deeply") from error

    def _if(self, words):
        substitute = self.session.variables.substitute
        branches, current = [], None
        position = 0
        if len(words) < 3 or words[1] != "then":
            raise ScriptError('if takes: CONDITION then "COMMAND" ... [elif CONDITION ...] [else ...]')
        current = (words[0], [])
        position = 2
        while position < len(words):
            word = words[position]
            if word in ("elif", "else"):
                branches.append(current)
                if word == "elif":
                    position += 1
                    if position >= len(words):
                        raise ScriptError("if: elif lacks its condition")
                    current = (words[position], [])
                    if words[position + 1 : position + 2] == ["then"]:
                        position += 1
                else:
                    current = (None, [])
            else:
                current[1].append(word)
            position += 1
        branches.append(current)
        for test, commands in branches:
            if test is None or condition(substitute(test)):
                for command in commands:
                    self.execute_text(command)
                    if self.target is not None:
                        return
                return

    def _include(self, words):
        if self.depth >= _DEEPEST:
            raise ScriptError("include: files include one another in a circle")
        lines, place = self.session.processes.on_root(lambda: read_lines(words[0])), self.place
        self.depth += 1
        try:
            self.run(lines)
        finally:
            self.depth -= 1
            self.place = place

    def _label(self, words):
        pass

    def _jump(self, words):
        self.target = (words[0], words[1] if len(words) > 1 else None)

    def _next(self, words):
        if self.session.variables.advance(words):
            self.skip_jump = True

    def _quit(self, words):
        try:
            raise Quit(int(words[0]) if words else 0)
        except ValueError:
            raise ScriptError(f"quit takes a whole number, not {words[0]!r}") from None

    # ------------------------------------------------------------------ a file

    def run(self, lines):
        """Execute all lines, following jumps."""
        at = 0
        while at < len(lines):
            line = lines[at]
            at += 1
            self.session.log.echo(line.text)
            words = line.text.split()
            if words and words[0] == "jump" and self.skip_jump:
                self.skip_jump = False
                continue
            self.execute(line)
            if self.target is None:
                continue
            (file, label), self.target = self.target, None
            if self.skip_jump:
                self.skip_jump = False
                continue
            if file != "SELF":
                lines = self.session.processes.on_root(lambda file=file, line=line: self._jump_into(file, line))
            at = 0 if label is None else self._find(lines, label, line)

    @staticmethod
    def _jump_into(file, line):
        try:
            lines = read_lines(file)
        except ScriptError as error:
            raise InputError(f"{line.where}: jump: {error}") from error
        problems = unsupported(lines)
        if problems:
            raise InputError(*problems)
        return lines

    @staticmethod
    def _find(lines, label, line):
        for k, candidate in enumerate(lines):
            words = candidate.text.split()
            if words[:2] == ["label", label]:
                return k + 1
        error = InputError(f"{line.where}: jump: there is no 'label {label}'")
        error.everywhere = True
        raise error


def is_script(text):
    """Whether the text of an input file is a LAMMPS script (and not TOML)."""
    sections = commands = 0
    for raw in text.splitlines():
        line = raw.split("#")[0].strip()
        if not line:
            continue
        if re.match(r"\[\[?\s*[\w.]+\s*\]\]?$", line) or re.match(r"[\w.-]+\s*=", line):
            sections += 1
        elif line.split()[0] in BY_NAME:
            commands += 1
    return commands > 0 and commands >= sections


def _faultless_lines(path, options, variables, findings, processes):
    """The lines of a script; InputError listing all mistakes that can be known."""
    problems = mistakes(path, options, variables, findings, processes)
    if problems:
        raise InputError(*problems)
    return read_lines(path)


def run_script(
    path, options, variables=(), log_path="log.lammps", screen=None, echo=None, processes=None, rehearse=True
):
    """Run a LAMMPS script.  Returns the exit code.

    options : namespace with device, precision, threads, no_tabulate, max_displacement, check and, for several
    ranks, decomposition, balance and halo_precision; variables : ``[(name, values)]`` of -var; log_path : log
    file or None; screen : stream or None; processes : the ranks, each of which calls this; rehearse : whether
    to raise InputError listing all mistakes that can be known before anything is run or written.
    """
    processes = processes or OneProcess()
    root = processes.root
    if processes.size > 1 and options.device.startswith("cuda"):
        error = InputError(
            f"device {options.device!r}: LAMMPS scripts on several ranks use CPUs only; start md-run without the MPI "
            "launcher to use a GPU"
        )
        error.everywhere = True
        raise error
    options = SimpleNamespace(**defaults(script=True) | vars(options))
    processes.on_root(lambda: check_options(options, lambda name: f"--{name.replace('_', '-')}"))
    findings = Log(io.StringIO()) if options.check else None
    if rehearse:
        lines = processes.on_root(lambda: _faultless_lines(path, options, variables, findings, processes))
    else:
        lines = processes.on_root(lambda: read_lines(path))
    if options.check:
        threads = options.threads or max(1, available_cores() // processes.machine_ranks)
        for text in check_ranks(options, processes, threads):
            findings.warning(text)
        if root:
            print(f"{findings.screen.getvalue()}{path}: no mistake was found; nothing was run (--check).")
        return 0
    begin = time.perf_counter()
    log = processes.root_first(lambda: ScriptLog(log_path if root else None, screen if root else None))
    if echo is not None:
        log.echo_screen, log.echo_file = echo in ("screen", "both"), echo in ("log", "both")
    session = Session(options, log, processes)
    for name, values in variables:
        session.variables.set_from_command_line(name, values)
    interpreter = Interpreter(session)
    log(f"LAMMPS script, run by dpmd {__version__}")
    status = 0
    try:
        interpreter.run(lines)
    except Quit as quit_:
        status = quit_.status
    except (InputError, RunError) as error:
        for message in str(error).splitlines():
            log._write(f"ERROR: {message}", (log.file,))
        raise
    finally:
        session.close_files()
        elapsed = int(time.perf_counter() - begin)
        if status == 0:
            log(f"Total wall time: {elapsed // 3600}:{elapsed // 60 % 60:02d}:{elapsed % 60:02d}")
        log.close()
    return status


assert all(c.run is not None or hasattr(Interpreter, f"_{c.name}") for c in COMMANDS)
