"""Histograms over weight draws, their covariance and its shifts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normae.errors import InputError
from normae.statistics.histogram import check_edges, covariance, fill, shifts, tail_levels

EDGES = np.array([0.0, 1.0, 2.0, 4.0])


def test_fill_takes_every_event():
    values = np.array([[-5.0, 0.0, 0.5, 1.0, 1.99, 2.0, 4.0, 9.0]])
    assert np.array_equal(fill(values, EDGES), [[3, 2, 3]])
    weights = np.array([1, 2, 4, 8, 16, 32, 64, -1.0])
    assert np.array_equal(fill(values, EDGES, weights), [[7, 24, 95]])


def test_fill_of_draws_is_fill_of_each():
    values = np.random.default_rng(0).normal(1, 2, size=(5, 300))
    weights = np.random.default_rng(1).random(300)
    together = fill(values, EDGES, weights)
    assert together.shape == (5, 3)
    for k in range(5):
        assert np.allclose(together[k], np.histogram(np.clip(values[k], 0, 3.9), EDGES, weights=weights)[0])


@given(st.integers(2, 6), st.integers(3, 30), st.integers(0, 1000))
def test_shifts_give_the_covariance_back(bins, draws, seed):
    counts = np.random.default_rng(seed).poisson(50, size=(draws, bins)).astype(float)
    matrix = covariance(counts)
    assert np.allclose(matrix, np.cov(counts, rowvar=False), atol=1e-9)
    found = shifts(matrix)
    assert np.allclose(found.T @ found, matrix, atol=1e-8)
    lengths = (found**2).sum(1)
    assert (np.diff(lengths) <= 1e-9).all()


def test_moved_histograms_have_the_covariance():
    """Bins at n + sum_i a_i d_i with normal a, as a nuisance parameter moves them."""
    random = np.random.default_rng(0)
    matrix = covariance(random.normal(size=(50, 4)) @ random.normal(size=(4, 4)))
    found = shifts(matrix)
    moved = random.standard_normal((200_000, len(found))) @ found
    assert np.allclose(np.cov(moved, rowvar=False), matrix, rtol=0.05, atol=0.02 * matrix.max())


def test_events_that_change_bins_keep_their_sum():
    values = np.random.default_rng(0).exponential(size=(20, 500))
    found = shifts(covariance(fill(values, EDGES)))
    assert len(found) == 2
    assert np.allclose(found.sum(1), 0, atol=1e-9)


def test_small_shifts_are_left_out():
    matrix = np.diag([100.0, 1e-4])
    assert len(shifts(matrix)) == 2
    assert len(shifts(matrix, [10.0, 10.0], least=0.01)) == 1
    assert len(shifts(matrix, [10.0, 0.1], least=0.01)) == 2


def test_levels_of_the_tail():
    assert np.allclose(tail_levels(1600), [0.5, 0.75, 0.875, 0.9375])
    assert len(tail_levels(50)) == 0
    assert len(tail_levels(10**9)) == 9


@pytest.mark.parametrize("edges", [[1.0], [0.0, 0.0], [1.0, 0.0], [0.0, np.inf], [0.0, np.nan, 1.0]])
def test_wrong_edges(edges):
    with pytest.raises(InputError, match="rising"):
        check_edges(edges)


def test_one_draw_has_no_covariance():
    with pytest.raises(InputError, match="at least 2"):
        covariance(np.ones((1, 3)))
