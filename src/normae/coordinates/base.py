"""Coordinates: a fitted, invertible map y(x) from what a user has to what the energy sees.

    log p(x) = -E(y(x))/T - log Z + log |dy/dx|.

The map is part of the model: it is stored in the run folder and applied wherever events come in, so that scores are in
the user's units. Chains walk in y and never see it. Toys, and jets as pixels, take events as they are: `Identity`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

MARGIN = 0.1
"""How far beyond the training sample a column may lie before a row is outside, as a share of the column's range."""


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value of each column of the training sample, with shape (d,) each."""

    low: Tensor
    high: Tensor

    @staticmethod
    def of(rows: Tensor) -> "Range":
        """Of rows with shape (N, d)."""
        return Range(rows.amin(0).double(), rows.amax(0).double())

    def outside(self, rows: Tensor) -> Tensor:
        """Which values of rows (N, d) lie beyond the range by more than `MARGIN` of it, with shape (N, d)."""
        margin = MARGIN * (self.high - self.low)
        return (rows < self.low - margin) | (rows > self.high + margin)


class Coordinates(Protocol):
    """What a model needs of its coordinates. Tensors in and out; `forward` and `log_slope` are differentiable."""

    kind: ClassVar[str]

    @property
    def range(self) -> Range | None:
        """Of the training sample, where its columns mean something by themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """y with shape (N, *event) of events x with shape (N, *event)."""

    def inverse(self, y: Tensor) -> Tensor:
        """Events x with shape (N, *event) of y with shape (N, *event)."""

    def log_slope(self, x: Tensor) -> Tensor:
        """log |dy/dx| with shape (N,)."""

    def noisy(self, y: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        """`copies` of rows y that a training sees, with shape (copies * N, *event), each with its own noise."""

    def tensors(self) -> dict[str, Tensor]:
        """All that has to be stored, by name."""

    def to(self, device: torch.device | str) -> "Coordinates":
        """The same map on `device`."""


@dataclass(frozen=True)
class Identity:
    """y = x."""

    kind: ClassVar[str] = "identity"
    range: Range | None = None

    def forward(self, x: Tensor) -> Tensor:
        """x itself."""
        return x

    def inverse(self, y: Tensor) -> Tensor:
        """y itself."""
        return y

    def log_slope(self, x: Tensor) -> Tensor:
        """Zeros with shape (N,)."""
        return x.new_zeros(len(x))

    def noisy(self, y: Tensor, copies: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """The rows `copies` times: events as they are have no noise."""
        return y if copies == 1 else y.repeat(copies, *[1] * (y.ndim - 1))

    def tensors(self) -> dict[str, Tensor]:
        """The range, where there is one."""
        return {} if self.range is None else {"low": self.range.low, "high": self.range.high}

    def to(self, device: torch.device | str) -> "Identity":
        """The same on `device`."""
        if self.range is None:
            return self
        return replace(self, range=Range(self.range.low.to(device), self.range.high.to(device)))
