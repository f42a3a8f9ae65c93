"""Measures of a learned density against a known one: pure functions of arrays, each number with its error."""

from normae.statistics.arrays import LabelsMissing, LengthsDiffer, OneClassOnly
from normae.statistics.auc import auc, auc_difference, background_efficiency, ideal_auc_from_kl, rejection
from normae.statistics.calibration import (
    CalibrationError,
    IsotonicRecalibration,
    LinearRecalibration,
    Recalibration,
    Reliability,
    calibration_error,
    class_probability,
    cross_entropy,
    equal_count_edges,
    fit_isotonic,
    fit_platt,
    fit_temperature,
    reliability,
)
from normae.statistics.coverage import (
    CoverageBand,
    PullSummary,
    TooFewDraws,
    confidence_levels,
    coverage,
    coverage_by_region,
    coverage_over_trainings,
    critical_levels,
    largest_level,
    pulls_over_trainings,
)
from normae.statistics.density import (
    REGION_EDGES,
    grid_kl,
    kl_divergence,
    pearson,
    regions,
    relative_deviation,
    share_within,
)
from normae.statistics.distance import wasserstein, wasserstein_halves
from normae.statistics.dual import (
    BinnedResiduals,
    DualRule,
    Line,
    RatioComparison,
    Verdict,
    balanced_pearson,
    binned_residuals,
    compare_ratios,
    fit_line,
    share_outside,
    verdict,
)
from normae.statistics.estimate import Estimate, format_estimate
from normae.statistics.pairs import (
    PairLines,
    RatioBand,
    pair_histogram,
    pair_lines,
    ratio_histogram,
)
from normae.statistics.posterior import (
    RelativeDensityCheck,
    density_mean_and_std,
    density_pulls,
    log_mean_density,
    mean_and_std,
    pulls,
    relative_density_check,
)
from normae.statistics.thermometers import (
    Equipartition,
    ManifoldTemperature,
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
from normae.statistics.weights import mixture_constants

__all__ = [
    "REGION_EDGES", "BinnedResiduals", "CalibrationError", "CoverageBand", "DualRule", "Equipartition", "Estimate",
    "IsotonicRecalibration", "LabelsMissing", "LengthsDiffer", "Line", "LinearRecalibration", "ManifoldTemperature",
    "OneClassOnly", "PairLines", "PullSummary", "RatioBand", "RatioComparison", "Recalibration", "RelativeDensityCheck",
    "Reliability", "SlopeLine", "SlopePoint", "TooFewDraws", "Verdict", "auc", "auc_difference",
    "background_efficiency", "balanced_pearson", "binned_residuals", "calibration_error", "class_probability",
    "compare_ratios", "confidence_levels", "configurational_temperature", "coverage", "coverage_by_region",
    "coverage_over_trainings", "critical_levels", "cross_entropy", "density_mean_and_std", "density_pulls",
    "equal_count_edges", "equipartition", "fit_isotonic", "fit_line", "fit_platt", "fit_temperature", "format_estimate",
    "grid_kl", "ideal_auc_from_kl", "kl_divergence", "largest_level", "log_mean_density",
    "manifold_temperature", "mean_and_std", "mixture_constants", "next_temperature", "pair_histogram", "pair_lines",
    "pearson", "pulls", "pulls_over_trainings", "ratio_histogram", "regions", "rejection",
    "relative_density_check", "relative_deviation", "reliability", "share_outside", "share_within", "slope_line",
    "thermal_mean", "unit_slope_temperature", "verdict", "wasserstein", "wasserstein_halves",
]  # fmt: skip
