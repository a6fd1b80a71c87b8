"""The state of a simulation: atoms and cell."""

from dataclasses import dataclass, field, replace

import numpy as np

from dpmd.kernels.integrate import (
    change_of_cell,
    determinant,
    drift,
    kick,
    largest_norms,
    ornstein_uhlenbeck,
    twice_kinetic_energy,
)
from dpmd.kernels.random import standard_normals
from dpmd.parallel import OneProcess

from .units import CODATA, Constants

_per_atom = ("ids", "types", "masses", "positions", "velocities", "images", "forces")


@dataclass
class System:
    """Atoms of this process and their cell.

    ids : (n,) int64, 1 and up, in the order of the input; types : (n,) int32, the model's, -1
    for atoms that it ignores; masses : (n,) u; positions : (n, 3) Å; velocities : (n, 3) Å/ps;
    images : (n, 3) int32, how often each atom was wrapped; cell : (3, 3) Å, rows are lattice
    vectors; periodic : (3,) bool; type_names : of the model's types.  Positions are relative to
    the cell's corner, which lies at ``origin`` (3,) Å in the user's coordinates.  step : number of steps
    done; timestep : ps, of all integrators, thermostats and barostats, which read it at each step.

    forces (n, 3) eV/Å, energy (eV) and virial (3, 3) (eV) belong to ``positions`` once the
    simulation has computed them.  On several processes energy and virial are summed over them when
    first read after that, which all have to do together.  Atoms are reordered in space now and then:
    identify them by id.
    """

    ids: np.ndarray
    types: np.ndarray
    masses: np.ndarray
    positions: np.ndarray
    velocities: np.ndarray
    cell: np.ndarray
    periodic: np.ndarray
    type_names: tuple[str, ...]
    images: np.ndarray = None
    forces: np.ndarray = None
    step: int = 0
    timestep: float = None
    energy: float = 0.0
    virial: np.ndarray = field(default_factory=lambda: np.zeros((3, 3)))
    origin: np.ndarray = field(default_factory=lambda: np.zeros(3))
    constants: Constants = CODATA
    #: atoms of the whole system, of which this process may hold a part
    n_atoms: int = None
    #: those that hold parts of the system
    processes: OneProcess = field(default_factory=OneProcess)
    #: {name: (n, ...)}: whatever else is to stay with the atoms when they are reordered or change ranks
    carried: dict = field(default_factory=dict)

    def __post_init__(self):
        n = len(self.ids)
        if self.n_atoms is None:
            self.n_atoms = n
        if self.images is None:
            self.images = np.zeros((n, 3), np.int32)
        if self.forces is None:
            self.forces = np.zeros((n, 3))
        self._set_inverse_masses()

    def _set_inverse_masses(self):
        #: (Å/ps^2) / (eV/Å): acceleration per force
        self.inverse_masses = 1.0 / (self.constants.mass_velocity * self.masses)

    def __len__(self):
        return len(self.ids)

    def permute(self, order):
        """Reorder the atoms."""
        for name in _per_atom:
            setattr(self, name, getattr(self, name)[order])
        for name, values in self.carried.items():
            self.carried[name] = values[order]
        self._set_inverse_masses()

    def records(self):
        """The atoms as one structured array (n,), with a field for every per-atom array."""
        arrays = {name: getattr(self, name) for name in _per_atom}
        arrays |= {f"carried {name}": values for name, values in self.carried.items()}
        out = np.empty(len(self), [(name, array.dtype, array.shape[1:]) for name, array in arrays.items()])
        for name, array in arrays.items():
            out[name] = array
        return out

    def set_records(self, records):
        """Hold these atoms, and no others, from now on."""
        for name in _per_atom:
            setattr(self, name, np.ascontiguousarray(records[name]))
        for name in self.carried:
            self.carried[name] = np.ascontiguousarray(records[f"carried {name}"])
        self._set_inverse_masses()

    def sum(self, value):
        """Sum of a number or array over all processes that hold parts of the system."""
        return self.processes.sum(value)

    def whole(self):
        """The system with the atoms of all processes, in id order, on root; None elsewhere.

        On one process the system itself, in whatever order.  Collective.
        """
        if self.processes.size == 1:
            return self
        energy, virial, records = self.energy, self.virial, self.processes.gather(self.records())
        if records is None:
            return None
        return self.with_atoms(records[np.argsort(records["ids"])], OneProcess(), energy=energy, virial=virial)

    def gathered(self, *columns):
        """Arrays (n, ...) of this process's atoms as those of all, on root; a list of None elsewhere.  Collective.

        The order is that of :meth:`whole`.
        """
        if self.processes.size == 1:
            return list(columns)
        rows = np.empty(
            len(self), [("id", np.int64), *((str(k), c.dtype, c.shape[1:]) for k, c in enumerate(columns))]
        )  # fmt: skip
        rows["id"] = self.ids
        for k, column in enumerate(columns):
            rows[str(k)] = column
        rows = self.processes.gather(rows)
        if rows is None:
            return [None] * len(columns)
        rows = rows[np.argsort(rows["id"])]
        return [rows[str(k)] for k in range(len(columns))]

    def assemble(self):
        """Hold the atoms of all processes from now on, in id order, each of them for itself.  Collective."""
        if self.processes.size == 1:
            return
        self._sum_parts()
        processes, records = self.processes, self.processes.gather(self.records())
        records = processes.broadcast(None if records is None else records[np.argsort(records["ids"])])
        self.set_records(records)
        self.processes = OneProcess()

    def spread(self, processes):
        """Share the atoms, all of which every process holds, with ``processes``: at first root has them all."""
        if processes.size > 1 and self.processes.size == 1:
            self.set_records(self.records()[: None if processes.root else 0])
            self.processes = processes

    def with_atoms(self, records, processes, **changes):
        """A copy that holds the atoms ``records`` and belongs to ``processes``."""
        other = replace(self, processes=processes, cell=self.cell.copy(), carried=dict(self.carried), **changes)
        other.set_records(records)
        return other

    #: this process's energy and virial (10,), eV, until they are summed
    _parts = None

    def _sum_parts(self):
        if self._parts is not None:
            sums, self._parts = self.sum(self._parts), None
            self._energy, self._virial = float(sums[0]), sums[1:].reshape(3, 3)

    @property
    def own_energy(self):
        """eV, of this process's atoms, or the whole system's once it has been summed."""
        return self.energy if self._parts is None else float(self._parts[0])

    @property
    def volume(self):
        """Å^3, of the cell, whether or not it is periodic."""
        return abs(determinant(self.cell))

    @property
    def kinetic_energy(self):
        """eV, of the whole system."""
        return 0.5 * self.sum(twice_kinetic_energy(self.velocities, self.inverse_masses))

    def twice_kinetic_tensor(self, chosen=None):
        """Sum of m v v (3, 3), eV, of the whole system or of the chosen atoms (a mask)."""
        v, inverse = self.velocities, self.inverse_masses
        if chosen is not None:
            v, inverse = v[chosen], inverse[chosen]
        return self.sum((v / inverse[:, None]).T @ v)

    @property
    def kinetic_tensor(self):
        """(3, 3) eV, of the whole system: 1/2 sum m v (x) v, whose trace is the kinetic energy."""
        return 0.5 * self.twice_kinetic_tensor()

    @property
    def unwrapped_positions(self):
        """(n, 3) Å, as if no atom had ever been wrapped into the cell."""
        return self.positions + self.images @ self.cell

    def names(self):
        """Name of every atom, "X" for those that the model ignores."""
        return np.array([*self.type_names, "X"])[self.types]

    # what integrators do; on a GPU see dpmd.device_system

    def take(self, forces, result):
        """Forces (n, 3) and the evaluation that they come from now belong to the positions.

        Returns how many of this process's atoms had more neighbours than the model's sel, summed over the
        evaluations since it was last told: this one or, on a GPU, those with the last list.
        """
        self.forces[:] = forces
        self._parts = np.array([result.energies[0], *result.virials[0].flat])
        return result.overflowed

    def overflowed_meanwhile(self):
        """What :meth:`take` has not told yet."""
        return 0

    def kick(self, time):
        """v += a time (ps)."""
        kick(self.velocities, self.forces, self.inverse_masses, time)

    def drift(self, time):
        """x += v time (ps)."""
        drift(self.positions, self.velocities, time)

    def kick_and_drift(self, kick_time, drift_time):
        """v += a kick_time, then x += v drift_time (ps)."""
        self.kick(kick_time)
        self.drift(drift_time)

    def scale_velocities(self, factor):
        """v *= factor."""
        self.velocities *= factor

    def transform_velocities(self, matrix):
        """v <- v matrix, for row vectors; matrix : (3, 3)."""
        self.velocities = self.velocities @ matrix

    def map_cell(self, cell):
        """Give the cell a new shape; the atoms keep their fractions of it."""
        self.positions = self.positions @ change_of_cell(self.cell, cell)
        self.cell = np.array(cell)

    def shift_vector(self, row, axis, times):
        """Add ``times`` (an integer) cell vectors ``axis`` to vector ``row``: the same lattice.

        Positions stay; image counts follow, so that unwrapped positions stay too.
        """
        self.cell[row] += times * self.cell[axis]
        self.images[:, axis] -= np.int32(times) * self.images[:, row]

    def add_noise(self, seed, stream, decay, energy):
        """v <- decay v + sqrt((1 - decay^2) energy / m) noise, energy = k T (eV).

        Returns the kinetic energy, eV, that all atoms gain.
        """
        noise = standard_normals(seed, self.step, self.ids, stream)
        before = twice_kinetic_energy(self.velocities, self.inverse_masses)
        ornstein_uhlenbeck(self.velocities, noise, self.inverse_masses, decay, energy)
        return 0.5 * self.sum(twice_kinetic_energy(self.velocities, self.inverse_masses) - before)

    def add_langevin_forces(self, seed, step, stream, relaxation_time, strength, chosen=None, centred=False):
        """F += sqrt(strength m) noise - m v / relaxation_time; returns these forces, for :meth:`power`.

        strength : 2 k T / (relaxation time x time step), eV/ps^2; chosen : a mask of the atoms, None for
        all; centred : the noise adds up to zero over the whole system's chosen atoms.
        """
        chosen = slice(None) if chosen is None else chosen
        mass = 1 / self.inverse_masses[chosen, None]
        noise = np.sqrt(strength * mass) * standard_normals(seed, step, self.ids[chosen], stream)
        if centred:
            noise -= self.sum(noise.sum(axis=0)) / max(int(self.sum(len(noise))), 1)
        forces = noise - mass * self.velocities[chosen] / relaxation_time
        self.forces[chosen] += forces
        return forces

    def power(self, forces, chosen=None):
        """Sum of F v, eV/ps, over the whole system; forces (k, 3) : on the chosen atoms, a mask, None for all."""
        velocities = self.velocities if chosen is None else self.velocities[chosen]
        return float(self.sum(float((forces * velocities).sum())))

    def largest_norms(self):
        """Largest |force| (eV/Å) and |velocity| (Å/ps) over the atoms; infinity if one is not a number."""
        return largest_norms(self.forces, self.velocities)

    def copy(self, into=None):
        """The same atoms in arrays of their own; ``into``: an earlier copy, whose arrays are used again."""
        if into is None or len(into) != len(self):
            kept = ("positions", "velocities", "forces", "cell")
            arrays = {name: getattr(self, name).copy() for name in kept}
            into = replace(self, carried={}, energy=0.0, virial=None, **arrays)
        into.ids, into.types, into.masses, into.images = self.ids, self.types, self.masses, self.images
        into.positions[:], into.velocities[:], into.forces[:] = self.positions, self.velocities, self.forces
        into.cell[:], into.step = self.cell, self.step
        into._parts, into._energy, into._virial = self._parts, self._energy, self._virial
        return into

    def remove_drift(self):
        """Make the total momentum of the whole system zero."""
        self.velocities -= self.sum(self.masses @ self.velocities) / self.sum(self.masses.sum())

    def to_ase(self, velocities=True, forces=True, unwrap=False):
        """An ASE Atoms with the atoms in id order, energy, forces and stress attached."""
        import ase
        from ase.calculators.singlepoint import SinglePointCalculator
        from ase.data import atomic_numbers

        from .units import ASE_VELOCITY, stress_from_virial

        order = np.argsort(self.ids)
        symbols = [name if name in atomic_numbers else "X" for name in self.names()[order]]
        atoms = ase.Atoms(
            symbols,
            (self.unwrapped_positions if unwrap else self.positions)[order],
            cell=self.cell if self.periodic.any() else None,
            pbc=self.periodic,
            masses=self.masses[order],
        )
        if velocities:
            atoms.set_velocities(self.velocities[order] * ASE_VELOCITY)
        results = {"energy": self.energy}
        if forces:
            results["forces"] = self.forces[order]
        if self.periodic.all():
            results["stress"] = stress_from_virial(self.virial, self.volume)
        atoms.calc = SinglePointCalculator(atoms, **results)
        atoms.info["step"] = self.step
        return atoms


def _summed(name):
    """A property whose value is summed over processes when it is read."""

    def get(self):
        self._sum_parts()
        return getattr(self, name)

    def put(self, value):
        self._sum_parts()
        setattr(self, name, value)

    return property(get, put)


# after the dataclass was made, whose fields they are
System.energy, System.virial = _summed("_energy"), _summed("_virial")
