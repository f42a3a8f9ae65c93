"""The figures of a run: figures 1 to 3 of the paper, the learned density, and the course of the training."""

from typing import Any

import numpy as np

from normae.figures import (
    density_map,
    deviation_map,
    figure_style,
    likelihood_correlation,
    marginal,
    new_figure,
    region_map,
    training_curves,
)
from normae.report import save_figure
from normae.runs import RunFolder
from normae.statistics import Estimate, regions, relative_deviation
from normae.workflow.evaluate import DensityTest


def draw_run(run: RunFolder, test: DensityTest, metrics: dict[str, Estimate]) -> None:
    """Write every figure of the run into its figures/ folder."""
    with figure_style():
        _draw_marginals(run, test)
        _draw_grid(run, test, metrics)
        _draw_test(run, test, metrics)
        _draw_density(run, test)
        _draw_training(run)


def _marginals(test: DensityTest) -> list[tuple[np.ndarray, np.ndarray]]:
    """True and learned marginal density in each coordinate, shape (G,), by summing over the other."""
    size = len(test.axis)
    width = float(test.axis[1] - test.axis[0])
    densities = [np.exp(log_p).reshape(size, size) for log_p in (test.grid_true, test.grid_model)]
    return [(densities[0].sum(axis=k) * width, densities[1].sum(axis=k) * width) for k in (1, 0)]


def _draw_marginals(run: RunFolder, test: DensityTest) -> None:
    for k, (true, learned) in enumerate(_marginals(test), start=1):
        figure, axes = new_figure(2, 1, height_ratios=(3, 1), sharex=True)
        marginal(axes[0, 0], test.axis, true, learned, label=f"$x_{k}$", ratio_ax=axes[1, 0])
        columns = {f"x{k}": test.axis, "true": true, "learned": learned}
        save_figure(figure, run.figures, f"marginal-x{k}", columns)


def _draw_grid(run: RunFolder, test: DensityTest, metrics: dict[str, Estimate]) -> None:
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


def _draw_test(run: RunFolder, test: DensityTest, metrics: dict[str, Estimate]) -> None:
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


def _draw_training(run: RunFolder) -> None:
    records = [line for line in run.read_history() if line.get("phase") == "training" and "rollback" not in line]
    if not records:
        return
    figure, axes = new_figure(1, 3)
    training_curves(axes[0], records)
    names = [name for name, value in records[0].items() if isinstance(value, int | float)]
    columns: dict[str, Any] = {name: np.array([record[name] for record in records]) for name in names}
    save_figure(figure, run.figures, "training", columns)
