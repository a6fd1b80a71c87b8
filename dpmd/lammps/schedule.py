"""When lists are rebuilt, and the faces of a box whose boundaries follow the atoms."""

import numpy as np

from ..errors import RunError

#: distance kept between outermost atoms and a shrink-wrapped face, as a part of the first box length
_MARGIN = 1e-4


class Schedule:
    """A domain that rebuilds when ``neigh_modify`` says, and in between when the skin is used up.

    domain : such as :class:`dpmd.parallel.SerialDomain`; faces : 3 pairs of letters of p, f, s, m for the
    lower and upper faces; first_low, first_length : (3,) Å of the box as it was created; every, delay,
    check : of neigh_modify; on_lost : ``"error"``, ``"warn"`` or ``"ignore"`` for atoms beyond a fixed face.
    """

    def __init__(self, domain, faces, first_low, first_length, every, delay, check, on_lost="error"):
        self._domain, self.faces = domain, faces
        self.first_low, self.first_length = np.array(first_low), np.array(first_length)
        self.every, self.delay, self.check, self.on_lost = every, delay, check, on_lost
        self.age, self.builds = None, 0
        #: (3,) Å, lower faces relative to the system's origin
        self.low = np.zeros(3)

    def __getattr__(self, name):
        return getattr(self._domain, name)

    def update(self, system):
        """As :meth:`SerialDomain.update`."""
        if self.age is None:
            self.rebuild(system)
            return True
        self.age += 1
        if not self.check and self.age >= self.delay and self.age % self.every == 0:
            self.rebuild(system)
            return True
        if not self._domain.update(system):
            return False
        self.place_faces(system)
        self.builds += 1
        self.age = 0
        return True

    def rebuild(self, system):
        """As :meth:`SerialDomain.rebuild`; the faces follow the atoms."""
        self._domain.rebuild(system)
        self.place_faces(system)
        self.age = 0
        self.builds += 1

    def place_faces(self, system, first=False):
        """Move the faces that follow the atoms; RunError for atoms beyond fixed ones.

        first : the box is one just read, whose faces s LAMMPS moves outward before they follow.
        """
        if system.periodic.all() or not system.n_atoms:
            return
        margins = _MARGIN * self.first_length
        if first:
            lower, upper = ([pair[side] == "s" for pair in self.faces] for side in (0, 1))
            self.low -= margins * lower
            system.cell[np.diag_indices(3)] += margins * (np.array(lower, int) + upper)
        # in a tilted box the faces are tilted too: extents are those of the fractions of its edges
        edges = np.diag(system.cell).copy()
        place = (system.positions - self.low) @ np.linalg.inv(system.cell) * edges + self.low
        ends = np.concatenate([-place.min(axis=0, initial=np.inf), place.max(axis=0, initial=-np.inf)])
        ends = system.processes.largest(ends)
        extent = -ends[:3], ends[3:]
        for axis in np.flatnonzero(~system.periodic):
            lower, upper = self.faces[axis]
            margin, created = margins[axis], self.first_low[axis] - system.origin[axis]
            low, high = created, created + self.first_length[axis]
            if lower == "s":
                low = extent[0][axis] - margin
            elif lower == "m":
                low = min(extent[0][axis] - margin, low)
            if upper == "s":
                high = extent[1][axis] + margin
            elif upper == "m":
                high = max(extent[1][axis] + margin, high)
            if (lower == "f" and extent[0][axis] < low) or (upper == "f" and extent[1][axis] > high):
                self._lost(system, place, axis, low, high)
            self.low[axis] = low
            system.cell[axis, axis] = high - low

    def _lost(self, system, place, axis, low, high):
        if self.on_lost == "ignore":
            return
        x = place[:, axis]
        outside = system.ids[(x < low) | (x > high)]
        count, nobody = system.sum(len(outside)), np.iinfo(np.int64).max
        first = -system.processes.largest(-outside.min(initial=nobody))
        raise RunError.everywhere_raised(
            f"step {system.step}: {count} atoms have left the box through a fixed face along {'xyz'[axis]} "
            f"(first: id {first}). Use boundary s or m there, a larger box, or thermo_modify lost ignore (which "
            "keeps them)"
        )
