"""Bayesian training against models whose posterior is known, negative phase included."""

import math

import pytest
import torch
from torch import nn

from normae.networks import Autoencoder, BayesianConfig
from normae.networks.bayesian import width
from normae.sampling import ChainConfig, SamplingConfig
from normae.tensors import stream
from normae.training import GuardConfig, PhaseConfig, Schedules, TemperatureConfig, Trainer, TrainingConfig

N = 1000


class Nothing(nn.Module):
    """An encoder that says nothing about the event."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return 0 * x * self.unused


class Scaled(nn.Module):
    """An encoder with one weight, of which E knows nothing with a constant decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.7]))

    def forward(self, x):
        return self.weight * x


class Constant(nn.Module):
    """A decoder that always answers theta, so that E = (x - theta)^2."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, z):
        return 0 * z + self.theta


def train_theta(loss_scale: str, temperature: float) -> tuple[float, float, float]:
    """Posterior mean and width of theta for p(x) = N(theta, T/2), and the sample mean."""
    x = 0.3 + math.sqrt(temperature / 2) * torch.randn(N, 1, generator=stream(0, "data"))
    rate = 1e-2
    schedules = Schedules(
        PhaseConfig(epochs=0),
        TrainingConfig(
            epochs=1500, batch=N, learning_rate=rate, schedule="cosine", average=0.99, loss_scale=loss_scale
        ),
        TemperatureConfig(initial=temperature, trained=False),
        GuardConfig(),
        BayesianConfig(layers="decoder", initial_width=0.05, pretraining="shared"),
    )
    sampling = SamplingConfig(
        buffer=4000, replay=1.0, buffer_space="feature", backend="reference",
        feature=ChainConfig(steps=4, step_size=temperature / 2),
    )  # fmt: skip
    trainer = Trainer([Autoencoder(Nothing(), Constant(), 1)], [x], schedules, sampling, [0], torch.device("cpu"))
    for _ in trainer.run():
        pass
    row = trainer.models.result()[0][0]
    return float(row[1]), float(width(row[2])), float(x.mean())


@pytest.mark.parametrize(("loss_scale", "temperature"), [("temperature", 2.0), ("plain", 2.0), ("temperature", 0.5)])
def test_posterior_of_a_mean(loss_scale, temperature):
    """The exact posterior of theta is N(mean of x, T/2N): a shared draw finds its width, in both forms of the loss."""
    mean, sigma, expected = train_theta(loss_scale, temperature)
    exact = math.sqrt(temperature / 2 / N)
    assert sigma == pytest.approx(exact, rel=0.2)
    assert abs(mean - expected) < exact


@pytest.mark.parametrize(("loss_scale", "factor"), [("plain", 1.0), ("temperature", 0.5)])
def test_gradient_of_the_pretraining_by_hand(loss_scale, factor):
    """Of E + T KL/N, over T where so set: for theta = m + s e with prior width 1, dKL/dm = m and dKL/ds = s - 1/s."""
    temperature, n, m, s = 2.0, 10, 0.4, 0.05
    x = 0.3 + torch.randn(n, 1, generator=stream(0, "data"))
    schedules = Schedules(
        PhaseConfig(epochs=1, batch=n, loss_scale=loss_scale),
        TrainingConfig(epochs=0),
        TemperatureConfig(initial=temperature),
        bayesian=BayesianConfig(layers="decoder", initial_width=s, pretraining="shared"),
    )
    sampling = SamplingConfig(buffer=10, backend="reference")
    trainer = Trainer([Autoencoder(Nothing(), Constant(), 1)], [x], schedules, sampling, [0], torch.device("cpu"))
    trainer.weights[0, 1] = m
    rho = float(trainer.weights[0, 2])
    e = float(trainer.setup.noise.draw(trainer.weights, trainer.setup.streams("chain")))
    trainer.current.advance()
    _, mean, spread = (trainer.models.optimizer.first[0] / 0.1).tolist()
    slope = float(2 * (m + s * e - x).mean())
    assert mean == pytest.approx(factor * (slope + temperature * m / n), rel=1e-4)
    inner = 1 / (1 + math.exp(-rho))  # ds/drho of s = log(1 + exp(rho))
    assert spread == pytest.approx(factor * (slope * e + temperature * (s - 1 / s) / n) * inner, rel=1e-3)


def test_the_latent_penalty_is_of_events_and_of_samples():
    """Samples of a constant decoder are theta: the gradient of the penalty is 2 a w (<x^2> + theta^2)."""
    penalty, theta, n = 0.5, 3.0, 50
    x = torch.randn(n, 1, generator=stream(0, "data"))
    schedules = Schedules(
        PhaseConfig(epochs=0), TrainingConfig(epochs=1, batch=n, latent_penalty=penalty), TemperatureConfig()
    )
    sampling = SamplingConfig(
        buffer=n, replay=1.0, buffer_space="feature", backend="reference",
        feature=ChainConfig(steps=1, noise=0.0, metropolis="off"),
    )  # fmt: skip
    network = Autoencoder(Scaled(), Constant(), 1)
    network.decoder.theta.data.fill_(theta)
    trainer = Trainer([network], [x], schedules, sampling, [0], torch.device("cpu"))
    for _ in trainer.run():  # one iteration
        pass
    found = float(trainer.models.optimizer.first[0, 0] / 0.1)
    assert found == pytest.approx(2 * penalty * 0.7 * (float(x.square().mean()) + theta**2), rel=1e-4)
