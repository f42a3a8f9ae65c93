"""Settings for a table from its size alone.

The whitened table is close to a standard Gaussian, and that is where training begins (see `ContrastConfig`): with f(x)
near 0 the energy is |x|^2/d, and T = 2/d makes exp(-E/T) the standard Gaussian. An autoencoder pretraining would
flatten the energy first, and chains in many dimensions would then be lost in the box. The classification against the
Gaussian does most of the learning; a likelihood training with chains follows.
"""

import math
from dataclasses import dataclass

from normae.networks.autoencoder import NetworkConfig
from normae.sampling.config import ChainConfig, SamplingConfig
from normae.training.config import (
    ContrastConfig,
    GuardConfig,
    PhaseConfig,
    Schedules,
    TemperatureConfig,
    TrainingConfig,
)

ROWS = 20_000
"""Noisy copies of a small table are made up to about this number of rows."""
HELD_OUT = 0.2
"""Share of the rows that decide when the start has learned enough."""
RATIO = 0.03
"""Learning rate of the likelihood training over that of the start."""


@dataclass(frozen=True)
class Wishes:
    """What the user decided; None leaves it to the table.

    Args:
        latent: dimension of the latent space.
        hidden: widths of the hidden layers.
        start_iterations: of the classification against a Gaussian, at most.
        iterations: of the likelihood training.
        batch: rows of an update, and as many chains.
        learning_rate: of the start.
        chain_steps: Langevin steps of an update.
    """

    latent: int | None = None
    hidden: tuple[int, ...] | None = None
    start_iterations: int | None = None
    iterations: int | None = None
    batch: int = 256
    learning_rate: float = 1e-3
    chain_steps: int = 8


@dataclass(frozen=True)
class Settings:
    """How to train on a table.

    Args:
        copies: of the table, each with its own noise.
    """

    network: NetworkConfig
    schedules: Schedules
    sampling: SamplingConfig
    copies: int


def settings_for(rows: int, columns: int, farthest: float, wishes: Wishes) -> Settings:
    """The settings for a prepared table.

    Args:
        farthest: largest absolute value of the prepared table, which the chain's bounds contain.
    """
    copies = max(1, ROWS // rows)
    batch = min(wishes.batch, rows * copies)
    iterations = wishes.iterations or 200
    per_epoch = max(1, min(rows * copies // batch, iterations))
    bound = max(5.0, 1.1 * farthest)
    training = TrainingConfig(
        epochs=math.ceil(iterations / per_epoch),
        iterations=iterations,
        batch=batch,
        learning_rate=RATIO * wishes.learning_rate,
        schedule="cosine",
        warmup=min(50, iterations // 4),
        average=0.98,
        gradient_clip=100.0,
    )
    return Settings(
        NetworkConfig(
            latent=wishes.latent or automatic_latent(columns), hidden=wishes.hidden or (128, 128), activation="gelu"
        ),
        Schedules(
            PhaseConfig(epochs=0, batch=batch),
            training,
            TemperatureConfig(learning_rate=RATIO * wishes.learning_rate),
            GuardConfig(
                log_every=25,
                checkpoint_every=100,
                largest_gap=3 + math.sqrt(columns),
                smallest_acceptance=0.05,
                calm=1.0,
            ),
            contrast=ContrastConfig(wishes.start_iterations or 2000, batch, wishes.learning_rate),
        ),
        SamplingConfig(
            buffer=max(2048, 2 * batch),
            replay=1.0,
            buffer_space="feature",
            chains_from="data",
            generation=200,
            latent=ChainConfig(steps=0),
            feature=ChainConfig(
                steps=wishes.chain_steps, step_size=0.3 * columns ** (-1 / 3), bounds=(-bound, bound), adapt=0.65
            ),
        ),
        copies,
    )


def automatic_latent(columns: int) -> int:
    """One more than the columns of a small table; at most 16."""
    return min(columns + 1, 16)
