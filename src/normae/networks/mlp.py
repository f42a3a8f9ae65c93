"""Multilayer perceptrons with an explicit pullback.

A chain needs the gradient of the energy with respect to the *event*, never with respect to the weights. For an
MLP, y = W_n a(... a(W_1 x + b_1) ...) + b_n, the vector-Jacobian product is the same list of matrices read backwards,

    v -> W_n^T v,  then for each hidden layer  v -> W_k^T (a'(h_k) * v),

which costs as many matrix products as the forward pass and none of autograd's bookkeeping. `Pass` writes that down for
one network, with x of shape (N, in), and for a stack of networks, with x of shape (S, N, in) and weights of shape
(S, out, in). On a CPU the time beside the products is memory: a pass keeps its buffers, and works in place on them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normae.errors import InputError


class Activation(NamedTuple):
    """A nonlinearity a(h) and its pullback, both as functions that can be differentiated and as writes into buffers.

    Args:
        forward: h -> a(h).
        pullback: (v, h) -> a'(h) * v.
        write: (h, out) writes a(h) to `out`, which may be h where `keeps_output`.
        pull: (v, kept) turns v into a'(h) * v, in place.
        keeps_output: whether what `pull` calls kept is a(h); otherwise it is h.
    """

    forward: Callable[[Tensor], Tensor]
    pullback: Callable[[Tensor, Tensor], Tensor]
    write: Callable[[Tensor, Tensor], object]
    pull: Callable[[Tensor, Tensor], object]
    keeps_output: bool


_aten = torch.ops.aten
ACTIVATIONS: Mapping[str, Activation] = {
    "relu": Activation(
        torch.relu,
        lambda v, h: _aten.threshold_backward(v, h, 0),
        lambda h, out: torch.clamp_min(h, 0, out=out),
        lambda v, y: _aten.threshold_backward.grad_input(v, y, 0, grad_input=v),
        keeps_output=True,
    ),
    "silu": Activation(
        nn.functional.silu,
        lambda v, h: v * torch.sigmoid(h) * (1 + h * torch.sigmoid(-h)),  # aten's own cannot be differentiated again
        lambda h, out: _aten.silu.out(h, out=out),
        lambda v, h: _aten.silu_backward.grad_input(v, h, grad_input=v),
        keeps_output=False,
    ),
    "gelu": Activation(
        nn.functional.gelu,
        lambda v, h: _aten.gelu_backward(v, h),
        lambda h, out: _aten.gelu.out(h, out=out),
        lambda v, h: _aten.gelu_backward.grad_input(v, h, grad_input=v),
        keeps_output=False,
    ),
    "tanh": Activation(
        torch.tanh,
        lambda v, h: _aten.tanh_backward(v, torch.tanh(h)),
        lambda h, out: torch.tanh(h, out=out),
        lambda v, y: _aten.tanh_backward.grad_input(v, y, grad_input=v),
        keeps_output=True,
    ),
}

Layer = tuple[Tensor, Tensor]
"""Weight with shape (out, in) or (S, out, in), and bias with shape (out,) or (S, out)."""


NARROW = 16
"""On a CPU, results of fewer columns than this are computed as their transpose: y^T = W x^T is four times faster."""


class Pass:
    """Forward pass and pullback of one network or of a stack, for calls without gradients.

    The weights must not change while it is in use. What `forward` and `pullback` return is a buffer, which the next
    call overwrites.

    Args:
        layers: of the network, from the first to the last.
        activation: after every layer but the last.
    """

    def __init__(self, layers: Sequence[Layer], activation: Activation) -> None:
        self.activation = activation
        self.weights = [weight for weight, _ in layers]
        # x W^T from a transposed copy is up to a fifth faster on a CPU than from W as it lies in memory
        self.transposed = [w.mT if w.is_cuda else w.mT.contiguous() for w in self.weights]
        self._rows = [bias if bias.ndim == 1 else bias[:, None] for _, bias in layers]
        self._columns = [bias[..., None] for _, bias in layers]
        stacked = self.weights[0].ndim == 3
        self._add_product = torch.baddbmm if stacked else torch.addmm
        self._multiply = torch.bmm if stacked else torch.mm
        self._buffers: dict[tuple[str, int, tuple[int, ...]], Tensor] = {}
        self._kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """The output with shape (..., N, out), for x with shape (..., N, in)."""
        self._kept = []
        last = len(self.weights) - 1
        for k in range(last):
            hidden = self._affine(k, x)
            x = hidden if self.activation.keeps_output else self._buffer("active", k % 2, hidden.shape, hidden)
            self.activation.write(hidden, x)
            self._kept.append(hidden)
        return self._affine(last, x)

    def pullback(self, v: Tensor) -> Tensor:
        """v^T J with shape (..., N, in) for v with shape (..., N, out), at the last `forward`."""
        for k in range(len(self.weights) - 1, -1, -1):
            v = self._product(k, v)
            if k > 0:
                self.activation.pull(v, self._kept[k - 1])
        return v

    def _affine(self, k: int, x: Tensor) -> Tensor:
        """x W^T + b of layer k."""
        weight, transposed = self.weights[k], self.transposed[k]
        if self._narrow(transposed, x):
            out = self._buffer("hidden", k, (*weight.shape[:-1], x.shape[-2]), x)
            return self._add_product(self._columns[k], weight, x.mT, out=out).mT
        out = self._buffer("hidden", k, (*x.shape[:-1], weight.shape[-2]), x)
        return self._add_product(self._rows[k], x, transposed, out=out)

    def _product(self, k: int, v: Tensor) -> Tensor:
        """v W of layer k."""
        weight, transposed = self.weights[k], self.transposed[k]
        if self._narrow(weight, v):
            out = self._buffer("back", k % 2, (*transposed.shape[:-1], v.shape[-2]), v)
            return self._multiply(transposed, v.mT, out=out).mT
        return self._multiply(v, weight, out=self._buffer("back", k % 2, (*v.shape[:-1], weight.shape[-1]), v))

    @staticmethod
    def _narrow(factor: Tensor, x: Tensor) -> bool:
        return factor.shape[-1] < NARROW <= factor.shape[-2] and not x.is_cuda

    def _buffer(self, kind: str, k: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape, the same one at each call with these arguments."""
        key = (kind, k, shape)
        if key not in self._buffers:
            self._buffers[key] = like.new_empty(shape)
        return self._buffers[key]


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
        self.layers = nn.ModuleList(linear(n_in, n_out, generator) for n_in, n_out in pairwise(sizes))

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


def linear(n_in: int, n_out: int, generator: torch.Generator) -> nn.Linear:
    """A layer with weights drawn from `generator`, uniform in +- 1/sqrt(fan in) as torch's own."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out)
    bound = 1 / math.sqrt(n_in)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def ends_in_a_layer(decoder: nn.Module) -> bool:
    """Whether `split_decoder` serves: the decoder's last part has weights, as a sigmoid behind it has not."""
    if isinstance(decoder, MLP):
        return True
    return isinstance(decoder, nn.Sequential) and any(True for _ in decoder[-1].parameters())


def split_decoder(decoder: nn.Module) -> tuple[nn.Module, nn.Module, str]:
    """The decoder's body, its last layer, and that layer's name: for an `MLP` and for any `nn.Sequential`."""
    if isinstance(decoder, MLP):
        return decoder.body(), decoder.layers[-1], f"layers.{len(decoder.layers) - 1}."
    if isinstance(decoder, nn.Sequential) and ends_in_a_layer(decoder):
        return decoder[:-1], decoder[-1], f"{len(decoder) - 1}."
    raise InputError(
        "local reparameterization needs a decoder that is an MLP or an nn.Sequential ending in its last layer"
    )
