"""From the columns of a table to coordinates in which a chain walks well, and back.

    u_j = soft((x_j - m_j)/s_j),   y = A (u - c),   A = L^(-1/2) V^T  for  Cov[u] + e 1 = V L V^T.

m and s are mean and width of a column without its outermost percents, so that a single outlier moves neither. `soft` is
the identity up to `LIMIT` widths and grows like a logarithm beyond, so that an outlier pulls on no gradient and is
still far out. Whitening takes the linear correlations out: one step size then suits all. Directions in which the
table has no width at all (constant or collinear columns) would make a density infinite; e is the variance of the
Gaussian noise that is added to the training rows, and y of the rows with their noise has unit covariance. The density
of the table is that of y times |dy/dx|.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.covariance import ledoit_wolf_shrinkage

Floats = npt.NDArray[np.float64]

LIMIT = 4.0
"""Widths up to which a column is taken as it is."""
TAIL = 0.01
"""Share of rows at each end of a column that do not decide on its width."""
SHARE = 1 / 3
"""Of the shrinkage of Ledoit and Wolf, that becomes the added variance."""
LEAST_NOISE, MOST_NOISE = 1e-3, 0.3
"""Of the added variance, in units of a column's own."""


def soften(u: Floats) -> Floats:
    """u up to `LIMIT`, logarithmic beyond; odd, increasing, with a continuous slope."""
    size = np.abs(u)
    beyond = LIMIT + np.log1p(np.maximum(size - LIMIT, 0))
    return np.where(size <= LIMIT, u, np.sign(u) * beyond)


def harden(v: Floats) -> Floats:
    """The inverse of `soften`."""
    size = np.abs(v)
    beyond = LIMIT + np.expm1(np.minimum(np.maximum(size - LIMIT, 0), 300))
    return np.where(size <= LIMIT, v, np.sign(v) * beyond)


@dataclass(frozen=True)
class Preparation:
    """The fitted map of a table with d columns.

    Args:
        centre, width: of each column, with shape (d,).
        mean: of the softened columns, with shape (d,).
        whitening, colouring: A and its inverse, with shape (d, d).
        noise: e.
    """

    centre: Floats
    width: Floats
    mean: Floats
    whitening: Floats
    colouring: Floats
    noise: float

    @classmethod
    def of(cls, table: Floats, noise: float | None = None) -> "Preparation":
        """Fitted to a table with shape (N, d).

        Args:
            noise: e; from the shrinkage of Ledoit and Wolf where it is None, large for few rows of many columns.
        """
        centre, width = columns(table)
        u = soften((table - centre) / width)
        mean = u.mean(0)
        if noise is None:
            noise = float(np.clip(SHARE * ledoit_wolf_shrinkage(u), LEAST_NOISE, MOST_NOISE))
        covariance = np.atleast_2d(np.cov(u, rowvar=False, bias=True)) + noise * np.eye(u.shape[1])
        values, vectors = np.linalg.eigh(covariance)
        root = np.sqrt(np.maximum(values, noise))
        return cls(centre, width, mean, vectors.T / root[:, None], vectors * root, noise)

    def forward(self, table: Floats) -> Floats:
        """y with shape (N, d) of rows x with shape (N, d)."""
        y: Floats = (soften((table - self.centre) / self.width) - self.mean) @ self.whitening.T
        return y

    def inverse(self, y: Floats) -> Floats:
        """Rows x with shape (N, d) of y with shape (N, d)."""
        rows: Floats = self.centre + self.width * harden(y @ self.colouring.T + self.mean)
        return rows

    def noisy(self, table: Floats, copies: int, random: np.random.RandomState) -> Floats:
        """y of `copies` of the table, each with its own noise, with shape (copies * N, d)."""
        y = np.tile(self.forward(table), (copies, 1))
        rows: Floats = y + np.sqrt(self.noise) * random.standard_normal(y.shape) @ self.whitening.T
        return rows

    def log_slope(self, table: Floats) -> Floats:
        """log |dy/dx| with shape (N,)."""
        size = np.abs((table - self.centre) / self.width)
        tails = -np.log1p(np.maximum(size - LIMIT, 0)).sum(1)
        slope: Floats = tails + float(np.linalg.slogdet(self.whitening)[1] - np.log(self.width).sum())
        return slope


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
