"""Low-rank tables: the outputs of an embedding as combinations of a few functions.

All M outputs of an embedding network are functions of one number, the normalised radial entry s.
Where most neighbours are, they span few dimensions: ``G(s) = U(s) V`` to within a tolerance, with
far fewer functions U than outputs.  What a neighbour costs falls in proportion; V is applied once
per atom (a small matrix product), or folded into the fitting network.

Sharp networks need many functions at short distances, where an atom has only its bonded
neighbours.  So there are two shells: neighbours within a *split radius* use full table rows, those
beyond it the basis.  Split radius and rank are chosen for the least cost at a tolerance.

Basis: right singular vectors of G sampled over distance.  A neighbour adds ``R_c G_m`` to the sums
and ``d(R_c G_m)/dr`` to the forces, so both are sampled, times the root of the number of neighbours
at that distance; an empty slot of the padding, of which there are ``sel - n``, adds its row as
often.  What the discarded singular values leave, relative to all of the derivatives, is 0.3 to 3
times the relative rms error of the forces (measured on trained water and copper models, ranks 12
to 40, errors 1e-1 to 1e-12).

No basis is used where it was not checked.  What it and its table leave is measured at all distances, and
weighed as it acts on one pair (:class:`~dpmd.models.tables.PairErrors`): far neighbours begin where all beyond
keep the limit, at the nearest where usual neighbours are.  A basis for all usual distances is marked
``everywhere``: its near neighbours are exceptions, which cost nothing until there are some.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from .networks import derivatives_of_scalar_input
from .parameters import LowRankBasis, PairRule
from .tables import (
    USUAL_FILLING,
    PairErrors,
    environment_entries,
    evaluate_table,
    normalised_input,
    radius_of_input,
    table_derivatives,
    table_range,
    tabulate_function,
    usual_distance,
)

#: relative rms error of the forces that the basis may cause: below single precision's own (8e-7 for
#: trained models) and, for double, 1e-9 eV/Å at usual forces
TOLERANCE = {"double": 5e-10, "mixed": 1e-6}
#: largest error of the force on one pair, see :class:`~dpmd.models.tables.PairErrors`; 1e-9 and 5e-6 are to be kept
PAIR_TOLERANCE = {"double": 8e-11, "mixed": 4e-7}
#: numbers per vector that ranks are rounded up to in the cost model, for vectors of 64 bytes
_LANES = {"double": 8, "mixed": 16}
#: forces may be this many times worse than the discarded part of the samples
_SAFETY = 3.0
_SAMPLES = 800
_STEPS = (0.08, 0.04, 0.02, 0.01, 0.005, 0.004, 0.003, 0.002)
#: far neighbours may begin by this factor farther out than chosen before more functions are taken
_FARTHER = 1.1
#: multiply-adds per neighbour besides the table row, and how much dearer rows outside the fast caches are
_PER_NEIGHBOR, _FULL_ROW_PENALTY = 200, 1.5


def _outputs(embedding, x):
    """G and its first two derivatives, each (n, M): of the file's table, or of the network."""
    if embedding.network is None or embedding.table_from_file:
        return table_derivatives(embedding.table, x)
    return derivatives_of_scalar_input(embedding.network, x)


class _Samples:
    """What neighbours at each distance add to sums and forces, for one embedding.

    x : (samples,) inputs; weight, slope_weight : (samples,) factors of G and G' in each row, which
    is a term of a sum or, where the slope counts, of a force; scale : of all forces together.
    """

    def __init__(self, descriptor, embedding, pairs, counts, shortest):
        d = descriptor
        inputs, weights, slope_weights = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
        self._bases = {}
        for a, b in pairs:
            if d.pair_rules[a, b] != PairRule.INCLUDED or d.sel[b] == 0:
                continue
            r = np.linspace(shortest, d.switch_end, _SAMPLES)
            x, x_slope, entry = environment_entries(d, a, r)
            # uniform density; the first shells of real structures are denser and thinner
            per_sample = 3 * counts[a, b] / d.switch_end**3 * r**2 * (r[1] - r[0])
            root = np.sqrt(per_sample)
            empty = np.array([-d.radial_mean[a] / d.radial_std[a]])
            inputs += [x, empty, x]
            weights += [root * entry, max(d.sel[b] - counts[a, b], 1.0) * empty, root * np.gradient(entry, r)]
            slope_weights += [0 * r, [0.0], root * entry * x_slope]
        self.x, self.weight, self.slope_weight = (np.concatenate(p) for p in (inputs, weights, slope_weights))
        value, slope, _ = _outputs(embedding, self.x)
        self.rows = self.combine(value, slope)
        self.scale = np.sqrt((self.rows[self.slope_weight != 0] ** 2).sum()) or 1.0

    def combine(self, value, slope):
        return self.weight[:, None] * value + self.slope_weight[:, None] * slope

    def basis(self, split):
        """Basis for inputs up to ``split``: singular vectors (M, M), and what is left without all but
        the first k of them, (M + 1,), relative.
        """
        if split not in self._bases:
            with threadpool_limits(1):  # threads would spend their time waiting for each other
                _, values, vectors = np.linalg.svd(self.rows[self.x <= split], full_matrices=False)
            left = np.sqrt(np.append(np.cumsum(values[::-1] ** 2)[::-1], 0.0)) / self.scale
            self._bases[split] = vectors, left
        return self._bases[split]


def _split_input(descriptor, pairs, radius):
    """The largest input of far neighbours if they begin at ``radius`` (Å).

    Where centre types with different statistics share an embedding, the radius differs among them
    and this is the largest.
    """
    return min(float(normalised_input(descriptor, a, radius)[0]) for a, _ in pairs)


def _far_table(embedding, expansion, lower, split, step):
    """A table of the functions ``G expansion^T`` in steps of about ``step``.

    Of a file's table, its rows begin where the file's do.
    """
    own = embedding.table if embedding.network is None or embedding.table_from_file else None
    if own is not None:
        lower, step = own.lower, own.fine_step * max(1, round(step / own.fine_step))
    upper = lower + step * max(1, int(np.ceil((split - lower) / step)))
    return tabulate_function(lambda x: [g @ expansion.T for g in _outputs(embedding, x)], lower, upper, step)


def _make_basis(model, embedding, pairs, samples, errors, precision, radius, rank, given):
    """A :class:`LowRankBasis` of ``rank`` functions for neighbours beyond ``radius`` (Å, 0: all usual ones).

    The coarsest table that is good enough; far neighbours begin where all beyond keep ``PAIR_TOLERANCE``.  If
    that were much farther out, there are more functions, unless the rank is ``given``; None if all do not help.
    errors : :class:`~dpmd.models.tables.PairErrors`.
    """
    d, limit = model.descriptor, PAIR_TOLERANCE[precision]
    begin = radius or usual_distance(model)
    least_split = _split_input(d, pairs, min(_FARTHER * begin, 0.9 * d.switch_end))
    split = _split_input(d, pairs, radius) if radius else float(samples.x.max())
    vectors, _ = samples.basis(split if radius else np.inf)
    lower, _ = table_range(d, pairs, d.switch_end)
    x = errors.inputs(split)
    right, far = errors.outputs(x)[:2], samples.x <= split
    for functions in range(min(rank, len(vectors)), len(vectors) + 1):
        expansion = vectors[:functions]
        exact, spanned = samples.rows @ expansion.T, [g @ expansion.T @ expansion for g in right]
        for step in _STEPS:
            table = _far_table(embedding, expansion, lower, split, step)
            made = samples.combine(*table_derivatives(table, samples.x)[:2])
            tabulated = [g @ expansion for g in evaluate_table(table, x)]
            of_table = errors.of(x, *(t - s for t, s in zip(tabulated, spanned, strict=True)))
            rms = np.sqrt(((made - exact)[far] ** 2).sum()) / samples.scale
            if rms < TOLERANCE[precision] / _SAFETY and of_table.max(initial=0.0) < 0.9 * limit:
                break
        found = errors.of(x, *(t - r for t, r in zip(tabulated, right, strict=True)))
        right_before = x[: np.argmax(found > limit)] if (found > limit).any() else [split]
        right_up_to = right_before[-1] if len(right_before) else -np.inf
        if right_up_to >= least_split:
            split = float(right_up_to)
            break
        if given:
            break
    else:
        return None
    error = float(found[x <= split].max(initial=0.0))
    return LowRankBasis(precision, split, table, expansion, error, everywhere=radius == 0.0)


class _CostModel:
    """Multiply-adds per centre, from the counts of neighbours and the sizes of the networks.

    A neighbour costs 28 per number of its table row (9 forwards, 19 backwards) and some geometry;
    expanding T costs 8 rank M, a descriptor's input 2 n_out of the first fitting layer.
    """

    def __init__(self, model, counts, lanes):
        self.descriptor, self.counts, self.lanes = model.descriptor, counts, lanes
        self.first_layer = max(network.layers[0].n_out for network in model.fitting.networks)

    def padded(self, rank):
        return -(-rank // self.lanes) * self.lanes

    def neighbors(self, pairs, split_radius, rank, expanded=True):
        """Of the neighbours of ``pairs``: full rows within the split radius, ``rank`` functions beyond."""
        d, row = self.descriptor, lambda width: 28 * self.padded(width) + _PER_NEIGHBOR
        total = 0.0
        for a, b in pairs:
            near = self.counts[a, b] * min((split_radius / d.switch_end) ** 3, 1.0)
            total += _FULL_ROW_PENALTY * near * row(d.n_embedding) + (self.counts[a, b] - near) * row(rank)
            total += 8 * self.padded(rank) * d.n_embedding if expanded else 0
        return total

    def inputs(self, n_features, axis):
        """Of the fitting network: the independent numbers of T^T T[:, :axis]."""
        return 2 * self.first_layer * (axis * n_features - axis * (axis - 1) // 2)


def _choose(model, users, samples, tolerance, cost, rank, radii):
    """Split radius (Å, 0: all distances) and rank for each embedding; rank 0 where no basis pays.

    users : {key: (embedding, pairs)}; samples : {key: _Samples}; cost : a :class:`_CostModel`.
    """
    d = model.descriptor
    shells, folded = {}, {}
    for key, (_, pairs) in users.items():
        choices = [] if rank else [(cost.neighbors(pairs, np.inf, 0), 0.0, 0)]
        for radius in [0.0, *radii]:
            left = samples[key].basis(_split_input(d, pairs, radius) if radius else np.inf)[1]
            enough = min(rank or int(np.argmax(left <= tolerance)), len(left) - 1)
            if radius and not rank:
                enough = min(cost.padded(enough), len(left) - 1)  # whole vectors cost as much
            if left[enough] <= tolerance or radius == radii[-1]:
                choices.append((cost.neighbors(pairs, radius, enough), radius, enough))
                if radius == 0.0:
                    folded[key] = (cost.neighbors(pairs, radius, enough, expanded=False), radius, enough)
        shells[key] = min(choices)
    plain = cost.inputs(d.n_embedding, d.axis_neuron)
    shells_cost, folded_cost = (sum(c[0] for c in way.values()) for way in (shells, folded))
    for a in range(d.n_types):
        columns = [e for b, e in enumerate(d.embeddings[a]) if d.sel[b] and d.pair_rules[a, b] != PairRule.SKIPPED]
        if not all(e is None or id(e) in folded for e in columns):
            return {key: choice[1:] for key, choice in shells.items()}
        n_features = sum(cost.padded(folded[id(e)][2]) for e in columns if e is not None)
        axis = min(d.axis_neuron, n_features) if len(columns) == 1 else n_features  # see with_outputs_first
        shells_cost += plain
        folded_cost += min(plain, cost.inputs(n_features, axis))
    return {key: choice[1:] for key, choice in (folded if folded_cost < shells_cost else shells).items()}


def add_low_rank(model, precisions=("double", "mixed"), rank=None, counts=None):
    """A copy of a tabulated ``model`` with a basis per embedding and precision mode, where that pays.

    rank : the number of functions of every embedding, instead of the automatic one; the split
        radius is then the cheapest at which they meet the tolerance, or the largest if none does.
    counts : (T, T) neighbours of each type that a centre has within the cutoff on average, from a
        structure; 0.7 of ``sel`` where it is NaN, and by default.
    Embeddings without a table are left alone.
    """
    d = model.descriptor
    shortest = usual_distance(model)
    usual = np.tile(USUAL_FILLING * np.array(d.sel, float), (d.n_types, 1))
    counts = usual if counts is None else np.where(np.isfinite(counts), counts, usual)
    users = {id(e): (e, pairs) for e, pairs in d.unique_embeddings() if e.table is not None}
    samples = {key: _Samples(d, e, pairs, counts, shortest) for key, (e, pairs) in users.items()}
    users = {key: user for key, user in users.items() if len(samples[key].x)}
    errors = {k: PairErrors(model, pairs, partial(_outputs, e)) for k, (e, pairs) in users.items()}
    radii = np.linspace(shortest, 0.6 * model.cutoff, 14)
    bases = {}
    for precision in precisions:
        cost = _CostModel(model, counts, _LANES[precision])
        chosen = _choose(model, users, samples, TOLERANCE[precision] / _SAFETY, cost, rank, radii)
        for key, (radius, functions) in chosen.items():
            if functions:
                embedding, pairs = users[key]
                basis = _make_basis(
                    model, embedding, pairs, samples[key], errors[key], precision, radius, functions, rank is not None
                )
                bases[key] = (*bases.get(key, ()), *([basis] if basis is not None else []))

    return replace(model, descriptor=d.map_embeddings(lambda e, _: replace(e, low_rank=bases.get(id(e), ()))))


def with_outputs_first(basis, n, largest_condition):
    """The same span with the first ``n`` outputs themselves as its first functions, or None.

    None if there are no more than ``n`` functions, or if the outputs depend on each other so closely that
    the combinations would magnify rounding more than ``largest_condition`` times.
    """
    outputs = basis.expansion[:, :n].T
    if basis.rank <= n:
        return None
    _, sizes, directions = np.linalg.svd(outputs)
    if sizes[-1] * largest_condition < sizes[0]:
        return None
    change = np.concatenate([outputs, directions[n:]])
    coefficients = np.einsum("ij,rjc->ric", change, basis.functions.coefficients)
    expansion = np.linalg.solve(change.T, basis.expansion)
    expansion[:, :n] = np.eye(basis.rank, n)  # exactly
    return replace(basis, functions=replace(basis.functions, coefficients=coefficients), expansion=expansion)


def without_low_rank(model):
    """A copy that uses full table rows for all neighbours."""
    return replace(model, descriptor=model.descriptor.map_embeddings(lambda e, _: replace(e, low_rank=())))


def describe_low_rank(model, precision):
    """One line for the log: functions per pair of types and where they begin.

    precision : ``"half"`` uses the bases of ``"mixed"``.
    """
    precision = "mixed" if precision == "half" else precision
    d, names, parts = model.descriptor, model.type_map, []
    for embedding, pairs in d.unique_embeddings():
        basis = embedding.basis(precision)
        who = ", ".join(f"{names[a]}-{names[b]}" for a, b in pairs)
        if basis is None:
            parts.append(f"{who}: all {d.n_embedding} outputs")
            continue
        where = ""
        if np.isfinite(basis.split):
            radii = sorted({round(radius_of_input(d, a, basis.split), 2) for a, _ in pairs})
            where = f" beyond {' and '.join(str(r) for r in radii)} Å"
        if basis.error > PAIR_TOLERANCE[precision]:
            where += f", too few: forces are off by up to about {10 * basis.error:.0e} of usual ones"
        parts.append(f"{who}: {basis.rank} of {d.n_embedding} functions{where}")
    return "; ".join(parts)
