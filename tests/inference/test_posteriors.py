"""Ensembles and SWA-Gaussian: which weights a draw has, and with which spread."""

import pytest
import torch

from normae.inference import Ensemble, Swag
from normae.networks import NetworkConfig, build_mlp_autoencoder
from normae.random import stream

X = torch.randn(6, 2, generator=stream(0, "x"))


def networks(k: int):
    return [build_mlp_autoencoder(NetworkConfig(hidden=(8, 8)), (2,), stream(seed, "init")) for seed in range(k)]


def stacked(models):
    names = [name for name, _ in models[0].named_parameters()]
    return {name: torch.stack([m.get_parameter(name).detach() for m in models]) for name in names}


def test_an_ensemble_gives_each_member_before_any_twice():
    models = networks(5)
    temperatures = torch.arange(5) + 1.0
    draws = Ensemble(models[0], stacked(models), temperatures).draws(10, stream(0, "draws"))
    assert sorted(draws.temperature[:5].tolist()) == [1, 2, 3, 4, 5]
    assert torch.equal(draws.temperature[:5], draws.temperature[5:])
    for k, energy in enumerate(draws.energies(X)):
        member = models[int(draws.temperature[k]) - 1]
        assert torch.allclose(energy, (X - member(X)).square().mean(1), atol=1e-6)


def test_swag_has_the_mean_and_the_variance_of_its_snapshots():
    models = networks(1)
    generator = stream(0, "snapshots")
    snapshots = {
        name: p.detach() + 0.3 * torch.randn(40, *p.shape, generator=generator)
        for name, p in models[0].named_parameters()
    }
    drawn = Swag(models[0], snapshots, 0.2).draws(3000, stream(1, "draws")).weights
    for name, values in snapshots.items():
        assert torch.allclose(drawn[name].mean(0), values.mean(0), atol=0.05)
        ratio = drawn[name].var(0) / values.var(0)
        assert float(ratio.mean()) == pytest.approx(1.0, abs=0.02)
