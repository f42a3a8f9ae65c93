"""Toy densities with an exact log p and an exact sampler, for tests of learned densities.

The paper's two-Gaussian toy, Eq. (true_prob_toy), and its single Gaussian are Gaussian mixtures.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from normae.errors import refuse


class Density(Protocol):
    """A normalized density that can be evaluated and sampled exactly."""

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) with shape (N,) for events of shape (N, d)."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` independent events with shape (n, d), float32."""


@dataclass(frozen=True)
class GaussianMixture:
    """Mixture of Gaussians in any dimension.

    Args:
        means: with shape (K, d).
        covariances: with shape (K, d, d), symmetric and positive definite.
        weights: with shape (K,); positive, normalized here.

    >>> import torch, normae.data
    >>> normae.data.GaussianMixture(torch.zeros(1, 1), torch.ones(1, 1, 1), torch.ones(1)).log_prob(torch.zeros(1, 1))
    tensor([-0.9189])
    """

    means: Tensor
    covariances: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        k, d = self.means.shape
        expected, got = ((k, d, d), (k,)), (tuple(self.covariances.shape), tuple(self.weights.shape))
        words = f"covariances of shape {expected[0]} and weights of shape {expected[1]}"
        refuse(got != expected, f"expected {words}, got {got[0]} and {got[1]}")
        refuse(not bool((self.weights > 0).all()), "expected positive mixture weights")

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) with shape (N,) for x with shape (N, d); computed in float64."""
        cholesky = torch.linalg.cholesky(self.covariances.double())
        residual = (x.double()[None] - self.means.double()[:, None]).transpose(1, 2)
        whitened = torch.linalg.solve_triangular(cholesky, residual, upper=False)
        log_norm = -cholesky.diagonal(dim1=1, dim2=2).log().sum(1) - 0.5 * self.means.shape[1] * math.log(2 * math.pi)
        log_weights = (self.weights / self.weights.sum()).double().log()
        parts = (log_weights + log_norm)[:, None] - 0.5 * whitened.square().sum(1)
        return torch.logsumexp(parts, dim=0).to(x.dtype)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` events with shape (n, d)."""
        component = torch.multinomial(self.weights.double(), n, replacement=True, generator=generator)
        noise = torch.randn(n, self.means.shape[1], generator=generator)
        cholesky = torch.linalg.cholesky(self.covariances)
        return self.means[component] + torch.einsum("nij,nj->ni", cholesky[component], noise)


def two_gaussians() -> GaussianMixture:
    """The paper's p_2G: equal weights, means (1.5, 1.5) and (-1.5, -1.5), variance 0.5.

    >>> import torch, normae.data
    >>> normae.data.two_gaussians().log_prob(torch.tensor([[1.5, 1.5]]))  # -log 2 pi, of one of the two
    tensor([-1.8379])
    """
    means = torch.tensor([[1.5, 1.5], [-1.5, -1.5]])
    return GaussianMixture(means, 0.5 * torch.eye(2).expand(2, 2, 2), torch.tensor([0.5, 0.5]))


def one_gaussian() -> GaussianMixture:
    """The paper's p_1G: a standard normal in two dimensions.

    >>> import torch, normae.data
    >>> normae.data.one_gaussian().log_prob(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    tensor([-1.8379, -3.8379])
    """
    return GaussianMixture(torch.zeros(1, 2), torch.eye(2)[None], torch.ones(1))


DENSITIES: Mapping[str, Callable[[], Density]] = {"two-gaussians": two_gaussians, "one-gaussian": one_gaussian}
"""The densities that a configuration can name."""
