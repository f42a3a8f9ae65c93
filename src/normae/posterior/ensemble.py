"""An ensemble: draws that mix the scores of K models trained apart."""

from collections.abc import Mapping

import torch
from torch import Tensor

from normae.networks.autoencoder import Autoencoder
from normae.networks.reconstruction import ReconstructionEnergy
from normae.posterior.mean_field import WeightDraws


class MixedEnergy(ReconstructionEnergy):
    """T sum_j w_kj E_j(x)/T_j of n draws side by side: members' scores mixed with weights that add up to one.

    Latent points and starting points are those of one member, another one for each draw.

    Args:
        members: weights by name, with shape (K, *parameter).
        temperatures: with shape (K,).
        mixture: w, with shape (n, K).
        temperature: T.
    """

    def __init__(
        self,
        autoencoder: Autoencoder,
        members: Mapping[str, Tensor],
        temperatures: Tensor,
        mixture: Tensor,
        temperature: float,
    ) -> None:
        chosen = torch.arange(len(mixture), device=temperatures.device) % len(temperatures)
        super().__init__(autoencoder, {name: value[chosen] for name, value in members.items()}, explicit=False)
        self.each = [
            ReconstructionEnergy(autoencoder, {name: value[j][None] for name, value in members.items()})
            for j in range(len(temperatures))
        ]
        self.scale = temperature * mixture / temperatures

    def __call__(self, x: Tensor) -> Tensor:
        energies = torch.stack([energy(x) for energy in self.each]).unflatten(1, (self.members, -1))
        return torch.einsum("knb,nk->nb", energies, self.scale).flatten()

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and gradients (N, *event)."""
        value, grad = torch.zeros_like(x[:, 0].flatten()), torch.zeros_like(x)
        for energy, scale in zip(self.each, self.scale.T, strict=True):
            weight = scale.repeat_interleave(len(x) // self.members)
            own, slope = energy.value_and_grad(x)
            value += weight * own
            grad += weight.reshape(-1, *[1] * (x.ndim - 1)) * slope
        return value, grad

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and the latent points (N, d_z) of each draw's member."""
        return self(x), self.encode(x)


class MixedDraws:
    """Draws that mix the scores of an ensemble; arguments as in `MixedEnergy`."""

    def __init__(
        self,
        autoencoder: Autoencoder,
        members: Mapping[str, Tensor],
        temperatures: Tensor,
        mixture: Tensor,
        temperature: float,
    ) -> None:
        self.own = WeightDraws(autoencoder, members, temperatures)
        self.mixture, self.centre = mixture, temperature
        self.temperature = mixture.new_full((len(mixture),), temperature)

    def energies(self, x: Tensor) -> Tensor:
        """E of every draw, with shape (n, N): the members once, whatever the number of draws."""
        scores = self.own.energies(x) / self.own.temperature[:, None]
        return self.centre * (self.mixture @ scores)

    def stacked(self) -> MixedEnergy:
        """The energies side by side."""
        return self._energy(self.mixture)

    def one(self, k: int) -> MixedEnergy:
        """The energy of draw k alone."""
        return self._energy(self.mixture[k : k + 1])

    def _energy(self, mixture: Tensor) -> MixedEnergy:
        own = self.own
        return MixedEnergy(own.autoencoder, own.weights, own.temperature, mixture, self.centre)


class Ensemble:
    """Around the mean score of K models trained apart, with their spread:

        s_k = s + f r_k sum_j xi_kj (s_j - s) / sqrt(K - 1),    s = sum_j s_j / K,    xi ~ N(0, 1),
        r_k = sqrt((K - 1) / chi^2_k),    chi^2 with K - 1 degrees of freedom.

    Without f and r the draws have the mean and the covariance of the members. The covariance is an estimate from K of
    them, and r makes the draws Student's t, which allows for that. Members with events of their own are independent;
    the error of their mean is then f = 1/sqrt(K) times their spread, and else f = 1. A draw is an energy: scores mixed
    with weights that add up to one. It costs what K members cost, however many the draws.

    Args:
        members: weights by name, with shape (K, *parameter).
        temperatures: with shape (K,).
        independent: trained on events of their own.
    """

    certain, mixture = False, False

    def __init__(
        self, autoencoder: Autoencoder, members: Mapping[str, Tensor], temperatures: Tensor, independent: bool
    ) -> None:
        self.autoencoder, self.members, self.temperatures = autoencoder, dict(members), temperatures
        self.independent = independent

    def to(self, device: torch.device | str) -> "Ensemble":
        """The same ensemble on `device`."""
        self.members = {name: value.to(device) for name, value in self.members.items()}
        self.temperatures = self.temperatures.to(device)
        return self

    def draws(self, n: int, generator: torch.Generator) -> MixedDraws:
        """Random mixtures of the members."""
        count = len(self.temperatures)
        normal = torch.randn(n, 2 * count - 1, generator=generator, device=generator.device).to(self.temperatures)
        noise, chi_square = normal[:, :count], normal[:, count:].square().sum(1, keepdim=True)
        factor = count**-0.5 if self.independent else 1.0
        mixture = 1 / count + factor * chi_square.rsqrt() * (noise - noise.mean(1, keepdim=True))
        centre = float(self.temperatures.mean())
        return MixedDraws(self.autoencoder, self.members, self.temperatures, mixture, centre)
