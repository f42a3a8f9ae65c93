"""Iterations of a training as `normae train` runs them, as something to be timed."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from normae.bench.timing import Work
from normae.config import Run
from normae.data import SparseEvents
from normae.networks import Autoencoder, build_autoencoder
from normae.random import stream
from normae.training import Schedules, Trainer
from normae.training.backends import choose_backend

BACKENDS = {"cpu": ("reference", "explicit"), "cuda": ("reference", "explicit", "graph", "fused")}
ENDLESS = 1_000_000


def network(run: Run, event: Sequence[int]) -> Autoencoder:
    """The untrained network of a run."""
    return build_autoencoder(run.network, tuple(event), stream(run.seed, "init"))


def backends(run: Run, event: Sequence[int], device: torch.device) -> list[str]:
    """The backends that serve this network on this device, the fastest last."""
    model = network(run, event)
    return [n for n in BACKENDS[device.type] if choose_backend(n, model, run.sampling, device).name == n]


def iterations(
    run: Run, events: Tensor | SparseEvents, backend: str, device: torch.device, block: int, pretraining: bool = False
) -> Work:
    """`block` iterations of a training that has just begun."""
    guard = replace(run.guard, log_every=block, checkpoint_every=ENDLESS * block)
    first = replace(run.pretraining, epochs=ENDLESS if pretraining else 0)
    second = replace(run.training, epochs=ENDLESS)
    schedules = Schedules(first, second, run.temperature, guard, run.bayesian)
    sampling = replace(run.sampling, backend=backend)  # type: ignore[arg-type]
    models = [network(run, events.shape[1:])]
    samples = [events] if isinstance(events, Tensor) else [events.to(device)]
    trainer = Trainer(models, samples, schedules, sampling, [0], device)  # type: ignore[arg-type]
    happenings = trainer.run()
    next(happenings)
    while not pretraining and trainer.place[0] == "pretraining":
        next(happenings)
    return lambda: next(happenings)


def repeated(work: Work, n: int) -> Work:
    """`work` n times."""

    def several() -> None:
        for _ in range(n):
            work()

    return several
