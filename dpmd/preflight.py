"""Everything that can be known to be wrong before step 0, of input files, LAMMPS scripts and Python alike.

Checks return warnings, as texts, and raise InputError for what cannot work; those of atoms take a system and
the lists of a domain.  Systems of more than ``SAMPLE`` atoms are checked by a :func:`sample` where nothing is run.
"""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase.data import atomic_masses, atomic_numbers, covalent_radii

from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.cpu.operators import Tiling
from dpmd.kernels.neighbors import survey
from dpmd.kernels.threads import usable_cores
from dpmd.perfmodel.errors import PerformanceModelError
from dpmd.perfmodel.prediction import predict_here
from dpmd.perfmodel.sizes import from_model
from dpmd.perfmodel.systems import PhysicalSystem, closed_cell, open_directions

from .errors import InputError
from .options import OF_RANKS, RUN_OPTIONS, SECTIONS
from .simulation import Hook
from .units import BAR

#: isotopes that inputs use on purpose (u)
_known_isotopes = {"H": (2.0, 2.014, 3.016)}
#: Å, without a model's own distance: nearer than this is an overlap
_SMALLEST_DISTANCE = 0.3
#: atoms that a check looks at, where there are more and nothing is run; and for the error of a precision
SAMPLE, SAMPLE_OF_PRECISION = 30_000, 3_000
#: atoms that any machine holds
FEW = 10_000
#: nearest neighbours in condensed matter are 0.8 to 1.3 times the sum of their covalent radii apart; those of noble
#: gases are not
_CLOSE, _WIDE, _NOBLE = 0.65, 1.6, {"He", "Ne", "Ar", "Kr", "Xe", "Rn"}
#: g/cm^3; osmium has 22.6
_DENSE = 30.0
#: bar; nothing holds together beyond the first, and only planets have the second
_TENSION, _PRESSURE = 3e5, 1e6
#: what lengths may have been meant in
_UNITS = "positions and cell are read in Å (1 nm = 10 Å, 1 Bohr = 0.529 Å)"


_DEFAULT_TAU = next(o.default for s in SECTIONS for o in s.options if o.name == "relaxation_time_ps")


def check_times(settings):
    """Warnings about time step and thermostat.  Raises InputError for impossible combinations."""
    warnings, run, ensemble = [], settings.run, settings.ensemble
    if ensemble.type in ("npt", "nph"):
        if ensemble.pressure_bar is None:
            raise InputError(f"{ensemble.where()}: {ensemble.type} needs pressure_bar in [ensemble]")
        if ensemble.pressure_relaxation_time_ps < 100 * run.timestep_fs * 1e-3:
            warnings.append(
                f"pressure_relaxation_time_ps = {ensemble.pressure_relaxation_time_ps:g} is less than 100 time steps: "
                "the cell may ring; 1000 steps are usual"
            )
    if ensemble.type in ("nvt", "npt"):
        if ensemble.temperature_K is None:
            raise InputError(f"{ensemble.where()}: {ensemble.type} needs temperature_K in [ensemble]")
        if min(ensemble.temperature_K) <= 0:
            raise InputError(f"{ensemble.where('temperature_K')}: a thermostat needs a temperature above 0 K")
        tau, step = ensemble.relaxation_time_ps, run.timestep_fs * 1e-3
        if tau < step:
            raise InputError(
                f"{ensemble.where('relaxation_time_ps')}: relaxation_time_ps = {tau:g} is shorter than the time step "
                f"({step:g} ps)"
            )
        if tau < 10 * step:
            warnings.append(
                f"relaxation_time_ps = {tau:g} is less than 10 time steps: the thermostat will distort the dynamics"
            )
        if run.steps and run.steps * step / 10 < tau != _DEFAULT_TAU:  # nobody chose the default
            warnings.append(
                f"relaxation_time_ps = {tau:g} is more than a tenth of the run: the temperature will hardly be "
                "controlled"
            )
    return warnings


def check_options(run, where):
    """Raises InputError for options of [run] of which one would do nothing beside another.

    run : namespace with those options; where : function: name of an option -> where it stands.
    """
    if run.rank is not None and (run.no_low_rank or run.no_tabulate):
        without = "no_low_rank" if run.no_low_rank else "no_tabulate"
        raise InputError(f"{where('rank')}: rank = {run.rank} is of low-rank tables, and {without} asks for none; "
                         "leave one of them out")  # fmt: skip
    if run.decomposition == "rank":
        if run.halo_precision == "single":
            raise InputError(
                f'{where("halo_precision")}: halo_precision = "single" is for decomposition = "node"; set that, or '
                "leave halo_precision out"
            )
        if run.ranks_per_node is not None:
            raise InputError(
                f'{where("ranks_per_node")}: ranks_per_node = {run.ranks_per_node} is for decomposition = "node"; with '
                '"rank" each rank has a box of its own. Set that, or leave ranks_per_node out'
            )


def check_ranks(run, processes, threads):
    """Warnings about ranks, threads and cores, and options that nothing uses here.  Collective.

    run : namespace with the options of [run]; threads : of each rank.
    """
    warnings = []
    if processes.size == 1:
        unused = [f"{o.name} = {getattr(run, o.name)!r}" for o in RUN_OPTIONS
                  if o.name in OF_RANKS and getattr(run, o.name) != o.default]  # fmt: skip
        if unused:
            warnings.append(f"{', '.join(unused)}: for several ranks (mpiexec -n N md-run ...), and this is one")
    machines = {}  # ranks may be bound to cores of their own
    for machine, cores in processes.broadcast(processes.collect((platform.node(), usable_cores()))):
        machines.setdefault(machine, []).append(cores)
    for of_ranks in machines.values():
        ranks, cores = len(of_ranks), len(set().union(*of_ranks))
        if ranks * threads > cores:
            who = f"{threads} threads" if ranks == 1 else f"{ranks} ranks of {threads} thread{'s' * (threads > 1)}"
            remedy = f"{cores} {'threads' if ranks == 1 else 'ranks'} would be faster"
            warnings.append(f"{who} share {cores} core{'s' * (cores > 1)} and wait for one another: {remedy}")
            break
    return warnings


def check_timestep(timestep_fs, masses, temperature=None, given=None):
    """Warnings about the time step for these masses (u) and temperature (K).

    given : how the input says it, if not as ``timestep_fs``.
    """
    warnings, given = [], given or f"timestep_fs = {timestep_fs:g}"
    lightest = masses.min(initial=np.inf)
    # periods of vibrations go with the root of the mass; carbon bears 2 fs
    most = 2.0 if lightest < 4 else float(np.clip(2 * np.sqrt(lightest / 12), 2, 5))
    if timestep_fs < 0.05:
        meant = f"; was {1e3 * timestep_fs:g} fs meant (fs, not ps)?" if 0.05 <= 1e3 * timestep_fs <= 20 else ""
        warnings.append(f"{given} is below 0.05 fs, far shorter than vibrations of atoms need{meant}")
    elif timestep_fs > most:
        bear = "with hydrogen, whose bonds vibrate in 9 fs" if lightest < 4 else f"with atoms of mass {lightest:.3g} u"
        meant = f"; was {1e-3 * timestep_fs:g} fs meant (ps, not fs)?" if 0.05 <= 1e-3 * timestep_fs <= 20 else ""
        warnings.append(f"{given} is above {most:.2g} fs, which few systems bear {bear}{meant}")
    elif timestep_fs > 0.5 and lightest < 1.5:
        warnings.append(
            f"{given} is above 0.5 fs with atoms of mass {lightest:.3g} u: bonds to hydrogen "
            "vibrate in 9 fs; use 0.5, or heavier hydrogen (masses_u)"
        )
    if temperature is not None and temperature > 5000:
        warnings.append(f"the temperature, {temperature:g} K, is above 5000 K: is that meant?")
    return warnings


def check_integrators(fixes, system):
    """A warning, as LAMMPS has it, if several of the fixes (``{name: Fix}``) move the same atoms.  Collective."""
    moving = {name: fix for name, fix in fixes.items() if fix.integrates}
    if len(moving) < 2:
        return []
    masks = [np.full(len(system), True) if f.group is None else f.group.mask(system) for f in moving.values()]
    several = np.sum(masks, axis=0) > 1
    twice, *of_each = system.sum(np.array([several.sum(), *((mask & several).sum() for mask in masks)]))
    if not twice:
        return []
    by = [name for name, n in zip(moving, of_each, strict=True) if n]
    return [f"One or more atoms are time integrated more than once: {twice} atoms, by fixes {', '.join(by)}"]


def type_table(system):
    """Rows (type, element, mass, atoms) for the log, and warnings about odd masses."""
    rows, warnings = [("type", "element", "mass/u", "atoms")], []
    for t, name in enumerate(system.type_names):
        chosen = system.types == t
        masses = np.unique(system.masses[chosen])
        text = "/".join(f"{m:.4g}" for m in masses[:3]) if len(masses) else "-"
        rows.append((str(t), name, text, str(int(chosen.sum()))))
        if name in atomic_numbers:
            usual = atomic_masses[atomic_numbers[name]]
            for mass in masses:
                if abs(mass - usual) > 0.5 and not any(abs(mass - m) < 0.05 for m in _known_isotopes.get(name, ())):
                    warnings.append(f"type {t} ({name}) has mass {mass:.4g} u, the element {usual:.4g} u")
    return rows, warnings


@dataclass
class Neighborhood:
    """Neighbours within the model's cutoff, over the atoms that were looked at.

    n_atoms : how many were; most, mean : neighbours of each type per atom, (T,); overflowing : (T,) atoms with
    more than the model's ``sel``; alone : atoms without any neighbour.
    """

    n_atoms: int
    most: np.ndarray
    mean: np.ndarray
    overflowing: np.ndarray
    alone: int


def neighbor_facts(domain, system, model, inner=None):
    """What the list tells: ``(nearest, counts)``.  Collective.

    inner : ids of the atoms to look at (see :func:`sample`), None for all.
    nearest : {(name, name): (distance Å, id, id)} per pair of elements, in the whole system;
    counts : :class:`Neighborhood`.
    """
    lists, n = domain.neighbors, len(system)
    chosen = system.types >= 0 if inner is None else np.isin(system.ids, inner)
    distances, pairs, most, total, overflowing, alone = survey(
        domain.positions, domain.types, chosen, lists.first, lists.count, lists.indices, model.cutoff,
        np.array(model.descriptor.sel, np.int64),
    )  # fmt: skip
    nearest, names = {}, system.type_names
    for a, b in zip(*np.nonzero(np.isfinite(distances)), strict=True):
        i, j = sorted(int(domain.ids[k]) for k in pairs[a, b])
        key, found = (names[min(a, b)], names[max(a, b)]), (float(distances[a, b]), i, j)
        nearest[key] = min(nearest.get(key, found), found)
    for of_rank in system.processes.collect(nearest) or []:
        nearest |= {key: min(nearest.get(key, found), found) for key, found in of_rank.items()}
    n = system.sum(int(np.count_nonzero(chosen)))
    found = Neighborhood(
        n, system.processes.largest(most), system.sum(total) / max(n, 1), system.sum(overflowing), system.sum(alone)
    )
    return system.processes.broadcast(nearest), found


def sample(system, reach, most):
    """About ``most`` atoms of a compact part of a large system on one process, and those around them.

    reach : Å, cutoff and skin.  Returns ``(system, ids)``: the part, open where it was cut, and the ids of the atoms
    whose neighbours are complete in it.
    """
    inverse = np.linalg.inv(system.cell)
    place = system.positions @ inverse
    low, length = np.zeros(3), np.ones(3)
    open_ = ~system.periodic
    low[open_], length[open_] = place[:, open_].min(axis=0), np.ptp(place[:, open_], axis=0) + 1e-9
    halo = reach * np.linalg.norm(inverse, axis=0)
    # about an atom in the middle of the list, for there may be vacuum
    middle = place[len(place) // 2] - low
    size, step = (most / len(system)) ** (1 / 3), 1.5
    for _ in range(40):
        begin = np.where(open_, np.clip(middle - size * length / 2, 0, (1 - size) * length), middle - size * length / 2)
        offset = place - low - begin
        offset[:, system.periodic] %= 1.0
        inside = ((offset >= 0) & (offset < size * length)).all(axis=1)
        n = int(inside.sum())
        if 0.5 * most <= n <= most or (n < most and size >= 1):
            break
        if n > most:
            size /= step
            step = 1 + (step - 1) / 2
        else:
            size = min(1.0, size * step)
    whole = system.periodic & (size + 2 * halo >= 1)  # no cut along these
    around = offset.copy()
    wrapped = system.periodic & ~whole
    around[:, wrapped] = (around[:, wrapped] + halo[wrapped]) % 1.0 - halo[wrapped]
    keep = (whole | ((around >= -halo) & (around < size * length + halo))).all(axis=1)
    records = system.records()[keep]
    records["positions"] = around[keep] @ system.cell
    part = system.with_atoms(records, system.processes, n_atoms=len(records), periodic=whole)
    return part, system.ids[inside & keep]


def _at(where):
    return f"{where}: " if where else ""


def check_distances(nearest, model, where):
    """Warnings about short distances.  Raises InputError where atoms overlap."""
    known = model.source.min_neighbor_distance
    limit = 0.5 * known if known else _SMALLEST_DISTANCE
    warnings, overlaps = [], []
    for (a, b), (distance, i, j) in sorted(nearest.items(), key=lambda item: item[1]):
        if distance < limit:
            overlaps.append(f"{a}-{b} {distance:.3f} Å (atoms {i} and {j})")
        elif known and distance < 0.95 * known:
            warnings.append(
                f"{a}-{b}: atoms {i} and {j} are {distance:.3f} Å apart; the shortest distance of the model's training "
                f"data is {known:.3f} Å, so forces there are extrapolated"
            )
    if overlaps:
        raise InputError(
            f"{_at(where)}atoms overlap: {'; '.join(overlaps[:5])}. Nothing below {limit:.2f} Å is credible for this "
            f"model. Remove duplicate atoms, check units ({_UNITS}) and the cell, or relax the structure first"
        )
    return warnings


def check_units(nearest, counts, system, model):
    """One warning at most: distances or a density that ask whether lengths are in Å.  Collective."""
    if counts.n_atoms > 1 and counts.alone == counts.n_atoms:
        return [f"no atom has a neighbour within the model's cutoff, {model.cutoff:g} Å: {_UNITS}"]
    ratios = [(d / sum(covalent_radii[atomic_numbers[n]] for n in pair), d, pair) for pair, (d, _, _) in nearest.items()
              if set(pair) <= set(atomic_numbers) - _NOBLE]  # fmt: skip
    ratio, distance, pair = min(ratios, default=(1.0, 0.0, ("", "")))
    if not _CLOSE < ratio < _WIDE:
        return [
            f"the nearest atoms, {pair[0]}-{pair[1]}, are {distance:.3f} Å apart, {ratio:.2g} times the sum of their "
            f"covalent radii: {_UNITS}"
        ]
    if system.periodic.all():
        density = system.sum(system.masses.sum()) / abs(np.linalg.det(system.cell)) * 1.66054
        if density > _DENSE:
            return [f"the density is {density:.3g} g/cm^3: {_UNITS}"]
    return []


def check_pressure(pressure_bar, target=0.0):
    """A warning about a pressure (bar) that tells of wrong units or elements; target : bar, that is asked for."""
    if -_TENSION <= pressure_bar <= max(_PRESSURE, 3 * target) or not np.isfinite(pressure_bar):
        return []
    return [
        f"the pressure at the start is {pressure_bar * 1e-6:.2f} Mbar: is each atom type the element that it should "
        "be, and are positions and cell in Å?"
    ]


def pressure(potential, system, domain, parameters):
    """bar, of a periodic system with lists in ``domain``; one evaluation.  Collective."""
    domain.neighbors.fetch()
    result = potential.operators.evaluate(
        domain.positions, domain.types, domain.neighbors, np.zeros_like(domain.forces), **parameters
    )
    trace = np.trace(system.sum(result.virials[0])) + 2 * system.kinetic_energy
    return trace / 3 / system.volume * system.constants.pressure


class FirstPressure(Hook):
    """Warns of the pressure once forces are known.

    warn : function of a text; target : bar, that the run is to have.
    """

    several_ranks = True

    def __init__(self, warn, target=0.0):
        self.warn, self.target = warn, target

    def due(self, step, first=False):
        return False

    def start(self, simulation):
        for text in check_pressure(simulation.observables()["pressure_bar"], self.target):
            self.warn(text)


def shortest_text(nearest, model):
    """A line for the log about the nearest two atoms, or an empty text."""
    if not nearest:
        return ""
    (a, b), (distance, i, j) = min(nearest.items(), key=lambda item: item[1])
    known = model.source.min_neighbor_distance
    return f"{a}-{b} {distance:.3f} Å (atoms {i} and {j})" + (f"; in the training data {known:.3f} Å" if known else "")


def check_selection(counts, model, on_overflow, where):
    """Rows (type, sel, most neighbours) for the log, and warnings about overflow."""
    rows, warnings = [("type", "neighbours", "sel")], []
    facts = zip(model.type_map, model.descriptor.sel, counts.most, counts.mean, counts.overflowing, strict=True)
    for name, sel, most, mean, over in facts:
        rows.append((name, f"{mean:.1f} on average, {most} at most", str(sel)))
        if over and sel > 0:
            who = over if over < counts.n_atoms else f"all {over}"
            text = (
                f"{who} atoms have more {name} neighbours (up to {most}) than the model's sel ({sel}): the nearest "
                f"{sel} count, as in DeePMD-kit, and the energy is not smooth there"
            )
            if on_overflow == "error":
                raise InputError(f'{_at(where)}{text}. Use a model with larger sel, or on_overflow = "warn"')
            warnings.append(text)
    return rows, warnings


def list_neighbors(positions, cell, periodic, reach):
    """Estimated neighbours of an atom within ``reach`` (Å), from the density around the atoms.

    positions : (n, 3) Å, of a part of the system or of all; cell : (3, 3) Å.
    """
    inverse = np.linalg.inv(cell)
    place, width = positions @ inverse, reach * np.linalg.norm(inverse, axis=0)
    place[:, periodic] %= 1.0
    low = np.where(periodic, 0.0, place.min(axis=0))
    length = np.where(periodic, 1.0, np.maximum(np.ptp(place, axis=0), width))
    bins = np.clip(length / width, 1, 1000).astype(np.int64)
    of_atoms = np.minimum(((place - low) / length * bins).astype(np.int64), bins - 1) @ (bins[1] * bins[2], bins[2], 1)
    _, own, held = np.unique(of_atoms, return_inverse=True, return_counts=True)
    volume = np.prod(length / bins) * abs(np.linalg.det(cell))
    return min(held[own].mean() / volume * 4 / 3 * np.pi * reach**3, 1e5)


def predicted_memory(n_atoms, neighbors, cell, periodic, model, skin, precision, threads, ranks=1, whole=1):
    """Bytes that all ranks of a machine will take at a run's peak, counted from the number of its atoms.

    neighbors : per atom, within cutoff and skin; threads : of each rank; ranks : of this machine; whole : how many
    of them hold all atoms.  Counted are the arrays of atoms, twice (a copy is kept of the last good frame), those of
    ghosts, lists, a buffer of forces for each thread, and the operators' scratch (pairs, descriptors and fitting
    networks of a block, per thread); programs and compiled code, and the constants, are measured.
    """
    item, d = 8 if precision == "double" else 4, model.descriptor
    fitting = sum(2 * layer.n_out for layer in model.fitting.networks[0].layers)
    block = Tiling().atoms * (neighbors * (14 * item + 12) + item * (8 * d.n_embedding + 2 * d.n_out + fitting))
    halo = (model.cutoff + skin) * np.linalg.norm(np.linalg.inv(cell), axis=0) * periodic
    with_ghosts = n_atoms * np.prod(1 + 2 * halo)
    of_atoms = n_atoms * (BYTES_PER_ATOM * whole + 4.4 * neighbors) + with_ghosts * (24 * (ranks * threads + 2) + 12)
    return int(ranks * (_BYTES_OF_A_RANK + threads * block) + of_atoms)


#: arrays of atoms; of a rank before there are any: measured
BYTES_PER_ATOM, _BYTES_OF_A_RANK = 600, 320e6


def free_memory():
    """Bytes of this machine that a run can still have; inf where the system does not tell."""
    free = np.inf
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = 1024 * int(line.split()[1])
    except OSError:
        with suppress(AttributeError, OSError, ValueError):
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            # what the limit counts as used is partly cache, which gives way
            free = min(free, max(int(Path(limit).read_text()) - int(Path(used).read_text()) // 2, 0))
        except (OSError, ValueError):
            continue
    return free


def check_memory(needed, n_atoms, where, ranks=1):
    """Raises InputError, saying ``where``, if so many bytes are not free on this machine."""
    free = free_memory()
    if needed > free:
        of_ranks = f" by {ranks} ranks" if ranks > 1 else ""
        raise InputError(
            f"{where}: {n_atoms} atoms need about {needed / 2**30:.3g} GiB of memory{of_ranks}, and this machine has "
            f"{free / 2**30:.3g} GiB free. Use fewer atoms, a smaller skin, fewer threads, or more machines (mpiexec)"
        )


def expected_speed(potential, system, neighbors, timestep_fs, skin, ensemble="nve", ranks=None):
    """The speed to be expected on this machine by the model behind ``dp-perf``, or None where it cannot tell.

    neighbors : mean number within the cutoff; timestep_fs : fs; skin : Å; ranks : default those of the system.
    Returns a :class:`~dpmd.perfmodel.prediction.Prediction`.  Collective.
    """
    processes = system.processes
    along = system.positions @ np.linalg.inv(open_directions(system.cell, system.periodic))
    extents = sum(processes.largest(x.max(axis=0, initial=-np.inf)) for x in (along, -along))
    if potential.device != "cpu":
        return None  # the machine that is known is this one's CPU
    cell = closed_cell(system.cell, system.periodic, extents, potential.model.cutoff + skin)
    try:
        physical = PhysicalSystem(
            "this system", system.n_atoms, system.n_atoms / abs(np.linalg.det(cell)), tuple(map(tuple, cell)),
            {"nph": "npt"}.get(ensemble, ensemble), timestep_fs, neighbors,
        )  # fmt: skip
        sizes = from_model(potential.model, None, potential.precision, neighbors or None)
        return predict_here(
            sizes, physical, ranks_per_node=ranks or processes.size, threads_per_rank=potential.operators.threads,
            precision=potential.precision, skin=skin,
        )  # fmt: skip
    except PerformanceModelError:
        return None  # nothing that a run depends on


def speed_text(prediction):
    """A prediction for this machine, for the log."""
    how = "measured machine" if prediction.quality == "measured" else "a guess until 'dp-perf measure' has run"
    return f"{prediction.ns_per_day:.3g} ns/day ({how})"


#: relative changes of volume at which precision is checked
_VOLUMES = (-0.03, 0.0, 0.03)
#: what a precision mode may be wrong by: eV/atom, bar, and of forces a part of their rms or eV/Å
_ENERGY_LIMIT, _PRESSURE_LIMIT, _FORCE_LIMITS = 1e-3, 50.0, (0.01, 1e-3)
#: eV/Å, rms: forces below are zero, as in perfect crystals, and nothing is a part of them
_NO_FORCE = 1e-5
#: of a pressure beyond 50 kbar, what a mode may be wrong by
_PRESSURE_PART = 1e-3


def print_precision(log, potential, domain, system, parameters):
    """Print :func:`precision_report`, as a warning where the precision does not suffice.  Collective."""
    title, rows, verdict, fine = precision_report(potential, domain, system, parameters)
    log(title)
    log.table(rows, indent=14)
    if fine:
        log(f"              {verdict}")
    else:
        log.warning(verdict)


def precision_report(potential, domain, system, parameters):
    """What tables change, and what the chosen precision changes, against double and the file's networks.

    On the structure in ``domain`` and on copies of it that are compressed and stretched, where errors of
    energy and pressure show that forces do not tell: in a perfect crystal there are none.  ``domain`` has the
    lists of ``system`` at the end.  Collective.
    Returns ``(title, rows of a table, verdict, whether it is fine)``.
    """
    loaded, operators = potential.loaded, potential.operators
    modes = {f"{potential.precision}, as in this run": operators}
    if potential.precision != "double" and not loaded.exact.compressed:
        modes = {"double, tables": CpuOperators(loaded.model, "double", operators.threads), **modes}
    reference = CpuOperators(loaded.exact, "double", operators.threads)
    atomic = np.asarray(parameters.get("atomic_parameters", 0.0))
    errors = {mode: [] for mode in modes}
    for change in _VOLUMES:
        copy = system.with_atoms(system.records(), system.processes)
        if atomic.ndim == 2:
            copy.carried["atomic_parameters"] = atomic
        copy.map_cell(copy.cell * (1 + change) ** (1 / 3))
        domain.rebuild(copy)
        if atomic.ndim == 2:
            parameters = parameters | {"atomic_parameters": copy.carried["atomic_parameters"]}
        true = _evaluate(reference, domain, copy, parameters)
        for mode, each in modes.items():
            errors[mode].append(_errors(_evaluate(each, domain, copy, parameters), true, copy))
    domain.rebuild(system)
    rows = [("mode", "volume", "energy error", "pressure error", "largest force error", "rms error / rms force")]
    for mode, found in errors.items():
        for change, error in zip(_VOLUMES, found, strict=True):
            energy, pressure, largest, rms, rms_force, _ = error.values()
            rows.append((
                mode, f"{100 * change:+.0f} %" if change else "as it is", f"{energy:.1e} eV/atom",
                f"{pressure:.2g} bar" if pressure == pressure else "-", f"{largest:.1e} eV/Å",
                f"{rms / rms_force:.1e}" if rms_force > _NO_FORCE else "- (no forces)",
            ))  # fmt: skip
    energy, pressure, largest, rms, rms_force, of = np.array([list(error.values()) for error in errors[mode]]).T
    relative, absolute = _FORCE_LIMITS
    fine = (
        energy.max() <= _ENERGY_LIMIT
        and not (pressure > np.maximum(_PRESSURE_LIMIT, _PRESSURE_PART * of)).any()
        and (rms <= np.maximum(relative * rms_force, absolute)).all()
    )
    what = "the file's tables" if loaded.exact.compressed else "exact networks"
    title = f"  precision   against {what} in double (rms force {rms_force[_VOLUMES.index(0.0)]:.3f} eV/Å):"
    verdict = (
        f"precision {potential.precision} ({operators.products}) is {'fine' if fine else 'NOT fine'} here: energies "
        f"within {1e3 * energy.max():.2g} meV/atom"
        + (f", pressures within {pressure.max():.2g} bar" if pressure.max() == pressure.max() else "")
        + f", forces within {largest.max():.1e} eV/Å of double"
    )
    if not fine:
        better = "mixed" if potential.precision == "half" else "double"
        verdict += (
            f" (limits: {1e3 * _ENERGY_LIMIT:g} meV/atom, {_PRESSURE_LIMIT:g} bar or {100 * _PRESSURE_PART:g} %, rms "
            f"error of forces {100 * relative:g} % of their rms or {absolute:g} eV/Å). Use --precision {better}"
        )
    return title, rows, verdict, fine


def _evaluate(operators, domain, system, parameters):
    """Energy (eV), virial (3, 3) of the whole system and forces (n, 3) of this process's atoms."""
    forces = np.zeros_like(domain.forces)
    result = operators.evaluate(domain.positions, domain.types, domain.neighbors, forces, **parameters)
    return system.sum(result.energies[0]), system.sum(result.virials[0]), domain.fold(forces).copy()


def force_error(model, operators, domain, system, parameters):
    """Errors of operators on the structure in ``domain`` against ``model`` in double precision.

    model : as its file has it, exact networks or own tables.  Collective.  Returns a dict: ``energy`` eV/atom,
    ``pressure`` bar (NaN where not periodic), ``force_rms``, ``force_max`` eV/Å, and of the true values
    ``rms_force`` eV/Å and ``true_pressure`` bar.
    """
    true = _evaluate(CpuOperators(model, "double", operators.threads), domain, system, parameters)
    return _errors(_evaluate(operators, domain, system, parameters), true, system)


def _errors(found, true, system):
    """See :func:`force_error`; found, true : of :func:`_evaluate`."""
    (e1, w1, f1), (e0, w0, f0) = found, true
    n, difference, pressure = system.n_atoms, f1 - f0, np.nan
    if system.periodic.all():
        pressure = abs(np.trace(w1 - w0)) / 3 / system.volume * BAR

    def rms(forces):
        return float(np.sqrt(system.sum((forces**2).sum()) / (3 * n)))

    return {
        "energy": abs(float(e1 - e0)) / n,
        "pressure": pressure,
        "force_max": float(system.processes.largest(np.abs(difference).max(initial=0.0))),
        "force_rms": rms(difference),
        "rms_force": rms(f0),
        "true_pressure": abs(np.trace(w0)) / 3 / system.volume * BAR if system.periodic.all() else np.nan,
    }
