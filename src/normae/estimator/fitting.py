"""One training on a prepared table."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from normae.estimator.settings import Settings
from normae.networks.autoencoder import Autoencoder, build_autoencoder
from normae.random import stream
from normae.sampling.config import SamplingConfig
from normae.training import Trainer


class Fitted(NamedTuple):
    """What a training leaves.

    Args:
        autoencoder: in float64, so that a row's score does not depend on the rows that are scored with it.
        chains: end points of the persistent chains, with shape (M, d).
        sampling: with the step size that the training ended with.
        iterations: of the start, after which its weights were best.
        tries: one, and one for each return to an earlier place.
    """

    autoencoder: Autoencoder
    temperature: float
    chains: Tensor
    sampling: SamplingConfig
    iterations: int
    tries: int


def fit(train: Tensor, held_out: Tensor, settings: Settings, seed: int, device: torch.device) -> Fitted:
    """Train on prepared rows with shape (N, d), float32; the start stops where it suits `held_out`, (M, d), best."""
    network = build_autoencoder(settings.network, (train.shape[1],), stream(seed, "init"))
    trainer = Trainer([network], [train], settings.schedules, settings.sampling, [seed], device, validation=[held_out])
    for _ in trainer.run():
        pass
    weights, temperatures, sizes = trainer.models.result()
    trainer.setup.layout.load(network, weights[0].cpu())
    feature = replace(settings.sampling.feature, step_size=float(sizes[1, 0]))
    return Fitted(
        network.double(),
        float(temperatures[0]),
        trainer.models.buffer.storage[0].cpu().clone(),
        replace(settings.sampling, feature=feature),
        int(trainer.models.extra["contrast.found"]),
        1 + int(trainer.rollbacks),
    )
