"""How many events are scored a second, from memory, against the plain network as it is written.

Every kind of event in the zoo is measured, so a model of jets is, as soon as there is one.
"""

import numpy as np
import torch

from normae import zoo
from normae.bench.timing import Result, interleaved
from normae.bench.works import plain_energies
from normae.config import read
from normae.inference import Model
from normae.random import stream
from normae.runs.folder import RunFolder
from normae.runs.load import load

GROUP = "scoring"
VALUES = 2_000_000  # of all events of a measurement together


def scoring(report: Result, device: torch.device, quick: bool, rounds: int) -> None:
    """Measure one deterministic model of the zoo for each shape of events."""
    models: dict[tuple[int, ...], Model] = {}
    for name in zoo.names():
        config = read(RunFolder(zoo.path(name)).config)
        if config.classifier is None and not config.posteriors:
            model = load(name, str(device))
            models.setdefault(model.event, model)
    for model in models.values():
        n = 100 if quick else max(2000, VALUES // int(np.prod(model.event)))
        _score(report, model, n, device, rounds)


def _score(report: Result, model: Model, n: int, device: torch.device, rounds: int) -> None:
    x = torch.randn(n, *model.event, generator=stream(0, "bench/scoring"))

    def plainly() -> torch.Tensor:
        return plain_energies(lambda b: (b - model.autoencoder(b)).square().flatten(1).mean(1), x, 2048, device)

    times = interleaved({"ours": lambda: model.score(x.numpy()), "plain": plainly}, rounds, device)
    group = f"{GROUP} {model.name}"
    report.rates(group, times, n)
    report.faster(group, times, "ours", "plain")
