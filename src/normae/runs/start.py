"""What a training begins with: its events in coordinates, and where asked for the autoencoder of another run.

One pretraining gives both models. A run with both phases keeps its autoencoder in `pretrained/`, a run folder of its
own; a run with `training.epochs = 0` is an autoencoder, and any NAE of the same network can start from it. Beside the
model lies `start.safetensors`, the weights as the training held them: with spectral normalization those before the
division by their singular values, whose size decides how far a step of Adam goes. Where that file is missing
(a model of the zoo has it only where it fits), the finished weights serve; the network is the same, the first steps are
not.
"""

from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normae import zoo
from normae.config import Run, read
from normae.coordinates import Coordinates, fit_coordinates
from normae.data import SparseEvents
from normae.errors import InputError
from normae.random import stream
from normae.runs.folder import RunFolder, read_tensors, write_tensors
from normae.sources import Events, check_rows
from normae.training.setup import WeightNoise

NOT_COMPARED = {"output_start"}
"""Of the network: what only decides the first weights."""


class Start(NamedTuple):
    """Rows of weights as `Trainer.start` gave them, or weights by name, and what provenance.json says about them."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def pretrained_config(config: Run) -> Run:
    """The configuration of the autoencoder inside a run: the same without its NAE phase."""
    training = replace(config.training, epochs=0)
    return replace(config, name=f"{config.name}-pretrained", training=training, laplace=None, log_z=None, start=None)


def write_start(folder: RunFolder, start: dict[str, Tensor], members: slice) -> None:
    """Write the rows of a run's models, where `start` holds those of all models that are trained side by side."""
    write_tensors(folder.start, {name: tensor[members] for name, tensor in start.items()}, {})


def read_start(config: Run, event: tuple[int, ...]) -> Start:
    """What `config.start` names, checked against the run that begins with it; of several seeds, the run's own."""
    name = str(config.start)
    folder = zoo.path(name) if name in zoo.names() else Path(name)
    if (folder / f"seed-{config.seed}").is_dir():
        folder = folder / f"seed-{config.seed}"
    if not folder.is_dir():
        raise InputError(f"start: {name}: neither a run folder nor a model of the zoo ({', '.join(zoo.names())})")
    run = RunFolder.existing(folder)
    given = read(run.config)
    named, header = read_tensors(run.model)
    _check(config, given, name)
    if tuple(header.get("event", ())) != event:
        raise InputError(f"start: {name} has events of shape {tuple(header.get('event', ()))}, expected {event}")
    tensors = read_tensors(run.start)[0] if run.start.is_file() else named
    digest = sha256(b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors))).hexdigest()
    return Start(tensors, {"run": name, "name": given.name, "seed": given.seed, "sha256": digest})


def _check(config: Run, given: Run, name: str) -> None:
    """One sentence where the networks differ."""
    if given.classifier is not None:
        raise InputError(f"start: {name} is a classifier, expected an autoencoder")
    if given.modes:
        raise InputError(f"start: {name} is a mixture of several trainings, expected one of them")
    for field in fields(config.network):
        mine, theirs = getattr(config.network, field.name), getattr(given.network, field.name)
        if mine != theirs and field.name not in NOT_COMPARED:
            raise InputError(
                f"start: {name} has network.{field.name} = {theirs}, expected {mine} as in this configuration; "
                "start from an autoencoder of the same network"
            )
    mine, theirs = (run.bayesian and run.bayesian.layers for run in (config, given))
    if mine != theirs:
        found, wanted = ("deterministic" if which is None else f"Bayesian ({which})" for which in (theirs, mine))
        raise InputError(f"start: {name} is {found}, expected {wanted} as this configuration is")


def joined(starts: list[Start], noise: WeightNoise, replicas: int) -> dict[str, Tensor]:
    """Rows for all models side by side, as `Trainer.begin_with` takes them; each start serves `replicas` of them."""
    rows = [_rows(start.tensors, noise, replicas) for start in starts]
    kinds = set.intersection(*(set(row) for row in rows))
    return {kind: torch.cat([row[kind] for row in rows]) for kind in kinds}


def _rows(tensors: dict[str, Tensor], noise: WeightNoise, replicas: int) -> dict[str, Tensor]:
    if "weights" not in tensors:
        return {"weights": noise.row(tensors)[None].expand(replicas, -1)}
    return {
        kind: tensor if len(tensor) == replicas else tensor[:1].expand(replicas, -1) for kind, tensor in tensors.items()
    }


# --- events

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
    table = config.data.file is not None and events.train.ndim == 2
    coordinates = fit_coordinates(config.coordinates, events.train if table else None)
    prepared = _in_coordinates(config, events, coordinates)
    assert isinstance(prepared.train, Tensor)
    columns = events.columns if config.coordinates.kind == "identity" else None
    check_rows(prepared.train, config.sampling.feature.bounds, columns, source)
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
