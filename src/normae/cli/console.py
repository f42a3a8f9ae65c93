"""What commands share: what they print, never read as markup; how arguments are read; what errors say."""

import _thread
import errno
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from normae.cli.options import option
from normae.errors import ClusterFailed, InputError, Interrupted, LogZDisagreement, TrainingDiverged, refuse, team
from normae.progress import Tick, ignore, plain, progress, shown_by
from normae.version import __version__

if TYPE_CHECKING:
    from rich.progress import Progress

    from normae.training import Happening, Trainer

QUIET = team()[0] > 0  # of the processes that torchrun starts only the first one talks
output = Console(quiet=QUIET)
errors = Console(stderr=True, quiet=QUIET)
CONTROL = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])  # what a terminal would obey, for str.translate


def say(sentence: object, console: Console = output) -> None:
    """Print a sentence, in one line however long it is."""
    console.print(Text(str(sentence).translate(CONTROL)), soft_wrap=True)


def note(sentence: object) -> None:
    """Print a sentence on standard error, where it does not mix with results."""
    say(sentence, errors)


def show(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table; the first column is never broken. Where it is too wide for its words, a line for each row."""
    rows = list(rows)
    table = Table(title=Text(title.translate(CONTROL)) if title else None)
    for k, heading in enumerate(headings):
        table.add_column(Text(heading.translate(CONTROL)), overflow="fold", no_wrap=k == 0)
    for row in rows:
        table.add_row(*(Text(str(cell).translate(CONTROL)) for cell in row))
    if table.__rich_measure__(output, output.options).minimum <= output.width:
        output.print(table)
        return
    say(f"{title}:")
    for first, *cells in rows:
        say(f"{first}: " + "; ".join(f"{name} {cell}" for name, cell in zip(headings[1:], cells, strict=True)))


# --- bars

PATIENCE = 1.0  # seconds of work before its bar is shown
REFRESH, MINUTE = 0.1, 60.0


class Bars:
    """A display for `normae.progress` on standard error: bars with the time left, which vanish when the work is done.

    Where that is no terminal, a line a minute.
    """

    def __init__(self) -> None:
        self.live: Progress | None = None
        self.drawn, self.lines = 0.0, plain(MINUTE, MINUTE)

    @contextmanager
    def __call__(self, what: str, total: int) -> Iterator[Tick]:
        """A bar; those of work within the work are below it."""
        if QUIET or total < 2:
            yield ignore
            return
        if not errors.is_terminal:
            with self.lines(what, total) as line:
                yield line
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        live = self.live = self.live or Progress(
            TextColumn("{task.description:<11}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False),
            console=errors, auto_refresh=False, transient=True, speed_estimate_period=600,
            redirect_stdout=output.is_terminal,  # what goes into a file must not be caught for the terminal
        )  # fmt: skip
        task, begun = live.add_task(what, total=total, note=""), time.monotonic()

        def tick(done: int = 1, note: str = "") -> None:
            live.update(task, advance=done, note=note)
            now = time.monotonic()
            if now - begun > PATIENCE and now - self.drawn > REFRESH:
                self.drawn = now
                live.start()
                live.refresh()

        try:
            yield tick
        finally:
            live.remove_task(task)
            if not live.tasks:
                live.stop()
                self.live = None


# --- a training


class TrainingDisplay(ExitStack):
    """A bar on a terminal, open until the stack is closed; elsewhere a line for every tenth of a phase."""

    phase, done = "", 0
    tick: Tick

    def __call__(self, trainer: "Trainer", happening: "Happening") -> None:
        if reason := getattr(happening, "reason", None):
            say(f"Rolled back: {reason}")
        if (values := getattr(happening, "values", None)) is None:
            return
        total, numbers, iteration = trainer.length(happening.phase), describe(values), happening.iteration
        if happening.phase != self.phase or iteration < self.done:
            self.close()
            self.phase, self.done = happening.phase, 0
            if trainer.note:
                say(self.phase + trainer.note)
            self.tick = self.enter_context(progress(self.phase, total))
        self.tick(iteration - self.done, numbers)
        if not output.is_terminal and 10 * iteration // total > 10 * self.done // total:
            say(f"{self.phase} {iteration}/{total} {numbers}")
        self.done = iteration
        if iteration >= total:
            self.close()


def describe(columns: dict[str, list[float]]) -> str:
    """The numbers of a record in one line; of several models, the first with the number of the others."""
    values = {name: column[0] for name, column in columns.items()}
    if "loss" in values:
        return f"loss {values['loss']:.4g} validation {values['validation_loss']:.4g} best {values['best_loss']:.4g}"
    text = f"E+ {values['positive_energy']:.4g}"
    if "validation_energy" in values:
        text += f" validation {values['validation_energy']:.4g}"
    if "temperature" in values:
        accepted = "/".join(f"{values[name]:.2f}" for name in ("latent_acceptance", "feature_acceptance"))
        text += f" E- {values['negative_energy']:.4g} T {values['temperature']:.4g} acc {accepted}"
    others = len(columns["positive_energy"]) - 1
    return text + (f" (+{others} seeds)" if others else "")


# --- arguments

OLD = {"--output": ("--out",), "--key": ("--dataset",), "--data": ("--jets", "--observed")}
"""Options that had another name, or one name for several things."""


class Command(TyperCommand):
    """A command that still takes the old names of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse with every old name that the command does not have replaced by the new one that it has."""
        known = {name for parameter in self.params for name in parameter.opts}
        new = {old: name for old, names in OLD.items() if old not in known for name in names if name in known}
        words = [word.partition("=") for word in args]
        return super().parse_args(ctx, [new.get(name, name) + equals + value for name, equals, value in words])


def parse_columns(text: str | None) -> list[str] | None:
    """Names such as "a,b,c"."""
    return None if text is None else text.split(",")


def parse_seeds(text: str | None) -> list[int] | None:
    """Seeds such as "0-7", "3" or "0,2,5-7"."""
    if text is None:
        return None
    seeds: list[int] = []
    try:
        for piece in text.split(","):
            first, dash, last = piece.partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise InputError(f"--seeds: expected a list such as 0-7 or 0,2,5, got {text!r}") from None
    refuse(not seeds, f"--seeds: expected at least one seed, got {text!r}")
    return seeds


def use_threads(count: int) -> None:
    """Work with as many CPU threads as a run asks for; 0 leaves it to torch."""
    import torch

    if count > 0:
        torch.set_num_threads(count)


# --- the whole


def _version(asked: bool) -> None:
    if asked:
        say(__version__)
        raise typer.Exit


def common(
    version: Annotated[bool, option("Print the version.", "--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Normalized autoencoders: anomaly scores that are likelihoods.

    Example: normae train toy-quick -o runs/toy, then normae evaluate runs/toy and normae report runs/toy.
    """
    del version
    printed = logging.Handler()  # as all else is: names of files and columns may be in warnings
    printed.emit = lambda record: note(f"normae: {record.getMessage()}")  # type: ignore[method-assign]
    logging.basicConfig(handlers=[printed])


@contextmanager
def signals_heard() -> Iterator[None]:
    """A signal that arrives in a callback, such as that of an import lock, would only be printed: it comes again.

    Termination, and a terminal that closes, interrupt as Ctrl-C does, unless nohup has them ignored.
    """
    before = sys.unraisablehook

    def again(ignored: "sys.UnraisableHookArgs") -> None:
        if ignored.exc_type is KeyboardInterrupt:
            threading.Timer(0.02, _thread.interrupt_main).start()  # when the callback is over
        else:
            before(ignored)

    with suppress(ValueError):  # not in the main thread
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def run(app: typer.Typer) -> None:
    """Run the command that was typed. Whatever goes wrong is one sentence, with the exit code of `judged`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be no text in any encoding
    try:
        with signals_heard(), shown_by(Bars()):
            app()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if interrupted(error) or getattr(error, "code", None) == 130:
            _exit("interrupted", 130)
        if not isinstance(error, Exception) or os.environ.get("NORMAE_TRACEBACK"):
            raise
        _exit(*judged(error))


def interrupted(error: BaseException | None) -> bool:
    """Whether a signal is behind an error: what it raises while a class is made, Python gives out as another."""
    seen: list[BaseException] = []  # a cause may have its effect as context
    while error is not None and error not in seen and not isinstance(error, KeyboardInterrupt):
        seen.append(error)
        error = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt)


# What a library says of a full or broken disk, whichever exception it raises.
FULL = {os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EIO)}
NAMED: dict[type[Exception], tuple[str, int]] = {
    Interrupted: ("{}", 130),
    LogZDisagreement: ("{}", 1),
    TrainingDiverged: ("the training diverged: {}", 1),
    ClusterFailed: ("{}; parts that are done are kept, and the same command does the rest", 1),
}


def judged(error: Exception) -> tuple[str, int]:
    """The sentence for an error, and the exit code.

    1: a training that diverged, bounds on log Z that disagree, a cluster that failed. 2: bad input. 3: no memory, or a
    disk that is full or broken. 4: a library, or this program, failed in a way that it should not. 130: interrupted.
    """
    text = str(error) or type(error).__name__
    first = (text.strip().splitlines() or [""])[0][:300]
    for kind, (words, code) in NAMED.items():
        if isinstance(error, kind):
            return words.format(text), code
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "allocate memory" in text:
        return f"out of memory ({first}); take less at a time, a smaller network, or a machine with more", 3
    if getattr(error, "errno", None) in FULL.values() or any(words in text for words in FULL):
        return f"the disk is full or broken ({first}); earlier files are intact", 3
    if isinstance(error, InputError | OSError):
        return text, 2
    name = f"{type(error).__module__}.{type(error).__name__}".removeprefix("builtins.")
    return f"{name}: {first} (NORMAE_TRACEBACK=1 shows where)", 4


def _exit(sentence: str, code: int) -> None:
    print(f"normae: {' '.join(sentence.split())}".translate(CONTROL), file=sys.stderr)
    sys.exit(code)
