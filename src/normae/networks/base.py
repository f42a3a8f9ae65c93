"""The base of a table's energy: a density of the training rows, which the reconstruction error corrects.

    E(y) = -s log b(y) + 1/d |y - f(y)|^2,    log b = (1 - a) log g + a log k,

    g(y) = sum_j w_j N(y; m_j, S_j),                       a few Gaussians with covariances of their own,
    k(y) = 1/n sum_i sum_h v_h N(y; c_i, h^2),             a kernel at every row, of several widths.

Gaussians know the directions in which a table extends, kernels know its neighbourhoods. The geometric mean of two
densities is likelier than they are on the average: with Z <= 1, log b - log Z >= (1 - a) log g + a log k everywhere.
Where rows are few the base is the model, and where there are many the network finds what is left. The density is
exp(-E/T)/Z as ever, and T begins at s: s is so large that a network which has learned nothing hardly changes the base.

The number of Gaussians, and how strongly their covariances are drawn towards each other, is what suits rows held out
best; the widths are what suits every row best without itself. a is a half, or the largest share with which rows are
told from draws no worse than by the Gaussians alone. None of them needs a label or a setting.

    q(y) = 1/2 g(y) + 1/2 k(y),    for a = 0    q(y) = 1/2 g(y) + 1/2 sum_j w_j t(y; m_j, S_j),

t Student's density of four degrees of freedom, can be drawn from and computed, and b <= 2 q everywhere. So a training
can tell rows from draws of q, and draws of q that are kept with a probability of exp(-E/T)/q, up to a factor, are
samples of the model. Where kernels do not count nothing computes them; t has tails where a model may have more than g.

A row of the training table is judged by the others, as a new row is: at such a row its own kernel does not count, one
of them where several rows are equal, and the Gaussians are those without it (`statistics.gaussians.left_out`). So
scores of training rows can be compared with those of new ones, in a training and after it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from normae.errors import InputError, require_that
from normae.statistics.gaussians import (
    FLOOR,
    LOG_TWO_PI,
    TINY,
    Mixture,
    fit_gaussians,
    groups,
    left_out,
    log_gaussians,
)
from normae.tensors import by_weight, counts_as, normal

WIDTHS = tuple(0.05 * 2**k for k in range(7))
"""Of kernels, in units of a column's width, each twice the one before."""
LEAST_SHARE = 0.01
"""Of the narrowest and of the widest that are kept."""
LOOKED_AT = 2000
"""Rows that the shares of the widths, and a, are found with."""
LEANINGS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
"""a, the share of the kernels, of which one is chosen: at most equal parts."""
DRAWN = 4000
"""Draws of q that the normalization of a choice is found with."""
RESOLUTION = math.sqrt(2 * FLOOR)
"""In units of a column's width: rows that differ by less are alike. In a direction without any width the kernels have a
constant, and the root of the Gaussians' density has twice their variance."""
NEAR, SMOOTHED = 25, 4
"""Rows over which negative weights are averaged, at least; rows with such weights that are looked at, over kernels."""
WORK = 1 << 18
"""Pairs of a row and a centre at a time: what is made of them stays in a processor's cache."""
MOST_FOUND = 3.0
"""Times as much as `unseen` says, at most."""
SMALLEST, LOWEST = -80.0, -700.0  # of logarithms, in single and in double precision
OWN, FAR = 1e-9, 1e6
"""Squared distances: of what is the row itself, in units of its square; of what is out of sight."""
BESIDE = (-2, -1, 0, 1)
"""Where a row's own centre may be among those in a line, with rounding."""
FREEDOM = 4
"""Degrees of freedom of the wide Gaussians, Student's t."""
SCALE = 20.0
"""s, in units of the reconstruction error of whitened rows."""


@dataclass(frozen=True)
class BaseConfig:
    """The base of a table's energy, fitted to the training rows.

    Args:
        rows: with a kernel, at most; a random choice of more.
        gaussians: at most.
        kernels: whether there are any. Far from all rows, where a likelihood ratio asks, the nearest one alone decides,
            and that is noise.
    """

    rows: int = 5000
    gaussians: int = 32
    kernels: bool = True

    def __post_init__(self) -> None:
        for name in ("rows", "gaussians"):
            require_that(getattr(self, name) >= 1, f"base.{name}", "at least 1", getattr(self, name))


class Base(nn.Module):
    """-s log b(y), with its gradient; nothing in it is trained.

    Args:
        tensors: `frame` F with shape (d, d), from y to u = F y, where columns have the width 1 and kernels are round;
            `weights` (K,), `means` (K, d) and `factors` (K, d, d), the inverse Cholesky factors, of the Gaussians in u;
            `centres` (n, d), `widths` (H,) and `shares` (H,) of the kernels in u; `leaning` (), which is a; `unseen`
            (n, 3), log g, log k and log t of each centre by coordinates and Gaussians without it, minus what they are.
            Without kernels n and H are 0.
    """

    frame: Tensor
    weights: Tensor
    means: Tensor
    factors: Tensor
    centres: Tensor
    widths: Tensor
    shares: Tensor
    leaning: Tensor
    unseen: Tensor

    NAMES: ClassVar[tuple[str, ...]] = (
        "frame", "weights", "means", "factors", "centres", "widths", "shares", "leaning", "unseen",
    )  # fmt: skip

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name in self.NAMES:
            self.register_buffer(name, tensors[name].float())
        self.kernels = bool(self.leaning > 0)
        order = self.along(self.centres).argsort()
        self.centres, self.unseen = self.centres[order], self.unseen[order]
        self.cells: Any = None  # `networks.lattice.Cells`, of columns on a lattice

    @property
    def dimension(self) -> int:
        """d."""
        return len(self.frame)

    @property
    def log_det(self) -> Tensor:
        """log |det F|, the slope of u(y)."""
        found: Tensor = torch.linalg.slogdet(self.frame).logabsdet
        return found

    def forward(self, y: Tensor) -> Tensor:
        """-s log b with shape (N,), for y with shape (N, d)."""
        if self.kernels:
            return self.both(y)[0]
        u = self.places(y)
        return -SCALE * (self._smooth(u, self.own(u))[0] + self.log_det)

    def parts(self, y: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log g, and log k or, without kernels, that of g with tails of Student's t, (N,); arguments as of `both`."""
        u, slope = self.places(y), self.log_det
        own = self.own(u if rows is None else self.places(rows))
        smooth = self._smooth(u, own)
        if self.kernels:
            return smooth[0] + slope, in_cache(self._kernels, u, own, len(self.centres)) + slope
        return smooth[0] + slope, smooth[1] + slope

    def places(self, y: Tensor) -> Tensor:
        """u with shape (N, d); what y has beyond its first d columns is not looked at."""
        return y[:, : self.dimension] @ self.frame.T

    def both(self, y: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """-s log b and log q with shape (N,).

        Args:
            rows: what y has been moved from, with shape (N, d); y is then judged without the row it was.
        """
        g, other = self.parts(y, rows)
        return -SCALE * torch.lerp(g, other, self.leaning), log_half(g, other)

    def propose(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` draws of q with shape (n, d)."""
        like, device = self.frame, generator.device
        noise = normal((n, self.dimension), generator, like)
        half = n // 2
        number = half if self.kernels else n
        j = torch.multinomial(self.weights.to(device), number, True, generator=generator).to(like.device)
        u = torch.empty_like(noise)
        if self.kernels:
            i = torch.randint(len(self.centres), (n - half,), generator=generator, device=device).to(like.device)
            h = torch.multinomial(self.shares.to(device), n - half, True, generator=generator).to(like.device)
            u[half:] = self.centres[i] + self.widths[h, None] * noise[half:]
        else:
            noise[half:] /= normal((n - half, FREEDOM), generator, like).square().mean(1, keepdim=True).sqrt()
        for which in range(len(self.weights)):
            rows = (j == which).nonzero().flatten()
            drawn = torch.linalg.solve_triangular(self.factors[which], noise[rows].T, upper=False).T
            u[rows] = self.means[which] + drawn
        order = torch.randperm(n, generator=generator, device=device).to(like.device)
        y: Tensor = torch.linalg.solve(self.frame, u[order].T).T.contiguous()
        return y

    def log_shares(self) -> Tensor:
        """log v_h/n of the normalized kernels, (H,)."""
        d = self.dimension
        return self.shares.log() - d * self.widths.log() - 0.5 * d * LOG_TWO_PI - math.log(len(self.centres))

    @staticmethod
    def along(u: Tensor) -> Tensor:
        """Places of rows u with shape (N, d) along a line, with shape (N,), in the order of which centres are kept."""
        return u @ torch.arange(u.shape[1], device=u.device).cos().to(u)

    @torch.no_grad()
    def own(self, u: Tensor) -> Tensor:
        """Which centre each of the rows u with shape (N, d) is itself, with shape (N,); -1 for a row that is none."""
        found = torch.full((len(u),), -1, device=u.device)
        if len(self.centres) > 1:
            place, near = torch.searchsorted(self.along(self.centres), self.along(u)), OWN * (1 + u.square().sum(1))
            for beside in BESIDE:
                which = (place + beside).clamp(0, len(self.centres) - 1)
                found = which.where((u - self.centres[which]).square().sum(1) <= near, found)
        return found

    def _kernels(self, u: Tensor, own: Tensor) -> Tensor:
        each = by_width(u, self.centres, own, self.widths)
        return torch.logsumexp(each + self.log_shares(), dim=1) + self._unseen(own, 1)

    def _unseen(self, own: Tensor, which: int) -> Tensor:
        """What is added to log g, log k or log t where a row is a centre itself, with shape (N,)."""
        rows = (own >= 0).nonzero().flatten()
        return self.unseen.new_zeros(len(own)).index_copy(0, rows, self.unseen[own[rows], which])

    def _smooth(self, u: Tensor, own: Tensor) -> Tensor:
        """log g and, where there are no kernels, log t, with shape (1 or 2, N)."""

        def found(u: Tensor, own: Tensor) -> Tensor:
            g, each, scaled = self._gaussians(u, own)
            if self.kernels:
                return g[:, None]
            t = torch.logsumexp(with_tails(each, scaled.square().sum(2), self.dimension), 0)
            return torch.stack([g, t + self._unseen(own, 2)], dim=1)

        return in_cache(found, u, own, self.means.numel()).T

    def _gaussians(self, u: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log g without the row itself, with shape (N,), and what `log_gaussians` gives."""
        each, scaled = log_gaussians(u, self.weights, self.means, self.factors)
        return torch.logsumexp(each, dim=0) + self._unseen(own, 0), each, scaled

    @torch.no_grad()
    def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """-s log b with shape (N,) and its gradient with shape (N, d)."""
        size = max(1, WORK // (len(self.centres) or self.means.numel()))
        pieces = [self._at(u) for u in self.places(y).split(size)]
        value, grad = (torch.cat(part) for part in zip(*pieces, strict=True))
        return SCALE * (value - self.log_det), SCALE * (grad @ self.frame)

    def _at(self, u: Tensor) -> tuple[Tensor, Tensor]:
        own = self.own(u)
        g, each, scaled = self._gaussians(u, own)
        grad = (1 - self.leaning) * torch.einsum("kn,kni,kij->nj", torch.softmax(each, 0), scaled, self.factors)
        if not self.kernels:
            return -g, grad
        widest, nearest = closeness(u, self.centres, own, self.widths[-1])
        near = falling(widest, len(self.widths))[::-1]
        sums = torch.stack([part.sum(1) for part in near], dim=1)
        by = sums.log() - 0.5 * nearest / self.widths.square() + self.log_shares()
        k = torch.logsumexp(by, dim=1)
        unseen = self._unseen(own, 1)
        pull = (by - k[:, None]).exp() / (self.widths.square() * sums)
        weight = near[0] * pull[:, :1]
        for h in range(1, len(near)):
            weight.addcmul_(near[h], pull[:, h : h + 1])
        grad = grad + self.leaning * (u * weight.sum(1, keepdim=True) - weight @ self.centres)
        return -torch.lerp(g, k + unseen, self.leaning), grad


class Bases(nn.Module):
    """The bases of S models side by side: events come as S equal blocks, model after model."""

    def __init__(self, each: Iterable[Base]) -> None:
        super().__init__()
        self.each = list(each)
        for k, base in enumerate(self.each):
            self.add_module(str(k), base)

    def forward(self, y: Tensor) -> Tensor:
        """-s log b with shape (S * B,), for y with shape (S * B, d)."""
        pairs = zip(self.each, y.chunk(len(self.each)), strict=True)
        return torch.cat([base(block) for base, block in pairs])

    def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """-s log b with shape (S * B,) and its gradient with shape (S * B, d)."""
        pairs = zip(self.each, y.chunk(len(self.each)), strict=True)
        value, grad = zip(*(base.value_and_grad(block) for base, block in pairs), strict=True)
        return torch.cat(value), torch.cat(grad)


def in_cache(of: Callable[[Tensor, Tensor], Tensor], u: Tensor, own: Tensor, numbers: int) -> Tensor:
    """What `of` makes of rows u (N, d) and `own` (N,), with N rows, some at a time; it makes `numbers` of each row."""
    size = max(1, WORK // numbers)
    return torch.cat([of(*piece) for piece in zip(u.split(size), own.split(size), strict=True)])


def log_half(g: Tensor, other: Tensor) -> Tensor:
    """log q = log(g/2 + other/2) for log g and the other half's logarithm."""
    return torch.logaddexp(g, other) - math.log(2)


def with_tails(each: Tensor, squared: Tensor, d: int) -> Tensor:
    """log w_j t(u; m_j, S_j) for log w_j N(u; m_j, S_j) and |L_j^-1 (u - m_j)|^2, with shape (K, N)."""
    size = math.lgamma((FREEDOM + d) / 2) - math.lgamma(FREEDOM / 2) - 0.5 * d * math.log(FREEDOM / 2)
    return each + 0.5 * squared - 0.5 * (FREEDOM + d) * (squared / FREEDOM).log1p() + size


def closeness(u: Tensor, centres: Tensor, own: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """(D - |u - c|^2)/2h^2 with shape (N, n) for u with shape (N, d), and D of the nearest centre, (N, 1).

    Args:
        own: the centre that u is itself, with shape (N,), or -1. It is so far that nobody sees it.
        width: h.
    """
    scale = 0.5 / width.square()
    found = torch.addmm(centres.square().sum(1) * -scale, u * (2 * scale), centres.T)
    if len(rows := (own >= 0).nonzero().flatten()):
        found = found.index_put((rows, own[rows]), -FAR * scale)
    most = found.detach().amax(1, keepdim=True)
    nearest = u.square().sum(1, keepdim=True) - most / scale
    return found.sub_(most), nearest - nearest.detach().clamp_max(0)


def falling(closeness: Tensor, number: int) -> list[Tensor]:
    """exp(-|u - c|^2/2h^2), over that of the nearest centre, of so many widths, each half the one before, (N, n) each.

    The next is the fourth power of the one before: one exponential is enough. What is nothing is not made so small that
    a processor becomes slow.

    Args:
        closeness: of the widest, with shape (N, n). It is used up.
    """
    found = [closeness.clamp_min_(SMALLEST).exp_()]
    for _ in range(number - 1):
        found.append(found[-1].clamp_min(TINY).square_().square_())
    return found


def by_width(u: Tensor, centres: Tensor, own: Tensor, widths: Tensor) -> Tensor:
    """log sum_i exp(-|u - c_i|^2/2h^2) of every width, with shape (N, H); arguments as of `closeness`."""
    near, nearest = closeness(u, centres, own, widths[-1])
    sums = [part.sum(1) for part in reversed(falling(near, len(widths)))]
    return torch.stack(sums, dim=1).log() - 0.5 * nearest / widths.square()


# --- its fit


def fit_base(
    rows: Tensor, frame: Tensor, config: BaseConfig, generator: torch.Generator, weights: Tensor | None = None,
    places: Tensor | None = None, unseen_slope: Tensor | float = 0.0,
) -> Base:  # fmt: skip
    """The base of rows y with shape (N, d).

    Args:
        frame: F with shape (d, d).
        weights: with shape (N,). Gaussians see a row as often as its weight says; kernels are at different rows, each
            at most once, and as many as the weights count as.
        places: of the kernels, once all has been fitted: y with shape (N, d), where rows have noise.
        unseen_slope: what log |dy/dx| of each row is without it, minus what it is, with shape (N,).
    """
    u = rows.double() @ frame.double().T
    chosen = torch.randperm(len(u), generator=generator)
    centred = chosen
    if weights is not None:
        chosen = chosen if bool((weights >= 0).all()) else chosen[: SMOOTHED * config.rows]
        positive = smoothed(u[chosen], weights[chosen])
        number = min(config.rows, counts_as(positive))
        centred, chosen = chosen[by_weight(positive, number).unique()], chosen[by_weight(positive, len(chosen))]
    fitted, left, held_out = fit_gaussians(u[chosen], config.rows, config.gaussians)
    tensors = {"weights": fitted.weights, "means": fitted.means, "factors": fitted.factors, "frame": frame}
    if not config.kernels:
        nothing = {"centres": u[:0], "widths": u[0, :0], "shares": u[0, :0], "leaning": torch.tensor(0.0)}
        return Base(tensors | nothing | {"unseen": u.new_zeros(0, 3)})
    centres = u[centred[: config.rows]]
    widths, shares = fit_widths(centres.float())
    slope = torch.as_tensor(unseen_slope).expand(len(u))[centred[: config.rows], None]
    without = found_by(fitted, u[chosen][: config.rows], left, held_out) * unseen(fitted, centres, left) + slope
    tensors |= {"centres": centres, "widths": widths, "shares": shares, "unseen": without}
    base = Base(tensors | {"leaning": torch.tensor(0.5)})
    rows, drawn = rows[centred[: min(LOOKED_AT, config.rows)]].float(), base.propose(DRAWN, generator)
    tensors["leaning"] = torch.tensor(fit_leaning(base.parts(rows), base.parts(drawn)))
    if places is not None:
        at = places[centred[: config.rows]].double()
        group = at.round(decimals=3).unique(dim=0, return_inverse=True)[1]  # of equal rows any may be `own`
        sums = torch.zeros_like(without).index_add_(0, group, without.clamp_min(LOWEST).exp())
        means = sums[group] / torch.bincount(group)[group, None]
        tensors |= {"centres": at @ frame.double().T, "unseen": means.log()}
    return Base(tensors)


@torch.no_grad()
def fit_leaning(rows: tuple[Tensor, Tensor], drawn: tuple[Tensor, Tensor]) -> float:
    """The largest share of the kernels with which rows are told from draws of q no worse than without kernels.

    By the loss that the network is trained with (`training.contrast`). Gaussians alone win where they are the truth.
    Elsewhere kernels have as large a part as they can: what most rows are like Gaussians know as well, and anomalies
    are where rows are rare.

    Args:
        rows, drawn: log g and log k with shape (N,) each, of rows, each judged without itself, and of draws.
    """
    loss = {}
    for share in LEANINGS:
        row, draw = (torch.lerp(g, k, share) - log_half(g, k) for g, k in (rows, drawn))
        log_z = torch.logsumexp(draw, 0) - math.log(len(draw))
        loss[share] = float(softplus(log_z - row).mean() + softplus(draw - log_z).mean())
    return max(share for share in LEANINGS if loss[share] <= loss[0.0])


def unseen(fitted: Mixture, rows: Tensor, counts: Tensor) -> Tensor:
    """What log g, log k and log t of rows u (N, d) of the fit are without the row, minus what they are, (N, 3).

    Of log k nothing: a row's own kernel does not count where it is asked for.
    """
    if len(rows) > (size := max(1, WORK // fitted.means.numel())):
        return torch.cat([unseen(fitted, piece, counts) for piece in rows.split(size)])
    each, scaled = log_gaussians(rows, fitted.weights, fitted.means, fitted.factors)
    squared, d = scaled.square().sum(2), rows.shape[1]
    seen, others = (each, squared), left_out(each, squared, fitted.weights, counts, d)
    g, t = (torch.logsumexp(b, 0) - torch.logsumexp(a, 0) for a, b in
            ((seen[0], others[0]), (with_tails(*seen, d), with_tails(*others, d))))  # fmt: skip
    return torch.stack([g, torch.zeros_like(g), t], dim=1)


def found_by(fitted: Mixture, few: Tensor, counts: Tensor, held_out: Tensor) -> float:
    """By how much more than `unseen` says a row is less likely without itself, since it had a part in finding groups.

    The first rows know: log g of Gaussians that were found without them. With p numbers a fit to n rows gains p/2n from
    these and others lose as much, and p/2m with m rows for a fit to those; `unseen` is p/n.
    """
    some, m = few[: len(held_out)], len(few) - len(held_out)
    lost = float((fitted.log_prob(some) - held_out).mean()) * 2 / (1 + float(counts[0]) / m)
    said = -float(unseen(fitted, some, counts)[:, 0].mean())
    return min(MOST_FOUND, max(1.0, lost / max(said, TINY)))


def smoothed(rows: Tensor, weights: Tensor) -> Tensor:
    """Weights (N,) of rows (N, d) that are not negative; where some are, means over rows near each other.

    A density is positive, so that negative rows have enough positive ones beside them: those of a group that counts as
    `NEAR` equal rows.
    """
    if bool((weights >= 0).all()):
        return weights
    group = groups(rows, max(1, counts_as(weights) // NEAR))
    mean = torch.bincount(group, weights) / torch.bincount(group).clamp_min(1)
    return mean[group].clamp_min(0)


def fit_widths(centres: Tensor) -> tuple[Tensor, Tensor]:
    """The widths that suit every centre best without itself, (H,), and their shares."""
    widths, size = centres.new_tensor(WIDTHS), max(1, WORK // len(centres))
    own = torch.arange(min(LOOKED_AT, len(centres))) if len(centres) > 1 else torch.full((1,), -1)
    pairs = zip(centres[:LOOKED_AT].split(size), own.split(size), strict=True)
    found = [by_width(piece, centres, which, widths) for piece, which in pairs]
    log_kernel = (torch.cat(found) - centres.shape[1] * widths.log()).double()
    shares = torch.full_like(widths.double(), 1 / len(widths))
    for _ in range(200):
        shares = torch.softmax(log_kernel + shares.log(), dim=1).mean(0)
    first, last = (shares > LEAST_SHARE).nonzero().flatten()[[0, -1]]
    kept = shares[first : last + 1].clamp_min(1e-6)
    return widths[first : last + 1], (kept / kept.sum()).float()


def read_base(tensors: Mapping[str, Tensor], d: int, source: str) -> Base:
    """The base of the tensors in a model's file; `source` names the file in messages."""
    k, n, h = (len(tensors[name]) if name in tensors else 0 for name in ("weights", "centres", "widths"))
    tensors = {"unseen": torch.zeros(n, 3)} | dict(tensors)  # of an older run
    sizes = {name: tuple(tensors[name].shape) for name in Base.NAMES if name in tensors}
    expected = {"frame": (d, d), "weights": (k,), "means": (k, d), "factors": (k, d, d)}
    expected |= {"centres": (n, d), "widths": (h,), "shares": (h,), "leaning": (), "unseen": (n, 3)}
    if set(tensors) != set(Base.NAMES) or sizes != expected or not k or bool(n) != bool(h):
        raise InputError(f"{source}: the base does not belong to the model; train it again")
    return Base(tensors)
