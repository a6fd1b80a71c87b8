"""How fast is a step on this CPU: against the counted limit and against DeePMD-kit with LAMMPS.

    python cpu.py                                              # dpmd and its counted limit
    python cpu.py --lmp /path/to/bin/lmp --peer-models DIR     # and LAMMPS with pair_style deepmd

Every setting is an md-run (or LAMMPS) run of its own; they take turns, round after round, so that a
busy or throttled machine slows all of them, and medians are compared.  The peer is installed in an
environment of its own, ``pip install "deepmd-kit[cpu,lmp]"``; DIR holds water.pb and copper.pb,
compressed with ``dp compress`` (other names: ``--peer-pattern``).

The counted limit: floating-point operations of the step over the rate of dpmd's own matrix product
on one core, measured in the same run.  It takes two to three minutes; ``cpu.json`` is a list of md-run
summaries, which ``dp-perf fit`` reads.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ase.io
import numpy as np

from dpmd.kernels.cpu.matrix import multiply, pack_matrix
from dpmd.kernels.cpu.packing import descriptor_size
from dpmd.kernels.cpu.simd import lanes, round_up
from dpmd.models.cache import load_for_operators

EXAMPLES = Path(__file__).resolve().parents[1]
#: name: (copies of the example's structure along each axis, fs)
SYSTEMS = {"water": (4, 0.5), "copper": (2, 1.0)}

INPUT = """
[structure]
file = "{structure}"
replicate = [{copies}, {copies}, {copies}]
initial_temperature_K = 300
[model]
file = "{model}"
[ensemble]
type = "nve"
[run]
steps = {steps}
timestep_fs = {timestep}
seed = 1
precision = "{precision}"
threads = {threads}
[thermo]
every = {steps}
"""

LAMMPS = """
units metal
atom_style atomic
read_data {name}.data
{masses}
pair_style deepmd {model}
pair_coeff * *
neighbor 2.0 bin
neigh_modify every 10 delay 0 check yes
velocity all create 300 1
fix 1 all nve
timestep {timestep}
run {warm}
run {steps}
"""


def one_thread():
    """Environment in which no library starts threads of its own."""
    names = "OMP_NUM_THREADS TF_INTRA_OP_PARALLELISM_THREADS TF_INTER_OP_PARALLELISM_THREADS"
    return (
        os.environ
        | dict.fromkeys([*names.split(), "DP_INTRA_OP_PARALLELISM_THREADS"], "1")
        | {"DP_INTER_OP_PARALLELISM_THREADS": "1"}
    )


def run_dpmd(folder, name, precision, threads, steps):
    """Seconds per step and the summary of an md-run run."""
    copies, timestep = SYSTEMS[name]
    text = INPUT.format(
        structure=EXAMPLES / name / f"{name}.extxyz", model=EXAMPLES / name / f"{name}.dp", copies=copies,
        steps=steps, timestep=timestep, precision=precision, threads=threads,
    )  # fmt: skip
    (folder / "bench.toml").write_text(text)
    command = [sys.executable, "-c", "from dpmd.cli import md_run; md_run()", "bench.toml", "--overwrite"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads((folder / "bench.summary.json").read_text())


def run_lammps(folder, lmp, name, model, ranks, steps):
    """Seconds per step of LAMMPS's own loop."""
    copies, timestep = SYSTEMS[name]
    atoms = ase.io.read(EXAMPLES / name / f"{name}.extxyz") * (copies, copies, copies)
    species = list(dict.fromkeys(atoms.symbols))
    ase.io.write(folder / f"{name}.data", atoms, format="lammps-data", specorder=species, masses=False, units="metal")
    masses = "\n".join(f"mass {k} {atoms.get_masses()[list(atoms.symbols).index(s)]}" for k, s in enumerate(species, 1))
    text = LAMMPS.format(name=name, masses=masses, model=model, timestep=timestep / 1000, warm=2, steps=steps)
    (folder / f"{name}.in").write_text(text)
    command = [lmp, "-in", f"{name}.in", "-log", "none"]
    if ranks > 1:
        command = [str(Path(lmp).with_name("mpiexec")), "-n", str(ranks), *command]
    output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=one_thread()).stdout
    return float(re.findall(r"Loop time of (\S+) on", output)[-1]) / steps


def matrix_rate(dtype):
    """FLOP/s of one core on products of the fitting network's size: the best of 30."""
    rows, depth, columns = 64, 1480, 240
    width = round_up(columns, lanes(np.dtype(dtype)))
    a, c = np.ones((rows, depth), dtype).ravel(), np.zeros(rows * width, dtype)
    b, best = pack_matrix(np.ones((depth, columns)), dtype), np.inf
    for _ in range(30):
        begin = time.perf_counter()
        multiply(a, depth, b, depth, width, c, width, rows, 512)
        best = min(best, time.perf_counter() - begin)
    return 2 * rows * depth * columns / best


def counted_flops(model, precision, counts):
    """Floating-point operations per atom-step, averaged over the atoms.

    counts : {(centre type, neighbour type): neighbours within the cutoff}, and "share" of each type.
    """
    d, total = model.descriptor, 0.0
    for a, share in enumerate(counts["share"]):
        features, rows, folded = 0, d.axis_neuron, True
        flops = 0.0
        for b, embedding in enumerate(d.embeddings[a]):
            basis = embedding.basis("double" if precision == "double" else "mixed")
            rank = basis.rank if basis else d.n_embedding
            folded = folded and basis is not None and basis.everywhere
            features += rank
            flops += counts[a, b] * rank * 2 * (9 + 19)  # forwards and backwards through table rows
        n = features if folded else d.n_embedding
        inputs = descriptor_size(n, n if folded and model.n_types > 1 else min(rows, n))
        if not folded:
            flops += 2 * 2 * 4 * features * d.n_embedding  # T = B V and back
        layers = model.fitting.networks[a].layers
        weights = inputs * layers[0].n_out + sum(layer.weight.size for layer in layers[1:])
        total += share * (flops + 12 * 2 * inputs + 4 * weights)
    return total


def neighbor_counts(name, model):
    atoms = ase.io.read(EXAMPLES / name / f"{name}.extxyz")
    from ase.neighborlist import neighbor_list

    types = np.array([model.type_map.index(s) for s in atoms.symbols])
    i, j = neighbor_list("ij", atoms, model.cutoff)
    share = np.bincount(types, minlength=model.n_types)
    pairs = np.zeros((model.n_types, model.n_types))
    np.add.at(pairs, (types[i], types[j]), 1)
    counts = {(a, b): pairs[a, b] / max(share[a], 1) for a in range(model.n_types) for b in range(model.n_types)}
    return counts | {"share": share / len(atoms)}


def check_peer(parser, options):
    """Refuse what would fail once everything else is measured; models become absolute paths."""
    if bool(options.lmp) != bool(options.peer_models):
        parser.error("--lmp and --peer-models belong together: the peer's executable, and its compressed models")
    if not options.lmp:
        return {}
    if not os.access(options.lmp, os.X_OK):
        parser.error(f"--lmp {options.lmp}: no program is there")
    options.lmp = os.path.abspath(options.lmp)
    models = {n: (options.peer_models / options.peer_pattern.format(name=n)).resolve() for n in options.systems}
    for model in models.values():
        if not model.exists():
            parser.error(f"--peer-models: {model} does not exist; 'dp compress' makes it (--peer-pattern: its name)")
    return models


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--precisions", nargs="+", default=["double", "mixed", "half"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="threads, and MPI ranks of the peer")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lmp", help="the peer's LAMMPS executable")
    parser.add_argument("--peer-models", type=Path, help="folder of its compressed models")
    parser.add_argument("--peer-pattern", default="{name}.pb")
    parser.add_argument("--peer-steps", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="keep the runs in this folder (default: they are removed)")
    parser.add_argument("--json", type=Path, default=Path("cpu.json"))
    options = parser.parse_args()
    models = check_peer(parser, options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        times, summaries = measure(folder, options, models)
    report(options, times, summaries)
    options.json.write_text(json.dumps(list(summaries.values()), indent=1) + "\n")


def measure(folder, options, models):
    """Seconds per step of all runs ``{(system, precision or "peer", threads): [...]}``, and the fastest summaries."""
    settings = [(s, p, t) for s in options.systems for t in options.threads for p in options.precisions]
    times, summaries = {}, {}
    for number in range(options.rounds):
        for name, precision, threads in settings:
            summary = run_dpmd(folder, name, precision, threads, options.steps)
            summary["system"] = name
            times.setdefault((name, precision, threads), []).append(summary["seconds_per_step"])
            best = summaries.setdefault((name, precision, threads), summary)
            if summary["seconds_per_step"] < best["seconds_per_step"]:
                summaries[name, precision, threads] = summary
            told = f"{name}, {precision}, {threads} thread(s): {1e3 * summary['seconds_per_step']:.1f} ms/step"
            print(f"round {number + 1} of {options.rounds}: {told}", file=sys.stderr, flush=True)
        for name, model in models.items():
            for ranks in options.threads:
                seconds = run_lammps(folder, options.lmp, name, model, ranks, options.peer_steps)
                times.setdefault((name, "peer", ranks), []).append(seconds)
                told = f"{name}, DeePMD-kit, {ranks} rank(s): {1e3 * seconds:.1f} ms/step"
                print(f"round {number + 1} of {options.rounds}: {told}", file=sys.stderr, flush=True)
    return times, summaries


def report(options, times, summaries):
    """Print medians beside the counted limit and the peer."""
    rates = {"double": matrix_rate(np.float64), "mixed": matrix_rate(np.float32)}
    print(f"matrix products on one core: {rates['double'] / 1e9:.0f} GFLOP/s double, {rates['mixed'] / 1e9:.0f} single")
    print("us per atom and step; medians, with the fastest run behind the slash; phases of the fastest run\n")
    for name in options.systems:
        model = load_for_operators(EXAMPLES / name / f"{name}.dp").model
        counts = neighbor_counts(name, model)
        copies = SYSTEMS[name][0]
        n = len(ase.io.read(EXAMPLES / name / f"{name}.extxyz")) * copies**3
        print(f"{name}, {n} atoms")
        for threads in options.threads:
            peer = times.get((name, "peer", threads))
            if peer:
                print(f"  DeePMD-kit, {threads} rank(s): {us(statistics.median(peer), n)} / {us(min(peer), n)}")
            for precision in options.precisions:
                own, summary = times[name, precision, threads], summaries[name, precision, threads]
                limit = counted_flops(model, precision, counts) / rates["double" if precision == "double" else "mixed"]
                text = f"  {precision}, {threads} thread(s): {us(statistics.median(own), n)} / {us(min(own), n)}"
                text += f", counted limit {limit / threads * 1e6:.1f}"
                if peer:
                    text += f", {statistics.median(peer) / statistics.median(own):.1f} x the peer's speed"
                print(text)
                print("     ", ", ".join(f"{k} {us(v, n)}" for k, v in summary["phases"].items()))


def us(seconds, n):
    return f"{seconds / n * 1e6:.2f}"


if __name__ == "__main__":
    main()
