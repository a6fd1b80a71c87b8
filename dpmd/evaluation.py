"""Evaluating all frames of a data set, and errors against its labels."""

from dataclasses import dataclass

import ase
import numpy as np

from .errors import InputError


def evaluate_dataset(potential, data):
    """Energies (frames,) eV, forces (frames, n, 3) eV/Å and virials (frames, 3, 3) eV of all frames.

    potential : :class:`dpmd.Potential`; data : :class:`dpmd.datasets.DataSet`.  Frames are evaluated
    many at a time.  Forces of places that hold no atom are zero.
    """
    fitting = potential.model.fitting
    for name, wanted, default in (
        ("fparam", fitting.n_fparam, fitting.default_fparam),
        ("aparam", fitting.n_aparam, None),
    ):
        if wanted and getattr(data, name) is None and default is None:
            raise InputError(
                f"{data.name}: the model needs {wanted} {name} per frame; the data set has none ({name}.npy)"
            )
    types = data.types_in(potential.type_map)
    real = types >= 0
    structures = [
        # the elements do not matter here, since types are given
        ase.Atoms(
            numbers=np.zeros(real[k].sum(), int),
            positions=data.positions[k][real[k]],
            cell=None if data.cells is None else data.cells[k],
            pbc=data.periodic,
        )
        for k in range(len(data))
    ]
    results = potential.evaluate(
        structures,
        fparam=data.fparam if fitting.n_fparam else None,
        aparam=[a[r] for a, r in zip(data.aparam, real, strict=True)] if fitting.n_aparam else None,
        types=[t[r] for t, r in zip(types, real, strict=True)],
    )
    forces = np.zeros(data.positions.shape)
    for k, result in enumerate(results):
        forces[k][real[k]] = result["forces"]
    energies = np.array([result["energy"] for result in results])
    return energies, forces, np.array([result["virial"] for result in results]).reshape(-1, 3, 3)


@dataclass(frozen=True)
class Comparison:
    """Reference and predicted values of one quantity, flat arrays of equal length."""

    reference: np.ndarray
    predicted: np.ndarray

    @property
    def mean_absolute_error(self):
        return float(np.abs(self.predicted - self.reference).mean())

    @property
    def root_mean_square_error(self):
        return float(np.sqrt(((self.predicted - self.reference) ** 2).mean()))


def compare(potential, data):
    """Comparisons by name, of what the data set has labels for.

    Names: energy (eV), energy per atom (eV), force (eV/Å), virial (eV), virial per atom (eV).  Raises
    InputError if there are no labels at all.
    """
    energies, forces, virials = evaluate_dataset(potential, data)
    found, real = {}, data.types >= 0
    if data.energies is not None:
        found["energy"] = Comparison(data.energies, energies)
        found["energy per atom"] = Comparison(data.energies / data.n_atoms, energies / data.n_atoms)
    if data.forces is not None:
        found["force"] = Comparison(data.forces[real].ravel(), forces[real].ravel())
    if data.virials is not None:
        per_atom = data.n_atoms[:, None, None]
        found["virial"] = Comparison(data.virials.ravel(), virials.ravel())
        found["virial per atom"] = Comparison((data.virials / per_atom).ravel(), (virials / per_atom).ravel())
    if not found:
        raise InputError(f"{data.name}: there are no energies, forces or virials to compare with")
    return found


def merge(comparisons):
    """One comparison of the values of several."""
    return Comparison(
        np.concatenate([c.reference for c in comparisons]), np.concatenate([c.predicted for c in comparisons])
    )
