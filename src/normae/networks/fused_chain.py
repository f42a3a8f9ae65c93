"""What a chain in one kernel takes besides its energy, whichever network it is of.

Random numbers are Philox streams, counted by sample, step and feature, with a key that each call draws on the device
from the model's generator. So a replayed CUDA graph gets new numbers, and nothing waits for the host.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normae.errors import InputError
from normae.sampling.chain import Chain, Runner, run_chain
from normae.sampling.config import ChainConfig
from normae.sampling.langevin import Scalar
from normae.tensors import Generators


def keys(generators: Generators, device: torch.device) -> Tensor:
    """A key for each generator, int64 with shape (generators,), drawn and kept on the device."""
    each: Sequence[torch.Generator] = [generators] if isinstance(generators, torch.Generator) else generators
    drawn = [torch.randint(2**62, (1,), generator=g, device=g.device) for g in each]
    return (drawn[0] if len(drawn) == 1 else torch.cat(drawn)).to(device)


def spread(value: Scalar, like: Tensor) -> tuple[Tensor, int]:
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


def fused(launch: Callable[..., tuple[Tensor, ...]]) -> Runner:
    """`run_chain` by a kernel; where positions are to be recorded, `run_chain` itself.

    Args:
        launch: from energy, start, config, temperature, step size, keys and number of models to end points, their
            energies and counts of accepted steps with shape (steps, members, blocks).
    """

    def run(
        energy: Any,
        start: Tensor,
        config: ChainConfig,
        temperature: Scalar,
        generators: Generators,
        step_size: Scalar | None = None,
        trace: int | None = None,
        members: int = 1,
        **how: Any,
    ) -> Chain:
        if trace is not None:
            return run_chain(energy, start, config, temperature, generators, step_size, trace, members)
        size, seeds = config.step_size if step_size is None else step_size, keys(generators, start.device)
        position, value, accepted, *_ = launch(energy, start, config, temperature, size, seeds, members, **how)
        return Chain(position, value, accepted.sum(2, dtype=torch.float64).mul_(members / len(position)), None)

    return run
