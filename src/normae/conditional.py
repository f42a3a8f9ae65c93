"""Coordinates of a table with conditioning columns: y = (r, t) of columns x given columns m.

    t = condition(m),   r = A (u - mu(t)) / sigma(t),   u the columns x with their tails softened,

A a whitening as in `coordinates`. mu and log sigma are polynomials in t, fitted to the rows by the likelihood of a
Gaussian: r hardly depends on m, and a base needs to know nothing of it. They are smooth, so that they hold in a gap of
m too. Beyond the range of m, t is what it is at the edge. The slope is that of r(x) at fixed m: the density is
p(x | m), in the units of x.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import combinations_with_replacement
from typing import Any, ClassVar

import torch
from torch import Tensor

from normae.coordinates import Coordinates, Range, TableCoordinates, read_coordinates
from normae.errors import InputError
from normae.lattice import nearest

DEGREE, ROWS_OF_TERM = 4, 40  # of the polynomials of mu and log sigma, and how many rows there must be for each term
MOST_FITTED, FIT_STEPS, LARGEST_STEP, SMALL_STEP = 20_000, 50, 0.5, 1e-3
"""Of the fit of location and width: rows, steps, the most that the logarithm of a width moves in one, and the least."""
LEAST_LOG_WIDTH = -3.5


def degree_of(terms: int, k: int, most: int = 8) -> int:
    """The largest degree, up to `most`, of a polynomial of k columns with at most so many terms."""
    return max(n for n in range(most + 1) if n == 0 or math.comb(n + k, k) <= terms)


def polynomials(t: Tensor, edges: Tensor, degree: int) -> Tensor:
    """Products of Chebyshev polynomials of t (N, k) in its range (2, k), up to a total degree: (N, K), 1 first."""
    s = ((2 * t - edges[0] - edges[1]) / (edges[1] - edges[0]).clamp_min(1e-9)).clamp(-1, 1)
    each = [torch.ones_like(s), s]
    while len(each) <= degree:
        each.append(2 * s * each[-1] - each[-2])
    chosen = combinations_with_replacement(range(t.shape[1] + 1), degree)  # the last of them is no column
    powers = [[which.count(j) for j in range(t.shape[1])] for which in chosen]
    found = [torch.stack([each[n][:, j] for j, n in enumerate(power)]).prod(0) for power in reversed(powers)]
    return torch.stack(found, dim=1)


def fit_location(terms: Tensor, u: Tensor) -> tuple[float, Tensor, Tensor]:
    """Coefficients of mean and log width of columns u with shape (N, d), (K, d) each, by the Gaussian likelihood.

    The first number is the criterion of Bayes and Schwarz, up to a constant: low for a degree that suits the rows. A
    mean is a weighted least square, a step of the log widths one of Fisher scoring, whose information is 2 X^T X.
    """
    log_width = u.new_zeros(terms.shape[1], u.shape[1])
    log_width[0] = (u.std(0) + 1e-3).log()
    for _ in range(FIT_STEPS):
        weight = (-2 * (terms @ log_width).clamp_min(LEAST_LOG_WIDTH)).exp()
        gram = torch.einsum("nk,nd,nl->dkl", terms, weight, terms) + 1e-9 * torch.eye(terms.shape[1]).to(u)
        location = torch.linalg.solve(gram, torch.einsum("nk,nd->dk", terms, weight * u)).T
        surplus = (u - terms @ location).square() * weight - 1
        step = torch.linalg.lstsq(terms, 0.5 * surplus).solution
        size = (terms @ step).abs().amax(0)
        log_width = log_width + step * (LARGEST_STEP / size.clamp_min(LARGEST_STEP))
        if float(size.max()) < SMALL_STEP:
            break
    widths = (terms @ log_width).clamp_min(LEAST_LOG_WIDTH)
    fit = (2 * widths + ((u - terms @ location) * (-widths).exp()).square()).sum()
    return float(fit) + 2 * location.numel() * math.log(len(u)), location, log_width


@dataclass(frozen=True)
class ConditionalCoordinates(Coordinates):
    """The map from rows to y = (r, t), fitted by `ConditionalCoordinates.of`.

    >>> import torch, normae.conditional
    >>> m = torch.linspace(1, 2, 400, dtype=torch.float64)
    >>> x = 3 * m + m * torch.randn(400, generator=torch.Generator().manual_seed(0))
    >>> to = normae.conditional.ConditionalCoordinates.of(torch.stack([x, m], 1), (1,))
    >>> to.forward(torch.tensor([[4.0, 1.0], [2.0, 1.0], [8.0, 2.0], [4.0, 2.0]]))[:, 0].round()
    tensor([ 1., -1.,  1., -1.], dtype=torch.float64)
    """

    kind: ClassVar[str] = "conditional"
    MAPS: ClassVar[tuple[str, ...]] = ("condition", "columns")

    given: Tensor  # places of the conditioning columns in a row, with shape (k,)
    condition: TableCoordinates  # the map of m
    columns: TableCoordinates  # that of x
    location: Tensor  # coefficients of mu, with shape (K, d - k)
    log_width: Tensor  # those of log sigma
    whitening: Tensor  # A, with shape (d - k, d - k)
    edges: Tensor  # the range of t, with shape (2, k)

    @classmethod
    def of(
        cls, rows: Tensor, given: tuple[int, ...], noise: float | None = None, lattice: Tensor | None = None
    ) -> "ConditionalCoordinates":
        """Fitted to rows with shape (N, d) on a lattice (4, d), of which the columns `given` are the condition."""
        d, few = rows.shape[1], rows[:MOST_FITTED].double().cpu()
        own = [j for j in range(d) if j not in given]
        if not own or len(own) + len(given) != d:
            raise InputError(f"condition: expected some of the columns 0 to {d - 1}, not all, got {list(given)}")
        condition = TableCoordinates.of(rows[:, list(given)].cpu(), noise)
        on = None if lattice is None else lattice[:, own].contiguous()
        columns = TableCoordinates.of(rows[:, own].cpu(), noise, lattice=on)
        t = condition.forward(rows[:, list(given)].cpu())
        edges = torch.stack([t.amin(0), t.amax(0)])
        u = columns.forward(few[:, own]) @ columns.colouring.T
        most = degree_of(len(few) // ROWS_OF_TERM, len(given), DEGREE)
        fits = [fit_location(polynomials(t[:MOST_FITTED], edges, n), u) for n in range(most + 1)]
        _, location, log_width = min(fits, key=lambda fit: fit[0])
        one = torch.eye(len(own), dtype=torch.float64)
        found = cls(torch.tensor(given), condition, columns, location, log_width, one, edges)
        z = found._standard(few)[0]
        values, vectors = torch.linalg.eigh(z.T @ z / len(z) + columns.noise * one)
        return replace(found, whitening=(vectors / values.sqrt()).T.contiguous())

    @property
    def own(self) -> Tensor:
        """Places of the columns x, with shape (d - k,)."""
        free = torch.ones(len(self.given) + self.location.shape[1], dtype=torch.bool, device=self.given.device)
        return free.index_fill(0, self.given, False).nonzero().flatten()

    def _together(self, x: Tensor, m: Tensor) -> Tensor:
        """The columns of rows, with shape (..., d), in the order of the table."""
        return torch.cat([x, m], dim=-1)[..., torch.cat([self.own, self.given]).argsort()]

    @property
    def range(self) -> Range:
        """Of the training sample."""
        x, m = self.columns, self.condition
        return Range(self._together(x.low, m.low), self._together(x.high, m.high))

    def _at(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """mu and log sigma with shape (N, d - k)."""
        terms = polynomials(t, self.edges, degree_of(len(self.location), len(self.given)))
        return terms @ self.location, (terms @ self.log_width).clamp_min(LEAST_LOG_WIDTH)

    def _standard(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(u - mu)/sigma and log sigma with shape (N, d - k), and t with shape (N, k)."""
        t = self.condition.forward(x[:, self.given]).clamp(*self.edges)
        mean, log_width = self._at(t)
        u = self.columns.forward(x[:, self.own]) @ self.columns.colouring.T
        return (u - mean) * (-log_width).exp(), log_width, t

    def forward(self, x: Tensor) -> Tensor:
        """y = (r, t) with shape (N, d) of rows x with shape (N, d), in float64."""
        z, _, t = self._standard(x)
        return torch.cat([z @ self.whitening.T, t], dim=1)

    @property
    def lattice(self) -> Tensor:  # type: ignore[override] # of two maps
        """Of all columns, with shape (4, d); the condition has none."""
        return self._together(self.columns.lattice, self.condition.lattice)

    @property
    def width(self) -> Tensor:
        """Of all columns, with shape (d,)."""
        return self._together(self.columns.width, self.condition.width)

    def inverse(self, y: Tensor) -> Tensor:
        """Rows with shape (N, d) of y with shape (N, d), in float64; values that can occur, next to y."""
        return nearest(self.unrounded(y), self.lattice)

    def unrounded(self, y: Tensor) -> Tensor:
        """The inverse of `forward`, with shape (N, d)."""
        r, t = y.double().split([self.location.shape[1], len(self.given)], dim=1)
        mean, log_width = self._at(t)
        u = mean + log_width.exp() * torch.linalg.solve(self.whitening, r.T).T
        return self._together(self.columns.unrounded(u @ self.columns.whitening.T), self.condition.inverse(t))

    def log_slope(self, x: Tensor) -> Tensor:
        """log |dr/dx| at fixed m with shape (N,), in float64."""
        return self.columns.log_slope(x[:, self.own]) + self._slope - self._standard(x)[1].sum(1)

    def smooth_slope(self, x: Tensor) -> Tensor:
        """The same between the values that can occur, too."""
        return self.columns.smooth_slope(x[:, self.own]) + self._slope - self._standard(x)[1].sum(1)

    @property
    def _slope(self) -> Tensor:
        """What A has, and the whitening of `columns` has not."""
        found: Tensor = torch.linalg.slogdet(self.whitening @ self.columns.colouring).logabsdet
        return found

    @property
    def constant(self) -> float:
        """No less than the largest value of `log_slope`."""
        widths = (self.log_width[0] - self.log_width[1:].abs().sum(0)).clamp_min(LEAST_LOG_WIDTH)
        return self.columns.constant + float(self._slope - widths.sum())

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.MAPS}
        return own | {f"{m}.{name}": t for m in self.MAPS for name, t in getattr(self, m).tensors().items()}


def read_conditional(tensors: Mapping[str, Tensor], event: tuple[int, ...], source: str) -> Coordinates:
    """The coordinates that `ConditionalCoordinates.tensors` gave; `source` names the file in messages."""
    if not {"given", "location"} <= set(tensors) or len(event) != 1:
        return read_coordinates("conditional", {}, event, source)  # which refuses them
    own: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if "." not in name}
    given, k, d = own["given"].tolist(), own["given"].numel(), event[0] - own["given"].numel()
    for name, size in (("condition", k), ("columns", d)):
        inner = {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}
        own[name] = read_coordinates("table", inner, (size,), source)
    terms = (math.comb(degree_of(len(own["location"]), k) + k, k), d)
    shapes = {"given": (k,), "edges": (2, k), "location": terms, "log_width": terms, "whitening": (d, d)}
    right = {name: tuple(t.shape) for name, t in own.items() if name not in ConditionalCoordinates.MAPS} == shapes
    if not right or len(set(given) & set(range(event[0]))) != k:
        return read_coordinates("conditional", {}, event, source)
    return ConditionalCoordinates(**own)
