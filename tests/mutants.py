"""Deliberate faults in fixes, computes, thermostats, barostats and observers, each of which a test has to find.

``python tests/mutants.py [NAME ...]`` puts one fault at a time into a copy of the sources and runs the tests that are
to find it, there; a NAME is part of what the list says of a mutant.  The checkout is never touched.  Exit code 1 if a
mutant survives, 2 if the list is faulty or the tests do not pass without a fault.

What must have mutants is what users can name: the tables of fixes and computes of scripts, and the choices of
``[ensemble]`` and ``[[analysis]]``; at least two each.  ``test_mutants.py`` keeps the list complete and up to date.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
#: what tests need of the checkout
COPIED = ("dpmd", "kernels", "models", "parallel", "perfmodel", "tests", "examples", "setup.cfg", "pyproject.toml")
#: s, of one mutant's tests
LIMIT = 300


@dataclass(frozen=True)
class Mutant:
    """``new`` for ``old``, which occurs once in the file ``path``.

    what : the fault in words; of : what it belongs to, as in :func:`registered`; tests : files, or single tests of
    them, that are to find it; equivalent : why nothing can tell it from the original, for those that are not run.
    """

    what: str
    of: tuple[str, ...]
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def __str__(self):
        return f"{', '.join(self.of)}: {self.what}"


def registered():
    """Everything that must have mutants."""
    from dpmd.lammps.computes import COMPUTES
    from dpmd.lammps.fixes import FIXES
    from dpmd.options import SECTIONS
    from dpmd.trajectory_analysis import KINDS

    (ensemble,) = (section for section in SECTIONS if section.name == "ensemble")
    choices = {option.name: option.choices for option in ensemble.options if option.choices}
    return [
        *(f"fix {name}" for name in FIXES),
        *(f"compute {name}" for name in COMPUTES),
        *(f"{what} {name}" for what in ("type", "thermostat", "barostat", "coupling") for name in choices[what]),
        *(f"analysis {name}" for name in KINDS),
    ]


def keywords():
    """What may have mutants beside those: the thermo keywords of scripts."""
    from dpmd.lammps.computes import KEYWORDS

    return [f"keyword {name}" for name in KEYWORDS]


def problems(root=ROOT):
    """What is wrong with the list, as lines."""
    found, names = [], registered()
    known = {*names, *keywords()}
    for name in names:
        count = sum(name in mutant.of for mutant in MUTANTS if not mutant.equivalent)
        if count < 2:
            found.append(f"{name} has {count} mutants; two are needed")
    whats = [str(mutant) for mutant in MUTANTS]
    found += [f"{what}: is there twice" for what in sorted(set(whats)) if whats.count(what) > 1]
    for mutant in MUTANTS:
        text = (root / mutant.path).read_text(encoding="utf-8")
        if text.count(mutant.old) != 1 or mutant.old == mutant.new:
            found.append(f"{mutant}: {mutant.old!r} occurs {text.count(mutant.old)} times in {mutant.path}, not once")
        found += [f"{mutant}: {name!r} is not registered" for name in mutant.of if name not in known]
        if not mutant.tests and not mutant.equivalent:
            found.append(f"{mutant}: has no test")
    for test in sorted({test for mutant in MUTANTS for test in mutant.tests}):
        file, _, function = test.partition("::")
        path, name = root / file, function.partition("[")[0]
        if not path.is_file() or f"def {name}" not in path.read_text(encoding="utf-8"):
            found.append(f"there is no test {test}")
    return found


# --------------------------------------------------------------------- running


def copy_sources(target):
    """The working tree's sources, without compiled files."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.nb[ic]"))
        else:
            shutil.copy2(source, target)


def run_tests(folder, tests, **environment):
    """Exit code (None: out of time) and output of the tests, of a copy and with its dpmd."""
    variables = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    variables |= {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder.parent / "cache"), **environment}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def try_mutant(mutant, folder):
    """Whether tests found it (None: it cannot be told), which one, and s."""
    path, begin = folder / mutant.path, time.monotonic()
    text, times = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    # no compiled file may be taken for the mutant's: neither Python's, which are told by a time in seconds ...
    os.utime(path, (times.st_atime, times.st_mtime + 1000))
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent) as compiled:
            if "njit" in text:  # ... nor numba's, which do not tell what they have called
                environment["NUMBA_CACHE_DIR"] = compiled
            code, output = run_tests(folder, mutant.tests, **environment)
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    seconds = time.monotonic() - begin
    if code is None:
        return True, f"stopped after {LIMIT} s", seconds
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.M)
    if code == 1 and failed:
        return True, failed[1].removeprefix("tests/"), seconds
    if code == 0:
        return False, "SURVIVES", seconds
    return None, f"cannot be told (exit code {code}): " + " / ".join(output.strip().splitlines()[-3:]), seconds


def run(mutants, jobs):
    """Try them all; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        first = Path(name).resolve() / "1"
        first.mkdir()
        copy_sources(first)
        tests, begin = sorted({test for mutant in mutants for test in mutant.tests}), time.monotonic()
        place = subprocess.run(
            [sys.executable, "-c", "import dpmd; print(dpmd.__file__)"], cwd=name, text=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": str(first)},
        ).stdout.strip()  # fmt: skip
        if not place.startswith(str(first)):
            print(f"dpmd would come from {place or 'nowhere'}, not from the copy {first}")
            return 2
        code, output = run_tests(first, tests)
        if code != 0:
            print(f"The tests do not pass without a fault (exit code {code}):\n{output[-4000:]}")
            return 2
        print(f"{len(tests)} tests or files of tests pass without a fault, in {time.monotonic() - begin:.0f} s")
        folders = SimpleQueue()
        for k in range(jobs):
            folder = first if k == 0 else first.with_name(str(k + 1))
            if k:
                shutil.copytree(first, folder)
            folders.put(folder)

        def one(mutant):
            folder = folders.get()
            try:
                return mutant, *try_mutant(mutant, folder)
            finally:
                folders.put(folder)

        results = []
        with ThreadPoolExecutor(jobs) as pool:
            for mutant, found, by, seconds in pool.map(one, mutants):
                results.append(found)
                print(f"{seconds:5.1f} s  {mutant!s:90s}  {by}", flush=True)
    survive, unclear = results.count(False), results.count(None)
    print(f"{len(results)} mutants: {results.count(True)} found, {survive} survive, {unclear} cannot be told")
    return 1 if survive or unclear else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only mutants whose line in --list contains one")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--jobs", type=int, default=1, help="how many to try at a time")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    chosen = [m for m in MUTANTS if not arguments.names or any(name in str(m) for name in arguments.names)]
    if arguments.list:
        print("\n".join(map(str, chosen)))
        return 0
    wrong = problems()
    if wrong:
        print("\n".join(wrong))
        return 2
    code = run([m for m in chosen if not m.equivalent], arguments.jobs)
    for mutant in chosen:
        if mutant.equivalent:
            print(f"equivalent: {mutant}: {mutant.equivalent}")
    return code


# --------------------------------------------------------------------- the list

ENSEMBLES, BAROSTATS, FIXES, SYSTEM = "dpmd/ensembles.py", "dpmd/barostats.py", "dpmd/fixes.py", "dpmd/system.py"
INTEGRATE, MINIMIZE, SCRIPT_FIXES = "kernels/integrate.py", "dpmd/minimize.py", "dpmd/lammps/fixes.py"
COMPUTES, ANALYSIS, SESSION, DUMPS = (
    "dpmd/lammps/computes.py", "dpmd/analysis.py", "dpmd/lammps/session.py", "dpmd/lammps/dumps.py",
)  # fmt: skip
OBSERVERS = "dpmd/trajectory_analysis.py"

TABLE = ("tests/dpmd/test_fixes.py", "tests/dpmd/lammps/test_fixes.py")
IN_COMPUTES = ("tests/dpmd/lammps/test_computes.py",)
IN_OUTPUTS = ("tests/dpmd/lammps/test_output_fixes.py",)
IN_OBSERVERS = ("tests/dpmd/test_observers.py",)
IN_MINIMIZE = ("tests/dpmd/lammps/test_minimize.py",)
IN_PIECES = ("tests/dpmd/test_pieces.py",)
IN_UNITS = ("tests/dpmd/lammps/test_unit_styles.py",)

MUTANTS = []


def _fault(of, path, what, old, new, tests=TABLE, equivalent=""):
    MUTANTS.append(Mutant(what, tuple(name.strip() for name in of.split(",")), path, old, new, tests, equivalent))


# fmt: off

# integrators

_fault("fix nve, type nve", ENSEMBLES, "the half kick is six tenths", "system.kick(0.5 *", "system.kick(0.6 *")
_fault("fix nve, type nve", INTEGRATE, "kicks go the wrong way",
       "velocities[i, c] += factor * forces[i, c]", "velocities[i, c] -= factor * forces[i, c]")
_fault("fix nve", ENSEMBLES, "kicks ignore the group",
       "inverse = system.inverse_masses * self.group.mask(system)", "inverse = system.inverse_masses")
_fault("fix nve", ENSEMBLES, "drift ignores the group",
       "system.velocities * self.group.mask(system)[:, None], fraction", "system.velocities, fraction")

# Nose-Hoover chains

_CHAIN = "fix nvt, fix npt, type nvt, thermostat nose-hoover"
_fault(_CHAIN, ENSEMBLES, "the first mass lacks the degrees of freedom", "mass[0] *= freedom", "mass[0] *= 1")
_fault(_CHAIN, INTEGRATE, "scales velocities the wrong way",
       "scale = np.exp(-h / 2 * u[0])", "scale = np.exp(h / 2 * u[0])")
_fault(_CHAIN, INTEGRATE, "sign of the chain's energy", "energy = target * eta[0]", "energy = -target * eta[0]")
_fault("fix nvt", ENSEMBLES, "scaling ignores the group",
       "system.velocities[self.group.mask(system)] *= factor", "system.velocities *= factor")
_fault("fix nvt", ENSEMBLES, "the kinetic energy ignores the group",
       "float(np.trace(system.twice_kinetic_tensor(self.group.mask(system))))",
       "float(np.trace(system.twice_kinetic_tensor()))")
_fault(_CHAIN, ENSEMBLES, "a restart forgets the chain's energy", 'self.energy = float(state[f"{prefix}_energy"])',
       "self.energy = 0.0", ("tests/dpmd/test_ensembles.py::test_chain_of_one_and_state",))
_DAMPED = "fix nvt, fix npt, fix nph, fix langevin, fix temp/csvr, fix temp/berendsen, fix press/berendsen"
_fault(_DAMPED, SCRIPT_FIXES, "damping times are not converted to ps",
       "return value / session.units.time", "return value", IN_UNITS)

# barostats

_MTK = "fix npt, fix nph, type npt, type nph, barostat mtk"
_fault(_MTK, BAROSTATS, "mass of the cell without the one more",
       "(system.n_atoms + 1) * kt", "system.n_atoms * kt", IN_COMPUTES)
_fault(_MTK, BAROSTATS, "sign of the work against the pressure",
       "energy += mean * (system.volume - self.reference_volume)",
       "energy -= mean * (system.volume - self.reference_volume)", IN_COMPUTES)
_fault(_MTK, BAROSTATS, "sign of the kinetic term of the strain rate",
       "force += kinetic", "force -= kinetic", IN_COMPUTES)
_fault(_MTK, BAROSTATS, "sign of the coupling of velocities to the strain rate",
       "extra = sum(w[k]", "extra = -sum(w[k]", IN_COMPUTES)
_fault("fix nph, type nph", BAROSTATS, "sign of the barostat's energy",
       "(self.chain.energy if self.target is not None else 0.0) + self._energy",
       "(self.chain.energy if self.target is not None else 0.0) - self._energy")
_fault("fix nph, type nph", BAROSTATS, "the cell's mass is not that of the temperature at the start",
       "self.mass_temperature = self.temperature(system) or 300.0", "self.mass_temperature = 300.0")
_fault(_MTK, BAROSTATS, "a restart forgets the strain rate",
       'self.rate, self.fixed_point = np.array(state["rate"])', "self.rate, self.fixed_point = np.zeros(6)")
_fault("fix npt, fix nph, coupling tri", SYSTEM, "K: image counts of a flip",
       "self.images[:, axis] -= np.int32(times) * self.images[:, row]",
       "self.images[:, axis] += np.int32(times) * self.images[:, row]", IN_PIECES)
_fault("coupling iso, fix npt", BAROSTATS, "the mean of coupled pressures is a sum",
       "mean = sum(pressures[k] for k in group) / len(group)", "mean = sum(pressures[k] for k in group)")
_fault("coupling iso", BAROSTATS, "iso couples nothing", '((0, 1, 2),) if kind == "iso" else ()', "()")
_fault("coupling iso, coupling aniso", BAROSTATS, "iso and aniso are swapped",
       'if kind == "iso" else ()', 'if kind == "aniso" else ()')
_fault("coupling aniso, coupling tri", BAROSTATS, "aniso tilts, tri does not",
       'range(6 if kind == "tri" else 3)', 'range(6 if kind == "aniso" else 3)')
_fault("coupling aniso, coupling tri", BAROSTATS, "x alone follows the pressure",
       "{k: target for k in components if k < 3}", "{k: target for k in components if k < 1}")
_fault("coupling tri", BAROSTATS, "sign of a tilt's growth",
       "xy = move(xy, 0.5, w[0], w[5] * lengths[1])", "xy = move(xy, 0.5, w[0], -w[5] * lengths[1])", IN_COMPUTES)
_BERENDSEN = "fix press/berendsen, barostat berendsen"
_fault(_BERENDSEN, BAROSTATS, "H: power 1/2 for 1/3",
       "** (1 / 3)\n        system.map_cell", "** (1 / 2)\n        system.map_cell")
_fault(_BERENDSEN, BAROSTATS, "the cell goes the wrong way",
       "ramp(system.step) - current[k]", "current[k] - ramp(system.step)")
_fault(_BERENDSEN, BAROSTATS, "the cell does not grow about the fixed point",
       "(system.origin - self.fixed_point) * growth + self.fixed_point", "system.origin")
_fault(_BERENDSEN, BAROSTATS, "a restart forgets the fixed point", 'self.fixed_point = np.array(state["fixed_point"])',
       "pass", (), "the cell has grown about its middle, which is where a new start would put the point")

# thermostats beside an integrator

_LANGEVIN = "fix langevin"
_fault(_LANGEVIN, FIXES, "M: langevin ignores its group",
       "None if self.group is None else self.group.mask(system)", "None")
_fault(_LANGEVIN, SYSTEM, "friction speeds atoms up", "forces = noise - mass *", "forces = noise + mass *")
_fault(_LANGEVIN, FIXES, "half the noise's strength", "strength = 2 *", "strength = 1 *")
_fault(_LANGEVIN, SYSTEM, "zero yes does nothing", "if centred:", "if False:")
_fault("fix langevin, thermostat langevin, type npt", FIXES, "sign of the reservoir's energy",
       "self.reservoir_energy -= before + self._half", "self.reservoir_energy += before + self._half")
_fault("thermostat langevin, type nvt", ENSEMBLES, "sign of the reservoir's energy",
       "self.reservoir_energy -= system.add_noise(", "self.reservoir_energy += system.add_noise(")
_fault("thermostat langevin, type nvt", INTEGRATE, "width of the noise",
       "(1.0 - decay * decay) * energy", "(1.0 - decay) * energy")
_fault("thermostat csvr", ENSEMBLES, "sign of the reservoir's energy",
       "self.reservoir_energy += kinetic * (1 - factor**2)", "self.reservoir_energy -= kinetic * (1 - factor**2)")
_fault("fix temp/csvr", FIXES, "sign of the reservoir's energy",
       "self.reservoir_energy += kinetic * (1 - factor**2)", "self.reservoir_energy -= kinetic * (1 - factor**2)")
_fault("fix temp/csvr, thermostat csvr", ENSEMBLES, "one degree of freedom too few",
       "(1 - c) * ratio * (r * r + s)", "(1 - c) * ratio * s", IN_PIECES)
_fault("fix temp/csvr, fix temp/berendsen", FIXES, "scaling ignores the group",
       "system.velocities[self.group.mask(system)] *= factor", "system.velocities *= factor")
_fault("fix temp/csvr, fix temp/berendsen", FIXES, "the kinetic energy ignores the group",
       "float(np.trace(system.twice_kinetic_tensor(self.group.mask(system))))",
       "float(np.trace(system.twice_kinetic_tensor()))")
_fault("fix temp/csvr, fix temp/berendsen, fix langevin", FIXES, "a restart forgets the reservoir's energy",
       'self.reservoir_energy = float(state["reservoir_energy"])', "self.reservoir_energy = 0.0")
_fault("fix temp/berendsen, thermostat berendsen", FIXES, "G: sign of the reservoir's energy",
       "self.reservoir_energy += kinetic * (1 - factor2)", "self.reservoir_energy -= kinetic * (1 - factor2)")
_fault("fix temp/berendsen, thermostat berendsen", FIXES, "the square of the factor scales",
       "self.scale_velocities(system, math.sqrt(factor2))", "self.scale_velocities(system, factor2)")

# constraints and forces

_fault("fix momentum", FIXES, "I: half is removed", "drift = system.sum(", "drift = 0.5 * system.sum(")
_fault("fix momentum", FIXES, "D: twice the rotation is removed",
       "np.linalg.pinv(inertia) @ momentum", "np.linalg.pinv(inertia) @ (2 * momentum)")
_fault("fix momentum", FIXES, "rescale by the square", "math.sqrt(before / after)", "(before / after)")
_fault("fix momentum", FIXES, "the group's drift is taken from all",
       "system.velocities[chosen] -= np.where(directions, drift, 0.0)",
       "system.velocities[:] -= np.where(directions, drift, 0.0)")
_fault("fix recenter", FIXES, "C: shifts the wrong way",
       "shift = np.array(wanted) - centre", "shift = centre - np.array(wanted)")
_fault("fix recenter", FIXES, "shift ignores its group",
       "slice(None) if self.shifted is None else self.shifted.mask(system)", "slice(None)")
_fault("fix recenter", FIXES, "atoms that crossed a face count where they are",
       "system.unwrapped_positions[chosen]) / system.sum(mass.sum()) + system.origin",
       "system.positions[chosen]) / system.sum(mass.sum()) + system.origin")
_fault("fix setforce", FIXES, "E: f_ID[i] is 0", "before it was replaced\n        self.vector = system.sum(",
       "before it was replaced\n        self.vector = 0 * system.sum(")
_fault("fix setforce", FIXES, "ignores its group",
       "system.forces[chosen, axis] = value", "system.forces[:, axis] = value")
_fault("fix setforce, fix addforce", SCRIPT_FIXES, "forces are not converted to eV/Å",
       'session.number(w, f"fix {style}") / session.units.energy', 'session.number(w, f"fix {style}")', IN_UNITS)
_fault("fix addforce", FIXES, "B: sign of its energy", "self.scalar = -float(", "self.scalar = float(")
_fault("fix addforce", FIXES, "ignores its group",
       "system.forces[chosen] += self.values", "system.forces[:] += self.values")
_fault("fix spring/self", SCRIPT_FIXES, "the stiffness is not converted to eV/Å^2",
       '"fix spring/self: K", 0.0) / session.units.energy', '"fix spring/self: K", 0.0)', IN_UNITS)
_fault("fix spring/self", FIXES, "F: twice the energy",
       "self.scalar = 0.5 * self.stiffness", "self.scalar = 1.0 * self.stiffness")
_fault("fix spring/self", FIXES, "pushes away",
       "system.forces[chosen] -= self.stiffness", "system.forces[chosen] += self.stiffness")
_fault("fix spring/self", FIXES, "a restart forgets the anchors", 'self.anchors = np.array(state["anchors"])', "pass")
_fault("fix wall/reflect", FIXES, "A: leaves the velocity", "system.velocities[beyond, axis] *= -1", "pass")
_fault("fix wall/reflect", FIXES, "puts atoms on the wall", "2 * wall - system.positions[beyond, axis]", "wall")
_fault("fix wall/reflect", FIXES, "ignores its group",
       "np.arange(len(system)) if self.group is None else np.flatnonzero(self.group.mask(system))",
       "np.arange(len(system))")

# the box

_fault("fix deform", FIXES, "grows from its far face",
       "first_origin[k] - (cell[k, k]", "first_origin[k] + (cell[k, k]")
_fault("fix deform", FIXES, "remap x and none are swapped", "if self.carry:", "if not self.carry:")
_fault("fix deform", SCRIPT_FIXES, "rates are not converted to 1/ps",
       "rate = values[0] * per_ps", "rate = values[0]", IN_UNITS)
_fault("fix deform", SCRIPT_FIXES, "trate grows linearly", "first * math.exp(t * rate)", "first * (1 + t * rate)")
_fault("fix box/relax", MINIMIZE, "sign of the pressure",
       "- mean * volume * inverse", "+ mean * volume * inverse", IN_MINIMIZE)
_fault("fix box/relax", MINIMIZE, "sign of a stress that is not hydrostatic",
       "- self.volume * excess", "+ self.volume * excess", IN_MINIMIZE)
_fault("fix box/relax", MINIMIZE, "sign of p V in the enthalpy",
       "energy + mean * (volume", "energy - mean * (volume", IN_MINIMIZE)

# more of the fixes above

_fault("fix wall/reflect", FIXES, "the other side", "chosen[(x - wall) * side > 0]", "chosen[(x - wall) * side < 0]")
_fault("fix wall/reflect", FIXES, "ignores the origin", "wall = position - system.origin[axis]", "wall = position")
_fault("fix recenter", FIXES, "INIT is where the group was in the first run",
       "self.fixed = [c if t != t", 'self.fixed = getattr(self, "fixed", None) or [c if t != t')
_fault("fix recenter", FIXES, "f_ID", "self.vector, self.scalar = shift, float(np.linalg.norm(shift))",
       "self.vector, self.scalar = -shift, float(shift.sum())")
_fault("fix recenter", SCRIPT_FIXES, "shifts all by default",
       "else group\n    return fixes.Recenter", "else None\n    return fixes.Recenter")
_fault("fix addforce", FIXES, "energy of wrapped positions",
       "x = system.unwrapped_positions[chosen] + system.origin\n        self.scalar",
       "x = system.positions[chosen] + system.origin\n        self.scalar")
_fault("fix spring/self", FIXES, "ignores directions",
       "self.anchors[system.ids])[chosen] * self.directions", "self.anchors[system.ids])[chosen]")
_fault("fix spring/self", FIXES, "anchors not by id",
       "self.anchors[system.ids] = system.unwrapped_positions", "self.anchors[1:] = system.unwrapped_positions")
_fault("fix momentum", FIXES, "at every step",
       "        if system.step % self.every:\n            return\n        before", "        before")
_fault("fix temp/berendsen, thermostat berendsen", FIXES, "the wrong way",
       "        factor2 = max(1 + ratio * (self.target(system.step) / current - 1), 0.0)",
       "        factor2 = max(1 + ratio * (current / self.target(system.step) - 1), 0.0)")
_fault("fix temp/berendsen, thermostat berendsen", FIXES, "a time step of its own",
       "ratio = system.timestep / self.relaxation_time", "ratio = 0.001 / self.relaxation_time")
_fault("fix temp/csvr, fix temp/berendsen", FIXES, "degrees of freedom of thermostats beside",
       "        return 3 * n - (3 if n > 1 else 0)", "        return 3 * n")
_fault("fix temp/csvr", FIXES, "twice as fast", "        decay = math.exp(-system.timestep / self.relaxation_time)",
       "        decay = math.exp(-2 * system.timestep / self.relaxation_time)")
_fault("fix temp/csvr", FIXES, "the same random number at each step",
       "generator = step_generator(self.seed, system.step, CSVR)", "generator = step_generator(self.seed, 0, CSVR)")
_fault("fix langevin", FIXES, "runs of scripts do not begin at 0",
       "        if system.step == self.first:  # as", "        if False:  # as")
_fault("fix langevin", FIXES, "tallies without being asked",
       "self._added, self._mask(system)) if self.tally else 0.0", "self._added, self._mask(system))")
_fault("fix langevin", FIXES, "first half not counted",
       "        if not self._moving:\n            self._half = self._half_work(system)",
       "        if not self._moving:\n            pass")
_fault("fix langevin", FIXES, "acts in minimisations",
       '        """None: friction and noise have no energy."""', "        self.after_forces(system)")
_fault("fix langevin", FIXES, "state without the half", '{"half_work": self._half}', '{"half_work": 0.0}')
_fault("fix langevin", SYSTEM, "zero: sign",
       "noise -= self.sum(noise.sum(axis=0)) / max", "noise += self.sum(noise.sum(axis=0)) / max")
_fault("fix deform", FIXES, "remap none: atoms move with the corner",
       "system.positions += origin - system.origin", "pass")
_fault("fix deform", FIXES, "time since step 0",
       "elapsed = (system.step - self.first) * system.timestep", "elapsed = system.step * system.timestep")
_fault("fix deform", FIXES, "later runs begin with the first cell",
       "self.begin = present if system.step == self.first else self.initial", "self.begin = self.initial")
_fault("fix deform", FIXES, "at every step",
       "        if system.step % self.every:\n            return\n        elapsed", "        elapsed")
_fault("fix deform", SCRIPT_FIXES, "final: about the middle",
       "            lows[k] = partial(_deform_low, kind, values[0])", "            pass")
_fault("fix deform", SCRIPT_FIXES, "erate without the edge",
       "return lambda t, f, first, edge: first + t * rate * edge", "return lambda t, f, first, edge: first + t * rate")
_fault("fix deform", SCRIPT_FIXES, "scale", "return lambda t, f, first, edge: first * (1 + f * (values[0] - 1))",
       "return lambda t, f, first, edge: first * (1 + f * values[0])")
_fault("type npt", FIXES, "one reservoir", "return sum(part.reservoir_energy for part in self.parts.values())",
       "return max(part.reservoir_energy for part in self.parts.values())")
_fault("thermostat langevin", SYSTEM, "work doubled",
       "return 0.5 * self.sum(twice_kinetic_energy(self.velocities, self.inverse_masses) - before)",
       "return self.sum(twice_kinetic_energy(self.velocities, self.inverse_masses) - before)")
_fault("thermostat langevin", ENSEMBLES, "half the friction",
       "        decay = math.exp(-system.timestep / self.relaxation_time)\n        self.reservoir",
       "        decay = math.exp(-0.5 * system.timestep / self.relaxation_time)\n        self.reservoir")
_fault("thermostat csvr", ENSEMBLES, "ignores tau",
       "        decay = math.exp(-system.timestep / self.relaxation_time)\n        factor",
       "        decay = math.exp(-system.timestep)\n        factor")
_fault(_CHAIN, ENSEMBLES, "without drag",
       "        drag = 1.0 - timestep * frequency * self.drag / self.cycles", "        drag = 1.0")
_fault(_CHAIN, ENSEMBLES, "energy at the start of a run",
       "            self.chain.measure(*self._chain_targets(system, system.step))", "            pass")
_fault(_CHAIN, ENSEMBLES, "energy measured twice",
       "self.energy = target * self.eta[0] + 0.5 * float", "self.energy = target * self.eta[0] + float")
_fault("fix nvt", ENSEMBLES, "degrees of freedom of integrators",
       "return 3 * n - (3 if n > 1 and (self.momentum_conserved or self.group is not None) else 0)", "return 3 * n")
_fault(_BERENDSEN, BAROSTATS, "twice as fast", "growth[k] = max(1 - system.timestep / self.coupling.times[k] *",
       "growth[k] = max(1 - 2 * system.timestep / self.coupling.times[k] *")
_fault(_MTK, BAROSTATS, "the wrong way", "force = ((current[k] - (mean if k < 3 else 0.0)) * volume",
       "force = (((mean if k < 3 else 0.0) - current[k]) * volume")
_fault(_MTK, BAROSTATS, "drag not shared among the cycles", "self.drag = drag / pressure_cycles", "self.drag = drag")
_fault(_MTK, BAROSTATS, "energy of the cell's motion",
       "energy = 0.5 * float(self.mass @ self.rate**2)", "energy = float(self.mass @ self.rate**2)")
_fault(_MTK, BAROSTATS, "stress of directions that are not coupled",
       "excess -= mean * np.eye(3)", "excess[self.diagonal, self.diagonal] -= mean")
_fault(_MTK, BAROSTATS, "cell's chain: target of the next step",
       "        self._chain_half_step(system, system.step)", "        self._chain_half_step(system, system.step + 1)")
_fault(_MTK, BAROSTATS, "energy of a stress doubled",
       "            energy += 0.5 * float(np.trace(sigma @ h.T @ h)) / system.constants.pressure",
       "            energy += float(np.trace(sigma @ h.T @ h)) / system.constants.pressure")
_fault(_MTK, BAROSTATS, "the corner stays",
       "system.origin = (system.origin - self.fixed_point) * np.array(growth) + self.fixed_point", "pass")
_fault(_MTK, BAROSTATS, "cell's chain of isotropic cells",
       "return kt if self.coupling.isotropic else len(self.components) * kt, mass, kt",
       "return len(self.components) * kt, mass, kt")
_fault("fix npt, fix nph", BAROSTATS, "nreset counts from step 0",
       "(system.step + 1 - self.first) % self.reference_every == 0", "system.step % self.reference_every == 0")
_fault("fix ave/time", SCRIPT_FIXES, "ignores start",
       "end = -(-max(step + length, self.start_step) // self.frequency) * self.frequency",
       "end = -(-(step + length) // self.frequency) * self.frequency")
_fault("fix ave/time", SCRIPT_FIXES, "running: the last one",
       "        mean = np.mean(self.history, axis=0)", "        mean = self.history[-1]")
_fault("fix print", SCRIPT_FIXES, "not at the start of runs",
       "return step % self.every == 0 and (first or step != self.last)  # as",
       "return step % self.every == 0 and step != self.last  # as")
_fault("fix print", SCRIPT_FIXES, "at every step",
       "return step % self.every == 0 and (first or step != self.last)  # as", "return True  # as")
_fault("fix vector", SCRIPT_FIXES, "f_ID", "        self.vector = self.array[:, 0]\n        self.scalar = float",
       "        self.vector = self.array[-1]\n        self.scalar = float")
_fault("fix temp/berendsen, fix temp/csvr", "dpmd/lammps/commands.py", "timestep after fixes ignored",
       "    session.timestep = value\n", "    session.timestep = value if not session.fixes else session.timestep\n")

# fixes that look

_fault("fix print", SCRIPT_FIXES, "variables are not replaced",
       "self.session.variables.substitute(self.text)", "self.text", IN_OUTPUTS)
_fault("fix print", SCRIPT_FIXES, "screen no is ignored", "        if self.screen:", "        if True:", IN_OUTPUTS)
_fault("fix ave/time", SCRIPT_FIXES, "a sum for a mean",
       "mean = self.total / self.count", "mean = self.total", IN_OUTPUTS)
_fault("fix ave/time", SCRIPT_FIXES, "means go on",
       "self.total, self.count = 0.0, 0\n        self.history.append", "self.history.append", IN_OUTPUTS)
_fault("fix ave/time", SCRIPT_FIXES, "window keeps everything",
       "self.history = self.history[-self.window :]", "pass", IN_OUTPUTS)
_fault("fix vector", SCRIPT_FIXES, "keeps the last row only",
       "self.array = np.array(self.rows)", "self.array = np.array(self.rows[-1:])", IN_OUTPUTS)
_fault("fix vector", SCRIPT_FIXES, "keeps the first value only",
       "self.rows.append([self.session.number_of(n) for n in self.names])",
       "self.rows.append([self.session.number_of(self.names[0])] * len(self.names))", IN_OUTPUTS)

# computes

_fault("compute temp", COMPUTES, "no degree of freedom is fixed",
       "return 3 * n - self.extra", "return 3 * n", IN_COMPUTES)
_fault("compute temp", COMPUTES, "ignores its group",
       "twice_kinetic_tensor(None if self.group is None else self.mask())", "twice_kinetic_tensor()", IN_COMPUTES)
_fault("compute temp", COMPUTES, "its vector is always in eV",
       "self.tensor()[ROW, COLUMN][_ORDER] * self.session.units.energy", "self.tensor()[ROW, COLUMN][_ORDER]",
       IN_COMPUTES)
_fault("compute ke", COMPUTES, "N: ignores its group",
       "mask = None if self.group is None else self.mask()", "mask = None", IN_COMPUTES)
_fault("compute ke", COMPUTES, "twice the energy",
       "return 0.5 * float(np.trace(self.system.twice_kinetic_tensor(mask)))",
       "return float(np.trace(self.system.twice_kinetic_tensor(mask)))", IN_COMPUTES)
_fault("compute pe", COMPUTES, "always in eV",
       "return self.session.energy() * self.session.units.energy", "return self.session.energy()", IN_COMPUTES)
_fault("compute pe", SESSION, "without the energies of fixes", "return self.system.energy + sum(f.potential_energy()",
       "return self.system.energy + 0 * sum(f.potential_energy()", IN_UNITS)
_fault("compute pressure", COMPUTES, "trace / 2",
       "return float(np.trace(self.tensor())) / 3", "return float(np.trace(self.tensor())) / 2", IN_COMPUTES)
_fault("compute pressure", COMPUTES, "sign of the virial",
       "return pressure_tensor(kinetic, virial,", "return pressure_tensor(kinetic, -virial,", IN_COMPUTES)
_fault("compute pressure", COMPUTES, "NULL counts the kinetic part",
       'self.temperature != "NULL" and (not kinds or "ke" in kinds)', "True", IN_COMPUTES)
_fault("compute msd", ANALYSIS, "com yes and no are swapped", "if not self.centred:", "if self.centred:", IN_COMPUTES)
_fault("compute msd", ANALYSIS, "ignores its group",
       "self.first[system.ids])[chosen]", "self.first[system.ids])", IN_COMPUTES)
_fault("compute msd", ANALYSIS, "wrapped positions",
       "system.unwrapped_positions + system.origin", "system.positions + system.origin", IN_COMPUTES)
_fault("compute rdf", ANALYSIS, "J: an atom is its own neighbour",
       "others = n_b - both / n_a if n_a", "others = n_b if n_a", IN_COMPUTES)
_fault("compute rdf", ANALYSIS, "ignores its group",
       "np.ones(len(types), bool) if group is None else group.chosen[domain.ids]", "np.ones(len(types), bool)",
       IN_COMPUTES)
_fault("compute rdf", ANALYSIS, "coordination per neighbour",
       "np.cumsum(histogram) / n_a", "np.cumsum(histogram) / n_b", IN_COMPUTES)
_fault("compute com", SESSION, "wrapped positions", "system.unwrapped_positions[mask]) / system.sum(mass.sum())",
       "system.positions[mask]) / system.sum(mass.sum())", IN_COMPUTES)
_fault("compute com", SESSION, "ignores its group",
       "mask = slice(None) if group is None else group.mask(system)", "mask = slice(None)", IN_COMPUTES)
_fault("compute reduce", COMPUTES, "sum and ave are swapped",
       '(n if self.kind == "ave" else 1)', '(n if self.kind == "sum" else 1)', IN_COMPUTES)
_fault("compute reduce", COMPUTES, "ignores its group", "columns = [np.asarray(c, float)[mask] for c in columns]",
       "columns = [np.asarray(c, float) for c in columns]", IN_COMPUTES)
_fault("compute reduce", COMPUTES, "min and max are swapped",
       'sign = 1 if self.kind == "max" else -1', 'sign = 1 if self.kind == "min" else -1', IN_COMPUTES)
_fault("compute pe/atom", COMPUTES, "ignores its group",
       "np.where(self.mask(), energies, 0.0)", "energies", IN_COMPUTES)
_fault("compute pe/atom", COMPUTES, "always in eV", "np.where(self.mask(), energies, 0.0) * self.session.units.energy",
       "np.where(self.mask(), energies, 0.0)", IN_COMPUTES)
_fault("compute ke/atom", COMPUTES, "ignores its group",
       "np.where(self.mask(), 0.5 * v2, 0.0)", "0.5 * v2", IN_COMPUTES)
_fault("compute ke/atom", COMPUTES, "twice the energy",
       "np.where(self.mask(), 0.5 * v2, 0.0)", "np.where(self.mask(), v2, 0.0)", IN_COMPUTES)
_STRESS = "compute stress/atom, compute centroid/stress/atom"
_fault(_STRESS, COMPUTES, "sign of the kinetic part",
       "stress -= v[:, :, None]", "stress += v[:, :, None]", IN_COMPUTES)
_fault(_STRESS, COMPUTES, "sign of the virial",
       "stress = -self.session.per_atom()[1]", "stress = self.session.per_atom()[1]", IN_COMPUTES)
_fault(_STRESS, COMPUTES, "ignores its group",
       "np.where(self.mask()[:, None, None], stress, 0.0)", "stress", IN_COMPUTES)
_fault("compute stress/atom", COMPUTES, "not symmetric",
       "((tensors + tensors.transpose(0, 2, 1)) / 2)", "tensors", IN_COMPUTES)
_fault("compute stress/atom", COMPUTES, "xy and yz are swapped",
       "/ 2)[:, COLUMN, ROW][:, _ORDER]", "/ 2)[:, COLUMN, ROW]", IN_COMPUTES)
_fault("compute centroid/stress/atom", COMPUTES, "transposed",
       "_CENTROID = [0, 4, 8, 3, 6, 7, 1, 2, 5]", "_CENTROID = [0, 4, 8, 1, 2, 5, 3, 6, 7]", IN_COMPUTES)
_fault("compute property/atom", COMPUTES, "ignores its group",
       "values = np.where(self.mask()[:, None], values, 0.0)", "pass", IN_COMPUTES)
_fault("compute property/atom", DUMPS, "velocities are always in Å/ps",
       "s.system.velocities[:, axis] * s.units.velocity", "s.system.velocities[:, axis]", IN_COMPUTES)
_fault("compute property/atom", DUMPS, "scaled positions from the first corner",
       "((x + s.system.origin - low)", "((x + s.system.origin)", IN_COMPUTES)

# thermo keywords

_fault("keyword enthalpy", COMPUTES, "L: E - p V", "+ s.compute(s.thermo.pressure).scalar() * s.volume()",
       "- s.compute(s.thermo.pressure).scalar() * s.volume()", IN_COMPUTES)
_fault("keyword econserve", COMPUTES, "minus the reservoir",
       "_kinetic(s) + s.reservoir_energy()", "_kinetic(s) - s.reservoir_energy()", IN_COMPUTES)
_fault("keyword ecouple", COMPUTES, "always in eV",
       '("Ecouple", False, lambda s: s.reservoir_energy() * s.units.energy)',
       '("Ecouple", False, lambda s: s.reservoir_energy())', IN_COMPUTES)
_fault("keyword ke", COMPUTES, "kinetic energy with all degrees of freedom",
       "return 0.5 * source.freedom() * s.system", "return 0.5 * 3 * s.system.n_atoms * s.system", IN_COMPUTES)
_fault("keyword density", COMPUTES, "mean mass",
       "s.system.sum(s.system.masses.sum())", "s.system.sum(s.system.masses.mean())", IN_COMPUTES)
_fault("keyword elaplong", COMPUTES, "the same as elapsed",
       "s.system.step - (s.begin_step or 0)", "s.system.step - s.first_step", IN_COMPUTES)
_fault("keyword cellalpha, keyword cellbeta", COMPUTES, "angles between the wrong edges",
       '_angle(1, 2)), "cellbeta"', '_angle(0, 2)), "cellbeta"', IN_COMPUTES)
_fault("keyword pxy, keyword pyz", COMPUTES, "order of the tensor",
       "return self.tensor()[COLUMN, ROW][_ORDER]", "return self.tensor()[COLUMN, ROW]", IN_COMPUTES)
_fault("keyword fmax", COMPUTES, "signed", "np.abs(s.system.forces).max(", "s.system.forces.max(", IN_COMPUTES)
_fault("keyword fnorm", COMPUTES, "not the root", "math.sqrt(s.system.sum(", "(s.system.sum(", IN_COMPUTES)
_fault("keyword nbuild", COMPUTES, "counts the run's first list",
       "max(s.schedule.builds - 1, 0)", "s.schedule.builds", IN_COMPUTES)
_fault("keyword tpcpu", COMPUTES, "steps, not time",
       "(s.system.step - s.first_step) * s.timestep", "(s.system.step - s.first_step)", IN_COMPUTES)

# analyses of TOML inputs

_fault("analysis rdf", OBSERVERS, "counts each pair twice",
       "np.add.at(self.counts, (*kinds, bin_of), 1)", "np.add.at(self.counts, (*kinds, bin_of), 2)", IN_OBSERVERS)
_fault("analysis rdf", OBSERVERS, "density of all frames",
       "density = self.density / max(self.frames, 1)", "density = self.density", IN_OBSERVERS)
_fault("analysis rdf", OBSERVERS, "density of the first type",
       "np.maximum(density, 1e-300)[None, :, None]", "np.maximum(density, 1e-300)[:, None, None]", IN_OBSERVERS)
_fault("analysis rdf", OBSERVERS, "shells of 4 pi r^3", "shells = 4 / 3 * np.pi", "shells = 4 * np.pi", IN_OBSERVERS)
_fault("analysis coordination", OBSERVERS, "numbers, not shares",
       "share / max(share.sum(), 1)", "share", IN_OBSERVERS)
_fault("analysis coordination", OBSERVERS, "neighbours of all types' atoms",
       "numbers[types == a, b]", "numbers[:, b]", IN_OBSERVERS)
_fault("analysis coordination", OBSERVERS, "mean per neighbour",
       "self.counts.sum(axis=2) / np.maximum(self.atoms, 1)[:, None]",
       "self.counts.sum(axis=2) / np.maximum(self.atoms, 1)[None, :]", IN_OBSERVERS)
_fault("analysis msd", OBSERVERS, "the centre of mass goes twice as fast",
       "positions -= system.masses @ positions", "positions += system.masses @ positions", IN_OBSERVERS)
_fault("analysis msd", OBSERVERS, "wrapped positions",
       "positions = system.unwrapped_positions\n", "positions = system.positions.copy()\n", IN_OBSERVERS)
_fault("analysis msd", OBSERVERS, "sign of the correlation",
       "(both - 2 * correlation)", "(both + 2 * correlation)", IN_OBSERVERS)
_fault("analysis msd, analysis vacf, analysis vdos", OBSERVERS, "atoms change places",
       "ordered[np.argsort(np.argsort(system.ids))] = vectors", "ordered[:] = vectors", IN_OBSERVERS)
_fault("analysis vacf", OBSERVERS, "not normalised",
       "return mean / mean[0] if mean[0] != 0 else mean", "return mean", IN_OBSERVERS)
_fault("analysis vacf", OBSERVERS, "fewer origins are not counted",
       "return sums / np.arange(n, 0, -1)", "return sums / np.full(n, n)", IN_OBSERVERS)
_fault("analysis vdos", OBSERVERS, "atoms are not weighted by mass",
       "np.average(correlation, axis=1, weights=weights)", "np.average(correlation, axis=1)", IN_OBSERVERS)
_fault("analysis vdos", OBSERVERS, "twice the frequencies",
       "(2 * max(n - 1, 1) * interval)", "(max(n - 1, 1) * interval)", IN_OBSERVERS)
_fault("analysis vdos", OBSERVERS, "wave numbers by division",
       '"wavenumber_per_cm": frequencies * WAVENUMBER', '"wavenumber_per_cm": frequencies / WAVENUMBER', IN_OBSERVERS)

# fmt: on


if __name__ == "__main__":
    sys.exit(main())
