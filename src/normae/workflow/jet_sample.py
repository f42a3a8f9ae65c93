"""The jets that a run is judged on: test jets of the class that it was trained on, and of the other one."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normae.config import Run
from normae.data import SparseEvents, split
from normae.errors import InputError
from normae.random import stream
from normae.workflow.sources import events_of_class, file_in, jets_path, read_jet_images

Kind = Literal["qcd", "top"]
KINDS: tuple[Kind, Kind] = ("qcd", "top")
"""By label: 0 for QCD, 1 for top."""
PIECE = 2048
"""Jets that are dense at a time."""
FEWEST = 10
"""Jets of each class that numbers with errors need."""


class JetTest(NamedTuple):
    """Held-out jets: `background` is the class trained on, with the label `label`; `signal` the other one."""

    background: SparseEvents
    signal: SparseEvents
    label: int

    @property
    def digest(self) -> str:
        """Stands for the jets."""
        return f"{self.background.sha256()[:32]}{self.signal.sha256()[:32]}"


def held_out_jets(config: Run) -> JetTest:
    """`data.test` jets of each class: of the file `test` of a folder, or, of one file, what the training left out."""
    kind = config.data.jets
    assert kind is not None
    path = jets_path(config.data)
    images = read_jet_images(file_in(path, "test") if path.is_dir() else path)
    other = KINDS[1 - KINDS.index(kind)]
    background, signal = events_of_class(images, kind), events_of_class(images, other)
    if not path.is_dir():
        size = config.data.train or len(background) - config.data.test
        if size < 1 or size + config.data.test > len(background):
            raise InputError(f"{path}: expected the jets of the training, got {len(background)} {kind} jets")
        parts = split(len(background), [size, config.data.test], stream(config.seed, "data/split"))
        background = background.rows(parts[1])
    size = config.data.test or max(len(background), len(signal))
    background, signal = background.first(size), signal.first(size)
    if min(len(background), len(signal)) < FEWEST:
        counts = f"{len(background)} {kind} and {len(signal)} {other} jets"
        raise InputError(f"{path}: expected at least {FEWEST} test jets of each class, got {counts}")
    return JetTest(background, signal, KINDS.index(kind))


def pieces(events: SparseEvents, size: int = PIECE) -> Iterator[NDArray[np.float32]]:
    """Dense images with shape (n, 1, 40, 40), piece by piece."""
    for start in range(0, len(events), size):
        yield events[torch.arange(start, min(start + size, len(events)))].numpy()
