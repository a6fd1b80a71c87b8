"""Deep Potential with descriptor se_e2_a, written as in the papers.

For centre i with neighbours j, ``r_ij = x_j - x_i`` and ``s = w(r) / r``:

    environment row    R_j = (s, s x/r, s y/r, s z/r),   R~ = (R - mean) / std
    embedding          G_j = network(R~_j0), M numbers (or the file's own table)
    average            T   = (1/N) sum_j G_j (x) R~_j,   (M, 4), empty slots included
    descriptor         D   = T T[:A]^T,                  (M, A)
    energy             E_i = fitting network(D) + bias

and forces by the chain rule backwards through the same steps.  Sources: L. Zhang et al.,
NeurIPS 2018 (DeepPot-SE), eqs. 3-8; H. Wang et al., Comput. Phys. Commun. 228, 178 (2018).
"""

import numpy as np

from dpmd.models import PairRule
from dpmd.models.networks import derivatives_of_scalar_input, evaluate, value_and_gradient
from dpmd.models.tables import evaluate_table, switch

from ..operators import Evaluation, resolve_parameters


def _pairs_within(positions, types, neighbors, cutoff):
    """Centre index, neighbour index, vector (n, 3) and distance of all pairs within the cutoff."""
    count = neighbors.count.astype(np.int64)
    centre = np.repeat(np.arange(neighbors.n_centres), count)
    slot = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    neighbor = neighbors.indices[np.repeat(neighbors.first, count) + slot]
    vector = positions[neighbor] - positions[centre]
    distance = np.linalg.norm(vector, axis=1)
    near = (distance < cutoff) & (types[neighbor] >= 0) & (types[centre] >= 0)
    return centre[near], neighbor[near], vector[near], distance[near]


def _keep_selected(descriptor, types, centre, neighbor, distance):
    """Mask of the pairs that remain where a centre has more neighbours than ``sel``, and how many do.

    The rule of the file's origin: the nearest ``sel`` of each type, with ``shared_selection``
    after keeping the ``sum(sel)`` nearest of any type.
    """
    sel, kind = np.array(descriptor.sel), types[neighbor]
    order = np.lexsort((neighbor, distance, centre))
    keep = np.ones(len(order), bool)

    def rank_within(groups, members):
        """Position of each member within its run of equal group numbers (both sorted)."""
        new_run = np.flatnonzero(np.diff(groups, prepend=-1))
        return members - np.repeat(members[new_run], np.diff(np.append(new_run, len(groups))))

    if descriptor.shared_selection and len(order):
        keep[order] = rank_within(centre[order], np.arange(len(order))) < sel.sum()
    counted = order[keep[order]]
    group = (centre * len(sel) + kind)[counted]
    by_type = np.argsort(group, kind="stable")
    if len(counted):
        rank = rank_within(group[by_type], np.arange(len(counted)))
        keep[counted[by_type]] = rank < sel[kind[counted[by_type]]]
    visible = sel[kind] > 0  # a type with no slots is invisible, not overflowing
    return keep, len(np.unique(centre[~keep & visible]))


class ReferenceOperators:
    """Operators in numpy and double precision, whatever the model file's precision.

    Uses the exact embedding networks where the model has them, else the file's tables;
    ``prefer_tables=True`` uses tables wherever there are any.
    """

    def __init__(self, model, prefer_tables=False):
        self.model, self.prefer_tables = model, prefer_tables

    def _embed(self, embedding, x):
        """Outputs of the embedding and their derivatives, each (n, M), at normalised inputs (n,)."""
        use_table = embedding.table is not None and (
            self.prefer_tables or embedding.network is None or embedding.table_from_file
        )
        if use_table:
            return evaluate_table(embedding.table, x)
        return derivatives_of_scalar_input(embedding.network, x)[:2]

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
    ):
        """See :class:`dpmd.kernels.operators.Operators`."""
        model, d = self.model, self.model.descriptor
        n_centres = neighbors.n_centres
        neighbors.fetch()
        offsets, extra = resolve_parameters(model, n_centres, frame_parameters, atomic_parameters, system_offsets)
        centre, neighbor, vector, distance = _pairs_within(positions, types, neighbors, model.cutoff)
        keep, overflowed = _keep_selected(d, types, centre, neighbor, distance)
        centre, neighbor, vector, distance = centre[keep], neighbor[keep], vector[keep], distance[keep]

        energy, pair_gradient = np.zeros(n_centres), np.zeros_like(vector)
        for t in range(model.n_types):
            atoms = np.flatnonzero(types[:n_centres] == t)
            if len(atoms) == 0 or t in model.fitting.silent_types:
                continue
            pairs = np.flatnonzero(types[centre] == t)
            row = np.searchsorted(atoms, centre[pairs])
            energy[atoms], pair_gradient[pairs] = self._one_centre_type(
                t, len(atoms), row, types[neighbor[pairs]], vector[pairs], distance[pairs], extra[atoms]
            )

        np.add.at(forces, centre, pair_gradient)
        np.add.at(forces, neighbor, -pair_gradient)
        pair_virial = -pair_gradient[:, :, None] * vector[:, None, :]
        system = np.searchsorted(offsets, centre, side="right") - 1
        virials = np.zeros((len(offsets) - 1, 3, 3))
        np.add.at(virials, system, pair_virial)
        of_atoms = None
        if atomic_virials:
            of_atoms = np.zeros((len(positions), 3, 3))
            np.add.at(of_atoms, neighbor, pair_virial)
        return Evaluation(
            energies=np.array([energy[a:b].sum() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]),
            virials=virials,
            atomic_energies=energy,
            atomic_virials=of_atoms,
            overflowed=overflowed,
        )

    def _one_centre_type(self, t, n_atoms, row, kinds, vector, distance, extra):
        """Energies (n_atoms,) of the centres of type ``t`` and dE_i/dr_ij (pairs, 3) of their pairs."""
        d = self.model.descriptor
        weight, weight_slope = switch(distance, d.switch_start, d.switch_end, d.switch_width)
        shifted = distance + d.protection
        radial = weight / shifted
        radial_slope = weight_slope / shifted - weight / shifted**2
        unit = vector / distance[:, None]
        # angular entries: w x / (r + p)^2 = angle * unit vector
        angle = weight * distance / shifted**2
        angle_slope = weight_slope * distance / shifted**2 + weight / shifted**2 - 2 * weight * distance / shifted**3
        entries = np.concatenate(
            [((radial - d.radial_mean[t]) / d.radial_std[t])[:, None], angle[:, None] * unit / d.angular_std[t]], axis=1
        )

        average = np.zeros((n_atoms, d.n_embedding, 4))
        embedded, embedded_slope = (np.zeros((len(distance), d.n_embedding)) for _ in range(2))
        active = np.zeros(len(distance), bool)
        for b, embedding in enumerate(d.embeddings[t]):
            rule = d.pair_rules[t, b]
            if embedding is None or rule == PairRule.SKIPPED or d.sel[b] == 0:
                continue
            these = np.flatnonzero(kinds == b)
            filled = np.zeros(n_atoms)
            if rule in (PairRule.INCLUDED, PairRule.MASKED):
                filled = np.bincount(row[these], minlength=n_atoms)
            if rule == PairRule.INCLUDED and len(these):
                embedded[these], embedded_slope[these] = self._embed(embedding, entries[these, 0])
                active[these] = True
                np.add.at(average, row[these], embedded[these][:, :, None] * entries[these][:, None, :])
            empty = -d.radial_mean[t] / d.radial_std[t]
            padding = empty * self._embed(embedding, np.array([empty]))[0][0]
            average[:, :, 0] += (d.sel[b] - filled)[:, None] * padding
        average /= d.neighbor_count

        axis = d.axis_neuron
        descriptor = np.einsum("imc,iac->ima", average, average[:, :axis])
        energy, to_descriptor = self._fit(t, descriptor.reshape(n_atoms, -1), extra)

        # backwards: dE/dT, dE/dR~, dE/dr
        to_descriptor = to_descriptor.reshape(descriptor.shape)
        to_average = np.einsum("ima,iac->imc", to_descriptor, average[:, :axis])
        to_average[:, :axis] += np.einsum("ima,imc->iac", to_descriptor, average)
        to_average = to_average[row] * (active / d.neighbor_count)[:, None, None]
        to_entries = np.einsum("pmc,pm->pc", to_average, embedded)
        to_entries[:, 0] += np.einsum("pmc,pc,pm->p", to_average, entries, embedded_slope)
        to_radial = to_entries[:, 0] / d.radial_std[t]
        to_angular = to_entries[:, 1:] / d.angular_std[t]
        along = (to_angular * unit).sum(axis=1)
        gradient = (to_radial * radial_slope + along * (angle_slope - angle / distance))[:, None] * unit
        gradient += (angle / distance)[:, None] * to_angular
        return energy, gradient

    def _fit(self, t, descriptor, extra):
        """Energies (n,) and their gradient with respect to the descriptor (n, M A)."""
        fitting = self.model.fitting
        network = fitting.networks[t]
        energy, gradient = value_and_gradient(network, np.concatenate([descriptor, extra], axis=1))
        if fitting.subtract_vacuum[t]:
            energy = energy - evaluate(network, np.concatenate([0 * descriptor, extra], axis=1))[:, 0]
        return energy + fitting.energy_bias[t], gradient[:, : descriptor.shape[1]]
