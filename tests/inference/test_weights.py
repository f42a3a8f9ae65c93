"""Ratios of partition functions from log weights, both ways."""

import math

import numpy as np
import pytest

from normae.inference.ais import bennett, effective_size, log_mean_exp


def test_bennett_on_gaussian_weights():
    """log w ~ N(r - s^2/2, s^2) forward and N(r + s^2/2, s^2) in reverse obey the relation of both ways."""
    numbers = np.random.default_rng(0)
    r, s = -3.0, 1.5
    forward = numbers.normal(r - s * s / 2, s, size=(50, 400))
    reverse = numbers.normal(r + s * s / 2, s, size=(50, 100))
    assert bennett(forward, reverse).mean() == pytest.approx(r, abs=4 * 0.1 / math.sqrt(50))
    assert bennett(forward, reverse).std() < log_mean_exp(forward).std() * 1.2
    assert log_mean_exp(forward).mean() < r + 0.05
    assert effective_size(np.zeros(7)) == pytest.approx(7)
    assert effective_size(np.array([0.0, -1e4])) == pytest.approx(1)
