"""Fixtures for all tests.

Test modules are collected with ``--import-mode=importlib`` and cannot import one another, nor
``fixtures.py``; what they share comes from here.  Fixtures:

``reference_case``
    one :class:`fixtures.ReferenceCase` (model file, structure, reference results of DeePMD-kit);
    the test is repeated for each.  ``@pytest.mark.reference_cases(models=[...],
    structures=[...], largest=N)`` keeps some of them.
``model_path``
    one model file that dpmd reads; the test is repeated for each.
``refused_model``
    one ``(model file, words that the message must contain)``; repeated for each.
``find_model``
    function: name such as ``"water_md0.pb"`` -> path.
``find_cases``
    function: the same filters as the marker -> list of reference cases.
``mpi_start``
    function: number of ranks, program and its arguments, ``launcher=`` options of mpiexec, ``cwd=`` folder,
    ``NAME=`` environment variables -> the started process.
``mpi_run``
    the same, to its end -> exit code and all output.
``emulated``
    a device for the CUDA kernels made of numpy and the host's C++ compiler; slow.
``gpu``
    the first GPU; without one the test is skipped.  For tests marked ``gpu``.

Helpers that need no fixture belong into the test module that uses them.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def _neighbor_module(name):
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"dpmd_tests_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fixtures = _neighbor_module("fixtures")


def pytest_configure(config):
    config.addinivalue_line("markers", "reference_cases(models, structures, largest): which cases to run")


def pytest_generate_tests(metafunc):
    if "reference_case" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("reference_cases")
        cases = fixtures.fixture_cases(**(marker.kwargs if marker else {}))
        metafunc.parametrize("reference_case", cases, ids=map(str, cases))
    if "model_path" in metafunc.fixturenames:
        paths = fixtures.model_files()
        metafunc.parametrize("model_path", paths, ids=[p.name for p in paths])
    if "refused_model" in metafunc.fixturenames:
        files = fixtures.refused_files()
        metafunc.parametrize("refused_model", files, ids=[p.name for p, _ in files])


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory):
    """A folder apart from the checkout for all tests: ``python -c`` and ``-m`` put their folder on the path.

    Children would import dpmd from the checkout, and what is tested would not be what is installed.
    """
    os.chdir(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="session")
def find_model():
    return fixtures.model_file


@pytest.fixture(scope="session")
def find_cases():
    return fixtures.fixture_cases


@pytest.fixture(scope="session")
def mpi_start():
    # the environment's own mpiexec rather than the system's
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    patient = {  # with ranks that share cores
        "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }

    def start(n, program, *arguments, launcher=(), cwd=None, **environment):
        return subprocess.Popen(
            [mpiexec, *launcher, "-n", str(n), sys.executable, "-m", "mpi4py", program, *arguments],
            env={**os.environ, **patient, **environment}, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    return start


@pytest.fixture(scope="session")
def mpi_run(mpi_start):
    def run(n, program, *arguments, seconds=400, **more):
        process = mpi_start(n, program, *arguments, **more)
        try:
            text, _ = process.communicate(timeout=seconds)
        finally:
            process.kill()
        return process.returncode, text

    return run


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++ to emulate kernels with")
    return _neighbor_module("kernels/emulated_device").EmulatedDevice(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def gpu():
    from dpmd.kernels.cuda import CudaDevice, available

    reason = available()
    if reason:
        pytest.skip(reason)
    return CudaDevice(0)
