"""A learned density over weight draws, one row per draw, (n, N) for n draws and N events: summaries, and coverage.

Each draw w is a normalized density, log p_w(x) = -E_w(x)/T_w - log Z_w. Over the draws, at each x,

    <f> = mean_w f_w(x),    sigma(f)^2 = sum_w (f_w(x) - <f>)^2 / (n - 1),    t(x) = (<f> - f_true) / sigma(f),

the last being the paper's pull, Eq. (pull), for f = log p or f = p. If the truth is one more draw, and Gaussian, its
width is sqrt[(n + 1)(n - 1) / (n (n - 3))], 1.015 at n = 100. What is homogeneous in p does not change if p_w(x) and
p_true(x) are divided by the largest density at x, so that nothing overflows.

**The paper's check** (section 3.3): to first order, and if log Z did not fluctuate, sigma(p) / <p> ~ sigma(E/T).
Beyond first order the left side is larger: sqrt(exp(s^2) - 1) for a Gaussian log p of width s, and at most sqrt(n).

**Quantile intervals**, Eq. (quantiles): C = [q_(alpha/2), q_(1 - alpha/2)] of the n draws at x. If the truth is one
more draw, P(truth < i-th smallest draw) = i / (n + 1) whatever the distribution. So the i-th smallest is the i/(n + 1)
quantile (Weibull's position), where numpy's default, (i - 1)/(n - 1), covers only (1 - alpha) (n - 1) / (n + 1). The
level 1 - alpha needs n + 1 >= 2/alpha draws.

**Gaussian intervals**, Eq. (gaussian): <f> +- Phi^-1(1 - alpha/2) sigma(f).

**One pass for all levels.** The intervals are nested, so an event is covered from one level on: its critical level is
|2 u - 1| with u the interpolated position of the truth among the draws, or 2 Phi(|t|) - 1 with t the pull. The coverage
at a level is the share of events whose critical level does not exceed it.

**The error of a coverage** is its spread over independent trainings, with Student's factor: the errors of one are
correlated over x, and a binomial error is far too small. For the same reason the width of the pulls of one training is
below one even for a perfect posterior; `total_width` adds the scatter of their mean from training to training.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from normae.errors import InputError, refuse, require_that
from normae.statistics.arrays import Array, Estimate, as_draws, as_vector, chunks, few_mean, student
from normae.statistics.density import REGION_EDGES

LEAST, ROUNDS = 10, 10_000  # events that constants can come from, and iterations for them
CLOSE = 1e-6  # where the iteration for the constants ends: all shares of the events are the same to this part
SMALLEST = 1e-30  # share at which a constant grows as fast as it may
Kind = Literal["quantile", "gaussian"]


def mean_and_std(draws: ArrayLike) -> tuple[Array, Array]:
    """Mean and standard deviation (n - 1 in the denominator) over the draws (n, N); each with shape (N,)."""
    rows = as_draws(draws)
    mean, std = np.empty((2, rows.shape[1]))
    for part, values in chunks(rows):
        mean[part], std[part] = values.mean(axis=0), values.std(axis=0, ddof=1)
    return mean, std


def log_mean_and_width(log_draws: ArrayLike) -> tuple[Array, Array]:
    """log <p>, the posterior's own density, and sigma(p)/<p>, each with shape (N,), from log p with shape (n, N)."""
    rows = as_draws(log_draws, "log_draws")
    log_mean, width = np.empty(rows.shape[1]), np.empty(rows.shape[1])
    for part, values in chunks(rows, "log_draws"):
        largest = values.max(axis=0)
        density = np.exp(values - largest)
        mean = density.mean(axis=0)
        log_mean[part], width[part] = largest + np.log(mean), density.std(axis=0, ddof=1) / mean
    return log_mean, width


def pulls(draws: ArrayLike, true: ArrayLike, density: bool = False) -> Array:
    """The pull t of each event (N,), from draws (n, N) and the truth (N,), or of p where these are log p; 0/0 is 0."""
    return _event_by_event(_pull, draws, true, density)


def _event_by_event(rule: Callable[[Array, Array], Array], draws: ArrayLike, true: ArrayLike, density: bool) -> Array:
    """`rule` of draws (n, N) and truth (N,), or of p where these are log p, with shape (N,)."""
    rows = as_draws(draws)
    values, found = as_vector(true, "true"), np.empty(rows.shape[1])
    require_that(values.size == rows.shape[1], "true", f"one per event, {rows.shape[1]} as in the draws", values.size)
    for part, columns in chunks(rows):
        truth = values[part]
        if density:
            scale = np.maximum(columns.max(axis=0), truth)
            columns, truth = np.exp(columns - scale), np.exp(truth - scale)
        found[part] = rule(columns, truth)
    return found


def _pull(draws: Array, true: Array) -> Array:
    """(mean - true) / std of draws (n, N), with 0/0 = 0."""
    difference = draws.mean(axis=0) - true
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient: Array = difference / draws.std(axis=0, ddof=1)
    quotient[difference == 0] = 0.0
    return quotient


def relative_density_ratio(score_draws: ArrayLike, log_draws: ArrayLike) -> Estimate:
    """[sigma(p)/<p>] / sigma(E/T) of draws (n, N), the median where E/T moves, and half of what 68 % of events span."""
    scores, logs = as_draws(score_draws, "score_draws"), as_draws(log_draws, "log_draws")
    if scores.shape != logs.shape:
        raise InputError(f"expected the same draws of E/T and of log p, got shapes {scores.shape} and {logs.shape}")
    score_width, density_width = mean_and_std(scores)[1], log_mean_and_width(logs)[1]
    moving = score_width > 0
    refuse(not moving.any(), "score_draws: expected weight draws that differ, got the same E/T from all")
    low, middle, high = np.quantile(density_width[moving] / score_width[moving], (0.16, 0.5, 0.84))
    return Estimate(float(middle), 0.5 * float(high - low))


def mixture_constants(scores: Array) -> Array:
    """Constants c_j for E/T of K members, (K, N), with which all have the same share of events; the largest is 0.

    Where events follow the mean p of K normalized densities, the mean of p_j/p over them is the integral of p_j, which
    is 1 for each j. So sum_x exp(-s_j + c_j) / sum_i exp(-s_i + c_i) is N/K for all of them; that fixes c but for a
    constant common to all.
    """
    count, events = scores.shape
    if events < LEAST or not np.isfinite(scores).all():
        raise InputError(f"expected finite scores of at least {LEAST} events of every model, got others or fewer")
    constants = scores.mean(axis=1)
    for _ in range(ROUNDS):
        exponent = constants[:, None] - scores
        exponent -= exponent.max(axis=0)
        shares = np.exp(exponent)
        off = np.log(np.maximum(count * (shares / shares.sum(axis=0)).mean(axis=1), SMALLEST))
        if np.abs(off).max() < CLOSE:
            break
        constants -= off
    else:
        raise InputError("expected models that describe the same events, got scores with nothing in common")
    return np.asarray(constants - constants.max())


class CoverageBand(NamedTuple):
    """Over trainings: mean coverage, its standard error, and the spread of one training; shaped as one coverage."""

    mean: Array
    error: Array
    spread: Array


class PullSummary(NamedTuple):
    """Pulls over trainings: mean and width, each with its standard error."""

    mean: Estimate
    width: Estimate  # mean over trainings of the standard deviation over events
    total_width: Estimate  # over both, with the variance between trainings; its error needs three of them


def largest_level(n: int) -> float:
    """The highest confidence level that the quantiles of `n` draws reach, 1 - 2/(n + 1)."""
    return 1.0 - 2.0 / (n + 1)


def confidence_levels(n: int, count: int = 49) -> Array:
    """`count` even levels that `n` draws reach, for a curve: 0.02, 0.04, ..., 0.98 for 100 draws."""
    top = min(largest_level(n), count / (count + 1))
    return np.linspace(top / count, top, count)


def _quantile_levels(draws: Array, true: Array) -> Array:
    """|2 u - 1| with shape (N,); a truth that ties with draws has a range of u, of which the best counts."""
    n = len(draws)
    below, up_to = (draws < true).sum(axis=0), (draws <= true).sum(axis=0)
    left = np.where(draws <= true, draws, -np.inf).max(axis=0)
    right = np.where(draws >= true, draws, np.inf).min(axis=0)
    inside, tie = (up_to > 0) & (below < n), up_to > below
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below + (true - left) / (right - left)
    first, last = np.where(tie, below + 1, between) / (n + 1), np.where(tie, up_to, between) / (n + 1)
    return np.where(inside, np.maximum(0.0, np.maximum(1 - 2 * last, 2 * first - 1)), np.inf)


_RULES: dict[str, Callable[[Array, Array], Array]] = {
    "quantile": _quantile_levels,
    "gaussian": lambda draws, true: np.asarray(erf(np.abs(_pull(draws, true)) / math.sqrt(2))),  # 2 Phi(|t|) - 1
}


def coverage(
    draws: ArrayLike, true: ArrayLike, levels: ArrayLike, kind: Kind = "quantile", density: bool = False
) -> Array:
    """The share of events whose interval holds the truth, with shape (L,) for L confidence levels.

    Args:
        draws: with shape (n, N), log p or any other quantity of each weight draw.
        true: its true values with shape (N,); -inf (a density of zero) is one.
        levels: between 0 and 1, with shape (L,); for quantiles at most 1 - 2/(n + 1).
        density: draws and truth are log p, and the coverage is that of p.
    """
    everywhere = np.zeros(np.size(true), dtype=np.int64)
    return np.asarray(coverage_by_region(draws, true, everywhere, levels, kind, density, 1)[0])


def coverage_by_region(
    draws: ArrayLike, true: ArrayLike, regions: ArrayLike, levels: ArrayLike, kind: Kind = "quantile",
    density: bool = False, count: int = len(REGION_EDGES) + 1,
) -> Array:  # fmt: skip
    """`coverage` of the events of each of R = `count` regions with shape (R, L), NaN for a region without events.

    `regions` are numbers (N,), as `statistics.regions` gives them; others belong to none. The rest is as in `coverage`.
    """
    refuse(kind not in _RULES, f"expected intervals of kind {' or '.join(map(repr, _RULES))}, got {kind!r}")
    rows, asked = as_draws(draws), as_vector(levels, "levels")
    top = float(asked.max())
    require_that(asked.min() > 0 and top < 1, "levels", "levels between 0 and 1", f"{asked.min():g} to {top:g}")
    reached = largest_level(len(rows))
    if kind == "quantile" and top > reached + 1e-9:
        needed = math.ceil(2 / (1 - top) - 1 - 1e-6)
        words = f"need at least {needed} weight draws, got {len(rows)}, which reach {reached:.4g}"
        raise InputError(f"quantiles at the level {top:g} {words}")
    critical, region = _event_by_event(_RULES[kind], rows, true, density), np.asarray(regions).ravel()
    refuse(region.size != critical.size, f"expected the region of each of {critical.size} events, got {region.size}")
    found = np.full((count, asked.size), np.nan)
    for index in range(count):
        if (own := np.sort(critical[region == index])).size:
            # 1e-12 allows for rounding at the outermost level.
            found[index] = np.searchsorted(own, asked + 1e-12, side="right") / own.size
    return found


def coverage_over_trainings(coverages: Sequence[ArrayLike]) -> CoverageBand:
    """Mean, error and spread over trainings, from an array each; NaN, a region without events, is left out of them."""
    refuse(len(coverages) < 2, f"a coverage is judged over at least 2 independent trainings, got {len(coverages)}")
    shapes = sorted({np.shape(array) for array in coverages})
    refuse(len(shapes) > 1, f"expected coverages of one shape, got {' and '.join(map(str, shapes))}")
    values = np.ma.masked_invalid(np.stack([np.asarray(array, dtype=np.float64) for array in coverages]))
    count = values.count(axis=0)
    mean, spread = (part.filled(np.nan) for part in (values.mean(axis=0), values.std(axis=0, ddof=1)))
    factors = np.array([np.nan, np.nan, *(student(n) for n in range(2, len(coverages) + 1))])
    return CoverageBand(mean, factors[count] * spread / np.sqrt(np.maximum(count, 1)), spread)


def pulls_over_trainings(pulls: Sequence[ArrayLike]) -> PullSummary:
    """Mean and width of the pulls of independent trainings, each with shape (N_i,)."""
    refuse(len(pulls) < 2, f"pulls are judged over at least 2 independent trainings, got {len(pulls)}")
    arrays = [as_vector(array, "pulls", least=2) for array in pulls]
    if infinite := sum(int((~np.isfinite(array)).sum()) for array in arrays):
        raise InputError(f"pulls: expected finite values, got {infinite} where the weight draws do not differ")
    means, variances = np.array([(array.mean(), array.var(ddof=1)) for array in arrays]).T
    n, kept = means.size, ~np.eye(means.size, dtype=bool)
    width, *without = (
        math.sqrt(float(variances[chosen].mean() + means[chosen].var(ddof=1))) if chosen.sum() > 1 else math.nan
        for chosen in (np.ones(n, dtype=bool), *kept)
    )
    error = math.sqrt((n - 1) / n * float(np.square(np.array(without) - np.mean(without)).sum()))  # the jackknife
    return PullSummary(few_mean(means), few_mean(np.sqrt(variances)), Estimate(width, error))
