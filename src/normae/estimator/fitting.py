"""One training on a prepared table, with another try at a smaller rate where it runs away."""

import logging
import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from normae.errors import TrainingDiverged
from normae.estimator.contrast import Contrast, contrast
from normae.estimator.settings import Settings
from normae.networks.autoencoder import Autoencoder, build_autoencoder
from normae.networks.mlp import MLP
from normae.networks.reconstruction import ReconstructionEnergy
from normae.random import stream
from normae.sampling.chain import run_chain
from normae.sampling.config import SamplingConfig
from normae.sampling.manifold import into_bounds
from normae.training.trainer import Checkpoint, Trainer

log = logging.getLogger(__name__)

TRIES = 3
BACKOFF = 0.3
"""Factor on the learning rate for each further try."""
TUNING = 40
"""Short chains that find the step size before the first update."""
START = 0.1
"""Factor on the last layer's initial weights: f(x) is near 0 when training begins."""


class Fitted(NamedTuple):
    """What a training leaves.

    Args:
        autoencoder: in float64, so that a row's score does not depend on the rows that are scored with it.
        chains: end points of the persistent chains, with shape (M, d).
        sampling: with the step size that the training ended with.
        start: what the classification against a Gaussian found.
        tries: trainings that were begun.
    """

    autoencoder: Autoencoder
    temperature: float
    chains: Tensor
    sampling: SamplingConfig
    start: Contrast
    tries: int


def fit(train: Tensor, held_out: Tensor, settings: Settings, seed: int, device: torch.device) -> Fitted:
    """Train on prepared rows with shape (N, d), float32; the start stops where it suits `held_out`, (M, d), best."""
    reason = ""
    for attempt in range(1, TRIES + 1):
        try:
            return _train(train.to(device), held_out.to(device), settings, seed + attempt - 1, attempt)
        except TrainingDiverged as error:
            reason = str(error)
            log.warning("the training ran away (%s); once more with %g times the learning rate", error, BACKOFF)
            settings = _slower(settings)
    raise TrainingDiverged(
        f"{TRIES} trainings ran away, the last with learning_rate = {settings.learning_rate / BACKOFF:.2g} "
        f"({reason}); look for extreme values in the table, or give more rows"
    )


def _slower(settings: Settings) -> Settings:
    training, temperature = settings.schedules.training, settings.schedules.temperature
    schedules = replace(
        settings.schedules,
        training=replace(training, learning_rate=BACKOFF * training.learning_rate),
        temperature=replace(temperature, learning_rate=BACKOFF * temperature.learning_rate),
    )
    return replace(settings, schedules=schedules, learning_rate=BACKOFF * settings.learning_rate)


def _train(train: Tensor, held_out: Tensor, settings: Settings, seed: int, attempt: int) -> Fitted:
    network = _new_network(settings, train.shape[1], seed).to(train.device)
    batch = settings.schedules.training.batch
    start = contrast(network, train, held_out, settings.start_iterations, batch, settings.learning_rate, seed)
    if not math.isfinite(start.loss):
        raise TrainingDiverged("the loss of the rows held out is not finite")
    temperature = replace(settings.schedules.temperature, initial=start.temperature)
    schedules = replace(settings.schedules, temperature=temperature)
    if settings.rows < len(train):
        generator = stream(seed, "rows", train.device)
        train = train[torch.randperm(len(train), generator=generator, device=train.device)[: settings.rows]]
    first = torch.randint(len(train), (settings.sampling.buffer,), generator=stream(seed, "chains"))
    chains = into_bounds(train[first.to(train.device)], settings.sampling.feature)
    size = _walked(network, start.temperature, chains[:256], settings.sampling, seed)
    sampling = replace(settings.sampling, feature=replace(settings.sampling.feature, step_size=size))
    trainer = Trainer([network], [train], schedules, sampling, [seed], train.device)
    for happening in trainer.run():
        if isinstance(happening, Checkpoint) and happening == ("training", 0):
            trainer.buffer.storage.copy_(chains[None])
    weights, temperatures, sizes = trainer.result()
    network.load_state_dict({name: view[0] for name, view in trainer.layout.views(weights).items()})
    feature = replace(sampling.feature, step_size=float(sizes[1, 0]))
    return Fitted(
        network.cpu().double(),
        float(temperatures[0]),
        trainer.buffer.storage[0].cpu().clone(),
        replace(sampling, feature=feature),
        start,
        attempt,
    )


def _new_network(settings: Settings, columns: int, seed: int) -> Autoencoder:
    network = build_autoencoder(settings.network, (columns,), stream(seed, "init"))
    assert isinstance(network.decoder, MLP)
    with torch.no_grad():
        for parameter in network.decoder.layers[-1].parameters():
            parameter.mul_(START)
    return network


def _walked(network: Autoencoder, temperature: float, rows: Tensor, sampling: SamplingConfig, seed: int) -> float:
    """The step size with which a chain from rows with shape (N, d) is accepted as often as it should be."""
    chain = replace(sampling.feature, steps=2)
    energy = ReconstructionEnergy(network)
    generator = stream(seed, "step size", rows.device)
    size, position = math.log(chain.step_size), into_bounds(rows, chain)
    for _ in range(TUNING):
        end = run_chain(energy, position, replace(chain, step_size=math.exp(size)), temperature, generator)
        position = end.position
        size += 0.5 * (float(end.acceptance.mean()) - (chain.adapt or 0.65))
    return math.exp(size)
