"""From an energy to a density: log Z, log p, scores and samples."""

from normae.inference.ais import AISConfig, AISResult, GaussianBase, ais_log_z, fit_base
from normae.inference.generation import loosened
from normae.inference.log_z import (
    LogZ,
    cell_centres,
    choose_log_z,
    evaluate_in_chunks,
    grid_draws,
    grid_log_z,
    grid_points,
    grid_serves,
    proposed_log_z,
)
from normae.inference.model import BayesianModel, Model
from normae.posterior.draw import Rows

__all__ = [
    "AISConfig", "AISResult", "BayesianModel", "GaussianBase", "LogZ", "Model", "Rows", "ais_log_z",
    "cell_centres", "choose_log_z", "evaluate_in_chunks", "fit_base", "grid_draws", "grid_log_z", "grid_points",
    "grid_serves", "loosened", "proposed_log_z",
]  # fmt: skip
