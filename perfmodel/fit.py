"""Fit efficiencies and overheads to measured runs, and judge a fit.

The fit minimises robust (soft-l1) relative residuals of the step time, and with smaller weights of the
mean and slowest rank's time for energies and forces where a file states them: they tell computing from
waiting, which step times alone can trade for each other.  Coefficients are fitted in logarithms,
within physical bounds, with a weak prior (a factor of e at one standard deviation times
:data:`PRIOR_WIDTH`) around the values at the start, so that what the runs do not determine stays put.
"""

from dataclasses import dataclass, replace

import numpy as np

from . import steptime
from .errors import PerformanceModelError, unknown
from .machines import BOUNDS, MEMORY_COEFFICIENTS, TIME_COEFFICIENTS, Coefficients, Profile

#: Relative residuals above this grow linearly instead of quadratically.
ROBUST_SCALE = 0.02
#: Weights of the pair times relative to the step time.
PAIR_WEIGHT, SLOWEST_WEIGHT = 0.5, 0.3
#: Standard deviation of the prior on the logarithm of each coefficient.
PRIOR_WIDTH = 1.5


@dataclass(frozen=True)
class Score:
    """How predictions of a set of runs compare: percentages, and per run relative errors."""

    mape: float
    bias: float
    worst: float
    errors: np.ndarray

    @classmethod
    def of(cls, predicted, measured):
        errors = np.asarray(predicted) / np.asarray(measured) - 1
        if errors.size == 0:
            return cls(float("nan"), float("nan"), float("nan"), errors)
        return cls(*(float(100 * x) for x in (abs(errors).mean(), errors.mean(), abs(errors).max())), errors)


@dataclass(frozen=True)
class FitResult:
    """A fitted profile with all that tells how far to trust it.

    predicted : s per step of each run; score : of the runs fitted.
    memory_score : of the runs that state memory, or None.
    standard_errors : relative, per free coefficient.
    validation : name of the test to :class:`Score` of left-out runs.
    """

    profile: Profile
    predicted: np.ndarray
    score: Score
    memory_score: Score | None
    standard_errors: dict
    validation: dict


def prepare(runs, machine):
    """Features of runs on a machine, stacked."""
    if not runs:
        raise PerformanceModelError("there are no runs to work on")
    # Runs that were measured are facts: their layouts are not refused.
    return steptime.stack(
        [
            steptime.features(
                machine,
                r.sizes,
                r.system,
                r.layout,
                r.precision,
                r.engine,
                r.skin,
                r.rebuild_every,
                check=False,
            )
            for r in runs
        ]
    )


def select(features, mask):
    """The features of some of the runs."""
    return type(features)(**{name: values[mask] for name, values in vars(features).items()})


def _measured(runs):
    def column(name):
        return np.array([getattr(r, name) or np.nan for r in runs], dtype=float)

    return column("step_seconds"), column("pair_seconds"), column("slowest_pair_seconds"), column("memory")


def fit(runs, machine, free=None, start=None, validate=True):
    """Fit the coefficients of the engine that made ``runs``: a :class:`FitResult`.

    free : names of the coefficients to fit, default the eight of the step time (those that no run can tell, such
        as messages of a single rank, are dropped).  The three memory coefficients are fitted
        apart, to the runs that state memory.
    start : :class:`~dpmd.perfmodel.machines.Coefficients` to begin with and to stay near; default the
        class's neutral values, never an earlier fit, so that left-out runs stay unseen.
    """
    engines = {r.engine for r in runs}
    if len(engines) != 1:
        raise PerformanceModelError(f"a fit needs the runs of one engine; got {', '.join(sorted(engines)) or 'none'}")
    engine = engines.pop()
    features, measured = prepare(runs, machine), _measured(runs)
    start = start or Coefficients()
    free = _free_names(free, features)
    if len(runs) < len(free):
        raise PerformanceModelError(
            f"{len(runs)} runs cannot determine {len(free)} coefficients; name fewer with --free"
        )
    coefficients, covariance = _fit_time(features, measured, free, start)
    predicted = steptime.step_seconds(features, coefficients)
    score = Score.of(predicted, measured[0])
    coefficients, memory_score = _fit_memory(features, measured[3], coefficients)
    profile = Profile(
        engine=engine,
        coefficients=coefficients,
        quality="measured",
        source=f"fitted to {len(runs)} runs, MAPE {score.mape:.1f} %",
        relative_error=float(np.sqrt(np.mean(np.log1p(score.errors) ** 2))),
        memory_error=0.5 if memory_score is None else float(np.sqrt(np.mean(memory_score.errors**2))),
        free=tuple(free),
        covariance=tuple(map(tuple, covariance)),
    )
    errors = dict(zip(free, np.sqrt(np.diag(covariance)), strict=True))
    validation = cross_validate(runs, features, measured, free, start) if validate else {}
    return FitResult(profile, predicted, score, memory_score, errors, validation)


def _free_names(free, features):
    if free is not None:
        for name in free:
            if name not in BOUNDS:
                raise unknown("coefficient", name, BOUNDS)
        return list(free)
    free = list(TIME_COEFFICIENTS)
    if (features.threads == 1).all():
        free = [name for name in free if name not in ("serial_fraction", "thread_start_us")]
    if (features.messages + features.reduction_depth == 0).all():
        free.remove("message_us")
    if (features.boxes_extreme == 0).all():
        free.remove("spread")
    return free


def _fit_time(features, measured, free, start):
    """Coefficients and the covariance of the logarithms of the free ones."""
    step, pair, slowest, _ = measured
    has_pair, has_slowest = np.isfinite(pair), np.isfinite(slowest)
    origin = np.log([getattr(start, name) for name in free])
    low, high = np.log([BOUNDS[name] for name in free]).T

    def with_values(x):
        return replace(start, **dict(zip(free, np.exp(x), strict=True)))

    def residuals(x):
        coefficients = with_values(x)
        mean, slow = steptime.pair_seconds(features, coefficients)
        return np.concatenate(
            [
                np.log(steptime.step_seconds(features, coefficients) / step),
                PAIR_WEIGHT * np.log(mean / pair)[has_pair],
                SLOWEST_WEIGHT * np.log(slow / slowest)[has_slowest],
                ROBUST_SCALE * (x - origin) / PRIOR_WIDTH,
            ]
        )

    from scipy.optimize import least_squares  # most commands of dp-perf do without it

    found = least_squares(
        residuals, np.clip(origin, low + 1e-6, high - 1e-6), bounds=(low, high), loss="soft_l1", f_scale=ROBUST_SCALE
    )
    # Residuals that the robust loss has tamed set the scale of the covariance.
    variance = 2 * found.cost / max(len(step) - len(free), 1)
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * variance
    return with_values(found.x), covariance


def _fit_memory(features, memory, coefficients):
    """Fit the three memory coefficients to the runs that state memory; returns them and their score."""
    known = np.isfinite(memory)
    if known.sum() < 4:
        return coefficients, None
    chosen, names = select(features, known), MEMORY_COEFFICIENTS
    origin = np.log([getattr(coefficients, name) for name in names])
    low, high = np.log([BOUNDS[name] for name in names]).T

    def with_values(x):
        return replace(coefficients, **dict(zip(names, np.exp(x), strict=True)))

    def residuals(x):
        return np.append(np.log(steptime.node_bytes(chosen, with_values(x)) / memory[known]), 0.02 * (x - origin))

    from scipy.optimize import least_squares

    found = least_squares(residuals, origin, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    coefficients = with_values(found.x)
    return coefficients, Score.of(steptime.node_bytes(chosen, coefficients), memory[known])


# ---------------------------------------------------------------------------------------------
# how far to trust a fit


def predict_left_out(features, measured, free, start, train):
    """Fit where ``train`` is True; the :class:`Score` of the other runs."""
    coefficients, _ = _fit_time(select(features, train), tuple(m[train] for m in measured), free, start)
    predicted = steptime.step_seconds(select(features, ~train), coefficients)
    return Score.of(predicted, measured[0][~train])


def cross_validate(runs, features=None, measured=None, free=None, start=None, machine=None, folds=10):
    """Scores of runs left out of the fit: ``{test: Score}``.

    "ten-fold, by configuration": repeated runs stay together.  "leave one layout out": all runs
    with the same threads per rank.  "leave one system out" when there are several.
    """
    if features is None:
        features, measured = prepare(runs, machine), _measured(runs)
        start = start or Coefficients()
        free = _free_names(free, features)
    tests = {
        "ten-fold, by configuration": _deal([r.configuration for r in runs], folds),
        "leave one layout out": _deal([(r.layout.ranks_per_node, r.layout.threads_per_rank) for r in runs]),
        "leave one size out": _deal([(r.system.name, r.system.atoms) for r in runs], folds),
    }
    scores = {}
    for name, groups in tests.items():
        errors = np.full(len(runs), np.nan)
        for group in np.unique(groups):
            train = groups != group
            if train.sum() < len(free):
                continue
            errors[~train] = predict_left_out(features, measured, free, start, train).errors
        known = np.isfinite(errors)
        if known.any():
            scores[name] = Score.of(1 + errors[known], np.ones(known.sum()))
    return scores


def _deal(keys, folds=None):
    """Number the distinct keys, and deal them out over ``folds`` in a fixed random order."""
    distinct = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    numbers = np.array([distinct[key] for key in keys])
    if folds is None or len(distinct) <= folds:
        return numbers
    order = np.random.default_rng(0).permutation(len(distinct))
    return order[numbers] % folds


def extrapolate(runs, machine, up_to_nodes, free=None, start=None):
    """Fit runs on at most ``up_to_nodes`` nodes, predict the larger ones: Score of those."""
    train = np.array([r.layout.nodes <= up_to_nodes for r in runs])
    if train.all() or not train.any():
        raise PerformanceModelError(f"runs on both sides of {up_to_nodes} nodes are needed to extrapolate")
    features, measured = prepare(runs, machine), _measured(runs)
    start = start or Coefficients()
    return predict_left_out(features, measured, _free_names(free, select(features, train)), start, train)


@dataclass(frozen=True)
class Evaluation:
    """Predictions of a stored profile for every run of a file."""

    profile: Profile
    predicted: np.ndarray
    score: Score
    memory_score: Score | None


def evaluate(runs, machine):
    """Predict every run with the stored profile of its engine: an :class:`Evaluation`."""
    profile = machine.profile(runs[0].engine)
    features, measured = prepare(runs, machine), _measured(runs)
    predicted = steptime.step_seconds(features, profile.coefficients)
    known = np.isfinite(measured[3])
    memory = steptime.node_bytes(features, profile.coefficients)
    memory_score = Score.of(memory[known], measured[3][known]) if known.any() else None
    return Evaluation(profile, predicted, Score.of(predicted, measured[0]), memory_score)


def log_gradient(features, profile):
    """Derivatives of the logarithm of the step time with respect to logarithms of the free coefficients."""
    base, step = profile.coefficients, 1e-4
    reference = steptime.step_seconds(features, base)
    return np.array(
        [
            np.log(steptime.step_seconds(features, replace(base, **{n: getattr(base, n) * (1 + step)})) / reference)
            / step
            for n in profile.free
        ]
    )
