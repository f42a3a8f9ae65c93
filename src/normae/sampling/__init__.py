"""Langevin chains: the kernel, the runner, the on-manifold start, the replay buffer and the diagnostics."""

from normae.sampling.chain import Chain, effective_sample_size, langevin, run_chain, split_r_hat
from normae.sampling.langevin import ChainConfig
from normae.sampling.manifold import (
    Negatives,
    ReplayBuffer,
    SamplingConfig,
    StepSizes,
    adapted,
    into_bounds,
    negatives,
    spread,
)

__all__ = [
    "Chain", "ChainConfig", "Negatives", "ReplayBuffer", "SamplingConfig", "StepSizes", "adapted",
    "effective_sample_size", "into_bounds", "langevin", "negatives", "run_chain", "split_r_hat", "spread",
]  # fmt: skip
