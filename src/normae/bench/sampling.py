"""What a chain is worth: effective samples per gradient and per second, the paper's step against an adapted one.

The target is the density of a zoo model with the paper's settings. Chains start from exact draws of it (a grid), so
nothing has to be burnt in. The adapted step is the one at which the chain accepts 57 % of its steps, where a
Metropolis-adjusted Langevin chain is at its best in many dimensions; sigma^2/lambda stays. A chain must be longer than
its memory: the paper's step crosses between the two peaks once in some ten thousand steps, so its chains are longer.
"""

import math
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from normae.bench.timing import Result, interleaved, ratio
from normae.energy import Energy
from normae.inference import Model
from normae.inference.log_z import grid_draws
from normae.runs.load import load
from normae.sampling import Chain, ChainConfig, effective_sample_size, langevin, run_chain
from normae.statistics import Estimate
from normae.tensors import stream
from normae.training.backends import choose_backend

MODEL = "toy-2gauss-nae-paper"
TARGET = 0.57
GROUP = "sampling"
LONGER = 10  # how much longer the chains with the paper's step are


def sampling(report: Result, device: torch.device, quick: bool, rounds: int) -> None:
    """Measure both step sizes, each with chains that are many times longer than their memory; and a user's chain."""
    model = load(MODEL, str(device))
    few, many, cells, steps, every = (16, 128, 60, 40, 1) if quick else (64, 2048, 1000, 10_000, 5)
    start, starts = _exact(model, few, cells), _exact(model, many, cells)
    paper = replace(model.sampling.feature, adapt=None)
    step_size, acceptance = adapt(model, paper, starts)
    longer = replace(paper, steps=LONGER * steps)
    worth = {
        "paper's step": measure(model, longer, start, LONGER * every, paper.step_size),
        "adapted step": measure(model, replace(paper, steps=steps), start, every, step_size),
    }
    for name, (per_thousand, per_second) in worth.items():
        report.add(f"{GROUP}: {name}, effective samples per 1000 gradients", per_thousand, "")
        report.add(f"{GROUP}: {name}, effective samples per second", per_second, "1/s")
    (slow, off), (fast, by) = worth["paper's step"][0], worth["adapted step"][0]
    gain = Estimate(fast / slow, fast / slow * math.hypot(by / fast, off / slow))
    report.add(f"{GROUP}: adapted step against the paper's, per gradient", gain, "times")
    report.add(f"{GROUP}: adapted step size", Estimate(step_size, 0.0), "")
    report.add(f"{GROUP}: its acceptance", Estimate(acceptance, 0.0), "")

    def chain(energy: Energy) -> Chain:
        return langevin(
            energy, starts, temperature=model.temperature, step_size=5e-3, steps=30,
            generator=stream(0, "bench/langevin", model.device), bounds=model.sampling.feature.bounds,
        )  # fmt: skip

    works = {"own": lambda: chain(model.energy), "plain": lambda: chain(lambda x: model.energy(x))}
    times = interleaved(works, rounds, model.device)
    report.add(f"{GROUP}: langevin(model.energy) over plain autograd", ratio(times["own"], times["plain"]), "")


def _exact(model: Model, n: int, cells: int) -> Tensor:
    bounds = model.sampling.feature.bounds
    assert bounds is not None
    of = (model.energy_function, model.temperature, bounds, model.event[0])
    return grid_draws(*of, n, stream(0, "bench/exact"), cells, model.device).to(model.device)


def adapt(model: Model, chain: ChainConfig, start: Tensor, target: float = TARGET) -> tuple[float, float]:
    """The step size at which `chain` accepts the share `target`, by bisection of log lambda, and what it accepted."""
    low, high = math.log(chain.step_size), math.log(chain.step_size) + math.log(1e4)
    generator = stream(0, "bench/adapt", model.device)
    short, share = replace(chain, steps=32), 1.0
    for _ in range(14):
        middle = 0.5 * (low + high)
        tried = run_chain(model.energy_function, start, short, model.temperature, generator, math.exp(middle))
        share = float(tried.acceptance.mean())
        low, high = (middle, high) if share > target else (low, middle)
    return math.exp(0.5 * (low + high)), share


def measure(model: Model, chain: ChainConfig, start: Tensor, every: int, step_size: float) -> tuple[Estimate, Estimate]:
    """Effective samples in 1000 gradients and a second of `chain` from `start` (N, d), the fewest of x1, ... and E."""
    begin = time.perf_counter()
    trace = _trace(model, chain, start, every, step_size)
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        energies = torch.stack([model.energy_function(x) for x in trace])
    size = smallest_size(torch.cat([trace, energies[..., None]], dim=-1).cpu().numpy())
    gradients = len(start) * chain.steps / 1e3
    per_thousand, per_second = (Estimate(size.value / n, size.error / n) for n in (gradients, seconds))
    return per_thousand, per_second


def _trace(model: Model, chain: ChainConfig, start: Tensor, every: int, step_size: float) -> Tensor:
    """Every `every`-th position, with shape (records, N, d), by the fastest runner; only `run_chain` records itself."""
    runner = choose_backend("auto", model.autoencoder, model.sampling, model.device).runner
    energy, rest = model.energy_function, (model.temperature, stream(0, "bench/sampling", model.device), step_size)
    if runner is run_chain:
        return torch.as_tensor(run_chain(energy, start, chain, *rest, trace=every).trace)
    piece, positions = replace(chain, steps=every), [start]
    for _ in range(chain.steps // every):
        positions.append(runner(energy, positions[-1], piece, *rest).position)
    return torch.stack(positions[1:]).cpu().to(model.device)


def smallest_size(draws: np.ndarray, parts: int = 8) -> Estimate:
    """Smallest effective sample size of any observable of draws (steps, chains, observables); groups give its error."""
    columns = np.moveaxis(draws, -1, 0)
    whole = [effective_sample_size(column) for column in columns]
    worst = columns[int(np.argmin(whole))]
    groups = np.array([effective_sample_size(group) for group in np.array_split(worst, parts, axis=1)])
    relative = float(groups.std(ddof=1) / groups.mean() / math.sqrt(parts))
    return Estimate(min(whole), relative * min(whole))
