"""What the statistics take and what they give: arrays with shape (N,), and numbers with their errors.

An array has one dimension, float64, no NaN, enough entries. Labelled samples have label 1 for events of B, 0 for those
of A; both must be there. Every measure that compares the classes gives them the same weight whatever their numbers:
with n_1 and n_0 events an event of class c counts 1 / (2 n_c).

**An estimate** is printed in one way: its error is rounded to the leading digit and the value to the same decimal
place, so that what is printed is what is known: 0.00143 with error 0.00011 reads "0.0014 ± 0.0001".

**Pearson's r** of pairs (a, b), standardized to u and v, has the influence function

    psi = u v - r (u^2 + v^2) / 2,      Var(r) = E[psi^2] / N;

the textbook (1 - r^2)^2 / N is its Gaussian case and is wrong for log-likelihoods, which are skewed.

**The bootstrap** of sums over events resamples how often each event counts, k_i with sum k_i = N, and copies no event.
Each class is resampled by itself, since the sample was made with so many of each.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit

from normae.errors import InputError, refuse
from normae.tensors import by_weight, counts_as, stream

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
CHUNK = 16_384  # events taken at once: 100 draws of them are 13 MB in float64


def as_vector(values: ArrayLike, name: str, least: int = 1) -> Array:
    """`values` of any shape as float64 with shape (N,), N >= `least`; NaN is refused, infinities are not."""
    vector = np.asarray(values, dtype=np.float64).ravel()
    refuse(vector.size < least, f"{name}: expected at least {least} values, got {vector.size}")
    if missing := int(np.isnan(vector).sum()):
        raise InputError(f"{name}: expected numbers, got {missing} NaN among {vector.size} values")
    return vector


def as_pair(first: ArrayLike, second: ArrayLike, names: tuple[str, str], least: int = 1) -> tuple[Array, Array]:
    """Two arrays of the same shape as a pair of vectors with shape (N,)."""
    shapes = np.shape(first), np.shape(second)
    refuse(shapes[0] != shapes[1], f"expected {names[0]} and {names[1]} of one shape, got {shapes[0]} and {shapes[1]}")
    return as_vector(first, names[0], least), as_vector(second, names[1], least)


def as_labels(labels: ArrayLike | None, n: int) -> Mask:
    """Labels 0 and 1 of `n` events as booleans with shape (n,); both classes must occur."""
    refuse(labels is None, "expected a label for each event, 1 for B and 0 for A, got a sample without labels")
    values = np.asarray(labels).ravel()
    refuse(values.size != n, f"expected one label per event, {n}, got {values.size}")
    if wrong := sorted(set(np.unique(values).tolist()) - {0, 1})[:3]:
        raise InputError(f"expected labels 0 and 1, got {', '.join(map(repr, wrong))}")
    positive: Mask = values == 1
    if positive.all() or not positive.any():
        raise InputError(f"expected events of both classes, got only label {int(positive[0])} in {n} events")
    return positive


def as_events(values: ArrayLike, name: str, n: int | None = None) -> Array:
    """Finite numbers, one per event, with shape (N,); N must be `n` where that is given."""
    vector = as_vector(values, name)
    refuse(n is not None and vector.size != n, f"{name}: expected one value for each of {n} events, got {vector.size}")
    if infinite := int(np.isinf(vector).sum()):
        raise InputError(f"{name}: expected finite values, got {infinite} infinite ones among {vector.size}")
    return vector


def as_draws(draws: ArrayLike, name: str = "draws", least: int = 2) -> NDArray[Any]:
    """`draws` as an array with shape (n, N) in the dtype it has; n >= `least`."""
    rows = np.asarray(draws)
    refuse(rows.ndim != 2, f"{name}: expected one row per weight draw, with shape (n, N), got shape {rows.shape}")
    refuse(len(rows) < least, f"{name}: expected at least {least} weight draws, got {len(rows)}")
    return rows


def chunks(draws: NDArray[Any], name: str = "draws", size: int = CHUNK) -> Iterator[tuple[slice, Array]]:
    """The columns of (n, N) in turn, as (slice, float64 array with shape (n, <= size)); refuses what is not finite."""
    for start in range(0, draws.shape[1], size):
        part = slice(start, start + size)
        values = draws[:, part].astype(np.float64)
        if bad := int((~np.isfinite(values)).sum()):
            raise InputError(f"{name}: expected finite values, got {bad} that are not among events {start} and on")
        yield part, values


def balanced_weights(labels: Mask) -> Array:
    """1 / (2 n_c) for each event, with shape (N,)."""
    positive = int(labels.sum())
    return np.where(labels, 0.5 / positive, 0.5 / (labels.size - positive))


def prior_log_odds(labels: Mask) -> float:
    """log(n_1 / n_0): what the logit of a calibrated classifier exceeds log r by, in a sample of this composition."""
    positive = int(labels.sum())
    return float(np.log(positive / (labels.size - positive)))


def cut_indices(labels: Mask, shares: Sequence[float], seed: int, name: str = "cut") -> list[NDArray[np.int64]]:
    """Which events (N,) belong to disjoint parts with these shares of each class; `name` tells cuts of a seed apart."""
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in shares]
    generator = stream(seed, f"dual/{name}")
    for label in (False, True):
        members = np.flatnonzero(labels == label)
        members = members[torch.randperm(members.size, generator=generator).numpy()]
        ends = np.round(np.cumsum(shares)[:-1] * members.size).astype(np.int64)
        for piece, part in zip(pieces, np.split(members, ends), strict=True):
            piece.append(part)
    return [np.concatenate(piece) for piece in pieces]


class Estimate(NamedTuple):
    """A measured value and its standard error (one sigma). `_asdict()` is the form that metrics.json holds.

    >>> from normae.statistics import Estimate
    >>> print(Estimate(0.00143, 0.00011))
    0.0014 ± 0.0001
    """

    value: float
    error: float

    def __str__(self) -> str:
        return format_estimate(self)


def format_estimate(estimate: Estimate, digits: int = 1) -> str:
    """Value and error with `digits` significant digits of the error; one that is unknown or rounding is left out."""
    value, error = estimate
    if not (math.isfinite(value) and math.isfinite(error) and error > 1e-12 * abs(value)):
        return f"{value:.4g}"
    # Powers of ten of the leading digits, after rounding: 0.096 to one digit is 0.1, so -1.
    exponent, scale = (int(f"{n:.{digits - 1}e}".split("e")[1]) for n in (error, max(abs(value), error)))
    power = 0 if -5 <= scale < 6 else scale
    decimals = digits - 1 - exponent + power
    value, error = (round(number / 10.0**power, decimals) + 0.0 for number in estimate)
    text = f"{value:.{max(decimals, 0)}f} ± {error:.{max(decimals, 0)}f}"
    return f"({text})e{power:+d}" if power else text


def sample_mean(values: ArrayLike) -> Estimate:
    """Mean of independent values with shape (N,), with its standard error.

    >>> from normae.statistics import sample_mean
    >>> print(sample_mean([1.0, 2.0, 3.0]))
    2.0 ± 0.6
    """
    x = np.asarray(values, dtype=np.float64)
    return Estimate(float(x.mean()), float(x.std(ddof=1)) / math.sqrt(x.size))


def student(n: int) -> float:
    """By how much the standard error of a mean of n values is too small for 68 % of all cases: Student's t with n - 1.

    >>> from normae.statistics.arrays import student
    >>> round(student(3), 2), round(student(8), 2)
    (1.32, 1.08)
    """
    return float(stdtrit(n - 1, ndtr(1.0)))


def few_mean(values: ArrayLike) -> Estimate:
    """Mean of a few independent values with shape (N,), such as trainings, with Student's factor in its error."""
    value, error = sample_mean(values)
    return Estimate(value, error * student(np.size(values)))


def over(values: ArrayLike, trainings: int = 1) -> Estimate:
    """Mean and standard deviation over draws; between `trainings`, which have them in turn, with Student's factor."""
    found = np.asarray(values, dtype=np.float64)
    if trainings == 1:
        return Estimate(float(found.mean()), float(found.std(ddof=1)) if found.size > 1 else 0.0)
    parts = [found[k::trainings] for k in range(trainings)]
    within = float(np.mean([part.var(ddof=1) if len(part) > 1 else 0.0 for part in parts]))
    between = student(trainings) * float(np.std([part.mean() for part in parts], ddof=1))
    return Estimate(float(found.mean()), float(np.hypot(within**0.5, between)))


def line_mean(values: ArrayLike) -> Estimate:
    """Mean of correlated lines of a history (N,), with the largest error of means of five or more blocks of 2^k."""
    x = np.asarray(values, dtype=np.float64)
    size, errors = 1, [few_mean(x).error]
    while x.size // (2 * size) >= 5:
        size *= 2
        errors.append(few_mean(x[x.size % size :].reshape(-1, size).mean(1)).error)
    return Estimate(float(x.mean()), max(errors))


def unweighted(values: ArrayLike, weights: ArrayLike | None) -> NDArray[Any]:
    """Values with shape (n,) in rising order that are distributed as weighted ones, with shape (N,), are.

    n = (sum w)^2 / sum w^2 is what they count as. Value k is where the sum of weights reaches a share of (k + 1/2)/n;
    with negative ones, where it first does. Without weights the values are as they came.

    >>> from normae.statistics.arrays import unweighted
    >>> unweighted([3.0, 1.0, 2.0], [1, 1, -1]), unweighted([3.0, 1.0, 2.0], [2, 2, 0])
    (array([1.]), array([1., 3.]))
    """
    x = np.asarray(values)
    if weights is None:
        return x
    order = np.argsort(x, kind="stable")
    w = torch.as_tensor(np.asarray(weights, dtype=np.float64)[order])
    return np.asarray(x[order][by_weight(w, counts_as(w)).numpy()])


def share_within(deviation: ArrayLike, limit: float = 0.1) -> Estimate:
    """The share of |Delta| < `limit`, for an array of any shape, with the half-width of Wilson's one-sigma interval.

    With k of n inside the half-width is sqrt(k (n - k) / n + 1/4) / (n + 1): the binomial error for large n, and not
    zero when all or none are inside.

    >>> from normae.statistics import share_within
    >>> share_within([0.0, 0.05, -0.2, 0.01]).value
    0.75
    """
    inside = np.abs(as_vector(deviation, "deviation")) < limit
    n, share = inside.size, float(inside.mean())
    return Estimate(share, math.sqrt(n * share * (1 - share) + 0.25) / (n + 1))


def weighted_pearson(a: Array, b: Array, weights: Array) -> Estimate:
    """Correlation of finite values under weights that sum to one, each with shape (N,)."""
    standard = []
    for values in (a, b):
        centred = values - weights @ values
        variance = float(weights @ centred**2)
        refuse(not (variance > 0 and np.ptp(values) > 0), "a correlation needs values that differ, got a constant")
        standard.append(centred / math.sqrt(variance))
    u, v = standard
    r = float(weights @ (u * v))
    influence = u * v - 0.5 * r * (u**2 + v**2)
    return Estimate(r, math.sqrt(float(weights**2 @ influence**2)))


def weighted_quantiles(values: Array, weights: Array, bins: int) -> Array:
    """Edges with shape (<= bins + 1,) that cut the weight into equal parts, each with an event in it."""
    order = np.argsort(values)
    places = np.searchsorted(np.cumsum(weights[order]), np.arange(1, bins) / bins)
    inner = np.unique(values[order][np.minimum(places, values.size - 1)])
    low, high = float(values.min()), float(values.max())
    return np.concatenate([[low], inner[inner > low], [np.nextafter(high, np.inf)]])


def resampled(statistic: Callable[[NDArray[np.int64]], Any], labels: Mask, n: int, generator: torch.Generator) -> Array:
    """A statistic of how often each event counts, over `n` resamples of both classes, with shape (n, ...)."""
    refuse(n < 2, f"a bootstrap error needs at least 2 resamples, got {n}")
    found = []
    for _ in range(n):
        counts = np.empty(labels.size, dtype=np.int64)
        for chosen in (labels, ~labels):
            if size := int(chosen.sum()):
                drawn = torch.randint(size, (size,), generator=generator, device=generator.device).cpu().numpy()
                counts[chosen] = np.bincount(drawn, minlength=size)
        found.append(statistic(counts))
    return np.array(found, dtype=np.float64)
