"""The CPU implementation of the operators: packed parameters, blocks, threads, scratch."""

import logging
import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpmd.models.networks import evaluate

from ..operators import Evaluation, resolve_parameters
from ..threads import available_cores, run_shares
from . import kernels
from .clock import CLOCK_ADDRESS, CLOCK_ID
from .matrix import TILE_ROWS
from .networks import embedding_scratch, fitting_scratch
from .packing import FITTING_NETWORK, N_IN, WIDTH_IN, WIDTH_OUT, pack_model
from .simd import HAS_BFLOAT16, aligned_zeros, lanes, round_up

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tiling:
    """How a step is cut so that what a thread works on fits the fast memory.

    atoms : centres per block, best a multiple of 8.  More make matrix products longer, fewer take less
        memory: everything of a block is kept from its pairs to its forces.
    depth : rows of a weight matrix that are read together, three vectors wide.
    exact_atoms : centres per block with exact embeddings, where a table row is kept per pair.

    For cores with a small local memory, such as the 256 KiB of a Sunway SW26010-Pro, use
    ``Tiling(atoms=4, depth=128)`` in mixed precision: :meth:`CpuOperators.working_set` counts 239 kB
    for copper (176 neighbours within 8 Å, 248 in the list) beside the tables, of which a row of 6 x 32
    numbers is read per neighbour.
    """

    atoms: int = 64
    depth: int = 512
    exact_atoms: int = 16


_types = {"double": np.float64, "mixed": np.float32, "half": np.float32}
#: pieces in which centres are evaluated while messages travel, with a look at these before each: large ones
#: take a request, a reply and the data, so the third look finds them arrived.  (Halos of 72 kB between two
#: ranks had always arrived when they were needed; without looks never, and the wait was longer than at once.)
_PIECES = 4
#: whose low-rank bases a mode uses
_bases = {"double": "double", "mixed": "mixed", "half": "mixed"}


class CpuOperators:
    """Deep Potential on the CPU.

    model : with tables (:func:`dpmd.models.tables.tabulate`) or, where it has none, exact networks.
    precision : ``"double"``, everything in float64; ``"mixed"``, geometry differences and sums in
        float64, tables and networks in float32; ``"half"``, as mixed with what differs within a block of
        atoms rounded to bfloat16 in the fitting networks' products (:func:`matrix.multiply_half`), on CPUs
        that compute with it, else as mixed.
    threads : default all cores of the affinity mask; tiling : :class:`Tiling`.

    The result is the same to the last bit for the same number of threads (for another one ``half`` differs by
    its rounding, since blocks do).
    """

    def __init__(self, model, precision="double", threads=None, tiling=Tiling()):
        if precision not in _types:
            raise ValueError(f"precision {precision!r} is not one of {', '.join(_types)}")
        self.model, self.precision = model, precision
        self.threads, self.tiling = threads or available_cores(), tiling
        self._dtype = dtype = _types[precision]
        d = model.descriptor
        half = precision == "half" and HAS_BFLOAT16
        if precision == "half" and not half:
            log.warning("this CPU has no bfloat16 arithmetic: precision half computes as mixed does")
        self._packed = packed = pack_model(model, dtype, _bases[precision], half, tiling.depth)
        self._arrays = kernels.ModelArrays(
            switch=np.array([d.switch_start, d.switch_end, 1 / d.switch_width, d.protection]),
            statistics=np.stack([d.radial_mean, 1 / d.radial_std, 1 / d.angular_std], axis=1),
            sel=np.array(d.sel, np.int64),
            shared_selection=d.shared_selection,
            split=packed.split,
            rules=np.array(d.pair_rules, np.int64),
            networks=packed.networks,
            segments=packed.segments,
            segment_numbers=packed.segment_numbers,
            padding=packed.padding,
            centres=packed.centres,
            tables=packed.tables,
            fit_numbers=packed.fitting.numbers,
            fit_layers=packed.fitting.layers,
            fit_parameters=packed.fitting.activation_parameters,
            fit_first=packed.fitting.first,
        )
        self._neighbors = None
        self.look_anew()
        #: seconds per phase (geometry, embedding, descriptor, fitting, force), averaged over threads
        self.seconds = dict.fromkeys(kernels.PHASES, 0.0)

    def look_anew(self):
        """Forget the nearest pair: what comes is of another system."""
        #: Å, distance of the nearest pair within the cutoff that was evaluated so far
        self.nearest = np.inf

    def in_double(self):
        """Operators of the same model, with as many threads, in float64; these where they are."""
        return self if self.precision == "double" else CpuOperators(self.model, "double", self.threads, self.tiling)

    @property
    def products(self):
        """The numbers of the fitting networks' products, for the log."""
        if self._packed.fitting.half is not None:
            return "bfloat16 (AVX512_BF16), differences within blocks of atoms; float32 sums"
        if self.precision == "half":
            return f"{np.dtype(self._dtype)}, as in mixed: this CPU has no AVX512_BF16"
        return str(np.dtype(self._dtype))

    @property
    def description(self):
        """What is computed how, for the log."""
        return f"products in {self.products}"

    def working_set(self):
        """Bytes that one thread works on during a block, and the tables that all share: {name: bytes}.

        Known after the first evaluation, since scratch grows with the neighbours of a block.
        """
        lane = lanes(np.dtype(self._dtype))
        panel = 3 * lane * min(self.tiling.depth, int(self._packed.fitting.layers[:, N_IN].max()))
        counted = {name: array[0].nbytes for name, array in self._scratch._asdict().items()}
        fitting = self._packed.fitting
        usual = fitting.layers[fitting.first[self._packed.centres[:, 0, FITTING_NETWORK]], WIDTH_IN].max()
        counted["D"] = counted["D"] * usual // fitting.layers[:, WIDTH_IN].max()  # more only with near neighbours
        return counted | {"weights": panel * np.dtype(self._dtype).itemsize, "tables": self._packed.tables.nbytes}

    # ------------------------------------------------------------------ planning

    def _share_out(self, types, neighbors):
        """Cut the centres of each type into equal contiguous shares, and shares into blocks.

        Centres that are late come after the others, and with them those others that fill no block.  So
        two groups have no more blocks than one.
        """
        block = self.tiling.exact_atoms if self._packed.exact.layers.size else self.tiling.atoms
        n, late = neighbors.n_centres, neighbors.late
        groups = [np.ones(n, bool)]
        if late is not None:
            early = np.zeros(n, bool)
            for t in range(self.model.n_types):
                atoms, full = np.flatnonzero((types[:n] == t) & ~late), block * self.threads
                early[atoms[: len(atoms) // full * full]] = True
            groups = [early, ~early]
        per_share, by_type, position = [[] for _ in range(self.threads)], [], 0
        ends = []  # blocks of each share up to the end of each group
        for group in groups:
            for t in range(self.model.n_types):
                if t in self.model.fitting.silent_types:
                    continue
                atoms = np.flatnonzero((types[:n] == t) & group)
                by_type.append(atoms)
                cuts = (np.arange(self.threads + 1) * len(atoms)) // self.threads
                for share, (a, b) in enumerate(pairwise(cuts)):
                    # equally large, but of whole tiles: their rows are computed in any case
                    pieces = max(1, -(-(b - a) // block))
                    size = min(round_up(max(1, -(-(b - a) // pieces)), TILE_ROWS), block)
                    for first in range(a, b, size):
                        last = min(first + size, b)
                        per_share[share].append((position + first, position + last, t))
                position += len(atoms)
            ends.append([len(share) for share in per_share])
        stages = np.array([[0] * self.threads, *ends])
        if late is not None:
            pieces = np.arange(_PIECES)[:, None] * stages[1] // _PIECES
            stages = np.concatenate([pieces, stages[1:]])
        rows = np.array([row for share in per_share for row in share], np.int64).reshape(-1, 3)
        n_pages = -(-len(types) // kernels.PAGE)
        self._load = load = kernels.Workload(
            centres=np.concatenate([*by_type, np.zeros(0, np.int64)]).astype(np.int64),
            blocks=rows,
            share_blocks=(stages + np.cumsum(stages[-1]) - stages[-1]).T.copy(),
            first=neighbors.first,
            type_first=np.zeros((n, self.model.n_types), np.int32),
            count=neighbors.count,
            indices=neighbors.indices,
            extra=np.zeros((0, 0)),
            pages=np.empty((self.threads, n_pages), np.int32),
            page_start=np.zeros(self.threads + 1, np.int64),
        )
        run_shares(kernels.survey, self.threads, load, types, load.pages)
        touched = load.pages >= 0
        load.pages[touched] = (np.cumsum(touched, axis=1) - 1)[touched]
        np.cumsum(touched.sum(axis=1), out=load.page_start[1:])
        counts = neighbors.count[load.centres]
        ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        most = int((ends[rows[:, 1]] - ends[rows[:, 0]]).max(initial=0)) if len(rows) else 0
        largest = round_up(int((rows[:, 1] - rows[:, 0]).max(initial=1)), TILE_ROWS)
        self._allocate(int(load.page_start[-1]), n, largest, most, int(counts.max(initial=0)))

    def _allocate(self, n_pages, n_centres, rows, n_pairs, n_neighbors):
        """Scratch and result arrays, made anew only when they have to grow."""
        have, wanted = getattr(self, "_room", (0, 0, 0, 0, 0)), (n_pages, n_centres, rows, n_pairs, n_neighbors)
        if all(a <= b for a, b in zip(wanted, have, strict=True)):
            return
        n_pages, n_centres = int(1.05 * n_pages) + 1, n_centres + 16
        n_pairs, n_neighbors = round_up(int(1.1 * n_pairs), 16) + 64, int(1.1 * n_neighbors) + 16
        self._room = (n_pages, n_centres, rows, n_pairs, n_neighbors)
        packed, dtype, threads = self._packed, self._dtype, self.threads
        lane = lanes(np.dtype(dtype))
        near, far = (4 * rows * (width + lane) for width in (packed.near_width, packed.far_width))
        inputs = int(packed.fitting.layers[:, WIDTH_IN].max(initial=0))
        widest = int(packed.fitting.layers[:, [WIDTH_IN, WIDTH_OUT]].max(initial=0))
        in_half = packed.fitting.half is not None

        def room(*shape, dtype=dtype):  # per thread; slices stay aligned
            return aligned_zeros((threads, *shape[:-1], round_up(shape[-1], 16)), dtype)

        self._scratch = kernels.Scratch(
            pairs=room(kernels.PAIR_NUMBERS, n_pairs),
            inputs=room(n_pairs, dtype=np.float64),
            integers=room(kernels.PAIR_INTEGERS, n_pairs, dtype=np.int32),
            to_entries=room(4 * n_pairs),
            runs=room(rows, 2 * self.model.n_types + 1, dtype=np.int64),
            near=room(near),
            far=room(far),
            to_near=room(near),
            to_far=room(far),
            D=room(rows * (inputs + lane)),
            work=room(fitting_scratch(packed.fitting, rows)),
            frame=room(3 * widest if in_half else 0),
            products=room(3 * widest if in_half else 0),
            along=room(3 * rows if in_half else 0),
            rounded=room(rows * widest // 2 if in_half else 0, dtype=np.int32),
            energies=room(rows),
        )
        self._exact = None
        if packed.exact.layers.size:
            self._exact = kernels.ExactEmbeddings(
                packed.exact.numbers, packed.exact.layers, packed.exact.activation_parameters, packed.exact.first,
                room(n_pairs * 6 * packed.near_width), room(embedding_scratch(packed.exact, n_neighbors)),
            )  # fmt: skip
        self._forces = np.zeros((n_pages, kernels.PAGE, 3))
        self._energies, self._virials = np.zeros(n_centres), np.zeros((n_centres, 9))
        self._timers, self._overflowed = np.zeros((threads, len(kernels.PHASES))), np.zeros(threads, np.int64)
        self._nearest = aligned_zeros((threads, lane), np.float64)

    def _constant_energies(self, types, extra):
        """(centres,) eV: bias, less the energy at zero descriptor where the model asks for it."""
        f = self.model.fitting
        energies = np.zeros(len(types))
        for t in range(self.model.n_types):
            atoms = np.flatnonzero(types == t)
            if len(atoms) == 0 or t in f.silent_types:
                continue
            energies[atoms] = f.energy_bias[t]
            if f.subtract_vacuum[t]:
                zero = np.zeros((len(atoms), self.model.descriptor.n_out))
                energies[atoms] -= evaluate(f.networks[t], np.concatenate([zero, extra[atoms]], axis=1))[:, 0]
        return energies

    # ------------------------------------------------------------------ evaluation

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
        """See :class:`dpmd.kernels.operators.Operators`."""
        n = neighbors.n_centres
        if neighbors is not self._neighbors:
            self._share_out(types, neighbors)
            self._neighbors, self._constant = neighbors, None
        if self._constant is None or self.model.fitting.n_fparam or self.model.fitting.n_aparam:
            self._offsets, self._extra = resolve_parameters(
                self.model, n, frame_parameters, atomic_parameters, system_offsets
            )
            self._constant = self._constant_energies(types[:n], self._extra)
        energies, virials = self._energies[:n], self._virials[:n]
        energies[:] = self._constant
        virials.fill(0.0)
        load = self._load
        of_pages = np.zeros((len(self._forces) if atomic_virials else 0, kernels.PAGE, 9))
        results = kernels.Results(
            self._forces, energies, virials, of_pages, self._timers, self._overflowed, self._nearest
        )  # fmt: skip
        self._timers.fill(0.0)
        stages = load.share_blocks.shape[1] - 1
        for stage in range(stages):
            neighbors.fetch(wait=stage == stages - 1)
            run_shares(
                kernels.evaluate_share, self.threads, stage, self._arrays, self._exact, self._packed.fitting.half,
                load._replace(extra=self._extra), positions, self._scratch, results, atomic_virials,
                CLOCK_ADDRESS, CLOCK_ID,
            )  # fmt: skip
        run_shares(
            kernels.add_private, self.threads, self.threads, load.pages, load.page_start, self._forces, forces
        )
        self.nearest = min(self.nearest, math.sqrt(self._nearest.min()))
        for phase, seconds in zip(kernels.PHASES, self._timers.mean(axis=0), strict=True):
            self.seconds[phase] += seconds
        of_atoms = None
        if atomic_virials:
            of_atoms = np.zeros((len(positions), 9))
            kernels.add_private(0, 1, load.pages, load.page_start, of_pages, of_atoms)
            of_atoms = of_atoms.reshape(-1, 3, 3)
        sums = [slice(a, b) for a, b in pairwise(self._offsets)]
        return Evaluation(
            energies=np.array([energies[s].sum() for s in sums]),
            virials=np.array([virials[s].sum(axis=0).reshape(3, 3) for s in sums]),
            atomic_energies=energies.copy(),
            atomic_virials=of_atoms,
            overflowed=int(self._overflowed.sum()),
        )
