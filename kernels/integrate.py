"""Loops over atoms of the time integrators.

Units: Å, ps, u, eV; ``inverse_mass`` carries the conversion, (Å/ps^2) / (eV/Å), so that
acceleration = force * inverse_mass.
"""

import numpy as np
from numba import njit

# signatures, so that these compile on import and not in the first timed step
_vectors, _numbers = "float64[:, ::1]", "float64[::1]"


@njit(f"void({_vectors}, {_vectors}, {_numbers}, float64)", cache=True)
def kick(velocities, forces, inverse_mass, time):
    """v += a time."""
    for i in range(len(velocities)):
        factor = time * inverse_mass[i]
        for c in range(3):
            velocities[i, c] += factor * forces[i, c]


@njit(f"void({_vectors}, {_vectors}, float64)", cache=True)
def drift(positions, velocities, time):
    """x += v time."""
    for i in range(len(positions)):
        for c in range(3):
            positions[i, c] += time * velocities[i, c]


@njit(f"float64({_vectors}, {_numbers})", cache=True)
def twice_kinetic_energy(velocities, inverse_mass):
    """Sum of m v^2 (eV)."""
    total = 0.0
    for i in range(len(velocities)):
        v2 = velocities[i, 0] ** 2 + velocities[i, 1] ** 2 + velocities[i, 2] ** 2
        total += v2 / inverse_mass[i]
    return total


@njit(f"void({_vectors}, {_vectors}, {_numbers}, float64, float64)", cache=True)
def ornstein_uhlenbeck(velocities, noise, inverse_mass, decay, energy):
    """v <- decay v + sqrt((1 - decay^2) energy / m) noise, with energy = k T in eV."""
    for i in range(len(velocities)):
        width = np.sqrt((1.0 - decay * decay) * energy * inverse_mass[i])
        for c in range(3):
            velocities[i, c] = decay * velocities[i, c] + width * noise[i, c]


@njit(f"UniTuple(float64, 2)({_vectors}, {_vectors})", cache=True)
def largest_norms(forces, velocities):
    """Largest |force| and |velocity| over the atoms; infinity if any is not a number."""
    force2 = speed2 = 0.0
    for i in range(len(forces)):
        f2 = forces[i, 0] ** 2 + forces[i, 1] ** 2 + forces[i, 2] ** 2
        v2 = velocities[i, 0] ** 2 + velocities[i, 1] ** 2 + velocities[i, 2] ** 2
        if not (f2 < np.inf and v2 < np.inf):
            return np.inf, np.inf
        force2, speed2 = max(force2, f2), max(speed2, v2)
    return np.sqrt(force2), np.sqrt(speed2)
