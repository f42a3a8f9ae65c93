"""Times of several works, taken in turns, and their ratios.

On a machine that others use too, a time means little and a ratio of two times taken one after the other means more. The
works run A B C A B C ..., and a ratio is the median of the ratios within the rounds. The error of a median of n values
of standard deviation s is sqrt(pi/2) s/sqrt(n); s is taken from the median absolute deviation, which is s/1.4826 for a
Gaussian, so that one round that was disturbed does not count.
"""

import math
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError
from normae.statistics import Estimate

Work = Callable[[], object]
Times = dict[str, NDArray[np.float64]]
"""Seconds of each work with shape (rounds,), by name."""


def interleaved(works: Mapping[str, Work], rounds: int, device: torch.device | None = None) -> Times:
    """Seconds of each work in each of `rounds` rounds, after one round that warms up."""
    times: Times = {name: np.zeros(rounds) for name in works}
    for turn in range(-1, rounds):
        for name, work in works.items():
            _wait(device)
            start = time.perf_counter()
            work()
            _wait(device)
            if turn >= 0:
                times[name][turn] = time.perf_counter() - start
    return times


def _wait(device: torch.device | None) -> None:
    """Until a CUDA device has done what it was given."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def median(values: ArrayLike) -> Estimate:
    """Median of values with shape (n,), with its error."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise InputError(f"expected one or more values in one row, got shape {x.shape}")
    middle = float(np.median(x))
    spread = 1.4826 * float(np.median(np.abs(x - middle)))
    return Estimate(middle, math.sqrt(math.pi / 2 / x.size) * spread)


def ratio(above: ArrayLike, below: ArrayLike) -> Estimate:
    """Median of above/below within the rounds, both with shape (n,), with its error."""
    return median(np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64))
