"""A display of progress for tests: a function that is told what is done of how many."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from normae.progress import Tick, shown_by


def watched(tell: Callable[[int, int], None]) -> AbstractContextManager[None]:
    """Within the context `tell` is called with what is done so far, and with the total, of the outermost work."""
    depth = 0

    @contextmanager
    def display(what: str, total: int) -> Iterator[Tick]:
        nonlocal depth
        depth += 1
        outermost, count = depth == 1, 0

        def tick(done: int = 1, note: str = "") -> None:
            nonlocal count
            count += done
            if outermost:
                tell(count, total)

        try:
            yield tick
        finally:
            depth -= 1

    return shown_by(display)
