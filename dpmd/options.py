"""The input file, declared once.

Each section is a table of options; from it come the parser, the command line of ``md-run``,
``md-run --help-input`` and the error messages.  To add an option, add a line here and use it.
"""

import difflib
import math
from dataclasses import dataclass
from typing import Any

from .errors import InputError

REQUIRED = object()
#: columns of NAME.thermo.csv: what :meth:`dpmd.simulation.Simulation.observables` returns
THERMO_COLUMNS = (
    "step", "time_ps", "temperature_K", "potential_eV", "kinetic_eV", "total_eV", "conserved_eV", "pressure_bar",
    "volume_A3", "pxx_bar", "pyy_bar", "pzz_bar", "pxy_bar", "pxz_bar", "pyz_bar", "density_g_cm3",
)  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One key of the input file.

    kind : ``int``, ``float``, ``bool``, ``str``, or a pair ``(kind, length)`` for lists (length
        None: any); ``scalar_or_pair`` for a number or two.
    minimum, maximum : inclusive bounds of numbers; choices : allowed words.
    command_line : also an option of md-run (``--name-with-dashes``).
    script : whether md-run takes it for a LAMMPS script, too; a text says what to do instead, in which
        ``{value}`` stands for what was given.
    """

    name: str
    kind: Any
    default: Any
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    command_line: bool = False
    script: bool | str = True

    @property
    def flag(self):
        return "--" + self.name.replace("_", "-")

    def check(self, value, where):
        """The value in its proper type.  Raises InputError naming ``where`` it stands."""
        kind, length = self.kind if isinstance(self.kind, tuple) else (self.kind, 0)
        if kind == "scalar_or_pair":
            items = value if isinstance(value, list) else [value]
            if len(items) not in (1, 2):
                raise InputError(f"{where}: {self.name} takes one number or a pair [start, end], not {value!r}")
            return tuple(self._check_one(float, item, where) for item in items)
        if isinstance(self.kind, tuple):
            if not isinstance(value, list) or (length is not None and len(value) != length):
                many = f"{length} " if length is not None else ""
                raise InputError(f"{where}: {self.name} must be a list of {many}values, not {value!r}")
            return [self._check_one(kind, item, where) for item in value]
        return self._check_one(kind, value, where)

    def _check_one(self, kind, value, where):
        good = {
            int: isinstance(value, int) and not isinstance(value, bool),
            float: isinstance(value, (int, float)) and not isinstance(value, bool),
            bool: isinstance(value, bool),
            str: isinstance(value, str),
        }[kind]
        if not good:
            word = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}[kind]
            raise InputError(f"{where}: {self.name} must be {word}{self._unit()}, not {value!r}")
        try:
            value = kind(value)
        except OverflowError:
            value = math.inf
        if kind in (int, float):
            low = self.minimum is not None and not value >= self.minimum
            if low or not abs(value) < math.inf or (self.maximum is not None and value > self.maximum):
                raise InputError(f"{where}: {self.name} = {value} is out of range; it must be {self._range()}")
        if self.choices and value not in self.choices:
            near = difflib.get_close_matches(value, self.choices, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{where}: {self.name} = {value!r} is not one of {', '.join(self.choices)}{hint}")
        return value

    def _unit(self):
        return f" in {self.unit}" if self.unit else ""

    def _range(self):
        bounds = []
        if self.minimum is not None:
            bounds.append(f"at least {self.minimum:g}")
        if self.maximum is not None:
            bounds.append(f"at most {self.maximum:g}")
        return (" and ".join(bounds) or "a number") + self._unit()


@dataclass(frozen=True)
class Section:
    """A table ``[name]`` of the input file, or an array of tables ``[[name]]``."""

    name: str
    help: str
    options: tuple[Option, ...]
    repeated: bool = False
    required: bool = False

    @property
    def title(self):
        return f"[[{self.name}]]" if self.repeated else f"[{self.name}]"


SECTIONS = (
    Section(
        "structure",
        "the atoms to start from",
        (
            Option("file", str, REQUIRED, "any file that ASE reads, or a LAMMPS data file; relative to the input file"),
            Option("format", str, None, "format name as in ASE, if it cannot be told from the file"),
            Option("index", int, -1, "which frame of a file with several"),
            Option(
                "elements", (str, None), None,
                "element of each numbered type of a LAMMPS data file, in order, e.g. [\"O\", \"H\"]",
            ),
            Option(
                "replicate", (int, 3), [1, 1, 1], "copies along the three lattice vectors", minimum=1, maximum=10000
            ),
            Option("periodic", (bool, 3), None, "override the file's periodic directions"),
            Option(
                "masses_u", dict, None, "masses that differ from the standard ones, e.g. { H = 2.014 }", "u"
            ),
            Option(
                "velocities", str, "auto", "file: as in the file; maxwell: drawn at initial_temperature_K with zero "
                "total momentum; zero; auto: file if it has any, else maxwell",
                choices=("auto", "file", "maxwell", "zero"),
            ),
            Option(
                "initial_temperature_K", float, None, "for velocities drawn here; default the ensemble's", "K",
                minimum=0.0,
            ),
        ),
        required=True,
    ),
    Section(
        "model",
        "the Deep Potential",
        (
            Option("file", str, REQUIRED, "model file: .pb, .pth, .dp, .yaml or .dptab, plain or compressed"),
            Option("fparam", (float, None), None, "frame parameters, for models that have them"),
            Option("aparam", (float, None), None, "atomic parameters, the same for all atoms"),
            Option("committee", (str, None), None, "further models; the deviation of all is written"),
            Option("deviation_every", int, 100, "steps between evaluations of the committee", "steps", minimum=1),
            Option("deviation_file", str, None, "default NAME.model_devi.out, columns as in DeePMD-kit"),
            Option("deviation_atomic", bool, False, "also the deviation of every atom"),
            Option("relative_eV_A", float, None, "divide by |force| + this", "eV/Å", minimum=1e-12),
            Option("relative_v_eV", float, None, "divide by |virial| per atom + this", "eV", minimum=1e-12),
        ),
        required=True,
    ),
    Section(
        "run",
        "how long, how exact, on what",
        (
            Option(
                "steps", int, REQUIRED, "time steps in all, those before a restart included", minimum=0, maximum=10**15
            ),
            Option(
                "timestep_fs", float, REQUIRED, "0.5 with hydrogen, 1 to 2 otherwise", "fs", minimum=1e-6, maximum=20
            ),
            Option("seed", int, 1, "of all random numbers", minimum=0, maximum=2**63 - 1),
            Option("name", str, None, "prefix of output files; default the input file's name without .toml"),
            Option(
                "device", str, "auto", "cpu, cuda or cuda:i (GPU number i); auto: a GPU if there is one, with several "
                "ranks if there is one for each; cuda: ranks of a machine take its GPUs in turn",
                command_line=True,
            ),
            Option(
                "precision", str, "mixed", "double: all float64; mixed: tables and networks in float32, sums, "
                "positions and energies in float64; half: as mixed, what differs between atoms in the fitting "
                "networks' products in fp16 (GPU) or bfloat16 (CPUs with AVX512_BF16; others compute as in mixed)",
                choices=("double", "mixed", "half"), command_line=True,
            ),
            Option(
                "threads", int, None, "of each rank; default: all cores that the process may use, shared among the "
                "machine's ranks", minimum=1, maximum=4096, command_line=True,
            ),
            Option(
                "skin", float, 1.0, "by which neighbour lists reach beyond the cutoff", "Å", minimum=0.0, maximum=10.0,
                command_line=True, script="a LAMMPS script sets the skin itself: neighbor {value:g} bin",
            ),
            Option(
                "no_tabulate", bool, False, "evaluate exact embedding networks instead of tables (slow)",
                command_line=True,
            ),
            Option(
                "no_low_rank", bool, False, "use all outputs of the embedding tables at all distances, not a basis of "
                "a few functions for far neighbours (slower)", command_line=True,
            ),
            Option(
                "rank", int, None, "functions of the low-rank tables (not with no_low_rank or no_tabulate); default: "
                "as many as the precision needs", minimum=1, command_line=True,
            ),
            Option(
                "on_overflow", str, "warn", "when an atom has more neighbours than the model's sel: the nearest are "
                "kept, as DeePMD-kit does, and the log says so; or stop", choices=("warn", "error"), command_line=True,
            ),
            Option(
                "decomposition", str, "node", "with MPI: node: ranks that share memory own a box together and exchange "
                "halos once; rank: a box per rank, halos passed on along one axis after the other",
                choices=("node", "rank"), command_line=True,
            ),
            Option(
                "ranks_per_node", int, None, "with MPI, decomposition node: ranks that share memory and form a node; "
                "default all of a machine", minimum=1, command_line=True,
            ),
            Option(
                "balance", str, "atoms", "with MPI, shares of a node's ranks: atoms: equally many; work: by numbers of "
                "neighbours; measured: by times, so that rounding differs from run to run",
                choices=("atoms", "work", "measured"), command_line=True,
            ),
            Option(
                "halo_precision", str, "double", "with MPI on CPUs, positions that travel to other nodes: double; "
                "single: as float32 offsets, half the bytes and an error below 1e-7 of the skin",
                choices=("double", "single"), command_line=True,
            ),
            Option("walltime_h", float, None, "stop with a checkpoint after this time", "hours", minimum=0.0),
            Option(
                "max_displacement", float, 1.0, "an atom that moves further in one step stops the run; LAMMPS scripts: "
                "no limit unless given", "Å", minimum=0.0, command_line=True,
            ),
            Option("check", bool, False, "examine everything, report, and stop before step 0", command_line=True),
            Option(
                "check_precision", bool, False, "print the error of the chosen precision on this structure, "
                "compressed and stretched too, and whether it is fine",
                command_line=True,
            ),
            Option(
                "continue", bool, False, "go on from the checkpoint of an earlier run", command_line=True,
                script="a LAMMPS script goes on by its own read_restart, not by --continue; e.g. "
                'if "${{restart}} > 0" then "read_restart FILE.*" else ..., with -var restart 1',
            ),
            Option(
                "overwrite", bool, False, "replace output files of an earlier run", command_line=True,
                script="a LAMMPS script replaces its output files in any case, as LAMMPS does; leave the option out",
            ),
        ),
        required=True,
    ),
    Section(
        "ensemble",
        "what is kept constant",
        (
            Option(
                "type", str, "nve", "nve: energy; nvt: temperature; npt: temperature and pressure; nph: pressure",
                choices=("nve", "nvt", "npt", "nph"),
            ),
            Option(
                "thermostat", str, "csvr", "csvr: stochastic velocity rescaling (Bussi); nose-hoover: a chain; "
                "langevin: friction and noise on each atom; berendsen: weak coupling, no ensemble",
                choices=("csvr", "nose-hoover", "langevin", "berendsen"),
            ),
            Option(
                "temperature_K", "scalar_or_pair", None, "one number, or [start, end] for a linear ramp over the run",
                "K", minimum=0.0,
            ),
            Option(
                "relaxation_time_ps", float, 0.1, "csvr, nose-hoover: of the kinetic energy; langevin: 1 / friction",
                "ps", minimum=1e-6, maximum=1e6,
            ),
            Option("chain_length", int, 3, "of the Nose-Hoover chain", minimum=1, maximum=20),
            Option(
                "barostat", str, "mtk", "mtk: Martyna-Tobias-Klein; berendsen: weak coupling, no ensemble",
                choices=("mtk", "berendsen"),
            ),
            Option(
                "pressure_bar", "scalar_or_pair", None, "one number, or [start, end] for a linear ramp over the run",
                "bar",
            ),
            Option("pressure_relaxation_time_ps", float, 1.0, "of the cell", "ps", minimum=1e-6),
            Option(
                "coupling", str, "iso", "iso: one length; aniso: three lengths; tri: lengths and angles",
                choices=("iso", "aniso", "tri"),
            ),
            Option("bulk_modulus_bar", float, 22000.0, "for the berendsen barostat: about that of the material", "bar",
                   minimum=1e-3),
        ),
    ),
    Section("thermo", "the table of the log, and NAME.thermo.csv", (
        Option("every", int, 100, "steps between lines", "steps", minimum=1),
        Option(
            "columns", (str, None), None, "of NAME.thermo.csv, after step and time_ps; default all, or those that the "
            "file has if a run goes on", choices=THERMO_COLUMNS,
        ),
    )),
    Section(
        "output",
        "a trajectory; any number of these",
        (
            Option("file", str, REQUIRED, "suffix tells the format: .extxyz, .traj (ASE), .dump or .lammpstrj"),
            Option("every", int, REQUIRED, "steps between frames", "steps", minimum=1),
            Option(
                "format", str, None, "if the suffix does not tell", choices=("extxyz", "traj", "lammps-dump"),
            ),
            Option("velocities", bool, False, "write velocities"),
            Option("forces", bool, False, "write forces"),
            Option("unwrap", bool, False, "positions as if atoms had not been wrapped into the cell"),
            Option("atom_energies", bool, False, "energy of each atom, eV (not in .traj)"),
            Option("atom_virials", bool, False, "virial of each atom, 9 numbers, eV (not in .traj)"),
        ),
        repeated=True,
    ),
    Section(
        "analysis",
        "something computed during the run, written with checkpoints and at its end; any number of these",
        (
            Option(
                "type", str, REQUIRED, "rdf: radial distribution; coordination: numbers of neighbours; msd: mean "
                "square displacement and diffusion; vacf: velocity autocorrelation; vdos: vibrational spectrum (these "
                "three keep 24 bytes per atom and sample, in checkpoints too)",
                choices=("rdf", "coordination", "msd", "vacf", "vdos"),
            ),
            Option("file", str, None, "CSV file; default TYPE.csv"),
            Option("every", int, 10, "steps between samples", "steps", minimum=1),
            Option("first_step", int, 0, "earlier samples are left out", "steps", minimum=0),
            Option(
                "cutoff_A", float, None, "rdf: largest distance, default the model's cutoff; coordination, where it is "
                "required: up to which an atom is a neighbour", "Å", minimum=0.1,
            ),
            Option("bins", int, 200, "of the histogram of rdf", minimum=1),
        ),
        repeated=True,
    ),
    Section(
        "minimize",
        "relaxes the structure before the dynamics (with run.steps = 0: only that)",
        (
            Option(
                "method", str, "none", "cg: conjugate gradients; sd: steepest descent; fire, quickmin: damped motion",
                choices=("none", "cg", "sd", "fire", "quickmin"),
            ),
            Option("force_tolerance_eV_A", float, 1e-3, "largest force component at the end", "eV/Å", minimum=0.0),
            Option("energy_tolerance", float, 0.0, "stop when the energy changes by less, relatively", minimum=0.0),
            Option("max_iterations", int, 1000, "iterations at most", minimum=1),
            Option("max_move_A", float, 0.1, "largest displacement per iteration", "Å", minimum=1e-6),
            Option("pressure_bar", float, None, "relax the cell too, to this pressure", "bar"),
            Option("coupling", str, "iso", "of the cell, as in [ensemble]", choices=("iso", "aniso", "tri")),
            Option(
                "on_unconverged", str, "warn", "if a minimisation ends by none of its tolerances: warn, and go on; or "
                "stop with exit code 1 (with a checkpoint, for TOML inputs)", choices=("warn", "error"),
                command_line=True,
            ),
        ),
    ),
    Section(
        "checkpoint",
        "to go on after a stop; one is written at the end in any case",
        (
            Option("every", int, 10000, "steps between checkpoints", "steps", minimum=1),
            Option("file", str, None, "default NAME.checkpoint.h5"),
        ),
    ),
)  # fmt: skip

_HEAT, _CELL = ("nvt", "npt"), ("npt", "nph")
_of_heat = 'type = "nvt" and "npt"', lambda e: e.type in _HEAT
_of_cell = 'type = "npt" and "nph"', lambda e: e.type in _CELL
#: keys that only some choices of their section use: {(section, key): (which, whether these settings do)}
USED_BY = {
    ("ensemble", "thermostat"): _of_heat,
    ("ensemble", "relaxation_time_ps"): _of_heat,
    ("ensemble", "chain_length"): (
        "the nose-hoover thermostat and the mtk barostat",
        lambda e: (e.type in _HEAT and e.thermostat == "nose-hoover") or (e.type in _CELL and e.barostat == "mtk"),
    ),
    ("ensemble", "barostat"): _of_cell,
    ("ensemble", "pressure_bar"): _of_cell,
    ("ensemble", "pressure_relaxation_time_ps"): _of_cell,
    ("ensemble", "coupling"): _of_cell,
    ("ensemble", "bulk_modulus_bar"): (
        'the berendsen barostat of type = "npt" and "nph"', lambda e: e.type in _CELL and e.barostat == "berendsen",
    ),
    ("minimize", "coupling"): ("a cell that relaxes, to pressure_bar", lambda m: m.pressure_bar is not None),
    ("minimize", "pressure_bar"): (
        'method = "cg" and "sd": no other relaxes the cell', lambda m: m.method in ("cg", "sd"),
    ),
    ("analysis", "cutoff_A"): ('type = "rdf" and "coordination"', lambda a: a.type in ("rdf", "coordination")),
    ("analysis", "bins"): ('type = "rdf"', lambda a: a.type == "rdf"),
}  # fmt: skip

RUN_OPTIONS = next(s for s in SECTIONS if s.name == "run").options
#: options of [run] that say how several ranks share the work
OF_RANKS = ("decomposition", "ranks_per_node", "balance", "halo_precision")
#: options of md-run, whatever their section
FLAGS = tuple(o for s in SECTIONS for o in s.options if o.command_line)


def defaults(script=False):
    """{name: default} of what a run may ask for besides its structure and physics; script : of a LAMMPS script."""
    found = {option.name: option.default for option in (*RUN_OPTIONS, *FLAGS)}
    # as in LAMMPS, which has no such limit: explorations want to see where forces are wrong
    return found | ({"max_displacement": math.inf} if script else {})


def suggestion(word, known):
    """``; did you mean 'x'?`` or a list of what is known."""
    near = difflib.get_close_matches(word, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def help_text():
    """The manual of the input file, for ``md-run --help-input``."""
    lines = ["An input file has these sections (TOML; units are in the names or brackets):"]
    for section in SECTIONS:
        lines += ["", f"{section.title}  {section.help}"]
        for option in section.options:
            facts = []
            if option.choices:
                facts.append(" | ".join(option.choices))
            if option.unit:
                facts.append(option.unit)
            if option.default is REQUIRED:
                facts.append("required")
            elif option.default is not None:
                facts.append(f"default {'false' if option.default is False else option.default}")
            if option.command_line:
                facts.append(f"also {option.flag}")
            lines += [f"    {option.name:22s} {option.help}"]
            if facts:
                lines += [f"    {'':22s} ({'; '.join(facts)})"]
    return "\n".join(lines)
