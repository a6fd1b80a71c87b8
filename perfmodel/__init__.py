"""DP-perf: time, memory and cost of a Deep Potential run on any machine, without running it.

    >>> from dpmd.perfmodel import predict
    >>> p = predict("fugaku", "copper-32-64-128", "copper", nodes=12000, atoms=540_000)
    >>> p.seconds_per_step, p.ns_per_day, p.phases, p.fits          # doctest: +SKIP

The formulas are in :mod:`.steptime` (time and memory), :mod:`.workload` (operations and bytes) and
:mod:`.network` (messages and waiting); :mod:`.fit` finds the efficiencies of a machine from measured
runs, :mod:`.recommendation` compares machines.  The command is ``dp-perf``.
"""

from .errors import PerformanceModelError
from .machines import Coefficients, Machine, Profile, find_machine, machine_paths
from .network import Layout
from .prediction import Prediction, predict, predict_here, scan, weak_scaling
from .recommendation import Choice, Recommendation, recommend
from .runs import Run, read_runs
from .sizes import NAMED_SIZES, ModelSizes, find_sizes
from .systems import NAMED_SYSTEMS, PhysicalSystem, find_system
from .workload import ENGINES, Workload

__all__ = [
    "ENGINES",
    "NAMED_SIZES",
    "NAMED_SYSTEMS",
    "Choice",
    "Coefficients",
    "Layout",
    "Machine",
    "ModelSizes",
    "PerformanceModelError",
    "PhysicalSystem",
    "Prediction",
    "Profile",
    "Recommendation",
    "Run",
    "Workload",
    "find_machine",
    "find_sizes",
    "find_system",
    "machine_paths",
    "predict",
    "predict_here",
    "read_runs",
    "recommend",
    "scan",
    "weak_scaling",
]
