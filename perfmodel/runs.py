"""Measured runs: one record, and readers of the three kinds of files that hold them.

**JSON summary of md-run** (``summary.json``; one object, a list of objects, also as entry ``runs`` of an object, or one
object per line).
The engine writes these keys; those marked * are needed, the rest help the fit:

====================  =======================================================================
engine *              ``"dpmd"`` (node-based) or ``"dpmd-rank"``, see ``workload.ENGINES``
machine               name of the machine file
device                ``"cpu"`` or ``"cuda"``
model *               sizes: ``{"cutoff", "sel", "embedding", "axis", "fitting", "tabulated", "table_rows",
                      "rank", "direct_neighbors", "one_side", "name"}`` (see :mod:`.sizes`), or a name
atoms *               number of atoms
cell *                three lattice vectors, Å (or ``density``, atoms / Å^3)
types                 atoms of each type
nodes, ranks, threads *   nodes; ranks in all; threads per rank
rank_grid             ranks along the lattice vectors, if each has a box of its own
precision *           ``"double"``, ``"mixed"`` or ``"half"``
ensemble              ``"nve"``, ``"nvt"``, ``"npt"``
timestep_fs           fs
skin                  Å
rebuild_interval      mean steps between list builds
neighbors_per_atom    mean number of neighbours within the cutoff
steps                 timed steps
seconds_per_step *    wall time / steps, start-up excluded
phases                seconds per step, mean over ranks: ``neighbor, geometry, embedding, descriptor,
                      fitting, force, threads, communication, integrate, output, other``; on several ranks also
                      ``waiting`` for one another, which the others leave out
slowest_rank          seconds per step of the slowest rank in geometry .. force
parallel              on several ranks, not used by the fit: messages and bytes per step, (least, mean, most)
                      atoms, ghosts and seconds in each phase, imbalance
peak_memory_bytes     largest sum over a node's ranks (or device memory)
====================  =======================================================================

**CSV** with the header of ``tests/data/perf/fugaku_runs.csv`` (times in ms, memory in MiB per node; phase and
memory columns may be empty or absent; a column ``model`` overrides the model of the system).

**LAMMPS logs** of DeePMD-kit runs: loop time, processor grid, threads and the timing table are read; what
a log does not say (model, nodes, cutoff) is given to :func:`read_lammps_log`.
"""

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path

from . import sizes as model_sizes
from . import systems
from .errors import PerformanceModelError, check_positive
from .network import Layout
from .sizes import ModelSizes
from .systems import PhysicalSystem

#: Networks meant by the system names of a CSV file, unless the caller says otherwise.
CSV_MODELS = {"copper": "copper-32-64-128", "water": "water-32-64-128"}


@dataclass(frozen=True)
class Run:
    """One measured run; times in s per step, memory in bytes.

    pair_seconds : mean rank, energies and forces; slowest_pair_seconds : slowest rank; None if unknown.
    memory : bytes per node, or None.  label : what reports call it.
    """

    sizes: ModelSizes
    system: PhysicalSystem
    layout: Layout
    precision: str
    engine: str
    skin: float
    rebuild_every: float
    step_seconds: float
    pair_seconds: float | None = None
    slowest_pair_seconds: float | None = None
    memory: float | None = None
    label: str = ""
    machine: str | None = None

    @property
    def configuration(self):
        """Equal for repeated runs, which must stay together in a cross-validation."""
        layout = self.layout
        return (
            self.sizes.name,
            self.system.name,
            self.system.atoms,
            layout.nodes,
            layout.ranks_per_node,
            layout.threads_per_rank,
            self.precision,
            self.engine,
        )


def read_runs(path, **options):
    """All runs of a file, by its kind; ``options`` go to the reader."""
    path = Path(path)
    if not path.is_file():
        raise PerformanceModelError(f"no file {str(path)!r} to read runs from")
    if path.suffix == ".csv":
        runs = read_csv(path, options.get("models"), options.get("engine") or "deepmd-kit")
    elif path.suffix in (".json", ".jsonl"):
        engine = options.get("engine")
        runs = [r for r in read_json(path) if engine in (None, r.engine)]
    else:
        runs = [read_lammps_log(path, **{k: v for k, v in options.items() if v is not None})]
    if not runs:
        raise PerformanceModelError(f"{path} holds no runs")
    return runs


# ---------------------------------------------------------------------------------------------
# CSV


def read_csv(path, models=None, engine="deepmd-kit"):
    """Runs of a CSV file.  ``models`` maps names of the ``system`` column to models."""
    models = CSV_MODELS | (models or {})
    runs = []
    with open(path, newline="") as file:
        reader = csv.DictReader(line for line in file if not line.startswith("#"))
        needed = {"system", "nodes", "ranks_per_node", "threads_per_rank", "atoms", "step_ms"}
        if missing := needed - set(reader.fieldnames or ()):
            raise PerformanceModelError(f"{path}: the columns {', '.join(sorted(missing))} are missing")
        for row in reader:
            try:
                runs.append(_csv_run(row, models, engine))
            except (ValueError, KeyError, TypeError) as error:
                raise PerformanceModelError(f"{path}:{reader.line_num}: {error}") from error
    return runs


def _csv_run(row, models, engine):
    def number(key, factor=1.0, default=None):
        text = (row.get(key) or "").strip()
        return float(text) * factor if text else default

    name = row["system"].strip()
    if name not in models and not row.get("model"):
        raise PerformanceModelError(f"no model is known for system {name!r}; use --model {name}=...")
    sizes = model_sizes.find_sizes((row.get("model") or "").strip() or models[name])
    system = systems.find_system(name, int(row["atoms"]))
    cutoff = number("cutoff_A", default=sizes.cutoff)
    grid = (row.get("rank_grid") or "").strip()
    layout = Layout(
        int(row["nodes"]),
        int(row["ranks_per_node"]),
        int(row["threads_per_rank"]),
        tuple(int(n) for n in grid.split("x")) if grid else None,
    )
    return Run(
        sizes=sizes,
        system=system,
        layout=layout,
        precision=(row.get("precision") or "double").strip(),
        engine=engine,
        skin=number("ghost_cutoff_A", default=cutoff + 2.0) - cutoff,
        rebuild_every=number("rebuild_every", default=50.0),
        step_seconds=check_positive("step_ms", number("step_ms", 1e-3), "ms"),
        pair_seconds=number("pair_avg_ms", 1e-3),
        slowest_pair_seconds=number("pair_max_ms", 1e-3),
        memory=number("mem_max_MiB_per_node", 2**20),
        label=f"{name} {system.atoms} atoms, {layout}",
    )


# ---------------------------------------------------------------------------------------------
# JSON


def read_json(path):
    """Runs of md-run's JSON summaries."""
    text = Path(path).read_text()
    try:
        data = json.loads(text)
        if isinstance(data, dict) and isinstance(data.get("runs"), list):
            data = data["runs"]  # as examples/benchmarks/gpu.py writes
    except json.JSONDecodeError:
        try:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise PerformanceModelError(f"{path} is neither JSON nor JSON lines: {error}") from error
    runs = []
    for number, summary in enumerate(data if isinstance(data, list) else [data], 1):
        try:
            runs.append(run_from_summary(summary))
        except (KeyError, TypeError, ValueError) as error:
            what = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
            raise PerformanceModelError(f"{path}, run {number}: {what}") from error
    return runs


def run_from_summary(summary):
    """A :class:`Run` from one JSON summary (see the module's docstring)."""
    sizes = model_sizes.find_sizes(summary["model"])
    atoms, cell = int(summary["atoms"]), summary.get("cell")
    if cell is not None:
        cell = tuple(map(tuple, systems.geometry.check_cell(cell)))
        density = atoms / systems.geometry.volume(cell)
    else:
        density = float(summary["density"])
    nodes, ranks, phases = int(summary.get("nodes", 1)), int(summary.get("ranks", 1)), summary.get("phases") or {}
    if ranks % nodes:
        raise PerformanceModelError(f"{ranks} ranks on {nodes} nodes: unequal numbers per node are not modelled")
    grid = summary.get("rank_grid")
    layout = Layout(nodes, ranks // nodes, int(summary["threads"]), tuple(map(int, grid)) if grid else None)
    compute = [phases.get(name) for name in ("geometry", "embedding", "descriptor", "fitting", "force")]
    system = PhysicalSystem(
        summary.get("system", sizes.name),
        atoms,
        density,
        cell,
        summary.get("ensemble", "nve"),
        float(summary.get("timestep_fs", 1.0)),
        summary.get("neighbors_per_atom"),
    )
    return Run(
        sizes=sizes,
        system=system,
        layout=layout,
        precision=summary["precision"],
        engine=summary["engine"],
        skin=float(summary.get("skin", 1.0)),
        rebuild_every=float(summary.get("rebuild_interval", 20.0)),
        step_seconds=check_positive("seconds_per_step", summary["seconds_per_step"], "s"),
        pair_seconds=sum(compute) if all(c is not None for c in compute) else None,
        slowest_pair_seconds=summary.get("slowest_rank"),
        memory=summary.get("peak_memory_bytes"),
        label=f"{system.name} {atoms} atoms, {layout}, {summary['precision']}",
        machine=summary.get("machine"),
    )


# ---------------------------------------------------------------------------------------------
# LAMMPS


def read_lammps_log(
    path, model=None, system=None, nodes=1, engine="deepmd-kit", precision="double", skin=2.0, rebuild_every=50, **_
):
    """The last timed run of a LAMMPS log.

    model, system : what the log does not tell; ``system`` defaults to the name before the model's first dash.
    """
    if model is None:
        raise PerformanceModelError(f"{path} is a LAMMPS log, which does not name the model: use --model")
    sizes = model_sizes.find_sizes(model)
    text = Path(path).read_text(errors="replace")
    loops = re.findall(r"Loop time of (\S+) on (\d+) procs for (\d+) steps with (\d+) atoms", text)
    if not loops:
        raise PerformanceModelError(f"{path} holds no 'Loop time of' line: the run did not end, or it is no LAMMPS log")
    seconds, ranks, steps, atoms = float(loops[-1][0]), *map(int, loops[-1][1:])
    if steps == 0 or ranks % nodes:
        raise PerformanceModelError(f"{path}: {steps} steps on {ranks} ranks and {nodes} nodes cannot be used")
    grid = re.findall(r"(\d+) by (\d+) by (\d+) MPI processor grid", text)
    threads = re.findall(r"using (\d+) OpenMP thread", text)
    pair = re.findall(r"^Pair\s*\|\s*(\S+)\s*\|\s*(\S+)\s*\|\s*(\S+)", text, re.M)
    layout = Layout(
        nodes, ranks // nodes, int(threads[-1]) if threads else 1, tuple(map(int, grid[-1])) if grid else None
    )
    found = systems.find_system(system or sizes.name.split("-")[0], atoms)
    # The memory that a log states covers LAMMPS's own arrays, not the model's: it is left out.
    return Run(
        sizes=sizes,
        system=found,
        layout=layout,
        precision=precision,
        engine=engine,
        skin=skin,
        rebuild_every=rebuild_every,
        step_seconds=seconds / steps,
        pair_seconds=float(pair[-1][1]) / steps if pair else None,
        slowest_pair_seconds=float(pair[-1][2]) / steps if pair else None,
        label=f"{found.name} {atoms} atoms, {layout}",
    )
