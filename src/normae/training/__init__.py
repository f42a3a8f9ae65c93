"""One loop with its guard for everything that is trained; it yields what happened, and the caller writes."""

from normae.training.config import (
    ClassifierConfig,
    ContrastConfig,
    EnsembleConfig,
    GuardConfig,
    PhaseConfig,
    Schedules,
    TemperatureConfig,
    TrainingConfig,
)
from normae.training.supervised import classifier_trainer
from normae.training.trainer import Checkpoint, Happening, Record, Rollback, Trainer

__all__ = [
    "Checkpoint", "ClassifierConfig", "ContrastConfig", "EnsembleConfig", "GuardConfig",
    "Happening", "PhaseConfig", "Record", "Rollback", "Schedules", "TemperatureConfig", "Trainer", "TrainingConfig",
    "classifier_trainer",
]  # fmt: skip
