"""Kernels for GPUs: compiled by nvcc where there is one, emulated on a CPU, and, marked ``gpu``, run on a GPU."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dpmd.barostats import Coupling, NoseHooverBarostat
from dpmd.device_system import DeviceSystem
from dpmd.ensembles import (
    Langevin,
    NoseHooverChain,
    Ramp,
    StochasticVelocityRescaling,
    VelocityVerlet,
    draw_velocities,
)
from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.cuda import CudaOperators, available
from dpmd.kernels.cuda.device import source
from dpmd.models import load
from dpmd.models.tables import can_tabulate, tabulate
from dpmd.parallel import SerialDomain
from dpmd.parallel.device_domain import DeviceDomain
from dpmd.potential import Potential
from dpmd.simulation import Simulation
from dpmd.system import System

ARCHITECTURES = ("sm_75", "sm_80", "sm_90")
#: models whose kernels are emulated: one for each rule that a kernel knows
EMULATED = ["f_exclude", "f_faparam", "f_atomener", "f_relu6", "f_resnetdt", "f_rect_nets", "water_md0_c"]
VARIANTS = {
    "double": {"REAL": "double"},
    "double-exact": {"REAL": "double", "EXACT": 1, "N_EMBEDDING": 24, "N_AXIS": 4},
    "mixed": {"REAL": "float", "INPUT_KIND": 2, "N_BASIS": 16},
    "mixed-full": {"REAL": "float", "INPUT_KIND": 2, "SHARED_SELECTION": 1, "N_TYPES": 3},
    "half": {"REAL": "float", "INPUT_KIND": 1, "N_BASIS": 32, "N_TYPES": 1},
}


# --------------------------------------------------------------------- compilation


def compile_with_nvcc(code, options, architecture, folder):
    (folder / "kernels.cu").write_text(code, encoding="utf-8")
    command = ["nvcc", "-std=c++17", f"-arch={architecture}", "-cubin", *options, "kernels.cu", "-o", "kernels.cubin"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def compile_with_nvrtc(code, options, architecture):
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="neither nvcc nor NVRTC (cuda-bindings) is here")
    status, program = nvrtc.nvrtcCreateProgram(code.encode(), b"kernels.cu", 0, [], [])
    options = [o.encode() for o in ("-std=c++17", f"-arch={architecture}", *options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("variant", [*VARIANTS, "atoms"])
def test_kernels_compile(variant, architecture, tmp_path):
    names = ("atoms.cu",) if variant == "atoms" else ("embedding.cu", "fitting.cu", "few.cu")
    code = source("common.cuh", *names)
    options = [f"-D{name}={value}" for name, value in VARIANTS.get(variant, {}).items()]
    if shutil.which("nvcc"):
        compile_with_nvcc(code, options, architecture, tmp_path)
    else:
        compile_with_nvrtc(code, options, architecture)


# --------------------------------------------------------------------- operators


def compare(result, reference, limit):
    n = len(reference["atype"])
    largest = max(1.0, np.abs(reference["force"]).max())
    assert abs(result["energy"] - reference["energy"]) < limit * n
    assert np.abs(result["energies"] - reference["atom_energy"]).max() < 10 * limit
    assert np.abs(result["forces"] - reference["force"]).max() < limit * largest
    assert np.abs(result["virial"].ravel() - reference["virial"]).max() < 10 * limit * n
    assert np.abs(result["virials"].reshape(-1, 9) - reference["atom_virial"]).max() < 10 * limit


@pytest.mark.parametrize("few", [False, True], ids=["many", "few"])
@pytest.mark.parametrize("model", EMULATED)
def test_emulated_double(model, find_cases, evaluate, emulated, few):
    if few and model not in ("f_rect_nets", "f_faparam"):
        pytest.skip("fitting networks are all that differs")
    (case, *_) = find_cases(models=[model], structures=["wcluster60_nopbc" if few else "wsmall24_6.2A"])
    compare(evaluate(CudaOperators(load(case.model), "double", emulated, few=few), case), case.load(), 1e-9)


@pytest.mark.parametrize(("precision", "limit"), [("mixed", 1e-5), ("half", 5e-4)])
def test_emulated_single(find_cases, evaluate, emulated, precision, limit):
    """rms error of forces over their rms, with split bf16 and with fp16 products."""
    (case, *_) = find_cases(models=["f_faparam"], structures=["wcluster60_nopbc"])
    operators = CudaOperators(tabulate(load(case.model)), precision, emulated)
    result, reference = evaluate(operators, case), case.load()
    rms = np.sqrt((reference["force"] ** 2).mean())
    assert np.sqrt(((result["forces"] - reference["force"]) ** 2).mean()) < limit * max(rms, 0.1)
    if precision == "mixed":  # what minimisations end with
        double = operators.in_double()
        assert np.abs(evaluate(double, case)["forces"] - reference["force"]).max() < 1e-7
        assert double.device is operators.device
        assert double.in_double() is double


def test_emulated_overflow(find_cases, evaluate, emulated):
    """With lowered sel the nearest neighbours count, by the rule of the file's origin."""
    from dataclasses import replace

    case = find_cases(models=["water_md0_c"], structures=["wcluster60_nopbc"])[0]
    model = load(case.model)
    for shared in (False, True):
        fewer = replace(model, descriptor=replace(model.descriptor, sel=(8, 15), shared_selection=shared))
        mine = evaluate(CudaOperators(fewer, "double", emulated), case)
        theirs = evaluate(CpuOperators(fewer, "double", 1), case)
        assert mine["overflowed"] == theirs["overflowed"] > 0
        assert np.abs(mine["forces"] - theirs["forces"]).max() < 1e-9


def trained(name, gpu_or_emulation, precision, low_rank, structure, few=False):
    """Errors of a bundled model: (force rms / rms force, largest eV/Å, energy eV/atom)."""
    potential = Potential(structure.with_suffix(".dp"), device="cpu", threads=1)
    import ase.io

    atoms = ase.io.read(structure)
    atoms.rattle(0.08, seed=1)
    system, domain = potential.system(atoms), potential.domain()
    domain.rebuild(system)
    values = []
    for operators in (
        CpuOperators(potential.loaded.exact, "double"),
        CudaOperators(potential.model, precision, gpu_or_emulation, low_rank=low_rank, few=few),
    ):
        forces = np.zeros_like(domain.forces)
        result = operators.evaluate(domain.positions, domain.types, domain.neighbors, forces)
        values.append((result.energies[0], domain.fold(forces).copy()))
    (e0, f0), (e1, f1) = values
    difference, rms = f1 - f0, np.sqrt((f0**2).mean())
    return np.sqrt((difference**2).mean()) / rms, np.abs(difference).max(), abs(e1 - e0) / len(atoms)


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_emulated_low_rank(emulated):
    force, _, energy = trained("water", emulated, "mixed", True, EXAMPLES / "water" / "water.extxyz")
    assert force < 1e-5
    assert energy < 1e-6


# --------------------------------------------------------------------- simulations

ENSEMBLES = {
    "nve": lambda: VelocityVerlet(),
    "nose-hoover": lambda: NoseHooverChain(Ramp(300.0), 0.05),
    "langevin": lambda: Langevin(Ramp(300.0), 0.1, seed=7),
    "csvr": lambda: StochasticVelocityRescaling(Ramp(300.0), 0.05, seed=7),
    "mtk": lambda: NoseHooverBarostat(Coupling.of_kind("tri", Ramp(1.0), 0.2), Ramp(300.0), 0.05),
}


def start(case, type_names):
    arrays = case.load()
    n, periodic = len(arrays["atype"]), len(arrays["box"]) > 0
    types = arrays["atype"].astype(np.int32)
    system = System(
        ids=np.arange(1, n + 1), types=types, masses=np.where(types == 0, 16.0, 2.0),
        positions=arrays["coord"].astype(float), velocities=np.zeros((n, 3)),
        cell=arrays["box"].astype(float) if periodic else np.eye(3), periodic=np.full(3, periodic),
        type_names=type_names, timestep=5e-4,
    )  # fmt: skip
    draw_velocities(system, 600.0, seed=3)
    return system


def both(case, device, ensemble, steps, **options):
    """The same run on a CPU and on the device, in double precision: two Simulations."""
    model = load(case.model)
    on_cpu = Simulation(
        start(case, model.type_map), CpuOperators(model, "double", 1), SerialDomain(model.cutoff, 0.3, model.n_types),
        ENSEMBLES[ensemble](),
    )  # fmt: skip
    on_device = Simulation(
        DeviceSystem(start(case, model.type_map), device), CudaOperators(model, "double", device, **options),
        DeviceDomain(model.cutoff, 0.3, model.n_types, device, with_virial=ensemble == "mtk"), ENSEMBLES[ensemble](),
    )  # fmt: skip
    for simulation in (on_cpu, on_device):
        simulation.run(steps)
    return on_cpu, on_device


def assert_same(on_cpu, on_device, limit):
    a, b = on_cpu.system, on_device.system
    by_id, also_by_id = np.argsort(a.ids), np.argsort(b.ids)
    assert on_device.domain.rebuilds == on_cpu.domain.rebuilds > 1
    assert on_device.domain.n_ghosts == on_cpu.domain.n_ghosts
    assert on_device.domain.neighbors.mean == pytest.approx(on_cpu.domain.neighbors.count.mean(), rel=1e-3)
    assert np.abs(a.unwrapped_positions[by_id] - b.unwrapped_positions[also_by_id]).max() < limit
    assert np.abs(a.velocities[by_id] - b.velocities[also_by_id]).max() < 1e3 * limit
    assert np.abs(a.forces[by_id] - b.forces[also_by_id]).max() < 1e3 * limit
    for name, value in on_cpu.observables().items():
        assert on_device.observables()[name] == pytest.approx(value, rel=1e-9, abs=1e-7, nan_ok=True), name
    assert np.abs(a.virial - b.virial).max() < 1e-7


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_emulated_trajectories(ensemble, find_cases, emulated):
    structure = "wcluster60_nopbc" if ensemble == "langevin" else "wsmall24_6.2A"
    (case, *_) = find_cases(models=["water_md0_c"], structures=[structure])
    assert_same(*both(case, emulated, ensemble, 12), 1e-11)


# --------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("few", [False, True], ids=["many", "few"])
@pytest.mark.reference_cases
def test_gpu_double(reference_case, evaluate, gpu, few, operators_of):
    def kind(model):
        return CudaOperators(model, "double", gpu, few=few)

    limit = 1e-6 if reference_case.model.stem == "f_float32" else 1e-9
    compare(
        evaluate(operators_of(reference_case.model, kind, lambda m: m), reference_case), reference_case.load(), limit
    )


@pytest.mark.gpu
@pytest.mark.reference_cases(largest=300)
def test_gpu_tabulated(reference_case, evaluate, gpu):
    model = load(reference_case.model)
    if not can_tabulate(model):
        pytest.skip("relu cannot be tabulated")
    limit = 1e-6 if reference_case.model.stem == "f_float32" else 1e-7
    compare(evaluate(CudaOperators(tabulate(model), "double", gpu), reference_case), reference_case.load(), limit)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["water", "copper"])
@pytest.mark.parametrize(
    ("precision", "low_rank", "limit"),
    [("double", False, 1e-9), ("double", True, 1e-8), ("mixed", True, 1e-5), ("half", True, 5e-4)],
)
def test_gpu_trained(name, precision, low_rank, limit, gpu):
    force, largest, energy = trained(name, gpu, precision, low_rank, EXAMPLES / name / f"{name}.extxyz")
    assert (largest if precision == "double" and low_rank else force) < limit
    assert energy < {"double": 1e-8, "mixed": 1e-6, "half": 1e-4}[precision]


@pytest.mark.gpu
@pytest.mark.parametrize("ensemble", ENSEMBLES)
@pytest.mark.parametrize("few", [False, True], ids=["many", "few"])
def test_gpu_trajectories(ensemble, few, find_cases, gpu):
    (case, *_) = find_cases(models=["water_md0_c"], structures=["wsmall24_6.2A"])
    assert_same(*both(case, gpu, ensemble, 40, few=few), 1e-9)


@pytest.mark.gpu
def test_gpu_runs_are_bitwise_the_same(find_cases, gpu):
    (case, *_) = find_cases(models=["water_md0_c"], structures=["wsmall24_6.2A"])
    model = load(case.model)
    ends = []
    for _ in range(2):
        system = DeviceSystem(start(case, model.type_map), gpu)
        domain = DeviceDomain(model.cutoff, 0.3, model.n_types, gpu)
        Simulation(system, CudaOperators(model, "mixed", gpu), domain, VelocityVerlet()).run(200)
        ends.append(system.positions[np.argsort(system.ids)])
    assert np.array_equal(*ends)


def test_a_missing_gpu_is_explained(find_model):
    if available() is None:
        pytest.skip("there is a GPU")
    from dpmd.errors import InputError

    with pytest.raises(InputError, match=r"cuda:0: (CuPy|The CUDA|the CUDA|no NVIDIA).*--device cpu"):
        Potential(find_model("water_md0_c.pb"), device="cuda")
    assert Potential(find_model("water_md0_c.pb"), device="auto").device == "cpu"
    with pytest.raises(InputError, match="choose auto, cpu, cuda"):
        Potential(find_model("water_md0_c.pb"), device="gpu7")
