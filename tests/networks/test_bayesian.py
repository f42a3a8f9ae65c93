"""The mean-field posterior: KL, draws, local reparameterization for every kind of layer."""

import math

import pytest
import torch
from torch import nn

from normae.errors import InputError
from normae.networks import Autoencoder, BayesianConfig, Layout, NetworkConfig, build_mlp_autoencoder
from normae.networks.bayesian import WeightNoise, rho_of, width
from normae.networks.reconstruction import LocalEnergy, last_input
from normae.tensors import stream


def paper_network():
    return build_mlp_autoencoder(NetworkConfig(hidden=(8, 8)), (2,), stream(0, "init"))


def noise_of(model=None, **settings):
    config = BayesianConfig(pretraining="shared", **settings)
    return WeightNoise(config, model or paper_network(), torch.device("cpu"))


def test_kl_is_that_of_torch():
    """KL(q || prior), not the other way round, summed over the Bayesian weights."""
    noise = noise_of(prior_width=0.7)
    row = torch.randn(2, noise.size + len(noise.columns), generator=stream(0, "w"))
    q = torch.distributions.Normal(row[:, noise.columns], width(row[:, noise.size :]))
    prior = torch.distributions.Normal(0.0, 0.7)
    expected = torch.distributions.kl_divergence(q, prior).sum(1)
    assert torch.allclose(noise.kl(row), expected, rtol=1e-5)


def test_rho_of_is_the_inverse():
    for value in (1e-3, 0.1, 1.0, 5.0):
        assert float(width(torch.tensor(rho_of(value)))) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(("layers", "count"), [("last", 8 * 2 + 2), ("decoder", 3 * 8 + 8 + 72 + 18), ("all", None)])
def test_columns(layers, count):
    noise = noise_of(layers=layers)
    assert noise.size == sum(Layout.of(paper_network()).sizes)
    assert len(noise.columns) == (count or noise.size)
    assert noise.columns[-1] == noise.size - 1


def test_draws_have_the_posterior_s_moments():
    noise, g = noise_of(), stream(0, "draw")
    size, n = noise.size, 4000
    row = torch.cat([torch.full((1, size), 2.0), torch.full((1, len(noise.columns)), rho_of(0.3))], dim=1)
    rows = torch.cat([noise.weights(row, noise.draw(row, g)) for _ in range(n)])
    assert torch.all(rows[:, : int(noise.columns[0])] == 2.0)
    drawn = rows[:, noise.columns]
    assert torch.allclose(drawn.mean(0), torch.tensor(2.0), atol=4 * 0.3 / math.sqrt(n))
    assert torch.allclose(drawn.std(0), torch.tensor(0.3), rtol=4 / math.sqrt(2 * n))


LAYERS = [
    (nn.Linear(3, 2), (3,)),
    (nn.Conv2d(2, 3, 3, padding=1), (2, 4, 4)),
    (nn.ConvTranspose2d(2, 3, 3, padding=1), (2, 4, 4)),
]


def local_energy(layer: nn.Module, mean: dict[str, torch.Tensor], widths: dict[str, torch.Tensor]) -> LocalEnergy:
    """Of a decoder that is this layer alone."""
    named = [{f"decoder.1.{name}": value for name, value in one.items()} for one in (mean, widths)]
    return LocalEnergy(Autoencoder(nn.Identity(), nn.Sequential(nn.Identity(), layer), 3), *named)


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda v: type(v).__name__)
def test_local_reparameterization_has_the_moments_of_weight_draws(layer, shape):
    """Mean and variance of one event's output agree with those over many weight draws, for every kind of layer."""
    g = stream(1, "local")
    x = torch.randn(1, *shape, generator=g)
    mean = {name: p.detach()[None] for name, p in layer.named_parameters()}
    widths = {name: 0.2 * torch.rand(p.shape, generator=g)[None] for name, p in mean.items()}
    widths = {name: s[0] for name, s in widths.items()}
    n = 4000
    local = local_energy(layer, mean, widths).drawn(x.expand(n, *shape), g)
    drawn = []
    for _ in range(n):
        sample = {k: (mean[k] + widths[k] * torch.randn(mean[k].shape, generator=g))[0] for k in mean}
        drawn.append(torch.func.functional_call(layer, sample, (x,)))
    drawn = torch.cat(drawn)
    error = drawn.std(0) / math.sqrt(n)
    assert torch.all((local.mean(0) - drawn.mean(0)).abs() < 6 * math.sqrt(2) * error)
    assert torch.allclose(local.std(0), drawn.std(0), rtol=0.08)


def test_local_noise_is_independent_between_events_and_a_draw_is_not():
    """Two copies of one event move together under a weight draw, and independently under local noise."""
    layer = nn.Linear(3, 1)
    mean = {name: p.detach()[None] for name, p in layer.named_parameters()}
    widths = {name: torch.full_like(p, 0.3) for name, p in mean.items()}
    x = torch.ones(2, 3)
    g = stream(2, "local")
    energy = local_energy(layer, mean, widths)
    local = torch.stack([energy.drawn(x, g).flatten() for _ in range(2000)])
    assert abs(float(torch.corrcoef(local.T)[0, 1])) < 0.1


@pytest.mark.parametrize("sequential", [False, True])
def test_decoding_locally_with_no_width_is_decoding(sequential):
    model = paper_network()
    if sequential:
        decoder = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
        model = Autoencoder(model.encoder, decoder, 3)
    noise, z = noise_of(model), torch.randn(6, 3, generator=stream(0, "z"))
    row = torch.cat([noise.layout.flatten([model]), torch.full((1, len(noise.columns)), -200.0)], dim=1)
    assert torch.allclose(noise.local_energy(row).drawn(z, stream(0, "e")), model.decoder(z), atol=1e-6)


def test_bad_settings():
    with pytest.raises(InputError, match=r"bayesian.prior_width: expected a positive number"):
        BayesianConfig(prior_width=0.0)
    with pytest.raises(InputError, match="last layer only"):
        BayesianConfig(layers="all")
    with pytest.raises(InputError, match=r"MLP or an nn.Sequential"):
        last_input(nn.Identity(), {}, torch.zeros(1, 1))
