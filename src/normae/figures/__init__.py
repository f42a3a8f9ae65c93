"""Figures: arrays and axes in, the axes out. Nothing here saves, and nothing uses pyplot's current figure."""

from normae.figures.curves import training_curves
from normae.figures.likelihood import likelihood_correlation
from normae.figures.maps import density_map, deviation_map, region_map
from normae.figures.marginals import marginal
from normae.figures.style import PANEL, REGION_COLOURS, figure_style, new_figure

__all__ = [
    "PANEL",
    "REGION_COLOURS",
    "density_map",
    "deviation_map",
    "figure_style",
    "likelihood_correlation",
    "marginal",
    "new_figure",
    "region_map",
    "training_curves",
]
