"""What is computed over all pairs of draws without making them is what comes from making them."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from normae.errors import InputError
from normae.statistics import (
    fit_line,
    pair_histogram,
    pair_lines,
    pearson,
)
from normae.statistics.dual import BLOCK

Array = NDArray[np.float64]
EVENTS = BLOCK + 100
EDGES = np.linspace(-4, 4, 17)


def draws() -> tuple[Array, Array, Array, Array]:
    """Draws (3, N) and (4, N), every pair (12, N), and labels (N,)."""
    generator = np.random.default_rng(0)
    mean = generator.normal(size=EVENTS)
    a = -500 + 0.5 * mean + 0.1 * generator.normal(size=(3, 1)) + 0.1 * generator.normal(size=(3, EVENTS))
    b = -500 - mean + 0.1 * generator.normal(size=(4, 1)) + 0.1 * generator.normal(size=(4, EVENTS))
    return a, b, (b[None] - a[:, None]).reshape(12, EVENTS), np.arange(EVENTS) % 2


def test_histograms() -> None:
    a, b, pairs, _ = draws()
    mean, spread = pair_histogram(a, b, EDGES)
    direct = np.array([np.histogram(row, EDGES)[0] for row in pairs]) / (EVENTS * 0.5)
    assert mean == pytest.approx(direct.mean(0))
    assert spread == pytest.approx(direct.std(0))
    assert pair_histogram(a[:1], b[:1], EDGES)[0] == pytest.approx(direct[0])
    assert mean.sum() * 0.5 < 1


def test_events_far_outside_the_bins_count_in_the_total() -> None:
    found = pair_histogram(np.zeros((1, 4)), [[1e300, -1e300, 0.25, 4.0]], EDGES)[0]
    assert found.sum() * 0.5 == pytest.approx(0.25)


def test_the_line_of_every_pair() -> None:
    a, b, pairs, labels = draws()
    reference = pairs[0] + np.random.default_rng(1).normal(size=EVENTS)
    found = pair_lines(reference, a, b, labels)
    for row, slope, constant, correlation in zip(
        pairs, found.slope.ravel(), found.constant.ravel(), found.pearson.ravel(), strict=True
    ):
        line = fit_line(reference, row, labels, 2, generator=torch.Generator().manual_seed(0))
        assert (slope, constant) == pytest.approx((line.slope.value, line.constant.value), abs=1e-8)
        assert correlation == pytest.approx(pearson(reference, row).value, abs=1e-8)
    assert found.slope.shape == (3, 4)


def test_bad_input() -> None:
    a, b, _, labels = draws()
    with pytest.raises(InputError, match=f"same events, got {EVENTS} and {EVENTS - 1}"):
        pair_lines(b[0], a, b[:, 1:], labels)
    with pytest.raises(InputError, match="even, rising bins"):
        pair_histogram(a, b, [0.0, 1.0, 3.0])
    with pytest.raises(InputError, match="reference"):
        pair_lines(labels[1:], a, b, labels)
