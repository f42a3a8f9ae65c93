"""Where events come from: toy densities with exact log p, arrays from files, and splits that cannot overlap."""

from normae.data.arrays import check_events, read_events
from normae.data.images import SparseEvents
from normae.data.splits import split
from normae.data.toys import DENSITIES, Density, GaussianMixture, Ring, Spiral, one_gaussian, two_gaussians

__all__ = [
    "DENSITIES",
    "Density",
    "GaussianMixture",
    "Ring",
    "SparseEvents",
    "Spiral",
    "check_events",
    "one_gaussian",
    "read_events",
    "split",
    "two_gaussians",
]
