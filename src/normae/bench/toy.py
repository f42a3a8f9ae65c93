"""The toy iteration of the paper: batch 2048, 50 latent and 100 feature steps, update.

Ours, with each backend that the device has, against a plain implementation and against the floors; and the chains
alone against torchebm's Langevin sampler at equal steps. torchebm has no Metropolis test; ours has.
"""

from collections.abc import Callable

import torch

from normae.bench.floor import Floor, Sizes
from normae.bench.timing import Report, Work, interleaved, median
from normae.bench.works import Missing, TorchEBM, backends, iterations, network, plain, repeated
from normae.config import Run, read
from normae.data import DENSITIES
from normae.networks import MLP
from normae.networks.reconstruction import ReconstructionEnergy
from normae.random import stream
from normae.sampling import run_chain
from normae.statistics import Estimate
from normae.training.backends import choose_backend

PRESET = "toy-paper"
TINY = [
    "data.train=500", "training.batch=64", "network.hidden=[16,16]", "sampling.latent.steps=2",
    "sampling.feature.steps=3", "sampling.buffer=200",
]  # fmt: skip
GROUP = "toy iteration"
CHAINS = "toy chains"


def toy(device: torch.device, quick: bool, rounds: int) -> Report:
    """Measure both."""
    run = read(PRESET, TINY if quick else [])
    report = Report()
    _iterations(report, run, device, 1 if quick or device.type == "cpu" else 10, rounds)
    _chains(report, run, device, rounds)
    return report


def _iterations(report: Report, run: Run, device: torch.device, block: int, rounds: int) -> None:
    events = DENSITIES[str(run.data.density)]().sample(run.data.train, stream(0, "data/train"))
    works: dict[str, Work] = {}
    ours = backends(run, (2,), device)
    for name in ours:
        works[name] = iterations(run, events, name, device, block)
    try:
        for name, test in (("plain", False), ("plain with a Metropolis test", True)):
            works[name] = _plain_iteration(run, events, test, device, block)
    except Missing as missing:
        report.skipped.append(str(missing))
    floor = Floor(_sizes(run), device, stream(0, "bench/floor"))
    works["matrix products"] = repeated(floor.products, block)
    if device.type == "cpu":
        works["fastest products"] = repeated(floor.fastest_products, block)
    works["memory"] = repeated(floor.copies, block)
    times = interleaved(works, rounds, device)
    report.seconds(GROUP, times, block)
    speed = floor.flop() * block / times["matrix products"]
    report.add(f"{GROUP}: matrix products reach", Estimate(*(v / 1e9 for v in median(speed))), "GFLOP/s")
    best = ours[-1]
    for name in ("matrix products", "fastest products", "memory"):
        if name in times:
            report.floors(GROUP, times, best, name)
    for other in (*ours[:-1], "plain", "plain with a Metropolis test"):
        if other in times:
            report.faster(GROUP, times, best, other)


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


def _chains(report: Report, run: Run, device: torch.device, rounds: int) -> None:
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

    def own(which: int, x: torch.Tensor) -> torch.Tensor:
        of, chain = ((energy.latent(), latent), (energy, feature))[which]
        end: torch.Tensor = backend.runner(of, x, chain, temperature, generator).position
        return end

    plainly = ReconstructionEnergy(model, explicit=False)

    def reference(which: int, x: torch.Tensor) -> torch.Tensor:
        of, chain = ((plainly.latent(), latent), (plainly, feature))[which]
        end: torch.Tensor = run_chain(of, x, chain, temperature, generator).position
        return end

    works = {backend.name: through(own), "reference": through(reference)}
    try:
        samplers = [
            TorchEBM(plainly.latent(), temperature, latent.step_size, None, device),
            TorchEBM(plainly, temperature, feature.step_size, feature.bounds, device),
        ]
        steps = (latent.steps, feature.steps)
        works["torchebm"] = through(lambda which, x: samplers[which](x, steps[which], generator))
    except Missing as missing:
        report.skipped.append(str(missing))
    times = interleaved(works, rounds, device)
    report.seconds(CHAINS, times)
    report.faster(CHAINS, times, backend.name, "reference")
    if "torchebm" in times:
        report.faster(CHAINS, times, backend.name, "torchebm")
