"""The fused kernel: environment, tabulated embedding, fitting and forces, block by block.

Formulas as in :mod:`dpmd.kernels.reference`.  A block is a run of centres of one type, so that
the fitting network is a chain of matrix products.  For each centre the real neighbours are
walked once forwards, accumulating ``T = sum_j R_j (x) G(s_j)`` (4 x M) without storing G, and
once backwards, where the table row is evaluated again instead of having been kept.

Cost per centre with n neighbours, M outputs (multiply-adds):

    forward   n M (5 + 4)      polynomial of degree 5, four columns of T
    backward  n M (10 + 8)     polynomial and derivative, five inner products
    D         16 M x 4 forwards, twice that backwards
    fitting   2 x sum(n_in n_out)

Bytes from the table: 2 n x 6 M numbers, mostly from the caches.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from dpmd.models import PairRule

from .activations import OPTIONS
from .clock import read_clock
from .networks import energy_and_gradient, value_and_slope
from .packing import (
    INVERSE_COARSE,
    INVERSE_FINE,
    LOWER,
    MAXIMUM,
    N_COARSE,
    N_FINE,
    NETWORK,
    RULE,
    TABLE,
    UPPER,
)

INCLUDED, SKIPPED, MASKED = int(PairRule.INCLUDED), int(PairRule.SKIPPED), int(PairRule.MASKED)

# rows of the pair scratch; the backward pass reuses the last four for dE/dR~
X, Y, Z, INVERSE_R, RADIAL, ANGLE, FRACTION, INPUT, ROW_SCALE, G0, G1, G2, G3 = range(13)
PAIR_NUMBERS = 13
# rows of the integer pair scratch
NEIGHBOR, KIND, ROW = range(3)
PAIR_INTEGERS = 3
# phases that are timed
GEOMETRY, EMBEDDING, DESCRIPTOR, FITTING, FORCE = range(5)
PHASES = ("geometry", "embedding", "descriptor", "fitting", "force")
# numbers of the switching function and environment matrix
START, END, INVERSE_WIDTH, PROTECTION, INVERSE_COUNT = range(5)


class ModelArrays(NamedTuple):
    """A packed model; see :mod:`dpmd.kernels.cpu.packing`.

    switch : (5,) numbers named START ... above; statistics : (T, 3) radial mean, 1 / radial std,
    1 / angular std; sel : (T,); axis : A; n_embedding : M.
    """

    switch: np.ndarray
    statistics: np.ndarray
    sel: np.ndarray
    shared_selection: bool
    axis: int
    n_embedding: int
    coefficients: np.ndarray
    pair_numbers: np.ndarray
    pair_integers: np.ndarray
    padding: np.ndarray
    exact_numbers: np.ndarray
    exact_layers: np.ndarray
    exact_parameters: np.ndarray
    exact_first: np.ndarray
    fit_numbers: np.ndarray
    fit_layers: np.ndarray
    fit_parameters: np.ndarray
    fit_first: np.ndarray


class Workload(NamedTuple):
    """Atoms, their lists and how they are shared out.

    centres : local atoms grouped by type; blocks : (blocks, 2) ranges of ``centres``;
    block_type : (blocks,); share_blocks : (threads + 1,) ranges of blocks per thread;
    first, count, indices : the neighbour list; extra : (local atoms, n_extra) further inputs of
    the fitting networks.
    """

    centres: np.ndarray
    blocks: np.ndarray
    block_type: np.ndarray
    share_blocks: np.ndarray
    types: np.ndarray
    first: np.ndarray
    count: np.ndarray
    indices: np.ndarray
    extra: np.ndarray


class Scratch(NamedTuple):
    """Working memory, one slice per thread (first index).

    pairs : numbers and integers of every pair of a block; runs : (block + 1, T) first column of
    each centre's neighbours of each type; T : (block, 4, width); D : (block, inputs of the
    fitting network), replaced by the gradient; work, network_work : of the networks;
    exact_rows : (2, pairs, M) exact embeddings and derivatives; block_energies : (block,).
    """

    pairs: np.ndarray
    integers: np.ndarray
    runs: np.ndarray
    T: np.ndarray
    D: np.ndarray
    work: np.ndarray
    exact_rows: np.ndarray
    network_work: np.ndarray
    block_energies: np.ndarray


class Results(NamedTuple):
    """forces, atomic_virials : (threads, atoms, 3 or 9) private to each thread, summed later;
    energies : (local atoms,); virials : (local atoms, 9), the share of each centre;
    timers : (threads, phases) s; overflowed : (threads,).
    """

    forces: np.ndarray
    energies: np.ndarray
    virials: np.ndarray
    atomic_virials: np.ndarray
    timers: np.ndarray
    overflowed: np.ndarray


# --------------------------------------------------------------------- geometry


@njit(**OPTIONS)
def _collect(i, positions, types, indices, begin, end, cutoff2, pairs, integers, p0):
    """Pairs of centre ``i`` within the cutoff, written from column ``p0``; returns the end column.

    Differences are taken in double precision, then rounded to the kernel's type.
    """
    x, y, z = positions[i, 0], positions[i, 1], positions[i, 2]
    p = p0
    for q in range(begin, end):  # branch-free: always write, advance when near enough
        j = indices[q]
        dx, dy, dz = positions[j, 0] - x, positions[j, 1] - y, positions[j, 2] - z
        r2 = dx * dx + dy * dy + dz * dz
        pairs[X, p], pairs[Y, p], pairs[Z, p] = dx, dy, dz
        pairs[INVERSE_R, p] = r2  # replaced below
        integers[NEIGHBOR, p], integers[KIND, p] = j, types[j]
        p += r2 < cutoff2
    return p


@njit(**OPTIONS)
def _keep_nearest(pairs, integers, p0, p1, sel, shared_selection):
    """Drop neighbours beyond ``sel`` by the rule of the model's origin; returns the new end column.

    Slow path: only for centres with more neighbours than the model has slots.
    """
    n = p1 - p0
    taken, keep = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    used = np.zeros(sel.size, np.int64)
    for _ in range(min(sel.sum(), n) if shared_selection else n):
        nearest = -1
        for q in range(n):
            if not taken[q] and (nearest < 0 or pairs[INVERSE_R, p0 + q] < pairs[INVERSE_R, p0 + nearest]):
                nearest = q
        taken[nearest] = True
        kind = integers[KIND, p0 + nearest]
        if used[kind] < sel[kind]:
            used[kind] += 1
            keep[nearest] = True
    p = p0
    for q in range(n):
        if keep[q]:
            for row in range(PAIR_NUMBERS):
                pairs[row, p] = pairs[row, p0 + q]
            for row in range(PAIR_INTEGERS):
                integers[row, p] = integers[row, p0 + q]
            p += 1
    return p


@njit(**OPTIONS)
def _environment(pairs, integers, p0, p1, a, switch, mean, inverse_std, pair_numbers, pair_integers):
    """Radial and angular entries, table rows and fractions of the pairs in columns ``p0:p1``.

    On return RADIAL holds w / (r + p), ANGLE w r / (r + p)^2, INPUT the normalised radial entry,
    ROW, FRACTION and ROW_SCALE (d fraction / d input) the place in the table.
    """
    F = pairs.dtype.type
    start, inverse_width, protection = F(switch[START]), F(switch[INVERSE_WIDTH]), F(switch[PROTECTION])
    one, zero, mean, inverse_std = F(1), F(0), F(mean), F(inverse_std)
    for p in range(p0, p1):
        inverse_r = one / np.sqrt(pairs[INVERSE_R, p])
        r = one / inverse_r
        u = min(max((r - start) * inverse_width, zero), one)
        w = u * u * u * (u * (F(15) - F(6) * u) - F(10)) + one
        inverse_shifted = one / (r + protection)
        radial = w * inverse_shifted
        pairs[INVERSE_R, p] = inverse_r
        pairs[RADIAL, p] = radial
        pairs[ANGLE, p] = radial * r * inverse_shifted
        pairs[INPUT, p] = (radial - mean) * inverse_std
    q = p0
    while q < p1:  # neighbours are sorted by type: one run each
        b = integers[KIND, q]
        run = q
        while run < p1 and integers[KIND, run] == b:
            run += 1
        numbers = pair_numbers[a, b]
        lower, upper, maximum = F(numbers[LOWER]), F(numbers[UPPER]), F(numbers[MAXIMUM])
        inverse_fine, inverse_coarse = F(numbers[INVERSE_FINE]), F(numbers[INVERSE_COARSE])
        base, n_fine, n_coarse = pair_integers[a, b, TABLE], pair_integers[a, b, N_FINE], pair_integers[a, b, N_COARSE]
        for p in range(q, run):
            x = pairs[INPUT, p]
            if x < lower:
                row, fraction, scale = n_fine + n_coarse, x - lower, one
            elif x < upper:
                z = (x - lower) * inverse_fine
                row = min(np.int64(z), n_fine - 1)
                fraction, scale = z - F(row), inverse_fine
            elif x < maximum:
                z = (x - upper) * inverse_coarse
                k = min(np.int64(z), n_coarse - 1)
                row, fraction, scale = n_fine + k, z - F(k), inverse_coarse
            else:
                row, fraction, scale = n_fine + n_coarse + 1, x - maximum, one
            integers[ROW, p] = base + row
            pairs[FRACTION, p], pairs[ROW_SCALE, p] = fraction, scale
        q = run


# --------------------------------------------------------------------- embedding, forwards


@njit(**OPTIONS)
def _accumulate_table(T, coefficients, pairs, integers, p0, p1, inverse_angular):
    """T[4, width] += R_j (x) G(s_j) over the pairs in columns ``p0:p1``, four at a time."""
    F = T.dtype.type
    width = T.shape[1]
    T0, T1, T2, T3 = T[0], T[1], T[2], T[3]
    scale = F(inverse_angular)
    p = p0
    while p + 4 <= p1:
        ca, cb = coefficients[integers[ROW, p]], coefficients[integers[ROW, p + 1]]
        cc, cd = coefficients[integers[ROW, p + 2]], coefficients[integers[ROW, p + 3]]
        ta, tb, tc, td = pairs[FRACTION, p], pairs[FRACTION, p + 1], pairs[FRACTION, p + 2], pairs[FRACTION, p + 3]
        ra, rb, rc, rd = pairs[INPUT, p], pairs[INPUT, p + 1], pairs[INPUT, p + 2], pairs[INPUT, p + 3]
        fa = pairs[ANGLE, p] * pairs[INVERSE_R, p] * scale
        fb = pairs[ANGLE, p + 1] * pairs[INVERSE_R, p + 1] * scale
        fc = pairs[ANGLE, p + 2] * pairs[INVERSE_R, p + 2] * scale
        fd = pairs[ANGLE, p + 3] * pairs[INVERSE_R, p + 3] * scale
        xa, xb, xc, xd = fa * pairs[X, p], fb * pairs[X, p + 1], fc * pairs[X, p + 2], fd * pairs[X, p + 3]
        ya, yb, yc, yd = fa * pairs[Y, p], fb * pairs[Y, p + 1], fc * pairs[Y, p + 2], fd * pairs[Y, p + 3]
        za, zb, zc, zd = fa * pairs[Z, p], fb * pairs[Z, p + 1], fc * pairs[Z, p + 2], fd * pairs[Z, p + 3]
        for m in range(width):
            ga = ca[0, m] + ta * (ca[1, m] + ta * (ca[2, m] + ta * (ca[3, m] + ta * (ca[4, m] + ta * ca[5, m]))))
            gb = cb[0, m] + tb * (cb[1, m] + tb * (cb[2, m] + tb * (cb[3, m] + tb * (cb[4, m] + tb * cb[5, m]))))
            gc = cc[0, m] + tc * (cc[1, m] + tc * (cc[2, m] + tc * (cc[3, m] + tc * (cc[4, m] + tc * cc[5, m]))))
            gd = cd[0, m] + td * (cd[1, m] + td * (cd[2, m] + td * (cd[3, m] + td * (cd[4, m] + td * cd[5, m]))))
            T0[m] += ra * ga + rb * gb + rc * gc + rd * gd
            T1[m] += xa * ga + xb * gb + xc * gc + xd * gd
            T2[m] += ya * ga + yb * gb + yc * gc + yd * gd
            T3[m] += za * ga + zb * gb + zc * gc + zd * gd
        p += 4
    while p < p1:
        c, t, r = coefficients[integers[ROW, p]], pairs[FRACTION, p], pairs[INPUT, p]
        f = pairs[ANGLE, p] * pairs[INVERSE_R, p] * scale
        x, y, z = f * pairs[X, p], f * pairs[Y, p], f * pairs[Z, p]
        for m in range(width):
            g = c[0, m] + t * (c[1, m] + t * (c[2, m] + t * (c[3, m] + t * (c[4, m] + t * c[5, m]))))
            T0[m] += r * g
            T1[m] += x * g
            T2[m] += y * g
            T3[m] += z * g
        p += 1


@njit(**OPTIONS)
def _accumulate_rows(T, G, first_row, pairs, p0, p1, inverse_angular):
    """As :func:`_accumulate_table`, with exact embeddings ``G[first_row + p - p0]``."""
    F = T.dtype.type
    scale = F(inverse_angular)
    for p in range(p0, p1):
        g = G[first_row + p - p0]
        f = pairs[ANGLE, p] * pairs[INVERSE_R, p] * scale
        r, x, y, z = pairs[INPUT, p], f * pairs[X, p], f * pairs[Y, p], f * pairs[Z, p]
        for m in range(g.size):
            T[0, m] += r * g[m]
            T[1, m] += x * g[m]
            T[2, m] += y * g[m]
            T[3, m] += z * g[m]


# --------------------------------------------------------------------- embedding, backwards


@njit(**OPTIONS)
def _gradient_table(dT, coefficients, pairs, integers, p0, p1, inverse_angular, inverse_std):
    """dE/d(radial entry) and dE/d(angular entries) of pairs, into rows G0..G3 of the scratch.

    dT : (4, width) dE/dT.  G0 = (dT_0 . G + scale (R . dT) . G') / std, G1..3 = dT_1..3 . G / std.
    """
    F = dT.dtype.type
    width = dT.shape[1]
    d0, d1, d2, d3 = dT[0], dT[1], dT[2], dT[3]
    angular, radial = F(inverse_angular), F(inverse_std)
    p = p0
    while p + 2 <= p1:
        ca, cb = coefficients[integers[ROW, p]], coefficients[integers[ROW, p + 1]]
        ta, tb = pairs[FRACTION, p], pairs[FRACTION, p + 1]
        ra, rb = pairs[INPUT, p], pairs[INPUT, p + 1]
        fa = pairs[ANGLE, p] * pairs[INVERSE_R, p] * angular
        fb = pairs[ANGLE, p + 1] * pairs[INVERSE_R, p + 1] * angular
        xa, ya, za = fa * pairs[X, p], fa * pairs[Y, p], fa * pairs[Z, p]
        xb, yb, zb = fb * pairs[X, p + 1], fb * pairs[Y, p + 1], fb * pairs[Z, p + 1]
        a0, a1, a2, a3, as_, b0, b1, b2, b3, bs = F(0), F(0), F(0), F(0), F(0), F(0), F(0), F(0), F(0), F(0)
        for m in range(width):
            # Horner for the polynomial and its derivative together
            g = ca[5, m]
            s = g
            g = g * ta + ca[4, m]
            s = s * ta + g
            g = g * ta + ca[3, m]
            s = s * ta + g
            g = g * ta + ca[2, m]
            s = s * ta + g
            g = g * ta + ca[1, m]
            s = s * ta + g
            g = g * ta + ca[0, m]
            h = cb[5, m]
            u = h
            h = h * tb + cb[4, m]
            u = u * tb + h
            h = h * tb + cb[3, m]
            u = u * tb + h
            h = h * tb + cb[2, m]
            u = u * tb + h
            h = h * tb + cb[1, m]
            u = u * tb + h
            h = h * tb + cb[0, m]
            e0, e1, e2, e3 = d0[m], d1[m], d2[m], d3[m]
            a0 += e0 * g
            a1 += e1 * g
            a2 += e2 * g
            a3 += e3 * g
            as_ += (ra * e0 + xa * e1 + ya * e2 + za * e3) * s
            b0 += e0 * h
            b1 += e1 * h
            b2 += e2 * h
            b3 += e3 * h
            bs += (rb * e0 + xb * e1 + yb * e2 + zb * e3) * u
        pairs[G0, p] = (a0 + as_ * pairs[ROW_SCALE, p]) * radial
        pairs[G1, p], pairs[G2, p], pairs[G3, p] = a1 * angular, a2 * angular, a3 * angular
        pairs[G0, p + 1] = (b0 + bs * pairs[ROW_SCALE, p + 1]) * radial
        pairs[G1, p + 1], pairs[G2, p + 1], pairs[G3, p + 1] = b1 * angular, b2 * angular, b3 * angular
        p += 2
    while p < p1:
        c, t, r = coefficients[integers[ROW, p]], pairs[FRACTION, p], pairs[INPUT, p]
        f = pairs[ANGLE, p] * pairs[INVERSE_R, p] * angular
        x, y, z = f * pairs[X, p], f * pairs[Y, p], f * pairs[Z, p]
        s0, s1, s2, s3, ss = F(0), F(0), F(0), F(0), F(0)
        for m in range(width):
            g = c[5, m]
            s = g
            for o in range(4, 0, -1):
                g = g * t + c[o, m]
                s = s * t + g
            g = g * t + c[0, m]
            s0 += d0[m] * g
            s1 += d1[m] * g
            s2 += d2[m] * g
            s3 += d3[m] * g
            ss += (r * d0[m] + x * d1[m] + y * d2[m] + z * d3[m]) * s
        pairs[G0, p] = (s0 + ss * pairs[ROW_SCALE, p]) * radial
        pairs[G1, p], pairs[G2, p], pairs[G3, p] = s1 * angular, s2 * angular, s3 * angular
        p += 1


@njit(**OPTIONS)
def _gradient_rows(dT, G, slopes, first_row, pairs, p0, p1, inverse_angular, inverse_std):
    """As :func:`_gradient_table`, with exact embeddings and their derivatives."""
    F = dT.dtype.type
    angular, radial = F(inverse_angular), F(inverse_std)
    for p in range(p0, p1):
        g, s = G[first_row + p - p0], slopes[first_row + p - p0]
        f = pairs[ANGLE, p] * pairs[INVERSE_R, p] * angular
        r, x, y, z = pairs[INPUT, p], f * pairs[X, p], f * pairs[Y, p], f * pairs[Z, p]
        s0, s1, s2, s3, ss = F(0), F(0), F(0), F(0), F(0)
        for m in range(g.size):
            s0 += dT[0, m] * g[m]
            s1 += dT[1, m] * g[m]
            s2 += dT[2, m] * g[m]
            s3 += dT[3, m] * g[m]
            ss += (r * dT[0, m] + x * dT[1, m] + y * dT[2, m] + z * dT[3, m]) * s[m]
        pairs[G0, p] = (s0 + ss) * radial
        pairs[G1, p], pairs[G2, p], pairs[G3, p] = s1 * angular, s2 * angular, s3 * angular


# --------------------------------------------------------------------- descriptor


@njit(**OPTIONS)
def _descriptor(T, n_embedding, axis, D):
    """D[a M + m] = sum_c T[c, a] T[c, m] of one centre, for a < axis, m < M."""
    T0, T1, T2, T3 = T[0], T[1], T[2], T[3]
    for a in range(axis):
        t0, t1, t2, t3 = T0[a], T1[a], T2[a], T3[a]
        row = D[a * n_embedding : (a + 1) * n_embedding]
        for m in range(n_embedding):
            row[m] = t0 * T0[m] + t1 * T1[m] + t2 * T2[m] + t3 * T3[m]


@njit(**OPTIONS)
def _descriptor_gradient(T, dD, n_embedding, axis, scale):
    """Replace T of one centre by scale * dE/dT, from dE/dD: both factors of the product.

    dE/dT[c, m] = sum_a dD[a, m] T[c, a], and for m < A also + sum_k dD[m, k] T[c, k].
    """
    F = T.dtype.type
    T0, T1, T2, T3 = T[0], T[1], T[2], T[3]
    second = np.empty((4, axis), T.dtype)
    for a in range(axis):
        row = dD[a * n_embedding : (a + 1) * n_embedding]
        s0, s1, s2, s3 = F(0), F(0), F(0), F(0)
        for m in range(n_embedding):
            g = row[m]
            s0 += T0[m] * g
            s1 += T1[m] * g
            s2 += T2[m] * g
            s3 += T3[m] * g
        second[0, a], second[1, a], second[2, a], second[3, a] = s0, s1, s2, s3
    first = T[:, :axis].copy()
    T[:] = 0
    for a in range(axis):
        t0, t1, t2, t3 = first[0, a], first[1, a], first[2, a], first[3, a]
        row = dD[a * n_embedding : (a + 1) * n_embedding]
        for m in range(n_embedding):
            g = row[m]
            T0[m] += t0 * g
            T1[m] += t1 * g
            T2[m] += t2 * g
            T3[m] += t3 * g
    for c in range(4):
        for a in range(axis):
            T[c, a] += second[c, a]
        for m in range(n_embedding):
            T[c, m] *= F(scale)


# --------------------------------------------------------------------- forces


@njit(**OPTIONS)
def _forces(i, pairs, integers, p0, p1, switch, forces, virial, atomic_virials, want_atomic):
    """Turn dE/dR into forces on centre and neighbours and the centre's share of the virial.

    With h = r_ij / r, s = w/(r+p), v = w r/(r+p)^2: dE/dr_ij = [G0 s' + (g . h)(v' - v/r)] h + (v/r) g.
    """
    F = pairs.dtype.type
    one, zero = F(1), F(0)
    start, inverse_width, protection = F(switch[START]), F(switch[INVERSE_WIDTH]), F(switch[PROTECTION])
    for p in range(p0, p1):
        inverse_r = pairs[INVERSE_R, p]
        r = one / inverse_r
        u = min(max((r - start) * inverse_width, zero), one)
        weight_slope = F(-30) * u * u * (one - u) * (one - u) * inverse_width
        inverse_shifted = one / (r + protection)
        radial, angle = pairs[RADIAL, p], pairs[ANGLE, p]
        radial_slope = (weight_slope - radial) * inverse_shifted
        # d/dr of radial * r / (r + p)
        angle_slope = (radial_slope * r + radial - angle) * inverse_shifted
        hx, hy, hz = pairs[X, p] * inverse_r, pairs[Y, p] * inverse_r, pairs[Z, p] * inverse_r
        gx, gy, gz = pairs[G1, p], pairs[G2, p], pairs[G3, p]
        transverse = angle * inverse_r
        along = pairs[G0, p] * radial_slope + (gx * hx + gy * hy + gz * hz) * (angle_slope - transverse)
        pairs[G1, p] = along * hx + transverse * gx
        pairs[G2, p] = along * hy + transverse * gy
        pairs[G3, p] = along * hz + transverse * gz
    fx, fy, fz = zero, zero, zero
    xx, xy, xz, yx, yy, yz, zx, zy, zz = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for p in range(p0, p1):
        gx, gy, gz = pairs[G1, p], pairs[G2, p], pairs[G3, p]
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
    forces[i, 0] += fx
    forces[i, 1] += fy
    forces[i, 2] += fz
    virial[0], virial[1], virial[2] = -xx, -xy, -xz
    virial[3], virial[4], virial[5] = -yx, -yy, -yz
    virial[6], virial[7], virial[8] = -zx, -zy, -zz
    for p in range(p0, p1):
        j = integers[NEIGHBOR, p]
        forces[j, 0] -= pairs[G1, p]
        forces[j, 1] -= pairs[G2, p]
        forces[j, 2] -= pairs[G3, p]
    if want_atomic:
        for p in range(p0, p1):
            j = integers[NEIGHBOR, p]
            for a in range(3):
                for b in range(3):
                    atomic_virials[j, 3 * a + b] -= pairs[G1 + a, p] * pairs[b, p]


# --------------------------------------------------------------------- one block


@njit(**OPTIONS)
def _block_geometry(model, load, positions, atoms, a, pairs, integers, runs):
    """Pairs and environment of every centre of a block; returns the number of overflowing centres."""
    n_types = model.sel.size
    cutoff2 = model.switch[END] * model.switch[END]
    slots = model.sel.sum()
    overflowed, p = 0, 0
    for q in range(atoms.size):
        i = atoms[q]
        row = load.first[i]
        begin = p
        end = _collect(
            i, positions, load.types, load.indices, row, row + load.count[i], cutoff2, pairs, integers, begin
        )
        while True:  # once more after dropping what exceeds sel
            p = begin
            over = model.shared_selection and end - begin > slots
            for b in range(n_types):
                runs[q, b] = p
                while p < end and integers[KIND, p] == b:
                    p += 1
                over = over or (p - runs[q, b] > model.sel[b] and model.sel[b] > 0)
            if not over:
                break
            overflowed += 1
            end = _keep_nearest(pairs, integers, begin, end, model.sel, model.shared_selection)
        _environment(
            pairs, integers, begin, end, a, model.switch, model.statistics[a, 0], model.statistics[a, 1],
            model.pair_numbers, model.pair_integers,
        )  # fmt: skip
    runs[atoms.size, 0] = p
    return overflowed


@njit(inline="always")
def _run(runs, q, b, n_types):
    """Columns ``p0:p1`` of the neighbours of type ``b`` of the block's centre ``q``."""
    return runs[q, b], runs[q, b + 1] if b + 1 < n_types else runs[q + 1, 0]


@njit(**OPTIONS)
def _block_embedding(model, n, a, pairs, integers, runs, T, exact_rows, network_work):
    """T of every centre of a block, empty slots included, divided by the number of slots."""
    F = T.dtype.type
    n_types, row = model.sel.size, 0
    inverse_angular, inverse_count = model.statistics[a, 2], F(model.switch[INVERSE_COUNT])
    for q in range(n):
        T[q] = 0
        for b in range(n_types):
            rule = model.pair_integers[a, b, RULE]
            if rule == SKIPPED:
                continue
            p0, p1 = _run(runs, q, b, n_types)
            empty = F(model.sel[b] - (p1 - p0) if rule == INCLUDED or rule == MASKED else model.sel[b])
            padding, radial_column = model.padding[a, b], T[q, 0]
            for m in range(padding.size):
                radial_column[m] += empty * padding[m]
            if rule != INCLUDED:
                continue
            network = model.pair_integers[a, b, NETWORK]
            if network < 0:
                _accumulate_table(T[q], model.coefficients, pairs, integers, p0, p1, inverse_angular)
            elif p1 > p0:
                begin, end = model.exact_first[network], model.exact_first[network + 1]
                value_and_slope(
                    model.exact_numbers, model.exact_layers, model.exact_parameters, begin, end, pairs[INPUT, p0:p1],
                    exact_rows[0, row : row + p1 - p0], exact_rows[1, row : row + p1 - p0], network_work,
                )  # fmt: skip
                _accumulate_rows(T[q], exact_rows[0], row, pairs, p0, p1, inverse_angular)
                row += p1 - p0
        flat = T[q].reshape(T[q].size)
        for m in range(flat.size):
            flat[m] *= inverse_count


@njit(**OPTIONS)
def _block_gradient(model, n, a, pairs, integers, runs, dT, exact_rows):
    """dE/dR~ of every pair of a block from dE/dT."""
    n_types, row = model.sel.size, 0
    inverse_std, inverse_angular = model.statistics[a, 1], model.statistics[a, 2]
    for q in range(n):
        for b in range(n_types):
            p0, p1 = _run(runs, q, b, n_types)
            network = model.pair_integers[a, b, NETWORK]
            if model.pair_integers[a, b, RULE] != INCLUDED:
                for p in range(p0, p1):
                    pairs[G0, p], pairs[G1, p], pairs[G2, p], pairs[G3, p] = 0, 0, 0, 0
            elif network < 0:
                _gradient_table(dT[q], model.coefficients, pairs, integers, p0, p1, inverse_angular, inverse_std)
            elif p1 > p0:
                _gradient_rows(
                    dT[q], exact_rows[0], exact_rows[1], row, pairs, p0, p1, inverse_angular, inverse_std
                )  # fmt: skip
                row += p1 - p0


@njit(**OPTIONS)
def _evaluate_block(model, load, positions, atoms, a, scratch, results, share, want_atomic, clock, clock_id):
    """Energies and forces of the centres ``atoms``, all of type ``a``, by thread ``share``."""
    n, n_descriptor = atoms.size, model.axis * model.n_embedding
    pairs, integers, runs = scratch.pairs[share], scratch.integers[share], scratch.runs[share]
    T, D, exact_rows = scratch.T[share], scratch.D[share], scratch.exact_rows[share]
    energies, timers = scratch.block_energies[share], results.timers[share]

    t0 = read_clock(clock, clock_id)
    results.overflowed[share] += _block_geometry(model, load, positions, atoms, a, pairs, integers, runs)
    t1 = read_clock(clock, clock_id)
    _block_embedding(model, n, a, pairs, integers, runs, T, exact_rows, scratch.network_work[share])
    t2 = read_clock(clock, clock_id)
    for q in range(n):
        _descriptor(T[q], model.n_embedding, model.axis, D[q])
        for k in range(load.extra.shape[1]):
            D[q, n_descriptor + k] = load.extra[atoms[q], k]
    t3 = read_clock(clock, clock_id)
    energy_and_gradient(
        model.fit_numbers, model.fit_layers, model.fit_parameters, model.fit_first[a], model.fit_first[a + 1],
        D, n, scratch.work[share], energies,
    )  # fmt: skip
    t4 = read_clock(clock, clock_id)
    for q in range(n):  # T is replaced by dE/dT
        _descriptor_gradient(T[q], D[q], model.n_embedding, model.axis, model.switch[INVERSE_COUNT])
    t5 = read_clock(clock, clock_id)
    _block_gradient(model, n, a, pairs, integers, runs, T, exact_rows)
    t6 = read_clock(clock, clock_id)
    for q in range(n):
        i = atoms[q]
        results.energies[i] += energies[q]
        _forces(
            i, pairs, integers, runs[q, 0], runs[q + 1, 0], model.switch, results.forces[share], results.virials[i],
            results.atomic_virials[share], want_atomic,
        )  # fmt: skip
    t7 = read_clock(clock, clock_id)
    timers[GEOMETRY] += t1 - t0
    timers[EMBEDDING] += (t2 - t1) + (t6 - t5)
    timers[DESCRIPTOR] += (t3 - t2) + (t5 - t4)
    timers[FITTING] += t4 - t3
    timers[FORCE] += t7 - t6


@njit(**OPTIONS)
def evaluate_share(share, model, load, positions, scratch, results, want_atomic, clock, clock_id):
    """All blocks of one thread's share.

    ``results.energies`` must hold the constant parts of the atomic energies; the share's other
    results are overwritten.
    """
    results.forces[share] = 0
    results.overflowed[share] = 0
    if want_atomic:
        results.atomic_virials[share] = 0
    for k in range(load.share_blocks[share], load.share_blocks[share + 1]):
        _evaluate_block(
            model, load, positions, load.centres[load.blocks[k, 0] : load.blocks[k, 1]], load.block_type[k],
            scratch, results, share, want_atomic, clock, clock_id,
        )  # fmt: skip


@njit(**OPTIONS)
def add_private(share, n_shares, private, total):
    """total[i] += sum over threads of private[thread, i], in the same order whatever the share."""
    n = total.shape[0]
    for thread in range(private.shape[0]):
        for i in range(n * share // n_shares, n * (share + 1) // n_shares):
            for c in range(total.shape[1]):
                total[i, c] += private[thread, i, c]
