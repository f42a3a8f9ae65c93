"""The jet network: the paper's NAE iteration (30 latent and 30 feature steps, update), a pretraining iteration, and
scores, each against a plain implementation; how many jets become filtered 40x40 images a second; and how many events
of every kind in the zoo are scored a second, from memory, against the plain network as it is written.

Events are images of synthetic jets; times do not depend on what is in them.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from normae import zoo
from normae.bench import timing
from normae.config import Run, read
from normae.data import SparseEvents
from normae.inference import Model
from normae.jets import sparse_images
from normae.jets.container import Jets, from_counts
from normae.jets.imaging import images as make_images
from normae.runs.load import load, untrained
from normae.sources import sparse_events
from normae.tensors import stream

PRESET = "jets-paper-qcd-nae"
TINY = [
    "training.batch=4", "pretraining.batch=8", "sampling.latent.steps=1", "sampling.feature.steps=1",
    "sampling.buffer=20",
]  # fmt: skip
CPU = ["training.batch=16", "pretraining.batch=128"]  # a CPU takes as long for each jet in a smaller batch
BATCHES = (64, 128, 512, 2048)  # of the plain network, whose best counts
VALUES = 2_000_000  # of all events of a measurement of the zoo together


def synthetic(count: int, mean: float = 40.0, seed: int = 0) -> Jets:
    """`count` jets of three prongs with Poisson(mean) constituents, at least 3."""
    rng = np.random.default_rng(seed)
    counts = np.maximum(rng.poisson(mean, count), 3)
    total = int(counts.sum())
    prong = rng.normal(scale=0.2, size=(count, 3, 2))[np.repeat(np.arange(count), counts), rng.integers(0, 3, total)]
    points = prong + rng.normal(scale=0.08, size=(total, 2))
    pt = (rng.exponential(15, total) + 0.2).astype(np.float32)
    order = np.lexsort((-pt, np.repeat(np.arange(count), counts)))
    return from_counts(rng.integers(0, 2, count), counts, pt[order], *points[order].T)


def jets(report: timing.Result, device: torch.device, quick: bool, rounds: int) -> None:
    """Measure all three."""
    cuda = device.type == "cuda"
    run = read(PRESET, TINY if quick else ([] if cuda else CPU))
    images = sparse_images(synthetic(40 if quick else 8192))
    events = sparse_events(images, np.ones(len(images), dtype=np.bool_))
    for pretraining in (False, True):
        _iterations(report, run, events, device, rounds, pretraining)
    _scores(report, run, events, device, 16 if quick else (65_536 if cuda else 2048), rounds)


def _iterations(
    report: timing.Result, run: Run, events: SparseEvents, device: torch.device, rounds: int, pretraining: bool
) -> None:
    name, phase = ("jet pretraining", run.pretraining) if pretraining else ("jet iteration", run.training)
    group, batch, block = f"{name}, batch {phase.batch}", phase.batch, 10 if device.type == "cuda" else 1
    ours = timing.backends(run, events.shape[1:], device)
    works = {n: timing.iterations(run, events, n, device, block, pretraining) for n in ours}
    with report.optional():
        model = _plain(run, device)
        x = events[torch.arange(batch)].to(device)
        works["plain"] = timing.repeated(lambda: (model.pretraining if pretraining else model.iteration)(x), block)
    times, best = timing.interleaved(works, rounds, device), ours[-1]
    report.compare(group, times, best, *ours[:-1], "plain", per=block)
    if device.type == "cuda":
        report.add(f"{group}: {best}, milliseconds", timing.median(1e3 * times[best] / block), "ms")


def _plain(run: Run, device: torch.device, normalized: bool = True) -> Any:
    latent, feature = run.sampling.latent, run.sampling.feature
    return timing.plain("plain_jets").PlainJetNAE(
        run.network.latent, run.temperature.initial, (latent.steps, feature.steps),
        (latent.step_size, feature.step_size), (latent.noise, feature.noise), str(device), normalized,
    )  # fmt: skip


def _scores(report: timing.Result, run: Run, events: SparseEvents, device: torch.device, n: int, rounds: int) -> None:
    event = tuple(events.shape[1:])
    model = Model(untrained(run, event), run.temperature.initial, event, run.sampling).to(device)
    x = events[torch.arange(n) % len(events)].cpu()
    works: dict[str, timing.Work] = {"ours": lambda: model.score(x.numpy())}
    with report.optional():
        theirs = _plain(run, device, normalized=False)
        for size in BATCHES:
            if size <= n:
                works[f"plain, batches of {size}"] = partial(timing.plain_energies, theirs.energy, x, size, device)
    times = timing.interleaved(works, rounds, device)
    others = sorted((name for name in times if name != "ours"), key=lambda name: float(np.median(times[name])))
    report.compare("jet scoring", times, "ours", *others[:1], per=n, unit="1/s")


def images(report: timing.Result, device: torch.device, quick: bool, rounds: int) -> None:  # noqa: ARG001
    """Measure them against a loop over jets; images are made on the CPU."""
    jets = synthetic(200 if quick else 20_000)
    some = jets[: 20 if quick else 500]
    works = {"ours": lambda: make_images(jets)}
    with report.optional():
        theirs = timing.plain("plain_images")
        works["plain"] = lambda: theirs.images(some.pt, some.eta, some.phi, some.offsets)
    counts = {"ours": len(jets), "plain": len(some)}
    report.compare("jet images", timing.interleaved(works, rounds), "ours", "plain", per=counts, unit="1/s")


def scoring(report: timing.Result, device: torch.device, quick: bool, rounds: int) -> None:
    """Measure one deterministic model of the zoo for each shape of events."""
    models: dict[tuple[int, ...], Model] = {}
    for name in zoo.names():
        config = read(zoo.path(name) / "config.toml")
        if config.classifier is None and not config.posteriors:
            model = load(name, str(device))
            models.setdefault(model.event, model)
    for model in models.values():
        n = 100 if quick else max(2000, VALUES // int(np.prod(model.event)))
        x = torch.randn(n, *model.event, generator=stream(0, "bench/scoring"))
        error = partial(lambda network, b: (b - network(b)).square().flatten(1).mean(1), model.autoencoder)
        plain = partial(timing.plain_energies, error, x, 2048, device)
        times = timing.interleaved({"ours": partial(model.score, x.numpy()), "plain": plain}, rounds, device)
        report.compare(f"scoring {model.name}", times, "ours", "plain", per=n, unit="1/s")
