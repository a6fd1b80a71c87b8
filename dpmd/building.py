"""A simulation from ASE Atoms, in one call."""

import warnings

from dpmd.models import ModelError

from . import ensembles
from .devices import DeviceRun, device_of_rank
from .errors import InputError
from .inputfile import check_section
from .options import SECTIONS
from .potential import Potential, check_same_models
from .preflight import check_timestep
from .safety import OverflowWarning, Safety
from .simulation import Simulation


def _ensemble_settings(options):
    """Validated ``[ensemble]`` settings from keywords of the same names."""
    section = next(s for s in SECTIONS if s.name == "ensemble")
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    settings = check_section(section, given, 0, lambda key=None: f"ensemble option {key}" if key else "ensemble")
    if settings.type in ("npt", "nph") and settings.pressure_bar is None:
        raise InputError(f"ensemble {settings.type!r} needs a pressure: pressure_bar=1")
    if settings.type in ("nvt", "npt") and settings.temperature_K is None:
        raise InputError(f"ensemble {settings.type!r} needs a temperature: temperature_K=300")
    return settings


def simulation(
    atoms,
    model,
    *,
    ensemble="nve",
    timestep_fs=0.5,
    initial_temperature_K=None,
    seed=1,
    steps=0,
    device=None,
    precision=None,
    threads=None,
    skin=None,
    tabulate=None,
    low_rank=None,
    rank=None,
    fparam=None,
    aparam=None,
    on_overflow=None,
    hooks=(),
    safe=True,
    max_displacement=None,
    processes=None,
    decomposition=None,
    balance=None,
    halo_precision=None,
    **ensemble_options,
):
    """A :class:`~dpmd.simulation.Simulation`, ready to run.

    atoms : ASE Atoms, which are not changed; model : path of a model file, or a
    :class:`~dpmd.potential.Potential` to share.
    ensemble : type, as ``[ensemble] type`` of an input file; further keywords are that section's keys
    (``temperature_K=330``, ``thermostat="langevin"``, ...; ``md-run --help-input`` explains them).
    timestep_fs : fs; steps : over which a ramp of the temperature extends.
    initial_temperature_K : K, draw velocities; default: the atoms' own or, if they have none, the
    ensemble's temperature.  seed : of velocities and thermostats.
    device, precision (``"mixed"`` by default), threads, skin, tabulate, low_rank, rank : as for Potential, and refused
    beside one, which has its own; fparam, aparam : for models that have them.
    on_overflow : ``"warn"`` or ``"error"``, when an atom has more neighbours than the model's sel.
    hooks : :class:`~dpmd.simulation.Hook` objects; safe : stop with the names of the worst atoms when
    a step moves one by more than max_displacement (1 Å by default).
    processes : ranks that share the work, e.g. ``dpmd.parallel.Processes(MPI.COMM_WORLD)``; all of them call
    this with the same atoms and model, and then the same methods.  :meth:`~dpmd.simulation.Simulation.every`
    tells what callbacks see.  decomposition : ``"node"`` or ``"rank"`` (then each rank must be a node); balance,
    halo_precision : as in [run] of an input file; all three only with ``processes``.

    Raises InputError for whatever does not fit.
    """
    settings = _ensemble_settings({"type": ensemble, **ensemble_options})
    several = processes is not None and processes.size > 1
    if max_displacement is not None and not safe:
        raise InputError("max_displacement: with safe=False nothing looks at displacements; leave one of them out")
    sharing = _given(decomposition=decomposition, balance=balance, halo_precision=halo_precision)
    if sharing and processes is None:
        raise InputError(f"{', '.join(sharing)}: for several ranks, to be given as processes=Processes(MPI.COMM_WORLD)")
    if decomposition == "rank" and halo_precision == "single":
        raise InputError('halo_precision="single" is for decomposition="node"')
    engine = _given(
        device=device, precision=precision, threads=threads, skin=skin, tabulate=tabulate, low_rank=low_rank, rank=rank
    )  # fmt: skip
    if isinstance(model, Potential):
        if engine:
            raise InputError(f"{', '.join(engine)}: the Potential that is given has its own; make it with these")
        potential = model
    else:
        if several:
            engine["device"], _ = device_of_rank(device or "auto", processes)
        try:
            potential = Potential(model, **{"precision": "mixed", **engine})
        except ModelError as error:
            raise InputError(str(error)) from error
    on_overflow = on_overflow or potential.on_overflow
    if on_overflow not in ("warn", "error"):
        raise InputError(f'on_overflow = {on_overflow!r}: choose "warn" or "error"')
    if several:
        check_same_models(processes, [potential])
    system = potential.system(atoms)
    kelvin = initial_temperature_K
    if kelvin is None and settings.temperature_K and not system.velocities.any():
        kelvin = settings.temperature_K[0]
    if kelvin is not None:
        ensembles.draw_velocities(system, kelvin, seed)
    if several:
        system = system.with_atoms(system.records()[: None if processes.root else 0], processes)
    system.timestep = timestep_fs * 1e-3
    warnings_ = check_timestep(timestep_fs, system.masses) if system.n_atoms else []
    made = Simulation(
        system,
        potential.operators,
        potential.domain(processes, **sharing),
        ensembles.create(settings, steps, seed),
        hooks,
        {"frame_parameters": fparam, "atomic_parameters": aparam},
    )
    if potential.device != "cpu":
        DeviceRun(potential, system, made.ensemble.needs_virial, made.parameters).take_over(made)
    stops = on_overflow == "error"
    made.operators.look_anew()  # a Potential may have seen other systems
    if safe or stops:
        limit = (1.0 if max_displacement is None else max_displacement) if safe else float("inf")
        made.hooks.insert(0, Safety(limit, "dpmd.failed.extxyz", stop_on_overflow=stops, warn=warnings.warn))
    if not stops:
        made.hooks.insert(0, OverflowWarning())
    for text in warnings_:
        warnings.warn(text, stacklevel=3)
    return made


def _given(**options):
    return {name: value for name, value in options.items() if value is not None}
