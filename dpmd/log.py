"""The log: what a user can paste into an issue and that answers the question."""

import platform
import sys
from pathlib import Path

import numpy as np

from .errors import InputError


class Log:
    """Lines to the screen and, once it is opened, to a file.

    Lines before :meth:`open` are kept and written to the file then, so that a run that is refused
    leaves no file behind.
    """

    def __init__(self, screen=None):
        self.screen = sys.stdout if screen is None else screen
        self.file, self._before = None, []
        #: set while a progress bar owns the last line of the terminal
        self.progress = None

    def open(self, path, append=False):
        """Write to a file from now on; ``append`` keeps what is there.

        The file is locked, so that two runs of the same name cannot mix theirs.  Raises InputError
        if it is.
        """
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        try:
            import fcntl

            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # not a POSIX system
            pass
        except OSError:
            raise InputError(
                f"{path}: another md-run of this name is running here; wait for it, or set another name in [run]"
            ) from None
        if not append:
            self.file.truncate(0)
        self.file.writelines(self._before)
        self._before = []

    def __call__(self, text="", screen=True):
        """Write a line; ``screen=False`` to the file only."""
        if self.progress is not None:
            self.progress.clear()
        if self.file:
            self.file.write(f"{text}\n")
            self.file.flush()
        else:
            self._before.append(f"{text}\n")
        if screen and self.screen is not None:
            try:
                self.screen.write(f"{text}\n")
                self.screen.flush()
            except OSError:  # a closed pipe must not end the run
                self.screen = None
        if self.progress is not None:
            self.progress.refresh()

    def warning(self, text):
        """A line that stands out."""
        self(f"WARNING: {text}")

    def table(self, rows, indent=2):
        """Aligned columns; numbers should come as formatted text."""
        rows = [[str(cell) for cell in row] for row in rows]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        for row in rows:
            cells = [
                cell.rjust(width) if cell[:1].isdigit() or cell[:1] == "-" else cell.ljust(width)
                for cell, width in zip(row, widths, strict=True)
            ]
            self((" " * indent + "  ".join(cells)).rstrip())

    def close(self):
        if self.file:
            self.file.close()


class Silence(Log):
    """The log of ranks that have nothing to say."""

    def __init__(self):
        self.screen = self.file = self.progress = None

    def __call__(self, text="", screen=True):
        """Nothing."""

    def table(self, rows, indent=2):
        """Nothing."""


def processor_name():
    """The CPU's name as the operating system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions():
    """Versions of what computes, as ``[(name, version)]``."""
    import ase
    import numba
    import scipy

    from . import __version__

    return [
        ("dpmd", __version__),
        ("Python", platform.python_version()),
        ("numpy", np.__version__),
        ("numba", numba.__version__),
        ("scipy", scipy.__version__),
        ("ASE", ase.__version__),
    ]


_columns = (
    ("step", "{:9d}", "Step"),
    ("time_ps", "{:10.4f}", "Time/ps"),
    ("temperature_K", "{:9.2f}", "Temp/K"),
    ("potential_eV", "{:16.6f}", "Potential/eV"),
    ("kinetic_eV", "{:12.5f}", "Kinetic/eV"),
    ("total_eV", "{:16.6f}", "Total/eV"),
    ("conserved_eV", "{:16.6f}", "Conserved/eV"),
    ("pressure_bar", "{:12.2f}", "Pressure/bar"),
    ("volume_A3", "{:13.3f}", "Volume/A^3"),
)


def thermo_header():
    """Titles of the thermo table."""
    return " ".join(title.rjust(len(form.format(0))) for _, form, title in _columns)


def thermo_line(values):
    """A row of the thermo table from :meth:`Simulation.observables`; "-" where there is no value."""
    cells = []
    for key, form, _ in _columns:
        text = form.format(values[key])
        cells.append(text if values[key] == values[key] else "-".rjust(len(form.format(0))))
    return " ".join(cells)


def drift_per_atom(times, energies, n_atoms):
    """Slope of a straight line through conserved energies and its standard error, meV/atom/ns.

    times : ps; energies : eV.  NaN for fewer than three points.
    """
    if len(times) < 3 or times[-1] == times[0]:
        return float("nan"), float("nan")
    t, e = np.asarray(times) - np.mean(times), np.asarray(energies) - np.mean(energies)
    slope = (t @ e) / (t @ t)
    error = np.sqrt(((e - slope * t) ** 2).sum() / (len(t) - 2) / (t @ t))
    return slope / n_atoms * 1e6, error / n_atoms * 1e6
