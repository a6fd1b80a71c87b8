"""Reading labelled structures: DeePMD data sets, extended XYZ (and whatever ASE reads), dpdata systems.

A DeePMD data set is a folder with ``type.raw`` and either ``set.*`` folders of ``.npy`` arrays or
``.raw`` text files; ``real_atom_types.npy`` makes it a *mixed* one, whose frames have the same number
of atoms but different elements (with -1 for places that hold no atom).  A file ``nopbc`` says that
the frames are not periodic.  Layout: DeePMD-kit's manual, "Formats of a system".
"""

from dataclasses import dataclass, replace
from pathlib import Path

import ase
import ase.io
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import atomic_numbers

from .errors import InputError
from .units import stress_from_virial

#: per-frame labels and inputs of a data set, with the shape of one frame (n: atoms, k: any)
_arrays = {
    "energies": ("energy", ()),
    "forces": ("force", ("n", 3)),
    "virials": ("virial", (3, 3)),
    "fparam": ("fparam", ("k",)),
    "aparam": ("aparam", ("n", "k")),
}


@dataclass(frozen=True, eq=False)
class DataSet:
    """Frames with the same number of atoms, and what is known of each.

    name : where it comes from; type_map : names of the types, or None if the data set has none (then
    types are the model's own); types : (frames, n) int, -1 where there is no atom; positions :
    (frames, n, 3) Å; cells : (frames, 3, 3) Å, or None if the frames are not periodic; periodic : (3,)
    bool.  Labels and inputs, None where unknown: energies (frames,) eV; forces (frames, n, 3) eV/Å;
    virials (frames, 3, 3) eV; fparam (frames, k); aparam (frames, n, k).
    """

    name: str
    type_map: tuple[str, ...] | None
    types: np.ndarray
    positions: np.ndarray
    cells: np.ndarray | None
    periodic: np.ndarray
    energies: np.ndarray | None = None
    forces: np.ndarray | None = None
    virials: np.ndarray | None = None
    fparam: np.ndarray | None = None
    aparam: np.ndarray | None = None

    def __len__(self):
        return len(self.positions)

    def __getitem__(self, frames):
        """A data set of some of the frames (a slice or an array of indices)."""
        per_frame = ("types", "positions", "cells", *_arrays)
        chosen = {name: getattr(self, name) for name in per_frame}
        return replace(self, **{name: None if v is None else v[frames] for name, v in chosen.items()})

    @property
    def n_atoms(self):
        """(frames,) atoms of each frame."""
        return (self.types >= 0).sum(axis=1)

    def types_in(self, type_map):
        """Types (frames, n) in the order of a model's ``type_map``, -1 where there is no atom.

        Raises InputError for elements that the model lacks.
        """
        if self.type_map is None:
            most = int(self.types.max(initial=-1))
            if most >= len(type_map):
                raise InputError(
                    f"{self.name}: there is a type {most}, but the model has only {len(type_map)} types; "
                    "name the types in a file type_map.raw"
                )
            return self.types.astype(np.int32)
        used = sorted({self.type_map[t] for t in np.unique(self.types) if t >= 0})
        missing = [name for name in used if name not in type_map]
        if missing:
            raise InputError(
                f"{self.name}: the model has no type for {', '.join(missing)}; its types are {', '.join(type_map)}"
            )
        table = [type_map.index(name) if name in type_map else -1 for name in self.type_map]
        return np.array([*table, -1], np.int32)[self.types]

    def structures(self, type_map=None):
        """The frames as ASE Atoms, one after another, known energy, forces and stress attached.

        type_map : names to use if the data set has none.
        """
        names = self.type_map or type_map
        if names is None:
            raise InputError(f"{self.name}: there is no type_map.raw that names its types; add one, or give type_map")
        numbers = np.array([atomic_numbers.get(name, 0) for name in names])
        for k in range(len(self)):
            real = self.types[k] >= 0
            cell = None if self.cells is None else self.cells[k]
            atoms = ase.Atoms(numbers[self.types[k][real]], self.positions[k][real], cell=cell, pbc=self.periodic)
            results = {}
            if self.energies is not None:
                results["energy"] = float(self.energies[k])
            if self.forces is not None:
                results["forces"] = self.forces[k][real]
            if self.virials is not None and self.periodic.all():
                results["stress"] = stress_from_virial(self.virials[k], atoms.get_volume())
            if results:
                atoms.calc = SinglePointCalculator(atoms, **results)
            yield atoms


# --------------------------------------------------------------------- DeePMD folders


def _numbers(path, dtype=float):
    try:
        return np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, dtype=dtype, ndmin=1)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: cannot be read as an array of numbers ({error})") from error


def _in_frames(values, path, n_frames, n_atoms, shape):
    """``values`` reshaped to one entry of ``shape`` per frame."""
    sizes = [n_atoms if s == "n" else s for s in shape]
    fixed = int(np.prod([s for s in sizes if s != "k"])) if sizes else 1
    fits = values.size % max(n_frames * fixed, 1) == 0 if "k" in sizes else values.size == n_frames * fixed
    if not fits:
        raise InputError(
            f"{path}: {values.size} numbers do not fit {n_frames} frames of {n_atoms} atoms; "
            "the files of this data set do not belong together"
        )
    return np.asarray(values, float).reshape(n_frames, *(-1 if s == "k" else s for s in sizes))


def _read_set(folder, suffix, n_atoms, open_directions):
    """Arrays of one ``set.*`` folder, or of the ``.raw`` files beside ``type.raw``, as a dict."""
    coordinates = folder / f"coord{suffix}"
    if not coordinates.exists():
        raise InputError(f"{folder}: there is no coord{suffix}; a DeePMD data set needs it")
    values = _numbers(coordinates)
    n_frames = len(values) if values.ndim > 1 else max(values.size // (3 * n_atoms), 1)
    found = {"positions": _in_frames(values, coordinates, n_frames, n_atoms, ("n", 3)), "cells": None}
    box = folder / f"box{suffix}"
    if not open_directions:
        if not box.exists():
            raise InputError(f"{box} is missing; for frames that are not periodic make an empty file named nopbc")
        found["cells"] = _in_frames(_numbers(box), box, n_frames, n_atoms, (3, 3))
    for name, (stem, shape) in _arrays.items():
        path = folder / f"{stem}{suffix}"
        found[name] = _in_frames(_numbers(path), path, n_frames, n_atoms, shape) if path.exists() else None
    mixed = folder / f"real_atom_types{suffix}"
    found["types"] = _numbers(mixed).reshape(n_frames, n_atoms).astype(int) if mixed.exists() else None
    return found


def read_deepmd_folder(folder):
    """A :class:`DataSet` from one DeePMD system: npy sets or raw files, standard or mixed type."""
    folder = Path(folder)
    types = _numbers(folder / "type.raw", int).astype(int).ravel()
    names = folder / "type_map.raw"
    type_map = tuple(names.read_text(encoding="utf-8").split()) if names.exists() else None
    open_directions = (folder / "nopbc").exists()
    sets = sorted(p for p in folder.glob("set.*") if p.is_dir())
    parts = [_read_set(p, ".npy", len(types), open_directions) for p in sets] or [
        _read_set(folder, ".raw", len(types), open_directions)
    ]
    joined = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        joined[name] = None if any(v is None for v in values) else np.concatenate(values)
    if joined["types"] is None:
        joined["types"] = np.broadcast_to(types, (len(joined["positions"]), len(types)))
    if type_map is not None and joined["types"].max(initial=-1) >= len(type_map):
        raise InputError(
            f"{folder}: there is a type {joined['types'].max()}, but type_map.raw names only {len(type_map)} types"
        )
    return DataSet(name=str(folder), type_map=type_map, periodic=np.full(3, not open_directions), **joined)


# --------------------------------------------------------------------- other sources


def from_structures(structures, name="structures"):
    """Data sets (a list) from ASE Atoms: frames with the same elements in the same order are one.

    Energies, forces and stresses are taken from the attached calculators' results; the stress becomes
    a virial by W = -stress x volume.
    """
    groups = {}
    for atoms in structures:
        groups.setdefault((tuple(atoms.numbers), tuple(atoms.pbc)), []).append(atoms)
    type_map = tuple(sorted({s for numbers, _ in groups for s in ase.Atoms(numbers).symbols}))
    found = []
    for number, frames in enumerate(groups.values()):
        results = [atoms.calc.results if atoms.calc is not None else {} for atoms in frames]

        def labels(key, results=results):
            return np.array([r[key] for r in results], float) if all(key in r for r in results) else None

        stresses = labels("stress")
        volumes = np.array([atoms.get_volume() if atoms.cell.rank == 3 else np.nan for atoms in frames])
        types = [type_map.index(s) for s in frames[0].symbols]
        found.append(
            DataSet(
                name=name if len(groups) == 1 else f"{name}, composition {number + 1} ({frames[0].symbols})",
                type_map=type_map,
                types=np.tile(types, (len(frames), 1)),
                positions=np.array([atoms.positions for atoms in frames]),
                cells=np.array([atoms.cell.array for atoms in frames]) if frames[0].pbc.any() else None,
                periodic=frames[0].pbc.copy(),
                energies=labels("energy"),
                forces=labels("forces"),
                virials=None if stresses is None else -_matrices(stresses) * volumes[:, None, None],
            )
        )
    return found


def _matrices(stresses):
    """(frames, 3, 3) from Voigt (frames, 6) xx yy zz yz xz xy."""
    stresses = stresses.reshape(len(stresses), -1)
    if stresses.shape[1] == 9:
        return stresses.reshape(-1, 3, 3)
    return stresses[:, [0, 5, 4, 5, 1, 3, 4, 3, 2]].reshape(-1, 3, 3)


def from_dpdata(system, name="dpdata system"):
    """A :class:`DataSet` from a ``dpdata.System`` or ``dpdata.LabeledSystem``."""
    data = system.data
    periodic = np.full(3, not data.get("nopbc", False))
    return DataSet(
        name=name,
        type_map=tuple(data["atom_names"]),
        types=np.tile(np.asarray(data["atom_types"], int), (len(data["coords"]), 1)),
        positions=np.asarray(data["coords"], float),
        cells=np.asarray(data["cells"], float) if periodic.any() else None,
        periodic=periodic,
        energies=data.get("energies"),
        forces=data.get("forces"),
        virials=data.get("virials"),
    )


def read(path, format=None):
    """All data sets (a list of :class:`DataSet`) that ``path`` leads to.

    path : a DeePMD system; a folder with such systems somewhere below; a file that ASE reads
    (extended XYZ, .traj, ...), all frames; or a dpdata ``LabeledSystem``, or a list of ASE Atoms.
    format : ASE's name of the file format, if it cannot be told.
    Raises InputError if there is nothing to read, or if it is damaged.
    """
    if hasattr(path, "data") and hasattr(path, "get_nframes"):
        return [from_dpdata(path)]
    if isinstance(path, (list, tuple)):
        return from_structures(path)
    path = Path(path)
    if path.is_dir() and format is None:
        systems = sorted(p.parent for p in path.rglob("type.raw"))
        if not systems:
            raise InputError(f"{path}: no DeePMD data set in this folder or below it (none has a file type.raw)")
        return [read_deepmd_folder(p) for p in systems]
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    try:
        frames = ase.io.read(path, index=":", format=format)
    except Exception as error:  # readers of many formats, many kinds of errors
        raise InputError(f"{path}: cannot be read as structures ({type(error).__name__}: {error})") from error
    return from_structures(frames, str(path))


def read_deepmd(filename, index=-1):
    """Reader for ``ase.io.read(..., format="deepmd")``: frames of all data sets below a folder."""
    frames = [atoms for data in read(filename) for atoms in data.structures()]
    return frames[index]
