"""Langevin chains: the kernel, the runner, the on-manifold start, the replay buffer and the diagnostics."""

from normae.sampling.chain import (
    Chain,
    Negatives,
    ReplayBuffer,
    adapted,
    into_bounds,
    langevin,
    negatives,
    run_chain,
    spread,
)
from normae.sampling.config import ChainConfig, SamplingConfig
from normae.sampling.diagnostics import effective_sample_size, split_r_hat

__all__ = [
    "Chain", "ChainConfig", "Negatives", "ReplayBuffer", "SamplingConfig", "adapted",
    "effective_sample_size", "into_bounds", "langevin", "negatives", "run_chain", "split_r_hat", "spread",
]  # fmt: skip
