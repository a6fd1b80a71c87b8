"""Operators on a GPU: the embedding kernels with cuBLAS products between them, chunk by chunk."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dpmd.models.lowrank import describe_low_rank
from dpmd.models.networks import evaluate
from dpmd.models.surroundings import typical_descriptor
from dpmd.models.tables import checked_distance

from ..operators import Evaluation, resolve_parameters
from .device import HALF, INPUT_TYPES, PLAIN, SPLIT, WORKSPACE, CudaDevice, DeviceError
from .packing import even, pack_embeddings, pack_exact_networks, pack_fitting
from .sums import Sums

FIXED_SCALE = 2.0**42  # units of forces and virials in kernels, as in common.cuh
#: centres of a chunk; scratch memory is about 22 kB each in mixed precision
CHUNK = 32768
#: chunks are not made smaller than this when memory is short
LEAST_CHUNK = 256
#: bytes of scratch for the rows of exact embedding networks
EXACT_BYTES = 256 << 20
#: Å: rounding distances to single precision shows in forces as the inverse square of the switching function's width
NARROW_SWITCH = 0.5
#: rows of a block and its threads, as in few.cu
FEW_ROWS, FEW_THREADS = 8, 512
#: whose low-rank bases each mode uses
_bases = {"double": "double", "mixed": "mixed", "half": "mixed"}
PHASES = ("embedding forward", "fitting", "embedding backward")


@dataclass
class Work:
    """Atoms and lists on the device, and where results go.

    atoms : (atoms, 4) float64, x, y, z in Å and, as int64 bits, the row of ``forces`` that takes the
    atom's force; rows (centres, stride) int32 and counts (centres, T) int32 : neighbours by type;
    centres : (n,) int32, grouped by type; type_counts : (T,) how many of each;
    forces : (rows, 4) int64 in units of 2^-42 eV/Å, set to zero first; energies, constants : (atoms,)
    float64, eV; virials : (centres, 9) float64 or None; atomic_virials : (rows, 9) int64 or None;
    extra : (centres, n_extra) float64 or None; counters : (2,) int32, centres with too many neighbours, added to in
    ``launched`` evaluations, of which ``taken`` were of use (others were ahead of lists that turned out too old), and
    the nearest pair as in ``embedding.cu``, raised.
    """

    atoms: Any
    rows: Any
    counts: Any
    centres: Any
    type_counts: list
    forces: Any
    energies: Any
    constants: Any
    counters: Any
    virials: Any = None
    atomic_virials: Any = None
    extra: Any = None
    launched: int = 0
    taken: int = 0


class CudaOperators:
    """Operators on one GPU; see :class:`dpmd.kernels.operators.Operators`.

    model : with tables, or exact networks where it has none; precision : ``"double"``, ``"mixed"`` or
    ``"half"``; device : a :class:`~dpmd.kernels.cuda.device.CudaDevice` or its number; chunk : centres
    evaluated at a time; low_rank : False for full table rows; strict : in ``mixed``, products in plain
    fp32 instead of three bf16 products.
    few : for up to some thousand atoms, a shorter chain of kernels, products in plain fp32 (or fp64).
    Forces are summed in fixed point, so results are bitwise the same in every run.
    """

    threads = 1

    def __init__(self, model, precision="double", device=0, chunk=None, low_rank=True, strict=False, few=False):
        if precision not in ("double", "mixed", "half"):
            raise ValueError(f"precision {precision!r} is not one of double, mixed, half")
        self.model, self.precision = model, precision
        self.device = CudaDevice(device) if isinstance(device, int) else device
        d, f = model.descriptor, model.fitting
        if d.n_embedding > 128 or d.axis_neuron > 32:
            raise DeviceError("embeddings wider than 128 or axes beyond 32 do not run on a GPU; use --device cpu")
        self._dtype = np.dtype(np.float64 if precision == "double" else np.float32)
        split = precision == "mixed" and self.device.has_bf16 and not strict
        self._kind = PLAIN if few else HALF if precision == "half" else SPLIT if split else PLAIN
        self._few = few
        self._input_type = INPUT_TYPES.get(self._kind, self._dtype)
        packed = pack_embeddings(d, _bases[precision] if low_rank else None, single=precision != "double")
        self._exact = bool(packed.networks)
        self.n_basis = packed.expansion.shape[2]
        self.n_extra = f.n_fparam + f.n_aparam
        self._d_stride = -(-(d.axis_neuron * even(d.n_embedding) + even(self.n_extra)) // 8) * 8
        upload, real = self.device.upload, self._dtype
        self._near, self._far = upload(packed.near.astype(real)), upload(packed.far.astype(real))
        environment = (
            d.switch_start, 1 / d.switch_width, d.protection, d.switch_end**2, 1 / d.neighbor_count,
            checked_distance(model) ** 2, 0, 0,
        )  # fmt: skip
        self._environment = upload(np.array(environment))
        # in mixed precision too, where it costs little or would show most
        wide = precision == "double" or self.device.fast_double or d.switch_width < NARROW_SWITCH
        geometry = np.float64 if wide else real
        self._statistics = upload(
            np.stack([d.radial_mean, 1 / d.radial_std, 1 / d.angular_std, 0 * d.radial_mean], axis=1).astype(geometry)
        )
        self._pair_numbers = upload(packed.pair_numbers.astype(geometry))
        self._pair_integers = upload(packed.pair_integers)
        self._padding = [upload(p.astype(real)) for p in packed.padding]
        self._expansion = [upload(e.astype(real)) for e in packed.expansion]
        self._transposed = [upload(np.ascontiguousarray(e.transpose(0, 2, 1)).astype(real)) for e in packed.expansion]
        if self._exact:
            self._networks = [upload(array) for array in pack_exact_networks(packed.networks, real)]
        self._fitting = [self._upload_fitting(t) for t in range(model.n_types)]
        self._kernels = self.device.compile(
            ("embedding.cu", "fitting.cu", "few.cu"),
            {
                "REAL": "double" if precision == "double" else "float", "INPUT_KIND": self._kind,
                "GEOMETRY": "double" if wide else "float",
                "N_TYPES": d.n_types, "N_EMBEDDING": d.n_embedding, "N_AXIS": d.axis_neuron, "N_BASIS": self.n_basis,
                "EXACT": int(self._exact), "SHARED_SELECTION": int(d.shared_selection),
                # one warp has a multiprocessor to itself: registers for loads in flight
                **({"UNROLL": 8, "FORWARD_BLOCKS": 2, "BACKWARD_BLOCKS": 2} if few else {}),
            },
        )  # fmt: skip
        self._chunk, self._scratch, self._room = chunk, None, (0, 0)
        self._work = self._key = self._host_list = None
        self._sums, self._nearest = Sums(self.device), np.inf
        #: as of the CPU operators; kernels of a recorded step are not timed one by one
        self.seconds = dict.fromkeys(("geometry", "embedding", "descriptor", "fitting", "force"), 0.0)

    def look_anew(self):
        """Forget the nearest pair: what comes is of another system."""
        self._nearest = np.inf
        if self._work is not None:
            self._work.counters[1:].fill(0)

    def in_double(self):
        """Operators of the same model, on the same device, in float64; these where they are."""
        if self.precision == "double":
            return self
        other = CudaOperators(self.model, "double", self.device, self._chunk, few=self._few)
        other.threads = self.threads
        return other

    @property
    def products(self):
        """The numbers of the fitting networks' products, for the log."""
        return {
            PLAIN: str(self._dtype),
            HALF: "fp16 (tensor cores), differences from a typical atom; fp32 sums",
            SPLIT: "split bf16 (3 products), fp32 sums",
        }[self._kind]

    @property
    def description(self):
        """What is computed how, for the log."""
        tables = "full table rows"
        if self._exact:
            tables = "exact embedding networks"
        elif self.n_basis:
            tables = describe_low_rank(self.model, _bases[self.precision])
        return f"{self.device.name}; products in {self.products}; {tables}"

    @property
    def nearest(self):
        """Å, distance of the nearest pair evaluated so far, if it was nearer than was checked; else inf."""
        if self._work is not None:
            self._count(self._work.counters)
        return self._nearest

    def _count(self, counters):
        """How many centres had too many neighbours; notes the nearest pair, too."""
        counters = self.device.download(counters)
        if counters[1]:
            self._nearest = min(self._nearest, float(counters.view(np.float32)[1]) ** -0.5)
        return int(counters[0])

    def _upload_fitting(self, t):
        f = self.model.fitting
        if t in f.silent_types:
            return None
        reference = typical_descriptor(self.model.descriptor, t) if self._kind == HALF else None
        packed = pack_fitting(
            f.networks[t], self.model.descriptor, self.n_extra, self._d_stride, self._kind, self._dtype, reference
        )
        for layer in packed.layers:
            for name in ("weight", "transposed", "bias", "timestep", "parameters"):
                value = getattr(layer, name)
                setattr(layer, name, None if value is None else self.device.upload(value))
        for name in ("top", "reference", "slope_reference", "gradient_reference"):
            value = getattr(packed, name)
            setattr(packed, name, None if value is None else self.device.upload(value))
        return packed

    def constant_energies(self, types, extra=None):
        """(atoms,) eV: bias, less the energy at zero descriptor where the model asks for it."""
        f = self.model.fitting
        energies = np.zeros(len(types))
        for t in range(self.model.n_types):
            atoms = np.flatnonzero(types == t)
            if len(atoms) == 0 or t in f.silent_types:
                continue
            energies[atoms] = f.energy_bias[t] + self._fitting[t].bias
            if f.subtract_vacuum[t]:
                rows = np.zeros((len(atoms) if self.n_extra else 1, self.model.descriptor.n_out + self.n_extra))
                if self.n_extra:
                    rows[:, self.model.descriptor.n_out :] = extra[atoms]
                energies[atoms] -= evaluate(f.networks[t], rows)[:, 0]
        return energies

    # ------------------------------------------------------------------ memory

    def bytes_per_centre(self, stride):
        """Scratch bytes for one centre of a chunk."""
        d, item = self.model.descriptor, self._dtype.itemsize
        parts = {PLAIN: item, HALF: 2, SPLIT: 4}[self._kind]
        hidden = max((sum(layer.n_out for layer in f.layers) for f in self._fitting if f), default=0)
        widest = max((layer.n_out for f in self._fitting if f for layer in f.layers), default=0)
        rows = 6 * -(-d.n_embedding // 32) * 32 * stride * item if self._exact else 0
        return (
            item * (4 * d.n_embedding + d.n_types + self._d_stride + 2 * hidden + 2 * widest)
            + parts * self._d_stride + 6 * widest * (1 if self._kind == SPLIT else 2) + rows
        )  # fmt: skip

    def predicted_memory(self, n_atoms, n_ghosts, stride, with_virial=False):
        """Bytes on the device of a simulation: atoms, lists with room for ``stride``, scratch, tables, cuBLAS.

        At a rebuild, sorting needs as much as keys and candidates of all atoms and ghosts once more.
        """
        d = self.model.descriptor
        per_atom = 32 * 3 + 32 * 2 + 32 * 2 + 2 * (8 + 4 + 8 + 12) + 16 + 4 * d.n_types + 4 + 4 * stride + 24
        per_atom += 72 * with_virial
        per_any = 32 + 12 + 4 + 4 + 16 + 4 * 8
        tables = sum(a.nbytes for a in (self._near, self._far))
        scratch = min(n_atoms, self._chunk or CHUNK) * self.bytes_per_centre(stride)
        if self._few:
            scratch *= len(self._fitting)
        return int(n_atoms * per_atom + (n_atoms + n_ghosts) * per_any + scratch + tables + WORKSPACE)

    def _prepare(self, type_counts, stride):
        """Scratch for chunks of centres; smaller chunks where memory is short."""
        stride, most = stride if self._exact else 0, max([*type_counts, 1])
        if self._scratch and most <= self._room[0] and stride <= self._room[1]:
            return
        self._scratch = None
        each = self.bytes_per_centre(stride)
        rows = min(most, self._chunk or CHUNK)
        if self._exact:
            rows = max(1, min(rows, EXACT_BYTES // each))
        while rows > LEAST_CHUNK and rows * each > 0.8 * self.device.memory()[0]:
            rows //= 2
        # with few atoms all types at once
        self._scratch = [self._make_scratch(rows, stride)]
        self._scratch *= self.model.n_types
        if self._few:
            self._scratch = [self._make_scratch(rows, stride) for _ in self._fitting]
        self._room, self._rows = (max(most, rows), stride), rows

    @property
    def chunk_in_use(self):
        """Centres evaluated at a time, as memory allowed."""
        return self._rows

    def _make_scratch(self, rows, stride):
        d, real, empty, zeros = self.model.descriptor, self._dtype, self.device.empty, self.device.zeros
        parts, hidden_parts = (2, 3) if self._kind == SPLIT else (1, 1)
        layers = [f.layers for f in self._fitting if f]
        depth = max(map(len, layers), default=0)
        widths = [max((ls[k].n_out for ls in layers if k < len(ls)), default=0) for k in range(depth)]
        widest = max(widths, default=0)
        return {
            "T": empty((rows, 4 * d.n_embedding), real),
            "limits": empty((rows, d.n_types), real),
            "D": zeros((rows, parts * self._d_stride), self._input_type),
            "dD": empty((rows, self._d_stride), real),
            "z": [empty((rows * w,), real) for w in widths],
            "y": [empty((rows * w,), real) for w in (widths if self._few else widths[:-1])],
            "g": [empty((rows * widest,), real) for _ in range(2)],
            "input": empty((rows * hidden_parts * widest,), self._input_type),
            "h": [empty((rows * widest,), real) for _ in range(2)] if self._few else None,
            "partial": empty((rows * (widest // 32 + 1),), np.float64) if self._few else None,
            "exact": empty((rows, stride * 6 * -(-d.n_embedding // 32) * 32), real) if self._exact else None,
        }

    # ------------------------------------------------------------------ evaluation on the device

    def prepare(self, work):
        """Allocate what :meth:`launch` needs, so that it can be recorded."""
        self._prepare(work.type_counts, work.rows.shape[1])

    def launch(self, work, phases=PHASES):
        """Energies, forces (from zero) and, where asked for, virials of all centres of ``work``.

        phases : fewer only to time them; then results are void.
        """
        self.prepare(work)
        work.forces.fill(0)
        if work.atomic_virials is not None:
            work.atomic_virials.fill(0)
        starts = np.cumsum([0, *work.type_counts])
        types = [t for t, count in enumerate(work.type_counts) if count and self._fitting[t] is not None]
        if self._few and not self._exact:
            self.device.concurrently([partial(self._launch_type, work, t, int(starts[t]), phases) for t in types])
            return
        for t in types:
            self._launch_type(work, t, int(starts[t]), phases)

    def _launch_type(self, work, t, start, phases):
        count = work.type_counts[t]
        pieces = -(-count // self._rows)
        for k in range(pieces):
            first, last = k * count // pieces, (k + 1) * count // pieces
            self._launch_chunk(work, t, work.centres[start + first : start + last], phases)

    def _launch_chunk(self, work, t, centres, phases):
        s, n, kernels, network = self._scratch[t], len(centres), self._kernels, self._fitting[t]
        common = (
            n, centres, t, work.atoms, work.rows, work.counts, work.rows.shape[1], self._environment,
            self._statistics, self._pair_numbers, self._pair_integers,
        )  # fmt: skip
        near = self._near
        if self._exact:
            near = s["exact"]
            kernels.warps(
                "exact_rows", n * work.rows.shape[1], *common, self._near, self._far, *self._networks, near
            )  # fmt: skip
        common = (*common, near, self._far)
        if "embedding forward" in phases:
            kernels.warps(
                "embedding_forward", n, *common, self._padding[t], self._expansion[t], s["T"], s["limits"],
                network.reference, s["D"], self._d_stride, work.counters,
            )  # fmt: skip
        if self.n_extra:
            column = self.model.descriptor.axis_neuron * even(self.model.descriptor.n_embedding)
            kernels.threads("put_extra", n, n, centres, work.extra, self.n_extra, column, s["D"], self._d_stride)
        if "fitting" in phases:
            launch_fitting = self._launch_few if self._few else self._launch_fitting
            launch_fitting(s, work, network, n, centres)
        if "embedding backward" in phases:
            backward = "embedding_backward" if work.virials is None else "embedding_backward_virial"
            kernels.warps(
                backward, n, *common, self._transposed[t], s["T"], s["limits"], network.gradient_reference, s["dD"],
                self._d_stride, work.forces, work.virials, work.atomic_virials,
            )  # fmt: skip

    def _launch_few(self, s, work, network, n, centres):
        """As :meth:`_launch_fitting`, by the kernels of few.cu."""
        layers, top, blocks = network.layers, len(network.layers) - 1, self._kernels.blocks
        before = s["D"]
        for number, layer in enumerate(layers):
            count = -(-n // FEW_ROWS) * -(-layer.n_out // 32)
            last = number == top
            blocks(
                "few_forward", count, FEW_THREADS, n, layer.n_in, layer.n_out, before, layer.weight, layer.bias,
                layer.timestep, layer.code, layer.parameters, layer.skip, before, s["y"][number], s["z"][number],
                network.top if last else None, s["partial"] if last else None,
            )  # fmt: skip
            before = s["y"][number]
        h, above, stride = before, network.top, 0
        for number in range(top, -1, -1):
            layer = layers[number]
            count = -(-n // FEW_ROWS) * -(-layer.n_in // 32)
            slope = s["z"][number - 1] if number else None
            g, below = (s["g"][number % 2], s["h"][number % 2]) if number else (s["dD"], None)
            energies = (None, 0, None, None, None)
            if number == top:
                energies = (s["partial"], -(-layer.n_out // 32), centres, work.constants, work.energies)
            blocks(
                "few_backward", count, FEW_THREADS, n, layer.n_out, layer.n_in, h, layer.transposed, above, stride,
                layer.skip, slope, g, below, *energies,
            )  # fmt: skip
            h, above, stride = below, g, layer.n_in

    def _launch_fitting(self, s, work, network, n, centres):
        """From D of the scratch s to energies and dE/dD."""
        kind, multiply, kernels = self._kind, self.device.multiply, self._kernels
        parts = 3 if kind == SPLIT else 1
        layers, top = network.layers, len(network.layers) - 1
        before = None
        for number, layer in enumerate(layers):
            z, n_in, n_out = s["z"][number], layer.n_in, layer.n_out
            if number == 0:
                self._first_product(s["D"], layer, z, n)
            else:
                multiply(kind, s["input"], layer.weight, z, (n, n_out, parts * n_in), (parts * n_in, n_out, n_out))
            activation = (layer.bias, layer.timestep, layer.code, layer.parameters, layer.skip, before)
            about = network.slope_reference if top == 0 else None
            if number < top:
                y = s["y"][number]
                kernels.warps("fitting_forward", n, n, n_out, n_in, z, *activation, y, s["input"])
                before = y
            else:
                kernels.warps(
                    "fitting_top", n, n, centres, n_out, n_in, z, *activation, network.top, about,
                    work.constants, work.energies, s["input"],
                )  # fmt: skip
        above, stride = network.top, 0
        for number in range(top, -1, -1):
            layer = layers[number]
            k = parts * layer.n_out
            if number == 0:
                multiply(
                    kind, s["input"], layer.transposed, s["dD"], (n, layer.n_in, k), (k, layer.n_in, layer.n_in)
                )  # fmt: skip
                break
            g = s["g"][number % 2]
            multiply(kind, s["input"], layer.transposed, g, (n, layer.n_in, k), (k, layer.n_in, layer.n_in))
            about = network.slope_reference if number == 1 else None
            kernels.warps(
                "fitting_backward", n, n, layer.n_in, g, above, stride, layer.skip, s["z"][number - 1], about,
                s["input"],
            )  # fmt: skip
            above, stride = g, layer.n_in

    def _first_product(self, D, layer, z, n):
        """z = D W of the first layer, which has the most inputs.

        SPLIT: the small products hi lo + lo hi first, then hi hi in two sums over half of the inputs.
        Matrix units cut off what is added to a large sum, which would show in the energy (2e-6 eV/atom);
        the partial sums are added with rounding.
        """
        k, n_out, multiply = layer.n_in, layer.n_out, self.device.multiply
        if self._kind != SPLIT:
            multiply(self._kind, D, layer.weight, z, (n, n_out, k), (k, n_out, n_out))
            return
        lead, D, weight = (2 * k, n_out, n_out), D.reshape(-1), layer.weight
        multiply(SPLIT, D, weight, z, (n, n_out, 2 * k), lead)
        half = k // 16 * 8
        for first, last in ((0, half), (half, k)):
            if last > first:
                multiply(
                    SPLIT, D[first:], weight[k + first :], z, (n, n_out, last - first), lead, accumulate=True
                )  # fmt: skip

    # ------------------------------------------------------------------ steps of a simulation

    def _evaluate_on_device(
        self, atoms, types, neighbors, forces, frame_parameters, atomic_parameters, atomic_virials
    ):  # fmt: skip
        arrays = atoms, neighbors.rows, neighbors.counts, neighbors.centres
        key = neighbors.generation, neighbors.with_virial
        if self._key != key or any(a is not b for a, b in zip(self._arrays, arrays, strict=True)):
            self._key, self._arrays = key, arrays
            self._begin_steps(neighbors, forces, frame_parameters, atomic_parameters)
        work, counted = self._work, self._version != neighbors.version
        if counted:
            self._version, self._first_of_list = neighbors.version, True
            # -1, atoms that are ignored and room to spare, is the last
            work.constants[...] = self._by_type[types[: len(neighbors.counts)]]
        if atomic_virials or forces is not work.forces:
            neighbors.follow()
            return self._evaluate_beside(work, neighbors, forces, atomic_virials)
        result, first = DeviceEvaluation(self, work, neighbors, counted), self._first_of_list
        self._first_of_list = False
        work.taken += 1
        if self._replay is None or self._recorded_scratch is not self._scratch:
            if self._replay is None and first:
                # once directly: compiles, and cuBLAS and NCCL set themselves up; lists used once are not worth more
                neighbors.follow()
                self.launch(work)
                neighbors.give_back()
                work.launched += 1
                return result
            self.prepare(work)
            self._replay, self._recorded_scratch = self._record(neighbors, work), self._scratch
        if not neighbors.is_ahead:
            self._replay()
            work.launched += 1
        neighbors.is_ahead = False
        neighbors.ahead = self._go_ahead
        return result

    def _go_ahead(self):
        """Evaluate the recorded step once more; False if it cannot be done in this way."""
        if self._replay is None or self._recorded_scratch is not self._scratch:
            return False
        self._replay()
        self._work.launched += 1
        return True

    def _record(self, neighbors, work):
        """A function that evaluates these lists, and later ones in the same arrays, recorded as far as may be."""

        def step(evaluate):
            neighbors.follow()
            evaluate()
            neighbors.give_back()

        launch = partial(self.launch, work)
        if neighbors.recordable:
            return self.device.record(partial(step, launch))
        return partial(step, self.device.record(launch))

    def _begin_steps(self, neighbors, forces, frame_parameters, atomic_parameters):
        """Arrays for evaluations of these lists, which later ones use again."""
        n, device = len(neighbors.counts), self.device
        self._work = work = Work(
            atoms=self._arrays[0], rows=neighbors.rows, counts=neighbors.counts, centres=neighbors.centres,
            type_counts=neighbors.type_counts, forces=forces, energies=device.zeros(n, np.float64),
            constants=device.empty(n, np.float64), counters=device.zeros(2, np.int32),
            virials=device.zeros((n, 9), np.float64) if neighbors.with_virial else None,
        )  # fmt: skip
        _, extra = resolve_parameters(self.model, 1, frame_parameters, atomic_parameters, None)
        if self.n_extra:
            work.extra = device.upload(np.repeat(extra, n, axis=0))
        kinds = np.arange(self.model.n_types)
        by_type = self.constant_energies(kinds, np.repeat(extra, len(kinds), axis=0))
        self._by_type = device.upload(np.append(by_type, 0.0))
        self._version = self._replay = self._recorded_scratch = None

    def _evaluate_beside(self, work, neighbors, forces, atomic_virials):
        """An evaluation for outputs: sums on the host, ``work`` as it was; ``forces`` are overwritten."""
        device, n = self.device, neighbors.n
        of_atoms = device.empty((len(forces), 9), np.int64) if atomic_virials else None
        work = replace(
            work, forces=forces, virials=device.zeros((len(work.counts), 9), np.float64), atomic_virials=of_atoms,
            counters=device.zeros(2, np.int32),
        )  # fmt: skip
        self.launch(work)
        return Evaluation(
            energies=self.sum_columns(work.energies[:n], 1),
            virials=self.sum_columns(work.virials[:n], 9).reshape(1, 3, 3),
            atomic_energies=device.download(work.energies[:n]),
            atomic_virials=(device.download(of_atoms) / FIXED_SCALE).reshape(-1, 3, 3) if atomic_virials else None,
            overflowed=self._count(work.counters),
        )

    def phase_seconds(self, repeats=5):
        """Seconds {phase: least of ``repeats``} of the last step's PHASES, each recorded by itself.

        Forces and sums stay as they are.
        """
        device, found, last = self.device, {}, self._work
        work = replace(
            last, forces=device.empty(last.forces.shape, np.int64),
            energies=device.empty(last.energies.shape, np.float64),
            virials=None if last.virials is None else device.empty(last.virials.shape, np.float64),
            counters=device.zeros(2, np.int32),
        )  # fmt: skip
        self.launch(work)
        for phase in PHASES:
            replay = device.record(partial(self.launch, work, (phase,)))
            replay()
            for _ in range(repeats):
                watch = device.stopwatch()
                replay()
                watch.mark(phase)
                found[phase] = min(found.get(phase, np.inf), watch.seconds()[phase])
        return found

    def sum_columns(self, values, columns):
        """Sums (columns,) of the columns of an array on the device, always in the same order."""
        return self._sums.sum("sum_columns", columns, len(values), columns, values)

    def virial(self, work, neighbors):
        """(3, 3) eV of the atoms of ``work``; evaluates them again if the last evaluation left it out."""
        if work.virials is None:
            unused = self.device.empty(work.forces.shape, np.int64)
            return self._evaluate_beside(work, neighbors, unused, False).virials[0]
        return self.sum_columns(work.virials[: neighbors.n], 9).reshape(3, 3)

    # ------------------------------------------------------------------ evaluation of arrays on the host

    def evaluate(
        self,
        positions,
        types,
        neighbors,
        forces,
        *,
        frame_parameters=None,
        atomic_parameters=None,
        system_offsets=None,
        atomic_virials=False,
    ):
        """See :class:`dpmd.kernels.operators.Operators`.

        With a list of a :class:`dpmd.parallel.DeviceDomain`, arrays stay on the device: ``positions`` are
        its atoms, ``forces`` (n, 4) in fixed point are overwritten.  For the forces of the first call sums
        are made when read; for other ones, and with ``atomic_virials`` (of local atoms), at once.
        Arrays of the host are copied there and back.
        """
        if hasattr(neighbors, "generation"):
            return self._evaluate_on_device(
                positions, types, neighbors, forces, frame_parameters, atomic_parameters, atomic_virials
            )  # fmt: skip
        neighbors.fetch()
        n, n_types, device = neighbors.n_centres, self.model.n_types, self.device
        offsets, extra = resolve_parameters(self.model, n, frame_parameters, atomic_parameters, system_offsets)
        atoms = np.zeros((len(positions), 4))
        atoms[:, :3] = positions
        atoms.view(np.int64)[:, 3] = np.arange(len(positions))
        if neighbors is not self._host_list:
            self._host_list, self._host_rows = neighbors, self._upload_rows(neighbors, types)
        rows, counts = self._host_rows
        kind = types[:n].astype(np.int64)
        order = np.argsort(np.where(kind < 0, n_types, kind), kind="stable")
        work = Work(
            atoms=device.upload(atoms),
            rows=rows,
            counts=counts,
            centres=device.upload(order.astype(np.int32)),
            type_counts=[int((kind == t).sum()) for t in range(n_types)],
            forces=device.empty((len(positions), 4), np.int64),
            energies=device.zeros(max(n, 1), np.float64),
            constants=device.upload(self.constant_energies(kind, extra)),
            counters=device.zeros(2, np.int32),
            virials=device.zeros((max(n, 1), 9), np.float64),
            atomic_virials=device.empty((len(positions), 9), np.int64) if atomic_virials else None,
            extra=device.upload(extra) if self.n_extra else None,
        )
        self.launch(work)
        energies = device.download(work.energies)[:n]
        virials = device.download(work.virials)[:n]
        forces += device.download(work.forces)[:, :3] / FIXED_SCALE
        sums = [slice(a, b) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
        of_atoms = None
        if atomic_virials:
            of_atoms = (device.download(work.atomic_virials) / FIXED_SCALE).reshape(-1, 3, 3)
        return Evaluation(
            energies=np.array([energies[s].sum() for s in sums]),
            virials=np.array([virials[s].sum(axis=0).reshape(3, 3) for s in sums]),
            atomic_energies=energies,
            atomic_virials=of_atoms,
            overflowed=self._count(work.counters),
        )

    def _upload_rows(self, neighbors, types):
        """A list on the host as rows (n, stride) and counts per type (n, T) on the device."""
        device, n, n_types = self.device, neighbors.n_centres, self.model.n_types
        stride = max(int(neighbors.count.max(initial=0)), 1)
        rows, counts = device.zeros((max(n, 1), stride), np.int32), device.zeros((max(n, 1), n_types), np.int32)
        first, count, indices, types = map(
            device.upload, (neighbors.first.astype(np.int64), neighbors.count, neighbors.indices, types)
        )  # fmt: skip
        device.compile(("atoms.cu",), {}).warps(
            "rows_of_list", n, n, first, count, indices, types, n_types, stride, rows, counts
        )  # fmt: skip
        return rows, counts


class DeviceEvaluation:
    """Sums of an evaluation that stayed on the device, made when they are read.

    ``virials`` evaluates once more, for the present positions, unless the list asks for the virial every
    time; ``counted`` tells that this is the first evaluation of a list, when ``overflowed`` is worth its time.
    """

    atomic_virials = None

    def __init__(self, operators, work, neighbors, counted):
        self._operators, self._work, self._neighbors, self.counted = operators, work, neighbors, counted

    @property
    def overflowed(self):
        """Centres with more neighbours than the model's sel, summed over the evaluations since this was last read."""
        work = self._work
        found = int(work.counters[0])
        if found:
            work.counters[:1].fill(0)
            found = round(found * work.taken / work.launched)
        work.taken = work.launched = 0
        return found

    @property
    def energies(self):
        """(1,) eV."""
        return self._operators.sum_columns(self._work.energies[: self._neighbors.n], 1)

    @property
    def virials(self):
        """(1, 3, 3) eV."""
        return self._operators.virial(self._work, self._neighbors)[None]

    @property
    def atomic_energies(self):
        """(centres,) eV, in the order of the atoms."""
        return self._operators.device.download(self._work.energies[: self._neighbors.n])
