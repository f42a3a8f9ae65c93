"""Multilayer perceptrons with an explicit pullback.

A chain needs the gradient of the energy with respect to the *event*, never with respect to the weights. For an
MLP, y = W_n a(... a(W_1 x + b_1) ...) + b_n, the vector-Jacobian product is the same list of matrices read backwards,

    v -> W_n^T v,  then for each hidden layer  v -> W_k^T (a'(h_k) * v),

which costs as many matrix products as the forward pass and none of autograd's bookkeeping. `Pass` writes that down for
one network, or for a stack of them with x of shape (S, N, in) and weights of shape (S, out, in). On a CPU the time
beside the products is memory, and Python: a pass is planned once, as a list of operations on buffers, and then run for
each gradient of a chain. Large products are oneDNN's: torch's own, of MKL, take twice as long on some processors.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from normae.errors import refuse

Made = TypeVar("Made", bound=nn.Module)


class Activation(NamedTuple):
    """A nonlinearity a(h), and with its pullback as writes into buffers.

    Args:
        forward: h -> a(h), which can be differentiated.
        write: (h, out) writes a(h) to `out`, which may be h where `keeps_output`.
        pull: (v, kept) writes a'(h) * v to `kept`.
        keeps_output: whether what `pull` calls kept is a(h); otherwise it is h.
    """

    forward: Callable[[Tensor], Tensor]
    write: Callable[[Tensor, Tensor], object]
    pull: Callable[[Tensor, Tensor], object]
    keeps_output: bool


def _activation(forward: Any, out: Any, backward: Any, keeps_output: bool, *numbers: int) -> Activation:
    """By torch's own operations of the nonlinearity and of its pullback, with the numbers that these take besides."""
    return Activation(
        forward,
        lambda h, to: out(h, *numbers, out=to),
        lambda v, kept: backward.grad_input(v, kept, *numbers, grad_input=kept),
        keeps_output,
    )


_aten = torch.ops.aten
ACTIVATIONS: Mapping[str, Activation] = {
    "relu": _activation(torch.relu, torch.clamp_min, _aten.threshold_backward, True, 0),
    "silu": _activation(nn.functional.silu, _aten.silu.out, _aten.silu_backward, keeps_output=False),
    "gelu": _activation(nn.functional.gelu, _aten.gelu.out, _aten.gelu_backward, keeps_output=False),
    "tanh": _activation(torch.tanh, _aten.tanh.out, _aten.tanh_backward, keeps_output=True),
}

Layer = tuple[Tensor, Tensor]
"""Weight with shape (out, in) or (S, out, in), and bias with shape (out,) or (S, out)."""
LARGE = 1 << 20  # multiplications from which oneDNN is faster than MKL
NARROW = 16
"""On a CPU, results of fewer columns than this are computed as their transpose: y^T = W x^T is four times faster."""
Plan = list[Callable[[], object]]
"""Operations on buffers, to be called one after the other."""


class Pass:
    """Plans forward pass and pullback of one network or of a stack, for calls without gradients.

    The activation stands after every layer but the last. The weights must not change while a plan is in use.
    """

    def __init__(self, layers: Sequence[Layer], activation: Activation) -> None:
        self.activation = activation
        self.layers = layers
        # x W^T from a transposed copy is up to a fifth faster on a CPU than from W as it lies in memory
        self.transposed = [w.mT if w.is_cuda else w.mT.contiguous() for w, _ in layers]
        stacked = layers[0][0].ndim == 3
        self._add_product = torch.baddbmm if stacked else torch.addmm
        self._multiply = torch.bmm if stacked else torch.mm
        self._spare: dict[tuple[int, ...], Tensor] = {}

    def forward(self, x: Tensor, plan: Plan) -> tuple[Tensor, list[Tensor]]:
        """Plan the pass of what will be in x, a buffer (..., N, in): buffers of the output, and for `pullback`."""
        kept: list[Tensor] = []
        for k in range(len(self.layers) - 1):
            hidden = self._affine(k, x, plan)
            x = hidden if self.activation.keeps_output else torch.empty_like(hidden)
            plan.append(partial(self.activation.write, hidden, x))
            kept.append(hidden)
        return self._affine(len(kept), x, plan), kept

    def pullback(self, v: Tensor, kept: Sequence[Tensor], plan: Plan) -> Tensor:
        """Plan v^T J with shape (..., N, in) for v with shape (..., N, out), at what `kept` the forward pass."""
        for k in range(len(kept), 0, -1):
            plan.append(partial(self.activation.pull, self._product(k, v, plan), kept[k - 1]))
            v = kept[k - 1]
        return self._product(0, v, plan)

    def _affine(self, k: int, x: Tensor, plan: Plan) -> Tensor:
        """x W^T + b of layer k."""
        (weight, bias), transposed = self.layers[k], self.transposed[k]
        narrow, out = _buffer(x, transposed)
        if by_one_dnn(x, weight):
            plan.append(partial(one_dnn, x, weight, bias, out))
            return out
        row = bias[..., None] if narrow else bias if bias.ndim == 1 else bias[:, None]
        plan.append(partial(self._add_product, row, *((weight, x.mT) if narrow else (x, transposed)), out=out))
        return out.mT if narrow else out

    def _product(self, k: int, v: Tensor, plan: Plan) -> Tensor:
        """v W of layer k."""
        weight, transposed = self.layers[k][0], self.transposed[k]
        narrow, out = _buffer(v, weight)
        out = out if narrow else self._spare.setdefault(out.shape, out)
        if by_one_dnn(v, weight):
            plan.append(partial(one_dnn, v, transposed, None, out))
            return out
        plan.append(partial(self._multiply, *((transposed, v.mT) if narrow else (v, weight)), out=out))
        return out.mT if narrow else out


def _buffer(x: Tensor, factor: Tensor) -> tuple[bool, Tensor]:
    """Whether the product of x and `factor` is narrow; and where it goes, or where its transpose goes if so."""
    narrow = factor.shape[-1] < NARROW <= factor.shape[-2] and not factor.is_cuda
    shape = (*x.shape[:-2], factor.shape[-1], x.shape[-2]) if narrow else (*x.shape[:-1], factor.shape[-1])
    return narrow, x.new_empty(shape)


def by_one_dnn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN serves for the product of x, on a CPU, and one matrix, and is worth its overhead."""
    fits = x.dtype == torch.float32 and not x.is_cuda and weight.ndim == 2 and min(weight.shape) >= NARROW
    here = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return here and fits and len(x) * weight.numel() >= LARGE


def one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write x W^T + b to `out`."""
    out.copy_(torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""))


class MLP(nn.Module):
    """A perceptron with linear output.

    Args:
        sizes: widths of input, hidden layers and output.
        activation: a key of `ACTIVATIONS`, used after every layer but the last.
        generator: draws the initial weights, uniform in +- 1/sqrt(fan in) as torch's own layers do.
    """

    def __init__(self, sizes: Sequence[int], activation: str, generator: torch.Generator) -> None:
        super().__init__()
        refuse(activation not in ACTIVATIONS, f"expected an activation among {sorted(ACTIVATIONS)}, got {activation!r}")
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

    @property
    def whole(self) -> bool:
        """Whether all layers are there, as in the body of a decoder the last one is not."""
        return isinstance(self.layers[-1], nn.Linear)

    def at(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """`forward` with other weights, by name: small products take a third of the time of `functional_call`."""
        activation, names = ACTIVATIONS[self.activation].forward, self.layer_names()
        for k, (weight, bias) in enumerate(names, start=1):
            x = nn.functional.linear(x, parameters[weight], parameters[bias])
            x = activation(x) if k < len(names) else x
        return x

    def linears(self) -> list[nn.Linear]:
        """The layers, from the first to the last."""
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def layer_names(self) -> list[tuple[str, str]]:
        """Names of weight and bias of each layer, as in `named_parameters`."""
        return [(f"layers.{k}.weight", f"layers.{k}.bias") for k in range(len(self.layers))]


def linear(n_in: int, n_out: int, generator: torch.Generator) -> nn.Linear:
    """A layer with weights drawn from `generator`, uniform in +- 1/sqrt(fan in) as torch's own."""
    return drawn(nn.Linear(n_in, n_out, device="meta"), 1 / math.sqrt(n_in), generator)


def drawn(layer: Made, bound: float, generator: torch.Generator) -> Made:
    """A layer that was made without memory, with weights uniform in +- `bound`.

    So torch draws nothing of its own. `skip_init` is the same, and loads sympy at its first call: two seconds.
    """
    for name, parameter in list(layer.named_parameters()):
        weights = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
        setattr(layer, name, nn.Parameter(weights))
    return layer


def split_decoder(decoder: nn.Module) -> tuple[nn.Module, nn.Module, str] | None:
    """The decoder's body, by the same weights under the same names, its last layer, and the prefix of its names.

    For an `MLP`, and for an `nn.Sequential` whose last part has weights, as a sigmoid has not; None for others.
    """
    if isinstance(decoder, MLP):
        body = MLP((), decoder.activation, torch.Generator())
        body.layers = nn.ModuleList([*decoder.layers[:-1], nn.Identity()])
        return body, decoder.layers[-1], f"layers.{len(decoder.layers) - 1}."
    if isinstance(decoder, nn.Sequential) and any(True for _ in decoder[-1].parameters()):
        return decoder[:-1], decoder[-1], f"{len(decoder) - 1}."
    return None
