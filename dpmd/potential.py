"""A model ready to be evaluated on structures."""

import numpy as np

from dpmd.models import ModelError
from dpmd.models.cache import load_for_operators
from dpmd.parallel import SerialDomain
from dpmd.parallel.domain import complete_cell

from .devices import make_operators
from .errors import InputError
from .system import System


def assign_types(symbols, type_map, where="structure"):
    """Model types (n,) int32 of chemical symbols.  Raises InputError naming what the model lacks."""
    index = {name: number for number, name in enumerate(type_map)}
    missing = sorted({str(s) for s in symbols} - set(index))
    if missing:
        raise InputError(
            f"{where}: the model has no type for {', '.join(missing)}; its types are {', '.join(type_map)}. "
            "Give a model trained for these elements, or correct the structure's elements"
        )
    return np.array([index[str(s)] for s in symbols], np.int32)


class Potential:
    """Energies, forces and virials of a Deep Potential.

    model : path of a model file; device : ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"``
    or ``"cuda:i"``; precision : ``"double"``, ``"mixed"`` or ``"half"``; threads : default all cores that the process may use; tabulate : False
    for exact embedding networks; skin : Å, by which lists are kept valid between calls; low_rank,
    rank : see :func:`dpmd.models.cache.load_for_operators`.
    """

    def __init__(
        self, model, device="auto", precision="double", threads=None, tabulate=True, skin=1.0, low_rank=True, rank=None
    ):
        self.loaded = load_for_operators(model, tabulate, low_rank, rank)
        self.model, self.precision, self.skin = self.loaded.model, precision, skin
        self.operators, self.device = make_operators(self.model, device, precision, threads)

    @property
    def type_map(self):
        """Names of the model's types."""
        return self.model.type_map

    def domain(self):
        """A new :class:`dpmd.parallel.SerialDomain` for this potential's cutoff and threads."""
        return SerialDomain(self.model.cutoff, self.skin, self.model.n_types, self.operators.threads)

    def system(self, atoms, types=None):
        """A :class:`~dpmd.system.System` from ASE Atoms (positions, cell, masses, velocities).

        types : (n,) the model's types; default by chemical symbol.
        """
        from .units import ASE_VELOCITY

        if types is None:
            types = assign_types(atoms.symbols, self.type_map)
        try:
            cell = complete_cell(atoms.cell.array, atoms.pbc)
        except ValueError as error:
            raise InputError(f"structure: {error}; correct the cell or its periodic directions") from error
        return System(
            ids=np.arange(1, len(atoms) + 1),
            types=np.asarray(types, np.int32),
            masses=atoms.get_masses().astype(float),
            positions=atoms.positions.astype(float),
            velocities=atoms.get_velocities() / ASE_VELOCITY,
            cell=cell,
            periodic=np.array(atoms.pbc, bool),
            type_names=tuple(self.type_map),
        )

    def evaluate(self, atoms, fparam=None, aparam=None, atomic_virials=False, types=None):
        """Evaluate ASE Atoms.

        Returns a dict: ``energy`` (eV), ``forces`` (n, 3) eV/Å, ``virial`` (3, 3) eV,
        ``energies`` (n,) eV and, if asked for, ``virials`` (n, 3, 3) eV per atom.
        fparam, aparam : frame and atomic parameters, for models that have them.
        """
        system = self.system(atoms, types)
        domain = self.domain()
        domain.update(system)
        if aparam is not None:
            aparam = np.asarray(aparam, float)
            if aparam.size > self.model.fitting.n_aparam:
                aparam = aparam.reshape(len(system), -1)[system.ids - 1]
        try:
            result = self.operators.evaluate(
                domain.positions, domain.types, domain.neighbors, domain.forces,
                frame_parameters=fparam, atomic_parameters=aparam, atomic_virials=atomic_virials,
            )  # fmt: skip
        except ModelError as error:
            raise InputError(str(error)) from error
        back = np.argsort(system.ids)
        values = {
            "energy": float(result.energies[0]),
            "forces": domain.fold(domain.forces)[back],
            "virial": result.virials[0],
            "energies": result.atomic_energies[back],
            "overflowed": result.overflowed,
        }
        if atomic_virials:
            values["virials"] = domain.fold(result.atomic_virials)[back]
        return values
