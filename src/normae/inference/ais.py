"""The partition function by annealed importance sampling (Neal 2001), bounded from both sides (Grosse et al. 2015).

A Gaussian q with mean m and covariance L L^T, fitted to events, is the base, and x = m + L u gives coordinates in which
it is a standard normal; of a table with a base of its energy it is the proposal of that, and u = x. Between
f_0(u) = exp(-|u|^2/2), or q(x), and f_1(u) = exp(-E(x)/T) leads the geometric path

    log f_b(u) = (1 - b) log f_0(u) - b E(x)/T,   0 = b_0 < b_1 < ... < b_K = 1,

and all of them are zero outside the bounds, where there are any. A chain that starts from f_0 and makes one exact
Langevin step on each f_b in turn collects

    log w = sum_k (b_k - b_(k-1)) (-log f_0 - E/T)(u_(k-1)),   <w> = Z_1/Z_0,

and Z = |det L| Z_1, Z_0 = (2 pi)^(d/2) P (of a proposal: Z = Z_1, Z_0 = P) with P the share of the base within the
bounds. By Jensen the log of a mean over N chains is below log Z in expectation: the forward bound. The same steps in
the other order, from samples of the model, have <1/w> = Z_0/Z_1: the reverse bound, from above. The weights of both
ways obey p_F(w) w = p_R(w) Z_1/Z_0, so their best estimate together is that of Bennett (1976): log Z_1/Z_0 = r at which

    sum_F s(log w - r + log N_R/N_F) = sum_R s(r - log w - log N_R/N_F),   s the logistic function.

A pilot run chooses the b_k at equal thermodynamic length int sd_b(-log f_0 - E/T) db, for which the variance of log w
is smallest, and the step sizes along the path; both are fixed before the runs that count, which therefore stay exact.

A base or a path that misses a mode gives a forward bound that is too low, and start points that are not samples of the
model a reverse one that is wrong. Either shows as bounds that disagree: `LogZDisagreement`, and no number.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit, logsumexp
from torch import Tensor

from normae.energy import Energy, autograd_value_and_grad, held, value_and_grad
from normae.errors import InputError, LogZDisagreement, refuse, require_that
from normae.inference.log_z import LogZ
from normae.networks.base import Base
from normae.progress import counted
from normae.sampling.config import ChainConfig
from normae.sampling.langevin import LangevinState, Scale, select, step
from normae.tensors import normal

EVERYWHERE = (-math.inf, math.inf)
ACCEPTANCE = 0.65  # towards which the pilot moves the step size
PILOT_CHAINS, PILOT_MOVES, PILOT_STEPS = 256, 4, 2000
PILOT_LENGTH = 0.3  # thermodynamic length of a step of the pilot, which makes PILOT_MOVES Langevin steps there
SHARE_DRAWS = 1 << 17  # fewest draws behind the share of the base within the bounds
BOOTSTRAPS = 200
_FLAT = ChainConfig()


@dataclass(frozen=True)
class AISConfig:
    """Annealed importance sampling of log Z.

    Args:
        chains: number of chains each way.
        steps: number K of densities along the path; one gradient each for a chain.
        widen: standard deviations of the base, in units of those of the events that it is fitted to.
        burn_in: Langevin steps on the model itself that the reverse chains take before they count; 0 where their start
            points are independent samples of the model.
        tolerance: largest difference of the two bounds.
        least_ess: smallest effective number of chains each way.
        retries: how often a longer annealing follows where the bounds disagree: with twice the chains, five times the
            steps and ten times the burn-in.
        required: whether a run has failed where the bounds disagree; its model is written in any case.
    """

    chains: int = 1024
    steps: int = 500
    widen: float = 1.2
    burn_in: int = 1000
    tolerance: float = 0.1
    least_ess: float = 100.0
    retries: int = 0
    required: bool = True

    def __post_init__(self) -> None:
        for name, least in (("chains", 2), ("steps", 1), ("burn_in", 0)):
            require_that(getattr(self, name) >= least, f"log_z.{name}", f"at least {least}", getattr(self, name))
        require_that(0 < self.widen < math.inf, "log_z.widen", "a positive number", self.widen)
        require_that(0 <= self.retries <= 3, "log_z.retries", "0 to 3", self.retries)
        require_that(self.tolerance > 0, "log_z.tolerance", "a positive number", self.tolerance)
        enough, expected = 1 <= self.least_ess <= self.chains, f"1 to {self.chains} chains"
        require_that(enough, "log_z.least_ess", expected, self.least_ess)

    def runs(self) -> list["AISConfig"]:
        """This annealing, and the longer ones that may follow."""
        longer = replace(self, chains=2 * self.chains, steps=5 * self.steps, burn_in=10 * self.burn_in)
        return [self] if self.retries == 0 else [self, *replace(longer, retries=self.retries - 1).runs()]


class AISResult(NamedTuple):
    """log Z and what stands behind it.

    Args:
        log_z: from both ways; its error is the larger one of the bootstrap's and half the difference of the bounds.
        forward, reverse: the stochastic bounds from below and from above.
        forward_ess, reverse_ess: effective number of chains each way.
        acceptance: mean over the steps of the forward chains.
        gradients: of E, those of all chains, of the pilot and of the burn-in.
    """

    log_z: LogZ
    forward: float
    reverse: float
    forward_ess: float
    reverse_ess: float
    acceptance: float
    gradients: int


# --- where it begins


class GaussianBase:
    """A Gaussian over events; in u it is f_0(u) = exp(-|u|^2/2), whose integral over all events is exp(log_z).

    Args:
        mean: with shape (*event,).
        cholesky: L of the covariance of flattened events, with shape (d, d), lower triangular.
    """

    def __init__(self, mean: Tensor, cholesky: Tensor) -> None:
        self.mean, self.cholesky, self.dimension = mean, cholesky, len(cholesky)
        log_det = float(cholesky.double().diagonal().log().sum())
        self.log_z = 0.5 * self.dimension * math.log(2 * math.pi) + log_det

    def along(self, grad: Tensor) -> Tensor:
        """A gradient by u, with shape (N, d)."""
        return grad.flatten(1) @ self.cholesky

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        """Standard normal u with shape (n, d)."""
        return normal((n, self.dimension), generator, self.cholesky)

    def value_and_grad(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """|u|^2/2 with shape (N,), float64, and u."""
        return 0.5 * u.double().square().sum(1), u

    def events(self, u: Tensor) -> Tensor:
        """x = m + L u with shape (N, *event) for u with shape (N, d)."""
        return (self.mean.flatten() + u @ self.cholesky.T).reshape(-1, *self.mean.shape)

    def coordinates(self, x: Tensor) -> Tensor:
        """u with shape (N, d) for x with shape (N, *event)."""
        residual = (x.flatten(1) - self.mean.flatten()).double().T
        u: Tensor = torch.linalg.solve_triangular(self.cholesky.double(), residual, upper=False).T
        return u.to(x.dtype).contiguous()


class Proposed(GaussianBase):
    """The proposal q of the base of a table's energy, which knows its groups; u are the events themselves."""

    def __init__(self, base: Base) -> None:
        super().__init__(base.frame.new_zeros(base.dimension), torch.eye(base.dimension).to(base.frame))
        self.base, self.log_z = base, 0.0

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        return self.base.propose(n, generator)

    def value_and_grad(self, u: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = autograd_value_and_grad(lambda y: -self.base.both(y)[1], u)
        return value.double(), grad


def fit_base(events: Tensor, widen: float = 1.2) -> GaussianBase:
    """The Gaussian with mean and covariance of `events`, with shape (N, *event), and wider by the factor `widen`.

    A thousandth of the mean variance is added to every feature, so that constant or dependent features do not make it
    singular. Its dtype and device are those of the events, and so are those of the chains.
    """
    flat = events.flatten(1).double()
    if len(flat) < 2 or not bool(torch.isfinite(flat).all()):
        raise InputError(f"base: expected at least two finite events, got an array of shape {tuple(events.shape)}")
    covariance = torch.cov(flat.T).reshape(flat.shape[1], flat.shape[1])
    spread = float(covariance.diagonal().mean())
    refuse(not spread > 0, "base: expected events that differ from each other")
    covariance = covariance + 1e-3 * spread * torch.eye(len(covariance), dtype=covariance.dtype, device=flat.device)
    cholesky = widen * torch.linalg.cholesky(covariance)
    return GaussianBase(flat.mean(0).reshape(events.shape[1:]).to(events.dtype), cholesky.to(events.dtype))


# --- the path


class _Target:
    """E/T in the coordinates of the base, float64, infinite outside the bounds; it counts its gradients."""

    def __init__(self, energy: Energy, temperature: float, base: GaussianBase, bounds: tuple[float, float]) -> None:
        self.energy, self.temperature, self.base, self.bounds = held(energy), temperature, base, bounds
        self.gradients = 0

    def within(self, u: Tensor) -> Tensor:
        """Whether points u with shape (N, d) are within the bounds, shape (N,)."""
        low, high = self.bounds
        x = self.base.events(u).flatten(1)
        return ((x >= low) & (x <= high)).all(dim=1)

    def at(self, u: Tensor) -> "_Point":
        """What the ends of the path are at u, with shape (N, d)."""
        value, grad = value_and_grad(self.energy, self.base.events(u))
        refuse(value.shape != (len(u),), f"expected energies of shape {(len(u),)}, got {tuple(value.shape)}")
        self.gradients += len(u)
        score = value.double() / self.temperature
        if self.bounds != EVERYWHERE:
            score = torch.where(self.within(u), score, math.inf)
        return _Point(u, score, self.base.along(grad) / self.temperature, *self.base.value_and_grad(u))


class _Point(NamedTuple):
    """Positions u (N, d), -log f_1 (N,) with its gradient, and -log f_0 with its own."""

    position: Tensor
    energy: Tensor
    grad: Tensor
    first: Tensor
    first_grad: Tensor

    def on(self, beta: float) -> LangevinState:
        """The state of a chain on f_b."""
        energy = (1 - beta) * self.first + beta * self.energy
        return LangevinState(self.position, energy, (1 - beta) * self.first_grad + beta * self.grad)

    def gain(self) -> Tensor:
        """log f_1 - log f_0 with shape (N,), float64."""
        return self.first - self.energy


class _Bridge:
    """-log f_b as an energy, which keeps what the target is at the points it was last asked about."""

    def __init__(self, target: _Target, beta: float) -> None:
        self.target, self.beta = target, beta

    def __call__(self, u: Tensor) -> Tensor:
        return self.value_and_grad(u)[0]

    def value_and_grad(self, u: Tensor) -> tuple[Tensor, Tensor]:
        self.last = self.target.at(u)
        return self.last.on(self.beta)[1:]


def _move(
    point: _Point, target: _Target, beta: float, size: float, generator: torch.Generator
) -> tuple[_Point, Tensor]:
    """One Langevin step of step size `size` on f_b, of one gradient: the point after it, and who moved."""
    bridge, scale = _Bridge(target, beta), Scale.of(1.0, size, math.sqrt(2 * size), point.position)
    _, accepted = step(point.on(beta), bridge, _FLAT, scale, generator)
    return select(accepted, bridge.last, point), accepted


_Schedule = tuple[list[float], list[float]]
"""b_0 = 0 to b_K = 1, and the step size at each."""


def _pilot(target: _Target, start: Tensor, steps: int, generator: torch.Generator) -> _Schedule:
    """A path of `steps` densities and its step sizes, from a population that walks along it and is resampled."""
    point = target.at(start)
    if not bool(torch.isfinite(point.energy).all()):
        raise InputError("expected finite energies where the base is, got NaN or infinity; narrow the base")
    betas, lengths, sizes = [0.0], [0.0], [1.4 / target.base.dimension ** (1 / 3)]
    size = sizes[0]
    while betas[-1] < 1:
        if len(betas) > PILOT_STEPS:
            raise InputError("the base is too far from the model for annealing; fit it to events of the model")
        gain = point.gain()
        whole = PILOT_LENGTH / max(float(gain.std()), PILOT_LENGTH)
        part = min(whole, 1 - betas[-1])
        weight = torch.softmax(part * gain, 0).to(generator.device)
        chosen = torch.multinomial(weight, len(weight), replacement=True, generator=generator).to(gain.device)
        point = _Point(*[values[chosen] for values in point])
        for _ in range(PILOT_MOVES):
            point, accepted = _move(point, target, betas[-1] + part, size, generator)
            size *= math.exp(0.5 * (float(accepted.double().mean()) - ACCEPTANCE))
        betas.append(betas[-1] + part if part == whole else 1.0)
        lengths.append(lengths[-1] + PILOT_LENGTH * part / whole)
        sizes.append(size)
    even = np.linspace(0, lengths[-1], steps + 1)
    path = np.interp(even, lengths, betas)
    return ([*path[:-1].tolist(), 1.0], np.exp(np.interp(even, lengths, np.log(sizes))).tolist())


def _walk(
    target: _Target, start: Tensor, schedule: _Schedule, generator: torch.Generator, back: bool, burn_in: int
) -> tuple[np.ndarray, float]:
    """log w of each chain from the base, with shape (N,), and the mean acceptance; `back` from the model, reversed."""
    betas, sizes = schedule
    places = list(range(len(betas)))[:: -1 if back else 1]
    point, log_weight = target.at(start), torch.zeros(len(start), dtype=torch.float64, device=start.device)
    for _ in range(burn_in):
        point, _ = _move(point, target, betas[places[0]], sizes[places[0]], generator)
    moved = 0.0
    for here, there in counted("annealing", list(pairwise(places))):
        log_weight += abs(betas[there] - betas[here]) * point.gain()
        if there != places[-1]:
            point, accepted = _move(point, target, betas[there], sizes[there], generator)
            moved += float(accepted.double().mean())
    return log_weight.cpu().numpy(), moved / max(len(betas) - 2, 1)


def _base_points(target: _Target, n: int, generator: torch.Generator) -> tuple[Tensor, float, float]:
    """`n` points of the base within the bounds, by rejection; the base's share there, and its relative error."""
    base = target.base
    if target.bounds == EVERYWHERE:
        return base.draws(n, generator), 1.0, 0.0
    found, kept, drawn = [], 0, 0
    while kept < n:
        if drawn >= 256 * SHARE_DRAWS:
            raise InputError(f"base: only {kept} of {drawn} points are within the bounds; narrow or move it")
        u = base.draws(SHARE_DRAWS, generator)
        inside = u[target.within(u)]
        found.append(inside[:n])
        kept, drawn = kept + len(inside), drawn + SHARE_DRAWS
    share = kept / drawn
    return torch.cat(found)[:n], share, math.sqrt((1 - share) / (share * drawn))


def log_mean_exp(log_weight: np.ndarray) -> np.ndarray:
    """log of the mean of exp over the last axis."""
    return np.asarray(logsumexp(log_weight, axis=-1) - math.log(log_weight.shape[-1]))


def effective_size(log_weight: np.ndarray) -> float:
    """(sum w)^2 / sum w^2 of weights with shape (N,)."""
    return float(np.exp(2 * logsumexp(log_weight) - logsumexp(2 * log_weight)))


def bennett(forward: np.ndarray, reverse: np.ndarray) -> np.ndarray:
    """log Z_1/Z_0 with shape (...), from log weights with shapes (..., N_F) and (..., N_R), by bisection."""
    shift = math.log(reverse.shape[-1] / forward.shape[-1])
    both = np.concatenate([forward, reverse], axis=-1)
    low, high = both.min(axis=-1) - abs(shift) - 50, both.max(axis=-1) + abs(shift) + 50
    for _ in range(50):
        middle = (low + high) / 2
        up = expit(forward - middle[..., None] + shift).sum(-1)
        down = expit(middle[..., None] - reverse - shift).sum(-1)
        low, high = np.where(up > down, middle, low), np.where(up > down, high, middle)
    return np.asarray((low + high) / 2)


def ais_log_z(
    energy: Energy, temperature: float, base: GaussianBase, reverse_start: Tensor, generator: torch.Generator,
    config: AISConfig | None = None, bounds: tuple[float, float] | None = None,
) -> AISResult:  # fmt: skip
    """log Z = log int exp(-E(x)/T) dx within the bounds, or over all space; see the module's docstring.

    Args:
        energy: from events with shape (N, *event) to (N,).
        temperature: T.
        base: where the annealing begins, as `fit_base` makes it, or the proposal of a table's base; it should
            cover every mode of the model.
        reverse_start: samples of the model with shape (M, *event), or events near them with a `config.burn_in` that
            makes them so. At most `config.chains` of them are used.
        generator: where all randomness comes from.
        config: lengths and tolerances.
        bounds: lowest and highest value of every feature.

    Raises:
        LogZDisagreement: the bounds differ by more than the tolerance, or the effective number of chains is too small.

    >>> import torch
    >>> from normae.inference import AISConfig, ais_log_z, fit_base
    >>> generator, config = torch.Generator().manual_seed(0), AISConfig(chains=200, steps=50, burn_in=0)
    >>> x = torch.randn(200, 3, generator=generator)
    >>> found = ais_log_z(lambda x: x.square().sum(1) / 2, 1.0, fit_base(x), x, generator, config)
    >>> abs(found.log_z.value - 2.757) < 0.05  # 3/2 log 2 pi
    True
    """
    config = config or AISConfig()
    require_that(0 < temperature < math.inf, "temperature", "a positive number", temperature)
    target = _Target(energy, temperature, base, EVERYWHERE if bounds is None else bounds)
    model_points = _reverse_points(target, reverse_start, config, generator)
    points, share, share_error = _base_points(target, config.chains, generator)
    schedule = _pilot(target, points[:PILOT_CHAINS], config.steps, generator)
    forward, acceptance = _walk(target, points, schedule, generator, False, 0)
    reverse, _ = _walk(target, model_points, schedule, generator, True, config.burn_in)
    offset = base.log_z + math.log(share)
    lower, upper = offset + float(log_mean_exp(forward)), offset - float(log_mean_exp(-reverse))
    numbers = np.random.default_rng(int(torch.randint(1 << 62, (1,), generator=generator, device=generator.device)))
    resampled = [w[numbers.integers(len(w), size=(BOOTSTRAPS, len(w)))] for w in (forward, reverse)]
    error = math.hypot(float(bennett(*resampled).std(ddof=1)), share_error)
    log_z = LogZ(offset + float(bennett(forward, reverse)), max(error, abs(upper - lower) / 2), target.bounds)
    sizes = effective_size(forward), effective_size(-reverse)
    return _checked(AISResult(log_z, lower, upper, *sizes, acceptance, target.gradients), config)


def _reverse_points(target: _Target, start: Tensor, config: AISConfig, generator: torch.Generator) -> Tensor:
    """At most `config.chains` start points in the base's coordinates, chosen at random."""
    expected = tuple(target.base.mean.shape)
    if tuple(start.shape[1:]) != expected or len(start) < 2:
        raise InputError(f"reverse_start: expected events of shape {expected}, got an array of {tuple(start.shape)}")
    chosen = torch.randperm(len(start), generator=generator, device=generator.device)[: config.chains]
    points = target.base.coordinates(start[chosen.to(start.device)].to(target.base.mean))
    outside = int((~target.within(points)).sum())
    require_that(outside == 0, "reverse_start", "events within the bounds", f"{outside} outside")
    return points


def _checked(result: AISResult, config: AISConfig) -> AISResult:
    bounds = f"forward {result.forward:.3f}, reverse {result.reverse:.3f}"
    advice = "give it more log_z.steps and log_z.chains, and a base and start points that cover every mode"
    least = min(result.forward_ess, result.reverse_ess)
    if not abs(result.reverse - result.forward) <= config.tolerance:
        wrong = f"the bounds differ by more than {config.tolerance:g}, {bounds}"
    elif not least >= config.least_ess:
        wrong = f"the effective number of chains is {least:.0f}, expected {config.least_ess:g}; {bounds}"
    else:
        return result
    raise LogZDisagreement(f"log Z: {wrong}; {advice}", result)
