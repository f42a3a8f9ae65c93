"""One loop for autoencoder pretraining and NAE training; it yields what happened, and the caller writes."""

from normae.training.classifier import ClassifierTrainer
from normae.training.config import (
    ClassifierConfig,
    EnsembleConfig,
    GuardConfig,
    PhaseConfig,
    Schedules,
    SwagConfig,
    TemperatureConfig,
    TrainingConfig,
)
from normae.training.trainer import PHASES, Checkpoint, Happening, Record, Rollback, Trainer

__all__ = [
    "PHASES",
    "Checkpoint",
    "ClassifierConfig",
    "ClassifierTrainer",
    "EnsembleConfig",
    "GuardConfig",
    "Happening",
    "PhaseConfig",
    "Record",
    "Rollback",
    "Schedules",
    "SwagConfig",
    "TemperatureConfig",
    "Trainer",
    "TrainingConfig",
]
