"""How far the models of a committee disagree: DeePMD-kit's model deviation.

With <.> the mean over models (population, divided by their number):

    force    e_i  = sqrt(<|F_i - <F_i>|^2>)              per atom
    virial   e_ab = sqrt(<(W_ab - <W_ab>)^2>) / N        per component
    energy   e    = sqrt(<(E - <E>)^2>) / N

All functions take arrays whose first axis is the models, and may have a second one for frames.
Source: Y. Zhang et al., Comput. Phys. Commun. 253, 107206 (2020); DeePMD-kit 3.2.
"""

import numpy as np

#: columns of the file of ``dp model-devi`` after the step, without those per atom
COLUMNS = (
    "max_devi_v", "min_devi_v", "avg_devi_v", "max_devi_f", "min_devi_f", "avg_devi_f", "devi_e",
)  # fmt: skip


def _spread(values, reference):
    """Root mean square, over models, of the difference from the mean or from ``reference``."""
    centre = values.mean(axis=0) if reference is None else reference
    return np.sqrt(((values - centre) ** 2).mean(axis=0))


def force_deviation(forces, level=None, reference=None):
    """Deviation (..., n), eV/Å, of forces (models, ..., n, 3).

    level : eV/Å, divide by |<F_i>| + level; reference : (..., n, 3), forces to take the
    difference from in place of the mean.
    """
    centre = forces.mean(axis=0) if reference is None else reference
    deviation = np.sqrt(((forces - centre) ** 2).sum(axis=-1).mean(axis=0))
    if level is not None:
        deviation = deviation / (np.linalg.norm(centre, axis=-1) + level)
    return deviation


def virial_deviation(virials, n_atoms, level=None, reference=None, componentwise=True):
    """Deviation (..., 3, 3), eV per atom, of virials (models, ..., 3, 3).

    n_atoms : number, or (...,); level : eV, divide by the size of the mean per atom + level; the size is
    each component's own, as in LAMMPS, or, not ``componentwise``, the norm over all nine components, as
    in ``dp model-devi``; reference : (..., 3, 3), as for forces.
    """
    n_atoms = np.asarray(n_atoms, float)[..., None, None]
    deviation = _spread(virials, reference) / n_atoms
    if level is not None:
        centre = (virials.mean(axis=0) if reference is None else reference) / n_atoms
        size = np.abs(centre) if componentwise else np.linalg.norm(centre, axis=(-2, -1), keepdims=True)
        deviation = deviation / (size + level)
    return deviation


def energy_deviation(energies, n_atoms, reference=None):
    """Deviation (...,), eV per atom, of energies (models, ...)."""
    return _spread(energies, reference) / np.asarray(n_atoms, float)


def summary(virial, force, energy):
    """The columns of the file, (..., 7) in the order of :data:`COLUMNS`.

    virial : (..., 3, 3); force : (..., n); energy : (...,), as the functions above return them.
    The average of a virial is the root mean square over components, that of a force the mean.
    """
    forces = force.max(axis=-1), force.min(axis=-1), force.mean(axis=-1)
    return np.stack([*virial_summary(virial), *forces, energy], axis=-1)


def virial_summary(virial):
    """Greatest, least and root mean square component, (...,) each, of a deviation (..., 3, 3)."""
    flat = virial.reshape(*virial.shape[:-2], 9)
    return flat.max(axis=-1), flat.min(axis=-1), np.sqrt((flat**2).mean(axis=-1))


def header(atomic=False):
    """The title line of the file of ``dp model-devi``."""
    names = [*COLUMNS, "atm_devi_f(N)"] if atomic else COLUMNS
    return f"# {'step':10s}" + "".join(f"{name:19s}" for name in names)


def line(step, values):
    """One line of the file: a step and numbers (7 columns, then, if wanted, one per atom)."""
    return f"{step:12d}" + "".join(f"{value:19.6e}" for value in values)
