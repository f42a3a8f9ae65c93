"""The figures of a run on a known density (sections 3.2, 3.3, appendix C.1), and what they are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normae.evaluation.study import Metrics
from normae.figures import (
    Curve,
    coverage_by_region_maps,
    coverage_curves,
    density_map,
    deviation_map,
    likelihood_correlation,
    marginal,
    new_figure,
    pull_histogram,
    region_map,
    uncertainty_maps,
)
from normae.report import save_figure
from normae.runs.folder import RunFolder
from normae.statistics import (
    confidence_levels,
    coverage,
    coverage_by_region,
    density_pulls,
    pulls,
    regions,
    relative_deviation,
)


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


@dataclass(frozen=True)
class PosteriorTest(DensityTest):
    """Draws of the learned density beside the truth; `grid_model` and `test_model` are log of the mean density.

    Args:
        score, density: mean and standard deviation over draws of E/T and of p on the grid, shapes (G * G,).
        marginals: for each coordinate the mean and standard deviation of the marginal density, shapes (G,).
        draws, scores: log p and E/T of every draw at the test events, (n, N).
        mean_log_p: log p of the draws together at the test events, (N,).
        log_z: of every draw, (n,).
        region_true, region_draws: true log p and log p of every draw on every fifth line of the grid, (M,) and (n, M).
    """

    score: tuple[np.ndarray, np.ndarray]
    density: tuple[np.ndarray, np.ndarray]
    marginals: list[tuple[np.ndarray, np.ndarray]]
    draws: np.ndarray
    scores: np.ndarray
    mean_log_p: np.ndarray
    log_z: np.ndarray
    region_true: np.ndarray
    region_draws: np.ndarray


def draw_common(
    run: RunFolder, test: DensityTest, learned: Sequence[tuple[np.ndarray, np.ndarray | None]], metrics: Metrics
) -> None:
    """What deterministic and Bayesian runs have: marginals, grid and test set.

    Args:
        learned: the learned marginal density of each coordinate and its standard deviation, shapes (G,).
    """
    _draw_marginals(run, test, learned)
    _draw_grid(run, test, metrics)
    _draw_test(run, test, metrics)


def draw_uncertainties(run: RunFolder, test: PosteriorTest) -> None:
    """Energy, density, and their uncertainties over draws."""
    size = len(test.axis)
    score, density = (tuple(field.reshape(size, size) for field in pair) for pair in (test.score, test.density))
    figure, axes = new_figure(2, 3, panel=(4.2, 3.3))
    uncertainty_maps(axes, test.axis, test.axis, score, density)  # type: ignore[arg-type]
    names = ("score", "score_sigma", "density", "density_sigma")
    columns = dict(zip(names, (*test.score, *test.density), strict=True))
    save_figure(figure, run.figures, "uncertainties", _grid_columns(test) | columns)


def draw_coverage(run: RunFolder, test: PosteriorTest) -> None:
    """Pulls, coverage on the test set, and coverage by region."""
    pull, density_pull = pulls(test.draws, test.test_true), density_pulls(test.draws, test.test_true)
    figure, axes = new_figure()
    pull_histogram(axes[0, 0], {r"$\log p_\theta$": pull, r"$p_\theta$": density_pull})
    save_figure(figure, run.figures, "pulls", {"log_density": pull, "density": density_pull})
    levels = confidence_levels(len(test.draws))
    curves, columns = [], {"level": levels}
    for name, label, of_density in (("log_density", r"$\log p_\theta$", False), ("density", r"$p_\theta$", True)):
        found = [coverage(test.draws, test.test_true, levels, kind, of_density) for kind in ("quantile", "gaussian")]
        curves.append(Curve(label, *found))
        columns |= {f"{name}_quantile": found[0], f"{name}_gaussian": found[1]}
    figure, axes = new_figure()
    coverage_curves(axes[0, 0], levels, curves)
    save_figure(figure, run.figures, "coverage", columns)
    _draw_regions(run, test, levels, curves)


def _draw_regions(run: RunFolder, test: PosteriorTest, levels: np.ndarray, curves: list[Curve]) -> None:
    bands, size = regions(test.region_true), len(test.axis)
    found = [
        [coverage_by_region(test.region_draws, test.region_true, bands, levels, kind, of_density)
         for kind in ("quantile", "gaussian")] for of_density in (False, True)
    ]  # fmt: skip
    figure, axes = new_figure(2, 2)
    grid = (test.axis, test.axis, regions(test.grid_true).reshape(size, size))
    coverage_by_region_maps(axes, grid, levels, curves, found[0], found[1])
    columns = {"level": levels} | {f"region_{k}": row for k, row in enumerate(found[0][0])}
    save_figure(figure, run.figures, "coverage-regions", columns)


def grid_marginals(test: DensityTest) -> list[tuple[np.ndarray, np.ndarray]]:
    """True and learned marginal density in each coordinate, shape (G,), by summing over the other."""
    size = len(test.axis)
    width = float(test.axis[1] - test.axis[0])
    densities = [np.exp(log_p).reshape(size, size) for log_p in (test.grid_true, test.grid_model)]
    return [(densities[0].sum(axis=k) * width, densities[1].sum(axis=k) * width) for k in (1, 0)]


def _draw_marginals(run: RunFolder, test: DensityTest, learned: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> None:
    """Marginal densities, with a band of one standard deviation where there is one."""
    for k, ((true, _), (mean, band)) in enumerate(zip(grid_marginals(test), learned, strict=True), start=1):
        figure, axes = new_figure(2, 1, height_ratios=(3, 1), sharex=True)
        marginal(axes[0, 0], test.axis, true, mean, band, label=f"$x_{k}$", ratio_ax=axes[1, 0])
        columns = {f"x{k}": test.axis, "true": true, "learned": mean}
        save_figure(figure, run.figures, f"marginal-x{k}", columns if band is None else columns | {"sigma": band})


def _draw_grid(run: RunFolder, test: DensityTest, metrics: Metrics) -> None:
    bands = regions(test.grid_true)
    text = f"Pearson {metrics['pearson_grid'].value:.4f}"
    figure, axes = new_figure()
    likelihood_correlation(axes[0, 0], test.grid_true, test.grid_model, bands, text=text)
    columns = {"log_p_true": test.grid_true, "log_p_model": test.grid_model, "region": bands}
    save_figure(figure, run.figures, "grid-correlation", columns)
    figure, axes = new_figure()
    size = len(test.axis)
    region_map(axes[0, 0], test.axis, test.axis, bands.reshape(size, size))
    save_figure(figure, run.figures, "grid-regions", _grid_columns(test) | {"region": bands})


def _grid_columns(test: DensityTest) -> dict[str, np.ndarray]:
    size = len(test.axis)
    return {"x1": np.repeat(test.axis, size), "x2": np.tile(test.axis, size)}


def _draw_test(run: RunFolder, test: DensityTest, metrics: Metrics) -> None:
    deviation = relative_deviation(test.test_model, test.test_true)
    text = f"Pearson {metrics['pearson_test']}"
    figure, axes = new_figure()
    likelihood_correlation(axes[0, 0], test.test_true, test.test_model, limit=0.1, text=text)
    columns = {"log_p_true": test.test_true, "log_p_model": test.test_model, "deviation": deviation}
    save_figure(figure, run.figures, "test-correlation", columns)
    figure, axes = new_figure()
    deviation_map(axes[0, 0], test.test, np.abs(deviation) >= 0.1)
    save_figure(
        figure, run.figures, "test-deviation", {"x1": test.test[:, 0], "x2": test.test[:, 1], "deviation": deviation}
    )


def draw_density(run: RunFolder, test: DensityTest) -> None:
    """True and learned density side by side."""
    size = len(test.axis)
    true, learned = (np.exp(log_p) for log_p in (test.grid_true, test.grid_model))
    figure, axes = new_figure(1, 2)
    largest = float(max(true.max(), learned.max()))
    density_map(axes[0, 0], test.axis, test.axis, true.reshape(size, size), r"$p_\mathrm{true}(x)$", largest=largest)
    density_map(axes[0, 1], test.axis, test.axis, learned.reshape(size, size), largest=largest)
    save_figure(figure, run.figures, "density", _grid_columns(test) | {"true": true, "learned": learned})
