"""The supervised classifier as reference of the dual test, its calibration measured and, if needed, corrected.

Three samples that share no event: one trains the classifier, one finds out whether its score is calibrated and fits the
correction, one measures the calibration before and after and is where the dual test is made. Which correction: the
simplest of temperature, Platt and isotonic that leaves a calibrated score; each is fitted on one half of the second
sample and judged on the other, and the other way round, since it would flatter itself on its own half. If none
suffices, the one with the least cross-entropy.

A classifier has an error of its own, which its calibration does not show: trainings on 20k events of each class differ
by some percent in the slope. So there are several, each trained on a random half of the first sample, and the reference
is the mean of their log r. If the full sample gives a number with the variance v, random halves of it scatter by v
around their mean (a half has 2 v, of which v is common to all halves): their spread is the error that the test adds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from normae.data.labelled import Labelled, cut_indices
from normae.random import stream
from normae.statistics import (
    CalibrationError,
    Estimate,
    Recalibration,
    Reliability,
    calibration_error,
    class_probability,
    cross_entropy,
    equal_count_edges,
    fit_isotonic,
    fit_platt,
    fit_temperature,
    reliability,
)
from normae.statistics.arrays import Array
from normae.training.ratio_classifier import RatioSettings, train_ratio_classifier

CORRECTIONS: dict[str, Callable[[ArrayLike, ArrayLike], Recalibration]] = {
    "temperature": fit_temperature,
    "Platt": fit_platt,
    "isotonic": fit_isotonic,
}
"""From the simplest on."""
MEMBERS = 4
"""Classifiers: twice the work of one on the full sample."""


class Calibration(NamedTuple):
    """How far a score is from the probability that it claims to be, on held-out events."""

    error: CalibrationError
    reliability: Reliability
    cross_entropy: Estimate


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
    members: int = MEMBERS,
) -> ClassifierReference:
    """Train on the first sample, correct with the second, and give log r and calibration on the third."""
    held, raw = [], []
    for k in range(members):
        generator = stream(seed, f"dual/classifier/{k}")
        half = training.take(cut_indices(training.labels, (0.5, 0.5), seed, f"half/{k}")[0])
        classifier = train_ratio_classifier(
            torch.from_numpy(half.x), half.labels, settings, generator=generator, device=device
        )
        held.append(classifier(torch.from_numpy(holdout.x)))
        raw.append(classifier(torch.from_numpy(test.x)))
    mean = np.mean(raw, axis=0)
    method, correct = choose_correction(np.mean(held, axis=0), holdout, seed)
    before, corrected = calibration(mean, test.labels, seed), correct(mean)
    after = before if method == "none" else calibration(corrected, test.labels, seed)
    return ClassifierReference(corrected, np.stack([correct(row) for row in raw]), method, before, after)


def calibration(log_ratio: Array, labels: ArrayLike, seed: int) -> Calibration:
    """Of log r with shape (N,) at events with these labels, in bins of equal numbers of events."""
    probability = class_probability(log_ratio, labels)
    edges = equal_count_edges(probability)
    error = calibration_error(probability, labels, edges, generator=stream(seed, "dual/calibration"))
    return Calibration(error, reliability(probability, labels, edges), cross_entropy(log_ratio, labels))


def choose_correction(log_ratio: Array, holdout: Labelled, seed: int) -> tuple[str, Recalibration]:
    """The correction's name and function for a classifier that gives `log_ratio` at the held-out events; "none" for a
    calibrated one."""
    if calibration(log_ratio, holdout.labels, seed).error.calibrated:
        return "none", lambda ratio: np.asarray(ratio, dtype=np.float64)
    judged = {name: _cross_fitted(fit, log_ratio, holdout.labels, seed) for name, fit in CORRECTIONS.items()}
    suffices = [name for name, found in judged.items() if found.error.calibrated]
    name = suffices[0] if suffices else min(judged, key=lambda name: judged[name].cross_entropy.value)
    return name, CORRECTIONS[name](log_ratio, holdout.labels)


def _cross_fitted(
    fit: Callable[[ArrayLike, ArrayLike], Recalibration], log_ratio: Array, labels: NDArray[np.bool_], seed: int
) -> Calibration:
    """The calibration of each half of the events with the correction that the other half gives."""
    one, other = cut_indices(labels, (0.5, 0.5), seed)
    corrected = np.empty(log_ratio.size)
    for fitted, judged in ((one, other), (other, one)):
        corrected[judged] = fit(log_ratio[fitted], labels[fitted])(log_ratio[judged])
    return calibration(corrected, labels, seed)
