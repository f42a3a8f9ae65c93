"""The bootstrap of sums over events: what is resampled is how often each event counts.

A resample of N events with replacement gives event i the multiplicity k_i, sum k_i = N. A statistic that is a function
of sums over events needs no copy of them, only sums weighted by k. If the number of events of each class is fixed by
how the sample was made, each class is resampled by itself.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from normae.errors import InputError


def multiplicities(labels: NDArray[np.bool_], generator: torch.Generator) -> NDArray[np.int64]:
    """How often each of N events counts in one resample of both classes, with shape (N,) as `labels`."""
    counts = np.empty(labels.size, dtype=np.int64)
    for chosen in (labels, ~labels):
        n = int(chosen.sum())
        if n:
            drawn = torch.randint(n, (n,), generator=generator, device=generator.device).cpu().numpy()
            counts[chosen] = np.bincount(drawn, minlength=n)
    return counts


def check_resamples(n: int) -> None:
    """At least 2 resamples: a standard deviation needs them."""
    if n < 2:
        raise InputError(f"a bootstrap error needs at least 2 resamples, got {n}")
