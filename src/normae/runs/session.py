"""Train one run, or several seeds side by side, into run folders; continue what was stopped.

A run with one seed is its own folder. With several seeds the folder holds a run folder `seed-N` for each, and one
checkpoint for all of them, since they advance together. Started with torchrun, all processes train together, and the
first one writes.

One pretraining gives both models. A run with both phases keeps its autoencoder in `pretrained/`, a run folder of its
own; a run with `training.epochs = 0` is one, and any NAE of the same network can start from it. Beside the model lies
`start.safetensors`, the weights as the training held them: with spectral normalization those before the division by
their singular values, whose size decides how far a step of Adam goes. Where it is missing, the finished weights serve.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normae import sources, zoo
from normae.components import ComponentsCoordinates
from normae.conditional import ConditionalCoordinates
from normae.config import Run, beside, choose_device, read
from normae.coordinates import Coordinates, Identity, TableCoordinates, fit_coordinates
from normae.data import SparseEvents
from normae.errors import DataChanged, InputError, decided, refuse
from normae.files import untouched
from normae.lattice import doubtful, find_lattice
from normae.networks import Autoencoder, build_autoencoder
from normae.networks.autoencoder import OWN
from normae.networks.base import Base, BaseConfig, Bases, fit_base
from normae.networks.bayesian import WeightNoise
from normae.networks.conditional import fit_conditional_base
from normae.networks.lattice import on_lattice
from normae.networks.own import copied
from normae.runs.classifier import train_classifier
from normae.runs.folder import RunFolder, locked, read_tensors
from normae.runs.load import load
from normae.runs.writing import Finish, Journal, Prepared, Watch, deadline_in
from normae.sources import OUTSIDE, Events, Weights
from normae.tensors import stream
from normae.training import Schedules, Trainer
from normae.training.backends import Group, processes

MEMBER = 1_000_000  # between the seeds of two members of an ensemble; the first has the run's own
NOT_COMPARED = {"output_start"}  # of the network: what only decides the first weights
HELD_OUT = 2000  # rows of a small validation sample are taken again, each time with other noise, up to about so many
DOUBTS = (
    "few values that repeat, far from each other, in {}: values between them get a probability too; if they are codes, "
    "give them as text",
    "many rows have one and the same value in {}, and the others lie anywhere: p has a narrow peak there, and samples "
    "come near it, not to it; if that matters, train them apart",
)  # of columns, as `doubtful` finds them
Start = tuple[dict[str, Tensor], dict[str, Any]]  # rows of `State.start`, or weights by name; and what is said of them


def train(
    config: Run, out: str | Path, seeds: Sequence[int] | None = None, resume: bool = False, watch: Watch | None = None,
    minutes: float | None = None, events: Events | None = None, own: Autoencoder | None = None,
) -> bool:  # fmt: skip
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
    deadline = deadline_in(minutes)
    group, config = RunFolder(out), placed(config, events is None)
    configs = [config] if seeds is None else [replace(config, seed=seed) for seed in seeds]
    folders = [group] if seeds is None else [RunFolder(group.path / f"seed-{seed}") for seed in seeds]
    refuse(len({c.seed for c in configs}) != len(configs), f"seeds: expected different seeds, got {list(seeds or [])}")
    refuse(config.modes, "expected [bayesian] or [ensemble]; train Bayesian seeds and join them with `normae ensemble`")
    refuse((config.network.kind == "own") != (own is not None), OWN)
    check = partial(_check_folder, group, folders, configs, resume)
    if config.classifier is not None:
        refuse(seeds is not None, "seeds: a classifier is trained one at a time; use --set seed=N")
        check()
        return train_classifier(config, group, watch, deadline, check)
    if config.base is not None and seeds is not None:  # each has a base of its own, and cannot be side by side
        more = (watch, minutes, events, own)
        pairs = zip(configs, folders, strict=True)
        return all(train(c, folder.path, None, resume and folder.config.exists(), *more) for c, folder in pairs)
    with processes() as team:
        if team.rank == 0:
            check()
        choose_device(config.device)  # one that is not there is refused before the events are read
        known = {"jets_sha256": sources.jets_hashes(config.data)}  # before they are read
        raw = [sources.load_events(c.data, c.seed, None, known) if events is None else events for c in configs]
        runs = [prepare(c, one) for c, one in zip(configs, raw, strict=True)]
        event = tuple(runs[0].events.train.shape[1:])
        if config.log_z is not None and len(event) != 1:  # it could not be done when the training is over
            raise InputError(f"log_z: expected events that are vectors, got events of shape {event}")
        begins = config.start is not None and not group.checkpoints
        starts = [read_start(c, event) for c in configs] if begins else None
        replicas = 1 if config.ensemble is None else config.ensemble.members
        with locked(group.path) if team.rank == 0 else nullcontext():
            if team.rank == 0:
                check()
            hashes = [sources.events_hash(one) for one in raw]
            journal = Journal(group, folders, configs, hashes, replicas, team, known["jets_sha256"])
            return _sit(_trainer(configs, runs, team, own), journal, runs, starts, watch, deadline)


def _trainer(configs: list[Run], runs: list[Prepared], team: Group, own: Autoencoder | None) -> Trainer:
    """All models of all runs, side by side."""
    first, of, event = configs[0], configs[0].network, tuple(runs[0].events.train.shape[1:])
    seeds = [seed for config in configs for seed in member_seeds(config)]
    networks = [build_autoencoder(of, event, stream(n, "init")) if own is None else copied(own, of) for n in seeds]
    for network in networks:
        network.base = Bases(m.base for m in runs[0].members if m.base) if runs[0].members else runs[0].base
    phases = (first.pretraining, first.training, first.temperature, first.guard, first.bayesian, first.contrast)
    both = zip(configs, runs, strict=True)
    repeated = [e for c, run in both for e in [m.events for m in run.members] or member_events(c, run.events)]
    samples: Any = [e.train for e in repeated]  # all dense or all sparse
    held: Any = [e.validation for e in repeated if e.validation is not None] or None
    pairs = [(e.weights.train, e.weights.validation) for e in repeated if e.weights is not None]
    weights: Any = tuple(zip(*pairs, strict=True)) or None
    device = choose_device(first.device)
    return Trainer(networks, samples, Schedules(*phases), first.sampling, seeds, device, team, held, weights)


def _sit(
    trainer: Trainer, journal: Journal, runs: list[Prepared], starts: list[Start] | None, watch: Watch | None,
    deadline: float | None,
) -> bool:  # fmt: skip
    """One sitting of a training: from new or from a checkpoint, until the end or an interruption."""
    if all(folder.finished() for folder in journal.folders):
        for folder, digest in zip(journal.folders, journal.hashes, strict=True):
            if folder.read_provenance()["data_sha256"] != digest:
                raise DataChanged(f"{folder.path}: finished, with other data; choose another folder")
        return True
    if not journal.open(trainer) and starts is not None:
        journal.start = [facts for _, facts in starts]
        trainer.begin_with(joined(starts, trainer.setup.noise, journal.replicas))
    finishes = [Finish(trainer, journal, run, k) for k, run in enumerate(runs)]
    finished = journal.follow(trainer, watch, deadline, finishes)
    if finished and journal.team.rank == 0:
        for finish in finishes:
            finish.write()
        for finish in finishes:
            finish.check_log_z()
    return finished


def _check_folder(group: RunFolder, folders: list[RunFolder], configs: list[Run], resume: bool) -> None:
    """Nothing is overwritten: a folder must be new, or hold this very configuration and be resumed."""
    refuse(group.path.exists() and not group.path.is_dir(), f"{group.path}: a file, not a folder; choose another name")
    if not any(folder.config.exists() for folder in folders):
        refuse(resume and not group.path.exists(), f"{group.path}: nothing to resume; leave out --resume (resume=True)")
        if group.path.exists() and not untouched(group.path):
            others = group.config.exists() or group.members()
            why = "holds runs with other seeds" if others else "exists and is not a run folder"
            raise InputError(f"{group.path}: {why}; choose another folder")
        return
    for folder, config in zip(folders, configs, strict=True):
        missing = not folder.config.exists()
        if (missing and group.checkpoints) or (not missing and read(folder.config) != beside(config, folder.path)):
            raise InputError(f"{folder.path}: holds a run with another configuration; choose another folder")
    refuse(not resume, f"{group.path}: holds this run already; add --resume (resume=True), or choose another folder")


def placed(config: Run, reads: bool) -> Run:
    """The run with absolute paths, so that it does not follow the current folder; of its data where it `reads` them."""

    def absolute(name: str | None) -> str | None:
        return str(Path(name).resolve()) if name is not None and Path(name).exists() else name

    start = config.start if config.start in zoo.names() else absolute(config.start)
    file, path = (absolute(name) if reads else name for name in (config.data.file, config.data.path))
    return replace(config, start=start, data=replace(config.data, file=file, path=path))


def member_seeds(config: Run) -> list[int]:
    """Of the members of an ensemble, or the run's own."""
    return [config.seed + MEMBER * k for k in range(1 if config.ensemble is None else config.ensemble.members)]


def member_events(config: Run, events: Events) -> list[Events]:
    """What each member of an ensemble is trained on, or the run's own events."""
    seeds, how = member_seeds(config), "all" if config.ensemble is None else config.ensemble.events
    if how == "split":
        return sources.in_parts(events, len(seeds), config.seed)
    if how == "half":  # in pairs, the two halves of one cut
        return [half for seed in seeds[::2] for half in sources.halved(events, seed)][: len(seeds)]
    return [sources.bootstrapped(events, seed) if how == "bootstrap" else events for seed in seeds]


# --- the events of a training


def prepare(config: Run, events: Events, whole: Coordinates | None = None) -> Prepared:
    """Fit the coordinates to training rows, which may be some of those of `whole`; refuse rows that cannot be used."""
    seen = [part for part in (events.train, events.validation) if isinstance(part, Tensor)]
    weights = None if events.weights is None else torch.cat(events.weights[: len(seen)])
    coordinates = _fitted(config, events, seen, weights, whole)
    if isinstance(events.train, SparseEvents) and config.coordinates.kind == "identity":
        return Prepared(coordinates, events)
    prepared = _in_coordinates(config, events, coordinates)
    assert isinstance(prepared.train, Tensor)
    same = config.coordinates.kind == "identity"
    bounded = same and config.data.file is not None  # p is zero beyond the bounds, also of rows held out
    columns, source = events.columns if same else None, config.data.file or "training sample"
    held = [rows.float() for rows in (events.validation, events.test) if isinstance(rows, Tensor)] if bounded else []
    for rows in [prepared.train, *filter(len, held)]:
        sources.check_rows(rows, config.sampling.feature.bounds, columns, source, 0 if bounded else OUTSIDE)
    if not config.halves:
        return Prepared(coordinates, prepared, _base(config, prepared, seen, coordinates, weights))
    halves = zip(member_seeds(config), member_events(config, events), strict=True)
    members = [prepare(config.alone(seed), half, coordinates) for seed, half in halves]
    return Prepared(coordinates, prepared, None, members)


def _fitted(
    config: Run, events: Events, seen: list[Tensor], weights: Tensor | None, whole: Coordinates | None
) -> Coordinates:
    """The coordinates of a run, from its training and validation rows where they are a table."""
    if isinstance(whole, ComponentsCoordinates):  # of others, each member has a density of its own rows
        return whole
    if isinstance(events.train, SparseEvents):
        wanted = config.coordinates.components
        if wanted is None or wanted.basis in ("jets", "own"):
            return Identity() if wanted is None else ComponentsCoordinates.of(wanted, events.train)
        known = load(wanted.basis).coordinates
        if not isinstance(known, ComponentsCoordinates):
            raise InputError(f"coordinates.components.basis: expected a run in components, got {wanted.basis}")
        return known.first(wanted, wanted.basis)
    table = torch.cat(seen) if config.data.file is not None and events.train.ndim == 2 else None
    lattice = whole.lattice if isinstance(whole, TableCoordinates) else None
    if table is not None and config.on_lattice and lattice is None:
        lattice = find_lattice(table.numpy(), [len(words) for words in config.data.categories])
        names = events.columns or [str(j) for j in range(table.shape[1])]
        for found, words in zip(doubtful(table.numpy(), lattice), DOUBTS, strict=True):
            if found:
                decided(words.format(", ".join(repr(names[j]) for j in found[:5]) + ", ..." * (len(found) > 5)))
    if table is not None and (given := config.coordinates.condition):
        return ConditionalCoordinates.of(table, given, config.coordinates.noise, lattice)
    return fit_coordinates(config.coordinates, table, weights, lattice)


def _base(
    config: Run, events: Events, seen: list[Tensor], coordinates: Coordinates, weights: Tensor | None
) -> Base | None:
    """The base of the training and validation events y, and rows x of a table, where the run asks for one."""
    if config.base is None or isinstance(coordinates, Identity):
        return None
    given: BaseConfig = config.base
    unseen = coordinates.unseen(torch.cat(seen)) if isinstance(coordinates, TableCoordinates) else 0.0

    def fit(y: Tensor, places: Tensor | None = None) -> Base:
        generator = stream(config.seed, "base")
        if isinstance(coordinates, ConditionalCoordinates):
            return fit_conditional_base(y, coordinates, given, generator, places)
        assert isinstance(coordinates, TableCoordinates | ComponentsCoordinates)
        return fit_base(y, coordinates.colouring, given, generator, weights, places, unseen)

    if isinstance(coordinates, TableCoordinates | ConditionalCoordinates) and bool((coordinates.lattice[1] > 0).any()):
        return on_lattice(coordinates, torch.cat(seen), fit, stream(config.seed, "base/cells"))
    return fit(torch.cat([part for part in (events.train, events.validation) if isinstance(part, Tensor)]))


def _in_coordinates(config: Run, events: Events, coordinates: Coordinates) -> Events:
    """What the network sees of the events; rows of small samples several times, each with other noise."""

    def seen(rows: Tensor | SparseEvents, copies: int, name: str) -> Tensor:
        if isinstance(rows, SparseEvents):
            assert isinstance(coordinates, ComponentsCoordinates)
            y = coordinates.rows(rows)
        else:
            y = coordinates.forward(rows)
            if config.base is not None or isinstance(coordinates, Identity):  # kernels are wide enough, and no noise
                return y.float()
        generator: torch.Generator = stream(config.seed, f"data/noise/{name}")
        return coordinates.noisy(y, copies, generator).float()

    def weights() -> Weights | None:
        if (found := events.weights) is None:
            return None
        pairs = zip(found, (prepared.train, prepared.validation), strict=False)
        train, validation = (own if rows is None else own.repeat(len(rows) // len(own)) for own, rows in pairs)
        return Weights(train, validation, found.test)

    prepared = Events(
        lambda: seen(events.train, config.coordinates.copies, "train"),
        lambda: None if (own := events.validation) is None else seen(own, max(1, HELD_OUT // len(own)), "validation"),
        lambda: coordinates.forward(events.test).float(),
        columns=lambda: events.columns,
        weights=weights,
    )
    return prepared


# --- the autoencoder of another run to begin with


def read_start(config: Run, event: tuple[int, ...]) -> Start:
    """What `config.start` names, checked against the run that begins with it; of several seeds, the run's own."""
    name = str(config.start)
    folder = zoo.path(name) if name in zoo.names() else Path(name)
    if (folder / f"seed-{config.seed}").is_dir():
        folder = folder / f"seed-{config.seed}"
    refuse(not folder.is_dir(), f"start: {zoo.unknown(name)}")
    run = RunFolder.existing(folder)
    given = read(run.config)
    named, header = read_tensors(run.model)
    _check_start(config, given, name)
    found = tuple(header.get("event", ()))
    refuse(found != event, f"start: {name} has events of shape {found}, expected {event}")
    tensors = read_tensors(run.start)[0] if run.start.is_file() else named
    digest = sha256(b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors))).hexdigest()
    return tensors, {"run": name, "name": given.name, "seed": given.seed, "sha256": digest}


def _check_start(config: Run, given: Run, name: str) -> None:
    refuse(given.classifier is not None, f"start: {name} is a classifier, expected an autoencoder")
    refuse(given.modes, f"start: {name} is a mixture of several trainings, expected one of them")
    for field in fields(config.network):
        mine, theirs = getattr(config.network, field.name), getattr(given.network, field.name)
        differs = mine != theirs and field.name not in NOT_COMPARED
        wanted = f"{mine} as in this configuration; start from an autoencoder of the same network"
        refuse(differs, f"start: {name} has network.{field.name} = {theirs}, expected {wanted}")
    mine, theirs = (run.bayesian and run.bayesian.layers for run in (config, given))
    if mine != theirs:
        found, wanted = ("deterministic" if which is None else f"Bayesian ({which})" for which in (theirs, mine))
        raise InputError(f"start: {name} is {found}, expected {wanted} as this configuration is")


def joined(starts: list[Start], noise: WeightNoise, replicas: int) -> dict[str, Tensor]:
    """Rows for all models side by side, as `Trainer.begin_with` takes them; each start serves `replicas` of them."""
    rows = [given if "weights" in given else {"weights": noise.row(given)[None]} for given, _ in starts]
    parts = {kind: [row[kind] for row in rows] for kind in set.intersection(*(set(row) for row in rows))}
    return {
        kind: torch.cat([part if len(part) == replicas else part[:1].expand(replicas, -1) for part in found])
        for kind, found in parts.items()
    }
