"""From an energy to a density: log Z, log p, scores and samples."""

from normae.inference.bayesian import BayesianModel
from normae.inference.exact import grid_draws
from normae.inference.log_z import LogZ, cell_centres, evaluate_in_chunks, grid_log_z, grid_points
from normae.inference.model import Model

__all__ = [
    "BayesianModel",
    "LogZ",
    "Model",
    "cell_centres",
    "evaluate_in_chunks",
    "grid_draws",
    "grid_log_z",
    "grid_points",
]
