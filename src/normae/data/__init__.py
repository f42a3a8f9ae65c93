"""Where events come from: toy densities with exact log p, arrays from files, and splits that cannot overlap."""

from normae.data.frames import Rows, as_rows, split
from normae.data.images import SparseEvents, linear_errors
from normae.data.table import Table
from normae.data.tables import open_table, read_rows, read_table
from normae.data.toys import DENSITIES, Density, GaussianMixture, one_gaussian, two_gaussians

__all__ = [
    "DENSITIES", "Density", "GaussianMixture", "Rows", "SparseEvents", "Table", "as_rows", "linear_errors",
    "one_gaussian", "open_table", "read_rows", "read_table", "split", "two_gaussians",
]  # fmt: skip
