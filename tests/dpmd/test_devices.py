"""Simulations on a device do what they do on the host: every ensemble, whole runs of md-run, lack of memory.

On an emulated device, with few atoms; on a GPU where marked ``gpu``.
"""

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
    assert "not there yet" not in printed
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
