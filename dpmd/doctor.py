"""What ``dpmd doctor`` finds out: versions, devices, MPI, and whether the operators compute what they should."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmd.kernels.threads import available_cores
from dpmd.models import ModelError

from .errors import InputError
from .log import processor_name, versions

GOOD, NOTE, BAD = "ok", "--", "!!"
#: model and structure for the trial, with the reference operators' results
TRIAL_MODEL = Path(__file__).with_name("data") / "tiny_water.dp"
TRIAL_RESULTS = Path(__file__).with_name("data") / "tiny_water.json"
#: largest error of energy per atom (eV) and forces (eV/Å) that passes
_TOLERANCES = {"double": 1e-8, "mixed": 1e-4}

_MPI_PROBE = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(mpi4py.__version__, MPI.Get_library_version().split(chr(0))[0].splitlines()[0], sep="|")
"""
_CUDA_PROBE = """
import cupy
runtime = cupy.cuda.runtime
print(cupy.__version__, runtime.driverGetVersion(), runtime.runtimeGetVersion())
for k in range(runtime.getDeviceCount()):
    p = runtime.getDeviceProperties(k)
    print(p["name"].decode(), p["totalGlobalMem"] // 2**30, f"{p['major']}.{p['minor']}", sep="|")
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report: a status (:data:`GOOD`, :data:`NOTE`, :data:`BAD`), what, and what to do."""

    status: str
    name: str
    text: str
    remedy: str = ""


def _probe(code, timeout=120):
    """``(output, error)`` of a few lines of Python in a process of its own, which may crash or hang."""
    # a launcher's variables would make the child believe that it is one of the launcher's ranks
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_", "PMIX_", "MV2_"))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {timeout} s"
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return (done.stdout.strip(), "") if done.returncode == 0 else (None, last[0])


def machine():
    """Findings about processor, memory and threads."""
    usable, there = available_cores(), os.cpu_count() or 1
    yield Finding(GOOD, "processor", f"{processor_name()}; {usable} of {there} cores usable")
    yield Finding(GOOD, "vectors", _vector_units())
    yield Finding(GOOD, "system", f"{platform.system()} {platform.release()} {platform.machine()}{_memory()}")
    limits = [
        f"{k}={os.environ[k]}" for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS") if k in os.environ
    ]
    if limits:
        yield Finding(NOTE, "threads", f"{', '.join(limits)} set; dpmd goes by --threads and the usable cores")


def _vector_units():
    from llvmlite import binding

    try:
        features = binding.get_host_cpu_features()
        found = [name for name in ("sse4.2", "avx", "avx2", "fma", "avx512f", "neon", "sve") if features.get(name)]
    except RuntimeError:
        found = []
    return f"{' '.join(found) or 'unknown'} ({binding.get_host_cpu_name()})"


def _memory():
    try:
        return f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB of memory"
    except (ValueError, OSError, AttributeError):
        return ""


def software():
    """Findings about packages and folders."""
    yield Finding(GOOD, "versions", ", ".join(f"{name} {version}" for name, version in versions()))
    for package, purpose in (("matplotlib", "plots and 'dpmd report'"), ("dpdata", "reading dpdata systems")):
        if importlib.util.find_spec(package):
            yield Finding(GOOD, package, importlib.metadata.version(package))
        else:
            yield Finding(NOTE, package, f"not installed; needed only for {purpose}", f"pip install {package}")
    yield _cache()


def _cache():
    from platformdirs import user_cache_path

    folder = user_cache_path("dpmd")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f"doctor.{os.getpid()}"
        trial.write_text("")
        trial.unlink()
    except OSError as error:
        return Finding(
            NOTE, "cache", f"{folder} cannot be written ({error.strerror}); tables are made at every start",
            "set XDG_CACHE_HOME to a folder that can be written, or give models as .dptab (dpmd compress)",
        )  # fmt: skip
    return Finding(GOOD, "cache", f"tables of models are kept in {folder}")


def parallel():
    """Findings about MPI."""
    beside = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    starter = next(filter(None, (shutil.which(name, path=beside) for name in ("mpiexec", "mpirun", "srun"))), None)
    if importlib.util.find_spec("mpi4py") is None:
        yield Finding(
            NOTE, "MPI", "mpi4py is not installed; runs use one process and its threads",
            "pip install '.[mpi]' in a checkout of dpmd, for several nodes, or many cores",
        )  # fmt: skip
        return
    output, error = _probe(_MPI_PROBE)
    if output is None:
        yield Finding(
            BAD, "MPI", f"mpi4py is installed, but finds no MPI library ({error})",
            "pip install mpich, or load your cluster's MPI module",
        )  # fmt: skip
        return
    version, library = output.split("|", 1)
    yield Finding(GOOD, "MPI", f"mpi4py {version} with {' '.join(library.split())}")
    if starter is None:
        yield Finding(NOTE, "launcher", "no mpiexec, mpirun or srun on the path", "load your cluster's MPI module")
    else:
        yield Finding(GOOD, "launcher", starter)


def devices():
    """``(findings about GPUs, True if CUDA can be used)``."""
    names = _gpus_of_driver()
    if importlib.util.find_spec("cupy") is None:
        if names:
            remedy = "pip install '.[cuda12]' in a checkout of dpmd, or '.[cuda13]' for drivers from version 580 on"
            return [Finding(NOTE, "GPU", f"{', '.join(names)}, but CuPy is not installed", remedy)], False
        return [Finding(NOTE, "GPU", "no NVIDIA GPU found; runs use the CPU")], False
    output, error = _probe(_CUDA_PROBE)
    if output is None:
        remedy = "install the CuPy that fits the driver: cupy-cuda12x or cupy-cuda13x" if names else ""
        what = ", ".join(names) or "no NVIDIA GPU found; runs use the CPU"
        return [
            Finding(BAD if names else NOTE, "GPU", f"{what}; CuPy is installed, but answers: {error}", remedy)
        ], False
    head, *lines = output.splitlines()
    version, driver, runtime = head.split()
    found = [Finding(GOOD, "CUDA", f"CuPy {version}, driver for CUDA {_cuda(driver)}, runtime {_cuda(runtime)}")]
    for number, text in enumerate(lines):
        name, memory, capability = text.split("|")
        found.append(Finding(GOOD, f"GPU {number}", f"{name}, {memory} GiB, compute capability {capability}"))
    return found, bool(lines)


def _cuda(number):
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


def _gpus_of_driver():
    """Names of the GPUs that NVIDIA's driver knows."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


# --------------------------------------------------------------------- computing


def trial_structure():
    """The structure of the trial (ASE Atoms) and the stored results: energy, forces, virial."""
    import ase

    stored = json.loads(TRIAL_RESULTS.read_text(encoding="utf-8"))
    atoms = ase.Atoms(stored["symbols"], stored["positions"], cell=stored["cell"], pbc=True)
    return atoms, {name: np.array(stored[name]) for name in ("energy", "forces", "virial")}


def _seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _compute(device, precision):
    from .potential import Potential

    name = f"{device}, {precision}"
    atoms, stored = trial_structure()
    try:
        potential = Potential(TRIAL_MODEL, device, precision)
        result = potential.evaluate(atoms)
        elapsed = min(_seconds(lambda: potential.evaluate(atoms)) for _ in range(5))
    except (InputError, ModelError) as error:
        return Finding(NOTE, name, str(error))
    except Exception as error:  # whatever is broken on this machine
        return Finding(BAD, name, f"fails: {type(error).__name__}: {error}", "please report it with this whole page")
    energy = abs(result["energy"] - stored["energy"]) / len(atoms)
    forces = np.abs(result["forces"] - stored["forces"]).max()
    numbers = f"errors {energy:.0e} eV/atom and {forces:.0e} eV/Å"
    if not max(energy, forces) < _TOLERANCES[precision]:
        return Finding(BAD, name, f"computes wrong numbers: {numbers}", "please report it with this whole page")
    return Finding(GOOD, name, f"{numbers}; {len(atoms)} atoms in {1e3 * elapsed:.2f} ms")


def computing(cuda):
    """Findings about the operators on each device; ``cuda``: whether there is one."""
    for device in ("cpu", "cuda") if cuda else ("cpu",):
        for precision in _TOLERANCES:
            yield _compute(device, precision)


def examine():
    """All findings, as ``[(title, [findings])]``."""
    gpus, cuda = devices()
    return [
        ("Machine", list(machine())),
        ("Software", list(software())),
        ("Several processes", list(parallel())),
        ("GPUs", gpus),
        ("Computing: a small model against stored numbers", list(computing(cuda))),
    ]
