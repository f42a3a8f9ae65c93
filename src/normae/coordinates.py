"""Coordinates: a fitted, invertible map y(x) from what a user has to what the energy sees.

    log p(x) = -E(y(x))/T - log Z + log |dy/dx|.

The map is part of the model: it is stored in the run folder and applied wherever events come in, so that scores are in
the user's units. Chains walk in y and never see it. Toys, and jets as pixels, take events as they are: `Identity`.

`TableCoordinates` take the columns of a table to where a chain walks well:

    u_j = soft(h_j((x_j - m_j)/s_j)),   y = A (u - c),   A = L^(-1/2) V^T  for  Cov[u] + e 1 = V L V^T.

h is the identity, or a smooth increasing curve after which a column is nearly Gaussian: a column that ends at a hard
edge, or spans many powers of ten, then does neither. m and s are mean and width of a column without its outermost
percents, so that a single outlier moves neither. `soft` is the identity up to `LIMIT` widths and grows like a logarithm
beyond, so that an outlier pulls on no gradient and is still far out. Whitening takes the linear correlations out: one
step size then suits all. Directions in which the table has no width at all (constant or collinear columns) would make A
infinite; e is the least variance that a direction counts with. For networks of one's own Gaussian noise of this
variance is added to the training rows, and y of the rows with their noise has unit covariance; an energy with a base
has width of its own and needs none. The density of the table is that of y times |dy/dx|. All of it is in float64.

Columns on a lattice (`lattice`) have a probability of every value in place of a density: their part of |dy/dx| is that
of a step, and for a value that cannot occur it is 0. Bounds of events that are taken as they are make such values too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import norm
from torch import Tensor

from normae.errors import InputError, refuse
from normae.lattice import CLOSE, IMPOSSIBLE, cannot_occur, nearest, no_lattice
from normae.statistics.gaussians import LOG_TWO_PI, by_column, shrinkage
from normae.tensors import by_weight

T = TypeVar("T")
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
        low, high = (limit.to(rows.dtype) for limit in (self.low - margin, self.high + margin))
        return (rows < low) | (rows > high)

    def to(self, device: torch.device | str) -> "Range":
        """The same on `device`."""
        return on_device(self, device)


class Coordinates(Protocol):
    """What a model needs of its coordinates, a dataclass of tensors; `forward` and `log_slope` are differentiable."""

    kind: ClassVar[str]
    lattice: Tensor | None = None  # of the columns of a table, with shape (4, d)

    @property
    def range(self) -> Range | None:
        """Of the training sample, where its columns mean something by themselves."""
        return None

    @property
    def constant(self) -> float:
        """The largest value of `log_slope`: no score is below its negative."""
        return 0.0

    def forward(self, x: Tensor) -> Tensor:
        """y with shape (N, *event) of events x with shape (N, *event)."""

    def inverse(self, y: Tensor) -> Tensor:
        """Events x with shape (N, *event) of y with shape (N, *event); values that can occur, next to y."""

    def log_slope(self, x: Tensor) -> Tensor:
        """log |dy/dx| with shape (N,); zeros where the density is that of y."""
        return x.new_zeros(len(x))

    def noisy(self, y: Tensor, copies: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """`copies` of rows y that a training sees, with shape (copies * N, *event), each with its own noise, if any."""
        return y if copies == 1 else y.repeat(copies, *[1] * (y.ndim - 1))

    def tensors(self) -> dict[str, Tensor]:
        """All that has to be stored, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Self:
        """The same map on `device`."""
        return on_device(self, device)


def on_device(one: T, device: torch.device | str) -> T:
    """The same dataclass of tensors, and of such dataclasses, on `device`."""
    parts = {field.name: getattr(one, field.name) for field in fields(one)}  # type: ignore[arg-type]
    moved = {name: part.to(device) for name, part in parts.items() if part is not None}
    return replace(one, **moved)  # type: ignore[type-var]


@dataclass(frozen=True)
class Identity(Coordinates):
    """y = x.

    >>> import torch, normae.coordinates
    >>> normae.coordinates.Identity().log_slope(torch.ones(2, 3))
    tensor([0., 0.])
    """

    kind: ClassVar[str] = "identity"
    range: Range | None = None
    lattice: Tensor | None = None  # of any feature, with shape (4, 1), where they have bounds: step 0, low and high

    def forward(self, x: Tensor) -> Tensor:
        return x

    def inverse(self, y: Tensor) -> Tensor:
        return y

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.range is None else {"low": self.range.low, "high": self.range.high}


# --- tables

Floats = npt.NDArray[np.float64]

LIMIT = 4.0  # widths up to which a column is taken as it is
TAIL = 0.01  # share of rows at each end of a column that do not decide on its width
SHARE = 1 / 3  # of the shrinkage of Ledoit and Wolf, that becomes the added variance
LEAST_NOISE, MOST_NOISE = 1e-3, 0.3  # of the added variance, in units of a column's own


def soften(u: Tensor) -> Tensor:
    """u up to `LIMIT`, logarithmic beyond; odd, increasing, with a continuous slope."""
    size = u.abs()
    return torch.where(size <= LIMIT, u, u.sign() * (LIMIT + (size - LIMIT).clamp_min(0).log1p()))


def harden(v: Tensor) -> Tensor:
    """The inverse of `soften`."""
    size = v.abs()
    return torch.where(size <= LIMIT, v, v.sign() * (LIMIT + (size - LIMIT).clamp(0, 300).expm1()))


SPACING, LEAST_IN_TAIL = 0.25, 8
"""Of the knots of a curve, in units of the Gaussian that it leads to; rows beyond the last one."""
FEWEST_TO_SHAPE, MOST_TO_SHAPE, DISTINCT = 200, 5000, 0.9
"""Rows of a table whose columns can be given curves, those that decide on it, and the share of different values."""
SMALLEST_STEP = 1e-13  # between two knots, in widths of a column: one may span fourteen powers of ten
Curves = Literal["none", "few", "many"]
RIVALS: dict[str, tuple[tuple[int, ...], float]] = {"few": ((1, 2, 4, 8), 0.01), "many": ((1,), 0.05)}
"""Numbers of Gaussians that describe a column as well, and the gain of log p over them for which it gets a curve."""


def fit_curves(t: Floats, which: Curves) -> Floats:
    """Knots of the curves of columns t with shape (N, d): places, values and slopes, with shape (3, d, K).

    A column that Gaussians describe as well, or in which values repeat, keeps the identity.
    """
    n, d = t.shape
    if which == "none" or n < FEWEST_TO_SHAPE:
        return np.array([[[-1.0, 1.0]] * d, [[-1.0, 1.0]] * d, [[1.0, 1.0]] * d])
    values = curve(t[:, 0], n)[1]
    found = np.stack([np.stack([values, values, np.ones_like(values)])] * d, axis=1)
    rows = t[np.random.default_rng(0).permutation(n)[:MOST_TO_SHAPE]]
    varied = [j for j in range(d) if len(np.unique(rows[:, j])) >= DISTINCT * len(rows)]
    for j in np.array(varied)[_worth(rows[:, varied], *RIVALS[which])] if varied else ():
        knots = curve(t[:, j], n)
        found[:, j] = knots if np.diff(knots[0]).min() > SMALLEST_STEP else found[:, j]
    return found


def curve(column: Floats, n: int) -> Floats:
    """Knots of one curve, (3, K), for a column of n rows or a part of it: as many lie below as of a Gaussian."""
    last = float(norm.ppf(1 - LEAST_IN_TAIL / n))
    values = np.linspace(-last, last, 1 + 2 * max(1, round(last / SPACING)))
    places = np.quantile(column, norm.cdf(values))
    slope = np.diff(values) / np.diff(places).clip(SMALLEST_STEP)
    inner = np.sqrt(slope[:-1] * slope[1:])  # exact where slopes grow like powers: they span many of ten
    ends = slope[[0, -1]] ** 2 / inner[[0, -1]]
    return np.stack([places, values, np.concatenate([ends[:1], inner, ends[1:]])])


def _worth(rows: Floats, numbers: Sequence[int], gain: float) -> npt.NDArray[np.bool_]:
    """Which columns (N, d) a curve suits better by `gain`, in the second half, than Gaussians of all these numbers."""
    first, held = (torch.from_numpy(half) for half in np.array_split(rows, 2))
    knots = np.stack([curve(column, len(first)) for column in first.T.numpy()], axis=1)
    v, log_slope = bend(held, torch.from_numpy(knots))
    bent, slope = ((x.abs() - LIMIT).clamp_min(0).log1p() for x in (v, held))
    gained = (log_slope - bent - 0.5 * soften(v).square() + slope).mean(0) - 0.5 * LOG_TWO_PI
    rivals = torch.stack([by_column(soften(first), soften(held), k) for k in numbers])
    return np.asarray(gained > gain + rivals.amax(0))


def bend(t: Tensor, knots: Tensor) -> tuple[Tensor, Tensor]:
    """h(t) of columns t (N, d), and log h': rational quadratics between knots (3, d, K), straight lines beyond."""
    low, high = knots[:, :, 0], knots[:, :, -1]
    k = torch.searchsorted(knots[0].contiguous(), t.T.contiguous(), right=True).T.clamp(1, knots.shape[2] - 1)
    x0, y0, d0, x1, y1, d1 = (part.T.gather(0, k - 1 + i) for i in (0, 1) for part in knots)
    share = ((t - x0) / (x1 - x0)).clamp(0, 1)
    slope, both = (y1 - y0) / (x1 - x0), share * (1 - share)
    below = slope + (d1 + d0 - 2 * slope) * both
    value = y0 + (y1 - y0) * (slope * share.square() + d0 * both) / below
    steep = slope.square() * (d1 * share.square() + 2 * slope * both + d0 * (1 - share).square()) / below.square()
    beyond = (t - high[0]).clamp_min(0) * high[2] + (t - low[0]).clamp_max(0) * low[2]
    return value + beyond, steep.log()


def unbend(v: Tensor, knots: Tensor) -> Tensor:
    """The inverse of h, with shape (N, d)."""
    low, high = knots[:, :, 0], knots[:, :, -1]
    k = torch.searchsorted(knots[1].contiguous(), v.T.contiguous(), right=True).T.clamp(1, knots.shape[2] - 1)
    x0, y0, d0, x1, y1, d1 = (part.T.gather(0, k - 1 + i) for i in (0, 1) for part in knots)
    slope, rise = (y1 - y0) / (x1 - x0), (v - y0).clamp_min(0).minimum(y1 - y0)
    bent = rise * (d1 + d0 - 2 * slope)
    a, b = (y1 - y0) * (slope - d0) + bent, (y1 - y0) * d0 - bent
    root = (b.square() + 4 * a * slope * rise).clamp_min(0).sqrt()
    beyond = (v - high[1]).clamp_min(0) / high[2] + (v - low[1]).clamp_max(0) / low[2]
    found: Tensor = x0 + (x1 - x0) * 2 * slope * rise / (b + root) + beyond
    return found


@dataclass(frozen=True)
class TableCoordinates(Coordinates):
    """The map from rows of a table to coordinates, fitted by `TableCoordinates.of`.

    Args:
        centre, width: of each column, with shape (d,).
        knots: of the curves h, places, values and slopes, with shape (3, d, K); those of the identity have K = 2.
        mean: of the softened columns, with shape (d,).
        whitening, colouring: A and its inverse, with shape (d, d).
        noise: e, with shape ().
        low, high: the range of the training sample, with shape (d,).
        lattice: of the columns, as `lattice.find_lattice` has it, with shape (4, d).

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
    knots: Tensor
    mean: Tensor
    whitening: Tensor
    colouring: Tensor
    noise: Tensor
    low: Tensor
    high: Tensor
    lattice: Tensor

    @classmethod
    def of(
        cls, rows: Tensor, noise: float | None = None, curves: Curves = "none", weights: Tensor | None = None,
        lattice: Tensor | None = None,
    ) -> "TableCoordinates":  # fmt: skip
        """Fitted to rows with shape (N, d), with curves as in `CoordinatesConfig`.

        Args:
            noise: e; from the shrinkage of Ledoit and Wolf where it is None, large for few rows of many columns.
            weights: with shape (N,). Rows count as often as they say, negative ones not at all: any map will do.
            lattice: of the columns, with shape (4, d); none where it is None.
        """
        seen = Range.of(rows)
        rows = rows if weights is None else rows[by_weight(weights.clamp_min(0), len(rows))]
        table = rows.double().cpu().numpy()
        centre, width = columns(table)
        t = (table - centre) / width
        knots = fit_curves(t, curves)
        u = soften(bend(torch.from_numpy(t), torch.from_numpy(knots))[0]).numpy()
        if noise is None:
            noise = min(max(SHARE * shrinkage(torch.from_numpy(u)), LEAST_NOISE), MOST_NOISE)
        covariance = np.atleast_2d(np.cov(u, rowvar=False, bias=True)) + noise * np.eye(u.shape[1])
        values, vectors = np.linalg.eigh(covariance)
        root = np.sqrt(np.maximum(values, noise))
        arrays = (centre, width, knots, u.mean(0), vectors.T / root[:, None], vectors * root, noise)
        every = (*arrays, seen.low, seen.high, no_lattice(rows.shape[1]) if lattice is None else lattice)
        return cls(*(torch.as_tensor(a, dtype=torch.float64).contiguous() for a in every))

    @property
    def range(self) -> Range:
        return Range(self.low, self.high)

    @property
    def bent(self) -> Tensor:
        """Which columns have a curve, with shape (d,)."""
        return (self.knots[0] != self.knots[1]).any(1)

    def forward(self, x: Tensor) -> Tensor:
        """y with shape (N, d) of rows x with shape (N, d), in float64; without the rounding of files."""
        x = x.double()
        if bool((self.lattice[1] > 0).any()):
            off = nearest(x.detach(), self.lattice) - x.detach()
            x = x + off.where(off.abs() <= CLOSE * self.lattice[1], 0)
        return (soften(self._bent(x)[0]) - self.mean) @ self.whitening.T

    def _bent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return bend((x.double() - self.centre) / self.width, self.knots)

    def inverse(self, y: Tensor) -> Tensor:
        """Rows x with shape (N, d) of y with shape (N, d), in float64; values that can occur, next to y."""
        return nearest(self.unrounded(y), self.lattice)

    def unrounded(self, y: Tensor) -> Tensor:
        """The inverse of `forward`, with shape (N, d)."""
        return self.centre + self.width * unbend(harden(y.double() @ self.colouring.T + self.mean), self.knots)

    def log_slope(self, x: Tensor) -> Tensor:
        """log |dy/dx| with shape (N,), in float64, for steps of columns on a lattice; hardly any where x cannot be."""
        return self.smooth_slope(x) - IMPOSSIBLE * cannot_occur(x.double(), self.lattice).sum(1)

    def smooth_slope(self, x: Tensor) -> Tensor:
        """The same between the values that can occur, too."""
        bent, log_slope = self._bent(x)
        return self.constant + (log_slope - (bent.abs() - LIMIT).clamp_min(0).log1p()).sum(1)

    def unseen(self, x: Tensor) -> Tensor:
        """What `log_slope` of the rows x that the curves were fitted to is without the row, minus what it is, (N,).

        The piece of a curve that has m rows would be wider by m / (m - 1) with one less.
        """
        values = self.knots[1].contiguous()
        piece, nothing = torch.searchsorted(values, self._bent(x)[0].T.contiguous()), torch.zeros_like(values[:, :1])
        rows = len(x) * torch.special.ndtr(values).diff(prepend=nothing, append=nothing + 1).gather(1, piece)
        return torch.log1p(-1 / rows.clamp_min(2)).where(self.bent[:, None], 0).sum(0)

    @property
    def constant(self) -> float:
        """The part of `log_slope` that all rows share, and its largest value."""
        unit = self.width / self.lattice[1].where(self.lattice[1] > 0, 1)
        return float(torch.linalg.slogdet(self.whitening).logabsdet - unit.log().sum())

    def noisy(self, y: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        """`copies` of rows y with shape (N, d), with variance e added to each softened column, (copies * N, d)."""
        many = y.repeat(copies, 1)
        added = torch.randn(many.shape, generator=generator, dtype=torch.float64, device=generator.device).to(y.device)
        return many + self.noise.sqrt() * added @ self.whitening.T


def columns(table: Floats) -> tuple[Floats, Floats]:
    """Centre and width of each column, (d,) each, without its outermost percents; the width of a constant one is 1."""
    size = np.abs(table).max(0)
    scale = np.where(size > 0, np.ldexp(1.0, np.frexp(size)[1] - 1), 1.0)  # so that squares neither overflow nor vanish
    table = table / scale
    first, last = np.quantile(table, TAIL, 0, method="higher"), np.quantile(table, 1 - TAIL, 0, method="lower")
    inner = np.clip(table, *np.quantile(table, [TAIL, 1 - TAIL], axis=0))
    width = np.where((first == last) | _flat(inner.std(0), inner), table.std(0), inner.std(0))  # of what is rare, too
    return scale * inner.mean(0), np.where(_flat(width, table), 1.0, scale * width)


def _flat(width: Floats, table: Floats) -> npt.NDArray[np.bool_]:
    """Whether a width is nothing but rounding."""
    return np.asarray(~(width > 1e-12 * np.abs(table).max(0)))


# --- the coordinates of a run

MOST_COMPONENTS = 64  # that ship with the package


@dataclass(frozen=True)
class ComponentsConfig:
    """Components of pictures of jets.

    The basis is "jets", the components that ship with the package, of QCD jets with a = 1/2; "own", those of the
    training sample; or a run folder or a model of the zoo, whose first K are taken. Models whose densities are to be
    compared need the same.
    """

    number: int = 12  # K
    power: float = 0.5  # a, of a pixel
    noise: float = 0.3  # sigma, the width of the noise in units of a component's own
    basis: str = "jets"

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("number", 1 <= self.number <= MOST_COMPONENTS, f"1 to {MOST_COMPONENTS}"),
            ("power", 0 < self.power <= 1, "a power in (0, 1]"),
            ("noise", 0 <= self.noise < 10, "a noise in [0, 10)"),
            ("power", self.basis != "jets" or self.power == 0.5, 'basis = "own", since "jets" has 0.5'),
        ):
            refuse(not holds, f"coordinates.components.{name}: expected {expected}, got {getattr(self, name)}")


@dataclass(frozen=True)
class CoordinatesConfig:
    """The coordinates of a run.

    Args:
        kind: "identity" takes events as they are; "table" whitens the columns of a table and softens their tails;
            "components" makes a table of jets (`normae.components`).
        noise: of "table", the least variance of a direction, in units of a column's variance; from the rows where it is
            None. Noise of this variance is added to the training rows where the energy has no base.
        curves: of "table", which columns get a curve that makes them nearly Gaussian: "none"; the "few" that no mixture
            of Gaussians describes as well; the "many" that one Gaussian does not.
        copies: of "table" without a base, how often a training sees each row, each time with its own noise.
        condition: of "table", places of the columns m of p(x | m), from 0.
        components: of "components", which ones.
        lattice: of "table" with a base, whether whole and other numbers on a lattice have a probability, and what lies
            between them has none; not with a likelihood training, whose chains do not walk on one.
    """

    kind: Literal["identity", "table", "components"] = "identity"
    noise: float | None = None
    copies: int = 1
    curves: Curves = "none"
    condition: tuple[int, ...] = ()
    components: ComponentsConfig | None = None
    lattice: bool = False

    def __post_init__(self) -> None:
        if (self.components is None) != (self.kind != "components"):
            raise InputError('coordinates: expected kind = "components" with a table [coordinates.components]')
        if self.noise is not None and not 0 < self.noise < 100:
            raise InputError(f"coordinates.noise: expected a variance between 0 and 100, got {self.noise}")
        refuse(not 1 <= self.copies <= 1_000_000, f"coordinates.copies: expected 1 to a million, got {self.copies}")
        table = self.noise is not None or self.curves != "none" or self.condition or self.lattice
        if (table and self.kind != "table") or (self.copies > 1 and self.kind == "identity"):
            raise InputError('coordinates: expected kind = "table" with noise, curves, copies, condition and lattice')


def fit_coordinates(
    config: CoordinatesConfig, rows: Tensor | None, weights: Tensor | None = None, lattice: Tensor | None = None
) -> Coordinates:
    """The coordinates of a run, fitted to rows (N, d) with weights (N,); None for events that are no table."""
    if config.kind == "identity":
        return Identity(None if rows is None else Range.of(rows))
    if rows is None:
        raise InputError('coordinates.kind: expected a table, data.file, for "table"')
    return TableCoordinates.of(rows, config.noise, config.curves, weights, lattice)


def read_coordinates(kind: str, tensors: Mapping[str, Tensor], event: tuple[int, ...], source: str) -> Coordinates:
    """The identity or table that `Coordinates.tensors` gave; `source` names the file in messages."""
    shapes: dict[str, tuple[int, ...]] = {"low": event, "high": event} if tensors else {}
    if kind == "table":
        shapes, matrix = {field.name: event for field in fields(TableCoordinates)}, (*event, *event)
        knots = tensors["knots"].shape[-1:] if "knots" in tensors else ()
        shapes |= {"whitening": matrix, "colouring": matrix, "noise": (), "lattice": (4, *event)}
        shapes |= {"knots": (3, *event, *knots)}
    if kind not in ("identity", "table") or {name: tuple(t.shape) for name, t in tensors.items()} != shapes:
        raise InputError(f"{source}: the coordinates do not belong to the model (kind {kind!r}); train it again")
    if kind == "table":
        return TableCoordinates(**tensors)
    return Identity(Range(tensors["low"], tensors["high"]) if tensors else None)
