"""Reading the structure to start from, and making a System of it."""

import re
from pathlib import Path

import ase.io
import numpy as np
from ase.data import atomic_numbers

from .ensembles import draw_velocities
from .errors import InputError
from .files import find_input
from .potential import assign_types

#: one process cannot hold more
_MOST_ATOMS = 10**9
_data_header = re.compile(r"^\s*\d+\s+atoms\s*(#.*)?$", re.MULTILINE)


def _is_lammps_data(path):
    """True if the file's first lines look like a LAMMPS data file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            head = file.read(4000)
    except OSError:
        return False
    return bool(_data_header.search(head)) and re.search(r"xlo\s+xhi", head) is not None


def _numbers_of_types(elements, where):
    numbers = {}
    for number, name in enumerate(elements, 1):
        if name not in atomic_numbers:
            raise InputError(f"{where}: {name!r} in elements is not a chemical symbol")
        numbers[number] = atomic_numbers[name]
    return numbers


def _read_lammps_data(path, elements, where):
    options = {"sort_by_id": True, "units": "metal"}
    if elements:
        options["Z_of_type"] = _numbers_of_types(elements, where)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        style = re.search(r"^\s*Atoms\s*#\s*(\w+)", text, re.MULTILINE)
        if not style or style[1] not in ("atomic", "charge", "full", "angle", "bond", "molecular"):
            options["atom_style"] = "atomic"
        if not elements and not re.search(r"^\s*Masses", text, re.MULTILINE):
            raise InputError(
                f"{path}: the file numbers its atom types and gives no masses; name them in [structure], "
                'e.g. elements = ["O", "H"] for types 1 and 2'
            )
        atoms = ase.io.read(path, format="lammps-data", do_not_split_by_at_sign=True, **options)
    except InputError:
        raise
    except RuntimeError as error:
        hint = "" if style else "; if its atoms have charges or molecules, say so: 'Atoms # charge' or 'Atoms # full'"
        raise InputError(f"{where}: {path}: {error}{hint}") from error
    except KeyError as error:
        raise InputError(f"{where}: elements names {len(elements or [])} types, but {path} has type {error}") from error
    return atoms


def _announced_atoms(path):
    """How many atoms a file says it has, from its first lines; 0 if it does not say."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            head = file.read(4000)
    except OSError:
        return 0
    data = re.search(r"^\s*(\d+)\s+atoms\s*(#.*)?$", head, re.MULTILINE) if _is_lammps_data(path) else None
    found = data or re.match(r"\s*(\d+)\s*\n", head)  # xyz and its kin
    return int(found[1]) if found else 0


def read(settings, base, check_size=None):
    """ASE Atoms from a validated ``[structure]`` section; ``base`` is the folder of the input file.

    check_size : function(n_atoms, where, [positions, cell, periodic] of some of them), called before there are so many.
    Raises InputError for a missing, unreadable or nonsensical structure.
    """
    where = settings.where("file")
    path = find_input(Path(base) / settings.file, "structure file", where)
    if check_size is not None:
        check_size(_announced_atoms(path), where)
    try:
        if settings.format in ("lammps-data", "lammps") or (settings.format is None and _is_lammps_data(path)):
            atoms = _read_lammps_data(path, settings.elements, where)
        else:
            if settings.elements:
                raise InputError(
                    f"{settings.where('elements')}: elements names the types of LAMMPS data files, which {path} is not"
                )
            atoms = ase.io.read(
                path, index=settings.index, format=settings.format, do_not_split_by_at_sign=True
            )  # fmt: skip
    except InputError:
        raise
    except (StopIteration, IndexError) as error:
        raise InputError(f"{settings.where('index')}: {path} has no frame {settings.index}") from error
    except Exception as error:  # readers of many formats, many kinds of errors
        raise InputError(
            f"{where}: {path} cannot be read as a structure ({type(error).__name__}: {error}); "
            "check the file, or name its format with format = "
        ) from error
    if not isinstance(atoms, ase.Atoms):
        raise InputError(f"{where}: {path}: index {settings.index} names several frames; choose one")
    if settings.periodic is not None:
        atoms.pbc = settings.periodic
    _check(atoms, path, where)
    copies = int(np.prod(settings.replicate, dtype=object))
    if len(atoms) * copies > _MOST_ATOMS:
        raise InputError(
            f"{settings.where('replicate')}: {copies} copies of {len(atoms)} atoms are more than {_MOST_ATOMS:.0e}"
        )
    if check_size is not None:
        place = settings.where("replicate") if copies > 1 else where
        check_size(len(atoms) * copies, place, atoms.positions, atoms.cell.array, atoms.pbc)
    if copies > 1:
        atoms = atoms.repeat(settings.replicate)
    _set_masses(atoms, settings)
    return atoms


def _check(atoms, path, where):
    if len(atoms) == 0:
        raise InputError(f"{where}: {path} holds no atoms")
    if atoms.constraints:
        names = ", ".join(sorted({type(c).__name__ for c in atoms.constraints}))
        raise InputError(
            f"{where}: {path} constrains atoms ({names}), which TOML runs do not apply; remove the constraints"
        )
    for name, values in (("position", atoms.positions), ("velocity", atoms.get_velocities())):
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            raise InputError(
                f"{where}: {path}: the {name} of atom {bad[0] + 1} ({atoms.symbols[bad[0]]}) is not a number: "
                f"{values[bad[0]]}" + (f", and of {len(bad) - 1} more" if len(bad) > 1 else "")
            )
    if not np.isfinite(atoms.cell.array).all():
        raise InputError(f"{where}: {path}: the cell holds values that are not numbers:\n{atoms.cell.array}")


def _set_masses(atoms, settings):
    masses = atoms.get_masses()
    if settings.masses_u is not None and not isinstance(settings.masses_u, dict):
        raise InputError(
            f"{settings.where('masses_u')}: masses_u must be like {{ H = 2.014 }}, not {settings.masses_u!r}"
        )
    for symbol, mass in (settings.masses_u or {}).items():
        if symbol not in atomic_numbers:
            raise InputError(f"{settings.where('masses_u')}: {symbol!r} is not a chemical symbol")
        if not isinstance(mass, (int, float)) or isinstance(mass, bool) or not 0 < mass < 1e6:
            raise InputError(
                f"{settings.where('masses_u')}: the mass of {symbol} must be a positive number, not {mass!r}"
            )
        chosen = atoms.symbols == symbol
        if not chosen.any():
            raise InputError(f"{settings.where('masses_u')}: the structure has no {symbol}")
        masses[chosen] = mass
    bad = np.flatnonzero(~(masses > 0))
    if len(bad):
        raise InputError(
            f"{settings.where('file')}: atom {bad[0] + 1} ({atoms.symbols[bad[0]]}) has mass {masses[bad[0]]:g}; "
            "set masses_u in [structure]"
        )
    atoms.set_masses(masses)


def make_system(atoms, potential, settings, ensemble, seed, moving=True):
    """The System to start from: types by element, velocities as ``[structure]`` asks.

    ensemble : validated ``[ensemble]`` section, whose first temperature is the default for
    velocities drawn here; moving : False where velocities need not be told, and are zero then.
    Returns ``(system, sentence about the velocities)``.
    """
    types = assign_types(atoms.symbols, potential.type_map, settings.where("file"))
    system = potential.system(atoms, types)
    has_velocities = bool(np.any(atoms.get_velocities()))
    choice = settings.velocities
    if choice == "auto":
        choice = "file" if has_velocities and settings.initial_temperature_K is None else "maxwell"
    if choice == "file":
        if not has_velocities:
            raise InputError(f"{settings.where('velocities')}: {settings.file} has no velocities; use 'maxwell'")
        return system, "as in the structure file"
    if choice == "zero":
        system.velocities[:] = 0.0
        return system, "zero"
    kelvin = settings.initial_temperature_K
    if kelvin is None:
        kelvin = ensemble.temperature_K[0] if ensemble.temperature_K else None
    if kelvin is None and not moving:
        return system, "zero"
    if kelvin is None:
        raise InputError(
            f"{settings.where()}: the structure has no velocities; set initial_temperature_K "
            '(or velocities = "zero") in [structure]'
        )
    draw_velocities(system, kelvin, seed)
    return system, f"Maxwell-Boltzmann at {kelvin:g} K, seed {seed}, total momentum zero"
