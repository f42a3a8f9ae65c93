"""A number is printed to the digit that its error allows."""

import math

import pytest

from normae.statistics import Estimate, format_estimate


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
