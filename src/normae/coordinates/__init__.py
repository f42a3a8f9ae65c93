"""Coordinates: the fitted map from what a user has to what the energy sees, with its log-Jacobian."""

from normae.coordinates.base import Coordinates, Identity, Range
from normae.coordinates.config import CoordinatesConfig, fit_coordinates, read_coordinates
from normae.coordinates.table import TableCoordinates

__all__ = [
    "Coordinates",
    "CoordinatesConfig",
    "Identity",
    "Range",
    "TableCoordinates",
    "fit_coordinates",
    "read_coordinates",
]
