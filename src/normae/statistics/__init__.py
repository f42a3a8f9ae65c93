"""Measures of a learned density against a known one: pure functions of arrays, each number with its error."""

from normae.statistics.arrays import Estimate, few_mean, format_estimate, line_mean, sample_mean, share_within
from normae.statistics.auc import auc, auc_difference, background_efficiency, rejection, wasserstein, wasserstein_halves
from normae.statistics.calibration import IsotonicRecalibration, LinearRecalibration, Recalibration
from normae.statistics.density import REGION_EDGES, grid_kl, kl_divergence, pearson, regions, relative_deviation
from normae.statistics.dual import (
    BinnedResiduals,
    DualRule,
    Line,
    PairLines,
    RatioComparison,
    Verdict,
    balanced_pearson,
    binned_residuals,
    compare_ratios,
    fit_line,
    pair_histogram,
    pair_lines,
    share_outside,
    verdict,
    within_classes,
)
from normae.statistics.posterior import (
    CoverageBand,
    PullSummary,
    confidence_levels,
    coverage,
    coverage_by_region,
    coverage_over_trainings,
    largest_level,
    log_mean_and_width,
    mean_and_std,
    mixture_constants,
    pulls,
    pulls_over_trainings,
    relative_density_ratio,
)
from normae.statistics.thermometers import (
    Equipartition,
    SlopeLine,
    SlopePoint,
    configurational_temperature,
    equipartition,
    manifold_temperature,
    next_temperature,
    slope_line,
    thermal_mean,
    unit_slope_temperature,
)

__all__ = [
    "REGION_EDGES", "BinnedResiduals", "CoverageBand", "DualRule", "Equipartition", "Estimate", "IsotonicRecalibration",
    "Line", "LinearRecalibration", "PairLines", "PullSummary", "RatioComparison", "Recalibration", "SlopeLine",
    "SlopePoint", "Verdict", "auc", "auc_difference", "background_efficiency", "balanced_pearson", "binned_residuals",
    "compare_ratios", "confidence_levels", "configurational_temperature", "coverage", "coverage_by_region",
    "coverage_over_trainings", "equipartition", "few_mean", "fit_line", "format_estimate", "grid_kl", "kl_divergence",
    "largest_level", "line_mean", "log_mean_and_width", "manifold_temperature", "mean_and_std", "mixture_constants",
    "next_temperature", "pair_histogram", "pair_lines", "pearson", "pulls", "pulls_over_trainings", "regions",
    "rejection", "relative_density_ratio", "relative_deviation", "sample_mean", "share_outside", "share_within",
    "slope_line", "thermal_mean", "unit_slope_temperature", "verdict", "wasserstein", "wasserstein_halves",
    "within_classes",
]  # fmt: skip
