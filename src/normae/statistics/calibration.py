"""Is a classifier's score the probability that it claims to be, and if not, how to make it so.

A classifier C(x) that minimizes the cross-entropy of a sample with n_1 events of B and n_0 of A is the probability of
B,

    C(x) = n_1 p_B / (n_1 p_B + n_0 p_A),      log r(x) = log(p_B / p_A) = logit C(x) - log(n_1 / n_0).

**Reliability**: in bins of C the observed share of B must be the mean of C. The error of a share of k in n is that of
Wilson's interval, sqrt(k (n - k) / n + 1/4) / (n + 1), which does not vanish at 0 and 1. The expected calibration error
is

    ECE = sum_b (n_b / N) |observed_b - predicted_b|,

which is positive also for a perfect classifier: there observed_b - predicted_b is Gaussian with variance
s_b^2 = mean_b[C (1 - C)] / n_b, so that ECE has the mean sqrt(2/pi) sum_b (n_b/N) s_b and the variance
(1 - 2/pi) sum_b (n_b/N)^2 s_b^2. A measured ECE is held against these two; its bootstrap error says how well it is
known, and is no test of zero.

**Recalibration** maps log r to a better log r, fitted on events that the classifier has not seen: Platt's a log r + b,
the temperature scaling log r / tau (a = 1/tau, b = 0), or the best monotonic function (isotonic regression). The
sample's log(n_1/n_0) is a fixed offset in the fit, so that the result stays a likelihood ratio. Platt's targets (n_1 +
1)/(n_1 + 2) and 1/(n_0 + 2) in place of 1 and 0 keep a separable sample from driving a to infinity. Which of the three:
the simplest that leaves a calibrated score on the half of the events that it was not fitted to, or, if none does, the
one with the least cross-entropy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit, log_expit, logit

from normae.statistics import arrays
from normae.statistics.arrays import Array, Estimate, prior_log_odds
from normae.tensors import stream

BINS = 20
Recalibration = Callable[[ArrayLike], Array]
"""log r with shape (N,) to a better log r with shape (N,)."""


class Reliability(NamedTuple):
    """A reliability diagram of B bins, edges (B + 1,), others (B,); one without events has NaN for three of these."""

    edges: Array
    predicted: Array  # the mean score
    observed: Array  # the share of label 1, with its error
    error: Array
    events: NDArray[np.int64]


class CalibrationError(NamedTuple):
    """The expected calibration error with its bootstrap error, and the mean and width that a perfect classifier has."""

    measured: Estimate
    perfect: Estimate

    @property
    def calibrated(self) -> bool:
        """Whether the measured value is within 3 widths of what a perfect classifier gives."""
        return self.measured.value <= self.perfect.value + 3 * self.perfect.error


class Calibration(NamedTuple):
    """How far a score is from the probability that it claims to be, on held-out events."""

    error: CalibrationError
    reliability: Reliability
    cross_entropy: Estimate


def calibration(
    log_ratio: ArrayLike, labels: ArrayLike, seed: int, bins: int = BINS, n_bootstrap: int = 200
) -> Calibration:
    """Whether a log r gives labels of 1 the probability that they have.

    Args:
        log_ratio, labels: with shape (N,).
        seed, n_bootstrap: of the resamples that give the errors.
        bins: of equal numbers of events, or fewer.
    """
    ratio, positive = _held_out(log_ratio, labels)
    score, n = expit(ratio + prior_log_odds(positive)), ratio.size
    edges = np.unique(np.concatenate([[0.0], np.quantile(score, np.linspace(0, 1, bins + 1)[1:-1]), [1.0]]))
    index = np.digitize(score, edges[1:-1])
    columns = (np.ones(n), score, positive)
    count, scores, hits = (np.bincount(index, column, minlength=edges.size - 1) for column in columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        predicted, observed = scores / count, hits / count
        errors = np.sqrt(count * observed * (1 - observed) + 0.25) / (count + 1)

    def error(weights: NDArray[np.int64]) -> float:
        return float(np.abs(np.bincount(index, weights * (positive - score))).sum() / n)

    drawn = arrays.resampled(error, np.ones(n, dtype=bool), n_bootstrap, stream(seed, "dual/calibration"))
    measured = Estimate(error(np.ones(n, dtype=np.int64)), float(np.std(drawn, ddof=1)))
    variance = np.bincount(index, score * (1 - score)) / n**2
    width = math.sqrt((1 - 2 / math.pi) * float(variance.sum()))
    perfect = Estimate(math.sqrt(2 / math.pi) * float(np.sqrt(variance).sum()), width)
    logits = np.where(positive, -1, 1) * (ratio + prior_log_odds(positive))
    reliability = Reliability(edges, predicted, observed, errors, count.astype(np.int64))
    return Calibration(CalibrationError(measured, perfect), reliability, arrays.sample_mean(np.logaddexp(0.0, logits)))


def logistic_slope(log_ratio: ArrayLike, labels: ArrayLike) -> Estimate:
    """b of a logit b log r + c fitted to labels (N,), with the sandwich error: 1 if calibrated, less if overstated."""
    ratio, positive = _held_out(log_ratio, labels)
    design = np.stack([ratio - ratio.mean(), np.ones(ratio.size)])
    coefficients = np.array(_minimize(design, positive))
    probability = expit(coefficients @ design + prior_log_odds(positive))
    inverse = np.linalg.pinv((design * (probability * (1 - probability))) @ design.T)
    covariance = inverse @ ((design * (positive - probability) ** 2) @ design.T) @ inverse
    return Estimate(float(coefficients[0]), float(np.sqrt(covariance[0, 0])))


def unit_slope_shift(log_ratio: ArrayLike, labels: ArrayLike) -> float:
    """The C for which log r + C, with shape (N,), gives label 1 the share that it has."""
    ratio, positive = _held_out(log_ratio, labels)
    prior, share = prior_log_odds(positive), positive.mean()
    reach = float(np.abs(ratio).max()) + 50
    return float(brentq(lambda shift: expit(ratio + prior + shift).mean() - share, -reach, reach))


class BinnedOdds(NamedTuple):
    """Labels in B bins of log r of equal weight; edges (B + 1,), others (B,)."""

    edges: Array
    claimed: Array  # the log r of the bin's events
    observed: Array  # that of the labels, with its error
    error: Array
    share_a: Array  # of all events of A
    share_b: Array

    def agrees(self, tolerance: float, sigmas: float = 3.0) -> tuple[int, int]:
        """The longest run of bins, from the first to before the last, that labels know to be right to the tolerance."""
        good = np.abs(self.observed - self.claimed) <= tolerance + sigmas * self.error
        good &= self.error <= tolerance
        ends = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]])))
        runs = [(int(a), int(b)) for a, b in ends.reshape(-1, 2)]
        return max(runs, key=lambda run: run[1] - run[0], default=(0, 0))


def binned_odds(log_ratio: ArrayLike, labels: ArrayLike, bins: int = BINS) -> BinnedOdds:
    """Whether log r, with shape (N,), is what labels say, bin by bin.

    A bin claims the log odds of its mean probability, without the sample's composition; k_1 and k_0 labels in it say
    log[(k_1 + 1/2) / (k_0 + 1/2)] with the error sqrt[1/(k_1 + 1/2) + 1/(k_0 + 1/2)].
    """
    ratio, positive = _held_out(log_ratio, labels)
    prior, weights = prior_log_odds(positive), arrays.balanced_weights(positive)
    edges = arrays.weighted_quantiles(ratio, weights, bins)
    index = np.digitize(ratio, edges[1:-1])
    score = ratio + prior
    sums = [np.logaddexp.reduce(log_expit(sign * score[index == k])) for sign in (1, -1) for k in range(edges.size - 1)]
    yes, no = np.array(sums).reshape(2, -1)
    k_b, k_a = (np.bincount(index, of, minlength=edges.size - 1) for of in (positive, ~positive))
    observed = np.log((k_b + 0.5) / (k_a + 0.5)) - prior
    error = np.sqrt(1 / (k_b + 0.5) + 1 / (k_a + 0.5))
    return BinnedOdds(edges, yes - no - prior, observed, error, k_a / k_a.sum(), k_b / k_b.sum())


@dataclass(frozen=True)
class LinearRecalibration:
    """slope * log r + offset."""

    slope: float
    offset: float

    def __call__(self, log_ratio: ArrayLike) -> Array:
        """The corrected log r with shape (N,)."""
        return self.slope * np.asarray(log_ratio, dtype=np.float64) + self.offset


@dataclass(frozen=True)
class IsotonicRecalibration:
    """A rising function of log r, linear between the knots `x` with values `y`, each with shape (K,), flat outside."""

    x: Array
    y: Array

    def __call__(self, log_ratio: ArrayLike) -> Array:
        """The corrected log r with shape (N,)."""
        return np.asarray(np.interp(np.asarray(log_ratio, dtype=np.float64), self.x, self.y))


def fit_platt(log_ratio: ArrayLike, labels: ArrayLike) -> LinearRecalibration:
    """Slope and offset that minimize the cross-entropy of held-out events, log r and labels with shape (N,)."""
    ratio, positive = _held_out(log_ratio, labels)
    return LinearRecalibration(*_minimize(np.stack([ratio, np.ones(ratio.size)]), positive))


def fit_temperature(log_ratio: ArrayLike, labels: ArrayLike) -> LinearRecalibration:
    """The factor on log r, without offset, that minimizes the cross-entropy of held-out events; shapes (N,)."""
    ratio, positive = _held_out(log_ratio, labels)
    return LinearRecalibration(_minimize(ratio[None], positive)[0], 0.0)


def fit_isotonic(log_ratio: ArrayLike, labels: ArrayLike) -> IsotonicRecalibration:
    """The rising function with the least squared error on held-out events, log r and labels with shape (N,)."""
    ratio, positive = _held_out(log_ratio, labels)
    from sklearn.isotonic import IsotonicRegression  # here, since sklearn takes a second to import

    fitted = IsotonicRegression().fit_transform(ratio, positive.astype(np.float64))
    share, step = np.unique(fitted, return_inverse=True)
    size = np.bincount(step)
    value = logit((share * size + 0.5) / (size + 1)) - prior_log_odds(positive)  # with 1/2, so that none is infinite
    return IsotonicRecalibration(np.bincount(step, ratio) / size, np.maximum.accumulate(value))


def _held_out(log_ratio: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    ratio = arrays.as_events(log_ratio, "log_ratio")
    return ratio, arrays.as_labels(labels, ratio.size)


def _minimize(design: Array, positive: NDArray[np.bool_]) -> list[float]:
    """The K coefficients of a logit linear in `design` (K, N), with the prior as offset, by Newton's method."""
    n = int(positive.sum())
    target = np.where(positive, (n + 1) / (n + 2), 1 / (positive.size - n + 2))
    prior = prior_log_odds(positive)

    def loss(coefficients: Array) -> tuple[float, Array]:
        score = coefficients @ design + prior
        gradient: Array = design @ (expit(score) - target) / target.size
        return float(np.mean(np.logaddexp(0.0, score) - target * score)), gradient

    def curvature(coefficients: Array) -> Array:
        probability = expit(coefficients @ design + prior)
        return np.asarray((design * (probability * (1 - probability))) @ design.T / target.size)

    start = np.eye(len(design))[0]
    return [float(x) for x in minimize(loss, start, jac=True, hess=curvature, method="trust-exact").x]


# From the simplest on.
CORRECTIONS: dict[str, Callable[[ArrayLike, ArrayLike], Recalibration]]
CORRECTIONS = {"temperature": fit_temperature, "Platt": fit_platt, "isotonic": fit_isotonic}


def choose_correction(log_ratio: Array, labels: NDArray[np.bool_], seed: int) -> tuple[str, Recalibration]:
    """The correction's name and function, from log r and labels of held-out events; "none" for a calibrated one."""
    if calibration(log_ratio, labels, seed).error.calibrated:
        return "none", lambda ratio: np.asarray(ratio, dtype=np.float64)
    one, other = arrays.cut_indices(labels, (0.5, 0.5), seed)
    judged = {}
    for name, fit in CORRECTIONS.items():
        corrected = np.empty(log_ratio.size)
        for fitted, held in ((one, other), (other, one)):
            corrected[held] = fit(log_ratio[fitted], labels[fitted])(log_ratio[held])
        judged[name] = calibration(corrected, labels, seed)
    suffices = [name for name, found in judged.items() if found.error.calibrated]
    name = suffices[0] if suffices else min(judged, key=lambda name: judged[name].cross_entropy.value)
    return name, CORRECTIONS[name](log_ratio, labels)
