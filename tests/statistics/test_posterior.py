"""Means, widths and pulls over weight draws, of log p and of p."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from normae.errors import InputError
from normae.statistics import (
    log_mean_and_width,
    mean_and_std,
    pulls,
    relative_density_ratio,
)
from normae.statistics.arrays import CHUNK

Array = NDArray[np.float64]


def sample(n: int, events: int, width: float, truth_width: float, seed: int) -> tuple[Array, Array]:
    """Draws (n, N) of log p around unknown means, with `width`; truths (N,) around the same means, `truth_width`."""
    generator = np.random.default_rng(seed)
    mean = generator.normal(-3, 1, events)
    return mean + width * generator.normal(size=(n, events)), mean + truth_width * generator.normal(size=events)


def test_mean_and_std_over_more_than_a_chunk() -> None:
    draws = np.random.default_rng(0).normal(size=(5, CHUNK + 7)).astype(np.float32)
    mean, std = mean_and_std(draws)
    assert mean == pytest.approx(draws.astype(np.float64).mean(0), abs=1e-12)
    assert std == pytest.approx(draws.astype(np.float64).std(0, ddof=1), abs=1e-12)


@pytest.mark.parametrize(("truth_width", "expected"), [(0.1, 1.0), (0.05, 0.5), (0.2, 2.0)])
@pytest.mark.parametrize("density", [False, True])
def test_the_width_of_pulls_tells_exact_conservative_and_overconfident_apart(
    density: bool, truth_width: float, expected: float
) -> None:
    draws, true = sample(100, 5000, 0.1, truth_width, 1)
    assert np.std(pulls(draws, true, density)) == pytest.approx(expected, rel=0.07)


def test_the_width_of_exact_pulls_is_that_of_student() -> None:
    draws, true = sample(8, 100_000, 0.1, 0.1, 2)
    assert np.std(pulls(draws, true)) == pytest.approx(math.sqrt(9 * 7 / (8 * 5)), rel=0.02)


def test_the_sign_of_a_pull_is_that_of_model_minus_truth() -> None:
    draws = np.array([[1.0], [3.0]])
    assert pulls(draws, [1.0])[0] == pytest.approx(1 / math.sqrt(2))
    assert pulls(draws, [1.0], density=True)[0] > 0


def test_draws_that_do_not_differ() -> None:
    assert pulls(np.ones((3, 3)), [0.0, 1.0, 2.0]).tolist() == [math.inf, 0.0, -math.inf]


def test_densities_where_log_p_is_in_the_thousands() -> None:
    draws, true = sample(50, 100, 0.1, 0.1, 3)
    for shift in (5000.0, -5000.0):
        assert pulls(draws + shift, true + shift, density=True) == pytest.approx(
            pulls(draws, true, density=True), rel=1e-6
        )
        assert log_mean_and_width(draws + shift)[0] == pytest.approx(log_mean_and_width(draws)[0] + shift)
    assert pulls(draws, true, density=True) == pytest.approx(pulls(np.exp(draws - true), np.ones(100)))


def test_density_mean_and_std() -> None:
    draws = sample(50, 100, 0.3, 0.1, 4)[0]
    log_mean, width = log_mean_and_width(draws)
    p = np.exp(draws)
    assert np.exp(log_mean) == pytest.approx(p.mean(0))
    assert np.exp(log_mean) * width == pytest.approx(p.std(0, ddof=1))


def test_a_truth_of_zero_density_is_infinitely_far_in_log_p_only() -> None:
    draws = sample(20, 3, 0.3, 0.1, 5)[0]
    assert pulls(draws, np.full(3, -math.inf)).tolist() == [math.inf] * 3
    assert pulls(draws, np.full(3, -math.inf), density=True) == pytest.approx(pulls(np.exp(draws), np.zeros(3)))


def test_the_papers_check_holds_to_first_order_and_fails_beyond() -> None:
    generator = np.random.default_rng(6)
    widths = np.linspace(0.01, 0.1, 400)
    scores = widths * generator.normal(size=(200, 400))
    check = relative_density_ratio(scores + 3, -scores)
    assert check.value == pytest.approx(1.0, abs=0.01)
    assert check.error < 0.01
    wide = relative_density_ratio(10 * scores, -10 * scores)
    assert wide.value + wide.error > 1.1


def test_the_papers_check_sees_a_log_z_that_moves_with_the_energy() -> None:
    generator = np.random.default_rng(7)
    common = 0.1 * generator.normal(size=(200, 1))
    scores = common + 0.01 * generator.normal(size=(200, 400))
    assert relative_density_ratio(scores, -(scores - common)).value < 0.2


def test_bad_draws() -> None:
    with pytest.raises(InputError, match=r"one row per weight draw, with shape \(n, N\), got shape \(3,\)"):
        mean_and_std([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="at least 2 weight draws, got 1"):
        mean_and_std([[1.0, 2.0]])
    with pytest.raises(InputError, match="2 as in the draws, got 3"):
        pulls(np.ones((4, 2)), [1, 2, 3])
    with pytest.raises(InputError, match="draws: expected finite values, got 1"):
        pulls([[1.0, math.nan], [1.0, 2.0]], [1.0, 1.0])
    with pytest.raises(InputError, match=r"got shapes \(2, 3\) and \(3, 3\)"):
        relative_density_ratio(np.ones((2, 3)), np.ones((3, 3)))
    with pytest.raises(InputError, match="the same E/T from all"):
        relative_density_ratio(np.ones((2, 3)), np.ones((2, 3)))
