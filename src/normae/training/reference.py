"""The supervised classifier as reference of the dual test, its calibration measured and, if needed, corrected.

Three samples that share no event: one trains the classifier, one finds out whether its score is calibrated and fits the
correction, one measures the calibration before and after and is where the dual test is made.

A classifier has an error of its own, which its calibration does not show: trainings on 20k events of each class differ
by some percent in the slope. So there are several, each trained on a random half of the first sample, and the reference
is the mean of their log r. If the full sample gives a number with the variance v, random halves of it scatter by v
around their mean (a half has 2 v, of which v is common to all halves): their spread is the error that the test adds.

Trained on labelled events with the cross-entropy, the logit of a classifier tends to

    f(x) = log[n_1 p_B(x)] - log[n_0 p_A(x)] = log r(x) + log(n_1 / n_0),

Eq. (lr_clf) of the paper for n_1 = n_0, the numbers of events of B (label 1) and A (label 0) that it was trained on.
What it gives is log r, without the composition of the sample. Network and training are those of `classifier_test`; the
inputs are standardized first, so that pixels of 1e-3 train as well as numbers of order one.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normae.data.labelled import Labelled
from normae.errors import InputError
from normae.random import stream
from normae.statistics.arrays import Array, as_labels, cut_indices, prior_log_odds
from normae.statistics.calibration import Calibration, calibration, choose_correction
from normae.training.config import MLPSettings
from normae.training.supervised import permutation
from normae.training.two_sample import CHUNK, Part, events, fit_logits, logits

MEMBERS = 4
"""Classifiers: twice the work of one on the full sample."""


@dataclass(frozen=True)
class RatioSettings(MLPSettings):
    """The network and its training: the paper's of the classifier test, with one event in seven for validation."""

    validation_share: float = 1 / 7

    def __post_init__(self) -> None:
        if min(self.batch, self.max_epochs, self.patience, *self.hidden) < 1 or not 0 < self.validation_share < 1:
            raise InputError("a ratio classifier needs positive sizes and a validation share between 0 and 1")


class ClassifierReference(NamedTuple):
    """The reference's log r with shape (N,), corrected where `method` is not "none", and the calibration of both.

    `members` is the log r of each of K classifiers, with shape (K, N), corrected alike; `log_ratio` that of their mean.
    """

    log_ratio: Array
    members: Array
    method: str
    before: Calibration
    after: Calibration

    @property
    def sentence(self) -> str:
        """What was measured and done, for a reader."""
        found, perfect = self.before.error.measured, self.before.error.perfect
        start = f"The classifier's expected calibration error is {found}; a perfect one would have {perfect}"
        if self.method == "none":
            words = "so it needs no correction" if self.before.error.calibrated else "and it was not corrected"
            return f"{start}, {words}."
        left = "which is calibrated" if self.after.error.calibrated else "which is still not calibrated"
        return f"{start}. Corrected on held-out events ({self.method}): {self.after.error.measured}, {left}."


def classifier_reference(
    training: Labelled,
    holdout: Labelled,
    test: Labelled,
    settings: RatioSettings,
    seed: int,
    device: torch.device | str = "cpu",
) -> ClassifierReference:
    """Train on the first sample, correct with the second, and give log r and calibration on the third."""
    held, raw = [], []
    for k in range(MEMBERS):
        generator = stream(seed, f"dual/classifier/{k}")
        half = training.take(cut_indices(training.labels, (0.5, 0.5), seed, f"half/{k}")[0])
        classifier = train_ratio_classifier(
            torch.from_numpy(half.x), half.labels, settings, generator=generator, device=device
        )
        held.append(classifier(torch.from_numpy(holdout.x)))
        raw.append(classifier(torch.from_numpy(test.x)))
    mean = np.mean(raw, axis=0)
    method, correct = choose_correction(np.mean(held, axis=0), holdout.labels, seed)
    before, corrected = calibration(mean, test.labels, seed), correct(mean)
    after = before if method == "none" else calibration(corrected, test.labels, seed)
    return ClassifierReference(corrected, np.stack([correct(row) for row in raw]), method, before, after)


# --- one classifier


@dataclass(frozen=True)
class RatioClassifier:
    """A trained classifier: call it with events of shape (N, *event) for their log r with shape (N,).

    `weights`, `centre` and `width`, the latter two with shape (features,), are tensors on the training's device;
    `prior` is log(n_1 / n_0); the losses are those of each epoch.
    """

    weights: tuple[Tensor, ...]
    centre: Tensor
    width: Tensor
    prior: float
    train_loss: tuple[float, ...]
    validation_loss: tuple[float, ...]

    def __call__(self, x: np.ndarray[Any, Any] | Tensor) -> Array:
        """log r = log p_B - log p_A with shape (N,), float64, for events with shape (N, *event)."""
        flat = events(x, "x")
        if flat.shape[1] != self.centre.numel():
            raise InputError(f"expected events of size {self.centre.numel()}, got {flat.shape[1]}")
        scaled = ((piece.to(self.centre.device) - self.centre) / self.width for piece in torch.split(flat, CHUNK))
        pieces = [logits(self.weights, piece).double().cpu() for piece in scaled]
        return np.asarray(torch.cat(pieces).numpy() - self.prior)


def train_ratio_classifier(
    x: np.ndarray[Any, Any] | Tensor,
    labels: np.ndarray[Any, Any] | Tensor | None,
    settings: RatioSettings | None = None,
    *,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> RatioClassifier:
    """Train on events with shape (N, *event) and labels 0 and 1 with shape (N,); the best validation loss is kept."""
    settings = settings or RatioSettings()
    flat = events(x, "x")
    held = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else labels
    if held is not None and np.size(held) != len(flat):
        raise InputError(f"expected one label per event, {len(flat)}, got {np.size(held)}")
    positive = as_labels(held, len(flat))
    split = round(len(flat) * settings.validation_share)
    if split < 2 or len(flat) - split < 2:
        raise InputError(f"a ratio classifier needs more events: {len(flat)} leave {split} for validation")
    order = permutation(len(flat), generator, torch.device("cpu")).numpy()
    train, validation = order[split:], order[:split]
    prior = prior_log_odds(as_labels(positive[train], train.size))
    width, centre = (found.to(device) for found in torch.std_mean(flat[train], dim=0))
    width = torch.where(width > 0, width, 1.0)
    parts = [
        Part((flat[index].to(device) - centre) / width, torch.from_numpy(positive[index]).float().to(device))
        for index in (train, validation)
    ]
    weights, losses = fit_logits(parts[0], parts[1], settings, generator)
    return RatioClassifier(tuple(weight.detach() for weight in weights), centre, width, prior, *losses)
