"""Which machine, how many nodes, which layout: ranked by what the user wants."""

from dataclasses import dataclass, replace
from math import hypot, log, log1p

from .errors import PerformanceModelError, check_positive, unknown
from .machines import find_machine, machine_paths
from .prediction import USABLE_MEMORY, Prediction, default_layout, predict
from .sizes import find_sizes
from .systems import find_system
from .workload import find_engine

#: what choices are compared by; money has the machine's currency
_UNITS = {"hours": "h", "energy": "kWh", "node_hours": "node-hours"}

GOALS = ("time", "cost", "energy", "deadline", "ns-per-day")


@dataclass(frozen=True)
class Choice:
    """One configuration for the whole job.

    hours : of wall time; cost : in the machine's currency or None; energy : kWh or None.
    acceptable : fits the memory and, for a goal with a limit, keeps it.
    on_front : no other acceptable choice is both faster and cheaper.
    why_not : empty, or what is wrong with it.
    """

    prediction: Prediction
    hours: float
    cost: float | None
    energy: float | None
    acceptable: bool
    on_front: bool
    why_not: str

    @property
    def node_hours(self):
        return self.hours * self.prediction.layout.nodes


@dataclass(frozen=True)
class Recommendation:
    """Ranked choices, best first; ``reason`` is one sentence on the first."""

    goal: str
    limit: float | None
    nanoseconds: float
    choices: list[Choice]
    reason: str

    @property
    def best(self):
        return self.choices[0] if self.choices and self.choices[0].acceptable else None


def parse_goal(text):
    """``"deadline=24"`` (hours) or ``"ns-per-day=50"`` to (name, limit); the others take no limit."""
    name, _, value = str(text).partition("=")
    if name not in GOALS:
        raise unknown("goal", name, GOALS)
    if name in ("deadline", "ns-per-day"):
        unit = "hours" if name == "deadline" else "ns/day"
        try:
            return name, check_positive(f"the limit of goal {name}", float(value), unit)
        except ValueError as error:
            raise PerformanceModelError(f"goal {name} needs a positive number of {unit}, e.g. {name}=24") from error
    if value:
        raise PerformanceModelError(f"goal {name} takes no limit")
    return name, None


def recommend(
    model,
    system,
    nanoseconds,
    goal="time",
    *,
    atoms=None,
    machines=None,
    max_nodes=None,
    prices=None,
    precision="mixed",
    engine="dpmd",
    min_efficiency=0.3,
    max_hours=720.0,
    **options,
):
    """Rank machines and configurations for a job: a :class:`Recommendation`.

    nanoseconds : ns to simulate.
    goal : ``"time"``, ``"cost"``, ``"energy"``, ``"deadline=HOURS"`` or ``"ns-per-day=SPEED"`` (the last two: the
        cheapest that keeps the limit).
    machines : names, default all that are known.  prices : ``{machine: price per node-hour}``.
    max_nodes : most nodes to ask for.  min_efficiency : parallel efficiency below which more nodes are waste.
    max_hours : of wall time that is still acceptable (default 30 days).
    Cost means money if any machine has a price (those without one are then set aside), else energy, else node-hours.
    """
    name, limit = parse_goal(goal)
    nanoseconds = check_positive("the time to simulate", nanoseconds, "ns")
    sizes, system, engine = find_sizes(model), find_system(system, atoms), find_engine(engine)
    choices = []
    for machine in map(find_machine, machines or sorted(machine_paths())):
        price = (prices or {}).get(machine.name)
        for nodes, ranks in _layouts(machine, engine, max_nodes):
            found = predict(
                machine,
                sizes,
                system,
                nodes,
                ranks_per_node=ranks,
                precision=precision,
                engine=engine,
                price=price,
                **options,
            )
            if nodes > 1 and found.parallel_efficiency < min_efficiency:
                break  # times grow worse from here on
            choices.append(_choice(found, nanoseconds, name, limit, max_hours))
    choices, kind = _without_price(choices, name)
    choices = _mark_front(choices, kind)
    # Among unacceptable choices those that lack least come first: the order of hours.
    choices.sort(
        key=lambda c: (not c.acceptable, c.hours if name == "time" or not c.acceptable else getattr(c, kind), c.hours)
    )
    return Recommendation(name, limit, nanoseconds, choices, _reason(choices, name, limit, nanoseconds, kind))


def _layouts(machine, engine, max_nodes):
    """(nodes, ranks per node) to try: part of a node (GPUs), then 1, 2, 3, 4, 6, 8, 12, ... nodes."""
    most = min(machine.count or 1, max_nodes or 10**9)
    if machine.accelerators:
        yield from ((1, ranks) for ranks in (1, 2, 4) if ranks < machine.accelerators)
    usual = default_layout(machine, 1, engine=engine).ranks_per_node
    counts = sorted(base * 2**k for base in (1, 3) for k in range(40))
    yield from ((nodes, usual) for nodes in counts if nodes <= most)


def _choice(prediction, nanoseconds, goal, limit, max_hours):
    hours = nanoseconds / prediction.ns_per_day * 24
    why_not = ""
    if not prediction.fits:
        why_not = (
            f"does not fit: {prediction.memory_per_node / 1e9:.0f} GB needed, "
            f"{USABLE_MEMORY * prediction.memory_capacity / 1e9:.0f} GB per node usable"
        )
    elif goal == "deadline" and hours > limit:
        why_not = f"takes {hours:.3g} h"
    elif hours > max_hours:
        why_not = f"takes {hours / 24:.3g} days"
    elif goal == "ns-per-day" and prediction.ns_per_day < limit:
        why_not = f"reaches {prediction.ns_per_day:.3g} ns/day"
    scale = nanoseconds
    return Choice(
        prediction,
        hours,
        None if prediction.cost_per_ns is None else prediction.cost_per_ns * scale,
        None if prediction.energy_per_ns is None else prediction.energy_per_ns * scale,
        acceptable=not why_not,
        on_front=False,
        why_not=why_not,
    )


def price_name(choices):
    """What all the choices can be compared by: ``"cost"``, else ``"energy"``, else ``"node_hours"``."""
    for name in ("cost", "energy"):
        if choices and all(getattr(c, name) is not None for c in choices):
            return name
    return "node_hours"


def _without_price(choices, goal):
    """For goals that compare prices: choices whose machine has none cannot be accepted."""
    acceptable = [c for c in choices if c.acceptable]
    if goal == "time":
        return choices, price_name(acceptable)
    kind = "energy" if goal == "energy" else price_name([c for c in acceptable if c.cost is not None] or acceptable)
    missing = "no power known" if kind == "energy" else "no price known, see --price"
    return [
        replace(c, acceptable=False, why_not=missing) if c.acceptable and getattr(c, kind) is None else c
        for c in choices
    ], kind


def _mark_front(choices, kind):
    """Set ``on_front`` of the acceptable choices that no other beats in both hours and price."""
    candidates = [c for c in choices if c.acceptable and getattr(c, kind) is not None]
    best, front = float("inf"), set()
    for choice in sorted(candidates, key=lambda c: (c.hours, getattr(c, kind))):
        if getattr(choice, kind) < best:
            best = getattr(choice, kind)
            front.add(id(choice))
    return [replace(c, on_front=id(c) in front) for c in choices]


def _not_told_apart(choices, key):
    """Acceptable choices of other machines, best of each, whose ``key`` is the first's within the errors.

    The error of a ratio of two predictions that were fitted to different runs: both relative errors, added as squares.
    """
    best, found = choices[0], {}
    for other in choices[1:]:
        name = other.prediction.machine
        if other.acceptable and name != best.prediction.machine and name not in found:
            errors = [log1p(c.prediction.relative_error) for c in (best, other)]
            if abs(log(getattr(other, key) / getattr(best, key))) < hypot(*errors):
                found[name] = other
    return list(found.values())


def _reason(choices, goal, limit, nanoseconds, kind):
    if not choices or not choices[0].acceptable:
        return "No configuration is acceptable: " + (choices[0].why_not if choices else "no machine") + "."
    best, found = choices[0], choices[0].prediction
    layout = found.layout
    largest = max(found.phases, key=found.phases.get)
    what = {
        "time": "is the fastest",
        "cost": "costs least",
        "energy": "needs least energy",
        "deadline": f"is the cheapest that ends within {limit:g} h" if limit else "",
        "ns-per-day": f"is the cheapest that reaches {limit:g} ns/day" if limit else "",
    }[goal]
    nodes = "one node" if layout.nodes == 1 else f"{layout.nodes} nodes"
    ranks = f"{layout.ranks_per_node} rank{'s' if layout.ranks_per_node > 1 else ''}"
    key = "hours" if goal == "time" else kind
    near = [
        f"{c.prediction.machine} ({getattr(c, key):.3g} {_UNITS.get(key) or c.prediction.currency}"
        f" +- {100 * c.prediction.relative_error:.0f} %)"
        for c in _not_told_apart(choices, key)
    ]
    doubt = (
        f" Within the errors of the predictions it cannot be told apart from {', '.join(near)}"
        f"; its own error is +- {100 * found.relative_error:.0f} %."
        if near
        else ""
    )
    return (
        f"{found.machine} with {nodes} ({ranks} per node) {what}: {best.hours:.3g} h for {nanoseconds:g} ns"
        f" ({found.ns_per_day:.3g} ns/day), {100 * found.parallel_efficiency:.0f} % parallel efficiency,"
        f" {100 * found.phases[largest] / found.seconds_per_step:.0f} % of the step in {largest}"
        f" ({found.quality} efficiencies).{doubt}"
    )
