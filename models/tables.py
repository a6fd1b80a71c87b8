"""Embedding networks as piecewise quintic tables (DP Compress).

The embedding network is a function of one variable, so it can be replaced by polynomials:
quintic Hermite interpolation of value, first and second derivative at the knots, hence C2
everywhere.  Source: D. Lu et al., J. Chem. Theory Comput. 18, 5559 (2022), section 2.2.

Steps are as long as the forces allow: what a table leaves is weighed as it acts on a pair at each
distance down to ``CHECKED_DISTANCE`` (:class:`PairErrors`), measured within every row.
"""

from dataclasses import replace

import numpy as np

from .errors import ModelError
from .networks import derivatives_of_scalar_input, has_kinks
from .parameters import EmbeddingTable, PairRule

#: Å: tables and low-rank bases are compared with what they stand for down to this distance
CHECKED_DISTANCE = 0.5
#: largest error of the force on a pair that a table may make, in units of usual forces (:class:`PairErrors`); errors
#: of forces were up to 12 times that in trained and random models, and 1e-9 is to be kept
TABLE_TOLERANCE = 3e-11
#: shortest and longest steps, in units of the normalised input: rounding of the highest coefficients grows as the
#: inverse of the step, and a longer one could pass over a narrow feature
_LEAST_STEP, _LONGEST_STEP = 5e-4, 0.02
#: where in a row errors of its value (middle) and slope are largest
_WITHIN_ROW = np.array([0.276, 0.5, 0.724])
#: Å, shortest distance of usual neighbours if the model does not say
DEFAULT_MIN_DISTANCE = 0.5
#: of the slots of a type, the part that is assumed to be filled if no structure tells
USUAL_FILLING = 0.7


def switch(r, start, end, width):
    """Switching function w(r) and its derivative: 1 below ``start``, 0 beyond ``end`` (Å), C2.

    ``w = 1 + u^3 (-6 u^2 + 15 u - 10)``, ``u = (r - start) / width`` (DeepPot-SE, eq. 3).
    """
    r = np.asarray(r, float)
    u = np.clip((r - start) / width, 0.0, 1.0)
    value = 1 + u**3 * (-6 * u * u + 15 * u - 10)
    slope = -30 * u * u * (1 - u) ** 2 / width
    outside = r >= end
    return np.where(outside, 0.0, value), np.where(outside, 0.0, slope)


def normalised_input(descriptor, centre, r):
    """Normalised radial entry of a neighbour at distance ``r`` (Å), and its derivative (1/Å)."""
    weight, slope = switch(r, descriptor.switch_start, descriptor.switch_end, descriptor.switch_width)
    shifted = r + descriptor.protection
    std = descriptor.radial_std[centre]
    return (weight / shifted - descriptor.radial_mean[centre]) / std, (slope / shifted - weight / shifted**2) / std


def radius_of_input(descriptor, centre, x):
    """Distance (Å) at which a neighbour of centre type ``centre`` has the normalised input ``x``.

    By bisection: the input falls with the distance.  0 or the cutoff where ``x`` is out of range.
    """
    low, high = 0.0, float(descriptor.switch_end)
    for _ in range(60):
        r = 0.5 * (low + high)
        low, high = (r, high) if normalised_input(descriptor, centre, r)[0] > x else (low, r)
    return 0.5 * (low + high)


def _table_pieces(table, x):
    """Coefficients (6, n, M) and distance from the start of the row (n, 1) for ``x`` within the table."""
    last = len(table.coefficients) - 1
    fine = np.floor((x - table.lower) / table.fine_step)
    coarse = np.floor((x - table.upper) / table.coarse_step)
    in_fine = x < table.upper
    row = np.clip(np.where(in_fine, fine, table.n_fine + coarse), 0, last).astype(int)
    start = np.where(
        in_fine, table.lower + row * table.fine_step, table.upper + (row - table.n_fine) * table.coarse_step
    )
    return np.moveaxis(table.coefficients[row], -1, 0), (x - start)[:, None]


def evaluate_table(table, x):
    """Values and derivatives, each (n, M), of a table at ``x`` (n,); linear beyond its ends."""
    x = np.asarray(x, float)
    inside = np.clip(x, table.lower, table.maximum)
    a, dx = _table_pieces(table, inside)
    value = a[0] + dx * (a[1] + dx * (a[2] + dx * (a[3] + dx * (a[4] + dx * a[5]))))
    slope = a[1] + dx * (2 * a[2] + dx * (3 * a[3] + dx * (4 * a[4] + dx * 5 * a[5])))
    return value + (x - inside)[:, None] * slope, slope


def table_derivatives(table, x):
    """Values, first and second derivatives, each (n, M), of a table at ``x`` (n,)."""
    x = np.asarray(x, float)
    a, dx = _table_pieces(table, np.clip(x, table.lower, table.maximum))
    bend = 2 * a[2] + dx * (6 * a[3] + dx * (12 * a[4] + dx * 20 * a[5]))
    beyond = ((x < table.lower) | (x > table.maximum))[:, None]
    return (*evaluate_table(table, x), np.where(beyond, 0.0, bend))


def quintic_coefficients(y, y1, y2, step):
    """Coefficients (rows, M, 6) of quintic Hermite pieces between successive knots.

    y, y1, y2 : (rows + 1, M) values and derivatives at the knots; step : (rows,) their distances.
    """
    h = np.asarray(step)[:, None]
    rise = y[1:] - y[:-1]
    a, b, c, d = y1[:-1], y1[1:], y2[:-1], y2[1:]
    return np.stack(
        [
            y[:-1],
            a,
            c / 2,
            (20 * rise - (8 * b + 12 * a) * h - (3 * c - d) * h**2) / (2 * h**3),
            (-30 * rise + (14 * b + 16 * a) * h + (3 * c - 2 * d) * h**2) / (2 * h**4),
            (12 * rise - 6 * (b + a) * h + (d - c) * h**2) / (2 * h**5),
        ],
        axis=-1,
    )


def table_range(descriptor, pairs, min_distance):
    """Range (lower, upper), whole numbers, of the normalised input for a set of pairs.

    From a neighbour at the cutoff (raw entry 0) to one at ``min_distance`` (Å), over the
    statistics of the centre types that occur in ``pairs``.
    """
    weight, _ = switch(min_distance, descriptor.switch_start, descriptor.switch_end, descriptor.switch_width)
    largest = weight / (min_distance + descriptor.protection)
    centres = [c for c, n in pairs if descriptor.pair_rules[c, n] == PairRule.INCLUDED] or [c for c, _ in pairs]
    mean, std = descriptor.radial_mean[centres], descriptor.radial_std[centres]
    return float(np.floor((-mean / std).min())), float(np.ceil(((largest - mean) / std).max()))


def checked_distance(model):
    """Å, down to which tables of ``model`` are compared with what they stand for; 0 if it has none."""
    tables = any(embedding.table is not None for embedding, _ in model.descriptor.unique_embeddings())
    return _nearest_checked(model) if tables else 0.0


def _nearest_checked(model):
    return min(CHECKED_DISTANCE, 0.5 * model.cutoff)


def usual_distance(model):
    """Å, from which on usual structures have neighbours: a little below the shortest training distance."""
    return 0.9 * min(model.source.min_neighbor_distance or DEFAULT_MIN_DISTANCE, 0.5 * model.cutoff)


def environment_entries(descriptor, centre, r):
    """What multiplies G in the sums T, for neighbours at distances ``r`` (Å) of centre type ``centre``.

    Returns the normalised input and its derivative (1/Å), and the length of the row of the environment matrix.
    """
    d = descriptor
    x, slope = normalised_input(d, centre, r)
    angular = (x * d.radial_std[centre] + d.radial_mean[centre]) / d.angular_std[centre]
    return x, slope, np.sqrt(x**2 + angular**2)


class PairErrors:
    """What errors of the outputs of an embedding do to the force between two atoms.

    A neighbour at distance r adds ``R G(s)`` to the sums T of its centre, and ``dE/dT . d(R G)/dr`` to forces.
    dE/dT depends on all the atoms around; usual forces, around 1 eV/Å, are what the terms of all neighbours
    come to, whose root mean square is ``scale``.  So an error of G is weighed as ``|d(R dG)/dr| / scale``.
    Forces of pairs and clusters with one short pair are off by 0.05 to 12 times that, eV/Å (trained and random
    models, 0.5 Å to the cutoff).

    pairs : users of the embedding; outputs : x (n,) -> values and derivatives (n, M) of what is right, and
    whatever else.
    """

    def __init__(self, model, pairs, outputs):
        d, nearest = model.descriptor, _nearest_checked(model)
        self.outputs, self._weights, total = outputs, [], 0.0
        self.pairs = [(a, b) for a, b in pairs if d.pair_rules[a, b] == PairRule.INCLUDED and d.sel[b] > 0]
        for a, b in self.pairs:
            r = np.unique(
                np.concatenate([
                    np.linspace(nearest, d.switch_end, 2000),
                    np.linspace(max(d.switch_start, nearest), d.switch_end, 500),
                ])
            )  # fmt: skip
            x, slope, entry = environment_entries(d, a, r)
            # the input falls with the distance
            self._weights.append([q[::-1] for q in (x, entry * np.abs(slope), np.abs(np.gradient(entry, r)))])
            r = np.linspace(usual_distance(model), d.switch_end, 800)
            x, slope, entry = environment_entries(d, a, r)
            value, output_slope, *_ = outputs(x)
            rows = (entry * slope)[:, None] * output_slope + np.gradient(entry, r)[:, None] * value
            density = 3 * USUAL_FILLING * d.sel[b] / d.switch_end**3 * r**2 * (r[1] - r[0])
            total += (density[:, None] * rows**2).sum()
        self.scale = np.sqrt(total) or 1.0

    def inputs(self, largest):
        """Inputs (n,), rising, of neighbours at many distances, as far as they are no larger than ``largest``."""
        x = np.unique(np.concatenate([np.zeros(0), *(inputs for inputs, *_ in self._weights)]))
        return x[x <= largest]

    def of(self, x, value_errors, slope_errors):
        """Weighed errors (n,), the largest over all pairs, of errors (n, M) of values and slopes at inputs ``x``."""
        value_errors, slope_errors = (np.linalg.norm(e, axis=1) for e in (value_errors, slope_errors))
        largest = np.zeros(len(x))
        for inputs, of_slope, of_value in self._weights:
            within = (x >= inputs[0]) & (x <= inputs[-1])
            error = np.interp(x, inputs, of_slope) * slope_errors + np.interp(x, inputs, of_value) * value_errors
            largest = np.maximum(largest, np.where(within, error, 0.0))
        return largest / self.scale

    def of_rows(self, table):
        """Weighed errors (rows,) within the rows of a table, measured at three places of each."""
        rows = np.arange(len(table.coefficients))
        step = np.where(rows < table.n_fine, table.fine_step, table.coarse_step)
        start = np.where(
            rows < table.n_fine,
            table.lower + rows * table.fine_step,
            table.upper + (rows - table.n_fine) * table.coarse_step,
        )
        x = (start + _WITHIN_ROW[:, None] * step).ravel()
        value, slope = evaluate_table(table, x)
        right, right_slope, *_ = self.outputs(x)
        return self.of(x, value - right, slope - right_slope).reshape(len(_WITHIN_ROW), -1).max(axis=0)


def tabulate_function(outputs, lower, upper, fine_step, maximum=None, coarse_step=None):
    """A table of a function over ``[lower, upper]`` and, in other steps, on to about ``maximum``.

    outputs : x (n,) -> values and first and second derivatives, each (n, M).
    The steps are the longest that fit and are no longer than the given ones; by default one row follows.
    """
    n_fine = max(1, int(np.ceil((upper - lower) / fine_step - 1e-9)))
    fine_step = (upper - lower) / n_fine
    while int((upper - lower) / fine_step) < n_fine:  # rounding must not lose the last row
        fine_step = np.nextafter(fine_step, 0)
    maximum, coarse_step = (upper + fine_step, fine_step) if maximum is None else (maximum, coarse_step)
    n_coarse = max(1, int(np.ceil((maximum - upper) / coarse_step - 1e-9)))
    coarse_step = (maximum - upper) / n_coarse
    fine = lower + fine_step * np.arange(n_fine + 1)
    coarse = upper + coarse_step * np.arange(1, n_coarse + 1)
    fine[-1] = upper
    y, y1, y2 = outputs(np.concatenate([fine, coarse]))
    step = np.concatenate([np.full(n_fine, fine_step), np.full(n_coarse, coarse_step)])
    return EmbeddingTable(
        lower=lower,
        upper=upper,
        maximum=float(coarse[-1]),
        fine_step=float(fine_step),
        coarse_step=float(coarse_step),
        coefficients=quintic_coefficients(y, y1, y2, step),
    )


def _sections(errors, lower, maximum):
    """Where two sections of a table meet, and their steps, for the fewest rows that keep the tolerance.

    From the errors of a uniform table, which fall as the fifth power of the step.
    """
    trial = tabulate_function(errors.outputs, lower, maximum - 0.01, 0.01, maximum, 0.01)
    found = errors.of_rows(trial)
    step = 0.01 * (TABLE_TOLERANCE / np.maximum(found, 1e-30)) ** 0.2
    step = np.clip(0.9 * step, _LEAST_STEP, _LONGEST_STEP)
    edges = np.arange(10, len(step) - 9, 10)  # after so many rows of the trial
    left, right = np.minimum.accumulate(step)[edges - 1], np.minimum.accumulate(step[::-1])[::-1][edges]
    rows = edges * 0.01 / left + (len(step) - edges) * 0.01 / right
    k = int(np.argmin(rows))
    return float(lower + 0.01 * edges[k]), float(left[k]), float(right[k])


def tabulate_network(network, model, pairs):
    """A table of ``network``, used by ``pairs``, down to ``CHECKED_DISTANCE``, and its :class:`PairErrors` (largest).

    The steps are shortened until the measured error keeps ``TABLE_TOLERANCE``, or no more helps.
    """

    def outputs(x):
        return derivatives_of_scalar_input(network, x)

    lower, maximum = table_range(model.descriptor, pairs, _nearest_checked(model))
    errors = PairErrors(model, pairs, outputs)
    upper, *steps = _sections(errors, lower, maximum)
    best, least = None, np.inf
    for _ in range(6):
        table = tabulate_function(outputs, lower, upper, steps[0], maximum, steps[1])
        found = errors.of_rows(table)
        parts = [found[: table.n_fine].max(), found[table.n_fine :].max()]
        if max(parts) < least:
            best, least = table, float(max(parts))
        if least <= TABLE_TOLERANCE or max(parts) > least:
            break
        steps = [
            step if part <= TABLE_TOLERANCE else max(0.8 * step, _LEAST_STEP)
            for step, part in zip(steps, parts, strict=True)
        ]
    return best, least


def can_tabulate(model):
    """True unless an embedding has a kinked activation and no table of its own."""
    return all(e.table is not None or not has_kinks(e.network) for e, _ in model.descriptor.unique_embeddings())


def tabulate(model):
    """A copy of ``model`` in which every embedding has a table.

    Tables that the file carried are kept.
    Raises ModelError for networks with kinked activations (relu, relu6), whose tables would be
    wrong in the derivative; NotSmooth for networks so steep that no table keeps 1e-9 eV/Å, and for silut, whose second
    derivative jumps.
    """
    if not can_tabulate(model):
        raise ModelError(
            f"{model.source.path}: embedding networks with relu or relu6 cannot be tabulated, "
            "since their derivative jumps; the exact networks are evaluated instead"
        )

    def with_table(embedding, pairs):
        if embedding.table is not None:
            return embedding
        table, error = tabulate_network(embedding.network, model, pairs)
        if error > 5 * TABLE_TOLERANCE:
            raise NotSmooth(
                f"{model.source.path}: its embedding networks are not smooth enough for tables, which would be off by "
                f"about {10 * error:.1e} of usual forces; the exact networks are evaluated instead"
            )
        return replace(embedding, table=table)

    return replace(model, descriptor=model.descriptor.map_embeddings(with_table))


class NotSmooth(ModelError):
    """No table of an embedding network keeps the tolerance."""


def without_tables(model):
    """A copy that uses exact networks only.  Raises ModelError if the file carries only tables."""

    def exact(embedding, _):
        if embedding.network is None:
            raise ModelError(
                f"{model.source.path}: the file is compressed and carries only tables, so its exact embedding "
                "networks cannot be used; drop --no-tabulate or give the uncompressed model"
            )
        return replace(embedding, table=None, table_from_file=False)

    return replace(model, descriptor=model.descriptor.map_embeddings(exact))
