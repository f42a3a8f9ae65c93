"""The training loop, for everything that trains in steps: it yields what happened, and the caller writes it down.

A training is a sequence of phases. After each window of iterations the guard looks at the means over the window: who
ran away returns to a place where all was well, with a smaller learning rate. Nothing here knows a path.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from torch import Tensor

from normae.training.guard import Guard, Guarded, Record


class Checkpoint(NamedTuple):
    """A moment at which the caller should write `state()`."""

    phase: str
    iteration: int


class Rollback(NamedTuple):
    """Models returned to the last checkpoint, with the reason."""

    phase: str
    iteration: int
    reason: str


Happening = Record | Checkpoint | Rollback


class Training(Guarded, Protocol):
    """What the loop walks through; `state()` holds everything that changes, as live tensors.

    Attributes:
        stop: set by the caller, from a signal or another thread.
        place: name of the phase, "finished" after the last, and the iterations of it that are done.
        over: whether the phase has come to its end.
    """

    stop: bool

    @property
    def place(self) -> tuple[str, int]: ...
    @property
    def finished(self) -> bool: ...
    @property
    def over(self) -> bool: ...
    def length(self, phase: str) -> int:
        """Iterations of a phase, at most."""
        ...

    def run(self) -> "Iterator[Happening]":
        """The loop with the training's own guard."""
        ...

    def state(self) -> dict[str, Tensor]: ...
    def advance(self) -> None:
        """One iteration."""
        ...

    def enter_next(self) -> None:
        """Begin the next phase."""
        ...

    def means(self) -> Record:
        """Means over the window so far."""
        ...

    def record(self) -> Record:
        """`means()` and what is measured at the end of a window; a new window begins."""
        ...

    def stopping(self) -> bool:
        """Whether to stop now: of several processes all must give the same answer."""
        ...


def run(training: Training, guard: Guard) -> Iterator[Happening]:
    """Train to the end, from wherever the training stands, or until it is asked to stop.

    What the caller changes when a phase begins (its first `Checkpoint`) is where a rollback goes back to.
    """
    yield Checkpoint(*training.place)
    guard.begin(training)
    while not training.finished:
        if training.over:
            training.enter_next()
            yield Checkpoint(*training.place)
            guard.begin(training)
            continue
        training.advance()
        iteration, last = training.place[1], training.over
        looked = iteration % guard.config.log_every == 0 or last
        if looked:
            record = training.record()
            trouble = guard.trouble(training, record)
            if trouble:
                guard.roll_back(training, trouble)
                yield Rollback(*training.place, "; ".join(trouble.values()))
                continue
            yield record
        if iteration % guard.config.checkpoint_every == 0 and not last:
            guard.remember(training, record)
            yield Checkpoint(*training.place)
        if training.stopping():
            if looked or not guard.trouble(training, training.means()):
                yield Checkpoint(*training.place)
            return
