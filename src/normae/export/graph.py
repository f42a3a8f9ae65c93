"""A model as an ONNX graph: events in; energy, score and, where log Z is known, log p out.

A Bayesian model is exported with K fixed draws, the same as those behind `model.score`, so that the file gives the same
numbers: `energy`, `score` and `log_prob` are means over draws, `score_std` is the spread, and `score_draws` has every
draw. Where the model has coordinates, the graph takes rows in the user's units, and its density is in these units.

Nodes are added one by one and named by their number. A `Node` stands for the tensor that one gives: operators and
functions of numpy add the node that does the same. All numbers of a graph have one type, float32 or float64, that of
the model.

Layers are for one set of weights or for K weight draws side by side. Weights have shape (K, *parameter), or
(1, *parameter) where all draws share them. Up to the first layer that has draws the work is done once. From there on
vectors have shape (K, N, d), and images keep the draws as groups of channels, (N, K c, h, w), which one grouped
convolution serves. A finished model's weights are those that the network is computed with: spectral normalization is
in them.
"""

import json
import math
from collections.abc import Mapping
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.polynomial import chebyshev, polynomial
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper
from scipy.special import erfcx
from torch import Tensor, nn

from normae.components import FLOOR, ComponentsCoordinates
from normae.coordinates import LIMIT, Coordinates, TableCoordinates
from normae.errors import InputError, refuse
from normae.inference import Model
from normae.inference.members import Members
from normae.inference.model import DRAWS
from normae.lattice import CLOSE, FLOAT32, IMPOSSIBLE
from normae.networks.autoencoder import Autoencoder, Upsample
from normae.networks.base import FAR, OWN, SCALE, Base, Bases
from normae.networks.mlp import MLP
from normae.networks.reconstruction import prefixed
from normae.posterior.draw import Draws, MixedDraws, WeightDraws
from normae.statistics.gaussians import log_gaussians

EVENTS = "events"  # name of the input, with shape (N, *event)
Value = Any  # a `Node`, or a number: what numpy's functions take, though their types do not say so
Outputs = dict[str, tuple[Value, tuple[Any, ...]]]
OPSET, IR_VERSION = 18, 8  # of 2022, so that runtimes from 1.14 on read the file
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}
OPERATORS = {
    np.add: "Add", np.subtract: "Sub", np.multiply: "Mul", np.true_divide: "Div", np.power: "Pow", np.matmul: "MatMul",
    np.maximum: "Max", np.minimum: "Min", np.negative: "Neg", np.absolute: "Abs", np.sign: "Sign", np.rint: "Round",
    np.exp: "Exp", np.log: "Log", np.sqrt: "Sqrt", np.greater: "Greater", np.greater_equal: "GreaterOrEqual",
    np.less_equal: "LessOrEqual",
}  # fmt: skip


class Node(NDArrayOperatorsMixin):
    """A tensor of a graph, by its name; numpy's functions of it, and of numbers with it, add nodes."""

    def __init__(self, graph: "Graph", name: str) -> None:
        self.graph, self.name = graph, name

    def __array_ufunc__(self, function: np.ufunc, _: str, *inputs: Any) -> Value:
        return self.graph.add(OPERATORS[function], *inputs)


class Graph:
    """Nodes and constants in the order in which they were added; numbers are float32 or float64."""

    def __init__(self, dtype: Any) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> Value:
        """What `operator` gives for tensors of the graph, and for fixed numbers in its type."""
        names = [(x if isinstance(x, Node) else self.constant(x)).name for x in inputs]
        name = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, names, [name], name=name, **attributes))
        return Node(self, name)

    def numbers(self, x: Value) -> Value:
        """x in the type of the graph, which truth values, or numbers of another type, come in."""
        return self.add("Cast", x, to=TYPES[self.dtype])

    def constant(self, values: Any, dtype: Any = None) -> Value:
        """Fixed numbers, in the type of the graph unless another is asked for."""
        name = f"constant_{len(self._constants)}"
        array = np.ascontiguousarray(np.asarray(values, dtype=dtype or self.dtype))
        self._constants.append(numpy_helper.from_array(array, name))
        return Node(self, name)

    def integers(self, values: Any) -> Value:
        """Fixed integers, such as a shape or axes."""
        return self.constant(values, np.int64)

    def reduce(self, how: str, x: Value, *axes: int, keep: bool = False) -> Value:
        """ "Mean", "Sum", "LogSumExp", ... over axes, which go unless they are kept with length one."""
        return self.add(f"Reduce{how}", x, self.integers(axes), keepdims=int(keep))

    def activation(self, kind: str, h: Value) -> Value:
        """a(h) for a key of `normae.networks.mlp.ACTIVATIONS`."""
        if kind in ("relu", "tanh"):
            return self.add(kind.capitalize(), h)
        if kind == "silu":  # a product with a sigmoid is fused by some runtimes into what they have in float32 only
            return h / (self.add("Exp", -h) + 1.0)
        return h * ((self._erf(h * math.sqrt(0.5)) + 1.0) * 0.5)

    def _erf(self, x: Value) -> Value:
        """The error function. The runtime has it in float32 only: in float64 it is a polynomial, good to 3e-15.

        erf|x| = 1 - exp(-x^2) g(|x|) with g(x) = exp(x^2) erfc(x), which is smooth in u = 8/(4 + x) - 1.
        """
        if self.dtype == np.float32:
            return self.add("Erf", x)
        fitted = chebyshev.chebinterpolate(lambda u: erfcx(8 / np.maximum(u + 1, 1e-300) - 4), 20)
        g = polynomial.polyval(8.0 / (np.abs(x) + 4.0) - 1.0, chebyshev.cheb2poly(fitted))
        return np.sign(x) * (1.0 - np.exp(-(x * x)) * g)

    def model(self, inputs: dict[str, tuple[Any, ...]], outputs: Outputs, metadata: dict[str, str]) -> ModelProto:
        """The checked model of inputs, shapes by name, and of outputs, a tensor and its shape by name."""
        kind = TYPES[self.dtype]
        for out, (tensor, _) in outputs.items():
            self._nodes.append(helper.make_node("Cast", [tensor.name], [out], name=out, to=kind))
        given = [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()]
        made = [helper.make_tensor_value_info(name, kind, shape) for name, (_, shape) in outputs.items()]
        graph = helper.make_graph(self._nodes, "normae", given, made, self._constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="normae", opset_imports=opsets, ir_version=IR_VERSION)
        helper.set_model_props(model, metadata)
        checker.check_model(model, full_check=True)
        return model


# --- layers


class State(NamedTuple):
    """A tensor between two layers, its draws (1 before the first drawn layer), channels (0 for vectors)."""

    h: Value
    draws: int
    channels: int


def energies(graph: Graph, autoencoder: Autoencoder, weights: Mapping[str, Tensor], x: Value) -> Value:
    """Nodes for E at events x (N, *event): with shape (N,), or (K, N) where weights have draws."""
    image = isinstance(autoencoder.encoder, nn.Sequential)
    weights = {name: value.detach() for name, value in weights.items()}
    state = _network(graph, autoencoder.encoder, prefixed(weights, "encoder."), State(x, 1, int(image)))
    if autoencoder.sphere:
        length = np.maximum(graph.reduce("L2", state.h, -1, keep=True), np.finfo(graph.dtype).tiny)
        state = state._replace(h=state.h / length)
    state = _network(graph, autoencoder.decoder, prefixed(weights, "decoder."), state)
    off = x - state.h
    square = off * off
    if not image:
        return based(graph, autoencoder.base, graph.reduce("Mean", square, -1), x)
    if state.draws == 1:
        return graph.reduce("Mean", square, 1, 2, 3)
    return graph.add("Transpose", graph.reduce("Mean", square, 2, 3), perm=[1, 0])


def based(graph: Graph, base: Base | Bases | None, error: Value, x: Value) -> Value:
    """Reconstruction errors with shape (..., N), with -s log b of a base at events x (N, d) added to them."""
    if not isinstance(base, Base):
        return error
    u = x @ base.frame.T
    means = torch.einsum("kij,kj->ki", base.factors, base.means)[:, None]
    half = graph.reduce("SumSquare", u @ base.factors.mT - means, 2) * -0.5
    each, parts = log_gaussians(base.means[:1], base.weights, base.means, base.factors)
    both = gaussians = graph.reduce("LogSumExp", half + (each + 0.5 * parts.square().sum(2)), 0)
    if len(base.centres):
        length = graph.reduce("SumSquare", u, 1, keep=True)
        distance = length + base.centres.double().square().sum(1) + u @ (-2 * base.centres.T)
        distance, own = _without_own(graph, distance, length, len(base.centres))
        both = gaussians + own @ base.unseen[:, 0]
    if base.kernels:
        rates, a = (-0.5 / base.widths.square()).tolist(), float(base.leaning)
        widths = [graph.reduce("LogSumExp", distance * rate, 1, keep=True) for rate in rates]
        kernels = graph.reduce("LogSumExp", graph.add("Concat", *widths, axis=1) + base.log_shares(), 1)
        both = both * (1 - a) + (kernels + own @ base.unseen[:, 1]) * a
    return error + (both + float(base.log_det)) * -SCALE


def _without_own(graph: Graph, distance: Value, length: Value, centres: int) -> tuple[Value, Value]:
    """Squared distances (N, n), with a centre that is the event itself out of sight; 1 at such a centre, else 0."""
    own = graph.numbers(graph.reduce("Min", distance, 1, keep=True) <= (length + 1.0) * OWN)
    place = graph.add("ArgMin", distance, axis=1, keepdims=0)
    ends = graph.constant([0.0, float(centres > 1)], np.float32)  # OneHot takes no others
    own = own * graph.numbers(graph.add("OneHot", place, graph.integers([centres]), ends, axis=1))
    return distance + own * (length + FAR), own


def _network(graph: Graph, network: nn.Module, weights: Mapping[str, Tensor], state: State) -> State:
    if isinstance(network, MLP):
        for k, (weight, bias) in enumerate(network.layer_names()):
            if k:
                state = state._replace(h=graph.activation(network.activation, state.h))
            state = _linear(weights[weight], weights[bias], state)
        return state
    if not isinstance(network, nn.Sequential):
        raise InputError(f"export: expected an MLP or a sequence of layers, got {type(network).__name__}")
    for name, layer in network.named_children():
        state = _layer(graph, layer, prefixed(weights, f"{name}."), state)
    return state


def _layer(graph: Graph, layer: nn.Module, own: Mapping[str, Tensor], state: State) -> State:
    h, draws, channels = state
    if isinstance(layer, nn.Linear):
        return _linear(own["weight"], own["bias"], state)
    if isinstance(layer, nn.Conv2d):
        drawn = max(draws, len(own["weight"]), len(own["bias"]))
        weight, bias = (w.expand(drawn, *w.shape[1:]).flatten(0, 1) for w in (own["weight"], own["bias"]))
        pads = [int(p) for p in (*layer.padding, *layer.padding)]
        sizes = {"kernel_shape": list(layer.kernel_size), "pads": pads, "group": draws}
        return State(graph.add("Conv", h, weight, bias, **sizes), drawn, layer.out_channels)
    if isinstance(layer, nn.PReLU):  # max(h, 0) + slope min(h, 0) with one slope for all features, (K, 1) or (1, 1)
        slope = own["weight"]
        if len(slope) == 1:
            return State(graph.add("PRelu", h, slope[0]), draws, channels)
        values = np.repeat(slope.numpy(), max(channels, 1)).reshape(-1, 1, 1)
        return State(np.maximum(h, 0.0) + np.minimum(h, 0.0) * values, len(slope), channels)
    if isinstance(layer, nn.MaxPool2d):
        return State(graph.add("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2]), draws, channels)
    if isinstance(layer, nn.Flatten):  # to (N, c h w), or (K, N, c h w)
        if draws == 1:
            return State(graph.add("Flatten", h, axis=1), 1, 0)
        split = graph.add("Reshape", h, graph.integers([0, draws, -1]))
        return State(graph.add("Transpose", split, perm=[1, 0, 2]), draws, 0)
    if isinstance(layer, nn.Unflatten):
        channels, *sides = (int(n) for n in layer.unflattened_size)
        if draws > 1:
            h = graph.add("Transpose", h, perm=[1, 0, 2])
        return State(graph.add("Reshape", h, graph.integers([0, draws * channels, *sides])), draws, channels)
    if isinstance(layer, Upsample):
        return State(graph.add("MatMul", layer.matrix, h @ layer.matrix.T), draws, channels)
    if isinstance(layer, nn.Sigmoid):
        return State(graph.add("Sigmoid", h), draws, channels)
    raise InputError(f"export: no ONNX form of the layer {type(layer).__name__}")


def _linear(weight: Tensor, bias: Tensor, state: State) -> State:
    """x W^T + b; a product of (N, in) or (K, N, in) with (in, out) or (K, in, out)."""
    h = state.h @ (weight[0].T if len(weight) == 1 else weight.mT) + (bias[0] if len(bias) == 1 else bias[:, None])
    return State(h, max(state.draws, len(weight), len(bias)), 0)


# --- models


def onnx_model(model: Model, draws: int = DRAWS, about: Mapping[str, Any] | None = None) -> ModelProto:
    """The ONNX graph of a model on the CPU, with so many draws of a Bayesian one, and more to keep as metadata."""
    kept = None if model.posterior.certain else model.draw_set(draws, 0)
    graph = Graph(np.float64 if model.like.element_size() == 8 else model.event_dtype)
    x, slope = _in_coordinates(graph, model.coordinates, Node(graph, EVENTS))
    slope = slope if model.box is None else slope - _beyond(graph, x, *model.box)
    metadata = {"name": model.name, "event": list(model.event), "temperature": model.temperature}
    if kept is not None:
        draws = len(kept.temperature)
        scores = _scores(kept, graph, x, slope)
        outputs, log_z = _bayesian(graph, model, kept, scores, slope, draws)
        metadata |= {"draws": draws, "seed": 0, "temperature_draws": kept.temperature.tolist()}
    else:
        outputs, log_z = _plain(graph, model, x, slope)
    metadata |= {"log_z": log_z, "coordinates": model.coordinates.kind} | dict(about or {})
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    return graph.model({EVENTS: ("N", *model.event)}, outputs, texts)


def _plain(graph: Graph, model: Model, x: Value, slope: Value) -> tuple[Outputs, Any]:
    """Energy, score E/T - log |dy/dx| and log p of one set of weights; what the metadata say of log Z."""
    weights = {name: p[None] for name, p in model.autoencoder.named_parameters()}
    energy = energies(graph, model.autoencoder, weights, x)
    score = energy / model.temperature - slope
    outputs: Outputs = {"energy": (energy, ("N",)), "score": (score, ("N",))}
    if model.normalization() is None:
        return outputs, None
    log_z = model.log_z
    outputs["log_prob"] = (-score - log_z.value, ("N",))
    return outputs, {"value": log_z.value, "error": log_z.error}


def _bayesian(graph: Graph, model: Model, draws: Draws, plain: Value, slope: Value, count: int) -> tuple[Outputs, Any]:
    """Means, spread and all values over draws, whose E/T is `plain` with shape (K, N)."""
    refuse(count < 2, f"draws: expected at least 2, got {count}")
    scores = plain - slope
    mean = graph.reduce("Mean", scores, 0)
    variance = graph.reduce("SumSquare", scores - mean, 0) / ((count - 1) / model.bar**2)
    energy, spread = graph.reduce("Mean", plain * draws.temperature[:, None], 0), np.sqrt(variance)
    outputs: Outputs = {"energy": (energy, ("N",)), "score": (mean, ("N",)), "score_std": (spread, ("N",))}
    log_z = model.normalization(count)
    if log_z is not None:
        outputs["log_prob"] = (-(mean + log_z.mean()), ("N",))
    outputs["score_draws"] = (scores, (count, "N"))
    return outputs, None if log_z is None else {"draws": log_z.tolist()}


@singledispatch
def _scores(draws: Draws, graph: Graph, x: Value, slope: Value) -> Value:  # noqa: ARG001
    """E/T of every draw, with shape (K, N), as a model has it whose log |dy/dx| is `slope`."""
    raise InputError(f"export: no ONNX form of draws of the kind {type(draws).__name__}")


@_scores.register
def _(draws: WeightDraws, graph: Graph, x: Value, slope: Value) -> Value:  # noqa: ARG001
    drawn = any(len(weight) > 1 for weight in draws.weights.values())
    refuse(not drawn, "export: expected weights that differ from draw to draw")
    return energies(graph, draws.autoencoder, draws.weights, x) / draws.temperature[:, None]


@_scores.register
def _(draws: MixedDraws, graph: Graph, x: Value, slope: Value) -> Value:
    return graph.add("MatMul", draws.mixture, _scores(draws.own, graph, x, slope))


@_scores.register
def _(draws: Members, graph: Graph, x: Value, slope: Value) -> Value:  # noqa: ARG001
    found = []
    for k, model in enumerate(draws.models):
        score = _plain(graph, model, *_in_coordinates(graph, model.coordinates, Node(graph, EVENTS)))[0]["score"][0]
        if draws.log_z is not None:
            score = score + float(draws.log_z[k] - draws.log_z.mean())
        found.append(graph.add("Unsqueeze", score, graph.integers([0])))
    return graph.add("Concat", *found, axis=0) + slope


def _in_coordinates(graph: Graph, table: Coordinates, x: Value) -> tuple[Value, Value]:
    """y with shape (N, d), and log |dy/dx| with shape (N,), or 0."""
    if isinstance(table, ComponentsCoordinates):
        u = np.maximum(x, FLOOR) ** float(table.power) - table.centre
        return graph.add("Flatten", u, axis=1) @ (table.basis.double().flatten(1).T / table.width), 0.0
    if not isinstance(table, TableCoordinates):
        return x, 0.0 if table.lattice is None else -_beyond(graph, x, *table.lattice[2:, 0].tolist())
    u, slope = _bent(graph, table, (x - table.centre) / table.width)
    size = np.abs(u)
    log = np.log(np.maximum(size - LIMIT, 0.0) + 1.0)
    soft = graph.add("Where", size <= LIMIT, u, np.sign(u) * (log + LIMIT))
    y = (soft - table.mean) @ table.whitening.T
    slope = graph.reduce("Sum", slope - log, 1) + table.constant
    return y, slope - _impossible(graph, table, x) if bool(table.lattice[1].any()) else slope


def _beyond(graph: Graph, y: Value, low: float, high: float) -> Value:
    """What -log p has for values of y, with shape (N, *event), beyond the bounds of chains, with shape (N,)."""
    flat = graph.add("Flatten", y, axis=1)
    return graph.reduce("Sum", graph.numbers(np.greater(low, flat)) + graph.numbers(flat > high), 1) * IMPOSSIBLE


def _impossible(graph: Graph, table: TableCoordinates, x: Value) -> Value:
    """What -log p has for values of rows x that cannot occur, with shape (N,), as `lattice.cannot_occur` finds them."""
    places = table.lattice[1].nonzero().flatten()
    origin, step, low, high = table.lattice[:, places]
    x = graph.add("Gather", x, graph.integers(places.tolist()), axis=1)
    k = np.minimum(np.maximum(np.rint((x - origin) / step), low), high)
    off = np.abs(x - (k * step + origin)) > np.abs(x) * FLOAT32 + CLOSE * step
    return graph.reduce("Sum", graph.numbers(off), 1) * IMPOSSIBLE


def _bent(graph: Graph, table: TableCoordinates, t: Value) -> tuple[Value, Value]:
    """h(t) and log h' with shape (N, d), as `coordinates.bend` has them."""
    if not bool(table.bent.any()):
        return t, 0.0
    knots = table.knots
    above = graph.numbers(graph.add("Unsqueeze", t, graph.integers([2])) >= knots[0][:, 1:-1])

    def at(values: Tensor) -> Value:
        """Of the interval that t lies in, from values (d, K - 1)."""
        return graph.reduce("Sum", above * values.diff(dim=1), 2) + values[:, 0]

    x0, y0, d0, x1, y1, d1 = (part[:, i : i - 1 or None] for i in (0, 1) for part in knots)
    slope = at((y1 - y0) / (x1 - x0))
    share = np.minimum(np.maximum((t - at(x0)) / at(x1 - x0), 0.0), 1.0)
    rest = 1.0 - share
    both = share * rest
    below = slope + at(d1 + d0 - 2 * (y1 - y0) / (x1 - x0)) * both
    value = at(y0) + at(y1 - y0) * ((slope * (share * share) + at(d0) * both) / below)
    high = np.maximum(t - knots[0][:, -1], 0.0) * knots[2][:, -1]
    low = np.minimum(t - knots[0][:, 0], 0.0) * knots[2][:, 0]
    steep = at(d1) * (share * share) + at(d0) * (rest * rest) + (slope + slope) * both
    ratio = slope / below
    return value + (high + low), np.log(steep * (ratio * ratio))
