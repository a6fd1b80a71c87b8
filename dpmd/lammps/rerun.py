"""The command rerun: energies and forces of the frames of a text dump."""

import time

import numpy as np

from .datafile import open_text
from .language import ScriptError
from .log import ThermoTable, loop_report


def frames(path):
    """Frames ``(step, low, cell, {column: array})`` of a text dump.  Raises ScriptError where it cannot be read."""
    try:
        with open_text(path) as file:
            yield from _frames(file, path)
    except (ValueError, IndexError) as error:
        if isinstance(error, ScriptError):
            raise
        raise ScriptError(f"{path}: not a text dump of LAMMPS, or cut off ({error})") from error


def _frames(file, path):
    step = n = low = cell = None
    while line := file.readline():
        item = line.strip()
        if item == "ITEM: TIMESTEP":
            step = int(file.readline())
        elif item == "ITEM: NUMBER OF ATOMS":
            n = int(file.readline())
        elif item.startswith("ITEM: BOX BOUNDS"):
            rows = np.array([[float(v) for v in file.readline().split()] for _ in range(3)])
            xy, xz, yz = rows[:, 2] if rows.shape[1] > 2 else (0.0, 0.0, 0.0)
            low, high = rows[:, 0].copy(), rows[:, 1].copy()
            low[0] -= min(0.0, xy, xz, xy + xz)
            high[0] -= max(0.0, xy, xz, xy + xz)
            low[1] -= min(0.0, yz)
            high[1] -= max(0.0, yz)
            cell = np.diag(high - low)
            cell[1, 0], cell[2, 0], cell[2, 1] = xy, xz, yz
        elif item.startswith("ITEM: ATOMS"):
            names = item.split()[2:]
            rows = [file.readline().split() for _ in range(n)]
            if any(len(r) != len(names) for r in rows):
                raise ScriptError(f"{path}: the frame of step {step} is cut off")
            wanted = [k for k, name in enumerate(names) if name != "element"]
            columns = {names[k]: np.array([float(r[k]) for r in rows]) for k in wanted}
            yield step, low, cell, columns


def _read_by_root(processes, path):
    """The frames of :func:`frames` on every rank."""
    reader = iter(frames(path))
    while (frame := processes.on_root(lambda: next(reader, None))) is not None:
        yield frame


def arguments(session, words):
    """Files, options {keyword: number} and columns of ``rerun``."""
    keywords = {"first": 1, "last": 1, "every": 1, "skip": 1, "start": 1, "stop": 1, "pre": 1, "post": 1}
    at = next((k for k, w in enumerate(words) if w in (*keywords, "dump")), len(words))
    files, rest, options = words[:at], words[at:], {}
    while rest and rest[0] != "dump":
        if rest[0] not in keywords or len(rest) < 2:
            raise ScriptError(f"rerun: unexpected {rest[0]!r}; known: {', '.join(keywords)}, dump")
        options[rest[0]], rest = (
            int(session.number(rest[1], "rerun")) if rest[0] not in ("pre", "post") else 0,
            rest[2:],
        )
    wanted = [
        w for w in rest[1:] if w not in ("box", "yes", "no", "replace", "purge", "add", "scaled", "wrapped", "format")
    ]
    if not wanted:
        raise ScriptError("rerun needs 'dump' and the columns to read: rerun FILE dump x y z")
    return files, options, wanted


def rerun(session, words):
    """Command ``rerun``."""
    system = session.require_box()
    files, options, wanted = arguments(session, words)
    simulation = session.prepare()
    table = ThermoTable(session, None, every=1)
    simulation.hooks = [*session.dumps.values(), table]
    table.start(simulation)
    count = taken = 0
    for path in files:
        for step, low, cell, columns in _read_by_root(session.processes, path):
            if step < options.get("first", 0) or step > options.get("last", 2**62):
                continue
            if options.get("every") and step % options["every"]:
                continue
            count += 1
            if options.get("skip") and (count - 1) % options["skip"]:
                continue
            _take_over(session, system, step, low, cell, columns, wanted)
            simulation.compute_forces()
            simulation.call_hooks(first=True)
            taken += 1
    if not taken:
        raise ScriptError(f"rerun: no frame of {', '.join(files)} was asked for")
    loop_report(session, time.perf_counter() - session.loop_begin, taken, session.committee.first.operators.threads)


def _take_over(session, system, step, low, cell, columns, wanted):
    if "id" not in columns:
        raise ScriptError("rerun: the dump has no column id")
    ids = columns["id"].astype(np.int64)
    place = np.argsort(ids)
    at = np.searchsorted(ids[place], system.ids)
    known = np.array_equal(ids[place][np.minimum(at, len(ids) - 1)], system.ids)
    if len(ids) != system.n_atoms or session.processes.largest(int(not known)):
        raise ScriptError(f"rerun: the frame of step {step} has other atoms than the system")
    rows = place[at]
    system.step, system.cell, system.origin = step, cell, low.copy()
    session.low[:] = 0.0
    system.images[:] = 0
    for axis, letter in enumerate("xyz"):
        for name in (letter, letter + "u"):
            if name in columns:
                system.positions[:, axis] = columns[name][rows] - low[axis]
                break
        else:
            if letter + "s" not in columns:
                raise ScriptError(f"rerun: the dump has no column {letter}, {letter}u or {letter}s")
        if "v" + letter in wanted and "v" + letter in columns:
            system.velocities[:, axis] = columns["v" + letter][rows] / session.units.velocity
        if "i" + letter in wanted and "i" + letter in columns:
            system.images[:, axis] = columns["i" + letter][rows]
    if "xs" in columns and "x" not in columns and "xu" not in columns:
        scaled = np.stack([columns[k + "s"][rows] for k in "xyz"], axis=1)
        system.positions = scaled @ cell
    session.schedule.age = None
