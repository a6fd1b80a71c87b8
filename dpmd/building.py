"""A simulation from ASE Atoms, in one call."""

from dpmd.models import ModelError

from . import ensembles
from .devices import DeviceRun, device_of_rank
from .errors import InputError
from .inputfile import check_section
from .options import SECTIONS
from .potential import Potential
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
    device="auto",
    precision="mixed",
    threads=None,
    skin=1.0,
    fparam=None,
    aparam=None,
    hooks=(),
    safe=True,
    processes=None,
    decomposition="node",
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
    device, precision, threads, skin : as for Potential; fparam, aparam : for models that have them.
    hooks : :class:`~dpmd.simulation.Hook` objects; safe : stop with the names of the worst atoms when
    a step moves one by more than 1 Å.
    processes : ranks that share the work, e.g. ``dpmd.parallel.Processes(MPI.COMM_WORLD)``; all of them call
    this with the same atoms and model, and then the same methods.  :meth:`~dpmd.simulation.Simulation.every`
    tells what callbacks see.  decomposition : ``"node"`` or ``"rank"`` (then each rank must be a node).

    Raises InputError for whatever does not fit.
    """
    settings = _ensemble_settings({"type": ensemble, **ensemble_options})
    several = processes is not None and processes.size > 1
    if several:
        device, _ = device_of_rank(device, processes)
    if isinstance(model, Potential):
        potential = model
    else:
        try:
            potential = Potential(model, device, precision, threads, skin=skin)
        except ModelError as error:
            raise InputError(str(error)) from error
    system = potential.system(atoms)
    kelvin = initial_temperature_K
    if kelvin is None and settings.temperature_K and not system.velocities.any():
        kelvin = settings.temperature_K[0]
    if kelvin is not None:
        ensembles.draw_velocities(system, kelvin, seed)
    if several:
        system = system.with_atoms(system.records()[: None if processes.root else 0], processes)
    system.timestep = timestep_fs * 1e-3
    made = Simulation(
        system,
        potential.operators,
        potential.domain(processes, decomposition),
        ensembles.create(settings, steps, seed),
        hooks,
        {"frame_parameters": fparam, "atomic_parameters": aparam},
    )
    if potential.device != "cpu":
        DeviceRun(potential, system, made.ensemble.needs_virial, made.parameters).take_over(made)
    if safe:
        from .safety import Safety

        made.hooks.insert(0, Safety(1.0, "dpmd.failed.extxyz"))
    return made
