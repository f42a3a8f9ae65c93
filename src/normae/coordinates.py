"""Coordinates: a fitted, invertible map y(x) from what a user has to what the energy sees.

    log p(x) = -E(y(x))/T - log Z + log |dy/dx|.

The map is part of the model: it is stored in the run folder and applied wherever events come in, so that scores are in
the user's units. Chains walk in y and never see it. Toys, and jets as pixels, take events as they are: `Identity`.

`TableCoordinates` take the columns of a table to where a chain walks well:

    u_j = soft((x_j - m_j)/s_j),   y = A (u - c),   A = L^(-1/2) V^T  for  Cov[u] + e 1 = V L V^T.

m and s are mean and width of a column without its outermost percents, so that a single outlier moves neither. `soft` is
the identity up to `LIMIT` widths and grows like a logarithm beyond, so that an outlier pulls on no gradient and is
still far out. Whitening takes the linear correlations out: one step size then suits all. Directions in which the
table has no width at all (constant or collinear columns) would make A infinite; e is the least variance that a
direction counts with. For networks of one's own Gaussian noise of this variance is added to the training rows, and y of
the rows with their noise has unit covariance; an energy with a base has width of its own and needs none. The density
of the table is that of y times |dy/dx|. All of it is in float64.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from normae.errors import InputError

MARGIN = 0.1
"""How far beyond the training sample a column may lie before a row is outside, as a share of the column's range."""


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value of each column of the training sample, with shape (d,) each.

    >>> import torch, normae.coordinates
    >>> normae.coordinates.Range.of(torch.tensor([[0.0], [10.0]])).outside(torch.tensor([[10.5], [11.5]]))
    tensor([[False],
            [ True]])
    """

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

    def to(self, device: torch.device | str) -> "Range":
        """The same on `device`."""
        return Range(self.low.to(device), self.high.to(device))


class Coordinates(Protocol):
    """What a model needs of its coordinates. Tensors in and out; `forward` and `log_slope` are differentiable."""

    kind: ClassVar[str]

    @property
    def range(self) -> Range | None:
        """Of the training sample, where its columns mean something by themselves."""

    @property
    def constant(self) -> float:
        """The largest value of `log_slope`: no score is below its negative."""

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
    """y = x.

    >>> import torch, normae.coordinates
    >>> normae.coordinates.Identity().log_slope(torch.ones(2, 3))
    tensor([0., 0.])
    """

    kind: ClassVar[str] = "identity"
    constant: ClassVar[float] = 0.0
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
        return replace(self, range=None if self.range is None else self.range.to(device))


# --- tables

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

    >>> import torch, normae.coordinates
    >>> rows = torch.tensor([[0.0, 10.0], [2.0, 10.0], [0.0, 30.0], [2.0, 30.0]])  # widths 1 and 10
    >>> to = normae.coordinates.TableCoordinates.of(rows, noise=1e-3)
    >>> to.forward(rows[:1]).round(decimals=2), to.inverse(to.forward(rows[:1]))
    (tensor([[-1., -1.]], dtype=torch.float64), tensor([[ 0., 10.]], dtype=torch.float64))
    >>> to.log_slope(rows[:1]).round(decimals=2)  # -log 10
    tensor([-2.3000], dtype=torch.float64)
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
        """The part of `log_slope` that all rows share, and its largest value."""
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


# --- the coordinates of a run


@dataclass(frozen=True)
class CoordinatesConfig:
    """The coordinates of a run.

    Args:
        kind: "identity" takes events as they are; "table" whitens the columns of a table and softens their tails.
        noise: of "table", the least variance of a direction, in units of a column's variance; from the rows where it is
            None. Noise of this variance is added to the training rows where the energy has no base.
        copies: of "table" without a base, how often a training sees each row, each time with its own noise.
    """

    kind: Literal["identity", "table"] = "identity"
    noise: float | None = None
    copies: int = 1

    def __post_init__(self) -> None:
        if self.noise is not None and not 0 < self.noise < 100:
            raise InputError(f"coordinates.noise: expected a variance between 0 and 100, got {self.noise}")
        if not 1 <= self.copies <= 1_000_000:
            raise InputError(f"coordinates.copies: expected 1 to a million, got {self.copies}")
        if (self.noise is not None or self.copies > 1) and self.kind != "table":
            raise InputError('coordinates: expected kind = "table" with noise and copies')


def fit_coordinates(config: CoordinatesConfig, rows: Tensor | None) -> Coordinates:
    """The coordinates of a run, fitted to training rows with shape (N, d); None for events that are no table."""
    if config.kind == "identity":
        return Identity(None if rows is None else Range.of(rows))
    if rows is None:
        raise InputError('coordinates.kind: expected a table, data.file, for "table"')
    return TableCoordinates.of(rows, config.noise)


def read_coordinates(kind: str, tensors: Mapping[str, Tensor], event: tuple[int, ...], source: str) -> Coordinates:
    """The coordinates that `Coordinates.tensors` gave; `source` names the file in messages."""
    vector, matrix = event, (*event, *event)
    shapes: dict[str, tuple[int, ...]] = {"low": vector, "high": vector} if tensors or kind == "table" else {}
    if kind == "table":
        shapes = {field.name: vector for field in fields(TableCoordinates)}
        shapes |= {"whitening": matrix, "colouring": matrix, "noise": ()}
    if kind not in ("identity", "table") or {name: tuple(t.shape) for name, t in tensors.items()} != shapes:
        raise InputError(f"{source}: the coordinates do not belong to the model (kind {kind!r}); train it again")
    if kind == "table":
        return TableCoordinates(**tensors)
    return Identity(Range(tensors["low"], tensors["high"]) if tensors else None)
