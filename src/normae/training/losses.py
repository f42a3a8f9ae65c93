"""The losses, as pure functions of energies and latent points, one value for each of S models.

The gradient of the negative log-likelihood, Eq. (training_ebm) of the paper, is that of

    L = (<E(x)>_data - <E(x)>_model) / T

with the negative samples held fixed. Added are the paper's regularizers: the mean square of latent points (positive and
negative), the sum of squared weights, and the mean square of the negative energies. In the "plain" form the first term
is not divided by T; the regularizers are never rescaled. The temperature is trained on the same L with detached
energies; with t = log T, dL/dt = -(E+ - E-)/T.
"""

from torch import Tensor

from normae.tensors import norm
from normae.training.config import PhaseConfig, TrainingConfig


def by_member(values: Tensor, members: int) -> Tensor:
    """Mean over the block of each model, (S * B, ...) -> (S,)."""
    return values.reshape(members, -1).mean(1)


def regularizers(weights: Tensor, latent: list[Tensor], config: PhaseConfig) -> Tensor:
    """Latent and L2 penalties with shape (S,), for weights (S, P) and latent points (S * B, d_z)."""
    members = weights.shape[0]
    total = weights.new_zeros(members)
    if config.latent_penalty > 0:
        for z in latent:
            total = total + config.latent_penalty * by_member(z.square(), members)
    if config.l2_penalty > 0:
        total = total + config.l2_penalty * weights.square().sum(1)
    return total


def contrastive(positive: Tensor, negative: Tensor, temperature: Tensor, config: TrainingConfig) -> Tensor:
    """The likelihood term and the negative-energy penalty, (S,), for energies (S * B,) and temperatures (S,)."""
    members = len(temperature)
    gap = by_member(positive, members) - by_member(negative, members)
    if config.loss_scale == "temperature":
        gap = gap / temperature
    if config.negative_penalty > 0:
        gap = gap + config.negative_penalty * by_member(negative.square(), members)
    return gap


def temperature_gradient(positive: Tensor, negative: Tensor, temperature: Tensor) -> Tensor:
    """dL/dlog T with shape (S, 1)."""
    members = len(temperature)
    gap = by_member(positive, members) - by_member(negative, members)
    slope: Tensor = -gap / temperature
    return slope.detach()[:, None]


def clip_rows(grad: Tensor, largest: float | None) -> Tensor:
    """The gradient of each model, (S, P), limited in norm."""
    if largest is None:
        return grad
    scale: Tensor = largest / norm(grad, keepdim=True).clamp_min(largest)
    return grad * scale
