"""Judge a trained run on a known density: every number of section 3.2 of the paper, and the ones beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normae.config import Run, read
from normae.data import Density
from normae.errors import InputError
from normae.evaluation.table import evaluate_table
from normae.evaluation.toy_posterior import PosteriorTest, posterior_metrics, posterior_samples, posterior_test
from normae.files import write_json
from normae.inference import BayesianModel, Model, cell_centres, evaluate_in_chunks, grid_draws, grid_log_z, grid_points
from normae.random import stream
from normae.runs.folder import RunFolder, locked
from normae.runs.load import load
from normae.sampling import Chain
from normae.sources import load_events
from normae.statistics import (
    Estimate,
    auc,
    grid_kl,
    ideal_auc_from_kl,
    kl_divergence,
    pearson,
    relative_deviation,
    share_within,
)
from normae.training.two_sample import classifier_test

Metrics = dict[str, Estimate]


@dataclass(frozen=True)
class DensityTest:
    """Learned and true log-likelihood on the paper's grid and on the test set.

    Args:
        axis: coordinates of the grid, shape (G,).
        grid_true, grid_model: log p on the grid, shape (G * G,); the first coordinate runs slowest.
        test: test events, shape (N, 2).
        test_true, test_model: log p on the test set, shape (N,).
    """

    axis: np.ndarray
    grid_true: np.ndarray
    grid_model: np.ndarray
    test: np.ndarray
    test_true: np.ndarray
    test_model: np.ndarray


def evaluate(
    path: str | Path,
    figures: bool = True,
    device: str = "auto",
    generated: int | None = None,
    data: str | Path | None = None,
) -> dict[str, Estimate]:
    """Write metrics.json and figures/ of the run at `path`, and return the metrics.

    Args:
        figures: whether to draw; drawing needs matplotlib, the numbers do not.
        device: where to compute.
        generated: jets to generate from a run on jets, see `normae.evaluation.jets.evaluate_jets`.
        data: jets to judge a run on jets on, a folder or a file, where they are not where the run found them.
    """
    run = RunFolder.existing(path)
    config = read(run.config)
    if config.data.jets is not None:
        if data is not None:
            config = replace(config, data=replace(config.data, path=str(data)))
        return _evaluate_jets(run, config, figures, device, generated)
    if generated is not None or data is not None:
        raise InputError(f"{path}: --generated and --jets are for runs on jets, and this is not one")
    model = load(run.path, device)
    events = load_events(config.data, config.seed)
    if events.density is None:
        with locked(run.path):
            metrics = evaluate_table(run, config, model, events, figures)
            write_metrics(run, metrics)
        return metrics
    with locked(run.path):
        test: DensityTest | PosteriorTest
        if isinstance(model, BayesianModel):
            test = posterior_test(model, config, events.density, events.test)
            metrics = posterior_metrics(model, test) | posterior_samples(model, config, events.density, test)
        else:
            test = density_test(model, config, events.density, events.test)
            metrics = density_metrics(model, config, events.density, test)
            metrics |= sample_metrics(model, config, events.density, test)
        write_metrics(run, metrics)
        if figures:
            from normae.evaluation import toy_drawing as drawing

            if isinstance(test, DensityTest):
                drawing.draw_run(run, test, metrics)
            else:
                drawing.draw_posterior(run, test, metrics)
    return metrics


def _evaluate_jets(run: RunFolder, config: Run, figures: bool, device: str, generated: int | None) -> Metrics:
    from normae.evaluation.jet_classifier import evaluate_classifier
    from normae.evaluation.jets import evaluate_jets

    with locked(run.path):
        if config.classifier is None:
            metrics = evaluate_jets(run, config, figures, device, generated)
        else:
            metrics = evaluate_classifier(run, config, figures, device)
        write_metrics(run, metrics)
    return metrics


def write_metrics(run: RunFolder, metrics: Metrics) -> None:
    """metrics.json: flat names, each with value and error."""
    write_json(run.metrics, {name: {"value": m.value, "error": m.error} for name, m in metrics.items()})


def density_test(model: Model, config: Run, density: Density, events: Tensor) -> DensityTest:
    """log p of model and truth on the paper's grid, endpoints included, and on the test set."""
    limit = config.evaluation.grid_limit
    axis = torch.linspace(-limit, limit, config.evaluation.grid, dtype=torch.float64)
    grid = grid_points(axis, 2)
    return DensityTest(
        axis=axis.numpy(),
        grid_true=density.log_prob(grid.double()).numpy(),
        grid_model=_log_prob(model, grid),
        test=events.numpy(),
        test_true=density.log_prob(events.double()).numpy(),
        test_model=_log_prob(model, events),
    )


def _log_prob(model: Model, x: Tensor) -> np.ndarray:
    energy = evaluate_in_chunks(model.energy_function, x, model.device)
    return (-energy / model.temperature - model.log_z.value).numpy()


def density_metrics(model: Model, config: Run, density: Density, test: DensityTest) -> Metrics:
    """Normalization, correlations, KL and the share of accurate points."""
    limit = config.evaluation.grid_limit
    paper = grid_log_z(
        model.energy_function, model.temperature, (-limit, limit), 2, 2 * config.evaluation.grid, model.device
    )
    kl = kl_divergence(test.test_true, test.test_model)
    within = share_within(relative_deviation(test.test_model, test.test_true))
    return {
        "temperature": Estimate(model.temperature, 0.0),
        "log_z": Estimate(model.log_z.value, model.log_z.error),
        "log_z_paper_grid": Estimate(paper.value, paper.error),
        "pearson_grid": Estimate(pearson(test.grid_true, test.grid_model).value, 0.0),
        "pearson_test": pearson(test.test_true, test.test_model),
        "kl": kl,
        "kl_paper_grid": Estimate(kl.value + paper.value - model.log_z.value, kl.error),
        "kl_quadrature": Estimate(_kl_quadrature(model, config, density), 0.0),
        "share_within_10_percent": within,
        "auc_from_kl": _auc_from_kl(kl),
    }


def _auc_from_kl(kl: Estimate) -> Estimate:
    """The ideal AUC that a small KL stands for, with the error of the KL carried over."""
    value = ideal_auc_from_kl(max(kl.value, 0.0))
    return Estimate(value, (value - 0.5) * kl.error / (2 * kl.value) if kl.value > 0 else float(kl.error) ** 0.5)


def _kl_quadrature(model: Model, config: Run, density: Density) -> float:
    """KL(true, model) by the midpoint rule over the chain's bounds: no statistical error."""
    bounds = model.log_z.bounds
    cells = config.evaluation.log_z_cells
    points = grid_points(cell_centres(bounds, cells), 2)
    cell = ((bounds[1] - bounds[0]) / cells) ** 2
    return grid_kl(density.log_prob(points.double()).numpy(), _log_prob(model, points), cell)


def sample_metrics(model: Model, config: Run, density: Density, test: DensityTest) -> Metrics:
    """The classifier test on three kinds of model samples, and the ideal classifier."""
    settings = config.evaluation.classifier
    n = settings.points
    generator = stream(config.seed, "evaluation/chain", model.device)
    true = density.sample(n, stream(config.seed, "evaluation/true"))
    kinds = chain_samples(model, n, generator, config.evaluation.long_factor)
    exact = grid_draws(
        model.energy_function, model.temperature, model.log_z.bounds, 2, n,
        stream(config.seed, "evaluation/exact"), config.evaluation.log_z_cells, model.device,
    )  # fmt: skip
    metrics: Metrics = {f"acceptance_{name}": acceptance for name, (_, acceptance) in kinds.items()}
    for name, sample in {**{name: position for name, (position, _) in kinds.items()}, "exact": exact}.items():
        result = classifier_test(
            true, sample, settings, generator=stream(config.seed, f"classifier/{name}"), device=model.device
        )
        metrics[f"auc_classifier_{name}"] = result.auc
    ratio = _log_prob(model, exact) - density.log_prob(exact.double()).numpy()
    metrics["auc_ideal"] = auc(ratio, test.test_model - test.test_true)
    return metrics


def chain_samples(
    model: Model, n: int, generator: torch.Generator, factor: int, chunk: int = 50_000
) -> dict[str, tuple[Tensor, Estimate]]:
    """`n` samples of each kind, with the acceptance of the feature steps since the kind before.

    "recipe" is the paper's: a latent chain from noise, eight times as long as in training, then a feature chain as in
    training. "long" are the same chains gone on to `factor` times that length, "generation" gone on to the length that
    `model.sample` uses, where the preset sets one.
    """
    steps = model.sampling.feature.steps
    lengths = {"recipe": steps, "long": factor * steps}
    if model.sampling.generation_steps > factor * steps:
        lengths["generation"] = model.sampling.generation_steps
    chains: dict[str, list[Chain]] = {name: [] for name in lengths}
    for size in [min(chunk, n - start) for start in range(0, n, chunk)]:
        chain, done = model.sample_chain(size, generator, feature_steps=steps), steps
        for name, length in lengths.items():
            if length > done:
                chain, done = model.continue_chain(chain.position, generator, length - done), length
            chains[name].append(chain)
    return {name: _joined(parts) for name, parts in chains.items()}


def _joined(chains: Sequence[Chain]) -> tuple[Tensor, Estimate]:
    position = torch.cat([chain.position.cpu() for chain in chains])
    shares = torch.cat([chain.acceptance.flatten() for chain in chains])
    acceptance = float(shares.mean()) if len(shares) else 1.0
    error = (acceptance * (1 - acceptance) / (len(position) * max(len(chains[0].acceptance), 1))) ** 0.5
    return position, Estimate(acceptance, error)
