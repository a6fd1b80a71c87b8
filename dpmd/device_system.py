"""The state of a simulation on a GPU."""

import numpy as np

from dpmd.kernels.cuda.operators import FIXED_SCALE
from dpmd.kernels.cuda.sums import Sums
from dpmd.kernels.integrate import change_of_cell

from .system import System, _per_atom

_copied = ("ids", "types", "masses", "images")
#: as permute_atoms takes them
_order = ("atoms", "motions", "ids", "types", "masses", "images", "forces")


def _device_arrays(records, system):
    """{name: array} of atoms as they are kept on a device; see :class:`DeviceSystem`."""
    n = len(records)
    atoms, forces = np.zeros((n, 4)), np.zeros((n, 4), np.int64)
    atoms[:, :3], atoms.view(np.int64)[:, 3] = records["positions"], np.arange(n)
    forces[:, :3] = np.rint(records["forces"] * FIXED_SCALE)
    inverse_masses = 1.0 / (system.constants.mass_velocity * records["masses"])
    return {
        "atoms": atoms, "motions": np.column_stack([records["velocities"], inverse_masses]), "forces": forces,
        **{name: np.ascontiguousarray(records[name]) for name in _copied},
    }  # fmt: skip


class DeviceSystem(System):
    """A :class:`~dpmd.system.System` whose arrays live on a GPU.

    Integrators move it by the methods of System.  Reading an array (``positions``, ``velocities``,
    ``forces``, ...) copies it to the host, once a step; energy and virial are summed when asked for,
    over all processes, by all of them.
    Arrays so read cannot be written to: assign new ``positions`` or ``velocities`` to change them.

    system : the atoms to start from; device : a :class:`dpmd.kernels.cuda.CudaDevice`.
    On the device: ``atoms`` (room, 4) positions of local atoms, then ghosts, and the row of the
    forces that takes each atom's force; ``motions`` (room, 4) velocities and inverse masses;
    ``force_rows`` (room, 4) int64, forces on local atoms, then those of ghosts, in units of 2^-42 eV/Å;
    ``generation`` changes when they have moved.
    """

    def __init__(self, system, device):
        self.device, self._kernels = device, device.compile(("atoms.cu",), {})
        self._n = len(system)
        self.type_names, self.periodic = system.type_names, system.periodic
        self.step, self.timestep = system.step, system.timestep
        self.origin, self.constants, self.carried = system.origin, system.constants, {}
        self.cell, self.n_atoms, self.processes = system.cell.copy(), system.n_atoms, system.processes
        self._arrays = {name: device.upload(array) for name, array in _device_arrays(system.records(), system).items()}
        self._spare, self.generation, self.carried = None, 0, {}
        self._sums = Sums(device)
        self._host, self._result, self._evaluated, self._moves, self._added = {}, None, None, {}, None
        self._energy, self._virial = system.energy, system.virial

    def __len__(self):
        return self._n

    atoms = property(lambda self: self._arrays["atoms"])
    motions = property(lambda self: self._arrays["motions"])
    force_rows = property(lambda self: self._arrays["forces"])

    def device_array(self, name):
        """ids, types, masses (n,) or images (n, 3) on the device."""
        return self._arrays[name][: self._n]

    def reserve(self, room, atoms, force_rows):
        """Make room for local atoms, for local and ghost atoms, and for their forces."""
        wanted = dict.fromkeys(self._arrays, room) | {"atoms": atoms, "forces": force_rows}
        for name, array in self._arrays.items():
            if wanted[name] > len(array):
                self._arrays[name] = self.device.zeros((wanted[name], *array.shape[1:]), array.dtype)
                self._arrays[name][: self._n] = array[: self._n]
                self._moves.clear()
                self.generation += 1

    def permute(self, order):
        """Atom ``order[k]`` becomes atom k; ``order`` (n,) int64 is on the device.  Others are gone.

        Arrays keep their addresses.
        """
        n, arrays = len(order), [self._arrays[name] for name in _order]
        if self._spare is None or len(self._spare[0]) < n:
            self._spare = None
            room = len(self._arrays["ids"])
            self._spare = [self.device.empty((room, *a.shape[1:]), a.dtype) for a in arrays]
        self._kernels.threads("permute_atoms", n, n, order, *arrays, *self._spare)
        self._kernels.threads("permute_atoms", n, n, None, *self._spare, *arrays)
        self._set_number(n)

    def _set_number(self, n):
        if n != self._n:
            self._moves.clear()  # they are launched for so many atoms
        self._n = n
        self.forget()

    def take_out(self, chosen):
        """Records (see :meth:`records`) of atoms whose numbers, on the device, are given; they stay as well."""
        arrays = {name: self.device.download(self._arrays[name][chosen]) for name in (*_copied, "atoms", "motions")}
        arrays["forces"] = self.device.download(self.force_rows[chosen])[:, :3] / FIXED_SCALE
        arrays["positions"], arrays["velocities"] = arrays.pop("atoms")[:, :3], arrays.pop("motions")[:, :3]
        return self._on_host({name: arrays[name] for name in _per_atom}).records()

    def append(self, records):
        """Add atoms after the others."""
        n = len(records)
        self.reserve(self._n + n, self._n + n, self._n + n)
        for name, array in _device_arrays(records, self).items():
            self._arrays[name][self._n : self._n + n] = self.device.upload(array)
        self._set_number(self._n + n)

    def settle(self):
        """Make the sums that belong to the last forces, before lists change: energy and virial."""
        if self._result is not None or self._virial is None:
            self.virial  # noqa: B018

    def forget(self):
        """Positions or the order of atoms have changed: what was copied to the host is void."""
        self._host.clear()

    # ------------------------------------------------------------------ what the host reads

    def _read(self, name, make):
        if name not in self._host:
            self._host[name] = make()
            self._host[name].flags.writeable = False
        return self._host[name]

    def _download(self, name):
        return self._read(name, lambda: self.device.download(self.device_array(name)))

    ids = property(lambda self: self._download("ids"))
    types = property(lambda self: self._download("types"))
    masses = property(lambda self: self._download("masses"))
    images = property(lambda self: self._download("images"))

    @property
    def positions(self):
        """(n, 3) Å."""
        return self._read("positions", lambda: self.device.download(self.atoms[: self._n])[:, :3].copy())

    @positions.setter
    def positions(self, values):
        self.atoms[: self._n, :3] = self.device.upload(np.asarray(values, np.float64))
        self._host.clear()

    @property
    def forces(self):
        """(n, 3) eV/Å."""
        return self._read("forces", lambda: self.device.download(self.force_rows[: self._n])[:, :3] / FIXED_SCALE)

    @property
    def velocities(self):
        """(n, 3) Å/ps."""
        return self._read("velocities", lambda: self.device.download(self.motions[: self._n])[:, :3].copy())

    @velocities.setter
    def velocities(self, values):
        self.motions[: self._n, :3] = self.device.upload(np.asarray(values, np.float64))
        self._host.clear()

    @property
    def inverse_masses(self):
        """(n,) (Å/ps^2) / (eV/Å)."""
        return self.device.download(self.motions[: self._n])[:, 3]

    @property
    def energy(self):
        """eV."""
        if self._result is not None:
            self._energy, self._virial = self.sum(float(self._result.energies[0])), None
            self._evaluated, self._result = self._result, None
        return self._energy

    @property
    def virial(self):
        """(3, 3) eV; costs one more evaluation unless the operators compute it at every step."""
        self.energy  # noqa: B018  takes over the last result
        if self._virial is None:
            self._virial = self.sum(self._evaluated.virials[0])
        return self._virial

    @property
    def kinetic_energy(self):
        """eV, of the whole system."""
        return 0.5 * float(np.trace(self.twice_kinetic_tensor()))

    def twice_kinetic_tensor(self, chosen=None):
        """Sum of m v v (3, 3), eV, of the whole system or of the chosen atoms (a mask)."""
        if chosen is not None:
            return super().twice_kinetic_tensor(chosen)
        return self._read("twice kinetic tensor", self._sum_kinetic)

    def _sum_kinetic(self):
        xx, yy, zz, yz, xz, xy = self.sum(self._sums.sum("sum_kinetic", 6, self._n, self.motions))
        return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])

    def copy(self, into=None):
        """A :class:`~dpmd.system.System` on the host, as it is now."""
        arrays = {name: getattr(self, name).copy() for name in _per_atom}
        return self._on_host(arrays, energy=self.energy, virial=self.virial)

    def with_atoms(self, records, processes, **changes):
        """A :class:`~dpmd.system.System` on the host that holds the atoms ``records``."""
        return self._on_host({name: records[name] for name in _per_atom}, processes=processes, **changes)

    def _on_host(self, arrays, **changes):
        names = ("periodic", "type_names", "step", "timestep", "origin", "constants")
        common = {name: getattr(self, name) for name in names}
        others = {"cell": self.cell.copy(), "n_atoms": self.n_atoms, "processes": self.processes}
        return System(**arrays, **(common | others | changes))

    def largest_norms(self):
        """Largest |force| (eV/Å) and |velocity| (Å/ps) over the atoms."""
        largest = self._sums.partial("largest_norms", 2, self._n, self.force_rows, self.motions)
        force, speed = np.sqrt(largest.max(axis=0))
        return (force, speed) if speed < 1e140 else (np.inf, np.inf)

    # ------------------------------------------------------------------ what integrators do

    def take(self, forces, result):
        """The forces now belong to the positions; energy and virial are summed when somebody asks."""
        before = self._result or self._evaluated  # its lists may have been kept in other arrays
        self._result = result
        self._host.clear()
        return sum(r.overflowed for r in (before, result) if r is not None) if result.counted else 0

    def overflowed_meanwhile(self):
        """What :meth:`take` has not told yet."""
        result = self._result or self._evaluated
        return result.overflowed if result is not None else 0

    def _move(self, kick, drift):
        if (kick, drift) not in self._moves:
            if len(self._moves) > 8:
                self._moves.clear()
            self._moves[kick, drift] = self._kernels.prepared(
                "kick_and_drift", self._n, self._n, self.atoms, self.motions, self.force_rows, float(kick),
                float(drift),
            )  # fmt: skip
        self._moves[kick, drift]()
        self._host.clear()

    def kick(self, time):
        """v += a time (ps)."""
        self._move(time, 0.0)

    def drift(self, time):
        """x += v time (ps)."""
        self._move(0.0, time)

    def kick_and_drift(self, kick_time, drift_time):
        """v += a kick_time, then x += v drift_time (ps)."""
        self._move(kick_time, drift_time)

    def _scale(self, factor, shift):
        self._kernels.threads("scale_velocities", self._n, self._n, self.motions, float(factor), *map(float, shift))
        self._host.clear()

    def scale_velocities(self, factor):
        """v *= factor."""
        self._scale(factor, (0, 0, 0))

    def transform_velocities(self, matrix):
        """v <- v matrix, for row vectors."""
        self._kernels.threads("transform_velocities", self._n, self._n, self.motions, *map(float, matrix.flat))
        self._host.clear()

    def map_cell(self, cell):
        """Give the cell a new shape; the atoms keep their fractions of it."""
        matrix = change_of_cell(self.cell, cell)
        self._kernels.threads("transform_positions", self._n, self._n, self.atoms, *map(float, matrix.flat))
        self.cell = np.array(cell)
        self._host.clear()

    def shift_vector(self, row, axis, times):
        """Add ``times`` cell vectors ``axis`` to vector ``row``; see System."""
        self.cell[row] += times * self.cell[axis]
        images = self._arrays["images"]
        images[:, axis] -= np.int32(times) * images[:, row]
        self._host.clear()

    def remove_drift(self):
        """Make the total momentum of the whole system zero."""
        velocities = self.velocities
        self._scale(1, -self.sum(self.masses @ velocities) / self.sum(self.masses.sum()))

    def add_noise(self, seed, stream, decay, energy):
        """v <- decay v + sqrt((1 - decay^2) energy / m) noise, energy = k T (eV); see System."""
        before = self.kinetic_energy
        self._kernels.threads(
            "ornstein_uhlenbeck", self._n, self._n, self.motions, self._arrays["ids"], np.int64(seed),
            np.int64(self.step), stream, float(decay), float(energy),
        )  # fmt: skip
        self._host.clear()
        return self.kinetic_energy - before

    def add_langevin_forces(self, seed, step, stream, relaxation_time, strength, chosen=None, centred=False):
        """F += sqrt(strength m) noise - m v / relaxation_time for all atoms; returns these forces.  See System."""
        if chosen is not None or centred:
            raise NotImplementedError("Langevin forces on a GPU act on all atoms alike")
        if self._added is None or len(self._added) < self._n:
            self._added = self.device.empty((len(self.motions), 3), np.float64)
        self._kernels.threads(
            "add_langevin_forces", self._n, self._n, self.motions, self._arrays["ids"], self._arrays["forces"],
            self._added, np.int64(seed), np.int64(step), stream, 1 / relaxation_time, float(strength),
        )  # fmt: skip
        self._host.clear()
        return self._added

    def power(self, forces, chosen=None):
        """Sum of F v, eV/ps, over the whole system; forces (room, 3) : on all atoms, as the above returns them."""
        return float(self.sum(float(self._sums.sum("sum_power", 1, self._n, self.motions, forces)[0])))
