"""What a training leaves: lines of metrics and checkpoints as it goes, in the end its models and where they come from.

A signal, or a limit of wall-clock time, ends a training after the iteration under way and leaves it whole.
"""

import logging
import os
import platform
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normae.config import Run, to_toml
from normae.coordinates import Coordinates
from normae.data import linear_errors
from normae.errors import InputError, LogZDisagreement, refuse
from normae.files import digest, write_json, write_text
from normae.inference import LogZ, ais_log_z, fit_base, loosened
from normae.inference.ais import Proposed
from normae.inference.log_z import Based, trained_log_z
from normae.networks.base import Base
from normae.networks.conditional import ConditionalBase
from normae.networks.own import EnergyNetwork, OwnEnergy
from normae.networks.reconstruction import ReconstructionEnergy, all_tensors, fill
from normae.posterior.draw import bar_of_halves
from normae.progress import Tick, ignore, progress
from normae.runs.folder import CHAINS, HALF, RunFolder, read_tensors, stored, write_tensors
from normae.runs.load import build_model, untrained
from normae.sources import Events
from normae.tensors import stream
from normae.training import Checkpoint, Happening, Record, Rollback, Trainer
from normae.training.backends import Group
from normae.version import __version__

log = logging.getLogger(__name__)
Watch = Callable[[Any, Happening], None]  # called with the training and everything that happens, for a display
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
BAR_ROWS = 2000  # samples of a model that the length of its error bars is found with
BASE_EVENTS = 100_000  # most events that the base of annealed importance sampling is fitted to

# --- as it goes


@dataclass
class Journal:
    """Writes what happens to a training of several runs side by side, and takes it up again.

    Args:
        group: whose checkpoint is that of all runs; with one run its own folder.
        hashes: of the runs' training data.
        replicas: models of each run that are trained side by side; a line of metrics has their means.
        team: the processes; the first one writes.
        jets: hashes of all files of jets that the runs may read.
        start: what is known of the models that the runs began with.
    """

    group: RunFolder
    folders: list[RunFolder]
    configs: list[Run]
    hashes: list[Any]
    replicas: int = 1
    team: Group = field(default_factory=Group)
    jets: dict[str, str] = field(default_factory=dict)
    start: list[dict[str, Any]] | None = None
    _begun: float = field(default_factory=time.monotonic, init=False)

    @property
    def seconds(self) -> float:
        """Wall-clock time of the training, earlier parts included."""
        return time.monotonic() - self._begun

    def of(self, k: int) -> slice:
        """The trainer's models that belong to run k: one, or the members of its ensemble."""
        return slice(k * self.replicas, (k + 1) * self.replicas)

    def open(self, training: Trainer) -> bool:
        """Go on from a checkpoint, of these seeds and data, and say whether there was one; else make new folders."""
        if self.team.rank == 0 and not self.group.checkpoints:
            for folder, config in zip(self.folders, self.configs, strict=True):
                folder.cut_back(0)
                write_text(folder.config, to_toml(config))
        self.team.any(False)  # nobody reads before the first process has written
        if not self.group.checkpoints:
            return False
        state, header = self._checkpoint()
        names = ("seeds", "data", "seconds", "history", "configs")
        try:
            given, data, seconds, sizes, configs = (header[name] for name in names)
        except KeyError as error:
            raise InputError(f"{self.group.checkpoint}: the header lacks {error}; start in another folder") from None
        seeds, count = [config.seed for config in self.configs], header.get("processes", 1)
        refuse(given != seeds, f"{self.group.path}: holds seeds {given} in this order, got {seeds}")
        refuse(count != self.team.size, f"{self.group.path}: was begun with {count} processes, got {self.team.size}")
        if configs != [digest(folder.config) for folder in self.folders]:
            raise InputError(f"{self.group.path}: the checkpoint is of another configuration; choose another folder")
        refuse(data != self.hashes, f"{self.group.path}: the training data have changed since the run began")
        training.load(state)
        self._begun, self.start = self._begun - float(seconds), header.get("start")
        for folder, size in [] if self.team.rank > 0 else zip(self.folders, sizes, strict=True):
            folder.cut_back(size)
        return True

    def _checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The last checkpoint, or, where that is damaged, the one before it."""
        first, *others = self.group.checkpoints
        try:
            return read_tensors(first)
        except InputError as error:
            if not others:
                raise
            found = read_tensors(others[0])
            log.warning("%s. The training goes on from the checkpoint before it", error)
            self.team.any(False)  # all have read it
            if self.team.rank == 0:
                os.replace(others[0], first)
            return found

    def write(self, training: Trainer, happening: Happening) -> None:
        """A line for each run, or a checkpoint, or both."""
        state = {} if isinstance(happening, Record) else training.state()
        if self.team.rank > 0:
            return
        line: dict[str, Any] = {"phase": happening.phase, "iteration": happening.iteration}
        for k, folder in enumerate(self.folders):
            if isinstance(happening, Record):
                values = {name: float(np.mean(column[self.of(k)])) for name, column in happening.values.items()}
                folder.append(line | {"epoch": happening.epoch} | values | {"seconds": round(self.seconds, 3)})
            elif isinstance(happening, Rollback):
                folder.append(line | {"rollback": happening.reason})
        if not isinstance(happening, Record):
            header = {
                "seconds": self.seconds, "history": [folder.length for folder in self.folders],
                "seeds": [config.seed for config in self.configs], "data": self.hashes,
                "configs": [digest(folder.config) for folder in self.folders], "processes": self.team.size,
                "start": self.start,
            }  # fmt: skip
            write_tensors(self.group.checkpoint, state, header, self.group.earlier)

    def facts(self, training: Trainer, k: int) -> dict[str, Any]:
        """What provenance.json says of run k: versions, commit, machine, data and time."""
        device = training.setup.device
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        commit = None
        with suppress(OSError, subprocess.TimeoutExpired):
            commit = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
        return {
            "normae": __version__, "commit": commit or None,
            "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})",
            "threads": torch.get_num_threads(), "seed": self.configs[k].seed, "data_sha256": self.hashes[k],
            "backend": training.setup.backend.name, "side_by_side": len(self.folders), "processes": self.team.size,
            "rollbacks": int(training.rollbacks[self.of(k)].sum()), "wall_seconds": round(self.seconds, 2),
        } | ({"jets_sha256": self.jets} if self.jets else {})  # fmt: skip

    def follow(
        self, training: Trainer, watch: Watch | None, deadline: float | None, finishes: "Sequence[Finish]" = ()
    ) -> bool:
        """Train until the end or an interruption; `finishes` keep the autoencoders that NAEs begin with."""
        with stoppable(training, deadline), counting() if watch is None else nullcontext(watch) as shown:
            for happening in training.run():
                if self.team.rank == 0 and isinstance(happening, Checkpoint) and happening == ("training", 0):
                    for finish in finishes:
                        finish.keep_pretrained()
                self.write(training, happening)
                if self.team.rank == 0:
                    shown(training, happening)
        return training.finished


@contextmanager
def counting() -> Iterator[Watch]:
    """The iterations of each phase as progress, which ends with it."""
    ticks: dict[str, tuple[Tick, int]] = {"finished": (ignore, 0)}
    with ExitStack() as stack:

        def watch(trainer: Trainer, happening: Happening) -> None:
            phase, done = happening.phase, happening.iteration
            if phase not in ticks:
                stack.close()
                ticks[phase] = stack.enter_context(progress(phase + trainer.note, trainer.length(phase))), 0
            tick, before = ticks[phase]
            if done > before:
                tick(done - before)
                ticks[phase] = tick, done

        yield watch


def deadline_in(minutes: float | None) -> float | None:
    """When so many minutes from now are over, by `time.monotonic`; they must be a positive number."""
    if minutes is not None and not 0 < minutes < 1e6:
        raise InputError(f"minutes: expected a positive number, got {minutes:g}")
    return None if minutes is None else time.monotonic() + 60 * minutes


@contextmanager
def stoppable(training: Trainer, deadline: float | None) -> Iterator[None]:
    """A signal, or the `deadline`, ends the training after the iteration under way.

    The signals are Ctrl-C and those of termination, of a terminal that closes, unless nohup has it ignored, and of a
    batch system that preempts; a second one ends it at once.
    """

    def request(number: int | None = None, _: Any = None) -> None:
        training.stop = True
        if number is not None:
            signal.signal(number, signal.SIG_DFL)

    before: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread, where signals cannot be handled
        heard = [number for number in STOPS if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, request) for number in heard}
    timer = threading.Timer(max((deadline or 0) - time.monotonic(), 0), request)
    timer.daemon = True
    if deadline is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


# --- in the end


class Prepared(NamedTuple):
    """What a training sees: coordinates, events in them, the base, and the same of members that have their own."""

    coordinates: Coordinates
    events: Events
    base: Base | None = None
    members: Sequence["Prepared"] = ()


class Finish:
    """Turns what a trainer holds of run k, of those that are trained side by side, into the model of its folder."""

    def __init__(self, trainer: Trainer, journal: Journal, run: Prepared, k: int) -> None:
        self.trainer, self.journal, self.k, self.members = trainer, journal, k, journal.of(k)
        self.config, self.folder = journal.configs[k], journal.folders[k]
        self.coordinates, self.events, self.base, self.halves = run
        self.device, self.event = trainer.setup.device, trainer.setup.data.event
        self.own = trainer.setup.architecture if self.config.network.kind == "own" else None
        self.annealing: dict[str, Any] | None = None

    def keep_pretrained(self) -> None:
        """The autoencoder that the NAE phase begins with, as a run folder of its own, where it is one."""
        given, history = self.config, self.folder.history
        if given.start or given.contrast or not given.training.epochs or not given.pretraining.epochs:
            return
        inner, training = RunFolder(self.folder.pretrained), replace(given.training, epochs=0)
        config = replace(given, name=f"{given.name}-pretrained", training=training, log_z=None, start=None)
        tensors, header = self._model(last=True)
        write_text(inner.config, to_toml(config))
        write_text(inner.history, history.read_text(encoding="utf-8") if history.exists() else "")
        self._write_start(inner)
        write_json(inner.provenance, self._provenance())
        write_tensors(inner.model, tensors, header | {"log_z": None})

    def write(self) -> None:
        """The finished model."""
        tensors, header = self._halves() if self.halves else self._finished()
        if not self.config.training.epochs:
            self._write_start(self.folder)
        write_json(self.folder.provenance, self._provenance())
        write_tensors(self.folder.model, tensors, header)

    def _finished(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What model.safetensors holds."""
        tensors, header = self._model()
        tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        return tensors, header | {"log_z": self._log_z(tensors, header)}

    def _halves(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The files of all members as one, with the coordinates of the whole table."""
        tensors, headers = stored(self.coordinates), []
        for k, half in enumerate(self.halves):
            member = Finish(self.trainer, self.journal, half, self.k)
            member.config, member.members = self.config.alone(self.config.seed + k), slice(k, k + 1)
            own, header = member._finished()
            tensors |= {f"{HALF}{k}.{name}": tensor for name, tensor in own.items()}
            headers.append(header)
            self.annealing = member.annealing if member.annealing and not header["log_z"] else self.annealing
        header = headers[0] | {"members": headers}
        if all(own["log_z"] for own in headers):  # what members differ by is asked at rows that none has seen
            model = build_model(self.config, tensors, header, str(self.folder.path))
            header["bar"] = bar_of_halves(model.rows(model.sample(BAR_ROWS, self.config.seed)).log_prob_draws())
        return tensors, header

    def check_log_z(self) -> None:
        """An error where log Z was not found and the run cannot do without."""
        failed = (self.annealing or {}).get("failed")
        if failed and self.config.log_z is not None and self.config.log_z.required:
            raise LogZDisagreement(f"{self.folder.path}: {failed}. The model is written without log Z")

    def _write_start(self, folder: RunFolder) -> None:
        """The rows of the run's models, with which an NAE can begin."""
        rows = {name: tensor[self.members] for name, tensor in self.trainer.models.start().items()}
        write_tensors(folder.start, rows, {})

    def _model(self, last: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights by name with their posterior, and the header, before log Z."""
        weights, temperatures, sizes = self.trainer.models.result(last)
        members = self.members
        temperature, steps = float(temperatures[members.start]), [float(size) for size in sizes[:, members].mean(1)]
        header: dict[str, Any] = {"event": list(self.event), "temperature": temperature, "step_sizes": steps}
        if self.coordinates.kind != "identity":
            header["coordinates"] = self.coordinates.kind
        if (columns := self.events.columns) is not None:
            header["columns"] = list(columns)
        tensors = self.trainer.setup.noise.tensors(weights[members.start])
        tensors |= {} if self.own is None else dict(self.own.named_buffers())
        if self.config.ensemble is not None:
            header["temperatures"] = temperatures[members].tolist()
            views = self.trainer.setup.layout.views(weights[members])
            tensors |= {f"member.{name}": view for name, view in views.items()}
        if not last and self.config.sampling.kept:  # samples of the model, where others can begin
            tensors |= {CHAINS: self.trainer.models.buffer.storage[members.start].clone()}
        return tensors | stored(self.coordinates, self.base), header

    def _log_z(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> list[Any] | None:
        """log Z where it can be had; annealed where no grid serves and the configuration asks for it."""
        config, temperature = self.config, float(header["temperature"])
        network = untrained(config, self.event, self.own)
        network.base = self.base
        fill(network, {name: tensors[name] for name in all_tensors(network) if name in tensors})
        network = network.to(self.device).requires_grad_(False)
        energy = OwnEnergy(network) if isinstance(network, EnergyNetwork) else ReconstructionEnergy(network)
        of = Based(energy, temperature, config.sampling.feature.bounds)
        anneal = partial(self._annealed_log_z, of, header["step_sizes"][1], tensors.get(CHAINS))
        lattice = self.coordinates.lattice is not None and bool(self.coordinates.lattice[1].any())
        generator, cells = stream(config.seed, "log_z/base", self.device), config.evaluation.log_z_cells
        found, why = trained_log_z(of, self.event, cells, generator, lattice, anneal if config.log_z else None)
        if isinstance(base := energy.autoencoder.base, ConditionalBase):  # log Z is in it
            tensors |= stored(self.coordinates, base.cpu())
        if found is None and why:
            self.annealing = {"failed": why}
        return None if found is None else list(found)

    def _annealed_log_z(self, of: Based, size: float, chains: Tensor | None) -> LogZ | None:
        """log Z from chains between the base, or a Gaussian, and samples; None where the bounds disagree twice.

        Samples are the persistent chains, or else training events, within the bounds.
        """
        settings, feature, events = self.config.log_z, self.config.sampling.feature, self.events.train
        energy, temperature = of.energy, of.temperature
        assert settings is not None
        assert isinstance(events, Tensor)
        if chains is not None:
            small = stream(self.config.seed, "log_z/small", self.device)
            events = loosened(energy, chains.to(self.device), replace(feature, step_size=size), temperature, small)
        else:
            if feature.bounds is not None:
                events = events[((events >= feature.bounds[0]) & (events <= feature.bounds[1])).all(dim=1)]
            events = events[:BASE_EVENTS].to(self.device)
        for n, run in enumerate(settings.runs()):
            generator = stream(self.config.seed, f"log_z/{n}" if n else "log_z", self.device)
            try:
                own = energy.autoencoder.base
                begin = Proposed(own) if isinstance(own, Base) else fit_base(events, run.widen)
                found = ais_log_z(energy, temperature, begin, events, generator, run, feature.bounds)
            except (LogZDisagreement, InputError) as error:  # a finished training is kept, whatever its log Z
                self.annealing = {"failed": str(error)}
            else:
                self.annealing = {name: value for name, value in found._asdict().items() if name != "log_z"}
                return found.log_z
        return None

    @cached_property
    def _baselines(self) -> dict[str, dict[str, float]]:
        """Mean errors of linear models on the validation sample, with their standard errors; nothing without one."""
        k, events = self.config.latent_dimensions, self.events
        if events.validation is None or not k or k >= int(np.prod(events.train.shape[1:])):
            return {}
        found = linear_errors(events.train, events.validation, (0, k), self.device)
        pairs = [{"value": float(e.mean()), "error": float(e.std() / len(e) ** 0.5)} for e in found]
        return dict(zip(("mse_mean_event", f"mse_{k}_components"), pairs, strict=True))

    def _provenance(self) -> dict[str, Any]:
        facts = self.journal.facts(self.trainer, self.k)
        facts |= {"baselines": self._baselines} if self.config.start is None else {}
        facts |= {} if self.journal.start is None else {"start": self.journal.start[self.k]}
        return facts | ({} if self.annealing is None else {"log_z": self.annealing})
