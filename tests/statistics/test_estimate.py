"""A number is printed to the digit that its error allows, and the error of a mean holds, of few and of lines too."""

import math

import numpy as np
import pytest

from normae.statistics import Estimate, few_mean, format_estimate, line_mean, sample_mean


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.00143, 0.000113, "0.0014 ± 0.0001"),
        (0.5358, 0.0015, "0.536 ± 0.002"),
        (0.99998, 9.6e-6, "0.99998 ± 0.00001"),
        (-0.021, 0.4, "0.0 ± 0.4"),
        (1234.0, 56.0, "1230 ± 60"),
        (12.0, 1.0, "12 ± 1"),
        (6.1e-7, 2e-8, "(6.1 ± 0.2)e-7"),
        (3.21e8, 4e6, "(3.21 ± 0.04)e+8"),
        (0.97912, 0.0, "0.9791"),
        (62.352941176470594, 7e-15, "62.35"),
        (0.97912, math.nan, "0.9791"),
        (math.inf, math.nan, "inf"),
    ],
)
def test_digits(value: float, error: float, text: str) -> None:
    assert str(Estimate(value, error)) == text


def test_more_digits_on_request() -> None:
    assert format_estimate(Estimate(0.5358, 0.0015), digits=2) == "0.5358 ± 0.0015"


def test_it_is_a_plain_record() -> None:
    assert Estimate(1.0, 0.5)._asdict() == {"value": 1.0, "error": 0.5}


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_error_of_a_few_holds_as_often_as_it_says(n):
    """In 68 % of all cases; the standard error alone in 50 % of those of two."""
    found = [few_mean(row) for row in np.random.default_rng(0).normal(size=(4000, n))]
    held = np.mean([abs(one.value) < one.error for one in found])
    assert held == pytest.approx(0.683, abs=0.03)


@pytest.mark.parametrize(("n", "correlation"), [(20, 0.0), (40, 0.6), (200, 0.6), (200, 0.0)])
def test_the_error_of_correlated_lines_holds(n, correlation):
    """An autoregressive history; taken as independent, lines with a correlation of 0.6 hold in 39 %."""
    rng, held, naive = np.random.default_rng(0), [], []
    for _ in range(300):
        x = rng.normal(size=n)
        for i in range(1, n):
            x[i] = correlation * x[i - 1] + math.sqrt(1 - correlation**2) * x[i]
        held.append(abs(x.mean()) < line_mean(x).error)
        naive.append(abs(x.mean()) < sample_mean(x).error)
    assert 0.55 < np.mean(held) < 0.85
    assert correlation == 0 or np.mean(naive) < 0.45
