"""The fused kernel: environment, tabulated embedding, fitting and forces, block by block.

Formulas as in :mod:`dpmd.kernels.reference`.  A block is a run of centres of one type, so that
the fitting network is a chain of matrix products.  For each centre the real neighbours are
walked once forwards, accumulating ``T = sum_j R_j (x) G(s_j)`` (4 x M) without storing G, and
once backwards, where the table row is evaluated again instead of having been kept.

Neighbours of one type come in two segments.  Those beyond the split radius use a few basis
functions, ``G(s) = U(s) V``, and are summed as ``B = sum_j R_j (x) U(s_j)``; then T = B V for a whole
block is one matrix product.  Near ones use full rows.  Where the descriptor is made of B itself
(V is folded into the first layer of the fitting network), T is not needed, unless a centre of the block
has a near neighbour after all: then the block takes the other way.

Distances, the switching function and the places in tables are computed in double precision: steep networks
and narrow switching functions would magnify the rounding of a distance to single precision.

Cost per centre with n neighbours, w numbers per row, M outputs (multiply-adds):

    forward   n w (5 + 4)      polynomial of degree 5, four columns of T
    backward  n w (10 + 9)     polynomial and derivative, inner products
    T = B V   4 w M            forwards, and again backwards
    D         16 M x 4         forwards, twice that backwards
    fitting   2 x sum(n_in n_out)

The divisor N of the average is part of the first layer's weights, so T here is a plain sum.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from dpmd.models import PairRule

from .clock import read_clock
from .embedding import (
    FRACTION,
    INVERSE_R,
    PAIR_NUMBERS,
    R0,
    R1,
    R2,
    R3,
    RADIAL,
    ROW_SCALE,
    WEIGHT_SLOPE,
    X,
    Y,
    Z,
    accumulate,
    descriptor,
    descriptor_gradient,
    gradient,
)
from .matrix import TILE_ROWS, Frame, multiply
from .networks import energy_and_gradient, value_and_slope
from .packing import (
    AXIS,
    BASE,
    COLUMN,
    CONTRACT,
    EXPAND,
    FAR_WIDTH,
    FEATURES,
    FITTING_NETWORK,
    FOLDED,
    INVERSE_COARSE,
    INVERSE_FINE,
    LOWER,
    MAXIMUM,
    N_COARSE,
    N_FINE,
    UPPER,
    WIDTH,
)
from .simd import OPTIONS, kernel

INCLUDED, SKIPPED, MASKED = int(PairRule.INCLUDED), int(PairRule.SKIPPED), int(PairRule.MASKED)

# rows of the integer pair scratch
NEIGHBOR, ROW = range(2)
PAIR_INTEGERS = 2
# segments of the neighbours of one type
FAR, NEAR = np.int64(0), np.int64(1)  # not literal integers, each of which would be compiled for
# phases that are timed
GEOMETRY, EMBEDDING, DESCRIPTOR, FITTING, FORCE = range(5)
PHASES = ("geometry", "embedding", "descriptor", "fitting", "force")
# numbers of the switching function and environment matrix
START, END, INVERSE_WIDTH, PROTECTION = range(4)
# columns of the statistics of a centre type
MEAN, INVERSE_STD, INVERSE_ANGULAR = range(3)
#: atoms per page of a thread's force buffer
PAGE_BITS = 6
PAGE = 1 << PAGE_BITS

class ModelArrays(NamedTuple):
    """A packed model; see :mod:`dpmd.kernels.cpu.packing`.

    switch : (4,) numbers named START ... above; statistics : (T, 3) named MEAN ...; sel : (T,);
    split : (T, T) Å^2, neighbours nearer than its root use full rows (inf: all); rules, networks : (T, T);
    segments, segment_numbers : (T, T, 2, ...) tables of far and near neighbours;
    padding : (T, T, width) what an empty slot adds, in far columns where there are any;
    centres : (T, 2, ...) what the features of a centre type are, usually and with near neighbours; numbers : all
    matrices and tables.
    """

    switch: np.ndarray
    statistics: np.ndarray
    sel: np.ndarray
    shared_selection: bool
    split: np.ndarray
    rules: np.ndarray
    networks: np.ndarray
    segments: np.ndarray
    segment_numbers: np.ndarray
    padding: np.ndarray
    centres: np.ndarray
    tables: np.ndarray
    fit_numbers: np.ndarray
    fit_layers: np.ndarray
    fit_parameters: np.ndarray
    fit_first: np.ndarray


class ExactEmbeddings(NamedTuple):
    """Embedding networks of pairs without a table, and room to evaluate them (per thread).

    rows : (threads, numbers), one table row per pair; work : see ``networks.embedding_scratch``.
    """

    numbers: np.ndarray
    layers: np.ndarray
    parameters: np.ndarray
    first: np.ndarray
    rows: np.ndarray
    work: np.ndarray


class Workload(NamedTuple):
    """Atoms, their lists and how they are shared out.

    centres : local atoms grouped by type; blocks : (blocks, 3) begin and end in ``centres``, type;
    share_blocks : (threads, stages + 1) ranges of blocks per thread and stage of an evaluation;
    first, count, indices : the neighbour list; type_first : (local atoms, T) where neighbours of
    each type begin in their centre's row; extra : (local atoms, n_extra) further inputs of
    the fitting networks; pages : (threads, pages) place of each page of ``PAGE`` atoms in the
    thread's force buffer, or -1; page_start : (threads + 1,) where each thread's buffer begins.
    """

    centres: np.ndarray
    blocks: np.ndarray
    share_blocks: np.ndarray
    first: np.ndarray
    type_first: np.ndarray
    count: np.ndarray
    indices: np.ndarray
    extra: np.ndarray
    pages: np.ndarray
    page_start: np.ndarray


class Scratch(NamedTuple):
    """Working memory, one slice per thread (first index); matrices are flat.

    pairs, integers : numbers of every pair of a block; inputs : in double precision, r^2 and then the normalised
    input of the embedding; to_entries : dE/dR, four rows;
    runs : (block, 2 T + 1) first pair of each centre's neighbours of each type, far and near;
    near, far : (block, 4, stride) sums T over full rows and over basis functions;
    to_near, to_far : their gradients; D : (block, stride) inputs of the fitting network, replaced
    by the gradient; work : of the fitting network; frame, products, along, rounded : see
    ``matrix.Frame``; energies : (block,).
    """

    pairs: np.ndarray
    integers: np.ndarray
    inputs: np.ndarray
    to_entries: np.ndarray
    runs: np.ndarray
    near: np.ndarray
    far: np.ndarray
    to_near: np.ndarray
    to_far: np.ndarray
    D: np.ndarray
    work: np.ndarray
    frame: np.ndarray
    products: np.ndarray
    along: np.ndarray
    rounded: np.ndarray
    energies: np.ndarray


class Results(NamedTuple):
    """forces, virials of atoms : (pages, PAGE, 3 or 9), private to each thread, summed later;
    energies : (local atoms,); virials : (local atoms, 9), the share of each centre;
    timers : (threads, phases) s; overflowed : (threads,); nearest : (threads, lanes) Å^2, of which the smallest is
    the least r^2 of all pairs.
    """

    forces: np.ndarray
    energies: np.ndarray
    virials: np.ndarray
    atomic_virials: np.ndarray
    timers: np.ndarray
    overflowed: np.ndarray
    nearest: np.ndarray


# --------------------------------------------------------------------- geometry


@kernel
def _collect(code, pairs, room, squares, neighbor, start, i, positions, indices, begin, end, cutoff2) -> int:
    """Pairs of centre ``i`` with ``indices[begin:end]`` within the cutoff, written from column ``start``.

    Returns the end column.  Differences are taken in double precision, then rounded to the
    kernel's type; ``squares`` : r^2.
    """
    centre = [(positions + i * 3)[c] for c in range(3)]
    rows = [pairs + room * k for k in (X, Y, Z)]
    column = code.variable(start)
    with code.loop(begin, end) as q:  # branch-free: always write, advance when near enough
        j, p = indices[q], column.get()
        vector = [(positions + j * 3)[c] - centre[c] for c in range(3)]
        r2 = vector[0] * vector[0] + vector[1] * vector[1] + vector[2] * vector[2]
        for row, number in zip(rows, vector, strict=True):
            row.put(p, code.number(number))
        squares.put(p, r2)
        neighbor.put(p, indices.raw(q))
        column.set(p + code.one_if(r2 < cutoff2))
    return column.get()


@njit(**OPTIONS)
def _swap(pairs, squares, integers, p, q):
    """Exchange two pairs of the same type, as :func:`_collect` leaves them."""
    for row in (X, Y, Z):
        pairs[row, p], pairs[row, q] = pairs[row, q], pairs[row, p]
    squares[p], squares[q] = squares[q], squares[p]
    integers[NEIGHBOR, p], integers[NEIGHBOR, q] = integers[NEIGHBOR, q], integers[NEIGHBOR, p]


@njit(**OPTIONS)
def _keep_nearest(pairs, squares, integers, run, sel, shared_selection):
    """Drop neighbours beyond ``sel`` by the rule of the model's origin.

    run : (2 T + 1,) first pair of each type at even places, updated.
    Slow path: only for centres with more neighbours than the model has slots.
    """
    n_types = sel.size
    begin = run[0]
    n = run[2 * n_types] - begin
    taken, keep = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    used, kind = np.zeros(n_types, np.int64), np.zeros(n, np.int64)
    for b in range(n_types):
        kind[run[2 * b] - begin : run[2 * b + 2] - begin] = b
    for _ in range(min(sel.sum(), n) if shared_selection else n):
        nearest = -1
        for q in range(n):
            if not taken[q] and (nearest < 0 or squares[begin + q] < squares[begin + nearest]):
                nearest = q
        taken[nearest] = True
        if used[kind[nearest]] < sel[kind[nearest]]:
            used[kind[nearest]] += 1
            keep[nearest] = True
    p = begin
    for b in range(n_types):
        first, last = run[2 * b], run[2 * b + 2]
        run[2 * b] = p
        for q in range(first, last):
            if keep[q - begin]:
                for row in (X, Y, Z):
                    pairs[row, p] = pairs[row, q]
                squares[p], integers[NEIGHBOR, p] = squares[q], integers[NEIGHBOR, q]
                p += 1
    run[2 * n_types] = p


@kernel
def _environment(code, pairs, room, inputs, n, switch, statistics, nearest):
    """Entries of the environment matrix of pairs ``0 .. n - 1`` of a block.

    inputs : r^2, on return the normalised radial entry, both in double precision.
    On return INVERSE_R holds 1 / r, RADIAL w / (r + p), WEIGHT_SLOPE dw/dr, R0 the normalised
    radial entry and R1 .. R3 the angular ones; ``nearest`` (a vector) is lowered to r^2.
    """
    row = [pairs + room * k for k in range(PAIR_NUMBERS)]
    start, inverse_width, protection = (code.fill_wide(switch[k]) for k in (START, INVERSE_WIDTH, PROTECTION))
    mean, inverse_std = (code.fill_wide(statistics[k]) for k in (MEAN, INVERSE_STD))
    angular = code.fill(code.number(statistics[INVERSE_ANGULAR]))
    zero, one = code.fill_wide(0.0), code.fill_wide(1.0)
    least = code.variable(nearest.vector(0, code.wide_type))
    with code.loop(0, n, code.lanes) as p:
        squares = inputs.vector(p, code.wide_type)
        least.set(code.function("minnum", least.get(), squares))
        r = code.function("sqrt", squares)
        u = code.function("minnum", code.function("maxnum", (r - start) * inverse_width, zero), one)
        w = u * u * u * (u * (code.fill_wide(15.0) - u * 6.0) - 10.0) + 1.0
        rest = u * (one - u)
        inverse_shifted = one / (r + protection)
        radial = w * inverse_shifted
        x = (radial - mean) * inverse_std
        inputs.put(p, x)
        row[R0].put(p, code.narrowed(x))
        row[WEIGHT_SLOPE].put(p, code.narrowed(rest * rest * inverse_width * -30.0))
        r, radial, inverse_shifted = (code.narrowed(v) for v in (r, radial, inverse_shifted))
        inverse_r = code.fill(1.0) / r
        row[INVERSE_R].put(p, inverse_r)
        row[RADIAL].put(p, radial)
        factor = radial * inverse_shifted * angular  # w r / (r + p)^2 / r
        for k, entry in ((X, R1), (Y, R2), (Z, R3)):
            row[entry].put(p, row[k].vector(p) * factor)
    nearest.put(0, least.get())


@kernel
def _find_rows(code, pairs, room, inputs, rows, begin, end, segment, numbers):
    """Table row, fraction of it and d fraction / d input of the pairs ``begin:end``."""
    fractions, scales = pairs + room * FRACTION, pairs + room * ROW_SCALE
    lower, upper, maximum, inverse_fine, inverse_coarse = (
        code.fill_wide(numbers[k]) for k in (LOWER, UPPER, MAXIMUM, INVERSE_FINE, INVERSE_COARSE)
    )
    n_fine, n_coarse = (code.fill(code.narrow(segment[k])) for k in (N_FINE, N_COARSE))
    zero, one, most = code.fill_wide(0.0), code.fill_wide(1.0), code.fill_wide(1e6)
    with code.loop(begin, end, code.lanes) as p:
        x = inputs.vector(p, code.wide_type)
        z = code.function("maxnum", (x - lower) * inverse_fine, zero)
        whole, number = code.wide_integers(code.function("minnum", z, most))
        inside = whole < n_fine
        row = code.select(inside, whole, n_fine - 1)
        fraction = z - code.select(inside, number, code.wide_from_integers(row))
        scale = inverse_fine
        # the coarse section, and linear continuations below and above
        coarse = code.function("maxnum", (x - upper) * inverse_coarse, zero)
        whole, number = code.wide_integers(code.function("minnum", coarse, most))
        whole = code.select(whole < n_coarse, whole, n_coarse - 1)
        beyond = (upper - x) < code.fill_wide(1e-30)
        for condition, new_row, new_fraction, new_scale in (
            (beyond, n_fine + whole, coarse - code.wide_from_integers(whole), inverse_coarse),
            (x < lower, n_fine + n_coarse, x - lower, one),
            (maximum < x, n_fine + n_coarse + 1, x - maximum, one),
        ):
            row = code.select(condition, new_row, row)
            fraction = code.select(condition, new_fraction, fraction)
            scale = code.select(condition, new_scale, scale)
        rows.put(p, row)
        fractions.put(p, code.narrowed(fraction))
        scales.put(p, code.narrowed(scale))


@njit(**OPTIONS)
def _block_geometry(model, load, positions, atoms, a, pairs, inputs, integers, runs, nearest):
    """Pairs and environment of every centre of a block.

    Returns the numbers of overflowing centres and of near neighbours, where there are far ones.
    """
    n_types, room, n_near = model.sel.size, pairs.shape[1], 0
    cutoff2 = model.switch[END] * model.switch[END]
    slots = model.sel.sum()
    overflowed, end = 0, np.int64(0)
    for q in range(atoms.size):
        i, run = atoms[q], runs[q]
        row, begin, over = load.first[i], end, False
        for b in range(n_types):
            run[2 * b] = end
            last = load.type_first[i, b + 1] if b + 1 < n_types else load.count[i]
            end = _collect(
                pairs, room, inputs, integers[NEIGHBOR], end, i, positions, load.indices,
                row + load.type_first[i, b], row + last, cutoff2,
            )  # fmt: skip
            over = over or (end - run[2 * b] > model.sel[b] and model.sel[b] > 0)
        run[2 * n_types] = end
        if over or (model.shared_selection and end - begin > slots):
            overflowed += 1
            _keep_nearest(pairs, inputs, integers, run, model.sel, model.shared_selection)
            end = run[2 * n_types]
        for b in range(n_types):  # far neighbours first
            split, p, near = model.split[a, b], run[2 * b], run[2 * b + 2]
            if split == np.inf:  # no basis: full rows for all
                near = p
            else:
                while p < near:
                    if inputs[p] < split:
                        near -= 1
                        _swap(pairs, inputs, integers, p, near)
                    else:
                        p += 1
                n_near += run[2 * b + 2] - near
            run[2 * b + 1] = near
    inputs[end : end + nearest.size] = cutoff2  # the last vector reaches over the end
    _environment(pairs, room, inputs, end, model.switch, model.statistics[a], nearest)
    for q in range(atoms.size):
        for b in range(n_types):
            for segment in (FAR, NEAR):
                begin, end = runs[q, 2 * b + segment], runs[q, 2 * b + segment + 1]
                if end > begin:
                    _find_rows(
                        pairs, room, inputs, integers[ROW], begin, end, model.segments[a, b, segment],
                        model.segment_numbers[a, b, segment],
                    )  # fmt: skip
    return overflowed, n_near


# --------------------------------------------------------------------- embedding


@njit(**OPTIONS)
def _exact_embedding(model, exact, n, a, pairs, integers, runs, rows, work):
    """Exact embeddings as rows of a table, one per pair: value, slope, and no higher powers."""
    width = model.padding.shape[2]
    for q in range(n):
        for b in range(model.sel.size):
            network, begin, end = model.networks[a, b], runs[q, 2 * b + NEAR], runs[q, 2 * b + 2]
            if network < 0 or model.rules[a, b] != INCLUDED or begin == end:
                continue
            value_and_slope(
                exact.numbers, exact.layers, exact.parameters, exact.first[network], exact.first[network + 1],
                pairs[R0, begin:end], rows[begin * 6 * width : end * 6 * width], work,
            )  # fmt: skip
            for p in range(begin, end):
                integers[ROW, p] = p
                pairs[FRACTION, p], pairs[ROW_SCALE, p] = 0, 1


@njit(**OPTIONS)
def _accumulate_segment(model, segment, n, a, pairs, integers, runs, features, stride, exact_rows):
    """T of every centre of a block: the neighbours of one segment, and empty slots."""
    rows, room = integers[ROW], pairs.shape[1]
    for q in range(n):
        at = 4 * q * stride
        for b in range(model.sel.size):
            rule = model.rules[a, b]
            if rule == SKIPPED:
                continue
            place = model.segments[a, b, segment]
            if (segment == FAR) == (model.split[a, b] < np.inf):  # empty slots are far
                filled = runs[q, 2 * b + 2] - runs[q, 2 * b] if rule in (INCLUDED, MASKED) else 0
                empty = pairs.dtype.type(model.sel[b] - filled)
                for m in range(place[WIDTH]):
                    features[at + place[COLUMN] + m] += empty * model.padding[a, b, m]
            begin, end = runs[q, 2 * b + segment], runs[q, 2 * b + segment + 1]
            if rule == INCLUDED and end > begin:
                table = model.tables if model.networks[a, b] < 0 else exact_rows
                accumulate(
                    features, at + place[COLUMN], stride, table, place[BASE], place[WIDTH], pairs, room, rows,
                    begin, end,
                )  # fmt: skip


@njit(**OPTIONS)
def _gradient_segments(
    model, n, a, pairs, integers, runs, to_near, near_stride, to_far, far_stride, exact_rows, results
):
    """dE/dR of every pair of a block from dE/dT."""
    rows, room = integers[ROW], pairs.shape[1]
    for q in range(n):
        for b in range(model.sel.size):
            table = model.tables if model.networks[a, b] < 0 else exact_rows
            for segment in (FAR, NEAR):
                begin, end = runs[q, 2 * b + segment], runs[q, 2 * b + segment + 1]
                place = model.segments[a, b, segment]
                if end == begin:
                    continue
                if model.rules[a, b] != INCLUDED:
                    for c in range(4):
                        results[c * room + begin : c * room + end] = 0
                    continue
                to_features, stride = (to_far, far_stride) if segment == FAR else (to_near, near_stride)
                gradient(
                    to_features, 4 * q * stride + place[COLUMN], stride, table, place[BASE], place[WIDTH], pairs, room,
                    rows, begin, end, results,
                )  # fmt: skip


# --------------------------------------------------------------------- forces


@kernel
def _pair_forces(code, pairs, room, n, switch, statistics, to_entries):
    """dE/dr_ij of pairs ``0 .. n - 1`` of a block from dE/dR, in place of rows R1 .. R3.

    With h = r_ij / r, s = w/(r+p), v = w r/(r+p)^2, g = dE/d(s, v h):
    dE/dr_ij = [g_0 s' + (g . h)(v' - v/r)] h + (v/r) g.
    """
    row = [pairs + room * k for k in range(PAIR_NUMBERS)]
    protection = code.fill(code.number(switch[PROTECTION]))
    inverse_std, angular = (code.fill(code.number(statistics[k])) for k in (INVERSE_STD, INVERSE_ANGULAR))
    one = code.fill(1.0)
    with code.loop(0, n, code.lanes) as p:
        inverse_r, radial = row[INVERSE_R].vector(p), row[RADIAL].vector(p)
        r = one / inverse_r
        inverse_shifted = one / (r + protection)
        angle = radial * r * inverse_shifted
        radial_slope = (row[WEIGHT_SLOPE].vector(p) - radial) * inverse_shifted
        # d/dr of radial * r / (r + p)
        angle_slope = (radial_slope * r + radial - angle) * inverse_shifted
        h = [row[k].vector(p) * inverse_r for k in (X, Y, Z)]
        g = [(to_entries + room * c).vector(p) * angular for c in (1, 2, 3)]
        transverse = angle * inverse_r
        along = to_entries.vector(p) * inverse_std * radial_slope
        along = along + (g[0] * h[0] + g[1] * h[1] + g[2] * h[2]) * (angle_slope - transverse)
        for k, h_k, g_k in zip((R1, R2, R3), h, g, strict=True):
            row[k].put(p, along * h_k + transverse * g_k)


@njit(**OPTIONS)
def _assemble(i, pairs, integers, p0, p1, pages, forces, virial, of_atoms, want_atomic):
    """Add the pair forces of centre ``i`` to the atoms, and its share of the virial."""
    zero = pairs.dtype.type(0)
    fx, fy, fz = zero, zero, zero
    xx, xy, xz, yx, yy, yz, zx, zy, zz = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for p in range(p0, p1):
        gx, gy, gz = pairs[R1, p], pairs[R2, p], pairs[R3, p]
        x, y, z = pairs[X, p], pairs[Y, p], pairs[Z, p]
        fx += gx
        fy += gy
        fz += gz
        xx += gx * x
        xy += gx * y
        xz += gx * z
        yx += gy * x
        yy += gy * y
        yz += gy * z
        zx += gz * x
        zy += gz * y
        zz += gz * z
    page, place = pages[i >> PAGE_BITS], i & (PAGE - 1)
    forces[page, place, 0] += fx
    forces[page, place, 1] += fy
    forces[page, place, 2] += fz
    virial[0], virial[1], virial[2] = -xx, -xy, -xz
    virial[3], virial[4], virial[5] = -yx, -yy, -yz
    virial[6], virial[7], virial[8] = -zx, -zy, -zz
    for p in range(p0, p1):
        j = integers[NEIGHBOR, p]
        page, place = pages[j >> PAGE_BITS], j & (PAGE - 1)
        forces[page, place, 0] -= pairs[R1, p]
        forces[page, place, 1] -= pairs[R2, p]
        forces[page, place, 2] -= pairs[R3, p]
    if want_atomic:
        for p in range(p0, p1):
            j = integers[NEIGHBOR, p]
            page, place = pages[j >> PAGE_BITS], j & (PAGE - 1)
            for a in range(3):
                for b in range(3):
                    of_atoms[page, place, 3 * a + b] -= pairs[R1 + a, p] * pairs[b, p]


# --------------------------------------------------------------------- shares of blocks


@njit(**OPTIONS)
def evaluate_share(share, stage, model, exact, half, load, positions, scratch, results, want_atomic, clock, clock_id):
    """All blocks of one thread's share that belong to a stage; stages in order, from 0.

    exact : :class:`ExactEmbeddings`, or None if every pair has a table; half : weights of the fitting
    networks in bfloat16, or None (it is compiled for either).
    ``results.energies`` must hold the constant parts of the atomic energies; stage 0 overwrites the
    share's other results, the others add to them.
    """
    pairs, integers, runs = scratch.pairs[share], scratch.integers[share], scratch.runs[share]
    inputs, nearest = scratch.inputs[share], results.nearest[share]
    near, far, to_near, to_far = scratch.near[share], scratch.far[share], scratch.to_near[share], scratch.to_far[share]
    D, energies, to_entries = scratch.D[share], scratch.energies[share], scratch.to_entries[share]
    work, exact_rows = scratch.work[share], model.tables
    if exact is not None:
        exact_rows = exact.rows[share]
    frame = Frame(scratch.frame[share], scratch.products[share], scratch.along[share], scratch.rounded[share])
    timers, pages = results.timers[share], load.pages[share]
    most = runs.shape[0]  # rows of a block
    near_stride, far_stride, stride_D = near.size // (4 * most), far.size // (4 * most), D.size // most
    forces = results.forces[load.page_start[share] : load.page_start[share + 1]]
    of_atoms = results.atomic_virials[load.page_start[share] : load.page_start[share + 1]]
    if stage == 0:
        forces[:] = 0
        of_atoms[:] = 0
        results.overflowed[share] = 0
        nearest[:] = np.inf
    for block in range(load.share_blocks[share, stage], load.share_blocks[share, stage + 1]):
        atoms, a = load.centres[load.blocks[block, 0] : load.blocks[block, 1]], load.blocks[block, 2]
        n = atoms.size
        rows = -(-n // TILE_ROWS) * TILE_ROWS

        t0 = read_clock(clock, clock_id)
        overflowed, n_near = _block_geometry(
            model, load, positions, atoms, a, pairs, inputs, integers, runs, nearest
        )  # fmt: skip
        results.overflowed[share] += overflowed
        centre = model.centres[a, min(n_near, 1)]
        t1 = read_clock(clock, clock_id)
        if centre[FAR_WIDTH] > 0:
            far[: 4 * n * far_stride] = 0
            _accumulate_segment(model, FAR, n, a, pairs, integers, runs, far, far_stride, exact_rows)
        if not centre[FOLDED]:
            if centre[FAR_WIDTH] > 0:
                multiply(
                    far, far_stride, model.fit_numbers[centre[EXPAND] :], centre[FAR_WIDTH], model.padding.shape[2],
                    near, near_stride, 4 * rows, centre[FAR_WIDTH],
                )  # fmt: skip
            else:
                near[: 4 * n * near_stride] = 0
            if exact is not None:
                _exact_embedding(model, exact, n, a, pairs, integers, runs, exact_rows, exact.work[share])
            _accumulate_segment(model, NEAR, n, a, pairs, integers, runs, near, near_stride, exact_rows)
        t2 = read_clock(clock, clock_id)
        features, to_features, stride = (far, to_far, far_stride) if centre[FOLDED] else (near, to_near, near_stride)
        n_features, axis = centre[FEATURES], centre[AXIS]
        for q in range(n):
            descriptor(features, 4 * q * stride, stride, n_features, axis, D, q * stride_D)
            n_descriptor = axis * n_features - axis * (axis - 1) // 2
            end = q * stride_D + n_descriptor
            for k in range(load.extra.shape[1]):
                D[end + k] = load.extra[atoms[q], k]
            end += load.extra.shape[1]
            D[end : (q + 1) * stride_D] = 0
        t3 = read_clock(clock, clock_id)
        energy_and_gradient(
            model.fit_numbers, half, frame, model.fit_layers, model.fit_parameters,
            model.fit_first[centre[FITTING_NETWORK]], model.fit_first[centre[FITTING_NETWORK] + 1], D, stride_D, n,
            rows, work, energies,
        )  # fmt: skip
        t4 = read_clock(clock, clock_id)
        for q in range(n):
            descriptor_gradient(features, 4 * q * stride, stride, n_features, axis, D, q * stride_D, to_features)
        t5 = read_clock(clock, clock_id)
        if centre[FAR_WIDTH] > 0 and not centre[FOLDED]:
            multiply(
                to_near, near_stride, model.fit_numbers[centre[CONTRACT] :], n_features, centre[FAR_WIDTH],
                to_far, far_stride, 4 * rows, n_features,
            )  # fmt: skip
        _gradient_segments(
            model, n, a, pairs, integers, runs, to_near, near_stride, to_far, far_stride, exact_rows, to_entries
        )
        t6 = read_clock(clock, clock_id)
        n_pairs = runs[n - 1, 2 * model.sel.size]
        _pair_forces(pairs, pairs.shape[1], n_pairs, model.switch, model.statistics[a], to_entries)
        for q in range(n):
            i = atoms[q]
            results.energies[i] += energies[q]
            _assemble(
                i, pairs, integers, runs[q, 0], runs[q, 2 * model.sel.size], pages, forces, results.virials[i],
                of_atoms, want_atomic,
            )  # fmt: skip
        t7 = read_clock(clock, clock_id)
        timers[GEOMETRY] += t1 - t0
        timers[EMBEDDING] += (t2 - t1) + (t6 - t5)
        timers[DESCRIPTOR] += (t3 - t2) + (t5 - t4)
        timers[FITTING] += t4 - t3
        timers[FORCE] += t7 - t6


@njit(**OPTIONS)
def survey(share, load, types, pages):
    """Fill ``load.type_first`` for the share's centres, and mark the pages of atoms that it touches.

    pages : (threads, pages), 0 where the share's pairs have an atom of the page, else -1.
    """
    pages[share] = -1
    n_types = load.type_first.shape[1]
    for block in range(load.share_blocks[share, 0], load.share_blocks[share, -1]):
        for k in range(load.blocks[block, 0], load.blocks[block, 1]):
            i, b = load.centres[k], 0
            pages[share, i >> PAGE_BITS] = 0
            for q in range(load.count[i]):
                j = load.indices[load.first[i] + q]
                pages[share, j >> PAGE_BITS] = 0
                while b <= types[j]:
                    load.type_first[i, b] = q
                    b += 1
            load.type_first[i, b:n_types] = load.count[i]


@njit(**OPTIONS)
def add_private(share, n_shares, pages, page_start, private, total):
    """Add the threads' buffers to ``total``, page by page, in the order of the threads."""
    n = pages.shape[1]
    for page in range(n * share // n_shares, n * (share + 1) // n_shares):
        for thread in range(pages.shape[0]):
            if pages[thread, page] >= 0:
                own = private[page_start[thread] + pages[thread, page]]
                begin = page * PAGE
                for i in range(min(PAGE, total.shape[0] - begin)):
                    for c in range(total.shape[1]):
                        total[begin + i, c] += own[i, c]
