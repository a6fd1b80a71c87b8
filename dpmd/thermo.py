"""Thermodynamic output and the progress line."""

import csv
import sys
import time

from tqdm import tqdm

from .errors import InputError
from .log import drift_per_atom, thermo_header, thermo_line
from .options import THERMO_COLUMNS
from .simulation import Hook


def columns_to_write(wanted, path, where):
    """Columns of the CSV file, or None for all.  Raises InputError, saying ``where``, if the file has others.

    wanted : names, or None for what the file has; path : a file to go on with, or None for a new one.
    """
    columns = None if wanted is None else list(dict.fromkeys(("step", "time_ps", *wanted)))
    if path is None:
        return columns
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        there = next(csv.reader(file), [])
    if columns is None and there and set(there) <= set(THERMO_COLUMNS):
        return there
    if there != (columns or list(THERMO_COLUMNS)):
        raise InputError(
            f"{where}: {path} has the columns {', '.join(there) or '(none)'} and cannot go on with "
            f"{', '.join(columns or THERMO_COLUMNS)}; set those, or leave columns out"
        )
    return columns


class Thermo(Hook):
    """Prints the table of the log and writes it, with all digits, to a CSV file.

    every : steps; log : :class:`dpmd.log.Log`; path : CSV file, or None for no file; offset :
    bytes of the file to keep (a continued run), or None to start anew; columns : of the file, None for all.
    """

    format = "csv"
    several_ranks = True

    def __init__(self, every, log, path, offset=None, columns=None):
        self.every, self.log, self.path, self.columns = every, log, path, columns
        self.file = None
        if path is not None:
            self.file = open(path, "w" if offset is None else "r+", newline="", encoding="utf-8")  # noqa: SIM115
        if self.file and offset is not None:
            self.file.truncate(offset)
            self.file.seek(offset)
        self.new = offset is None
        self.times, self.conserved, self.n_atoms = [], [], 1

    def start(self, simulation):
        self.log()
        self.log(thermo_header())
        self.n_atoms = simulation.system.n_atoms

    def __call__(self, simulation):
        values = simulation.observables()
        self.log(thermo_line(values))
        self.times.append(values["time_ps"])
        self.conserved.append(values["conserved_eV"])
        if self.file:
            self._write(values)

    def _write(self, values):
        values = {key: values[key] for key in self.columns or values}
        writer = csv.DictWriter(self.file, values)
        if self.new:
            writer.writeheader()
            self.new = False
        writer.writerow({key: repr(float(value)) if key != "step" else value for key, value in values.items()})
        self.file.flush()

    def drift(self):
        """Of the conserved energy and its standard error, meV/atom/ns."""
        return drift_per_atom(self.times, self.conserved, self.n_atoms)

    def position(self):
        """Bytes written so far."""
        self.file.flush()
        return self.file.tell()


class Progress(Hook):
    """A line with speed and remaining time: live on a terminal, sparse in a log file.

    total : steps of this run; timestep : ps.
    """

    every = 1
    several_ranks = True

    def __init__(self, total, timestep, log):
        self.total, self.timestep, self.log = total, timestep, log
        self.terminal = sys.stderr.isatty() and log.screen is sys.stdout
        self.next_report = 60.0

    def start(self, simulation):
        self.begin, self.first = time.perf_counter(), simulation.steps_done
        if self.terminal and self.total:
            self.log.progress = tqdm(
                total=self.total, unit="step", file=sys.stderr, leave=False, mininterval=0.5, dynamic_ncols=True
            )

    def __call__(self, simulation):
        done = simulation.steps_done - self.first
        if self.log.progress is not None:
            self.log.progress.update(done - self.log.progress.n)
            if done % 20 == 0:
                self.log.progress.set_postfix_str(f"{self._speed(done):.3g} ns/day", refresh=False)
            return
        elapsed = time.perf_counter() - self.begin
        if elapsed > self.next_report and done < self.total:
            remaining = (self.total - done) * elapsed / done
            self.log(
                f"  ... {100 * done / self.total:.0f} % done, {self._speed(done):.3g} ns/day, "
                f"{remaining / 60:.1f} min to go"
            )
            self.next_report = 2 * elapsed

    def _speed(self, done):
        elapsed = time.perf_counter() - self.begin
        return done * self.timestep * 1e-3 / elapsed * 86400 if elapsed else 0.0

    def finish(self, simulation):
        if self.log.progress is not None:
            self.log.progress.close()
            self.log.progress = None
