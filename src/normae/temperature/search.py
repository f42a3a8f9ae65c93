"""The paper's way to a temperature, automated: short trainings of both classes, and the root of m(T) - 1.

Section 4.2: T near the mean squared error of the pretrained autoencoders keeps E/T of order one; from there trainings
at other temperatures give other slopes m of the dual test, and T is where m = 1. Each step here trains two models, A
and B, at one fixed T from the same two autoencoders, and fits m at validation events: against the true ratio for toy
densities, against a trained classifier for jets. The test sample is not touched. Everything is a run folder below one
folder, so that a search which is stopped goes on where it was.
"""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from normae import statistics
from normae.config import Run
from normae.data import DENSITIES, SparseEvents
from normae.data.labelled import Labelled
from normae.dual.judge import central, true_ratio
from normae.errors import InputError, Interrupted, require_that
from normae.figures import figure_style, new_figure
from normae.figures.ratios import slope_against_temperature
from normae.files import write_json
from normae.report import save_figure
from normae.runs.classifier import load_classifier
from normae.runs.folder import RunFolder, locked, read_json
from normae.runs.load import load
from normae.runs.session import read_start, train
from normae.runs.writing import Watch, deadline_in
from normae.sources import load_events
from normae.statistics.arrays import Array, Estimate
from normae.statistics.thermometers import SCATTER
from normae.tensors import stream

SIDES = ("a", "b")
JET_SCATTER = 0.25  # of the slopes of pairs of trainings on jets that differ in their seeds only: three have 0.2 to 0.3
Pair = tuple[Run, Run]
Points = list[statistics.SlopePoint]
Starts = tuple[str | None, str | None]


@dataclass(frozen=True)
class SearchSettings:
    """How the temperature is looked for."""

    trainings: int = 6  # most temperatures to train at, two models each
    epochs: int | None = None  # of the NAE phase of each; None for those of the configurations
    tolerance: float = 0.05  # on m - 1: ends when the last training is within it, or when T* is known to this share
    events: int = 0  # validation events of each class that m is fitted to; 0 for all
    draws: int = 20  # weight draws of a Bayesian model
    start: float | None = None  # the first temperature; None for the mean energy of the autoencoders
    scatter: float | None = None  # by which m differs between trainings, in the error of T; None: 0.25 jets, 0.03 toys

    def __post_init__(self) -> None:
        require_that(self.scatter is None or self.scatter >= 0, "scatter", "a number of at least 0", self.scatter)
        require_that(self.trainings > 1, "trainings", "at least 2, since a root needs two slopes", self.trainings)
        require_that(self.epochs is None or self.epochs >= 1, "epochs", "at least 1", self.epochs)
        if not self.tolerance > 0 or self.events < 0 or self.draws < 2:
            raise InputError("expected a positive tolerance, events of at least 0 and draws of at least 2")
        require_that(self.start is None or self.start > 0, "start", "a positive temperature", self.start)


class SearchResult(NamedTuple):
    """What was trained, the temperature where m = 1 by a power law through it, and whether the search is over."""

    points: Points
    temperature: Estimate
    finished: bool


def search_temperature(
    configs: Pair, out: str | Path, starts: Starts = (None, None), reference: str | Path | None = None,
    settings: SearchSettings | None = None, watch: Watch | None = None, minutes: float | None = None,
) -> SearchResult:  # fmt: skip
    """Look for the temperature at which the dual test of two configurations has the slope 1.

    Args:
        configs: A and B; log r = log p_B - log p_A.
        out: the folder; one that holds the same search is taken up.
        starts: finished autoencoders of A and B; without them they are pretrained first.
        reference: a classifier of jets, a run folder or a name of the zoo; toys have the true ratio.
        minutes: stop after so much time; calling again goes on.
    """
    deadline, settings, folder, finished = deadline_in(minutes), settings or SearchSettings(), Path(out), False
    usual = SCATTER if configs[0].data.jets is None else JET_SCATTER
    scatter = usual if settings.scatter is None else settings.scatter
    sample, known = _reference(configs, reference, settings)
    for config, start in zip(configs, starts, strict=True):
        if start is not None:
            read_start(replace(config, start=start), tuple(sample.x.shape[1:]))
    described = _described(configs, starts, reference, settings)
    with locked(folder):
        points = _earlier(folder, described)

        def trained(run: Run, path: Path) -> Path:
            left = None if deadline is None else max((deadline - time.monotonic()) / 60, 1e-6)
            if not train(run, path, resume=RunFolder(path).config.exists(), watch=watch, minutes=left):
                raise Interrupted
            return path

        with suppress(Interrupted):
            paths = []
            for side, config, start in zip(SIDES, configs, starts, strict=True):
                alone = replace(config, training=replace(config.training, epochs=0), start=None)
                paths.append(start or str(trained(alone, folder / f"autoencoder-{side}")))
            own = zip(paths, (~sample.labels, sample.labels), strict=True)
            energies = (float(np.mean(load(path, "auto").energy(sample.x[mask]))) for path, mask in own)
            first = settings.start or math.sqrt(math.prod(energies))  # of mean squared errors: the paper's first guess
            while not _enough(points, settings, scatter):
                temperature = float(f"{statistics.next_temperature(points, first, scatter):.3g}")
                fixed = _at_temperature(configs, paths, temperature, settings.epochs)
                inside = folder / f"T-{temperature:.3g}"
                pair = [trained(run, inside / side) for side, run in zip(SIDES, fixed, strict=True)]
                a, b = (central(load(path, "auto").rows(sample.x, settings.draws, 0)) for path in pair)
                line = statistics.fit_line(known, b - a, sample.labels, generator=stream(0, "temperature/slope"))
                points.append(statistics.SlopePoint(temperature, line.slope))
                _write(folder, points, described, scatter)
            finished = True
    return SearchResult(points, statistics.unit_slope_temperature(points, scatter), finished)


def _reference(configs: Pair, reference: str | Path | None, settings: SearchSettings) -> tuple[Labelled, Array]:
    """Validation events of both classes and the reference's log r at them."""
    kinds = tuple(config.data.jets for config in configs)
    if kinds != (None, None) and set(kinds) != {"qcd", "top"}:
        raise InputError(f'expected one configuration of "qcd" and one of "top" jets, got {kinds[0]} and {kinds[1]}')
    if any(config.data.validation == 0 for config in configs):
        raise InputError("data.validation: expected at least 1 in both configurations; m is fitted to these events")
    parts = []
    for config in configs:
        held = load_events(config.data, config.seed).validation
        assert held is not None
        parts.append((held.dense() if isinstance(held, SparseEvents) else held)[: settings.events or None])
    sample = Labelled(torch.cat(parts).numpy(), np.repeat([False, True], [len(part) for part in parts]))
    if kinds == (None, None):
        names = [config.data.density for config in configs]
        if None in names or names[0] == names[1]:
            raise InputError("expected two different known densities, or QCD and top jets with a classifier")
        a, b = (DENSITIES[str(name)]() for name in names)
        return sample, true_ratio(a, b, sample)
    if reference is None:
        raise InputError("--reference: expected a classifier, made with `normae train jets-paper-classifier`")
    ratio = load_classifier(reference, configs[0].device).log_ratio(sample.x)
    return sample, ratio if kinds == ("qcd", "top") else -ratio


def _described(configs: Pair, starts: Starts, reference: str | Path | None, settings: SearchSettings) -> dict[str, Any]:
    """What must be the same for a search to be taken up; more trainings or another tolerance may follow."""
    of = {"configs": [config.name for config in configs], "seeds": [config.seed for config in configs]}
    given = {"starts": list(starts), "reference": None if reference is None else str(reference)}
    return of | given | {name: getattr(settings, name) for name in ("epochs", "events", "start")}


def _earlier(folder: Path, described: dict[str, Any]) -> Points:
    """The slopes that an earlier sitting has found."""
    path = folder / "temperature.json"
    if not path.is_file():
        return []
    content = read_json(path)
    if not isinstance(content, dict) or content.get("search") != described:
        raise InputError(f"{folder}: holds another search; choose another folder")
    return [statistics.SlopePoint(p["temperature"], Estimate(p["slope"], p["error"])) for p in content["points"]]


def _enough(points: Points, settings: SearchSettings, scatter: float) -> bool:
    if len(points) < 2:
        return False
    if len(points) >= settings.trainings:
        return True
    root = statistics.unit_slope_temperature(points, scatter)
    close = abs(points[-1].slope.value - 1) <= settings.tolerance
    return close or (len(points) > 2 and root.error <= settings.tolerance * root.value)


def _at_temperature(configs: Pair, paths: Sequence[str], temperature: float, epochs: int | None) -> list[Run]:
    """Both runs at a fixed temperature, from the autoencoders at `paths`."""
    found = []
    for config, start in zip(configs, paths, strict=True):
        training = config.training if epochs is None else replace(config.training, epochs=epochs)
        fixed = replace(config.temperature, initial=temperature, trained=False)
        found.append(replace(config, start=start, training=training, temperature=fixed))
    return found


def _write(folder: Path, points: Points, described: dict[str, Any], scatter: float) -> None:
    root = statistics.unit_slope_temperature(points, scatter)
    known = math.isfinite(root.value) and math.isfinite(root.error)
    rows = [{"temperature": p.temperature, "slope": p.slope.value, "error": p.slope.error} for p in points]
    content = {"temperature": root._asdict() if known else None, "points": rows}
    write_json(folder / "temperature.json", content | {"scatter": scatter, "search": described})
    with figure_style():
        figure, axes = new_figure()
        slope_against_temperature(axes[0, 0], points, statistics.slope_line(points, scatter) if known else None, root)
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        save_figure(figure, folder / "figures", "slope", columns)
