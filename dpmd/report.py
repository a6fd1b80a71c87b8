"""A page about a finished run, from the files that it left: ``dpmd report``."""

import base64
import csv
import html
import io
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpmd.models.files import write_text, written_whole

from .errors import InputError
from .plots import GRID, INK, MUTED, PALETTE, style

#: colours of the phases in the pie of times
_PHASES = {
    "geometry": "#174e6f", "embedding": "#2a6f97", "descriptor": "#5b9bbf", "fitting": "#9cc5de",
    "force": "#c9e0ee", "waiting": "#e4e7eb", "neighbor": "#e07a3f", "communication": "#f0b088",
    "integrate": "#3a9d6e", "output": "#c9a227", "other": "#b8c1cc", "threads": "#8d99a6",
}  # fmt: skip


@dataclass
class Run:
    """What a run left: name; summary (dict); thermo, columns by name; analyses, ``{title: columns}``; log."""

    name: str
    summary: dict
    thermo: dict
    analyses: dict = field(default_factory=dict)
    log: str = ""


def find(folder, name=None):
    """The :class:`Run` in a folder.  Raises InputError if there is none, or several and no ``name``."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the one in which md-run was called")
    summaries = sorted(folder.glob("*.summary.json"))
    names = [path.name.removesuffix(".summary.json") for path in summaries]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        there = ", ".join(names) or "none; a run writes NAME.summary.json at its end"
        what = f"no run named {name!r}" if name else f"{len(names)} runs" if names else "no finished run"
        raise InputError(f"{folder}: {what} here (there: {there})" + ("; choose one with --name" if names else ""))
    try:
        summary = json.loads((folder / f"{name}.summary.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{folder / name}.summary.json: damaged ({error})") from error
    thermo, log = folder / f"{name}.thermo.csv", folder / f"{name}.log"
    return Run(
        name,
        summary,
        _columns(thermo) if thermo.exists() else {},
        _analyses(folder),
        log.read_text(encoding="utf-8", errors="replace") if log.exists() else "",
    )


def _columns(path, skip=0):
    """Columns by name of a CSV file with one line of titles; lines that were cut off are left out."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[skip:]
    if not rows:
        return {}
    titles, *values = rows
    whole = [row for row in values if len(row) == len(titles)]
    table = np.array(whole, float).reshape(len(whole), len(titles))
    return {title: table[:, k] for k, title in enumerate(titles)}


def _analyses(folder):
    """Files of ``[[analysis]]``, which their first line tells; the latest of each kind."""
    titles = (
        "radial distribution",
        "mean square displacement",
        "vibrational density of states",
        "coordination numbers",
    )
    found = {}
    for path in sorted(folder.glob("*.csv"), key=lambda p: p.stat().st_mtime):
        with open(path, encoding="utf-8", errors="replace") as file:
            head = file.readline()
        for title in titles:
            if head.startswith(f"# {title};"):
                found[title] = _columns(path, skip=1)
    return found


# --------------------------------------------------------------------- panels
# Each draws into an axis; _panels chooses those for which there are data.


def _temperature(axis, run):
    time, kelvin = run.thermo["time_ps"], run.thermo["temperature_K"]
    axis.plot(time, kelvin, color=PALETTE[1], linewidth=1.0)
    _mean_line(axis, kelvin, "K")
    axis.set(title="Temperature", xlabel="time (ps)", ylabel="K")


def _mean_line(axis, values, unit):
    mean = values.mean()
    axis.axhline(mean, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    axis.set_title(
        f"mean {mean:,.4g} ± {values.std():,.2g} {unit}", loc="right", color=MUTED, fontsize=8.5, fontweight="normal"
    )


def _potential(axis, run):
    energy = 1e3 * run.thermo["potential_eV"] / run.summary["atoms"]
    axis.plot(run.thermo["time_ps"], energy - energy[0], color=PALETTE[0])
    axis.set(title="Potential energy", xlabel="time (ps)", ylabel="meV/atom, from the start")


def _conserved(axis, run):
    energy = 1e3 * run.thermo["conserved_eV"] / run.summary["atoms"]
    axis.plot(run.thermo["time_ps"], energy - energy[0], color=PALETTE[2])
    axis.axhline(0, color=MUTED, linewidth=0.8)
    axis.set(title="Conserved energy", xlabel="time (ps)", ylabel="meV/atom, from the start")


def _pressure(axis, run):
    pressure = run.thermo["pressure_bar"] / 1e3
    axis.plot(run.thermo["time_ps"], pressure, color=PALETTE[3], linewidth=1.0)
    _mean_line(axis, pressure, "kbar")
    axis.set(title="Pressure", xlabel="time (ps)", ylabel="kbar")


def _volume(axis, run):
    axis.plot(run.thermo["time_ps"], run.thermo["volume_A3"] / run.summary["atoms"], color=PALETTE[7])
    axis.set(title="Volume", xlabel="time (ps)", ylabel="Å$^3$/atom")


def _rdf(axis, run):
    columns = run.analyses["radial distribution"]
    top = 0.0
    for title, values in columns.items():
        if title.startswith("g_"):
            axis.plot(columns["r_A"], values, label=title[2:].replace("-", "–"))
            # bonds make peaks that would flatten everything else
            top = max(top, values[columns["r_A"] > 1.6].max(initial=0.0))
    axis.axhline(1, color=MUTED, linewidth=0.8)
    axis.set(title="Radial distribution", xlabel="r (Å)", ylabel="g(r)", ylim=(0, 1.25 * top or None))
    axis.set_xlim(0, columns["r_A"][-1])
    axis.legend()


def _msd(axis, run):
    columns = run.analyses["mean square displacement"]
    shown = slice(0, max(len(columns["time_ps"]) // 2, 2))  # longer lags have few samples
    for title, values in columns.items():
        if title.startswith("msd_"):
            axis.plot(columns["time_ps"][shown], values[shown], label=title[4:].removesuffix("_A2"))
    axis.set(title="Mean square displacement", xlabel="lag (ps)", ylabel="Å$^2$")
    axis.legend()


def _vdos(axis, run):
    columns = run.analyses["vibrational density of states"]
    wavenumber = columns["wavenumber_per_cm"]
    total = columns["vdos_total"]
    axis.fill_between(wavenumber, total, color=PALETTE[0], alpha=0.25, linewidth=0)
    axis.plot(wavenumber, total, color=PALETTE[0], linewidth=1.2)
    seen = wavenumber[total > 0.01 * total.max()]
    axis.set(title="Vibrations", xlabel="wavenumber (cm$^{-1}$)", ylabel="density of states", yticks=[])
    axis.set_xlim(0, 1.1 * seen.max() if len(seen) else None)
    axis.set_ylim(0, None)


def _coordination(axis, run):
    columns = run.analyses["coordination numbers"]
    shares = {t[6:]: v for t, v in columns.items() if t.startswith("share_") and v[1:].any()}
    width = 0.8 / max(len(shares), 1)
    for k, (name, values) in enumerate(shares.items()):
        x = columns["neighbours"] + (k - (len(shares) - 1) / 2) * width
        axis.bar(x, 100 * values, width, color=PALETTE[k], label=name.replace("-", "–"))
    axis.set(title="Coordination numbers", xlabel="neighbours", ylabel="% of atoms")
    axis.xaxis.set_major_locator(_whole_numbers())
    axis.legend()


def _whole_numbers():
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)


def _times(axis, run):
    """Where the time of a step goes."""
    phases = {name: 1e3 * seconds for name, seconds in run.summary["phases"].items() if seconds > 0}
    total = sum(phases.values())
    main = {name: t for name, t in phases.items() if t >= 0.015 * total}
    rest = total - sum(main.values())
    if rest > 1e-9 * total:
        main["smaller ones"] = rest
    colours = [_PHASES.get(name.removeprefix("force: "), MUTED) for name in main]
    wedges, _ = axis.pie(
        list(main.values()), colors=colours, startangle=90, counterclock=False, radius=1.0,
        wedgeprops={"width": 0.36, "edgecolor": "white", "linewidth": 1.5},
    )  # fmt: skip
    axis.text(0, 0, f"{total:.3g}\nms/step", ha="center", va="center", fontsize=11, fontweight="bold", linespacing=1.3)
    labels = [f"{name}  {100 * t / total:.0f} %" for name, t in main.items()]
    axis.legend(wedges, labels, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=0.9, labelspacing=0.45)
    axis.set_title("Where the time goes")


def _speed(axis, run):
    """Measured beside predicted speed."""
    bars = {"measured": run.summary["ns_per_day"], "predicted": run.summary["predicted_ns_per_day"]}
    axis.barh(list(bars), list(bars.values()), color=(PALETTE[0], GRID), height=0.55)
    top = max(bars.values())
    for k, value in enumerate(bars.values()):
        axis.text(value + 0.02 * top, k, f"{value:.3g}", va="center", fontweight="bold")
    axis.set(title="Speed", xlabel="ns/day", xlim=(0, 1.22 * top))
    axis.set_ylim(2.1, -1.1)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)


def _panels(run):
    """The panels for which there are data, in reading order."""
    thermo, several = run.thermo, len(run.thermo.get("time_ps", ())) > 1
    volume = thermo.get("volume_A3", np.zeros(0))
    pressure = thermo.get("pressure_bar", np.full(1, np.nan))
    wanted = (
        (several and "temperature_K" in thermo, _temperature),
        (several and "potential_eV" in thermo, _potential),
        (several and "conserved_eV" in thermo and not run.summary.get("not_conserved"), _conserved),
        (several and np.isfinite(pressure).all(), _pressure),
        (several and len(volume) and np.isfinite(volume).all() and np.ptp(volume) > 1e-9 * volume.mean(), _volume),
        ("radial distribution" in run.analyses, _rdf),
        ("coordination numbers" in run.analyses, _coordination),
        ("mean square displacement" in run.analyses, _msd),
        ("vibrational density of states" in run.analyses, _vdos),
        (bool(run.summary.get("predicted_ns_per_day")), _speed),
        (any(run.summary.get("phases", {}).values()), _times),
    )
    return [panel for there, panel in wanted if there]


# --------------------------------------------------------------------- the page


def _facts(run):
    """The numbers at the top: ``[(value, unit, label)]``."""
    s = run.summary
    steps, timestep = s.get("steps", 0), s.get("timestep_fs", 0.0)
    facts = [
        (f"{s['ns_per_day']:.3g}", "ns/day", "speed"),
        (f"{1e3 * s['seconds_per_step']:.3g}", "ms", "per step"),
        (f"{1e6 * s['seconds_per_step'] / max(s['atoms'], 1):.3g}", "µs", "per step and atom"),
        (f"{s['atoms']:,}", "atoms", ", ".join(f"{n:,} {t}" for t, n in s.get("types", {}).items() if n)),
        (f"{steps * timestep * 1e-3:.3g}", "ps", f"{steps:,} steps of {timestep:g} fs"),
    ]
    if s.get("drift_meV_per_atom_ns") is not None:
        error = s.get("drift_error_meV_per_atom_ns")
        unit = "meV/atom/ns" if error is None else f"± {error:.2g} meV/atom/ns"
        facts.append((f"{s['drift_meV_per_atom_ns']:.2g}", unit, "drift of the conserved energy"))
    return facts


def _subtitle(run):
    s = run.summary
    model = s.get("model", {})
    file = model.get("file") or model.get("name") or model.get("path") or ""
    parts = [
        Path(str(file)).name,
        s.get("ensemble", "").upper(),
        f"{s.get('precision', '')} precision",
        f"{s.get('machine', '')}, {s.get('device', '')}",
        f"{s.get('ranks', 1)} rank{'s' if s.get('ranks', 1) != 1 else ''} x {s.get('threads', 1)} threads",
        "dpmd " + s.get("versions", {}).get("dpmd", ""),
    ]
    if s.get("stopped"):
        parts.append(f"stopped: {s['stopped']}")
    return "   ·   ".join(part for part in parts if part.strip())


def draw(run, pyplot):
    """The whole page as a matplotlib figure."""
    panels = _panels(run)
    columns = 3 if len(panels) <= 9 else 4
    rows = max(-(-len(panels) // columns), 1)
    width, head, row_height = 4.67 * columns, 2.0, 3.35
    height = head + rows * row_height + 0.25
    figure = pyplot.figure(figsize=(width, height), facecolor="white")
    figure.text(0.035, 1 - 0.42 / height, run.name, fontsize=22, fontweight="bold", va="center")
    figure.text(0.035, 1 - 0.80 / height, _subtitle(run), fontsize=9.5, color=MUTED, va="center")
    facts = _facts(run)
    for k, (value, unit, label) in enumerate(facts):
        x = 0.035 + 0.94 * k / max(len(facts), 5)
        number = figure.text(
            x, 1 - 1.32 / height, value, fontsize=19, fontweight="bold", color=PALETTE[0], va="baseline"
        )
        right = number.get_window_extent(figure.canvas.get_renderer()).x1 / (width * figure.dpi)
        figure.text(right + 0.005, 1 - 1.32 / height, unit, fontsize=10, color=INK, va="baseline")
        figure.text(x, 1 - 1.57 / height, label, fontsize=8.5, color=MUTED, va="baseline")
    figure.add_artist(
        pyplot.Line2D([0.035, 0.975], [1 - 1.78 / height] * 2, color=GRID, linewidth=1, transform=figure.transFigure)
    )
    grid = figure.add_gridspec(
        rows, columns, left=0.06, right=0.975, top=1 - (head + 0.3) / height, bottom=0.55 / height,
        wspace=0.26, hspace=0.52,
    )  # fmt: skip
    for k, panel in enumerate(panels):
        axis = figure.add_subplot(grid[k // columns, k % columns])
        panel(axis, run)
        if panel is _times:
            axis.set_anchor("W")
    return figure


def write(run, path):
    """Write the page; the suffix of ``path`` tells the format: .html, .png, .pdf or .svg."""
    path = Path(path)
    if path.suffix not in (".html", ".png", ".pdf", ".svg"):
        raise InputError(f"{path}: reports are written as .html, .png, .pdf or .svg; choose one of these suffixes")
    with style() as pyplot:
        figure = draw(run, pyplot)
        if path.suffix != ".html":
            with written_whole(path) as beside:
                figure.savefig(beside)
            return
        picture = io.BytesIO()
        figure.savefig(picture, format="svg")
    data = base64.b64encode(picture.getvalue()).decode()
    write_text(path, _PAGE.format(name=html.escape(run.name), data=data, log=html.escape(run.log)))


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>
body {{ margin: 0; background: #f5f7fa; color: #1f2933; font: 14px/1.5 system-ui, sans-serif; }}
main {{ max-width: 1280px; margin: 24px auto; padding: 8px; background: white; border-radius: 12px;
  box-shadow: 0 1px 4px rgba(31, 41, 51, .12); }}
img {{ width: 100%; display: block; }}
details {{ margin: 8px 44px 28px; }}
summary {{ cursor: pointer; color: #7b8794; }}
pre {{ overflow-x: auto; font-size: 12px; background: #f5f7fa; padding: 12px; border-radius: 8px; }}
</style>
</head>
<body>
<main>
<img alt="Report of the run {name}" src="data:image/svg+xml;base64,{data}">
<details><summary>The log of the run</summary><pre>{log}</pre></details>
</main>
</body>
</html>
"""
