"""Text tables and JSON of results."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from .machines import MEMORY_COEFFICIENTS
from .prediction import USABLE_MEMORY
from .steptime import PHASES


def to_json(value):
    """JSON text of dataclasses, arrays, tuples and plain values."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value):
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.floating, float)):
        return None if not np.isfinite(value) else float(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.bool_):
        return bool(value)
    return str(value) if isinstance(value, Path) else value


def table(headers, rows, left=1):
    """Aligned columns; the first ``left`` of them to the left, the others to the right."""
    cells = [[str(h) for h in headers], *([str(c) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    lines = [
        "  ".join(
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def seconds(value):
    """A time with a fitting unit."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value / 3600:.3g} h"


def size(value):
    """Bytes with a fitting unit (powers of 1000)."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value / 1e3:.3g} kB"


def _count(number, noun):
    return f"{number:,} {noun}" + ("s" if number != 1 else "")


def memory(p):
    """What a run needs on each node, and what it may fill: a reserve is kept for everything else."""
    usable = f"{size(USABLE_MEMORY * p.memory_capacity)} usable of {size(p.memory_capacity)}"
    return f"{size(p.memory_per_node)} needed, {usable} ({100 - 100 * USABLE_MEMORY:.0f} % are kept in reserve)"


def timestep(p):
    """The time step that ns/day refer to, and where it comes from."""
    origin = p.system.timestep_from
    return f"{p.system.timestep_fs:g} fs a step" + (f" ({origin})" if origin else "")


def prediction(p):
    """A page on one prediction."""
    rows = [
        (name, seconds(p.phases[name]), f"{100 * p.phases[name] / p.seconds_per_step:.1f} %")
        for name in PHASES
        if p.phases[name] > 0
    ]
    layout = p.layout
    fits = "" if p.fits else "   DOES NOT FIT"
    remark = _remark(p)
    lines = [
        f"{p.system.name}, {p.system.atoms:,} atoms, model {p.model.name}, {p.precision}, engine {p.engine}",
        f"{p.machine}: {_count(layout.nodes, 'node')} x {_count(layout.ranks_per_node, 'rank')} x "
        f"{_count(layout.threads_per_rank, 'thread')}",
        "",
        f"time per step        {seconds(p.seconds_per_step)}  (+- {100 * p.relative_error:.0f} %)",
        f"speed                {p.ns_per_day:.3g} ns/day at {timestep(p)}",
        f"parallel efficiency  {100 * p.parallel_efficiency:.0f} %" + (f"   ({remark})" if remark else ""),
        f"rate                 {p.flops_rate / 1e12:.3g} TFLOP/s ({p.flops_per_atom / 1e6:.3g} MFLOP per atom-step)",
        f"memory per node      {memory(p)}{fits}",
        f"largest system       {p.largest_system:,} atoms on these nodes",
        f"node-hours per ns    {p.node_hours_per_ns:.3g}",
    ]
    if p.cost_per_ns is not None:
        lines.append(f"cost per ns          {p.cost_per_ns:.3g} {p.currency}")
    if p.energy_per_ns is not None:
        lines.append(f"energy per ns        {p.energy_per_ns:.3g} kWh")
    lines += ["", table(("phase", "time", "share"), rows), "", f"efficiencies: {p.quality} ({p.source})"]
    return "\n".join(lines)


#: parallel efficiency below which most of what is paid for waits
_WASTE = 0.2


def _remark(p):
    """What is wrong with a layout, or an empty string."""
    if not p.fits:
        return "does not fit"
    if p.system.atoms < p.layout.ranks:
        return f"{p.system.atoms} atoms on {p.layout.ranks} ranks: some have none"
    if p.parallel_efficiency < _WASTE:
        return f"waste: {p.system.atoms / p.layout.ranks:,.0f} atoms on each of {p.layout.ranks} ranks"
    return ""


def predictions(many):
    """One line per prediction of a scan."""
    rows = [
        (
            str(p.layout),
            p.precision,
            seconds(p.seconds_per_step),
            f"{100 * p.relative_error:.0f} %",
            f"{p.ns_per_day:.3g}",
            f"{100 * p.parallel_efficiency:.0f} %",
            size(p.memory_per_node),
            f"{p.node_hours_per_ns:.3g}",
            _remark(p),
        )
        for p in many
    ]
    headers = (
        "nodes x ranks x threads",
        "precision",
        "step",
        "+-",
        "ns/day",
        "efficiency",
        "memory/node",
        "node-h/ns",
        "",
    )
    what = many[0]
    head = f"{what.system.name}, {what.system.atoms:,} atoms, model {what.model.name}, {what.machine}; {timestep(what)}"
    lines = [head, "", table(headers, rows, left=2)]
    tight = max((p for p in many if not p.fits), key=lambda p: p.layout.nodes, default=None)
    if tight is not None:
        lines += ["", f"does not fit: {memory(tight)} on each of {_count(tight.layout.nodes, 'node')}"]
    return "\n".join(lines)


def fit(result, runs):
    """A page on a fit."""
    profile, c = result.profile, result.profile.coefficients
    rows = []
    for field in dataclasses.fields(c):
        error = "not fitted"
        if field.name in result.standard_errors:
            error = f"+- {100 * result.standard_errors[field.name]:.0f} %"
        elif field.name in MEMORY_COEFFICIENTS and result.memory_score is not None:
            error = "fitted to memory"
        rows.append((field.name, f"{getattr(c, field.name):.4g}", error))
    lines = [
        f"{len(runs)} runs of {profile.engine}, {len(profile.free)} free coefficients of the step time",
        "",
        table(("coefficient", "value", "standard error"), rows),
        "",
        score_line("step time, fitted runs", result.score),
    ]
    lines += [score_line(f"step time, {name}", score) for name, score in result.validation.items()]
    if result.memory_score is not None:
        lines.append(score_line("memory per node", result.memory_score))
    return "\n".join(lines)


def score_line(name, score):
    """MAPE, bias and worst case of one set of predictions."""
    return (
        f"{name + ':':44s} MAPE {score.mape:5.2f} %   bias {score.bias:+6.2f} %   worst {score.worst:5.1f} %"
        f"   ({len(score.errors)} runs)"
    )


def evaluation(result, runs, worst=8):
    """A page on an evaluation."""
    order = np.argsort(-abs(result.score.errors))[:worst]
    rows = [
        (
            runs[i].label,
            f"{runs[i].step_seconds * 1e3:.4g}",
            f"{result.predicted[i] * 1e3:.4g}",
            f"{100 * result.score.errors[i]:+.1f} %",
        )
        for i in order
    ]
    lines = [
        f"profile {result.profile.engine}: {result.profile.source}",
        score_line("step time", result.score),
    ]
    if result.memory_score is not None:
        lines.append(score_line("memory per node", result.memory_score))
    return "\n".join([*lines, "", "worst cases", table(("run", "measured ms", "predicted ms", "error"), rows)])


def recommendation(result, most=12):
    """The ranked table and the reason."""
    rows = []
    for rank, choice in enumerate(result.choices[:most], 1):
        p = choice.prediction
        rows.append(
            (
                rank,
                p.machine,
                str(p.layout),
                f"{choice.hours:.3g}",
                f"{p.ns_per_day:.3g}",
                f"{choice.node_hours:.3g}",
                "-" if choice.cost is None else f"{choice.cost:.3g} {p.currency}",
                "-" if choice.energy is None else f"{choice.energy:.3g}",
                f"{100 * p.parallel_efficiency:.0f} %",
                f"{100 * p.relative_error:.0f} %",
                "*" if choice.on_front else "",
                choice.why_not,
            )
        )
    headers = (
        "",
        "machine",
        "nodes x ranks x threads",
        "hours",
        "ns/day",
        "node-h",
        "cost",
        "kWh",
        "eff.",
        "+-",
        "front",
        "",
    )
    lines = [result.reason]
    if result.choices:
        lines.append(f"ns/day at {timestep(result.choices[0].prediction)}")
    lines += ["", table(headers, rows, left=3)]
    refused = _too_small(result.choices)
    return "\n".join([*lines, "", "Memory:", *(f"  {line}" for line in refused)] if refused else lines)


def _too_small(choices):
    """One line per machine whose memory some or all configurations exceed."""
    lines = []
    for name in sorted({c.prediction.machine for c in choices if not c.prediction.fits}):
        mine = [c.prediction for c in choices if c.prediction.machine == name]
        most = max((p for p in mine if not p.fits), key=lambda p: (p.layout.nodes, p.layout.ranks_per_node))
        where = f"{_count(most.layout.nodes, 'node')} x {_count(most.layout.ranks_per_node, 'rank')}"
        what = f"{memory(most)} on each of {where}"
        lines.append(
            f"{name}: does not fit on that many or fewer: {what}"
            if any(p.fits for p in mine)
            else f"{name}: does not fit at all: {what}"
        )
    return lines


def end_points(points):
    """Published figures beside the model's, notes below."""
    notes = list(dict.fromkeys(p.note for p in points))
    rows = [
        (
            p.what,
            p.source,
            f"{p.published:.4g}",
            f"{p.predicted:.4g}",
            p.unit,
            f"{100 * p.error:+.0f} %",
            p.quality,
            f"[{notes.index(p.note) + 1}]",
        )
        for p in points
    ]
    headers = ("what", "source", "published", "model", "unit", "error", "efficiencies", "note")
    lines = [f"[{i}] {note}" for i, note in enumerate(notes, 1)]
    return "\n".join([table(headers, rows, left=2), "", *lines])


def machines(many):
    """One line per machine."""
    rows = []
    for m in many:
        workers = f"{m.accelerators} accelerators" if m.accelerators else f"{m.cores} cores"
        fitted = ", ".join(f"{p.engine} ({p.quality})" for p in m.profiles.values()) or "typical"
        rows.append(
            (
                m.name,
                m.title,
                workers,
                f"{m.peak['double'] / 1e12:.3g}",
                f"{m.peak['single'] / 1e12:.3g}",
                f"{m.bandwidth / 1e9:.4g}",
                f"{m.capacity / 1e9:.4g}",
                fitted,
            )
        )
    headers = ("name", "machine", "workers", "TF fp64", "TF fp32", "GB/s", "GB", "profiles")
    return table(headers, rows, left=3)


def machine(m):
    """All figures of a machine with quality and source."""
    rows = [(name, f"{f.value:g}", f.quality, f.source) for name, f in m.figures.items()]
    lines = [
        f"{m.name}: {m.title}",
        *([m.notes.strip()] if m.notes else []),
        "",
        table(("figure, per node", "value", "quality", "source"), rows, left=4),
    ]
    for profile in m.profiles.values():
        c = ", ".join(
            f"{f.name} {getattr(profile.coefficients, f.name):.3g}" for f in dataclasses.fields(profile.coefficients)
        )
        lines += ["", f"profile {profile.engine} ({profile.quality}; {profile.source}): {c}"]
    return "\n".join(lines)
