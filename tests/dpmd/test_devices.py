"""Simulations on a device do what they do on the host: every ensemble, whole runs of md-run, lack of memory.

On an emulated device, with few atoms; on a GPU where marked ``gpu``.
"""

import gc
import re
from pathlib import Path

import ase.io
import numpy as np
import pytest

ENSEMBLES = {
    "nve": dict(type="nve"),
    **{f"nvt {t}": dict(type="nvt", thermostat=t) for t in ("nose-hoover", "langevin", "csvr", "berendsen")},
    **{
        f"npt {t}, {b} {c}": dict(type="npt", thermostat=t, barostat=b, coupling=c, pressure_bar=(800.0,))
        for t, b, c in (
            ("nose-hoover", "mtk", "iso"), ("nose-hoover", "mtk", "aniso"), ("nose-hoover", "mtk", "tri"),
            ("csvr", "mtk", "tri"), ("langevin", "mtk", "iso"), ("berendsen", "mtk", "aniso"),
            ("nose-hoover", "berendsen", "iso"), ("csvr", "berendsen", "aniso"), ("langevin", "berendsen", "iso"),
            ("berendsen", "berendsen", "iso"),
        )
    },
    "nph, mtk tri": dict(type="nph", coupling="tri", pressure_bar=(800.0,)),
    "nph, berendsen iso": dict(type="nph", barostat="berendsen", pressure_bar=(800.0,)),
}  # fmt: skip


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", ENSEMBLES)
def test_every_ensemble(name, device, argon):
    """Trajectory, cell, observables and conserved energy as on the host, over rebuilds of the lists."""
    settings = ENSEMBLES[name]
    tilt = 8.0 if settings.get("coupling") == "tri" else 0.0  # beyond half an edge soon: vectors are exchanged
    host, there = (argon.simulation(60, where, tilt, **settings) for where in (None, device))
    for simulation in (host, there):
        simulation.system.origin = np.array([1.0, -2.0, 3.0])
        simulation.run(60)
    a, b = host.system, there.system
    ours, theirs = np.argsort(a.ids), np.argsort(b.ids)
    assert there.domain.rebuilds == host.domain.rebuilds > 1
    assert np.abs(a.unwrapped_positions[ours] - b.unwrapped_positions[theirs]).max() < 1e-8
    assert np.abs(a.velocities[ours] - b.velocities[theirs]).max() < 1e-7
    assert np.abs(a.forces[ours] - b.forces[theirs]).max() < 1e-7
    assert np.abs(a.cell - b.cell).max() < 1e-9
    assert np.abs(a.origin - b.origin).max() < 1e-9
    for key, value in host.observables().items():
        assert there.observables()[key] == pytest.approx(value, rel=1e-8, abs=1e-7), key
    assert there.ensemble.reservoir_energy == pytest.approx(host.ensemble.reservoir_energy, abs=1e-9)
    if settings["type"] in ("npt", "nph"):
        assert abs(a.volume - 14.6**3) > 1e-3


def test_vectors_are_exchanged(device, argon):
    """The same lattice by other vectors, with unwrapped positions where they were."""
    from dpmd.barostats import flip_tilts

    host, there = (argon.simulation(1, where, 9.5, type="nve") for where in (None, device))
    for simulation in (host, there):
        simulation.system.positions = simulation.system.positions + np.array([40.0, -30.0, 20.0])
        simulation.run(0)  # wraps, so that images count
        before, cell = simulation.system.unwrapped_positions, simulation.system.cell.copy()
        flip_tilts(simulation.system)
        assert np.abs(simulation.system.cell - cell).max() > 10
        np.testing.assert_allclose(simulation.system.unwrapped_positions, before, rtol=0, atol=1e-11)
    assert np.array_equal(host.system.cell, there.system.cell)


def test_arrays_on_the_host_are_copies_that_say_so(device, argon):
    system = argon.simulation(1, device, type="nve").system
    with pytest.raises(ValueError, match="read-only"):
        system.velocities[0] = 0.0
    system.velocities = 2 * system.velocities
    twice = system.twice_kinetic_tensor()
    np.testing.assert_allclose(twice, 4 * argon.liquid(120.0).twice_kinetic_tensor(), rtol=1e-12)


# --------------------------------------------------------------------- md-run


@pytest.fixture
def on_device(monkeypatch, device):
    """Let ``--device cuda`` be the device; returns it."""
    monkeypatch.setattr("dpmd.devices.available", lambda: None)
    monkeypatch.setattr("dpmd.devices.CudaDevice", lambda index: device)
    return device


NPT = {"type": "npt", "thermostat": "langevin", "pressure_bar": [1.0], "relaxation_time_ps": 0.1,
       "pressure_relaxation_time_ps": 0.2}  # fmt: skip
OUTPUT = [{"file": "out.extxyz", "every": 5, "velocities": True, "forces": True, "atom_energies": True,
           "atom_virials": True}]  # fmt: skip


def test_md_run(water_run, on_device, thermo_columns):
    """Constant pressure after a minimisation, per-atom outputs and a committee: the files of a run on the host."""
    import ase.io

    settings = dict(
        ensemble=NPT, output=OUTPUT, run={"steps": 10, "skin": 0.6}, minimize={"method": "cg", "max_iterations": 3},
        model={"committee": ["model"], "deviation_every": 5},
    )  # fmt: skip
    assert water_run("--device", "cpu", name="host", **settings)[0] == 0
    frames = ase.io.read("out.extxyz", ":")
    code, printed = water_run("--device", "cuda", "--overwrite", name="there", **settings)
    assert code == 0, printed
    assert "device      cuda:0" in printed
    assert "kernels timed in 5 evaluations after the run" in printed
    assert "force: fitting" in printed
    assert "threads waited" not in printed
    host, there = thermo_columns("host.thermo.csv"), thermo_columns("there.thermo.csv")
    for name, values in host.items():
        np.testing.assert_allclose(there[name], values, rtol=1e-7, atol=1e-6, err_msg=name)
    for one, other in zip(frames, ase.io.read("out.extxyz", ":"), strict=True):
        for name in ("atom_energy", "atom_virial"):
            np.testing.assert_allclose(other.arrays[name], one.arrays[name], rtol=0, atol=1e-6)
        np.testing.assert_allclose(other.get_forces(), one.get_forces(), rtol=0, atol=1e-6)
    deviation = np.loadtxt("there.model_devi.out")
    assert np.abs(deviation[:, 1:]).max() < 1e-9  # the same model twice


def test_md_run_goes_on(water_run, on_device, thermo_columns):
    """A run continued on the device is, to the last bit, one that was not stopped."""
    settings = dict(ensemble=NPT, checkpoint={"every": 5}, output=[])
    for ensemble in (NPT, NPT | {"thermostat": "nose-hoover", "barostat": "berendsen"}):
        settings["ensemble"] = ensemble
        assert water_run("--device", "cuda", "--overwrite", name="whole", **settings, run={"steps": 10})[0] == 0
        assert water_run("--device", "cuda", "--overwrite", name="parts", **settings, run={"steps": 5})[0] == 0
        code, printed = water_run("--device", "cuda", "--continue", name="parts", **settings, run={"steps": 10})
        assert code == 0, printed
        whole, parts = thermo_columns("whole.thermo.csv"), thermo_columns("parts.thermo.csv")
        assert all(np.array_equal(parts[name], values) for name, values in whole.items())


# --------------------------------------------------------------------- from Python


def close(one, other, limit=1e-9):
    for name in ("energy", "forces", "energies", "virial", "virials"):
        if name in one:
            np.testing.assert_allclose(other[name], one[name], rtol=0, atol=limit, err_msg=name)


def test_calculator(find_model, small_water, on_device):
    """One structure that moves, another one of the same size, a changed cell: lists are built on the device."""
    from dpmd import Potential
    from dpmd.errors import InputError

    host, there = (Potential(find_model("water_md0.pb"), device=where, threads=1) for where in ("cpu", "cuda"))
    moved, strained, other = (small_water.copy() for _ in range(3))
    moved.positions += [0.1, 7.0, 0.0]
    strained.set_cell(small_water.cell.array @ [[1.01, 0, 0], [0.02, 1, 0], [0, 0, 0.98]], scale_atoms=True)
    other.rattle(0.05, seed=3)
    other.positions[5] += 0.7
    slab = small_water.copy()
    slab.set_cell([6.2, 6.2, 25.0])
    slab.pbc = [True, True, False]
    for atoms in (small_water, small_water, moved, strained, other, slab, small_water[:9], small_water):
        close(host.evaluate(atoms), there.evaluate(atoms))
    close(host.evaluate(moved, atomic_virials=True), there.evaluate(moved, atomic_virials=True))
    same = small_water.copy()
    same.positions[3] = same.positions[4]
    with pytest.raises(InputError, match="same place"):
        there.evaluate(same)


def test_overflow_is_counted_as_on_the_host(water_run, find_model, small_water, on_device):
    """In atoms per step, and at once by the calculator; lists are built anew in between, and in other arrays."""
    from dpmd import Potential

    dense = small_water.copy()
    dense.set_cell(dense.cell * 0.8, scale_atoms=True)
    ase.io.write("dense.extxyz", dense, format="extxyz")
    for flags in ((), ("--skin", "0.05")):
        code, text = water_run(
            *flags, "--overwrite", structure={"file": "dense.extxyz"},
            run={"steps": 6, "device": "cuda", "max_displacement": 5.0},
        )  # fmt: skip
        assert code == 0, text
        told = re.search(r"(\S+) atoms, on average over the steps, had more", text)
        assert float(told[1]) == 24
    potential = Potential(find_model("water_md0.dp"), "cuda", on_overflow="error")
    with pytest.raises(ValueError, match="24 atoms have more neighbours"):
        potential.evaluate(dense)
    assert potential.evaluate(small_water)["overflowed"] == 0


def test_batch(find_model, small_water, on_device):
    """Structures of several sizes in one call, of a model with parameters too."""
    import ase

    from dpmd import Potential

    tiny = ase.Atoms("OH2", [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]], cell=[4.0] * 3, pbc=True)
    many = [small_water, tiny, ase.Atoms("O"), small_water[:9], tiny]
    for name, parameters in (("water_md0.pb", {}), ("f_faparam.pb", {"fparam": [0.3, 0.1]})):
        host, there = (Potential(find_model(name), device=where, threads=1) for where in ("cpu", "cuda"))
        if parameters:
            fitting = host.model.fitting
            parameters["fparam"] = np.linspace(0.1, 0.3, fitting.n_fparam)
            parameters["aparam"] = [np.linspace(0, 1, len(a) * fitting.n_aparam) for a in many]
        for one, other in zip(host.evaluate(many, **parameters), there.evaluate(many, **parameters), strict=True):
            close(one, other, 1e-8)


def test_from_atoms(find_model, small_water, on_device):
    """A simulation made in one call stays on the device; callbacks see it there."""
    from dpmd import Simulation
    from dpmd.device_system import DeviceSystem

    ends, volumes = [], []
    for where in ("cpu", "cuda"):
        simulation = Simulation.from_atoms(
            small_water, find_model("water_md0.pb"), ensemble="npt", thermostat="csvr", temperature_K=300,
            pressure_bar=1, device=where, precision="double", threads=1, safe=False,
        )  # fmt: skip
        simulation.every(5, lambda s: volumes.append(s.system.volume))
        simulation.run(10)
        system = simulation.system
        ends.append(system.unwrapped_positions[np.argsort(system.ids)])
        assert isinstance(system, DeviceSystem) == (where == "cuda")
    np.testing.assert_allclose(*ends, rtol=0, atol=1e-9)
    np.testing.assert_allclose(volumes[:3], volumes[3:], rtol=1e-10)


# --------------------------------------------------------------------- memory


def test_short_of_memory(device, small_water, find_model, monkeypatch):
    """With little memory left, fewer centres are evaluated at a time, with the same results."""
    from dpmd import Potential
    from dpmd.kernels.cuda import CudaOperators, operators

    potential = Potential(find_model("water_md0.pb"), device="cpu", threads=1)
    monkeypatch.setattr(operators, "LEAST_CHUNK", 2)
    results = []
    for _ in range(2):
        made = CudaOperators(potential.model, "double", device)
        system, domain = potential.system(small_water), potential.domain()
        domain.rebuild(system)
        result = made.evaluate(domain.positions, domain.types, domain.neighbors, domain.forces)
        results.append((made.chunk_in_use, result.energies[0], domain.fold(domain.forces).copy()))
        free = 5 * made.bytes_per_centre(0)
        monkeypatch.setattr(device, "memory", lambda free=free: (free, 10**9, 0))
    (whole, energy, forces), (part, same_energy, same_forces) = results
    assert whole == 16
    assert part == 4
    assert same_energy == pytest.approx(energy, abs=1e-11)
    np.testing.assert_allclose(same_forces, forces, rtol=0, atol=1e-11)


def test_no_memory_left(water_run, on_device, monkeypatch):
    """What does not fit is refused before the first step."""
    from dpmd.kernels.cuda import DeviceError
    from dpmd.parallel.device_domain import DeviceDomain

    def refuse(shape, dtype):
        raise DeviceError("out of memory")

    class Refused(DeviceDomain):
        def rebuild(self, system):  # where most memory is taken
            monkeypatch.setattr(on_device, "empty", refuse)
            super().rebuild(system)

    monkeypatch.setattr("dpmd.devices.DeviceDomain", Refused)
    code, printed = water_run("--device", "cuda", run={"steps": 3})
    assert code == 2
    assert "24 atoms do not fit into its memory" in printed
    assert "--device cpu" in printed


@pytest.mark.gpu
def test_memory_is_held_by_others(gpu, water_run, monkeypatch):
    """With most of the card's memory taken, a run uses smaller chunks; with all of it, it stops before step 0."""
    import ase.io

    from dpmd import Potential, Simulation

    monkeypatch.setattr("dpmd.devices.CudaDevice", lambda index: gpu)
    water = Path(__file__).resolve().parents[2] / "examples" / "water"
    atoms = ase.io.read(water / "water.extxyz").repeat((5, 5, 5))
    held, runtime = [], gpu.xp.cuda.runtime

    def hold(left):
        gc.collect()  # what a simulation held is in cycles
        gpu.release()
        held.append(runtime.malloc(runtime.memGetInfo()[0] - left))

    ends = []
    try:
        for left in (None, 400 << 20):
            potential = Potential(water / "water.dp", device="cuda", precision="mixed")
            if left:
                hold(left)
            simulation = Simulation.from_atoms(atoms, potential, ensemble="nve", initial_temperature_K=300)
            simulation.run(20)
            ends.append((simulation.operators.chunk_in_use, simulation.observables()["total_eV"] / len(atoms)))
            del simulation, potential
        (whole, energy), (part, same_energy) = ends
        assert whole == 16000
        assert 256 <= part < 0.8 * whole
        assert same_energy == pytest.approx(energy, abs=1e-6)
        runtime.free(held.pop())
        ase.io.write("start.extxyz", atoms)
        (Path.cwd() / "model").write_bytes((water / "water.dp").read_bytes())
        hold(24 << 20)
        code, printed = water_run("--device", "cuda", run={"steps": 3}, structure={"masses_u": None})
        assert code == 2
        assert "out of memory" in printed
    finally:
        for pointer in held:
            runtime.free(pointer)
    assert water_run("--device", "cuda", "--overwrite", run={"steps": 3}, structure={"masses_u": None})[0] == 0
