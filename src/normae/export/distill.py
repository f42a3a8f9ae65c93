"""A small network that reproduces a score, trained with the rounding that it will have in fixed-point arithmetic.

The teacher's score E/T, which is never negative, grows quadratically far out, which no small range holds; the student
learns t = log(1 + E/T), of the same order, on background and on noise around it: background rows moved by normal noise
of 0.1 to 3 widths. Inputs are z = (x - m)/2^k for each column, one subtraction and a shift. Training is in real numbers
first. Then ranges are measured and types chosen, and the training goes on with every weight, input and result rounded
to its type; gradients pass through the rounding unchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normae.export.fixed import Fixed, FixedNetwork, fixed_network, type_for, weight_types
from normae.networks.mlp import MLP
from normae.random import stream
from normae.training.supervised import fit

Score = Callable[[NDArray[Any]], NDArray[Any]]
RANGE = 0.9999  # share of values that a type must hold; the others stay at the end of its range
LEARNING_RATE = 3e-3  # at the start; it decays along a cosine in each of the two parts


@dataclass(frozen=True)
class Student:
    """A distilled network: inputs z = (x - centre)/scale, real and fixed-point."""

    centre: NDArray[np.float64]
    scale: NDArray[np.float64]
    network: MLP
    fixed: FixedNetwork

    def inputs(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """z with shape (N, d)."""
        z: NDArray[np.float64] = (np.asarray(x, dtype=np.float64) - self.centre) / self.scale
        return z

    def real(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """t with shape (N,), without rounding."""
        with torch.no_grad():
            out: NDArray[np.float64] = self.network(torch.from_numpy(self.inputs(x)).float())[:, 0].double().numpy()
        return out

    def rounded(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """t with shape (N,), in fixed-point arithmetic."""
        return self.fixed(self.inputs(x))[:, 0]


def target(score: NDArray[Any]) -> NDArray[np.float64]:
    """t = log(1 + E/T)."""
    return np.log1p(np.maximum(np.asarray(score, dtype=np.float64), 0))


def noise_around(x: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    """Rows moved by normal noise of 0.1 to 3 widths, log-uniform, another size for each row."""
    size = np.exp(random.uniform(np.log(0.1), np.log(3.0), size=(len(x), 1)))
    moved: NDArray[Any] = (x + size * x.std(0) * random.standard_normal(x.shape)).astype(x.dtype)
    return moved


def distill(
    score: Score,
    background: NDArray[Any],
    hidden: Sequence[int],
    bits: int,
    epochs: int,
    seed: int = 0,
    batch: int = 512,
) -> Student:
    """A student of `score`, trained on background with shape (N, d) and on as much noise around it.

    Args:
        hidden: widths of the hidden layers.
        bits: of weights, inputs and results.
        epochs: in real numbers; a third as many follow with rounding.
        batch: rows of an update.
    """
    x = np.concatenate([background, noise_around(background, np.random.default_rng(seed))])
    centre = background.mean(0, dtype=np.float64)
    scale = np.exp2(np.round(np.log2(np.maximum(background.std(0, dtype=np.float64), 1e-12))))
    z = torch.from_numpy((x - centre) / scale).float()
    t = torch.from_numpy(target(score(x))).float()
    network = MLP([z.shape[1], *hidden, 1], "relu", stream(seed, "student"))
    _train(network, z, t, epochs, batch, stream(seed, "order"))
    rounded = _Rounded(network, *_types(network, z, bits), bits)
    _train(rounded, z, t, -(-epochs // 3), batch, stream(seed, "order/rounded"))
    network.requires_grad_(False)
    weights = [(layer.weight.double().numpy(), layer.bias.double().numpy()) for layer in network.linears()]
    return Student(centre, scale, network, fixed_network(weights, rounded.input, rounded.results, bits))


def _train(module: nn.Module, z: Tensor, t: Tensor, epochs: int, batch: int, order: torch.Generator) -> None:
    fit(
        list(module.parameters()), lambda rows: (module(z[rows])[:, 0] - t[rows]).square().mean(), len(z), order,
        epochs=epochs, batch=batch, learning_rate=LEARNING_RATE, cosine=True, what="distilling",
    )  # fmt: skip


def _types(network: MLP, z: Tensor, bits: int) -> tuple[Fixed, list[Fixed]]:
    """Types of the input and of each layer's result, from the values that they take."""
    values, last = [z], len(network.layers) - 1
    with torch.no_grad():
        for k, layer in enumerate(network.layers):
            h = layer(values[-1])
            values.append(h if k == last else torch.relu(h))
    first, *found = (type_for(float(np.quantile(h.abs().numpy(), RANGE)), bits) for h in values)
    return first, found


class _Rounded(nn.Module):
    """The network with everything rounded to its type, differentiable as if it were not."""

    def __init__(self, network: MLP, input_type: Fixed, results: Sequence[Fixed], bits: int) -> None:
        super().__init__()
        self.network, self.input, self.results, self.bits = network, input_type, results, bits

    def forward(self, z: Tensor) -> Tensor:
        h = _through(z, self.input)
        last = len(self.network.layers) - 1
        for k, layer in enumerate(self.network.linears()):
            kinds = weight_types(layer.weight.detach().numpy(), layer.bias.detach().numpy(), self.bits)
            h = nn.functional.linear(h, _through(layer.weight, kinds[0]), _through(layer.bias, kinds[1]))
            h = _through(h if k == last else torch.relu(h), self.results[k])
        return h


def _through(values: Tensor, kind: Fixed) -> Tensor:
    """Values rounded as by a type that rounds and saturates, with the gradient of the values."""
    half = 2 ** (kind.width - 1)
    raw = (values.detach().double() / kind.step + 0.5).floor_().clamp_(-half, half - 1)
    return (raw * kind.step).to(values) + (values - values.detach())
