"""Everything that can be known to be wrong before step 0."""

from dataclasses import dataclass

import numpy as np
from ase.data import atomic_masses, atomic_numbers

from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.cpu.operators import Tiling

from .errors import InputError
from .units import BAR

#: isotopes that inputs use on purpose (u)
_known_isotopes = {"H": (2.0, 2.014, 3.016)}
#: Å, without a model's own distance: nearer than this is an overlap
_SMALLEST_DISTANCE = 0.3


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
        if run.steps and tau > run.steps * step / 10:
            warnings.append(
                f"relaxation_time_ps = {tau:g} is more than a tenth of the run: the temperature will hardly be "
                "controlled"
            )
    return warnings


def check_halo(halo_precision, decomposition, where):
    """Raises InputError, saying ``where``, if ghosts do not travel like that in this decomposition."""
    if halo_precision == "single" and decomposition == "rank":
        raise InputError(
            f"{where}: halo_precision = \"single\" is for decomposition = \"node\"; set that, or "
            "leave halo_precision out"
        )


def check_timestep(timestep_fs, masses, temperature):
    """Warnings about the time step for these masses (u) and temperature (K)."""
    warnings = []
    if timestep_fs > 2:
        warnings.append(f"timestep_fs = {timestep_fs:g} is above 2 fs, which few systems bear")
    elif timestep_fs > 0.5 and masses.min() < 1.5:
        warnings.append(
            f"timestep_fs = {timestep_fs:g} is above 0.5 fs with atoms of mass {masses.min():.3g} u: bonds to hydrogen "
            "vibrate in 9 fs; use 0.5, or heavier hydrogen (masses_u)"
        )
    if temperature is not None and temperature > 5000:
        warnings.append(f"the temperature, {temperature:g} K, is above 5000 K: is that meant?")
    return warnings


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
    """Neighbours of each type within the model's cutoff, over all atoms of the system.

    most, mean : per atom, (T,); overflowing : (T,) atoms with more than the model's ``sel``.
    """

    most: np.ndarray
    mean: np.ndarray
    overflowing: np.ndarray


def neighbor_facts(domain, system, model):
    """What the list tells: ``(nearest, counts)``.  Collective.

    nearest : {(name, name): (distance Å, id, id)} per pair of elements, in the whole system;
    counts : :class:`Neighborhood`.
    """
    first, count = domain.neighbors.first, domain.neighbors.count.astype(np.int64)
    counts, nearest = np.zeros((len(system), model.n_types), np.int64), {}
    names = system.type_names
    for begin in range(0, len(system), 20000):  # in pieces, so that memory stays bounded
        rows = np.arange(begin, min(begin + 20000, len(system)))
        centre = np.repeat(rows, count[rows])
        slot = np.arange(len(centre)) - np.repeat(np.cumsum(count[rows]) - count[rows], count[rows])
        neighbor = domain.neighbors.indices[np.repeat(first[rows], count[rows]) + slot]
        distance = np.linalg.norm(domain.positions[neighbor] - domain.positions[centre], axis=1)
        near = distance < model.cutoff
        centre, neighbor, distance = centre[near], neighbor[near], distance[near]
        np.add.at(counts, (centre, domain.types[neighbor]), 1)
        pair = domain.types[centre] * model.n_types + domain.types[neighbor]
        for p in np.unique(pair):
            chosen = np.flatnonzero(pair == p)
            k = chosen[np.argmin(distance[chosen])]
            a, b = sorted(divmod(int(p), model.n_types))
            found = (float(distance[k]), int(domain.ids[centre[k]]), int(domain.ids[neighbor[k]]))
            key = (names[a], names[b])
            nearest[key] = min(nearest.get(key, found), found)
    for of_rank in system.processes.collect(nearest) or []:
        nearest |= {key: min(nearest.get(key, found), found) for key, found in of_rank.items()}
    found = Neighborhood(
        system.processes.largest(counts.max(axis=0, initial=0)),
        system.sum(counts.sum(axis=0)) / max(system.n_atoms, 1),
        system.sum((counts > model.descriptor.sel).sum(axis=0)),
    )
    return system.processes.broadcast(nearest), found


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
            f"{where}: atoms overlap: {'; '.join(overlaps[:5])}. Nothing below {limit:.2f} Å is credible for this "
            "model. Remove duplicate atoms, check units and the cell, or relax the structure first"
        )
    return warnings


def check_selection(counts, model, on_overflow, where):
    """Rows (type, sel, most neighbours) for the log, and warnings about overflow."""
    rows, warnings = [("type", "neighbours", "sel")], []
    facts = zip(model.type_map, model.descriptor.sel, counts.most, counts.mean, counts.overflowing, strict=True)
    for name, sel, most, mean, over in facts:
        rows.append((name, f"{mean:.1f} on average, {most} at most", str(sel)))
        if over and sel > 0:
            text = (
                f"{over} atoms have more {name} neighbours (up to {most}) than the model's sel ({sel}): the nearest "
                f"{sel} count, as in DeePMD-kit, and the energy is not smooth there"
            )
            if on_overflow == "error":
                raise InputError(f'{where}: {text}. Use a model with larger sel, or on_overflow = "warn"')
            warnings.append(text)
    return rows, warnings


def predicted_memory(in_use, n_all, list_neighbors, model, precision, threads):
    """Bytes that the run will take at its peak.

    in_use : bytes at present, with structure, lists and tables in place; n_all : atoms with ghosts;
    list_neighbors : per atom, within cutoff and skin.  To come are the scratch of the operators
    (pairs, descriptors and fitting networks of a block, per thread), the threads' force buffers
    and compiled code.
    """
    item, d = 8 if precision == "double" else 4, model.descriptor
    fitting = sum(2 * layer.n_out for layer in model.fitting.networks[0].layers)
    block = Tiling().atoms * (list_neighbors * (14 * item + 12) + item * (8 * d.n_embedding + 2 * d.n_out + fitting))
    return int(in_use + threads * (block + 24 * n_all) + 60e6)


#: relative changes of volume at which precision is checked
_VOLUMES = (-0.03, 0.0, 0.03)
#: what a precision mode may be wrong by: eV/atom, bar, and of forces a part of their rms or eV/Å
_ENERGY_LIMIT, _PRESSURE_LIMIT, _FORCE_LIMITS = 1e-3, 50.0, (0.01, 1e-3)
#: eV/Å, rms: forces below are zero, as in perfect crystals, and nothing is a part of them
_NO_FORCE = 1e-5


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
            energy, pressure, largest, rms, rms_force = error.values()
            rows.append((
                mode, f"{100 * change:+.0f} %" if change else "as it is", f"{energy:.1e} eV/atom",
                f"{pressure:.2g} bar" if pressure == pressure else "-", f"{largest:.1e} eV/Å",
                f"{rms / rms_force:.1e}" if rms_force > _NO_FORCE else "- (no forces)",
            ))  # fmt: skip
    energy, pressure, largest, rms, rms_force = np.array([list(error.values()) for error in errors[mode]]).T
    relative, absolute = _FORCE_LIMITS
    fine = (
        energy.max() <= _ENERGY_LIMIT
        and not pressure.max() > _PRESSURE_LIMIT
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
            f" (limits: {1e3 * _ENERGY_LIMIT:g} meV/atom, {_PRESSURE_LIMIT:g} bar, rms error of forces "
            f"{100 * relative:g} % of their rms or {absolute:g} eV/Å). Use --precision {better}"
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
    ``pressure`` bar (NaN where not periodic), ``force_rms``, ``force_max`` eV/Å, ``rms_force`` eV/Å.
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
    }
