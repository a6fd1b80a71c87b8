"""A typical atom of a model's training data, from nothing but the model."""

import numpy as np

from .networks import evaluate
from .parameters import PairRule
from .tables import evaluate_table, normalised_input


def typical_descriptor(descriptor, centre):
    """Descriptor (M A,) of a centre of type ``centre`` in a uniform fluid as dense as the training data.

    The model's statistics are mean and spread of the radial entries s over all slots, the empty ones
    included, hence the sums of s and s^2 over the neighbours of an atom.  Neighbours of uniform density from
    some distance on, in the ratios of ``sel``, have the same sums.  They lie in all directions, so D is the
    product of the sums of s G(s) with themselves.  A crystal's is nearer to it than to zero by ten times.
    Zeros for models without statistics.
    """
    d = descriptor
    mean, std, slots = d.radial_mean[centre], d.radial_std[centre], sum(d.sel)
    if not mean > 0:
        return np.zeros(d.n_embedding * d.axis_neuron)
    r = np.linspace(0, d.switch_end, 4001)[1:]
    x = normalised_input(d, centre, r)[0]
    s, shell = x * std + mean, 4 * np.pi * r**2 * (r[1] - r[0])
    beyond, beyond_squared = (np.cumsum((shell * s**power)[::-1])[::-1] for power in (1, 2))
    inner = np.flatnonzero((r > 0.3) & (r < 0.8 * d.switch_end))
    wanted = (std**2 + mean**2) / mean
    first = inner[np.argmin(np.abs(beyond_squared[inner] / beyond[inner] - wanted))]
    density = slots * mean / beyond[first]
    neighbors, x = density * shell[first:], x[first:]
    total, empty = np.zeros(d.n_embedding), np.array([-mean / std])
    for b, embedding in enumerate(d.embeddings[centre]):
        if embedding is None or d.pair_rules[centre, b] == PairRule.SKIPPED:
            continue

        def outputs(inputs, embedding=embedding):
            if embedding.table is not None:
                return evaluate_table(embedding.table, inputs)[0]
            return evaluate(embedding.network, inputs[:, None])

        part = d.sel[b] / slots
        if d.pair_rules[centre, b] == PairRule.INCLUDED:
            total += part * (neighbors * x) @ outputs(x)
        total += (d.sel[b] - part * neighbors.sum()) * empty[0] * outputs(empty)[0]
    total /= d.neighbor_count
    return np.outer(total, total[: d.axis_neuron]).ravel()
