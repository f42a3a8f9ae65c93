"""Histograms of scores over weight draws: their covariance, and that as independent shifts of all bins together.

Bin b of draw k holds n_kb, the sum of the weights of the events whose score s_k(x) lies in it. The covariance over
draws C_bc = <(n_kb - n_b)(n_kc - n_c)> has eigenvalues l_i and unit eigenvectors v_i; with d_i = sqrt(l_i) v_i

    C = sum_i d_i d_i^T,

so that n + sum_i a_i d_i with independent a_i ~ N(0, 1) has that covariance: one nuisance parameter for each i, fully
correlated over bins, and over samples where their bins stand side by side in n. Events beyond the outer edges are in
the outer bins, so that none is lost: every draw then has the same sum, and C has one eigenvalue that is zero.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from normae.errors import InputError, refuse
from normae.statistics.arrays import Array

ROUNDING = 1e-12  # eigenvalues below this share of the largest are rounding errors


def fill(values: ArrayLike, edges: ArrayLike, weights: ArrayLike | None = None) -> Array:
    """Sums of weights (N,), or counts, of values (K, N) of each draw in bins with rising edges (B + 1,): (K, B).

    A value on an edge is in the bin above, one beyond the last in the last bin.
    """
    values, edges = np.atleast_2d(np.asarray(values)), np.asarray(edges, dtype=np.float64)
    draws, bins = len(values), len(edges) - 1
    place = np.searchsorted(edges[1:-1], values, side="right") + bins * np.arange(draws)[:, None]
    repeated = None if weights is None else np.tile(np.asarray(weights, dtype=np.float64), draws)
    return np.bincount(place.ravel(), repeated, minlength=draws * bins).astype(np.float64).reshape(draws, bins)


def covariance(counts: ArrayLike) -> Array:
    """Covariance over draws with shape (B, B) of histograms with shape (K, B)."""
    counts = np.asarray(counts, dtype=np.float64)
    refuse(len(counts) < 2, f"expected at least 2 weight draws for a covariance, got {len(counts)}")
    off = counts - counts.mean(0)
    return np.asarray(off.T @ off / (len(counts) - 1))


def shifts(matrix: ArrayLike, errors: ArrayLike | None = None, least: float = 0.0) -> Array:
    """Shifts d (r, B) of a covariance (B, B), the largest first, without those below a share `least` of all errors."""
    found, vectors = np.linalg.eigh(np.asarray(matrix, dtype=np.float64))
    found, vectors = found[::-1], vectors[:, ::-1]
    kept = found > max(ROUNDING * float(found[0]), 0.0)
    moved: Array = (vectors[:, kept] * np.sqrt(found[kept])).T
    moved *= np.sign(moved[np.arange(len(moved)), np.abs(moved).argmax(1)])[:, None]  # the sign has no meaning
    return moved if errors is None else moved[(np.abs(moved) > least * np.asarray(errors)).any(1)]


def tail_levels(events: int, least: int = 100, most: int = 10) -> Array:
    """Quantile levels 1/2, 3/4, 7/8, ...: every bin holds half of what the one before does, the last `least` events."""
    bins = int(np.clip(np.log2(max(events, 1) / least), 0, most - 1))
    return np.asarray(1 - np.exp2(-np.arange(1.0, bins + 1)))


def check_edges(edges: Sequence[float] | Array) -> Array:
    """The edges as an array with shape (B + 1,), finite and rising."""
    found = np.asarray(edges, dtype=np.float64)
    if found.ndim != 1 or len(found) < 2 or not np.isfinite(found).all() or not (np.diff(found) > 0).all():
        raise InputError(f"--bins: expected two or more rising numbers as edges, got {[float(e) for e in found]}")
    return found
