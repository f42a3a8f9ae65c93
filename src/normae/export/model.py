"""A model as an ONNX graph: events in; energy, score and, where log Z is known, log p out.

A Bayesian model is exported with K fixed draws, the same as those behind `model.score`, so that the file gives the same
numbers: `energy`, `score` and `log_prob` are means over draws, `score_std` is the spread, and `score_draws` has every
draw. Where the model has coordinates, the graph takes rows in the user's units, and its density is in these units.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto
from torch import Tensor

from normae.coordinates import LIMIT, TableCoordinates
from normae.errors import InputError
from normae.export.graph import Graph
from normae.export.networks import energies, linearized_scores
from normae.inference import Model
from normae.inference.model import DRAWS
from normae.posterior.draw import Draws
from normae.posterior.laplace import LinearizedDraws
from normae.posterior.weights import MixedDraws, WeightDraws

EVENTS = "events"
"""Name of the input, with shape (N, *event)."""
Outputs = dict[str, tuple[str, tuple[Any, ...]]]


def onnx_model(model: Model, draws: int = DRAWS, about: Mapping[str, Any] | None = None) -> ModelProto:
    """The ONNX graph of a model whose weights are on the CPU.

    Args:
        draws: weight draws of a Bayesian model, with seed 0.
        about: more to keep in the file's metadata.
    """
    table = model.coordinates if isinstance(model.coordinates, TableCoordinates) else None
    kept = None if model.posterior.certain else model.draw_set(draws, 0)
    outer = np.float64 if model.like.element_size() == 8 else model.event_dtype
    graph = Graph(np.float64 if isinstance(kept, LinearizedDraws) else outer)
    x, slope = graph.enter(EVENTS, outer), None
    if table is not None:
        x, slope = _in_coordinates(graph, table, x)
    metadata = {"name": model.name, "event": list(model.event), "temperature": model.temperature}
    if kept is not None:
        outputs, log_z = _bayesian(graph, model, kept, x, slope, draws)
        metadata |= {"draws": draws, "seed": 0, "temperature_draws": kept.temperature.tolist()}
    else:
        outputs, log_z = _plain(graph, model, x, slope)
    metadata |= {"log_z": log_z, "coordinates": model.coordinates.kind} | dict(about or {})
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    return graph.model({EVENTS: ("N", *model.event)}, outputs, texts, "normae", outer)


def _plain(graph: Graph, model: Model, x: str, slope: str | None) -> tuple[Outputs, Any]:
    """Energy, score and log p of one set of weights; what the metadata say of log Z."""
    weights = {name: p[None] for name, p in model.autoencoder.named_parameters()}
    energy, _ = energies(graph, model.autoencoder, weights, x)
    score = _in_units(graph, graph.add("Div", energy, graph.constant(model.temperature)), slope)
    outputs: Outputs = {"energy": (energy, ("N",)), "score": (score, ("N",))}
    if model.normalization() is None:
        return outputs, None
    log_z = model.log_z
    outputs["log_prob"] = (graph.add("Sub", graph.add("Neg", score), graph.constant(log_z.value)), ("N",))
    return outputs, {"value": log_z.value, "error": log_z.error}


def _in_units(graph: Graph, score: str, slope: str | None) -> str:
    """E/T - log |dy/dx|, where there are coordinates."""
    return score if slope is None else graph.add("Sub", score, slope)


def _bayesian(graph: Graph, model: Model, draws: Draws, x: str, slope: str | None, count: int) -> tuple[Outputs, Any]:
    """Means, spread and all values over draws."""
    if count < 2:
        raise InputError(f"draws: expected at least 2, got {count}")
    plain = _score_draws(graph, draws, x)
    scores = _in_units(graph, plain, slope)
    mean = graph.mean(scores, 0)
    temperature = graph.constant(draws.temperature.double().numpy()[:, None])
    off = graph.add("Sub", scores, mean)
    variance = graph.add("Div", graph.total(graph.add("Mul", off, off), 0), graph.constant(count - 1.0))
    outputs: Outputs = {
        "energy": (graph.mean(graph.add("Mul", plain, temperature), 0), ("N",)),
        "score": (mean, ("N",)),
        "score_std": (graph.add("Sqrt", variance), ("N",)),
    }
    log_z = model.normalization(count)
    if log_z is not None:
        density = graph.add("Neg", graph.add("Add", mean, graph.constant(log_z.mean())))
        outputs["log_prob"] = (density, ("N",))
    outputs["score_draws"] = (scores, (count, "N"))
    return outputs, None if log_z is None else {"draws": log_z.tolist()}


def _score_draws(graph: Graph, draws: Draws, x: str) -> str:
    """E/T of every draw, with shape (K, N)."""
    if isinstance(draws, LinearizedDraws):
        return linearized_scores(graph, draws, x)
    own = draws.own if isinstance(draws, MixedDraws) else draws
    if not isinstance(own, WeightDraws):
        raise InputError(f"export: no ONNX form of draws of the kind {type(draws).__name__}")
    energy, drawn = energies(graph, own.autoencoder, own.weights, x)
    if not drawn:
        raise InputError("export: expected weights that differ from draw to draw")
    temperature = graph.constant(own.temperature.double().numpy()[:, None])
    scores = graph.add("Div", energy, temperature)
    if isinstance(draws, MixedDraws):
        scores = graph.add("MatMul", graph.constant(draws.mixture.numpy(), "mixture"), scores)
    return scores


def _in_coordinates(graph: Graph, table: TableCoordinates, x: str) -> tuple[str, str]:
    """y with shape (N, d), and log |dy/dx| with shape (N,)."""
    u = graph.add("Sub", x, graph.constant(table.centre))
    u, slope = _bent(graph, table, graph.add("Div", u, graph.constant(table.width)))
    size, limit = graph.add("Abs", u), graph.constant(LIMIT)
    over = graph.add("Max", graph.add("Sub", size, limit), graph.constant(0.0))
    log = graph.add("Log", graph.add("Add", over, graph.constant(1.0)))
    beyond = graph.add("Mul", graph.add("Sign", u), graph.add("Add", log, limit))
    soft = graph.add("Where", graph.add("LessOrEqual", size, limit), u, beyond)
    centred = graph.add("Sub", soft, graph.constant(table.mean))
    y = graph.add("MatMul", centred, graph.constant(table.whitening.T))
    log = graph.add("Sub", slope, log) if slope else graph.add("Neg", log)
    return y, graph.add("Add", graph.constant(table.constant), graph.total(log, 1))


def _bent(graph: Graph, table: TableCoordinates, t: str) -> tuple[str, str]:
    """h(t) and log h' with shape (N, d), as `coordinates.bend` has them; "" for the identity, which has no slope."""
    if not bool(table.bent.any()):
        return t, ""
    add, knots = graph.add, table.knots
    above = add("GreaterOrEqual", add("Unsqueeze", t, graph.integers([2])), graph.constant(knots[0][:, 1:-1]))
    above = graph.enter(above, np.bool_)

    def at(values: Tensor) -> str:
        """Of the interval that t lies in, from values (d, K - 1)."""
        steps = add("Mul", above, graph.constant(values.diff(dim=1)))
        return add("Add", graph.total(steps, 2), graph.constant(values[:, 0]))

    x0, y0, d0, x1, y1, d1 = (part[:, i : i - 1 or None] for i in (0, 1) for part in knots)
    rise, slope = at(y1 - y0), at((y1 - y0) / (x1 - x0))
    share = add("Div", add("Sub", t, at(x0)), at(x1 - x0))
    share = add("Min", add("Max", share, graph.constant(0.0)), graph.constant(1.0))
    rest = add("Sub", graph.constant(1.0), share)
    both, square, left = add("Mul", share, rest), add("Mul", share, share), add("Mul", rest, rest)
    below = add("Add", slope, add("Mul", at(d1 + d0 - 2 * (y1 - y0) / (x1 - x0)), both))
    value = add("Add", add("Mul", slope, square), add("Mul", at(d0), both))
    value = add("Add", at(y0), add("Mul", rise, add("Div", value, below)))
    high = add("Max", add("Sub", t, graph.constant(knots[0][:, -1])), graph.constant(0.0))
    low = add("Min", add("Sub", t, graph.constant(knots[0][:, 0])), graph.constant(0.0))
    high, low = add("Mul", high, graph.constant(knots[2][:, -1])), add("Mul", low, graph.constant(knots[2][:, 0]))
    steep = add("Mul", add("Add", slope, slope), both)
    steep = add("Add", add("Add", add("Mul", at(d1), square), steep), add("Mul", at(d0), left))
    ratio = add("Div", slope, below)
    steep = add("Log", add("Mul", steep, add("Mul", ratio, ratio)))
    return add("Add", value, add("Add", high, low)), steep
