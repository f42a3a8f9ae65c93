"""The draws of the linearized network as nodes: `normae.posterior.laplace`, with its explicit pullback, in float64.

s_k = s + (s + 1) tanh(J d_k/(s + 1)),   J d_k = sum_m u_km sum_layers (g(x) g_m) (a(x) a_m + 1).
"""

from torch import Tensor, nn

from normae.export.graph import Graph
from normae.posterior.laplace import LinearizedDraws


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
    ratio = linear.temperature / draws.temperature.double()[:, None]
    return graph.add("Mul", graph.add("Add", score, change), graph.constant(ratio.numpy()))


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
