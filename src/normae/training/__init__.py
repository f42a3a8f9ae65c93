"""One loop for autoencoder pretraining and NAE training; it yields what happened, and the caller writes."""

from normae.training.config import GuardConfig, PhaseConfig, Schedules, TemperatureConfig, TrainingConfig
from normae.training.trainer import PHASES, Checkpoint, Happening, Record, Rollback, Trainer

__all__ = [
    "PHASES",
    "Checkpoint",
    "GuardConfig",
    "Happening",
    "PhaseConfig",
    "Record",
    "Rollback",
    "Schedules",
    "TemperatureConfig",
    "Trainer",
    "TrainingConfig",
]
