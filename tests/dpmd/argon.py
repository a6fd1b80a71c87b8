"""Argon, a liquid or a crystal: Lennard-Jones atoms, forces shifted to zero at the cutoff, on the host or on a GPU.

In place of a Deep Potential where long trajectories are needed.  Test modules get it as the fixture ``argon``.
"""

from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np

from dpmd import ensembles
from dpmd.device_system import DeviceSystem
from dpmd.kernels.operators import Evaluation
from dpmd.parallel import SerialDomain
from dpmd.parallel.device_domain import DeviceDomain
from dpmd.simulation import Simulation
from dpmd.system import System

N, EPSILON, SIGMA, CUTOFF, SKIN, MASS = 64, 0.0104, 3.4, 6.5, 1.5, 39.948
TIMESTEP = 0.005  # ps
#: settings of an ensemble, where they are not changed
BASE = dict(
    relaxation_time_ps=0.3, chain_length=3, barostat="mtk", pressure_relaxation_time_ps=0.4, coupling="iso",
    bulk_modulus_bar=1000.0, thermostat="csvr", temperature_K=(120.0,), pressure_bar=None,
)  # fmt: skip


@numba.njit
def _evaluate(positions, first, count, indices, forces, virial):
    energy = 0.0
    s6c = (SIGMA / CUTOFF) ** 6
    at_cutoff, slope = 4 * EPSILON * (s6c * s6c - s6c), -24 * EPSILON * (2 * s6c * s6c - s6c) / CUTOFF
    for i in range(len(first)):
        for k in range(first[i], first[i] + count[i]):
            d = positions[indices[k]] - positions[i]
            r2 = (d * d).sum()
            if r2 >= CUTOFF * CUTOFF:
                continue
            r = np.sqrt(r2)
            s6 = (SIGMA * SIGMA / r2) ** 3
            energy += 0.5 * (4 * EPSILON * (s6 * s6 - s6) - at_cutoff - slope * (r - CUTOFF))
            f = -24 * EPSILON * (2 * s6 * s6 - s6) / r - slope  # dE/dr
            for a in range(3):
                forces[i, a] += f * d[a] / r
                for b in range(3):
                    virial[a, b] -= 0.5 * f * d[a] * d[b] / r
    return energy


class Argon:
    """Operators on the host."""

    def evaluate(self, positions, types, neighbors, forces, **_):
        virial = np.zeros((3, 3))
        energy = _evaluate(positions, neighbors.first, neighbors.count, neighbors.indices, forces, virial)
        return Evaluation(np.array([energy]), virial[None], np.zeros(len(neighbors.first)), None, 0)


class ArgonOnDevice:
    """Operators on a device, which are their own result: sums are made when read."""

    overflowed, counted = 0, False

    def __init__(self, device, n=N):
        self.n, self.device, self.kernels = n, device, device.compile((str(Path(__file__).with_suffix(".cu")),), {})
        self.atomic_energies, self.atomic_virials = device.zeros(n, np.float64), device.zeros((n, 9), np.float64)

    def evaluate(self, positions, types, neighbors, forces, **_):
        neighbors.follow()
        self.kernels.warps(
            "argon", self.n, self.n, positions, neighbors.rows, neighbors.counts, neighbors.rows.shape[1], EPSILON,
            SIGMA, CUTOFF, forces, self.atomic_energies, self.atomic_virials,
        )  # fmt: skip
        return self

    @property
    def energies(self):
        return np.array([self.device.download(self.atomic_energies).sum()])

    @property
    def virials(self):
        return self.device.download(self.atomic_virials).sum(axis=0).reshape(1, 3, 3)


def atoms(positions, cell, kelvin):
    """A periodic system with velocities at ``kelvin``."""
    n = len(positions)
    system = System(
        ids=np.arange(1, n + 1), types=np.zeros(n, np.int32), masses=np.full(n, MASS), positions=positions,
        velocities=np.zeros((n, 3)), cell=cell, periodic=np.ones(3, bool), type_names=("Ar",),
    )  # fmt: skip
    ensembles.draw_velocities(system, kelvin, 7)
    return system


def liquid(kelvin, tilt=0.0):
    """64 atoms in a cube of 14.6 Å, or a triclinic cell."""
    edge = 14.6
    cell = np.eye(3) * edge + np.array([[0, 0, 0], [tilt, 0, 0], [-tilt, tilt, 0]])
    grid = (np.indices((4, 4, 4)).reshape(3, -1).T + 0.5) / 4
    return atoms(grid @ cell, cell, kelvin)


def crystal(kelvin, tilt=0.0):
    """32 atoms, 2 x 2 x 2 face-centred cells: the cell keeps its shape when lengths and tilts are free."""
    basis = np.array([(0, 0, 0), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)])
    corners = np.indices((2, 2, 2)).reshape(3, -1).T
    edge = 10.7
    return atoms(((corners[:, None] + basis).reshape(-1, 3) + 0.25) * edge / 2, np.eye(3) * edge, kelvin)


def simulation(steps, device=None, tilt=0.0, structure=liquid, create=ensembles.create, **settings):
    """A simulation on the host or a device; settings : those of ``[ensemble]`` that differ from BASE.

    structure : function(kelvin, tilt); create : makes the ensemble, as :func:`dpmd.ensembles.create`.
    """
    values = SimpleNamespace(**(BASE | settings))
    system = structure(values.temperature_K[0], tilt)
    system.timestep, ensemble = TIMESTEP, create(values, steps, 11)
    if device is None:
        return Simulation(system, Argon(), SerialDomain(CUTOFF, SKIN, 1), ensemble)
    domain = DeviceDomain(CUTOFF, SKIN, 1, device)
    return Simulation(DeviceSystem(system, device), ArgonOnDevice(device, len(system)), domain, ensemble)
