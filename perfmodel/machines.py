"""Machines: what a node can do, read from TOML files.

A machine file states, for one node, peak rates, memory, network, price and power.  Each figure is a
table ``{value, quality, source}``; quality is ``"measured"``, ``"vendor"`` (a data sheet or the
operator's page) or ``"estimated"``.  ``[profile.ENGINE]`` tables hold the efficiencies and
overheads of one engine there, fitted by ``dp-perf fit`` or estimated.

Files are looked for at the given path, then in the user's folder (:func:`user_folder`), then among
those that come with dpmd.
"""

import os
import re
import tomllib
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path

from .errors import PerformanceModelError, check_positive_integer, unknown

QUALITIES = ("measured", "vendor", "estimated")

#: Figures of a machine file: section, key, whether it must be there, meaning with unit.
FIGURES = (
    ("node", "cores", True, "CPU cores that compute"),
    ("node", "accelerators", False, "GPUs per node; peak, bandwidth and memory are then those of all GPUs together"),
    ("node", "domains", False, "memory domains (sockets, core groups): the usual number of ranks per node"),
    ("node", "count", False, "nodes of the machine"),
    ("peak", "double", True, "TFLOP/s, fp64"),
    ("peak", "single", True, "TFLOP/s, fp32"),
    (
        "peak",
        "half",
        False,
        "TFLOP/s of matrix products with fp16, bf16 or tf32 inputs and fp32 sums (default: single)",
    ),
    (
        "peak",
        "split",
        False,
        "TFLOP/s of products with fp32 inputs as three products with bf16 inputs (default: single)",
    ),
    ("memory", "bandwidth", True, "GB/s between memory and cores"),
    ("memory", "capacity", True, "GB"),
    ("memory", "cache", False, "MB of the last cache level; larger tables are gathered from memory"),
    ("network", "latency", False, "µs per message"),
    ("network", "bandwidth", False, "GB/s that a node can send"),
    ("cost", "price", False, "per node-hour, in [cost] currency"),
    ("cost", "power", False, "W per node while computing"),
)


@dataclass(frozen=True)
class Figure:
    """A number of a machine file with its quality and source."""

    value: float
    quality: str
    source: str


@dataclass(frozen=True)
class Coefficients:
    """Efficiencies and overheads of one engine on one machine: the free parameters of the model.

    gemm_efficiency : achieved / peak rate of the matrix products.
    embedding_efficiency : achieved / peak rate of tables or embedding networks.
    traffic_efficiency : achieved / peak bandwidth of gathers and temporary arrays.
    serial_fraction : part of the work of an atom that the threads of a rank do not share (Amdahl).
    launch_us : µs to start one operator.
    thread_start_us : µs per thread and operator, to wake it and to wait for it.
    message_us : µs of software per message and standard deviation of the slowest of all ranks.
    spread : relative standard deviation of the atoms per box is ``spread n^(-1/3)``.
    rank_megabytes : memory of a rank before it holds any atom, MB.
    table_copies : copies of the tables per rank.
    memory_factor : allocated / counted memory per atom.
    """

    gemm_efficiency: float = 0.5
    embedding_efficiency: float = 0.2
    traffic_efficiency: float = 0.15
    serial_fraction: float = 0.01
    launch_us: float = 10.0
    thread_start_us: float = 2.0
    message_us: float = 2.0
    spread: float = 0.25
    rank_megabytes: float = 300.0
    table_copies: float = 2.0
    memory_factor: float = 1.2


#: Physical bounds of each coefficient.
BOUNDS = {
    "gemm_efficiency": (0.01, 1.0),
    "embedding_efficiency": (0.001, 1.0),
    "traffic_efficiency": (0.0005, 1.0),
    "serial_fraction": (1e-4, 0.95),
    "launch_us": (0.2, 2000.0),
    "thread_start_us": (0.02, 200.0),
    "message_us": (0.05, 100.0),
    "spread": (0.02, 1.0),
    "rank_megabytes": (5.0, 5000.0),
    "table_copies": (0.5, 20.0),
    "memory_factor": (0.3, 5.0),
}

TIME_COEFFICIENTS = tuple(list(BOUNDS)[:8])
MEMORY_COEFFICIENTS = tuple(list(BOUNDS)[8:])


@dataclass(frozen=True)
class Profile:
    """Coefficients of one engine on one machine, and how well they are known.

    quality : ``"measured"`` (fitted to runs on this machine) or ``"estimated"``.
    relative_error : standard error of a predicted step time, relative.
    memory_error : the same of predicted memory.
    covariance : of the logarithms of the fitted coefficients ``free``, or ().
    """

    engine: str
    coefficients: Coefficients = field(default_factory=Coefficients)
    quality: str = "estimated"
    source: str = "no runs known; typical efficiencies"
    relative_error: float = 0.5
    memory_error: float = 0.5
    free: tuple[str, ...] = ()
    covariance: tuple = ()


@dataclass(frozen=True)
class Machine:
    """A machine, per node.  Rates in FLOP/s, bandwidths in B/s, capacities in B, times in s, power in W."""

    name: str
    title: str
    cores: int
    accelerators: int
    domains: int | None
    count: int | None
    peak: dict
    bandwidth: float
    capacity: float
    cache: float
    latency: float
    network_bandwidth: float
    price: float | None
    currency: str
    power: float | None
    topology: str
    notes: str
    figures: dict = field(repr=False)
    profiles: dict = field(repr=False)
    path: Path | None = None

    @property
    def workers(self):
        """What ranks are bound to: accelerators, or cores."""
        return self.accelerators or self.cores

    def profile(self, engine):
        """The :class:`Profile` of an engine, or a related engine's, or typical values, always marked."""
        for name in (engine, engine.removesuffix("-rank"), engine.removesuffix("-padded")):
            if name in self.profiles:
                return self.profiles[name]
        kind = "cpu" if not self.accelerators else "gpu" if "peak.split" in self.figures else "plain gpu"
        return Profile(engine, _TYPICAL[kind]["dpmd" in engine])


# Typical coefficients where no run is known.  dpmd, CPU: prototype kernels on one AVX-512 core reach 0.77 of
# peak in the fitting network and 0.36 in tables; GPU: as on one H200, without
# bf16 products as prototypes there.  DeePMD-kit:
# the fit to Fugaku; on GPUs tables about 0.3 of peak and 20 µs per operator of a TensorFlow graph.
_TYPICAL = {
    "cpu": {
        True: Coefficients(0.70, 0.33, 0.3, 0.005, 8.0, 1.0, 2.0, 0.25, 300.0, 1.0, 1.2),
        False: Coefficients(0.27, 0.13, 0.08, 0.015, 60.0, 5.0, 5.0, 0.25, 300.0, 4.0, 1.2),
    },
    "gpu": {
        True: Coefficients(0.22, 1.00, 0.30, 0.005, 8.0, 0.02, 5.0, 0.25, 600.0, 1.0, 1.2),
        False: Coefficients(0.50, 0.30, 0.15, 0.005, 60.0, 0.02, 5.0, 0.25, 800.0, 2.0, 1.2),
    },
}
_TYPICAL["plain gpu"] = _TYPICAL["gpu"] | {
    True: Coefficients(0.60, 0.50, 0.08, 0.005, 8.0, 0.02, 5.0, 0.25, 600.0, 1.0, 1.2)
}


def user_folder():
    """Where machine files of the user are kept: ``$DPMD_MACHINES`` or the configuration folder of dpmd."""
    if "DPMD_MACHINES" in os.environ:
        return Path(os.environ["DPMD_MACHINES"])
    import platformdirs

    return Path(platformdirs.user_config_dir("dpmd")) / "machines"


def _shipped_folder():
    return Path(str(files("dpmd.perfmodel") / "machines"))


def machine_paths():
    """All machine files by name; the user's files hide those of the same name that come with dpmd."""
    found = {p.stem: p for p in sorted(_shipped_folder().glob("*.toml"))}
    folder = user_folder()
    if folder.is_dir():
        found |= {p.stem: p for p in sorted(folder.glob("*.toml"))}
    return found


def find_machine(name):
    """A :class:`Machine` by name or path; an unknown name suggests the nearest ones."""
    if isinstance(name, Machine):
        return name
    if name is None or not str(name).strip():
        raise PerformanceModelError(f"a machine is needed; known: {', '.join(machine_paths())}")
    path = Path(str(name))
    if path.suffix == ".toml":
        if not path.is_file():
            raise PerformanceModelError(f"no machine file {str(name)!r}")
        return load(path)
    paths = machine_paths()
    key = str(name).lower()
    if key not in paths:
        raise unknown("machine", name, paths)
    return load(paths[key])


def load(path):
    """Read one machine file."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise PerformanceModelError(f"{path}: {error}") from error
    return from_dict(data, path)


def from_dict(data, path=None):
    """A :class:`Machine` from the content of a machine file; errors name the file and the figure."""
    where = str(path) if path else "machine"
    figures = _figures(data, where)

    def value(section, key, default=None):
        figure = figures.get(f"{section}.{key}")
        return default if figure is None else figure.value

    profiles = {name: _profile(name, table, where) for name, table in data.get("profile", {}).items()}
    single = value("peak", "single") * 1e12
    return Machine(
        name=data.get("name") or (path.stem if path else "machine"),
        title=data.get("title", ""),
        cores=check_positive_integer(f"{where}: node.cores", value("node", "cores")),
        accelerators=int(value("node", "accelerators", 0)),
        domains=None if value("node", "domains") is None else int(value("node", "domains")),
        count=None if value("node", "count") is None else int(value("node", "count")),
        peak={
            "double": value("peak", "double") * 1e12,
            "single": single,
            "half": value("peak", "half", single / 1e12) * 1e12,
            "split": value("peak", "split", single / 1e12) * 1e12,
        },
        bandwidth=value("memory", "bandwidth") * 1e9,
        capacity=value("memory", "capacity") * 1e9,
        cache=value("memory", "cache", 0.0) * 1e6,
        latency=value("network", "latency", 2.0) * 1e-6,
        network_bandwidth=value("network", "bandwidth", 10.0) * 1e9,
        price=value("cost", "price"),
        currency=data.get("cost", {}).get("currency", "EUR"),
        power=value("cost", "power"),
        topology=data.get("network", {}).get("topology", ""),
        notes=data.get("notes", ""),
        figures=figures,
        profiles=profiles,
        path=path,
    )


def _figures(data, where):
    figures, known = {}, {}
    for section, key, needed, meaning in FIGURES:
        known.setdefault(section, []).append(key)
        raw = data.get(section, {}).get(key)
        if raw is None:
            if needed:
                raise PerformanceModelError(f"{where}: [{section}] {key} is missing ({meaning})")
            continue
        if not isinstance(raw, dict) or not {"value", "quality", "source"} <= set(raw):
            raise PerformanceModelError(f"{where}: [{section}] {key} must be a table with value, quality and source")
        if raw["quality"] not in QUALITIES:
            raise unknown(f"quality of [{section}] {key} in {where}", raw["quality"], QUALITIES)
        if not raw["value"] > 0 and (section, key) != ("node", "accelerators"):
            raise PerformanceModelError(f"{where}: [{section}] {key} must be positive; got {raw['value']}")
        figures[f"{section}.{key}"] = Figure(raw["value"], raw["quality"], raw["source"])
    for section, keys in known.items():
        for key in data.get(section, {}):
            if key not in (*keys, "topology", "currency"):
                raise unknown(f"figure of [{section}] in {where}", key, keys)
    return figures


def _profile(engine, table, where):
    table = dict(table)
    names = {f.name for f in fields(Coefficients)}
    values = table.pop("coefficients", {})
    for key, value in values.items():
        if key not in names:
            raise unknown(f"coefficient of profile {engine} in {where}", key, names)
        low, high = BOUNDS[key]
        if not low <= value <= high:
            raise PerformanceModelError(f"{where}: {key} = {value} of profile {engine} is outside {low:g} to {high:g}")
    known = {f.name for f in fields(Profile)}
    for key in table:
        if key not in known:
            raise unknown(f"key of profile {engine} in {where}", key, known)
    table["free"] = tuple(table.get("free", ()))
    table["covariance"] = tuple(map(tuple, table.get("covariance", ())))
    return Profile(engine, Coefficients(**values), **table)


# ---------------------------------------------------------------------------------------------
# writing


def profile_text(profile):
    """The TOML table of a profile."""
    lines = [f"[profile.{profile.engine}]"]
    lines += [f'quality = "{profile.quality}"', f"source = {_quoted(profile.source)}"]
    lines += [f"relative_error = {profile.relative_error:.4g}", f"memory_error = {profile.memory_error:.4g}"]
    if profile.free:
        lines.append("free = [" + ", ".join(f'"{name}"' for name in profile.free) + "]")
        rows = ",\n    ".join("[" + ", ".join(f"{c:.4g}" for c in row) + "]" for row in profile.covariance)
        lines += ["# of the logarithms of the free coefficients", f"covariance = [\n    {rows},\n]"]
    lines += ["", f"[profile.{profile.engine}.coefficients]"]
    lines += [f"{f.name} = {getattr(profile.coefficients, f.name):.5g}" for f in fields(Coefficients)]
    return "\n".join(lines) + "\n"


def _quoted(text):
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def store_profile(machine, profile, path=None):
    """Write the machine file with ``profile`` added or replaced; returns the path.

    path : default is the machine's own file if the user owns it, else a copy in :func:`user_folder`
        (files that came with dpmd stay as they are unless their path is given).
    """
    from dpmd.models.files import write_text

    if machine.path is None:
        raise PerformanceModelError(f"machine {machine.name!r} was not read from a file; give the path to write")
    text = Path(machine.path).read_text()
    header = re.escape(f"[profile.{profile.engine}")
    # From this engine's first header up to the next header that is not one of its own.
    text = re.sub(rf"(?ms)^{header}[\].].*?(?=^\[(?!profile\.{re.escape(profile.engine)}[\].])|\Z)", "", text)
    if path is None:
        own = Path(machine.path).parent != _shipped_folder()
        path = machine.path if own else user_folder() / Path(machine.path).name
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.rstrip() + "\n\n" + profile_text(profile))
    return path


def this_machine():
    """The machine at hand: the user's ``local.toml`` (written by ``dp-perf measure``), or a rough guess."""
    if "local" in machine_paths():
        return find_machine("local")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    guess = "estimated", "typical core of 2020 to 2025; run dp-perf measure"
    entry = lambda value: dict(zip(("value", "quality", "source"), (value, *guess), strict=True))  # noqa: E731
    return from_dict(
        {
            "name": "local",
            "title": "this machine, not measured",
            "node": {"cores": entry(cores)},
            "peak": {"double": entry(0.05 * cores), "single": entry(0.1 * cores)},
            "memory": {"bandwidth": entry(20.0), "capacity": entry(_physical_memory() / 1e9)},
        }
    )


def _physical_memory():
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, AttributeError, OSError):  # not a POSIX system
        return 8e9
