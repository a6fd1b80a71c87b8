"""Predict a run: ``dpmd.perfmodel.predict(machine, model, system, nodes=...)``."""

from dataclasses import dataclass, replace
from math import ceil, exp, sqrt

import numpy as np

from . import fit, steptime
from .errors import PerformanceModelError, check_positive
from .machines import Machine, find_machine
from .network import Layout
from .sizes import ModelSizes, find_sizes
from .systems import PhysicalSystem, find_system
from .workload import find_engine


@dataclass(frozen=True)
class Prediction:
    """What a run will take.

    seconds_per_step : s; relative_error : its standard error, relative (0.1 is 10 %).
    ns_per_day : at the system's time step.
    parallel_efficiency : time x nodes on the fewest nodes that hold the system, over time x nodes here; GPUs are
        counted instead of nodes, because they can be had one by one.
    phases : s per step in each phase (:data:`~dpmd.perfmodel.steptime.PHASES`).
    memory_per_node, memory_capacity : bytes.  fits : whether the first is below 95 % of the second.
    largest_system : atoms that these nodes hold.
    flops_per_atom : FLOP per atom and step; flops_rate : FLOP/s of the whole run.
    node_hours_per_ns, cost_per_ns (in ``currency``), energy_per_ns (kWh) : None if price or power is unknown.
    quality : ``"measured"`` if coefficients were fitted to runs of this engine on this machine.
    source : where the coefficients come from.
    """

    machine: str
    engine: str
    model: ModelSizes
    system: PhysicalSystem
    layout: Layout
    precision: str
    seconds_per_step: float
    relative_error: float
    ns_per_day: float
    parallel_efficiency: float
    phases: dict
    memory_per_node: float
    memory_capacity: float
    fits: bool
    largest_system: int
    flops_per_atom: float
    flops_rate: float
    node_hours_per_ns: float
    cost_per_ns: float | None
    currency: str
    energy_per_ns: float | None
    quality: str
    source: str


#: Part of a node's memory that a run may fill.
USABLE_MEMORY = 0.95


def default_layout(machine, nodes=1, ranks_per_node=None, threads_per_rank=None, engine="dpmd"):
    """The usual layout of a node: a rank per accelerator or memory domain, or ranks of 3 cores (rank-based)."""
    machine = find_machine(machine)
    if machine.accelerators:
        return Layout(nodes, ranks_per_node or machine.accelerators, threads_per_rank or 1)
    if ranks_per_node is None and threads_per_rank is None:
        if find_engine(engine).decomposition == "node":
            ranks_per_node = machine.domains or _divisor(machine.cores, max(1, round(machine.cores / 12)))
        else:
            ranks_per_node = _divisor(machine.cores, max(1, round(machine.cores / 3)))
    if ranks_per_node is None:
        ranks_per_node = max(1, machine.cores // threads_per_rank)
    return Layout(nodes, ranks_per_node, threads_per_rank or max(1, machine.cores // ranks_per_node))


def _divisor(number, near):
    """The divisor of ``number`` nearest to ``near``."""
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - near))


def predict(
    machine,
    model,
    system,
    nodes=1,
    *,
    atoms=None,
    ranks_per_node=None,
    threads_per_rank=None,
    precision="mixed",
    engine="dpmd",
    skin=2.0,
    rebuild_every=50,
    timestep_fs=None,
    rank_grid=None,
    output_bytes_per_atom=0.0,
    output_every=1000,
    price=None,
):
    """Time, memory and cost of a run, without running: a :class:`Prediction`.

    machine : name, path of a machine file, or :class:`~dpmd.perfmodel.machines.Machine`.
    model : name, model file, sizes (see :func:`~dpmd.perfmodel.sizes.find_sizes`).
    system : name, TOML or structure file, :class:`~dpmd.perfmodel.systems.PhysicalSystem`; ``atoms`` rescales it.
    nodes, ranks_per_node, threads_per_rank : layout; the last two default to :func:`default_layout`.
    rank_grid : ranks along each lattice vector, default chosen for the smallest halo.
    precision : ``"double"``, ``"mixed"``, ``"half"``.  engine : see ``workload.ENGINES``.
    skin : Å.  rebuild_every : steps.  timestep_fs : fs, default the system's.
    output_bytes_per_atom, output_every : of dumps, 0 for none; steps.
    price : per node-hour, overrides the machine file.
    """
    machine, sizes, system = find_machine(machine), find_sizes(model), find_system(system, atoms)
    if timestep_fs is not None:
        system = replace(system, timestep_fs=check_positive("the time step", timestep_fs, "fs"), timestep_from="")
    engine = find_engine(engine)
    layout = default_layout(machine, nodes, ranks_per_node, threads_per_rank, engine)
    if rank_grid is not None:
        layout = replace(layout, rank_grid=tuple(rank_grid))
    options = {"precision": precision, "engine": engine, "skin": skin, "rebuild_every": rebuild_every}
    output = {"output_bytes_per_atom": output_bytes_per_atom, "output_every": output_every}
    features = steptime.features(machine, sizes, system, layout, **options, **output)
    profile = machine.profile(engine.name)
    phases = {name: float(value) for name, value in steptime.phase_times(features, profile.coefficients).items()}
    step = sum(phases.values())
    memory = float(steptime.node_bytes(features, profile.coefficients))
    node_hours = step * 1e6 / system.timestep_fs * layout.nodes / 3600
    price = machine.price if price is None else check_positive("the price", price)
    share = _share(machine, layout)
    largest = _largest_system(features, profile.coefficients, machine, system)
    return Prediction(
        machine=machine.name,
        engine=engine.name,
        model=sizes,
        system=system,
        layout=layout,
        precision=precision,
        seconds_per_step=step,
        relative_error=_relative_error(features, profile),
        ns_per_day=86400 / step * system.timestep_fs * 1e-6,
        parallel_efficiency=_efficiency(machine, sizes, system, layout, options, step, largest),
        phases=phases,
        memory_per_node=memory,
        memory_capacity=machine.capacity * share,
        fits=memory <= USABLE_MEMORY * machine.capacity * share,
        largest_system=largest,
        flops_per_atom=features.flops,
        flops_rate=features.flops * system.atoms / step,
        node_hours_per_ns=node_hours,
        cost_per_ns=None if price is None else node_hours * price * share,
        currency=machine.currency,
        energy_per_ns=None if machine.power is None else node_hours * machine.power * share / 1000,
        quality=profile.quality,
        source=profile.source,
    )


def _share(machine, layout):
    """Part of a node that a run takes: GPUs can be had one by one, with their share of memory, price and power."""
    return layout.ranks_per_node / machine.accelerators if machine.accelerators else 1.0


def _relative_error(features, profile):
    """Standard error of the logarithm of the step time: scatter of the fitted runs and error of the coefficients."""
    variance = profile.relative_error**2
    if profile.free and profile.covariance:
        gradient = fit.log_gradient(features, profile)
        variance += float(gradient @ np.array(profile.covariance) @ gradient)
    return exp(sqrt(variance)) - 1


def _efficiency(machine, sizes, system, layout, options, step, largest):
    """Node-seconds (GPU-seconds) of the fewest nodes (GPUs) that hold the system, over those of this layout.

    ``largest`` atoms fit on the nodes of this layout.
    """
    per_node = layout.ranks_per_node if machine.accelerators else 1
    here = layout.nodes * per_node
    fewest = min(here, ceil(system.atoms * here / largest)) if largest else here
    base = replace(layout, nodes=ceil(fewest / per_node), rank_grid=None)
    if machine.accelerators:
        base = replace(base, ranks_per_node=ceil(fewest / base.nodes))
        fewest = base.ranks
    features = steptime.features(machine, sizes, system, base, **options)
    reference = float(steptime.step_seconds(features, machine.profile(options["engine"].name).coefficients))
    return min(1.0, reference * fewest / (step * here))


def _largest_system(features, coefficients, machine, system):
    """Atoms that fill the usable memory of these nodes.

    Memory grows with the atoms ``n`` and the ghosts of a rank, these as ``(l + 2 r)^3 - l^3``; the ghosts here are
    scaled as ``n^(2/3)``, their law for large boxes, and the equation is solved by bisection.
    """

    def memory(scale):
        scaled = replace(features, atoms=features.atoms * scale, ghosts=features.ghosts * scale ** (2 / 3))
        return float(steptime.node_bytes(scaled, coefficients))

    limit = (
        USABLE_MEMORY * machine.capacity * features.ranks_per_node / (machine.accelerators or features.ranks_per_node)
    )
    if memory(1 / system.atoms) > limit:
        return 0
    low, high = 1 / system.atoms, 1.0
    while memory(high) < limit and high * system.atoms < 1e15:
        low, high = high, high * 2
    for _ in range(60):
        middle = sqrt(low * high)
        low, high = (middle, high) if memory(middle) <= limit else (low, middle)
    return int(low * system.atoms)


def scan(
    machine,
    model,
    system,
    *,
    nodes=(1,),
    ranks_per_node=(None,),
    threads_per_rank=(None,),
    precisions=("mixed",),
    **options,
):
    """Predictions over all combinations; those that a node cannot hold by its layout are left out."""
    machine, model = find_machine(machine), find_sizes(model)
    found = []
    for precision in precisions:
        for count in nodes:
            for ranks in ranks_per_node:
                for threads in threads_per_rank:
                    try:
                        found.append(
                            predict(
                                machine,
                                model,
                                system,
                                count,
                                ranks_per_node=ranks,
                                threads_per_rank=threads,
                                precision=precision,
                                **options,
                            )
                        )
                    except PerformanceModelError as error:
                        if len(nodes) * len(ranks_per_node) * len(threads_per_rank) == 1:
                            raise
                        refused = error
    if not found:
        raise refused
    return found


def weak_scaling(machine, model, system, nodes, **options):
    """Predictions with the atoms per node of ``system`` on the smallest of ``nodes``."""
    system, smallest = find_system(system), min(nodes)
    return [predict(machine, model, system.with_atoms(system.atoms * n // smallest), n, **options) for n in nodes]


def predict_here(model, system, **options):
    """The same for the machine at hand; used by ``md-run --check`` and the header of md-run."""
    from .machines import this_machine

    return predict(this_machine(), model, system, 1, **options)


__all__ = ["Machine", "Prediction", "default_layout", "predict", "predict_here", "scan", "weak_scaling"]
