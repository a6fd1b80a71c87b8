"""Restart files of scripts: dpmd's checkpoints with what a script needs besides."""

import json
import os

import numpy as np

from .. import checkpoint
from ..ensembles import Fix, Group
from ..errors import InputError
from ..simulation import Hook
from .language import ScriptError
from .unitstyles import UNITS


class _State:
    """What a checkpoint asks of an ensemble, plus the tables of the script."""

    name = "LAMMPS script"

    def __init__(self, session):
        self.session, self.timestep = session, session.timestep_ps

    def state(self):
        s = self.session
        values = {
            "type_of": s.type_of, "charge_of": s.charge_of, "molecule_of": s.molecule_of, "first_low": s.first_low,
            "first_length": s.first_length, "low": s.low, "origin": s.system.origin,
        }  # fmt: skip
        for name, fix in s.fixes.items():
            if isinstance(fix, Fix):
                style = s.fix_styles[name].replace("/", ":")  # a slash would begin a group of the file
                values |= {f"fix|{name}|{style}|{k}": v for k, v in fix.state().items()}
        values |= {f"group|{name}": g.chosen for name, g in s.groups.items() if g is not None}
        extra = {
            "units": s.units.name, "faces": s.faces, "atom_style": s.atom_style, "triclinic": s.triclinic,
            "n_types": s.n_types, "masses": s.masses, "timestep": s.timestep, "time_offset": s.time_offset,
        }  # fmt: skip
        values["script"] = np.frombuffer(json.dumps(extra).encode(), np.uint8)
        return values


def write_restart(session, path):
    """Write a restart file; ``*`` in its name becomes the step.  Collective."""
    system = session.require_box()
    path = path.replace("*", str(system.step))
    names = system.type_names
    if not system.masses.size or np.all(system.masses < 1e-200):
        session.update_masses()
    whole = system.whole()

    def write():
        try:
            checkpoint.write(path, whole, _State(session), session.timestep_ps, {}, " ".join(names), {})
        except (OSError, ValueError) as error:
            raise ScriptError(f"restart file {path} cannot be written: {error}") from error

    session.processes.on_root(write)


def read_restart(session, path):
    """Take over the state of a restart file."""
    if session.system is not None:
        raise ScriptError("there is a box already; use 'clear' before read_restart")
    system, info = session.processes.on_root(lambda: _read(path))
    state = info["ensemble_state"]
    if "script" not in state:
        raise ScriptError(f"{path} is a checkpoint of a TOML run; continue it with md-run FILE.toml --continue")
    _take_over(session, system, state)


def _read(path):
    """``checkpoint.read`` of a file, of the last one where the name has a ``*``."""
    if "*" in path:
        import glob
        import re

        found = [(int(m[1]), f) for f in glob.glob(path) if (m := re.search(r"(\d+)\D*$", f))]
        if not found:
            raise ScriptError(f"read_restart: no file fits {path}")
        path = max(found)[1]
    if not os.path.isfile(path):
        raise ScriptError(f"read_restart: there is no file {path}")
    try:
        return checkpoint.read(path)
    except InputError as error:
        raise ScriptError(f"{error} (restart files of LAMMPS itself cannot be read: use write_data there)") from error


def _take_over(session, system, state):
    extra = json.loads(bytes(state["script"]).decode())
    session.units, session.faces = UNITS[extra["units"]], [tuple(f) for f in extra["faces"]]
    session.atom_style, session.triclinic, session.n_types = extra["atom_style"], extra["triclinic"], extra["n_types"]
    session.masses, session.timestep, session.time_offset = extra["masses"], extra["timestep"], extra["time_offset"]
    for name in ("type_of", "charge_of", "molecule_of", "first_low", "first_length", "low"):
        setattr(session, name, np.array(state[name]))
    system.origin, system.constants = np.array(state["origin"]), session.units.constants
    system._set_inverse_masses()
    session.system, session.append_deviation = system, True
    session.restored = {}
    for key, value in state.items():
        kind, *rest = key.split("|")
        if kind == "group":
            session.groups[rest[0]] = Group(value, rest[0])
        elif kind == "fix":
            session.restored.setdefault((rest[0], rest[1].replace(":", "/")), {})[rest[2]] = value
    session.changed()
    session.log(f"Reading restart file ...\n  {system.n_atoms} atoms at step {system.step}")


class RestartWriter(Hook):
    """Writes restart files every so many steps, to one file, one per step (``*``), or two in turn.

    The running job then rebuilds its lists and computes the forces anew, as a restarted one does, so both
    go on with the same numbers.
    """

    several_ranks = True

    def __init__(self, session, every, paths):
        self.session, self.every, self.paths, self.count = session, every, paths, 0

    def due(self, step, first=False):
        return not first and step % self.every == 0

    def __call__(self, simulation):
        path = self.paths[self.count % len(self.paths)]
        if len(self.paths) == 1 and "*" not in path:
            path += ".*"
        self.count += 1
        write_restart(self.session, path)
        simulation.domain.rebuild(simulation.system)
        simulation.compute_forces(rebuilt=True)
