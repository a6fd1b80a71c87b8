"""The embedding and the descriptor of one centre, with explicit vectors.

Features of a centre are ``T = sum_j R_j (x) g(s_j)``, four rows of ``stride`` numbers, one per
column of the environment matrix; g is a row of a table: all outputs of an embedding network, or
a basis of them.  A row of a table is six vectors of polynomial coefficients.

Per neighbour and vector of outputs: forwards 5 multiply-adds for the polynomial and 4 for T;
backwards 10 for polynomial and derivative, 4 for the inner products with dE/dT, 5 for the slope.
"""

from .simd import kernel

# rows of the pair scratch, each of ``room`` numbers
X, Y, Z, INVERSE_R, RADIAL, WEIGHT_SLOPE, FRACTION, ROW_SCALE, R0, R1, R2, R3 = range(12)
PAIR_NUMBERS = 12
DEGREE = 5


def _polynomial(table, row, width, at, t):
    """Values of the outputs in the vector that starts at ``at``, in the middle of row ``row``."""
    value = table.vector(row + width * DEGREE + at)
    for power in range(DEGREE - 1, -1, -1):
        value = value * t + table.vector(row + width * power + at)
    return value


def _polynomial_and_slope(table, row, width, at, t):
    value = table.vector(row + width * DEGREE + at)
    slope = value
    for power in range(DEGREE - 1, 0, -1):
        value = value * t + table.vector(row + width * power + at)
        slope = slope * t + value
    return value * t + table.vector(row + at), slope


@kernel
def accumulate(code, features, at, stride, table, base, width, pairs, room, rows, begin, end):
    """T += R_j (x) g(s_j) over the pairs ``begin:end``; the sums stay in registers over all of them.

    features : starts at ``at``; table : starts at ``base``, rows of 6 ``width`` numbers;
    rows : table row of each pair.
    """
    features, table = features + at, table + base
    entries = [pairs + room * r for r in (R0, R1, R2, R3)]
    fractions = pairs + room * FRACTION

    def columns(first, vectors):
        places = [first + v * code.lanes for v in range(vectors)]
        from_column = [[features + stride * c for _ in places] for c in range(4)]
        sums = [[code.variable(f.vector(p)) for f, p in zip(fs, places, strict=True)] for fs in from_column]
        with code.loop(begin, end) as p:
            row = rows[p] * width * (DEGREE + 1)
            t = code.fill(fractions[p])
            values = [_polynomial(table, row, width, place, t) for place in places]
            for c in range(4):
                entry = code.fill(entries[c][p])
                for total, value in zip(sums[c], values, strict=True):
                    total.add(entry * value)
        for c in range(4):
            for place, total in zip(places, sums[c], strict=True):
                (features + stride * c).put(place, total.get())

    _in_chunks(code, width, columns)


def _in_chunks(code, width, columns):
    """``columns(first, 2)`` for every two vectors up to ``width``, ``columns(first, 1)`` for one left over."""
    two = 2 * code.lanes
    whole = width / two * two
    with code.loop(0, whole, two) as first:
        columns(first, 2)
    with code.when(whole < width):
        columns(whole, 1)


@kernel
def gradient(code, to_features, at, stride, table, base, width, pairs, room, rows, begin, end, results):
    """dE/dR of the pairs ``begin:end`` from dE/dT, in four rows of ``room`` numbers:

    results[c, p] = dT_c . g, for c = 0 also + (R . dT) . g'.
    As many pairs are taken together as have their four sums in one vector; the last group repeats
    its last pair and writes past it.
    """
    to_features, table = to_features + at, table + base
    entries = [pairs + room * r for r in (R0, R1, R2, R3)]
    fractions, scales = pairs + room * FRACTION, pairs + room * ROW_SCALE
    together = max(code.lanes // 4, 1)
    with code.loop(begin, end, together) as first:
        members = [code.smallest(first + k, end - 1) for k in range(together)]
        sums = [code.zeros(4) for _ in members]
        with code.loop(0, width, code.lanes) as place:
            columns = [(to_features + stride * c).vector(place) for c in range(4)]
            for p, (s0, s1, s2, s3) in zip(members, sums, strict=True):
                row = rows[p] * width * (DEGREE + 1)
                value, slope = _polynomial_and_slope(table, row, width, place, code.fill(fractions[p]))
                along = columns[0] * code.fill(entries[0][p])
                for c in range(1, 4):
                    along = along + columns[c] * code.fill(entries[c][p])
                s0.add(columns[0] * value + along * (slope * code.fill(scales[p])))
                s1.add(columns[1] * value)
                s2.add(columns[2] * value)
                s3.add(columns[3] * value)
        flat = [pair_sums[c].get() for c in range(4) for pair_sums in sums]
        whole = [code.sums(flat[n : n + code.lanes]) for n in range(0, len(flat), code.lanes)]
        for c in range(4):
            vector, lane = divmod(c * together, code.lanes)
            (results + room * c).put(first, code.part(whole[vector], lane, together))


@kernel
def descriptor(code, features, at, stride, n_features, axis, D, at_D):
    """D[a, m] = sum_c T[c, a] T[c, m] for a < axis, a <= m < n_features, row after row.

    D is symmetric in its first ``axis`` columns, so only the trapezoid is kept:
    ``axis n_features - axis (axis - 1) / 2`` numbers.  Each row overwrites the excess of the last.
    """
    features, row = features + at, code.variable(D + at_D)
    with code.loop(0, axis) as a:
        factors = [code.fill((features + stride * c)[a]) for c in range(4)]
        length = n_features - a
        with code.loop(0, length, code.lanes) as m:
            value = factors[0] * (features + a).vector(m)
            for c in range(1, 4):
                value = value + factors[c] * (features + (stride * c + a)).vector(m)
            row.get().put(m, value)
        row.set(row.get() + length)


@kernel
def descriptor_gradient(code, features, at, stride, n_features, axis, to_D, at_D, to_features):
    """dE/dT from dE/dD, both factors of the product (``to_features`` starts at ``at``, too):

    dT[c, m] = sum over a <= m of dD[a, m] T[c, a]  +  (for m < axis) sum over k >= m of dD[m, k] T[c, k].

    Columns of T from ``n_features`` on must be 0; those of dT become finite nonsense.
    """
    features, to_features, to_D = features + at, to_features + at, to_D + at_D
    columns = [features + stride * c for c in range(4)]

    def row_start(a):  # of row a, less a: where column 0 would be
        return a * n_features - a * (a - 1) / 2 - a

    with code.loop(0, n_features, code.lanes) as m:
        sums = code.zeros(4)

        def add(a, mask, m=m, sums=sums):
            g = to_D.vector(row_start(a) + m)
            if mask:
                g = code.lanes_from(a - m, g)
            for column, total in zip(columns, sums, strict=True):
                total.add(g * code.fill(column[a]))

        whole = code.smallest(axis, m + 1)
        with code.loop(0, whole) as a:
            add(a, mask=False)
        with code.loop(whole, code.smallest(axis, m + code.lanes)) as a:  # rows that begin within this vector
            add(a, mask=True)
        for c, total in enumerate(sums):
            (to_features + stride * c).put(m, total.get())

    with code.loop(0, axis) as a:
        sums = code.zeros(4)
        start = row_start(a)
        with code.loop(a, n_features, code.lanes) as m:
            g = to_D.vector(start + m)
            for column, total in zip(columns, sums, strict=True):
                total.add(g * column.vector(m))
        for c, total in enumerate(sums):
            (to_features + stride * c).add_number(a, code.sum(total.get()))
