"""What a command prints: sentences, tables and bars. What came from the user is never read as markup."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from normae.progress import Tick, ignore

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET = int(os.environ.get("RANK", "0")) > 0
"""Of the processes that torchrun starts only the first one talks."""
output = Console(quiet=QUIET)
errors = Console(stderr=True, quiet=QUIET)


def say(sentence: object, console: Console = output) -> None:
    """Print a sentence, in one line however long it is."""
    console.print(Text(str(sentence)), soft_wrap=True)


def note(sentence: object) -> None:
    """Print a sentence on standard error, where it does not mix with results."""
    say(sentence, errors)


def show(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table; the first column is never broken."""
    table = Table(title=Text(title) if title else None)
    for k, heading in enumerate(headings):
        table.add_column(Text(heading), overflow="fold", no_wrap=k == 0)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    output.print(table)


# --- bars

PATIENCE = 1.0
"""Seconds of work before its bar is shown."""
REFRESH = 0.1


@dataclass
class _Bar:
    what: str
    total: int
    done: int = 0
    note: str = ""
    begun: float = field(default_factory=time.monotonic)
    task: "TaskID | None" = None


class Bars:
    """A display for `normae.progress`: bars with the time left, on standard error where that is a terminal."""

    def __init__(self) -> None:
        self.open: list[_Bar] = []
        self.live: Progress | None = None
        self.drawn = 0.0

    @contextmanager
    def __call__(self, what: str, total: int) -> Iterator[Tick]:
        """A bar; those of work within the work are below it."""
        if QUIET or total < 2 or not errors.is_terminal:
            yield ignore
            return
        bar = _Bar(what, total)
        self.open.append(bar)

        def tick(done: int = 1, note: str = "") -> None:
            bar.done, bar.note = bar.done + done, note
            now = time.monotonic()
            if now - bar.begun > PATIENCE and now - self.drawn > REFRESH:
                self.drawn = now
                self._draw()

        try:
            yield tick
        finally:
            self._close(bar)

    def _draw(self) -> None:
        if self.live is None:
            self.live = _bars()
            self.live.start()
        for bar in self.open:
            if bar.task is None:
                bar.task = self.live.add_task(bar.what, total=bar.total, completed=bar.done, note=bar.note)
            self.live.update(bar.task, completed=bar.done, note=bar.note)
        self.live.refresh()

    def _close(self, bar: _Bar) -> None:
        self.open.remove(bar)
        if self.live is not None and bar.task is not None:
            self.live.remove_task(bar.task)
        if self.live is not None and not self.open:
            self.live.stop()
            self.live = None


def _bars() -> "Progress":
    """Bars that vanish when the work is done. What goes into a file must not be caught for the terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description:<11}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=errors,
        auto_refresh=False,
        transient=True,
        redirect_stdout=output.is_terminal,
        speed_estimate_period=600,
    )
