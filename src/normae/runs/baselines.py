"""Did the pretraining converge: the error of the autoencoder on the validation sample against two linear models.

The mean event alone, and as many principal components as the latent space has dimensions (five for the paper's sphere
of six). An autoencoder that does not reach the second line has not learned more than a matrix would.
"""

import numpy as np
import torch

from normae.config import Run
from normae.data import linear_errors
from normae.sources import Events

Baselines = dict[str, dict[str, float]]


def latent_dimensions(config: Run) -> int:
    """Dimensions of the latent space: a sphere in d_z dimensions has one less."""
    return config.network.latent - (config.network.latent_space == "sphere")


def baselines(config: Run, events: Events, device: torch.device) -> Baselines:
    """Mean errors of the linear models on the validation sample, with their standard errors; nothing without one."""
    k = latent_dimensions(config)
    if events.validation is None or k >= int(np.prod(events.train.shape[1:])):
        return {}
    found = linear_errors(events.train, events.validation, (0, k), device)
    names = ("mse_mean_event", f"mse_{k}_components")
    return {
        name: {"value": float(e.mean()), "error": float(e.std() / len(e) ** 0.5)}
        for name, e in zip(names, found, strict=True)
    }
