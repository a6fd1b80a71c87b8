"""A model ready to be evaluated on structures."""

import warnings
from collections.abc import Mapping

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from dpmd.kernels.cuda import CudaOperators, DeviceError
from dpmd.kernels.neighbors import NeighborListBuilder
from dpmd.models import ModelError
from dpmd.models.cache import load_for_operators
from dpmd.models.tables import checked_distance
from dpmd.parallel import NodeDomain, RankDomain, SerialDomain
from dpmd.parallel.batch import Batch
from dpmd.parallel.device_domain import DeviceDomain
from dpmd.parallel.domain import UnusableStructure, check_usable, complete_cell

from .device_system import DeviceSystem
from .devices import make_operators
from .errors import InputError
from .safety import unchecked, warn_of_overflow
from .system import System
from .units import ASE_VELOCITY

#: local atoms that are evaluated in one call of the operators, unless one structure has more; on a GPU
#: four times as many
BATCH_ATOMS = 8192
#: up to so many atoms the short chain of kernels is faster on a GPU
FEW_ATOMS = 600


def assign_types(symbols, type_map, where="structure"):
    """Model types (n,) int32 of chemical symbols.  Raises InputError naming what the model lacks.

    symbols : of ASE Atoms, or a sequence of names; type_map : names in the order of the model's
    types, or a dict ``{name: type}``; where : begins the error message.
    """
    index = type_map if isinstance(type_map, Mapping) else {name: number for number, name in enumerate(type_map)}
    names = [chemical_symbols[n] for n in symbols.numbers] if hasattr(symbols, "numbers") else [str(s) for s in symbols]
    missing = sorted(set(names) - set(index))
    if missing:
        raise InputError(
            f"{where}: the model has no type for {', '.join(missing)}; its types are {', '.join(index)}. "
            "Give a model trained for these elements, or correct the structure's elements"
        )
    return np.array([index[name] for name in names], np.int32)


def _whole_cell(atoms, where="structure"):
    """The cell of ASE Atoms, its missing open vectors completed; raises InputError for impossible ones."""
    try:
        return complete_cell(atoms.cell.array, atoms.pbc)
    except ValueError as error:
        raise InputError(f"{where}: {error}; correct the cell or its periodic directions") from error


def _check_finite(positions, atoms, where="structure"):
    if not np.isfinite(positions).all():
        bad = int(np.flatnonzero(~np.isfinite(positions).all(axis=1))[0])
        raise InputError(
            f"{where}: the position of atom {bad} ({atoms.symbols[bad]}) is not a number: {positions[bad]}; "
            "a step of dynamics or of a minimiser was too long"
        )


def check_same_models(processes, potentials):
    """Raise InputError, on all ranks, unless all of them have read the same model files.  Collective.

    potentials : those of this rank.  Each rank reads the files itself: they may differ from machine to machine,
    or be replaced between.
    """
    if processes.size == 1:
        return
    digests = processes.collect([potential.loaded.digest for potential in potentials])

    def check():
        for k, potential in enumerate(potentials):
            others = [rank for rank, theirs in enumerate(digests) if theirs[k] != digests[0][k]]
            if others:
                raise InputError(
                    f"{potential.loaded.exact.source.path}: the file that rank {others[0]} has read is not that of "
                    f"rank 0 ({len(others)} of {processes.size} ranks differ); was it replaced meanwhile, or is it "
                    "another one on that machine? Start again with the same file everywhere"
                )

    processes.on_root(check)


class Potential:
    """Energies, forces and virials of a Deep Potential.

    model : path of a model file; device : ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"``
    or ``"cuda:i"``; precision : ``"double"``, ``"mixed"`` or ``"half"``; threads : default all cores
    that the process may use; tabulate : False for exact embedding networks; skin : Å, by which lists
    are kept valid between calls; low_rank, rank : see :func:`dpmd.models.cache.load_for_operators`.
    on_overflow : what to do when an atom has more neighbours than the model's sel: ``"warn"``, once, by Python's
    warnings (the nearest are kept, as in DeePMD-kit), or ``"error"``.

    >>> potential = Potential("water.dp")
    >>> potential.evaluate(atoms)["forces"]
    >>> [result["energy"] for result in potential.evaluate([atoms, others, ...])]
    """

    def __init__(
        self, model, device="auto", precision="double", threads=None, tabulate=True, skin=1.0, low_rank=True, rank=None,
        on_overflow="warn",
    ):  # fmt: skip
        if on_overflow not in ("warn", "error"):
            raise InputError(f'on_overflow = {on_overflow!r}: choose "warn" or "error"')
        if rank is not None and not (tabulate and low_rank):
            raise InputError(f"rank = {rank!r} is of low-rank tables, which tabulate and low_rank must allow")
        if not 0 <= skin <= 10:
            raise InputError(f"skin = {skin!r} is out of range; it must be between 0 and 10 Å")
        if threads is not None and not 1 <= threads <= 4096:
            raise InputError(f"threads = {threads!r} is out of range; it must be between 1 and 4096")
        self.loaded = load_for_operators(model, tabulate, low_rank, rank)
        self.model, self.precision, self.skin = self.loaded.model, precision, skin
        self.operators, self.device = make_operators(self.model, device, precision, threads)
        self.on_overflow, self._warned = on_overflow, False
        self._followed = self._few = None
        self._batch_builder = None
        self._checked = checked_distance(self.model)

    @property
    def type_map(self):
        """Names of the model's types."""
        return self.model.type_map

    def domain(self, processes=None, decomposition="node", balance="atoms", halo_precision="double"):
        """A new domain for this potential's cutoff and threads.

        processes : the :class:`~dpmd.parallel.Processes` that it is spread over, None for this one alone;
        decomposition : ``"node"`` or ``"rank"``; balance, halo_precision (of nodes) : see
        :class:`~dpmd.parallel.NodeDomain`.  Collective.
        """
        arguments = self.model.cutoff, self.skin, self.model.n_types, self.operators.threads
        if processes is None or processes.size == 1:
            return SerialDomain(*arguments)
        if decomposition == "rank":
            return RankDomain(processes, *arguments, balance)
        return NodeDomain(processes, *arguments, balance, halo_precision)

    def operators_for(self, n_atoms):
        """The operators that are fastest for so many atoms."""
        if self.device == "cpu" or n_atoms > FEW_ATOMS:
            return self.operators
        if self._few is None:
            self._few = CudaOperators(self.model, self.precision, self.operators.device, few=True)
        return self._few

    def system(self, atoms, types=None):
        """A :class:`~dpmd.system.System` from ASE Atoms (positions, cell, masses, velocities).

        types : (n,) the model's types; default by chemical symbol.
        """
        if len(atoms) == 0:
            raise InputError("structure: there are no atoms")
        if types is None:
            types = assign_types(atoms.symbols, self.type_map)
        self._check_types(types)
        return System(
            ids=np.arange(1, len(atoms) + 1),
            types=np.asarray(types, np.int32),
            masses=atoms.get_masses().astype(float),
            positions=atoms.positions.astype(float),
            velocities=atoms.get_velocities() / ASE_VELOCITY,
            cell=_whole_cell(atoms),
            periodic=np.array(atoms.pbc, bool),
            type_names=tuple(self.type_map),
        )

    def _check_types(self, types):
        wrong = np.asarray(types)
        wrong = wrong[(wrong < -1) | (wrong >= self.model.n_types)]
        if len(wrong):
            raise InputError(
                f"type {wrong[0]} is not one of the model's {self.model.n_types} ({', '.join(self.type_map)}); types "
                "count from 0, in that order"
            )

    def evaluate(self, atoms, fparam=None, aparam=None, atomic_virials=False, types=None):
        """Evaluate ASE Atoms, or a list of them.

        Returns a dict: ``energy`` (eV), ``forces`` (n, 3) eV/Å, ``virial`` (3, 3) eV,
        ``energies`` (n,) eV, for a single structure ``overflowed`` (atoms with more neighbours than the model's sel;
        on a GPU told when lists are made anew) and, if asked for, ``virials`` (n, 3, 3) eV per atom; for a list, a
        list of such dicts, in order.

        fparam, aparam : frame and atomic parameters, for models that have them; for a list of
        structures ``fparam`` is one vector for all, or one per structure, and ``aparam`` a list of
        arrays.  types : (n,) the model's types, default by chemical symbol; a list for a list.

        One structure that is evaluated again and again with little change (the same atoms, moved by
        less than half the skin) keeps its neighbour list.  Structures of a list, of any sizes, are
        evaluated together, which is faster than one by one: the smaller they are, the more.

        Raises InputError for elements that the model lacks, impossible cells, positions that are
        not numbers and missing parameters.
        """
        if isinstance(atoms, (list, tuple)):
            return self._evaluate_list(atoms, fparam, aparam, atomic_virials, types)
        followed = self._follow(atoms, types)
        if aparam is not None:
            aparam = followed.in_order(self._atomic_parameters(aparam, len(atoms)))
        result = self._operate(followed.operators, followed.domain, fparam, aparam, atomic_virials)
        values = followed.results(result)
        self._tell_overflow(values["overflowed"])
        self._warn_of_short_pairs(followed.operators)
        return values

    def _tell_overflow(self, n_atoms):
        if not n_atoms or (self._warned and self.on_overflow == "warn"):
            return
        if self.on_overflow == "error":
            raise InputError(
                f'structure: {n_atoms} atoms have more neighbours than the model\'s sel, and on_overflow is "error". '
                'Use a model with larger sel, check the structure, or on_overflow="warn"'
            )
        self._warned = True
        warn_of_overflow(f"{n_atoms} atoms")

    def _warn_of_short_pairs(self, operators):
        if operators.nearest < self._checked:
            warnings.warn(f"atoms {operators.nearest:.3f} Å apart. {unchecked(self._checked)}", stacklevel=3)
            self._checked = 0.0  # once

    def _follow(self, atoms, types):
        if self._followed is None or not self._followed.move_to(atoms, types):
            self._followed = _Followed(self, atoms, types)
        return self._followed

    def _atomic_parameters(self, aparam, n_atoms):
        """(n, n_aparam), or what was given if it is one vector for all atoms."""
        aparam = np.asarray(aparam, float)
        return aparam.reshape(n_atoms, -1) if aparam.size > self.model.fitting.n_aparam else aparam

    @staticmethod
    def _operate(operators, place, fparam, aparam, atomic_virials, offsets=None):
        try:
            result = operators.evaluate(
                place.positions, place.types, place.neighbors, place.forces, frame_parameters=fparam,
                atomic_parameters=aparam, atomic_virials=atomic_virials, system_offsets=offsets,
            )  # fmt: skip
        except ModelError as error:
            raise InputError(str(error)) from error
        # what is not a number on a GPU is no force in fixed point, but the energy shows it
        on_host = place.forces.dtype == np.float64
        if not np.isfinite(result.energies).all() or (on_host and not np.isfinite(place.forces).all()):
            raise InputError("structure: the forces are not numbers; two atoms are at the same place")
        return result

    # ------------------------------------------------------------------ many structures

    def _evaluate_list(self, structures, fparam, aparam, atomic_virials, types):
        for name, given in (("types", types), ("aparam", aparam)):
            if given is not None and len(given) != len(structures):
                raise InputError(f"{name}: {len(given)} arrays given for {len(structures)} structures")
        if fparam is not None:
            fparam = np.asarray(fparam, float).reshape(-1, max(self.model.fitting.n_fparam, 1))
        results = []
        for part in _parts([len(atoms) for atoms in structures], BATCH_ATOMS * (1 if self.device == "cpu" else 4)):
            results += self._evaluate_together(
                part.start,
                structures[part],
                fparam if fparam is None or len(fparam) == 1 else fparam[part],
                aparam if aparam is None else aparam[part],
                atomic_virials,
                types if types is None else types[part],
            )
        return results

    def _evaluate_together(self, first, structures, fparam, aparam, atomic_virials, types):
        offsets = np.concatenate([[0], np.cumsum([len(atoms) for atoms in structures])])
        positions = np.concatenate([atoms.positions for atoms in structures])
        if not np.isfinite(positions).all():
            for number, atoms in enumerate(structures, first):
                _check_finite(atoms.positions, atoms, f"structure {number}")
        if types is None:
            types = self._types_of_numbers(first, structures)
        else:
            types = np.concatenate([np.asarray(t, np.int32) for t in types])
            self._check_types(types)
        if aparam is not None:
            n_aparam = max(self.model.fitting.n_aparam, 1)
            aparam = np.concatenate(
                [
                    np.broadcast_to(
                        self._atomic_parameters(a, len(atoms)).reshape(-1, n_aparam), (len(atoms), n_aparam)
                    )
                    for a, atoms in zip(aparam, structures, strict=True)
                ]
            )
        if self._batch_builder is None:
            self._batch_builder = NeighborListBuilder(self.model.n_types, self.operators.threads)
        batch = Batch(
            positions, types, offsets, _whole_cells(first, structures),
            np.array([atoms.pbc for atoms in structures], bool), self.model.cutoff, self._batch_builder,
        )  # fmt: skip
        result = self._operate(self.operators, batch, fparam, aparam, atomic_virials, batch.offsets)
        self._tell_overflow(result.overflowed)
        self._warn_of_short_pairs(self.operators)
        forces = batch.fold(batch.forces)
        virials = batch.fold(result.atomic_virials) if atomic_virials else None
        results = []
        for s, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
            values = {
                "energy": float(result.energies[s]),
                "forces": forces[a:b],
                "virial": result.virials[s],
                "energies": result.atomic_energies[a:b],
            }
            if atomic_virials:
                values["virials"] = virials[a:b]
            results.append(values)
        return results

    def _types_of_numbers(self, first, structures):
        """Types of the atoms of all structures, by one look into a table."""
        table = np.full(len(chemical_symbols), -1, np.int32)
        for number, name in enumerate(self.type_map):
            table[atomic_numbers.get(name, -1)] = number
        types = table[np.concatenate([atoms.numbers for atoms in structures])]
        if (types < 0).any():
            for number, atoms in enumerate(structures, first):
                assign_types(atoms.symbols, self.type_map, f"structure {number}")
        return types


class _Followed:
    """A structure whose neighbour list is kept while its atoms move a little."""

    def __init__(self, potential, atoms, types):
        _check_finite(atoms.positions, atoms)
        self.system, self.domain = potential.system(atoms, types), potential.domain()
        self.operators, self._reach = potential.operators, self.domain.cutoff + self.domain.skin
        self._on_device = potential.device != "cpu" and not self.operators.n_extra
        if self._on_device:
            self._check_usable()
            self.operators = potential.operators_for(len(atoms))
            device, model = self.operators.device, potential.model
            self.domain = DeviceDomain(model.cutoff, potential.skin, model.n_types, device, with_virial=True)
            self.system = DeviceSystem(self.system, device)
        self._types_given, self._pbc = types, tuple(atoms.pbc)
        self._kinds = np.array(atoms.numbers if types is None else types)
        self._update()

    def _has_kinds(self, atoms, types):
        """Whether these are the same atoms: the same types or, if none are given, elements."""
        if types is None or self._types_given is None:
            return types is self._types_given and np.array_equal(atoms.numbers, self._kinds)
        return np.array_equal(types, self._kinds)

    def _check_usable(self):
        try:
            check_usable(self.system, self._reach)
        except UnusableStructure as error:
            raise InputError(f"structure: {error}") from error

    def _update(self):
        try:
            rebuilt = self.domain.update(self.system)
        except UnusableStructure as error:
            raise InputError(f"structure: {error}") from error
        except DeviceError as error:
            raise InputError(str(error)) from error
        if rebuilt:
            #: position in the input of every atom, which the domain keeps in spatial order
            self.order, self._images = self.system.ids - 1, self.system.images

    def move_to(self, atoms, types):
        """Follow to new positions and cell; False if these are other atoms."""
        if not self._has_kinds(atoms, types) or tuple(atoms.pbc) != self._pbc:
            return False
        _check_finite(atoms.positions, atoms)
        system = self.system
        if not np.array_equal(atoms.cell.array, system.cell):
            system.cell = _whole_cell(atoms)
            if self._on_device:
                self._check_usable()  # lists on the host are checked when they are built
        # the domain has wrapped atoms into the cell; count the same crossings now
        system.positions = atoms.positions[self.order] - self._images @ system.cell
        self._update()
        return True

    def in_order(self, values):
        """Per-atom values (n, ...) of the input, in the domain's order."""
        return values[self.order] if len(values) == len(self.order) else values

    def _in_input_order(self, values):
        found = np.empty_like(values)
        found[self.order] = values
        return found

    def _forces(self):
        if not self._on_device:
            return self.domain.fold(self.domain.forces)
        self.system.forget()
        return self.system.forces

    def results(self, evaluation):
        values = {
            "energy": float(evaluation.energies[0]),
            "forces": self._in_input_order(self._forces()),
            "virial": evaluation.virials[0],
            "energies": self._in_input_order(evaluation.atomic_energies),
            "overflowed": evaluation.overflowed if evaluation.counted else 0,
        }
        if evaluation.atomic_virials is not None:
            values["virials"] = self._in_input_order(self.domain.fold(evaluation.atomic_virials))
        return values


def _parts(sizes, most):
    """Slices of consecutive structures with about ``most`` atoms together."""
    start, held = 0, 0
    for stop, size in enumerate(sizes):
        if held and held + size > most:
            yield slice(start, stop)
            start, held = stop, 0
        held += size
    if start < len(sizes):
        yield slice(start, len(sizes))


def _whole_cells(first, structures):
    """Cells (structures, 3, 3), missing vectors completed; only the unusual ones take the slow way."""
    cells = np.array([atoms.cell.array for atoms in structures])
    lengths = np.linalg.norm(cells, axis=2)
    usual = np.abs(np.linalg.det(cells)) > 1e-6 * lengths.prod(axis=1)
    for s in np.flatnonzero(~usual):
        cells[s] = _whole_cell(structures[s], f"structure {first + s}")
    return cells
