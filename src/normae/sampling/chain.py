"""Chains of Langevin steps: the runner, and the public entry for any energy.

**Has a chain converged, and what is it worth?** Split R-hat and the effective sample size say so. Both take draws with
shape (steps, chains). With W the mean variance within the chains and B/n the variance of their means, var+ = (n-1)/n W
+ B/n and R-hat = sqrt(var+/W), after each chain has been split in two halves. The effective sample size is n m / tau
with tau = -1 + 2 sum_k (rho_2k + rho_2k+1), where the autocorrelations rho are taken from the chains' mean
autocovariance, and the sum stops at the first negative pair and never grows (Geyer).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from normae.energy import Energy, held
from normae.errors import InputError
from normae.progress import Tick, ignore
from normae.random import Generators
from normae.sampling.langevin import BoundsRule, ChainConfig, ClipRule, Metropolis, Scalar, Scale, Sphere, init, step


class Chain(NamedTuple):
    """The end of a chain.

    Args:
        position: with shape (N, *event).
        energy: at the position, with shape (N,).
        acceptance: share of accepted samples, with shape (steps,); (steps, S) for S models side by side.
        trace: recorded positions with shape (records, N, *event), where asked for.
    """

    position: Any
    energy: Any
    acceptance: Any
    trace: Any


def default_noise(step_size: Scalar, config: ChainConfig) -> Scalar:
    """sigma = sqrt(2 lambda), or the configured sigma moved along with an adapted lambda, sigma^2/lambda fixed."""
    ratio = 2.0 if config.noise is None else config.noise**2 / config.step_size
    if isinstance(step_size, Tensor):
        return (ratio * step_size).sqrt()
    return math.sqrt(ratio * step_size)


def run_chain(
    energy: Energy,
    start: Tensor,
    config: ChainConfig,
    temperature: Scalar,
    generators: Generators,
    step_size: Scalar | None = None,
    trace: int | None = None,
    members: int = 1,
    tick: Tick = ignore,
) -> Chain:
    """Run `config.steps` steps.

    Args:
        energy: from events with shape (N, *event) to (N,).
        start: with shape (N, *event).
        generators: where all randomness comes from.
        temperature: T, a number or a tensor with shape (N,).
        step_size: lambda where it differs from the configured one, a number or a tensor with shape (N,).
        trace: record every `trace`-th position.
        members: number S of models whose samples stand in S equal blocks, for the acceptance.
        tick: told each step.

    >>> import torch
    >>> from normae.sampling import ChainConfig, run_chain
    >>> config, generator = ChainConfig(steps=50, step_size=0.5), torch.Generator().manual_seed(0)
    >>> chain = run_chain(lambda x: x.square().sum(1) / 2, torch.zeros(2000, 2), config, 1.0, generator)
    >>> float(chain.position.std().round(decimals=1))
    1.0
    """
    step_size = config.step_size if step_size is None else step_size
    sigma = default_noise(step_size, config)
    energy = held(energy)
    state = init(start, energy, config)
    if state.energy.shape != (len(start),):
        raise InputError(f"expected energies of shape {(len(start),)}, got {tuple(state.energy.shape)}")
    scale = Scale.of(temperature, step_size, sigma, start)
    counts: list[Tensor] = []
    records: list[Tensor] = []
    for t in range(config.steps):
        if config.anneal:
            scale = Scale.of(temperature, step_size, sigma / (1 + t), start)
        state, info = step(state, energy, config, scale, generators)
        counts.append(info.accepted.reshape(members, -1).sum(1))
        if trace is not None and (t + 1) % trace == 0:
            records.append(state.position)
        tick()
    none = torch.zeros(0, members, dtype=torch.float64, device=start.device)
    acceptance = torch.stack(counts).double() * (members / len(start)) if counts else none
    return Chain(state.position, state.energy, acceptance, torch.stack(records) if records else None)


def langevin(
    energy: Energy,
    start: Any,
    *,
    temperature: float,
    step_size: float,
    steps: int,
    generator: torch.Generator,
    noise: float | None = None,
    metropolis: Metropolis = "exact",
    bounds: tuple[float, float] | None = None,
    bounds_rule: BoundsRule = "reject",
    clip: float | None = None,
    clip_rule: ClipRule = "norm",
    sphere: Sphere | None = None,
    anneal: bool = False,
    trace: int | None = None,
) -> Chain:
    """Sample exp(-E/T) with a Metropolis-adjusted Langevin chain, whose `acceptance` has shape (steps,).

    Args:
        energy: callable from a tensor with shape (N, *event) to one with shape (N,), differentiable; where it offers
            `value_and_grad(x)`, that is used.
        start: starting points with shape (N, *event), numpy or torch; the results are of the same kind.
        temperature: T.
        step_size: lambda.
        steps: number of steps.
        generator: where all randomness comes from.
        noise, metropolis, bounds, bounds_rule, clip, clip_rule, sphere, anneal: see `ChainConfig`.
        trace: record every `trace`-th position.

    >>> import normae, torch
    >>> how = {"temperature": 4.0, "step_size": 2.0, "steps": 50, "generator": torch.Generator().manual_seed(0)}
    >>> chain = normae.langevin(lambda x: x.square().sum(1) / 2, torch.zeros(2000, 2), **how)
    >>> float(chain.position.std().round(decimals=1))
    2.0
    """
    _check_choices(metropolis=metropolis, bounds_rule=bounds_rule, clip_rule=clip_rule, sphere=sphere)
    config = ChainConfig(
        steps=steps, step_size=step_size, noise=noise, metropolis=metropolis, bounds=bounds, bounds_rule=bounds_rule,
        clip=clip, clip_rule=clip_rule, sphere=sphere, anneal=anneal,
    )  # fmt: skip
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature: expected a positive number, got {temperature}")
    if trace is not None and trace < 1:
        raise InputError(f"trace: expected a number of steps of at least 1, got {trace}")
    position = _start(start, config)
    chain = run_chain(energy, position, config, float(temperature), generator, trace=trace)
    chain = chain._replace(acceptance=chain.acceptance[:, 0])
    if isinstance(start, Tensor):
        return chain
    return Chain(*[None if part is None else part.numpy() for part in chain])


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "metropolis": ("exact", "off"),
    "bounds_rule": ("reject", "clamp"),
    "clip_rule": ("norm", "row", "value"),
    "sphere": (None, "geodesic", "project"),
}


def _check_choices(**given: str | None) -> None:
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise InputError(f"{name}: expected one of {list(_CHOICES[name])}, got {value!r}")


def _start(start: Any, config: ChainConfig) -> Tensor:
    position = start.detach() if isinstance(start, Tensor) else torch.from_numpy(np.array(start))
    if not position.is_floating_point():
        position = position.to(torch.get_default_dtype())
    if position.ndim < 2 or len(position) == 0:
        raise InputError(f"start: expected points of shape (N, *event) with N >= 1, got {tuple(position.shape)}")
    if not bool(torch.isfinite(position).all()):
        raise InputError("start: expected finite points, got NaN or infinity")
    if config.bounds is not None and not bool(((position >= config.bounds[0]) & (position <= config.bounds[1])).all()):
        raise InputError(f"start: expected points within the bounds {config.bounds}, got points outside")
    if config.sphere is not None:
        if position.ndim != 2:
            raise InputError(f"start: expected points of shape (N, d) on the sphere, got {tuple(position.shape)}")
        if not torch.allclose(position.norm(dim=1), position.new_ones(len(position)), atol=1e-4):
            raise InputError("start: expected points of unit length on the sphere; divide them by their norm")
    return position


Array = NDArray[np.float64]


def _draws(draws: ArrayLike) -> Array:
    x = np.asarray(draws, dtype=np.float64)
    if x.ndim != 2 or x.shape[0] < 4:
        raise InputError(f"expected draws of shape (steps >= 4, chains), got {x.shape}")
    return x


def _halves(x: Array) -> Array:
    half = len(x) // 2
    return np.concatenate([x[:half], x[-half:]], axis=1)


def _variances(x: Array) -> tuple[float, float]:
    """W and var+ of draws with shape (steps, chains)."""
    n, m = x.shape
    within = float(x.var(axis=0, ddof=1).mean())
    between = float(x.mean(axis=0).var(ddof=1)) if m > 1 else 0.0
    return within, (n - 1) / n * within + between


def split_r_hat(draws: ArrayLike) -> float:
    """R-hat of draws with shape (steps, chains); near 1 when all halves of all chains agree.

    >>> from normae.sampling import split_r_hat
    >>> split_r_hat([[0.0, 5.0], [1.0, 6.0], [0.0, 5.0], [1.0, 6.0]]) > 1.1  # two chains that never met
    True
    """
    within, total = _variances(_halves(_draws(draws)))
    return float(np.sqrt(total / within)) if within > 0 else float("nan")


def _autocovariance(x: Array) -> Array:
    n = len(x)
    centred = x - x.mean(axis=0)
    spectrum = np.fft.rfft(centred, n=2 * n, axis=0)
    full = np.fft.irfft(np.abs(spectrum) ** 2, n=2 * n, axis=0)[:n]
    return np.asarray(full / n)


def effective_sample_size(draws: ArrayLike) -> float:
    """Number of independent draws that would estimate the mean as well as these, shape (steps, chains).

    >>> import numpy as np, normae.sampling
    >>> draws = np.random.default_rng(0).normal(size=(500, 4))
    >>> round(normae.sampling.effective_sample_size(np.repeat(draws, 2, axis=0)) / draws.size)  # each draw twice
    1
    """
    x = _halves(_draws(draws))
    n, m = x.shape
    within, total = _variances(x)
    if not total > 0:
        return float("nan")
    rho = 1 - (within - _autocovariance(x).mean(axis=1) * n / (n - 1)) / total
    pairs = rho[: n - n % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    tau = max(-1 + 2 * float(pairs.sum()), 1 / np.log10(n * m))
    return float(n * m / tau)
