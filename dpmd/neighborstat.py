"""Shortest distances and largest numbers of neighbours, over data sets."""

import numpy as np

from dpmd.kernels.neighbors import NeighborListBuilder
from dpmd.parallel.batch import Batch
from dpmd.parallel.domain import complete_cell


def neighbor_statistics(sets, type_map, cutoff, all_types_together=False):
    """``(shortest distance, largest numbers)`` over all frames of :class:`dpmd.datasets.DataSet` objects.

    type_map : names of types; cutoff : Å.  The shortest distance (Å) is infinite if no two atoms are
    within the cutoff; the numbers, (types,) or (1,), are the most neighbours of one atom within it.
    """
    nearest, most = np.inf, np.zeros(1 if all_types_together else len(type_map), int)
    builder = NeighborListBuilder(len(type_map))
    for data in sets:
        types = data.types_in(type_map)
        for k in range(len(data)):
            cell = complete_cell(np.zeros((3, 3)) if data.cells is None else data.cells[k], data.periodic)
            offsets = [0, len(types[k])]
            batch = Batch(data.positions[k], types[k], offsets, cell[None], data.periodic[None], cutoff, builder)
            distances, counts = _distances_and_counts(batch, cutoff, len(type_map))
            nearest = min(nearest, distances.min(initial=np.inf))
            if all_types_together:
                counts = counts.sum(axis=1, keepdims=True)
            most = np.maximum(most, counts.max(axis=0, initial=0))
    return float(nearest), most


def _distances_and_counts(batch, cutoff, n_types):
    """Distances (pairs,) below the cutoff and numbers of neighbours (centres, types)."""
    centre, other, distances = batch.pairs()
    near = distances < cutoff
    counts = np.zeros((batch.n_local, n_types), int)
    np.add.at(counts, (centre[near], batch.types[other[near]]), 1)
    return distances[near], counts
