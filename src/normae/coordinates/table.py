"""From the columns of a table to coordinates in which a chain walks well, and back.

    u_j = soft((x_j - m_j)/s_j),   y = A (u - c),   A = L^(-1/2) V^T  for  Cov[u] + e 1 = V L V^T.

m and s are mean and width of a column without its outermost percents, so that a single outlier moves neither. `soft` is
the identity up to `LIMIT` widths and grows like a logarithm beyond, so that an outlier pulls on no gradient and is
still far out. Whitening takes the linear correlations out: one step size then suits all. Directions in which the
table has no width at all (constant or collinear columns) would make a density infinite; e is the variance of the
Gaussian noise that is added to the training rows, and y of the rows with their noise has unit covariance. The density
of the table is that of y times |dy/dx|. All of it is in float64.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from normae.coordinates.base import Range

Floats = npt.NDArray[np.float64]

LIMIT = 4.0
"""Widths up to which a column is taken as it is."""
TAIL = 0.01
"""Share of rows at each end of a column that do not decide on its width."""
SHARE = 1 / 3
"""Of the shrinkage of Ledoit and Wolf, that becomes the added variance."""
LEAST_NOISE, MOST_NOISE = 1e-3, 0.3
"""Of the added variance, in units of a column's own."""


def soften(u: Tensor) -> Tensor:
    """u up to `LIMIT`, logarithmic beyond; odd, increasing, with a continuous slope."""
    size = u.abs()
    return torch.where(size <= LIMIT, u, u.sign() * (LIMIT + (size - LIMIT).clamp_min(0).log1p()))


def harden(v: Tensor) -> Tensor:
    """The inverse of `soften`."""
    size = v.abs()
    return torch.where(size <= LIMIT, v, v.sign() * (LIMIT + (size - LIMIT).clamp(0, 300).expm1()))


@dataclass(frozen=True)
class TableCoordinates:
    """The map from rows of a table to coordinates, fitted by `TableCoordinates.of`.

    Args:
        centre, width: of each column, with shape (d,).
        mean: of the softened columns, with shape (d,).
        whitening, colouring: A and its inverse, with shape (d, d).
        noise: e, with shape ().
        low, high: the range of the training sample, with shape (d,).
    """

    kind: ClassVar[str] = "table"

    centre: Tensor
    width: Tensor
    mean: Tensor
    whitening: Tensor
    colouring: Tensor
    noise: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, rows: Tensor, noise: float | None = None) -> "TableCoordinates":
        """Fitted to rows with shape (N, d).

        Args:
            noise: e; from the shrinkage of Ledoit and Wolf where it is None, large for few rows of many columns.
        """
        table = rows.double().cpu().numpy()
        centre, width = columns(table)
        u = soften(torch.from_numpy((table - centre) / width)).numpy()
        if noise is None:
            from sklearn.covariance import ledoit_wolf_shrinkage  # scikit-learn takes a second to import

            noise = float(np.clip(SHARE * ledoit_wolf_shrinkage(u), LEAST_NOISE, MOST_NOISE))
        covariance = np.atleast_2d(np.cov(u, rowvar=False, bias=True)) + noise * np.eye(u.shape[1])
        values, vectors = np.linalg.eigh(covariance)
        root = np.sqrt(np.maximum(values, noise))
        arrays = (centre, width, u.mean(0), vectors.T / root[:, None], vectors * root, noise)
        seen = Range.of(rows)
        return cls(*(torch.as_tensor(a, dtype=torch.float64).contiguous() for a in (*arrays, seen.low, seen.high)))

    @property
    def range(self) -> Range:
        """Of the training sample."""
        return Range(self.low, self.high)

    def forward(self, x: Tensor) -> Tensor:
        """y with shape (N, d) of rows x with shape (N, d), in float64."""
        return (soften((x.double() - self.centre) / self.width) - self.mean) @ self.whitening.T

    def inverse(self, y: Tensor) -> Tensor:
        """Rows x with shape (N, d) of y with shape (N, d), in float64."""
        return self.centre + self.width * harden(y.double() @ self.colouring.T + self.mean)

    def log_slope(self, x: Tensor) -> Tensor:
        """log |dy/dx| with shape (N,), in float64."""
        size = ((x.double() - self.centre) / self.width).abs()
        return self.constant - (size - LIMIT).clamp_min(0).log1p().sum(1)

    @property
    def constant(self) -> float:
        """The part of `log_slope` that all rows share."""
        return float(torch.linalg.slogdet(self.whitening).logabsdet - self.width.log().sum())

    def noisy(self, y: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        """`copies` of rows y with shape (N, d), with variance e added to each softened column, (copies * N, d)."""
        many = y.repeat(copies, 1)
        added = torch.randn(many.shape, generator=generator, dtype=torch.float64, device=generator.device).to(y.device)
        return many + self.noise.sqrt() * added @ self.whitening.T

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self, device: torch.device | str) -> "TableCoordinates":
        """The same map on `device`."""
        return TableCoordinates(**{name: tensor.to(device) for name, tensor in self.tensors().items()})


def columns(table: Floats) -> tuple[Floats, Floats]:
    """Centre and width of each column, (d,) each, without its outermost percents; the width of a constant one is 1."""
    scale = _power_of_two(np.abs(table).max(0))
    table = table / scale
    low, high = np.quantile(table, [TAIL, 1 - TAIL], axis=0)
    inner = np.clip(table, low, high)
    width = inner.std(0)
    width = np.where(_flat(width, inner), table.std(0), width)
    return scale * inner.mean(0), np.where(_flat(width, table), 1.0, scale * width)


def _power_of_two(size: Floats) -> Floats:
    """Near `size`, so that the squares of a column over it neither overflow nor vanish; 1 for a column of zeros."""
    powers: Floats = np.where(size > 0, np.ldexp(1.0, np.frexp(size)[1] - 1), 1.0)
    return powers


def _flat(width: Floats, table: Floats) -> npt.NDArray[np.bool_]:
    """Whether a width is nothing but rounding."""
    flat: npt.NDArray[np.bool_] = ~(width > 1e-12 * np.abs(table).max(0))
    return flat
