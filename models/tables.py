"""Embedding networks as piecewise quintic tables (DP Compress).

The embedding network is a function of one variable, so it can be replaced by polynomials:
quintic Hermite interpolation of value, first and second derivative at the knots, hence C2
everywhere.  Source: D. Lu et al., J. Chem. Theory Comput. 18, 5559 (2022), section 2.2.
"""

from dataclasses import replace

import numpy as np

from .errors import ModelError
from .networks import derivatives_of_scalar_input, has_kinks
from .parameters import EmbeddingTable, PairRule

#: step of the fine section, in units of the normalised input
FINE_STEP = 0.01
#: the coarse section has steps this many times larger, up to EXTENSION times the fine range
COARSE_FACTOR = 10
EXTENSION = 5
#: Å, shortest distance that the fine section reaches to, if the model does not say
DEFAULT_MIN_DISTANCE = 0.5


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


def tabulate_function(outputs, lower, upper, fine_step=FINE_STEP, extension=EXTENSION):
    """A table of a function over ``[lower, upper]`` and, coarser, up to ``extension * upper``.

    outputs : x (n,) -> values and first and second derivatives, each (n, M).
    """
    coarse_step = COARSE_FACTOR * fine_step
    n_fine = max(1, round((upper - lower) / fine_step))
    n_coarse = max(1, round((extension - 1) * max(upper, 1.0) / coarse_step))
    fine_step = (upper - lower) / n_fine
    while int((upper - lower) / fine_step) < n_fine:  # rounding must not lose the last row
        fine_step = np.nextafter(fine_step, 0)
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
        coarse_step=coarse_step,
        coefficients=quintic_coefficients(y, y1, y2, step),
    )


def tabulate_network(network, lower, upper, fine_step=FINE_STEP):
    """A table of ``network`` over ``[lower, upper]`` and, coarser, up to ``EXTENSION * upper``."""
    return tabulate_function(lambda x: derivatives_of_scalar_input(network, x), lower, upper, fine_step)


def can_tabulate(model):
    """True unless an embedding has a kinked activation and no table of its own."""
    return all(e.table is not None or not has_kinks(e.network) for e, _ in model.descriptor.unique_embeddings())


def tabulate(model, min_distance=None, fine_step=FINE_STEP):
    """A copy of ``model`` in which every embedding has a table.

    Tables that the file carried are kept.  ``min_distance`` (Å): where the fine section ends;
    default the model's own shortest training distance, else 0.5 Å.
    Raises ModelError for networks with kinked activations (relu, relu6), whose tables would be
    wrong in the derivative.
    """
    if not can_tabulate(model):
        raise ModelError(
            f"{model.source.path}: embedding networks with relu or relu6 cannot be tabulated, "
            "since their derivative jumps; the exact networks are evaluated instead"
        )
    if min_distance is None:
        min_distance = model.source.min_neighbor_distance or DEFAULT_MIN_DISTANCE
    min_distance = min(min_distance, 0.9 * model.cutoff)

    def with_table(embedding, pairs):
        if embedding.table is not None:
            return embedding
        lower, upper = table_range(model.descriptor, pairs, min_distance)
        return replace(embedding, table=tabulate_network(embedding.network, lower, upper, fine_step))

    return replace(model, descriptor=model.descriptor.map_embeddings(with_table))


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
