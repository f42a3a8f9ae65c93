"""Gradient and curvature of an energy at events, from which its temperature follows (`statistics.thermometers`).

The laplacian is a second difference along random directions v of unit covariance,

    laplacian E(x) ~ < [E(x + h v) - 2 E(x) + E(x - h v)] / h^2 >_v,

exact in the mean for a quadratic energy at any h. ReLU, PReLU and pooling put part of the curvature into kinks, where a
second derivative by autograd is blind; differences see a kink whenever x - h v and x + h v lie on its two sides, and
the mean over events has what belongs to it. Energies should be float64: differences of float32 lose their digits.

In a subspace with orthonormal columns B, v = B u: the integration by parts behind the temperature holds in every fixed
direction. On a sphere, v is tangent and the step goes along the great circle.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normae.energy import Energy, value_and_grad
from normae.progress import counted
from normae.random import normal
from normae.tensors import norm

ROWS = 512
"""Events at a time."""
NUMBERS = 2**18
"""Features of all events at a time: the gradient of a convolutional network keeps some hundred times as many."""


class Curvature(NamedTuple):
    """At N events: |grad E|^2 and laplacian E, each with shape (N, k) by direction, or (N, 1) for their sum."""

    gradient_square: NDArray[np.float64]
    laplacian: NDArray[np.float64]

    def total(self) -> "Curvature":
        """Summed over directions, with shape (N, 1)."""
        return Curvature(*(part.sum(axis=1, keepdims=True) for part in self))


def curvature(
    energy: Energy,
    x: Tensor,
    width: float,
    generator: torch.Generator,
    directions: int = 8,
    sphere: bool = False,
) -> Curvature:
    """In all directions, summed: arrays with shape (N, 1).

    Args:
        energy: of events (N, *event).
        x: events with shape (N, *event); vectors of unit length where `sphere` is set.
        width: h, small against the lengths over which the energy changes.
        directions: random ones for each event.
        sphere: along the sphere instead of the space around it.
    """
    parts = [_random(energy, rows, width, generator, directions, sphere) for rows in _pieces(x)]
    squares, laplacians = zip(*parts, strict=True)
    return _arrays(torch.cat(squares)[:, None], torch.cat(laplacians)[:, None])


def curvature_along(energy: Energy, x: Tensor, basis: Tensor, width: Tensor) -> Curvature:
    """In each of k fixed directions: arrays with shape (N, k).

    Args:
        basis: orthonormal columns with shape (d, k), for events of d features.
        width: h of each direction, with shape (k,).
    """
    parts = [_along(energy, rows, basis, width) for rows in _pieces(x)]
    squares, laplacians = zip(*parts, strict=True)
    return _arrays(torch.cat(squares), torch.cat(laplacians))


def _pieces(x: Tensor) -> tuple[Tensor, ...]:
    return torch.split(x, max(1, min(ROWS, NUMBERS // max(1, x[0].numel()))))


def _arrays(square: Tensor, laplacian: Tensor) -> Curvature:
    return Curvature(square.double().cpu().numpy(), laplacian.double().cpu().numpy())


def _random(
    energy: Energy, x: Tensor, width: float, generator: torch.Generator, directions: int, sphere: bool
) -> tuple[Tensor, Tensor]:
    value, grad = value_and_grad(energy, x)
    if sphere:
        grad = _tangent(x, grad)
    total = torch.zeros_like(value)
    with torch.no_grad():
        for _ in counted("curvature", range(directions)):
            v = normal(x.shape, generator, x)
            v = _tangent(x, v) if sphere else v
            total += energy(_moved(x, v, width, sphere)) + energy(_moved(x, v, -width, sphere)) - 2 * value
    return grad.flatten(1).square().sum(1), total / (directions * width**2)


def _along(energy: Energy, x: Tensor, basis: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    value, grad = value_and_grad(energy, x)
    columns = []
    with torch.no_grad():
        for h, direction in zip(width, basis.T, strict=True):
            step = (h * direction).reshape(x.shape[1:])
            columns.append((energy(x + step) + energy(x - step) - 2 * value) / h**2)
    return (grad.flatten(1) @ basis).square(), torch.stack(columns, dim=1)


def _tangent(x: Tensor, v: Tensor) -> Tensor:
    """What is left of v (N, d) beside the direction of unit vectors x."""
    return v - (v * x).sum(1, keepdim=True) * x


def _moved(x: Tensor, v: Tensor, width: float, sphere: bool) -> Tensor:
    if not sphere:
        return x + width * v
    length = norm(v, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    angle = width * length
    return x * torch.cos(angle) + v / length * torch.sin(angle)
