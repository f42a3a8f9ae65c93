"""Constants of a mean of densities, from events that follow it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from normae.errors import InputError
from normae.statistics import mixture_constants

CENTRES, WIDTHS = np.array([-1.0, 0.5, 0.7]), np.array([1.0, 0.6, 2.0])


def events(n: int = 60_000) -> np.ndarray:
    generator = np.random.default_rng(3)
    member = generator.integers(0, 3, n)
    return generator.normal(CENTRES[member], WIDTHS[member])


def test_they_are_the_log_z_of_members_whose_mean_made_the_events():
    lost = np.array([2.0, -1.0, 0.4])
    scores = np.stack([-norm.logpdf(events(), c, w) for c, w in zip(CENTRES, WIDTHS, strict=True)]) + lost[:, None]
    found = mixture_constants(scores)
    assert found.max() == 0
    assert found - found.mean() == pytest.approx(lost - lost.mean(), abs=0.03)


@given(st.lists(st.floats(-20, 20), min_size=3, max_size=3))
def test_a_constant_of_a_member_is_taken_back(shifts):
    scores = np.abs(np.random.default_rng(0).normal(size=(3, 200)))
    found, moved = mixture_constants(scores), mixture_constants(scores + np.array(shifts)[:, None])
    difference = moved - found
    assert difference - difference.mean() == pytest.approx(np.array(shifts) - np.mean(shifts), abs=1e-4)


def test_a_large_constant_is_taken_back_too():
    scores = np.abs(np.random.default_rng(0).normal(size=(2, 50)))
    found = mixture_constants(scores + np.array([[1e6], [0.0]]))
    assert found[0] - found[1] == pytest.approx(1e6 + np.subtract(*mixture_constants(scores)), abs=1e-3)


@pytest.mark.parametrize("scores", [np.ones((2, 9)), np.full((2, 20), np.nan), np.full((2, 20), np.inf)])
def test_few_events_or_no_numbers_are_refused(scores):
    with pytest.raises(InputError, match="expected finite scores of at least 10 events"):
        mixture_constants(scores)


def test_equal_members_have_equal_constants():
    assert mixture_constants(np.ones((4, 10))) == pytest.approx(np.zeros(4))


def test_members_without_a_common_event_are_refused():
    scores = np.array([[0.0, 1e300, 0.0], [1e300, 0.0, 1e300]]).repeat(4, axis=1)
    with pytest.raises(InputError, match="nothing in common"):
        mixture_constants(scores)
