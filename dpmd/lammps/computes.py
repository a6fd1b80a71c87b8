"""Computes and thermo keywords: what outputs and formulas may ask for.

All values are in the units of the script.
"""

import math

import numpy as np

from ..analysis import MeanSquaredDisplacement, radial_distribution
from ..barostats import COLUMN, ROW
from ..units import pressure_tensor, temperature
from .language import ScriptError

#: from the order xx yy zz yz xz xy to LAMMPS's xx yy zz xy xz yz
_ORDER = [0, 1, 2, 5, 4, 3]
#: components of a 3 x 3 virial, flattened, in the order of centroid/stress/atom
_CENTROID = [0, 4, 8, 3, 6, 7, 1, 2, 5]


class Compute:
    """A named quantity of a group.  Subclasses have ``scalar()``, ``vector()``, ``array()`` or ``atoms()``.

    All are to be called by all ranks: what concerns the whole group is the same on each.
    atoms() : (n,) or (n, columns) of this rank's atoms in their present order.  width : elements of the vector, or
    columns of the array or of the values of atoms; rows : of the array.
    """

    width, rows = 1, None
    #: which of its values grow with the number of atoms, so that ``thermo_modify norm yes`` divides them
    extensive: tuple[str, ...] = ()

    def __init__(self, session, group, words):
        self.session, self.group = session, group
        self.set_up(words)

    def set_up(self, words):
        """Read the arguments after the style's name."""
        if words:
            raise ScriptError(f"unexpected {words[0]!r}")

    @property
    def system(self):
        return self.session.system

    def mask(self):
        """(n,) bool of the group's atoms."""
        return np.ones(len(self.system), bool) if self.group is None else self.group.mask(self.system)


class Temperature(Compute):
    """Kinetic temperature with 3 N - 3 degrees of freedom, and the kinetic tensor."""

    extra, width, extensive = 3, 6, ("vector",)

    def freedom(self):
        n = self.system.n_atoms if self.group is None else self.group.n_atoms(self.system)
        return 3 * n - self.extra

    def tensor(self):
        return self.system.twice_kinetic_tensor(None if self.group is None else self.mask())

    def scalar(self):
        return temperature(0.5 * float(np.trace(self.tensor())), self.freedom(), self.system.constants)

    def vector(self):
        return self.tensor()[ROW, COLUMN][_ORDER] * self.session.units.energy


class PotentialEnergy(Compute):
    """Potential energy of the whole system."""

    extensive = ("scalar",)

    def set_up(self, words):
        if set(words) - {"pair", "fix"}:
            raise ScriptError(f"unexpected {words[0]!r}; pair and fix may follow")

    def scalar(self):
        return self.session.energy() * self.session.units.energy


class KineticEnergy(Compute):
    """Kinetic energy of the group."""

    extensive = ("scalar",)

    def scalar(self):
        mask = None if self.group is None else self.mask()
        return 0.5 * float(np.trace(self.system.twice_kinetic_tensor(mask))) * self.session.units.energy


class Pressure(Compute):
    """Pressure tensor of the whole system, in the order xx yy zz xy xz yz."""

    width = 6

    def set_up(self, words):
        self.temperature = words[0] if words else "thermo_temp"
        kinds = set(words[1:])
        if kinds - {"ke", "virial", "pair", "fix", "bond", "angle", "kspace"}:
            raise ScriptError(f"unexpected {' '.join(words[1:])!r}; ke, virial, pair, fix may follow the temperature")
        self.kinetic = self.temperature != "NULL" and (not kinds or "ke" in kinds)
        self.virial = not kinds or bool(kinds - {"ke"})

    def tensor(self):
        kinetic = virial = np.zeros((3, 3))
        if self.virial:
            self.session.need_forces()
            virial = self.system.virial
        if self.kinetic:
            source = self.session.compute(self.temperature)
            kinetic = source.tensor() if isinstance(source, Temperature) else self.system.twice_kinetic_tensor()
        return pressure_tensor(kinetic, virial, self.session.volume(), self.system.constants)

    def scalar(self):
        return float(np.trace(self.tensor())) / 3

    def vector(self):
        return self.tensor()[COLUMN, ROW][_ORDER]


class Displacement(Compute):
    """Mean squared displacement since the compute was defined."""

    width = 4

    def set_up(self, words):
        options = dict(zip(words[::2], words[1::2], strict=False))
        com = options.get("com", "no")
        if len(words) % 2 or set(options) - {"com", "average"} or options.get("average", "no") != "no":
            raise ScriptError("compute msd takes 'com yes|no' only (average is not supported)")
        if com not in ("yes", "no"):
            raise ScriptError(f"compute msd: com is yes or no, not {com!r}")
        self.first = MeanSquaredDisplacement(self.system, self.group, com == "yes")

    def vector(self):
        return self.first(self.system)


class Distribution(Compute):
    """Radial distribution function g(r) and coordination numbers, one pair of columns per pair of types."""

    def set_up(self, words):
        self.cutoff = None
        if "cutoff" in words:
            at = words.index("cutoff")
            try:
                self.cutoff = float(words[at + 1])
            except (IndexError, ValueError):
                raise ScriptError("compute rdf ... cutoff takes a distance") from None
            words = words[:at] + words[at + 2 :]
        if not words or not words[0].isdigit() or not 1 <= int(words[0]) <= 1_000_000:
            raise ScriptError("compute rdf takes the number of bins, a whole number")
        self.n_bins = int(words[0])
        if len(words) % 2 == 0:
            raise ScriptError("compute rdf takes pairs of types after the number of bins")
        sets = [set(self.session.type_range(w)) for w in words[1:]] or [set(range(1, self.session.n_types + 1))] * 2
        self.pairs = list(zip(sets[::2], sets[1::2], strict=True))
        self.width, self.rows = 1 + 2 * len(self.pairs), self.n_bins

    def array(self):
        self.session.need_lists()
        domain, system = self.session.simulation.domain, self.system
        most = domain.cutoff + domain.skin
        cutoff = self.cutoff or domain.cutoff
        if cutoff > most:
            raise ScriptError(f"compute rdf: the cutoff, {cutoff:g}, is beyond that of the lists, {most:g} Å")
        return radial_distribution(
            domain, system, self.session.type_of, self.pairs, cutoff, self.n_bins, self.group
        )  # fmt: skip


class _AtomEnergies(Compute):
    def set_up(self, words):
        if set(words) - {"pair"}:
            raise ScriptError(f"unexpected {words[0]!r}")

    def atoms(self):
        energies, _ = self.session.per_atom()
        return np.where(self.mask(), energies, 0.0) * self.session.units.energy


class _AtomKinetic(Compute):
    def atoms(self):
        v2 = (self.system.velocities**2).sum(axis=1) / self.system.inverse_masses
        return np.where(self.mask(), 0.5 * v2, 0.0) * self.session.units.energy


class CentroidStress(Compute):
    """-W_j - m v v of each atom in pressure x volume; a pair's term belongs to the neighbour, as in DeePMD-kit."""

    columns, width = _CENTROID, 9

    def set_up(self, words):
        if not words:
            raise ScriptError("a temperature compute or NULL is missing after the style")
        kinds = set(words[1:])
        if kinds - {"ke", "virial", "pair", "fix", "bond", "angle", "dihedral", "improper", "kspace"}:
            raise ScriptError(f"unexpected {' '.join(words[1:])!r}; ke, virial, pair, fix may follow")
        self.kinetic, self.virial = not kinds or "ke" in kinds, not kinds or bool(kinds - {"ke"})

    def tensors(self):
        stress = -self.session.per_atom()[1] if self.virial else np.zeros((len(self.system), 3, 3))
        system = self.system
        if self.kinetic:
            v = system.velocities
            stress -= v[:, :, None] * v[:, None, :] / system.inverse_masses[:, None, None]
        return np.where(self.mask()[:, None, None], stress, 0.0) * system.constants.pressure

    def atoms(self):
        return self.tensors().reshape(-1, 9)[:, self.columns]


class Stress(CentroidStress):
    """The symmetric part of centroid/stress/atom: xx yy zz xy xz yz."""

    width = 6

    def atoms(self):
        tensors = self.tensors()
        return ((tensors + tensors.transpose(0, 2, 1)) / 2)[:, COLUMN, ROW][:, _ORDER]


class Property(Compute):
    """Columns of dump custom as a per-atom array."""

    def set_up(self, words):
        from .dumps import COLUMNS

        unknown = [w for w in words if w not in COLUMNS or COLUMNS[w].text]
        if not words or unknown:
            raise ScriptError(f"property {(unknown or ['(none)'])[0]!r} is not supported; known: {', '.join(COLUMNS)}")
        self.words, self.width = words, len(words)

    def atoms(self):
        from .dumps import COLUMNS

        values = np.stack([np.asarray(COLUMNS[w].get(self.session), float) for w in self.words], axis=1)
        values = np.where(self.mask()[:, None], values, 0.0)
        return values[:, 0] if len(self.words) == 1 else values


class Reduce(Compute):
    """Sum, mean, least or greatest of per-atom values of the group."""

    kinds = ("sum", "ave", "min", "max")

    def set_up(self, words):
        if len(words) < 2 or words[0] not in self.kinds:
            raise ScriptError(f"compute reduce takes one of {', '.join(self.kinds)} and per-atom values")
        self.kind, self.words = words[0], [name for word in words[1:] for name in self.session.expand_star(word)]
        self.width = len(self.words)
        self.extensive = ("scalar", "vector") if self.kind == "sum" else ()
        #: per-atom values that are looked at
        self.columns_of_atoms = tuple(self.words)

    def vector(self):
        columns = self.session.settle_atoms(lambda: [self.session.atom_column(w) for w in self.words])
        mask, processes = self.mask(), self.system.processes
        columns = [np.asarray(c, float)[mask] for c in columns]
        n = self.system.sum(int(mask.sum()))
        if n == 0:
            return np.zeros(len(self.words))
        if self.kind in ("sum", "ave"):
            return self.system.sum(np.array([c.sum() for c in columns])) / (n if self.kind == "ave" else 1)
        sign = 1 if self.kind == "max" else -1
        return sign * processes.largest(np.array([(sign * c).max(initial=-np.inf) for c in columns]))

    def scalar(self):
        if len(self.words) > 1:
            raise ScriptError("compute reduce of several values has a vector, not a scalar: use c_ID[1] ...")
        return float(self.vector()[0])


class CentreOfMass(Compute):
    """Centre of mass of the group, unwrapped."""

    width = 3

    def vector(self):
        return self.session.centre_of_mass(self.group)


#: {style: (arguments, help, class)}
COMPUTES = {
    "temp": ("", "temperature, and kinetic tensor as vector of 6", Temperature),
    "pe": ("[pair]", "potential energy", PotentialEnergy),
    "ke": ("", "kinetic energy of the group", KineticEnergy),
    "pressure": ("TEMP-ID|NULL [ke] [virial]", "pressure, and tensor xx yy zz xy xz yz as vector", Pressure),
    "msd": ("[com yes|no]", "mean squared displacement x y z total", Displacement),
    "rdf": ("NBIN [TYPE TYPE ...] [cutoff R]", "radial distribution and coordination", Distribution),
    "com": ("", "centre of mass", CentreOfMass),
    "reduce": ("sum|ave|min|max VALUES...", "one number from per-atom values", Reduce),
    "pe/atom": ("[pair]", "energy of each atom", _AtomEnergies),
    "ke/atom": ("", "kinetic energy of each atom", _AtomKinetic),
    "stress/atom": ("TEMP-ID|NULL [ke] [virial]", "symmetric stress x volume of each atom, 6 columns", Stress),
    "centroid/stress/atom": (
        "TEMP-ID|NULL [ke] [virial]",
        "stress x volume of each atom, 9 columns xx yy zz xy xz yz yx zx zy",
        CentroidStress,
    ),
    "property/atom": ("COLUMNS...", "columns of dump custom as per-atom array", Property),
}


# --------------------------------------------------------------------- thermo keywords


def _pressure(k):
    return lambda s: float(s.compute(s.thermo.pressure).vector()[k])


def _tilt(row, column):
    return lambda s: float(s.system.cell[row, column])


def _bound(side, axis):
    return lambda s: float(s.bounds()[side][axis])


def _length(axis):
    return lambda s: float(s.bounds()[1][axis] - s.bounds()[0][axis])


def _norm(k):
    return lambda s: float(np.linalg.norm(s.system.cell[k]))


def _angle(a, b):
    def angle(s):
        u, v = s.system.cell[a], s.system.cell[b]
        return float(np.degrees(np.arccos(u @ v / np.linalg.norm(u) / np.linalg.norm(v))))

    return angle


def _potential(s):
    return s.compute(s.thermo.potential).scalar()


def _kinetic(s):
    source = s.compute(s.thermo.temperature)
    if isinstance(source, Temperature):
        return 0.5 * source.freedom() * s.system.constants.boltzmann * source.scalar() * s.units.energy
    return s.system.kinetic_energy * s.units.energy


def _zero(s):
    return 0.0


def _largest_force(s):
    s.need_forces()
    largest = s.system.processes.largest(float(np.abs(s.system.forces).max(initial=0.0)))
    return float(largest) * s.units.energy


def _force_norm(s):
    s.need_forces()
    return math.sqrt(s.system.sum(float((s.system.forces**2).sum()))) * s.units.energy


#: {keyword: (title of the column, whether it is a whole number, function of the session)}
KEYWORDS = {
    "step": ("Step", True, lambda s: s.system.step),
    "elapsed": ("Elapsed", True, lambda s: s.system.step - s.first_step),
    "elaplong": ("Elaplong", True, lambda s: s.system.step - (s.begin_step or 0)),
    "dt": ("Dt", False, lambda s: s.timestep),
    "time": ("Time", False, lambda s: s.time()),
    "cpu": ("CPU", False, lambda s: s.seconds()),
    "tpcpu": ("T/CPU", False, lambda s: (s.system.step - s.first_step) * s.timestep / max(s.seconds(), 1e-9)),
    "spcpu": ("S/CPU", False, lambda s: (s.system.step - s.first_step) / max(s.seconds(), 1e-9)),
    "cpuremain": (
        "CPULeft", False,
        lambda s: s.seconds() * (s.last_step - s.system.step)
        / max(s.system.step - s.first_step, 1),
    ),
    "timeremain": ("TimeoutLeft", False, lambda s: s.seconds_left()),
    "atoms": ("Atoms", True, lambda s: s.system.n_atoms),
    "temp": ("Temp", False, lambda s: s.compute(s.thermo.temperature).scalar()),
    "press": ("Press", False, lambda s: s.compute(s.thermo.pressure).scalar()),
    "pe": ("PotEng", False, _potential),
    "ke": ("KinEng", False, _kinetic),
    "etotal": ("TotEng", False, lambda s: _potential(s) + _kinetic(s)),
    "evdwl": ("E_vdwl", False, lambda s: s.model_energy() * s.units.energy),
    "ecoul": ("E_coul", False, _zero),
    "epair": ("E_pair", False, lambda s: s.model_energy() * s.units.energy),
    "ebond": ("E_bond", False, _zero),
    "eangle": ("E_angle", False, _zero),
    "edihed": ("E_dihed", False, _zero),
    "eimp": ("E_impro", False, _zero),
    "emol": ("E_mol", False, _zero),
    "elong": ("E_long", False, _zero),
    "etail": ("E_tail", False, _zero),
    "enthalpy": (
        "Enthalpy", False,
        lambda s: _potential(s) + _kinetic(s)
        + s.compute(s.thermo.pressure).scalar() * s.volume() / s.system.constants.pressure * s.units.energy,
    ),
    "ecouple": ("Ecouple", False, lambda s: s.reservoir_energy() * s.units.energy),
    "econserve": ("Econserve", False, lambda s: _potential(s) + _kinetic(s) + s.reservoir_energy() * s.units.energy),
    "vol": ("Volume", False, lambda s: s.volume()),
    "density": ("Density", False, lambda s: float(s.system.sum(s.system.masses.sum())) / s.volume() / 0.602214129),
    "lx": ("Lx", False, _length(0)), "ly": ("Ly", False, _length(1)), "lz": ("Lz", False, _length(2)),
    "xlo": ("Xlo", False, _bound(0, 0)), "xhi": ("Xhi", False, _bound(1, 0)),
    "ylo": ("Ylo", False, _bound(0, 1)), "yhi": ("Yhi", False, _bound(1, 1)),
    "zlo": ("Zlo", False, _bound(0, 2)), "zhi": ("Zhi", False, _bound(1, 2)),
    "xy": ("Xy", False, _tilt(1, 0)), "xz": ("Xz", False, _tilt(2, 0)), "yz": ("Yz", False, _tilt(2, 1)),
    "cella": ("Cella", False, _norm(0)), "cellb": ("Cellb", False, _norm(1)), "cellc": ("Cellc", False, _norm(2)),
    "cellalpha": ("CellAlpha", False, _angle(1, 2)), "cellbeta": ("CellBeta", False, _angle(0, 2)),
    "cellgamma": ("CellGamma", False, _angle(0, 1)),
    "pxx": ("Pxx", False, _pressure(0)), "pyy": ("Pyy", False, _pressure(1)), "pzz": ("Pzz", False, _pressure(2)),
    "pxy": ("Pxy", False, _pressure(3)), "pxz": ("Pxz", False, _pressure(4)), "pyz": ("Pyz", False, _pressure(5)),
    "fmax": ("Fmax", False, _largest_force),
    "fnorm": ("Fnorm", False, _force_norm),
    "nbuild": ("Nbuild", True, lambda s: max(s.schedule.builds - 1, 0) if s.schedule else 0),
    "ndanger": ("Ndanger", True, lambda s: 0),
}  # fmt: skip

#: keywords that ``thermo_modify norm yes`` divides by the number of atoms, wherever they are asked for
EXTENSIVE = {
    "pe", "ke", "etotal", "evdwl", "ecoul", "epair", "ebond", "eangle", "edihed", "eimp", "emol", "elong", "etail",
    "enthalpy", "ecouple", "econserve",
}  # fmt: skip


def keyword(session, name):
    """Value of a thermo keyword."""
    value = KEYWORDS[name][2](session)
    return value / (session.system.n_atoms or 1) if session.thermo.per_atom and name in EXTENSIVE else value
