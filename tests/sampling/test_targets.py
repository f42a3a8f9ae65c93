"""The sampler on known targets: 100,000 chains, moments within four standard errors.

The chains start in the target and must stay there, which any error of the acceptance moves away from; two tests start
elsewhere and must arrive. The acceptance formula that the public codes share fails the same test at T != 1.
"""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

import normae
from normae.tensors import stream

N = 100_000
TEMPERATURES = [0.2, 0.25, 1.0, 3.0]


def assert_moments(x: torch.Tensor, expected: dict[int, float], errors: float = 4.0) -> None:
    """Raw moments of independent draws, shape (N,), within `errors` standard errors."""
    for power, value in expected.items():
        terms = x.double() ** power
        deviation = abs(float(terms.mean()) - value) / (float(terms.std()) / math.sqrt(len(terms)))
        assert deviation < errors, f"moment {power} is off by {deviation:.1f} standard errors"


def quadratic(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x.square().sum(1)


def gumbel(x: torch.Tensor) -> torch.Tensor:
    """exp(-E/T) is the density of -log(G) with G from Gamma(1/T, rate 1/T): skewed to the right."""
    return (x + torch.exp(-x)).sum(1)


def noise_for(step_size: float, matched: bool) -> float | None:
    return None if matched else 1.3 * math.sqrt(2 * step_size)


@pytest.mark.parametrize("matched", [True, False])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_gaussian(temperature, matched):
    g = stream(1, f"gaussian/{temperature}/{matched}")
    start = math.sqrt(temperature) * torch.randn(N, 2, generator=g)
    size = 0.5 * temperature
    chain = normae.langevin(
        quadratic, start, temperature=temperature, step_size=size, steps=25, generator=g, noise=noise_for(size, matched)
    )
    assert 0.4 < float(chain.acceptance.mean()) < 0.99
    for k in range(2):
        assert_moments(chain.position[:, k], {1: 0.0, 2: temperature, 4: 3 * temperature**2})


@pytest.mark.parametrize("matched", [True, False])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_skewed(temperature, matched):
    k = 1 / temperature
    g = stream(2, f"gumbel/{temperature}/{matched}")
    rng = np.random.default_rng(3)
    start = torch.from_numpy(-np.log(rng.gamma(k, 1 / k, size=(N, 1)))).float()
    size = 0.3 * temperature
    chain = normae.langevin(
        gumbel, start, temperature=temperature, step_size=size, steps=25, generator=g, noise=noise_for(size, matched)
    )
    mean = math.log(k) - special.digamma(k)
    centred = chain.position[:, 0].double() - mean
    third = -special.polygamma(2, k)
    assert_moments(centred, {1: 0.0, 2: special.polygamma(1, k), 3: third})


@pytest.mark.parametrize("matched", [True, False])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_bounded(temperature, matched):
    low, high, scale = -0.3, 1.1, math.sqrt(temperature)
    target = stats.truncnorm(low / scale, high / scale, scale=scale)
    g = stream(3, f"bounded/{temperature}/{matched}")
    start = torch.from_numpy(target.rvs(size=(N, 1), random_state=np.random.default_rng(4))).float().clamp(low, high)
    size = 0.1
    chain = normae.langevin(
        quadratic, start, temperature=temperature, step_size=size, steps=25, generator=g,
        noise=noise_for(size, matched), bounds=(low, high),
    )  # fmt: skip
    assert chain.position.min() >= low
    assert chain.position.max() <= high
    assert_moments(chain.position[:, 0], {m: float(target.moment(m)) for m in (1, 2, 3)})


@pytest.mark.parametrize("matched", [True, False])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_sphere(temperature, matched):
    """Von Mises-Fisher on S^2, E = -x_3, with concentration 1/T."""
    kappa = 1 / temperature
    g = stream(4, f"sphere/{temperature}/{matched}")
    start = von_mises_fisher(N, kappa, g)
    size = 0.3
    chain = normae.langevin(
        lambda x: -x[:, 2], start, temperature=temperature, step_size=size, steps=25, generator=g,
        noise=noise_for(size, matched), sphere="geodesic",
    )  # fmt: skip
    assert torch.allclose(chain.position.norm(dim=1), torch.ones(N), atol=1e-5)
    mean = 1 / math.tanh(kappa) - 1 / kappa
    assert_moments(chain.position[:, 2], {1: mean, 2: 1 - 2 * mean / kappa})
    assert_moments(chain.position[:, 0], {1: 0.0, 2: mean / kappa})


def von_mises_fisher(n: int, kappa: float, g: torch.Generator) -> torch.Tensor:
    u = torch.rand(n, generator=g, dtype=torch.float64)
    height = 1 + torch.log(u + (1 - u) * math.exp(-2 * kappa)) / kappa
    angle = 2 * math.pi * torch.rand(n, generator=g, dtype=torch.float64)
    radius = (1 - height**2).clamp_min(0).sqrt()
    x = torch.stack([radius * angle.cos(), radius * angle.sin(), height], dim=1).float()
    return x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("clip_rule", ["norm", "row", "value"])
def test_clipped_gradient_stays_exact(clip_rule):
    g = stream(5, clip_rule)
    start = 0.5 * torch.randn(N, 2, generator=g)
    chain = normae.langevin(
        quadratic, start, temperature=0.25, step_size=0.1, steps=25, generator=g, clip=0.3, clip_rule=clip_rule
    )
    assert_moments(chain.position[:, 0], {1: 0.0, 2: 0.25, 4: 3 * 0.25**2})


def test_annealed_noise_stays_exact():
    g = stream(6, "anneal")
    start = 0.5 * torch.randn(N, 2, generator=g)
    chain = normae.langevin(quadratic, start, temperature=0.25, step_size=0.1, steps=25, generator=g, anneal=True)
    assert_moments(chain.position[:, 0], {1: 0.0, 2: 0.25, 4: 3 * 0.25**2})


@pytest.mark.parametrize("temperature", [0.2, 3.0])
def test_arrives_from_elsewhere(temperature):
    g = stream(7, f"far/{temperature}")
    start = torch.full((N, 2), 2.0)
    chain = normae.langevin(
        quadratic, start, temperature=temperature, step_size=0.6 * temperature, steps=60, generator=g
    )
    for k in range(2):
        assert_moments(chain.position[:, k], {1: 0.0, 2: temperature})


def test_without_metropolis_the_step_size_biases():
    """The unadjusted chain with lambda = T h has variance T / (1 - h/2) instead of T: known, and not T."""
    g = stream(8, "ula")
    temperature, h = 0.25, 0.4
    start = 0.5 * torch.randn(N, 1, generator=g)
    chain = normae.langevin(
        quadratic, start, temperature=temperature, step_size=temperature * h, steps=60, generator=g, metropolis="off"
    )
    assert torch.equal(chain.acceptance, torch.ones(60, dtype=torch.float64))
    assert_moments(chain.position[:, 0], {1: 0.0, 2: temperature / (1 - h / 2)})
    with pytest.raises(AssertionError, match="standard errors"):
        assert_moments(chain.position[:, 0], {2: temperature})


# --- the formula that the public codes share


def public_step(x, temperature, step_size, noise, g, broadcast):
    """One step as the public codes write it: no T in the reverse drift, T under the transition term, and, in one form,
    a sum of shapes (B, 1) and (B,) by which every chain uses the energy change of the first."""
    grad, energy = x, quadratic(x)
    y = x - step_size / temperature * grad + noise * torch.randn(x.shape, generator=g)
    there = ((y - x + step_size * grad) ** 2).sum(1)
    back = ((x - y + step_size * y) ** 2).sum(1)
    transition = (there - back) / (4 * step_size) / temperature
    gain = (energy - quadratic(y)) / temperature
    log_a = (gain[:1] if broadcast else gain) + transition
    accepted = torch.rand(len(x), generator=g).log() < log_a
    return torch.where(accepted[:, None], y, x)


def public_chain(temperature, broadcast, steps=40):
    g = stream(9, f"public/{temperature}/{broadcast}")
    x = math.sqrt(temperature) * torch.randn(N, 2, generator=g)
    size = 0.2 * temperature
    for _ in range(steps):
        x = public_step(x, temperature, size, math.sqrt(2 * size), g, broadcast)
    return x


def test_the_public_formula_is_right_only_at_one():
    assert_moments(public_chain(1.0, broadcast=False)[:, 0], {1: 0.0, 2: 1.0})


@pytest.mark.parametrize("temperature", [0.2, 0.25, 3.0])
@pytest.mark.parametrize("broadcast", [True, False])
def test_the_public_formula_fails_elsewhere(temperature, broadcast):
    with pytest.raises(AssertionError, match="standard errors"):
        assert_moments(public_chain(temperature, broadcast)[:, 0], {2: temperature})
