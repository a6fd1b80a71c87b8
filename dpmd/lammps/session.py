"""What a script has set up so far, and its running."""

import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from dpmd.kernels.threads import available_cores
from dpmd.parallel import OneProcess

from .. import preflight
from ..ensembles import Fix, NoseHooverChain
from ..errors import InputError
from ..fixes import AddForce, BerendsenThermostat, Recenter, SetForce, StochasticRescaling, Together
from ..model_deviation import Committee, ModelDeviation
from ..options import defaults
from ..potential import Potential, check_same_models
from ..safety import Safety
from ..simulation import Hook, Simulation
from .computes import COMPUTES, KEYWORDS, keyword
from .fixes import OutputFix
from .language import Moment, ScriptError, UnknownName, Variables
from .log import ThermoStyle, ThermoTable, loop_report
from .schedule import Schedule
from .unitstyles import UNITS

_potentials = {}
#: bytes of an atom while it is made: arrays and those that they are made of
_BYTES_TO_MAKE = 500
#: from so many atoms on it is worth predicting what memory a run takes
_MANY = 100_000
#: functions of groups in formulas: {name: number of arguments}
GROUP_FUNCTIONS = {"count": 1, "mass": 1, "charge": 1, "ke": 1, "xcm": 2, "vcm": 2, "bound": 2}


def load_potential(path, options, skin, processes):
    """A Potential, the same one again while its file has not changed: scripts with ``clear`` and loops reuse it."""
    path, device, threads = Path(path), options.device, options.threads
    if processes.size > 1:
        device, threads = "cpu", threads or max(1, available_cores() // processes.machine_ranks)
    try:
        there = path.stat()  # a file moved here may be of the same time
        key = (str(path.resolve()), there.st_mtime_ns, there.st_ino, there.st_size, *vars(options).values())
    except OSError:
        raise ScriptError(f"model file {path} does not exist") from None
    if key not in _potentials:
        _potentials[key] = Potential(
            path,
            device,
            options.precision,
            threads,
            tabulate=not options.no_tabulate,
            skin=skin,
            low_rank=not options.no_low_rank,
            rank=options.rank,
        )
    potential = _potentials[key]
    potential.skin = skin
    return potential


def _current(source, what):
    """Attribute ``what`` of a compute or fix, called if it is a method; None if there is none."""
    value = getattr(source, what, None)
    return value() if callable(value) else value


class Pair:
    """What ``pair_style deepmd`` says.  frame, atomic : parameters; *_compute : ids of computes that give them."""

    def __init__(self, models):
        self.models = models
        self.out_file, self.out_every, self.per_atom = "model_devi.out", 100, False
        self.relative = self.relative_v = self.frame = self.atomic = None
        self.frame_compute = self.atomic_compute = None
        #: model type name of each script type, "NULL" for ignored; None until pair_coeff
        self.names, self.set = None, False


class Stop(Hook):
    """Ends a run when its time is up (``timer timeout``)."""

    several_ranks = True

    def __init__(self, session, every):
        self.session, self.every = session, every

    def due(self, step, first=False):
        return not first and self.session.deadline is not None

    def __call__(self, simulation):
        if self.session.processes.largest(int(time.monotonic() > self.session.deadline)):
            simulation.stop_reason = "timer timeout"


class Parameters(Hook):
    """Brings parameters that come from computes up to date."""

    several_ranks = True

    def __init__(self, session):
        self.session = session

    def __call__(self, simulation):
        simulation.parameters = self.session.model_parameters()


class FirstLook(Hook):
    """Looks at the atoms before the first step, if they or the model have changed since it was done."""

    several_ranks = True

    def __init__(self, session):
        self.session = session

    def due(self, step, first=False):
        return False

    def start(self, simulation):
        self.session.examine(simulation)


class Session:
    """The state that the commands of a script change, and its running.

    options : namespace with options of [run], of which those that are missing have their defaults; log :
    :class:`~dpmd.lammps.log.ScriptLog`; processes : the ranks, each of which executes the script.

    On several ranks the atoms are shared out when forces are needed.  A command that changes atoms or
    looks at all of them finds them whole on every rank (:meth:`assemble`) and does the same on each;
    tables by id are always whole.  Files are read and written, and lines logged, by root.
    """

    def __init__(self, options, log, processes=None):
        self.options = SimpleNamespace(**defaults(script=True) | vars(options))
        self.log, self.processes = log, processes or OneProcess()
        self.ranks = self.processes
        self.variables = Variables(self)
        self.deadline, self.loop_begin = None, time.perf_counter()
        self.restored = {}
        self.reset()

    def reset(self):
        """Forget everything but variables and loaded models (the ``clear`` command)."""
        self.close_files()
        if getattr(self, "schedule", None) is not None:
            self.schedule.free()
        self.units = UNITS["metal"]
        self.faces = [("p", "p")] * 3
        self.atom_style = "atomic"
        self.system, self.triclinic, self.n_types = None, False, 0
        self.masses, self.labels = [], {}
        self.type_of = self.charge_of = self.molecule_of = np.zeros(0)
        self.first_low, self.first_length, self.low = np.zeros(3), np.zeros(3), np.zeros(3)
        self.timestep = self.units.timestep
        self.skin, self.every, self.delay, self.check = self.units.skin, 1, 0, True
        self.groups = {"all": None}
        self.pair, self.lattice, self.regions = None, None, {}
        self.fixes, self.computes, self.dumps = {}, {}, {}
        self.fix_styles = {}
        self.thermo = ThermoStyle()
        self.simulation = self.schedule = None
        self.append_deviation, self.described = False, None
        self.first_step = self.last_step = self.end_step = 0
        #: first step of the present or last run, or of those that it is a part of (run start, every)
        self.begin_step = None
        #: whether warnings about the atoms are to be looked for, and the kinds of them that were given
        self.unexamined, self.told = True, set()
        self.restart_rules, self.current_id = [], ""
        self.safety = None
        self.time_offset = (0.0, 0)
        self.minimizer = {"style": "cg", "dmax": 0.1, "norm": "two"}
        #: whether the data file has bonds, and whether LAMMPS would leave bonded pairs out (special_bonds)
        self.bonded, self.leaves_out_bonded = False, True
        self.restored = {}
        for name, style, words in (
            ("thermo_temp", "temp", []), ("thermo_press", "pressure", ["thermo_temp"]), ("thermo_pe", "pe", []),
        ):  # fmt: skip
            self.computes[name] = COMPUTES[style][2](self, None, words)

    def close_files(self):
        """Close all outputs but the log."""
        for thing in (*getattr(self, "fixes", {}).values(), *getattr(self, "dumps", {}).values()):
            if hasattr(thing, "close"):
                thing.close()
        if getattr(self, "deviation", None) is not None:
            self.deviation.close()
        self.deviation = None

    def assemble(self):
        """All atoms on every rank."""
        if self.system is not None:
            self.system.assemble()

    def settle_variables(self, words):
        """Evaluate the variables among a command's words beforehand: forces that they need reorder the atoms."""
        for word in words:
            if word.startswith("v_"):
                self.number(word, "a variable")
        self.assemble()

    def settle_atoms(self, look):
        """``look()``; once more if forces had to be computed for it, which reorders the atoms."""
        while True:
            ids = self.system.ids
            seen = look()
            if ids is self.system.ids:
                return seen

    # ------------------------------------------------------------------ looking things up

    @property
    def timestep_ps(self):
        return self.timestep / self.units.time

    def require_box(self):
        """Raises ScriptError unless there are atoms (or an empty box)."""
        if self.system is None:
            raise UnknownName("box", "", "there is no box yet; use read_data, create_box or read_restart first")
        return self.system

    def bounds(self):
        """Lower and upper faces, (3,) Å each."""
        low = self.system.origin + self.low
        return low, low + np.diag(self.system.cell)

    def boundary_flags(self):
        """As in dumps: ``pp pp ff``."""
        return " ".join(a + b for a, b in self.faces)

    def volume(self):
        """Å^3, of the box."""
        return float(np.prod(np.diag(self.require_box().cell)))

    def time(self):
        """Time since the start, in the script's unit."""
        begin, step = self.time_offset
        return begin + (self.require_box().step - step) * self.timestep

    def moment(self):
        """The Moment at which formulas are evaluated."""
        step = 0 if self.system is None else self.system.step
        begin = self.begin_step if self.begin_step is not None else step
        return Moment(step, begin, self.end_step, (step - begin) * self.timestep)

    def next_step(self, name):
        """The step that the variable ``v_NAME`` names for an output, which must be to come."""
        value, step = self.variables.number(name[2:]), self.system.step
        if value != math.floor(value) or value <= step:
            raise ScriptError(f"{name}, which tells the next step of output, is {value:g} at step {step}")
        return int(value)

    def seconds(self):
        """Since the loop began; root's clock counts, so that ranks decide alike.  Collective."""
        return self.processes.broadcast(time.perf_counter() - self.loop_begin)

    def seconds_left(self):
        """Until the time limit of ``timer timeout``; 0 without one, as LAMMPS has it.  Collective."""
        left = 0.0 if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)
        return self.processes.broadcast(left)

    def group_or_all(self, name):
        """The Group of a name, None for all atoms."""
        if name not in self.groups:
            raise UnknownName("group", name, f"group {name!r} is not defined; known: {', '.join(self.groups)}")
        return self.groups[name]

    def group_mask(self, name):
        """(n,) bool in the present order of the atoms."""
        group = self.group_or_all(name)
        return np.ones(len(self.system), bool) if group is None else group.mask(self.system)

    def compute(self, name):
        """A compute by its id."""
        if name not in self.computes:
            raise UnknownName("compute", name, f"compute {name!r} is not defined; known: {', '.join(self.computes)}")
        return self.computes[name]

    def fix(self, name):
        """A fix by its id."""
        if name not in self.fixes:
            raise UnknownName("fix", name, f"fix {name!r} is not defined; known: {', '.join(self.fixes) or 'none'}")
        return self.fixes[name]

    def region(self, name):
        """A region by its id."""
        if name not in self.regions:
            raise UnknownName(
                "region", name, f"region {name!r} is not defined; known: {', '.join(self.regions) or 'none'}"
            )
        return self.regions[name]

    def dump(self, name):
        """A dump by its id."""
        if name not in self.dumps:
            raise UnknownName("dump", name, f"dump {name!r} is not defined; known: {', '.join(self.dumps) or 'none'}")
        return self.dumps[name]

    def type_range(self, word):
        """Types of ``3``, ``*``, ``2*``, ``*3`` or ``1*2``."""
        low, star, high = word.partition("*")
        try:
            first = int(low) if low else 1
            last = (int(high) if high else self.n_types) if star else first
        except ValueError:
            raise ScriptError(f"{word!r} is not an atom type or a range of types such as 1*3") from None
        if not 1 <= first <= last <= self.n_types or (not low and not star):
            raise ScriptError(f"{word!r}: atom types are 1 to {self.n_types}")
        return range(first, last + 1)

    def number(self, word, what):
        """A number, or the value of ``v_NAME``."""
        if word.startswith("v_"):
            return self.variables.number(word[2:])
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ScriptError(f"{what}: {word!r} is not a number")
        return value

    def lattice_spacing(self):
        """(3,) Å; 1 until there is a lattice, as LAMMPS has it."""
        return np.ones(3) if self.lattice is None else self.lattice.spacing

    def centre_of_mass(self, group):
        """(3,) Å, of unwrapped positions."""
        system = self.require_box()
        mask = slice(None) if group is None else group.mask(system)
        self.update_masses()
        mass = system.masses[mask]
        return system.sum(mass @ system.unwrapped_positions[mask]) / system.sum(mass.sum()) + system.origin

    # ------------------------------------------------------------------ values for outputs and formulas

    @staticmethod
    def _reference(name):
        """``c_id[1][2]`` as (kind, id, indices)."""
        base, *rest = name.split("[")
        try:
            return base[0], base[2:], tuple(int(r.rstrip("]")) for r in rest)
        except ValueError:
            raise ScriptError(f"{name!r}: the index is not a number") from None

    def expand_star(self, name):
        """``c_id[*]`` as its elements; other names as they are."""
        if name[:2] not in ("c_", "f_") or "*" not in name:
            return [name]
        base, _, inside = name.partition("[")
        source = self.compute(base[2:]) if base[0] == "c" else self.fix(base[2:])
        count = source.width if hasattr(source, "width") else np.size(_current(source, "vector"))
        low, _, high = inside.removesuffix("]").partition("*")
        if not all(w == "" or w.isdigit() for w in (low, high)):
            raise ScriptError(f"{name!r}: the range is not like [*], [2*] or [1*3]")
        return [f"{base}[{k}]" for k in range(int(low or 1), int(high or count) + 1)]

    def _of_source(self, name, indices, source):
        """A number of a compute or fix: its scalar, or an element of its vector or array."""
        kind = ("scalar", "vector", "array")[min(len(indices), 2)]
        value = _current(source, kind)
        if value is None:
            raise ScriptError(f"{name} has no {kind} (or not yet)")
        if kind != "scalar":
            shape = np.shape(value)
            if len(indices) != len(shape) or not all(1 <= i <= n for i, n in zip(indices, shape, strict=True)):
                raise ScriptError(
                    f"{name}{''.join(f'[{i}]' for i in indices)}: there are {' x '.join(map(str, shape))}"
                )
            value = value[tuple(i - 1 for i in indices)]
        # fixes that act hold energies (eV) or lengths; computes and averages are in the script's units already
        energy = isinstance(source, Fix) and not isinstance(source, Recenter)
        return float(value) * (self.units.energy if energy else 1.0)

    def value(self, name, indices=()):
        """A name in a formula: thermo keyword, c_ID, f_ID."""
        if name.startswith("c_"):
            self._check_ready(name)
            return self._of_source(name, indices, self.compute(name[2:]))
        if name.startswith("f_"):
            return self._of_source(name, indices, self.fix(name[2:]))
        if name in KEYWORDS and not indices:
            self.require_box()
            self._check_ready(name)
            return float(keyword(self, name))
        raise ScriptError(f"{name!r} is unknown; it is no thermo keyword, c_ID, f_ID, v_NAME or function")

    def _check_ready(self, name):
        self.require_box()
        if self.system.masses.size and not np.all(self.system.masses > 0):
            self.update_masses()

    def function(self, name, words):
        """Functions in formulas: of groups (count, mass, charge, xcm, vcm, bound, ke), files and what is there."""
        if name in ("is_defined", "is_active", "is_available"):
            return float(self._is_there(name, words))
        if name == "is_file" and len(words) == 1:
            return float(self.processes.on_root(lambda: Path(words[0]).is_file()))
        if len(words) != GROUP_FUNCTIONS.get(name, -1):
            known = ", ".join(GROUP_FUNCTIONS)
            raise ScriptError(f"{name}({', '.join(words)}) is not a function known here; of groups: {known}")
        system = self.require_box()
        mask = self.group_mask(words[0])
        self.update_masses()
        mass = system.masses[mask]
        if name == "count":
            return system.sum(int(mask.sum()))
        if name == "mass":
            return system.sum(mass.sum())
        if name == "charge":
            return system.sum(self.charge_of[system.ids][mask].sum())
        if name == "ke":
            return 0.5 * float(np.trace(system.twice_kinetic_tensor(mask))) * self.units.energy
        axis = "xyz".find(words[1][:1])
        if axis < 0 or not system.sum(int(mask.sum())):
            raise ScriptError(f"{name}({', '.join(words)}): the direction is not x, y or z, or the group is empty")
        if name == "bound":
            sign = -1 if words[1].endswith("min") else 1
            x = sign * (system.positions[mask, axis] + system.origin[axis])
            return sign * float(system.processes.largest(x.max(initial=-np.inf)))
        if name == "xcm":
            return self.centre_of_mass(self.groups[words[0]])[axis]
        return system.sum(mass @ system.velocities[mask])[axis] / system.sum(mass.sum()) * self.units.velocity

    def _is_there(self, name, words):
        """Whether something is defined in the script, in use, or known to dpmd."""
        from .commands import BY_NAME

        if name == "is_defined":
            tables = {
                "compute": self.computes, "dump": self.dumps, "fix": self.fixes, "group": self.groups,
                "region": self.regions, "variable": self.variables,
            }  # fmt: skip
        elif name == "is_active":  # nothing of this is in use
            tables = dict.fromkeys(("package", "newton", "pair", "comm", "min", "run", "atom"), ())
        else:
            tables = {c.name: c.styles[1] for c in BY_NAME.values() if c.styles}
            tables |= {"command": BY_NAME, "pair": ("deepmd",), "feature": ("gzip", "exceptions"), "package": ()}
        if len(words) != 2 or words[0] not in tables:
            raise ScriptError(f"{name} takes one of {', '.join(tables)}, and a name")
        return words[1] in tables[words[0]]

    def number_of(self, name):
        """Value of c_ID[i], f_ID[i], v_NAME for outputs."""
        if name.startswith("v_"):
            return self.variables.number(name[2:])
        kind, base, indices = self._reference(name)
        if kind not in "cf" or name[1:2] != "_":
            raise ScriptError(f"{name!r} is not c_ID, f_ID or v_NAME")
        return self.value(f"{kind}_{base}", indices)

    def column_of_rows(self, name):
        """A vector, or a column of an array, for ``fix ave/time mode vector``."""
        kind, base, indices = self._reference(name)
        source = self.compute(base) if kind == "c" else self.fix(base)
        value = _current(source, "array" if indices else "vector")
        if value is None:
            raise ScriptError(f"{name} is not a {'column of an array' if indices else 'vector'}")
        return value[:, indices[0] - 1] if indices else value

    def rows_of(self, name):
        """Length of what :meth:`column_of_rows` returns where it is known beforehand (computes), or None."""
        kind, base, indices = self._reference(name)
        if kind != "c":
            return None
        source = self.compute(base)
        return source.rows if indices else source.width

    def atom_column(self, name):
        """A per-atom value (n,) of this rank's atoms in the present order: c_ID, c_ID[i] or a column of dump custom."""
        from .dumps import COLUMNS

        if name in COLUMNS and COLUMNS[name].get:
            return np.asarray(COLUMNS[name].get(self))
        source, column = self.atom_source(name)
        values = source.atoms()
        return values if column is None else values[:, column]

    def atom_source(self, name):
        """The compute of per-atom values that c_ID or c_ID[i] names, and its column (None: the only one)."""
        kind, base, indices = self._reference(name)
        if kind == "f":
            fix = self.fix(base)
            raise ScriptError(f"{name}: fix {base} ({fix.name}) has no per-atom values")
        source = self.compute(base)
        if not hasattr(source, "atoms"):
            raise ScriptError(f"{name}: compute {base} has no per-atom values")
        if source.width == 1:
            if indices:
                raise ScriptError(f"{name}: compute {base} has one value per atom: write c_{base}")
            return source, None
        if len(indices) != 1 or not 1 <= indices[0] <= source.width:
            raise ScriptError(f"{name}: compute {base} has {source.width} columns: write c_{base}[1] ...")
        return source, indices[0] - 1

    def column(self, name):
        """``(title, whole number?, function of the session)`` of a thermo column."""
        if name in KEYWORDS:
            title, whole, _ = KEYWORDS[name]
            return title, whole, lambda session: keyword(session, name)
        if name[:2] not in ("c_", "f_", "v_"):
            raise ScriptError(
                f"thermo keyword {name!r} is not supported; known: {', '.join(KEYWORDS)}, c_ID, f_ID, v_NAME"
            )
        return name, False, lambda session: session.number_of(name) / session.norm_of(name)

    def norm_of(self, name):
        """By what a thermo column c_ID, f_ID or v_NAME is divided: the number of atoms, or 1."""
        return self.system.n_atoms if self.thermo.per_atom and self.is_extensive(name) else 1

    def is_extensive(self, name):
        """Whether a value c_ID, f_ID[i], ... grows with the number of atoms."""
        kind, base, indices = self._reference(name)
        if kind == "v":
            return False
        if kind == "c":
            return ("scalar", "vector", "array")[min(len(indices), 2)] in self.compute(base).extensive
        source = self.fix(base)
        if isinstance(source, Fix):
            return not indices or isinstance(source, (AddForce, SetForce, Recenter))
        names = getattr(source, "names", ())
        at = indices[-1] - 1 if indices and len(names) > 1 else 0
        return at < len(names) and self.is_extensive(names[at])

    def energy(self):
        """eV, of the model and of those fixes that count."""
        self.need_forces()
        return self.system.energy + sum(f.potential_energy() for f in self.fixes.values() if isinstance(f, Fix))

    def model_energy(self):
        """eV, of the model."""
        self.need_forces()
        return self.system.energy

    def reservoir_energy(self):
        """eV, of thermostats and barostats."""
        return sum(f.reservoir_energy for f in self.fixes.values() if isinstance(f, Fix))

    def per_atom(self):
        """Energies (n,) and virials (n, 3, 3) of this rank's atoms, eV; evaluated once per step."""
        self.need_lists()
        key = (id(self.simulation), self.system.step, self.simulation.evaluations, self.schedule.rebuilds)
        if getattr(self, "_atoms_key", None) != key:
            self._atoms_key, self._atoms = key, self.simulation.evaluate_atoms()
        return self._atoms

    # ------------------------------------------------------------------ preparing and running

    def update_masses(self):
        """Give the atoms the masses of their types.  Raises ScriptError for types without."""
        system = self.require_box()
        types = self.type_of[system.ids]
        present = np.unique(self.type_of)  # 0 where there is no atom of that id
        missing = [t for t in present[present > 0] if self.masses[t - 1] is None]
        if missing:
            raise ScriptError(f"atom type {missing[0]} has no mass; add 'mass {missing[0]} VALUE' or a Masses section")
        values = np.array([m or 0.0 for m in self.masses])
        system.masses = values[types - 1]
        system._set_inverse_masses()

    def _model_types(self, potential):
        """Model type of every script type, -1 for those that are ignored."""
        type_map, pair = list(potential.type_map), self.pair
        if pair.names:
            names = [*pair.names, *["NULL"] * (self.n_types - len(pair.names))]
            unknown = sorted({n for n in names if n != "NULL"} - set(type_map))
            if unknown:
                raise ScriptError(
                    f"pair_coeff: the model has no type {', '.join(unknown)}; its types are {' '.join(type_map)}"
                )
            return np.array([-1 if n == "NULL" else type_map.index(n) for n in names], np.int32)
        if self.n_types > len(type_map):
            raise ScriptError(
                f"{self.n_types} atom types, but the model has {len(type_map)} ({' '.join(type_map)}); name each "
                "type's element: pair_coeff * * " + " ".join([*type_map, *["..."] * (self.n_types - len(type_map))])
            )
        if len(type_map) > 20 and len(type_map) > self.n_types:
            guess = " ".join(self._guess_element(t) for t in range(self.n_types))
            raise ScriptError(
                f"the model knows {len(type_map)} elements, and the script does not say which of them its "
                f"{self.n_types} types are; write 'pair_coeff * * {guess}' (guessed from the masses)"
            )
        return np.arange(self.n_types, dtype=np.int32)

    def _guess_element(self, t):
        from ase.data import atomic_masses, chemical_symbols

        mass = self.masses[t]
        return "?" if mass is None else chemical_symbols[int(np.argmin(np.abs(atomic_masses[1:] - mass))) + 1]

    def require_pair(self):
        """Raises ScriptError unless pair_style and pair_coeff are there."""
        if self.pair is None:
            raise UnknownName("pair_style", "", "no pair_style is set; dpmd computes with 'pair_style deepmd MODEL'")
        if not self.pair.set:
            raise UnknownName(
                "pair_coeff", "", "pair_coeff is missing: 'pair_coeff * *' or with the elements of the types"
            )

    def prepare(self):
        """Everything that a run needs; makes a new Simulation."""
        system = self.require_box()
        self.require_pair()
        system.spread(self.processes)
        system.carried.pop("atomic_parameters", None)
        self.update_masses()
        potentials = self.processes.root_first(
            lambda: [load_potential(m, self.options, self.skin, self.processes) for m in self.pair.models]
        )
        check_same_models(self.processes, potentials)
        first = potentials[0]
        if system.n_atoms:
            system.types = self._model_types(first)[self.type_of[system.ids] - 1]
        system.type_names, system.constants = tuple(first.type_map), self.units.constants
        system._set_inverse_masses()
        self.committee = Committee(first, potentials[1:])
        for potential in potentials:
            self._check_parameters(potential)
        self._describe(first)
        self._check_cell(first)
        if self.unexamined:
            if first.device == "cpu":
                self.tell("ranks", preflight.check_ranks(self.options, self.processes, first.operators.threads))
            if system.n_atoms > _MANY and self.processes.size == 1:
                self.check_memory(first.model)
        if self.schedule is not None:
            self.schedule.free()
        self.schedule = Schedule(
            self._domain(first), self.faces, self.first_low, self.first_length, self.every, self.delay, self.check,
            self.thermo.lost,
        )  # fmt: skip
        self.schedule.low = self.low
        parts = {f"{name}/{self.fix_styles[name]}": f for name, f in self.fixes.items() if isinstance(f, Fix)}
        system.timestep, ensemble = self.timestep_ps, Together(parts)
        self.simulation = Simulation(system, first.operators, self.schedule, ensemble, [], {})
        if not (self.pair.frame_compute or self.pair.atomic_compute):
            self.simulation.parameters = self.model_parameters()
        self.stale = False
        return self.simulation

    def _domain(self, potential):
        if self.processes.size == 1:
            return potential.domain()
        options = self.options
        return potential.domain(self.processes, options.decomposition, options.balance, options.halo_precision)

    def _describe(self, potential):
        """Say, once, which element each type is; warn where the mass is another element's."""
        key = (str(potential.model.source.path), tuple(self.pair.names or ()), tuple(self.masses))
        if key == self.described:
            return
        self.described, model = key, potential.model
        self.log(
            f"Model {model.source.path}: {model.descriptor.kind}, cutoff {model.descriptor.rcut:g} A, types "
            f"{' '.join(model.type_map)}; {potential.loaded.description}; {potential.precision} on {potential.device} "
            f"({potential.operators.description}), {potential.operators.threads} "
            f"thread{'s' * (potential.operators.threads > 1)}"
        )
        for t, (number, mass) in enumerate(zip(self._model_types(potential), self.masses, strict=True), 1):
            name = model.type_map[number] if number >= 0 else "ignored"
            count = int((self.type_of == t).sum())
            self.log(f"  type {t} -> {name}, mass {mass}, {count} atoms")
        if self.bonded and self.leaves_out_bonded:
            self.log(
                "Note: the data file has bonds. A Deep Potential counts all neighbours here, bonded or not; LAMMPS "
                "leaves bonded ones out of its lists, and so gets other energies, unless 'special_bonds lj/coul 1 1 1'"
            )
        for warning in (*model.source.warnings, *preflight.type_table(self.system)[1]):
            self.log.warning(warning)

    def _check_cell(self, potential):
        """Raises ScriptError for cells so thin that an atom would have millions of images in reach."""
        system = self.system
        lengths = np.diag(system.cell)
        if not (np.isfinite(system.cell).all() and (lengths > 0).all()):
            raise ScriptError(f"the box has no volume: edges {lengths}")
        reach = potential.model.cutoff + self.skin
        across = 1 / np.linalg.norm(np.linalg.inv(system.cell), axis=0)  # between opposite faces
        images = np.where(system.periodic, 2 * reach / across + 1, 1.0).prod()
        if images * system.n_atoms > 1e8:
            raise ScriptError(
                f"the box, {lengths} Å, is so thin that each atom has {images:.3g} images within {reach:g} Å; check it"
            )

    def _check_parameters(self, potential):
        fitting, pair = potential.model.fitting, self.pair
        for name, given, source, wanted, default in (
            ("fparam", pair.frame, pair.frame_compute, fitting.n_fparam, fitting.default_fparam),
            ("aparam", pair.atomic, pair.atomic_compute, fitting.n_aparam, None),
        ):
            if source is None and (
                (given is None and wanted and default is None) or len(given or []) not in (0, wanted)
            ):
                raise ScriptError(
                    f"pair_style deepmd: {potential.model.source.path} takes {wanted} numbers as {name}, "
                    f"{len(given or [])} given"
                )

    def model_parameters(self):
        """What the operators take beside positions; parameters of each atom are carried by the system."""
        pair = self.pair
        frame, atomic = pair.frame, pair.atomic
        if pair.frame_compute:
            source = self.compute(pair.frame_compute)
            frame = np.atleast_1d(source.vector() if self.n_fparam > 1 else source.scalar())
        if pair.atomic_compute:
            values = np.asarray(self.compute(pair.atomic_compute).atoms(), float)
            self.system.carried["atomic_parameters"] = values if values.ndim == 2 else values[:, None]
        return {"frame_parameters": frame, "atomic_parameters": atomic}

    @property
    def n_fparam(self):
        return self.committee.first.model.fitting.n_fparam

    def need_forces(self):
        """Compute forces if the atoms have changed since the last time."""
        if self.simulation is None or self.stale:
            self.prepare().compute_forces()

    def need_lists(self):
        """Compute forces if there are none or the atoms are not shared out."""
        if self.simulation is None or self.stale or self.system.processes.size < self.processes.size:
            self.prepare().compute_forces()

    def changed(self):
        """Atoms, box or model have changed: forces are no longer valid."""
        self.stale = self.unexamined = True

    def tell(self, kind, warnings):
        """Log warnings, unless there were some of this kind."""
        if warnings and kind not in self.told:
            self.told.add(kind)
            for text in warnings:
                self.log.warning(text)

    def require_memory(self, n_atoms, what):
        """Raises InputError where so many atoms cannot be held, before they are made."""
        ranks = self.ranks.machine_ranks  # each has them all
        preflight.check_memory(n_atoms * _BYTES_TO_MAKE * ranks, n_atoms, what, ranks)

    def predicted_memory(self, model, n_atoms, skin):
        """Bytes that a run with so many atoms, as dense as those that are here, will take on this machine."""
        system, p, options = self.system, self.ranks, self.options
        cell = system.cell * (n_atoms / max(len(system), 1)) ** (1 / 3) if len(system) else system.cell
        neighbors = n_atoms / self.volume() * 4 / 3 * np.pi * (model.cutoff + skin) ** 3
        if len(system):
            neighbors = preflight.list_neighbors(system.positions, system.cell, system.periodic, model.cutoff + skin)
        return preflight.predicted_memory(
            n_atoms / p.n_machines, neighbors, cell, system.periodic, model, skin, options.precision,
            options.threads or max(1, available_cores() // p.machine_ranks), p.machine_ranks, p.machine_ranks,
        )  # fmt: skip

    def check_memory(self, model):
        """Raises InputError where a run of the atoms that are here would not find the memory that it needs."""
        n = self.system.n_atoms
        needed = self.predicted_memory(model, n, self.skin) - n * _BYTES_TO_MAKE / 2 * self.ranks.machine_ranks
        preflight.check_memory(needed, n, "run", self.ranks.machine_ranks)

    def examine(self, simulation):
        """Warn, before the first step, of what is wrong with the atoms.  Collective."""
        if not self.unexamined or not self.system.n_atoms:
            return
        self.unexamined = False
        system, domain, potential = simulation.system, simulation.domain, self.committee.first
        model, options = potential.model, self.options
        nearest, counts = preflight.neighbor_facts(domain, system, model)
        self.tell("units", preflight.check_units(nearest, counts, system, model))
        try:
            self.tell("distances", preflight.check_distances(nearest, model, ""))
        except InputError as error:  # LAMMPS would go on, and a minimisation may be meant
            self.tell("overlap", [str(error)])
        self.tell("sel", preflight.check_selection(counts, model, options.on_overflow, "")[1])
        self.tell("pressure", preflight.check_pressure(simulation.observables()["pressure_bar"]))
        if options.check_precision and "precision" not in self.told:
            self.told.add("precision")
            self.print_precision(potential, system, self.log, domain)

    def print_precision(self, potential, system, log, domain=None):
        """Error of the precision, on a part of the atoms where there are many; domain : has lists of them all."""
        if domain is None or system.n_atoms > preflight.SAMPLE_OF_PRECISION:
            whole = system.whole()
            system = self.processes.broadcast(
                whole and self.part(whole, potential, preflight.SAMPLE_OF_PRECISION)[0]
            )  # fmt: skip
            domain = potential.domain()
            domain.rebuild(system)
        parameters = self.simulation.parameters if self.simulation else {}
        if "atomic_parameters" in system.carried:
            parameters = parameters | {"atomic_parameters": system.carried["atomic_parameters"]}
        preflight.print_precision(log, potential, domain, system, parameters)

    def part(self, system, potential, most):
        """A copy of a system on one process, or of a part of a large one, and the ids to look at (None: all)."""
        if system.n_atoms <= most:
            return system.copy(), None
        return preflight.sample(system, potential.model.cutoff + self.skin, most)

    def _integrators(self):
        return {n: f for n, f in self.fixes.items() if isinstance(f, Fix)}

    def check_run(self, steps):
        """Warnings about how the atoms are to be moved.  Collective."""
        moving = any(f.integrates for f in self._integrators().values())
        if not steps or not moving:
            return
        self.tell("integrators", preflight.check_integrators(self._integrators(), self.system))
        fs = 1e3 * self.timestep_ps
        masses = np.array([m for m in self.masses if m])
        given = f"timestep {self.timestep:g}" + f" (units {self.units.name}: {fs:g} fs)" * (self.units.time == 1)
        self.tell("timestep", preflight.check_timestep(fs, masses, given=given))

    def box_changes(self):
        """Whether a fix changes the box."""
        return any(f.changes_cell for f in self.fixes.values() if isinstance(f, Fix)) or any(
            face in "sm" for pair in self.faces for face in pair
        )

    def _deviation_hook(self):
        pair = self.pair
        if len(pair.models) < 2 or pair.out_every == 0:
            return []
        if self.deviation is None or self.deviation.committee is not self.committee:
            if self.deviation is not None:
                self.deviation.close()
            arguments = (
                pair.out_every, pair.out_file, self.committee, pair.per_atom, pair.relative, pair.relative_v,
                self.units.energy, None, self.system.step if self.append_deviation else None,
            )  # fmt: skip
            root = self.processes.root
            self.deviation = self.processes.root_first(lambda: ModelDeviation(*arguments, opened=root))
            self.deviation.last_step = self.processes.broadcast(self.deviation.last_step)
            self.append_deviation = True
        return [self.deviation]

    def restart_hooks(self):
        """Hooks that write restart files."""
        from .restart import RestartWriter

        return [RestartWriter(self, *rule) for rule in self.restart_rules]

    def run(self, steps, begin=None, end=None):
        """The ``run`` command."""
        simulation = self.prepare()
        self.check_run(steps)
        system = self.system
        self.first_step, self.last_step = system.step, system.step + steps
        scaling = (NoseHooverChain, StochasticRescaling, BerendsenThermostat)
        moving = system.processes.largest(int(np.any(system.velocities)))
        if steps and not moving and any(isinstance(f, scaling) for f in self.fixes.values()):
            self.log.warning("all velocities are zero, and thermostats only scale them; use 'velocity all create'")
        self.begin_step = self.first_step if begin is None else begin
        self.end_step = self.last_step if end is None else end
        simulation.ensemble.span(self.begin_step, self.end_step)
        outputs = [f for f in self.fixes.values() if isinstance(f, OutputFix)]
        parameters = [Parameters(self)] if self.pair.frame_compute or self.pair.atomic_compute else []
        if parameters:
            simulation.parameters = self._first_parameters()
        if self.safety is None:  # one for all runs: it warns once
            simulation.operators.look_anew()
            self.safety = Safety(
                self.options.max_displacement, Path("failed.extxyz"), self.options.on_overflow == "error",
                warn=self.log.warning,
            )  # fmt: skip
        simulation.hooks = [
            Stop(self, 1),
            FirstLook(self),
            self.safety,
            *parameters,
            *self._deviation_hook(),
            *outputs,
            *self.dumps.values(),
            *self.restart_hooks(),
            ThermoTable(self, self.last_step),
        ]
        self.log()
        warm = self.committee.first.operators
        simulation.run(steps)
        seconds = time.perf_counter() - self.loop_begin
        self.stale = False
        loop_report(self, seconds, simulation.steps_done, warm.threads)
        if simulation.stop_reason:
            self.log(f"Stopped at step {system.step}: {simulation.stop_reason}")
        return simulation

    def _first_parameters(self):
        """Parameters for the first evaluation, from computes that need no forces."""
        self.simulation.parameters = {}
        self.stale = False
        try:
            return self.model_parameters()
        except InputError as error:
            raise ScriptError(f"fparam or aparam from a compute: {error}") from error
