"""Plots of fits, scaling and recommendations (matplotlib, PNG or SVG by the file's suffix)."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .errors import PerformanceModelError
from .steptime import PHASES

# Okabe and Ito's palette: told apart by all kinds of colour vision, and in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#444444")
PHASE_COLORS = {
    "neighbor": "#A6761D",
    "geometry": "#7FB7DE",
    "embedding": "#0072B2",
    "descriptor": "#56B4E9",
    "fitting": "#004B77",
    "force": "#9ECAE1",
    "overhead": "#E69F00",
    "communication": "#D55E00",
    "reductions": "#F4A582",
    "waiting": "#BBBBBB",
    "output": "#666666",
}
_MARKERS = "osD^vPX*"

_STYLE = {
    "figure.dpi": 110,
    "savefig.dpi": 150,
    "savefig.bbox": "tight",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
}


@contextmanager
def _figure(path, *shape, **options):
    """(figure, axes) in our style, saved to ``path`` at the end."""
    try:
        import matplotlib
    except ImportError as error:
        raise PerformanceModelError("plots need matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")  # files only, no display
    from matplotlib import pyplot

    if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise PerformanceModelError(f"a plot is a .png, .svg or .pdf file; got {str(path)!r}")
    with matplotlib.rc_context(_STYLE):
        figure, axes = pyplot.subplots(*shape, **options)
        try:
            yield figure, axes
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            from dpmd.models.files import written_whole

            with written_whole(path) as beside:
                figure.savefig(beside)
        finally:
            pyplot.close(figure)


def _plain_log_axis(axis, numbers=None):
    """Ticks as plain numbers instead of powers; at the given numbers only if any."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
    if numbers is None:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1,) if high / low > 300 else (1, 2, 5)))
    else:
        axis.set_major_locator(FixedLocator(_thinned(numbers)))
        axis.set_minor_locator(NullLocator())


def _thinned(numbers, most=5):
    step = max(1, -(-len(numbers) // most))
    return list(numbers)[::step]


def parity(path, runs, predicted, title):
    """Predicted against measured step times, and their ratio, one colour per system and marker per layout."""
    measured = np.array([r.step_seconds for r in runs]) * 1e3
    predicted = np.asarray(predicted) * 1e3
    systems = list(dict.fromkeys(r.system.name for r in runs))
    layouts = sorted({r.layout.threads_per_rank for r in runs})
    with _figure(path, 2, 1, figsize=(6.4, 7.2), height_ratios=(3, 1.35), sharex=True) as (figure, (top, bottom)):
        low, high = min(measured.min(), predicted.min()) * 0.8, max(measured.max(), predicted.max()) * 1.25
        line = np.array([low, high])
        top.fill_between(line, line * 0.9, line * 1.1, color="#EDEDED", lw=0, label="within 10 %")
        top.plot(line, line, color="#888888", lw=1)
        bottom.axhspan(-10, 10, color="#EDEDED", lw=0)
        bottom.axhline(0, color="#888888", lw=1)
        for i, system in enumerate(systems):
            for j, threads in enumerate(layouts):
                chosen = [r.system.name == system and r.layout.threads_per_rank == threads for r in runs]
                style = {
                    "color": COLORS[i % 8],
                    "marker": _MARKERS[j % 8],
                    "ls": "",
                    "ms": 5,
                    "mec": "white",
                    "mew": 0.4,
                }
                top.plot(measured[chosen], predicted[chosen], **style)
                bottom.plot(measured[chosen], 100 * (predicted / measured - 1)[chosen], **style)
        for i, system in enumerate(systems):
            top.plot([], [], "o", color=COLORS[i % 8], label=system)
        for j, threads in enumerate(layouts):
            what = f"{threads} thread{'s' if threads > 1 else ''} per rank"
            top.plot([], [], _MARKERS[j % 8], color="#777777", label=what)
        top.set(
            xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), ylabel="predicted, ms per step", title=title
        )
        bottom.set(xlabel="measured, ms per step", ylabel="error, %")
        limit = max(12, 1.1 * float(abs(100 * (predicted / measured - 1)).max()))
        bottom.set_ylim(-limit, limit)
        for axis in (top.xaxis, top.yaxis, bottom.xaxis):
            _plain_log_axis(axis)
        top.legend(loc="upper left")
        figure.align_ylabels()
        figure.subplots_adjust(hspace=0.08)


def residuals(path, runs, predicted, title):
    """Errors against nodes and against atoms per core: what a missing term would bend."""
    errors = 100 * (np.asarray(predicted) / np.array([r.step_seconds for r in runs]) - 1)
    nodes = np.array([r.layout.nodes for r in runs])
    loads = np.array([r.system.atoms / (r.layout.ranks * r.layout.threads_per_rank) for r in runs])
    systems = list(dict.fromkeys(r.system.name for r in runs))
    with _figure(path, 1, 2, figsize=(9, 3.6), sharey=True) as (figure, axes):
        for axes_, values, label in zip(axes, (nodes, loads), ("nodes", "atoms per core"), strict=True):
            axes_.axhspan(-10, 10, color="#EDEDED", lw=0)
            axes_.axhline(0, color="#888888", lw=1)
            for i, system in enumerate(systems):
                chosen = [r.system.name == system for r in runs]
                axes_.plot(
                    values[chosen], errors[chosen], "o", ms=4.5, color=COLORS[i % 8], mec="white", mew=0.4, label=system
                )
            axes_.set(xscale="log", xlabel=label)
            _plain_log_axis(axes_.xaxis)
        axes[0].set(ylabel="predicted / measured - 1, %", title=title)
        axes[1].legend(loc="lower right")
        figure.subplots_adjust(wspace=0.06)


def scaling(path, strong, weak=(), title=None):
    """Strong scaling (time and ideal), weak scaling, and phases as bars; from lists of predictions over nodes."""
    panels = 3 if weak else 2
    with _figure(path, 1, panels, figsize=(4.6 * panels, 4.0)) as (figure, axes):
        _strong(axes[0], strong)
        if weak:
            _weak(axes[1], weak)
        _phase_bars(axes[-1], strong)
        first = strong[0]
        figure.suptitle(
            title
            or f"{first.system.name}, {first.system.atoms:,} atoms on {first.machine} ({first.precision},"
            f" {first.engine})",
            x=0.02,
            ha="left",
            fontsize=12,
            fontweight="bold",
        )
        figure.tight_layout(rect=(0, 0, 1, 0.98))


def _strong(axes, predictions):
    nodes = np.array([p.layout.nodes for p in predictions])
    times = np.array([p.seconds_per_step for p in predictions]) * 1e3
    errors = np.array([p.relative_error for p in predictions])
    axes.fill_between(nodes, times / (1 + errors), times * (1 + errors), color=COLORS[0], alpha=0.18, lw=0)
    axes.plot(nodes, times, "o-", color=COLORS[0], ms=5, label="predicted, with standard error")
    axes.plot(nodes, times[0] * nodes[0] / nodes, "--", color="#888888", lw=1, label="ideal")
    for p, x, y in list(zip(predictions, nodes, times, strict=True))[:: max(1, len(nodes) // 5)]:
        axes.annotate(
            f"{100 * p.parallel_efficiency:.0f} %", (x, y), textcoords="offset points", xytext=(5, 6), fontsize=8
        )
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="ms per step", title="strong scaling (efficiency)")
    _plain_log_axis(axes.xaxis, nodes)
    _plain_log_axis(axes.yaxis)
    axes.legend(loc="lower left")


def _weak(axes, predictions):
    nodes = np.array([p.layout.nodes for p in predictions])
    times = np.array([p.seconds_per_step for p in predictions]) * 1e3
    errors = np.array([p.relative_error for p in predictions])
    axes.fill_between(nodes, times / (1 + errors), times * (1 + errors), color=COLORS[2], alpha=0.18, lw=0)
    axes.plot(nodes, times, "s-", color=COLORS[2], ms=5)
    per_node = predictions[0].system.atoms // predictions[0].layout.nodes
    axes.set(
        xscale="log",
        xlabel="nodes",
        ylabel="ms per step",
        ylim=(0, 1.15 * (times * (1 + errors)).max()),
        title=f"weak scaling, {per_node:,} atoms per node",
    )
    _plain_log_axis(axes.xaxis, nodes)


def _phase_bars(axes, predictions):
    shown = predictions[:: max(1, -(-len(predictions) // 8))]
    bottom = np.zeros(len(shown))
    for phase in PHASES:
        share = np.array([100 * p.phases[phase] / p.seconds_per_step for p in shown])
        if share.max() < 1.0:
            continue  # invisible
        axes.bar(range(len(shown)), share, bottom=bottom, color=PHASE_COLORS[phase], width=0.8, label=phase)
        bottom += share
    axes.set(xlabel="nodes", ylabel="% of the step", title="where the time goes", ylim=(0, 100))
    axes.set_xticks(range(len(shown)), [f"{p.layout.nodes:,}" for p in shown], rotation=30 if len(shown) > 5 else 0)
    axes.grid(visible=False, axis="x")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))


def pareto(path, recommendation, title):
    """Wall time against cost of all acceptable choices, one colour per machine, the front joined."""
    from .recommendation import price_name

    choices = [c for c in recommendation.choices if c.acceptable]
    if not choices:
        raise PerformanceModelError("no acceptable configuration, so there is nothing to plot")
    kind = price_name(choices)
    label = {"cost": f"cost, {choices[0].prediction.currency}", "energy": "energy, kWh", "node_hours": "node-hours"}[
        kind
    ]
    with _figure(path, 1, 1, figsize=(7.4, 4.6)) as (_, axes):
        machines = sorted({c.prediction.machine for c in choices})
        for i, machine in enumerate(machines):
            mine = [c for c in choices if c.prediction.machine == machine]
            axes.plot(
                [c.hours for c in mine],
                [getattr(c, kind) for c in mine],
                _MARKERS[i // 8 % 8],
                color=COLORS[i % 8],
                ms=6,
                mec="white",
                mew=0.5,
                label=machine,
                zorder=3,
            )
        front = sorted((c for c in choices if c.on_front), key=lambda c: c.hours)
        axes.step(
            [c.hours for c in front],
            [getattr(c, kind) for c in front],
            where="post",
            color="#444444",
            lw=1.2,
            label="Pareto front",
            zorder=2,
        )
        best = choices[0]
        axes.plot(
            best.hours, getattr(best, kind), "*", ms=17, color="#FFD400", mec="#444444", zorder=4, label="recommended"
        )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel=f"wall time for {recommendation.nanoseconds:g} ns, hours",
            ylabel=label,
            title=title,
        )
        axes.margins(0.12, 0.12)
        _label_front(axes, front, kind)
        _plain_log_axis(axes.xaxis)
        _plain_log_axis(axes.yaxis)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _label_front(axes, front, kind):
    """Name the choices of the front, as far as labels find room beside each other."""
    axes.autoscale_view()
    low, high = np.log(axes.get_xlim())
    free_from = -1.0
    # The front falls to the right, so below and to the left of its points nothing lies.
    style = {"textcoords": "offset points", "xytext": (-5, -8), "va": "top", "fontsize": 8, "color": "#444444"}
    for choice in front:
        position = (np.log(choice.hours) - low) / (high - low)
        if position < free_from:
            continue
        free_from = position + 0.13
        side = "right" if position > 0.15 else "left"  # not across the axis
        axes.annotate(_size_of(choice), (choice.hours, getattr(choice, kind)), ha=side, **style)


def _size_of(choice):
    layout = choice.prediction.layout
    if layout.nodes > 1:
        return f"{layout.nodes:,} nodes"
    if layout.threads_per_rank > 1:
        return "1 node"
    return f"{layout.ranks_per_node} GPU{'s' if layout.ranks_per_node > 1 else ''}"
