"""From an input file to a finished run: what ``md-run`` does."""

import json
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from dpmd.kernels.compiling import compilation
from dpmd.kernels.threads import available_cores
from dpmd.models import ModelError
from dpmd.models.files import write_text
from dpmd.models.lowrank import describe_low_rank
from dpmd.parallel import OneProcess, Processes
from dpmd.parallel.domain import UnusableStructure, complete_cell
from dpmd.perfmodel.sizes import from_model, to_dict

from . import checkpoint, ensembles, files, preflight, structure, trajectory_analysis
from .devices import DeviceRun, device_of_rank
from .errors import InputError, RunError
from .files import OutputFile
from .log import Log, Silence, processor_name, versions
from .minimize import BoxRelaxation, Minimizer
from .model_deviation import Committee, ModelDeviation
from .potential import Potential, check_same_models
from .safety import Safety
from .simulation import Simulation
from .thermo import Progress, Thermo, columns_to_write
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
        self.warnings, self.prediction, self.memory = [], None, 0
        #: of summary.json, once the structure has been relaxed
        self.minimization = {}
        self.thermo_columns = columns_to_write(settings.thermo.columns, None, "")
        # known on root alone; samples : of analyses, from the checkpoint
        self.velocity_origin, self.type_rows, self.samples = "", [], {}

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
            *(OutputFile(trajectory_analysis.output_path(a), "an analysis", a.where("file")) for a in s.analysis),
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

    def _positions(self, known, cutoff):
        """Where to go on in each output: {key: position or None for a new file}.

        known : what the checkpoint says, {key: {"position", "format", "state"}}; cutoff : Å, the model's.
        Raises InputError where a file is gone, shorter than it was, of another format, or would be overwritten.
        """
        wanted = [("thermo", OutputFile(self.thermo_path, "the thermo table"), "csv")]
        for section in self.settings.output:
            file = OutputFile(Path(section.file), "a trajectory", section.where("file"))
            wanted.append((file.key, file, format_of(section.file, section.format)))
        if self.settings.model.committee:
            file = OutputFile(self.deviation_path, "the model deviation")
            wanted.append((file.key, file, ModelDeviation.format))
        for section in self.settings.analysis:
            hook = trajectory_analysis.create(section, cutoff)
            file = OutputFile(hook.path, "an analysis", section.where("file" if section.file else "type"))
            wanted.append((file.key, file, hook.format))
        self.samples = {key: kept["state"] for key, kept in known.items() if kept["state"]}
        for key in sorted(known.keys() - {key for key, _, _ in wanted}):
            self.warnings.append(f"{key} was written until now and is no longer asked for: it ends here")
        positions = {}
        for key, file, kind in wanted:
            prefix = f"{file.where}: " if file.where else ""
            if key not in known:
                if not self.settings.run.overwrite:
                    files.check_new(
                        [file],
                        f"The run that is continued did not write it ({self.checkpoint_path}); rename it, or replace "
                        "it: --overwrite",
                    )
                positions[key] = None
                continue
            if known[key]["format"] != kind:
                raise InputError(
                    f"{prefix}{file.path} was written as {known[key]['format']} and cannot go on as {kind}"
                )
            if key in self.samples:
                positions[key] = known[key]["position"]
                continue  # its file is written anew from the samples
            there = length(file.path, kind) if file.path.exists() else -1
            if there < known[key]["position"]:
                what = "is gone" if there < 0 else "is shorter than when the checkpoint was written"
                raise InputError(
                    f"{prefix}{file.path} {what}, so it cannot be continued; put it back, or start anew: --overwrite"
                )
            positions[key] = known[key]["position"]
        thermo = self.settings.thermo
        if positions["thermo"] is not None:
            self.thermo_columns = columns_to_write(thermo.columns, self.thermo_path, thermo.where("columns"))
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

    def _compare_ramps(self, before, step):
        """Warn where the target of a ramp jumps at ``step``, where the run goes on."""
        ensemble, steps, steps_before = self.settings.ensemble, self.settings.run.steps, before.get("run.steps")
        for what, unit, key, types in (
            ("temperature", "K", "temperature_K", ("nvt", "npt")), ("pressure", "bar", "pressure_bar", ("npt", "nph")),
        ):  # fmt: skip
            old, new = before.get(f"ensemble.{key}"), getattr(ensemble, key)
            if steps_before is None or ensemble.type not in types or before.get("ensemble.type") not in types:
                continue
            target, now = (
                ensembles.Ramp(values[0], values[-1], n)(step) for values, n in ((old, steps_before), (new, steps))
            )
            if len(old) + len(new) == 2 or abs(target - now) <= 1e-9 * (abs(target) + abs(now)):
                continue
            cause = f"{key} changed"
            if steps != steps_before:
                cause = f"run.steps was {steps_before} and is {steps}, over all of which {key} extends"
            self.warnings.append(
                f"{cause}: at step {step} the target {what} goes from {target:g} to {now:g} {unit} (a ramp counts from "
                f"step 0). To hold {target:g} {unit} from here on, set {key} = {target:g}"
            )

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
                Potential(
                    self.base / f, self.device, run.precision, threads, not run.no_tabulate, run.skin,
                    not run.no_low_rank, run.rank,
                )
                for f in model.committee or ()
            ]  # fmt: skip
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
            atoms = structure.read(s.structure, self.base, partial(self._check_memory, potential))
            system, self.velocity_origin = structure.make_system(
                atoms, potential, s.structure, s.ensemble, s.run.seed, s.run.steps > 0
            )  # fmt: skip
            system.timestep = timestep
            self._stop_drift(system, ensemble)
            if ensemble.changes_cell or s.minimize.pressure_bar is not None:
                self._make_lower_triangular(system)
            return system, ensemble, {}
        system, info = checkpoint.read(self.checkpoint_path)
        self._check_memory(
            potential, len(system), self.checkpoint_path, system.positions, system.cell, system.periodic
        )  # fmt: skip
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
        self._compare_ramps(info["settings"], system.step)
        return system, ensemble, self._positions(info["outputs"], potential.model.cutoff)

    def _check_memory(self, potential, n_atoms, where, positions=(), cell=None, periodic=None):
        """Refuse, before they are made, more atoms than memory holds; positions, cell, periodic : of some of them."""
        model, run, p = potential.model, self.settings.run, self.processes
        neighbors, whole = 0.0, np.diag([1e9] * 3)
        if len(positions):
            with suppress(ValueError):
                whole = complete_cell(cell, periodic)
                neighbors = preflight.list_neighbors(positions, whole, periodic, model.cutoff + run.skin)
                whole = whole * (n_atoms / len(positions)) ** (1 / 3)
        here = n_atoms / p.n_machines
        needed = preflight.predicted_memory(
            here, neighbors, whole, periodic if len(positions) else [False] * 3, model, run.skin, potential.precision,
            potential.operators.threads, p.machine_ranks,
        )  # fmt: skip
        # the first rank reads them all
        needed += max(n_atoms - here, 0) * preflight.BYTES_PER_ATOM // 2
        if n_atoms > preflight.FEW:  # of an absurd cell somebody else tells
            preflight.check_memory(needed, n_atoms, where, p.machine_ranks)
        self.memory = needed

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
        if s.run.steps:
            self.warnings += preflight.check_timestep(
                s.run.timestep_fs, system.masses, max((t for t in temperatures if t is not None), default=None)
            )
        still = s.run.steps > 0 and not np.any(system.velocities)
        if still and s.ensemble.type in ("nvt", "npt") and s.ensemble.thermostat != "langevin":
            raise InputError(
                f"{s.structure.where('velocities')}: all velocities are zero, and {s.ensemble.thermostat} only scales "
                'them; draw velocities (velocities = "maxwell") or use the langevin thermostat'
            )
        if s.ensemble.type in ("npt", "nph") and not system.periodic.all():
            open_ = ", ".join("xyz"[k] for k in np.flatnonzero(~system.periodic))
            raise InputError(
                f"{s.ensemble.where('type')}: {s.ensemble.type} needs a cell that is periodic in all directions, and "
                f'this one is open along {open_}: use type = "nvt" or "nve" (or a LAMMPS script, where fix '
                f"{s.ensemble.type} may act on x and y alone)"
            )
        self._check_analyses(system.n_atoms)
        self.type_rows, warnings = preflight.type_table(system)
        self.warnings += warnings

    def _check_analyses(self, n_atoms):
        """Warn of analyses that take no sample, or very many."""
        steps = self.settings.run.steps
        for section in self.settings.analysis:
            path, first = trajectory_analysis.output_path(section), -(-section.first_step // section.every)
            samples = steps // section.every - first + 1
            if samples < 1:
                self.warnings.append(
                    f"{section.where('first_step')}: {path} will not be written: its first sample is due at step "
                    f"{first * section.every}, and steps = {steps}"
                )
            size = trajectory_analysis.KINDS[section.type].bytes_per_atom * n_atoms * samples
            if size > 2**30:
                self.warnings.append(
                    f"{section.where('every')}: the samples of {path} will take {size / 2**30:.1f} GiB of memory and "
                    f"of each checkpoint in the end; a larger every, or first_step, takes less"
                )

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

    def _header(self, log, potential, system, ensemble, domain, complete):
        """complete : whether ``domain`` holds all atoms, and not a sample of them."""
        s, model = self.settings, potential.model
        log("dpmd: molecular dynamics with Deep Potential")
        log(f"  {time.strftime('%Y-%m-%d %H:%M:%S')}   " + ", ".join(f"{n} {v}" for n, v in versions()))
        log(f"  input       {s.path}")
        ranks = self.processes.size
        each = " each" if ranks > 1 else ""
        log(
            f"  machine     {processor_name()}; {ranks} rank{'s' if ranks > 1 else ''}, "
            f"{potential.operators.threads} thread{'s' * (potential.operators.threads > 1)}{each}"
        )
        log(
            f"  device      {potential.device} ({potential.operators.description}); precision {potential.precision}; "
            "decomposition: "
            + (f"by {domain.scheme}s" if ranks > 1 else "none (one rank)")
        )
        if ranks > 1 and complete:
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
            kept = s.ensemble.thermostat != "langevin" and system.n_atoms > 1 and not system.periodic.any()
            log(
                f"  thermostat  at {' -> '.join(f'{t:g}' for t in s.ensemble.temperature_K)} K"
                + "; the rotation of the whole is kept, and counts as heat (langevin changes it)" * kept
            )
        ghosts = f"; {system.sum(domain.n_ghosts)} ghost atoms" if complete else ""
        log(f"  neighbours  cutoff {model.cutoff:g} Å + skin {domain.skin:g} Å{ghosts}")
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

    def _examine(self, log, potential, system, domain, inner):
        """Distances, neighbours and memory; adds warnings, raises InputError."""
        s, model = self.settings, potential.model
        nearest, counts = preflight.neighbor_facts(domain, system, model, inner)
        on_root = self.processes.on_root
        self.warnings += preflight.check_units(nearest, counts, system, model)
        warnings = on_root(lambda: preflight.check_distances(nearest, model, s.structure.where("file")))
        rows, more = on_root(
            lambda: preflight.check_selection(counts, model, s.run.on_overflow, s.run.where("on_overflow"))
        )
        self.warnings += warnings + more
        if inner is not None:
            log(f"  looked at   {counts.n_atoms} atoms of one part of the system")
        log.table(rows)
        if nearest:
            log(f"  shortest    {preflight.shortest_text(nearest, model)}")
        log(f"  memory      about {self.memory / 2**20:.0f} MiB predicted")
        self.neighbors_per_atom = float(counts.mean.sum())

    # ------------------------------------------------------------------ all of it

    def run(self):
        """Run to the end.  Returns the exit code: 0 done, 128 + n stopped by signal n.

        Raises InputError before anything has started, RunError if the run fails on its way.
        """
        s = self.settings
        root = self.processes.root
        self._choose_device()
        self.processes.on_root(self._check_outputs)
        self.processes.on_root(lambda: preflight.check_options(s.run, s.run.where))
        self.processes.on_root(lambda: self.warnings.extend(preflight.check_times(s)))
        potential = self.processes.root_first(self._load_model)
        check_same_models(self.processes, [potential, *self.committee.others])
        system, ensemble, outputs = self._begin(potential)
        if potential.device == "cpu":
            self.warnings += preflight.check_ranks(s.run, self.processes, potential.operators.threads)
        part, inner = system, None
        if s.run.check:  # nothing is run: a part will do
            part, inner = self._sample(system, potential, preflight.SAMPLE)
        domain = self._lists(potential, part)
        log = Log(self.screen) if root else Silence()
        try:
            self._header(log, potential, system, ensemble, domain, inner is None)
            self._examine(log, potential, part, domain, inner)
            # the machine that is known is this one's CPU
            self.prediction = preflight.expected_speed(
                potential, system, self.neighbors_per_atom, s.run.timestep_fs, s.run.skin, s.ensemble.type
            )  # fmt: skip
            if self.prediction:
                log(f"  expected    {preflight.speed_text(self.prediction)}")
            if s.run.check and part.periodic.all():  # nothing is run that would tell
                pressure = preflight.pressure(potential, part, domain, self.parameters)
                self.warnings += preflight.check_pressure(pressure, self._target())
            if s.run.check or s.run.check_precision:
                few, ids = self._sample(part, potential, preflight.SAMPLE_OF_PRECISION)
                beside = domain if ids is None else self._lists(potential, few)
                preflight.print_precision(log, potential, beside, few, self.parameters)
            for warning in self.warnings:
                log.warning(warning)
            if s.run.check:
                log("Everything was checked; nothing was run (--check).")
                return 0
            if self.going_on and system.step >= s.run.steps:
                self._nothing_to_do(log, Simulation(system, potential.operators, domain, ensemble))
                return 0
            self.processes.on_root(lambda: self._open(log))
            told = partial(log, "  kernels     compiling, at the first start on a machine: half a minute")
            with compilation(told) as spent:
                return self._simulate(log, potential, system, ensemble, domain, outputs, spent)
        except (RunError, OSError) as error:
            log(f"STOPPED: {error}", screen=False)
            raise
        finally:
            log.close()

    def _sample(self, system, potential, most):
        """What a check looks at: ``(system, None)``, or a part of a large one and the ids to look at.  Collective."""
        if system.n_atoms <= most:
            return system, None
        found = []

        def take():
            found.append(preflight.sample(whole, potential.model.cutoff + self.settings.run.skin, most))
            part, ids = found[0]
            return part.with_atoms(part.records()[:0], part.processes), ids

        whole = system.whole()  # on root
        empty, ids = self.processes.on_root(take)
        part = found[0][0] if found else empty
        part.processes = self.processes
        return part, ids

    def _lists(self, potential, system):
        """A domain with lists of these atoms; collective."""
        domain = self._domain(potential)
        try:
            domain.rebuild(system)
        except UnusableStructure as error:
            raise InputError(f"{self.settings.structure.where('file')}: {error}") from error
        return domain

    def _target(self):
        """bar, that the run is to have; 0 if the volume stays."""
        ensemble = self.settings.ensemble
        return max(ensemble.pressure_bar) if ensemble.type in ("npt", "nph") else 0.0

    def _open(self, log):
        """Begin the log; what a new run does not yet write, an earlier one's does not stand for."""
        log.open(self.log_path, append=self.going_on)
        if not self.going_on:
            analyses = (trajectory_analysis.output_path(section) for section in self.settings.analysis)
            for path in (self.checkpoint_path, self.summary_path, self.failure_path, *analyses):
                if path.is_file():
                    path.unlink()

    def _nothing_to_do(self, log, simulation):
        """The checkpoint is at the end, or beyond: say so."""
        s, step = self.settings, simulation.system.step
        for hook in self._analyses(log, simulation.domain.cutoff).values():
            hook.complete(simulation)
        if step > s.run.steps:
            log.warning(
                f"{s.run.where('steps')}: steps = {s.run.steps}, but the run has done {step} already; its files stay "
                f"as they are, with {step} steps"
            )
        log(
            f"Nothing to do: the checkpoint is at step {step}, steps = {s.run.steps}. To go on, raise steps "
            f"({s.run.where('steps')})."
        )

    def _analyses(self, log, cutoff):
        """{key: hook} of the ``[[analysis]]`` sections, with the samples of the run that is continued."""
        hooks = {}
        for section in self.settings.analysis:
            hook = trajectory_analysis.create(section, cutoff, log)
            key = OutputFile(hook.path, "").key
            if key in self.samples:
                hook.restore(self.samples[key])
                log(f"  analysis    {hook.path} goes on with the {hook.position()} samples of the checkpoint")
            hooks[key] = hook
        return hooks

    def _simulate(self, log, potential, system, ensemble, domain, outputs, compiling):
        s = self.settings
        remaining = s.run.steps - system.step
        root = self.processes.root
        path, columns = self.thermo_path if root else None, self.thermo_columns
        thermo = Thermo(s.thermo.every, log, path, outputs.get("thermo"), columns)
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
        named |= self._analyses(log, potential.model.cutoff)
        saver = checkpoint.Checkpoint(
            s.checkpoint.every, self.checkpoint_path, potential.loaded.digest, named,
            self._physics() | {"run.steps": s.run.steps},
        )  # fmt: skip
        stop = checkpoint.SoftStop(None if s.run.walltime_h is None else s.run.walltime_h * 3600)
        hooks = [
            stop,
            preflight.FirstPressure(log.warning, self._target()),
            Safety(
                s.run.max_displacement,
                self.failure_path,
                stop_on_overflow=s.run.on_overflow == "error",
                every=1 if potential.device == "cpu" else GPU_SAFETY,
                warn=log.warning,
            ),
            *named.values(),
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
        simulation.timers.begin(compiling)  # what a minimisation took is not of the loop
        potential.operators.seconds.update(dict.fromkeys(potential.operators.seconds, 0.0))
        compiled, begin = compiling.seconds, time.perf_counter()
        simulation.run(remaining, restarted=self.going_on)
        elapsed, compiled = time.perf_counter() - begin, compiling.seconds - compiled
        if compiled > 0:
            log(f"The functions of the loop were compiled in {compiled:.1f} s, which do not count below.")
            elapsed -= compiled
        self._summary(log, simulation, potential, thermo, elapsed)
        if simulation.stop_reason:
            log(
                f"Stopped at step {simulation.system.step} of {s.run.steps}: {simulation.stop_reason}. "
                f"The state is in {self.checkpoint_path}; go on with --continue."
            )
        if stop.signal:
            return 128 + stop.signal
        unconverged = not self.minimization.get("converged", True)
        return RunError.exit_code if unconverged and s.minimize.on_unconverged == "error" else 0

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
        quantity = "energy" if box is None else "enthalpy E + P (V - V0)"
        precise = f"; in double precision from iteration {result.double_from} on" if result.double_from else ""
        log(
            f"Minimised by {s.method}: {result.iterations} iterations, {result.evaluations} evaluations, "
            f"{result.reason}; {quantity} {result.energies[0]:.6f} -> {result.energies[2]:.6f} eV, largest force "
            f"component {result.largest_forces[1]:.2e} eV/Å{precise}"
        )
        self.minimization = {
            "method": s.method,
            "converged": result.converged,
            "reason": result.reason,
            "iterations": result.iterations,
            "evaluations": result.evaluations,
            "energy_eV" if box is None else "enthalpy_eV": [result.energies[0], result.energies[2]],
            "largest_force_eV_A": list(result.largest_forces),
            "double_from_iteration": result.double_from,
        }
        if not result.converged:
            log.warning(
                f"{s.where('method')}: {result.shortfall} (force_tolerance_eV_A = {s.force_tolerance_eV_A:g}, "
                f"max_iterations = {s.max_iterations})"
            )
            if s.on_unconverged == "error":
                simulation.stop("the minimisation has not converged (on_unconverged)")
        if box is not None:
            edges = np.linalg.norm(system.cell, axis=1)
            log(f"  cell now {edges[0]:.5f} {edges[1]:.5f} {edges[2]:.5f} Å, {system.volume:.3f} Å^3")

    def _warm_up(self, log, potential, system, domain):
        """Compile or load the kernels, so that the loop is timed without that."""
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

    def _summary(self, log, simulation, potential, thermo, elapsed):
        """The tables at the end, and the same as JSON."""
        system, steps = simulation.system, simulation.steps_done
        phases = self._phases(simulation, potential, elapsed)
        log()
        log(f"Loop of {elapsed:.3f} s for {steps} steps with {system.n_atoms} atoms")
        scale = 1e6 / max(steps, 1) / max(system.n_atoms, 1)
        if steps and potential.device == "cpu":
            self._print_phases(log, phases, elapsed, scale)
        elif steps:
            # without the phases of other hardware
            self._print_phases(log, {n: s for n, s in phases.items() if s[2] > 0}, elapsed, scale)
            log(
                "  force: kernels timed in 5 evaluations after the run, times the steps (embedding: forward, assembly: "
                "backward); other: the rest of the loop"
            )
        per_day = steps * simulation.system.timestep * 1e-3 / max(elapsed, 1e-9) * 86400
        if steps:
            log(
                f"Speed: {per_day:.4g} ns/day, {1e3 * elapsed / steps:.3f} ms/step, "
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
        overflowed = simulation.count_overflows()
        if overflowed:
            log.warning(
                f"{overflowed:.3g} atoms, on average over the steps, had more neighbours than the model's sel; the "
                "nearest were kept"
            )
        if self.prediction and steps:
            ratio = self.prediction.seconds_per_step * steps / max(elapsed, 1e-9)
            log(f"Predicted speed: {self.prediction.ns_per_day:.4g} ns/day, measured / predicted = {ratio:.2f}")
        summary = self._machine_readable(simulation, potential, phases, elapsed)
        summary |= {
            "ns_per_day": per_day,
            "predicted_ns_per_day": self.prediction.ns_per_day if self.prediction else None,
            "drift_meV_per_atom_ns": drift if drift == drift else None,
            "drift_error_meV_per_atom_ns": uncertainty if drift == drift else None,
            "not_conserved": not_conserved or None,
        }
        if self.minimization:
            summary["minimization"] = self.minimization
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
            write_text(self.summary_path, json.dumps(summary, indent=1) + "\n")

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
        per_step["force"] = per_step.pop("assembly")
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

    # getrusage's figure begins with that of the process that started this one
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
