"""Summaries of a learned density over weight draws, one row per draw: (n, N) for n draws and N events.

Each draw w is a normalized density, log p_w(x) = -E_w(x)/T_w - log Z_w. Over the draws, at each x,

    <f> = mean_w f_w(x),    sigma(f)^2 = sum_w (f_w(x) - <f>)^2 / (n - 1),    t(x) = (<f> - f_true) / sigma(f),

the last being the paper's pull, Eq. (pull), for f = log p or f = p. If the truth is one more member of the family of
the draws, independent of them and Gaussian, t is sqrt(1 + 1/n) times a Student variable with n - 1 degrees of freedom:
its width is sqrt[(n + 1)(n - 1) / (n (n - 3))], 1.015 at n = 100, and not exactly one.

**p without overflow.** Whatever is homogeneous in p (a pull, sigma(p)/<p>, whether the truth lies in an interval) does
not change if p_w(x) and p_true(x) are both divided by s(x). With s the largest density at x nothing overflows, also
where log p is in the thousands.

**The paper's check** (section 3.3): to first order in the fluctuation of the energy, and if log Z did not fluctuate,

    p_w = <p> (1 - delta(E_w/T_w) + ...),    sigma(p) / <p> ~ sigma(E/T).

Beyond first order the left side is larger: a log p that is Gaussian with width s gives sqrt(exp(s^2) - 1), and at most
sqrt(n) with n draws, where one draw holds all of <p>.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError
from normae.statistics.arrays import Array, as_vector
from normae.statistics.density import pearson
from normae.statistics.estimate import Estimate

CHUNK = 16_384
"""Events taken at once: 100 draws of them are 13 MB in float64."""


class RelativeDensityCheck(NamedTuple):
    """sigma(p)/<p> beside sigma(E/T), each with shape (N,), their correlation, and quantiles of their quotient.

    `ratio` holds the 16, 50 and 84 % quantiles of [sigma(p)/<p>] / sigma(E/T) over the events where sigma(E/T) > 0.
    """

    density_width: Array
    score_width: Array
    correlation: Estimate
    ratio: tuple[float, float, float]


def as_draws(draws: ArrayLike, name: str = "draws", least: int = 2) -> NDArray[Any]:
    """`draws` as an array with shape (n, N) in the dtype it has; n >= `least`."""
    rows = np.asarray(draws)
    if rows.ndim != 2:
        raise InputError(f"{name}: expected one row per weight draw, with shape (n, N), got shape {rows.shape}")
    if len(rows) < least:
        raise InputError(f"{name}: expected at least {least} weight draws, got {len(rows)}")
    return rows


def as_truth(draws: NDArray[Any], true: ArrayLike) -> Array:
    """`true` as a vector with shape (N,), one value for each column of `draws`; -inf is a value."""
    values = as_vector(true, "true")
    if values.size != draws.shape[1]:
        raise InputError(f"expected one true value per event, {draws.shape[1]} as in the draws, got {values.size}")
    return values


def chunks(draws: NDArray[Any], name: str = "draws", size: int = CHUNK) -> Iterator[tuple[slice, Array]]:
    """The columns of (n, N) in turn, as (slice, float64 array with shape (n, <= size)); refuses what is not finite."""
    for start in range(0, draws.shape[1], size):
        part = slice(start, start + size)
        values = draws[:, part].astype(np.float64)
        if bad := int((~np.isfinite(values)).sum()):
            raise InputError(f"{name}: expected finite values, got {bad} that are not among events {start} and on")
        yield part, values


def mean_and_std(draws: ArrayLike) -> tuple[Array, Array]:
    """Mean and standard deviation (n - 1 in the denominator) over the draws (n, N); each with shape (N,)."""
    rows = as_draws(draws)
    mean, std = np.empty(rows.shape[1]), np.empty(rows.shape[1])
    for part, values in chunks(rows):
        mean[part], std[part] = values.mean(axis=0), values.std(axis=0, ddof=1)
    return mean, std


def scaled_density(log_draws: Array, log_true: Array) -> tuple[Array, Array]:
    """Draws (n, N) and truth (N,) of p, both divided by the largest density at each event."""
    scale = np.maximum(log_draws.max(axis=0), log_true)
    return np.exp(log_draws - scale), np.exp(log_true - scale)


def density_mean_and_std(log_draws: ArrayLike) -> tuple[Array, Array]:
    """<p> and sigma(p), each with shape (N,), from draws of log p with shape (n, N)."""
    log_mean, relative = _log_mean_and_width(log_draws)
    mean = np.exp(log_mean)
    return mean, mean * relative


def log_mean_density(log_draws: ArrayLike) -> Array:
    """log <p> with shape (N,) from log p with shape (n, N): the posterior's own density, normalized as each draw is."""
    return _log_mean_and_width(log_draws)[0]


def _log_mean_and_width(log_draws: ArrayLike) -> tuple[Array, Array]:
    """log <p> and sigma(p)/<p>, each with shape (N,)."""
    rows = as_draws(log_draws, "log_draws")
    log_mean, width = np.empty(rows.shape[1]), np.empty(rows.shape[1])
    for part, values in chunks(rows, "log_draws"):
        largest = values.max(axis=0)
        density = np.exp(values - largest)
        mean = density.mean(axis=0)
        log_mean[part], width[part] = largest + np.log(mean), density.std(axis=0, ddof=1) / mean
    return log_mean, width


def pulls(draws: ArrayLike, true: ArrayLike) -> Array:
    """The pull t of each event with shape (N,), from draws (n, N) and the truth (N,).

    Where the draws do not differ it is infinite with the sign of the deviation, or 0 if there is none.
    """
    rows = as_draws(draws)
    return standardized(*mean_and_std(rows), as_truth(rows, true))


def density_pulls(log_draws: ArrayLike, log_true: ArrayLike) -> Array:
    """The pull of p with shape (N,), from log p of draws (n, N) and truth (N,)."""
    rows = as_draws(log_draws, "log_draws")
    true, found = as_truth(rows, log_true), np.empty(rows.shape[1])
    for part, values in chunks(rows, "log_draws"):
        density, truth = scaled_density(values, true[part])
        found[part] = standardized(density.mean(axis=0), density.std(axis=0, ddof=1), truth)
    return found


def standardized(mean: Array, std: Array, true: Array) -> Array:
    """(mean - true) / std, elementwise, with 0/0 = 0."""
    difference = mean - true
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient: Array = difference / std
    quotient[difference == 0] = 0.0
    return quotient


def relative_density_check(score_draws: ArrayLike, log_draws: ArrayLike) -> RelativeDensityCheck:
    """Compare sigma(p)/<p> with sigma(E/T), event by event.

    Args:
        score_draws: E/T of each draw with shape (n, N).
        log_draws: log p of the same draws with shape (n, N), each row with its own log Z.
    """
    scores, logs = as_draws(score_draws, "score_draws"), as_draws(log_draws, "log_draws")
    if scores.shape != logs.shape:
        raise InputError(f"expected the same draws of E/T and of log p, got shapes {scores.shape} and {logs.shape}")
    score_width, density_width = mean_and_std(scores)[1], _log_mean_and_width(logs)[1]
    moving = score_width > 0
    if not moving.any():
        raise InputError("score_draws: expected weight draws that differ, got the same E/T from all")
    low, middle, high = np.quantile(density_width[moving] / score_width[moving], (0.16, 0.5, 0.84))
    return RelativeDensityCheck(
        density_width, score_width, _correlation(density_width, score_width), (float(low), float(middle), float(high))
    )


def _correlation(first: Array, second: Array) -> Estimate:
    """Pearson's r; unknown if one of the two is the same at every event."""
    if first.size < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return Estimate(math.nan, math.nan)
    return pearson(first, second)
