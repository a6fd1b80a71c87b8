"""The ASE calculator.

This module is imported by whoever lists ASE's calculators, so the engine loads only with the first
:class:`DP` that is made.
"""

from inspect import signature

import ase
import numpy as np
from ase.calculators.calculator import Calculator, all_changes

from .units import stress_from_virial

_state_names = ("positions", "numbers", "cell", "pbc")


def _state_of(atoms):
    """What the model depends on, as :data:`_state_names` names it; not copied."""
    return atoms.positions, atoms.numbers, atoms.cell.array, atoms.pbc


def _copied_state_of(atoms):
    return tuple(values.copy() for values in _state_of(atoms))


def _same(old, new):
    return old.shape == new.shape and (old == new).all()


class DP(Calculator):
    """Deep Potential as an ASE calculator, a drop-in for ``deepmd.calculator.DP``.

    model : path of a model file; label : as in ASE; type_dict or type_map : ``{symbol: type}`` or
    a list of symbols, if they differ from the model's own; neighbor_list : accepted and unused;
    head : refused, since models with several heads are not read.
    device, precision, threads, tabulate, skin, low_rank, rank, on_overflow : see :class:`dpmd.Potential`.
    fparam, aparam : frame and atomic parameters, for models that have them.

    Results: energy, free_energy (eV), forces (eV/Å), stress (eV/Å^3, tension positive, Voigt xx yy zz
    yz xz xy; for structures that are periodic in some direction and have a full cell), energies (eV
    per atom), virial (3, 3) eV, stresses (eV/Å^3 per atom, of the atomic virials over the cell volume).

    Neighbour lists are kept between calls while atoms stay within half the skin.  Raises
    :class:`dpmd.errors.InputError`, a ValueError, for elements that the model lacks.
    """

    implemented_properties = ["energy", "free_energy", "forces", "stress", "energies", "stresses", "virial"]
    name = "DP"

    def __init__(
        self,
        model,
        label="DP",
        type_dict=None,
        neighbor_list=None,
        head=None,
        *,
        device="auto",
        precision="double",
        threads=None,
        tabulate=True,
        skin=1.0,
        low_rank=True,
        rank=None,
        type_map=None,
        fparam=None,
        aparam=None,
        on_overflow="warn",
        **kwargs,
    ):
        """Load a model; the arguments are explained at :class:`DP`, further ones go to ASE's ``Calculator``.

        Raises ValueError (:class:`dpmd.errors.InputError` or ``dpmd.models.ModelError``) for a file that is no model
        that dpmd reads.
        """
        from .options import suggestion
        from .potential import Potential

        unknown = sorted(set(kwargs) - {"restart", "atoms", "directory", "ignore_bad_restart_file"})
        if unknown:  # ASE would keep them as parameters that nothing reads
            known = signature(type(self).__init__).parameters
            raise ValueError(f"DP has no option {unknown[0]!r}; {suggestion(unknown[0], [*known][1:-1])}")

        super().__init__(label=label, **kwargs)
        if head is not None:
            raise ValueError(f"head={head!r}: models with several heads are not supported; freeze one head first")
        self.potential = Potential(model, device, precision, threads, tabulate, skin, low_rank, rank, on_overflow)
        self.type_map = dict(type_dict) if type_dict else tuple(type_map or self.potential.type_map)
        self.fparam, self.aparam = fparam, aparam
        #: Å^3, 0 where there is no stress; kept while the cell stays
        self._volume = None
        self._numbers = self._types = None

    def __repr__(self):
        potential = self.potential
        path = potential.model.source.path
        return f"DP({str(path)!r}, device={potential.device!r}, precision={potential.precision!r})"

    def _types_of(self, atoms):
        """Model types (n,), looked up again only when the elements change."""
        if self._numbers is None or not np.array_equal(atoms.numbers, self._numbers):
            from .potential import assign_types

            self._types = assign_types(atoms.symbols, self.type_map)
            self._numbers = atoms.numbers.copy()
        return self._types

    @property
    def atoms(self):
        """A copy of the structure of the last calculation, or None; made when it is asked for."""
        if self._atoms is None and self._state is not None:
            positions, numbers, cell, pbc = self._state
            self._atoms = ase.Atoms(numbers, positions, cell=cell, pbc=pbc)
        return self._atoms

    @atoms.setter
    def atoms(self, atoms):
        self._atoms = atoms
        self._state = None if atoms is None else _copied_state_of(atoms)

    def check_state(self, atoms, tol=1e-15):
        """What has changed since the last calculation, of what the model depends on.

        ASE's own comparison, within a tolerance, takes longer than the rest of the calculator.
        """
        if self._state is None:
            return list(all_changes)
        pairs = zip(self._state, _state_of(atoms), strict=True)
        return [name for name, (old, new) in zip(_state_names, pairs, strict=True) if not _same(old, new)]

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        """What ASE calls; all results but ``stresses`` come with every evaluation."""
        if atoms is None:
            atoms = self.atoms
        else:
            self._state, self._atoms = _copied_state_of(atoms), None
        per_atom = "stresses" in properties
        result = self.potential.evaluate(
            atoms, self.fparam, self.aparam, atomic_virials=per_atom, types=self._types_of(atoms)
        )
        self.results = {name: result[name] for name in ("energy", "forces", "energies", "virial")}
        self.results["free_energy"] = result["energy"]
        if "cell" in system_changes or "pbc" in system_changes or self._volume is None:
            self._volume = abs(np.linalg.det(atoms.cell.array)) if atoms.pbc.any() else 0.0
        if self._volume > 0:
            self.results["stress"] = stress_from_virial(result["virial"], self._volume)
            if per_atom:
                self.results["stresses"] = stress_from_virial(result["virials"], self._volume)
