"""The figures of `normae temperature`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from normae.figures import (
    component_temperatures,
    figure_style,
    new_figure,
    slope_against_temperature,
    temperature_estimates,
)
from normae.report import SavedFigure, save_figure
from normae.statistics import Estimate, SlopeLine, SlopePoint
from normae.temperature.estimates import Temperatures


def draw_temperatures(found: Temperatures, folder: Path) -> SavedFigure:
    """figures/temperature: every estimate, and that of each component of the residuals."""
    with figure_style():
        figure, axes = new_figure(1, 2, panel=(4.8, 3.5))
        temperature_estimates(axes[0, 0], found.estimates, found.model)
        component_temperatures(axes[0, 1], found.by_component, found.model)
        names = [*found.estimates, *(f"component {k + 1}" for k in range(len(found.by_component)))]
        rows = [*found.estimates.values(), *found.by_component]
        columns = {
            "estimate": np.array(names),
            "temperature": np.array([e.value for e in rows]),
            "error": np.array([e.error for e in rows]),
            "model": np.full(len(rows), found.model),
        }
        return save_figure(figure, folder, "temperature", columns)


def draw_slopes(points: Sequence[SlopePoint], line: SlopeLine | None, root: Estimate, folder: Path) -> SavedFigure:
    """figures/slope: the slope of the dual test against the temperature of the trainings."""
    with figure_style():
        figure, axes = new_figure()
        slope_against_temperature(axes[0, 0], points, line, root)
        columns = {
            "temperature": np.array([point.temperature for point in points]),
            "slope": np.array([point.slope.value for point in points]),
            "error": np.array([point.slope.error for point in points]),
        }
        return save_figure(figure, folder, "slope", columns)
