"""What a training leaves as it goes: lines of metrics and checkpoints, in the run folders of its seeds.

A signal, or a limit of wall-clock time, ends a training after the iteration under way and leaves it whole.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from normae.config import Run, to_toml
from normae.errors import InputError
from normae.files import write_text
from normae.runs.folder import History, RunFolder, read_tensors, write_tensors
from normae.training import Happening, Record, Rollback
from normae.training.backends import Group
from normae.training.loop import Training

Watch = Callable[[Any, Happening], None]
"""Called with the training and everything that happens, for a display."""


class Journal:
    """Writes what happens to a training of several runs side by side, and takes it up again.

    Args:
        group: whose checkpoint is that of all runs; with one run its own folder.
        folders, configs: of the runs.
        hashes: of their training data.
        replicas: models of each run that are trained side by side; a line of metrics has their means.
        team: the processes; the first one writes.

    Attributes:
        start: what is known about the models that the runs began with, one for each.
    """

    def __init__(
        self,
        group: RunFolder,
        folders: list[RunFolder],
        configs: list[Run],
        hashes: list[Any],
        replicas: int = 1,
        team: Group | None = None,
    ) -> None:
        self.group, self.folders, self.configs, self.hashes = group, folders, configs, hashes
        self.replicas, self.team = replicas, team or Group()
        self.histories = [History(folder.history) for folder in folders]
        self.start: list[dict[str, Any]] | None = None
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall-clock time of the training, earlier parts included."""
        return time.monotonic() - self._begun

    def of(self, k: int) -> slice:
        """The trainer's models that belong to run k: one, or the members of its ensemble."""
        return slice(k * self.replicas, (k + 1) * self.replicas)

    def open(self, training: Training) -> bool:
        """Whether there was a checkpoint to go on from; without one the folders are made new."""
        if self.team.rank == 0:
            self._clear_up()
        self.team.any(False)  # nobody reads before the first process has cleared up
        if not self.group.checkpoint.exists():
            return False
        self._take_up(training)
        return True

    def _clear_up(self) -> None:
        """What a killed job left behind goes, and a new run gets its configuration."""
        for debris in self.group.path.rglob(".*.part*"):
            debris.unlink(missing_ok=True)
        if self.group.checkpoint.exists():
            return
        for history, folder, config in zip(self.histories, self.folders, self.configs, strict=True):
            history.truncate(0)
            write_text(folder.config, to_toml(config))

    def _take_up(self, training: Training) -> None:
        """Continue from the checkpoint, which must be of these seeds and of these data."""
        state, header = read_tensors(self.group.checkpoint)
        try:
            given, data, seconds, sizes = (header[name] for name in ("seeds", "data", "seconds", "history"))
        except KeyError as error:
            raise InputError(f"{self.group.checkpoint}: the header lacks {error}; start in another folder") from None
        seeds, count = [config.seed for config in self.configs], header.get("processes", 1)
        if given != seeds:
            raise InputError(f"{self.group.path}: holds seeds {given} in this order, got {seeds}")
        if count != self.team.size:
            raise InputError(f"{self.group.path}: was begun with {count} processes, got {self.team.size}")
        if data != self.hashes:
            raise InputError(f"{self.group.path}: the training data have changed since the run began")
        training.load(state)
        self._begun, self.start = self._begun - float(seconds), header.get("start")
        for history, size in [] if self.team.rank > 0 else zip(self.histories, sizes, strict=True):
            history.truncate(size)

    def write(self, training: Training, happening: Happening) -> None:
        """A line for each run, or a checkpoint, or both."""
        state = {} if isinstance(happening, Record) else training.state()
        if self.team.rank > 0:
            return
        line: dict[str, Any] = {"phase": happening.phase, "iteration": happening.iteration}
        for k, history in enumerate(self.histories):
            if isinstance(happening, Record):
                values = {name: float(np.mean(column[self.of(k)])) for name, column in happening.values.items()}
                history.append(line | {"epoch": happening.epoch} | values | {"seconds": round(self.seconds, 3)})
            elif isinstance(happening, Rollback):
                history.append(line | {"rollback": happening.reason})
        if not isinstance(happening, Record):
            header = {
                "seconds": self.seconds,
                "history": [history.size for history in self.histories],
                "seeds": [config.seed for config in self.configs],
                "data": self.hashes,
                "processes": self.team.size,
                "start": self.start,
            }
            write_tensors(self.group.checkpoint, state, header)

    def follow(
        self,
        training: Training,
        watch: Watch | None,
        minutes: float | None,
        begun: float,
        before: Callable[[Happening], None] | None = None,
    ) -> bool:
        """Train until the end or an interruption; `before` sees what happens before it is written."""
        with interruptible(training), limited(training, minutes, begun):
            for happening in training.run():
                if before is not None and self.team.rank == 0:
                    before(happening)
                self.write(training, happening)
                if watch is not None:
                    watch(training, happening)
        return training.finished


def check_minutes(minutes: float | None) -> None:
    """A limit must be a positive number."""
    if minutes is not None and not 0 < minutes < 1e6:
        raise InputError(f"minutes: expected a positive number, got {minutes:g}")


@contextmanager
def interruptible(training: Training) -> Iterator[None]:
    """The first Ctrl-C or termination signal ends the training after the iteration under way; a second one at once."""

    def request(number: int, _: Any) -> None:
        training.stop = True
        signal.signal(number, signal.SIG_DFL)

    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        before = [signal.signal(number, request) for number in numbers]
    except ValueError:  # not in the main thread, where signals cannot be handled
        yield
        return
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def limited(training: Training, minutes: float | None, begun: float) -> Iterator[None]:
    """End the training `minutes` after `begun`, a time of `time.monotonic()`, after the iteration under way."""
    if minutes is None:
        yield
        return

    def request() -> None:
        training.stop = True

    timer = threading.Timer(max(60 * minutes - (time.monotonic() - begun), 0), request)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
