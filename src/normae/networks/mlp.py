"""Multilayer perceptrons with an explicit pullback.

A chain needs the gradient of the energy with respect to the *event*, never with respect to the weights. For an
MLP, y = W_n a(... a(W_1 x + b_1) ...) + b_n, the vector-Jacobian product is the same list of matrices read backwards,

    v -> W_n^T v,  then for each hidden layer  v -> W_k^T (a'(h_k) * v),

which costs as many matrix products as the forward pass and none of autograd's bookkeeping. `forward_saving` and
`pullback` write that down for one network, with x of shape (N, in), and for a stack of networks, with x of shape
(S, N, in) and weights of shape (S, out, in).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normae.errors import InputError


class Activation(NamedTuple):
    """A nonlinearity and its pullback, `(v, h) -> a'(h) * v` with h the input of the nonlinearity."""

    forward: Callable[[Tensor], Tensor]
    pullback: Callable[[Tensor, Tensor], Tensor]


ACTIVATIONS: Mapping[str, Activation] = {
    "relu": Activation(torch.relu, lambda v, h: torch.ops.aten.threshold_backward(v, h, 0)),
    "silu": Activation(nn.functional.silu, lambda v, h: torch.ops.aten.silu_backward(v, h)),
    "gelu": Activation(nn.functional.gelu, lambda v, h: torch.ops.aten.gelu_backward(v, h)),
    "tanh": Activation(torch.tanh, lambda v, h: torch.ops.aten.tanh_backward(v, torch.tanh(h))),
}

Layer = tuple[Tensor, Tensor]
"""Weight with shape (out, in) or (S, out, in), and bias with shape (out,) or (S, out)."""


def _affine(x: Tensor, layer: Layer) -> Tensor:
    weight, bias = layer
    if weight.ndim == 2:
        return torch.addmm(bias, x, weight.t())
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def forward_saving(layers: Sequence[Layer], x: Tensor, activation: Activation) -> tuple[Tensor, list[Tensor]]:
    """The output with shape (..., N, out), and the inputs of each nonlinearity for `pullback`."""
    saved: list[Tensor] = []
    for layer in layers[:-1]:
        hidden = _affine(x, layer)
        saved.append(hidden)
        x = activation.forward(hidden)
    return _affine(x, layers[-1]), saved


def pullback(layers: Sequence[Layer], saved: Sequence[Tensor], v: Tensor, activation: Activation) -> Tensor:
    """v^T J with shape (..., N, in) for v with shape (..., N, out)."""
    v = torch.matmul(v, layers[-1][0])
    for (weight, _), hidden in zip(reversed(layers[:-1]), reversed(saved), strict=True):
        v = torch.matmul(activation.pullback(v, hidden), weight)
    return v


class MLP(nn.Module):
    """A perceptron with linear output.

    Args:
        sizes: widths of input, hidden layers and output.
        activation: a key of `ACTIVATIONS`, used after every layer but the last.
        generator: draws the initial weights, uniform in +- 1/sqrt(fan in) as torch's own layers do.
    """

    def __init__(self, sizes: Sequence[int], activation: str, generator: torch.Generator) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise InputError(f"expected an activation among {sorted(ACTIVATIONS)}, got {activation!r}")
        self.sizes = tuple(sizes)
        self.activation = activation
        self.layers = nn.ModuleList(_linear(n_in, n_out, generator) for n_in, n_out in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs with shape (N, out) for inputs with shape (N, in)."""
        activation = ACTIVATIONS[self.activation].forward
        for layer in self.layers[:-1]:
            x = activation(layer(x))
        out: Tensor = self.layers[-1](x)
        return out

    def body(self) -> nn.Module:
        """All but the last layer, with the same weights under the same names."""
        return _Body(self.layers[:-1], ACTIVATIONS[self.activation].forward)

    def layer_names(self) -> list[tuple[str, str]]:
        """Names of weight and bias of each layer, as in `named_parameters`."""
        return [(f"layers.{k}.weight", f"layers.{k}.bias") for k in range(len(self.layers))]


class _Body(nn.Module):
    def __init__(self, layers: nn.ModuleList, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = layers
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


def _linear(n_in: int, n_out: int, generator: torch.Generator) -> nn.Linear:
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out)
    bound = 1 / math.sqrt(n_in)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer
