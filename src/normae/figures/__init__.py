"""Figures: arrays and axes in, the axes out. Nothing here saves, and nothing uses pyplot's current figure."""

from normae.figures.coverage import Curve, coverage_by_region_maps, coverage_curves, pull_histogram, region_coverage
from normae.figures.curves import loss_curves, pretraining_curve, training_curves, training_energies
from normae.figures.densities import (
    density_map,
    deviation_map,
    likelihood_correlation,
    marginal,
    region_map,
    uncertainty_maps,
)
from normae.figures.jets import (
    ClassHistogram,
    ObservableSample,
    RocCurve,
    energy_histograms,
    observable_panels,
    picture_rows,
    roc_curves,
)
from normae.figures.ratios import (
    ComparedTemperatures,
    Contours,
    RatioSample,
    component_temperatures,
    ratio_correlation,
    ratio_histograms,
    ratio_outside_map,
    reliability_diagram,
    slope_against_temperature,
    temperature_estimates,
    temperatures_compared,
)
from normae.figures.scores import column_histograms, score_histograms, speed_bars
from normae.figures.style import PANEL, REGION_COLOURS, figure_style, new_figure

__all__ = [
    "PANEL", "REGION_COLOURS", "ClassHistogram", "ComparedTemperatures", "Contours", "Curve", "ObservableSample",
    "RatioSample", "RocCurve", "column_histograms", "component_temperatures", "coverage_by_region_maps",
    "coverage_curves", "density_map", "deviation_map", "energy_histograms", "figure_style",
    "likelihood_correlation", "loss_curves", "marginal", "new_figure", "observable_panels", "picture_rows",
    "pretraining_curve", "pull_histogram", "ratio_correlation", "ratio_histograms", "ratio_outside_map",
    "region_coverage", "region_map", "reliability_diagram", "roc_curves", "score_histograms",
    "slope_against_temperature", "speed_bars", "temperature_estimates", "temperatures_compared", "training_curves",
    "training_energies", "uncertainty_maps",
]  # fmt: skip
