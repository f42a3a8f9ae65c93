"""What a chain is worth: effective samples per gradient and per second, the paper's step against an adapted one.

The target is the density of a zoo model with the paper's settings. Chains start from exact draws of it (a grid), so
nothing has to be burnt in. What counts is the smallest effective sample size of x1, x2 and E. The adapted step is the
one at which the chain accepts 57 % of its steps, where a Metropolis-adjusted Langevin chain is at its best in many
dimensions; sigma^2/lambda stays.

An effective sample size can only be measured by chains that are longer than their memory. The two peaks of the toy are
the memory: the paper's step crosses between them once in some ten thousand steps, so its chains are ten times longer.
"""

import math
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from normae.bench.timing import Report, interleaved, ratio
from normae.energy import Energy
from normae.inference import Model
from normae.inference.log_z import grid_draws
from normae.random import stream
from normae.runs.load import load
from normae.sampling import Chain, ChainConfig, effective_sample_size, langevin, run_chain
from normae.statistics import Estimate
from normae.training.backends import choose_backend

MODEL = "toy-2gauss-nae-paper"
TARGET = 0.57
GROUP = "sampling"
LONGER = 10
"""How much longer the chains with the paper's step are."""


def sampling(device: torch.device, quick: bool, rounds: int) -> Report:
    """Measure both step sizes, each with chains that are many times longer than their memory; and a user's chain."""
    report = Report()
    model = load(MODEL, str(device))
    start = _exact(model, 16 if quick else 64, cells=60 if quick else 1000)
    steps, every = (40, 1) if quick else (10_000, 5)
    paper = replace(model.sampling.feature, adapt=None)
    step_size, acceptance = adapt(model, paper, _exact(model, 100 if quick else 2048, cells=60 if quick else 1000))
    adapted = replace(paper, step_size=step_size, noise=_noise(paper, step_size))
    worth = {
        "paper's step": measure(model, replace(paper, steps=LONGER * steps), start, LONGER * every),
        "adapted step": measure(model, replace(adapted, steps=steps), start, every),
    }
    for name, (per_gradient, per_second) in worth.items():
        report.add(f"{GROUP}: {name}, effective samples per 1000 gradients", scaled(per_gradient, 1e3), "")
        report.add(f"{GROUP}: {name}, effective samples per second", per_second, "1/s")
    gain = quotient(worth["adapted step"][0], worth["paper's step"][0])
    report.add(f"{GROUP}: adapted step against the paper's, per gradient", gain, "times")
    report.add(f"{GROUP}: adapted step size", Estimate(step_size, 0.0), "")
    report.add(f"{GROUP}: its acceptance", Estimate(acceptance, 0.0), "")
    over = over_autograd(model, _exact(model, 128 if quick else 2048, cells=60 if quick else 1000), rounds)
    report.add(f"{GROUP}: langevin(model.energy) over plain autograd", over, "")
    return report


def over_autograd(model: Model, start: Tensor, rounds: int) -> Estimate:
    """Time of a user's chain on `model.energy`, in units of one whose gradients are by plain autograd."""

    def chain(energy: Energy) -> Chain:
        return langevin(
            energy, start, temperature=model.temperature, step_size=5e-3, steps=30,
            generator=stream(0, "bench/langevin", model.device), bounds=model.sampling.feature.bounds,
        )  # fmt: skip

    works = {"own": lambda: chain(model.energy), "plain": lambda: chain(lambda x: model.energy(x))}
    times = interleaved(works, rounds, model.device)
    return ratio(times["own"], times["plain"])


def _exact(model: Model, n: int, cells: int) -> Tensor:
    bounds = model.sampling.feature.bounds
    assert bounds is not None
    generator = stream(0, "bench/exact")
    draws = grid_draws(
        model.energy_function, model.temperature, bounds, model.event[0], n, generator, cells, model.device
    )
    return draws.to(model.device)


def _noise(chain: ChainConfig, step_size: float) -> float | None:
    return None if chain.noise is None else chain.noise * math.sqrt(step_size / chain.step_size)


def adapt(model: Model, chain: ChainConfig, start: Tensor, target: float = TARGET) -> tuple[float, float]:
    """The step size at which `chain` accepts the share `target`, by bisection of log lambda, and what it accepted."""
    low, high = math.log(chain.step_size), math.log(chain.step_size) + math.log(1e4)
    generator = stream(0, "bench/adapt", model.device)
    share = 1.0
    for _ in range(14):
        middle = 0.5 * (low + high)
        tried = replace(chain, steps=32, step_size=math.exp(middle), noise=_noise(chain, math.exp(middle)))
        share = float(run_chain(model.energy_function, start, tried, model.temperature, generator).acceptance.mean())
        low, high = (middle, high) if share > target else (low, middle)
    return math.exp(0.5 * (low + high)), share


def measure(model: Model, chain: ChainConfig, start: Tensor, every: int) -> tuple[Estimate, Estimate]:
    """Effective samples, the fewest of x1, x2, ... and E, a gradient and a second of `chain` from `start` (N, d)."""
    generator = stream(0, "bench/sampling", model.device)
    begin = time.perf_counter()
    trace = _trace(model, chain, start, every, generator)
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        energies = torch.stack([model.energy_function(x) for x in trace])
    size = smallest_size(torch.cat([trace, energies[..., None]], dim=-1).cpu().numpy())
    return scaled(size, 1 / (len(start) * chain.steps)), scaled(size, 1 / seconds)


def _trace(model: Model, chain: ChainConfig, start: Tensor, every: int, generator: torch.Generator) -> Tensor:
    """Every `every`-th position, with shape (records, N, d), by the fastest runner; only `run_chain` records itself."""
    runner = choose_backend("auto", model.autoencoder, model.sampling, model.device).runner
    if runner is run_chain:
        recorded: Tensor = run_chain(
            model.energy_function, start, chain, model.temperature, generator, trace=every
        ).trace
        return recorded
    piece, positions = replace(chain, steps=every), [start]
    for _ in range(chain.steps // every):
        positions.append(runner(model.energy_function, positions[-1], piece, model.temperature, generator).position)
    return torch.stack(positions[1:]).cpu().to(model.device)


def smallest_size(draws: np.ndarray, parts: int = 8) -> Estimate:
    """Smallest effective sample size of any observable, for draws with shape (steps, chains, observables).

    The error is from the spread of the sizes of `parts` groups of chains, each taken by itself.
    """
    columns = np.moveaxis(draws, -1, 0)
    whole = [effective_sample_size(column) for column in columns]
    worst = columns[int(np.argmin(whole))]
    groups = np.array([effective_sample_size(group) for group in np.array_split(worst, parts, axis=1)])
    relative = float(groups.std(ddof=1) / groups.mean() / math.sqrt(parts))
    return Estimate(min(whole), relative * min(whole))


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """`factor` times the estimate."""
    return Estimate(factor * estimate.value, abs(factor) * estimate.error)


def quotient(above: Estimate, below: Estimate) -> Estimate:
    """above/below of two independent estimates."""
    value = above.value / below.value
    return Estimate(value, abs(value) * math.hypot(above.error / above.value, below.error / below.value))
