"""The display of a training: E+, E-, T, acceptance and the time left."""

from contextlib import ExitStack

from normae.cli.console import output, say
from normae.progress import Tick, progress
from normae.training import ClassifierTrainer, Happening, Record, Rollback, Trainer


class TrainingDisplay(ExitStack):
    """A bar on a terminal, open until the stack is closed; elsewhere a line for every tenth of a phase."""

    phase, done = "", 0
    tick: Tick

    def __call__(self, trainer: Trainer | ClassifierTrainer, happening: Happening) -> None:
        if isinstance(happening, Rollback):
            say(f"Rolled back: {happening.reason}")
        if not isinstance(happening, Record):
            return
        total, numbers, iteration = trainer.length(happening.phase), describe(happening), happening.iteration
        if happening.phase != self.phase or iteration < self.done:
            self.close()
            self.phase, self.done = happening.phase, 0
            self.tick = self.enter_context(progress(self.phase, total))
        self.tick(iteration - self.done, numbers)
        if not output.is_terminal and 10 * iteration // total > 10 * self.done // total:
            say(f"{self.phase} {iteration}/{total} {numbers}")
        self.done = iteration
        if iteration >= total:
            self.close()


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
