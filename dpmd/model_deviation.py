"""The deviation of a committee of models during a run, written as DeePMD-kit's LAMMPS plugin does."""

from pathlib import Path

import numpy as np

from .committee import COLUMNS, force_deviation, virial_deviation, virial_summary
from .errors import InputError
from .simulation import Hook

#: columns after the step: those of ``dp model-devi`` but the energy
NAMES = COLUMNS[:6]


class Committee:
    """The models beside the first one, evaluated on the first one's lists when asked.

    potentials : :class:`dpmd.potential.Potential`; all must have the first one's type map.
    parameters : ``frame_parameters`` and ``atomic_parameters`` for the operators.
    Raises InputError where the models do not fit together.
    """

    def __init__(self, first, others):
        for other in others:
            a, b = first.model, other.model
            if tuple(a.type_map) != tuple(b.type_map):
                raise InputError(
                    f"{b.source.path}: its types are {' '.join(b.type_map)}, those of {a.source.path} "
                    f"{' '.join(a.type_map)}; the models of a committee must agree"
                )
            if b.cutoff > a.cutoff:
                raise InputError(
                    f"{b.source.path}: its cutoff, {b.cutoff:g} Å, is larger than that of {a.source.path} "
                    f"({a.cutoff:g} Å); name the model of the largest cutoff first"
                )
        self.first, self.others = first, others

    def evaluate(self, simulation):
        """Forces (models, n, 3) eV/Å and virials (models, 3, 3) eV of all models at the present positions.

        Forces are those on this process's atoms, virials the whole system's.  Collective.
        """
        domain, system = simulation.domain, simulation.system
        forces, virials, missing, there = [], [], [self.first, *self.others], []
        if not simulation.ensemble.changes_forces:  # then the first model's are there
            forces, there, missing = [system.forces.copy()], [system.virial], self.others
        for potential in missing:
            buffer = np.zeros_like(domain.forces)
            result = potential.operators.evaluate(
                domain.positions, domain.types, domain.neighbors, buffer, **simulation.present_parameters()
            )
            forces.append(domain.fold(buffer).copy())
            virials.append(result.virials[0])
        return np.array(forces), np.array([*there, *system.sum(np.array(virials))])


class ModelDeviation(Hook):
    """Writes the deviation of a committee every so many steps.

    every : steps; path : file; committee : :class:`Committee`; atomic : also every atom's, in id
    order; relative, relative_v : levels, or None; energy_factor : energy unit of the file per
    eV; position : bytes to keep of the file (None: start anew); up_to : keep the file's rows up to this step;
    opened : False on ranks that only contribute their atoms.
    """

    format = "model_devi"
    several_ranks = True

    def __init__(
        self, every, path, committee, atomic=False, relative=None, relative_v=None, energy_factor=1.0, position=None,
        up_to=None, opened=True,
    ):  # fmt: skip
        self.every, self.path, self.committee = every, Path(path), committee
        self.atomic, self.relative, self.relative_v, self.factor = atomic, relative, relative_v, energy_factor
        self.last_step = None
        if up_to is not None and self.path.exists():
            position = self._end_of(up_to)
        self.last, self.file = None, None
        if not opened:
            return
        self.file = open(path, "w" if position is None else "r+", encoding="utf-8")  # noqa: SIM115
        if position is not None:
            self.file.truncate(position)
            self.file.seek(position)
        if not position:
            names = [*NAMES, "atm_devi_f(N)"] if atomic else NAMES
            self.file.write("#" + "step".rjust(11) + "".join(name.rjust(19) for name in names) + "\n")

    def _end_of(self, step):
        """Bytes of the file up to and with the row of ``step``."""
        end = 0
        with open(self.path, "rb") as file:
            for line in file:
                word = line.split()[:1]
                if not line.endswith(b"\n") or (word and word[0].isdigit() and int(word[0]) > step):
                    break
                if word and word[0].isdigit():
                    self.last_step = int(word[0])
                end += len(line)
        return end

    def due(self, step, first=False):
        return step % self.every == 0 and step != self.last_step

    def __call__(self, simulation):
        system = simulation.system
        self.last_step = system.step
        forces, virials = self.committee.evaluate(simulation)
        forces, virials = forces * self.factor, virials * self.factor
        f = force_deviation(forces, self.relative)
        v = virial_deviation(virials, system.n_atoms, self.relative_v)
        most, least = system.processes.largest(np.array([f.max(initial=-np.inf), (-f).max(initial=-np.inf)]))
        self.last = np.array([*virial_summary(v), most, -least, system.sum(f.sum()) / max(system.n_atoms, 1)])
        ids, f = system.gathered(system.ids, f) if self.atomic else (None, None)
        if self.file is None:
            return
        values = [*self.last, *(f[np.argsort(ids)] if self.atomic else ())]
        self.file.write(f"{system.step:12d} " + " ".join(f"{value:18.6e}" for value in values) + "\n")
        self.file.flush()

    def position(self):
        """Bytes written so far."""
        self.file.flush()
        return self.file.tell()

    def finish(self, simulation):
        if self.file is not None:
            self.file.flush()

    def close(self):
        """Close the file."""
        if self.file is not None:
            self.file.close()
