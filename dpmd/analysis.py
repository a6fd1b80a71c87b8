"""Analyses while running: mean squared displacement and radial distribution functions."""

from pathlib import Path

import numpy as np

from .ensembles import Group
from .simulation import Hook


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


def radial_distribution(domain, system, types, pairs, cutoff, n_bins, chosen=None):
    """g(r) and coordination numbers from a neighbour list.

    types : (n,) of the local atoms, for ``pairs`` = [(set of types, set of types)]; cutoff : Å, within
    the list's; chosen : (n,) mask of atoms that count.
    Returns (n_bins, 1 + 2 len(pairs)): r (Å), then g and the number of neighbours up to the bin's end.
    """
    n = len(system)
    chosen = np.ones(n, bool) if chosen is None else chosen
    first, count = domain.neighbors.first, domain.neighbors.count.astype(np.int64)
    centre = np.repeat(np.arange(n), count)
    slot = np.arange(len(centre)) - np.repeat(np.cumsum(count) - count, count)
    neighbor = domain.neighbors.indices[np.repeat(first, count) + slot]
    distance = np.linalg.norm(domain.positions[neighbor] - domain.positions[centre], axis=1)
    owner = np.concatenate([np.arange(n), domain.owners])[neighbor]
    near = (distance < cutoff) & chosen[centre] & chosen[owner]
    centre, owner, distance = centre[near], owner[near], distance[near]
    edges = np.linspace(0, cutoff, n_bins + 1)
    result = np.zeros((n_bins, 1 + 2 * len(pairs)))
    result[:, 0] = (edges[:-1] + edges[1:]) / 2
    shells = 4 / 3 * np.pi * np.diff(edges**3) / system.volume
    for k, (a, b) in enumerate(pairs):
        is_a, is_b = np.isin(types, list(a)) & chosen, np.isin(types, list(b)) & chosen
        use = is_a[centre] & is_b[owner]
        histogram = system.sum(np.histogram(distance[use], edges)[0].astype(float))
        n_a, n_b = system.sum(int(is_a.sum())), system.sum(int(is_b.sum()))
        both = system.sum(int((is_a & is_b).sum()))
        others = n_b - both / n_a if n_a else 0.0
        if n_a and others > 0:
            result[:, 1 + 2 * k] = histogram / (n_a * shells * others)
            result[:, 2 + 2 * k] = np.cumsum(histogram) / n_a
    return result


class _Table(Hook):
    """Rows of a CSV file that a continued run can cut and go on with."""

    def __init__(self, every, path, position=None):
        self.every, self.path = every, Path(path)
        self.file = open(path, "w" if position is None else "r+", encoding="utf-8")  # noqa: SIM115
        if position is not None:
            self.file.truncate(position)
            self.file.seek(position)
        self.new = position is None

    def row(self, names, values):
        """Write a row, and before the first one the names."""
        if self.new:
            self.file.write(",".join(names) + "\n")
            self.new = False
        self.file.write(",".join(repr(v) if isinstance(v, int) else f"{v:.12g}" for v in values) + "\n")
        self.file.flush()

    def position(self):
        """Bytes written so far."""
        self.file.flush()
        return self.file.tell()

    def finish(self, simulation):
        self.file.close()


class DisplacementTable(_Table):
    """Mean squared displacement since the run's first step, kept over restarts in PATH.reference.npy.

    elements : names, None for all atoms.
    """

    def __init__(self, every, path, elements=None, position=None):
        super().__init__(every, path, position)
        self.elements, self.going_on = elements, position is not None
        self.reference = self.path.with_name(self.path.name + ".reference.npy")

    def start(self, simulation):
        system = simulation.system
        group = None
        if self.elements:
            chosen = np.zeros(int(system.ids.max(initial=0)) + 1, bool)
            chosen[system.ids] = np.isin(system.names(), self.elements)
            group = Group(chosen)
        self.measure = MeanSquaredDisplacement(system, group)
        if self.going_on and self.reference.exists():
            self.measure.first = np.load(self.reference)
        else:
            np.save(self.reference, self.measure.first)

    def __call__(self, simulation):
        values = self.measure(simulation.system)
        time = simulation.system.step * simulation.ensemble.timestep
        self.row(
            ("step", "time_ps", "msd_x_A2", "msd_y_A2", "msd_z_A2", "msd_A2"), (simulation.system.step, time, *values)
        )


class DistributionTable(_Table):
    """g(r) at each due step, one row each; a column per pair and bin, named by the bin's middle (Å).

    elements : two names, None for all pairs; cutoff : Å, None for the model's.
    """

    def __init__(self, every, path, elements=None, cutoff=None, bins=100, position=None):
        super().__init__(every, path, position)
        self.elements, self.cutoff, self.bins = elements, cutoff, bins

    def __call__(self, simulation):
        system, domain = simulation.system, simulation.domain
        names = system.type_names
        if self.elements:
            pairs = [tuple(names.index(e) for e in self.elements)]
        else:
            there = [t for t in range(len(names)) if system.sum(int((system.types == t).sum()))]
            pairs = [(a, b) for a in there for b in there if a <= b]
        cutoff = self.cutoff or domain.cutoff
        g = radial_distribution(domain, system, system.types, [({a}, {b}) for a, b in pairs], cutoff, self.bins)
        titles = [f"g_{names[a]}-{names[b]}_{r:.4g}" for a, b in pairs for r in g[:, 0]]
        self.row(("step", *titles), (system.step, *(v for k in range(len(pairs)) for v in g[:, 1 + 2 * k])))


def create(section, path, position=None):
    """The hook that a validated ``[[analysis]]`` section describes."""
    if section.kind == "msd":
        return DisplacementTable(section.every, path, section.elements, position)
    return DistributionTable(section.every, path, section.elements, section.cutoff_A, section.bins, position)
