"""Coverage passes an exact posterior, and finds out one that is too wide and one that is too narrow."""

import math
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm as normal
from scipy.stats import t as student

from normae.errors import InputError
from normae.statistics import (
    confidence_levels,
    coverage,
    coverage_by_region,
    coverage_over_trainings,
    largest_level,
    pulls,
    pulls_over_trainings,
)

Array = NDArray[np.float64]
LEVELS = np.array([0.5, 0.68, 0.9, 0.95])
EVENTS = 8000
NOISE = 4 * np.sqrt(LEVELS * (1 - LEVELS) / EVENTS)
KINDS = pytest.mark.parametrize("kind", ["quantile", "gaussian"])


def posterior(factor: float, n: int = 100, events: int = EVENTS, seed: int = 0) -> tuple[Array, Array]:
    """Draws (n, N) and independent truths (N,) of log p; `factor` times as wide as they should be."""
    generator = np.random.default_rng(seed)
    mean, width = generator.normal(-3, 2, events), generator.uniform(0.02, 0.1, events)
    draws = mean + factor * width * generator.normal(size=(n, events))
    return draws, mean + width * generator.normal(size=events)


@KINDS
@pytest.mark.parametrize("density", [False, True])
def test_an_exact_posterior_covers(kind: str, density: bool) -> None:
    found = coverage(*posterior(1.0), LEVELS, kind, density)  # type: ignore[arg-type]
    # Gaussian intervals from 100 draws, and those of p which is not Gaussian, are known to lose less than this.
    known = 0.0 if kind == "quantile" else 0.006
    assert (np.abs(found - LEVELS) < NOISE + known).all()


@KINDS
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize(("factor", "sign"), [(1.4, 1), (0.7, -1)])
def test_the_direction_of_a_failure(kind: str, density: bool, factor: float, sign: int) -> None:
    found = coverage(*posterior(factor), LEVELS, kind, density)  # type: ignore[arg-type]
    assert (sign * (found - LEVELS) > NOISE).all()


def test_a_bias_is_found_out() -> None:
    draws, true = posterior(1.0)
    assert (coverage(draws + 0.1, true, LEVELS) < LEVELS - NOISE).all()


def test_numpys_default_quantiles_undercover_by_two_percent_and_weibulls_do_not() -> None:
    draws, true = posterior(1.0)
    tails = 0.5 * (1 - LEVELS)
    low, high = (np.quantile(draws, tail, axis=0) for tail in (tails, 1 - tails))
    default = ((low <= true) & (true <= high)).mean(axis=1)
    assert default == pytest.approx(LEVELS * 99 / 101, abs=0.012)
    assert LEVELS[3] - default[3] > NOISE[3]
    assert coverage(draws, true, LEVELS)[3] == pytest.approx(0.95, abs=NOISE[3])


def test_with_few_draws_the_default_is_far_off_and_weibull_exact() -> None:
    draws, true = posterior(1.0, n=9, events=40_000)
    low, high = np.quantile(draws, (1 / 8, 7 / 8), axis=0)
    assert ((low <= true) & (true <= high)).mean() == pytest.approx(0.75 * 8 / 10, abs=0.01)
    assert coverage(draws, true, [0.6, 0.8]) == pytest.approx([0.6, 0.8], abs=0.01)


def test_gaussian_intervals_lose_what_student_says() -> None:
    found = coverage(*posterior(1.0, n=6, events=40_000), [0.95], "gaussian")
    assert found[0] == pytest.approx(2 * student.cdf(1.959964 / math.sqrt(1 + 1 / 6), 5) - 1, abs=0.006)


def ends(draws: np.ndarray, level: float, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Of the interval at each event, as the module's docstring writes them."""
    if kind == "quantile":
        low, high = np.quantile(draws, (0.5 * (1 - level), 0.5 * (1 + level)), axis=0, method="weibull")
        return low, high
    mean, reach = draws.mean(0), normal.ppf(0.5 * (1 + level)) * draws.std(0, ddof=1)
    return mean - reach, mean + reach


@KINDS
def test_the_one_pass_is_the_share_inside_the_intervals(kind: str) -> None:
    draws, true = posterior(0.8, n=60, events=3000)
    draws[:30, :200] = true[:200]  # ties, as of a network that saturates
    levels = np.linspace(0.01, 0.96, 40)
    direct = [np.mean((low <= true) & (true <= high)) for low, high in (ends(draws, level, kind) for level in levels)]
    assert coverage(draws, true, levels, kind) == pytest.approx(direct, abs=1e-12)  # type: ignore[arg-type]


def test_quantile_intervals_of_p_and_log_p_agree_up_to_the_interpolation() -> None:
    draws, true = posterior(1.0)
    levels = confidence_levels(100)
    assert coverage(draws, true, levels, density=True) == pytest.approx(coverage(draws, true, levels), abs=0.002)
    on_the_draws = 1 - 2 * np.arange(1, 50) / 101
    assert (coverage(draws, true, on_the_draws, density=True) == coverage(draws, true, on_the_draws)).all()


def test_a_truth_of_zero_density_is_outside_every_interval() -> None:
    draws = posterior(1.0, events=3)[0]
    zero = np.full(3, -math.inf)
    for kind, density in (("quantile", False), ("gaussian", False), ("quantile", True)):
        assert coverage(draws, zero, [0.98], kind, density)[0] == 0  # type: ignore[arg-type]


def test_float32_draws_of_a_grid_need_no_second_copy() -> None:
    draws, true = posterior(1.0, events=50_000)
    rows = draws.astype(np.float32)
    tracemalloc.start()
    coverage(rows, true, LEVELS, density=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 16_384 * 100 * 8


def test_by_region() -> None:
    (exact, true), (narrow, other) = posterior(1.0, seed=1), posterior(0.5, seed=2)
    draws, truths = np.concatenate([exact, narrow], axis=1), np.r_[true, other]
    region = np.repeat([0, 3], EVENTS)
    found = coverage_by_region(draws, truths, region, LEVELS)
    assert found.shape == (5, 4)
    assert found[0] == pytest.approx(coverage(exact, true, LEVELS))
    assert found[3] == pytest.approx(coverage(narrow, other, LEVELS))
    assert np.isnan(found[[1, 2, 4]]).all()


def test_one_training_with_correlated_errors_scatters_and_many_do_not() -> None:
    """One error for all events: each training covers all or nothing, their mean is right, its error honest."""
    generator = np.random.default_rng(3)
    found = []
    for _ in range(100):
        draws = generator.normal(size=(100, 1)) + np.zeros(50)
        found.append(coverage(draws, np.full(50, generator.normal()), LEVELS))
    band = coverage_over_trainings(found)
    assert (np.abs(band.mean - LEVELS) < 3.5 * band.error).all()
    assert band.spread == pytest.approx(np.sqrt(LEVELS * (1 - LEVELS)), rel=0.3)
    assert band.error == pytest.approx(band.spread / 10, rel=0.01)


def test_over_trainings_leaves_out_regions_without_events() -> None:
    band = coverage_over_trainings([[[0.4, 0.6], [np.nan, 0.2]], [[0.6, 0.6], [np.nan, np.nan]]])
    assert band.mean == pytest.approx(np.array([[0.5, 0.6], [np.nan, 0.2]]), nan_ok=True)
    assert band.spread == pytest.approx(np.array([[math.sqrt(0.02), 0.0], [np.nan, np.nan]]), nan_ok=True)
    assert band.error[0, 0] == pytest.approx(1.8373 * 0.1, rel=1e-4), "Student's factor of two"


def test_pulls_over_trainings_count_the_scatter_of_their_means() -> None:
    generator = np.random.default_rng(4)
    trainings = [0.6 * generator.normal() + 0.8 * generator.normal(size=2000) for _ in range(200)]
    summary = pulls_over_trainings(trainings)
    assert summary.width.value == pytest.approx(0.8, abs=0.01)
    assert abs(summary.total_width.value - 1) < 3 * summary.total_width.error
    assert abs(summary.mean.value) < 3 * summary.mean.error


def test_the_levels_that_draws_reach() -> None:
    assert largest_level(99) == pytest.approx(0.98)
    assert confidence_levels(100) == pytest.approx(np.arange(1, 50) / 50)
    assert confidence_levels(9).max() == pytest.approx(0.8)
    draws, true = posterior(1.0, n=99, events=10)
    coverage(draws, true, [0.98])
    coverage(draws, true, [0.999], "gaussian")


def test_bad_input() -> None:
    draws, true = posterior(1.0, n=30, events=10)
    with pytest.raises(InputError, match="level 0.95 need at least 39 weight draws, got 30, which reach 0.9355"):
        coverage(draws, true, [0.5, 0.95])
    with pytest.raises(InputError, match="levels between 0 and 1, got 0.5 to 1"):
        coverage(draws, true, [0.5, 1.0])
    with pytest.raises(InputError, match="'quantile' or 'gaussian', got 'normal'"):
        coverage(draws, true, [0.5], "normal")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="each of 10 events, got 9"):
        coverage_by_region(draws, true, np.zeros(9), [0.5])
    with pytest.raises(InputError, match="at least 2 independent trainings, got 1"):
        coverage_over_trainings([[0.5]])
    with pytest.raises(InputError, match=r"one shape, got \(1,\) and \(2,\)"):
        coverage_over_trainings([[0.5], [0.5, 0.6]])
    with pytest.raises(InputError, match="got 1 where the weight draws do not differ"):
        pulls_over_trainings([[0.0, 1.0], pulls(np.zeros((2, 2)), [0.0, 1.0])])
