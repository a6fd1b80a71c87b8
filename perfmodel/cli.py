"""The command ``dp-perf``: measure, fit, evaluate, predict, recommend, machines."""

import argparse
import os
import sys
from pathlib import Path

from . import fit as fitting
from . import report
from .errors import PerformanceModelError
from .machines import BOUNDS, find_machine, load, machine_paths, store_profile, user_folder
from .prediction import predict, scan, weak_scaling
from .recommendation import GOALS, recommend
from .runs import read_runs
from .workload import ENGINES, PRECISIONS

_EPILOG = """examples:
  dp-perf machines                                   list machines; dp-perf machines fugaku shows one
  dp-perf measure --output my-node.toml              micro-benchmarks of this machine
  dp-perf predict --machine fugaku --nodes 4560 --model copper-32-64-128 --system copper --atoms 2177280 \\
          --engine deepmd-kit --precision double --ranks-per-node 16 --threads 3
  dp-perf predict --machine h200 --model model.pb --system start.data --scan nodes=1:64 --plot scaling.png
  dp-perf fit runs.csv --machine my-node.toml        efficiencies from measured runs
  dp-perf recommend --model water-25-50-100 --system water --atoms 100000 --ns 10 --goal cost
"""


def main(arguments=None):
    """Entry point; returns the exit status: 0, or 2 for input that cannot be used."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has left, e.g. head
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes it once more at exit
    except (PerformanceModelError, OSError) as error:
        print(f"dp-perf: error: {error}", file=sys.stderr)
        return 2
    return 0


def build_parser():
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="dp-perf",
        description="Predict time, memory and cost of Deep Potential runs on any machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for add in (_add_measure, _add_fit, _add_evaluate, _add_predict, _add_recommend, _add_machines):
        add(commands)
    return parser


def _command(commands, name, run, text):
    # --rank, which md-run has, is no short form of --ranks-per-node
    parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def _print(options, value, text):
    print(report.to_json(value) if options.json else text)


# ---------------------------------------------------------------------------------------------
# measure, machines


def _add_measure(commands):
    parser = _command(commands, "measure", _measure, "run micro-benchmarks (about 20 s) and write a machine file")
    parser.add_argument("--name", default="local", help="name of the machine (default: local, which md-run uses)")
    parser.add_argument("--output", type=Path, help="file to write (default: NAME.toml in the user's folder)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def _measure(options):
    from dpmd.models.files import write_text

    from . import measure

    path = options.output or user_folder() / f"{options.name}.toml"
    if path.exists() and not options.overwrite:
        raise PerformanceModelError(f"{path} exists; use --overwrite to replace it")
    measured = measure.measure(options.name)
    if measured is None:  # a further rank of mpiexec
        return
    text, further = measured
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    machine = load(path)
    _print(
        options,
        {"file": path, "machine": machine.figures, **further},
        f"{report.machine(machine)}\n\nwritten to {path}",
    )


def _add_machines(commands):
    parser = _command(commands, "machines", _machines, "list machines, or show all figures of one with their sources")
    parser.add_argument("machine", nargs="?", help="name or file")


def _machines(options):
    if options.machine:
        machine = find_machine(options.machine)
        _print(options, machine, report.machine(machine))
    else:
        found = [load(path) for path in machine_paths().values()]
        _print(options, found, report.machines(found))


# ---------------------------------------------------------------------------------------------
# fit, evaluate


def _add_runs(parser):
    parser.add_argument("runs", type=Path, nargs="?", help="CSV, JSON summaries of md-run, or a LAMMPS log")
    parser.add_argument("--machine", help="name or file of the machine that the runs were made on")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="[SYSTEM=]MODEL",
        help="model of a system of a CSV file (water=water-25-50-100), or of a LAMMPS log",
    )
    parser.add_argument("--system", help="system of a LAMMPS log (default: named by the model)")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of a LAMMPS log (default 1)")
    parser.add_argument(
        "--engine",
        choices=sorted(ENGINES),
        help="engine of a CSV file or log (default deepmd-kit); of JSON summaries: use only its runs",
    )
    parser.add_argument("--plot", type=Path, help="parity plot (.png, .svg); residuals go to NAME-residuals")


def _read_runs(options):
    if options.runs is None:
        raise PerformanceModelError("a file of runs is needed")
    if options.machine is None:
        raise PerformanceModelError(f"--machine is needed; known: {', '.join(machine_paths())}")
    models = dict(entry.split("=", 1) for entry in options.model if "=" in entry.split(":")[0])
    plain = [entry for entry in options.model if "=" not in entry.split(":")[0]]
    return read_runs(
        options.runs,
        models=models,
        engine=options.engine,
        nodes=options.nodes,
        model=plain[-1] if plain else None,
        system=options.system,
    )


def _plot_runs(options, runs, predicted, machine, score):
    if options.plot is None:
        return
    from . import plots

    plots.parity(
        options.plot, runs, predicted, f"{machine.title or machine.name}: {len(runs)} runs, MAPE {score.mape:.1f} %"
    )
    other = options.plot.with_stem(options.plot.stem + "-residuals")
    plots.residuals(other, runs, predicted, "errors of the step time")


def _add_fit(commands):
    parser = _command(
        commands, "fit", _fit, "fit efficiencies and overheads to runs and store them in the machine file"
    )
    _add_runs(parser)
    parser.add_argument("--free", help=f"comma-separated coefficients to fit (of {', '.join(BOUNDS)})")
    parser.add_argument(
        "--extrapolate-from",
        type=int,
        metavar="NODES",
        help="also fit runs up to this many nodes only, and predict the larger ones",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="machine file to write (default: the machine's own, or a copy of a shipped one in the user's folder)",
    )
    parser.add_argument("--dry-run", action="store_true", help="do not store anything")


def _fit(options):
    machine, runs = find_machine(options.machine), _read_runs(options)
    free = options.free.split(",") if options.free else None
    result = fitting.fit(runs, machine, free)
    text, extrapolated = report.fit(result, runs), None
    if options.extrapolate_from is not None:
        extrapolated = fitting.extrapolate(runs, machine, options.extrapolate_from, free)
        text += "\n" + report.score_line(f"step time, fitted up to {options.extrapolate_from} nodes only", extrapolated)
    if not options.dry_run:
        path = store_profile(machine, result.profile, options.output)
        text += f"\n\nstored in {path}"
    _plot_runs(options, runs, result.predicted, machine, result.score)
    _print(options, {"fit": result, "extrapolated": extrapolated}, text)


def _add_evaluate(commands):
    parser = _command(commands, "evaluate", _evaluate, "predict every run of a file with the stored fit and compare")
    _add_runs(parser)
    parser.add_argument(
        "--published",
        action="store_true",
        help="instead of a file: published end points and operation counts beside the model's",
    )


def _evaluate(options):
    if options.published:
        from . import published

        points = [*published.operation_counts(), *published.end_points()]
        _print(options, [{**vars(p), "error": p.error} for p in points], report.end_points(points))
        return
    machine, runs = find_machine(options.machine or _missing_machine()), _read_runs(options)
    result = fitting.evaluate(runs, machine)
    _plot_runs(options, runs, result.predicted, machine, result.score)
    rows = [
        {"run": r.label, "measured": r.step_seconds, "predicted": p, "error": e}
        for r, p, e in zip(runs, result.predicted, result.score.errors, strict=True)
    ]
    summary = {"mape": result.score.mape, "bias": result.score.bias, "profile": result.profile.source}
    if result.memory_score is not None:
        summary["memory_mape"] = result.memory_score.mape
    _print(options, {**summary, "runs": rows}, report.evaluation(result, runs))


def _missing_machine():
    raise PerformanceModelError(f"--machine is needed; known: {', '.join(machine_paths())}")


# ---------------------------------------------------------------------------------------------
# predict, recommend


def _add_job(parser):
    parser.add_argument("--model", required=True, help="model file, or named sizes such as copper-32-64-128")
    parser.add_argument(
        "--system",
        required=True,
        help="copper, water, a structure or LAMMPS data file, an input of md-run, or a TOML file with density or cell",
    )
    parser.add_argument("--atoms", type=int, help="rescale the system to this many atoms")
    parser.add_argument("--engine", default="dpmd", choices=sorted(ENGINES))
    parser.add_argument("--precision", default="mixed", help=f"{', '.join(PRECISIONS)} (default mixed)")
    parser.add_argument("--skin", type=float, default=2.0, help="Å (default 2)")
    parser.add_argument("--rebuild-every", type=float, default=50, help="steps between list builds (default 50)")
    parser.add_argument(
        "--timestep", type=float, help="fs (default: the system's; if its file names none, 0.5 with hydrogen, else 1)"
    )
    parser.add_argument("--plot", type=Path, help="plot to write (.png, .svg)")


def _job(options):
    return {
        "atoms": options.atoms,
        "engine": options.engine,
        "skin": options.skin,
        "rebuild_every": options.rebuild_every,
        "timestep_fs": options.timestep,
    }


def _add_predict(commands):
    parser = _command(commands, "predict", _predict, "time, memory and cost of a run, without running it")
    _add_job(parser)
    parser.add_argument("--machine", help="name or file (see dp-perf machines)")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks-per-node", type=int)
    parser.add_argument("--threads", type=int, help="threads per rank")
    parser.add_argument("--price", type=float, help="per node-hour")
    parser.add_argument("--output-bytes", type=float, default=0.0, help="bytes per atom of a dump (default: none)")
    parser.add_argument("--output-every", type=float, default=1000, help="steps between dumps")
    parser.add_argument(
        "--scan",
        action="append",
        default=[],
        metavar="WHAT=VALUES",
        help="nodes, ranks, threads or precision over a list (1,2,4) or doublings (1:64)",
    )


def _predict(options):
    if options.machine is None:
        _missing_machine()
    job = _job(options) | {
        "price": options.price,
        "output_bytes_per_atom": options.output_bytes,
        "output_every": options.output_every,
    }
    if not options.scan:
        found = predict(
            options.machine,
            options.model,
            options.system,
            options.nodes,
            precision=options.precision,
            ranks_per_node=options.ranks_per_node,
            threads_per_rank=options.threads,
            **job,
        )
        if options.plot:
            _plot_scaling(options, [found], job)
        _print(options, found, report.prediction(found))
        return
    axes = _parse_scan(options.scan)
    found = scan(
        options.machine,
        options.model,
        options.system,
        nodes=axes.get("nodes", [options.nodes]),
        ranks_per_node=axes.get("ranks", [options.ranks_per_node]),
        threads_per_rank=axes.get("threads", [options.threads]),
        precisions=axes.get("precision", [options.precision]),
        **job,
    )
    if options.plot:
        _plot_scaling(options, found, job)
    _print(options, found, report.predictions(found))


def _parse_scan(entries):
    axes = {}
    for entry in entries:
        name, _, values = entry.partition("=")
        if name not in ("nodes", "ranks", "threads", "precision") or not values:
            raise PerformanceModelError(f"--scan {entry!r}: use nodes, ranks, threads or precision = values")
        if name == "precision":
            axes[name] = values.split(",")
            continue
        try:
            if ":" in values:
                low, high = (int(v) for v in values.split(":"))
                axes[name] = [low * 2**k for k in range(64) if low * 2**k <= high] if low > 0 else [low]
            else:
                axes[name] = [int(v) for v in values.split(",")]
        except ValueError as error:
            raise PerformanceModelError(f"--scan {entry!r}: whole numbers are needed, 1,2,4 or 1:64") from error
    return axes


def _plot_scaling(options, found, job):
    from . import plots

    by_nodes = {p.layout.nodes: p for p in found}  # of several layouts of one count the last one scanned
    nodes = sorted(by_nodes)
    strong = [by_nodes[n] for n in nodes]
    weak = []
    if len(nodes) > 1:
        first = strong[0]
        weak = weak_scaling(
            options.machine,
            options.model,
            first.system,
            nodes,
            precision=first.precision,
            ranks_per_node=options.ranks_per_node,
            threads_per_rank=options.threads,
            **{k: v for k, v in job.items() if k != "atoms"},
        )
    plots.scaling(options.plot, strong, weak)


def _add_recommend(commands):
    parser = _command(commands, "recommend", _recommend, "rank machines and configurations for a job")
    _add_job(parser)
    parser.add_argument("--ns", type=float, required=True, help="nanoseconds to simulate")
    parser.add_argument("--goal", default="time", help=f"{', '.join(GOALS)} (deadline=HOURS, ns-per-day=SPEED)")
    parser.add_argument("--machines", help="comma-separated names or files (default: all known)")
    parser.add_argument("--max-nodes", type=int)
    parser.add_argument("--max-hours", type=float, default=720.0, help="longest acceptable run (default 30 days)")
    parser.add_argument("--min-efficiency", type=float, default=0.3, help="parallel efficiency to keep (default 0.3)")
    parser.add_argument("--price", action="append", default=[], metavar="MACHINE=PRICE", help="per node-hour")


def _recommend(options):
    prices = {}
    for entry in options.price:
        name, _, value = entry.partition("=")
        try:
            prices[find_machine(name).name] = float(value)
        except ValueError as error:
            if isinstance(error, PerformanceModelError):
                raise
            raise PerformanceModelError(f"--price {entry!r}: use MACHINE=NUMBER") from error
    result = recommend(
        options.model,
        options.system,
        options.ns,
        options.goal,
        precision=options.precision,
        prices=prices,
        machines=options.machines.split(",") if options.machines else None,
        max_nodes=options.max_nodes,
        min_efficiency=options.min_efficiency,
        max_hours=options.max_hours,
        **_job(options),
    )
    if options.plot:
        from . import plots

        system = result.choices[0].prediction.system
        plots.pareto(options.plot, result, f"{system.name}, {system.atoms:,} atoms, {options.ns:g} ns")
    _print(options, result, report.recommendation(result))


if __name__ == "__main__":
    sys.exit(main())
