"""Energies over the decoder's manifold, f_d(z) with z on the latent sphere, and whether a training sampled it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.config import Run
from normae.inference import Model
from normae.networks.reconstruction import ReconstructionEnergy
from normae.networks.scoring_energy import ScoringEnergy
from normae.random import normal, stream
from normae.runs.folder import RunFolder
from normae.statistics import Estimate, thermal_mean
from normae.statistics.arrays import Array
from normae.tensors import norm

EVEN_POINTS = 20_000
"""On the latent sphere."""
QUICK_POINTS = 5_000
"""The same where a mean is enough."""


def even_energies(energy: ReconstructionEnergy, like: Tensor, seed: int, points: int = EVEN_POINTS) -> Array:
    """E(f_d(z)) at points that are spread evenly over the sphere in which `like` (N, d_z) lies."""
    even = normal((points, like.shape[1]), stream(seed, "temperature/manifold", like.device), like)
    return latent_energies(energy, even / norm(even, keepdim=True))


@torch.no_grad()
def latent_energies(energy: ReconstructionEnergy, z: Tensor) -> Array:
    """E(f_d(z)) of latent points (N, d_z)."""
    inner = energy.latent()
    return np.asarray(torch.cat([inner(rows) for rows in torch.split(z, 512)]).double().cpu().numpy())


def late_mean(history: Sequence[dict[str, Any]], name: str) -> Estimate:
    """Mean of a logged number over the last tenth of the NAE phase; its error takes the lines for independent.

    What a rollback took back is not part of it: there the training stood at a later iteration than it did afterwards.
    """
    lines: list[dict[str, Any]] = []
    for line in history:
        if line.get("phase") == "training" and name in line:
            while lines and lines[-1]["iteration"] >= line["iteration"]:
                lines.pop()
            lines.append(line)
    values = np.array([line[name] for line in lines[-max(2, len(lines) // 10) :]], dtype=np.float64)
    if len(values) < 2:
        return Estimate(float(values.mean()) if len(values) else np.nan, np.nan)
    return Estimate(float(values.mean()), float(values.std(ddof=1)) / len(values) ** 0.5)


def chain_metrics(run: RunFolder, config: Run, model: Model) -> dict[str, Estimate]:
    """Energies of the last negative samples, and of samples at T on the decoder's manifold; none without a sphere.

    Chains that reach equilibrium on the manifold, and are then relaxed in feature space, end at or below its energy.
    What has no error is left out: a history of one line, a T so low that too few points count; and so are ensembles,
    whose members have a manifold each.
    """
    if config.ensemble is not None or not config.training.epochs or not model.autoencoder.sphere:
        return {}
    negative = late_mean(run.read_history(), "negative_energy")
    if not np.isfinite(negative.value):
        return {}
    z = torch.zeros(1, config.network.latent, device=model.device)
    found = even_energies(ScoringEnergy(model.autoencoder), z, config.seed, QUICK_POINTS)
    metrics = {"negative_energy": negative, "manifold_energy": thermal_mean(found, model.temperature)}
    return {name: one for name, one in metrics.items() if np.isfinite(one.error)}
