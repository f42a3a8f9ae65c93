"""From the events of a run to what its training sees: in coordinates, with noise, in float32."""

from typing import NamedTuple

import torch
from torch import Tensor

from normae.config import Run
from normae.coordinates import Coordinates, fit_coordinates
from normae.data import SparseEvents, check_events
from normae.random import stream
from normae.sources import Events, check_rows

HELD_OUT = 2000
"""Rows of a small validation sample are taken again, each time with other noise, up to about so many."""


class Prepared(NamedTuple):
    """The coordinates of a run, and its events in them: what a training sees."""

    coordinates: Coordinates
    events: Events


def prepare(config: Run, events: Events) -> Prepared:
    """Fit the coordinates to the training rows; one sentence where they cannot be trained on."""
    if isinstance(events.train, SparseEvents):
        return Prepared(fit_coordinates(config.coordinates, None), events)
    source = config.data.file or "training sample"
    check_events(events.train, source)
    table = config.data.file is not None and events.train.ndim == 2
    coordinates = fit_coordinates(config.coordinates, events.train if table else None)
    prepared = _in_coordinates(config, events, coordinates)
    assert isinstance(prepared.train, Tensor)
    columns = events.columns if config.coordinates.kind == "identity" else None
    check_rows(check_events(prepared.train, source), config.sampling.feature.bounds, columns, source)
    return Prepared(coordinates, prepared)


def _in_coordinates(config: Run, events: Events, coordinates: Coordinates) -> Events:
    if config.coordinates.kind == "identity":
        return events.mapped(Tensor.float)

    def noisy(rows: Tensor, copies: int, name: str) -> Tensor:
        generator: torch.Generator = stream(config.seed, f"data/noise/{name}")
        return coordinates.noisy(coordinates.forward(rows), copies, generator).float()

    def train() -> Tensor:
        assert isinstance(events.train, Tensor)
        return noisy(events.train, config.coordinates.copies, "train")

    def validation() -> Tensor | None:
        rows = events.validation
        return noisy(rows, max(1, HELD_OUT // len(rows)), "validation") if isinstance(rows, Tensor) else None

    return Events(train, validation, lambda: coordinates.forward(events.test).float(), None, lambda: events.columns)
