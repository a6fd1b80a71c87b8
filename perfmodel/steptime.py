"""The time of one step, and the memory of one node, as formulas.

Per step, for the rank with the most atoms::

    work     = n [ sum_gemm max(flops / (e_g peak), bytes / bandwidth)          [max: see slower()]
                 + max(flops / (e_e peak), gathered table rows / bandwidth)
                 + sum_traffic bytes / (e_t bandwidth) ] (1 + s (T - 1)) / T
    overhead = operators (launch + T thread_start)
    waiting  = work (busiest share - mean share) / mean share, with
               busiest = n (1 + sqrt(2 ln boxes) spread n_box^(-1/3)) / T, rounded up to whole
               atoms where a thread evaluates whole atoms
    network  = messages (latency + sqrt(2 ln ranks) message) + bytes / injection bandwidth
    sums     = reductions log2(ranks) (latency + sqrt(2 ln ranks) message)
    output   = bytes written / interval / file bandwidth

with ``n`` atoms per rank, ``T`` threads, and peak and bandwidth those of one worker (core or GPU).
Programs whose ranks keep private temporary arrays use ``bytes x ranks per node / workers`` for traffic:
threads of one rank share what they load, ranks do not.  Table rows are gathered from memory only if
the tables do not fit a rank's share of the caches.

Everything that does not depend on the fitted coefficients is put into :class:`Features` once, so that a
fit evaluates all its runs in one array expression.
"""

from dataclasses import dataclass, fields, replace
from math import log2

import numpy as np

from . import network, workload
from .errors import PerformanceModelError

#: Phases of a step in the order of plots.  ``compute`` phases come first.
PHASES = (
    "neighbor",
    "geometry",
    "embedding",
    "descriptor",
    "fitting",
    "force",
    "overhead",
    "communication",
    "reductions",
    "waiting",
    "output",
)

COMPUTE_PHASES = PHASES[:6]


@dataclass(frozen=True)
class Features:
    """What one configuration contributes to the formulas; times in s per atom at full rate, or arrays of them."""

    fitting: float
    fitting_floor: float
    descriptor: float
    descriptor_floor: float
    embedding: float
    embedding_floor: float
    geometry: float
    force: float
    neighbor: float
    atoms: float  # per rank, mean
    whole_atoms: float  # 1 if threads evaluate whole atoms, else 0
    threads: float
    launches: float
    boxes_extreme: float
    atoms_per_box: float
    messages: float
    latency: float
    transfer: float  # s per step
    ranks_extreme: float
    reduction_depth: float
    output: float  # s per step
    flops: float  # per atom
    # memory, bytes
    ranks_per_node: float
    table_bytes: float
    atom_bytes: float
    ghosts: float
    ghost_bytes: float


def features(
    machine,
    sizes,
    system,
    layout,
    precision="double",
    engine="dpmd",
    skin=2.0,
    rebuild_every=50,
    output_bytes_per_atom=0.0,
    output_every=1000,
    file_bandwidth=1e9,
    check=True,
):
    """The :class:`Features` of a configuration.

    skin : Å; output_bytes_per_atom, output_every, file_bandwidth : bytes, steps, B/s of dumps.
    check : refuse layouts that the machine cannot hold.
    """
    engine = workload.find_engine(engine)
    if check:
        check_layout(machine, layout)
    comm = network.communication(engine, system, layout, sizes.cutoff + skin)
    bandwidth = machine.bandwidth / machine.workers
    on_gpu = bool(machine.accelerators) and engine.gpu_kernels
    sizes = replace(sizes, folding=sizes.folding and not on_gpu)
    counted = workload.count(sizes, system, precision, engine, skin, rebuild_every)
    few = on_gpu and system.atoms / layout.ranks <= workload.FEW_ATOMS
    rates = (workload.GPU_PEAK_FOR if on_gpu else workload.PEAK_FOR)[precision]
    peak = {kind: machine.peak[name] / machine.workers for kind, name in rates.items()}
    # On CPUs dpmd evaluates blocks of atoms in one parallel loop, whatever their types.
    launches = engine.launches(sizes, few or (engine.gpu_kernels and not machine.accelerators))
    if on_gpu:
        launches += engine.gpu_list_operators / rebuild_every
    sharing = layout.ranks_per_node / machine.workers if engine.private_data else 1.0
    seconds = dict.fromkeys(("fitting", "descriptor", "embedding", "geometry", "force", "neighbor"), 0.0)
    floors = dict.fromkeys(("fitting", "descriptor", "embedding"), 0.0)
    for operator in counted.operators:
        if operator.kind == "traffic":
            seconds[operator.phase] += operator.bytes / bandwidth * sharing
        else:
            seconds[operator.phase] += operator.flops / peak[operator.kind]
            floors[operator.phase] += operator.bytes / bandwidth
    # Each rank reads its own tables; ranks (or memory domains, or GPUs) have their share of the caches.
    shares = max(machine.accelerators or layout.ranks_per_node, machine.domains or 1)
    if counted.table_bytes > machine.cache / shares:
        floors["embedding"] += counted.table_gather / bandwidth
    threads = 1 if machine.accelerators else layout.threads_per_rank
    return Features(
        **seconds,
        **{f"{phase}_floor": floor for phase, floor in floors.items()},
        atoms=system.atoms / layout.ranks,
        whole_atoms=float(engine.whole_atoms and not machine.accelerators),
        threads=threads,
        launches=launches,
        boxes_extreme=network.extreme(comm.boxes),
        atoms_per_box=comm.atoms_per_box,
        messages=comm.messages,
        latency=machine.latency,
        transfer=comm.node_bytes / machine.network_bandwidth if layout.nodes > 1 else 0.0,
        ranks_extreme=network.extreme(layout.ranks),
        reduction_depth=system.reductions * log2(layout.ranks),
        output=output_bytes_per_atom * system.atoms / output_every / file_bandwidth,
        flops=counted.flops,
        ranks_per_node=layout.ranks_per_node,
        table_bytes=counted.table_bytes,
        atom_bytes=counted.atom_bytes,
        ghosts=comm.ghosts,
        ghost_bytes=counted.ghost_bytes,
    )


def check_layout(machine, layout):
    """Refuse layouts that a node or the machine cannot hold."""
    if machine.count is not None and layout.nodes > machine.count:
        raise PerformanceModelError(f"{machine.name} has {machine.count} nodes; {layout.nodes} were asked for")
    if machine.accelerators:
        if layout.ranks_per_node > machine.accelerators:
            raise PerformanceModelError(
                f"a node of {machine.name} has {machine.accelerators} accelerators, one rank each;"
                f" {layout.ranks_per_node} ranks per node were asked for"
            )
    elif layout.ranks_per_node * layout.threads_per_rank > machine.cores:
        raise PerformanceModelError(
            f"a node of {machine.name} has {machine.cores} cores; {layout.ranks_per_node} ranks of"
            f" {layout.threads_per_rank} threads need {layout.ranks_per_node * layout.threads_per_rank}"
        )


def stack(many):
    """Features of many configurations as one record of arrays."""
    return Features(**{f.name: np.array([getattr(one, f.name) for one in many], dtype=float) for f in fields(Features)})


def slower(arithmetic, memory):
    """The roofline's maximum of two times, rounded off: ``(a^4 + b^4)^(1/4)``.

    Near the corner both limits are felt (19 % at equality), and a fit keeps a gradient on either side.
    """
    return (arithmetic**4 + memory**4) ** 0.25


def phase_times(f, c):
    """Seconds per step in each of :data:`PHASES`, for the mean rank; waiting is what the slowest adds.

    f : :class:`Features` (of numbers or arrays); c : :class:`~dpmd.perfmodel.machines.Coefficients`.
    """
    atoms_per_thread = f.atoms / f.threads
    share = atoms_per_thread * (1 + c.serial_fraction * (f.threads - 1))
    message = f.latency + f.ranks_extreme * c.message_us * 1e-6
    times = {
        "neighbor": share * f.neighbor / c.traffic_efficiency,
        "geometry": share * f.geometry / c.traffic_efficiency,
        "embedding": share * slower(f.embedding / c.embedding_efficiency, f.embedding_floor),
        "descriptor": share * slower(f.descriptor / c.gemm_efficiency, f.descriptor_floor),
        "fitting": share * slower(f.fitting / c.gemm_efficiency, f.fitting_floor),
        "force": share * f.force / c.traffic_efficiency,
        "overhead": f.launches * (c.launch_us + c.thread_start_us * f.threads) * 1e-6,
        "communication": f.messages * message + f.transfer,
        "reductions": f.reduction_depth * message,
        "output": f.output,
    }
    work = sum(times[phase] for phase in COMPUTE_PHASES)
    busiest = atoms_per_thread * (1 + f.boxes_extreme * network.box_spread(c.spread, f.atoms_per_box))
    busiest = np.where(f.whole_atoms > 0, np.ceil(busiest - 1e-9), busiest)
    times["waiting"] = work * (busiest / atoms_per_thread - 1)
    return {phase: times[phase] for phase in PHASES}


def step_seconds(f, c):
    """Seconds per step."""
    return sum(phase_times(f, c).values())


def pair_seconds(f, c):
    """Seconds per step that the mean rank, and the slowest rank, spend on energies and forces: two values.

    This is what LAMMPS reports as "Pair" (average and maximum): the neighbour list is timed apart.
    """
    times = phase_times(f, c)
    mean = sum(times[phase] for phase in COMPUTE_PHASES) - times["neighbor"] + times["overhead"]
    return mean, mean + times["waiting"]


def node_bytes(f, c):
    """Memory of one node, bytes: ranks x (base + tables x copies + factor x (atoms and ghosts))."""
    held = f.atoms * f.atom_bytes + (f.atoms + f.ghosts) * f.ghost_bytes
    return f.ranks_per_node * (c.rank_megabytes * 1e6 + c.table_copies * f.table_bytes + c.memory_factor * held)
