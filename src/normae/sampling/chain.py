"""Chains of Langevin steps: the runner, the public entry for any energy, and negative samples by on-manifold start.

A negative sample is the end of a latent chain, decoded, clipped into the bounds, then of a feature chain. The paper's
buffer stores the latent end points, and every iteration walks the way from latent space to feature space. With
`buffer_space = "feature"` the feature chains are persistent: they go on where they stopped, so that they follow the
slowly moving density for as long as the training lasts, and only the share 1 - replay of fresh chains takes the way
through the latent space.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normae.energy import Energy, held
from normae.errors import InputError, require_that
from normae.progress import Tick, ignore
from normae.sampling.config import BoundsRule, ChainConfig, ClipRule, Metropolis, SamplingConfig, Sphere
from normae.sampling.langevin import Scalar, Scale, init, step
from normae.tensors import Generators, uniform


class Chain(NamedTuple):
    """The end of a chain.

    Args:
        position: with shape (N, *event).
        energy: at the position, with shape (N,).
        acceptance: share of accepted samples, with shape (steps,); (steps, S) for S models side by side.
        trace: recorded positions with shape (records, N, *event), where asked for.
    """

    position: Any
    energy: Any
    acceptance: Any
    trace: Any


Launch = Callable[..., tuple[Tensor, ...]]
"""From energy, start, config, temperature, step size, keys and number of models to end points, their energies and
counts of accepted steps with shape (steps, members, blocks)."""


def run_chain(
    energy: Energy, start: Tensor, config: ChainConfig, temperature: Scalar, generators: Generators,
    step_size: Scalar | None = None, trace: int | None = None, members: int = 1, tick: Tick = ignore,
    launch: Launch | None = None,
) -> Chain:  # fmt: skip
    """Run `config.steps` steps.

    Args:
        energy: from events with shape (N, *event) to (N,).
        start: with shape (N, *event).
        generators: where all randomness comes from.
        temperature: T, a number or a tensor with shape (N,).
        step_size: lambda where it differs from the configured one, a number or a tensor with shape (N,).
        trace: record every `trace`-th position.
        members: number S of models whose samples stand in S equal blocks, for the acceptance.
        tick: told each step.
        launch: a kernel that makes all steps, where no positions are to be recorded.

    >>> import torch
    >>> from normae.sampling import ChainConfig, run_chain
    >>> config, generator = ChainConfig(steps=50, step_size=0.5), torch.Generator().manual_seed(0)
    >>> chain = run_chain(lambda x: x.square().sum(1) / 2, torch.zeros(2000, 2), config, 1.0, generator)
    >>> float(chain.position.std().round(decimals=1))
    1.0
    """
    step_size = config.step_size if step_size is None else step_size
    if launch is not None and trace is None:
        seeds = keys(generators, start.device)
        position, value, accepted, *_ = launch(energy, start, config, temperature, step_size, seeds, members)
        return Chain(position, value, accepted.sum(2, dtype=torch.float64).mul_(members / len(position)), None)
    sigma = (config.noise_ratio * step_size) ** 0.5
    energy = held(energy)
    state = init(start, energy, config)
    if state.energy.shape != (len(start),):
        raise InputError(f"expected energies of shape {(len(start),)}, got {tuple(state.energy.shape)}")
    scale = Scale.of(temperature, step_size, sigma, start)
    counts, records = [], []
    for t in range(config.steps):
        if config.anneal:
            scale = Scale.of(temperature, step_size, sigma / (1 + t), start)
        state, accepted = step(state, energy, config, scale, generators)
        counts.append(accepted.reshape(members, -1).sum(1))
        if trace is not None and (t + 1) % trace == 0:
            records.append(state.position)
        tick()
    none = torch.zeros(0, members, dtype=torch.float64, device=start.device)
    acceptance = torch.stack(counts).double() * (members / len(start)) if counts else none
    return Chain(state.position, state.energy, acceptance, torch.stack(records) if records else None)


def langevin(
    energy: Energy, start: Any, *, temperature: float, step_size: float, steps: int, generator: torch.Generator,
    noise: float | None = None, metropolis: Metropolis = "exact", bounds: tuple[float, float] | None = None,
    bounds_rule: BoundsRule = "reject", clip: float | None = None, clip_rule: ClipRule = "norm", sphere: Sphere = None,
    anneal: bool = False, trace: int | None = None,
) -> Chain:  # fmt: skip
    """Sample exp(-E/T) with a Metropolis-adjusted Langevin chain, whose `acceptance` has shape (steps,).

    Args:
        energy: callable from a tensor with shape (N, *event) to one with shape (N,), differentiable; where it offers
            `value_and_grad(x)`, that is used.
        start: starting points with shape (N, *event), numpy or torch; the results are of the same kind.
        temperature: T.
        step_size: lambda.
        steps: number of steps.
        generator: where all randomness comes from.
        noise, metropolis, bounds, bounds_rule, clip, clip_rule, sphere, anneal: see `ChainConfig`.
        trace: record every `trace`-th position.

    >>> import normae, torch
    >>> how = {"temperature": 4.0, "step_size": 2.0, "steps": 50, "generator": torch.Generator().manual_seed(0)}
    >>> chain = normae.langevin(lambda x: x.square().sum(1) / 2, torch.zeros(2000, 2), **how)
    >>> float(chain.position.std().round(decimals=1))
    2.0
    """
    config = ChainConfig(
        steps=steps, step_size=step_size, noise=noise, metropolis=metropolis, bounds=bounds, bounds_rule=bounds_rule,
        clip=clip, clip_rule=clip_rule, sphere=sphere, anneal=anneal,
    )  # fmt: skip
    require_that(0 < temperature < math.inf, "temperature", "a positive number", temperature)
    require_that(isinstance(generator, torch.Generator), "generator", "a torch.Generator", repr(generator))
    require_that(trace is None or trace >= 1, "trace", "a number of steps of at least 1", trace)
    chain = run_chain(energy, _start(start, config), config, float(temperature), generator, trace=trace)
    chain = chain._replace(acceptance=chain.acceptance[:, 0])
    if isinstance(start, Tensor):
        return chain
    return Chain(*[None if part is None else part.numpy() for part in chain])


def _start(start: Any, config: ChainConfig) -> Tensor:
    position = start.detach() if isinstance(start, Tensor) else torch.from_numpy(np.array(start))
    if not position.is_floating_point():
        position = position.to(torch.get_default_dtype())
    shape = tuple(position.shape)
    require_that(len(shape) > 1 and shape[0] > 0, "start", "points of shape (N, *event) with N >= 1", shape)
    require_that(bool(torch.isfinite(position).all()), "start", "finite points", "NaN or infinity")
    inside = torch.equal(position, into_bounds(position, config))
    require_that(inside, "start", f"points within the bounds {config.bounds}", "points outside")
    if config.sphere is not None:
        require_that(len(shape) == 2, "start", "points of shape (N, d) on the sphere", shape)
        if not torch.allclose(position.norm(dim=1), position.new_ones(len(position)), atol=1e-4):
            raise InputError("start: expected points of unit length on the sphere; divide them by their norm")
    return position


# --- what a chain in one kernel takes besides its energy


def keys(generators: Generators, device: torch.device) -> Tensor:
    """A key for each generator, int64 with shape (generators,), drawn and kept on the device.

    Random numbers of a kernel are Philox streams, counted by sample, step and feature, with a key that each call draws.
    So a replayed CUDA graph gets new numbers, and nothing waits for the host.
    """
    each: Sequence[torch.Generator] = [generators] if isinstance(generators, torch.Generator) else generators
    drawn = [torch.randint(2**62, (1,), generator=g, device=g.device) for g in each]
    return (drawn[0] if len(drawn) == 1 else torch.cat(drawn)).to(device)


def strided(value: Scalar, like: Tensor) -> tuple[Tensor, int]:
    """A number, or numbers with shape (N,), as float32, with the stride from sample to sample."""
    if not isinstance(value, Tensor):
        return like.new_full((1,), value, dtype=torch.float32), 0
    if value.numel() not in (1, len(like)):
        raise InputError(f"expected one number or {len(like)}, one for each sample, got shape {tuple(value.shape)}")
    return value.to(like.device, torch.float32).contiguous(), int(value.numel() > 1)


def numbers(config: ChainConfig) -> tuple[float, float, float, float]:
    """Squared noise over step size, bounds, and the limit of the gradient."""
    low, high = config.bounds or (0.0, 0.0)
    return config.noise_ratio, float(low), float(high), float(config.clip or 0.0)


# --- negative samples


Runner = Callable[..., Chain]
"""What runs a chain: `run_chain`, perhaps with a kernel."""


class ReplayBuffer:
    """Ring of `capacity` points for each of S models: end points of earlier chains, in one tensor on the device.

    Position and fill are tensors too, so that an iteration captured in a CUDA graph moves them.

    Attributes:
        storage: of S = `members` models, with shape (S, capacity, *point).
        written: number of points ever written, int64, shape (); the oldest points leave first.
    """

    def __init__(self, members: int, capacity: int, point: tuple[int, ...], device: torch.device) -> None:
        self.capacity, self.storage = capacity, torch.zeros(members, capacity, *point, device=device)
        self.written = torch.zeros((), dtype=torch.int64, device=device)

    def slots(self, n: int) -> Tensor:
        """The next `n` places of the ring, shape (n,)."""
        return (self.written + torch.arange(n, device=self.storage.device)) % self.capacity

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


def into_bounds(x: Tensor, config: ChainConfig) -> Tensor:
    """Starting points clipped into the bounds of the feature chain."""
    return x if config.bounds is None else x.clamp(*config.bounds)


def spread(value: Tensor, n: int) -> Tensor:
    """Values of each model, (S,), for `n` samples of each, (S * n,); one value for all, (1,), where S = 1."""
    return value if len(value) == 1 else value.repeat_interleave(n)


def negatives(
    energy: Any, config: SamplingConfig, buffer: ReplayBuffer, temperature: Tensor, sizes: Tensor, batch: int,
    generators: Generators, runner: Runner = run_chain,
) -> Negatives:  # fmt: skip
    """`batch` negative samples of each of S models; the buffer takes the end points.

    Args:
        energy: of S = `members` models side by side whose events come from a latent space, with `decode`, `latent()`,
            the energy over that space, and `latent_noise`, where chains begin there: see `ReconstructionEnergy`.
        temperature: with shape (S,).
        sizes: step sizes of the latent and of the feature chain, with shape (2, S).
    """
    members = energy.members

    def walk(of: object, start: Tensor, chain: ChainConfig, size: Tensor) -> Chain:
        n = len(start) // members
        return runner(of, start, chain, spread(temperature, n), generators, step_size=spread(size, n), members=members)

    def on_manifold(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chain = walk(energy.latent(), z, config.latent, sizes[0])
        with torch.no_grad():
            return into_bounds(energy.decode(chain.position), config.feature), chain.position, chain.acceptance.mean(0)

    acceptance = torch.ones_like(temperature, dtype=torch.float64)
    if config.buffer_space == "latent":
        noise = energy.latent_noise(members * batch, generators, buffer.storage)
        start, latent, acceptance = on_manifold(buffer.draw(noise, config.replay, generators))
        buffer.push(latent)
    else:
        blocks = buffer.storage[:, buffer.slots(batch)]
        if (fresh := round((1 - config.replay) * batch)) > 0:
            new, _, acceptance = on_manifold(energy.latent_noise(members * fresh, generators, buffer.storage))
            blocks = torch.cat([new.unflatten(0, (members, -1)), blocks[:, fresh:]], dim=1)
        start = blocks.flatten(0, 1)
    feature = walk(energy, start, config.feature, sizes[1])
    if config.buffer_space == "feature":
        buffer.push(feature.position)
    return Negatives(feature.position, acceptance, feature.acceptance.mean(0))


def adapted(log_size: Tensor, acceptance: Tensor, target: float | None, rate: float = 0.05) -> Tensor:
    """log lambda moved towards the target acceptance (Robbins and Monro with a constant rate), shape (S,)."""
    if target is None:
        return log_size
    return log_size + rate * (acceptance - target).to(log_size.dtype)
