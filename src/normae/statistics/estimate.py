"""A number with its standard error, and the one way in which the package prints it.

The error is rounded to its leading digit and the value to the same decimal place, so that what is printed is what is
known: 0.00143 with error 0.00011 reads "0.0014 ± 0.0001".

**The bootstrap** of sums over events resamples how often each event counts. A resample of N events with replacement
gives event i the multiplicity k_i, sum k_i = N. A statistic that is a function of sums over events needs no copy of
them, only sums weighted by k. If the number of events of each class is fixed by how the sample was made, each class is
resampled by itself.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normae.errors import InputError


class Estimate(NamedTuple):
    """A measured value and its standard error (one sigma). `_asdict()` is the form that metrics.json holds.

    >>> from normae.statistics import Estimate
    >>> print(Estimate(0.00143, 0.00011))
    0.0014 ± 0.0001
    """

    value: float
    error: float

    def __str__(self) -> str:
        return format_estimate(self)


def format_estimate(estimate: Estimate, digits: int = 1) -> str:
    """Value and error with `digits` significant digits of the error; an unknown or zero error is left out."""
    value, error = estimate
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return f"{value:.4g}"
    exponent = _leading_exponent(error, digits)
    scale = _leading_exponent(max(abs(value), error), digits)
    if -5 <= scale < 6:
        return _fixed(value, error, digits - 1 - exponent)
    return f"({_fixed(value / 10.0**scale, error / 10.0**scale, digits - 1 - exponent + scale)})e{scale:+d}"


def _leading_exponent(number: float, digits: int) -> int:
    """The power of ten of the leading digit, after rounding (0.096 to one digit is 0.1, so -1)."""
    return int(f"{number:.{digits - 1}e}".split("e")[1])


def _fixed(value: float, error: float, decimals: int) -> str:
    shown = max(decimals, 0)
    return f"{round(value, decimals) + 0.0:.{shown}f} ± {round(error, decimals):.{shown}f}"


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
