"""``dpmd compress``: tabulate a model and measure what that changes."""

from dataclasses import replace
from pathlib import Path

import ase
import ase.io
import numpy as np

from dpmd.kernels.cpu import CpuOperators
from dpmd.models import ModelError, dptab, load
from dpmd.models.lowrank import add_low_rank, describe_low_rank
from dpmd.models.tables import tabulate
from dpmd.models.writers import write
from dpmd.parallel import SerialDomain
from dpmd.parallel.domain import complete_cell

from .errors import InputError
from .potential import assign_types
from .system import System


def trial_structure(model, n_atoms=96, seed=7):
    """A dense random structure (ASE Atoms, periodic) of the model's types for measuring errors.

    Atoms are put at random no nearer than the model's shortest training distance (else 1 Å)
    and filled until no more fit or ``n_atoms`` are reached, in a cell of about its cutoff.
    """
    from ase.data import atomic_numbers

    rng = np.random.default_rng(seed)
    nearest = 1.05 * max(model.source.min_neighbor_distance or 1.0, 0.5)
    length = max(model.cutoff, (n_atoms * nearest**3 * 3) ** (1 / 3))
    placed = np.empty((0, 3))
    for _ in range(200 * n_atoms):
        point = rng.random(3) * length
        apart = placed - point
        apart -= length * np.round(apart / length)
        if len(placed) == 0 or (np.linalg.norm(apart, axis=1) > nearest).all():
            placed = np.vstack([placed, point])
            if len(placed) == n_atoms:
                break
    types = rng.integers(0, model.n_types, len(placed))
    symbols = [name if name in atomic_numbers else "X" for name in np.array(model.type_map)[types]]
    return ase.Atoms(symbols, placed, cell=[length] * 3, pbc=True), types.astype(np.int32)


def _as_compressed(model):
    """The model with its tables marked as its own, so that they are written with it."""
    return replace(model, descriptor=model.descriptor.map_embeddings(lambda e, _: replace(e, table_from_file=True)))


def _lists(model, atoms, types):
    """A system and its domain with lists within the cutoff."""
    system = System(
        np.arange(1, len(atoms) + 1), types, np.ones(len(atoms)), atoms.positions.copy(), np.zeros((len(atoms), 3)),
        atoms.cell.array.copy(), np.array(atoms.pbc), tuple(model.type_map),
    )  # fmt: skip
    domain = SerialDomain(model.cutoff, 0.0, model.n_types)
    domain.update(system)
    return system, domain


def _mean_neighbors(model, atoms, types):
    """(T, T) mean numbers of neighbours of each type; NaN for centres that the structure lacks."""
    _, domain = _lists(model, atoms, types)
    found, centres = domain.neighbors, np.asarray(domain.types[: len(atoms)])
    of = np.repeat(np.arange(len(atoms)), found.count)
    place = np.concatenate([np.arange(f, f + c) for f, c in zip(found.first, found.count, strict=True)] or [[]])
    neighbors = np.asarray(domain.types)[found.indices[place.astype(np.int64)]]
    known = (centres[of] >= 0) & (neighbors >= 0)
    total = np.zeros((model.n_types, model.n_types))
    np.add.at(total, (centres[of][known], neighbors[known]), 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / np.bincount(centres[centres >= 0], minlength=model.n_types)[:, None]


def _evaluate(model, precision, atoms, types):
    system, domain = _lists(model, atoms, types)
    fitting = model.fitting
    result = CpuOperators(model, precision).evaluate(
        domain.positions, domain.types, domain.neighbors, domain.forces,
        frame_parameters=np.zeros(fitting.n_fparam) if fitting.n_fparam else None,
        atomic_parameters=np.zeros(fitting.n_aparam) if fitting.n_aparam else None,
    )  # fmt: skip
    return result.energies[0], domain.fold(domain.forces)[np.argsort(system.ids)]


def _read_structure(path):
    """ASE Atoms with a whole cell.  Raises InputError for positions or cells that cannot be evaluated."""
    atoms = ase.io.read(path)
    try:
        atoms.set_cell(complete_cell(atoms.cell.array, atoms.pbc))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    if not np.isfinite(atoms.positions).all():
        raise InputError(f"{path}: some positions are not finite numbers")
    return atoms


def compress(path, output, structure=None, overwrite=False, rank=None, report=print):
    """Write a tabulated copy of a model and report the error that the tables make.

    output : ``.dptab``, or ``.dp`` or ``.yaml`` with the tables where DeePMD-kit keeps them; structure : file
    on which errors are measured and, for ``.dptab``, for whose numbers of neighbours the low-rank bases are
    the cheapest; rank : functions of every basis, instead of as many as the tolerance needs.
    Raises InputError for models that cannot be read or tabulated, and for existing files.
    """
    output = Path(output)
    if output.exists() and not overwrite:
        raise InputError(f"{output} exists; choose another name or give --overwrite")
    if output.suffix not in (".dptab", ".dp", ".yaml", ".yml"):
        raise InputError(f"{output}: the suffix tells the format; choose .dptab, .dp or .yaml")
    if not output.parent.is_dir():
        raise InputError(f"{output}: the folder {output.parent} does not exist")
    if rank is not None and (rank < 1 or output.suffix != ".dptab"):
        raise InputError(f"--rank {rank}: give 1 or more, for a .dptab; other formats hold all outputs of the networks")
    try:
        model = load(path)
        if model.source.format.startswith(dptab.FORMAT_NAME) and output.suffix == ".dptab":
            raise InputError(f"{path} is a table file already; give the model that it was made from")
        table = tabulate(model)
        counts = None
        if structure is not None:
            atoms = _read_structure(structure)
            types = assign_types(atoms.symbols, model.type_map, structure)
            where, counts = str(structure), _mean_neighbors(model, atoms, types)
        else:
            atoms, types = trial_structure(model)
            where = f"{len(atoms)} atoms at random"
        table = add_low_rank(table, rank=rank, counts=counts) if output.suffix == ".dptab" else _as_compressed(table)
        notes = write(table, output)
        loaded = load(output)
    except ModelError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{error}") from error
    size = output.stat().st_size / 2**20
    report(f"{output}: {size:.1f} MiB, tables of {len(table.descriptor.unique_embeddings())} embedding networks")
    for note in notes:
        report(f"NOTE: {note}")
    if output.suffix == ".dptab":
        for precision in ("double", "mixed"):
            report(f"  {precision:7s} {describe_low_rank(loaded, precision)}")
    # which neighbours are kept beyond sel is a rule of the format, not an error of the tables
    rule = replace(model.descriptor, shared_selection=loaded.descriptor.shared_selection)
    energy, forces = _evaluate(replace(model, descriptor=rule), "double", atoms, types)
    rms = np.sqrt((forces**2).mean())
    report(f"Errors against the {'tables' if model.compressed else 'exact networks'} of {path}, on {where}:")
    for precision in ("double", "mixed"):
        e, f = _evaluate(loaded, precision, atoms, types)
        report(
            f"  {precision:7s} forces: largest {np.abs(f - forces).max():.1e} eV/Å, rms "
            f"{np.sqrt(((f - forces) ** 2).mean()) / rms:.1e} of the rms force ({rms:.3g} eV/Å); "
            f"energy {abs(e - energy) / len(atoms):.1e} eV/atom"
        )
