"""The log: what a user can paste into an issue and that answers the question."""

import platform
import sys
from pathlib import Path

import numpy as np


class Log:
    """Lines to the screen and to a file.

    path : log file, or None for the screen only; append : keep what is there.
    """

    def __init__(self, path=None, append=False, screen=None):
        self.screen = sys.stdout if screen is None else screen
        self.file = open(path, "a" if append else "w", encoding="utf-8") if path else None  # noqa: SIM115
        #: set while a progress bar owns the last line of the terminal
        self.progress = None

    def __call__(self, text=""):
        if self.progress is not None:
            self.progress.clear()
        for stream in (self.screen, self.file):
            if stream is not None:
                stream.write(f"{text}\n")
                stream.flush()
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
