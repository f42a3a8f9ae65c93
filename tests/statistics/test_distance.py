"""The Wasserstein distance of samples whose distance is known."""

import numpy as np
import pytest
import torch

from normae.errors import InputError
from normae.statistics import wasserstein, wasserstein_halves


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_shift_is_its_own_distance():
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 2, 4000)
    found = wasserstein(truth + 1, truth, generator=generator())
    assert found.value == pytest.approx(1 / truth.std())
    apart = wasserstein(rng.normal(1, 2, 4000), truth, generator=generator())
    assert abs(apart.value - 0.5) < 4 * apart.error
    assert 0.01 < apart.error < 0.05


def test_units_do_not_matter():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.3, 1, 500), rng.normal(0, 1, 500)
    first, second = (wasserstein(a * k, b * k, generator=generator()) for k in (1.0, 1e-3))
    assert first == pytest.approx(second)


def test_samples_of_one_size_are_compared_quantile_by_quantile():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=300), rng.exponential(size=300)
    found = wasserstein(a, b, 2, generator=generator())
    assert found.value == pytest.approx(np.abs(np.sort(a) - np.sort(b)).mean() / b.std())


def test_halves_are_the_scale_of_what_cannot_be_told_apart():
    """Over many samples, since one pair of samples of one density scatters by a third of its distance."""
    halves, same, other = [], [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = rng.normal(size=1000)
        halves.append(wasserstein_halves(truth, 5, generator=generator()).value)
        same.append(wasserstein(rng.normal(size=500), truth[:500], 2, generator=generator()).value)
        other.append(wasserstein(rng.normal(0.5, 1, 500), truth[:500], 2, generator=generator()).value)
    assert np.mean(same) == pytest.approx(np.mean(halves), abs=4 * np.std(same) / np.sqrt(40))
    assert min(other) > 2 * np.mean(halves)


def test_too_few_values_are_refused():
    with pytest.raises(InputError, match="expected at least"):
        wasserstein([1.0], [1.0, 2.0], generator=generator())
    with pytest.raises(InputError, match="expected at least 4"):
        wasserstein_halves([1.0, 2.0], generator=generator())
