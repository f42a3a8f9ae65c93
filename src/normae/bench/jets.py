"""The jet network: the paper's NAE iteration (30 latent and 30 feature steps, update), a pretraining iteration, and
scores, each against a plain implementation; and how many jets become filtered 40x40 images a second.

Events are images of synthetic jets; times do not depend on what is in them.
"""

import numpy as np
import torch
from torch import Tensor

from normae.bench.timing import Report, Work, interleaved, median
from normae.bench.works import backends, iterations, network, plain, repeated
from normae.config import Run, read
from normae.data import SparseEvents
from normae.inference import Model
from normae.jets import sparse_images
from normae.jets.container import Jets, falling_order, from_counts
from normae.jets.imaging import images as make_images
from normae.sources import sparse_events

PRESET = "jets-paper-qcd-nae"
TINY = [
    "training.batch=4", "pretraining.batch=8", "sampling.latent.steps=1", "sampling.feature.steps=1",
    "sampling.buffer=20",
]  # fmt: skip
CPU = ["training.batch=16", "pretraining.batch=128"]
"""A CPU takes as long for each jet in a smaller batch."""
BATCHES = (64, 128, 512, 2048)
"""Of the plain network, whose best counts."""


def synthetic(count: int, mean: float = 40.0, seed: int = 0) -> Jets:
    """`count` jets of three prongs with Poisson(mean) constituents, at least 3."""
    rng = np.random.default_rng(seed)
    counts = np.maximum(rng.poisson(mean, count), 3)
    total = int(counts.sum())
    prong = rng.normal(scale=0.2, size=(count, 3, 2))[np.repeat(np.arange(count), counts), rng.integers(0, 3, total)]
    points = prong + rng.normal(scale=0.08, size=(total, 2))
    pt = (rng.exponential(15, total) + 0.2).astype(np.float32)
    order = falling_order(np.repeat(np.arange(count), counts), pt)
    return from_counts(rng.integers(0, 2, count), counts, pt[order], *points[order].T)


def jets(device: torch.device, quick: bool, rounds: int) -> Report:
    """Measure all three."""
    cuda = device.type == "cuda"
    run = read(PRESET, TINY if quick else ([] if cuda else CPU))
    images = sparse_images(synthetic(40 if quick else 8192))
    events = sparse_events(images, np.ones(len(images), dtype=np.bool_))
    report = Report()
    for pretraining in (False, True):
        _iterations(report, run, events, device, rounds, 10 if cuda else 1, pretraining)
    _scores(report, run, events, device, 16 if quick else (65_536 if cuda else 2048), rounds)
    return report


def _iterations(
    report: Report, run: Run, events: SparseEvents, device: torch.device, rounds: int, block: int, pretraining: bool
) -> None:
    name = "jet pretraining" if pretraining else "jet iteration"
    batch = (run.pretraining if pretraining else run.training).batch
    group = f"{name}, batch {batch}"
    ours = backends(run, events.shape[1:], device)
    works = {n: iterations(run, events, n, device, block, pretraining) for n in ours}
    with report.optional():
        model = _plain(run, device)
        x = events[torch.arange(batch)].to(device)
        works["plain"] = repeated(lambda: (model.pretraining if pretraining else model.iteration)(x), block)
    times = interleaved(works, rounds, device)
    report.seconds(group, times, block)
    best = ours[-1]
    if device.type == "cuda":
        report.add(f"{group}: {best}, milliseconds", median(1e3 * times[best] / block), "ms")
    report.faster(group, times, best, *ours[:-1], "plain")


def _plain(run: Run, device: torch.device, normalized: bool = True):  # type: ignore[no-untyped-def]
    latent, feature = run.sampling.latent, run.sampling.feature
    return plain("plain_jets").PlainJetNAE(
        run.network.latent, run.temperature.initial, (latent.steps, feature.steps),
        (latent.step_size, feature.step_size), (latent.noise, feature.noise), str(device), normalized,
    )  # fmt: skip


def _scores(report: Report, run: Run, events: SparseEvents, device: torch.device, n: int, rounds: int) -> None:
    group = "jet scoring"
    model = Model(network(run, events.shape[1:]), run.temperature.initial, tuple(events.shape[1:]), run.sampling)
    model = model.to(device)
    x = events[torch.arange(n) % len(events)].cpu()
    array = x.numpy()
    works: dict[str, Work] = {"ours": lambda: model.score(array)}
    with report.optional():
        works |= _plain_scores(run, x, device)
    times = interleaved(works, rounds, device)
    report.rates(group, times, n)
    others = sorted((name for name in times if name != "ours"), key=lambda name: float(np.median(times[name])))
    report.faster(group, times, "ours", *others[:1])


def _plain_scores(run: Run, x: Tensor, device: torch.device) -> dict[str, Work]:
    """The network as the tables write it, in batches of several sizes."""
    model = _plain(run, device, normalized=False)

    def scored(size: int) -> Work:
        def work() -> Tensor:
            with torch.no_grad():
                return torch.cat([model.energy(piece.to(device)).cpu() for piece in x.split(size)])

        return work

    return {f"plain, batches of {size}": scored(size) for size in BATCHES if size <= len(x)}


def images(device: torch.device, quick: bool, rounds: int) -> Report:  # noqa: ARG001
    """Measure them against a loop over jets; images are made on the CPU."""
    report, group = Report(), "jet images"
    jets = synthetic(200 if quick else 20_000)
    some = jets[: 20 if quick else 500]
    works = {"ours": lambda: make_images(jets)}
    with report.optional():
        theirs = plain("plain_images")
        works["plain"] = lambda: theirs.images(some.pt, some.eta, some.phi, some.offsets)
    times = interleaved(works, rounds)
    counts = {"ours": len(jets), "plain": len(some)}
    for name, seconds in times.items():
        report.rates(group, {name: seconds}, counts[name])
    report.faster(group, {name: seconds / counts[name] for name, seconds in times.items()}, "ours", "plain")
    return report
