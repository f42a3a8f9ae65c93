"""The linearized posterior: the kernel is J J^T, the width is the exact one, the draws agree with each other."""

import math

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap

from normae.errors import InputError
from normae.inference import BayesianModel
from normae.networks import Autoencoder, NetworkConfig, build_mlp_autoencoder
from normae.networks.reconstruction import mean_square
from normae.posterior.laplace import LaplaceConfig, LaplacePosterior, Linearization, fit_laplace, kernel
from normae.random import stream
from normae.sampling import ChainConfig, SamplingConfig

SAMPLING = SamplingConfig(
    latent=ChainConfig(steps=2, step_size=0.01), feature=ChainConfig(steps=3, step_size=0.01, bounds=(-4.5, 4.5))
)
SMALL = LaplaceConfig(rank=20, inducing=60, events=400)


def network(activation: str = "gelu", hidden=(8, 8)) -> Autoencoder:
    return build_mlp_autoencoder(NetworkConfig(hidden=hidden, activation=activation), (2,), stream(0, "init"))


def events(n: int = 500) -> torch.Tensor:
    return torch.randn(n, 2, generator=stream(1, "events"))


def jacobian(autoencoder: Autoencoder, x: torch.Tensor, temperature: float, prefix: str) -> torch.Tensor:
    """ds/dw with shape (N, P), by autograd in float64."""
    own = {name: p.detach().double() for name, p in autoencoder.named_parameters()}
    free = {name: p for name, p in own.items() if name.startswith(prefix)}

    def score(weights, event):
        return mean_square(event[None] - functional_call(autoencoder, own | weights, (event[None],)))[0] / temperature

    found = vmap(grad(score), (None, 0))(free, x.double())
    return torch.cat([g.flatten(1) for g in found.values()], dim=1)


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "tanh"])
@pytest.mark.parametrize(("layers", "prefix"), [("last", "decoder.layers.2."), ("decoder", "decoder."), ("all", "")])
def test_the_kernel_is_the_product_of_gradients(activation, layers, prefix):
    autoencoder, x = network(activation), events(12)
    score, pairs = Linearization(autoencoder, 0.2, layers).pairs(x)
    expected = jacobian(autoencoder, x, 0.2, prefix)
    assert torch.allclose(score, mean_square(x - autoencoder(x)).double() / 0.2, rtol=1e-4)
    assert torch.allclose(kernel(pairs, pairs), expected @ expected.T, rtol=1e-9)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_the_variance_of_the_score_is_the_exact_one(layers):
    """Against (N F + 1)^-1 written down in weights, with as many directions as there are."""
    autoencoder, x, temperature = network(hidden=(3,)), events(400), 0.3
    config = LaplaceConfig(layers=layers, rank=60, inducing=200, events=400)
    fitted = fit_laplace(autoencoder, temperature, x, config, stream(0, "laplace"))
    prefix = "decoder.layers.1." if layers == "last" else ""
    j = jacobian(autoencoder, x, temperature, prefix)
    score = mean_square(x - autoencoder(x)).detach().double() / temperature
    j = torch.cat([j, -score[:, None]], dim=1)
    precision = len(x) * torch.cov(j.T, correction=0) + torch.eye(j.shape[1])
    # What is constant in x only moves log Z; it is not seen by F and is left out of the directions.
    centred = j - j.mean(0)
    exact = (centred @ torch.linalg.inv(precision) * centred).sum(1)
    posterior = LaplacePosterior(autoencoder, temperature, fitted, layers)
    score_k = kernel(posterior.linear.pairs(fitted.points)[1], posterior.linear.pairs(x)[1])
    slopes = torch.cat([fitted.directions.double() @ score_k, -score[None]])
    slopes = slopes - slopes.mean(1, keepdim=True)
    found = (fitted.factor.double().T @ slopes).square().sum(0)
    assert torch.allclose(found, exact, rtol=0.02, atol=1e-6)


def test_the_width_of_a_draw_is_that_of_the_posterior_of_log_t():
    """With all energies equal in distribution to T chi^2/2 the posterior of log T has the width sqrt(1/N)."""
    encoder_decoder = network()
    with torch.no_grad():
        for p in encoder_decoder.parameters():
            p.zero_()  # E = |x|^2/2, T = 1: a unit Gaussian, d s/dlog T = -s with variance 1
    config = LaplaceConfig(layers="last", rank=2, inducing=50, events=20_000)
    fitted = fit_laplace(encoder_decoder, 1.0, events(20_000), config, stream(0, "laplace"))
    posterior = LaplacePosterior(encoder_decoder, 1.0, fitted, "last")
    temperature = posterior.draws(4000, stream(0, "draws")).temperature
    assert float(temperature.log().std()) == pytest.approx(math.sqrt(1 / 20_000), rel=0.1)


def model() -> BayesianModel:
    autoencoder = network()
    fitted = fit_laplace(autoencoder, 0.2, events(), SMALL, stream(0, "laplace"))
    posterior = LaplacePosterior(autoencoder, 0.2, fitted, "all")
    return BayesianModel(autoencoder, posterior, 0.2, (2,), SAMPLING, None, "laplace", 60)


def test_one_stacked_and_all_draws_agree():
    bayes, x = model(), events(10)
    draws = bayes.posterior.draws(4, stream(2, "draws"))
    together = draws.energies(x)
    assert together.dtype == torch.float32
    assert torch.allclose(draws.stacked()(x.repeat(4, 1)).reshape(4, 10), together, atol=1e-6)
    for k in range(4):
        assert torch.allclose(draws.one(k)(x), together[k], atol=1e-6)


def test_a_draw_has_gradients_and_a_normalization():
    bayes = model()
    drawn = bayes.draw(stream(3, "draw"))
    x = events(5)
    value, slope = drawn.energy_function.value_and_grad(x)
    step = 1e-3
    for axis in range(2):
        shift = torch.zeros(2)
        shift[axis] = step
        difference = (drawn.energy(x + shift) - drawn.energy(x - shift)) / (2 * step)
        assert torch.allclose(slope[:, axis], difference, atol=2e-3)
    assert np.isfinite(drawn.log_prob(x.numpy())).all()
    assert torch.allclose(value, drawn.energy(x), atol=1e-6)
    with pytest.raises(InputError, match="stays where it was drawn"):
        drawn.to("cpu")


def test_samples_come_from_draws():
    x = model().sample(20, seed=0)
    assert x.shape == (20, 2)
    assert np.abs(x).max() <= 4.5


def test_refusals():
    with pytest.raises(InputError, match="rank < inducing"):
        LaplaceConfig(rank=50, inducing=50)
    with pytest.raises(InputError, match="prior_width"):
        LaplaceConfig(prior_width=0)
    with pytest.raises(InputError, match="at most the 100 training events"):
        fit_laplace(network(), 0.2, events(100), SMALL, stream(0, "laplace"))
    sphere = build_mlp_autoencoder(NetworkConfig(hidden=(8,), latent_space="sphere"), (2,), stream(0, "init"))
    with pytest.raises(InputError, match="Euclidean latent space"):
        Linearization(sphere, 0.2, "all")
