"""A mean-field Gaussian posterior over named weights, as draws and as a KL divergence.

Each Bayesian weight has q(w) = N(w | mu, s^2) with s = softplus(rho), and the prior N(w | 0, s_0^2). Then

    KL(q || prior) = sum_w [ log(s_0/s) + (s^2 + mu^2)/(2 s_0^2) - 1/2 ].

A weight draw w = mu + s eps is explicit: it gives an ordinary deterministic model, of any architecture (linear,
convolution, transposed convolution), that stays fixed for as long as it is in use. Since all weights of a model are one
row (`Layout`), the Bayesian ones are a set of columns of it.

Local reparameterization draws the *output* of a linear layer instead: with mean a = W_mu x + b_mu and variance
v = W_s^2 x^2 + b_s^2, y = a + sqrt(v) eps, anew for each event. It is not a weight draw; it serves where the variance
of a gradient counts and correlations between events do not, as in autoencoder pretraining. Both passes are the layer
itself, with other weights and inputs, so it works for every layer that is linear in its weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from normae.errors import InputError
from normae.networks.reconstruction import Layout, call, last_input, prefixed
from normae.random import Generators, normal
from normae.sampling.config import require_that

Which = Literal["last", "decoder", "all"]
"""Which weights are Bayesian: the last layer of the decoder, the whole decoder, or all."""


@dataclass(frozen=True)
class BayesianConfig:
    """Which weights are Bayesian, and how they are treated.

    Args:
        layers: "last" layer of the decoder, the whole "decoder", or "all" weights.
        prior_width: s_0 of the prior.
        initial_width: s at the start of the pretraining.
        pretraining: noise of the autoencoder phase; "local" reparameterization (last layer only) or a "shared" draw.
        training: noise of the NAE phase; "shared" uses one draw for chain, E+ and E-. "local" is what the paper writes,
            fresh local noise in E+ and E-, which destroys the posterior. A chain with fresh noise at every step walks
            on the mean of E over that noise (`LocalEnergy`).
    """

    layers: Which = "last"
    prior_width: float = 1.0
    initial_width: float = 0.01
    pretraining: Literal["local", "shared"] = "local"
    training: Literal["shared", "local"] = "shared"

    def __post_init__(self) -> None:
        for name in ("prior_width", "initial_width"):
            require_that(getattr(self, name) > 0, f"bayesian.{name}", "a positive number", getattr(self, name))
        if self.layers != "last" and "local" in (self.pretraining, self.training):
            raise InputError("bayesian: local reparameterization serves the last layer only; use shared draws")


def width(rho: Tensor) -> Tensor:
    """s = softplus(rho) > 0."""
    return softplus(rho)


def rho_of(value: float) -> float:
    """The rho whose width is `value`."""
    return float(torch.tensor(value, dtype=torch.float64).expm1().log())


def parameter_prefix(layout: Layout, layers: Which) -> str:
    """What the names of the Bayesian parameters begin with, such as "decoder.layers.3." of the last layer."""
    last = [name for name in layout.names if name.startswith("decoder.")][-1].rpartition(".")[0]
    return {"last": f"{last}.", "decoder": "decoder.", "all": ""}[layers]


def bayesian_columns(layout: Layout, layers: Which) -> Tensor:
    """Columns of the flat weights that are Bayesian, shape (B,)."""
    prefix = parameter_prefix(layout, layers)
    return torch.cat([columns for name, columns in layout.columns().items() if name.startswith(prefix)])


def draw_weights(weights: Tensor, rho: Tensor, columns: Tensor, noise: Tensor) -> Tensor:
    """Flat weights (S, P) with the Bayesian columns drawn: mu + softplus(rho) noise, for rho and noise (S, B)."""
    mean = weights.index_select(1, columns)
    return weights.index_copy(1, columns, mean + width(rho) * noise)


def draw_noise(rho: Tensor, generators: Generators) -> Tensor:
    """Standard normal noise of one draw for each model, (S, B)."""
    return normal(rho.shape, generators, rho)


def kl_divergence(weights: Tensor, rho: Tensor, columns: Tensor, prior_width: float) -> Tensor:
    """KL(q || prior) of each model, (S,), summed over its Bayesian weights."""
    mean, s = weights.index_select(1, columns), width(rho)
    terms = (prior_width / s).log() + (s.square() + mean.square()) / (2 * prior_width**2) - 0.5
    return terms.sum(1)


def locally_drawn(
    layer: nn.Module, mean: Mapping[str, Tensor], widths: Mapping[str, Tensor], x: Tensor, generators: Generators
) -> Tensor:
    """Output of a linear layer with local reparameterization, for a stack of S models; `mean` and `widths` by name."""
    centre = call(layer, mean, x)
    variance = call(layer, {name: s.square() for name, s in widths.items()}, x.square())
    return centre + variance.clamp_min(1e-30).sqrt() * normal(centre.shape, generators, centre)


def decode_locally(
    decoder: nn.Module, mean: Mapping[str, Tensor], widths: Mapping[str, Tensor], z: Tensor, generators: Generators
) -> Tensor:
    """Events (S * N, *event) from latent points, with local reparameterization of the decoder's last layer.

    Args:
        mean, widths: the decoder's parameters, and s of those of its last layer, by name, with shape (S, *parameter).
    """
    hidden, layer, prefix = last_input(decoder, mean, z)
    return locally_drawn(layer, prefixed(mean, prefix), prefixed(widths, prefix), hidden, generators)
