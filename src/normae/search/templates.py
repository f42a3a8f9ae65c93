"""Binned samples of a search, with what is known of their errors."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from normae.statistics.histogram import Floats, covariance, shifts


@dataclass(frozen=True)
class Sample:
    """A histogram.

    Args:
        value: sum of weights in each bin, with shape (B,).
        variance: sum of squared weights, with shape (B,).
        draws: `value` for each weight draw, with shape (K, B); None for a deterministic model.
        events: that were filled.
    """

    value: Floats
    variance: Floats
    draws: Floats | None
    events: int

    def __add__(self, other: "Sample") -> "Sample":
        draws = None if self.draws is None or other.draws is None else self.draws + other.draws
        return Sample(self.value + other.value, self.variance + other.variance, draws, self.events + other.events)

    def scaled(self, factor: float) -> "Sample":
        """With all weights times `factor`."""
        draws = None if self.draws is None else factor * self.draws
        return Sample(factor * self.value, factor**2 * self.variance, draws, self.events)


@dataclass(frozen=True)
class Templates:
    """The samples of one channel.

    Args:
        quantity: "score", "log_prob" or "p_value".
        edges: of the B bins, with shape (B + 1,); events beyond the outer ones are in the outer bins.
        background: what is expected without a signal.
        signal: what comes on top for a strength of 1.
        data: counts with shape (B,) that were seen.
        normalization: relative uncertainty of the background's yield; 0 for none.
        least: of the covariance, shifts that move no bin by this share of its statistical error are left out.

    >>> import numpy as np
    >>> from normae.search import Sample, Templates
    >>> counts, draws = np.array([4.0, 1.0]), np.array([[3.0, 2.0], [5.0, 0.0]])
    >>> background = Sample(counts, variance=counts, draws=draws, events=5)
    >>> Templates("score", np.array([0.0, 1.0, 2.0]), background).covariance
    array([[ 2., -2.],
           [-2.,  2.]])
    """

    quantity: str
    edges: Floats
    background: Sample
    signal: Sample | None = None
    data: Floats | None = None
    normalization: float = 0.0
    least: float = 0.01

    @property
    def samples(self) -> dict[str, Sample]:
        """By name, in the order in which they are stacked."""
        found = {"background": self.background}
        return found if self.signal is None else found | {"signal": self.signal}

    @cached_property
    def covariance(self) -> Floats | None:
        """Over weight draws, with shape (B, B), or (2 B, 2 B) with a signal, background first."""
        draws = [sample.draws for sample in self.samples.values()]
        stacked = [one for one in draws if one is not None]
        return covariance(np.concatenate(stacked, axis=1)) if len(stacked) == len(draws) else None

    @cached_property
    def shifts(self) -> dict[str, Floats]:
        """Of each sample, with shape (r, B): its part of the r shifts that all samples share."""
        bins = len(self.edges) - 1
        if self.covariance is None:
            return {name: np.zeros((0, bins)) for name in self.samples}
        poisson = np.sqrt(np.maximum(self.background.value, 0) + self.background.variance)
        found = shifts(self.covariance, np.tile(poisson, len(self.samples)), self.least)
        return {name: found[:, k * bins : (k + 1) * bins] for k, name in enumerate(self.samples)}
