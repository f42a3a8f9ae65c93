"""`normae export --trigger`: a small fixed-point network with the score of a run, and what it loses.

Everything is measured on events that the student was not trained on: the run's test sample as background; as
anomalies noise around it, and a signal where one is given. The fixed-point numbers are those of hls4ml's C++ emulation
where there is a compiler, and of our own arithmetic otherwise; with a compiler the two must agree in every bit.

The student is trained with the rounding that it will have in fixed-point arithmetic. The teacher's score E/T, which is
never negative, grows quadratically far out, which no small range holds; the student learns t = log(1 + E/T), of the
same order, on background and on noise around it: background rows moved by normal noise of 0.1 to 3 widths. Inputs are z
= (x - m)/2^k for each column, one subtraction and a shift. Training is in real numbers first. Then ranges are measured
and types chosen, and the training goes on with every weight, input and result rounded to its type; gradients pass
through the rounding unchanged.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normae.config import read
from normae.coordinates import Identity
from normae.errors import InputError, refuse, require, require_that
from normae.export.fixed import Fixed, FixedNetwork, fixed_network, type_for, weight_types, write_project
from normae.export.onnx import about
from normae.figures import figure_style, new_figure
from normae.figures.curves import score_agreement, trigger_rates
from normae.files import check_new, new_folder, write_json
from normae.inference import Model
from normae.networks.mlp import MLP
from normae.report import save_figure
from normae.runs.folder import RunFolder, write_tensors
from normae.runs.load import run_of
from normae.scoring.score import open_files, read_events
from normae.scoring.scorer import open_scorer
from normae.statistics.auc import auc, auc_difference
from normae.statistics.density import pearson
from normae.tensors import stream
from normae.training.supervised import fit

Floats = NDArray[np.float64]
Score = Callable[[NDArray[Any]], NDArray[Any]]
RANGE = 0.9999  # share of values that a type must hold; the others stay at the end of its range
LEARNING_RATE = 3e-3  # at the start; it decays along a cosine in each of the two parts
RATES = (0.01, 0.001)  # shares of background that a trigger keeps
MOST_SIGNAL = 20_000


@dataclass(frozen=True)
class TriggerSettings:
    """Sizes of the student, of its training and of the comparison.

    Args:
        hidden: widths of the hidden layers.
        bits: of weights, inputs and results.
        epochs: in real numbers; a third as many follow with rounding.
        events, test: background events to train on and to compare on, and as many of noise.
    """

    hidden: tuple[int, ...] = (32, 16)
    bits: int = 16
    epochs: int = 30
    events: int = 50_000
    test: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        widths = bool(self.hidden) and all(1 <= width <= 1024 for width in self.hidden)
        require_that(widths, "--hidden", "widths from 1 to 1024", list(self.hidden))
        require_that(4 <= self.bits <= 24, "--bits", "4 to 24", self.bits)
        refuse(self.epochs < 1 or self.events < 100 or self.test < 100, "expected at least 1 epoch and 100 events")


@dataclass(frozen=True)
class Student:
    """A distilled network: inputs z = (x - centre)/scale, real and fixed-point."""

    centre: Floats
    scale: Floats
    network: MLP
    fixed: FixedNetwork

    def inputs(self, x: NDArray[Any]) -> Floats:
        """z with shape (N, d)."""
        return np.asarray((np.asarray(x, dtype=np.float64) - self.centre) / self.scale)

    def real(self, x: NDArray[Any]) -> Floats:
        """t with shape (N,), without rounding."""
        with torch.no_grad():
            return np.asarray(self.network(torch.from_numpy(self.inputs(x)).float())[:, 0].double())

    def rounded(self, x: NDArray[Any]) -> Floats:
        """t with shape (N,), in fixed-point arithmetic."""
        return self.fixed(self.inputs(x))[:, 0]


def target(score: NDArray[Any]) -> Floats:
    """t = log(1 + E/T)."""
    return np.log1p(np.maximum(np.asarray(score, dtype=np.float64), 0))


def noise_around(x: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    """Rows moved by normal noise of 0.1 to 3 widths, log-uniform, another size for each row."""
    size = np.exp(random.uniform(np.log(0.1), np.log(3.0), size=(len(x), 1)))
    return np.asarray(x + size * x.std(0) * random.standard_normal(x.shape), dtype=x.dtype)


def distill(score: Score, background: NDArray[Any], settings: TriggerSettings, batch: int = 512) -> Student:
    """A student of `score`, trained on background with shape (N, d) and on as much noise around it, `batch` at once."""
    seed, epochs, bits = settings.seed, settings.epochs, settings.bits
    x = np.concatenate([background, noise_around(background, np.random.default_rng(seed))])
    centre = background.mean(0, dtype=np.float64)
    scale = np.exp2(np.round(np.log2(np.maximum(background.std(0, dtype=np.float64), 1e-12))))
    z = torch.from_numpy((x - centre) / scale).float()
    t = torch.from_numpy(target(score(x))).float()
    network = MLP([z.shape[1], *settings.hidden, 1], "relu", stream(seed, "student"))
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
    """Values as the type has them, with the gradient of the values."""
    rounded = torch.from_numpy(kind.values(kind.of(values.detach().numpy())))
    return rounded.to(values) + (values - values.detach())


def export_trigger(
    run: str | Path, out: str | Path, settings: TriggerSettings, signal: Sequence[str | Path] = (), force: bool = False
) -> dict[str, Any]:
    """Distill the score of a run into a new folder `out`: hls4ml/, student.safetensors, trigger.json, figures/.

    Args:
        signal: files of anomalies to compare on, beside noise.
        force: replace what is there.

    Returns:
        The content of trigger.json.
    """
    require("trigger", "hls4ml")
    check_new(out, force, folder=True)
    scorer = open_scorer(run, device="cpu")
    model = scorer.model
    if isinstance(model.coordinates, Identity):  # a small network learns no jump at the bounds; a comparator sees it
        model.coordinates = Identity()
    expected = f"{run}: a trigger network takes events that are vectors"
    refuse(len(model.event) != 1, f"{expected}, got events of shape {model.event}")
    folder = run_of(run)
    train, test = _samples(folder, model, settings)
    offset = model.coordinates.constant

    def teacher(x: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(model.score(x) + offset)  # at least 0, in any units

    student = distill(teacher, train, settings)
    samples = {"background": test, "noise": noise_around(test, np.random.default_rng(settings.seed + 1))}
    if signal:
        files = open_files(scorer, signal)
        pieces = [x.copy() for file in files for x in read_events(scorer, file, 0, min(file.rows, MOST_SIGNAL), 8192)]
        samples["signal"] = np.concatenate(pieces)[:MOST_SIGNAL]
    with new_folder(out, force) as temporary:
        everything = np.concatenate(list(samples.values()))
        emulated = write_project(student.fixed, temporary / "hls4ml", student.inputs(everything))
        own = student.rounded(everything)
        _refuse_other_bits(emulated, own)
        kinds = (("original", lambda x: target(teacher(x))), ("real", student.real), ("fixed", student.rounded))
        scores = {kind: {name: of(x) for name, x in samples.items()} for kind, of in kinds}
        report = _report(scores, student, settings)
        by = "own arithmetic, no compiler" if emulated is None else "hls4ml's C++ and own arithmetic"
        report["emulation"] = {"by": by, "events": len(own), "outputs_that_differ": None if emulated is None else 0}
        _write(temporary, report, student, {"offset": offset} | about(folder, model))
        with figure_style():
            figure, axes = new_figure(1, 2)
            columns = score_agreement(axes[0, 0], scores["original"], scores["fixed"])
            trigger_rates(axes[0, 1], scores["original"], scores["fixed"])
            save_figure(figure, temporary / "figures", "trigger", columns)
    return report


def _refuse_other_bits(emulated: Floats | None, own: Floats) -> None:
    count = 0 if emulated is None else int((emulated != own).sum())
    refuse(count, f"hls4ml's emulation differs from our arithmetic in {count} of {len(own)} outputs; not written")


def _samples(folder: RunFolder, model: Model, settings: TriggerSettings) -> tuple[Any, Any]:
    """Background to train on and to compare on; events of the model where the run's data are not here."""
    config = read(folder.config)
    with suppress(InputError):
        events = folder.events(config)
        assert isinstance(events.train, Tensor)
        train, test = events.train[: settings.events].numpy(), events.test[: settings.test].numpy()
        if config.data.test >= 100:
            return train.astype(model.event_dtype), test.astype(model.event_dtype)
    both = model.sample(settings.events + settings.test, settings.seed)
    return both[: settings.events], both[settings.events :]


def _report(scores: dict[str, dict[str, Floats]], student: Student, settings: TriggerSettings) -> dict[str, Any]:
    """What original, real and fixed scores, with shape (N,) of each sample, say of the student."""
    original, real, fixed = scores.values()
    off = np.concatenate([fixed[name] - real[name] for name in fixed])
    sizes = {"largest": float(np.abs(off).max()), "rms": float(np.sqrt(np.square(off).mean()))}
    report: dict[str, Any] = {
        "settings": asdict(settings),
        "events": {name: len(values) for name, values in fixed.items()},
        "pearson": {name: pearson(original[name], fixed[name])._asdict() for name in fixed},
        "fixed_against_real": sizes | {"last_bit": student.fixed.layers[-1].result.step},
    }
    for name in list(fixed)[1:]:
        areas = {kind: auc(t[name], t["background"])._asdict() for kind, t in scores.items()}
        loss = auc_difference(original[name], original["background"], fixed[name], fixed["background"])
        report[f"auc_{name}"] = areas | {"loss": loss._asdict()}
        report[f"efficiency_{name}"] = {
            f"{rate:g}": {kind: _efficiency(t[name], t["background"], rate) for kind, t in scores.items()}
            for rate in RATES
            if rate * len(fixed["background"]) >= 10
        }
    return report


def _efficiency(anomalies: Floats, background: Floats, rate: float) -> dict[str, float]:
    """Share of anomalies above the cut that keeps `rate` of the background; the error is binomial."""
    share = float((anomalies > np.quantile(background, 1 - rate)).mean())
    return {"value": share, "error": float(np.sqrt(share * (1 - share) / len(anomalies)))}


def _write(folder: Path, report: dict[str, Any], student: Student, facts: dict[str, Any]) -> None:
    """student.safetensors and trigger.json."""
    layers = student.fixed.layers
    header = {
        "centre": student.centre.tolist(), "scale": student.scale.tolist(), "input": student.fixed.input.text,
        "weights": [layer.weight_type.text for layer in layers], "biases": [layer.bias_type.text for layer in layers],
        "results": [layer.result.text for layer in layers], "output": "log(1 + score + offset)", **facts,
    }  # fmt: skip
    write_tensors(folder / "student.safetensors", dict(student.network.named_parameters()), header)
    write_json(folder / "trigger.json", report | {"network": header})
