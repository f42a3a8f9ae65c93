"""Agreement of log-densities, on Gaussians whose divergence and correlation are known."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from normae.errors import InputError
from normae.statistics import grid_kl, kl_divergence, pearson, regions, relative_deviation, share_within

Array = NDArray[np.float64]


def gaussian_kl(shift: float, width: float) -> float:
    """KL(N(0, 1), N(shift, width^2))."""
    return math.log(width) + (1 + shift**2) / (2 * width**2) - 0.5


def bootstrap_error(statistic: object, columns: list[Array], seed: int = 7, repeats: int = 300) -> float:
    generator, n = np.random.default_rng(seed), len(columns[0])
    draws = [generator.integers(n, size=n) for _ in range(repeats)]
    return float(np.std([statistic(*(column[draw] for column in columns)).value for draw in draws]))  # type: ignore[operator]


def test_relative_deviation_is_the_papers_sign() -> None:
    assert relative_deviation([-1.1, -0.9], [-1.0, -1.0]) == pytest.approx([0.1, -0.1])


def test_relative_deviation_keeps_the_shape_and_float64() -> None:
    deviation = relative_deviation(np.full((3, 4), -2, dtype=np.float32), np.full((3, 4), -1, dtype=np.float32))
    assert deviation.shape == (3, 4)
    assert deviation.dtype == np.float64


def test_relative_deviation_where_the_truth_is_zero() -> None:
    inf = math.inf
    deviation = relative_deviation([-5.0, -inf, -inf, 0.5, 0.0], [-inf, -inf, -2.0, 0.0, 0.0])
    assert deviation.tolist() == [-1.0, 0.0, inf, inf, 0.0]


@pytest.mark.parametrize(("shift", "width"), [(0.0, 1.0), (0.3, 1.0), (0.0, 1.3), (0.1, 0.8)])
def test_kl_of_two_gaussians(shift: float, width: float) -> None:
    x = np.random.default_rng(1).normal(size=100_000)
    log_true, log_model = norm.logpdf(x), norm.logpdf(x, shift, width)
    estimate = kl_divergence(log_true, log_model)
    assert abs(estimate.value - gaussian_kl(shift, width)) <= 4 * estimate.error
    assert estimate.error == pytest.approx(bootstrap_error(kl_divergence, [log_true, log_model]), rel=0.15, abs=1e-12)


def test_kl_finds_a_biased_model_and_passes_the_exact_one() -> None:
    x = np.random.default_rng(2).normal(size=50_000)
    exact, biased = (kl_divergence(norm.logpdf(x), norm.logpdf(x, shift)) for shift in (0.0, 0.1))
    assert exact == (0.0, 0.0)
    assert biased.value > 4 * biased.error


def test_kl_of_a_model_without_support_is_infinite() -> None:
    estimate = kl_divergence([-1.0, -2.0], [-1.0, -math.inf])
    assert estimate.value == math.inf
    assert math.isnan(estimate.error)


def test_grid_kl_of_two_gaussians() -> None:
    x = np.linspace(-9, 9, 2001)
    assert grid_kl(norm.logpdf(x), norm.logpdf(x, 0.2, 1.1), x[1] - x[0]) == pytest.approx(gaussian_kl(0.2, 1.1))


def test_grid_kl_where_the_truth_is_zero() -> None:
    inside = math.log(0.5)
    assert grid_kl([inside, inside, -math.inf], [-1.0, -1.0, -math.inf], 1.0) == pytest.approx(inside + 1.0)


@pytest.mark.parametrize("rho", [-0.6, 0.0, 0.95])
def test_pearson_of_gaussians_agrees_with_the_textbook(rho: float) -> None:
    a, b = np.random.default_rng(3).multivariate_normal([0, 0], [[1, rho], [rho, 1]], size=40_000).T
    estimate = pearson(a, b)
    assert estimate.value == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-12)
    assert abs(estimate.value - rho) < 4 * estimate.error
    assert estimate.error == pytest.approx((1 - rho**2) / math.sqrt(40_000), rel=0.05)


def test_pearson_error_on_log_likelihoods_agrees_with_the_bootstrap() -> None:
    x = np.random.default_rng(4).normal(size=(4000, 2))
    a, b = norm.logpdf(x).sum(1), norm.logpdf(x, 0.1, 1.1).sum(1)
    estimate, gaussian = pearson(a, b), (1 - pearson(a, b).value ** 2) / math.sqrt(len(a))
    assert estimate.error == pytest.approx(bootstrap_error(pearson, [a, b]), rel=0.15)
    assert abs(gaussian / estimate.error - 1) > 0.3


def test_pearson_in_float32_keeps_its_digits() -> None:
    a = 1e4 + np.random.default_rng(5).normal(size=1000)
    assert pearson(a.astype(np.float32), a.astype(np.float32)).value == pytest.approx(1.0, abs=1e-12)


def test_pearson_leaves_out_what_is_not_finite() -> None:
    assert pearson([1.0, 2.0, 4.0, -math.inf], [1.0, 3.0, 4.0, 0.0]) == pearson([1.0, 2.0, 4.0], [1.0, 3.0, 4.0])


@pytest.mark.parametrize(("inside", "n", "error"), [(0, 100, 0.5 / 101), (100, 100, 0.5 / 101), (5000, 10_000, 0.005)])
def test_share_within(inside: int, n: int, error: float) -> None:
    deviation = np.where(np.arange(n) < inside, -0.05, 0.1)
    assert share_within(deviation) == pytest.approx((inside / n, error), rel=1e-3)


def test_regions_by_bands_of_minus_log_p() -> None:
    log_true = -np.array([[0.0, 2.99, 3.0], [6.0, 12.0, 25.0], [24.99, 100.0, math.inf]])
    assert regions(log_true).tolist() == [[0, 0, 1], [2, 3, 4], [3, 4, 4]]


def test_bad_input_says_what_came() -> None:
    with pytest.raises(InputError, match=r"one shape, got \(2,\) and \(3,\)"):
        pearson([1, 2], [1, 2, 3])
    with pytest.raises(InputError, match="1 NaN among 2"):
        regions([math.nan, -1.0])
    with pytest.raises(InputError, match="constant"):
        pearson([1, 1, 1], [1, 2, 3])
    with pytest.raises(InputError, match="sample of the truth"):
        kl_divergence([-math.inf, -1.0], [-1.0, -1.0])
    with pytest.raises(InputError, match="at least 1 values, got 0"):
        share_within([])
