"""The layers of an autoencoder as nodes, for one set of weights or for K weight draws side by side.

Weights have shape (K, *parameter), or (1, *parameter) where all draws share them. Up to the first layer that has draws
the work is done once. From there on vectors have shape (K, N, d), and images keep the draws as groups of channels,
(N, K c, h, w), which one grouped convolution serves. A finished model's weights are those that the network is computed
with: spectral normalization is in them.

The draws of the linearized network (`normae.posterior.laplace`) have its explicit pullback, in float64:

    s_k = s + (s + 1) tanh(J d_k/(s + 1)),   J d_k = sum_m u_km sum_layers (g(x) g_m) (a(x) a_m + 1).
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from normae.errors import InputError
from normae.export.graph import Graph
from normae.networks.autoencoder import Autoencoder
from normae.networks.base import FAR, OWN, SCALE, Base, log_gaussians
from normae.networks.conv import Upsample
from normae.networks.mlp import MLP
from normae.networks.reconstruction import prefixed
from normae.posterior.laplace import LinearizedDraws


class State(NamedTuple):
    """A tensor between two layers: its name, its draws (1 before the first drawn layer), channels (0 for vectors)."""

    name: str
    draws: int
    channels: int


def energies(graph: Graph, autoencoder: Autoencoder, weights: Mapping[str, Tensor], x: str) -> tuple[str, bool]:
    """Nodes for E: with shape (N,), or (K, N) where weights have draws, which is the second thing returned.

    Args:
        weights: by name, with shape (K, *parameter) or (1, *parameter).
        x: events with shape (N, *event).
    """
    image = isinstance(autoencoder.encoder, nn.Sequential)
    weights = {name: value.detach() for name, value in weights.items()}
    state = _network(graph, autoencoder.encoder, prefixed(weights, "encoder."), State(x, 1, int(image)))
    if autoencoder.sphere:
        state = state._replace(name=_to_sphere(graph, state.name))
    state = _network(graph, autoencoder.decoder, prefixed(weights, "decoder."), state)
    residual = graph.add("Sub", x, state.name)
    square = graph.add("Mul", residual, residual)
    if not image:
        return based(graph, autoencoder.base, graph.mean(square, -1), x), state.draws > 1
    if state.draws == 1:
        return graph.mean(square, 1, 2, 3), False
    return graph.add("Transpose", graph.mean(square, 2, 3), perm=[1, 0]), True


def based(graph: Graph, base: Base | None, error: str, x: str) -> str:
    """Reconstruction errors with shape (..., N), with -s log b of a base at events x (N, d) added to them."""
    if base is None:
        return error
    u = graph.add("MatMul", x, graph.constant(base.frame.T.numpy(), "frame"))
    means = torch.einsum("kij,kj->ki", base.factors, base.means)[:, None].numpy()
    scaled = graph.add("MatMul", u, graph.constant(base.factors.mT.numpy(), "factors"))
    scaled = graph.add("Sub", scaled, graph.constant(means, "means"))
    half = graph.add("Mul", graph.total(graph.add("Mul", scaled, scaled), 2), graph.constant(-0.5))
    each, parts = log_gaussians(base.means[:1], base.weights, base.means, base.factors)
    sizes = (each + 0.5 * parts.square().sum(2)).numpy()
    gaussians = graph.add(
        "ReduceLogSumExp", graph.add("Add", half, graph.constant(sizes, "sizes")), graph.integers([0]), keepdims=0
    )
    length = graph.add("ReduceSum", graph.add("Mul", u, u), graph.integers([1]), keepdims=1)
    products = graph.add("MatMul", u, graph.constant(-2 * base.centres.T.numpy(), "centres"))
    squares = graph.constant(base.centres.double().square().sum(1).numpy(), "squares")
    distance = _without_own(
        graph, graph.add("Add", graph.add("Add", length, squares), products), length, len(base.centres)
    )
    widths = [
        graph.add("ReduceLogSumExp", graph.add("Mul", distance, graph.constant(rate)), graph.integers([1]), keepdims=1)
        for rate in (-0.5 / base.widths.square()).tolist()
    ]
    shares = graph.constant(base.log_shares().numpy(), "shares")
    kernels = graph.add(
        "ReduceLogSumExp",
        graph.add("Add", graph.add("Concat", *widths, axis=1), shares),
        graph.integers([1]),
        keepdims=0,
    )
    kernels = graph.add("Mul", kernels, graph.constant(-SCALE * float(base.leaning)))
    gaussians = graph.add("Mul", gaussians, graph.constant(SCALE * (float(base.leaning) - 1)))
    both = graph.add("Sub", graph.add("Add", gaussians, kernels), graph.constant(SCALE * float(base.log_det)))
    return graph.add("Add", error, both)


def _without_own(graph: Graph, distance: str, length: str, centres: int) -> str:
    """Squared distances (N, n) in float64, with one of a centre that is the event itself put out of sight."""
    nearest = graph.add("ReduceMin", distance, graph.integers([1]), keepdims=1)
    limit = graph.add("Mul", graph.add("Add", length, graph.constant(1.0)), graph.constant(OWN))
    own = graph.enter(graph.add("LessOrEqual", nearest, limit), np.bool_)
    place = graph.add("ArgMin", distance, axis=1, keepdims=0)
    hot = graph.add(
        "OneHot", place, graph.integers([centres]), graph.floats([0.0, FAR if centres > 1 else 0.0]), axis=1
    )
    return graph.add("Add", distance, graph.add("Mul", own, graph.enter(hot, np.float32)))


def _to_sphere(graph: Graph, z: str) -> str:
    length = graph.add("ReduceL2", z, graph.integers([-1]), keepdims=1)
    return graph.add("Div", z, graph.add("Max", length, graph.constant(np.finfo(graph.dtype).tiny)))


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
    if isinstance(layer, nn.Flatten):
        return _flatten(graph, state)
    if isinstance(layer, nn.Unflatten):
        channels, *sides = (int(n) for n in layer.unflattened_size)
        if draws > 1:
            name = graph.add("Transpose", name, perm=[1, 0, 2])
        shape = graph.integers([0, draws * channels, *sides])
        return State(graph.add("Reshape", name, shape), draws, channels)
    if isinstance(layer, Upsample):
        matrix = layer.matrix.numpy()
        wide = graph.add("MatMul", name, graph.constant(matrix.T, "upsample"))
        return State(graph.add("MatMul", graph.constant(matrix, "upsample"), wide), draws, channels)
    if isinstance(layer, nn.Sigmoid):
        return State(graph.add("Sigmoid", name), draws, channels)
    raise InputError(f"export: no ONNX form of the layer {type(layer).__name__}")


def _linear(graph: Graph, weight: Tensor, bias: Tensor, state: State) -> State:
    """x W^T + b; a product of (N, in) or (K, N, in) with (in, out) or (K, in, out)."""
    factor, offset = weight.mT.numpy(), bias[:, None].numpy()
    if len(factor) == 1:
        factor = factor[0]
    if len(offset) == 1:
        offset = offset[0, 0]
    product = graph.add("MatMul", state.name, graph.constant(factor, "weight"))
    name = graph.add("Add", product, graph.constant(offset, "bias"))
    return State(name, max(state.draws, len(weight), len(bias)), 0)


def _convolution(graph: Graph, layer: nn.Conv2d, weight: Tensor, bias: Tensor, state: State) -> State:
    draws = max(state.draws, len(weight), len(bias))
    weight, bias = (w.expand(draws, *w.shape[1:]).flatten(0, 1) for w in (weight, bias))
    name = graph.add(
        "Conv",
        state.name,
        graph.constant(weight.numpy(), "weight"),
        graph.constant(bias.numpy(), "bias"),
        kernel_shape=list(layer.kernel_size),
        pads=[int(p) for p in (*layer.padding, *layer.padding)],
        group=state.draws,
    )
    return State(name, draws, layer.out_channels)


def _prelu(graph: Graph, slope: Tensor, state: State) -> State:
    """max(h, 0) + slope min(h, 0) with one slope for all features, (K, 1) or (1, 1)."""
    name, draws, channels = state
    if len(slope) == 1:
        return State(graph.add("PRelu", name, graph.constant(slope[0].numpy(), "slope")), draws, channels)
    values = np.repeat(slope.numpy(), max(channels, 1)).reshape(-1, 1, 1)
    zero = graph.constant(0.0)
    below = graph.add("Mul", graph.add("Min", name, zero), graph.constant(values, "slope"))
    return State(graph.add("Add", graph.add("Max", name, zero), below), len(slope), channels)


def _flatten(graph: Graph, state: State) -> State:
    """(N, K c, h, w) to (N, c h w), or (K, N, c h w)."""
    if state.draws == 1:
        return State(graph.add("Flatten", state.name, axis=1), 1, 0)
    split = graph.add("Reshape", state.name, graph.integers([0, state.draws, -1]))
    return State(graph.add("Transpose", split, perm=[1, 0, 2]), state.draws, 0)


# --- the linearized network


def linearized_scores(graph: Graph, draws: LinearizedDraws, x: str) -> str:
    """T/T_k s_k with shape (K, N): E/T of every draw with its own temperature, for events x with shape (N, d)."""
    linear = draws.linear
    score, pairs = _pairs(graph, draws, x)
    total = None
    for (source, back), (a, g) in zip(pairs, draws.own, strict=True):
        inputs = graph.add("MatMul", source, graph.constant(a.T.numpy(), "a"))
        outputs = graph.add("MatMul", back, graph.constant(g.T.numpy(), "g"))
        part = graph.add("Mul", outputs, graph.add("Add", inputs, graph.constant(1.0)))
        total = part if total is None else graph.add("Add", total, part)
    assert total is not None
    slope = graph.add("MatMul", total, graph.constant(draws.mixture.T.numpy(), "mixture"))
    slope = graph.add("Transpose", slope, perm=[1, 0])
    reach = graph.add("Add", score, graph.constant(1.0))
    change = graph.add("Mul", reach, graph.add("Tanh", graph.add("Div", slope, reach)))
    error = graph.add("Mul", graph.add("Add", score, change), graph.constant(linear.temperature))
    energy = based(graph, linear.autoencoder.base, error, x)
    return graph.add("Div", energy, graph.constant(draws.temperature.double()[:, None].numpy()))


def _pairs(graph: Graph, draws: LinearizedDraws, x: str) -> tuple[str, list[tuple[str, str]]]:
    """s, and input a and g = ds/d(output) of each free layer, from the last to the first."""
    linear = draws.linear
    layers = _layers(draws)
    outputs, inputs = x, []
    for kind, weight, bias in layers:
        source = outputs if kind is None else graph.activation(kind, outputs)
        inputs.append((outputs, source))
        product = graph.add("MatMul", source, graph.constant(weight.T.numpy(), "weight"))
        outputs = graph.add("Add", product, graph.constant(bias.numpy(), "bias"))
    residual = graph.add("Sub", x, outputs)
    back = graph.add("Mul", residual, graph.constant(-2 / (len(layers[-1][2]) * linear.temperature)))
    found = []
    first = linear.free.index(True)
    for k in reversed(range(first, len(layers))):
        kind, weight, _ = layers[k]
        before, source = inputs[k]
        if linear.free[k]:
            found.append((source, back))
        if k > first:
            back = graph.add("MatMul", back, graph.constant(weight.numpy(), "weight"))
            back = back if kind is None else graph.add("Mul", back, graph.slope(kind, before))
    energy = graph.mean(graph.add("Mul", residual, residual), -1)
    return graph.add("Div", energy, graph.constant(linear.temperature)), found


def _layers(draws: LinearizedDraws) -> list[tuple[str | None, Tensor, Tensor]]:
    """The activation before each layer, its weight and its bias, through encoder and decoder."""
    found: list[tuple[str | None, Tensor, Tensor]] = []
    for network in (draws.linear.encoder, draws.linear.decoder):
        for k, layer in enumerate(network.layers):
            assert isinstance(layer, nn.Linear)
            found.append((network.activation if k else None, layer.weight, layer.bias))
    return found
