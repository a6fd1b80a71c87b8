"""What every implementation of the operators takes and returns."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpmd.models import ModelError


@dataclass
class Evaluation:
    """Result of one evaluation of a range of centres.

    energies : (systems,) eV, sums over the centres of each independent system.
    virials : (systems, 3, 3) eV, ``W[a, b] = -sum_ij dE_i/dr_ij,a r_ij,b`` (-dE/dstrain).
    atomic_energies : (centres,) eV.
    atomic_virials : (atoms, 3, 3) eV over local and ghost atoms, each pair's share given to
        the neighbour as in DeePMD-kit; None unless asked for.
    overflowed : centres with more neighbours within the cutoff than the model's ``sel``; ``counted``: this is
        always known here, while evaluations that stay on a device tell when it is worth asking.
    """

    counted = True

    energies: np.ndarray
    virials: np.ndarray
    atomic_energies: np.ndarray
    atomic_virials: np.ndarray | None
    overflowed: int


class Operators(Protocol):
    """Energy and forces of a model from positions and a neighbour list.

    nearest : Å, distance of the nearest pair within the cutoff so far; may be inf unless it is below
        :func:`dpmd.models.tables.checked_distance`.
    """

    nearest: float

    def look_anew(self):
        """Forget the nearest pair: what comes is of another system."""

    def evaluate(
        self,
        positions,
        types,
        neighbors,
        forces,
        *,
        frame_parameters=None,
        atomic_parameters=None,
        system_offsets=None,
        atomic_virials=False,
    ) -> Evaluation:
        """Evaluate all centres of ``neighbors``.

        positions : (atoms, 3) float64, Å, local atoms first, then ghosts.
        types : (atoms,) int32, the model's types; negative for atoms that the model ignores.
        neighbors : :class:`~dpmd.kernels.neighbors.NeighborList` of the centres; its ``fetch()`` is
            called once before centres that are ``late`` are evaluated, others may be before that.
        forces : (atoms, 3) float64, eV/Å; the forces are *added*, those on ghosts included.
        frame_parameters : (n_fparam,) or (systems, n_fparam); atomic_parameters : (centres, n_aparam).
        system_offsets : (systems + 1,), the first centre of each independent system.

        Raises ModelError when required parameters are missing.
        """
        ...

    def in_double(self) -> "Operators":
        """Operators of the same model in the same place that compute in float64; these where they do."""
        ...


def resolve_parameters(model, n_centres, frame_parameters, atomic_parameters, system_offsets):
    """Normalised extra inputs of the fitting networks.

    Returns ``(offsets, extra)``: offsets (systems + 1,) int64 and extra
    (centres, n_fparam + n_aparam) float64.  Raises ModelError naming what is missing.
    """

    fitting = model.fitting
    offsets = np.array([0, n_centres] if system_offsets is None else system_offsets, np.int64)
    n_systems = len(offsets) - 1
    columns = []
    for name, given, wanted in (
        ("frame parameters (fparam)", frame_parameters, fitting.n_fparam),
        ("atomic parameters (aparam)", atomic_parameters, fitting.n_aparam),
    ):
        if given is not None and not wanted:
            raise ModelError(f"{model.source.path}: the model takes no {name}, but {np.size(given)} are given")
    if fitting.n_fparam:
        given = fitting.default_fparam if frame_parameters is None else frame_parameters
        if given is None:
            raise ModelError(f"{model.source.path}: the model needs {fitting.n_fparam} frame parameters (fparam)")
        given = np.asarray(given, float)
        if given.size not in (fitting.n_fparam, n_systems * fitting.n_fparam):
            raise ModelError(
                f"{model.source.path}: {fitting.n_fparam} frame parameters (fparam) wanted, {given.size} given"
            )
        given = np.broadcast_to(given.reshape(-1, fitting.n_fparam), (n_systems, fitting.n_fparam))
        scaled = (given - fitting.fparam_mean) * fitting.fparam_inverse_std
        columns.append(np.repeat(scaled, np.diff(offsets), axis=0))
    if fitting.n_aparam:
        if atomic_parameters is None:
            raise ModelError(f"{model.source.path}: the model needs {fitting.n_aparam} atomic parameters (aparam)")
        given = np.asarray(atomic_parameters, float)
        if given.size not in (fitting.n_aparam, n_centres * fitting.n_aparam):
            raise ModelError(
                f"{model.source.path}: {fitting.n_aparam} atomic parameters (aparam) for each of {n_centres} atoms "
                f"wanted, {given.size} numbers given"
            )
        given = np.broadcast_to(given.reshape(-1, fitting.n_aparam), (n_centres, fitting.n_aparam))
        columns.append((given - fitting.aparam_mean) * fitting.aparam_inverse_std)
    extra = np.concatenate(columns, axis=1) if columns else np.zeros((n_centres, 0))
    return offsets, extra
