"""The log of a script, in the shape that programs expect which read LAMMPS's."""

import sys
import time

import numpy as np

from ..log import Log
from ..simulation import Hook
from .language import ScriptError, c_format


class ScriptLog:
    """Lines to the screen and to a log file; commands are echoed to the file.

    path : log file or None; screen : stream or None.
    """

    def __init__(self, path, screen=sys.stdout):
        self.screen, self.file, self.echo_screen, self.echo_file = screen, None, False, True
        self.open(path)

    def open(self, path, append=False):
        """Go on with another file (None: no file)."""
        self.close()
        if path is not None:
            try:
                self.file = open(path, "a" if append else "w", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise ScriptError(f"log file {path} cannot be written: {error.strerror or error}") from error

    def _write(self, text, streams):
        for stream in streams:
            if stream is not None:
                stream.write(f"{text}\n")
                stream.flush()

    def __call__(self, text=""):
        self._write(text, (self.screen, self.file))

    def echo(self, text):
        """A command, as it is about to be executed."""
        self._write(text, (self.screen if self.echo_screen else None, self.file if self.echo_file else None))

    def warning(self, text):
        """A line that stands out."""
        self(f"WARNING: {text}")

    table = Log.table

    def close(self):
        """Close the file."""
        if self.file is not None:
            self.file.close()
            self.file = None


ONE = ("step", "temp", "epair", "emol", "etotal", "press")
MULTI = ("etotal", "ke", "temp", "pe", "ebond", "eangle", "edihed", "eimp", "evdwl", "ecoul", "elong", "press")


class ThermoStyle:
    """What ``thermo``, ``thermo_style`` and ``thermo_modify`` set.

    every : steps between lines, or a variable ``v_NAME`` that tells the next step; columns : names.
    A new one stands for the defaults of thermo_modify.
    """

    def __init__(self, every=0, style="one", columns=ONE):
        self.every, self.style, self.columns = every, style, columns
        self.temperature, self.pressure, self.potential = "thermo_temp", "thermo_press", "thermo_pe"
        self.float_format = self.int_format = None
        #: of the columns, {number: format}, as line and as ranges or names give them; the latter count most
        self.line_formats, self.formats, self.titles = {}, {}, {}
        self.per_atom, self.lost = False, "error"

    def modify(self, words):
        """The ``thermo_modify`` command."""
        rest = list(words)
        while rest:
            name, rest = rest[0], rest[1:]
            if not rest:
                raise ScriptError(f"thermo_modify {name} lacks its value")
            if name == "format":
                rest = self._format(rest)
                continue
            if name == "colname":
                rest = self._title(rest)
                continue
            value, rest = rest[0], rest[1:]
            if name == "temp":
                self.temperature = value
            elif name == "press":
                self.pressure = value
            elif name == "norm":
                if value not in ("yes", "no", "on", "off", "true", "false"):
                    raise ScriptError(f"thermo_modify norm takes yes or no, not {value!r}")
                self.per_atom = value in ("yes", "on", "true")
            elif name == "lost":
                if value not in ("error", "warn", "ignore"):
                    raise ScriptError(f"thermo_modify lost takes error, warn or ignore, not {value!r}")
                self.lost = value
            elif name == "line":
                if value not in ("one", "multi"):
                    raise ScriptError("thermo_modify line takes one or multi (yaml is not supported)")
                self.style = "multi" if value == "multi" else "custom"
            elif name not in ("flush", "warn", "lost/bond", "triclinic/general"):
                raise ScriptError(
                    f"thermo_modify {name!r} is not supported; known: colname, flush, format, line, lost, norm, press, "
                    "temp"
                )

    def _format(self, rest):
        if rest[0] == "none":
            self.float_format = self.int_format = None
            self.line_formats, self.formats = {}, {}
            return rest[1:]
        if len(rest) < 2:
            raise ScriptError("thermo_modify format takes line, float, int or columns, and a format")
        which, form = rest[:2]
        if which == "line":
            forms = form.split()
            if len(forms) < len(self.columns):
                raise ScriptError(
                    f"thermo_modify format line: {len(forms)} formats for {len(self.columns)} columns of thermo_style"
                )
            for each in forms:
                c_format(each, 1)
            self.line_formats = dict(enumerate(forms, 1))
            return rest[2:]
        c_format(form, 1)
        if which == "float":
            self.float_format = form
        elif which == "int":
            self.int_format = form
        else:
            self.formats |= dict.fromkeys(self._numbers_of(which, "format"), form)
        return rest[2:]

    def _title(self, rest):
        if rest[0] == "default":
            self.titles = {}
            return rest[1:]
        if len(rest) < 2:
            raise ScriptError("thermo_modify colname takes default, or a column and its title")
        self.titles |= dict.fromkeys(self._numbers_of(rest[0], "colname"), rest[1])
        return rest[2:]

    def _numbers_of(self, which, what):
        """Numbers of the columns that ``3``, ``-1``, ``4*8``, ``*`` or a column's name stand for."""
        n, names = len(self.columns), {name: k for k, name in enumerate(self.columns, 1)}
        low, star, high = which.partition("*")
        if which in names:
            return [names[which]]
        if all(w.isdigit() or (star and not w) for w in (low, high or "1")):
            first = int(low or 1)
            last = (int(high) if high else n) if star else first
            if 1 <= first <= last <= n:
                return range(first, last + 1)
        elif which[:1] == "-" and which[1:].isdigit() and 1 <= int(which[1:]) <= n:
            return [n + 1 - int(which[1:])]
        raise ScriptError(
            f"thermo_modify {what} {which!r}: use line, float, int, a column from 1 to {n} or a range such as 2*4, or "
            f"a column's name: {', '.join(self.columns)}"
        )

    def format_of(self, column, whole):
        """The format of a column (from 1), whole numbers or not; None for the default."""
        form = self.formats.get(column, self.int_format if whole else self.float_format)
        return form or self.line_formats.get(column)


class ThermoTable(Hook):
    """Prints the thermo output of one run.  All ranks work out the values.

    last : the run's last step, which is always printed.
    """

    several_ranks = True

    def __init__(self, session, last, every=None):
        self.session, self.last = session, last
        self.every = session.thermo.every if every is None else every
        columns = [session.column(name) for name in self._names()]
        titles = session.thermo.titles
        self.columns = [(titles.get(k, title), *rest) for k, (title, *rest) in enumerate(columns, 1)]
        #: step of the last line, and of the next one where a variable tells it
        self.printed = self.next = None

    def _names(self):
        thermo = self.session.thermo
        names = list(thermo.columns)
        if thermo.style == "one" and self.session.box_changes():
            names.append("vol")
        return names

    def due(self, step, first=False):
        if isinstance(self.every, str):
            return first or step in (self.last, self.next)
        return first or step == self.last or (self.every and step % self.every == 0)

    def start(self, simulation):
        from ..job import peak_memory

        # what comes before is preparation: first forces, compilation
        simulation.timers.update(dict.fromkeys(simulation.timers, 0.0))
        self.session.loop_begin = time.perf_counter()
        sizes = _of_ranks(self.session.processes, peak_memory() / 2**20)
        least, mean, most = sizes.min(), sizes.mean(), sizes.max()
        self.session.log(f"Per MPI rank memory allocation (min/avg/max) = {least:.4g} | {mean:.4g} | {most:.4g} Mbytes")
        if self.session.thermo.style != "multi":
            cells = [f"{title:^11}" if whole else f"{title:^14}" for title, whole, _ in self.columns]
            self.session.log(" ".join(cells))

    def finish(self, simulation):
        if simulation.stop_reason and self.printed != simulation.system.step and not simulation.failed:
            self(simulation)

    def __call__(self, simulation):
        thermo = self.session.thermo
        values = [get(self.session) for _, _, get in self.columns]
        self.printed = simulation.system.step
        if isinstance(self.every, str) and self.printed != self.last:
            self.next = self.session.next_step(self.every)
        multi = thermo.style == "multi"
        cells = []
        for k, (value, (title, whole, _)) in enumerate(zip(values, self.columns, strict=True), 1):
            form = thermo.format_of(k, whole)
            if form is not None:
                cell = c_format(form, value) if np.isfinite(value) else str(value)
            elif whole:
                cell = f"{int(value):>14d}" if multi else f"{int(value):>10d} "
            else:
                cell = f"{value:14.4f}" if multi else f"{value:< 14.8g}"
            cells.append(f"{title:<8} = {cell}" if multi else cell)
        if multi:
            elapsed = time.perf_counter() - self.session.loop_begin
            self.session.log(f"------------ Step {self.printed:14d} ----- CPU = {elapsed:12.7g} (sec) -------------")
            for k in range(0, len(cells), 3):
                self.session.log(" ".join(cells[k : k + 3]) + " " * (k + 3 < len(cells)))
        else:
            self.session.log(" ".join(cells))


def _of_ranks(processes, value):
    """The numbers of all ranks, one row each.  Collective."""
    return np.array(processes.broadcast(processes.collect(value)))


def loop_report(session, seconds, steps, threads):
    """The lines after a run: loop time, performance, where the time went, neighbours.  Collective."""
    log, system, simulation, processes = session.log, session.system, session.simulation, session.processes
    n = system.n_atoms
    log(f"Loop time of {seconds:.6g} on {processes.size} procs for {steps} steps with {n} atoms")
    log()
    if steps and seconds > 0:
        days = steps * session.timestep_ps * 1e-3 / seconds * 86400
        rate = steps / seconds
        log(
            f"Performance: {days:.3f} ns/day, {24 / days if days else 0:.3f} hours/ns, {rate:.3f} timesteps/s, "
            f"{rate * n:.3f} atom-step/s"
        )
    log(f"100.0% CPU use with {processes.size} MPI tasks x {threads} OpenMP threads")
    log()
    log("MPI task timing breakdown:")
    log("Section |  min time  |  avg time  |  max time  |%varavg| %total")
    log("---------------------------------------------------------------")
    timers = simulation.timers
    parts = {
        "Pair": timers["force"], "Neigh": timers["neighbor"], "Comm": timers["communication"] + timers["waiting"],
        "Output": timers["output"], "Modify": timers["integrate"],
    }  # fmt: skip
    times = _of_ranks(processes, list(parts.values()))
    for name, of_ranks in zip(parts, times.T, strict=True):
        least, value, most = of_ranks.min(), of_ranks.mean(), of_ranks.max()
        varied = 100 * (most - least) / value if value > 0 else 0.0
        log(
            f"{name:7} | {least:<10.5g} | {value:<10.5g} | {most:<10.5g} |{varied:6.1f} |"
            f"{100 * value / max(seconds, 1e-9):6.2f}"
        )
    other = max(seconds - times.sum() / processes.size, 0.0)
    log(f"Other   |            | {other:<10.4g} |            |       |{100 * other / max(seconds, 1e-9):6.2f}")
    log()
    domain = simulation.domain
    neighbors = int(domain.neighbors.count.sum()) if n else 0
    counts = _of_ranks(processes, [len(system), domain.n_ghosts, 0, neighbors])
    for name, of_ranks in zip(("Nlocal:", "Nghost:", "Neighs:", "FullNghs:"), counts.T, strict=True):
        log(f"{name:10}{of_ranks.mean():>13.9g} ave {of_ranks.max():>11} max {of_ranks.min():>11} min")
        bins = np.histogram(of_ranks, 10)[0] if np.ptp(of_ranks) else [len(of_ranks), *[0] * 9]
        log("Histogram: " + " ".join(map(str, bins)))
    neighbors = int(counts[:, 3].sum())
    log()
    log(f"Total # of neighbors = {neighbors}")
    log(f"Ave neighs/atom = {neighbors / max(n, 1):.8g}")
    log(f"Neighbor list builds = {max(session.schedule.builds - 1, 0)}")
    log("Dangerous builds = 0")  # lists are checked at every step, so none can come too late
    overflowed = simulation.count_overflows()
    if overflowed:
        log.warning(
            f"{overflowed:.3g} atoms, on average over the steps, had more neighbours than the model's sel; the nearest "
            "were kept"
        )
