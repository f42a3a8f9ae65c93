"""Draws that are weights of a network: independent Gaussians over them (mean field), and mixtures of an ensemble.

Where draws differ in the decoder's last layer only, its input h(x) is the same for all of them and is computed once; a
draw then costs one small product, E_k = mean_i (x_i - (W_k h + b_k)_i)^2.

A posterior with several modes has the mean fields of trainings that differ in their seeds.

    q(w) = 1/K sum_j q_j(w),    p(x) = 1/K sum_j p_j(x),    p_j(x) = exp(-E_j(x)/T_j + c_j) / Z.

A mean field knows the width of the mode that its training has found, and nothing of the other modes. A draw is a draw
of one member, so that the spread over draws has both: within a mode, and from one training to another. The density of
the whole is the mean of the members' densities; their constants c_j come from `statistics.mixture_constants`.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from normae.networks.autoencoder import Autoencoder
from normae.networks.bayesian import width
from normae.networks.mlp import split_decoder
from normae.networks.reconstruction import ReconstructionEnergy, last_input, prefixed
from normae.posterior.draw import Posterior

CONVOLVED = 32  # events whose pictures of all draws are in memory at once: 10 MB for 50 draws of 40 x 40 pixels


class WeightDraws:
    """Draws that are weights of the network, by name, with shape (n, *parameter), or (1, *parameter) where all share.

    The temperature has shape (n,).
    """

    def __init__(self, autoencoder: Autoencoder, weights: Mapping[str, Tensor], temperature: Tensor) -> None:
        self.autoencoder, self.weights, self.temperature = autoencoder, dict(weights), temperature
        self.n = len(temperature)

    def expanded(self) -> dict[str, Tensor]:
        """The weights of every draw, with shape (n, *parameter)."""
        return {name: value.expand(self.n, *value.shape[1:]) for name, value in self.weights.items()}

    def stacked(self) -> ReconstructionEnergy:
        return ReconstructionEnergy(self.autoencoder, self.expanded())

    def one(self, k: int) -> ReconstructionEnergy:
        weights = {name: value[k % len(value)][None] for name, value in self.weights.items()}
        return ReconstructionEnergy(self.autoencoder, weights)

    def energies(self, x: Tensor) -> Tensor:
        if not self._only_last_layer():
            return torch.stack([self.one(k)(x) for k in range(self.n)])
        first = self.one(0)
        hidden, layer, prefix = last_input(self.autoencoder.decoder, first.decoder_parameters, first.encode(x))
        last = prefixed(self.weights, f"decoder.{prefix}")
        if isinstance(layer, nn.Conv2d):
            return first.based(_convolved_energies(layer, last, hidden, x), x)
        out = torch.einsum("nh,koh->kno", hidden, last["weight"]) + last["bias"][:, None]
        return first.based((x[None] - out).square().mean(-1), x)

    def _only_last_layer(self) -> bool:
        """Whether draws differ in the decoder's last layer only, and that is a product or a convolution."""
        _, layer, prefix = split_decoder(self.autoencoder.decoder) or (None, None, "")
        serves = isinstance(layer, nn.Linear) or (type(layer) is nn.Conv2d and layer.groups == 1)
        others = [value for name, value in self.weights.items() if not name.startswith(f"decoder.{prefix}")]
        return serves and all(len(value) == 1 for value in others)


def _convolved_energies(layer: nn.Conv2d, last: Mapping[str, Tensor], hidden: Tensor, x: Tensor) -> Tensor:
    """E of n draws of a convolution, with shape (n, N): all draws as the channels of one, some events at a time."""
    weight, bias = last["weight"], last["bias"]
    draws, channels = max(len(weight), len(bias)), weight.shape[1]
    kernels = weight.expand(draws, *weight.shape[1:]).flatten(0, 1)
    offsets = bias.expand(draws, channels).flatten()
    found = []
    for h, event in zip(torch.split(hidden, CONVOLVED), torch.split(x, CONVOLVED), strict=True):
        out = nn.functional.conv2d(h, kernels, offsets, layer.stride, layer.padding, layer.dilation)
        out = out.unflatten(1, (draws, channels)) - event[:, None]
        found.append(out.square().flatten(2).mean(-1).T)
    return torch.cat(found, dim=1)


class MeanField(Posterior):
    """Independent Gaussians of width softplus(rho) around weights of the autoencoder, `rho` by their names."""

    def __init__(self, autoencoder: Autoencoder, rho: Mapping[str, Tensor], temperature: float) -> None:
        self.autoencoder, self.temperature = autoencoder, temperature
        self.widths = {name: width(value) for name, value in rho.items()}

    def to(self, device: torch.device | str) -> "MeanField":
        self.widths = {name: value.to(device) for name, value in self.widths.items()}
        return self

    def draws(self, n: int, generator: torch.Generator) -> WeightDraws:
        """Means plus widths times standard normal noise."""
        drawn = {name: mean[None] for name, mean in self.autoencoder.named_parameters()}
        for name, mean in drawn.items():
            if name in self.widths:
                noise = torch.randn(n, *mean.shape[1:], generator=generator, device=generator.device)
                drawn[name] = mean + self.widths[name] * noise.to(mean.device)
        some = next(iter(drawn.values()))
        return WeightDraws(self.autoencoder, drawn, some.new_full((n,), self.temperature))


class MixedDraws(ReconstructionEnergy):
    """n draws that mix the scores of an ensemble: T sum_j w_kj E_j(x)/T_j, which are one energy side by side.

    Latent points and starting points are those of one member, another one for each draw.

    Args:
        own: the K members.
        mixture: w, with shape (n, K); the weights of a draw add up to one.
        temperature: T.
    """

    def __init__(self, own: WeightDraws, mixture: Tensor, temperature: float) -> None:
        chosen = torch.arange(len(mixture), device=mixture.device) % own.n
        super().__init__(own.autoencoder, {name: value[chosen] for name, value in own.weights.items()}, explicit=False)
        self.own, self.mixture, self.centre = own, mixture, temperature
        self.temperature = mixture.new_full((len(mixture),), temperature)
        self.each = [own.one(j) for j in range(own.n)]
        self.scale = temperature * mixture / own.temperature

    def __call__(self, x: Tensor) -> Tensor:
        energies = torch.stack([energy(x) for energy in self.each]).unflatten(1, (self.members, -1))
        return torch.einsum("knb,nk->nb", energies, self.scale).flatten()

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = torch.zeros_like(x[:, 0].flatten()), torch.zeros_like(x)
        for energy, scale in zip(self.each, self.scale.T, strict=True):
            weight = scale.repeat_interleave(len(x) // self.members)
            own, slope = energy.value_and_grad(x)
            value += weight * own
            grad += weight.reshape(-1, *[1] * (x.ndim - 1)) * slope
        return value, grad

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self(x), self.encode(x)

    def energies(self, x: Tensor) -> Tensor:
        """E of every draw, with shape (n, N): the members once, whatever the number of draws."""
        return self.centre * (self.mixture @ (self.own.energies(x) / self.own.temperature[:, None]))

    def stacked(self) -> "MixedDraws":
        return self

    def one(self, k: int) -> "MixedDraws":
        return MixedDraws(self.own, self.mixture[k : k + 1], self.centre)


class Ensemble(Posterior):
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

    def __init__(
        self, autoencoder: Autoencoder, members: Mapping[str, Tensor], temperatures: Tensor, independent: bool
    ) -> None:
        self.autoencoder, self.members, self.temperatures = autoencoder, dict(members), temperatures
        self.independent = independent

    def to(self, device: torch.device | str) -> "Ensemble":
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
        own = WeightDraws(self.autoencoder, self.members, self.temperatures)
        return MixedDraws(own, mixture, float(self.temperatures.mean()))


class ModeDraws:
    """Draws of several mean fields in turn: `own` has those of each member, `chosen` the member of each draw, (n,).

    The constants c_j have shape (K,). Chains do not see them, and the energies of one draw or of all side by side do
    not have them.
    """

    def __init__(self, own: Sequence[WeightDraws], chosen: Tensor, constants: Tensor) -> None:
        self.own, self.chosen, self.constants = list(own), chosen, constants
        self.places = [torch.nonzero(chosen == j)[:, 0] for j in range(len(self.own))]
        self.temperature = self._placed([draws.temperature for draws in self.own])

    def _placed(self, parts: Sequence[Tensor]) -> Tensor:
        """Rows of the members in the order of the draws."""
        found = parts[0].new_empty((len(self.chosen), *parts[0].shape[1:]))
        for place, part in zip(self.places, parts, strict=True):
            found[place] = part
        return found

    def energies(self, x: Tensor) -> Tensor:
        """E - T c of every draw, with shape (n, N): energies whose constants can be compared."""
        pairs = zip(self.own, self.constants, strict=True)
        return self._placed([draws.energies(x) - (draws.temperature * c)[:, None] for draws, c in pairs])

    def stacked(self) -> ReconstructionEnergy:
        parts = [draws.expanded() for draws in self.own]
        weights = {name: self._placed([part[name] for part in parts]) for name in parts[0]}
        return ReconstructionEnergy(self.own[0].autoencoder, weights)

    def one(self, k: int) -> ReconstructionEnergy:
        member = int(self.chosen[k])
        return self.own[member].one(int((self.chosen[:k] == member).sum()))


class Modes(Posterior):
    """Mean fields of K trainings, each with as many draws as the others or one more; constants c_j with shape (K,)."""

    mixture = True

    def __init__(self, members: Sequence[MeanField], constants: Tensor) -> None:
        self.members, self.constants = list(members), constants

    @staticmethod
    def of(
        autoencoder: Autoencoder, weights: dict[str, Tensor], rho: dict[str, Tensor], t: Tensor, constants: Tensor
    ) -> "Modes":
        """From the weights and widths of all members, with shape (K, *parameter), and their temperatures t, (K,)."""
        fields = []
        for j, temperature in enumerate(t.tolist()):
            member = deepcopy(autoencoder).eval().requires_grad_(False)
            member.load_state_dict({name: value[j] for name, value in weights.items()})
            fields.append(MeanField(member, {name: value[j] for name, value in rho.items()}, temperature))
        return Modes(fields, constants)

    def to(self, device: torch.device | str) -> "Modes":
        for field in self.members:
            field.autoencoder.to(device)
            field.to(device)
        self.constants = self.constants.to(device)
        return self

    def draws(self, n: int, generator: torch.Generator) -> ModeDraws:
        """The members in turn, beginning with any of them: their numbers of draws differ by one at most."""
        count = len(self.members)
        order = torch.randperm(count, generator=generator, device=generator.device)[:n].tolist()
        chosen = torch.arange(n) % len(order)
        own = [self.members[j].draws(int((chosen == k).sum()), generator) for k, j in enumerate(order)]
        return ModeDraws(own, chosen, self.constants[order])
