"""The toy iteration of the paper: batch 2048, 50 latent and 100 feature steps, update.

Ours, with each backend that the device has, against a plain implementation and against the floors; and the chains
alone against torchebm's Langevin sampler at equal steps. torchebm has no Metropolis test; ours has.

**The floor** is the least time that an iteration can take: its matrix products. A gradient with respect to the event
is a forward pass and a pullback, so one product with each weight matrix W there and one back. A latent gradient goes
through decoder, encoder and decoder. An update takes a forward pass, a pullback (but for the first layer) and one
product for the gradient of each W, for positive and for negative events. In their fastest form on a CPU, which our own
passes have, weights are transposed beforehand, and y^T = W x^T where the result is narrow.

**What a chain is worth**: effective samples per gradient and per second, the paper's step against an adapted one.
The target is the density of a zoo model with the paper's settings. Chains start from exact draws of it (a grid), so
nothing has to be burnt in. The adapted step is the one at which the chain accepts 57 % of its steps, where a
Metropolis-adjusted Langevin chain is at its best in many dimensions; sigma^2/lambda stays. A chain must be longer than
its memory: the paper's step crosses between the two peaks once in some ten thousand steps, so its chains are longer.
"""

import importlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.bench import timing
from normae.config import Run, read
from normae.data import DENSITIES
from normae.energy import Energy
from normae.inference import Model
from normae.inference.log_z import grid_draws
from normae.networks.mlp import NARROW, by_one_dnn, one_dnn
from normae.networks.reconstruction import ReconstructionEnergy
from normae.runs.load import load, untrained
from normae.sampling import Chain, ChainConfig, effective_sample_size, into_bounds, langevin, run_chain
from normae.statistics import Estimate
from normae.tensors import stream
from normae.training.backends import choose_backend


class Floor:
    """The products of one iteration of a run."""

    def __init__(self, run: Run, device: torch.device) -> None:
        model, self.batch, generator = untrained(run, (2,)), run.training.batch, stream(0, "bench/floor")
        sizes: list[list[int]] = [getattr(model, side).sizes for side in ("encoder", "decoder")]
        encoder, decoder = (list(pairwise(own)) for own in sizes)
        feature = _there_and_back(encoder) + _there_and_back(decoder)
        latent = _there_and_back(decoder) + feature
        self.chains = latent * (run.sampling.latent.steps + 1) + feature * (run.sampling.feature.steps + 1)
        self.layers = encoder + decoder
        self.update = [(a, b, False) for a, b in decoder] + 2 * _there_and_back(self.layers)
        for _ in range(2):
            self.update.remove((*encoder[0], True))

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        widths = {*sizes[0], *sizes[1]}
        self.weights = {(a, b): draw(b, a) / a**0.5 for a, b in self.layers}
        self.transposed = {pair: weight.t().contiguous() for pair, weight in self.weights.items()}
        self.narrow = {width: torch.empty(width, self.batch, device=device) for width in widths if width < NARROW}
        self.gradients = {(a, b): torch.empty(b, a, device=device) for a, b in self.layers}
        self.inputs = {width: draw(self.batch, width) for width in widths}
        self.outputs = {width: torch.empty(self.batch, width, device=device) for width in widths}

    @torch.no_grad()
    def products(self, fastest: bool = False) -> None:
        """Run them: x W^T, or v W on the way back, for W with shape (b, a); or all in their fastest form."""
        for a, b, back in self.chains + self.update:
            weight = self.weights[a, b]
            left, right = weight, self.transposed[a, b] if fastest else weight.t()
            if back:
                left, right = right, left
            n_in, n_out = right.shape
            if fastest and n_out < NARROW <= n_in:
                torch.mm(left, self.inputs[n_in].t(), out=self.narrow[n_out])
            elif fastest and by_one_dnn(self.inputs[n_in], left):
                one_dnn(self.inputs[n_in], left, None, self.outputs[n_out])
            else:
                torch.mm(self.inputs[n_in], right, out=self.outputs[n_out])
        for a, b in 2 * self.layers:
            torch.mm(self.inputs[b].t(), self.inputs[a], out=self.gradients[a, b])

    def flop(self) -> float:
        """Floating-point operations of `products`."""
        done = [*((a, b) for a, b, _ in self.chains + self.update), *2 * self.layers]
        return 2.0 * self.batch * sum(a * b for a, b in done)


def _there_and_back(layers: list[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """One product with the weight matrix of each layer, and one on the way back."""
    return [(a, b, back) for back in (False, True) for a, b in layers]


TINY = [
    "data.train=500", "training.batch=64", "network.hidden=[16,16]", "sampling.latent.steps=2",
    "sampling.feature.steps=3", "sampling.buffer=200",
]  # fmt: skip
GROUP = "toy iteration"


def toy(report: timing.Result, device: torch.device, quick: bool, rounds: int) -> None:
    """Measure both."""
    run, block = read("toy-paper", TINY if quick else []), 1 if quick or device.type == "cpu" else 10
    events = DENSITIES[str(run.data.density)]().sample(run.data.train, stream(0, "data/train"))
    ours = timing.backends(run, (2,), device)
    works: dict[str, timing.Work] = {name: timing.iterations(run, events, name, device, block) for name in ours}
    with report.optional():
        for name, test in (("plain", False), ("plain with a Metropolis test", True)):
            works[name] = _plain_iteration(run, events, test, device, block)
    floor = Floor(run, device)
    works["matrix products"] = timing.repeated(floor.products, block)
    if device.type == "cpu":
        works["fastest products"] = timing.repeated(partial(floor.products, fastest=True), block)
    times, best = timing.interleaved(works, rounds, device), ours[-1]
    report.compare(GROUP, times, best, *ours[:-1], "plain", "plain with a Metropolis test", per=block)
    speed = floor.flop() * block / times["matrix products"]
    report.add(f"{GROUP}: matrix products reach", timing.median(speed / 1e9), "GFLOP/s")
    for name in [name for name in times if name.endswith("products")]:
        report.add(f"{GROUP}: {best} over {name}", timing.ratio(times[best], times[name]), "floors")
    _chains(report, run, device, rounds)


def _plain_iteration(run: Run, events: Tensor, test: bool, device: torch.device, block: int) -> timing.Work:
    latent, feature = run.sampling.latent, run.sampling.feature
    model = timing.plain("plain_nae").PlainNAE(
        2, run.network.latent, list(run.network.hidden), latent.steps, feature.steps, feature.step_size,
        run.temperature.initial, feature.bounds, test, run.sampling.buffer, run.sampling.replay, str(device),
    )  # fmt: skip
    batch = events[: run.training.batch].to(device)
    return timing.repeated(lambda: model.iteration(batch), block)


def torchebm(energy: Energy, temperature: float, step_size: float, bounds: Any, device: torch.device) -> Any:
    """torchebm's Langevin sampler of exp(-U) with U = E/T; its noise is sqrt(2 lambda), and it clamps to the bounds."""
    try:
        core: Any = importlib.import_module("torchebm.core")
        samplers: Any = importlib.import_module("torchebm.samplers")
    except ImportError:
        raise timing.Missing("torchebm is not installed; install the extra normae[bench] to compare with it") from None

    class Potential(core.BaseModel):  # type: ignore[misc,name-defined]
        def forward(self, x: Tensor) -> Tensor:
            return energy(x) / temperature

    return samplers.LangevinDynamics(Potential(device=device), step_size=step_size, clamp=bounds, device=device)


def _chains(report: timing.Result, run: Run, device: torch.device, rounds: int) -> None:
    """Our chains with the best backend against torchebm's: the same network, start, temperature and steps."""
    model = untrained(run, (2,)).to(device).requires_grad_(False)
    energy = ReconstructionEnergy(model)
    backend = choose_backend("auto", model, run.sampling, device)
    start = torch.randn(run.training.batch, run.network.latent, generator=stream(0, "bench/start")).to(device)
    generator = stream(0, "bench/chains", device)
    latent, feature = run.sampling.latent, run.sampling.feature
    temperature = run.temperature.initial

    @torch.no_grad()
    def through(walk: Callable[..., torch.Tensor]) -> None:
        walk(1, into_bounds(model.decoder(walk(0, start)), feature))

    def ours(runner: Callable[..., Chain], of: ReconstructionEnergy) -> timing.Work:
        def walk(which: int, x: Tensor) -> Tensor:
            energy, chain = ((of.latent(), latent), (of, feature))[which]
            return torch.as_tensor(runner(energy, x, chain, temperature, generator).position)

        return partial(through, walk)

    plainly = ReconstructionEnergy(model, explicit=False)
    works = {backend.name: ours(backend.runner, energy), "reference": ours(run_chain, plainly)}
    with report.optional():
        first = torchebm(plainly.latent(), temperature, latent.step_size, None, device)
        second = torchebm(plainly, temperature, feature.step_size, feature.bounds, device)
        samplers, steps = (first, second), (latent.steps, feature.steps)
        works["torchebm"] = partial(
            through, lambda which, x: samplers[which].sample(x, n_steps=steps[which], generator=generator)
        )
    report.compare("toy chains", timing.interleaved(works, rounds, device), backend.name, "reference", "torchebm")


# --- what a chain is worth

MODEL, TARGET = "toy-2gauss-nae-paper", 0.57
LONGER = 10  # how much longer the chains with the paper's step are


def sampling(report: timing.Result, device: torch.device, quick: bool, rounds: int) -> None:
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
        report.add(f"sampling: {name}, effective samples per 1000 gradients", per_thousand, "")
        report.add(f"sampling: {name}, effective samples per second", per_second, "1/s")
    (slow, off), (fast, by) = worth["paper's step"][0], worth["adapted step"][0]
    gain = Estimate(fast / slow, fast / slow * math.hypot(by / fast, off / slow))
    report.add("sampling: adapted step against the paper's, per gradient", gain, "times")
    report.add("sampling: adapted step size", Estimate(step_size, 0.0), "")
    report.add("sampling: its acceptance", Estimate(acceptance, 0.0), "")

    def chain(energy: Energy) -> Chain:
        return langevin(
            energy, starts, temperature=model.temperature, step_size=5e-3, steps=30,
            generator=stream(0, "bench/langevin", model.device), bounds=model.sampling.feature.bounds,
        )  # fmt: skip

    works = {"own": lambda: chain(model.energy), "plain": lambda: chain(lambda x: model.energy(x))}
    times = timing.interleaved(works, rounds, model.device)
    report.add("sampling: langevin(model.energy) over plain autograd", timing.ratio(times["own"], times["plain"]), "")


def _exact(model: Model, n: int, cells: int) -> Tensor:
    bounds: Any = model.sampling.feature.bounds
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
