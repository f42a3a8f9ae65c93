"""A mixture of Gaussians with covariances of their own, g(u) = sum_j w_j N(u; m_j, S_j), and its fit to rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normae.progress import counted

FLOOR, TINY = 1e-3, 1e-9  # added to every variance; the least share of a row in a Gaussian
MANY = 10_000  # rows beyond which less is added: they know a narrow direction by themselves
PRIOR = 0.01  # rows at the mean of all that every mean counts in
LOOKED_AT, CHOICES, FIRST_STEPS = 2000, 4, 5  # of the first groups: rows, how often they are chosen, steps that judge
MOST_KEPT = 1 << 23  # products of two columns that are kept
GAIN = 3.0  # of log g of all rows together in a step, at least
COLUMN_FLOOR, COLUMN_STEPS, COLUMN_GAIN = 1e-4, 100, 1e-3  # of one column: added variance; steps, and the least gain
LOG_TWO_PI = math.log(2 * math.pi)
HELD_OUT = 0.2
STEPS = 20
"""Of expectation and maximization, at most, where numbers are tried, and again in the fit that goes on from there."""
STRENGTHS = (3.0, 0.5, 20.0)
"""How many rows, for each column, the covariance that all Gaussians share counts as."""
MOST_WORK = 2e10
"""Multiplications of one expectation; what needs more is not tried."""


def log_gaussians(u: Tensor, weights: Tensor, means: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """log w_j N(u; m_j, S_j) with shape (K, N), and L_j^-1 (u - m_j) with shape (K, N, d)."""
    shift = torch.einsum("kij,kj->ki", factors, means)[:, None]
    scaled = torch.baddbmm(-shift, u.expand(len(means), -1, -1), factors.mT)
    size = factors.diagonal(dim1=1, dim2=2).log().sum(1) + weights.log() - 0.5 * u.shape[1] * LOG_TWO_PI
    return size[:, None] - 0.5 * scaled.square().sum(2), scaled


def left_out(each: Tensor, squared: Tensor, weights: Tensor, counts: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """log w_j N(u; m_j, S_j) and |L_j^-1 (u - m_j)|^2 of rows of the fit, each by Gaussians without it.

    A Gaussian that had c rows and has c - r without the share r of this one: u - m grows by c / (c - r), and S loses
    r c / (c - r) (u - m)(u - m)^T, in the part that all Gaussians share too. Shares of other rows stay as they are.

    Args:
        each, squared: with the row, with shape (K, N).
        counts: rows of the fit, and the strength and the shrinkage of `fit_mixture`, with shape (3,).
    """
    (n, strength, shrinkage), share = counts, torch.softmax(each, 0)
    count = (weights * (n + len(weights)) - 1).clamp_min(0)[:, None] + PRIOR
    kept = 1 - share / (count + strength)
    grown = 1 / (1 - share / count).clamp_min(PRIOR)
    lost = share * grown * (1 + (1 - shrinkage) * strength / n) / (count + strength) * squared
    left = (1 - lost).clamp_min(FLOOR)
    others = grown.square() * kept * squared / left
    weight = torch.log1p(-share / (count + 1)) - torch.log1p(-1 / (n + len(weights)))
    return each + weight + 0.5 * (squared - others - left.log() + d * kept.log()), others


@dataclass(frozen=True)
class Mixture:
    """Gaussians in u; arguments as in `Base`."""

    weights: Tensor
    means: Tensor
    factors: Tensor

    def log_prob(self, u: Tensor) -> Tensor:
        """log g with shape (N,)."""
        return torch.logsumexp(log_gaussians(u, self.weights, self.means, self.factors)[0], dim=0)

    def quadratic(self) -> tuple[Tensor, Tensor, Tensor]:
        """log w_j N(u; m_j, S_j) = a + b u + C u u^T, with shapes (K,), (d, K) and (K, d, d)."""
        precision = self.factors.transpose(1, 2) @ self.factors
        linear = torch.einsum("kij,kj->ki", precision, self.means)
        size = self.factors.diagonal(dim1=1, dim2=2).log().sum(1) + self.weights.log()
        constant = size - 0.5 * self.means.shape[1] * LOG_TWO_PI - 0.5 * (linear * self.means).sum(1)
        return constant, linear.T, -0.5 * precision


def fit_gaussians(
    rows: Tensor, looked_at: int, most: int, strengths: Sequence[float] = STRENGTHS
) -> tuple[Mixture, Tensor, Tensor]:
    """The Gaussians for rows with shape (N, d), in a random order, float64, and their counts as `left_out` takes them.

    And log g of the first rows by Gaussians that were fitted without them, with shape (n,): without itself alone a row
    would still be in groups that it had a part in finding.

    Args:
        looked_at: rows that numbers and strengths are tried with; the fit takes up to 20 times as many.
        most: Gaussians, at most.
        strengths: that are tried; after the first one a number's groups are those that were found before.
    """
    few = rows[:looked_at].float()  # where numbers are tried, half the time
    d, held = rows.shape[1], max(1, round(HELD_OUT * len(few)))
    towards, kept = shrinkage(rows[:looked_at]), Moments(few[held:])
    rest = len(few) - held
    most = int(max(1, min(most, rest // 2, MOST_WORK / (STEPS * d**2 * (rest + d)))))
    tried: dict[tuple[int, float], tuple[Tensor, Mixture]] = {}

    def best() -> tuple[int, float]:
        return max(tried, key=lambda one: float(tried[one][0].mean()))

    number = 1
    for strength in counted("base", strengths):
        last, beyond = number, 2 if tried else 4
        while last <= most and last <= beyond * number:
            if (last, strength) not in tried:
                found = tried[last, strengths[0]][1] if (last, strengths[0]) in tried else None
                fitted = fit_mixture(kept, last, strength * d, towards, STEPS, found)
                tried[last, strength] = fitted.log_prob(few[:held]), fitted
            number, last = best()[0], 2 * last
    number, strength = best()
    held_out, best_found = tried[number, strength]  # the groups that suited rows held out are kept
    many = max(4 * looked_at, min(20 * looked_at, MOST_KEPT // d**2))
    start = Mixture(*(part.double() for part in vars(best_found).values()))
    fitted = fit_mixture(Moments(rows[:many]), number, strength * d, towards, STEPS, start)
    return fitted, rows.new_tensor([min(len(rows), many), strength * d, towards]), held_out.double()


def fit_mixture(
    kept: "Moments", number: int, strength: float, shrinkage: float, steps: int, start: Mixture | None = None
) -> Mixture:
    """`number` Gaussians by expectation and maximization, from `start`, or else from the best of several.

    The covariance within all of them, shrunk towards its diagonal, counts as `strength` rows in each. A start has
    groups of some of the rows: one choice may put two centres into a group and none into another, which a few steps
    show.
    """
    if start is None:
        some, order = kept.few, torch.Generator().manual_seed(0)
        tried = []
        for _ in range(CHOICES if number > 1 else 1):
            share = torch.nn.functional.one_hot(groups(some.rows, number, order), number).to(some.rows)
            tried.append(climb(some, some.sums(share), strength, shrinkage, FIRST_STEPS))
        start = max(tried, key=lambda one: one[0])[1]
    return climb(kept, kept.expect(start)[1], strength, shrinkage, steps)[1]


def climb(kept: "Moments", sums: list[Tensor], strength: float, shrinkage: float, steps: int) -> tuple[float, Mixture]:
    """The mean of log g, and the Gaussians, after some steps; arguments as in `fit_mixture`."""
    rows, number = kept.rows, len(sums[0])
    n, d = rows.shape
    eye, floor, last = torch.eye(d, dtype=rows.dtype), FLOOR * min(1.0, MANY / n), -math.inf
    for _ in range(steps):
        count, first, second = sums
        means = (first + PRIOR * rows.mean(0)) / (count + PRIOR)[:, None]
        cross = means[:, :, None] * first[:, None, :]
        scatter = second - cross - cross.transpose(1, 2)
        scatter = scatter + count[:, None, None] * means[:, :, None] * means[:, None]
        within = scatter.sum(0) / n
        within = (1 - shrinkage) * within + shrinkage * torch.diag(within.diagonal())
        covariance = (scatter + strength * within) / (count + strength)[:, None, None] + floor * eye
        factors = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), eye.expand_as(scatter), upper=False)
        fitted = Mixture((count + 1) / (n + number), means, factors)
        value, sums = kept.expect(fitted)
        if value < last + GAIN / n:
            break
        last = value
    return value, fitted


class Moments:
    """Rows u with shape (N, d), with the upper triangle of u u^T where these are few enough to be kept."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.squares, d = rows, None, rows.shape[1]
        if rows.numel() * d <= MOST_KEPT:
            self.upper = torch.triu_indices(d, d)
            self.squares = rows[:, self.upper[0]] * rows[:, self.upper[1]]

    @cached_property
    def few(self) -> "Moments":
        """Of the first rows, in which groups are looked for."""
        return Moments(self.rows[:LOOKED_AT])

    def expect(self, fitted: Mixture) -> tuple[float, list[Tensor]]:
        """The mean of log g, and the sums with the rows' shares in each Gaussian."""
        if self.squares is None:
            each = log_gaussians(self.rows, fitted.weights, fitted.means, fitted.factors)[0].T
        else:
            constant, linear, square = fitted.quadratic()
            twice = (2 * square.triu(1) + square.diagonal(dim1=1, dim2=2).diag_embed())[:, *self.upper]
            each = torch.addmm(constant, self.rows, linear).addmm_(self.squares, twice.T)
        log_g = torch.logsumexp(each, dim=1, keepdim=True)
        return float(log_g.mean()), self.sums((each - log_g).exp().clamp_min(TINY))

    def sums(self, share: Tensor) -> list[Tensor]:
        """Of 1, u and u u^T with shares (N, K), with shapes (K,), (K, d) and (K, d, d)."""
        if self.squares is None:
            square = torch.stack([(one[:, None] * self.rows).T @ self.rows for one in share.T])
        else:
            half = share.T @ self.squares
            square = half.new_empty(len(half), *[self.rows.shape[1]] * 2)
            square[:, *self.upper] = square[:, *self.upper.flip(0)] = half
        return [share.sum(0), share.T @ self.rows, square]


def by_column(rows: Tensor, held: Tensor, number: int) -> Tensor:
    """The mean of log g of every column of rows held out (n, d), with shape (d,).

    g are `number` Gaussians of that column alone of rows (N, d), found from as many equal parts of its sorted values.
    """
    x, other = rows.T.float()[:, None], held.T.float()[:, None]
    part = x.argsort().argsort()[:, 0] * number // len(rows)
    share, last = torch.nn.functional.one_hot(part, number).mT.float(), x.new_full((len(x),), -math.inf)
    for _ in range(COLUMN_STEPS):
        count = share.sum(2, keepdim=True)
        means = (share * x).sum(2, keepdim=True) / count
        variances = (share * (x - means).square()).sum(2, keepdim=True) / count + COLUMN_FLOOR
        size = (count / len(rows)).log() - 0.5 * (variances.log() + LOG_TWO_PI)
        each = size - 0.5 * (x - means).square() / variances
        log_g = torch.logsumexp(each, 1, keepdim=True)
        value, share = log_g.mean((1, 2)), (each - log_g).exp().clamp_min(TINY)
        if bool((value < last + COLUMN_GAIN).all()):
            break
        last = value
    return torch.logsumexp(size - 0.5 * (other - means).square() / variances, 1).double().mean(1)


def shrinkage(rows: Tensor) -> float:
    """How far the covariance S of rows (N, d) is best drawn to the mean variance m, (1 - c) S + c m 1.

    c = sum_i |u_i u_i^T - S|^2 / (N^2 |S - m 1|^2), at most 1: O. Ledoit and M. Wolf, J. Multivar. Anal. 88 (2004) 365.
    """
    n, d = rows.shape
    off = rows - rows.mean(0)
    covariance = off.T @ off / n
    size = float(covariance.square().sum())
    away = size - float(covariance.trace()) ** 2 / d
    scatter = (float(off.square().sum(1).square().mean()) - size) / n
    return min(1.0, scatter / away) if d > 1 and away > 0 else 0.0


def groups(rows: Tensor, number: int, order: torch.Generator | None = None) -> Tensor:
    """The nearest of `number` centres of each row, (N,): rows far from each other, then means of their groups."""
    order = torch.Generator().manual_seed(0) if order is None else order
    centres, distance = rows[:1], torch.full_like(rows[:, 0], math.inf)
    while len(centres) < number:
        distance = torch.minimum(distance, torch.cdist(rows, centres[-1:]).square()[:, 0])
        centres = torch.cat([centres, rows[torch.multinomial((distance + 1e-12).float(), 1, generator=order)]])
    for _ in range(8):
        nearest = torch.cdist(rows, centres).argmin(1)
        count = torch.bincount(nearest, minlength=number)
        sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
        centres = torch.where((count > 0)[:, None], sums / count.clamp_min(1)[:, None], centres)
    return torch.cdist(rows, centres).argmin(1)
