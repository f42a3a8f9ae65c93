"""The display of a training: E+, E-, T, acceptance and the time left."""

from contextlib import ExitStack
from types import TracebackType

from normae.cli.console import output, say
from normae.progress import Tick, progress
from normae.training import ClassifierTrainer, Happening, Record, Rollback, Trainer


class TrainingDisplay:
    """A bar on a terminal; where there is none, a line for every tenth of a phase."""

    def __init__(self) -> None:
        self.phase = ""
        self.done = 0
        self.tick: Tick
        self.bar = ExitStack()

    def __enter__(self) -> "TrainingDisplay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def __call__(self, trainer: Trainer | ClassifierTrainer, happening: Happening) -> None:
        if isinstance(happening, Rollback):
            say(f"Rolled back: {happening.reason}")
        if not isinstance(happening, Record):
            return
        total, numbers, iteration = trainer.length(happening.phase), describe(happening), happening.iteration
        if happening.phase != self.phase or iteration < self.done:
            self.bar.close()
            self.phase, self.done = happening.phase, 0
            self.tick = self.bar.enter_context(progress(self.phase, total))
        self.tick(iteration - self.done, numbers)
        if not output.is_terminal and 10 * iteration // total > 10 * self.done // total:
            say(f"{self.phase} {iteration}/{total} {numbers}")
        self.done = iteration
        if iteration >= total:
            self.bar.close()


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
