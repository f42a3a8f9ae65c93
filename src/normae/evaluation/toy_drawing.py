"""The figures of a run: those of sections 3.2 and 3.3 and of appendix C.1, and the course of the training."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from normae.evaluation.toy import DensityTest
from normae.evaluation.toy_posterior import PosteriorTest
from normae.figures import (
    Curve,
    coverage_by_region_maps,
    coverage_curves,
    density_map,
    deviation_map,
    figure_style,
    likelihood_correlation,
    marginal,
    new_figure,
    pull_histogram,
    region_map,
    training_curves,
    uncertainty_maps,
)
from normae.report import save_figure
from normae.runs.baselines import draw_pretraining
from normae.runs.folder import RunFolder
from normae.statistics import (
    Estimate,
    confidence_levels,
    coverage,
    coverage_by_region,
    density_pulls,
    pulls,
    regions,
    relative_deviation,
)

Test = DensityTest | PosteriorTest


def draw_run(run: RunFolder, test: DensityTest, metrics: dict[str, Estimate]) -> None:
    """Write every figure of the run into its figures/ folder."""
    with figure_style():
        _draw_marginals(run, test, [(learned, None) for _, learned in _marginals(test)])
        _draw_grid(run, test, metrics)
        _draw_test(run, test, metrics)
        _draw_density(run, test)
        draw_training(run)


def draw_posterior(run: RunFolder, test: PosteriorTest, metrics: dict[str, Estimate]) -> None:
    """Write every figure of a Bayesian run into its figures/ folder."""
    with figure_style():
        _draw_marginals(run, test, test.marginals)
        _draw_grid(run, test, metrics)
        _draw_test(run, test, metrics)
        _draw_uncertainties(run, test)
        _draw_coverage(run, test)
        draw_training(run)


def _draw_uncertainties(run: RunFolder, test: PosteriorTest) -> None:
    size = len(test.axis)
    score, density = (tuple(field.reshape(size, size) for field in pair) for pair in (test.score, test.density))
    figure, axes = new_figure(2, 3, panel=(4.2, 3.3))
    uncertainty_maps(axes, test.axis, test.axis, score, density)  # type: ignore[arg-type]
    names = ("score", "score_sigma", "density", "density_sigma")
    columns = dict(zip(names, (*test.score, *test.density), strict=True))
    save_figure(figure, run.figures, "uncertainties", _grid_columns(test) | columns)


def _draw_coverage(run: RunFolder, test: PosteriorTest) -> None:
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


def _marginals(test: Test) -> list[tuple[np.ndarray, np.ndarray]]:
    """True and learned marginal density in each coordinate, shape (G,), by summing over the other."""
    size = len(test.axis)
    width = float(test.axis[1] - test.axis[0])
    densities = [np.exp(log_p).reshape(size, size) for log_p in (test.grid_true, test.grid_model)]
    return [(densities[0].sum(axis=k) * width, densities[1].sum(axis=k) * width) for k in (1, 0)]


def _draw_marginals(run: RunFolder, test: Test, learned: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> None:
    """Marginal densities, with a band of one standard deviation where there is one."""
    for k, ((true, _), (mean, band)) in enumerate(zip(_marginals(test), learned, strict=True), start=1):
        figure, axes = new_figure(2, 1, height_ratios=(3, 1), sharex=True)
        marginal(axes[0, 0], test.axis, true, mean, band, label=f"$x_{k}$", ratio_ax=axes[1, 0])
        columns = {f"x{k}": test.axis, "true": true, "learned": mean}
        save_figure(figure, run.figures, f"marginal-x{k}", columns if band is None else columns | {"sigma": band})


def _draw_grid(run: RunFolder, test: Test, metrics: dict[str, Estimate]) -> None:
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


def _grid_columns(test: Test) -> dict[str, np.ndarray]:
    size = len(test.axis)
    return {"x1": np.repeat(test.axis, size), "x2": np.tile(test.axis, size)}


def _draw_test(run: RunFolder, test: Test, metrics: dict[str, Estimate]) -> None:
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


def _draw_density(run: RunFolder, test: DensityTest) -> None:
    size = len(test.axis)
    true, learned = (np.exp(log_p) for log_p in (test.grid_true, test.grid_model))
    figure, axes = new_figure(1, 2)
    largest = float(max(true.max(), learned.max()))
    density_map(axes[0, 0], test.axis, test.axis, true.reshape(size, size), r"$p_\mathrm{true}(x)$", largest=largest)
    density_map(axes[0, 1], test.axis, test.axis, learned.reshape(size, size), largest=largest)
    save_figure(figure, run.figures, "density", _grid_columns(test) | {"true": true, "learned": learned})


def draw_training(run: RunFolder) -> None:
    """The course of pretraining and training."""
    draw_pretraining(run)
    records = [line for line in run.read_history() if line.get("phase") == "training" and "rollback" not in line]
    if not records:
        return
    figure, axes = new_figure(1, 3)
    training_curves(axes[0], records)
    names = [name for name, value in records[0].items() if isinstance(value, int | float)]
    columns: dict[str, Any] = {name: np.array([record[name] for record in records]) for name in names}
    save_figure(figure, run.figures, "training", columns)
