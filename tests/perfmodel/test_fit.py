"""The fit to Fugaku, and that a fit finds what made synthetic runs."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpmd.perfmodel import (
    Coefficients,
    Layout,
    PerformanceModelError,
    Run,
    find_machine,
    find_sizes,
    find_system,
    fit,
    runs,
    steptime,
)


def test_fugaku_fit_extrapolation_and_memory(fugaku_runs):
    machine = find_machine("fugaku")
    result = fit.fit(fugaku_runs, machine)
    assert len(result.profile.free) <= 8
    assert result.score.mape <= 6
    assert result.memory_score.mape <= 20
    for score in result.validation.values():
        assert score.mape <= 8
    assert set(result.validation) >= {"ten-fold, by configuration", "leave one layout out"}
    assert fit.extrapolate(fugaku_runs, machine, 57).mape <= 10
    # Nothing sits at a bound: the coefficients mean something.
    from dpmd.perfmodel.machines import BOUNDS

    for name in result.profile.free:
        low, high = BOUNDS[name]
        assert low * 1.05 < getattr(result.profile.coefficients, name) < high * 0.95


def test_stored_fugaku_profile_is_that_fit(fugaku_runs):
    machine = find_machine("fugaku")
    evaluation = fit.evaluate(fugaku_runs, machine)
    assert evaluation.profile.quality == "measured"
    assert evaluation.score.mape <= 6
    assert evaluation.memory_score.mape <= 20
    again = fit.fit(fugaku_runs, machine, validate=False).profile.coefficients
    for name, value in vars(evaluation.profile.coefficients).items():
        assert getattr(again, name) == pytest.approx(value, rel=0.01)


def test_repeated_runs_stay_together(fugaku_runs):
    groups = fit._deal([r.configuration for r in fugaku_runs], 10)
    for a, first in zip(groups, fugaku_runs, strict=True):
        for b, second in zip(groups, fugaku_runs, strict=True):
            assert a == b or first.configuration != second.configuration


def test_fit_needs_no_phases_or_memory(fugaku_runs):
    bare = [replace(r, pair_seconds=None, slowest_pair_seconds=None, memory=None) for r in fugaku_runs]
    result = fit.fit(bare, find_machine("fugaku"), validate=False)
    assert result.score.mape <= 6
    assert result.memory_score is None


def synthetic(true, engine="dpmd", noise=0.01, seed=0):
    """Runs that the model itself made, for two systems, sizes and thread counts on the small machine."""
    machine, rng, found = find_machine("vm-2core-avx512"), np.random.default_rng(seed), []
    for name in ("copper", "water"):
        sizes = find_sizes(f"{name}-25-50-100")
        for atoms in (400, 2000, 12_000):
            for threads in (1, 2):
                for precision in ("double", "mixed"):
                    system, layout = find_system(name, atoms), Layout(1, 1, threads)
                    f = steptime.features(machine, sizes, system, layout, precision, engine)
                    seconds = float(steptime.step_seconds(f, true)) * np.exp(noise * rng.standard_normal())
                    found.append(Run(sizes, system, layout, precision, engine, 2.0, 50, seconds))
    return machine, found


def test_fit_recovers_the_coefficients_of_synthetic_runs():
    true = Coefficients(0.7, 0.3, 0.2, 0.05, 15.0, 4.0)
    machine, found = synthetic(true)
    result = fit.fit(found, machine)
    assert "message_us" not in result.profile.free
    assert "spread" not in result.profile.free
    assert result.score.mape < 2
    assert result.validation["leave one size out"].mape < 4
    for name in ("gemm_efficiency", "embedding_efficiency", "serial_fraction"):
        error = np.log(getattr(result.profile.coefficients, name) / getattr(true, name))
        assert abs(error) < max(4 * result.standard_errors[name], 0.1)


def test_summary_of_md_run_is_read(tmp_path):
    """The JSON schema documented in runs.py, all keys."""
    summary = {
        "engine": "dpmd", "machine": "vm-2core-avx512", "device": "cpu", "atoms": 192, "types": [64, 128],
        "model": {"name": "water", "cutoff": 6.0, "sel": [46, 92], "embedding": [25, 50, 100], "axis": 16,
                  "fitting": [240, 240, 240], "tabulated": True, "table_rows": 1100},
        "cell": [[12.4447, 0, 0], [0, 12.4447, 0], [0, 0, 12.4447]],
        "nodes": 1, "ranks": 2, "threads": 1, "precision": "mixed", "ensemble": "nvt", "timestep_fs": 0.5, "skin": 1.0,
        "rebuild_interval": 12.5, "neighbors_per_atom": 90.1, "steps": 500, "seconds_per_step": 0.0071,
        "phases": {"neighbor": 1e-4, "geometry": 4e-4, "embedding": 2e-3, "descriptor": 3e-4, "fitting": 3.5e-3,
                   "force": 2e-4, "communication": 1e-4, "integrate": 1e-5, "output": 0.0, "other": 1e-4},
        "slowest_rank": 0.0066, "peak_memory_bytes": 4e8,
    }  # fmt: skip
    nested = json.dumps({"device": "x", "runs": [summary]})
    for text in (
        json.dumps(summary),
        json.dumps([summary, summary]),
        nested,
        json.dumps(summary) + "\n" + json.dumps(summary),
    ):
        path = tmp_path / "summary.json"
        path.write_text(text)
        run = runs.read_runs(path)[0]
        assert run.layout == Layout(1, 2, 1)
        assert run.pair_seconds == pytest.approx(6.4e-3)
        assert run.slowest_pair_seconds == 0.0066
        assert run.system.neighbors == 90.1
        assert run.system.ensemble == "nvt"
        assert run.sizes.table_rows == 1100
        assert run.memory == 4e8
        assert fit.evaluate([run], find_machine(run.machine)).predicted[0] > 0
    path.write_text(json.dumps([summary, summary | {"engine": "dpmd-rank"}]))
    assert [r.engine for r in runs.read_runs(path, engine="dpmd-rank")] == ["dpmd-rank"]
    del summary["seconds_per_step"]
    path.write_text(json.dumps(summary))
    with pytest.raises(PerformanceModelError, match=r"run 1: key 'seconds_per_step' is missing"):
        runs.read_runs(path)


LOG = """LAMMPS (23 Jun 2022)
  using 3 OpenMP thread(s) per MPI task
Created orthogonal box
  4 by 2 by 2 MPI processor grid
Per MPI rank memory allocation (min/avg/max) = 12.5 | 12.6 | 12.7 Mbytes
Loop time of 5.0 on 16 procs for 10 steps with 82944 atoms
Loop time of 50.82 on 16 procs for 99 steps with 82944 atoms

MPI task timing breakdown:
Section |  min time  |  avg time  |  max time  |%varavg| %total
---------------------------------------------------------------
Pair    | 48.5       | 49.4       | 50.5       |   2.0 | 97.2
Neigh   | 0.126      | 0.126      | 0.126      |   0.0 |  0.2
"""


def test_lammps_log_is_read(tmp_path):
    path = tmp_path / "log.lammps"
    path.write_text(LOG)
    run = runs.read_runs(path, model="copper-32-64-128")[0]
    assert run.layout == Layout(1, 16, 3, (4, 2, 2))
    assert run.system.atoms == 82944
    assert run.step_seconds == pytest.approx(50.82 / 99)
    assert (run.pair_seconds, run.slowest_pair_seconds) == (pytest.approx(49.4 / 99), pytest.approx(50.5 / 99))
    assert fit.evaluate([run], find_machine("fugaku")).score.mape < 5
    with pytest.raises(PerformanceModelError, match="use --model"):
        runs.read_runs(path)
    path.write_text("LAMMPS\nERROR: out of memory\n")
    with pytest.raises(PerformanceModelError, match="Loop time"):
        runs.read_runs(path, model="copper-32-64-128")


def test_csv_with_empty_columns_and_its_errors(tmp_path, data):
    with open(data / "fugaku_runs.csv") as file:
        rows = list(csv.DictReader(file))[:3]
    for row in rows:
        for key in row:
            if ("_ms" in key and key != "step_ms") or (key.startswith(("mem", "n", "rank_grid")) and key != "nodes"):
                row[key] = ""
    path = tmp_path / "blind.csv"

    def write(changed):
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(changed)

    write(rows)
    blind = runs.read_runs(path)
    assert [r.pair_seconds for r in blind] == [None] * 3
    assert blind[0].layout.rank_grid is None
    assert fit.evaluate(blind, find_machine("fugaku")).score.mape < 12
    write([rows[0] | {"nodes": "two"}])
    with pytest.raises(PerformanceModelError, match=r"blind.csv:2: .*two"):
        runs.read_runs(path)
    write([rows[0] | {"system": "silver"}])
    with pytest.raises(PerformanceModelError, match="--model silver="):
        runs.read_runs(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(PerformanceModelError, match=r"columns .* are missing"):
        runs.read_runs(path)


def test_other_programs_runs_fit(data):
    models = {name: f"{name}-25-50-100" for name in ("water", "copper")}
    found = runs.read_csv(data / "deepmd_vm.csv", models)
    free = ["embedding_efficiency", "serial_fraction", "launch_us"]
    assert fit.fit(found, find_machine("vm-2core-amx"), free, validate=False).score.mape < 8


@pytest.mark.parametrize(("file", "machine"), [("cpu_runs.json", "vm-2core-avx512"), ("h200_runs.json", "h200")])
def test_fit_to_our_own_runs(data, file, machine):
    """Both models, several sizes, threads, precisions: the stored profile is this fit; left-out sizes are met."""
    found, machine = runs.read_runs(data / file), find_machine(machine)
    assert {r.system.name for r in found} == {"water", "copper"}
    result = fit.fit(found, machine)
    assert result.score.mape <= 6
    assert result.validation["leave one size out"].mape <= 10
    stored = fit.evaluate(found, machine)
    assert stored.profile.quality == "measured"
    assert stored.score.mape == pytest.approx(result.score.mape, abs=0.1)


def test_low_rank_tables_are_counted():
    """Rank and near neighbours come from the basis of the precision; GPUs do not fold it."""
    from dpmd.models.cache import load_for_operators
    from dpmd.perfmodel.sizes import from_model

    examples = Path(__file__).parents[2] / "examples"
    water = load_for_operators(examples / "water" / "water.dp").model
    double, mixed, half = (from_model(water, None, p, 90.0) for p in ("double", "mixed", "half"))
    assert mixed == half
    assert mixed.rank < double.rank < water.descriptor.n_embedding
    assert 0 < mixed.direct_neighbors < 20
    assert not mixed.folded
    copper = from_model(load_for_operators(examples / "copper" / "copper.dp").model)
    assert copper.folded
    assert not replace(copper, folding=False).folded
    assert copper.direct_neighbors == 0


def test_refusals(fugaku_runs):
    machine = find_machine("fugaku")
    with pytest.raises(PerformanceModelError, match="cannot determine"):
        fit.fit(fugaku_runs[:3], machine)
    with pytest.raises(PerformanceModelError, match="did you mean launch_us"):
        fit.fit(fugaku_runs, machine, ["launch"])
    with pytest.raises(PerformanceModelError, match="one engine"):
        fit.fit([fugaku_runs[0], replace(fugaku_runs[1], engine="dpmd")], machine)
    with pytest.raises(PerformanceModelError, match="both sides"):
        fit.extrapolate(fugaku_runs, machine, 10**6)
    with pytest.raises(PerformanceModelError, match="no runs"):
        fit.prepare([], machine)
