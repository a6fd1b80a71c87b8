"""Analyses while running: mean squared displacement and radial distribution functions."""

import numpy as np


class MeanSquaredDisplacement:
    """<|x(t) - x(0)|^2> of a group since it was created, from unwrapped positions.

    chosen : (n,) mask of the present atoms, or None for all; centred : subtract the motion of the
    group's centre of mass.
    """

    def __init__(self, system, group=None, centred=False):
        self.group, self.centred = group, centred
        self.first = np.zeros((int(system.ids.max(initial=0)) + 1, 3))
        self.first[system.ids] = self._positions(system) - self._centre(system)

    def _chosen(self, system):
        return slice(None) if self.group is None else self.group.mask(system)

    @staticmethod
    def _positions(system):
        return system.unwrapped_positions + system.origin

    def _centre(self, system):
        if not self.centred:
            return np.zeros(3)
        chosen = self._chosen(system)
        mass = system.masses[chosen]
        return system.sum(mass @ self._positions(system)[chosen]) / max(system.sum(mass.sum()), 1e-300)

    def __call__(self, system):
        """(4,) Å^2: along x, y, z and their sum."""
        chosen = self._chosen(system)
        moved = (self._positions(system) - self._centre(system) - self.first[system.ids])[chosen]
        n = max(system.sum(len(moved)), 1)
        squares = system.sum((moved * moved).sum(axis=0)) / n
        return np.array([*squares, squares.sum()])


def radial_distribution(domain, system, types, pairs, cutoff, n_bins, group=None):
    """g(r) and coordination numbers of the whole system from a neighbour list.  Collective.

    types : (largest id + 1,) by id, for ``pairs`` = [(set of types, set of types)]; cutoff : Å, within
    the list's; group : :class:`~dpmd.ensembles.Group` of atoms that count, None for all.
    Returns (n_bins, 1 + 2 len(pairs)): r (Å), then g and the number of neighbours up to the bin's end.
    """
    n = len(system)
    types = types[domain.ids]
    chosen = np.ones(len(types), bool) if group is None else group.chosen[domain.ids]
    first, count = domain.neighbors.first, domain.neighbors.count.astype(np.int64)
    centre = np.repeat(np.arange(n), count)
    slot = np.arange(len(centre)) - np.repeat(np.cumsum(count) - count, count)
    neighbor = domain.neighbors.indices[np.repeat(first, count) + slot]
    distance = np.linalg.norm(domain.positions[neighbor] - domain.positions[centre], axis=1)
    near = (distance < cutoff) & chosen[centre] & chosen[neighbor]
    centre, neighbor, distance = centre[near], neighbor[near], distance[near]
    edges = np.linspace(0, cutoff, n_bins + 1)
    result = np.zeros((n_bins, 1 + 2 * len(pairs)))
    result[:, 0] = (edges[:-1] + edges[1:]) / 2
    shells = 4 / 3 * np.pi * np.diff(edges**3) / system.volume
    for k, (a, b) in enumerate(pairs):
        is_a, is_b = np.isin(types, list(a)) & chosen, np.isin(types, list(b)) & chosen
        use = is_a[centre] & is_b[neighbor]
        histogram = system.sum(np.histogram(distance[use], edges)[0].astype(float))
        n_a, n_b, both = system.sum(np.array([m[:n].sum() for m in (is_a, is_b, is_a & is_b)]))
        others = n_b - both / n_a if n_a else 0.0
        if n_a and others > 0:
            result[:, 1 + 2 * k] = histogram / (n_a * shells * others)
            result[:, 2 + 2 * k] = np.cumsum(histogram) / n_a
    return result
