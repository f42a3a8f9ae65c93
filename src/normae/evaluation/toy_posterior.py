"""Judge the error bars of a Bayesian run on a known density: the numbers of section 3.3 and appendix C.1."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.config import Run
from normae.data import Density
from normae.inference import BayesianModel, cell_centres, grid_points
from normae.posterior.modes import together
from normae.random import stream
from normae.statistics import (
    Estimate,
    auc,
    confidence_levels,
    coverage,
    coverage_by_region,
    density_mean_and_std,
    density_pulls,
    kl_divergence,
    log_mean_density,
    mean_and_std,
    pearson,
    pulls,
    regions,
    relative_density_check,
    relative_deviation,
    share_within,
)
from normae.training.two_sample import classifier_test

Metrics = dict[str, Estimate]
LEVELS = (0.5, 0.68, 0.9, 0.95)
"""At which coverage is a metric."""
EVENTS = 50_000
"""Test events with all draws: a coverage is judged over trainings, not over more events of one."""
REGION_GRID = 100
"""Points along each axis of the grid on which coverage is taken region by region."""


@dataclass(frozen=True)
class PosteriorTest:
    """Draws of the learned density beside the truth, on the paper's grid and on the test set.

    Args:
        axis: coordinates of the grid, shape (G,).
        grid_true: log p on the grid, shape (G * G,); the first coordinate runs slowest.
        grid_model: log of the mean density, shape (G * G,).
        score, density: mean and standard deviation over draws of E/T and of p on the grid, shapes (G * G,).
        marginals: for each coordinate the mean and standard deviation of the marginal density, shapes (G,).
        test, test_true, test_model: test events (N, 2), their true log p and log of the mean density, (N,).
        draws: log p of every draw at the test events, (n, N).
        region_true, region_draws: true log p and log p of every draw on every fifth line of the grid, (M,) and (n, M).
        scores: E/T of every draw at the test events, (n, N).
    """

    axis: np.ndarray
    grid_true: np.ndarray
    grid_model: np.ndarray
    score: tuple[np.ndarray, np.ndarray]
    density: tuple[np.ndarray, np.ndarray]
    marginals: list[tuple[np.ndarray, np.ndarray]]
    test: np.ndarray
    test_true: np.ndarray
    test_model: np.ndarray
    draws: np.ndarray
    region_true: np.ndarray
    region_draws: np.ndarray
    scores: np.ndarray


def posterior_test(model: BayesianModel, config: Run, density: Density, events: Tensor) -> PosteriorTest:
    """All draws on the paper's grid, endpoints included, and on the test set."""
    limit, size = config.evaluation.grid_limit, config.evaluation.grid
    axis = torch.linspace(-limit, limit, size, dtype=torch.float64)
    grid = grid_points(axis, 2)
    on_grid = model.log_prob_draws(grid.numpy())
    log_z = model.log_z_draws()[:, None].astype(np.float32)
    test = events[:EVENTS]
    draws = model.log_prob_draws(test.numpy())
    grid_true = density.log_prob(grid.double()).numpy()
    step = max(1, size // REGION_GRID)
    thin = np.arange(size * size).reshape(size, size)[::step, ::step].ravel()
    return PosteriorTest(
        axis=axis.numpy(),
        grid_true=grid_true,
        region_true=grid_true[thin],
        region_draws=on_grid[:, thin],
        grid_model=log_mean_density(on_grid),
        score=mean_and_std(-on_grid - log_z),
        density=density_mean_and_std(on_grid),
        marginals=_marginals(on_grid, axis.numpy()),
        test=test.numpy(),
        test_true=density.log_prob(test.double()).numpy(),
        test_model=log_mean_density(draws),
        draws=draws,
        scores=-draws - log_z,
    )


def _marginals(log_draws: np.ndarray, axis: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean and standard deviation over draws of the marginal density in each coordinate."""
    size, width = len(axis), float(axis[1] - axis[0])
    sums = np.empty((2, len(log_draws), size))
    for k, row in enumerate(log_draws):
        density = np.exp(row.astype(np.float64)).reshape(size, size)
        sums[0, k], sums[1, k] = density.sum(1) * width, density.sum(0) * width
    return [(rows.mean(0), rows.std(0, ddof=1)) for rows in sums]


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def posterior_metrics(model: BayesianModel, test: PosteriorTest) -> Metrics:
    """Accuracy of the posterior's mean density, pulls, coverage, and the paper's check of the widths."""
    log_z = model.log_z_draws()
    pull, density_pull = pulls(test.draws, test.test_true), density_pulls(test.draws, test.test_true)
    check = relative_density_check(test.scores, test.draws)
    width = mean_and_std(test.draws)[1]
    metrics: Metrics = {
        "temperature": Estimate(model.temperature, 0.0),
        "log_z": Estimate(float(log_z.mean()), float(log_z.std(ddof=1))),
        "pearson_grid": Estimate(pearson(test.grid_true, test.grid_model).value, 0.0),
        "pearson_test": pearson(test.test_true, test.test_model),
        "kl": kl_divergence(test.test_true, test.test_model),
        "share_within_10_percent": share_within(relative_deviation(test.test_model, test.test_true)),
        "sigma_log_p": Estimate(_rms(width), 0.0),
        "error_log_p": Estimate(_rms(-together(-test.draws, model.mixture) - test.test_true), 0.0),
        "pull_mean": Estimate(float(pull.mean()), 0.0),
        "pull_width": Estimate(float(pull.std()), 0.0),
        "density_pull_mean": Estimate(float(density_pull.mean()), 0.0),
        "density_pull_width": Estimate(float(density_pull.std()), 0.0),
        "relative_density_ratio": Estimate(check.ratio[1], 0.5 * (check.ratio[2] - check.ratio[0])),
        "relative_density_correlation": check.correlation,
    }
    for kind in ("quantile", "gaussian"):
        found = coverage(test.draws, test.test_true, LEVELS, kind)  # type: ignore[arg-type]
        named = zip(LEVELS, found, strict=True)
        metrics |= {f"coverage_{kind}_{100 * level:.0f}": Estimate(float(share), 0.0) for level, share in named}
    return metrics


def posterior_samples(model: BayesianModel, config: Run, density: Density, test: PosteriorTest) -> Metrics:
    """The classifier test over the posterior: exact draws, and chains where a step is cheap; the ideal classifier."""
    settings = config.evaluation.classifier
    true = density.sample(settings.points, stream(config.seed, "evaluation/true"))
    exact = exact_draws(model, settings.points, stream(config.seed, "evaluation/exact"))
    kinds = {"exact": exact}
    metrics: Metrics = {}
    if config.laplace is None or model.device.type == "cuda":
        generator = stream(config.seed, "evaluation/chain", model.device)
        steps = model.sampling.feature.steps
        chains = [
            model.sample_chain(min(50_000, settings.points - start), generator, feature_steps=steps)
            for start in range(0, settings.points, 50_000)
        ]
        kinds["recipe"] = torch.cat([chain.position.cpu() for chain in chains])
        metrics["acceptance_recipe"] = Estimate(float(torch.cat([c.acceptance for c in chains]).mean()), 0.0)
    for name, sample in kinds.items():
        generator = stream(config.seed, f"classifier/{name}")
        result = classifier_test(true, sample, settings, generator=generator, device=model.device)
        metrics[f"auc_classifier_{name}"] = result.auc
    draws = model.log_prob_draws(exact[:EVENTS].numpy())
    ratio = log_mean_density(draws) - density.log_prob(exact[:EVENTS].double()).numpy()
    return metrics | {"auc_ideal": auc(ratio, test.test_model - test.test_true)}


def exact_draws(model: BayesianModel, n: int, generator: torch.Generator) -> Tensor:
    """`n` events with shape (n, 2), each weight draw giving its share: a cell by its probability, a point within it."""
    bounds = model.sampling.feature.bounds
    assert bounds is not None
    centres = grid_points(cell_centres(bounds, model.cells), 2)
    exponent = torch.from_numpy(-model.score_draws(centres.numpy())).double()
    weight = torch.softmax(exponent, dim=1)
    each = -(-n // len(weight))
    index = torch.multinomial(weight, each, replacement=True, generator=generator).flatten()
    index = index[torch.randperm(len(index), generator=generator)[:n]]
    width = (bounds[1] - bounds[0]) / model.cells
    return centres[index] + (torch.rand(n, 2, generator=generator) - 0.5) * width


@dataclass(frozen=True)
class CoverageTest:
    """Coverage of one training at all levels.

    Args:
        levels: with shape (L,).
        log_density, density: of intervals of log p and of p, by kind: "quantile" and "gaussian", shapes (L,).
        by_region: of log p on a grid by kind, shapes (R, L).
        pull, density_pull: with shape (N,).
        kl: of the mean density.
        sigma, error: root mean squares of the posterior's width and of the error of log p.
    """

    levels: np.ndarray
    log_density: dict[str, np.ndarray]
    density: dict[str, np.ndarray]
    by_region: dict[str, np.ndarray]
    pull: np.ndarray
    density_pull: np.ndarray
    kl: float
    sigma: float
    error: float


def coverage_test(model: BayesianModel, config: Run, density: Density, events: Tensor) -> CoverageTest:
    """Coverage on the test set, and region by region on a grid over the paper's test grid."""
    limit = config.evaluation.grid_limit
    test, grid = events[:EVENTS], grid_points(torch.linspace(-limit, limit, REGION_GRID, dtype=torch.float64), 2)
    draws, on_grid = model.log_prob_draws(test.numpy()), model.log_prob_draws(grid.numpy())
    true, grid_true = (density.log_prob(x.double()).numpy() for x in (test, grid))
    levels = np.unique(np.concatenate([confidence_levels(len(draws)), LEVELS]))
    kinds: Any = ("quantile", "gaussian")
    bands = regions(grid_true)
    return CoverageTest(
        levels=levels,
        log_density={kind: coverage(draws, true, levels, kind) for kind in kinds},
        density={kind: coverage(draws, true, levels, kind, density=True) for kind in kinds},
        by_region={kind: coverage_by_region(on_grid, grid_true, bands, levels, kind) for kind in kinds},
        pull=pulls(draws, true),
        density_pull=density_pulls(draws, true),
        kl=kl_divergence(true, log_mean_density(draws)).value,
        sigma=_rms(mean_and_std(draws)[1]),
        error=_rms(-together(-draws, model.mixture) - true),
    )
