"""The kernels are not tied to x86: compiled for ARM they consist of vector instructions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("aarch64_assembly.py")
#: vector multiply-adds that each kernel has at least, and no call of a function per lane
LEAST = {
    "tile": 24, "accumulate": 18, "gradient": 15, "descriptor": 3, "descriptor_gradient": 8, "environment": 2,
    "tanh": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("width", "cpu", "features"), [(64, "a64fx", "+sve"), (32, "neoverse-v1", "+sve"), (16, "neoverse-n1", "+neon")]
)
def test_vector_instructions(width, cpu, features):
    environment = os.environ | {
        "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features, "DPMD_VECTOR_BYTES": str(width),
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, SCRIPT, cpu, features], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert {name for _, name, *_ in lines} == set(LEAST)
    for kind, name, adds, calls in lines:
        assert int(adds) >= LEAST[name], f"{kind} {name}: {adds} vector multiply-adds"
        assert int(calls) == 0, f"{kind} {name}: {calls} calls"
