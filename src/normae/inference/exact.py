"""Exact draws from a density on a grid: a cell by its probability, then a point uniform in the cell."""

import torch
from torch import Tensor

from normae.energy import Energy
from normae.inference.log_z import cell_centres, evaluate_in_chunks, grid_points
from normae.random import uniform


def grid_draws(
    energy: Energy,
    temperature: float,
    bounds: tuple[float, float],
    dimension: int,
    n: int,
    generator: torch.Generator,
    cells: int = 1000,
    device: torch.device | str = "cpu",
) -> Tensor:
    """`n` events with shape (n, d), float32, independent and free of any chain, up to the width of a cell."""
    centres = grid_points(cell_centres(bounds, cells), dimension)
    weight = torch.softmax(-evaluate_in_chunks(energy, centres, device) / temperature, dim=0)
    cumulative = weight.cumsum(0)
    u = uniform((n,), generator, cumulative)
    index = torch.searchsorted(cumulative, u * cumulative[-1], right=True).clamp_max(len(cumulative) - 1)
    width = (bounds[1] - bounds[0]) / cells
    return centres[index] + (uniform((n, dimension), generator, centres) - 0.5) * width
