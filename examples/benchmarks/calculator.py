"""How much the ASE calculator adds to the operators, and MD by ASE with it beside DeePMD-kit's calculator.

    python calculator.py                                                # dpmd alone
    python calculator.py --peer /path/to/python --peer-model water.pb   # and deepmd.calculator.DP

64 water molecules.  Overhead: a call of the calculator with an unchanged neighbour list, less the call of
the operators within it, measured in the same call.  MD: velocity Verlet of ASE, 0.5 fs; both engines
take turns, round after round, each with all cores (or ``--threads``), and medians are compared.  The peer
runs in an environment of its own (``pip install "deepmd-kit[cpu]" ase``), with a model compressed by
``dp compress``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

WATER = Path(__file__).resolve().parent.parent / "water"


def md_step(calculator, structure, steps):
    """Seconds per step of ASE's velocity Verlet."""
    import ase.io
    import numpy as np
    from ase import units
    from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
    from ase.md.verlet import VelocityVerlet

    atoms = ase.io.read(structure)
    atoms.calc = calculator
    MaxwellBoltzmannDistribution(atoms, temperature_K=330, rng=np.random.default_rng(0))
    dynamics = VelocityVerlet(atoms, 0.5 * units.fs)
    dynamics.run(3)  # compiles, allocates
    begin = time.perf_counter()
    dynamics.run(steps)
    return (time.perf_counter() - begin) / steps


def peer(model, structure, steps):
    """What runs in the peer's environment: prints seconds per step."""
    from deepmd.calculator import DP

    print("seconds_per_step", md_step(DP(model), structure, steps))


def run_peer(options, threads):
    """Seconds per step of the peer, measured by this file in the peer's environment."""
    command = [
        options.peer, __file__, "--as-peer", "--peer-model", options.peer_model, "--structure", options.structure,
        "--steps", str(options.peer_steps),
    ]  # fmt: skip
    threaded = ("OMP_NUM_THREADS", "TF_INTRA_OP_PARALLELISM_THREADS", "DP_INTRA_OP_PARALLELISM_THREADS")
    variables = dict.fromkeys(threaded, str(threads))
    environment = os.environ | variables | {"DP_INTER_OP_PARALLELISM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("seconds_per_step"):
            return float(line.split()[1])
    raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")


def overhead(model, structure, precision, threads, calls):
    """Seconds ``(call, overhead)`` of the calculator per call, medians."""
    import ase.io
    import numpy as np

    from dpmd import DP

    atoms = ase.io.read(structure)
    atoms.calc = DP(model, precision=precision, threads=threads)
    operators = atoms.calc.potential.operators
    evaluate, inside = operators.evaluate, []

    def timed(*arguments, **keywords):
        begin = time.perf_counter()
        result = evaluate(*arguments, **keywords)
        inside.append(time.perf_counter() - begin)
        return result

    operators.evaluate = timed
    whole, start = [], atoms.get_positions()
    for call in range(calls + 5):
        atoms.positions[:] = start + 1e-3 * np.sin(call + np.arange(start.size)).reshape(start.shape)
        begin = time.perf_counter()
        atoms.get_forces()
        atoms.get_potential_energy()
        whole.append(time.perf_counter() - begin)
    whole, inside = np.array(whole[5:]), np.array(inside[5:])
    return float(np.median(whole)), float(np.median(whole - inside))


def main():
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(WATER / "water.dp"))
    parser.add_argument("--structure", default=str(WATER / "water.extxyz"))
    parser.add_argument("--precisions", nargs="+", default=["double", "mixed", "half"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", metavar="PYTHON", help="python of an environment with deepmd-kit and ASE")
    parser.add_argument("--peer-model", metavar="FILE", help="its compressed model")
    parser.add_argument("--peer-steps", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_peer:
        return peer(options.peer_model, options.structure, options.steps)
    if bool(options.peer) != bool(options.peer_model):
        parser.error("--peer and --peer-model belong together: the peer's python, and its compressed model")

    import numpy as np

    from dpmd import DP

    results = {"threads": options.threads, "overhead_s": {}, "md_step_s": {}}
    for precision in options.precisions:
        call, extra = overhead(options.model, options.structure, precision, options.threads, options.steps)
        results["overhead_s"][precision] = extra
        print(f"{precision}: one call {1e3 * call:.2f} ms, of which beyond the operators {1e3 * extra:.3f} ms")
    steps = {name: [] for name in (*options.precisions, *(["peer"] if options.peer else []))}
    for _ in range(options.rounds):
        for precision in options.precisions:
            calculator = DP(options.model, precision=precision, threads=options.threads)
            steps[precision].append(md_step(calculator, options.structure, options.steps))
        if options.peer:
            steps["peer"].append(run_peer(options, options.threads))
    results["md_step_s"] = {name: float(np.median(seconds)) for name, seconds in steps.items()}
    for name, seconds in steps.items():
        median = float(np.median(seconds))
        ratio = f", {results['md_step_s']['peer'] / median:.1f}x the peer" if options.peer and name != "peer" else ""
        print(f"ASE MD, {name}: {1e3 * median:.2f} ms/step (best {1e3 * min(seconds):.2f}){ratio}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
