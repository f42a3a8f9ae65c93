"""Jets for the dual test, and a trained classifier run as its reference.

A folder of jets has a file `test`, on which the models are tested; a classifier that is trained here learns from its
`train` and is corrected with its `val`, so that the test is made on all of the test jets. One file of jets is cut, as a
file of labelled events is; it must not hold jets that the models were trained on. Label 1 is the class that B was
trained on, whatever the file calls it.
"""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from normae.config import Run
from normae.data.labelled import Labelled, cut
from normae.errors import InputError
from normae.sources import KINDS, Kind, events_of_class, file_in, read_jet_images
from normae.training.reference import ClassifierReference, calibration

QUICK = 20_000
"""Jets of each class that a classifier is trained on here."""


class LogRatio(Protocol):
    """A trained classifier: log p_top - log p_QCD of images with shape (N, 1, 40, 40), as an array (N,)."""

    def log_ratio(self, x: Any, corrected: bool = True) -> NDArray[np.float64]:
        """As it says of itself, or without the correction that held-out jets asked for."""


def jet_classes(a: Run, b: Run) -> tuple[Kind, Kind] | None:
    """The classes that two runs were trained on, where both are runs on jets; they must differ."""
    if a.data.jets not in KINDS or b.data.jets not in KINDS:
        return None
    if a.data.jets == b.data.jets:
        raise InputError(f"expected one run on QCD jets and one on top jets, got two on {a.data.jets}")
    return a.data.jets, b.data.jets


def jet_samples(
    path: Path, b: Kind, most: int, trains: bool, shares: tuple[float, ...], seed: int
) -> tuple[Labelled, Labelled, Labelled]:
    """Disjoint samples that train a classifier, correct it, and test the models.

    Args:
        path: a folder of jets, or one file.
        b: the class with label 1.
        most: jets of each class of the test.
        trains: whether a classifier is trained here; if not, only the test sample is read.
        shares: of one file, for the three samples.
    """
    if not path.is_dir():
        sample = read_labelled_jets(path, b, most)
        if not trains:
            return sample, sample, sample
        training, holdout, test = cut(sample, shares, seed)
        return training, holdout, test
    test = read_labelled_jets(file_in(path, "test"), b, most)
    if not trains:
        return test, test, test
    training = read_labelled_jets(file_in(path, "train"), b, QUICK)
    try:
        holdout = read_labelled_jets(file_in(path, "val"), b, QUICK)
    except InputError:
        training, holdout = cut(training, (0.8, 0.2), seed)
    return training, holdout, test


def read_labelled_jets(path: Path, b: Kind, most: int) -> Labelled:
    """At most `most` jets of each class of a file as images, the class `b` with label 1; A comes first."""
    images = read_jet_images(path)
    a = KINDS[1 - KINDS.index(b)]
    parts = [events_of_class(images, kind).first(most) for kind in (a, b)]
    x = np.concatenate([part.dense().numpy() for part in parts])
    return Labelled(x, np.repeat([False, True], [len(part) for part in parts]))


def run_reference(classifier: LogRatio, test: Labelled, b: Kind, corrected: bool, seed: int) -> ClassifierReference:
    """A trained classifier as the reference: its log r at the test jets, as it is and as it was corrected.

    Args:
        corrected: whether the classifier has a correction of its own.
    """
    sign = 1.0 if b == "top" else -1.0
    found = sign * np.asarray(classifier.log_ratio(test.x), dtype=np.float64)
    after = before = calibration(found, test.labels, seed)
    if corrected:
        before = calibration(sign * np.asarray(classifier.log_ratio(test.x, corrected=False)), test.labels, seed)
    return ClassifierReference(found, found[None], "as its run was" if corrected else "none", before, after)
