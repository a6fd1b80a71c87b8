"""Parts of the kernels on their own: lists, activations, random numbers, tables."""

import numpy as np
import pytest

from dpmd.kernels.cpu.activations import activate, activation_code
from dpmd.kernels.cpu.matrix import TILE_ROWS, Frame, multiply_half, pack_matrix, pack_matrix_half
from dpmd.kernels.cpu.simd import HAS_BFLOAT16, VECTOR_BYTES, aligned_zeros, round_up
from dpmd.kernels.neighbors import NeighborListBuilder
from dpmd.kernels.random import philox, standard_normals
from dpmd.models import load
from dpmd.models.networks import activation, derivatives_of_scalar_input
from dpmd.models.tables import evaluate_table, tabulate

LANES = VECTOR_BYTES // 4


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "situation", ["liquid", "two far clusters", "plane", "one atom", "ignored atoms", "none local"]
)
def test_neighbours_against_all_pairs(situation, threads):
    rng = np.random.default_rng(5)
    n = 1 if situation == "one atom" else 700
    positions = rng.random((n, 3)) * 14
    types = rng.integers(0, 3, n).astype(np.int32)
    if situation == "two far clusters":
        positions[300:] += [5000.0, -300.0, 1e4]
    if situation == "plane":
        positions[:, 2] = 0.25
    if situation == "ignored atoms":
        types[::5] = -1
    n_local = 0 if situation == "none local" else max(1, 2 * n // 3)
    neighbors = NeighborListBuilder(3, threads).build(positions, types, n_local, 4.3)
    near = np.linalg.norm(positions[:, None] - positions[None], axis=-1) < 4.3
    near &= (types[:, None] >= 0) & (types[None] >= 0) & ~np.eye(n, dtype=bool)
    assert neighbors.n_centres == n_local
    for i in range(n_local):
        row = neighbors.indices[neighbors.first[i] :][: neighbors.count[i]]
        assert sorted(row) == list(np.flatnonzero(near[i])), f"{situation}: atom {i}"
        assert (np.diff(types[row]) >= 0).all()


def test_list_grows_when_it_overflows():
    rng = np.random.default_rng(6)
    builder, types = NeighborListBuilder(1), np.zeros(400, np.int32)
    for size in (60.0, 6.0):  # from sparse to dense with the same builder
        positions = rng.random((400, 3)) * size
        count = builder.build(positions, types, 400, 3.0).count
        near = np.linalg.norm(positions[:, None] - positions[None], axis=-1) < 3.0
        assert np.array_equal(count, near.sum(axis=1) - 1)


@pytest.mark.parametrize(
    "name", ["tanh", "linear", "relu", "relu6", "softplus", "sigmoid", "gelu", "silu", "silut:3.0", "silut:1.5"]
)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_compiled_activations(name, kind):
    x = np.concatenate([np.linspace(-30, 30, 4091), [0.0, 1e-8, -1e-12, 19.06, -7.9]]).astype(kind)  # whole vectors
    z, slope = x.copy(), np.empty_like(x)
    code, parameters = activation_code(name)
    activate(code, np.array(parameters), z, slope)
    value, derivative, _ = activation(name)(x.astype(float))
    eps = 8 * np.finfo(kind).eps
    assert (np.abs(z - value) <= eps * np.maximum(1, np.abs(x))).all()  # silu multiplies tanh's error by x
    assert (np.abs(slope - derivative) <= 10 * eps).all()


def test_activation_derivatives_are_consistent():
    x, h = np.linspace(-4, 4, 161) + 0.013, 1e-5
    for name in ("tanh", "softplus", "sigmoid", "gelu", "silu", "silut:1.5"):
        f = activation(name)
        assert np.allclose((f(x + h)[0] - f(x - h)[0]) / (2 * h), f(x)[1], atol=1e-8), name
        smooth = np.abs(x - 1.5) > 2 * h  # the second derivative of silut jumps at its threshold
        assert np.allclose(((f(x + h)[1] - f(x - h)[1]) / (2 * h))[smooth], f(x)[2][smooth], atol=1e-8), name


def test_philox_known_answers():
    """Known answers of the authors' test vectors (Random123, philox4x32, ten rounds)."""
    u = np.uint64
    assert [int(v) for v in philox(u(0), u(0), u(0), u(0), u(0), u(0))] == [
        0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8,
    ]  # fmt: skip
    ones = u(0xFFFFFFFF)
    assert [int(v) for v in philox(ones, ones, ones, ones, ones, ones)] == [
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD,
    ]  # fmt: skip


def test_normals_depend_on_seed_step_id_and_stream_only():
    ids = np.arange(1, 20001)
    numbers = standard_normals(3, 10, ids)
    order = np.random.default_rng(0).permutation(len(ids))
    assert np.array_equal(standard_normals(3, 10, ids[order]), numbers[order])
    for other in (standard_normals(4, 10, ids), standard_normals(3, 11, ids), standard_normals(3, 10, ids, 1)):
        assert abs(np.corrcoef(other.ravel(), numbers.ravel())[0, 1]) < 0.02
    assert abs(numbers.mean()) < 0.02
    assert numbers.std() == pytest.approx(1, abs=0.02)
    assert ((numbers**4).mean()) == pytest.approx(3, abs=0.1)
    assert np.abs(np.corrcoef(numbers.T) - np.eye(3)).max() < 0.03


def test_tables_follow_their_network(find_model):
    model = tabulate(load(find_model("f_onesideF.dp")))
    for embedding, _ in model.descriptor.unique_embeddings():
        table = embedding.table
        x = np.linspace(table.lower, table.upper, 5000)
        value, slope = evaluate_table(table, x)
        exact, exact_slope, _ = derivatives_of_scalar_input(embedding.network, x)
        assert np.abs(value - exact).max() < 1e-10
        assert np.abs(slope - exact_slope).max() < 1e-7
        for end in (table.lower, table.maximum):  # linear and continuous beyond the ends
            (a, b), _ = evaluate_table(table, np.array([end - 1e-9, end + 1e-9]))
            assert np.abs(a - b).max() < 1e-6


# --------------------------------------------------------------------- products in bfloat16


def product_in_half(x, w, n, directions):
    """The first ``n`` rows of x w by ``multiply_half``; rows beyond are left as they are in scratch: large."""
    rows, width, columns = round_up(n, TILE_ROWS), round_up(x.shape[1], LANES), round_up(w.shape[1], LANES)
    a, c = np.full((rows, width), 1e6, np.float32), np.zeros(rows * columns, np.float32)
    a[:n] = 0
    a[:n, : x.shape[1]] = x
    widest = max(width, columns)
    frame = Frame(
        aligned_zeros(3 * widest, np.float32), aligned_zeros(3 * widest, np.float32),
        aligned_zeros(3 * rows, np.float32), aligned_zeros(rows * widest // 2, np.int32),
    )  # fmt: skip
    multiply_half(
        a.ravel(), width, n, directions, frame, pack_matrix(w, np.float32), pack_matrix_half(w), x.shape[1], columns, c,
        columns, rows, 16,
    )  # fmt: skip
    return c.reshape(rows, columns)[:n, : w.shape[1]]


@pytest.mark.skipif(not HAS_BFLOAT16, reason="this CPU has no products of bfloat16")
@pytest.mark.parametrize("n", [1, 2, 3, 5, 13, 64])
def test_what_rows_share_is_not_rounded(n):
    """Mean and two directions are exact to float32; of the rest the sum over rows knows no rounding of weights."""
    rng = np.random.default_rng(n)
    depth = 77
    w, mean, u, v = rng.normal(size=(depth, 40)), *100 * rng.normal(size=(3, depth))
    t = rng.normal(size=(n, 2))
    shared = mean + t[:, :1] * u + t[:, 1:] * v
    size = np.abs(shared) @ np.abs(w)
    assert (np.abs(product_in_half(shared, w, n, True) - shared @ w) < 2e-6 * size).all()
    alike = np.tile(mean, (n, 1))
    assert (np.abs(product_in_half(alike, w, n, False) - alike @ w) < 2e-6 * size).all()
    # numbers that bfloat16 holds exactly, about a mean of zero: all errors are of the weights, and cancel
    rest = rng.integers(-8, 9, size=(n, depth)).astype(float)
    rest = np.concatenate([rest, -rest])
    difference = product_in_half(rest, w, 2 * n, False) - rest @ w
    assert np.abs(difference).max() > 1e-2 or n < 3
    assert np.abs(difference.sum(axis=0)).max() < 1e-3
