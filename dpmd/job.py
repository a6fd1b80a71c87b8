"""From an input file to a finished run: what ``md-run`` does."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.threads import available_cores
from dpmd.models import ModelError
from dpmd.models.lowrank import describe_low_rank
from dpmd.parallel import OneProcess, Processes
from dpmd.parallel.domain import UnusableStructure
from dpmd.perfmodel.errors import PerformanceModelError
from dpmd.perfmodel.prediction import predict_here
from dpmd.perfmodel.sizes import from_model, to_dict
from dpmd.perfmodel.systems import PhysicalSystem

from . import checkpoint, ensembles, files, preflight, structure, trajectory_analysis
from .devices import DeviceRun, device_of_rank
from .errors import InputError, RunError
from .files import OutputFile
from .log import Log, Silence, processor_name, versions
from .minimize import BoxRelaxation, Minimizer
from .model_deviation import Committee, ModelDeviation
from .potential import Potential
from .safety import Safety
from .simulation import Simulation
from .thermo import Progress, Thermo
from .trajectory import Trajectory, format_of, length, lower_triangular
from .units import MASS_VELOCITY

#: keys that may differ between the parts of a run without a word
_free_to_change = {
    "file", "steps", "name", "walltime_h", "check", "check_precision", "continue", "overwrite", "max_displacement",
    "threads", "skin", "on_overflow", "decomposition", "ranks_per_node", "balance", "halo_precision",
}  # fmt: skip

#: steps between checks of a run on a GPU, where each copies the atoms to the host
GPU_SAFETY = 100


class Job:
    """One run described by validated settings (see :mod:`dpmd.inputfile`).

    Files are named after the input file, in the folder where md-run is called: NAME.log,
    NAME.thermo.csv, NAME.checkpoint.h5, NAME.summary.json, and the ``[[output]]`` files.
    Input files (structure, model) are relative to the input file.

    processes : the ranks that do it together.  Root reads the structure, writes all files and
    speaks; every rank has the model and a part of the atoms.
    """

    def __init__(self, settings, screen=None, processes=None):
        self.settings, self.screen, self.processes = settings, screen, processes or OneProcess()
        self.going_on = getattr(settings.run, "continue")
        self.base = settings.path.parent
        name = settings.run.name or settings.path.stem
        self.log_path = Path(f"{name}.log")
        self.thermo_path = Path(f"{name}.thermo.csv")
        self.summary_path = Path(f"{name}.summary.json")
        self.failure_path = Path(f"{name}.failed.extxyz")
        self.checkpoint_path = Path(settings.checkpoint.file or f"{name}.checkpoint.h5")
        self.deviation_path = Path(settings.model.deviation_file or f"{name}.model_devi.out")
        self.warnings, self.prediction = [], None
        self.velocity_origin, self.type_rows = "", []  # known on root alone

    # ------------------------------------------------------------------ before step 0

    def _outputs(self):
        """Every file that the run writes, as :class:`dpmd.files.OutputFile`."""
        s = self.settings
        named = s.run.where("name") if s.run.name else ""
        has_committee = bool(s.model.committee)
        return [
            OutputFile(self.log_path, "the log", named),
            OutputFile(self.thermo_path, "the thermo table", named),
            OutputFile(self.summary_path, "the summary", named),
            OutputFile(self.failure_path, "the frames of a failure", named),
            OutputFile(self.checkpoint_path, "the checkpoint", s.checkpoint.where("file")),
            *(OutputFile(Path(o.file), "a trajectory", o.where("file")) for o in s.output),
            *(
                [OutputFile(self.deviation_path, "the model deviation", s.model.where("deviation_file"))]
                * has_committee
            ),
            *(OutputFile(trajectory_analysis.create(a).path, "an analysis", a.where("file")) for a in s.analysis),
        ]

    def _check_outputs(self):
        """Refuse to lose or mix files, before anything is opened."""
        s, run = self.settings, self.settings.run
        outputs = self._outputs()
        for output in s.output:
            try:
                kind = format_of(output.file, output.format)
                if kind == "traj" and (output.atom_energies or output.atom_virials):
                    raise InputError(".traj files hold no atom_energies and atom_virials; use .extxyz")
            except InputError as error:
                raise InputError(f"{output.where('file')}: {error}") from error
        inputs = {"input file": s.path, "structure": self.base / s.structure.file, "model": self.base / s.model.file}
        files.check(inputs, outputs)
        if not (self.going_on or run.overwrite or run.check):
            files.check_new(
                outputs,
                "Go on with that run: --continue. Start anew and replace them: --overwrite. Keep them: set another "
                "name in [run] or work in another folder",
            )

    def _positions(self, known):
        """Where to go on in each output: {key: position or None for a new file}.

        known : what the checkpoint says, {key: {"position", "format"}}.  Raises InputError where a
        file is gone, shorter than it was, of another format, or would be overwritten.
        """
        wanted = [("thermo", OutputFile(self.thermo_path, "the thermo table"), "csv")]
        for section in self.settings.output:
            file = OutputFile(Path(section.file), "a trajectory", section.where("file"))
            wanted.append((file.key, file, format_of(section.file, section.format)))
        if self.settings.model.committee:
            file = OutputFile(self.deviation_path, "the model deviation")
            wanted.append((file.key, file, ModelDeviation.format))
        positions = {}
        for key, file, kind in wanted:
            prefix = f"{file.where}: " if file.where else ""
            if key not in known:
                files.check_new(
                    [file], f"The run that is continued did not write it ({self.checkpoint_path}); rename it"
                )
                positions[key] = None
                continue
            if known[key]["format"] != kind:
                raise InputError(
                    f"{prefix}{file.path} was written as {known[key]['format']} and cannot go on as {kind}"
                )
            there = length(file.path, kind) if file.path.exists() else -1
            if there < known[key]["position"]:
                what = "is gone" if there < 0 else "is shorter than when the checkpoint was written"
                raise InputError(
                    f"{prefix}{file.path} {what}, so it cannot be continued; put it back, or start anew: --overwrite"
                )
            positions[key] = known[key]["position"]
        return positions

    def _physics(self):
        """Settings that a continued run is compared with, {name: value}."""
        s, kept = self.settings, {}
        for name in ("structure", "model", "run", "ensemble"):
            for key, value in vars(getattr(s, name)).items():
                if key not in _free_to_change and key != "where":
                    kept[f"{name}.{key}"] = list(value) if isinstance(value, tuple) else value
        return kept

    def _compare(self, before):
        """Warn of every setting that differs from the run that is continued."""
        for key, value in self._physics().items():
            if key in before and before[key] != value:
                fate = (
                    "is not used: the atoms come from the checkpoint" if key.startswith("structure.") else "holds now"
                )
                self.warnings.append(f"{key} was {before[key]!r} and is {value!r}, which {fate}")

    def _load_model(self):
        model, run = self.settings.model, self.settings.run
        path = files.find_input(self.base / model.file, "model file", model.where("file"))
        try:
            threads = run.threads or max(1, available_cores() // self.processes.machine_ranks)
            potential = Potential(
                path, self.device, run.precision, threads, tabulate=not run.no_tabulate, skin=run.skin,
                low_rank=not run.no_low_rank, rank=run.rank,
            )  # fmt: skip
        except ModelError as error:
            raise InputError(f"{model.where('file')}: {error}") from error
        fitting, source = potential.model.fitting, potential.model.source
        for key, wanted, default in (
            ("fparam", fitting.n_fparam, fitting.default_fparam), ("aparam", fitting.n_aparam, None),
        ):  # fmt: skip
            given = getattr(model, key)
            if (given is None and wanted and default is None) or (given is not None and len(given) != wanted):
                raise InputError(
                    f"{model.where(key)}: {path} takes {wanted} numbers as {key}, {len(given or [])} given"
                    + (f"; set {key} = [...] in [model]" if wanted else f"; remove {key}")
                )
        try:
            others = [
                Potential(self.base / f, self.device, run.precision, threads, not run.no_tabulate, run.skin)
                for f in model.committee or ()
            ]
            self.committee = Committee(potential, others)
        except (ModelError, OSError, InputError) as error:
            raise InputError(f"{model.where('committee')}: {error}") from error
        self.parameters = {"frame_parameters": model.fparam, "atomic_parameters": model.aparam}
        self.warnings += source.warnings
        return potential

    def _start(self, potential):
        """The system at the first step of this run: from the structure or from a checkpoint."""
        s = self.settings
        timestep = s.run.timestep_fs * 1e-3
        ensemble = ensembles.create(s.ensemble, s.run.steps, s.run.seed)
        if not self.going_on:
            atoms = structure.read(s.structure, self.base)
            system, self.velocity_origin = structure.make_system(
                atoms, potential, s.structure, s.ensemble, s.run.seed, s.run.steps > 0
            )  # fmt: skip
            system.timestep = timestep
            self._stop_drift(system, ensemble)
            if ensemble.changes_cell or s.minimize.pressure_bar is not None:
                self._make_lower_triangular(system)
            return system, ensemble, {}
        system, info = checkpoint.read(self.checkpoint_path)
        if system.type_names != tuple(potential.type_map) or info["model"] != potential.loaded.digest:
            raise InputError(
                f"{self.checkpoint_path} was written with another model file; use that one, or start anew "
                "from its last frame"
            )
        if abs(info["timestep_ps"] - timestep) > 1e-12:
            raise InputError(
                f"{s.run.where('timestep_fs')}: the checkpoint was written with {info['timestep_ps'] * 1e3:g} fs; "
                "a run cannot go on with another time step. Start a new one from its last frame"
            )
        if info["ensemble"] == ensemble.name:
            ensemble.restore(info["ensemble_state"])
        else:
            self.warnings.append(f"the ensemble changes from {info['ensemble']!r}: its state starts anew")
        self.velocity_origin = f"from {self.checkpoint_path}, step {system.step}"
        self._stop_drift(system, ensemble)
        self._compare(info["settings"])
        return system, ensemble, self._positions(info["outputs"])

    def _choose_device(self):
        """Which device this rank computes on.  Collective."""
        run = self.settings.run
        try:
            self.device, remark = device_of_rank(run.device, self.processes)
        except InputError as error:
            error.everywhere = True
            raise
        if remark:
            self.warnings.append(remark)
        if self.processes.size > 1 and self.device != "cpu":
            self.processes = Processes(self.processes.world, 1)  # a GPU owns a box of its own
            if run.balance != "atoms":
                self.warnings.append(f"balance = {run.balance!r} is for CPUs: GPUs get boxes with equally many atoms")

    def _make_lower_triangular(self, system):
        """Rotate a cell that may change to the form that barostats need."""
        cell, rotation = lower_triangular(system.cell)
        if not np.array_equal(rotation, np.eye(3)):
            system.cell, system.positions = cell, system.positions @ rotation
            system.velocities = system.velocities @ rotation
            self.warnings.append("the structure was rotated so that a lies along x and b in the xy plane")

    def _stop_drift(self, system, ensemble):
        """Motion of the whole system is no heat: a thermostat that conserves momentum must not count it."""
        if not ensemble.momentum_conserved or system.n_atoms < 2:
            return
        momentum, mass = system.sum(system.masses @ system.velocities), system.sum(system.masses.sum())
        drift = 0.5 * MASS_VELOCITY * (momentum @ momentum) / mass
        if drift > 1e-6 * system.kinetic_energy:
            what = f"the system moves as a whole with {np.linalg.norm(momentum) / mass:.3g} Å/ps"
            if self.settings.ensemble.type == "nve":
                self.warnings.append(f"{what}: the printed temperature counts that")
            else:
                self.warnings.append(f"{what}: that motion was removed, since the thermostat would take it for heat")
                system.remove_drift()

    def _check_start(self, system):
        """Warnings about what the run starts from.  Raises InputError for what cannot work."""
        s = self.settings
        temperatures = s.ensemble.temperature_K or (s.structure.initial_temperature_K,)
        self.warnings += preflight.check_timestep(
            s.run.timestep_fs, system.masses, max((t for t in temperatures if t is not None), default=None)
        )
        still = s.run.steps > 0 and not np.any(system.velocities)
        if still and s.ensemble.type in ("nvt", "npt") and s.ensemble.thermostat != "langevin":
            raise InputError(
                f"{s.structure.where('velocities')}: all velocities are zero, and {s.ensemble.thermostat} only scales "
                'them; draw velocities (velocities = "maxwell") or use the langevin thermostat'
            )
        self.type_rows, warnings = preflight.type_table(system)
        self.warnings += warnings

    def _begin(self, potential):
        """System, ensemble and outputs at the first step, on every rank; the atoms are all on root."""
        on_root = []

        def start():
            system, ensemble, outputs = self._start(potential)
            self._check_start(system)
            on_root.append(system)
            return system.with_atoms(system.records()[:0], system.processes), ensemble, outputs

        empty, ensemble, outputs = self.processes.on_root(start)
        system = on_root[0] if on_root else empty
        system.processes = self.processes
        return system, ensemble, outputs

    def _domain(self, potential):
        """Who computes what, as the input asks; collective."""
        run = self.settings.run
        return potential.domain(self.processes, run.decomposition, run.balance, run.halo_precision)

    # ------------------------------------------------------------------ the log

    def _header(self, log, potential, system, ensemble, domain):
        s, model = self.settings, potential.model
        log("dpmd: molecular dynamics with Deep Potential")
        log(f"  {time.strftime('%Y-%m-%d %H:%M:%S')}   " + ", ".join(f"{n} {v}" for n, v in versions()))
        log(f"  input       {s.path}")
        ranks = self.processes.size
        each = " each" if ranks > 1 else ""
        log(
            f"  machine     {processor_name()}; {ranks} rank{'s' if ranks > 1 else ''}, "
            f"{potential.operators.threads} threads{each}"
        )
        computed = "" if potential.device == "cpu" else f" ({potential.operators.description})"
        log(
            f"  device      {potential.device}{computed}; precision {potential.precision}; decomposition: "
            + (f"by {domain.scheme}s" if ranks > 1 else "none (one rank)")
        )
        if ranks > 1:
            self._print_shares(log, domain)
        log(
            f"  model       {model.source.path}: {model.source.format}, {model.descriptor.kind}, types "
            f"{' '.join(model.type_map)}, cutoff {model.descriptor.rcut:g} Å, file in {model.precision}"
        )
        log(f"  embedding   {potential.loaded.description}")
        if any(e.low_rank for e, _ in potential.model.descriptor.unique_embeddings()):
            log(f"  low rank    {describe_low_rank(potential.model, potential.precision)}")
        origin = self.checkpoint_path if self.going_on else s.structure.file
        log(f"  structure   {origin}: {system.n_atoms} atom{'s' if system.n_atoms != 1 else ''}")
        log(f"  cell        {self._describe_cell(system)}")
        log(f"  velocities  {self.velocity_origin}")
        log(f"  ensemble    {ensemble.name}; time step {s.run.timestep_fs:g} fs; seed {s.run.seed}")
        if s.ensemble.type in ("npt", "nph"):
            log(f"  pressure    {' -> '.join(f'{p:g}' for p in s.ensemble.pressure_bar)} bar, {s.ensemble.coupling}")
        if s.ensemble.type in ("nvt", "npt"):
            log(f"  thermostat  at {' -> '.join(f'{t:g}' for t in s.ensemble.temperature_K)} K")
        ghosts = system.sum(domain.n_ghosts)
        log(f"  neighbours  cutoff {model.cutoff:g} Å + skin {domain.skin:g} Å; {ghosts} ghost atoms")
        log.table(self.type_rows)

    @staticmethod
    def _print_shares(log, domain):
        """How atoms are spread over ranks and nodes.  Collective."""
        counts = domain.statistics()

        def spread(key):
            least, mean, most = counts[key]
            return f"{least:.0f} / {mean:.1f} / {most:.0f}"

        boxes = "1 box" if domain.processes.n_nodes == 1 else f"{domain.processes.n_nodes} boxes"
        log(f"  shares      {boxes}, grid {' x '.join(map(str, counts['node_grid']))}; least / mean / most:")
        log(
            f"              atoms per rank {spread('atoms_per_rank')}, per box {spread('atoms_per_node')}, "
            f"ghosts per box {spread('ghosts_per_node')}; balance: {domain.balance}"
        )
        error = counts.get("halo_error_A", 0.0)
        if error:
            log(f"              positions from other boxes travel as float32, off by {error:.1e} Å at most")

    @staticmethod
    def _describe_cell(system):
        if not system.periodic.any():
            return "none: open in all directions"
        a, b, c = (float(length) for length in np.linalg.norm(system.cell, axis=1))
        unit = system.cell / np.array([[a], [b], [c]])
        alpha, beta, gamma = np.degrees(np.arccos([unit[1] @ unit[2], unit[0] @ unit[2], unit[0] @ unit[1]]))
        directions = "".join("p" if p else "o" for p in system.periodic)
        return (
            f"{a:.4f} {b:.4f} {c:.4f} Å, {alpha:.2f} {beta:.2f} {gamma:.2f} deg, {directions} (p periodic, o open), "
            f"{system.volume:.2f} Å^3"
        )

    def _examine(self, log, potential, system, domain):
        """Distances, neighbours and memory; adds warnings, raises InputError."""
        s, model = self.settings, potential.model
        nearest, counts = preflight.neighbor_facts(domain, system, model)
        on_root = self.processes.on_root
        warnings = on_root(lambda: preflight.check_distances(nearest, model, s.structure.where("file")))
        rows, more = on_root(
            lambda: preflight.check_selection(counts, model, s.run.on_overflow, s.run.where("on_overflow"))
        )
        self.warnings += warnings + more
        log.table(rows)
        if nearest:
            (a, b), (distance, i, j) = min(nearest.items(), key=lambda item: item[1])
            known = model.source.min_neighbor_distance
            log(
                f"  shortest    {a}-{b} {distance:.3f} Å (atoms {i} and {j})"
                + (f"; in the training data {known:.3f} Å" if known else "")
            )
        memory = preflight.predicted_memory(
            peak_memory(), len(domain.positions), float(domain.neighbors.count.mean()) if len(system) else 0.0,
            model, potential.precision, potential.operators.threads,
        )  # fmt: skip
        log(f"  memory      about {memory / 2**20:.0f} MiB predicted")
        self.neighbors_per_atom = float(counts.mean.sum())

    def _predict(self, log, potential, system):
        """Expected speed on this machine, by the model behind ``dp-perf``."""
        s = self.settings
        if potential.device != "cpu":
            return  # the machine that it knows is this one's CPU
        try:
            physical = PhysicalSystem(
                "this system", system.n_atoms, system.n_atoms / system.volume, tuple(map(tuple, system.cell)),
                s.ensemble.type, s.run.timestep_fs, self.neighbors_per_atom or None,
            )  # fmt: skip
            self.prediction = predict_here(
                self._sizes(potential), physical, ranks_per_node=self.processes.size,
                threads_per_rank=potential.operators.threads, precision=potential.precision, skin=s.run.skin,
            )  # fmt: skip
        except PerformanceModelError:
            return  # nothing that a run depends on
        how = "measured machine" if self.prediction.quality == "measured" else "a guess until 'dp-perf measure' has run"
        log(f"  expected    {self.prediction.ns_per_day:.3g} ns/day ({how})")

    def _print_precision(self, log, potential, domain, system):
        """What tables change, and what the chosen precision changes."""
        loaded, threads = potential.loaded, potential.operators.threads
        rows = [("mode", "largest force error", "rms error / rms force", "energy error")]
        modes = {f"{potential.precision}, as in this run": potential.operators}
        if potential.precision != "double" and not loaded.exact.compressed:
            modes = {"double, tables": CpuOperators(loaded.model, "double", threads), **modes}
        for mode, operators in modes.items():
            error = preflight.force_error(loaded.exact, operators, domain, system, self.parameters)
            relative = error["force_rms"] / error["rms_force"] if error["rms_force"] > 0 else 0.0
            rows.append((mode, f"{error['force_max']:.1e} eV/Å", f"{relative:.1e}", f"{error['energy']:.1e} eV/atom"))
        what = "the file's tables" if loaded.exact.compressed else "exact networks"
        log(f"  precision   against {what} in double, on this structure (rms force {error['rms_force']:.3f} eV/Å):")
        log.table(rows, indent=14)

    # ------------------------------------------------------------------ all of it

    def run(self):
        """Run to the end.  Returns the exit code: 0 done, 128 + n stopped by signal n.

        Raises InputError before anything has started, RunError if the run fails on its way.
        """
        s = self.settings
        root = self.processes.root
        self._choose_device()
        self.processes.on_root(self._check_outputs)
        self.processes.on_root(
            lambda: preflight.check_halo(s.run.halo_precision, s.run.decomposition, s.run.where("halo_precision"))
        )
        self.processes.on_root(lambda: self.warnings.extend(preflight.check_times(s)))
        potential = self.processes.root_first(self._load_model)
        system, ensemble, outputs = self._begin(potential)
        domain = self._domain(potential)
        try:
            domain.rebuild(system)
        except UnusableStructure as error:
            raise InputError(f"{s.structure.where('file')}: {error}") from error
        log = Log(self.screen) if root else Silence()
        try:
            self._header(log, potential, system, ensemble, domain)
            self._examine(log, potential, system, domain)
            if root:
                self._predict(log, potential, system)
            if s.run.check or s.run.check_precision:
                self._print_precision(log, potential, domain, system)
            for warning in self.warnings:
                log.warning(warning)
            if s.run.check:
                log("Everything was checked; nothing was run (--check).")
                return 0
            if self.going_on and system.step >= s.run.steps:
                log(
                    f"Nothing to do: the checkpoint is at step {system.step} of {s.run.steps}. To go on, raise steps "
                    f"({s.run.where('steps')})."
                )
                return 0
            self.processes.on_root(lambda: log.open(self.log_path, append=self.going_on))
            return self._simulate(log, potential, system, ensemble, domain, outputs)
        except (RunError, OSError) as error:
            log(f"STOPPED: {error}", screen=False)
            raise
        finally:
            log.close()

    def _simulate(self, log, potential, system, ensemble, domain, outputs):
        s = self.settings
        remaining = s.run.steps - system.step
        root = self.processes.root
        thermo = Thermo(s.thermo.every, log, self.thermo_path if root else None, outputs.get("thermo"))
        named = {"thermo": thermo}
        for section in s.output:
            key = OutputFile(Path(section.file), "").key
            named[key] = Trajectory(section, section.file, outputs.get(key), opened=root)
        if self.committee.others:
            model, key = s.model, OutputFile(self.deviation_path, "").key
            named[key] = ModelDeviation(
                model.deviation_every, self.deviation_path, self.committee, model.deviation_atomic, model.relative_eV_A,
                model.relative_v_eV, position=outputs.get(key), opened=root,
            )  # fmt: skip
        saver = checkpoint.Checkpoint(
            s.checkpoint.every, self.checkpoint_path, potential.loaded.digest, named, self._physics()
        )
        stop = checkpoint.SoftStop(None if s.run.walltime_h is None else s.run.walltime_h * 3600)
        hooks = [
            stop,
            Safety(
                s.run.max_displacement,
                self.failure_path,
                stop_on_overflow=s.run.on_overflow == "error",
                every=1 if potential.device == "cpu" else GPU_SAFETY,
            ),
            *named.values(),
            *(
                trajectory_analysis.create(section, log, system.step if self.going_on else None)
                for section in s.analysis
            ),
            Progress(remaining, system.timestep, log),
            saver,
        ]
        if potential.device == "cpu":
            self._warm_up(log, potential, system, domain)
        simulation = Simulation(system, potential.operators, domain, ensemble, hooks, self.parameters)
        if s.minimize.method != "none" and not self.going_on:
            self._minimize(log, simulation)
            saver.relaxed = True
        if potential.device != "cpu":
            on_device = DeviceRun(potential, system, ensemble.needs_virial, self.parameters)
            on_device.take_over(simulation)
            log(f"  memory      on {potential.device}: {on_device.memory_text()}")
            if self.processes.size > 1:
                ranks, advice = on_device.ranks_text()
                log(f"  GPUs        {ranks}")
                if s.run.halo_precision != "double":
                    log.warning("positions travel between GPUs in float64: halo_precision is for ranks on CPUs")
                if advice:
                    log.warning(advice)
        begin = time.perf_counter()
        simulation.run(remaining, restarted=self.going_on)
        elapsed = time.perf_counter() - begin
        self._summary(log, simulation, potential, thermo, elapsed)
        if simulation.stop_reason:
            log(
                f"Stopped at step {simulation.system.step} of {s.run.steps}: {simulation.stop_reason}. "
                f"The state is in {self.checkpoint_path}; go on with --continue."
            )
        return 128 + stop.signal if stop.signal else 0

    def _minimize(self, log, simulation):
        """Relax the structure before the dynamics; velocities and step stay as they are."""
        s, system = self.settings.minimize, simulation.system
        box = None
        if s.pressure_bar is not None:
            targets = {k: s.pressure_bar if k < 3 else 0.0 for k in range(6 if s.coupling == "tri" else 3)}
            box = BoxRelaxation(targets, ((0, 1, 2),) if s.coupling == "iso" else (), 5e-3)
        step = system.step
        system.carried["velocities"] = system.velocities.copy()
        result = Minimizer(
            simulation, s.method, s.energy_tolerance, s.force_tolerance_eV_A, s.max_iterations, 20 * s.max_iterations,
            s.max_move_A, simulation.system.timestep, "max", box,
        ).run()  # fmt: skip
        system.step, system.velocities = step, system.carried.pop("velocities")
        log(
            f"Minimised by {s.method}: {result.iterations} iterations, {result.evaluations} evaluations, "
            f"{result.reason}; energy {result.energies[0]:.6f} -> {result.energies[2]:.6f} eV, largest force component "
            f"{result.largest_forces[1]:.2e} eV/Å" + (f" ({result.advice})" if result.advice else "")
        )
        if box is not None:
            edges = np.linalg.norm(system.cell, axis=1)
            log(f"  cell now {edges[0]:.5f} {edges[1]:.5f} {edges[2]:.5f} Å, {system.volume:.3f} Å^3")

    def _warm_up(self, log, potential, system, domain):
        """Compile or load the kernels, so that the loop is timed without that."""
        log("  kernels     loading; the first start on a machine compiles them, which takes half a minute")
        domain.update(system)
        domain.neighbors.fetch()  # together, which what follows is not
        spare = np.zeros_like(domain.forces)
        # root compiles, the other ranks find its code in the cache
        self.processes.root_first(
            lambda: potential.operators.evaluate(
                domain.positions, domain.types, domain.neighbors, spare, **self.parameters
            )
        )
        domain.fold(spare)
        domain.reset_counters()
        potential.operators.seconds.update(dict.fromkeys(potential.operators.seconds, 0.0))

    def _summary(self, log, simulation, potential, thermo, elapsed):
        """The tables at the end, and the same as JSON."""
        system, steps = simulation.system, simulation.steps_done
        phases = self._phases(simulation, potential, elapsed)
        log()
        log(f"Loop of {elapsed:.3f} s for {steps} steps with {system.n_atoms} atoms")
        scale = 1e6 / max(steps, 1) / max(system.n_atoms, 1)
        if potential.device == "cpu":
            self._print_phases(log, phases, elapsed, scale)
        else:
            # without the phases of other hardware
            self._print_phases(log, {n: s for n, s in phases.items() if s[2] > 0}, elapsed, scale)
            log(
                "  force: kernels timed in 5 evaluations after the run, times the steps (embedding: forward, assembly: "
                "backward); other: the rest of the loop"
            )
        per_day = steps * simulation.system.timestep * 1e-3 / max(elapsed, 1e-9) * 86400
        log(
            f"Speed: {per_day:.4g} ns/day, {1e3 * elapsed / max(steps, 1):.3f} ms/step, "
            f"{steps * system.n_atoms / max(elapsed, 1e-9):.4g} atom-steps/s, {elapsed * scale:.2f} us/atom/step"
        )
        drift, uncertainty = thermo.drift()
        not_conserved = simulation.ensemble.not_conserved()
        if not_conserved:
            drift = float("nan")
            log(f"Conserved energy: {not_conserved}, so it does not stay as it is, and no drift is given")
        if drift == drift:
            change = 1e3 * (thermo.conserved[-1] - thermo.conserved[0]) / max(system.n_atoms, 1)
            log(
                f"Conserved energy: changed by {change:.3g} meV/atom in {thermo.times[-1] - thermo.times[0]:.4g} ps; "
                f"drift {drift:.3g} +- {uncertainty:.2g} meV/atom/ns"
            )
        waiting = phases["force: threads"][1] / max(elapsed, 1e-9)
        if waiting > 0.3 and potential.operators.threads > 1:
            log.warning(
                f"threads waited for one another {100 * waiting:.0f} % of the time: other programs use these cores, or "
                "the system is small; fewer --threads may be as fast"
            )
        domain = simulation.domain
        log(
            f"Neighbours: {self.neighbors_per_atom:.1f} per atom within the cutoff at the start, "
            f"{system.sum(domain.neighbors.count.sum()) / max(system.n_atoms, 1):.1f} in the list; "
            f"{domain.rebuilds} lists built ({steps / max(domain.rebuilds, 1):.1f} steps each); "
            f"{system.sum(domain.n_ghosts)} ghost atoms"
        )
        overflows, most_overflowed = simulation.count_overflows()
        if overflows:
            log.warning(
                f"in {overflows} steps up to {most_overflowed} atoms had more neighbours than "
                "the model's sel; the nearest were kept"
            )
        if self.prediction:
            ratio = self.prediction.seconds_per_step * max(steps, 1) / max(elapsed, 1e-9)
            log(f"Predicted speed: {self.prediction.ns_per_day:.4g} ns/day, measured / predicted = {ratio:.2f}")
        summary = self._machine_readable(simulation, potential, phases, elapsed)
        summary |= {
            "ns_per_day": per_day,
            "predicted_ns_per_day": self.prediction.ns_per_day if self.prediction else None,
            "drift_meV_per_atom_ns": drift if drift == drift else None,
            "not_conserved": not_conserved or None,
        }
        if self.processes.size > 1:
            self._print_shares(log, domain)
            parallel = summary["parallel"] = domain.statistics()
            parallel["phases_s"] = phases
            log(
                f"  exchange    {parallel['messages_per_step']:.1f} messages and "
                f"{parallel['bytes_per_step'] / 1e3:.1f} kB per step between boxes; imbalance "
                f"{parallel['imbalance']:.3f}"
            )
            early = parallel["early_per_rank"]
            if early[2]:
                log(f"              up to {early[1]:.0f} atoms per rank are evaluated while messages travel")
        if self.processes.root:
            self.summary_path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def _print_phases(log, phases, elapsed, scale):
        """The table of times; with several ranks their spread, and percent of the mean."""
        several = "waiting" in phases
        titles = ("s, least", "mean", "most") if several else ("s",)
        rows = [("phase", *titles, "%", "us/atom/step")]
        for name, spread in phases.items():
            seconds, mean = [f"{s:.3f}" for s in (spread if several else spread[1:2])], spread[1]
            rows.append((name, *seconds, f"{100 * mean / max(elapsed, 1e-9):.1f}", f"{mean * scale:.3f}"))
        log.table(rows)

    def _machine_readable(self, simulation, potential, phases, elapsed):
        """What ``dp-perf`` reads of a run; :mod:`dpmd.perfmodel.runs` explains the keys."""
        s, system, domain, steps = self.settings, simulation.system, simulation.domain, simulation.steps_done
        sizes = replace(self._sizes(potential), tabulated=not s.run.no_tabulate)
        per_step = {name.removeprefix("force: "): mean / max(steps, 1) for name, (_, mean, _) in phases.items()}
        per_step["force"], per_step["other"] = per_step.pop("assembly"), per_step["other"] + per_step.pop("threads")
        slowest = self.processes.largest(sum(potential.operators.seconds.values())) / max(steps, 1)
        several = self.processes.size > 1
        by_rank = several and domain.scheme in ("rank", "GPU")  # a box for each
        return {
            "engine": "dpmd-rank" if by_rank else "dpmd",
            "versions": dict(versions()),
            "machine": processor_name(),
            "device": potential.device,
            "model": to_dict(sizes),
            "atoms": system.n_atoms,
            "types": {
                name: int(system.sum(int((system.types == t).sum()))) for t, name in enumerate(system.type_names)
            },
            "cell": system.cell.tolist(),
            "nodes": self.processes.n_machines if by_rank else self.processes.n_nodes,
            "ranks": self.processes.size,
            "rank_grid": list(domain.partition.grid) if by_rank else None,
            "threads": potential.operators.threads,
            "precision": potential.precision,
            "ensemble": s.ensemble.type,
            "timestep_fs": s.run.timestep_fs,
            "skin": domain.skin,
            "rebuild_interval": steps / max(domain.rebuilds, 1),
            "neighbors_per_atom": self.neighbors_per_atom,
            "ghost_atoms": int(system.sum(domain.n_ghosts)),
            "steps": steps,
            "seconds": elapsed,
            "seconds_per_step": elapsed / max(steps, 1),
            "phases": per_step,
            "slowest_rank": float(slowest) if several else None,
            "peak_memory_bytes": int(self.processes.largest(peak_memory())) * self.processes.machine_ranks,
            "stopped": simulation.stop_reason,
        }

    def _sizes(self, potential):
        return from_model(potential.model, None, potential.precision, self.neighbors_per_atom or None)

    @staticmethod
    def _phases(simulation, potential, elapsed):
        """Seconds per phase, ``{name: [least, mean, most]}`` over ranks.

        The operators' own clock divides the force evaluation; "waiting" for other ranks is none of the others.
        """
        timers, inner = simulation.timers, potential.operators.seconds
        if potential.device != "cpu":
            # the host hands over work and waits where it reads something: its clock says little
            kernels = simulation.operators.phase_seconds()
            names = {"embedding": "embedding forward", "fitting": "fitting", "force": "embedding backward"}
            inner = {n: simulation.steps_done * kernels.get(names.get(n), 0.0) for n in inner}
            timers = timers | {"force": 0.0, "communication": 0.0, "integrate": 0.0}
        names = {
            "geometry": "force: geometry", "embedding": "force: embedding", "descriptor": "force: descriptor",
            "fitting": "force: fitting", "force": "force: assembly",
        }  # fmt: skip
        phases = {names.get(name, name): seconds for name, seconds in inner.items()}
        phases["force: threads"] = max(timers["force"] - sum(inner.values()), 0.0)
        processes = simulation.system.processes
        waiting = ("waiting",) if processes.size > 1 else ()
        for name in ("neighbor", "communication", *waiting, "integrate", "output"):
            phases[name] = timers[name]
        phases["other"] = max(elapsed - sum(phases.values()), 0.0)
        values = np.array(list(phases.values()))
        spread = -processes.largest(-values), processes.sum(values) / processes.size, processes.largest(values)
        return {name: numbers.tolist() for name, numbers in zip(phases, np.transpose(spread), strict=True)}


def peak_memory():
    """Peak resident memory of this process, bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
