"""Progress of long work: the library counts what is done, and whoever started the work says who is shown it.

    with progress("scoring", len(events)) as tick:
        for piece in pieces:
            ...
            tick(len(piece))

By default nobody is. The command line shows bars on a terminal; `shown_by(plain())` prints lines.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")


class Tick(Protocol):
    """Told that `done` more are done, with a few words about them."""

    def __call__(self, done: int = 1, note: str = "") -> None: ...


Display = Callable[[str, int], AbstractContextManager[Tick]]
"""From what is done, and how many of it there are, to a context in which they are counted."""


def ignore(done: int = 1, note: str = "") -> None:
    """A tick that nobody sees."""


_display: ContextVar[Display] = ContextVar("display", default=lambda _what, _total: nullcontext(ignore))


def progress(what: str, total: int) -> AbstractContextManager[Tick]:
    """A context that counts `total` of `what` with the tick that it gives."""
    return _display.get()(what, total)


def counted(what: str, items: Sequence[T]) -> Iterator[T]:
    """The items, each counted when the next one is asked for.

    >>> from normae.progress import counted, plain, shown_by
    >>> with shown_by(plain()):
    ...     sum(counted("adding", [1, 2, 3]))
    6
    """
    with progress(what, len(items)) as tick:
        for item in items:
            yield item
            tick()


@contextmanager
def shown_by(display: Display) -> Iterator[None]:
    """Within the context, progress is shown by `display`."""
    before = _display.set(display)
    try:
        yield
    finally:
        _display.reset(before)


def plain(every: float = 5.0, first: float = 2.0) -> Display:
    """A display of lines on standard error with the time left: of work after `first` seconds, then every so many."""
    said = time.monotonic()  # for all work together, or many short phases would stay silent

    @contextmanager
    def lines(what: str, total: int) -> Iterator[Tick]:
        begun, count, wait = time.monotonic(), 0, first

        def tick(done: int = 1, note: str = "") -> None:
            nonlocal said, count, wait
            count += done
            now = time.monotonic()
            if now - said >= wait and count:
                said, wait, left = now, every, (now - begun) * (total - count) / count
                print(f"{what} {count}/{total} {note}".rstrip() + f", {left:.0f} s left", file=sys.stderr, flush=True)

        yield tick

    return lines
