"""Ways to end a training that leave it whole: a signal, or a limit of wall-clock time."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from normae.errors import InputError


class Stoppable(Protocol):
    """A training that ends after the iteration under way once `stop` is set."""

    stop: bool


def check_minutes(minutes: float | None) -> None:
    """A limit must be a positive number."""
    if minutes is not None and not 0 < minutes < 1e6:
        raise InputError(f"minutes: expected a positive number, got {minutes:g}")


@contextmanager
def interruptible(trainer: Stoppable) -> Iterator[None]:
    """The first Ctrl-C or termination signal ends the training after the iteration under way; a second one at once."""

    def request(number: int, _: Any) -> None:
        trainer.stop = True
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
def limited(trainer: Stoppable, minutes: float | None, begun: float) -> Iterator[None]:
    """End the training `minutes` after `begun`, a time of `time.monotonic()`, after the iteration under way."""
    if minutes is None:
        yield
        return

    def request() -> None:
        trainer.stop = True

    timer = threading.Timer(max(60 * minutes - (time.monotonic() - begun), 0), request)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
