"""How well a learned log-density agrees with a known one.

The paper's relative accuracy (section 3.1) is

    Delta(x) = (log p_model(x) - log p_true(x)) / log p_true(x).

The divergence is a mean over a sample of the truth,

    KL(true, model) = E_true[log p_true - log p_model],

with the standard error of that mean, or a sum over the cells of a grid.

**Where the truth is zero** (log p_true = -inf, outside the support of a toy): Delta is the limit for log p_true -> -inf
at a fixed model, -1, and 0 where the model is -inf too; the band is the outermost; `pearson` leaves the point out;
`grid_kl` counts it as 0 log 0 = 0; in `kl_divergence` it is refused, since no sample of the truth lies there.
NaN is refused everywhere.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError, refuse
from normae.statistics.arrays import Array, Estimate, as_pair, as_vector, sample_mean, weighted_pearson

REGION_EDGES = (3, 6, 12, 25)
"""Edges of the five bands of -log p_true."""


def relative_deviation(log_model: ArrayLike, log_true: ArrayLike) -> Array:
    """The paper's Delta, with the shape of its arguments; infinite where log p_true is zero and log p_model is not.

    >>> from normae.statistics import relative_deviation
    >>> relative_deviation([-2.2, -4.0], [-2.0, -4.0]).round(2)
    array([0.1, 0. ])
    """
    model, true = as_pair(log_model, log_true, ("log_model", "log_true"))
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation: Array = (model - true) / true
    deviation[np.isneginf(true)] = -1.0
    deviation[model == true] = 0.0
    return deviation.reshape(np.shape(log_true))


def pearson(a: ArrayLike, b: ArrayLike) -> Estimate:
    """Correlation of two arrays of one shape, with the error of the influence function.

    The error takes the pairs for an independent sample. Pairs on a grid are no sample: there it only gives a scale.
    A pair is left out where either is -inf.

    >>> from normae.statistics import pearson
    >>> round(pearson([1, 2, 3, 4], [1, 2, 3, 5]).value, 3)
    0.983
    """
    first, second = as_pair(a, b, ("a", "b"))
    both = np.isfinite(first) & np.isfinite(second)
    refuse(both.sum() < 3, f"a correlation needs at least 3 finite pairs, got {int(both.sum())} of {both.size}")
    count = int(both.sum())
    return weighted_pearson(first[both], second[both], np.full(count, 1 / count))


def kl_divergence(log_true: ArrayLike, log_model: ArrayLike) -> Estimate:
    """KL(true, model) from the log-densities at N points drawn from the truth, each with shape (N,).

    A model that is zero at one of them has an infinite divergence.

    >>> from normae.statistics import kl_divergence
    >>> kl_divergence([-1.0, -2.0], [-1.5, -2.5]).value
    0.5
    """
    true, model = as_pair(log_true, log_model, ("log_true", "log_model"), least=2)
    if outside := int((~np.isfinite(true)).sum()):
        raise InputError(f"log_true: expected a sample of the truth, got {outside} points where log p is not finite")
    ratio = true - model
    return sample_mean(ratio) if np.isfinite(ratio).all() else Estimate(math.inf, math.nan)


def grid_kl(log_true: ArrayLike, log_model: ArrayLike, cell: float) -> float:
    """KL(true, model) by the midpoint rule over the points of a grid, each standing for the volume `cell`."""
    true, model = as_pair(log_true, log_model, ("log_true", "log_model"))
    support = ~np.isneginf(true)
    true, model = true[support], model[support]
    return float(np.sum(np.exp(true) * (true - model)) * cell)


def regions(log_true: ArrayLike) -> NDArray[np.int64]:
    """The band 0..4 of -log p_true for each point, with the shape of the argument; a lower edge is in its band.

    >>> from normae.statistics import regions
    >>> regions([-1.0, -3.0, -30.0])
    array([0, 1, 4])
    """
    bands: NDArray[np.int64] = np.digitize(-as_vector(log_true, "log_true"), REGION_EDGES)
    return bands.reshape(np.shape(log_true))
