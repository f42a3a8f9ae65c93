"""A Bayesian model: draws, their own normalization, means over fixed draws, samples."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from normae.errors import InputError, LogZUnknown
from normae.inference import BayesianModel, LogZ, Model, cell_centres, grid_points
from normae.networks import Autoencoder, NetworkConfig, build_mlp_autoencoder
from normae.networks.bayesian import rho_of
from normae.posterior.draw import MeanField
from normae.sampling import ChainConfig, SamplingConfig
from normae.tensors import stream

SAMPLING = SamplingConfig(
    latent=ChainConfig(steps=2, step_size=0.01), feature=ChainConfig(steps=3, step_size=0.01, bounds=(-4.5, 4.5))
)
X = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)


def make(layers: str = "last", width: float = 0.1, hidden=(8, 8), cells: int = 60) -> BayesianModel:
    network = build_mlp_autoencoder(NetworkConfig(hidden=hidden, activation="silu"), (2,), stream(0, "init"))
    prefix = {"last": f"decoder.layers.{len(hidden)}.", "all": ""}[layers]
    rho = {n: torch.full_like(p, rho_of(width)) for n, p in network.named_parameters() if n.startswith(prefix)}
    return BayesianModel(
        network, 0.2, (2,), SAMPLING, None, "bayes", posterior=MeanField(network, rho, 0.2), cells=cells
    )


@pytest.mark.parametrize("layers", ["last", "all"])
def test_shapes_and_means(layers):
    model = make(layers)
    draws = model.log_prob_draws(X, n=100, seed=0)
    assert draws.shape == (100, 7)
    assert isinstance(draws, np.ndarray)
    assert np.allclose(model.log_prob(X), draws.mean(0), atol=1e-5)
    assert np.allclose(model.score(X), model.energy(X) / 0.2, rtol=1e-5)
    assert model.energy_draws(torch.from_numpy(X), n=3).shape == (3, 7)


def test_the_last_layer_path_equals_whole_models():
    """Computing the body once gives the same energies as evaluating each drawn model."""
    model = make("last")
    draws = model.posterior.draws(5, stream(3, "draws"))
    assert draws._only_last_layer()
    fast = draws.energies(torch.from_numpy(X))
    points = grid_points(cell_centres((-4.5, 4.5), model.cells), 2)
    log_z = torch.logsumexp(-draws.energies(points).double() / 0.2, dim=1) + 2 * np.log(9 / model.cells)
    for k in range(5):
        drawn = model._deterministic(draws.one(k), 0.2)
        assert np.allclose(fast[k].numpy(), drawn.energy(X), atol=1e-6)
        assert drawn.log_z.value == pytest.approx(float(log_z[k]), abs=1e-5)


def test_each_draw_is_normalized_by_itself():
    model = make("last", width=0.3)
    log_z = model.log_z_draws(n=20, seed=1)
    assert log_z.std() > 1e-3
    axis = (np.arange(60) + 0.5) / 60 * 9 - 4.5
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    total = np.exp(model.log_prob_draws(points, n=20, seed=1).astype(np.float64)).sum(1) * (9 / 60) ** 2
    assert np.allclose(total, 1.0, atol=1e-4)


def test_draw_is_an_ordinary_model_and_fixed():
    model = make()
    drawn = model.draw(stream(0, "one"))
    assert type(drawn) is Model
    assert np.array_equal(drawn.energy(X), drawn.energy(X))
    assert not np.allclose(drawn.energy(X), model.draw(stream(1, "one")).energy(X))
    assert np.isfinite(drawn.log_prob(X)).all()


def test_seeds_and_small_width():
    model = make()
    assert np.array_equal(model.score_draws(X, 5, seed=2), model.score_draws(X, 5, seed=2))
    assert not np.array_equal(model.score_draws(X, 5, seed=2), model.score_draws(X, 5, seed=3))
    sharp = make(width=1e-7)
    assert np.allclose(sharp.energy(X), Model(sharp.autoencoder, 0.2, (2,), SAMPLING).energy(X), atol=1e-5)


def test_spread_of_density_follows_spread_of_energy():
    """sigma(p)/<p> is sigma(E/T) for small spreads, as the paper states, up to the spread of log Z."""
    model = make(width=0.01)
    log_p, score = model.log_prob_draws(X), model.score_draws(X)
    p = np.exp(log_p.astype(np.float64))
    assert np.allclose(p.std(0) / p.mean(0), score.std(0), rtol=0.5, atol=0.02)


def test_sample_uses_one_draw_for_each_chain():
    model = make()
    x = model.sample(250, seed=0)
    assert x.shape == (250, 2)
    assert np.abs(x).max() <= 4.5
    assert model.sample(30).shape == (30, 2)
    chain = model.sample_chain(250, stream(0, "s"))
    assert chain.acceptance.shape == (3, 1)


def test_convolutional_last_layer():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    decoder = nn.Sequential(nn.Linear(3, 16), nn.Unflatten(1, (1, 4, 4)), nn.ConvTranspose2d(1, 1, 3, padding=1))
    network = Autoencoder(encoder, decoder, 3)
    rho = {f"decoder.2.{n}": torch.full_like(p, rho_of(0.1)) for n, p in decoder[2].named_parameters()}
    model = BayesianModel(network, 0.2, (1, 4, 4), SAMPLING, posterior=MeanField(network, rho, 0.2))
    x = torch.randn(5, 1, 4, 4, generator=stream(0, "x"))
    draws = model.posterior.draws(3, stream(0, "draws"))
    fast = draws.energies(x)
    for k in range(3):
        assert torch.allclose(fast[k], model._deterministic(draws.one(k), 0.2).energy(x), atol=1e-6)
    for known in (None, LogZ(0.0, 0.0, (0.0, 1.0))):  # that of the centre does not serve a draw
        model = BayesianModel(network, 0.2, (1, 4, 4), SAMPLING, known, posterior=MeanField(network, rho, 0.2))
        with pytest.raises(LogZUnknown, match="use score_draws"):
            model.log_prob(x)


def test_errors():
    model = make()
    with pytest.raises(InputError, match="at least 1 draw"):
        model.log_prob_draws(X, n=0)
    with pytest.raises(InputError, match=r"expected events of shape \(2,\)"):
        model.log_prob_draws(np.zeros((3, 5)))


def test_a_hundred_draws_on_the_paper_s_grid_are_quick():
    """The paper's network on 500 x 500 points: the body once, a small product for each draw."""
    model = make(hidden=(128, 128, 128))
    axis = np.linspace(-4, 4, 500, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    began = time.monotonic()
    assert model.score_draws(grid).shape == (100, 250_000)
    assert time.monotonic() - began < 30
