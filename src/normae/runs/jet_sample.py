"""The jets that a run is judged on: test jets of the class that it was trained on, and of the other one."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normae.config import Run
from normae.data import SparseEvents
from normae.errors import InputError
from normae.sources import KINDS, _parts, events_of_class, file_in, jets_path, read_jet_images

PIECE = 2048
"""Jets that are dense at a time."""
FEWEST = 10
"""Jets of each class that numbers with errors need."""


class JetTest(NamedTuple):
    """Held-out jets: `background` is the class trained on, with the label `label`; `signal` the other one.

    Of a classifier, which was trained on both, the background is QCD.
    """

    background: SparseEvents
    signal: SparseEvents
    label: int

    @property
    def digest(self) -> str:
        """Stands for the jets."""
        return f"{self.background.sha256()[:32]}{self.signal.sha256()[:32]}"


def held_out_jets(config: Run) -> JetTest:
    """`data.test` jets of each class, all for 0: of the file `test` of a folder, or what a split held out of one file.

    Of one file, the class that a run was not trained on is split alike, so that runs of one seed are judged on the same
    jets whichever class they were trained on.
    """
    path, label = jets_path(config.data), KINDS.index("top") if config.data.jets == "top" else 0
    images = read_jet_images(file_in(path, "test") if path.is_dir() else path)
    chosen = []
    for kind in (KINDS[label], KINDS[1 - label]):
        events = events_of_class(images, kind)
        if not path.is_dir():
            needed = config.data.train + config.data.test + config.data.validation
            if config.data.jets in (kind, "both") or needed <= len(events):
                parts = _parts(len(events), config.data, config.seed, f"{path}: expected at least {{}} {kind} jets")
                events = events.rows(parts[1])
        chosen.append(events.first(config.data.test or len(events)))
        if len(chosen[-1]) < FEWEST:
            raise InputError(f"{path}: expected at least {FEWEST} {kind} jets for the test, got {len(chosen[-1])}")
    return JetTest(chosen[0], chosen[1], label)


def pieces(events: SparseEvents, size: int = PIECE) -> Iterator[NDArray[np.float32]]:
    """Dense images with shape (n, 1, 40, 40), piece by piece."""
    for start in range(0, len(events), size):
        yield events[torch.arange(start, min(start + size, len(events)))].numpy()
