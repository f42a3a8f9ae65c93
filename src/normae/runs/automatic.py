"""A run for a table, from the table alone: coordinates, base, network, chains and lengths; with own networks too.

A density of Gaussians and kernels is fitted to the whitened rows, the base of the energy (`networks.base`), and that is
where training begins. A classification of rows against draws of the base does most of the learning
(`training.contrast`); a likelihood training with persistent chains follows where it is asked for. Networks of one's
own have no base, and begin at the standard Gaussian: with f(x) near 0 the energy is |x|^2/d, and T = 2/d makes
exp(-E/T) that Gaussian.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from normae.conditional import ConditionalCoordinates
from normae.config import Run, override
from normae.coordinates import CoordinatesConfig, Curves, TableCoordinates
from normae.data import Rows, SparseEvents
from normae.errors import InputError, require_that
from normae.inference.ais import AISConfig
from normae.networks.autoencoder import Autoencoder, NetworkConfig
from normae.networks.base import SCALE, BaseConfig
from normae.networks.own import EnergyNetwork, check_network
from normae.runs.session import prepare
from normae.sampling.config import ChainConfig, SamplingConfig
from normae.sources import DataConfig, Events
from normae.statistics.gaussians import STRENGTHS, fit_gaussians
from normae.tensors import by_weight, counts_as, stream
from normae.training import ContrastConfig, EnsembleConfig, GuardConfig, PhaseConfig, TemperatureConfig, TrainingConfig

FEWEST_ROWS = 10  # of a table that a density can be asked of
ROWS = 20_000  # networks of one's own see noisy copies of a small table, up to about this number of rows
VALIDATION = 0.2  # share of the rows that decide when the start has learned enough
TEST, MOST_TEST = 0.2, 20_000  # share of the rows of a file that are held out to judge the model, and at most so many
ITERATIONS, RATIO = 0, 0.1  # of the likelihood training: its updates, and its learning rate over that of the start
FEWEST_UPDATES, MOST_UPDATES = 1000, 4000  # of the start
WIDER = 0.1  # how far the chains of events that are no rows may go beyond them, as a share of their range
SAMPLE = 16  # events that networks of one's own are tried on
OWN_START, OWN_ITERATIONS, OWN_STEPS = 2000, 1000, 8
"""Of networks of one's own, which have no base: updates of the start and of the likelihood, steps of its chains."""
GENERATION = 20  # steps of the chains that samples are, where draws of the base cannot be
DECIDING = 2500  # rows that decide which columns get curves
NARROW, WIDE, MANY_ROWS = 64, 128, 10_000
"""Widths of the hidden layers: of the network that few rows can carry, and from so many training rows on."""
BOX = 2.0  # over the largest of the rows, whose coordinates may be fitted to others
MOST_LATENT = 16  # dimension of the latent space; that of a smaller table is one more than its columns
BUFFER = 2048  # persistent chains, or twice the batch where that is more
GUARD = GuardConfig(log_every=25, checkpoint_every=100, smallest_acceptance=0.05, calm=1.0)
LOG_Z = AISConfig(256, 100, widen=1.1, burn_in=100, tolerance=0.2, least_ess=50, retries=1, required=False)
"""A cheap annealing, and a longer one where its bounds disagree: log Z is then known to about 0.1."""


@dataclass(frozen=True)
class Wishes:
    """What the user decided; None leaves it to the table.

    Args:
        latent: dimension of the latent space.
        hidden: widths of the hidden layers of the encoder; the decoder mirrors them.
        start_iterations: updates of the start by classification, at most.
        iterations: updates of the likelihood training.
        batch: rows of an update, and as many chains.
        learning_rate: of the start.
        chain_steps: Langevin steps of an update.
        noise: least variance of a direction of the coordinates, in units of a column's variance.
        bayesian: error bars, from trainings on halves of the rows.
        log_z: whether log Z is computed where no grid serves.
        condition: names or places of the columns m of p(x | m).
    """

    latent: int | None = None
    hidden: tuple[int, ...] | None = None
    start_iterations: int | None = None
    iterations: int | None = None
    batch: int = 256
    learning_rate: float = 1e-3
    chain_steps: int = 4
    noise: float | None = None
    bayesian: bool = False
    log_z: bool = True
    condition: Sequence[str | int] | str | int = ()


def condition_places(condition: Sequence[str | int] | str | int, names: Sequence[str]) -> tuple[int, ...]:
    """Places of the conditioning columns, by their names where they have any."""
    wanted = [condition] if isinstance(condition, str | int) else condition
    expected = f"columns of the table ({', '.join(names) or 'by their places, from 0'})"
    for one in wanted:
        require_that(one in names or str(one).isdigit(), "condition", expected, repr(one))
    return tuple(names.index(str(one)) if one in names else int(one) for one in wanted)


def check_table(table: Rows, source: str) -> tuple[Tensor, Tensor | None]:
    """Rows (N, d), or events (N, *event), and weights (N,); refused where no density can be learned from them."""
    rows = torch.from_numpy(table.values)
    require_that(len(rows) >= FEWEST_ROWS, source, f"at least {FEWEST_ROWS} rows", f"{len(rows)}; give more")
    weights = None if table.weights is None else torch.from_numpy(table.weights)
    counted = FEWEST_ROWS if weights is None else counts_as(weights)
    expected = f"weights that count as at least {FEWEST_ROWS} equal ones, (sum w)^2 / sum w^2"
    require_that(counted >= FEWEST_ROWS, source, expected, f"{counted} of {len(rows)} rows; give more")
    if bool((rows == rows[0]).all()):
        raise InputError(f"{source}: all {len(rows)} rows are equal; expected rows that differ in at least one column")
    return rows, weights


def split_sizes(rows: int, test: bool) -> tuple[int, int]:
    """Test and validation rows of a table; without test rows all others are for training and validation."""
    tested = min(round(TEST * rows), MOST_TEST) if test else 0
    return tested, max(1, round(VALIDATION * (rows - tested)))


def automatic_run(
    rows: Tensor, data: DataConfig, wishes: Wishes, name: str = "table", seed: int = 0, device: str = "auto",
    weights: Tensor | None = None,
) -> Run:  # fmt: skip
    """The run for a table.

    Args:
        rows: the table, with shape (N, d), in float64.
        data: where the table comes from, with the numbers of `split_sizes`.
        weights: of the rows, with shape (N,); lengths follow from what they count as.
    """
    trained, columns, noise = len(rows) - data.test - data.validation, rows.shape[1], wishes.noise
    batch, given = min(wishes.batch, trained), condition_places(wishes.condition, data.columns or ())
    curves: Curves = "none" if given else choose_curves(rows, noise, weights)
    to = ConditionalCoordinates.of(rows, given, noise) if given else TableCoordinates.of(rows, noise, curves, weights)
    counted = trained if weights is None else trained * counts_as(weights) // len(rows)
    start, width = wishes.learning_rate, NARROW if counted < MANY_ROWS else WIDE
    bounds = None  # the base falls off by itself; one or two columns may need the box of a grid for log Z
    if columns <= 2 and not given:  # a fit to fewer rows may give a column no curve
        straight = TableCoordinates.of(rows, noise, "none", weights)
        bounds = _bounds(torch.cat([one.forward(rows) for one in (to, straight)]), BOX)
    return Run(
        data=data, name=name, seed=seed, device=device, threads=1,
        coordinates=CoordinatesConfig("table", noise, curves=curves, condition=given, lattice=True),
        base=BaseConfig(),
        network=NetworkConfig(wishes.latent or min(columns + 1, MOST_LATENT), wishes.hidden or (width, width), "gelu"),
        contrast=ContrastConfig(wishes.start_iterations or start_iterations(counted), batch, start),
        temperature=TemperatureConfig(SCALE, learning_rate=RATIO * start),
        pretraining=PhaseConfig(epochs=0, batch=batch),
        training=_likelihood(wishes.iterations or ITERATIONS, trained, batch, RATIO * start),
        guard=replace(GUARD, largest_gap=3 + math.sqrt(columns)),
        ensemble=EnsembleConfig(events="half") if wishes.bayesian else None,
        sampling=persistent(batch, wishes.chain_steps, 0.3 * columns ** (-1 / 3), bounds),
        log_z=LOG_Z if wishes.log_z and columns > 2 else None,
    )  # fmt: skip


def _bounds(rows: Tensor | SparseEvents, factor: float = 1.25) -> tuple[float, float]:
    """Of chains, well beyond the rows."""
    assert isinstance(rows, Tensor)
    bound = math.ceil(max(5.0, factor * float(rows.abs().max())))
    return -bound, bound


def choose_curves(rows: Tensor, noise: float | None, weights: Tensor | None = None) -> Curves:
    """The columns of a table (N, d) that get curves: those with which Gaussians describe rows held out best."""
    order = torch.randperm(len(rows), generator=stream(0, "curves"))
    chosen = order if weights is None else order[by_weight(weights[order].clamp_min(0), len(rows))]
    few = rows[chosen[torch.randperm(len(rows), generator=stream(1, "curves"))[:DECIDING]]]
    candidates: dict[Curves, TableCoordinates] = {}
    for curves in get_args(Curves):
        to = TableCoordinates.of(few, noise, curves)
        if curves == "none" or not any(torch.equal(to.bent, other.bent) for other in candidates.values()):
            candidates[curves] = to

    def suits(curves: Curves) -> float:
        to = candidates[curves]
        held_out = fit_gaussians(to.forward(few) @ to.colouring.T, DECIDING, 16, STRENGTHS[:1])[2]
        slope = (to.log_slope(few) + to.unseen(few))[: len(held_out)] + torch.linalg.slogdet(to.colouring).logabsdet
        return float((held_out + slope).mean())

    return max(candidates, key=suits) if len(candidates) > 1 else "none"


def _likelihood(iterations: int, events: int, batch: int, rate: float) -> TrainingConfig:
    return TrainingConfig(
        epochs=max(1, math.ceil(iterations / max(1, events // batch))), iterations=iterations, batch=batch,
        learning_rate=rate, schedule="cosine", warmup=min(50, iterations // 4), average=0.98, gradient_clip=100.0,
    )  # fmt: skip


def persistent(batch: int, steps: int, size: float, bounds: tuple[float, float] | None) -> SamplingConfig:
    """Feature chains that begin at events and go on for as long as the training lasts."""
    return SamplingConfig(
        buffer=max(BUFFER, 2 * batch), replay=1.0, buffer_space="feature", chains_from="data", generation=GENERATION,
        latent=ChainConfig(steps=0), feature=ChainConfig(steps=steps, step_size=size, bounds=bounds, adapt=0.65),
    )  # fmt: skip


def events_run(events: Tensor, data: DataConfig, name: str = "events", seed: int = 0) -> Run:
    """The run for events of any shape (N, *event), taken as they are, with networks of the user's own.

    T, step size and bounds are in units of the events: with f(x) near their mean the first density is the Gaussian of
    their variance.
    """
    trained, features = len(events) - data.test - data.validation, events[0].numel()
    batch, wishes = min(Wishes.batch, trained), Wishes()
    variance, low, high = float(events.var(0).mean()), float(events.min()), float(events.max())
    margin, rate = WIDER * (high - low), wishes.learning_rate
    around = (low - margin, high + margin)
    return Run(
        data=data, name=name, seed=seed,
        temperature=TemperatureConfig(2 * variance / features, learning_rate=30 * rate),
        pretraining=PhaseConfig(math.ceil(500 / max(1, trained // batch)), 500, batch, rate, "cosine"),
        training=_likelihood(500, trained, batch, 0.1 * rate),
        guard=replace(GUARD, largest_gap=100.0),
        sampling=persistent(batch, wishes.chain_steps, 0.3 * variance * features ** (-1 / 3), around),
    )  # fmt: skip


def own_run(run: Run, own: Autoencoder, events: Events, changes: Sequence[str]) -> Run:
    """The run with the user's networks; one sentence where they cannot be trained.

    A training begins with the weights that the networks came with. An encoder and a decoder begin with T = 2/d after a
    start by classification; an energy is -log p itself, up to a constant: T = 1, and it stays.

    Args:
        changes: such as "training.iterations=500"; they have the last word.
    """
    run = replace(run, coordinates=replace(run.coordinates, lattice=False))
    if run.base is not None and run.coordinates.kind == "table":  # curves suit a base, and chains need a box without
        free = replace(run.sampling, feature=replace(run.sampling.feature, bounds=None))
        run = replace(run, base=None, coordinates=replace(run.coordinates, curves="none"), sampling=free)
        bounds = _bounds(prepare(run, events).events.train)
        run = replace(run, sampling=replace(free, feature=replace(free.feature, bounds=bounds)))
    seen = prepare(run, events).events.train
    sample = seen[torch.arange(min(SAMPLE, len(seen)))]
    latent = check_network(own, sample)
    if run.contrast is not None:
        initial = replace(run.temperature, initial=2 / sample[0].numel())
        copies = max(1, ROWS // len(seen))
        batch = min(Wishes.batch, len(seen) * copies)
        contrast = replace(run.contrast, iterations=OWN_START, batch=batch, gaussian=False)
        training = _likelihood(OWN_ITERATIONS, len(seen) * copies, batch, run.training.learning_rate)
        chains = replace(run.sampling.feature, steps=OWN_STEPS)
        coordinates = replace(run.coordinates, copies=copies)
        sampling = replace(run.sampling, buffer=max(BUFFER, 2 * batch), feature=chains)
        run = replace(run, base=None, coordinates=coordinates, contrast=contrast, temperature=initial)
        run = replace(run, training=training, sampling=sampling)
    space, sampling = run.network.latent_space, run.sampling
    if isinstance(own, EnergyNetwork):  # no latent space: no pretraining, and persistent chains from the data
        space, feature = "euclidean", sampling.feature
        sampling = persistent(run.training.batch, feature.steps, feature.step_size, feature.bounds)
        fixed, none = TemperatureConfig(1.0, trained=False), replace(run.pretraining, epochs=0)
        run = replace(run, network=NetworkConfig(), temperature=fixed, pretraining=none, sampling=sampling)
    network = NetworkConfig(latent=latent, latent_space=space, kind="own")
    return override(replace(run, network=network, sampling=replace(sampling, backend="explicit")), changes)


def start_iterations(rows: int) -> int:
    """Updates of the start, at most: as many rows, as much to learn beyond the base."""
    return min(max(FEWEST_UPDATES, rows // 5), MOST_UPDATES)
