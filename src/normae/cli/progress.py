"""The display of a training: a bar with E+, E-, T, acceptance and the time left."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from normae.training import ClassifierTrainer, Happening, Record, Rollback, Trainer


class TrainingDisplay:
    """A bar on a terminal; where there is none, a line for every tenth of a phase."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.tenths: dict[str, int] = {}

    def __enter__(self) -> "TrainingDisplay":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, trainer: Trainer | ClassifierTrainer, happening: Happening) -> None:
        if isinstance(happening, Rollback):
            self.console.print(f"Rolled back: {happening.reason}", soft_wrap=True)
        if not isinstance(happening, Record):
            return
        total = trainer.length(happening.phase)
        numbers = describe(happening)
        if happening.phase not in self.tasks:
            self.tasks[happening.phase] = self.progress.add_task(happening.phase, total=total, numbers="")
        self.progress.update(self.tasks[happening.phase], completed=happening.iteration, numbers=numbers)
        tenth = 10 * happening.iteration // total
        if not self.console.is_terminal and tenth > self.tenths.get(happening.phase, 0):
            self.tenths[happening.phase] = tenth
            self.console.print(f"{happening.phase} {happening.iteration}/{total} {numbers}", soft_wrap=True)


def describe(record: Record) -> str:
    """The numbers of a record in one line; of several models, the first with the number of the others."""
    values = {name: column[0] for name, column in record.values.items()}
    if "loss" in values:
        return f"loss {values['loss']:.4g} validation {values['validation_loss']:.4g} best {values['best_loss']:.4g}"
    text = f"E+ {values['positive_energy']:.4g}"
    if "validation_energy" in values:
        text += f" validation {values['validation_energy']:.4g}"
    if "temperature" in values:
        text += (
            f" E- {values['negative_energy']:.4g} T {values['temperature']:.4g} "
            f"acc {values['latent_acceptance']:.2f}/{values['feature_acceptance']:.2f}"
        )
    others = len(record.values["positive_energy"]) - 1
    return text + (f" (+{others} seeds)" if others else "")
