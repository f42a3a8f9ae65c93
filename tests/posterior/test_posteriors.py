"""Ensembles: which weights a draw has, and with which spread."""

import numpy as np
import pytest
import torch

from normae.energy import autograd_value_and_grad
from normae.networks import NetworkConfig, build_mlp_autoencoder
from normae.posterior.draw import Ensemble
from normae.tensors import stream

X = torch.randn(6, 2, generator=stream(0, "x"))


def networks(k: int):
    return [build_mlp_autoencoder(NetworkConfig(hidden=(8, 8)), (2,), stream(seed, "init")) for seed in range(k)]


def stacked(models):
    names = [name for name, _ in models[0].named_parameters()]
    return {name: torch.stack([m.get_parameter(name).detach() for m in models]) for name in names}


def test_draws_of_an_ensemble_are_around_the_mean_score_with_the_spread_of_the_members():
    models = networks(8)
    temperatures = torch.arange(8) / 8 + 1.0
    draws = Ensemble(models[0], stacked(models), temperatures, independent=False).draws(40_000, stream(0, "draws"))
    with torch.no_grad():
        scores = torch.stack([(X - m(X)).square().mean(1) / t for m, t in zip(models, temperatures, strict=True)])
    drawn = draws.energies(X) / draws.temperature[:, None]
    variance = 7 / (7 - 2)  # of Student's t
    assert torch.allclose(drawn.mean(0), scores.mean(0), atol=0.05)
    assert torch.allclose(torch.cov(drawn.T), variance * torch.cov(scores.T), rtol=0.08, atol=0.02)
    assert torch.allclose(draws.mixture.sum(1), torch.ones(40_000), atol=1e-4)


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("members", [4, 8])
def test_an_ensemble_covers_as_often_as_it_says(members: int, independent: bool):
    """Gaussian members; their mean misses by as much as they spread, or by that over sqrt(K); 4000 ensembles."""
    ensemble = Ensemble(networks(1)[0], stacked(networks(members)), torch.ones(members), independent)
    mixture = ensemble.draws(1000, stream(0, "draws")).mixture.double().numpy()
    random = np.random.default_rng(members)
    values = 3.0 + 0.2 * random.standard_normal((members, 4000))
    truth = np.full(4000, 3.0) if independent else values.mean(0) + 0.2 * random.standard_normal(4000)
    drawn = mixture @ values
    for level in (0.5, 0.68, 0.9, 0.95):
        low, high = np.quantile(drawn, (0.5 - level / 2, 0.5 + level / 2), axis=0, method="weibull")
        assert np.mean((low <= truth) & (truth <= high)) == pytest.approx(
            level, abs=0.035
        )  # the draws are the same for all


def test_draws_of_an_ensemble_agree_and_know_their_gradients():
    models = networks(3)
    draws = Ensemble(models[0], stacked(models), torch.tensor([0.2, 0.3, 0.4]), True).draws(4, stream(0, "draws"))
    together = draws.energies(X)
    energy = draws.stacked()
    x = X.repeat(4, 1)
    assert torch.allclose(energy(x).reshape(4, 6), together, atol=1e-6)
    value, grad = energy.value_and_grad(x)
    expected, expected_grad = autograd_value_and_grad(energy, x)
    assert torch.allclose(value, expected, atol=1e-6)
    assert torch.allclose(grad, expected_grad, atol=1e-5)
    assert all(torch.allclose(draws.one(k)(X), together[k], atol=1e-6) for k in range(4))
