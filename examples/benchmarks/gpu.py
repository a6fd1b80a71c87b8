#!/usr/bin/env python3
"""Whole MD steps on GPUs: correctness, time by phase, memory; for water and copper of several sizes.

    python gpu.py                             192 to 1 M atoms, mixed and half
    python gpu.py --sizes 12288 --systems water --precisions mixed --skin 0.8
    python gpu.py --sizes 10000000 --steps 50
    python gpu.py --gpus 2 --systems water --precisions mixed --sizes 12288 1000000

With ``--gpus N`` it starts itself by mpiexec, one rank per GPU, and measures every size on one GPU (the first), the
same on N (strong scaling) and N times as many atoms on N (weak scaling): speed-up, efficiency, halo bytes and time.

NVE at 330 K (water 0.5 fs, copper 1 fs; --ensemble), neighbour rebuilds included.  Before timing, forces and
energy of a small rattled cell are compared with exact networks in double precision on the CPU.
Results go to gpu.json (--output), one record per run, counted floors beside the measured times;
``dp-perf fit gpu.json --machine h200`` reads it.

Measured on one NVIDIA H200 (CUDA 13, CuPy 14.2), ns per atom and step, mixed / half (skin 1 Å; a million atoms before
distances became double in mixed and half was taken about a typical atom, 1 to 4 % faster than now):

    water   192: 0.148 ms a step   12,288: 59 / 49   98,304: 45 / 36   998,784: 43 / 34   9,988,224: 43 / -
    copper  256: 0.136 ms a step   12,288: 58 / 49   100,352: 52 / 43   983,040: 50 / 41
    water at constant pressure, mixed   192: 0.62 ms a step   12,288: 103   98,304: 51   998,784: 44

H200s with NVLink, water in mixed precision: a million atoms 1.97 times one GPU on two and 3.82 times on four (22.3
and 11.5 ms a step), weak scaling 0.99; 98,304 atoms 1.71 and 2.89 times; 12,288 on two 1.03 times.

1,000 structures of 10 to 60 atoms in double precision: 3.4 s one by one, 0.08 s in one call.

Floors are counted operations and bytes over what the card reaches in a large product and a copy,
measured first.  ``--ensemble npt`` adds barostat and virial, ``--batch 1000`` small structures.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import ase.io
import ase.parallel
import numpy as np
from ase.geometry import find_mic

from dpmd.barostats import Coupling, NoseHooverBarostat
from dpmd.device_system import DeviceSystem
from dpmd.ensembles import NoseHooverChain, Ramp, VelocityVerlet, draw_velocities
from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.cuda import CudaDevice, CudaOperators, available
from dpmd.kernels.cuda import count as count_gpus
from dpmd.kernels.cuda.device import HALF, PLAIN, SPLIT
from dpmd.models.lowrank import without_low_rank
from dpmd.parallel import OneProcess, Processes
from dpmd.parallel.device_domain import DeviceDomain
from dpmd.parallel.device_exchange import make_exchange
from dpmd.parallel.geometry import choose_grid
from dpmd.parallel.partition import Partition, equal_boundaries
from dpmd.perfmodel.sizes import from_model, to_dict
from dpmd.potential import FEW_ATOMS, Potential
from dpmd.simulation import Simulation
from dpmd.system import System

EXAMPLES = Path(__file__).resolve().parents[1]
KELVIN = 330.0
TIMESTEP = {"water": 0.5e-3, "copper": 1e-3}  # ps
#: ns per atom and step of DeePMD-kit 3.2 (PyTorch, compressed, LAMMPS) on one H200 at about 13,000 atoms
PEER = {"water": 2744, "copper": 6497}
#: variables by which MPI launchers tell a process its rank
LAUNCHERS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def replicated(potential, name, n_wanted, processes):
    """A system of about ``n_wanted`` atoms: copies of the example's cell, velocities of their own.

    Each process makes the copies in its box.
    """
    atoms = ase.io.read(EXAMPLES / name / f"{name}.extxyz")
    cells = max(n_wanted / len(atoms), 1)
    repeat = [max(1, round(cells ** (1 / 3)))] * 3
    repeat[2] = max(1, round(cells / (repeat[0] * repeat[1])))
    small = potential.system(atoms)
    cell = small.cell * np.array(repeat)[:, None]
    boxes = choose_grid(cell, processes.size, potential.model.cutoff + 1.0)
    partition = Partition(cell, boxes, np.ones(3, bool), equal_boundaries(boxes))
    copies = np.indices(repeat).reshape(3, -1).T
    mine = np.flatnonzero(partition.owners((copies + 0.5) / repeat) == processes.rank)
    n = len(mine) * len(small)
    system = System(
        ids=(mine[:, None] * len(small) + np.arange(1, len(small) + 1)).reshape(-1),
        types=np.tile(small.types, len(mine)),
        masses=np.tile(small.masses, len(mine)),
        positions=(small.positions[None] + (copies[mine] @ small.cell)[:, None]).reshape(-1, 3),
        velocities=np.zeros((n, 3)),
        timestep=TIMESTEP[name],
        cell=cell,
        periodic=small.periodic,
        type_names=small.type_names,
        n_atoms=len(copies) * len(small),
        processes=processes,
    )
    # a crystal at rest shares half of its kinetic energy with the potential energy
    draw_velocities(system, KELVIN * (2 if name == "copper" else 1), seed=1)
    return system


def accuracy(potential, name, operators):
    """Errors of forces and energy on a rattled cell against exact networks in double precision."""
    atoms = ase.io.read(EXAMPLES / name / f"{name}.extxyz")
    atoms.rattle(0.08, seed=1)
    system, domain = potential.system(atoms), potential.domain()
    domain.rebuild(system)

    def forces_and_energy(implementation):
        forces = np.zeros_like(domain.forces)
        result = implementation.evaluate(domain.positions, domain.types, domain.neighbors, forces)
        return domain.fold(forces).copy(), result.energies[0]

    exact, energy = forces_and_energy(CpuOperators(potential.loaded.exact, "double"))
    mine, my_energy = forces_and_energy(operators)
    difference = mine - exact
    return {
        "force_rms_relative": float(np.sqrt((difference**2).mean() / (exact**2).mean())),
        "force_max": float(np.abs(difference).max()),
        "energy_per_atom": float(abs(my_energy - energy) / len(atoms)),
    }


def counted(operators, neighbors_in_list, neighbors):
    """Floating-point operations and bytes from device memory per atom and step, for floors."""
    d, f = operators.model.descriptor, operators.model.fitting
    fitting = 4 * sum(layer.weight.size for layer in f.networks[0].layers)
    basis = operators.n_basis
    embedding = (
        2 * 28 * neighbors * (basis or d.n_embedding) + (24 * d.n_types * basis + 24 * d.axis_neuron) * d.n_embedding
    )
    item = 8 if operators.precision == "double" else 4
    inputs = {"double": 8, "mixed": 4, "half": 2}[operators.precision]
    hidden = sum(layer.n_out for layer in f.networks[0].layers[:-1])
    bytes_ = d.n_out * (2 * inputs + 2 * item) + 2 * 4 * d.n_embedding * item + hidden * 8 * item
    return {"fitting_flop": fitting, "embedding_flop": embedding, "bytes": bytes_ + 8 * neighbors_in_list + 300}


def halo_times(device, domain, repeats=20):
    """Median ms of moving ghosts and of bringing forces back, by events; halo bytes that this GPU sends a step."""
    if not domain.processes.size > 1:
        return {}
    times = {"halo_positions_ms": domain.neighbors.follow, "halo_forces_ms": domain.neighbors.give_back}
    events = device.xp.cuda.Event
    for name, function in times.items():
        measured = []
        for _ in range(repeats):
            domain.processes.largest(0)  # together
            begin, end = events(), events()
            begin.record()
            function()
            end.record()
            device.synchronize()
            measured.append(device.xp.cuda.get_elapsed_time(begin, end))
        times[name] = float(domain.processes.largest(np.median(measured)))
    return {**times, "parallel": domain.statistics(), "halos": domain.exchange.description}


def summary(potential, precision, system, options):
    """Entries of a record that ``dp-perf`` reads; :mod:`dpmd.perfmodel.runs` explains the keys."""
    model, cell, ranks = potential.model, np.asarray(system.cell), system.processes.size
    used = without_low_rank(model) if options.no_low_rank else model
    neighbors = 4 / 3 * np.pi * model.cutoff**3 * system.n_atoms / abs(np.linalg.det(cell)) - 1
    return {
        "engine": "dpmd-rank" if ranks > 1 else "dpmd", "device": "cuda", "cell": cell.tolist(),
        "nodes": system.processes.n_machines, "ranks": ranks, "threads": 1,
        "model": to_dict(from_model(used, None, precision, neighbors)),
        "ensemble": options.ensemble,
    }  # fmt: skip


def make_ensemble(kind):
    """NVE, or Nose-Hoover chains and, at constant pressure, the cell's three lengths."""
    if kind == "nve":
        return VelocityVerlet()
    if kind == "nvt":
        return NoseHooverChain(Ramp(KELVIN), 0.1)
    return NoseHooverBarostat(Coupling.of_kind("aniso", Ramp(1.0), 1.0), Ramp(KELVIN), 0.1)


def run(device, potential, name, precision, n_wanted, options, rates, processes, exchange=None):
    """One measurement; returns its record.  Collective, if there are several processes."""
    operators = CudaOperators(
        potential.model, precision, device, chunk=options.chunk, low_rank=not options.no_low_rank,
        few=n_wanted <= FEW_ATOMS * processes.size,
    )  # fmt: skip
    start = replicated(potential, name, n_wanted, processes)
    n = start.n_atoms
    system = DeviceSystem(start, device)
    del start
    ensemble = make_ensemble(options.ensemble)
    domain = DeviceDomain(
        potential.model.cutoff, options.skin, potential.model.n_types, device, processes, exchange,
        with_virial=ensemble.needs_virial,
    )  # fmt: skip
    simulation = Simulation(system, operators, domain, ensemble)
    simulation.run(options.warm_up)
    steps = options.steps or (500 if n < 3e6 else 50)
    before, rebuilds = simulation.observables()["conserved_eV"], domain.rebuilds
    device.synchronize()
    processes.largest(0)  # all start together
    begin = time.perf_counter()
    simulation.run(steps, restarted=True)
    device.synchronize()
    seconds = float(processes.largest(time.perf_counter() - begin))
    after = simulation.observables()
    free, total, held = device.memory()
    phases = {phase: 1e9 * s / max(len(system), 1) for phase, s in operators.phase_seconds().items()}
    halo = halo_times(device, domain)
    begin = time.perf_counter()
    domain._rebuild(system, False)  # as in a run, without dividing the cell anew
    device.synchronize()
    rebuild = time.perf_counter() - begin
    counts = counted(operators, domain.neighbors.mean, domain.neighbors.mean / (1 + options.skin / domain.cutoff) ** 3)
    fitting_seconds = max(phases["fitting"], 1e-3) * 1e-9  # a GPU without atoms has no phases
    least = floors(counts, rates, precision)
    record = {
        "system": name, "atoms": n, "precision": precision, "steps": steps, "skin": options.skin,
        "chunk": options.chunk, "ns_per_atom_step": 1e9 * seconds / steps / n, "ms_per_step": 1e3 * seconds / steps,
        "ns_per_day": steps * TIMESTEP[name] * 1e-3 / seconds * 86400, "phases_ns_per_atom": phases,
        "floors_ns_per_atom": least,
        "rebuild_ms": 1e3 * rebuild, "rebuild_interval": steps / max(domain.rebuilds - 1 - rebuilds, 1),
        "list_neighbors": domain.neighbors.mean, "ghosts": int(processes.sum(domain.n_ghosts)),
        "bytes_per_atom": (total - free) / max(len(system), 1), "pool_bytes_per_atom": held / max(len(system), 1),
        **halo, "temperature_K": after["temperature_K"],
        "drift_eV_per_atom": (after["conserved_eV"] - before) / n, "counted": counts,
        "fitting_tflops": counts["fitting_flop"] / fitting_seconds * 1e-12,
        "gbytes_per_s": counts["bytes"] / (max(sum(phases.values()), 1e-3) * 1e-9) * 1e-9, "peer_ns": PEER[name],
        **summary(potential, precision, system, options), "machine": device.name, "seconds_per_step": seconds / steps,
        "timestep_fs": 1e3 * TIMESTEP[name],
    }  # fmt: skip
    if not processes.root:
        return record
    parts = "  ".join(f"{phase.replace('embedding ', '')} {value:.1f}" for phase, value in phases.items())
    print(
        f"{name:6s} {n:9d} {precision:6s} {options.ensemble} {processes.size} GPU{'s' * (processes.size > 1)} "
        f"{record['ns_per_atom_step']:8.2f} ns/atom/step "
        f"{record['ms_per_step']:9.3f} ms/step {record['ns_per_day']:8.1f} ns/day | {parts} (floors: "
        f"embedding {least['embedding']:.1f} fitting {least['fitting']:.1f}) | "
        f"rebuild {1e3 * rebuild:.2f} ms every {record['rebuild_interval']:.1f} | "
        f"fit {record['fitting_tflops']:.0f} TFLOP/s | {record['bytes_per_atom']:.0f} B/atom | "
        f"T {after['temperature_K']:.0f} K drift {record['drift_eV_per_atom']:.1e} eV/atom",
        flush=True,
    )
    if halo:
        print(
            f"       halos {halo['halos']}: {halo['parallel']['bytes_per_step'] / 1e6:.3f} MB and "
            f"{halo['parallel']['messages_per_step']:.0f} messages a step in all; positions "
            f"{1e3 * halo['halo_positions_ms']:.0f} us, forces {1e3 * halo['halo_forces_ms']:.0f} us; atoms per GPU "
            f"{halo['parallel']['atoms_per_rank']}",
            flush=True,
        )
    return record


def scaling(device, potential, name, precision, n, options, rates, processes, exchange):
    """Strong and weak scaling from ``n`` atoms on one GPU to all GPUs; returns records of the three runs."""
    size, alone = processes.size, None
    if processes.root:
        alone = run(device, potential, name, precision, n, options, rates, OneProcess())
        device.release()
    processes.largest(0)
    strong = run(device, potential, name, precision, n, options, rates, processes, exchange)
    device.release()
    weak = run(device, potential, name, precision, size * n, options, rates, processes, exchange)
    if not processes.root:
        return []
    one = alone["ms_per_step"]
    strong["speed_up"] = one / strong["ms_per_step"]
    # per atom, since copies of a cell make up not exactly as many atoms as were asked for
    weak["speed_up"] = alone["ns_per_atom_step"] / weak["ns_per_atom_step"]
    for kind, record in (("strong", strong), ("weak", weak)):
        print(
            f"       {kind}: {record['speed_up']:.2f} times one GPU, efficiency {record['speed_up'] / size:.3f} "
            f"({alone['atoms']} atoms on one, {record['atoms']} on {size})",
            flush=True,
        )
    return [alone, strong, weak]


def drift(device, potential, name, precision, steps, skin):
    """Energy drift over a long NVE run of about 1,536 atoms, meV/atom/ns with its standard error."""
    start = replicated(potential, name, 1536, OneProcess())
    n = len(start)
    system = DeviceSystem(start, device)
    operators = CudaOperators(potential.model, precision, device, few=n <= FEW_ATOMS)
    domain = DeviceDomain(potential.model.cutoff, skin, potential.model.n_types, device)
    simulation = Simulation(system, operators, domain, VelocityVerlet())
    simulation.run(2000)
    every, energies = max(steps // 500, 1), []
    begin = time.perf_counter()
    for _ in range(steps // every):
        simulation.run(every, restarted=True)
        energies.append(simulation.observables()["total_eV"] / n)
    seconds = time.perf_counter() - begin
    nanoseconds = every * TIMESTEP[name] * 1e-3 * np.arange(len(energies))
    (slope, _), covariance = np.polyfit(nanoseconds, 1e3 * np.array(energies), 1, cov=True)
    record = {
        "system": name, "atoms": n, "precision": precision, "steps": steps, "drift_meV_per_atom_ns": slope,
        "standard_error": float(covariance[0, 0]) ** 0.5, "spread_eV_per_atom": float(np.std(energies)),
        "ms_per_step": 1e3 * seconds / steps, "temperature_K": simulation.observables()["temperature_K"],
    }  # fmt: skip
    print(
        f"{name:6s} {n} atoms {precision}, {steps} steps NVE: drift {slope:.3g} +- {record['standard_error']:.2g} "
        f"meV/atom/ns, spread {record['spread_eV_per_atom']:.1e} eV/atom, {record['ms_per_step']:.3f} ms/step, "
        f"T {record['temperature_K']:.0f} K",
        flush=True,
    )
    return record


def ceilings(device):
    """What the card reaches: FLOP/s of large products by kind of numbers, bytes/s of a copy."""
    n, found = 6144, {}
    rng = np.random.default_rng(0)
    for name, kind in (("fp64", PLAIN), ("fp32", PLAIN), ("bf16", SPLIT), ("fp16", HALF)):
        numbers = rng.uniform(-1, 1, (n, n)).astype(np.float64 if name == "fp64" else np.float32)
        if kind == SPLIT:
            numbers = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        elif kind == HALF:
            numbers = numbers.astype(np.float16).view(np.uint16)
        a, out = device.upload(numbers), device.empty((n, n), np.float64 if name == "fp64" else np.float32)
        seconds = []
        for _ in range(6):
            watch = device.stopwatch()
            device.multiply(kind, a, a, out, (n, n, n), (n, n, n))
            watch.mark("product")
            seconds.append(watch.seconds()["product"])
        found[name] = 2 * n**3 / float(np.median(seconds[1:]))
    a = device.zeros(2**28, np.float64)
    b, seconds = a.copy(), []
    for _ in range(6):
        watch = device.stopwatch()
        b[...] = a
        watch.mark("copy")
        seconds.append(watch.seconds()["copy"])
    found["bytes"] = 2 * a.nbytes / float(np.median(seconds[1:]))
    rates = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in found.items() if name != "bytes")
    print(f"{device.name}: products {rates} TFLOP/s; copy {found['bytes'] / 1e12:.2f} TB/s, both ways", flush=True)
    return found


def floors(counts, rates, precision):
    """ns per atom below which no version runs: operations at the rate of a product, or bytes at that of a copy.

    Embedding kernels compute in fp32 (fp64 in double precision) whatever the products take.
    """
    plain = "fp64" if precision == "double" else "fp32"
    kind, products = {"double": ("fp64", 1), "mixed": ("bf16", 3), "half": ("fp16", 1)}[precision]
    fitting = products * counts["fitting_flop"] / rates[kind]
    return {
        "fitting": 1e9 * max(fitting, 0.5 * counts["bytes"] / rates["bytes"]),
        "embedding": 1e9 * max(counts["embedding_flop"] / rates[plain], counts["bytes"] / rates["bytes"]),
    }


def batch(number):
    """Structures of 10 to 60 atoms cut from water, evaluated one by one and all at once, on the GPU."""
    atoms, rng = ase.io.read(EXAMPLES / "water" / "water.extxyz"), np.random.default_rng(1)
    structures = []
    for _ in range(number):
        centre = rng.uniform(size=3) @ atoms.cell.array
        nearest = np.argsort(np.linalg.norm(find_mic(atoms.positions - centre, atoms.cell)[0], axis=1))
        part = atoms[nearest[: rng.integers(10, 61)]]
        part.rattle(0.02, rng=rng)
        structures.append(part)
    record = {"structures": number, "atoms": sum(map(len, structures))}
    for where in ("cuda", "cpu"):
        potential = Potential(EXAMPLES / "water" / "water.dp", device=where)
        potential.evaluate(structures[:20])
        for atoms in structures[:20]:
            potential.evaluate(atoms)
        begin = time.perf_counter()
        alone = [potential.evaluate(atoms) for atoms in structures]
        middle = time.perf_counter()
        together = potential.evaluate(structures)
        record[where] = {"one_by_one_s": middle - begin, "batch_s": time.perf_counter() - middle}
        record[where]["largest_difference_eV_A"] = max(
            float(np.abs(a["forces"] - b["forces"]).max()) for a, b in zip(alone, together, strict=True)
        )
        record.setdefault("results", []).append(together)
    on_gpu, on_cpu = record.pop("results")
    worst = max(float(np.abs(a["forces"] - b["forces"]).max()) for a, b in zip(on_gpu, on_cpu, strict=True))
    record["largest_difference_to_cpu_eV_A"] = worst
    print(
        f"batch of {number} structures, {record['atoms']} atoms, double: "
        + "; ".join(
            f"{where} {record[where]['one_by_one_s']:.3f} s one by one, {record[where]['batch_s']:.3f} s together "
            f"({record[where]['one_by_one_s'] / record[where]['batch_s']:.1f} x)"
            for where in ("cuda", "cpu")
        )
        + f"; largest difference of forces to the CPU's {worst:.1e} eV/Å",
        flush=True,
    )
    return record


def start_ranks(n):
    """Start this program once per GPU; returns the exit code."""
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if mpiexec is None:
        raise SystemExit("--gpus needs an MPI with its mpiexec: pip install '.[mpi]' in a checkout of dpmd")
    return subprocess.run([mpiexec, "-n", str(n), sys.executable, "-m", "mpi4py", *sys.argv], check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=["water", "copper"], choices=["water", "copper"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[192, 1536, 12288, 98304, 1000000], help="atoms")
    parser.add_argument("--precisions", nargs="+", default=["mixed", "half"], choices=["double", "mixed", "half"])
    parser.add_argument("--steps", type=int, help="timed steps (default 500; 50 beyond 3 M atoms)")
    parser.add_argument("--warm-up", type=int, default=30, help="steps before (default 30)")
    parser.add_argument("--skin", type=float, default=1.0, help="Å (default 1)")
    parser.add_argument("--chunk", type=int, help="centres evaluated at a time")
    parser.add_argument("--no-low-rank", action="store_true", help="full table rows for all neighbours")
    parser.add_argument("--drift", type=int, default=0, metavar="STEPS", help="also a long NVE run of 1,536 atoms")
    parser.add_argument("--device", type=int, default=0, help="number of the GPU; with --gpus of the first one")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="strong and weak scaling to N GPUs, by MPI")
    parser.add_argument("--ensemble", choices=["nve", "nvt", "npt"], default="nve", help="default nve")
    parser.add_argument("--batch", type=int, default=0, metavar="N", help="also N small structures")
    parser.add_argument("--output", type=Path, default=Path("gpu.json"))
    options = parser.parse_args()
    reason = available()
    if reason:
        raise SystemExit(f"this measures a GPU, and there is none to use: {reason}")
    processes, exchange, here = OneProcess(), None, options.device
    if options.gpus > 1:
        if not any(variable in os.environ for variable in LAUNCHERS):
            return start_ranks(options.gpus)
        from mpi4py import MPI

        ase.parallel.world.comm = ase.parallel.DummyMPI()
        processes = Processes(MPI.COMM_WORLD, 1)
        if processes.size != options.gpus:
            raise SystemExit(f"--gpus {options.gpus}, but the launcher has started {processes.size} ranks")
        here = (options.device + processes.machine_rank) % max(count_gpus(), 1)
    device = CudaDevice(here)
    if options.gpus > 1:
        exchange = make_exchange(device, processes)
    records = {"device": device.name, "accuracy": [], "runs": [], "drift": [], "ceilings": ceilings(device)}

    def save(records):
        if processes.root:
            options.output.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")

    if options.batch and processes.root:
        records["batch"] = batch(options.batch)
        device.release()
    for name in options.systems:
        potential = Potential(EXAMPLES / name / f"{name}.dp", device="cpu")
        for precision in options.precisions if processes.root else ():
            operators = CudaOperators(potential.model, precision, device, low_rank=not options.no_low_rank)
            errors = accuracy(potential, name, operators)
            records["accuracy"].append({"system": name, "precision": precision, **errors})
            print(
                f"{name:6s} {precision:6s} {operators.description}: force rms error / rms force "
                f"{errors['force_rms_relative']:.1e}, largest {errors['force_max']:.1e} eV/Å, energy "
                f"{errors['energy_per_atom']:.1e} eV/atom",
                flush=True,
            )
            del operators
        for n in options.sizes:
            for precision in options.precisions:
                common = (device, potential, name, precision, n, options, records["ceilings"], processes)
                records["runs"] += scaling(*common, exchange) if options.gpus > 1 else [run(*common)]
                device.release()
                save(records)
        if options.drift and processes.root:
            for precision in options.precisions:
                records["drift"].append(drift(device, potential, name, precision, options.drift, options.skin))
    save(records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
