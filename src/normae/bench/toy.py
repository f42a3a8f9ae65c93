"""The toy iteration of the paper: batch 2048, 50 latent and 100 feature steps, update.

Ours, with each backend that the device has, against a plain implementation and against the floors; and the chains
alone against torchebm's Langevin sampler at equal steps. torchebm has no Metropolis test; ours has.

**The floor** is the least time that an iteration can take: its matrix products. A gradient with respect to the event
is a forward pass and a pullback, so one product with each weight matrix W there and one back. A latent gradient goes
through decoder, encoder and decoder. An update takes a forward pass, a pullback (but for the first layer) and one
product for the gradient of each W, for positive and for negative events. In their fastest form on a CPU, which our own
passes have, weights are transposed beforehand, and y^T = W x^T where the result is narrow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from normae.bench.timing import Result, Work, interleaved, median
from normae.bench.works import TorchEBM, backends, iterations, network, plain, repeated
from normae.config import Run, read
from normae.data import DENSITIES
from normae.networks import MLP
from normae.networks.mlp import NARROW, by_one_dnn, one_dnn
from normae.networks.reconstruction import ReconstructionEnergy
from normae.random import stream
from normae.sampling import Chain, run_chain
from normae.statistics import Estimate
from normae.training.backends import choose_backend


@dataclass(frozen=True)
class Sizes:
    """What an iteration works on: widths of encoder and decoder, events of a batch, steps of the chains."""

    encoder: tuple[int, ...]
    decoder: tuple[int, ...]
    batch: int
    latent_steps: int
    feature_steps: int


class Floor:
    """The products of one iteration."""

    def __init__(self, sizes: Sizes, device: torch.device, generator: torch.Generator) -> None:
        encoder, decoder = list(pairwise(sizes.encoder)), list(pairwise(sizes.decoder))
        feature = _there_and_back(encoder) + _there_and_back(decoder)
        latent = _there_and_back(decoder) + feature
        self.batch = sizes.batch
        self.chains = latent * (sizes.latent_steps + 1) + feature * (sizes.feature_steps + 1)
        self.layers = encoder + decoder
        self.update = [(a, b, False) for a, b in decoder] + 2 * _there_and_back(self.layers)
        for _ in range(2):
            self.update.remove((*encoder[0], True))

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        widths = {*sizes.encoder, *sizes.decoder}
        self.weights = {(a, b): draw(b, a) / a**0.5 for a, b in self.layers}
        self.transposed = {pair: weight.t().contiguous() for pair, weight in self.weights.items()}
        self.narrow = {width: torch.empty(width, sizes.batch, device=device) for width in widths if width < NARROW}
        self.gradients = {(a, b): torch.empty(b, a, device=device) for a, b in self.layers}
        self.inputs = {width: draw(sizes.batch, width) for width in widths}
        self.outputs = {width: torch.empty(sizes.batch, width, device=device) for width in widths}

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


def toy(report: Result, device: torch.device, quick: bool, rounds: int) -> None:
    """Measure both."""
    run = read("toy-paper", TINY if quick else [])
    _iterations(report, run, device, 1 if quick or device.type == "cpu" else 10, rounds)
    _chains(report, run, device, rounds)


def _iterations(report: Result, run: Run, device: torch.device, block: int, rounds: int) -> None:
    events = DENSITIES[str(run.data.density)]().sample(run.data.train, stream(0, "data/train"))
    ours = backends(run, (2,), device)
    works: dict[str, Work] = {name: iterations(run, events, name, device, block) for name in ours}
    with report.optional():
        for name, test in (("plain", False), ("plain with a Metropolis test", True)):
            works[name] = _plain_iteration(run, events, test, device, block)
    floor = Floor(_sizes(run), device, stream(0, "bench/floor"))
    works["matrix products"] = repeated(floor.products, block)
    if device.type == "cpu":
        works["fastest products"] = repeated(partial(floor.products, fastest=True), block)
    times = interleaved(works, rounds, device)
    report.seconds(GROUP, times, block)
    speed = floor.flop() * block / times["matrix products"]
    report.add(f"{GROUP}: matrix products reach", Estimate(*(v / 1e9 for v in median(speed))), "GFLOP/s")
    best = ours[-1]
    report.floors(GROUP, times, best, "matrix products", "fastest products")
    report.faster(GROUP, times, best, *ours[:-1], "plain", "plain with a Metropolis test")


def _sizes(run: Run) -> Sizes:
    model = network(run, (2,))
    assert isinstance(model.encoder, MLP)
    assert isinstance(model.decoder, MLP)
    batch, sampling = run.training.batch, run.sampling
    return Sizes(model.encoder.sizes, model.decoder.sizes, batch, sampling.latent.steps, sampling.feature.steps)


def _plain_iteration(run: Run, events: torch.Tensor, test: bool, device: torch.device, block: int) -> Work:
    bounds = run.sampling.feature.bounds
    assert bounds is not None
    sizes = _sizes(run)
    model = plain("plain_nae").PlainNAE(
        sizes.encoder[0], run.network.latent, list(run.network.hidden), sizes.latent_steps, sizes.feature_steps,
        run.sampling.feature.step_size, run.temperature.initial, bounds, test, run.sampling.buffer, run.sampling.replay,
        str(device),
    )  # fmt: skip
    batch = events[: run.training.batch].to(device)
    return repeated(lambda: model.iteration(batch), block)


def _chains(report: Result, run: Run, device: torch.device, rounds: int) -> None:
    """Our chains with the best backend against torchebm's: the same network, start, temperature and steps."""
    model = network(run, (2,)).to(device).requires_grad_(False)
    energy = ReconstructionEnergy(model)
    backend = choose_backend("auto", model, run.sampling, device)
    start = torch.randn(run.training.batch, run.network.latent, generator=stream(0, "bench/start")).to(device)
    generator = stream(0, "bench/chains", device)
    latent, feature = run.sampling.latent, run.sampling.feature
    temperature = run.temperature.initial

    def through(walk: Callable[..., torch.Tensor]) -> Work:
        def work() -> None:
            with torch.no_grad():
                x = model.decoder(walk(0, start))
                walk(1, x if feature.bounds is None else x.clamp(*feature.bounds))

        return work

    def ours(runner: Callable[..., Chain], of: ReconstructionEnergy) -> Work:
        pairs = ((of.latent(), latent), (of, feature))
        return through(lambda which, x: runner(pairs[which][0], x, pairs[which][1], temperature, generator).position)

    plainly = ReconstructionEnergy(model, explicit=False)
    works = {backend.name: ours(backend.runner, energy), "reference": ours(run_chain, plainly)}
    with report.optional():
        samplers = [
            TorchEBM(plainly.latent(), temperature, latent.step_size, None, device),
            TorchEBM(plainly, temperature, feature.step_size, feature.bounds, device),
        ]
        steps = (latent.steps, feature.steps)
        works["torchebm"] = through(lambda which, x: samplers[which](x, steps[which], generator))
    times = interleaved(works, rounds, device)
    report.seconds("toy chains", times)
    report.faster("toy chains", times, backend.name, "reference", "torchebm")
