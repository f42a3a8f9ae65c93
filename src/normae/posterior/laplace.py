"""The posterior of the linearized network: Laplace's approximation over any set of weights.

With the score s(x) = E(x)/T the loss per training event is L = <s>_data + log Z. Around trained weights w, to first
order in d, s(x; w + d) = s(x) + J(x) d with J = ds/dw; then the second derivative of L is that of log Z alone, the
covariance of J under the model, which at the optimum is that over the data. With a prior of width s_0 the posterior is

    d ~ N(0, (N F + 1/s_0^2)^-1),    F = Cov_data[J],    N the number of training events.

A draw is s_k(x) = s(x) + J(x) d_k, the score to first order. With the weights w + d_k themselves, directions that the
data leave free, and that have the prior's full width, would destroy the network, while to first order they change
nothing. Far from the data, where s is large, J(x) d_k may exceed it, and a first order that goes to minus infinity
would draw all of Z there: the change saturates at what is left, s_k = s + (s + 1) tanh(J d_k / (s + 1)).
log T is one more weight, with ds/dlog T = -s; it is not linearized, T_k = T exp(d).

F has as many rows as there are weights. What matters are the hundred directions or so in which N F reaches 1/s_0^2, and
they lie in the span of J at a thousand training events x_m: the leading right singular vectors of the centred J(x_m). A
direction is therefore kept as weights u_m of these events, b = sum_m u_m J(x_m), and the score moves along it by

    J(x) b = sum_m u_m k(x, x_m),    k(x, y) = J(x) J(y) = sum_layers (g(x) g(y)) (a(x) a(y) + 1),

since the derivative of s by a layer's weights is the product of its input a and of g, the derivative of s by its
output. So neither F nor a direction is ever written down in weights, the model stays small whatever the network, and
100 draws cost as much as one. F is taken in these directions over many more events. What lies outside them is left out,
which makes the posterior narrower: `rank` should be large enough that nothing changes. All of this is in float64, since
the free directions are small differences of k.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normae.errors import InputError
from normae.networks.autoencoder import Autoencoder
from normae.networks.bayesian import Which, parameter_prefix
from normae.networks.mlp import ACTIVATIONS, MLP
from normae.networks.reconstruction import Layout, ReconstructionEnergy
from normae.progress import counted
from normae.sampling.langevin import require_that

CHUNK = 1 << 11
ROUNDING = 1e-11
"""Directions whose share of the largest one's variance is smaller are rounding errors, in float64."""


@dataclass(frozen=True)
class LaplaceConfig:
    """The posterior of the linearized network, fitted when the training is over.

    Args:
        layers: the "last" layer of the decoder, the whole "decoder", or "all" weights.
        prior_width: s_0 of the prior.
        rank: largest number of directions.
        inducing: number of training events whose gradients span them.
        events: training events over which F is taken.
    """

    layers: Which = "all"
    prior_width: float = 1.0
    rank: int = 100
    inducing: int = 1000
    events: int = 20_000

    def __post_init__(self) -> None:
        require_that(self.prior_width > 0, "laplace.prior_width", "a positive number", self.prior_width)
        ordered = 1 <= self.rank < self.inducing <= self.events
        given = f"{self.rank}, {self.inducing}, {self.events}"
        require_that(ordered, "laplace", "1 <= rank < inducing <= events", given)


class Laplace(NamedTuple):
    """A fitted posterior.

    Args:
        points: inducing events, with shape (M, d).
        directions: u of each direction, with shape (r, M).
        factor: lower triangular, with shape (r + 1, r + 1): d = factor xi in the directions and log T, xi ~ N(0, 1).
    """

    points: Tensor
    directions: Tensor
    factor: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """As they are stored."""
        return {f"laplace.{name}": value for name, value in self._asdict().items()}


Pair = tuple[Tensor, Tensor]
"""Input a with shape (N, in) of a layer, and g with shape (N, out)."""


class Linearization:
    """s = E/T of an MLP autoencoder to first order in the weights of some of its `layers`."""

    def __init__(self, autoencoder: Autoencoder, temperature: float, layers: Which) -> None:
        encoder, decoder = autoencoder.encoder, autoencoder.decoder
        if not isinstance(encoder, MLP) or not isinstance(decoder, MLP) or autoencoder.sphere:
            raise InputError("laplace: expected MLPs with a Euclidean latent space; use [bayesian] for other networks")
        self.autoencoder, self.temperature = autoencoder, temperature
        prefix = parameter_prefix(Layout.of(autoencoder), layers)
        self.encoder, self.decoder = (deepcopy(side).double().requires_grad_(False) for side in (encoder, decoder))
        sides = (("encoder", self.encoder), ("decoder", self.decoder))
        self.free = [f"{side}.{name}".startswith(prefix) for side, net in sides for name, _ in net.layer_names()]

    @property
    def layers(self) -> list[tuple[str | None, nn.Linear]]:
        """Those of encoder and decoder, each with the activation before it."""
        networks = (self.encoder, self.decoder)
        return [(net.activation if k else None, layer) for net in networks for k, layer in enumerate(net.linears())]

    def pairs(self, x: Tensor) -> tuple[Tensor, list[Pair]]:
        """s with shape (N,), and a and g of each free layer, in float64."""
        x = x.double()
        outputs, inputs = x, []
        for kind, layer in self.layers:
            source = outputs if kind is None else ACTIVATIONS[kind].forward(outputs)
            inputs.append((outputs, source))
            outputs = layer(source)
        residual = x - outputs
        back = residual * (-2 / (x.shape[1] * self.temperature))
        found: list[Pair] = []
        for k in reversed(range(self.free.index(True), len(self.layers))):
            (kind, layer), (before, source) = self.layers[k], inputs[k]
            if self.free[k]:
                found.append((source, back))
            back = back @ layer.weight
            back = back if kind is None else ACTIVATIONS[kind].pullback(back, before)
        return residual.square().mean(1) / self.temperature, found


def moved(score: Tensor, slope: Tensor) -> Tensor:
    """s_k from s with shape (N,) and J d_k with shape (..., N)."""
    reach = score + 1
    return score + reach * torch.tanh(slope / reach)


def kernel(first: Sequence[Pair], second: Sequence[Pair]) -> Tensor:
    """k(x, y) = J(x) J(y) with shape (N, M)."""
    total = None
    for (a, g), (b, h) in zip(first, second, strict=True):
        part = (g @ h.T) * (a @ b.T + 1)
        total = part if total is None else total.add_(part) if not part.requires_grad else total + part
    assert total is not None
    return total


def fit_laplace(
    autoencoder: Autoencoder,
    temperature: float,
    events: Tensor,
    config: LaplaceConfig,
    generator: torch.Generator,
    copies: float = 1,
) -> Laplace:
    """The posterior of an autoencoder trained on `events`, with shape (N, d), some of which the generator chooses.

    `copies` is how many of `events` count as one: copies with other noise, or by weight.
    """
    if len(events) < config.events:
        raise InputError(f"laplace.events: expected at most the {len(events)} training events, got {config.events}")
    device = next(autoencoder.parameters()).device
    rows = torch.randperm(len(events), generator=generator, device=generator.device)[: config.events]
    sample = events[rows.to(events.device)].to(device).double()
    linear = Linearization(autoencoder, temperature, config.layers)
    points = sample[: config.inducing]
    with torch.no_grad():
        own = linear.pairs(points)[1]
        directions = _directions(kernel(own, own), config.rank)
        slopes = []
        for piece in counted("linearizing", torch.split(sample, CHUNK)):
            score, pairs = linear.pairs(piece)
            slopes.append(torch.cat([directions @ kernel(own, pairs), -score[None]]))
    precision = len(events) / copies * torch.cov(torch.cat(slopes, dim=1), correction=0)
    precision += torch.eye(len(precision), dtype=precision.dtype, device=device) / config.prior_width**2
    factor = torch.linalg.cholesky(torch.linalg.inv(precision))
    return Laplace(points.float(), directions.float(), factor.float())


def _directions(products: Tensor, rank: int) -> Tensor:
    """u of the leading directions, of length one, with shape (r, M), from k of the inducing events, (M, M)."""
    centre = torch.eye(len(products), dtype=products.dtype, device=products.device) - 1 / len(products)
    values, vectors = torch.linalg.eigh(centre @ products @ centre)
    clear = min(rank, int((values > ROUNDING * values[-1]).sum()))
    leading = vectors[:, -clear:] / values[-clear:].sqrt()
    directions: Tensor = (centre @ leading).T.flip(0).contiguous()
    return directions


class LinearizedDraws(ReconstructionEnergy):
    """n draws of the linearized network, which are one energy side by side.

    Args:
        linear: the network to first order.
        own: a and g of the inducing events.
        mixture: of the inducing events in each draw, with shape (n, M).
        temperature: with shape (n,).
    """

    def __init__(self, linear: Linearization, own: Sequence[Pair], mixture: Tensor, temperature: Tensor) -> None:
        super().__init__(linear.autoencoder, explicit=False)
        self.linear, self.own, self.mixture, self.temperature = linear, own, mixture, temperature
        self.members = len(mixture)

    def error(self, x: Tensor) -> Tensor:
        """E_k without a base, with shape (N,)."""
        score, pairs = self.linear.pairs(x)
        products: Tensor = kernel(pairs, self.own).unflatten(0, (self.members, -1))
        slope = torch.einsum("nbm,nm->nb", products, self.mixture).flatten()
        return (moved(score, slope) * self.linear.temperature).to(x.dtype)

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`error` (N,) and the latent points (N, d_z) of the network itself."""
        return self.error(x), self.encode(x)

    def energies(self, x: Tensor) -> Tensor:
        """E of every draw, with shape (n, N): k(x, x_m) once, whatever the number of draws."""
        pieces = []
        for piece in torch.split(x, CHUNK):
            score, pairs = self.linear.pairs(piece)
            pieces.append(moved(score, self.mixture @ kernel(self.own, pairs)))
        return (torch.cat(pieces, dim=1) * self.linear.temperature).to(x.dtype)

    def stacked(self) -> "LinearizedDraws":
        return self

    def one(self, k: int) -> "LinearizedDraws":
        return LinearizedDraws(self.linear, self.own, self.mixture[k : k + 1], self.temperature[k : k + 1])


class LaplacePosterior:
    """A Laplace posterior around an autoencoder, with the `layers` that it was fitted for."""

    certain, mixture = False, False

    def __init__(self, autoencoder: Autoencoder, temperature: float, fitted: Laplace, layers: Which) -> None:
        self.temperature, self.fitted = temperature, fitted
        self.linear = Linearization(autoencoder, temperature, layers)

    def to(self, device: torch.device | str) -> "LaplacePosterior":
        self.fitted = Laplace(*(value.to(device) for value in self.fitted))
        self.linear.encoder.to(device)
        self.linear.decoder.to(device)
        return self

    def draws(self, n: int, generator: torch.Generator) -> LinearizedDraws:
        """The factor times standard normal noise."""
        points, directions, factor = self.fitted
        noise = torch.randn(n, len(factor), generator=generator, device=generator.device).to(factor)
        changes = (noise @ factor.T).double()
        temperature = (self.temperature * changes[:, -1].exp()).float()
        with torch.no_grad():
            own = self.linear.pairs(points)[1]
        return LinearizedDraws(self.linear, own, changes[:, :-1] @ directions.double(), temperature)
