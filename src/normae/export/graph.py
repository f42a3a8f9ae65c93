"""A model as an ONNX graph: events in; energy, score and, where log Z is known, log p out.

A Bayesian model is exported with K fixed draws, the same as those behind `model.score`, so that the file gives the same
numbers: `energy`, `score` and `log_prob` are means over draws, `score_std` is the spread, and `score_draws` has every
draw. Where the model has coordinates, the graph takes rows in the user's units, and its density is in these units.

Nodes are added one by one and named by their number; a tensor is the name of what a node gives. All numbers of a graph
have one type, float32 or float64, that of the model.

Layers are for one set of weights or for K weight draws side by side. Weights have shape (K, *parameter), or
(1, *parameter) where all draws share them. Up to the first layer that has draws the work is done once. From there on
vectors have shape (K, N, d), and images keep the draws as groups of channels, (N, K c, h, w), which one grouped
convolution serves. A finished model's weights are those that the network is computed with: spectral normalization is
in them.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.polynomial import chebyshev
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
from normae.networks.base import FAR, OWN, SCALE, Base
from normae.networks.bases import Bases
from normae.networks.mlp import MLP
from normae.networks.reconstruction import prefixed
from normae.posterior.draw import Draws, MixedDraws, WeightDraws
from normae.statistics.gaussians import log_gaussians

EVENTS = "events"  # name of the input, with shape (N, *event)
Outputs = dict[str, tuple[str, tuple[Any, ...]]]
OPSET, IR_VERSION = 18, 8  # of 2022, so that runtimes from 1.14 on read the file
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


class Graph:
    """Nodes and constants in the order in which they were added; numbers are float32 or float64."""

    def __init__(self, dtype: Any) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def add(self, operator: str, *inputs: str | float | np.ndarray | Tensor, **attributes: Any) -> str:
        """The name of what `operator` gives for tensors by name, and for fixed numbers in the type of the graph."""
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        name = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, names, [name], name=name, **attributes))
        return name

    def enter(self, name: str, dtype: Any) -> str:
        """The input `name`, which comes as `dtype`, in the type of the graph."""
        return name if np.dtype(dtype) == self.dtype else self.add("Cast", name, to=TYPES[self.dtype])

    def constant(self, values: Any, dtype: Any = None) -> str:
        """Fixed numbers, in the type of the graph unless another is asked for."""
        name = f"constant_{len(self._constants)}"
        array = np.ascontiguousarray(np.asarray(values, dtype=dtype or self.dtype))
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def integers(self, values: Any) -> str:
        """Fixed integers, such as a shape or axes."""
        return self.constant(values, np.int64)

    def reduce(self, how: str, x: str, *axes: int, keep: bool = False) -> str:
        """ "Mean", "Sum", "LogSumExp", ... over axes, which go unless they are kept with length one."""
        return self.add(f"Reduce{how}", x, self.integers(axes), keepdims=int(keep))

    def square(self, x: str) -> str:
        """x^2."""
        return self.add("Mul", x, x)

    def activation(self, kind: str, h: str) -> str:
        """a(h) for a key of `normae.networks.mlp.ACTIVATIONS`."""
        if kind in ("relu", "tanh"):
            return self.add(kind.capitalize(), h)
        if kind == "silu":
            return self.add("Mul", h, self.add("Sigmoid", h))
        erf = self._erf(self.add("Mul", h, math.sqrt(0.5)))
        return self.add("Mul", h, self.add("Mul", self.add("Add", erf, 1.0), 0.5))

    def _erf(self, x: str) -> str:
        """The error function. The runtime has it in float32 only: in float64 it is a polynomial, good to 3e-15.

        erf|x| = 1 - exp(-x^2) g(|x|) with g(x) = exp(x^2) erfc(x), which is smooth in u = 8/(4 + x) - 1.
        """
        if self.dtype == np.float32:
            return self.add("Erf", x)
        u = self.add("Sub", self.add("Div", 8.0, self.add("Add", self.add("Abs", x), 4.0)), 1.0)
        fitted = chebyshev.chebinterpolate(lambda u: erfcx(8 / np.maximum(u + 1, 1e-300) - 4), 20)
        first, *rest = chebyshev.cheb2poly(fitted)[::-1]  # powers of u, the highest first
        g = self.constant(first)
        for coefficient in rest:
            g = self.add("Add", self.add("Mul", g, u), coefficient)
        bell = self.add("Exp", self.add("Neg", self.square(x)))
        return self.add("Mul", self.add("Sign", x), self.add("Sub", 1.0, self.add("Mul", bell, g)))

    def model(self, inputs: dict[str, tuple[Any, ...]], outputs: Outputs, metadata: dict[str, str]) -> ModelProto:
        """The checked model of inputs, shapes by name, and of outputs, a tensor and its shape by name."""
        kind = TYPES[self.dtype]
        for out, (tensor, _) in outputs.items():
            self._nodes.append(helper.make_node("Cast", [tensor], [out], name=out, to=kind))
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
    both = gaussians
    if len(base.centres):
        length = graph.reduce("SumSquare", u, 1, keep=True)
        products = graph.add("MatMul", u, -2 * base.centres.T)
        distance = graph.add("Add", graph.add("Add", length, base.centres.double().square().sum(1)), products)
        distance, own = _without_own(graph, distance, length, len(base.centres))
        both = graph.add("Add", gaussians, graph.add("MatMul", own, base.unseen[:, 0]))
    if base.kernels:
        rates = (-0.5 / base.widths.square()).tolist()
        widths = [graph.reduce("LogSumExp", graph.add("Mul", distance, rate), 1, keep=True) for rate in rates]
        kernels = graph.reduce(
            "LogSumExp", graph.add("Add", graph.add("Concat", *widths, axis=1), base.log_shares()), 1
        )
        kernels, a = graph.add("Add", kernels, graph.add("MatMul", own, base.unseen[:, 1])), float(base.leaning)
        both = graph.add("Add", graph.add("Mul", both, 1 - a), graph.add("Mul", kernels, a))
    return graph.add("Add", error, graph.add("Mul", graph.add("Add", both, float(base.log_det)), -SCALE))


def _without_own(graph: Graph, distance: str, length: str, centres: int) -> tuple[str, str]:
    """Squared distances (N, n), with a centre that is the event itself out of sight; 1 at such a centre, else 0."""
    nearest = graph.reduce("Min", distance, 1, keep=True)
    limit = graph.add("Mul", graph.add("Add", length, 1.0), OWN)
    own = graph.enter(graph.add("LessOrEqual", nearest, limit), np.bool_)
    place = graph.add("ArgMin", distance, axis=1, keepdims=0)
    ends = graph.constant([0.0, float(centres > 1)], np.float32)  # OneHot takes no others
    hot = graph.enter(graph.add("OneHot", place, graph.integers([centres]), ends, axis=1), np.float32)
    own = graph.add("Mul", own, hot)
    return graph.add("Add", distance, graph.add("Mul", own, FAR)), own


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
        drawn = max(draws, len(own["weight"]), len(own["bias"]))
        weight, bias = (w.expand(drawn, *w.shape[1:]).flatten(0, 1) for w in (own["weight"], own["bias"]))
        pads = [int(p) for p in (*layer.padding, *layer.padding)]
        sizes = {"kernel_shape": list(layer.kernel_size), "pads": pads, "group": draws}
        return State(graph.add("Conv", name, weight, bias, **sizes), drawn, layer.out_channels)
    if isinstance(layer, nn.PReLU):  # max(h, 0) + slope min(h, 0) with one slope for all features, (K, 1) or (1, 1)
        slope = own["weight"]
        if len(slope) == 1:
            return State(graph.add("PRelu", name, slope[0]), draws, channels)
        values = np.repeat(slope.numpy(), max(channels, 1)).reshape(-1, 1, 1)
        below = graph.add("Mul", graph.add("Min", name, 0.0), values)
        return State(graph.add("Add", graph.add("Max", name, 0.0), below), len(slope), channels)
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


# --- models


def onnx_model(model: Model, draws: int = DRAWS, about: Mapping[str, Any] | None = None) -> ModelProto:
    """The ONNX graph of a model on the CPU, with so many draws of a Bayesian one, and more to keep as metadata."""
    kept = None if model.posterior.certain else model.draw_set(draws, 0)
    graph = Graph(np.float64 if model.like.element_size() == 8 else model.event_dtype)
    x, slope = _in_coordinates(graph, model.coordinates, EVENTS)
    metadata = {"name": model.name, "event": list(model.event), "temperature": model.temperature}
    if kept is not None:
        draws = len(kept.temperature)
        scores = _member_scores(graph, kept, slope) if isinstance(kept, Members) else _score_draws(graph, kept, x)
        outputs, log_z = _bayesian(graph, model, kept, scores, slope, draws)
        metadata |= {"draws": draws, "seed": 0, "temperature_draws": kept.temperature.tolist()}
    else:
        outputs, log_z = _plain(graph, model, x, slope)
    metadata |= {"log_z": log_z, "coordinates": model.coordinates.kind} | dict(about or {})
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    return graph.model({EVENTS: ("N", *model.event)}, outputs, texts)


def _plain(graph: Graph, model: Model, x: str, slope: str | None) -> tuple[Outputs, Any]:
    """Energy, score and log p of one set of weights; what the metadata say of log Z."""
    weights = {name: p[None] for name, p in model.autoencoder.named_parameters()}
    energy, _ = energies(graph, model.autoencoder, weights, x)
    score = _in_units(graph, graph.add("Div", energy, model.temperature), slope)
    outputs: Outputs = {"energy": (energy, ("N",)), "score": (score, ("N",))}
    if model.normalization() is None:
        return outputs, None
    log_z = model.log_z
    outputs["log_prob"] = (graph.add("Sub", graph.add("Neg", score), log_z.value), ("N",))
    return outputs, {"value": log_z.value, "error": log_z.error}


def _in_units(graph: Graph, score: str, slope: str | None) -> str:
    """E/T - log |dy/dx|, where there are coordinates."""
    return score if slope is None else graph.add("Sub", score, slope)


def _bayesian(
    graph: Graph, model: Model, draws: Draws, plain: str, slope: str | None, count: int
) -> tuple[Outputs, Any]:
    """Means, spread and all values over draws, whose E/T is `plain` with shape (K, N)."""
    refuse(count < 2, f"draws: expected at least 2, got {count}")
    scores = _in_units(graph, plain, slope)
    mean = graph.reduce("Mean", scores, 0)
    energies_drawn = graph.add("Mul", plain, draws.temperature[:, None])
    off = graph.add("Sub", scores, mean)
    freedom = (count - 1) / model.bar**2
    variance = graph.add("Div", graph.reduce("SumSquare", off, 0), freedom)
    outputs: Outputs = {
        "energy": (graph.reduce("Mean", energies_drawn, 0), ("N",)),
        "score": (mean, ("N",)),
        "score_std": (graph.add("Sqrt", variance), ("N",)),
    }
    log_z = model.normalization(count)
    if log_z is not None:
        outputs["log_prob"] = (graph.add("Neg", graph.add("Add", mean, log_z.mean())), ("N",))
    outputs["score_draws"] = (scores, (count, "N"))
    return outputs, None if log_z is None else {"draws": log_z.tolist()}


def _score_draws(graph: Graph, draws: Draws, x: str) -> str:
    """E/T of every draw, with shape (K, N)."""
    own = draws.own if isinstance(draws, MixedDraws) else draws
    if not isinstance(own, WeightDraws):
        raise InputError(f"export: no ONNX form of draws of the kind {type(draws).__name__}")
    energy, drawn = energies(graph, own.autoencoder, own.weights, x)
    refuse(not drawn, "export: expected weights that differ from draw to draw")
    scores = graph.add("Div", energy, own.temperature[:, None])
    return graph.add("MatMul", draws.mixture, scores) if isinstance(draws, MixedDraws) else scores


def _member_scores(graph: Graph, draws: Members, slope: str | None) -> str:
    """E/T of every member at rows of the table, with shape (K, N)."""
    found = []
    for k, model in enumerate(draws.models):
        y, own = _in_coordinates(graph, model.coordinates, EVENTS)
        score = _plain(graph, model, y, own)[0]["score"][0]
        if draws.log_z is not None:
            score = graph.add("Add", score, float(draws.log_z[k] - draws.log_z.mean()))
        found.append(graph.add("Unsqueeze", score, graph.integers([0])))
    together = graph.add("Concat", *found, axis=0)
    return together if slope is None else graph.add("Add", together, slope)


def _in_coordinates(graph: Graph, table: Coordinates, x: str) -> tuple[str, str | None]:
    """y with shape (N, d), and log |dy/dx| with shape (N,), None where it is 0."""
    if isinstance(table, ComponentsCoordinates):
        u = graph.add("Sub", graph.add("Pow", graph.add("Max", x, FLOOR), float(table.power)), table.centre)
        axes = table.basis.double().flatten(1).T / table.width
        return graph.add("MatMul", graph.add("Flatten", u, axis=1), axes), None
    if not isinstance(table, TableCoordinates):
        return x, None
    u, slope = _bent(graph, table, graph.add("Div", graph.add("Sub", x, table.centre), table.width))
    size = graph.add("Abs", u)
    log = graph.add("Log", graph.add("Add", graph.add("Max", graph.add("Sub", size, LIMIT), 0.0), 1.0))
    beyond = graph.add("Mul", graph.add("Sign", u), graph.add("Add", log, LIMIT))
    soft = graph.add("Where", graph.add("LessOrEqual", size, LIMIT), u, beyond)
    y = graph.add("MatMul", graph.add("Sub", soft, table.mean), table.whitening.T)
    slope = graph.add("Add", graph.reduce("Sum", graph.add("Sub", slope, log), 1), table.constant)
    return y, slope if not bool(table.lattice[1].any()) else graph.add("Sub", slope, _impossible(graph, table, x))


def _impossible(graph: Graph, table: TableCoordinates, x: str) -> str:
    """What -log p has for values of rows x that cannot occur, with shape (N,), as `lattice.cannot_occur` finds them."""
    add, places = graph.add, table.lattice[1].nonzero().flatten()
    origin, step, low, high = table.lattice[:, places]
    x = add("Gather", x, graph.integers(places.tolist()), axis=1)
    k = add("Round", add("Div", add("Sub", x, origin), step))
    near = add("Add", origin, add("Mul", add("Min", add("Max", k, low), high), step))
    slack = add("Add", CLOSE * step, add("Mul", add("Abs", x), FLOAT32))
    off = graph.enter(add("Greater", add("Abs", add("Sub", x, near)), slack), np.bool_)
    return add("Mul", graph.reduce("Sum", off, 1), IMPOSSIBLE)


def _bent(graph: Graph, table: TableCoordinates, t: str) -> tuple[str, str | float]:
    """h(t) and log h' with shape (N, d), as `coordinates.bend` has them."""
    if not bool(table.bent.any()):
        return t, 0.0
    add, square, knots = graph.add, graph.square, table.knots
    above = add("GreaterOrEqual", add("Unsqueeze", t, graph.integers([2])), knots[0][:, 1:-1])
    above = graph.enter(above, np.bool_)

    def at(values: Tensor) -> str:
        """Of the interval that t lies in, from values (d, K - 1)."""
        return add("Add", graph.reduce("Sum", add("Mul", above, values.diff(dim=1)), 2), values[:, 0])

    x0, y0, d0, x1, y1, d1 = (part[:, i : i - 1 or None] for i in (0, 1) for part in knots)
    slope = at((y1 - y0) / (x1 - x0))
    share = add("Div", add("Sub", t, at(x0)), at(x1 - x0))
    share = add("Min", add("Max", share, 0.0), 1.0)
    rest = add("Sub", 1.0, share)
    both = add("Mul", share, rest)
    below = add("Add", slope, add("Mul", at(d1 + d0 - 2 * (y1 - y0) / (x1 - x0)), both))
    value = add("Add", add("Mul", slope, square(share)), add("Mul", at(d0), both))
    value = add("Add", at(y0), add("Mul", at(y1 - y0), add("Div", value, below)))
    high = add("Mul", add("Max", add("Sub", t, knots[0][:, -1]), 0.0), knots[2][:, -1])
    low = add("Mul", add("Min", add("Sub", t, knots[0][:, 0]), 0.0), knots[2][:, 0])
    steep = add("Add", add("Mul", at(d1), square(share)), add("Mul", at(d0), square(rest)))
    steep = add("Add", steep, add("Mul", add("Add", slope, slope), both))
    steep = add("Log", add("Mul", steep, square(add("Div", slope, below))))
    return add("Add", value, add("Add", high, low)), steep
