"""What is found before step 0, through input files and scripts alike."""

import time

import ase.build
import ase.io
import numpy as np
import pytest
from ase.neighborlist import neighbor_list

from dpmd import Potential, cli, preflight
from dpmd.ensembles import Group, VelocityVerlet
from dpmd.errors import InputError
from dpmd.kernels.compiling import compilation

HEAD = "units metal\natom_style atomic\n"
MODEL = "mass 1 16\nmass 2 2\npair_style deepmd model\npair_coeff * * O H\n"


@pytest.fixture
def script(water_run, capsys, small_water, tmp_path):
    """Function: text, flags of md-run -> exit code and all that is printed."""
    ase.io.write("water.lmp", small_water, format="lammps-data", specorder=["O", "H"], masses=False)

    def run(text, *flags):
        (tmp_path / "in.script").write_text(HEAD + text)
        with pytest.raises(SystemExit) as exit_:
            cli.md_run(["in.script", "--device", "cpu", "--threads", "1", *flags])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out + captured.err

    return run


# --------------------------------------------------------------------- memory


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(preflight, "free_memory", lambda: 20 * 2**30)


@pytest.mark.usefixtures("small_machine")
def test_more_atoms_than_memory_are_refused_before_they_are_made(water_run, script, monkeypatch):
    """192 million, in input files and scripts, by every command that makes atoms."""
    copies = {"replicate": [200, 200, 200]}
    begin = time.perf_counter()
    code, text = water_run(structure=copies)
    assert code == 2
    assert "run.toml:" in text
    assert "192000000 atoms need about" in text
    for commands, line in (
        (f"read_data water.lmp\nreplicate 200 200 200\n{MODEL}", 4),
        (f"lattice fcc 3.6\nregion b block 0 363 0 363 0 363\ncreate_box 2 b\ncreate_atoms 1 box\n{MODEL}", 6),
        (f"read_data huge.lmp\n{MODEL}", 3),
    ):
        with open("huge.lmp", "w") as file:
            file.write(
                "many\n\n192000000 atoms\n2 atom types\n\n0 9 xlo xhi\n0 9 ylo yhi\n0 9 zlo zhi\n\nAtoms\n\n1 1 0 0 0\n"
            )
        code, text = script(f"{commands}fix 1 all nve\nrun 1\n")
        assert code == 2, text
        assert f"in.script:{line}: " in text
        assert "GiB of memory, and this machine has 20 GiB free" in text
    assert time.perf_counter() - begin < 20


@pytest.mark.usefixtures("small_machine")
def test_lists_count_in_memory_before_there_are_any(water_run, script):
    """24 million atoms whose arrays would fit, but not the lists of the model that the script names later."""
    code, text = script(f"read_data water.lmp\nreplicate 100 100 100\n{MODEL}neighbor 2.0 bin\nfix 1 all nve\nrun 1\n")
    assert code == 2, text
    assert "in.script:4: replicate: 24000000 atoms need about" in text
    assert water_run(structure={"replicate": [100, 100, 100]})[0] == 2


def test_ranks_count_in_memory(find_model):
    model = Potential(find_model("water_md0.dp"), threads=1).model
    one, four = (
        preflight.predicted_memory(10**6, 100, np.eye(3) * 200, [True] * 3, model, 1.0, "mixed", 1, ranks)
        for ranks in (1, 4)
    )
    assert 1e9 < one < 3e9
    assert four - one > 3 * 0.3e9


def test_predicted_memory_is_about_what_a_run_takes(water_run, tmp_path):
    """In a process of its own, with 24 000 atoms."""
    import json
    import subprocess
    import sys

    water_run("--check", structure={"replicate": [10, 10, 10]}, run={"steps": 2, "precision": "mixed"}, output=[])
    program = "import sys; from dpmd.cli import md_run; md_run(['run.toml', '--device', 'cpu', '--overwrite'])"
    for _ in range(2):  # compiling, the first time, takes more than the atoms
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
    predicted = float(done.stdout.split("memory      about ")[1].split()[0]) * 2**20
    used = json.loads((tmp_path / "run.summary.json").read_text())["peak_memory_bytes"]
    assert 0.6 < predicted / used < 1.5


# --------------------------------------------------------------------- neighbours and samples


def _facts(potential, atoms, most=None):
    system = potential.system(atoms)
    part, inner = system, None
    if most is not None:
        part, inner = preflight.sample(system, potential.model.cutoff + potential.skin, most)
    domain = potential.domain()
    domain.rebuild(part)
    return preflight.neighbor_facts(domain, part, potential.model, inner), inner, part


def test_neighbors_are_those_of_ase(find_model, small_water):
    potential = Potential(find_model("water_md0.dp"), threads=1)
    atoms = small_water.repeat((2, 1, 1))
    (nearest, counts), _, _ = _facts(potential, atoms)
    i, j, d = neighbor_list("ijd", atoms, potential.model.cutoff)
    kinds = np.array(atoms.get_chemical_symbols())
    for t, name in enumerate(("O", "H")):
        of_each = np.bincount(i[kinds[j] == name], minlength=len(atoms))
        assert counts.most[t] == of_each.max()
        assert counts.mean[t] == pytest.approx(of_each.mean())
        assert counts.overflowing[t] == (of_each > potential.model.descriptor.sel[t]).sum()
    assert (counts.n_atoms, counts.alone) == (48, 0)
    for (a, b), (distance, first, second) in nearest.items():
        pair = (kinds[i] == a) & (kinds[j] == b)
        assert distance == pytest.approx(d[pair].min(), abs=1e-9)
        assert atoms.get_distance(first - 1, second - 1, mic=True) == pytest.approx(distance, abs=1e-9)


@pytest.mark.parametrize("shape", ["cube", "rod", "beam", "slab", "cluster"])
def test_a_sample_has_the_neighbors_of_the_whole(find_model, shape):
    """A crystal (here of oxygen), where every atom inside has the same number, known from the shells."""
    potential = Potential(find_model("water_md0.dp"), threads=1)
    repeats = {
        "cube": (14, 14, 14),
        "rod": (3, 3, 200),
        "beam": (4, 4, 160),
        "slab": (24, 24, 4),
        "cluster": (12, 12, 12),
    }[shape]
    atoms = ase.build.bulk("O", "fcc", a=3.7, cubic=True).repeat(repeats)
    if shape == "slab":
        atoms.center(vacuum=30, axis=2)
    if shape == "cluster":
        atoms.pbc = False
    atoms.rattle(1e-6)  # no atom exactly on a face
    (nearest, counts), inner, part = _facts(potential, atoms, most=1000)
    assert 300 <= counts.n_atoms == len(inner) <= 1000
    assert len(part) < len(atoms)
    (_, everywhere), _, _ = _facts(potential, atoms)
    within = 12 + 6 + 24  # shells of fcc at 2.62, 3.70 and 4.53 Å; 12 at 5.23, 24 at 5.85 Å
    assert counts.most[0] == everywhere.most[0] == within + 12 + 24
    assert counts.mean[0] == pytest.approx(everywhere.mean[0], rel=0.0 if shape in ("cube", "rod", "beam") else 0.2)
    assert nearest["O", "O"][0] == pytest.approx(3.7 / np.sqrt(2), abs=1e-4)


def test_checks_of_large_systems_look_at_a_part(water_run, monkeypatch):
    """192 000 atoms in seconds, by lists of a part of them."""
    monkeypatch.setattr(preflight, "SAMPLE", 3000)
    monkeypatch.setattr(preflight, "SAMPLE_OF_PRECISION", 300)
    begin = time.perf_counter()
    code, text = water_run("--check", structure={"replicate": [20, 20, 20]}, output=[])
    assert code == 0, text
    assert "192000 atoms" in text
    assert "atoms of one part of the system" in text
    assert "precision   against" in text
    assert time.perf_counter() - begin < 30


# --------------------------------------------------------------------- scripts are checked like input files


def test_a_check_of_a_script_finds_what_that_of_an_input_file_finds(water_run, script):
    script_text = f"read_data water.lmp\n{MODEL}neighbor 1.0 bin\ntimestep 0.0005\nfix 1 all nve\nrun 10\n"
    code, checked = script(script_text, "--check", "--precision", "double")
    assert code == 0, checked
    code, other = water_run("--check")
    assert code == 0, other
    for line in ("  O     2", "  shortest  ", "  expected  ", "as in this run"):
        ours, theirs = ([x.split(" (atoms")[0] for x in text.splitlines() if line in x] for text in (checked, other))
        assert ours == theirs != []
    assert "MiB predicted" in checked
    assert "WARNING" not in checked
    assert "nothing was run (--check)" in checked


def test_swapped_elements_are_found(script):
    text = f"read_data water.lmp\n{MODEL.replace('O H', 'H O')}fix 1 all nve\nrun 1\n"
    code, told = script(text, "--check")
    assert code == 0, told
    assert "(O) has mass 2 u, the element 16 u" in told
    assert "(H) has mass 16 u, the element 1.008 u" in told
    masses = text.replace("mass 1 16\nmass 2 2", "mass 1 1.008\nmass 2 15.999")  # swapped, too: numbers agree
    for flags in (["--check"], []):
        code, told = script(masses, *flags)
        assert "all 24 atoms have more O neighbours" in told or "Mbar: is each atom type the element" in told, told


def test_overlaps_end_a_check_and_warn_a_run(script, small_water):
    close = small_water.copy()
    close.positions[3] = close.positions[0] + [0.1, 0, 0]
    ase.io.write("close.lmp", close, format="lammps-data", specorder=["O", "H"], masses=False)
    text = f"read_data close.lmp\n{MODEL}minimize 0 1e-3 1 1\n"
    assert "WARNING: atoms overlap" in script(text)[1]
    code, told = script(text.replace("minimize 0 1e-3 1 1", "fix 1 all nve\nrun 1"), "--check")
    assert code == 2
    assert "in.script:9: atoms overlap: O-O 0.100" in told


@pytest.mark.parametrize(
    ("fixes", "told"),
    [
        ("fix 1 all nve\nfix 2 all nvt temp 300 300 0.1\n", "24 atoms, by fixes 1, 2"),
        ("group o type 1\nfix 1 all nve\nfix 2 o nve\nfix 3 all langevin 300 300 0.1 1\n", "8 atoms, by fixes 1, 2"),
        ("group o type 1\ngroup h type 2\nfix 1 o nve\nfix 2 h nve\n", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("flags", [(), ("--check",)])
def test_atoms_that_are_moved_twice(script, fixes, told, flags):
    """LAMMPS says: One or more atoms are time integrated more than once."""
    velocities = "velocity all create 300 1\ntimestep 0.0005\n"
    code, text = script(f"read_data water.lmp\n{MODEL}{velocities}{fixes}run 1\nrun 1\n", *flags)
    assert code == 0, text
    assert text.count("One or more atoms are time integrated more than once") == (told is not None)
    assert told is None or told in text


def test_integrators_of_groups(find_model, small_water):
    system = Potential(find_model("water_md0.dp"), threads=1).system(small_water)
    half = Group(np.arange(25) < 13)
    fixes = {
        "a": VelocityVerlet(half),
        "b": VelocityVerlet(),
        "c": VelocityVerlet(Group(np.arange(25) > 12)),
    }
    assert "24 atoms, by fixes a, b, c" in preflight.check_integrators(fixes, system)[0]
    del fixes["b"]
    assert preflight.check_integrators(fixes, system) == []


@pytest.mark.parametrize(
    ("fs", "mass", "words"),
    [
        (0.0005, 1.0, "was 0.5 fs meant"), (0.04, 63.5, "below 0.05 fs"), (2.5, 1.0, "above 2 fs"),
        (500.0, 16.0, "was 0.5 fs meant"),
        (1.0, 1.0, "above 0.5 fs"), (0.5, 1.0, None), (2.0, 2.0, None), (2.0, 63.5, None), (4.0, 63.5, None),
        (6.0, 200.0, "above 5 fs"), (2.5, 12.0, "above 2 fs"),
    ],
)  # fmt: skip
def test_time_steps(fs, mass, words):
    told = preflight.check_timestep(fs, np.array([mass, 200.0]))
    assert len(told) == (words is not None)
    assert words is None or words in told[0]


def test_pressure_beyond_reason():
    for bar, target, strange in (
        (4.8e6, 0, True),
        (-1.1e6, 0, True),
        (3e5, 0, False),
        (4e6, 3e6, False),
        (np.nan, 0, False),
    ):
        assert bool(preflight.check_pressure(bar, target)) == strange


# --------------------------------------------------------------------- ranks, threads, small things


def test_more_threads_than_cores(water_run, monkeypatch):
    monkeypatch.setattr(preflight, "usable_cores", lambda: {0, 1})
    code, text = water_run("--threads", "40", "--check")
    assert code == 0
    assert "40 threads share 2 cores and wait for one another: 2 threads would be faster" in text
    assert "share" not in water_run("--threads", "2", "--check")[1]


def test_more_ranks_than_cores(monkeypatch):
    from dpmd.parallel import OneProcess

    class Four(OneProcess):
        size = machine_ranks = 4

        def collect(self, value):
            return [value] * 4

    from dpmd.options import RUN_OPTIONS

    run = type("Run", (), {o.name: o.default for o in RUN_OPTIONS})
    monkeypatch.setattr(preflight, "usable_cores", lambda: {0, 1})
    assert "4 ranks of 1 thread share 2 cores" in preflight.check_ranks(run, Four(), 1)[0]
    monkeypatch.setattr(preflight, "usable_cores", lambda: set(range(8)))
    assert preflight.check_ranks(run, Four(), 2) == []


def test_barostat_needs_a_periodic_cell(water_run):
    code, text = water_run(
        structure={"periodic": [True, True, False]},
        ensemble={"type": "npt", "pressure_bar": 1.0, "temperature_K": 300.0},
    )
    assert code == 2
    assert "run.toml:" in text
    assert "open along z" in text
    assert "couple" not in text


def test_files_given_in_the_place_of_others(water_run, capsys, find_model):
    water_run("--check")
    for arguments, words in (
        (["model"], "this is no text but HDF5"),
        (["start.extxyz"], "looks like a structure"),
    ):
        with pytest.raises(SystemExit):
            cli.md_run(arguments)
        assert words in capsys.readouterr().err
    for file, words in (("run.toml", "an input file of md-run"), ("start.extxyz", "this is a structure, not a model")):
        with pytest.raises(InputError, match=words):
            cli._dpmd(["info", file])


def test_default_relaxation_time_is_not_complained_about(water_run):
    ensemble = {"type": "nvt", "temperature_K": 300.0}
    assert "tenth of the run" not in water_run("--check", ensemble=ensemble)[1]
    assert "tenth of the run" in water_run("--check", ensemble={**ensemble, "relaxation_time_ps": 0.2})[1]


def test_kept_rotation_is_told(water_run):
    cluster = {"periodic": [False] * 3}
    for thermostat, kept in (("csvr", True), ("langevin", False)):
        ensemble = {"type": "nvt", "temperature_K": 300.0, "thermostat": thermostat}
        assert (
            "rotation of the whole is kept" in water_run("--check", structure=cluster, ensemble=ensemble)[1]
        ) == kept


def test_a_minimisation_alone_has_no_speed(water_run):
    code, text = water_run(minimize={"method": "cg", "max_iterations": 2}, run={"steps": 0})
    assert code == 0, text
    assert "Speed:" not in text
    assert "fitting" not in text
    code, text = water_run("--overwrite", minimize={"method": "cg", "max_iterations": 30}, run={"steps": 2})
    table = text.split("  phase ")[1].split("Speed")[0].splitlines()[1:]
    shares = [float(line.split()[-2]) for line in table]
    assert len(shares) > 8
    assert sum(shares) == pytest.approx(100, abs=1)


def test_compilation_counts_in_no_phase():
    from types import SimpleNamespace

    from dpmd.parallel import OneProcess
    from dpmd.simulation import Timers

    timers, compiling = Timers(OneProcess()), SimpleNamespace(seconds=5.0)
    timers.begin(compiling)
    clock = timers.start()
    compiling.seconds += 100.0
    timers.lap("integrate", clock)
    assert -100 <= timers["integrate"] < -99


def test_compilation_is_told_once_and_not_counted():
    import numba

    told = []
    with compilation(lambda: told.append(1)) as spent:
        before = spent.seconds
        for kind in (1, 1.5, 2):
            numba.njit(lambda x: x + 1)(kind)
        assert spent.seconds > before == 0
    assert told == [1]
    with compilation(lambda: told.append(2)):
        pass
    assert told == [1]


def test_a_second_start_does_not_speak_of_compiling(water_run):
    water_run()
    assert "compil" not in water_run("--overwrite")[1]
