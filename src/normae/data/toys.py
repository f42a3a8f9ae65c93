"""Toy densities with an exact log p and an exact sampler, for tests of learned densities.

The paper's two-Gaussian toy, Eq. (true_prob_toy), and its single Gaussian are special cases of a Gaussian
mixture. Two harder ones are normalized in closed form:

* the ring, p(x) = exp(-(r - R)^2 / 2w^2) / Z with r = |x| in two dimensions, where
  Z = 2 pi int_0^inf r exp(-(r - R)^2 / 2w^2) dr = 2 pi [w^2 exp(-R^2 / 2w^2) + R w sqrt(pi/2) (1 + erf(R / w sqrt 2))];
* the spiral, a Gaussian of width s whose angle is modulated along two arms,
  p(x) = N(x | 0, s^2) exp(kappa cos(2 (phi - k r))) / I_0(kappa). The modulation averages to one over the angle at
  every radius, so the product is normalized.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from normae.errors import InputError
from normae.tensors import norm


class Density(Protocol):
    """A normalized density that can be evaluated and sampled exactly."""

    @property
    def dimension(self) -> int: ...

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
        if self.covariances.shape != (k, d, d) or self.weights.shape != (k,):
            raise InputError(
                f"expected covariances of shape {(k, d, d)} and weights of shape {(k,)}, "
                f"got {tuple(self.covariances.shape)} and {tuple(self.weights.shape)}"
            )
        if not bool((self.weights > 0).all()):
            raise InputError("expected positive mixture weights")

    @property
    def dimension(self) -> int:
        return int(self.means.shape[1])

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) with shape (N,) for x with shape (N, d); computed in float64."""
        x64 = x.double()
        cholesky = torch.linalg.cholesky(self.covariances.double())
        residual = (x64[None] - self.means.double()[:, None]).transpose(1, 2)
        whitened = torch.linalg.solve_triangular(cholesky, residual, upper=False)
        log_det = cholesky.diagonal(dim1=1, dim2=2).log().sum(1)
        log_norm = -log_det - 0.5 * self.dimension * math.log(2 * math.pi)
        log_weights = (self.weights / self.weights.sum()).double().log()
        parts = (log_weights + log_norm)[:, None] - 0.5 * whitened.square().sum(1)
        return torch.logsumexp(parts, dim=0).to(x.dtype)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` events with shape (n, d)."""
        component = torch.multinomial(self.weights.double(), n, replacement=True, generator=generator)
        noise = torch.randn(n, self.dimension, generator=generator)
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


def _rejection(
    propose: Callable[[int], Tensor], log_accept: Callable[[Tensor], Tensor], n: int, generator: torch.Generator
) -> Tensor:
    """`n` exact draws by rejection: proposals are kept with probability exp(log_accept)."""
    kept: list[Tensor] = []
    missing = n
    while missing > 0:
        proposal = propose(2 * missing + 64)
        uniform = torch.rand(len(proposal), generator=generator)
        accepted = proposal[uniform.log() < log_accept(proposal)][:missing]
        kept.append(accepted)
        missing -= len(accepted)
    return torch.cat(kept)


@dataclass(frozen=True)
class Ring:
    """A ring of radius `radius` and radial width `width` in two dimensions.

    >>> import torch, normae.data
    >>> normae.data.Ring(radius=2.0, width=0.3).log_prob(torch.tensor([[2.0, 0.0], [0.0, 2.3]]))
    tensor([-2.2460, -2.7460])
    """

    radius: float = 2.0
    width: float = 0.3
    dimension: ClassVar[int] = 2

    @property
    def log_z(self) -> float:
        r, w = self.radius, self.width
        tail = w * w * math.exp(-(r * r) / (2 * w * w))
        body = r * w * math.sqrt(math.pi / 2) * (1 + math.erf(r / (w * math.sqrt(2))))
        return math.log(2 * math.pi * (tail + body))

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) with shape (N,) for x with shape (N, 2)."""
        return -((norm(x) - self.radius) ** 2) / (2 * self.width**2) - self.log_z

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` events with shape (n, 2). The radius is N(R, w) accepted in proportion to r, cut ten widths out."""
        largest = self.radius + 10 * self.width
        radius = _rejection(
            lambda m: self.radius + self.width * torch.randn(m, generator=generator),
            lambda r: (r / largest).clamp(0, 1).log(),
            n,
            generator,
        )
        angle = 2 * math.pi * torch.rand(n, generator=generator)
        return radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)


@dataclass(frozen=True)
class Spiral:
    """A Gaussian of width `scale` whose angle follows two spiral arms, in two dimensions.

    Args:
        scale: width of the Gaussian envelope.
        pitch: turn of the arms, in radians for each unit of radius.
        concentration: kappa of the angular modulation; 0 is the plain Gaussian.

    >>> import torch, normae.data
    >>> normae.data.Spiral(scale=1.0, concentration=0.0).log_prob(torch.zeros(1, 2))
    tensor([-1.8379])
    """

    scale: float = 1.2
    pitch: float = 1.0
    concentration: float = 2.0
    dimension: ClassVar[int] = 2

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) with shape (N,) for x with shape (N, 2)."""
        radius = norm(x)
        angle = torch.atan2(x[:, 1], x[:, 0])
        kappa = torch.tensor(self.concentration, dtype=torch.float64)
        log_i0 = float(torch.special.i0e(kappa).log() + kappa)
        envelope = -radius.square() / (2 * self.scale**2) - math.log(2 * math.pi * self.scale**2)
        return envelope + self.concentration * torch.cos(2 * (angle - self.pitch * radius)) - log_i0

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` events with shape (n, 2): an angle relative to the arms by rejection, a Rayleigh radius."""
        radius = self.scale * norm(torch.randn(n, 2, generator=generator))
        turn = _rejection(
            lambda m: 2 * math.pi * torch.rand(m, generator=generator),
            lambda angle: self.concentration * (torch.cos(2 * angle) - 1),
            n,
            generator,
        )
        angle = turn + self.pitch * radius
        return radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)


DENSITIES: Mapping[str, Callable[[], Density]] = {
    "two-gaussians": two_gaussians,
    "one-gaussian": one_gaussian,
    "ring": Ring,
    "spiral": Spiral,
}
"""The densities that a configuration can name."""
