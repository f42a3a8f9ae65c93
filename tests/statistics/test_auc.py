"""The area under the ROC curve, against scikit-learn, the pairs written out, and the bootstrap."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from normae.errors import InputError
from normae.statistics import auc, auc_difference

Array = NDArray[np.float64]
SCORES = st.lists(st.integers(-3, 3), min_size=2, max_size=12)


def pairwise_auc(positive: Array, negative: Array) -> tuple[float, float]:
    """AUC and DeLong error from the full matrix of pairs."""
    psi = np.heaviside(positive[:, None] - negative[None, :], 0.5)
    variance = np.var(psi.mean(1), ddof=1) / len(positive) + np.var(psi.mean(0), ddof=1) / len(negative)
    return float(psi.mean()), math.sqrt(variance)


@given(SCORES, SCORES)
def test_midranks_are_the_pairs(positive: list[int], negative: list[int]) -> None:
    a, b = np.array(positive, float), np.array(negative, float)
    assert auc(a, b) == pytest.approx(pairwise_auc(a, b), abs=1e-12)


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_against_scikit_learn_with_ties(decimals: int) -> None:
    generator = np.random.default_rng(1)
    positive, negative = generator.normal(0.3, 1, 3000).round(decimals), generator.normal(0, 1, 5000).round(decimals)
    labels = np.r_[np.ones(3000), np.zeros(5000)]
    assert auc(positive, negative).value == pytest.approx(roc_auc_score(labels, np.r_[positive, negative]), abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.05, 1.0])
def test_gaussian_shift(shift: float) -> None:
    generator = np.random.default_rng(2)
    estimate = auc(generator.normal(shift, 1, 200_000), generator.normal(0, 1, 100_000))
    assert abs(estimate.value - norm.cdf(shift / math.sqrt(2))) < 3 * estimate.error


def test_error_agrees_with_the_bootstrap() -> None:
    generator = np.random.default_rng(3)
    positive, negative = generator.exponential(1.5, 800).round(1), generator.exponential(1.0, 1200).round(1)
    draws = [auc(generator.choice(positive, 800), generator.choice(negative, 1200)).value for _ in range(400)]
    assert auc(positive, negative).error == pytest.approx(np.std(draws), rel=0.12)


def test_infinite_scores_are_ordinary() -> None:
    assert auc([math.inf, 1.0], [-math.inf, 1.0]).value == 0.875


def test_the_ideal_classifier_of_two_gaussians() -> None:
    generator, shift = np.random.default_rng(4), 0.06
    model, true = generator.normal(shift, 1, 200_000), generator.normal(0, 1, 200_000)
    ratio = [norm.logpdf(x, shift) - norm.logpdf(x) for x in (model, true)]
    assert abs(auc(*ratio).value - norm.cdf(shift / math.sqrt(2))) < 3 * auc(*ratio).error


def test_bad_scores() -> None:
    with pytest.raises(InputError, match="positive_scores: expected at least 2 values, got 1"):
        auc([1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="negative_scores: expected numbers, got 1 NaN"):
        auc([1.0, 2.0], [1.0, math.nan])


def test_the_difference_of_two_scores_of_the_same_events():
    """Its error is that of repeated experiments, far below the sum of the two errors where scores are alike."""
    random = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(300):
        positive, negative = random.normal(1, 1, 200), random.normal(0, 1, 300)
        other = [values + 0.2 * random.normal(size=values.size) for values in (positive, negative)]
        estimate = auc_difference(positive, negative, *other)
        assert estimate.value == pytest.approx(auc(positive, negative).value - auc(*other).value)
        found.append(estimate.value)
        errors.append(estimate.error)
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.15)
    assert np.mean(errors) < 0.4 * auc(positive, negative).error
