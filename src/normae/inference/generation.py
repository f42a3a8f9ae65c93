"""Events of a model by the paper's recipe, and the energy that chains of a user walk on."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normae.conditional import ConditionalCoordinates
from normae.energy import Energy, held, value_and_grad
from normae.errors import InputError, refuse, require_that
from normae.inference.log_z import Based, weighted
from normae.networks.conditional import ConditionalBase
from normae.progress import progress
from normae.sampling.chain import run_chain
from normae.sampling.config import ChainConfig
from normae.tensors import uniform

log = logging.getLogger(__name__)

GENERATION_FACTOR = 8  # the paper generates with latent chains eight times as long as in training
FEWEST_DRAWS, MOST_DRAWS, LEAST_KEPT = 4096, 1 << 16, 0.02
"""Draws of a base at a time, and the share of them that must be kept."""
OFTEN, LOG_MOST = 0.95, 3.0
"""Of the weights of draws: the share that is at most one, and the log of the largest that counts."""
MOSTLY, ROUNDS = 0.999, 10_000  # the same share where every sample has its own condition, and how often draws are tried
SMALL, SMALL_STEPS = 0.1, 100
"""Of the small steps that free stuck chains: their size in units of the training's, and their number."""


def drawn(of: Based, n: int, generator: torch.Generator) -> Tensor | None:
    """`n` samples with shape (n, *event), by rejection of draws of the base; None where few are kept.

    A draw with weight w is kept w/c times on the average, c the weight that a share `OFTEN` of the first batch has not:
    most of them once or not at all, those few perhaps twice.
    """
    refuse(isinstance(of.base, ConditionalBase), "a chain does not keep the condition of p(x | m); leave out its steps")
    kept, found, tried, unit = [], 0, 0, None
    with progress("sampling", n) as tick:
        while found < n:
            needed = FEWEST_DRAWS if not found else 1.05 * (n - found) * tried / found
            count = int(min(max(needed, FEWEST_DRAWS), MOST_DRAWS))
            events, log_weight = weighted(of, count, generator)
            unit = log_weight.quantile(OFTEN) if unit is None else unit
            chance = uniform((count,), generator, log_weight)
            times = ((log_weight - unit).clamp_max(LOG_MOST).exp() + chance).long()
            good = events.repeat_interleave(times, dim=0)
            order = torch.randperm(len(good), generator=generator, device=generator.device).to(good.device)
            good = good[order[: n - found]]
            kept.append(good)
            found, tried = found + len(good), tried + count
            tick(len(good))
            if found < LEAST_KEPT * tried and found < n:
                return None
    return torch.cat(kept)


def samples_at(
    of: Based, coordinates: ConditionalCoordinates, condition: Any, n: int, chunk: int, generator: torch.Generator
) -> NDArray[np.float64]:
    """`n` rows of p(x | m) with shape (n, d), m in its columns.

    Args:
        condition: m of one row, or of all with shape (n, k); None for that of random rows of the training.
    """
    base, k = of.base, len(coordinates.given)
    assert isinstance(base, ConditionalBase)
    if condition is None:
        condition = coordinates.condition.inverse(base.some(n, generator)).cpu()
    m = np.asarray(condition, dtype=np.float64)
    one = m.size == k and m.shape in ((), (k,), (1, k))
    m = np.broadcast_to(m, (n, k)) if one else m.reshape(-1, 1) if m.ndim == k == 1 else m
    if m.shape != (n, k) or not np.isfinite(m).all():
        got = f"{m.shape}, {int((~np.isfinite(m)).sum())} of them not finite"
        raise InputError(f"condition: expected {k} finite numbers, or those of {n} rows, ({n}, {k}), got {got}")
    given = torch.from_numpy(m.copy()).to(base.edges.device)
    if beyond := int(coordinates.condition.range.outside(given).any(dim=1).sum()):
        log.warning("%d of %d conditions lie outside the training sample: samples are those of its edge", beyond, n)
    t = coordinates.condition.forward(given).clamp(*coordinates.edges)
    found = torch.cat([drawn_at(of, part, generator) for part in t.split(chunk)])
    rows = np.asarray(coordinates.inverse(found).cpu().numpy())
    rows[:, coordinates.given.tolist()] = m
    return rows


def drawn_at(of: Based, t: Tensor, generator: torch.Generator) -> Tensor:
    """One sample (r, t) for each condition t with shape (n, k), with shape (n, d + k), by rejection.

    A draw with weight w is kept with probability w/c, c the weight that a share `MOSTLY` of the first batch has not.
    """
    some = torch.randint(len(t), (FEWEST_DRAWS,), generator=generator, device=generator.device).to(t.device)
    unit = weighted(of, FEWEST_DRAWS, generator, t[some])[1].quantile(MOSTLY)
    found, missing = [], torch.arange(len(t), device=t.device)
    with progress("sampling", len(t)) as tick:
        for _ in range(ROUNDS):
            events, log_weight = weighted(of, len(missing), generator, t[missing])
            good = uniform((len(missing),), generator, log_weight).log() < log_weight - unit
            found.append((missing[good], events[good]))
            missing = missing[~good]
            tick(int(good.sum()))
            if not len(missing):
                places, events = (torch.cat(part) for part in zip(*found, strict=True))
                return events[places.argsort()]
    raise InputError(f"sample: after {ROUNDS} rounds {len(missing)} of {len(t)} are missing; the fit has failed there")


def loosened(
    energy: Energy, chains: Tensor, config: ChainConfig, temperature: float | Tensor, generator: torch.Generator
) -> Tensor:
    """`chains` with shape (M, *event) at `temperature` after small steps, as `config` has them; the density stays.

    A chain that began at an outlier overshoots with steps that suit the bulk, is rejected, and stays where it is: small
    steps free it.
    """
    small = replace(config, step_size=SMALL * config.step_size, steps=SMALL_STEPS, adapt=None)
    return torch.as_tensor(run_chain(energy, chains, small, temperature, generator).position)


def lengthened(config: ChainConfig, steps: int | None, otherwise: int) -> ChainConfig:
    """The chain with other steps, and with those of `otherwise` where they are None; its step size stays."""
    steps = otherwise if steps is None else steps
    require_that(steps >= 0, "steps", "a length of at least 0", steps)
    return replace(config, steps=steps, adapt=None)


class ChainEnergy(NamedTuple):
    """E for a chain of a user: events of any real type, checked, with the gradient of the model's own chains.

    Args:
        energy: of events of the type `dtype`.
        check: gives events back, or an error that says what is wrong with them.
    """

    energy: Energy
    dtype: torch.dtype
    check: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.energy(self.check(x).to(self.dtype))

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = value_and_grad(self.energy, self.check(x).to(self.dtype))
        return value, grad.to(x.dtype)

    def held(self) -> "ChainEnergy":
        return self._replace(energy=held(self.energy))
