"""From an energy to a density: log Z, log p, scores and samples."""

from normae.inference.ais import AISConfig, AISResult, GaussianBase, ais_log_z, fit_base
from normae.inference.bayesian import BayesianModel
from normae.inference.classifier import Classifier
from normae.inference.exact import grid_draws
from normae.inference.laplace import Laplace, LaplaceConfig, LaplacePosterior, fit_laplace
from normae.inference.log_z import LogZ, cell_centres, evaluate_in_chunks, grid_log_z, grid_points
from normae.inference.model import Model
from normae.inference.modes import ModeDraws, Modes, together
from normae.inference.posterior import Ensemble, MeanField, Posterior, Swag
from normae.inference.scoring import ScoringEnergy
from normae.inference.temperature import Curvature, curvature, curvature_along

__all__ = [
    "AISConfig",
    "AISResult",
    "BayesianModel",
    "Classifier",
    "Curvature",
    "Ensemble",
    "GaussianBase",
    "Laplace",
    "LaplaceConfig",
    "LaplacePosterior",
    "LogZ",
    "MeanField",
    "ModeDraws",
    "Model",
    "Modes",
    "Posterior",
    "ScoringEnergy",
    "Swag",
    "ais_log_z",
    "cell_centres",
    "curvature",
    "curvature_along",
    "evaluate_in_chunks",
    "fit_base",
    "fit_laplace",
    "grid_draws",
    "grid_log_z",
    "grid_points",
    "together",
]
