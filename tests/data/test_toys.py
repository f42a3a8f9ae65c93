"""Toy densities: normalized, and sampled from the density that they claim."""

import math

import numpy as np
import pytest
import torch

from normae.data import DENSITIES, GaussianMixture, split
from normae.errors import InputError
from normae.tensors import stream

NAMES = sorted(DENSITIES)


def fine_grid(limit: float = 9.0, cells: int = 900) -> tuple[torch.Tensor, float]:
    axis = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells * 2 * limit - limit
    return torch.cartesian_prod(axis, axis), (2 * limit / cells) ** 2


@pytest.mark.parametrize("name", NAMES)
def test_normalized(name):
    points, cell = fine_grid()
    total = float(DENSITIES[name]().log_prob(points).double().exp().sum() * cell)
    assert total == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_sample_follows_density(name):
    """Moments and the mean of log p of a sample agree with quadrature, within four standard errors."""
    density = DENSITIES[name]()
    x = density.sample(100_000, stream(0, "test"))
    assert x.dtype == torch.float32
    assert x.shape == (100_000, 2)
    points, cell = fine_grid()
    weight = density.log_prob(points).double().exp() * cell
    for function in (lambda p: p[:, 0], lambda p: p[:, 1] ** 2, lambda p: p[:, 0] * p[:, 1], density.log_prob):
        values = function(x.double())
        expected = float((weight * function(points)).sum())
        assert abs(float(values.mean()) - expected) < 4 * float(values.std()) / math.sqrt(len(values)) + 3e-4


def test_mixture_in_any_dimension():
    """Five dimensions, correlated components of unequal weight: moments of mean and covariance."""
    g = stream(1, "mixture")
    factor = torch.randn(2, 5, 5, generator=g)
    covariance = factor @ factor.transpose(1, 2) + torch.eye(5)
    mixture = GaussianMixture(torch.randn(2, 5, generator=g), covariance, torch.tensor([1.0, 3.0]))
    x = mixture.sample(200_000, g)
    expected = 0.25 * mixture.means[0] + 0.75 * mixture.means[1]
    assert torch.all((x.mean(0) - expected).abs() < 4 * x.std(0) / math.sqrt(len(x)))
    single = torch.distributions.MultivariateNormal
    parts = [single(mixture.means[k], covariance[k]).log_prob(x[:100]) for k in range(2)]
    direct = torch.logaddexp(parts[0] + math.log(0.25), parts[1] + math.log(0.75))
    assert torch.allclose(mixture.log_prob(x[:100]), direct, atol=1e-4)


def test_mixture_refuses_wrong_shapes():
    with pytest.raises(InputError, match="covariances of shape"):
        GaussianMixture(torch.zeros(2, 3), torch.eye(3), torch.ones(2))


def test_paper_values():
    two = DENSITIES["two-gaussians"]()
    peak = two.log_prob(torch.tensor([[1.5, 1.5]], dtype=torch.float64))
    assert float(peak) == pytest.approx(math.log(0.5 / math.pi * (1 + math.exp(-18))), abs=1e-9)


def test_streams_differ_by_name_and_seed():
    density = DENSITIES["two-gaussians"]()
    draws = [density.sample(5, stream(seed, name)) for seed in (0, 1) for name in ("train", "test")]
    assert len({tuple(d.flatten().tolist()) for d in draws}) == 4


@pytest.mark.parametrize("sizes", [[50, 30, 20], [100, 0, 0], [1, 2, 3]])
def test_split_never_overlaps(sizes):
    parts = split(100, sizes, stream(0, "split"))
    joined = torch.cat(parts).tolist()
    assert len(joined) == len(set(joined)) == sum(sizes)
    assert [len(p) for p in parts] == sizes


def test_split_of_a_short_sample_is_an_error():
    with pytest.raises(InputError, match="at least 101 events"):
        split(100, [60, 41], stream(0, "split"))


def test_two_gaussians_in_numpy_precision():
    density = DENSITIES["two-gaussians"]()
    x = torch.tensor([[4.0, -4.0], [0.0, 0.0]], dtype=torch.float64)
    centres = np.array([[1.5, 1.5], [-1.5, -1.5]])
    squares = ((x.numpy()[:, None] - centres) ** 2).sum(-1)
    expected = np.log(0.5 * np.exp(-squares).sum(1) / math.pi)
    assert np.allclose(density.log_prob(x).numpy(), expected, atol=1e-10)
