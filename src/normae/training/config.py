"""Settings of the phases of a training, and of the guard that watches them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from normae.errors import InputError, require_that
from normae.networks.bayesian import BayesianConfig

Schedule = Literal["constant", "cosine"]


def _check(config: object, positive: Sequence[str], at_least_zero: Sequence[str] = (), table: str = "") -> None:
    """Refuse numbers of `config` that are not positive, or not at least zero; None is no number."""
    for name in (*positive, *at_least_zero):
        value = getattr(config, name)
        expected = "a positive number" if name in positive else "a number of at least 0"
        holds = value is None or value > 0 or (value == 0 and name in at_least_zero)
        require_that(holds, f"{table}{name}", expected, value)


@dataclass(frozen=True)
class PhaseConfig:
    """What both phases share: length, batch, optimizer and regularizers.

    Args:
        epochs: passes over the training sample; an incomplete last batch is left out.
        iterations: updates of the weights, in place of `epochs`; None leaves it to the epochs.
        batch: events of an update.
        learning_rate: of Adam with its default parameters.
        schedule: "constant", or "cosine" down to a hundredth of the learning rate.
        warmup: iterations over which the learning rate rises from zero.
        gradient_clip: largest norm of the weights' gradient; None for no limit.
        latent_penalty: times the mean of z^2 over batch and dimensions.
        l2_penalty: times the sum of all squared weights.
        loss_scale: "temperature" divides the energies in the loss by T, "plain" does not; the penalties are not
            rescaled. Adam is blind to the scale of a loss but for its epsilon of 1e-8, which gradients of energies of
            1e-6 reach.
    """

    epochs: int = 100
    iterations: int | None = None
    batch: int = 2048
    learning_rate: float = 1e-3
    schedule: Schedule = "constant"
    warmup: int = 0
    gradient_clip: float | None = None
    latent_penalty: float = 0.0
    l2_penalty: float = 0.0
    loss_scale: Literal["temperature", "plain"] = "plain"

    def __post_init__(self) -> None:
        positive = ("batch", "learning_rate", "gradient_clip")
        _check(self, positive, ("epochs", "iterations", "warmup", "latent_penalty", "l2_penalty"))


@dataclass(frozen=True)
class TrainingConfig(PhaseConfig):
    """The NAE phase.

    Args:
        negative_penalty: times the mean of E^2 over negative samples.
        average: decay of the running average of the weights that becomes the model; 0 keeps the last weights.
    """

    learning_rate: float = 1e-5
    negative_penalty: float = 0.0
    loss_scale: Literal["temperature", "plain"] = "temperature"
    average: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, (), ("negative_penalty",))
        require_that(0 <= self.average < 1, "average", "a decay of at least 0 and below 1", self.average)


@dataclass(frozen=True)
class ContrastConfig:
    """A start by classification against a known density, in place of a pretraining, for whitened tables.

    That density is the proposal of the energy's base, and for an energy without one the standard Gaussian.

    Args:
        iterations: updates of the weights, at most.
        batch: events of an update, and as many draws of that density.
        learning_rate: of Adam; it decays along a cosine to a hundredth.
        patience: looks at the validation sample without a better loss after which it stops; fewer, down to a half,
            where half of those until the best are fewer.
        every: iterations between two looks.
        weight_decay: times the learning rate, what the weights shrink by in an update.
        draws: of that density, which rows are told from in the course of the updates.
        gaussian: begin as the base, or the Gaussian itself, with small weights of the last layer; otherwise with the
            weights as they are.
    """

    iterations: int = 2000
    batch: int = 256
    learning_rate: float = 1e-3
    patience: int = 16
    every: int = 25
    weight_decay: float = 1e-3
    draws: int = 20_000
    gaussian: bool = True

    def __post_init__(self) -> None:
        positive = ("iterations", "batch", "learning_rate", "patience", "every", "draws")
        _check(self, positive, ("weight_decay",), "contrast.")


@dataclass(frozen=True)
class TemperatureConfig:
    """The temperature: its value, or its first value where it is trained (log T, with an Adam of its own)."""

    initial: float = 0.2
    trained: bool = True
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        _check(self, ("initial", "learning_rate"), table="temperature.")


@dataclass(frozen=True)
class GuardConfig:
    """What counts as running away, and what is done about it.

    Args:
        log_every: iterations between two lines of metrics; the guard looks at each line.
        checkpoint_every: iterations between two checkpoints; a rollback returns to the last at which all was well.
        largest_gap: largest abs(E+ - E-)/T that is still a training.
        smallest_acceptance: of the feature chain, below which nothing is sampled any more.
        calm: share of `largest_gap` above which a checkpoint is not one to return to.
        rollbacks: how often a model may return to a checkpoint, each time with `backoff` times the learning rate; in
            trouble again before the next, it returns to the one before. A resumed training returns no further than
            to where it was resumed.
        backoff: factor on the learning rate for each rollback.
    """

    log_every: int = 50
    checkpoint_every: int = 500
    largest_gap: float = 100.0
    smallest_acceptance: float = 0.001
    calm: float = 0.03
    rollbacks: int = 5
    backoff: float = 0.5

    def __post_init__(self) -> None:
        _check(self, ("log_every", "checkpoint_every", "largest_gap", "calm"), ("rollbacks",), "guard.")
        require_that(0 < self.backoff < 1, "guard.backoff", "a factor between 0 and 1", self.backoff)
        fits, expected = self.checkpoint_every % self.log_every == 0, f"a multiple of log_every = {self.log_every}"
        require_that(fits, "guard.checkpoint_every", expected, self.checkpoint_every)


@dataclass(frozen=True)
class EnsembleConfig:
    """Models that differ in their initial weights, order of events and chains, trained side by side.

    Args:
        members: how many; fewer than four do not tell their own spread, but two can be the modes of a mean field.
        events: what each is trained on. "bootstrap": as many events drawn with replacement; the spread is that of one
            training on another sample, at least the error of the mean. "split": its own part of the events; members
            are independent, and the error of their mean is their spread over sqrt(members), but for what all of them
            get wrong alike. "half": in pairs, on the two halves of a random cut; halves scatter around their mean as
            the whole does around the truth, and of a table members are the draws. "all": the same events; the spread
            is that of the training alone.
    """

    members: int = 8
    events: Literal["bootstrap", "split", "half", "all"] = "bootstrap"


@dataclass(frozen=True)
class ClassifierConfig:
    """A supervised classifier of the two classes of jets, in place of an autoencoder; the paper's by default.

    Its keys are as in `PhaseConfig`. The weights of the epoch with the lowest validation loss are kept.
    """

    epochs: int = 300
    batch: int = 2048
    learning_rate: float = 1e-3
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        _check(self, ("epochs", "batch", "learning_rate"), table="classifier.")


@dataclass(frozen=True)
class MLPSettings:
    """A small classifier and its training: the paper's numbers."""

    hidden: tuple[int, ...] = (64, 64, 64)
    learning_rate: float = 1e-3
    batch: int = 2048
    max_epochs: int = 200
    patience: int = 20


@dataclass(frozen=True)
class ClassifierSettings(MLPSettings):
    """The paper's numbers. `points` is per class; `train`, `validation` and `test` parts of both classes."""

    points: int = 250_000
    train: int = 300_000
    validation: int = 50_000
    test: int = 150_000

    def __post_init__(self) -> None:
        sizes = ("points", "train", "validation", "test", "batch", "max_epochs", "patience", "learning_rate")
        _check(self, sizes, table="evaluation.classifier.")
        require_that(min(self.hidden, default=1) > 0, "evaluation.classifier.hidden", "positive widths", self.hidden)
        if self.train + self.validation + self.test > 2 * self.points:
            parts = f"{self.train} + {self.validation} + {self.test}"
            raise InputError(f"the parts of the classifier test, {parts}, exceed two times {self.points} points")


@dataclass(frozen=True)
class Schedules:
    """Everything that a trainer needs to know about how to train."""

    pretraining: PhaseConfig = field(default_factory=PhaseConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    bayesian: BayesianConfig | None = None
    contrast: ContrastConfig | None = None
