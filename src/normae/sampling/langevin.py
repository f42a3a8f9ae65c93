"""One step of a Metropolis-adjusted Langevin chain on p(x) = exp(-E(x)/T)/Z.

The proposal is a drift and a kick, Eq. (lmc) of the paper,

    y = x - (lambda/T) g(x) + sigma eps,

with g the gradient of E, clipped or not. It is accepted, for each sample on its own, with probability min(1, a),

    log a = -(E(y) - E(x))/T + (|y - x + (lambda/T) g(x)|^2 - |x - y + (lambda/T) g(y)|^2) / (2 sigma^2).

This holds for any deterministic g that is the same function both ways, so a clipped gradient stays exact, and for any
sigma. Steps that leave the bounds are refused (exact) or clamped to the edge (not exact: the proposal density changes).

On the unit sphere the step is a tangent vector v = P_x(-(lambda/T) g(x) + sigma eps) and y = cos|v| x + sin|v| v/|v|.
The way back is the transported vector v' = -(cos|v| v - |v| sin|v| x) at y. The volume factor of the exponential map,
(sin|v|/|v|)^(d-2), depends on |v| = |v'| only and cancels; steps with |v| >= pi are refused, since there the map is
not one to one. So

    log a = -(E(y) - E(x))/T + (|v - m(x)|^2 - |v' - m(y)|^2) / (2 sigma^2),   m(x) = P_x(-(lambda/T) g(x)).
"""

import math
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from normae.energy import Energy, value_and_grad
from normae.sampling.config import ChainConfig
from normae.tensors import Generators, norm, normal, sum_features, uniform

Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])
Scalar = float | Tensor
"""One number for all samples, or a tensor with shape (N,) or (1,)."""


class LangevinState(NamedTuple):
    """Positions (N, *event), with the energies (N,) and the clipped gradients (N, *event) already computed there."""

    position: Tensor
    energy: Tensor
    grad: Tensor


class Scale(NamedTuple):
    """The numbers of a step: -lambda/T and sigma, which multiply events; T and 2 sigma^2, in float64, of samples."""

    drift: Scalar
    noise: Scalar
    temperature: Scalar
    variance: Scalar

    @classmethod
    def of(cls, temperature: Scalar, step_size: Scalar, noise: Scalar, like: Tensor) -> "Scale":
        """For temperature T, step size lambda and noise sigma, and events like `like`, with shape (N, *event)."""
        drift, kick = _per_sample(-step_size / temperature, like), _per_sample(noise, like)
        return cls(drift, kick, _double(temperature), 2 * _double(noise) ** 2)


class Move(NamedTuple):
    """A proposal: the new point, the displacement to it and back from it, and whether it may be accepted, (N,)."""

    position: Tensor
    there: Tensor
    back: Tensor
    valid: Tensor | None


def clip_gradient(grad: Tensor, config: ChainConfig) -> Tensor:
    """The gradient (N, *event) limited to `config.clip` by the chosen rule; a zero gradient stays zero."""
    if config.clip is None:
        return grad
    if config.clip_rule == "value":
        return grad.clamp(-config.clip, config.clip)
    if config.clip_rule == "row":
        length = norm(grad, keepdim=True)
    else:
        length = _per_sample(norm(grad.flatten(1)), grad)
    scale: Tensor = config.clip / length.clamp_min(config.clip)
    return grad * scale


def _per_sample(value: Scalar, like: Tensor) -> Any:
    """`value` so that it multiplies events of shape (N, *event)."""
    if isinstance(value, Tensor) and value.ndim == 1:
        return value.reshape(-1, *[1] * (like.ndim - 1))
    return value


def _double(value: Scalar) -> Scalar:
    return value.double() if isinstance(value, Tensor) else value


def tangent(x: Tensor, v: Tensor) -> Tensor:
    """What is left of v (N, d) beside the direction of unit vectors x."""
    return v - (v * x).sum(1, keepdim=True) * x


def geodesic_move(x: Tensor, v: Tensor) -> Move:
    """Along the great circle from unit vectors x (N, d) by tangent vectors v."""
    length = norm(v, keepdim=True)
    direction = v / length.clamp_min(torch.finfo(v.dtype).tiny)
    y = length.cos() * x + length.sin() * direction
    y = y / norm(y, keepdim=True)
    back = -length * (length.cos() * direction - length.sin() * x)
    return Move(y, v, back, length.flatten() < math.pi)


def _projected(x: Tensor, v: Tensor, config: ChainConfig) -> Tensor:
    """Vectors v at x, along the sphere where the chain moves on great circles."""
    return tangent(x, v) if config.sphere == "geodesic" else v


def _moved(x: Tensor, v: Tensor, config: ChainConfig) -> Move:
    """The move by drift plus kick v."""
    if config.sphere == "geodesic":
        return geodesic_move(x, v)
    y = x + v
    if config.sphere == "project":
        y = y / norm(y, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    elif config.bounds is None:
        return Move(y, v, -v, None)
    elif config.bounds_rule == "reject":
        return Move(y, v, -v, (y == y.clamp(*config.bounds)).flatten(1).all(dim=1))
    else:
        y = y.clamp(*config.bounds)
    return Move(y, y - x, x - y, None)


def init(position: Tensor, energy: Energy, config: ChainConfig) -> LangevinState:
    """The state at `position`, with shape (N, *event)."""
    value, grad = value_and_grad(energy, position)
    return LangevinState(position.detach(), value, clip_gradient(grad, config))


def step(
    state: LangevinState, energy: Energy, config: ChainConfig, scale: Scale, generators: Generators
) -> tuple[LangevinState, Tensor]:
    """One step from `state`, of one gradient, and which samples moved, shape (N,); see the module's docstring."""
    x = state.position
    drift = _projected(x, scale.drift * state.grad, config)
    kick = _projected(x, scale.noise * normal(x.shape, generators, x), config)
    move = _moved(x, drift + kick, config)
    proposal = init(move.position, energy, config)
    if config.metropolis == "off":
        if move.valid is None:
            return proposal, torch.ones_like(state.energy, dtype=torch.bool)
        return select(move.valid, proposal, state), move.valid
    drift_back = _projected(move.position, scale.drift * proposal.grad, config)
    gain = (state.energy - proposal.energy).double() / scale.temperature
    there, back = (way.double().flatten(1) for way in (move.there - drift, move.back - drift_back))
    squares = sum_features((there - back).mul_(there + back))  # |there|^2 - |back|^2 of each sample
    log_ratio = gain + squares / scale.variance
    accepted = uniform(log_ratio.shape, generators, log_ratio).log() < log_ratio
    if move.valid is not None:
        accepted = accepted & move.valid
    return select(accepted, proposal, state), accepted


def select(accepted: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """`new` where accepted, shape (N,), and `old` elsewhere, of states that begin with positions (N, *event)."""
    mask = accepted.reshape(-1, *[1] * (old[0].ndim - 1))
    if not mask.is_cuda:  # where torch is slow to broadcast over short events
        mask = mask.expand_as(old[0]).contiguous()
    pairs = zip(new, old, strict=True)
    return type(old)(*(torch.where(mask if a.ndim > 1 else accepted, a, b) for a, b in pairs))
