"""The classifier test: can a network tell samples of the model from samples of the truth?

As in the paper (section 3.1), an MLP on the raw inputs has the binary cross-entropy

    L = -mean[ y log s(f(x)) + (1 - y) log(1 - s(f(x))) ],    y = 1 for the model, s the sigmoid,

whose minimum is f = log p_model - log p_true, so that an AUC of 1/2 on the test part is the best that a model can do.
Its sizes are in `ClassifierSettings`. Every random number is drawn on the device of the generator that is passed in:
the split, the first weights and the order of the batches are the same wherever the network runs.

**The reference of the dual test** is such a classifier of labelled events, on standardized inputs. Its logit tends to

    f(x) = log[n_1 p_B(x)] - log[n_0 p_A(x)] = log r(x) + log(n_1 / n_0),

Eq. (lr_clf) of the paper for n_1 = n_0, the numbers of events of B (label 1) and A (label 0) that it was trained on.
Three samples share no event: one trains the classifier, one finds out whether its score is calibrated and fits the
correction, one measures the calibration before and after and is where the dual test is made.

A classifier has an error of its own, which its calibration does not show: trainings on 20k events of each class differ
by some percent in the slope. So there are several, each trained on a random half of the first sample, and the reference
is the mean of their log r. If the full sample gives a number with the variance v, random halves of it scatter by v
around their mean (a half has 2 v, of which v is common to all halves): their spread is the error that the test adds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, linear

from normae.data.labelled import Labelled
from normae.errors import InputError, refuse
from normae.statistics.arrays import Array, Estimate, as_labels, cut_indices, prior_log_odds, unweighted
from normae.statistics.auc import auc
from normae.statistics.calibration import Calibration, calibration, choose_correction
from normae.tensors import Device, stream
from normae.training.config import ClassifierSettings, MLPSettings
from normae.training.supervised import Losses, fit, permutation

Sample = np.ndarray[Any, Any] | Tensor
CHUNK = 65_536  # events scored at once outside training
MEMBERS = 4  # classifiers of a reference: twice the work of one on the full sample


class ClassifierResult(NamedTuple):
    """The AUC on the test part, and the loss of each epoch that ran on the first two parts."""

    auc: Estimate
    losses: Losses


class Part(NamedTuple):
    """Events with shape (N, features), their labels with shape (N,), and weights (N,) where they have some."""

    x: Tensor
    label: Tensor
    weight: Tensor | None = None


def classifier_test(
    true: Sample, model: Sample, settings: ClassifierSettings | None = None, *, generator: torch.Generator,
    device: Device = "cpu", weights: np.ndarray[Any, Any] | None = None, times: int = 1,
) -> ClassifierResult:  # fmt: skip
    """Train a classifier on two samples with shape (N, *event) each, and give its AUC on events it has not seen.

    Of a sample with more than `settings.points` events a random subset is used. If the smaller sample has fewer, both
    are cut to its size and the three parts shrink in proportion.

    Args:
        weights: of the true events, with shape (N,) and mean 1; negative ones count as such.
        times: how many classifiers, each tested on events on which no other one is; the AUC is the mean of theirs.
    """
    settings = settings or ClassifierSettings()
    own = None if weights is None else torch.from_numpy(weights).float()
    two, found = (events(true, "true"), events(model, "model")), []
    for train, validation, test in _parts(*two, settings, generator, device, own, times):
        layers, losses = fit_logits(train, validation, settings, generator)
        scores, label = logits(layers, test.x).double().cpu().numpy(), test.label.cpu().numpy() == 1
        counts = None if test.weight is None else test.weight.cpu().numpy()[~label]
        found.append(auc(scores[label], unweighted(scores[~label], counts)))
    values, errors = np.transpose(found)
    return ClassifierResult(Estimate(float(values.mean()), float(np.linalg.norm(errors)) / times), losses)


def events(sample: Sample, name: str) -> Tensor:
    """The sample as float32 with shape (N, features)."""
    copied = sample if isinstance(sample, Tensor) else torch.from_numpy(np.array(sample, dtype=np.float32))
    flat = copied.detach().float()
    refuse(flat.ndim < 2, f"{name}: expected events of shape (N, *event), got {tuple(flat.shape)}")
    refuse(not torch.isfinite(flat).all(), f"{name}: expected finite events, got NaN or infinity")
    return flat.flatten(1)


def _parts(
    true: Tensor, model: Tensor, settings: ClassifierSettings, generator: torch.Generator, device: Device,
    weights: Tensor | None = None, times: int = 1,
) -> list[list[Part]]:  # fmt: skip
    """Disjoint random parts for training, validation and test, on `device`, with other events for each test."""
    if true.shape[1] != model.shape[1]:
        raise InputError(f"expected events of one size, got {true.shape[1]} (true) and {model.shape[1]} (model)")
    points = min(settings.points, len(true), len(model))
    sizes = [size * points // settings.points for size in (settings.train, settings.validation, settings.test)]
    refuse(min(sizes) < 4, f"a classifier test needs more events: {points} of each kind leave parts of {sizes}")
    some, others = (  # without replacement; all of them, as they are, if there are no more
        slice(None) if len(events) == points else permutation(len(events), generator, events.device)[:points]
        for events in (true, model)
    )
    x = torch.cat([true[some].to(device), model[others].to(device)])
    label = (torch.arange(2 * points, device=device) >= points).float()
    weight = None if weights is None else torch.cat([weights[some], torch.ones(points)]).to(device)
    order = permutation(2 * points, generator, x.device)
    cut = [torch.split(order.roll(k * sizes[2])[: sum(sizes)], sizes) for k in range(times)]
    return [[Part(x[p], label[p], None if weight is None else weight[p]) for p in pieces] for pieces in cut]


def _forward(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """The logit of label 1, with shape (N,)."""
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = torch.relu(linear(x, weight, bias))
    return linear(x, weights[-2], weights[-1]).squeeze(1)


@torch.no_grad()
def logits(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """The logit of label 1 with shape (N,), for events with shape (N, features), without a graph."""
    return torch.cat([_forward(weights, piece) for piece in torch.split(x, CHUNK)])


def _loss(logit: Tensor, part: Part, rows: Tensor | slice = slice(None)) -> Tensor:
    weight = None if part.weight is None else part.weight[rows]
    return binary_cross_entropy_with_logits(logit, part.label[rows], weight)


def fit_logits(
    train: Part, validation: Part, settings: MLPSettings, generator: torch.Generator
) -> tuple[list[Tensor], Losses]:
    """Weight (out, in) and bias (out,) of each layer in turn, trained on the cross-entropy to the best validation loss.

    They begin uniform within 1/sqrt(in): torch's default for Linear.
    """
    weights = []
    for fan_in, fan_out in pairwise((train.x.shape[1], *settings.hidden, 1)):
        for shape in ((fan_out, fan_in), (fan_out,)):
            uniform = torch.rand(shape, generator=generator, device=generator.device).to(train.x.device)
            weights.append(uniform.mul_(2).sub_(1).div_(math.sqrt(fan_in)).requires_grad_())
    losses = fit(
        weights, lambda rows: _loss(_forward(weights, train.x[rows]), train, rows), len(train.x), generator,
        epochs=settings.max_epochs, batch=settings.batch, learning_rate=settings.learning_rate,
        validate=lambda: _loss(logits(weights, validation.x), validation).item(), patience=settings.patience,
    )  # fmt: skip
    return weights, losses


# --- the reference of a dual test


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
    training: Labelled, holdout: Labelled, test: Labelled, settings: RatioSettings, seed: int, device: Device = "cpu"
) -> ClassifierReference:
    """Train on the first sample, correct with the second, and give log r and calibration on the third."""
    held, raw = [], []
    for k in range(MEMBERS):
        generator = stream(seed, f"dual/classifier/{k}")
        half = training.take(cut_indices(training.labels, (0.5, 0.5), seed, f"half/{k}")[0])
        classifier = train_ratio_classifier(half.x, half.labels, settings, generator=generator, device=device)
        held.append(classifier(holdout.x))
        raw.append(classifier(test.x))
    mean = np.mean(raw, axis=0)
    method, correct = choose_correction(np.mean(held, axis=0), holdout.labels, seed)
    before, corrected = calibration(mean, test.labels, seed), correct(mean)
    after = before if method == "none" else calibration(corrected, test.labels, seed)
    return ClassifierReference(corrected, np.stack([correct(row) for row in raw]), method, before, after)


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
    losses: Losses

    def __call__(self, x: Sample) -> Array:
        """log r = log p_B - log p_A with shape (N,), float64, for events with shape (N, *event)."""
        flat = events(x, "x")
        if flat.shape[1] != self.centre.numel():
            raise InputError(f"expected events of size {self.centre.numel()}, got {flat.shape[1]}")
        scaled = ((piece.to(self.centre.device) - self.centre) / self.width for piece in torch.split(flat, CHUNK))
        pieces = [logits(self.weights, piece).double().cpu() for piece in scaled]
        return np.asarray(torch.cat(pieces).numpy() - self.prior)


def train_ratio_classifier(
    x: Sample, labels: Sample | None, settings: RatioSettings | None = None, *, generator: torch.Generator,
    device: Device = "cpu",
) -> RatioClassifier:  # fmt: skip
    """Train on events with shape (N, *event) and labels 0 and 1 with shape (N,); the best validation loss is kept."""
    settings = settings or RatioSettings()
    flat = events(x, "x")
    positive = as_labels(labels.detach().cpu() if isinstance(labels, Tensor) else labels, len(flat))
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
    return RatioClassifier(tuple(weight.detach() for weight in weights), centre, width, prior, losses)
