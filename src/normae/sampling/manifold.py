"""Negative samples by on-manifold start: a latent chain, decoded, clipped into the bounds, then a feature chain.

The paper's buffer stores the latent end points, and every iteration walks the way from latent space to feature space.
With `buffer_space = "feature"` the feature chains are persistent: they go on where they stopped, so that they follow
the slowly moving density for as long as the training lasts, and only the share 1 - replay of fresh chains takes the
way through the latent space.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from normae.energy import Latent
from normae.random import Generators, uniform
from normae.sampling.chain import Chain, run_chain
from normae.sampling.langevin import ChainConfig, require_that


@dataclass(frozen=True)
class SamplingConfig:
    """How negative samples are made.

    Args:
        backend: "reference" for plain PyTorch, "explicit" for pullbacks without autograd, "graph" for explicit
            pullbacks in a CUDA graph, "fused" for the chain in one kernel; "auto" takes the fastest that serves.
        buffer: number of stored end points of earlier chains.
        replay: share of chains that start from the buffer; the others start from noise.
        buffer_space: "latent" stores latent end points, as the paper; "feature" keeps persistent chains in feature
            space, and only fresh chains go through the latent space.
        chains_from: where persistent feature chains begin: "latent", points decoded from latent noise, or "data",
            training events.
        generation: length of the feature chain that generates samples; as in training where it is None, which is the
            paper's recipe. The latent chain of generation is eight times as long as in training.
        latent, feature: the two chains of the on-manifold start.
    """

    backend: Literal["auto", "reference", "explicit", "graph", "fused"] = "auto"
    buffer: int = 10_000
    replay: float = 0.95
    buffer_space: Literal["latent", "feature"] = "latent"
    chains_from: Literal["latent", "data"] = "latent"
    generation: int | None = None
    latent: ChainConfig = field(default_factory=lambda: ChainConfig(steps=50))
    feature: ChainConfig = field(default_factory=lambda: ChainConfig(steps=100))

    def __post_init__(self) -> None:
        require_that(self.buffer >= 1, "sampling.buffer", "at least 1", self.buffer)
        require_that(0 <= self.replay <= 1, "sampling.replay", "a share between 0 and 1", self.replay)
        if self.generation is not None:
            require_that(self.generation >= 0, "sampling.generation", "at least 0", self.generation)

    @property
    def generation_steps(self) -> int:
        """Length of the feature chain that generates samples."""
        return self.feature.steps if self.generation is None else self.generation


Runner = Callable[..., Chain]
"""What runs a chain: `run_chain`, or a faster function with the same arguments."""


class ReplayBuffer:
    """Ring of `capacity` points for each of S models: end points of earlier chains, in one tensor on the device.

    Position and fill are tensors too, so that an iteration captured in a CUDA graph moves them.

    Args:
        storage: with shape (S, capacity, *point).
        written: number of points ever written, int64, shape (); the oldest points leave first.
    """

    def __init__(self, storage: Tensor, written: Tensor) -> None:
        self.storage = storage
        self.written = written

    @classmethod
    def empty(cls, members: int, capacity: int, point: tuple[int, ...], device: torch.device) -> "ReplayBuffer":
        """An empty buffer for points of shape `point`."""
        storage = torch.zeros(members, capacity, *point, device=device)
        return cls(storage, torch.zeros((), dtype=torch.int64, device=device))

    @property
    def capacity(self) -> int:
        return int(self.storage.shape[1])

    def slots(self, n: int) -> Tensor:
        """The next `n` places of the ring, shape (n,)."""
        offsets = torch.arange(n, device=self.storage.device)
        return (self.written + offsets) % self.capacity

    def draw(self, noise: Tensor, replay: float, generators: Generators) -> Tensor:
        """Starting points with shape (S * B, *point): from the buffer with probability `replay`, otherwise `noise`.

        Drawn with replacement from what has been written; an empty buffer gives noise.
        """
        members = self.storage.shape[0]
        fill = self.written.clamp_max(self.capacity)
        u = uniform((len(noise), 2), generators, noise)
        index = (u[:, 0] * fill).long().clamp_max(self.capacity - 1).reshape(members, -1)
        rows = torch.arange(members, device=noise.device)[:, None]
        stored = self.storage[rows, index].flatten(0, 1)
        use = (u[:, 1] < replay) & (fill > 0)
        return torch.where(use.reshape(-1, *[1] * (noise.ndim - 1)), stored, noise)

    def read(self, slots: Tensor) -> Tensor:
        """The points at `slots` of every model, with shape (S * n, *point)."""
        return self.storage[:, slots].flatten(0, 1)

    def push(self, points: Tensor) -> None:
        """Write points with shape (S * B, *point), the oldest leave. More points than places: the last ones stay."""
        blocks = points.unflatten(0, (self.storage.shape[0], -1))[:, -self.capacity :]
        n = blocks.shape[1]
        self.storage.index_copy_(1, self.slots(n), blocks)
        self.written += n


class Negatives(NamedTuple):
    """Negative samples (S * B, *event), and the mean acceptance of the two chains, (S,) each."""

    position: Tensor
    latent_acceptance: Tensor
    feature_acceptance: Tensor


class StepSizes(NamedTuple):
    """Step sizes of the latent and the feature chain of each model, with shape (S,)."""

    latent: Tensor
    feature: Tensor


def into_bounds(x: Tensor, config: ChainConfig) -> Tensor:
    """Starting points clipped into the bounds of the feature chain."""
    return x if config.bounds is None else x.clamp(*config.bounds)


def spread(value: Tensor, n: int) -> Tensor:
    """Values of each model, (S,), for `n` samples of each, (S * n,); one value for all, (1,), where S = 1."""
    return value if len(value) == 1 else value.repeat_interleave(n)


def negatives(
    energy: Latent,
    config: SamplingConfig,
    buffer: ReplayBuffer,
    temperature: Tensor,
    sizes: StepSizes,
    batch: int,
    generators: Generators,
    runner: Runner = run_chain,
) -> Negatives:
    """`batch` negative samples of each of S models; the buffer takes the end points.

    Args:
        temperature: with shape (S,).
        sizes: step sizes, each with shape (S,).
    """

    def walk(of: object, start: Tensor, chain: ChainConfig, size: Tensor) -> Chain:
        n = len(start) // energy.members
        return runner(
            of, start, chain, spread(temperature, n), generators, step_size=spread(size, n), members=energy.members
        )

    def on_manifold(z: Tensor) -> tuple[Chain, Tensor]:
        chain = walk(energy.latent(), z, config.latent, sizes.latent)
        with torch.no_grad():
            return chain, into_bounds(energy.decode(chain.position), config.feature)

    if config.buffer_space == "latent":
        noise = energy.latent_noise(energy.members * batch, generators, buffer.storage)
        latent, start = on_manifold(buffer.draw(noise, config.replay, generators))
        buffer.push(latent.position)
        feature = walk(energy, start, config.feature, sizes.feature)
        return Negatives(feature.position, latent.acceptance.mean(0), feature.acceptance.mean(0))

    start = buffer.read(buffer.slots(batch))
    fresh = round((1 - config.replay) * batch)
    acceptance = torch.ones_like(temperature, dtype=torch.float64)
    if fresh > 0:
        noise = energy.latent_noise(energy.members * fresh, generators, buffer.storage)
        latent, new = on_manifold(noise)
        acceptance = latent.acceptance.mean(0)
        blocks = [new.unflatten(0, (energy.members, -1)), start.unflatten(0, (energy.members, -1))[:, fresh:]]
        start = torch.cat(blocks, dim=1).flatten(0, 1)
    feature = walk(energy, start, config.feature, sizes.feature)
    buffer.push(feature.position)
    return Negatives(feature.position, acceptance, feature.acceptance.mean(0))


def adapted(log_size: Tensor, acceptance: Tensor, target: float | None, rate: float = 0.05) -> Tensor:
    """log lambda moved towards the target acceptance (Robbins and Monro with a constant rate), shape (S,)."""
    if target is None:
        return log_size
    return log_size + rate * (acceptance - target).to(log_size.dtype)
