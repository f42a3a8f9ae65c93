"""Train one run, or several seeds side by side, into run folders; continue what was stopped.

A run with one seed is its own folder. With several seeds the folder holds a run folder `seed-N` for each, and one
checkpoint for all of them, since they advance together. Started with torchrun, all processes train together, and the
first one writes.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from normae.config import Run, beside, read
from normae.errors import InputError
from normae.networks import Autoencoder, build_autoencoder
from normae.networks.autoencoder import OWN
from normae.networks.own import copied
from normae.random import stream
from normae.runs.classifier import train_classifier
from normae.runs.finishing import Finish
from normae.runs.folder import RunFolder, locked
from normae.runs.start import Prepared, Start, joined, prepare, read_start
from normae.runs.writing import Journal, Watch, check_minutes
from normae.sources import (
    Events,
    bootstrapped,
    events_hash,
    in_parts,
    load_events,
    training_samples,
    validation_samples,
)
from normae.tensors import choose_device
from normae.training import Schedules, Trainer
from normae.training.backends import Group, processes

MEMBER = 1_000_000
"""Between the seeds of two members of an ensemble; the first has the run's own."""


def train(
    config: Run,
    out: str | Path,
    seeds: Sequence[int] | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    minutes: float | None = None,
    events: Events | None = None,
    own: Autoencoder | None = None,
) -> bool:
    """Train into the folder `out`.

    Args:
        config: the run; its seed is used where `seeds` is None.
        seeds: train these seeds side by side, each into `out`/seed-N.
        resume: continue a training that was stopped.
        watch: called with everything that happens.
        minutes: stop after so much time, from the call on, with a checkpoint.
        events: in memory, in place of what `config.data` names.
        own: networks of the user, for network.kind = "own"; they stay as they are.

    Returns:
        Whether the training is finished; False if it was interrupted or out of time, and can be resumed.
    """
    begun = time.monotonic()
    check_minutes(minutes)
    group = RunFolder(out)
    configs = [config] if seeds is None else [replace(config, seed=seed) for seed in seeds]
    folders = [group] if seeds is None else [RunFolder(group.path / f"seed-{seed}") for seed in seeds]
    if len({c.seed for c in configs}) != len(configs):
        raise InputError(f"seeds: expected different seeds, got {list(seeds or [])}")
    if config.modes:
        raise InputError("expected [bayesian] or [ensemble]; train Bayesian seeds and join them with `normae ensemble`")
    if (config.network.kind == "own") != (own is not None):
        raise InputError(OWN)
    if config.classifier is not None:
        if seeds is not None:
            raise InputError("seeds: a classifier is trained one at a time; use --set seed=N")
        _check_folder(group, folders, configs, resume)
        return train_classifier(config, group, watch, minutes)
    with processes() as team:
        if team.rank == 0:
            _check_folder(group, folders, configs, resume)
        device = choose_device(config.device)
        runs = [prepare(c, load_events(c.data, c.seed) if events is None else events) for c in configs]
        event = tuple(runs[0].events.train.shape[1:])
        _check_events(config, len(runs[0].events.train), event)
        begins = config.start is not None and not group.checkpoint.exists()
        starts = [read_start(c, event) for c in configs] if begins else None
        replicas = 1 if config.ensemble is None else config.ensemble.members
        with locked(group.path) if team.rank == 0 else nullcontext():
            if team.rank == 0:
                _check_folder(group, folders, configs, resume)
            hashes = [events_hash(run.events.train) for run in runs]
            journal = Journal(group, folders, configs, hashes, replicas, team)
            trainer = _trainer(configs, [run.events for run in runs], event, device, team, own)
            return _sit(trainer, journal, runs, starts, watch if team.rank == 0 else None, minutes, begun)


def _trainer(
    configs: list[Run],
    events: list[Events],
    event: tuple[int, ...],
    device: torch.device,
    team: Group,
    own: Autoencoder | None,
) -> Trainer:
    """All models of all runs, side by side."""
    first = configs[0]
    seeds = [seed for config in configs for seed in member_seeds(config)]
    networks = [
        build_autoencoder(first.network, event, stream(seed, "init")) if own is None else copied(own, first.network)
        for seed in seeds
    ]
    schedules = Schedules(
        first.pretraining, first.training, first.temperature, first.guard, first.bayesian, first.contrast
    )
    repeated = [e for own in zip(configs, events, strict=True) for e in member_events(*own)]
    samples, held = training_samples(repeated), validation_samples(repeated)
    return Trainer(networks, samples, schedules, first.sampling, seeds, device, team, held)


def _sit(
    trainer: Trainer,
    journal: Journal,
    runs: list[Prepared],
    starts: list[Start] | None,
    watch: Watch | None,
    minutes: float | None,
    begun: float,
) -> bool:
    """One sitting of a training: from new or from a checkpoint, until the end or an interruption."""
    if all(folder.model.exists() for folder in journal.folders):
        return True
    if not journal.open(trainer) and starts is not None:
        journal.start = [start.facts for start in starts]
        trainer.begin_with(joined(starts, trainer.setup.noise, journal.replicas))
    finish = Finish(trainer, journal, runs)
    finished = journal.follow(trainer, watch, minutes, begun, finish.keep_pretrained)
    if finished and journal.team.rank == 0:
        finish.write()
    return finished


def _check_events(config: Run, n: int, event: tuple[int, ...]) -> None:
    """Refuse, before a training begins, what could not be done with its `n` events when it is over."""
    if config.laplace is not None and n < config.laplace.events:
        raise InputError(f"laplace.events: expected at most the {n} training events, got {config.laplace.events}")
    if config.log_z is not None and len(event) != 1:
        raise InputError(f"log_z: expected events that are vectors, got events of shape {event}")


def _check_folder(group: RunFolder, folders: list[RunFolder], configs: list[Run], resume: bool) -> None:
    """Nothing is overwritten: a folder must be new, or hold this very configuration and be resumed."""
    begun = [f for f in folders if f.config.exists()]
    if group.path.exists() and not group.path.is_dir():
        raise InputError(f"{group.path}: a file, not a folder; choose another name")
    if not begun:
        if resume and not group.path.exists():
            raise InputError(f"{group.path}: nothing to resume; leave out --resume")
        if group.path.exists() and any(not p.name.startswith(".") for p in group.path.iterdir() if not _is_empty(p)):
            inside = RunFolder(group.path)
            if inside.config.exists() or inside.members():
                raise InputError(f"{group.path}: holds runs with other seeds; choose another folder")
            raise InputError(f"{group.path}: exists and is not a run folder; choose another folder")
        return
    for folder, config in zip(folders, configs, strict=True):
        missing = not folder.config.exists()
        if (missing and group.checkpoint.exists()) or (
            not missing and read(folder.config) != beside(config, folder.path)
        ):
            raise InputError(f"{folder.path}: holds a run with another configuration; choose another folder")
    if not resume:
        raise InputError(f"{group.path}: holds this run already; add --resume to continue it, or choose another folder")


def _is_empty(path: Path) -> bool:
    """A folder in which a killed job had not yet put a file."""
    return path.is_dir() and all(p.name.startswith(".") for p in path.iterdir())


def member_seeds(config: Run) -> list[int]:
    """Of the members of an ensemble, or the run's own."""
    return [config.seed + MEMBER * k for k in range(1 if config.ensemble is None else config.ensemble.members)]


def member_events(config: Run, events: Events) -> list[Events]:
    """What each member of an ensemble is trained on, or the run's own events."""
    seeds, how = member_seeds(config), "all" if config.ensemble is None else config.ensemble.events
    if how == "split":
        return in_parts(events, len(seeds), config.seed)
    return [bootstrapped(events, seed) if how == "bootstrap" else events for seed in seeds]
