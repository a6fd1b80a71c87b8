"""Micro-benchmarks of the machine at hand, written as a machine file (``dp-perf measure``).

Rates are the best of several repetitions: other programs can only slow a machine down.  Sizes are those of a
Deep Potential step (blocks of 512 atoms, layers 1600 x 240 and 240 x 240), so that a peak is a rate
that such a step can reach.
"""

import os
import platform
import time

import numpy as np

from .errors import PerformanceModelError


def best_time(function, repeats=5, least=0.02):
    """Seconds per call: the best of ``repeats`` groups of calls that last ``least`` seconds each."""
    function()
    calls, best = 1, float("inf")
    for _ in range(repeats):
        while True:
            start = time.perf_counter()
            for _ in range(calls):
                function()
            spent = time.perf_counter() - start
            if spent >= least:
                break
            calls = max(calls + 1, int(calls * 1.5 * least / max(spent, 1e-9)))
        best = min(best, spent / calls)
    return best


def gemm_rate(dtype, rows=512, inner=1600, columns=240, xp=np, synchronize=lambda: None):
    """FLOP/s of a matrix product in the given type."""
    a, b = (xp.asarray(np.random.default_rng(0).random(s).astype(dtype)) for s in ((rows, inner), (inner, columns)))
    out = xp.empty((rows, columns), dtype=dtype)

    def product():
        xp.matmul(a, b, out=out)
        synchronize()

    return 2 * rows * inner * columns / best_time(product)


def stream_rate(megabytes=256, xp=np, synchronize=lambda: None):
    """B/s of ``a = b + c`` on arrays too large for caches (two reads, one write; write-allocate not counted)."""
    n = int(megabytes * 1e6 / 8 / 3)
    a, b, c = (xp.ones(n) for _ in range(3))

    def add():
        xp.add(b, c, out=a)
        synchronize()

    return 24 * n / best_time(add, repeats=3)


def tanh_rate(dtype):
    """Activation functions per second, one thread."""
    x = np.linspace(-3, 3, 512 * 240).astype(dtype)
    out = np.empty_like(x)
    return x.size / best_time(lambda: np.tanh(x, out=out))


def call_overhead():
    """Seconds to start a small array operation from Python: what one operator costs without work."""
    x = np.zeros(4)
    return best_time(lambda: np.add(x, x, out=x))


def _world():
    """MPI's communicator of all ranks, or None without mpi4py or with a single rank."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # no mpi4py, or mpi4py without an MPI library
        return None
    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def mpi_rates(world):
    """(latency in s, bandwidth in B/s) between ranks 0 and 1 of ``world``; all ranks must call it."""

    def round_trip(size, repeats):
        buffer = np.zeros(size, dtype=np.uint8)
        world.Barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            if world.rank == 0:
                world.Send(buffer, 1)
                world.Recv(buffer, 1)
            elif world.rank == 1:
                world.Recv(buffer, 0)
                world.Send(buffer, 0)
        return (time.perf_counter() - start) / repeats / 2

    latency = min(round_trip(8, 200) for _ in range(5))
    transfer = min(round_trip(2**22, 10) for _ in range(3))
    return latency, 2**22 / transfer


def gpu_rates():
    """Rates of GPU 0 through CuPy, or None without one.

    Keys: ``double, single, half`` (FLOP/s), ``bandwidth`` (B/s), ``capacity`` (B), ``launch`` (s), ``name, count``.
    """
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception:  # no CuPy, no driver, or no device: each raises its own kind
        return None
    synchronize = cupy.cuda.Stream.null.synchronize
    sizes = {"rows": 16384, "inner": 1600, "columns": 1024, "xp": cupy, "synchronize": synchronize}
    x = cupy.zeros(4)
    return {
        "double": gemm_rate(np.float64, **sizes),
        "single": gemm_rate(np.float32, **sizes),
        "half": gemm_rate(np.float16, **sizes),
        "bandwidth": stream_rate(3000, cupy, synchronize),
        "capacity": cupy.cuda.runtime.memGetInfo()[1],
        "launch": best_time(lambda: cupy.add(x, x, out=x)),
        "name": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "count": count,
    }


def operator_rates():
    """Rates of dpmd's own CPU operators if they offer ``benchmark()``: its dictionary, else None."""
    try:
        from dpmd.kernels import cpu
    except ImportError:
        return None
    benchmark = getattr(cpu, "benchmark", None)
    return benchmark() if benchmark is not None else None


def cores():
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_megabytes():
    """The largest cache that Linux reports for core 0, MB, or None."""
    best = None
    folder = "/sys/devices/system/cpu/cpu0/cache"
    if os.path.isdir(folder):
        for index in os.listdir(folder):
            try:
                with open(f"{folder}/{index}/size") as file:
                    kilobytes = float(file.read().strip().rstrip("K"))
            except (OSError, ValueError):
                continue
            best = max(best or 0.0, kilobytes * 1024 / 1e6)
    return best


def _processor():
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def measure(name="local"):
    """Measure and return (text of a machine file, dictionary of further results).

    Under ``mpiexec`` the network is measured too; ranks other than 0 then return None at once.
    """
    world = _world()
    mpi = mpi_rates(world) if world is not None else None
    if world is not None and world.rank > 0:
        return None
    gpu = gpu_rates()
    double, single = gemm_rate(np.float64), gemm_rate(np.float32)
    stream = stream_rate()
    further = {
        "tanh_per_second_double": tanh_rate(np.float64),
        "tanh_per_second_single": tanh_rate(np.float32),
        "call_overhead_us": call_overhead() * 1e6,
        "operators": operator_rates(),
        "gpu_launch_us": None if gpu is None else gpu["launch"] * 1e6,
    }
    figures = {"node": {"cores": (cores(), "cores that the process may use"), "count": (1, "this machine")}}
    if gpu is None:
        figures["peak"] = {
            "double": (double / 1e12, "numpy, 512 x 1600 x 240, all threads of its BLAS"),
            "single": (single / 1e12, "numpy, 512 x 1600 x 240, all threads of its BLAS"),
        }
        figures["memory"] = {
            "bandwidth": (stream / 1e9, "numpy a = b + c, one thread"),
            "capacity": (_memory() / 1e9, "physical memory"),
        }
        if cache := _cache_megabytes():
            figures["memory"]["cache"] = (cache, "largest cache of core 0")
    else:
        n = gpu["count"]
        figures["node"]["accelerators"] = (n, gpu["name"])
        figures["peak"] = {
            key: (n * gpu[key] / 1e12, "CuPy, 16384 x 1600 x 1024") for key in ("double", "single", "half")
        }
        figures["memory"] = {
            "bandwidth": (n * gpu["bandwidth"] / 1e9, "CuPy a = b + c"),
            "capacity": (n * gpu["capacity"] / 1e9, "device memory"),
        }
    if mpi is not None:
        figures["network"] = {
            "latency": (mpi[0] * 1e6, "8 bytes, ranks 0 and 1"),
            "bandwidth": (mpi[1] / 1e9, "4 MiB, ranks 0 and 1"),
        }
    return _text(name, figures, further), further


def _memory():
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, AttributeError, OSError) as error:
        raise PerformanceModelError("the size of the memory is not known on this system") from error


def _text(name, figures, further):
    notes = (
        f"Measured by dp-perf measure on {_processor()}, numpy {np.__version__}.\n"
        f"tanh, one thread: {further['tanh_per_second_double'] / 1e9:.3g} (fp64) and"
        f" {further['tanh_per_second_single'] / 1e9:.3g} (fp32) thousand million per second;"
        f" starting a small array operation: {further['call_overhead_us']:.2g} µs."
    )
    lines = [
        f'name = "{name}"',
        f'title = "{_processor()}, {figures["node"]["cores"][0]} cores"',
        f'notes = """\n{notes}\n"""',
    ]
    for section, entries in figures.items():
        lines += ["", f"[{section}]"]
        lines += [
            f'{key} = {{ value = {value:.4g}, quality = "measured", source = "{source}" }}'
            for key, (value, source) in entries.items()
        ]
    return "\n".join(lines) + "\n"
