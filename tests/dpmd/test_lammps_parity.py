"""NVE runs of LAMMPS + DeePMD-kit, reproduced from their step 0: energies, pressure, trajectory."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpmd.ensembles import VelocityVerlet
from dpmd.potential import Potential
from dpmd.simulation import Simulation
from dpmd.system import System
from dpmd.units import pressure_tensor

DATA = Path(__file__).resolve().parents[1] / "data" / "lammps"
MASSES = {"Cu": 63.546, "O": 16.0, "H": 2.0}
RUNS = {
    # name: (model, elements of types 1, 2, ...; time step ps; periodic)
    "water_md0_nve": ("water_md0.pb", "OH", 0.0005, "ppp"),
    "water_nve": ("water.dp", "OH", 0.0005, "ppp"),
    "water_tri_nve": ("water.dp", "OH", 0.0005, "ppp"),
    "water_nopbc": ("water.dp", "OH", 0.0005, "fff"),
    "water_mixedbc_ppf": ("water.dp", "OH", 0.0005, "ppf"),
    "cu_nve": ("copper.dp", ["Cu"], 0.002, "ppp"),
}


def read_dump(path):
    """Frames {step: (columns {name: array}, cell)} with atoms in id order."""
    frames = {}
    with gzip.open(path, "rt") as file:
        while file.readline():
            step = int(file.readline())
            file.readline()
            n = int(file.readline())
            tilted = "xy xz yz" in file.readline()
            bounds = np.array([[float(v) for v in file.readline().split()] for _ in range(3)])
            names = file.readline().split()[2:]
            rows = np.array([[float(v) for v in file.readline().split()] for _ in range(n)])
            columns = dict(zip(names, rows[np.argsort(rows[:, 0])].T, strict=True))
            low, high = bounds[:, 0].copy(), bounds[:, 1].copy()
            xy, xz, yz = bounds[:, 2] if tilted else (0.0, 0.0, 0.0)
            low[0] -= min(0.0, xy, xz, xy + xz)
            high[0] -= max(0.0, xy, xz, xy + xz)
            low[1] -= min(0.0, yz)
            high[1] -= max(0.0, yz)
            cell = np.diag(high - low)
            cell[1, 0], cell[2, 0], cell[2, 1] = xy, xz, yz
            frames[step] = columns, cell
    return frames


def read_log(path):
    """Thermo columns {name: array} of a LAMMPS log with one run."""
    lines = path.read_text().splitlines()
    start = next(k for k, line in enumerate(lines) if line.split()[:2] == ["Step", "PotEng"])
    end = next(k for k, line in enumerate(lines) if line.startswith("Loop time"))
    rows = np.array([[float(v) for v in line.split()] for line in lines[start + 1 : end]])
    return dict(zip(lines[start].split(), rows.T, strict=True))


def vectors(columns, *names):
    return np.stack([columns[name] for name in names], axis=1)


@pytest.mark.parametrize("name", RUNS)
def test_nve(name, find_model):
    model, elements, timestep, boundary = RUNS[name]
    frames, log = read_dump(DATA / f"{name}.dump.gz"), read_log(DATA / f"{name}.log")
    columns, cell = frames[0]
    types = columns["type"].astype(int) - 1
    potential = Potential(find_model(model), precision="double", skin=2.0)
    names = [elements[t] for t in types]
    system = System(
        ids=columns["id"].astype(int),
        types=np.array([potential.type_map.index(n) for n in names], np.int32),
        masses=np.array([MASSES[n] for n in names]),
        positions=vectors(columns, "x", "y", "z"),
        velocities=vectors(columns, "vx", "vy", "vz"),
        cell=cell,
        periodic=np.array([b == "p" for b in boundary]),
        type_names=tuple(potential.type_map),
        timestep=timestep,
    )
    simulation = Simulation(system, potential.operators, potential.domain(), VelocityVerlet())
    simulation.run(0)
    order = np.argsort(system.ids)
    assert system.energy == pytest.approx(log["PotEng"][0], rel=1e-9, abs=1e-9 * len(types))
    assert system.energy + system.kinetic_energy == pytest.approx(log["TotEng"][0], rel=1e-6)
    # LAMMPS' own constants differ from CODATA by up to 1e-7, and the volume of open boxes is its own
    volume = log["Volume"][0]
    pressure = np.trace(pressure_tensor(system.twice_kinetic_tensor(), system.virial, volume)) / 3
    assert pressure == pytest.approx(log["Press"][0], rel=1e-6)
    # low-rank tables, as by default: 1e-8 (test_against_deepmd.py holds full tables to 1e-9)
    assert np.abs(system.forces[order] - vectors(columns, "fx", "fy", "fz")).max() < 1e-8

    last = min(50, max(frames))
    simulation.run(last)
    columns, _ = frames[last]
    order = np.argsort(system.ids)
    expected = vectors(columns, "x", "y", "z") + vectors(columns, "ix", "iy", "iz") @ cell
    assert np.abs(system.unwrapped_positions[order] - expected).max() < 1e-6
    at_last = list(log["Step"]).index(last)
    assert system.energy + system.kinetic_energy == pytest.approx(log["TotEng"][at_last], rel=1e-6)
