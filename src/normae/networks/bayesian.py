"""A mean-field Gaussian posterior over named weights, as draws and as a KL divergence.

Each Bayesian weight has q(w) = N(w | mu, s^2) with s = softplus(rho), and the prior N(w | 0, s_0^2). Then

    KL(q || prior) = sum_w [ log(s_0/s) + (s^2 + mu^2)/(2 s_0^2) - 1/2 ].

A weight draw w = mu + s eps gives an ordinary deterministic model, of any architecture, that stays fixed for as long as
it is in use. A training keeps one row (S, P + B) for each model, P means and B values of rho, so that the optimizer,
the average, a rollback and a checkpoint treat both alike.

Local reparameterization draws the *output* of a linear layer instead: with mean a = W_mu x + b_mu and variance
v = W_s^2 x^2 + b_s^2, y = a + sqrt(v) eps, anew for each event. It is not a weight draw; it serves where the variance
of a gradient counts and correlations between events do not, as in autoencoder pretraining.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from normae.errors import InputError, require_that
from normae.networks.autoencoder import Autoencoder
from normae.networks.reconstruction import Layout, LocalEnergy
from normae.tensors import Generators, normal


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

    layers: Literal["last", "decoder", "all"] = "last"
    prior_width: float = 1.0
    initial_width: float = 0.01
    pretraining: Literal["local", "shared"] = "local"
    training: Literal["shared", "local"] = "shared"

    def __post_init__(self) -> None:
        for name in ("prior_width", "initial_width"):
            require_that(getattr(self, name) > 0, f"bayesian.{name}", "a positive number", getattr(self, name))
        if self.layers != "last" and "local" in (self.pretraining, self.training):
            raise InputError("bayesian: local reparameterization serves the last layer only; use shared draws")


width = softplus
"""s > 0 of rho."""


def rho_of(value: float) -> float:
    """The rho whose width is `value`."""
    return float(torch.tensor(value, dtype=torch.float64).expm1().log())


class WeightNoise:
    """Splits rows of trained numbers into means and rho, and draws weights from them; without Bayesian weights B = 0.

    The loss of a Bayesian training, Eq. (bnae_loss) of the paper, is per training event

        (<E>_data - <E>_model)/T + KL/N,    or    <E>_data - <E>_model + T KL/N

    in the form that is not divided by T (T detached), N the number of training events. The autoencoder phase is of the
    second form with the initial T. One draw serves the chain, E+ and E- of an iteration: the width of the posterior
    comes from the correlation between the weights and the samples drawn with them.

    Args:
        config: which of the weights are Bayesian; None for a deterministic training.
        architecture: whose decoder local reparameterization runs.
        device: of the training.
    """

    def __init__(self, config: BayesianConfig | None, architecture: Autoencoder, device: torch.device) -> None:
        self.layout, self.config, self.architecture = Layout.of(architecture), config, architecture
        self.size, self.columns = sum(self.layout.sizes), torch.zeros(0, dtype=torch.int64, device=device)
        if config is not None:
            last = [name for name in self.layout.names if name.startswith("decoder.")][-1].rpartition(".")[0]
            prefix = {"last": f"{last}.", "decoder": "decoder.", "all": ""}[config.layers]
            named = self.layout.columns().items()
            self.columns = torch.cat([columns for name, columns in named if name.startswith(prefix)]).to(device)

    def local(self, phase: str) -> bool:
        """Whether a phase uses local reparameterization."""
        return self.config is not None and getattr(self.config, phase) == "local"

    def mean(self, row: Tensor) -> Tensor:
        """The means, (S, P)."""
        return row[:, : self.size]

    def draw(self, row: Tensor, generators: Generators) -> Tensor:
        """Standard normal noise of one weight draw of each model, (S, B)."""
        rho = row[:, self.size :]
        return rho if self.config is None else normal(rho.shape, generators, rho)

    def weights(self, row: Tensor, noise: Tensor) -> Tensor:
        """The drawn weights, (S, P): mu + softplus(rho) noise in the Bayesian columns."""
        if self.config is None:
            return row
        drawn = row.index_select(1, self.columns) + width(row[:, self.size :]) * noise
        return self.mean(row).index_copy(1, self.columns, drawn)

    def kl(self, row: Tensor) -> Tensor:
        """KL(q || prior) of each model, (S,), summed over its Bayesian weights; zero for a deterministic training."""
        if self.config is None:
            return row.new_zeros(len(row))
        mean, s, prior = row.index_select(1, self.columns), width(row[:, self.size :]), self.config.prior_width
        return ((prior / s).log() + (s.square() + mean.square()) / (2 * prior**2) - 0.5).sum(1)

    def widths(self, row: Tensor) -> dict[str, Tensor]:
        """Posterior widths by parameter name, (S, *parameter); zero where a weight is not Bayesian."""
        s = width(row[:, self.size :])
        return self.layout.views(torch.zeros_like(self.mean(row)).index_copy(1, self.columns, s))

    def tensors(self, row: Tensor) -> dict[str, Tensor]:
        """Of one model, (P + B,): the means by parameter name, and the rho of Bayesian ones as "rho.NAME"."""
        spread = torch.full_like(row[: self.size], torch.nan).index_copy(0, self.columns, row[self.size :])
        means, rho = self.layout.views(self.mean(row[None])), self.layout.views(spread[None])
        bayesian = {f"rho.{name}": view[0] for name, view in rho.items() if not view.isnan().all()}
        return {name: view[0] for name, view in means.items()} | bayesian

    def row(self, tensors: dict[str, Tensor]) -> Tensor:
        """The inverse of `tensors`, (P + B,)."""
        names = list(self.layout.names)
        if self.config is not None:
            names += [f"rho.{name}" for name in self.layout.names if f"rho.{name}" in tensors]
        return torch.cat([tensors[name].reshape(-1) for name in names])

    def local_energy(self, row: Tensor) -> LocalEnergy:
        """The energy of rows with local reparameterization of the last layer."""
        return LocalEnergy(self.architecture, self.layout.views(self.mean(row)), self.widths(row))
