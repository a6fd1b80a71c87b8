"""Step times over systems, sizes, threads and precisions on this CPU: the runs that ``dp-perf fit`` needs.

    python sizes.py                                     # a few minutes; writes sizes.json
    dp-perf fit sizes.json --machine MY-MACHINE

Every setting is an md-run run of its own with about ``--seconds`` of steps.  They take turns, round after
round, and of each setting the fastest run counts: other programs only ever slow a run down.
``sizes.json`` is a list of md-run summaries.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from cpu import EXAMPLES, INPUT

#: name: (atoms of the example's structure, fs)
SYSTEMS = {"water": (192, 0.5), "copper": (256, 1.0)}
#: copies of the structure along each axis
COPIES = {"water": (1, 2, 4), "copper": (1, 2, 3)}
#: µs per atom and step of one core, only to choose the number of steps
USUAL = {"double": 30.0, "mixed": 15.0, "half": 15.0}


def measure(folder, name, copies, precision, threads, seconds):
    """The summary of one md-run run."""
    atoms, timestep = SYSTEMS[name]
    steps = round(seconds / (USUAL[precision] * 1e-6 * atoms * copies**3 / threads))
    text = INPUT.format(
        structure=EXAMPLES / name / f"{name}.extxyz", model=EXAMPLES / name / f"{name}.dp", copies=copies,
        steps=max(steps, 10), timestep=timestep, precision=precision, threads=threads,
    )  # fmt: skip
    (folder / "bench.toml").write_text(text)
    command = [sys.executable, "-c", "from dpmd.cli import md_run; md_run()", "bench.toml", "--overwrite"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads((folder / "bench.summary.json").read_text()) | {"system": name}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--precisions", nargs="+", default=["double", "mixed"], choices=list(USUAL))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="of steps per run (default 3)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, default=Path("sizes.json"))
    options = parser.parse_args()
    settings = [
        (name, copies, precision, threads)
        for name in options.systems
        for copies in COPIES[name]
        for precision in options.precisions
        for threads in options.threads
    ]
    fastest = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for setting in settings:
                found = measure(Path(folder), *setting, options.seconds)
                best = fastest.get(setting)
                if best is None or found["seconds_per_step"] < best["seconds_per_step"]:
                    fastest[setting] = found
                print(*setting[:1], found["atoms"], *setting[2:], found["steps"], "steps", end=" ")
                print(f"{found['seconds_per_step'] / found['atoms'] * 1e6:.2f} us/atom/step", flush=True)
            options.json.write_text(json.dumps(list(fastest.values()), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
