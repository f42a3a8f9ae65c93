"""How many events are scored a second, from memory, against the plain network as it is written.

Every kind of event in the zoo is measured, so a model of jets is, as soon as there is one.
"""

import numpy as np
import torch

from normae import zoo
from normae.bench.timing import Report, interleaved
from normae.config import read
from normae.inference import Model
from normae.random import stream
from normae.runs.folder import RunFolder
from normae.runs.load import load

GROUP = "scoring"
VALUES = 2_000_000
"""Of all events of a measurement together."""


def scoring(device: torch.device, quick: bool, rounds: int) -> Report:
    """Measure one deterministic model of the zoo for each shape of events."""
    report = Report()
    models: dict[tuple[int, ...], Model] = {}
    for name in zoo.names():
        config = read(RunFolder(zoo.path(name)).config)
        if config.classifier is None and not config.posteriors:
            model = load(name, str(device))
            models.setdefault(model.event, model)
    for model in models.values():
        n = 100 if quick else max(2000, VALUES // int(np.prod(model.event)))
        _score(report, model, n, device, rounds)
    return report


def _score(report: Report, model: Model, n: int, device: torch.device, rounds: int) -> None:
    x = torch.randn(n, *model.event, generator=stream(0, "bench/scoring"))
    array = x.numpy()

    def plainly() -> torch.Tensor:
        with torch.no_grad():
            pieces = [(b - model.autoencoder(b)).square().flatten(1).mean(1).cpu() for b in x.to(device).split(2048)]
        return torch.cat(pieces)

    times = interleaved({"ours": lambda: model.score(array), "plain": plainly}, rounds, device)
    group = f"{GROUP} {model.name}"
    report.rates(group, times, n)
    report.faster(group, times, "ours", "plain")
