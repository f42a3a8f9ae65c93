"""A normalized autoencoder as the public codes of the field write it: what `normae bench` compares with.

In our own words, and plainly: layers are `nn.Linear`, every gradient is autograd's, the weights go on asking for
gradients while a chain runs, the replay buffer is a Python list, and nothing of a step is kept for the next one. So a
step without a Metropolis test takes one gradient, and a step with one takes two: at the point and at the proposal. The
test itself is right here (each sample on its own, with its temperature), where theirs is not, at the same cost.
"""

import math
import random
from itertools import pairwise

import torch
from torch import Tensor, nn


def perceptron(sizes: list[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class PlainNAE:
    """Network, optimizers, buffer and chains of one training.

    Args:
        features, latent, hidden: widths of the event, the latent space and the hidden layers.
        latent_steps, feature_steps: lengths of the two chains.
        step_size: the paper's lambda of both chains, with noise sqrt(2 lambda).
        bounds: of the features; proposals beyond them are refused, or clamped where there is no test.
        metropolis: whether each step is accepted by a Metropolis test.
    """

    def __init__(
        self,
        features: int,
        latent: int,
        hidden: list[int],
        latent_steps: int,
        feature_steps: int,
        step_size: float,
        temperature: float,
        bounds: tuple[float, float],
        metropolis: bool,
        buffer: int = 10_000,
        replay: float = 0.95,
        device: str = "cpu",
    ) -> None:
        self.encoder = perceptron([features, *hidden, latent]).to(device)
        self.decoder = perceptron([latent, *reversed(hidden), features]).to(device)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature), device=device))
        self.latent, self.step_size, self.bounds, self.metropolis = latent, step_size, bounds, metropolis
        self.latent_steps, self.feature_steps = latent_steps, feature_steps
        self.capacity, self.replay, self.device = buffer, replay, device
        self.buffer: list[Tensor] = []
        weights = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.Adam(weights, lr=1e-5)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=1e-3)

    def energy(self, x: Tensor) -> Tensor:
        """Reconstruction error, (N, d) -> (N,)."""
        return (x - self.decoder(self.encoder(x))).square().mean(1)

    def latent_energy(self, z: Tensor) -> Tensor:
        """Energy of decoded points, (N, d_z) -> (N,)."""
        return self.energy(self.decoder(z))

    def chain(self, energy, x: Tensor, steps: int, bounds: tuple[float, float] | None) -> Tensor:
        """Langevin steps from x, with shape (N, d)."""
        temperature = self.log_temperature.exp().item()
        rate, noise = self.step_size / temperature, math.sqrt(2 * self.step_size)
        for _ in range(steps):
            value, gradient = self.gradient(energy, x)
            proposal = x - rate * gradient + noise * torch.randn_like(x)
            if not self.metropolis:
                x = proposal if bounds is None else proposal.clamp(*bounds)
                continue
            new_value, new_gradient = self.gradient(energy, proposal)
            there = (proposal - x + rate * gradient).square().sum(1)
            back = (x - proposal + rate * new_gradient).square().sum(1)
            log_ratio = (value - new_value) / temperature + (there - back) / (2 * noise**2)
            accept = torch.rand_like(log_ratio).log() < log_ratio
            if bounds is not None:
                accept &= ((proposal >= bounds[0]) & (proposal <= bounds[1])).all(1)
            x = torch.where(accept[:, None], proposal, x)
        return x

    def gradient(self, energy, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies and gradients at x."""
        x = x.detach().requires_grad_(True)
        value = energy(x)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), gradient

    def negatives(self, n: int) -> Tensor:
        """`n` samples: a latent chain from the buffer or from noise, decoded, then a feature chain."""
        start = torch.randn(n, self.latent, device=self.device)
        if self.buffer:
            stored = torch.stack(random.choices(self.buffer, k=n)).to(self.device)
            start = torch.where(torch.rand(n, 1, device=self.device) < self.replay, stored, start)
        z = self.chain(self.latent_energy, start, self.latent_steps, None)
        self.buffer = (self.buffer + list(z.detach().cpu()))[-self.capacity :]
        x = self.decoder(z).detach().clamp(*self.bounds)
        return self.chain(self.energy, x, self.feature_steps, self.bounds)

    def iteration(self, x: Tensor) -> None:
        """One update from events with shape (N, d)."""
        negative = self.negatives(len(x)).detach()
        temperature = self.log_temperature.exp().detach()
        z_plus, z_minus = self.encoder(x), self.encoder(negative)
        e_plus = (x - self.decoder(z_plus)).square().mean(1)
        e_minus = (negative - self.decoder(z_minus)).square().mean(1)
        loss = (e_plus.mean() - e_minus.mean()) / temperature + e_minus.square().mean()
        loss = loss + 7.069e-6 * (z_plus.square().mean() + z_minus.square().mean())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.temperature_optimizer.zero_grad()
        ((e_plus.mean() - e_minus.mean()).detach() / self.log_temperature.exp()).backward()
        self.temperature_optimizer.step()
