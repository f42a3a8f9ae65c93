"""A supervised classifier as the reference for a likelihood ratio that nobody knows.

Trained on labelled events with the cross-entropy, the logit of the classifier tends to

    f(x) = log[n_1 p_B(x)] - log[n_0 p_A(x)] = log r(x) + log(n_1 / n_0),

Eq. (lr_clf) of the paper for n_1 = n_0, the numbers of events of B (label 1) and A (label 0) that it was trained on.
What is returned is log r, without the composition of the sample. Network and training loop are those of
`classifier_test`; the inputs are standardized first, so that pixels of 1e-3 train as well as numbers of order one.

Nothing here says that the logit is calibrated: measure it on held-out events with `calibration_error`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.errors import InputError
from normae.statistics.arrays import Array, LengthsDiffer, as_labels, prior_log_odds
from normae.training.config import MLPSettings
from normae.training.supervised import permutation
from normae.training.two_sample import CHUNK, Part, events, fit_logits, initial_weights, logits


@dataclass(frozen=True)
class RatioSettings(MLPSettings):
    """The network and its training: the paper's of the classifier test, with one event in seven for validation."""

    validation_share: float = 1 / 7

    def __post_init__(self) -> None:
        if min(self.batch, self.max_epochs, self.patience, *self.hidden) < 1 or not 0 < self.validation_share < 1:
            raise InputError("a ratio classifier needs positive sizes and a validation share between 0 and 1")


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
        pieces = [logits(self.weights, self._scaled(piece)).double().cpu() for piece in torch.split(flat, CHUNK)]
        log_ratio: Array = torch.cat(pieces).numpy() - self.prior
        return log_ratio

    def _scaled(self, x: Tensor) -> Tensor:
        return (x.to(self.centre.device) - self.centre) / self.width


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
        raise LengthsDiffer(f"expected one label per event, {len(flat)}, got {np.size(held)}")
    positive = as_labels(held, len(flat))
    split = round(len(flat) * settings.validation_share)
    if split < 2 or len(flat) - split < 2:
        raise InputError(f"a ratio classifier needs more events: {len(flat)} leave {split} for validation")
    order = permutation(len(flat), generator, torch.device("cpu")).numpy()
    train, validation = order[split:], order[:split]
    prior = prior_log_odds(as_labels(positive[train], train.size))
    width, centre = torch.std_mean(flat[train], dim=0)
    scale = torch.where(width > 0, width, 1.0).to(device), centre.to(device)
    weights = initial_weights((flat.shape[1], *settings.hidden, 1), generator, device)
    parts = [
        Part((flat[index].to(device) - scale[1]) / scale[0], torch.from_numpy(positive[index]).float().to(device))
        for index in (train, validation)
    ]
    losses = fit_logits(weights, parts[0], parts[1], settings, generator)
    frozen = tuple(weight.detach() for weight in weights)
    return RatioClassifier(frozen, scale[1], scale[0], prior, *losses)
