"""Forces at every distance above half an ångström: tables, low-rank bases and single precision against the model.

The rule, README: in double precision off by no more than 1e-9 of the largest force (of 1 eV/Å, if that is larger),
in mixed by 5e-6.  Right is the exact network, or the table that a compressed file carries, in double precision.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dpmd.kernels.cpu import CpuOperators
from dpmd.kernels.cuda import CudaOperators
from dpmd.models import load
from dpmd.models.cache import load_for_operators
from dpmd.models.lowrank import add_low_rank, describe_low_rank
from dpmd.models.networks import derivatives_of_scalar_input
from dpmd.models.tables import NotSmooth, can_tabulate, table_range, tabulate, tabulate_function
from dpmd.parallel import SerialDomain
from dpmd.system import System

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RULE = {"double": 1e-9, "mixed": 5e-6}
#: random models in all that is known of files, one of each kind; trained ones
RANDOM = [
    "f_atomener.pb", "f_exclude.pb", "f_exclude.dp", "f_exclude_c.pb", "f_faparam.pb", "f_float32.pb",
    "f_linear_tanh.pb", "f_onesideF.pb", "f_rect_nets.pb", "f_relu6.pb", "f_resnetdt.pb", "water_md0.pb",
    "water_md0_c.pb", "water_md0_c.pth", "water_md1.pb", "water_md2.pb", "water_md3.pb",
]  # fmt: skip
TRAINED = ["water", "copper"]
#: steps of single precision in the fitting network's own inputs, which are 1e4 where G grows with s: no table's doing
SINGLE_PRECISION = {"f_linear_tanh.pb": 4e-5}
WAYS = [(precision, low_rank) for precision in RULE for low_rank in (True, False)]
AROUND = 12


def distances(model, n=80):
    """From 0.5 Å to the cutoff, dense where atoms are short and where the switching function acts."""
    d = model.descriptor
    end = d.switch_end * (1 - 1e-5)
    start = max(d.switch_start, end - 0.5)
    sections = (0.5, 1.7, n // 2), (1.75, end, n // 2), (start, end, n // 4)
    return np.concatenate([np.linspace(*section) for section in sections])


def structures(model, n=80):
    """Positions and types of pairs alone, and of pairs among atoms at 1.9 Å and more, for all pairs of types."""
    direction, n_types = np.array([0.48, 0.6, 0.64]), model.n_types
    rng = np.random.default_rng(4)
    line, others = np.linspace(0, 8, 60)[:, None] * direction, []
    while len(others) < AROUND:
        place = 2 * direction + rng.uniform(-4, 4, 3)
        if np.linalg.norm(np.array([*line, *others]) - place, axis=1).min() > 1.9:
            others.append(place)
    kinds = rng.integers(0, n_types, AROUND)
    found = []
    for a in range(n_types):
        for b in range(n_types):
            for r in distances(model, n):
                pair = np.array([0 * direction, r * direction])
                found.append((pair, np.array([a, b])))
                if r < 3 and a <= b:
                    found.append((np.concatenate([pair, others]), np.array([a, b, *kinds])))
    return found


def forces(operators, cases):
    """Forces (n, 3) of each structure; all are evaluated at once, far from one another."""
    model = operators.model
    side = int(np.ceil(len(cases) ** (1 / 3)))
    places = np.stack(np.unravel_index(np.arange(len(cases)), (side, side, side)), 1) * 64.0
    positions = np.concatenate([x + place for (x, _), place in zip(cases, places, strict=True)])
    types = np.concatenate([t for _, t in cases]).astype(np.int32)
    n = len(types)
    system = System(
        np.arange(1, n + 1), types, np.ones(n), positions, np.zeros((n, 3)), np.eye(3), np.zeros(3, bool),
        tuple(model.type_map),
    )  # fmt: skip
    domain = SerialDomain(model.cutoff, 0.0, model.n_types)
    domain.update(system)
    f, parameters = model.fitting, {}
    if f.n_fparam:
        parameters["frame_parameters"] = np.full(f.n_fparam, 0.3)
    if f.n_aparam:
        parameters["atomic_parameters"] = np.full((n, f.n_aparam), 0.2)
    operators.evaluate(domain.positions, domain.types, domain.neighbors, domain.forces, **parameters)
    found = domain.fold(domain.forces)[np.argsort(system.ids)]
    return np.split(found, np.cumsum([len(t) for _, t in cases])[:-1])


def largest_error(found, right):
    """Of the forces of any structure, relative to its largest force or 1 eV/Å."""
    return max(np.abs(f - g).max() / max(1.0, np.abs(g).max()) for f, g in zip(found, right, strict=True))


@cache
def right_forces(model, n=80):
    cases = structures(model, n)
    return cases, forces(CpuOperators(model, "double", 1), cases)


@cache
def path_of(find_model, name):
    return EXAMPLES / name / f"{name}.dp" if name in TRAINED else find_model(name)


@cache
def loaded(path):
    return load(path)


def check(exact, model, precision, limit, kind=CpuOperators, n=80):
    cases, right = right_forces(exact, n)
    assert largest_error(forces(kind(model, precision), cases), right) <= limit


@pytest.mark.parametrize(("precision", "low_rank"), WAYS)
@pytest.mark.parametrize("name", [*RANDOM, *TRAINED])
def test_every_distance(name, precision, low_rank, find_model):
    path = path_of(find_model, name)
    model = load_for_operators(path, low_rank=low_rank).model
    limit = SINGLE_PRECISION.get(name, RULE["mixed"]) if precision == "mixed" else RULE["double"]
    check(loaded(path), model, precision, limit)


# --------------------------------------------------------------------- other kinds of models


def with_embeddings(model, change):
    return replace(model, descriptor=model.descriptor.map_embeddings(change))


def with_activation(model, name, factor=1.0):
    """Other activations in the embedding networks, whose weights are larger by a factor."""

    def change(embedding, _):
        layers = tuple(replace(x, activation=name, weight=factor * x.weight) for x in embedding.network.layers)
        return replace(embedding, network=replace(embedding.network, layers=layers))

    return with_embeddings(model, change)


@pytest.mark.parametrize(("precision", "low_rank"), WAYS)
@pytest.mark.parametrize("activation", ["gelu", "silu", "softplus", "sigmoid", "silut:1.0"])
def test_other_activations(activation, precision, low_rank, find_model):
    """A table of silut, whose second derivative jumps, could not keep the rule: its networks are evaluated."""
    exact = of_kind(find_model, activation)
    try:
        model = tabulate(exact)
    except NotSmooth:
        model = exact
    assert (model is exact) == activation.startswith("silut")
    check(exact, add_low_rank(model) if low_rank else model, precision, RULE[precision], n=40)


@cache
def of_kind(find_model, activation, factor=1.0):
    return with_activation(loaded(find_model("f_onesideF.pb")), activation, factor)


@pytest.mark.parametrize("low_rank", [True, False])
def test_steep_networks(low_rank, find_model):
    exact = of_kind(find_model, "tanh", 4.0)
    model = tabulate(exact)
    check(exact, add_low_rank(model) if low_rank else model, "double", RULE["double"], n=40)


def test_too_steep_networks_are_not_tabulated(find_model, monkeypatch, tmp_path):
    exact = of_kind(find_model, "tanh", 60.0)
    assert can_tabulate(exact)
    with pytest.raises(NotSmooth, match="not smooth enough"):
        tabulate(exact)
    monkeypatch.setattr("dpmd.models.cache.user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr("dpmd.models.cache.load", lambda path: exact)
    chosen = load_for_operators(find_model("f_onesideF.pb"))
    assert chosen.model is exact
    assert "exact networks" in chosen.description


def compressed(model, distance):
    """As ``dp compress`` makes it of any network, kinked ones too: only tables, in steps of 0.01 and 0.1."""

    def change(embedding, pairs):
        lower, upper = table_range(model.descriptor, pairs, distance)
        table = tabulate_function(
            lambda x: derivatives_of_scalar_input(embedding.network, x), lower, upper, 0.01, 5 * upper, 0.1
        )
        return replace(embedding, network=None, table=table, table_from_file=True)

    return with_embeddings(model, change)


@pytest.mark.parametrize("precision", RULE)
@pytest.mark.parametrize("name", ["f_relu6.pb", "water_md0.pb"])
def test_compressed_models(name, precision, find_model):
    """The file's table is the model, also where it is wrong in the derivative: near kinks of relu."""
    exact = of_compressed(find_model, name)
    check(exact, add_low_rank(exact), precision, RULE[precision])


@cache
def of_compressed(find_model, name):
    return compressed(loaded(find_model(name)), 0.9)


@cache
def with_narrow_switch(find_model, width):
    model = loaded(find_model("water_md0.pb"))
    d = model.descriptor
    start = d.switch_end - width
    return replace(model, descriptor=replace(d, rcut_smth=start, switch_start=start, switch_width=width))


@pytest.mark.parametrize("precision", RULE)
@pytest.mark.parametrize("width", [0.001, 0.1])
def test_narrow_switching_functions(width, precision, find_model):
    """Rounding a distance to single precision is 5e-4 of a switching function of 0.001 Å.

    What is left in mixed precision is that of dE/ds itself, which is all of the force there.
    """
    exact = with_narrow_switch(find_model, width)
    d = exact.descriptor
    r = np.concatenate([np.linspace(0.5, 6, 40), np.linspace(d.switch_start, d.switch_end * (1 - 1e-9), 400)])
    line = np.array([[0.0, 0, 0], [0.48, 0.6, 0.64]])
    cases = [(x * line, np.array(kinds)) for x in r for kinds in ((0, 0), (0, 1), (1, 1))]
    right = forces(CpuOperators(exact, "double", 1), cases)
    model = add_low_rank(tabulate(exact))
    limit = 2e-5 if (width, precision) == (0.001, "mixed") else RULE[precision]
    assert largest_error(forces(CpuOperators(model, precision, 1), cases), right) <= limit


# --------------------------------------------------------------------- what is chosen


def test_the_users_rank_is_taken_and_its_error_told():
    model = add_low_rank(tabulate(load(EXAMPLES / "copper" / "copper.dp")), rank=4)
    (embedding, _), = model.descriptor.unique_embeddings()
    assert embedding.basis("double").rank == 4
    assert "too few: forces are off by up to about" in describe_low_rank(model, "double")
    assert "too few" not in describe_low_rank(add_low_rank(model, rank=48), "mixed")


def test_bases_are_used_where_they_were_checked():
    """Trained copper: all usual distances are far, none below them is."""
    model = load_for_operators(EXAMPLES / "copper" / "copper.dp").model
    (embedding, _), = model.descriptor.unique_embeddings()
    shortest = model.source.min_neighbor_distance
    weight = lambda r: (1 / r - model.descriptor.radial_mean[0]) / model.descriptor.radial_std[0]  # noqa: E731
    for basis in embedding.low_rank:
        assert basis.everywhere
        assert weight(shortest) < basis.split < weight(0.85 * shortest)
        assert basis.functions.upper >= basis.split


# --------------------------------------------------------------------- on GPUs


@pytest.mark.parametrize("precision", RULE)
@pytest.mark.parametrize("name", ["copper", "f_onesideF.pb"])
def test_emulated(name, precision, find_model, emulated):
    path = path_of(find_model, name)
    model = load_for_operators(path).model

    def kind(model, precision):
        return CudaOperators(model, precision, emulated)

    check(loaded(path), model, precision, RULE[precision], kind, n=16)


@pytest.mark.parametrize("precision", RULE)
def test_emulated_narrow_switching_function(precision, find_model, emulated):
    exact = with_narrow_switch(find_model, 0.001)
    r = np.linspace(exact.descriptor.switch_start, exact.cutoff * (1 - 1e-9), 40)
    cases = [(np.array([[0.0, 0, 0], [x, 0, 0]]), np.array([0, 1])) for x in r]
    right = forces(CpuOperators(exact, "double", 1), cases)
    model = add_low_rank(tabulate(exact))
    limit = {"double": 1e-9, "mixed": 2e-5}[precision]
    assert largest_error(forces(CudaOperators(model, precision, emulated), cases), right) <= limit


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "low_rank"), WAYS)
@pytest.mark.parametrize("few", [False, True], ids=["many", "few"])
@pytest.mark.parametrize("name", [*RANDOM, *TRAINED])
def test_gpu_every_distance(name, few, precision, low_rank, find_model, gpu):
    path = path_of(find_model, name)
    model = load_for_operators(path, low_rank=low_rank).model

    def kind(model, precision):
        return CudaOperators(model, precision, gpu, few=few, strict=True)

    limit = SINGLE_PRECISION.get(name, RULE["mixed"]) if precision == "mixed" else RULE["double"]
    check(loaded(path), model, precision, limit, kind)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", RULE)
def test_gpu_narrow_switching_function(precision, find_model, gpu):
    test_emulated_narrow_switching_function(precision, find_model, gpu)


# --------------------------------------------------------------------- the nearest pair is known


def test_the_nearest_pair_is_known(find_model, emulated):
    model = load_for_operators(find_model("water_md0.pb")).model
    for operators in (CpuOperators(model, "mixed", 2), CudaOperators(model, "mixed", emulated)):
        found = []
        for r in (0.7, 0.45, 0.4, 0.9):
            forces(operators, [(np.array([[0.0, 0, 0], [0, 0, r]]), np.array([0, 1]))])
            found.append(operators.nearest)
        assert found[1:] == pytest.approx([0.45, 0.4, 0.4])
        assert found[0] > 0.5
