"""From an energy to a density: log Z, log p, scores and samples."""

from normae.inference.bayesian import BayesianModel
from normae.inference.exact import grid_draws
from normae.inference.laplace import Laplace, LaplaceConfig, LaplacePosterior, fit_laplace
from normae.inference.log_z import LogZ, cell_centres, evaluate_in_chunks, grid_log_z, grid_points
from normae.inference.model import Model
from normae.inference.posterior import Ensemble, MeanField, Posterior, Swag

__all__ = [
    "BayesianModel",
    "Ensemble",
    "Laplace",
    "LaplaceConfig",
    "LaplacePosterior",
    "LogZ",
    "MeanField",
    "Model",
    "Posterior",
    "Swag",
    "cell_centres",
    "evaluate_in_chunks",
    "fit_laplace",
    "grid_draws",
    "grid_log_z",
    "grid_points",
]
