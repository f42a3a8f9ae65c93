"""Likelihood ratios of two Bayesian models, over all pairs of their weight draws.

A draw a of A and a draw b of B give log r_ab(x) = log p_b(x) - log p_a(x): n_a n_b ratios at each event. Since that is
a difference, mean and variance over pairs are a difference and a sum of those over draws, and the line of the dual
test, log r_ref = m log r_ab + C, follows for every pair from second moments over the events,

    cov(ref, b - a) = cov(ref, b) - cov(ref, a),    var(b - a) = var(b) + var(a) - 2 cov(a, b),

one matrix product for all. Histograms of log r are counted pair by pair in blocks of events. Nothing of shape
(n_a n_b, N) is ever made.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError
from normae.statistics.arrays import Array, LengthsDiffer, as_events, as_labels, balanced_weights
from normae.statistics.posterior import as_draws, chunks

BLOCK = 2048
"""Events whose pairs are counted at once: with 100 draws of each model 200k numbers, which stay in the cache."""


class PairLines(NamedTuple):
    """Slope, constant and correlation of every pair of draws, each with shape (n_a, n_b)."""

    slope: Array
    constant: Array
    pearson: Array


class RatioBand(NamedTuple):
    """The density of log r in bins with edges (B + 1,): mean over pairs of draws and standard deviation, each (B,)."""

    edges: Array
    mean: Array
    band: Array


def pair_lines(reference: ArrayLike, draws_a: ArrayLike, draws_b: ArrayLike, labels: ArrayLike | None) -> PairLines:
    """The line of `fit_line`, without errors, for every pair of draws.

    Args:
        reference: with shape (N,).
        draws_a, draws_b: log p of the draws of each model, with shapes (n_a, N) and (n_b, N).
        labels: with shape (N,).
    """
    a, b = as_draws(draws_a, "draws_a", least=1), as_draws(draws_b, "draws_b", least=1)
    _check_pair(a, b)
    ref = as_events(reference, "reference", a.shape[1])
    covariance, means = _second_moments(a, b, ref, balanced_weights(as_labels(labels, ref.size)))
    n = len(a)
    in_a, in_b, last = slice(0, n), slice(n, n + len(b)), -1
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
    for (part, first), (_, second) in zip(chunks(a, "draws_a"), chunks(b, "draws_b"), strict=True):
        rows = np.concatenate([first, second, ref[None, part]])
        shift = rows.mean(axis=1, keepdims=True) if shift is None else shift
        rows -= shift
        means += rows @ weights[part]
        moments += (rows * weights[part]) @ rows.T
    offset = np.zeros(size) if shift is None else shift[:, 0]
    return moments - np.outer(means, means), means + offset


def ratio_histogram(log_ratio: ArrayLike, edges: ArrayLike) -> Array:
    """The density of log r, with shape (N,), in even bins, with shape (B,); events outside count in the total."""
    values, cuts = as_events(log_ratio, "log_ratio"), _even_edges(edges)
    density: Array = _count(values[None], cuts)[0] / (values.size * (cuts[1] - cuts[0]))
    return density


def pair_histogram(draws_a: ArrayLike, draws_b: ArrayLike, edges: ArrayLike) -> RatioBand:
    """The density of log r over the events of one sample: mean and standard deviation over all pairs of draws.

    Args:
        draws_a, draws_b: log p of the draws of each model, with shapes (n_a, N) and (n_b, N).
        edges: of even bins of log r, with shape (B + 1,); events outside count in the total.
    """
    a, b = as_draws(draws_a, "draws_a", least=1), as_draws(draws_b, "draws_b", least=1)
    _check_pair(a, b)
    cuts = _even_edges(edges)
    counts = np.zeros((len(a), len(b), cuts.size - 1))
    blocks = (chunks(rows, name, BLOCK) for rows, name in ((a, "draws_a"), (b, "draws_b")))
    for (_, first), (_, second) in zip(*blocks, strict=True):
        for row, values in enumerate(first):
            counts[row] += _count(second - values, cuts)
    density = counts.reshape(-1, cuts.size - 1) / (a.shape[1] * (cuts[1] - cuts[0]))
    return RatioBand(cuts, density.mean(axis=0), density.std(axis=0))


def _count(values: Array, edges: Array) -> NDArray[np.int64]:
    """Entries per even bin of each row of `values` (n, N), with shape (n, B); the last edge is outside."""
    bins = edges.size - 1
    # Two more bins take what lies outside; clipping before the cast keeps large values from wrapping around.
    place = (values - edges[0]) * (bins / (edges[-1] - edges[0])) + 1
    np.clip(place, 0, bins + 1, out=place)
    place += (bins + 2) * np.arange(len(values))[:, None]
    counted: NDArray[np.int64] = np.bincount(place.ravel().astype(np.int64), minlength=(bins + 2) * len(values))
    return counted.reshape(len(values), bins + 2)[:, 1:-1]


def _even_edges(edges: ArrayLike) -> Array:
    cuts = np.asarray(edges, dtype=np.float64)
    steps = np.diff(cuts)
    if cuts.ndim != 1 or cuts.size < 2 or not steps[0] > 0 or not np.allclose(steps, steps[0], rtol=1e-6):
        raise InputError("expected edges of even, rising bins of log r")
    return cuts


def _check_pair(a: NDArray[Any], b: NDArray[Any]) -> None:
    if a.shape[1] != b.shape[1]:
        raise LengthsDiffer(f"expected draws of both models at the same events, got {a.shape[1]} and {b.shape[1]}")
