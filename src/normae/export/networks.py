"""The layers of an autoencoder as nodes, for one set of weights or for K weight draws side by side.

Weights have shape (K, *parameter), or (1, *parameter) where all draws share them. Up to the first layer that has draws
the work is done once. From there on vectors have shape (K, N, d), and images keep the draws as groups of channels,
(N, K c, h, w), which one grouped convolution serves. A finished model's weights are those that the network is computed
with: spectral normalization is in them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from normae.errors import InputError
from normae.export.graph import Graph
from normae.networks.autoencoder import Autoencoder, Upsample
from normae.networks.base import FAR, OWN, SCALE, Base
from normae.networks.bases import Bases
from normae.networks.mlp import MLP
from normae.networks.reconstruction import prefixed
from normae.statistics.gaussians import log_gaussians


class State(NamedTuple):
    """A tensor between two layers: its name, its draws (1 before the first drawn layer), channels (0 for vectors)."""

    name: str
    draws: int
    channels: int


def energies(graph: Graph, autoencoder: Autoencoder, weights: Mapping[str, Tensor], x: str) -> tuple[str, bool]:
    """Nodes for E at events x (N, *event): with shape (N,), or (K, N) where weights have draws; whether they have."""
    image = isinstance(autoencoder.encoder, nn.Sequential)
    weights = {name: value.detach() for name, value in weights.items()}
    state = _network(graph, autoencoder.encoder, prefixed(weights, "encoder."), State(x, 1, int(image)))
    if autoencoder.sphere:
        length = graph.add("Max", graph.reduce("L2", state.name, -1, keep=True), np.finfo(graph.dtype).tiny)
        state = state._replace(name=graph.add("Div", state.name, length))
    state = _network(graph, autoencoder.decoder, prefixed(weights, "decoder."), state)
    square = graph.square(graph.add("Sub", x, state.name))
    if not image:
        return based(graph, autoencoder.base, graph.reduce("Mean", square, -1), x), state.draws > 1
    if state.draws == 1:
        return graph.reduce("Mean", square, 1, 2, 3), False
    return graph.add("Transpose", graph.reduce("Mean", square, 2, 3), perm=[1, 0]), True


def based(graph: Graph, base: Base | Bases | None, error: str, x: str) -> str:
    """Reconstruction errors with shape (..., N), with -s log b of a base at events x (N, d) added to them."""
    if not isinstance(base, Base):
        return error
    u = graph.add("MatMul", x, base.frame.T)
    means = torch.einsum("kij,kj->ki", base.factors, base.means)[:, None]
    scaled = graph.add("Sub", graph.add("MatMul", u, base.factors.mT), means)
    half = graph.add("Mul", graph.reduce("SumSquare", scaled, 2), -0.5)
    each, parts = log_gaussians(base.means[:1], base.weights, base.means, base.factors)
    gaussians = graph.reduce("LogSumExp", graph.add("Add", half, each + 0.5 * parts.square().sum(2)), 0)
    length = graph.reduce("SumSquare", u, 1, keep=True)
    both = gaussians
    if base.kernels:
        products = graph.add("MatMul", u, -2 * base.centres.T)
        distance = graph.add("Add", graph.add("Add", length, base.centres.double().square().sum(1)), products)
        distance = _without_own(graph, distance, length, len(base.centres))
        rates = (-0.5 / base.widths.square()).tolist()
        widths = [graph.reduce("LogSumExp", graph.add("Mul", distance, rate), 1, keep=True) for rate in rates]
        kernels = graph.reduce(
            "LogSumExp", graph.add("Add", graph.add("Concat", *widths, axis=1), base.log_shares()), 1
        )
        a = float(base.leaning)
        both = graph.add("Add", graph.add("Mul", gaussians, 1 - a), graph.add("Mul", kernels, a))
    return graph.add("Add", error, graph.add("Mul", graph.add("Add", both, float(base.log_det)), -SCALE))


def _without_own(graph: Graph, distance: str, length: str, centres: int) -> str:
    """Squared distances (N, n) in float64, with one of a centre that is the event itself put out of sight."""
    nearest = graph.reduce("Min", distance, 1, keep=True)
    limit = graph.add("Mul", graph.add("Add", length, 1.0), OWN)
    own = graph.enter(graph.add("LessOrEqual", nearest, limit), np.bool_)
    place = graph.add("ArgMin", distance, axis=1, keepdims=0)
    ends = graph.constant([0.0, FAR if centres > 1 else 0.0], np.float32)  # OneHot takes no others
    hot = graph.add("OneHot", place, graph.integers([centres]), ends, axis=1)
    return graph.add("Add", distance, graph.add("Mul", own, graph.enter(hot, np.float32)))


def _network(graph: Graph, network: nn.Module, weights: Mapping[str, Tensor], state: State) -> State:
    if isinstance(network, MLP):
        for k, (weight, bias) in enumerate(network.layer_names()):
            if k:
                state = state._replace(name=graph.activation(network.activation, state.name))
            state = _linear(graph, weights[weight], weights[bias], state)
        return state
    if not isinstance(network, nn.Sequential):
        raise InputError(f"export: expected an MLP or a sequence of layers, got {type(network).__name__}")
    for name, layer in network.named_children():
        state = _layer(graph, layer, prefixed(weights, f"{name}."), state)
    return state


def _layer(graph: Graph, layer: nn.Module, own: Mapping[str, Tensor], state: State) -> State:
    """One layer of a convolutional network."""
    name, draws, channels = state
    if isinstance(layer, nn.Linear):
        return _linear(graph, own["weight"], own["bias"], state)
    if isinstance(layer, nn.Conv2d):
        return _convolution(graph, layer, own["weight"], own["bias"], state)
    if isinstance(layer, nn.PReLU):
        return _prelu(graph, own["weight"], state)
    if isinstance(layer, nn.MaxPool2d):
        return State(graph.add("MaxPool", name, kernel_shape=[2, 2], strides=[2, 2]), draws, channels)
    if isinstance(layer, nn.Flatten):  # to (N, c h w), or (K, N, c h w)
        if draws == 1:
            return State(graph.add("Flatten", name, axis=1), 1, 0)
        split = graph.add("Reshape", name, graph.integers([0, draws, -1]))
        return State(graph.add("Transpose", split, perm=[1, 0, 2]), draws, 0)
    if isinstance(layer, nn.Unflatten):
        channels, *sides = (int(n) for n in layer.unflattened_size)
        if draws > 1:
            name = graph.add("Transpose", name, perm=[1, 0, 2])
        shape = graph.integers([0, draws * channels, *sides])
        return State(graph.add("Reshape", name, shape), draws, channels)
    if isinstance(layer, Upsample):
        return State(graph.add("MatMul", layer.matrix, graph.add("MatMul", name, layer.matrix.T)), draws, channels)
    if isinstance(layer, nn.Sigmoid):
        return State(graph.add("Sigmoid", name), draws, channels)
    raise InputError(f"export: no ONNX form of the layer {type(layer).__name__}")


def _linear(graph: Graph, weight: Tensor, bias: Tensor, state: State) -> State:
    """x W^T + b; a product of (N, in) or (K, N, in) with (in, out) or (K, in, out)."""
    product = graph.add("MatMul", state.name, weight[0].T if len(weight) == 1 else weight.mT)
    name = graph.add("Add", product, bias[0] if len(bias) == 1 else bias[:, None])
    return State(name, max(state.draws, len(weight), len(bias)), 0)


def _convolution(graph: Graph, layer: nn.Conv2d, weight: Tensor, bias: Tensor, state: State) -> State:
    draws = max(state.draws, len(weight), len(bias))
    weight, bias = (w.expand(draws, *w.shape[1:]).flatten(0, 1) for w in (weight, bias))
    pads = [int(p) for p in (*layer.padding, *layer.padding)]
    sizes = {"kernel_shape": list(layer.kernel_size), "pads": pads, "group": state.draws}
    return State(graph.add("Conv", state.name, weight, bias, **sizes), draws, layer.out_channels)


def _prelu(graph: Graph, slope: Tensor, state: State) -> State:
    """max(h, 0) + slope min(h, 0) with one slope for all features, (K, 1) or (1, 1)."""
    name, draws, channels = state
    if len(slope) == 1:
        return State(graph.add("PRelu", name, slope[0]), draws, channels)
    values = np.repeat(slope.numpy(), max(channels, 1)).reshape(-1, 1, 1)
    below = graph.add("Mul", graph.add("Min", name, 0.0), values)
    return State(graph.add("Add", graph.add("Max", name, 0.0), below), len(slope), channels)
