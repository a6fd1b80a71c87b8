"""Plots: one quiet style, and predictions against references.  Needs matplotlib."""

from contextlib import contextmanager

from dpmd.models.files import written_whole

from .errors import InputError

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
#: colours of curves, in order: readable with colour-blindness too
PALETTE = ("#2a6f97", "#e07a3f", "#3a9d6e", "#8e5ea2", "#c9a227", "#c44e52", "#6b7a8f", "#4cb5c4")

_style = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "path",
    "figure.dpi": 150,
}


@contextmanager
def style():
    """``with style() as pyplot``: matplotlib without a display, in the style of this module."""
    try:
        import logging

        import matplotlib

        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # fonts that are not there
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise InputError("plots need matplotlib, which is not installed: pip install matplotlib") from error
    with pyplot.rc_context({**_style, "axes.prop_cycle": matplotlib.cycler(color=PALETTE)}):
        yield pyplot
    pyplot.close("all")


_panels = (
    ("energy per atom", "Energy per atom", "eV", 1e3, "meV"),
    ("force", "Force components", "eV/Å", 1e3, "meV/Å"),
    ("virial per atom", "Virial per atom", "eV", 1e3, "meV"),
)


def parity(comparisons, path, title=""):
    """Predictions against references, one panel per quantity, with the errors' distribution below.

    comparisons : as :func:`dpmd.evaluation.compare` returns; path : .png, .pdf or .svg.
    """
    panels = [panel for panel in _panels if panel[0] in comparisons]
    with style() as pyplot:
        figure, axes = pyplot.subplots(
            2, len(panels), figsize=(4.1 * len(panels), 5.8), squeeze=False, height_ratios=(3, 1), layout="constrained"
        )
        for (upper, lower), (name, label, unit, scale, small_unit) in zip(axes.T, panels, strict=True):
            _parity_panel(upper, comparisons[name], label, unit, scale, small_unit)
            _error_panel(lower, comparisons[name], scale, small_unit)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
            figure.get_layout_engine().set(h_pad=0.12, w_pad=0.08)
        with written_whole(path) as beside:
            figure.savefig(beside)


def _parity_panel(axis, comparison, label, unit, scale, small_unit):
    x, y = comparison.reference, comparison.predicted
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    margin = 0.04 * (high - low or 1.0)
    ends = (low - margin, high + margin)
    axis.plot(ends, ends, color=MUTED, linewidth=0.8)
    many = len(x) > 5000
    axis.plot(
        x, y, "o", color=PALETTE[0], markersize=2.2 if many else 3.5, alpha=0.25 if many else 0.6, markeredgewidth=0,
        rasterized=many,
    )  # fmt: skip
    axis.set(xlim=ends, ylim=ends, xlabel=f"reference ({unit})", ylabel=f"model ({unit})", title=label, aspect="equal")
    axis.text(
        0.04, 0.96,
        f"RMSE {scale * comparison.root_mean_square_error:.3g} {small_unit}\n"
        f"MAE  {scale * comparison.mean_absolute_error:.3g} {small_unit}",
        transform=axis.transAxes, va="top", linespacing=1.5,
    )  # fmt: skip


def _error_panel(axis, comparison, scale, small_unit):
    errors = scale * (comparison.predicted - comparison.reference)
    axis.hist(errors, bins=min(80, max(10, int(len(errors) ** 0.5))), color=PALETTE[0], alpha=0.85)
    axis.axvline(0, color=MUTED, linewidth=0.8)
    axis.set(xlabel=f"error ({small_unit})", yticks=[])
    axis.spines["left"].set_visible(False)
    axis.grid(False)
