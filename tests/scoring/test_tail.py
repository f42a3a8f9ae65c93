"""p-values from a background sample: the convention at its ends, and valid under background."""

import numpy as np
import pytest
from scipy.stats import norm

from normae.scoring.scorer import tail_probability


def test_the_convention():
    background = np.array([1.0, 2.0, 2.0, 3.0])
    p, error = tail_probability(np.array([0.0, 1.0, 2.0, 2.5, 3.0, 9.0]), background)
    above = np.array([4, 4, 3, 1, 1, 0])
    assert np.allclose(p, (above + 1) / 5)
    share = (above + 1) / 6
    assert np.allclose(error, np.sqrt(share * (1 - share) / 4))
    assert (error > 0).all()


def test_background_has_uniform_p_values():
    """P(p <= a) = a for a = j / (n + 1), averaged over background samples; 2000 samples give 0.01."""
    rng = np.random.default_rng(0)
    p = np.array([tail_probability(rng.normal(size=1), np.sort(rng.normal(size=19)))[0][0] for _ in range(2000)])
    assert abs((p <= 0.05 + 1e-9).mean() - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 2000)
    assert abs((p <= 0.5 + 1e-9).mean() - 0.5) < 4 * np.sqrt(0.25 / 2000)


def test_the_error_is_the_spread_over_backgrounds():
    rng = np.random.default_rng(1)
    found = [tail_probability(np.array([1.0]), np.sort(rng.normal(size=400))) for _ in range(500)]
    spread = np.std([p[0] for p, _ in found])
    assert abs(np.mean([error[0] for _, error in found]) / spread - 1) < 0.15


@pytest.mark.parametrize("level", [1e-2, 1e-4])
def test_p_values_of_a_known_density_hold_down_to_one_in_ten_thousand(level):
    """The chance of p <= a under background, exact by the known tail, averaged over backgrounds of 9,999 events.

    Counting p as above/n, without the event itself, gives twice that at a = 1e-4.
    """
    rng, n, chance, wrong = np.random.default_rng(2), 9999, [], []
    for _ in range(400):
        background = np.sort(rng.normal(size=n))
        steps = np.nextafter(background[-200:], np.inf)  # where the count of those above changes
        p = tail_probability(steps, background)[0]
        chance.append(norm.sf(steps[p <= level * (1 + 1e-9)].min()))
        wrong.append(norm.sf(steps[(p * (n + 1) - 1) / n <= level * (1 + 2 / n)].min()))
    counts = level * (n + 1)
    assert np.mean(chance) == pytest.approx(level, rel=4 / np.sqrt(400 * counts))
    assert level > 1e-4 or np.mean(wrong) > 1.7 * level
