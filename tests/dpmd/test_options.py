"""Every option of [run] and of the command line at every door: it does something to be seen, or is refused by name.

``TABLE`` declares which; an option without an entry fails.  A used option must make the door's text (log, error or
numbers with all digits) differ from that without it, and bring the words that the entry names.
"""

import re
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import ase.io
import numpy as np
import pytest

from dpmd import DP, Potential, Simulation, cli
from dpmd.options import OF_RANKS, defaults
from dpmd.perfmodel.cli import main as dp_perf

DOORS = ("key", "flag", "script", "from_atoms", "DP", "Potential", "dp-perf")


@dataclass(frozen=True)
class Used:
    """words : a regular expression for what shows with the option and not without; "" where numbers differ.

    value, name : where they are others than the option's.
    """

    words: str = ""
    value: object = None
    name: str | None = None


@dataclass(frozen=True)
class Refused:
    """words : a regular expression that the refusal must match; by default the option's name."""

    words: str | None = None


no, changes = Refused(), Used()
one_rank = Used("for several ranks")
#: {option: (value, then an entry for each of DOORS)}
TABLE = {
    "steps": (3, Used("for 3 steps"), no, no, Used(value=7), no, no, no),
    "timestep_fs": (0.25, Used("time step 0.25 fs"), no, no, changes, no, no, no),
    "seed": (7, Used("seed 7"), no, no, changes, no, no, no),
    "name": ("other", Used(r"other\.log"), no, no, no, no, no, no),
    "device": ("cuda:77", *[Used("computes without a GPU")] * 6, no),
    "precision": (
        "half", *[Used("precision half")] * 2, Used("half on cpu"), Used(value="double"), *[Used(value="mixed")] * 2,
        Used(value="double"),
    ),
    "threads": (5, *[Used("5 threads")] * 3, *[Used("threads=5")] * 3, changes),
    "skin": (0.5, *[Used("skin 0.5")] * 2, Refused("--skin: .*neighbor 0.5 bin"), *[Used("skin=0.5")] * 3, changes),
    "no_tabulate": (
        True, *[Used("asked for")] * 3, *[Used("asked for", value=False, name="tabulate")] * 3, no,
    ),
    "no_low_rank": (True, changes, changes, changes, *[Used(value=False, name="low_rank")] * 3, no),
    "rank": (2, *[changes] * 6, no),
    "on_overflow": (
        "error", *[Used("Use a model with larger sel")] * 6, no,
    ),
    "decomposition": ("rank", one_rank, one_rank, one_rank, one_rank, no, no, no),
    "ranks_per_node": (2, one_rank, one_rank, one_rank, no, no, no, changes),
    "balance": ("work", one_rank, one_rank, one_rank, one_rank, no, no, no),
    "halo_precision": ("single", one_rank, one_rank, one_rank, one_rank, no, no, no),
    "walltime_h": (1e-9, Used("Stopped at step"), no, no, no, no, no, no),
    "max_displacement": (1e-6, *[Used("limit 1e-06")] * 3, Used("limit 1e-06"), no, no, no),
    "check": (True, *[Used("nothing was run")] * 3, no, no, no, no),
    "check_precision": (True, *[Used("precision   against")] * 3, no, no, no, no),
    "continue": (True, *[Used("checkpoint.h5.*continue|no checkpoint")] * 2, Refused("--continue: .*read_restart"),
                 no, no, no, no),
    "on_unconverged": (
        "error", *[Used("Stopped at step 0")] * 2, Used("--on-unconverged error"), no, no, no, no,
    ),
    "overwrite": (True, *[Used("Loop of")] * 2, Refused("--overwrite: .*replaces"), no, no, no, no),
}  # fmt: skip
#: options of one door alone
SCRIPT_FLAGS = {"-var": ("a", "1"), "-log": ("none",), "-screen": ("none",), "-echo": ("both",), "--no-rehearsal": ()}


def test_every_option_is_declared():
    assert set(TABLE) == set(defaults())
    assert all(len(entries) == 1 + len(DOORS) for entries in TABLE.values())


def flag(name, value):
    return [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]


class Doors:
    """Goes through a door with an option (or without, None) and returns all that comes out of it."""

    def __init__(self, water_run, capsys, model, atoms, folder):
        self.water_run, self.capsys, self.model, self.atoms, self.folder = water_run, capsys, model, atoms, folder

    def settings(self, name):
        settings = {"run": {"steps": 2, "precision": "double"}}
        if name == "on_overflow":
            settings["structure"] = {"file": "dense.extxyz"}
        if name == "on_unconverged":
            settings["minimize"] = {"method": "sd", "max_iterations": 1}
        return settings

    def clean(self, name):
        for path in self.folder.glob("run.*"):
            if path.suffix != ".toml" and name != "overwrite":
                path.unlink()
        for path in self.folder.glob("o*r.*"):
            path.unlink()
        for path in self.folder.glob("out.*"):
            path.unlink()

    def key(self, name, value, used):
        self.clean(name)
        settings = self.settings(name)
        settings["minimize" if name == "on_unconverged" else "run"] |= {name: value} if used else {}
        return self.water_run(**settings)[1] + " ".join(sorted(p.name for p in self.folder.iterdir()))

    def flag(self, name, value, used):
        self.clean(name)
        settings = self.settings(name)
        if name in settings["run"] and used:
            del settings["run"][name]  # the flag is to decide
        return self.water_run(*(flag(name, value) if used else ()), **self.settings(name))[1]

    def script(self, name, value, used):
        file = "dense.lmp" if name == "on_overflow" else "plain.lmp"
        (self.folder / "in.script").write_text(
            f"units metal\natom_style atomic\nread_data {file}\nmass 1 16\nmass 2 2\npair_style deepmd model\n"
            "pair_coeff * *\nneighbor 1.0 bin\ntimestep 0.0005\nvelocity all create 300 1\nfix 1 all nve\nrun 2\n"
            + "minimize 0 1e-8 1 10\n" * (name == "on_unconverged") + 'print "$(pe:%.15g)"\n'
        )
        with pytest.raises(SystemExit):
            cli.md_run(["in.script", "--device", "cpu", *(flag(name, value) if used else ())])
        captured = self.capsys.readouterr()
        return captured.out + captured.err

    def python(self, make, used):
        """What a function of Python makes, or its error; warnings too."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                made = make()
            except Exception as error:  # whatever it is, it is what the user sees
                made = f"{type(error).__name__}: {error}"
        return "\n".join([str(made), *(str(w.message) for w in told)])

    @staticmethod
    def describe(potential, numbers):
        return f"threads={potential.operators.threads} skin={potential.skin} {potential.loaded.description} {numbers!r}"

    def chosen(self, name):
        return self.atoms["dense" if name == "on_overflow" else "plain"].copy()

    def from_atoms(self, name, value, used):
        options = {"timestep_fs": 0.5, "threads": 1, "device": "cpu", "ensemble": "nvt", "temperature_K": [300, 600]}
        options |= {name: value} if used else {}

        def make():
            made = Simulation.from_atoms(self.chosen(name), self.model, **options)
            made.run(2)
            tables = [e.table is None for e, _ in made.operators.model.descriptor.unique_embeddings()]
            loaded = SimpleNamespace(description="asked for" if all(tables) else "")
            potential = SimpleNamespace(operators=made.operators, skin=made.domain.skin, loaded=loaded)
            return self.describe(potential, made.observables())

        return self.python(make, used)

    def DP(self, name, value, used):
        options = {"threads": 1, "device": "cpu"} | ({name: value} if used else {})

        def make():
            atoms = self.chosen(name)
            atoms.calc = DP(self.model, **options)
            return self.describe(atoms.calc.potential, atoms.get_potential_energy())

        return self.python(make, used)

    def Potential(self, name, value, used):
        options = {"threads": 1, "device": "cpu"} | ({name: value} if used else {})

        def make():
            potential = Potential(self.model, **options)
            return self.describe(potential, potential.evaluate(self.chosen(name))["energy"])

        return self.python(make, used)

    def dp_perf(self, name, value, used):
        job = ["predict", "--machine", "fugaku", "--model", "water-25-50-100", "--system", "water", "--atoms", "9000"]
        with suppress(SystemExit):
            dp_perf(job + (flag(name, value) if used else []))
        captured = self.capsys.readouterr()
        return captured.out + captured.err


@pytest.fixture
def doors(water_run, capsys, find_model, small_water, tmp_path):
    dense = small_water.copy()
    dense.set_cell(dense.cell * 0.8, scale_atoms=True)
    atoms = {"plain": small_water, "dense": dense}
    for name, these in atoms.items():
        ase.io.write(f"{name}.extxyz", these, format="extxyz")
        ase.io.write(f"{name}.lmp", these, format="lammps-data", specorder=["O", "H"], masses=False)
    return Doors(water_run, capsys, find_model("water_md0.dp"), atoms, tmp_path)


def _numbers(text):
    """Lines of what is computed: thermo tables, energies, low-rank bases, predicted times."""
    kinds = r"\s*(\d+\s+-?\d+\.\d+|-?\d+\.\d+$|threads=|  low rank|time per step)"
    return [line for line in text.splitlines() if re.match(kinds, line)]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("option", TABLE)
def test_used_or_refused(doors, option, door):
    value, *entries = TABLE[option]
    entry = entries[DOORS.index(door)]
    go = getattr(doors, door.replace("-", "_"))
    if isinstance(entry, Refused):
        text = go(option, value, True)
        shown = entry.words or rf"--{option.replace('_', '-')}\b|\b{option}\b"
        assert re.search(shown, text), text
        assert not re.search("Loop|ns/day", text), "it ran all the same"
        return
    name, value = entry.name or option, value if entry.value is None else entry.value
    if option == "overwrite":
        doors.key("steps", 2, True)
    with_it, without = go(name, value, True), go(name, value, False)
    if entry.words:
        assert re.search(entry.words, with_it), with_it
        assert not re.search(entry.words, without), without
    else:
        assert _numbers(with_it) != _numbers(without), with_it
    assert "Traceback" not in with_it


@pytest.mark.parametrize("name", SCRIPT_FLAGS)
def test_options_of_scripts_are_refused_for_input_files(water_run, name):
    code, text = water_run(name, *SCRIPT_FLAGS[name])
    assert code == 2
    assert f"{name} is for LAMMPS scripts" in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rank", "3", "--no-low-rank"], "--rank: rank = 3 is of low-rank tables, and no_low_rank asks for none"),
        (["--rank", "3", "--no-tabulate"], "no_tabulate asks for none"),
        (["--ranks-per-node", "2", "--decomposition", "rank"], '--ranks-per-node: .* for decomposition = "node"'),
        (["--halo-precision", "single", "--decomposition", "rank"], "--halo-precision: .* leave halo_precision out"),
        (["--ran", "3"], "unrecognized arguments: --ran"),
    ],
)
@pytest.mark.parametrize("door", ["TOML", "script"])
def test_options_that_undo_one_another(doors, water_run, capsys, door, flags, words):
    if door == "TOML":
        code, text = water_run(*flags)
    else:
        doors.script("check", True, True)
        with pytest.raises(SystemExit) as exit_:
            cli.md_run(["in.script", *flags])
        captured = capsys.readouterr()
        code, text = exit_.value.code, captured.out + captured.err
    assert code == 2
    assert re.search(words, text), text
    assert "Loop" not in text


def test_a_potential_that_is_given_has_its_own(find_model, small_water):
    potential = Potential(find_model("water_md0.dp"), threads=1)
    for name, value in {"precision": "mixed", "skin": 2.0, "threads": 1, "rank": 3}.items():
        with pytest.raises(ValueError, match=f"{name}: the Potential that is given has its own"):
            Simulation.from_atoms(small_water, potential, initial_temperature_K=300, **{name: value})


def test_overflow_that_begins_later_stops_a_script(doors, monkeypatch):
    """What is asked before step 0 is left out here."""
    monkeypatch.setattr("dpmd.preflight.check_selection", lambda *_: ([], []))
    assert "step 0: 24 atoms have more neighbours" in doors.script("on_overflow", "error", True)


def test_lists_of_structures_tell_overflow(doors):
    potential = Potential(doors.model, threads=1, on_overflow="error")
    with pytest.raises(ValueError, match="48 atoms have more neighbours"):
        potential.evaluate([doors.atoms["dense"]] * 2)


def test_python_passes_on_how_ranks_share(doors, monkeypatch):
    from dpmd.parallel import OneProcess

    given, make = [], Potential.domain
    monkeypatch.setattr(Potential, "domain", lambda self, p, **how: given.append(how) or make(self, p, **how))
    how = {"decomposition": "node", "balance": "work", "halo_precision": "single"}
    Simulation.from_atoms(doors.atoms["plain"], doors.model, initial_temperature_K=9, processes=OneProcess(), **how)
    assert given == [how]


def test_options_of_the_model_hold_for_its_committee(water_run, tmp_path):
    """A committee of twice the same model agrees to the last bit, whatever bases its tables have."""
    for flags in (["--rank", "2"], ["--no-low-rank"], ["--no-tabulate"]):
        code, text = water_run(
            *flags, "--overwrite", model={"committee": ["model"], "deviation_every": 1}, run={"steps": 1}
        )
        assert code == 0, text
        rows = np.loadtxt(tmp_path / "run.model_devi.out")
        assert np.abs(rows[:, 1:]).max() == 0.0


def test_overwrite_counts_when_a_run_goes_on(water_run, tmp_path):
    """For files that the run which is continued did not write."""
    assert water_run(run={"steps": 2}, checkpoint={"every": 1})[0] == 0
    (tmp_path / "other.extxyz").write_text("of somebody else")
    longer = {"run": {"steps": 4}, "output": [{"file": "other.extxyz", "every": 1}]}
    code, text = water_run("--continue", **longer)
    assert code == 2
    assert "--overwrite" in text
    code, text = water_run("--continue", "--overwrite", **longer)
    assert code == 0, text
    assert len(ase.io.read("other.extxyz", ":")) == 2


def test_options_of_ranks_are_used_by_ranks(mpi_run, doors, tmp_path):
    """What one process only remarks on, several use."""
    program = str(Path(__file__).parent / "programs" / "md_run_ranks.py")
    doors.water_run(run={"steps": 1})
    doors.clean("")
    options = [*flag("ranks_per_node", 1), *flag("balance", "work"), *flag("halo_precision", "single"), "--overwrite"]
    code, text = mpi_run(2, program, "run.toml", *options, cwd=tmp_path)
    assert code == 0, text
    for words in ("2 boxes", "balance: work", "as float32"):
        assert words in text
    assert "for several ranks" not in text
    code, text = mpi_run(2, program, "run.toml", *flag("decomposition", "rank"), "--overwrite", cwd=tmp_path)
    assert code == 0, text
    assert "decomposition: by rank" in text
    assert set(OF_RANKS) == {"decomposition", "ranks_per_node", "balance", "halo_precision"}


def test_overflow_is_told_at_every_door(doors):
    """As many atoms, in the same words; on_overflow = "error" is in the table above."""
    assert "24 atoms, on average over the steps, had more neighbours" in doors.key("on_overflow", "warn", True)
    assert "24 atoms, on average over the steps, had more neighbours" in doors.script("on_overflow", "warn", True)
    for door in (doors.DP, doors.Potential):
        assert "24 atoms have more neighbours than the model's sel" in door("on_overflow", "warn", True)
    assert "atoms have more neighbours than the model's sel" in doors.from_atoms("on_overflow", "warn", True)
    potential = Potential(doors.model, threads=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            potential.evaluate([doors.atoms["dense"]] * 2)
            potential.evaluate(doors.atoms["dense"])
    assert len(told) == 1
    assert Path(told[0].filename) == Path(__file__)
    assert not np.isnan(potential.evaluate(doors.atoms["plain"])["energy"])
