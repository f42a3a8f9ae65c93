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

from normae.components import FLOOR, ComponentsCoordinates
from normae.coordinates import LIMIT, Coordinates, TableCoordinates
from normae.errors import InputError
from normae.export.graph import Graph
from normae.export.networks import energies
from normae.inference import Model
from normae.inference.members import Members
from normae.inference.model import DRAWS
from normae.lattice import CLOSE, FLOAT32, IMPOSSIBLE
from normae.posterior.draw import Draws
from normae.posterior.weights import MixedDraws, WeightDraws

EVENTS = "events"  # name of the input, with shape (N, *event)
Outputs = dict[str, tuple[str, tuple[Any, ...]]]


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
    if count < 2:
        raise InputError(f"draws: expected at least 2, got {count}")
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
    if not drawn:
        raise InputError("export: expected weights that differ from draw to draw")
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
