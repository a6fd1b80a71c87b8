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


@njit("float64(float64[:, :])", cache=True)
def determinant(m):
    """Of a 3x3 matrix; numpy's takes ten times as long."""
    return (
        m[0, 0] * (m[1, 1] * m[2, 2] - m[1, 2] * m[2, 1])
        - m[0, 1] * (m[1, 0] * m[2, 2] - m[1, 2] * m[2, 0])
        + m[0, 2] * (m[1, 0] * m[2, 1] - m[1, 1] * m[2, 0])
    )


@njit("float64[:, ::1](float64[:, :], float64[:, :])", cache=True)
def change_of_cell(old, new):
    """old^-1 new (3, 3): positions (rows) times this keep their fractions of the cell."""
    inverse, volume = np.empty((3, 3)), determinant(old)
    for i in range(3):
        for k in range(3):
            a, b, c, d = (k + 1) % 3, (k + 2) % 3, (i + 1) % 3, (i + 2) % 3
            inverse[i, k] = (old[a, c] * old[b, d] - old[a, d] * old[b, c]) / volume
    found = np.zeros((3, 3))
    for i in range(3):
        for k in range(3):
            for j in range(3):
                found[i, j] += inverse[i, k] * new[k, j]
    return found


@njit(
    f"UniTuple(float64, 2)({_numbers}, {_numbers}, {_numbers}, float64, float64, float64, float64, int64, float64)",
    cache=True,
)
def chain_half_step(eta, u, mass, twice_kinetic, target, kt, timestep, cycles, drag):
    """Move a Nose-Hoover chain; see :class:`dpmd.ensembles.Chain`.  Returns (factor of the velocities, energy, eV)."""
    last, total, h = len(u) - 1, 1.0, timestep / cycles
    for _ in range(cycles):
        for half in range(2):
            # down the chain with the drag, and up again without
            for i in range(last + 1):
                k = i if half else last - i
                # a quarter step of u_k under its force and the friction of u_(k+1)
                force = (twice_kinetic - target if k == 0 else mass[k - 1] * u[k - 1] ** 2 - kt) / mass[k]
                friction = np.exp(-h / 8 * u[k + 1]) if k < last else 1.0
                u[k] = (u[k] * friction + h / 4 * force) * (1.0 if half else drag) * friction
            if half == 0:
                scale = np.exp(-h / 2 * u[0])
                twice_kinetic *= scale * scale
                total *= scale
                for k in range(last + 1):
                    eta[k] += h / 2 * u[k]
    energy = target * eta[0]
    for k in range(last + 1):
        energy += 0.5 * mass[k] * u[k] ** 2 + (kt * eta[k] if k else 0.0)
    return total, energy
