"""What stays as it is during a training: the samples, the order of their events, the network and how it is run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normae.data import SparseEvents
from normae.errors import InputError
from normae.networks.autoencoder import Autoencoder
from normae.networks.parameters import Layout
from normae.random import stream
from normae.sampling.config import SamplingConfig
from normae.training.backends import Backend
from normae.training.config import Schedule, Schedules
from normae.training.noise import WeightNoise
from normae.training.parallel import Group


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
