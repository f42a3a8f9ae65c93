"""The Gaussian at which annealed importance sampling begins, fitted to events."""

from typing import NamedTuple

import torch
from torch import Tensor

from normae.errors import InputError


class GaussianBase(NamedTuple):
    """A Gaussian over events.

    Args:
        mean: with shape (*event,).
        cholesky: L of the covariance of flattened events, with shape (d, d), lower triangular.
    """

    mean: Tensor
    cholesky: Tensor

    @property
    def dimension(self) -> int:
        return len(self.cholesky)

    def events(self, u: Tensor) -> Tensor:
        """x = m + L u with shape (N, *event) for u with shape (N, d)."""
        return (self.mean.flatten() + u @ self.cholesky.T).reshape(-1, *self.mean.shape)

    def coordinates(self, x: Tensor) -> Tensor:
        """u with shape (N, d) for x with shape (N, *event)."""
        residual = (x.flatten(1) - self.mean.flatten()).double().T
        u: Tensor = torch.linalg.solve_triangular(self.cholesky.double(), residual, upper=False).T
        return u.to(x.dtype).contiguous()


def fit_base(events: Tensor, widen: float = 1.2) -> GaussianBase:
    """The Gaussian with mean and covariance of `events`, with shape (N, *event), and wider by the factor `widen`.

    A thousandth of the mean variance is added to every feature, so that constant or dependent features do not make it
    singular. Its dtype and device are those of the events, and so are those of the chains.
    """
    flat = events.flatten(1).double()
    if len(flat) < 2 or not bool(torch.isfinite(flat).all()):
        raise InputError(f"base: expected at least two finite events, got an array of shape {tuple(events.shape)}")
    covariance = torch.cov(flat.T).reshape(flat.shape[1], flat.shape[1])
    spread = float(covariance.diagonal().mean())
    if not spread > 0:
        raise InputError("base: expected events that differ from each other")
    covariance = covariance + 1e-3 * spread * torch.eye(len(covariance), dtype=covariance.dtype, device=flat.device)
    cholesky = widen * torch.linalg.cholesky(covariance)
    return GaussianBase(flat.mean(0).reshape(events.shape[1:]).to(events.dtype), cholesky.to(events.dtype))
