"""What stays as it is during a training: the samples, the order of their events, what a row of weights means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normae.data import SparseEvents
from normae.errors import InputError
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
from normae.networks.reconstruction import Layout, prefixed
from normae.random import Generators, stream
from normae.sampling.manifold import SamplingConfig
from normae.training.backends import Backend, Group
from normae.training.config import Schedule, Schedules


class Samples:
    """S samples of equal size N, on the device, model after model.

    Args:
        samples: S tensors with shape (N, *event), or S sets of N sparse images.
        device: where batches are taken.
    """

    def __init__(self, samples: Sequence[Tensor] | Sequence[SparseEvents], device: torch.device) -> None:
        if len({tuple(sample.shape) for sample in samples}) != 1:
            raise InputError(f"expected training samples of one shape, got {[tuple(s.shape) for s in samples]}")
        self.size = len(samples[0])
        self.event = tuple(samples[0].shape[1:])
        self._events = _joined(samples).to(device)
        self._first = torch.arange(len(samples), device=device)[:, None] * self.size

    def take(self, index: Tensor) -> Tensor:
        """The events at `index`, int64 with shape (S, B): dense, with shape (S * B, *event)."""
        return self._events[(index + self._first).flatten()]


def _joined(samples: Sequence[Tensor] | Sequence[SparseEvents]) -> Tensor | SparseEvents:
    sparse = [sample for sample in samples if isinstance(sample, SparseEvents)]
    if sparse:
        return SparseEvents.joined(sparse)
    return torch.cat([sample for sample in samples if isinstance(sample, Tensor)])


class WeightNoise:
    """Splits rows of trained numbers into means and rho, and draws weights from them; without Bayesian weights B = 0.

    A Bayesian training keeps one row (S, P + B) for each model: P means and B values of rho, so that the optimizer, the
    average, a rollback and a checkpoint treat both alike. Its loss, Eq. (bnae_loss) of the paper, is per training event

        (<E>_data - <E>_model)/T + KL/N,    or    <E>_data - <E>_model + T KL/N

    in the form that is not divided by T (T detached): the posterior is exp(-N L) times the prior, N the number of
    training events. The autoencoder phase is of the second form with the initial T. One draw serves the chain, E+ and
    E- of an iteration: the width of the posterior comes from the correlation between the weights and the samples drawn
    with them.

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


class Order:
    """Which of `n` events an iteration takes: from the seeds and the name alone, so that nothing has to be stored.

    An incomplete last batch of an epoch is left out.
    """

    def __init__(self, seeds: Sequence[int], name: str, n: int, batch: int, device: torch.device) -> None:
        self.seeds, self.name, self.n, self.batch, self.device = seeds, name, n, batch, device
        self.per_epoch = n // batch
        self._epoch, self._order = -1, torch.empty(0)

    def rows(self, iteration: int) -> Tensor:
        """The numbers of the events, int64 with shape (S, B)."""
        epoch, place = divmod(iteration, self.per_epoch)
        if epoch != self._epoch:
            streams = [stream(seed, f"{self.name}/epoch/{epoch}", self.device) for seed in self.seeds]
            orders = [torch.randperm(self.n, generator=generator, device=self.device) for generator in streams]
            self._epoch, self._order = epoch, torch.stack(orders)
        return self._order[:, place * self.batch : (place + 1) * self.batch]


def rate_factor(iteration: int, length: int, schedule: Schedule, warmup: int = 0) -> float:
    """What the learning rates of an iteration are multiplied by: warm-up times schedule."""
    rise = min(1.0, (iteration + 1) / (warmup + 1))
    if schedule == "constant":
        return rise
    return rise * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * iteration / max(1, length))))


@dataclass(frozen=True)
class Setup:
    """S models of one architecture, each with its own sample and its own seed.

    Args:
        architecture: on the device; its own weights are not used.
        data: this process's part of the training samples.
        validation: samples at which the energy is watched; each process has all of them.
    """

    architecture: Autoencoder
    layout: Layout
    noise: WeightNoise
    data: Samples
    validation: Samples | None
    schedules: Schedules
    sampling: SamplingConfig
    backend: Backend
    seeds: list[int]
    device: torch.device
    group: Group

    @property
    def members(self) -> int:
        """S."""
        return len(self.seeds)

    @property
    def events(self) -> int:
        """Training events of all processes."""
        return self.data.size * self.group.size

    def streams(self, name: str) -> list[torch.Generator]:
        """The random stream `name` of each model on this process."""
        return [stream(seed, self.group.named(name), self.device) for seed in self.seeds]
