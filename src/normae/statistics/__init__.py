"""Measures of a learned density against a known one: pure functions of arrays, each number with its error."""

from normae.statistics.auc import auc, ideal_auc_from_kl
from normae.statistics.classifier import ClassifierResult, ClassifierSettings, classifier_test
from normae.statistics.density import (
    REGION_EDGES,
    grid_kl,
    kl_divergence,
    pearson,
    regions,
    relative_deviation,
    share_within,
)
from normae.statistics.estimate import Estimate, format_estimate

__all__ = [
    "REGION_EDGES",
    "ClassifierResult",
    "ClassifierSettings",
    "Estimate",
    "auc",
    "classifier_test",
    "format_estimate",
    "grid_kl",
    "ideal_auc_from_kl",
    "kl_divergence",
    "pearson",
    "regions",
    "relative_deviation",
    "share_within",
]
