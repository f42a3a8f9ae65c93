"""The partition function on a grid, Z = int exp(-E(x)/T) dx over a box, by the midpoint rule in float64.

The error is the difference to the grid with half as many cells along each axis, which for the midpoint rule on a
smooth density overestimates the error of the finer one.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normae.energy import Energy
from normae.errors import InputError

CHUNK = 1 << 16


class LogZ(NamedTuple):
    """log Z and the error of its quadrature, over the box `bounds` for every feature."""

    value: float
    error: float
    bounds: tuple[float, float]


def cell_centres(bounds: tuple[float, float], cells: int) -> Tensor:
    """Centres of `cells` equal cells between the bounds, float64, shape (cells,)."""
    low, high = bounds
    return low + (torch.arange(cells, dtype=torch.float64) + 0.5) * ((high - low) / cells)


def grid_points(axis: Tensor, dimension: int) -> Tensor:
    """All points with coordinates on `axis`, float32, shape (len(axis)^d, d); the first coordinate runs slowest."""
    axes = torch.meshgrid(*[axis] * dimension, indexing="ij")
    return torch.stack(axes, dim=-1).reshape(-1, dimension).float()


@torch.no_grad()
def evaluate_in_chunks(function: Energy, x: Tensor, device: torch.device | str = "cpu", chunk: int = CHUNK) -> Tensor:
    """function(x) with shape (N,), in float64 on the CPU, in pieces of bounded memory."""
    return torch.cat([function(piece.to(device)).double().cpu() for piece in torch.split(x, chunk)])


def _grid_log_z(energy: Energy, temperature: float, bounds: tuple[float, float], dimension: int, cells: int,
                device: torch.device | str) -> float:  # fmt: skip
    points = grid_points(cell_centres(bounds, cells), dimension)
    exponent = -evaluate_in_chunks(energy, points, device) / temperature
    width = (bounds[1] - bounds[0]) / cells
    return float(torch.logsumexp(exponent, dim=0)) + dimension * math.log(width)


def grid_log_z(
    energy: Energy,
    temperature: float,
    bounds: tuple[float, float],
    dimension: int,
    cells: int = 1000,
    device: torch.device | str = "cpu",
) -> LogZ:
    """log Z over the box, for events that are vectors of one, two or three components.

    Args:
        cells: cells along each axis of the finer grid; an even number.
    """
    if not 1 <= dimension <= 3:
        raise InputError(f"a grid serves one to three dimensions, got {dimension}")
    if cells < 4 or cells % 2:
        raise InputError(f"cells: expected an even number of at least 4, got {cells}")
    coarse, fine = (_grid_log_z(energy, temperature, bounds, dimension, n, device) for n in (cells // 2, cells))
    return LogZ(fine, abs(fine - coarse), bounds)
