"""Gaussians of single columns."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from normae.statistics.gaussians import by_column


def columns(n: int, seed: int) -> np.ndarray:
    """A Gaussian, and three far groups of which one has few rows, with shape (n, 2)."""
    random = np.random.default_rng(seed)
    group = random.choice(3, n, p=[0.6, 0.35, 0.05])
    groups = random.normal(np.array([-3.0, 0.0, 6.0])[group], np.array([0.2, 1.0, 0.4])[group])
    return np.stack([random.normal(1.0, 2.0, n), groups], axis=1)


def truth(rows: np.ndarray) -> np.ndarray:
    """The mean of log p of both columns."""
    each = [0.6 * norm.pdf(rows[:, 1], -3, 0.2), 0.35 * norm.pdf(rows[:, 1], 0, 1), 0.05 * norm.pdf(rows[:, 1], 6, 0.4)]
    return np.array([norm.logpdf(rows[:, 0], 1, 2).mean(), np.log(np.sum(each, axis=0)).mean()])


def test_one_gaussian_is_that_of_mean_and_variance():
    rows, held = columns(2000, 0), columns(2000, 1)
    expected = norm.logpdf(held, rows.mean(0), np.sqrt(rows.var(0) + 1e-4)).mean(0)
    assert by_column(torch.from_numpy(rows), torch.from_numpy(held), 1).numpy() == pytest.approx(expected, abs=1e-5)


def test_groups_of_a_column_are_found_and_no_column_knows_of_another():
    rows, held = columns(4000, 0), columns(4000, 1)
    found = by_column(torch.from_numpy(rows), torch.from_numpy(held), 4).numpy()
    assert found == pytest.approx(truth(held), abs=0.01)
    alone = by_column(torch.from_numpy(rows[:, 1:]), torch.from_numpy(held[:, 1:]), 4).numpy()
    assert alone == pytest.approx(found[1:], abs=2e-3)
    assert by_column(torch.from_numpy(rows), torch.from_numpy(held), 1).numpy()[1] < truth(held)[1] - 0.5
