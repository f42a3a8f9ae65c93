"""What counts as running away, where a training returns to, and how often."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from normae.errors import TrainingDiverged
from normae.training.config import GuardConfig

RECENT = 2
"""Good places to return to that are kept beside the last and the beginning of the phase."""


class Record(NamedTuple):
    """Means over the last window of iterations, with shape (S,) each."""

    phase: str
    iteration: int
    epoch: float
    values: dict[str, list[float]]


class Guarded(Protocol):
    """A training that can be put back: `rate_scale` and `rollbacks` have shape (S,), `weights` (S, P)."""

    @property
    def weights(self) -> Tensor: ...
    @property
    def rate_scale(self) -> Tensor: ...
    @property
    def rollbacks(self) -> Tensor: ...
    def snapshot(self) -> dict[str, Tensor]: ...
    def load(self, state: dict[str, Tensor]) -> None: ...


class Guard:
    """Watches S models.

    Args:
        config: the limits.
        seeds: of the models, for the reasons.
        advice: what to do about a training that cannot be saved.
    """

    def __init__(self, config: GuardConfig, seeds: Sequence[int], advice: str) -> None:
        self.config, self.seeds, self.advice = config, seeds, advice
        self.good: list[dict[str, Tensor]] = []

    def begin(self, training: Guarded) -> None:
        """Forget all places but this one, the beginning of a phase."""
        self.good = [training.snapshot()]

    def remember(self, training: Guarded, record: Record) -> None:
        """A checkpoint is a place to return to if all is well: who runs away is ill for a while before."""
        if self._well(record):
            self.good[1:] = [*self.good[1:][-RECENT:], training.snapshot()]

    def trouble(self, training: Guarded, record: Record) -> dict[int, str]:
        """Models that ran away, each with the reason."""
        finite = torch.isfinite(training.weights).all(dim=1).tolist()
        found: dict[int, str] = {}
        for k, seed in enumerate(self.seeds):
            values = {name: column[k] for name, column in record.values.items()}
            reason = self._reason(values) if finite[k] else "a weight is not finite"
            if reason:
                found[k] = f"seed {seed}: {reason} at iteration {record.iteration} of {record.phase}"
        return found

    def roll_back(self, training: Guarded, trouble: dict[int, str]) -> None:
        """Return to the last of the good places, where the models in trouble go on with a smaller learning rate.

        That place is then struck off: whoever is in trouble again before the next checkpoint was ill there already,
        and returns to the one before, at last to the beginning of the phase.
        """
        scale, count = training.rate_scale.clone(), training.rollbacks.clone()
        for k in trouble:
            scale[k] *= self.config.backoff
            count[k] += 1
        if int(count.max()) > self.config.rollbacks:
            reasons = "; ".join(trouble.values())
            raise TrainingDiverged(f"{reasons}, after {self.config.rollbacks} rollbacks; {self.advice}")
        training.load(self.good.pop() if len(self.good) > 1 else self.good[0])
        training.rate_scale.copy_(scale)
        training.rollbacks.copy_(count)

    def _well(self, record: Record) -> bool:
        columns = record.values
        if "negative_energy" not in columns:
            return True
        energies = zip(columns["positive_energy"], columns["negative_energy"], columns["temperature"], strict=True)
        return max(abs(up - down) / t for up, down, t in energies) <= self.config.calm * self.config.largest_gap

    def _reason(self, values: dict[str, float]) -> str | None:
        config = self.config
        for name, value in values.items():
            if not math.isfinite(value):
                return f"{name} is not finite"
        if "negative_energy" not in values:
            return None
        gap = abs(values["positive_energy"] - values["negative_energy"]) / values["temperature"]
        if gap > config.largest_gap:
            return f"abs(E+ - E-)/T = {gap:.3g} exceeds {config.largest_gap:g}"
        if values["feature_acceptance"] < config.smallest_acceptance:
            return f"the feature chain accepts {values['feature_acceptance']:.2g} of its steps"
        return None
