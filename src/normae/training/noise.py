"""The weights of a training: plain, or with a Gaussian posterior on some of them.

A Bayesian training keeps one row (S, P + B) for each model: P means and B values of rho, so that the optimizer, the
average, a rollback and a checkpoint treat both alike. Its loss, Eq. (bnae_loss) of the paper, is per training event

    (<E>_data - <E>_model)/T + KL/N,    or    <E>_data - <E>_model + T KL/N

in the form that is not divided by T (T detached): the posterior is exp(-N L) times the prior, N the number of training
events. The autoencoder phase is of the second form with the initial T. One draw serves the chain, E+ and E- of an
iteration: the width of the posterior comes from the correlation between the weights and the samples drawn with them.
"""

import torch
from torch import Tensor

from normae.networks.autoencoder import Autoencoder
from normae.networks.bayesian import (
    BayesianConfig,
    bayesian_columns,
    decode_locally,
    draw_noise,
    draw_weights,
    kl_divergence,
    rho_of,
    width,
)
from normae.networks.parameters import Layout, prefixed
from normae.random import Generators


class WeightNoise:
    """Splits rows of trained numbers into means and rho, and draws weights from them; without Bayesian weights B = 0.

    Args:
        layout: of the P weights.
        config: which of them are Bayesian; None for a deterministic training.
        architecture: whose decoder local reparameterization runs.
        device: of the training.
    """

    def __init__(
        self, layout: Layout, config: BayesianConfig | None, architecture: Autoencoder, device: torch.device
    ) -> None:
        self.layout, self.config, self.architecture = layout, config, architecture
        empty = torch.zeros(0, dtype=torch.int64)
        self.columns = (empty if config is None else bayesian_columns(layout, config.layers)).to(device)
        self.size = sum(layout.sizes)

    def extended(self, weights: Tensor) -> Tensor:
        """Weights (S, P) with the initial rho behind them, (S, P + B)."""
        if self.config is None:
            return weights
        rho = weights.new_full((len(weights), len(self.columns)), rho_of(self.config.initial_width))
        return torch.cat([weights, rho], dim=1)

    def local(self, phase: str) -> bool:
        """Whether a phase uses local reparameterization."""
        return self.config is not None and getattr(self.config, phase) == "local"

    def mean(self, row: Tensor) -> Tensor:
        """The means, (S, P)."""
        return row[:, : self.size]

    def draw(self, row: Tensor, generators: Generators) -> Tensor:
        """Noise of one weight draw of each model, (S, B)."""
        rho = row[:, self.size :]
        return rho if self.config is None else draw_noise(rho, generators)

    def weights(self, row: Tensor, noise: Tensor) -> Tensor:
        """The drawn weights, (S, P)."""
        if self.config is None:
            return row
        return draw_weights(self.mean(row), row[:, self.size :], self.columns, noise)

    def kl(self, row: Tensor) -> Tensor:
        """KL(q || prior) of each model, (S,); zero for a deterministic training."""
        if self.config is None:
            return row.new_zeros(len(row))
        return kl_divergence(self.mean(row), row[:, self.size :], self.columns, self.config.prior_width)

    def widths(self, row: Tensor) -> dict[str, Tensor]:
        """Posterior widths by parameter name, (S, *parameter); zero where a weight is not Bayesian."""
        s = width(row[:, self.size :])
        return self.layout.views(torch.zeros_like(self.mean(row)).index_copy(1, self.columns, s))

    def tensors(self, row: Tensor) -> dict[str, Tensor]:
        """Of one model, (P + B,): the means by parameter name, and the rho of Bayesian ones as "rho.NAME"."""
        named = {name: view[0] for name, view in self.layout.views(self.mean(row[None])).items()}
        if self.config is None:
            return named
        spread = torch.full_like(row[: self.size], torch.nan).index_copy(0, self.columns, row[self.size :])
        views = {name: view[0] for name, view in self.layout.views(spread[None]).items()}
        return named | {f"rho.{name}": view for name, view in views.items() if not view.isnan().any()}

    def row(self, tensors: dict[str, Tensor]) -> Tensor:
        """The inverse of `tensors`, (P + B,)."""
        means = [tensors[name].reshape(-1) for name in self.layout.names]
        if self.config is None:
            return torch.cat(means)
        names = [name for name in self.layout.names if f"rho.{name}" in tensors]
        return torch.cat([*means, *(tensors[f"rho.{name}"].reshape(-1) for name in names)])

    def decode(self, row: Tensor, z: Tensor, generators: Generators) -> Tensor:
        """Events from latent points (S * N, d_z), with local reparameterization of the last layer."""
        mean = prefixed(self.layout.views(self.mean(row)), "decoder.")
        widths = prefixed(self.widths(row), "decoder.")
        return decode_locally(self.architecture.decoder, mean, widths, z, generators)
