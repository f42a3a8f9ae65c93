"""The dual test: do two models, trained apart, give the likelihood ratio between what they were trained on?

With B the events of label 1 and A those of label 0 the models say (Eq. (loglr_toy) and (m_fit) of the paper)

    log r(x) = log p_B(x) - log p_A(x) = E_A/T_A - E_B/T_B + C,    C = log Z_A - log Z_B,

and a reference, the truth or a calibrated classifier, says log r_ref. The line log r_ref = m log r + C is fitted by
least squares of the reference on the model with each class at half of the total weight. Errors of m and C are those of
a bootstrap within each class; they count events, not trainings. If both densities are right, m = 1, and C = 0 where
log r has its log Z. Noise in the model makes m smaller: by var(log r) / (var(log r) + var(noise)).

A log r that tells the classes apart and nothing else has a large m and correlation over all events, and none within a
class. So both are given within A and within B too, where a right log r has m = 1 as well.

**The verdict.** Three conditions, since with 500k events any network differs from 1 by many of its errors:

1. slope:  |m - 1| <= tolerance + 3 sigma(m), with sigma(m) the bootstrap error and the width over weight draws, in
   quadrature;
2. classes: the same within each class, with its own tolerance and the error of least squares there;
3. linear: in bins of the model's log r of equal weight, the mean residual from the fitted line is, in every bin,
   |<ref - m log r - C>| <= tolerance + 3 sigma.

A tail with less weight than a bin is not judged by these; it shows in the share of events with |delta log r| >= 1.

**Over weight draws.** A draw a of A and a draw b of B give log r_ab(x) = log p_b(x) - log p_a(x). Since that is a
difference, the line follows for every pair from second moments over the events, one matrix product for all:

    cov(ref, b - a) = cov(ref, b) - cov(ref, a),    var(b - a) = var(b) + var(a) - 2 cov(a, b).

Histograms of log r are counted pair by pair in blocks of events. Nothing of shape (n_a n_b, N) is ever made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError, refuse, require_that
from normae.statistics import arrays
from normae.statistics.arrays import Array, Estimate, as_events, as_labels, balanced_weights, weighted_pearson

Labels = ArrayLike | None  # None is refused with a sentence
BLOCK = 2048  # events whose pairs are counted at once: 200k numbers for 100 draws of each model, which stay in cache
LEAST_CORRELATION = 0.5  # within a class, below which a slope is not a matter of scale


@dataclass(frozen=True)
class DualRule:
    """When two models pass: tolerances on the slopes and, in units of log r, on the mean residual of each bin."""

    slope_tolerance: float = 0.05
    class_tolerance: float = 0.1
    residual_tolerance: float = 0.25
    sigmas: float = 3.0
    bins: int = 20

    def __post_init__(self) -> None:
        if min(self.slope_tolerance, self.class_tolerance, self.residual_tolerance, self.sigmas) < 0 or self.bins < 3:
            raise InputError("the dual test needs tolerances and sigmas that are not negative, and at least 3 bins")


class Line(NamedTuple):
    """log r_ref = slope * log r + constant."""

    slope: Estimate
    constant: Estimate


class WithinClass(NamedTuple):
    """Slope and correlation of reference and model over the events of one class."""

    slope: Estimate
    pearson: Estimate


class BinnedResiduals(NamedTuple):
    """Residuals of the reference from the line in B bins of the model's log r, of equal weight; shapes (B,)."""

    edges: Array  # with shape (B + 1,)
    centre: Array  # the mean log r of the model
    residual: Array  # its mean, with its error
    error: Array
    share: Array  # of label 1 in the weight


class Verdict(NamedTuple):
    """Whether the models pass, whether slopes and linearity do, and one sentence that says so and where they fail."""

    passes: bool
    slope_passes: bool  # over all events
    classes_pass: tuple[bool, bool]  # within A and within B
    linear: bool
    sentence: str


class RatioComparison(NamedTuple):
    """All of the dual test for one log r."""

    line: Line
    pearson: Estimate
    within: tuple[WithinClass, WithinClass]  # A first
    outside: Estimate  # the share with |delta log r| >= limit, of all events and of each class
    outside_a: Estimate
    outside_b: Estimate
    residuals: BinnedResiduals
    verdict: Verdict


def fit_line(
    reference: ArrayLike, model: ArrayLike, labels: Labels, n_bootstrap: int = 200, *, generator: torch.Generator
) -> Line:
    """Least squares of the reference's log r on the model's, each with shape (N,), the classes of equal weight.

    Args:
        labels: 1 for B, 0 for A, with shape (N,).
        n_bootstrap: resamples, within each class, for the errors.

    >>> import torch, normae.statistics
    >>> generator = torch.Generator().manual_seed(0)
    >>> normae.statistics.fit_line([1, 3, 5, 7], [0, 1, 2, 3], [0, 0, 1, 1], generator=generator).slope.value
    2.0
    """
    ref, mod, positive = _sample(reference, model, labels)
    # Centred, so that the moments keep their digits where log r is in the thousands.
    shift = np.array([ref.mean(), mod.mean()])
    x, y = mod - shift[1], ref - shift[0]
    columns, weights = np.stack([x, y, x * x, x * y]), balanced_weights(positive)
    fits = arrays.resampled(lambda counts: _solve(columns @ (weights * counts)), positive, n_bootstrap, generator)
    slope, constant = _solve(columns @ weights)
    errors = np.std([(m, c + shift[0] - m * shift[1]) for m, c in fits], axis=0, ddof=1)
    constant = float(constant + shift[0] - slope * shift[1])
    return Line(Estimate(slope, float(errors[0])), Estimate(constant, float(errors[1])))


def _solve(moments: Array) -> tuple[float, float]:
    """Slope and constant from <x>, <y>, <x^2>, <x y>."""
    x, y, xx, xy = (float(moment) for moment in moments)
    variance = xx - x * x
    refuse(not variance > 0, "a line needs a log r of the model that differs between events, got a constant")
    slope = (xy - x * y) / variance
    return slope, y - slope * x


def _sample(reference: ArrayLike, model: ArrayLike, labels: Labels) -> tuple[Array, Array, NDArray[np.bool_]]:
    ref = as_events(reference, "reference")
    return ref, as_events(model, "model", ref.size), as_labels(labels, ref.size)


def balanced_pearson(reference: ArrayLike, model: ArrayLike, labels: Labels) -> Estimate:
    """Pearson's r with the classes of equal weight: for equal numbers `pearson`, and its error, of shapes (N,)."""
    ref, mod, positive = _sample(reference, model, labels)
    return weighted_pearson(ref, mod, balanced_weights(positive))


def within_classes(reference: ArrayLike, model: ArrayLike, labels: Labels) -> tuple[WithinClass, WithinClass]:
    """Slope and correlation within A and within B, of shapes (N,); of a constant, no slope and no correlation."""
    ref, mod, positive = _sample(reference, model, labels)
    return _within(ref[~positive], mod[~positive]), _within(ref[positive], mod[positive])


def _within(ref: Array, mod: Array) -> WithinClass:
    if min(np.ptp(ref), np.ptp(mod)) <= 1e-12 * max(1.0, float(np.abs(mod).max())):
        return WithinClass(Estimate(math.nan, math.inf), Estimate(0.0, 1 / math.sqrt(ref.size)))
    x, y = mod - mod.mean(), ref - ref.mean()
    total = float(x @ x)
    slope = float(x @ y) / total
    error = math.sqrt(float(x**2 @ (y - slope * x) ** 2)) / total  # the scatter need not be the same everywhere
    return WithinClass(Estimate(slope, error), weighted_pearson(ref, mod, np.full(ref.size, 1 / ref.size)))


def share_outside(reference: ArrayLike, model: ArrayLike, limit: float = 1.0) -> Estimate:
    """The share of events with |delta log r| >= limit, of shapes (N,), with the half-width of Wilson's interval."""
    ref = as_events(reference, "reference")
    inside = arrays.share_within(as_events(model, "model", ref.size) - ref, limit)
    return Estimate(1.0 - inside.value, inside.error)


def binned_residuals(
    reference: ArrayLike, model: ArrayLike, labels: Labels, line: Line, bins: int = 20
) -> BinnedResiduals:
    """Mean residual of the reference from `line`, other arguments as in `fit_line`; fewer bins where log r repeats."""
    ref, mod, positive = _sample(reference, model, labels)
    weights, residual = balanced_weights(positive), ref - line.slope.value * mod - line.constant.value
    edges = arrays.weighted_quantiles(mod, weights, bins)
    index = np.digitize(mod, edges[1:-1])
    total = np.bincount(index, weights)
    centre, mean, share = (np.bincount(index, weights * column) / total for column in (mod, residual, positive))
    variance = np.bincount(index, (weights * (residual - mean[index])) ** 2)
    return BinnedResiduals(edges, centre, mean, np.sqrt(variance) / total, share)


def verdict(
    line: Line, within: Sequence[WithinClass], residuals: BinnedResiduals, rule: DualRule | None = None,
    slope_spread: float = 0.0, class_spread: tuple[float, float] = (0.0, 0.0),
) -> Verdict:  # fmt: skip
    """Pass or not, by the rule of the module's docstring.

    `slope_spread` is what else m is uncertain by, over weight draws (`PairLines.slope.std()`) and with the reference,
    `class_spread` the same within A and within B.
    """
    rule = rule or DualRule()
    over_all = _judged("for all events", line.slope, slope_spread, rule.slope_tolerance, rule)
    classes = [
        _judged(f"within {name}", one.slope, spread, rule.class_tolerance, rule, one.pearson)
        for name, one, spread in zip("AB", within, class_spread, strict=True)
    ]
    beyond = np.abs(residuals.residual) - rule.residual_tolerance - rule.sigmas * residuals.error
    linear = bool((beyond <= 0).all())
    worst = int(np.argmax(np.abs(residuals.residual) if linear else beyond))
    size = Estimate(float(residuals.residual[worst]), float(residuals.error[worst]))
    words = f"the relation is linear (largest mean residual {size} at log r = {residuals.centre[worst]:.3g})"
    if not linear:
        low, high, share = residuals.edges[worst], residuals.edges[worst + 1], float(residuals.share[worst])
        words = (
            f"the relation is not linear: {int((beyond > 0).sum())} of {beyond.size} bins leave the line by more than "
            f"{rule.residual_tolerance:g}, most of all for a model's log r from {low:.3g} to {high:.3g} "
            f"({100 * max(share, 1 - share):.0f} % of label {int(share > 0.5)}), where the reference is "
            f"{Estimate(abs(size.value), size.error)} {'above' if size.value > 0 else 'below'} it"
        )
    found = [over_all, *classes, (linear, words)]
    passes = all(holds for holds, _ in found)
    sentence = f"{'Passes' if passes else 'Fails'}: {'; '.join(words for _, words in found)}."
    return Verdict(passes, over_all[0], (classes[0][0], classes[1][0]), linear, sentence)


def _judged(
    where: str, slope: Estimate, spread: float, tolerance: float, rule: DualRule, pearson: Estimate | None = None
) -> tuple[bool, str]:
    """Whether a slope is 1, and the words for it."""
    m = Estimate(slope.value, math.hypot(slope.error, spread))
    correlated = "" if pearson is None else f", Pearson {pearson}"
    if not math.isfinite(m.value):
        return False, f"{where} log r is the same for all events"
    reach = tolerance + rule.sigmas * m.error
    if abs(m.value - 1) <= reach:
        weak = "; the sample and the reference cannot tell more" if reach > 2 * tolerance else ""
        return True, f"{where} m = {m}{correlated} (1 ± {reach:.2g} is allowed{weak})"
    why = "overstate log r" if m.value < 1 else "understate log r"
    if pearson is not None and abs(pearson.value) < LEAST_CORRELATION:
        why = "hardly know it there"
    return False, f"{where} m = {m}{correlated}, outside of 1 ± {reach:.2g}: the models {why}"


def compare_ratios(
    reference: ArrayLike, model: ArrayLike, labels: Labels, rule: DualRule | None = None, n_bootstrap: int = 200,
    *, generator: torch.Generator, limit: float = 1.0, slope_spread: float = 0.0,
) -> RatioComparison:  # fmt: skip
    """The dual test of one log r against the reference: all numbers and the verdict.

    Args:
        reference, model, labels, n_bootstrap, generator: as in `fit_line`.
        rule, slope_spread: as in `verdict`.
        limit: difference of the two from which on an event counts as outside.
    """
    rule = rule or DualRule()
    ref, mod, positive = _sample(reference, model, labels)
    line = fit_line(ref, mod, positive, n_bootstrap, generator=generator)
    residuals = binned_residuals(ref, mod, positive, line, rule.bins)
    within, outside = within_classes(ref, mod, positive), share_outside(ref, mod, limit)
    of_a, of_b = (share_outside(ref[side], mod[side], limit) for side in (~positive, positive))
    judged = verdict(line, within, residuals, rule, slope_spread, (slope_spread, slope_spread))
    return RatioComparison(line, balanced_pearson(ref, mod, positive), within, outside, of_a, of_b, residuals, judged)


# --- over all pairs of weight draws


class PairLines(NamedTuple):
    """Slope, constant and correlation of every pair of draws, each with shape (n_a, n_b)."""

    slope: Array
    constant: Array
    pearson: Array


def pair_lines(reference: ArrayLike, draws_a: ArrayLike, draws_b: ArrayLike, labels: Labels) -> PairLines:
    """The line of `fit_line`, without errors, for every pair of `draws_a` (n_a, N) and `draws_b` (n_b, N) of log p."""
    a, b = _pair(draws_a, draws_b)
    ref = as_events(reference, "reference", a.shape[1])
    covariance, means = _second_moments(a, b, ref, balanced_weights(as_labels(labels, ref.size)))
    in_a, in_b, last = slice(0, len(a)), slice(len(a), -1), -1
    diagonal = np.diag(covariance)
    variance = diagonal[None, in_b] + diagonal[in_a, None] - 2 * covariance[in_a, in_b]
    joint = covariance[None, last, in_b] - covariance[in_a, last, None]
    slope = joint / variance
    constant = means[last] - slope * (means[None, in_b] - means[in_a, None])
    return PairLines(slope, constant, joint / np.sqrt(variance * covariance[last, last]))


def _second_moments(a: NDArray[Any], b: NDArray[Any], ref: Array, weights: Array) -> tuple[Array, Array]:
    """Weighted covariance (K, K) and means (K,) of the K = n_a + n_b + 1 rows a, b and ref."""
    size = len(a) + len(b) + 1
    moments, means, shift = np.zeros((size, size)), np.zeros(size), None
    for (part, first), (_, second) in zip(arrays.chunks(a, "draws_a"), arrays.chunks(b, "draws_b"), strict=True):
        rows = np.concatenate([first, second, ref[None, part]])
        shift = rows.mean(axis=1, keepdims=True) if shift is None else shift
        rows -= shift
        means += rows @ weights[part]
        moments += (rows * weights[part]) @ rows.T
    offset = np.zeros(size) if shift is None else shift[:, 0]
    return moments - np.outer(means, means), means + offset


def pair_histogram(draws_a: ArrayLike, draws_b: ArrayLike, edges: ArrayLike) -> tuple[Array, Array]:
    """The density of log r over the events of one sample: mean and standard deviation over all pairs of draws.

    Args:
        draws_a, draws_b: log p of the draws of each model, with shapes (n_a, N) and (n_b, N).
        edges: of even bins of log r, with shape (B + 1,), the last outside; events outside count in the total.
    """
    (a, b), cuts = _pair(draws_a, draws_b), np.asarray(edges, dtype=np.float64)
    steps, bins = np.diff(cuts), cuts.size - 1
    if cuts.ndim != 1 or bins < 1 or not steps[0] > 0 or not np.allclose(steps, steps[0], rtol=1e-6):
        raise InputError("expected edges of even, rising bins of log r")
    # Two more bins take what lies outside; clipping before the cast keeps large values from wrapping around.
    counts, rows = np.zeros((len(a), len(b), bins + 2)), (bins + 2) * np.arange(len(b))[:, None]
    blocks = (arrays.chunks(rows, name, BLOCK) for rows, name in ((a, "draws_a"), (b, "draws_b")))
    for (_, first), (_, second) in zip(*blocks, strict=True):
        for row, values in enumerate(first):
            place = np.clip((second - values - cuts[0]) * (bins / (cuts[-1] - cuts[0])) + 1, 0, bins + 1) + rows
            counts[row] += np.bincount(place.ravel().astype(np.int64), minlength=counts[row].size).reshape(len(b), -1)
    density = counts[:, :, 1:-1].reshape(-1, bins) / (a.shape[1] * steps[0])
    return density.mean(axis=0), density.std(axis=0)


def _pair(draws_a: ArrayLike, draws_b: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    a, b = arrays.as_draws(draws_a, "draws_a", least=1), arrays.as_draws(draws_b, "draws_b", least=1)
    require_that(a.shape[1] == b.shape[1], "draws", "both models at the same events", f"{a.shape[1]} and {b.shape[1]}")
    return a, b
