"""Where annealed importance sampling begins: a Gaussian fitted to events, or what the base of a table proposes."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normae.energy import autograd_value_and_grad
from normae.errors import InputError
from normae.networks.base import Base
from normae.random import normal


class GaussianBase(NamedTuple):
    """A Gaussian over events; in u it is f_0(u) = exp(-|u|^2/2), whose integral over all events is exp(log_z).

    Args:
        mean: with shape (*event,).
        cholesky: L of the covariance of flattened events, with shape (d, d), lower triangular.
    """

    mean: Tensor
    cholesky: Tensor

    @property
    def dimension(self) -> int:
        return len(self.cholesky)

    @property
    def log_z(self) -> float:
        """log (2 pi)^(d/2) |det L|."""
        return 0.5 * self.dimension * math.log(2 * math.pi) + float(self.cholesky.double().diagonal().log().sum())

    def along(self, grad: Tensor) -> Tensor:
        """A gradient by u, with shape (N, d)."""
        return grad.flatten(1) @ self.cholesky

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        """Standard normal u with shape (n, d)."""
        return normal((n, self.dimension), generator, self.cholesky)

    def value_and_grad(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """|u|^2/2 with shape (N,), float64, and u."""
        return 0.5 * u.double().square().sum(1), u

    def events(self, u: Tensor) -> Tensor:
        """x = m + L u with shape (N, *event) for u with shape (N, d)."""
        return (self.mean.flatten() + u @ self.cholesky.T).reshape(-1, *self.mean.shape)

    def coordinates(self, x: Tensor) -> Tensor:
        """u with shape (N, d) for x with shape (N, *event)."""
        residual = (x.flatten(1) - self.mean.flatten()).double().T
        u: Tensor = torch.linalg.solve_triangular(self.cholesky.double(), residual, upper=False).T
        return u.to(x.dtype).contiguous()


class Proposed(NamedTuple):
    """The proposal q of the base of a table's energy, which knows its groups; u are the events themselves."""

    base: Base
    log_z: float = 0.0

    @property
    def mean(self) -> Tensor:
        return self.base.frame.new_zeros(self.dimension)

    @property
    def dimension(self) -> int:
        return self.base.dimension

    def events(self, u: Tensor) -> Tensor:
        return u

    def coordinates(self, x: Tensor) -> Tensor:
        return x.contiguous()

    def along(self, grad: Tensor) -> Tensor:
        return grad

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        return self.base.propose(n, generator)

    def value_and_grad(self, u: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = autograd_value_and_grad(lambda y: -self.base.both(y)[1], u)
        return value.double(), grad


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
