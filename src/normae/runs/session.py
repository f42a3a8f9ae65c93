"""Train one run, or several seeds side by side, into run folders; continue what was stopped.

A run with one seed is its own folder. With several seeds the folder holds a run folder `seed-N` for each, and one
checkpoint for all of them, since they advance together. Started with torchrun, all processes train together, and the
first one writes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.config import Run, read, to_toml
from normae.data import check_events
from normae.errors import InputError, LogZDisagreement
from normae.files import write_json, write_text
from normae.inference import LogZ, Model, annealed_log_z, choose_log_z
from normae.posterior.laplace import fit_laplace
from normae.networks import build_autoencoder
from normae.random import stream
from normae.runs.folder import History, RunFolder, locked, read_tensors, write_tensors
from normae.training import Checkpoint, ClassifierTrainer, Happening, Record, Rollback, Schedules, Trainer
from normae.training.parallel import Group, processes
from normae.runs.classifier import train_classifier
from normae.runs.load import build_model
from normae.runs.baselines import Baselines, baselines
from normae.runs.provenance import machine_facts
from normae.sources import Events, bootstrapped, check_rows, events_hash, in_parts, load_events, training_samples, validation_samples
from normae.tensors import choose_device
from normae.runs.start import Start, joined, pretrained_config, read_start, write_start
from normae.runs.stopping import check_minutes, interruptible, limited

MEMBER = 1_000_000
"""Between the seeds of two members of an ensemble; the first has the run's own."""
BASE_EVENTS = 100_000
"""Most events that the base of annealed importance sampling is fitted to."""
Watch = Callable[[Trainer | ClassifierTrainer, Happening], None]
"""Called with everything that happens, for a display."""


def train(
    config: Run,
    out: str | Path,
    seeds: Sequence[int] | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    minutes: float | None = None,
) -> bool:
    """Train into the folder `out`.

    Args:
        config: the run; its seed is used where `seeds` is None.
        seeds: train these seeds side by side, each into `out`/seed-N.
        resume: continue a training that was stopped.
        watch: called with everything that happens.
        minutes: stop after so much time, from the call on, with a checkpoint.

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
    if config.classifier is not None:
        if seeds is not None:
            raise InputError("seeds: a classifier is trained one at a time; use --set seed=N")
        _check_folder(group, folders, configs, resume)
        return train_classifier(config, group, watch, minutes)
    with processes() as team:
        if team.rank == 0:
            _check_folder(group, folders, configs, resume)
        device = choose_device(config.device)
        events = [load_events(c.data, c.seed).mapped(Tensor.float) for c in configs]
        for e, c in zip(events, configs, strict=True):
            if isinstance(e.train, Tensor):
                source = c.data.file or "training sample"
                check_rows(check_events(e.train, source), c.sampling.feature.bounds, e.columns, source)
        event = tuple(events[0].train.shape[1:])
        begins = config.start is not None and not group.checkpoint.exists()
        starts = [read_start(c, event) for c in configs] if begins else None
        if team.rank > 0:
            session = _Session(group, folders, configs, events, device, team, starts)
            return session.run(None, minutes, begun)
        with locked(group.path):
            _check_folder(group, folders, configs, resume)
            session = _Session(group, folders, configs, events, device, team, starts)
            return session.run(watch, minutes, begun)


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
        if (missing and group.checkpoint.exists()) or (not missing and read(folder.config) != config):
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


class _Session:
    """One sitting of a training: from new or from a checkpoint, until the end or an interruption."""

    def __init__(
        self,
        group: RunFolder,
        folders: list[RunFolder],
        configs: list[Run],
        events: list[Events],
        device: torch.device,
        team: Group,
        starts: list[Start] | None = None,
    ) -> None:
        self.team, self.starts = team, starts
        self.start_facts = None if starts is None else [start.facts for start in starts]
        self.group, self.folders, self.configs, self.events = group, folders, configs, events
        self.histories = [History(folder.history) for folder in folders]
        self.seconds = 0.0
        self.started = time.monotonic()
        self.event = tuple(events[0].train.shape[1:])
        self.hashes = [events_hash(e.train) for e in events]
        first = configs[0]
        if first.log_z is not None and len(self.event) != 1:
            raise InputError(f"log_z: expected events that are vectors, got events of shape {self.event}")
        self.annealing: dict[int, dict[str, Any]] = {}
        self.linear: dict[int, Baselines] = {}
        self.replicas = 1 if first.ensemble is None else first.ensemble.members
        seeds = [seed for config in configs for seed in member_seeds(config)]
        networks = [build_autoencoder(first.network, self.event, stream(seed, "init")) for seed in seeds]
        schedules = Schedules(
            first.pretraining, first.training, first.temperature, first.guard, first.bayesian, first.contrast
        )
        repeated = [e for own in zip(configs, events, strict=True) for e in member_events(*own)]
        samples, held = training_samples(repeated), validation_samples(repeated)
        self.trainer = Trainer(networks, samples, schedules, first.sampling, seeds, device, team, held)

    def _of(self, k: int) -> slice:
        """The trainer's models that belong to run k: one, or the members of its ensemble."""
        return slice(k * self.replicas, (k + 1) * self.replicas)

    def run(self, watch: Watch | None, minutes: float | None, begun: float) -> bool:
        if all(folder.model.exists() for folder in self.folders):
            return True
        self._begin()
        with interruptible(self.trainer), limited(self.trainer, minutes, begun):
            for happening in self.trainer.run():
                self._write(happening)
                if watch is not None:
                    watch(self.trainer, happening)
        if self.trainer.finished and self.team.rank == 0:
            self._finish()
        return self.trainer.finished

    def _begin(self) -> None:
        if self.team.rank == 0:
            self._clear_up()
        self.team.any(False)  # nobody reads before the first process has cleared up
        if self.group.checkpoint.exists():
            self._take_up()
        elif self.starts is not None:
            self.trainer.begin_with(joined(self.starts, self.trainer.setup.noise, self.replicas))

    def _clear_up(self) -> None:
        """What a killed job left behind goes, and a new run gets its configuration."""
        for debris in self.group.path.rglob(".*.part*"):
            debris.unlink(missing_ok=True)
        if self.group.checkpoint.exists():
            return
        for history in self.histories:
            history.truncate(0)
        for folder, config in zip(self.folders, self.configs, strict=True):
            write_text(folder.config, to_toml(config))

    def _take_up(self) -> None:
        """Continue from the checkpoint, which must be of these seeds and of these data."""
        state, header = read_tensors(self.group.checkpoint)
        try:
            seeds, data, seconds, sizes = (header[name] for name in ("seeds", "data", "seconds", "history"))
        except KeyError as error:
            raise InputError(f"{self.group.checkpoint}: the header lacks {error}; start in another folder") from None
        if seeds != self._seeds():
            raise InputError(f"{self.group.path}: holds seeds {seeds} in this order, got {self._seeds()}")
        if header.get("processes", 1) != self.team.size:
            raise InputError(
                f"{self.group.path}: was begun with {header.get('processes', 1)} processes, got {self.team.size}"
            )
        if data != self.hashes:
            raise InputError(f"{self.group.path}: the training data have changed since the run began")
        self.trainer.load(state)
        self.seconds, self.start_facts = float(seconds), header.get("start")
        for history, size in [] if self.team.rank > 0 else zip(self.histories, sizes, strict=True):
            history.truncate(size)

    def _seeds(self) -> list[int]:
        return [config.seed for config in self.configs]

    def _write(self, happening: Happening) -> None:
        state = {} if isinstance(happening, Record) else self.trainer.state()
        if self.team.rank > 0:
            return
        if isinstance(happening, Record):
            for k, history in enumerate(self.histories):
                values = {name: float(np.mean(column[self._of(k)])) for name, column in happening.values.items()}
                place = {"phase": happening.phase, "iteration": happening.iteration, "epoch": happening.epoch}
                history.append(place | values | {"seconds": round(self._seconds(), 3)})
            return
        if isinstance(happening, Checkpoint) and (happening.phase, happening.iteration) == ("training", 0):
            self._keep_pretrained()
        if isinstance(happening, Rollback):
            for history in self.histories:
                line = {"phase": happening.phase, "iteration": happening.iteration, "rollback": happening.reason}
                history.append(line)
        self._write_checkpoint(state)

    def _keep_pretrained(self) -> None:
        """The autoencoder that the NAE phase begins with, as a run folder of its own."""
        first = self.configs[0]
        if first.start or first.contrast or not first.training.epochs or not first.pretraining.epochs:
            return
        for k, folder in enumerate(self.folders):
            inner = RunFolder(folder.pretrained)
            config = pretrained_config(self.configs[k])
            weights, temperatures, sizes = self.trainer.models.result(last=True)
            tensors, header = self._named_weights(k, weights, temperatures, sizes)
            tensors |= self._posterior(config, k, weights[self._of(k)], tensors, header)
            write_text(inner.config, to_toml(config))
            write_text(inner.history, folder.history.read_text(encoding="utf-8") if folder.history.exists() else "")
            write_start(inner, self.trainer.models.start(), self._of(k))
            write_json(inner.provenance, self._provenance(k))
            write_tensors(inner.model, tensors, header | {"log_z": None})

    def _write_checkpoint(self, state: dict[str, Tensor]) -> None:
        header = {
            "seconds": self._seconds(),
            "history": [history.size for history in self.histories],
            "seeds": self._seeds(),
            "data": self.hashes,
            "processes": self.team.size,
            "start": self.start_facts,
        }
        write_tensors(self.group.checkpoint, state, header)

    def _seconds(self) -> float:
        return self.seconds + time.monotonic() - self.started

    def _finish(self) -> None:
        weights, temperatures, sizes = self.trainer.models.result()
        for k, folder in enumerate(self.folders):
            members = self._of(k)
            tensors, header = self._named_weights(k, weights, temperatures, sizes)
            tensors |= self._posterior(self.configs[k], k, weights[members], tensors, header)
            tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
            header["log_z"] = self._log_z(k, tensors, header)
            if not self.configs[k].training.epochs:
                write_start(folder, self.trainer.models.start(), members)
            write_json(folder.provenance, self._provenance(k))
            write_tensors(folder.model, tensors, header)
        failures = [
            f"{self.folders[k].path}: {found['failed']}" for k, found in self.annealing.items() if "failed" in found
        ]
        if failures:
            raise LogZDisagreement(f"{failures[0]}. The model is written without log Z")

    def _named_weights(
        self, k: int, weights: Tensor, temperatures: Tensor, sizes: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights by name and header of run k, before its posterior and log Z; arguments as `Trainer.result` gives."""
        members = self._of(k)
        header: dict[str, Any] = {
            "event": list(self.event),
            "temperature": float(temperatures[members.start]),
            "step_sizes": [float(size) for size in sizes[:, members].mean(1)],
        }
        if (columns := self.events[k].columns) is not None:
            header["columns"] = list(columns)
        if self.replicas > 1:
            header["temperatures"] = temperatures[members].tolist()
        return self.trainer.setup.noise.tensors(weights[members.start]), header

    def _posterior(
        self, config: Run, k: int, weights: Tensor, tensors: dict[str, Tensor], header: dict[str, Any]
    ) -> dict[str, Tensor]:
        """What the posterior of `config` adds to the weights of run k, which are mean-field or deterministic."""
        layout = self.trainer.setup.layout
        if config.ensemble is not None:
            return {f"member.{name}": view for name, view in layout.views(weights).items()}
        if config.laplace is None:
            return {}
        network = build_autoencoder(config.network, self.event, stream(config.seed, "init"))
        network.load_state_dict(tensors)
        generator = stream(config.seed, "laplace")
        network, events = network.to(self.trainer.setup.device), self.events[k].train
        assert isinstance(events, Tensor)
        return fit_laplace(network, header["temperature"], events, config.laplace, generator).tensors()

    def _log_z(self, k: int, tensors: dict[str, Tensor], header: dict[str, Any]) -> list[Any] | None:
        """log Z where it can be had; annealed where no grid serves and the configuration asks for it."""
        config = self.configs[k]
        model = build_model(config, tensors, header, config.name).to(self.trainer.setup.device)
        annealed = None if config.log_z is None else partial(self._annealed_log_z, k, model)
        found = choose_log_z(
            model.energy_function, model.temperature, self.event, config.sampling.feature.bounds,
            config.evaluation.log_z_cells, self.trainer.setup.device, annealed,
        )  # fmt: skip
        return None if found is None else list(found)

    def _annealed_log_z(self, k: int, model: Model) -> LogZ | None:
        """log Z from chains between a Gaussian and training events; None where the bounds on it disagree."""
        settings, bounds, events = self.configs[k].log_z, self.configs[k].sampling.feature.bounds, self.events[k].train
        assert settings is not None
        assert isinstance(events, Tensor)
        events = events if bounds is None else events[((events >= bounds[0]) & (events <= bounds[1])).all(dim=1)]
        events = events[:BASE_EVENTS].to(self.trainer.setup.device)
        generator = stream(self.configs[k].seed, "log_z", self.trainer.setup.device)
        energy, temperature = model.energy_function, model.temperature
        try:
            found = annealed_log_z(energy, temperature, events, events, [generator], [settings], bounds)
        except (LogZDisagreement, InputError) as error:  # a finished training is kept, whatever comes of its log Z
            self.annealing[k] = {"failed": str(error)}
            return None
        self.annealing[k] = {name: value for name, value in found._asdict().items() if name != "log_z"}
        return found.log_z

    def _baselines(self, k: int) -> Baselines:
        """What linear models reach on the validation sample; found once."""
        if k not in self.linear:
            self.linear[k] = baselines(self.configs[k], self.events[k], self.trainer.setup.device)
        return self.linear[k]

    def _provenance(self, k: int) -> dict[str, Any]:
        facts = machine_facts(self.trainer.setup.device) | {
            "seed": self.configs[k].seed,
            "data_sha256": self.hashes[k],
            "backend": self.trainer.setup.backend.name,
            "side_by_side": len(self.folders),
            "processes": self.team.size,
            "rollbacks": int(self.trainer.rollbacks[self._of(k)].sum()),
            "wall_seconds": round(self._seconds(), 2),
        }
        facts |= {"baselines": self._baselines(k)} if self.configs[k].start is None else {}
        facts |= {} if self.start_facts is None else {"start": self.start_facts[k]}
        return facts | ({"log_z": self.annealing[k]} if k in self.annealing else {})
