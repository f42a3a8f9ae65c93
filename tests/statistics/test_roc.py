"""ROC curves on scores whose curve is known; errors against the scatter of many samples."""

import numpy as np
import pytest
from scipy.stats import norm

from normae.errors import InputError
from normae.statistics import background_efficiency, rejection


def test_efficiencies_of_known_scores():
    signal, background = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 1.5, 2.5, 3.5, 3.6])
    found = background_efficiency(signal, background, [0.0, 0.25, 0.5, 1.0])
    np.testing.assert_allclose(found, [0, 0, 2 / 5, 4 / 5])


def test_ties_count_half_and_order_does_not_matter():
    assert background_efficiency([1.0, 1.0], [1.0, 1.0], [0.5])[0] == 0.5
    rng = np.random.default_rng(0)
    signal, background = rng.normal(1, 1, 100), rng.normal(0, 1, 100)
    first = background_efficiency(signal, background, [0.3])
    assert first == background_efficiency(signal[::-1], np.sort(background), [0.3])
    assert first == background_efficiency(np.exp(signal), np.exp(background), [0.3])


def test_rejection_and_its_error_are_those_of_many_samples():
    """Two Gaussians at a distance of 1.5: the value is known, the error is the scatter, and not only of background."""
    rng = np.random.default_rng(1)
    share = norm.sf(norm.isf(0.3) + 1.5)
    found = [rejection(rng.normal(1.5, 1, 2000), rng.normal(0, 1, 3000), 0.3) for _ in range(200)]
    values, errors = np.array([f.value for f in found]), np.array([f.error for f in found])
    assert values.mean() == pytest.approx(1 / share, rel=0.03)
    assert errors.mean() == pytest.approx(values.std(), rel=0.15)
    background_only = np.sqrt(share * (1 - share) / 3000) / share**2
    assert errors.mean() > 1.1 * background_only


def test_where_nothing_passes_the_number_of_events_is_the_limit():
    found = rejection(np.linspace(10, 11, 50), np.zeros(40), 0.2)
    assert found == (40.0, 40.0)


@pytest.mark.parametrize(
    ("signal", "background", "share"),
    [([1.0, np.nan], [0.0, 1.0], 0.2), ([1.0], [0.0, 1.0], 0.2), ([1.0, 2.0], [0.0, 1.0], 1.2)],
)
def test_bad_scores_are_refused(signal, background, share):
    with pytest.raises(InputError, match="expected"):
        rejection(signal, background, share)
