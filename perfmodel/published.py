"""Published end points, predicted and listed with their error.

Each figure is a time per step, a rate or an operation count from the literature.  None of them was used to fit
anything (the fit to Fugaku uses other runs).  Speeds in ns/day depend on the time step, which some works do
not state, so seconds per step are compared wherever they can be derived.
"""

from dataclasses import dataclass, replace

from .prediction import predict
from .sizes import NAMED_SIZES
from .systems import NAMED_SYSTEMS
from .workload import count


@dataclass(frozen=True)
class EndPoint:
    """A published figure beside the model's.  ``error`` is predicted / published - 1."""

    what: str
    source: str
    unit: str
    published: float
    predicted: float
    quality: str
    note: str

    @property
    def error(self):
        return self.predicted / self.published - 1


def _box(name, atoms, cells, edge):
    """A system of the given replicas of a cubic unit cell, Å."""
    cell = tuple(tuple(n * edge if i == j else 0.0 for j in range(3)) for i, n in enumerate(cells))
    return replace(
        NAMED_SYSTEMS[name], atoms=atoms, cell=cell, density=atoms / (cells[0] * cells[1] * cells[2] * edge**3)
    )


def operation_counts():
    """Published FLOP per atom and step beside the counts: list of :class:`EndPoint`."""
    copper = NAMED_SYSTEMS["copper"]
    table = NAMED_SIZES["copper-32-64-128"]
    network = replace(NAMED_SIZES["copper-25-50-100"], sel=(512,), tabulated=False)
    wide = replace(table, tabulated=False)

    def flops(sizes, engine):
        return count(sizes, copper, "double", engine).flops / 1e6

    padded = flops(table, "deepmd-kit-padded")
    tabulated = (
        "32-64-128, axis 16, fitting 240 x 3; real neighbours (178), environment and force over 512 slots."
        f" Over all 512 slots the count is {padded:.1f}"
    )
    plain = (
        "25-50-100 over all 512 slots. No factor is fitted. The ratio is not explained: with 32-64-128 the count is"
        f" {flops(wide, 'deepmd-kit'):.1f}, and a counter of issued instructions also sees activation functions"
        " at more than 20 FLOP, padding to vector widths and the graph's copies"
    )
    rows = [
        ("tabulated copper, rate x time on Summit", 4.8, table, tabulated),
        ("tabulated copper, rate x time on Fugaku", 4.9, table, tabulated),
        ("copper without tables, double", 73.7, network, plain),
        ("copper without tables, mixed-single", 74.5, network, plain),
        ("copper without tables, mixed-half", 74.3, network, plain),
    ]
    return [
        EndPoint(
            what,
            "derived from published rates and times",
            "MFLOP/atom",
            value,
            flops(sizes, "deepmd-kit"),
            "count",
            note,
        )
        for what, value, sizes, note in rows
    ]


def end_points():
    """Published runs beside predictions: list of :class:`EndPoint`."""
    return [*_fugaku(), *_summit(), *_sunway()]


def _fugaku():
    step = "1 fs in the published inputs"
    copper = _box("copper", 540_000, (20, 15, 20), 10.79)
    water = _box("water", 558_000, (20, 15, 20), 10.1)
    found = []
    for system, model, value, note in (
        (copper, "copper-32-64-128", 0.580e-3, f"149 ns/day; {step}"),
        (water, "water-32-64-128", 0.631e-3, "68.5 ns/day at 0.5 fs"),
    ):
        p = predict(
            "fugaku",
            model,
            system,
            12000,
            ranks_per_node=4,
            threads_per_rank=12,
            precision="half",
            engine="node-based-2024",
            rank_grid=(40, 30, 40),
        )
        found.append(
            _point(
                f"{system.name} {system.atoms:,} atoms, 12,000 Fugaku nodes, node-based, half", "SC24", value, p, note
            )
        )
    for system, atoms, value, note in (
        ("copper", 2_177_280, 9.28e-3, "4.7 ns/day at 0.5 fs"),
        ("water", 8_294_400, 20.78e-3, "2.1 ns/day at 0.5 fs"),
    ):
        p = predict(
            "fugaku",
            f"{system}-32-64-128",
            system,
            4560,
            atoms=atoms,
            ranks_per_node=16,
            threads_per_rank=3,
            precision="double",
            engine="deepmd-kit",
        )
        found.append(_point(f"{system} {atoms:,} atoms, 4,560 Fugaku nodes, double", "PPoPP 2022", value, p, note))
    return found


def _summit():
    found = []
    for system, atoms, value, note in (
        ("copper", 3_400_000_000, 1.1e-10, "weak scaling"),
        ("water", 3_900_000_000, 1.1e-10, "weak scaling; the time is stated for both systems together"),
    ):
        p = predict("summit", f"{system}-32-64-128", system, 4560, atoms=atoms, precision="double", engine="deepmd-kit")
        found.append(
            _point(
                f"{system} {atoms:.2g} atoms, 4,560 Summit nodes, double, tabulated",
                "PPoPP 2022",
                value * atoms,
                p,
                note,
            )
        )
    p = predict("summit", "copper-32-64-128", "copper", 4560, atoms=13_500_000, precision="double", engine="deepmd-kit")
    for fs in (1.0, 0.5):
        found.append(
            _point(
                f"copper 13,500,000 atoms, 4,560 Summit nodes, double, tabulated, if the step was {fs} fs",
                "PPoPP 2022",
                86400 / 11.2 * fs * 1e-6,
                p,
                "11.2 ns/day; time step not stated",
            )
        )
    network = replace(NAMED_SIZES["copper-25-50-100"], sel=(512,), tabulated=False)
    for precision, value in (("double", 8.1e-10), ("mixed", 4.6e-10), ("half", 2.7e-10)):
        p = predict("summit", network, "copper", 4560, atoms=127_000_000, precision=precision, engine="deepmd-kit")
        note = "embedding networks, not tables; the exponent of the published time is reconstructed"
        found.append(
            _point(f"copper 127 M atoms, 4,560 Summit nodes, {precision}, no tables", "SC20", value * 127e6, p, note)
        )
    return found


def _sunway():
    p = predict(
        "new-sunway",
        "water-32-64-128",
        "water",
        90_000,
        atoms=29_000_000_000,
        precision="mixed",
        engine="node-based-2024",
    )
    note = "networks not stated: 32-64-128 assumed; rate = counted FLOP / predicted time"
    return [
        EndPoint(
            "water 29 G atoms, 90,000 new Sunway nodes, mixed",
            "IEEE TC 2025",
            "PFLOP/s",
            57.1,
            p.flops_rate / 1e15,
            p.quality,
            note,
        )
    ]


def _point(what, source, seconds, prediction, note):
    return EndPoint(what, source, "ms/step", seconds * 1e3, prediction.seconds_per_step * 1e3, prediction.quality, note)
