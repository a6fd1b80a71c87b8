"""The CPU implementation of the operators: packed parameters, blocks, threads, scratch."""

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  (compiled np.dot calls its BLAS; load it before counting libraries)
from threadpoolctl import ThreadpoolController

from dpmd.models import DenseLayer, Network
from dpmd.models.networks import evaluate

from ..operators import Evaluation, resolve_parameters
from ..threads import available_cores, run_shares
from . import kernels
from .clock import CLOCK_ADDRESS, CLOCK_ID
from .networks import fitting_scratch
from .packing import pack_networks, pack_pairs

#: centres per block: enough rows for an efficient matrix product, few enough for the caches
BLOCK = 256
#: with exact embeddings every pair's 2 M numbers are kept, so blocks are smaller
EXACT_BLOCK = 32

_types = {"double": np.float64, "mixed": np.float32}


def _with_descriptor_order(network, n_embedding, axis):
    """The fitting network with inputs in the kernels' order, D[a M + m] in place of D[m A + a]."""
    first = network.layers[0]
    order = np.arange(n_embedding * axis).reshape(n_embedding, axis).T.ravel()
    order = np.concatenate([order, np.arange(n_embedding * axis, first.n_in)])
    if first.skip == "none":
        reordered = DenseLayer(first.weight[order], first.bias, first.timestep, first.activation)
        return Network((reordered, *network.layers[1:]))
    # a skip connection passes the inputs on, so they have to be put back in the file's order
    back = np.zeros((first.n_in, first.n_in))
    back[np.arange(first.n_in), order] = 1
    return Network((DenseLayer(back, np.zeros(first.n_in), None, "linear"), *network.layers))


class CpuOperators:
    """Deep Potential on the CPU.

    model : with tables (:func:`dpmd.models.tables.tabulate`) or, where it has none, exact networks.
    precision : ``"double"``, everything in float64, or ``"mixed"``, geometry differences and
        sums in float64, tables and networks in float32.
    threads : default all cores of the affinity mask.

    The result is the same to the last bit for the same number of threads.
    """

    def __init__(self, model, precision="double", threads=None):
        if precision not in _types:
            raise ValueError(f"precision {precision!r} is not one of {', '.join(_types)}")
        self.model, self.precision = model, precision
        self.threads = threads or available_cores()
        self._dtype = dtype = _types[precision]
        d, f = model.descriptor, model.fitting
        self._pairs = pairs = pack_pairs(d, dtype)
        self._fitting = fitting = pack_networks(
            [
                None if t in f.silent_types else _with_descriptor_order(network, d.n_embedding, d.axis_neuron)
                for t, network in enumerate(f.networks)
            ],
            dtype,
        )
        self._exact = len(pairs.networks.first) > 1
        self._arrays = kernels.ModelArrays(
            switch=np.array([d.switch_start, d.switch_end, 1 / d.switch_width, d.protection, 1 / d.neighbor_count]),
            statistics=np.stack([d.radial_mean, 1 / d.radial_std, 1 / d.angular_std], axis=1),
            sel=np.array(d.sel, np.int64),
            shared_selection=d.shared_selection,
            axis=d.axis_neuron,
            n_embedding=d.n_embedding,
            coefficients=pairs.coefficients,
            pair_numbers=pairs.numbers,
            pair_integers=pairs.integers,
            padding=pairs.padding,
            exact_numbers=pairs.networks.numbers,
            exact_layers=pairs.networks.layers,
            exact_parameters=pairs.networks.activation_parameters,
            exact_first=pairs.networks.first,
            fit_numbers=fitting.numbers,
            fit_layers=fitting.layers,
            fit_parameters=fitting.activation_parameters,
            fit_first=fitting.first,
        )
        self._blas = ThreadpoolController()
        self._neighbors = None
        #: seconds per phase (geometry, embedding, descriptor, fitting, force), averaged over threads
        self.seconds = dict.fromkeys(kernels.PHASES, 0.0)

    # ------------------------------------------------------------------ planning

    def _share_out(self, types, neighbors):
        """Cut the centres of each type into equal contiguous shares, and shares into blocks."""
        block = EXACT_BLOCK if self._exact else BLOCK
        per_share = [[] for _ in range(self.threads)]
        by_type = []
        position = 0
        for t in range(self.model.n_types):
            if t in self.model.fitting.silent_types:
                continue
            atoms = np.flatnonzero(types[: neighbors.n_centres] == t)
            by_type.append(atoms)
            cuts = (np.arange(self.threads + 1) * len(atoms)) // self.threads
            for share, (a, b) in enumerate(zip(cuts[:-1], cuts[1:], strict=True)):
                pieces = max(1, -(-(b - a) // block))
                ends = a + (np.arange(pieces + 1) * (b - a)) // pieces
                for first, last in zip(ends[:-1], ends[1:], strict=True):
                    if last > first:
                        per_share[share].append((position + first, position + last, t))
            position += len(atoms)
        rows = np.array([row for share in per_share for row in share], np.int64).reshape(-1, 3)
        self._load = kernels.Workload(
            centres=np.concatenate([*by_type, np.zeros(0, np.int64)]).astype(np.int64),
            blocks=np.ascontiguousarray(rows[:, :2]),
            block_type=np.ascontiguousarray(rows[:, 2]),
            share_blocks=np.cumsum([0] + [len(share) for share in per_share]),
            types=types,
            first=neighbors.first,
            count=neighbors.count,
            indices=neighbors.indices,
            extra=np.zeros((0, 0)),
        )
        counts = neighbors.count[self._load.centres]
        ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        most = int((ends[rows[:, 1]] - ends[rows[:, 0]]).max(initial=0)) if len(rows) else 0
        self._allocate(len(types), neighbors.n_centres, int((rows[:, 1] - rows[:, 0]).max(initial=1)), most)

    def _allocate(self, n_atoms, n_centres, rows, n_pairs):
        """Scratch and result arrays, made anew only when they have to grow."""
        have = getattr(self, "_room", (0, 0, 0, 0))
        if all(a <= b for a, b in zip((n_atoms, n_centres, rows, n_pairs), have, strict=True)):
            return
        n_atoms, n_centres = int(1.05 * n_atoms) + 16, n_centres + 16
        n_pairs = int(1.1 * n_pairs) + 64
        self._room = (n_atoms, n_centres, rows, n_pairs)
        d, dtype, threads = self.model.descriptor, self._dtype, self.threads
        exact_pairs = n_pairs if self._exact else 0
        widest = self._pairs.networks.widest
        most_neighbors = n_pairs if self._exact else 0
        self._scratch = kernels.Scratch(
            pairs=np.zeros((threads, kernels.PAIR_NUMBERS, n_pairs), dtype),
            integers=np.zeros((threads, kernels.PAIR_INTEGERS, n_pairs), np.int32),
            runs=np.zeros((threads, rows + 1, d.n_types), np.int64),
            T=np.zeros((threads, rows, 4, self._pairs.width), dtype),
            D=np.zeros((threads, rows, d.n_out + self.model.fitting.n_fparam + self.model.fitting.n_aparam), dtype),
            work=np.zeros((threads, fitting_scratch(self._fitting, rows)), dtype),
            exact_rows=np.zeros((threads, 2, exact_pairs, d.n_embedding if exact_pairs else 0), dtype),
            network_work=np.zeros((threads, 5 * most_neighbors * widest), dtype),
            block_energies=np.zeros((threads, rows)),
        )
        self._forces = np.zeros(threads * n_atoms * 3)
        self._energies, self._virials = np.zeros(n_centres), np.zeros((n_centres, 9))
        self._timers, self._overflowed = np.zeros((threads, len(kernels.PHASES))), np.zeros(threads, np.int64)

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
        # always contiguous, so that the kernel is compiled for one kind of array only
        private = self._forces[: self.threads * len(positions) * 3].reshape(self.threads, len(positions), 3)
        private_virials = np.zeros((self.threads, len(positions) if atomic_virials else 0, 9))
        results = kernels.Results(private, energies, virials, private_virials, self._timers, self._overflowed)
        self._timers.fill(0.0)
        with self._blas.limit(limits=1, user_api="blas"):
            run_shares(
                kernels.evaluate_share, self.threads, self._arrays, self._load._replace(extra=self._extra),
                positions, self._scratch, results, atomic_virials, CLOCK_ADDRESS, CLOCK_ID,
            )  # fmt: skip
        run_shares(kernels.add_private, self.threads, self.threads, private, forces)
        for phase, seconds in zip(kernels.PHASES, self._timers.mean(axis=0), strict=True):
            self.seconds[phase] += seconds
        of_atoms = None
        if atomic_virials:
            of_atoms = np.zeros((len(positions), 9))
            kernels.add_private(0, 1, private_virials, of_atoms)
            of_atoms = of_atoms.reshape(-1, 3, 3)
        sums = [slice(a, b) for a, b in zip(self._offsets[:-1], self._offsets[1:], strict=True)]
        return Evaluation(
            energies=np.array([energies[s].sum() for s in sums]),
            virials=np.array([virials[s].sum(axis=0).reshape(3, 3) for s in sums]),
            atomic_energies=energies.copy(),
            atomic_virials=of_atoms,
            overflowed=int(self._overflowed.sum()),
        )
