"""`normae histogram`: binned scores of samples, with their covariance over weight draws, for a search.

The value of a bin is that of the mean score, the one that `normae score` writes; the draws give the covariance. Edges
at quantiles come from the run's own held-out background, not from the samples, so that counts stay Poisson.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from normae.config import read
from normae.errors import InputError, refuse, require, require_that
from normae.figures import figure_style, new_figure
from normae.files import check_new, new_folder, write_json, write_text
from normae.report import save_figure
from normae.runs.folder import RunFolder
from normae.runs.load import run_of
from normae.scoring.score import open_files, read_events
from normae.scoring.scorer import Outside, Scorer, open_scorer, tail_probability
from normae.search import Sample, Templates, hepdata_tables, workspace
from normae.statistics.arrays import Array, unweighted
from normae.statistics.histogram import check_edges, fill, tail_levels

Files = Sequence[str | Path]
AXIS_NAMES = {"score": "score $E/T$", "log_prob": r"$\log p$", "p_value": "p-value"}
MOST_REFERENCES = 50_000  # held-out events that are scored with every draw, for p-values of draws
MOST_EXPECTED = 1e12  # events; a fit of more loses its digits


@dataclass(frozen=True)
class HistogramSettings:
    """What is binned, and how."""

    quantity: str = "score"  # or "log_prob" or "p_value"
    bins: str = "tail"  # or a number of bins of equal width, or edges "0,1,2.5"
    quantiles: str | None = None  # "0.5,0.9,0.99": edges at these shares of the held-out background, anomalous last
    weights: str | None = None  # column with the weight of an event
    expected: float | None = None  # events to which the background is scaled; None leaves it
    expected_signal: float | None = None  # the same for the signal
    normalization: float = 0.0  # relative uncertainty of the background's yield
    draws: int = 100  # weight draws of a Bayesian model

    def __post_init__(self) -> None:
        require_that(self.quantity in AXIS_NAMES, "--quantity", f"one of {', '.join(AXIS_NAMES)}", repr(self.quantity))
        for name, value in (("--expected", self.expected), ("--expected-signal", self.expected_signal)):
            holds, words = value is None or 0 < value <= MOST_EXPECTED, f"events above 0, up to {MOST_EXPECTED:g}"
            require_that(holds, name, f"a number of {words}", value)
        require_that(0 <= self.normalization < 1, "--normalization", "a share from 0 to 1", self.normalization)
        require_that(self.draws >= 2, "--draws", "at least 2", self.draws)


class Binner:
    """The quantity of events, of the model and of each weight draw."""

    def __init__(self, scorer: Scorer, run: RunFolder, settings: HistogramSettings) -> None:
        self.scorer, self.settings = scorer, settings
        self.notes: list[str] = []  # which rows of the samples lie outside the range of the training sample
        self.draws = len(scorer.model.draw_set(settings.draws, 0).temperature)  # members of a table may be fewer
        self.log_z = scorer.model.log_z_draws(settings.draws).mean() if settings.quantity == "log_prob" else 0.0
        if settings.quantity == "p_value" and not len(scorer.background):
            raise InputError(f"--quantity p_value: {scorer.notes[0]}")
        self.references: NDArray[np.float32] | None = None  # scores of held-out background, rising, each draw's, (K, n)
        if settings.quantity == "p_value" and self.draws > 1:
            events = run.events(read(run.config))
            weights = None if events.weights is None else events.weights.test[:MOST_REFERENCES]
            scores = scorer.model.rows(events.test[:MOST_REFERENCES].numpy(), settings.draws).scores
            self.references = np.stack([np.sort(unweighted(score, weights)) for score in scores])

    def values(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """The quantity of the model with shape (N,), and of each draw with shape (K, N) where there are several."""
        rows = self.scorer.model.rows(x, self.settings.draws)
        if self.settings.quantity == "log_prob":
            nominal, each = rows.log_prob(), rows.log_prob_draws()
        else:
            nominal, each = self._quantity(rows.score()), rows.scores
        if self.references is not None:
            each = np.stack([tail_probability(*pair)[0] for pair in zip(each, self.references, strict=True)])
        return nominal, each if self.draws > 1 else None

    def sample(self, x: NDArray[Any], edges: Array, weights: NDArray[Any] | None = None) -> Sample:
        """The histogram of events with shape (N, *event), of which the network sees a block at a time."""
        nothing = np.zeros(len(edges) - 1)
        total = Sample(nothing, nothing, np.tile(nothing, (self.draws, 1)) if self.draws > 1 else None, 0)
        for start in range(0, len(x), self.scorer.block):
            rows = slice(start, start + self.scorer.block)
            own = None if weights is None else weights[rows].astype(np.float64)
            nominal, each = self.values(x[rows])
            value = fill(nominal, edges, own)[0]
            variance = value if own is None else fill(nominal, edges, own**2)[0]
            total += Sample(value, variance, None if each is None else fill(each, edges, own), len(nominal))
        return total

    def _quantity(self, score: NDArray[Any]) -> NDArray[Any]:
        if self.settings.quantity == "p_value":
            return tail_probability(score, self.scorer.background)[0]
        return score if self.settings.quantity == "score" else -score - self.log_z

    def edges(self) -> Array:
        """As the settings ask, rising."""
        bins, background = self.settings.bins, self.scorer.background
        if self.settings.quantiles is None and "," in bins:
            return check_edges(_numbers("--bins", bins))
        if not len(background):
            raise InputError(f"--bins: expected edges such as 0,1,2.5, since {self.scorer.notes[0]}")
        levels = None
        if self.settings.quantiles is not None:
            levels = np.array(_numbers("--quantiles", self.settings.quantiles))
            if not ((levels > 0) & (levels < 1)).all():
                raise InputError(f"--quantiles: expected shares between 0 and 1, got {self.settings.quantiles}")
        elif bins == "tail":
            levels = tail_levels(len(background))
        elif not bins.isdecimal() or not 1 <= int(bins) <= 1000:
            raise InputError(f"--bins: expected tail, a number from 1 to 1000, or edges such as 0,1,2.5, got {bins!r}")
        ends = np.sort(self._quantity(background[[0, -1]])).astype(np.float64)
        if self.settings.quantity == "p_value":
            ends = np.array([0.0, 1.0])
        elif self.settings.quantity == "score":
            ends[0] = 0.0 - self.scorer.model.coordinates.constant  # no score is lower
        if levels is None:
            return check_edges(np.linspace(ends[0], ends[1], int(bins) + 1))
        return check_edges([ends[0], *np.sort(self._quantity(np.quantile(background, levels))), ends[1]])


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(piece) for piece in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: expected numbers separated by commas, got {text!r}") from None


def fill_sample(binner: Binner, name: str, edges: Array, files: Files, dataset: str | None = None) -> Sample:
    """The histogram of all events of `files`; what is observed has no weights."""
    scorer, column = binner.scorer, binner.settings.weights if name != "observed" else None
    unnamed = column is not None and (scorer.jets or scorer.columns is None)
    refuse(unnamed, f"--weights {column}: expected a run that was trained on named columns, or --columns with it")
    total, seen = None, {}
    for file in open_files(scorer, files, dataset):
        outside = []
        for x in read_events(scorer, file, 0, file.rows, 8 * scorer.block, [] if column is None else [column]):
            x, weight = (x, None) if column is None else (x[:, :-1], x[:, -1])
            sample = binner.sample(x, edges, weight)
            total = sample if total is None else total + sample
            outside.append(scorer.outside(x))
        seen[str(file.path)] = reduce(Outside.joined, outside)
    binner.notes += [f"{name}: {sentence}" for sentence in scorer.said_of(seen)]
    assert total is not None  # every file has events
    if column is not None:
        least = 1e-7 * np.sqrt(total.events * total.variance.sum())  # of sum |w|: float32 rounds by 6e-8
        found = total.value.sum()
        require_that(found > least, f"--weights {column}", f"a positive sum for the {name}", f"{found:.4g}")
    return total


def templates_of(
    binner: Binner, files: Files, signal: Files = (), data: Files = (), dataset: str | None = None
) -> Templates:
    """The samples of a search as the settings ask."""
    settings, edges = binner.settings, binner.edges()
    background = fill_sample(binner, "background", edges, files, dataset)
    if not (background.value > 0).all():
        empty = int(np.argmin(background.value))
        place = f"bin {empty + 1}, from {edges[empty]:.4g} to {edges[empty + 1]:.4g}"
        raise InputError(f"{place}, has no background; take fewer bins or a larger sample")
    factor = 1.0 if settings.expected is None else settings.expected / background.value.sum()
    found = Templates(settings.quantity, edges, background.scaled(factor), normalization=settings.normalization)
    if signal:
        sample, wanted = fill_sample(binner, "signal", edges, signal, dataset), settings.expected_signal
        found = replace(found, signal=sample.scaled(1.0 if wanted is None else wanted / sample.value.sum()))
    return replace(found, data=fill_sample(binner, "observed", edges, data, dataset).value) if data else found


def histogram(
    run: str | Path, files: Files, out: str | Path, settings: HistogramSettings, signal: Files = (), data: Files = (),
    columns: Sequence[str] | None = None, dataset: str | None = None, device: str = "auto", experiments: int = 0,
    force: bool = False,
) -> tuple[Templates, list[str]]:  # fmt: skip
    """Bin scores of background `files`: histogram.json, a pyhf workspace.json, HEPData tables and a figure in `out`.

    Args:
        signal: files of a second sample, whose strength is the parameter of interest.
        data: files of what was seen; without them the workspace has the background expectation.
        experiments: pseudo-experiments to draw from the background-only model.

    Returns:
        The templates, and what the search found, in sentences.
    """
    require_that(experiments >= 0, "--pseudo-experiments", "0 or more", experiments)
    scaled = settings.expected_signal is not None
    refuse(scaled and not signal, "--expected-signal: expected --signal, which it scales")
    refuse(experiments and not signal, "--pseudo-experiments: expected --signal, whose strength is fitted")
    require("search", "pyhf", "yaml")
    check_new(out, force, folder=True)
    scorer = open_scorer(run, columns, device)
    binner = Binner(scorer, run_of(run), settings)
    templates = templates_of(binner, files, signal, data, dataset)
    with new_folder(out, force) as temporary:
        write_templates(templates, temporary, scorer.model.name)
        sentences = search_result(templates, temporary, experiments)
    return templates, [*sentences, *binner.notes]


def write_templates(templates: Templates, folder: Path, name: str) -> None:
    """histogram.json, workspace.json, hepdata/ and figures/ of templates."""
    import yaml

    from normae.search.inference import build

    spec = workspace(templates)
    build(spec)  # pyhf's own check
    write_json(folder / "workspace.json", spec)
    write_json(folder / "histogram.json", _numbers_of(templates))
    comment = f"Binned anomaly scores of the normalized autoencoder {name}."
    for file, documents in hepdata_tables(templates, comment).items():
        write_text(folder / "hepdata" / file, yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True))
    with figure_style():
        figure, axes = new_figure(2, 1, (4.6, 4.4), height_ratios=[2.4, 1], sharex=False)
        save_figure(figure, folder / "figures", "histogram", draw_templates(axes[:, 0], templates))


def draw_templates(axes: Sequence[Axes], templates: Templates) -> dict[str, Array]:
    """Counts above and their ratio to the background below, in bins drawn equally wide; the columns, shapes (B,)."""
    ax, ratio = axes
    n, error = templates.background.value, np.sqrt(templates.background.variance)
    place = np.arange(len(n) + 1, dtype=np.float64)
    columns = {"low": templates.edges[:-1], "high": templates.edges[1:], "background": n, "statistical_error": error}
    ax.stairs(n, place, color="0.15", label="background")
    ratio.axhline(1, color="0.15", linewidth=0.8)
    _band(ratio, 1.0, error / n, "0.75", "simulation statistics")
    if templates.background.draws is not None:
        columns["spread_over_draws"] = width = templates.background.draws.std(0, ddof=1)
        _band(ax, n, width, "tab:blue")
        _band(ratio, 1.0, width / n, "tab:blue", "weight draws")
    if templates.signal is not None:
        columns["signal"] = on_top = templates.signal.value
        ax.stairs(n + on_top, place, color="tab:red", linestyle="--", label="with signal")
        ratio.stairs(1 + on_top / n, place, color="tab:red", linestyle="--", baseline=None)
    if templates.data is not None:
        columns["data"] = seen = templates.data
        for axis, unit, label in ((ax, np.ones_like(n), "data"), (ratio, n, None)):
            axis.errorbar(place[:-1] + 0.5, seen / unit, np.sqrt(seen) / unit, fmt="o", ms=3.5, color="0.15",
                          elinewidth=1, label=label)  # fmt: skip
    ax.set(ylabel="events in bin", yscale="log", xlim=(0, len(n)), xticks=place, xticklabels=[])
    ratio.set(xlim=(0, len(n)), ylabel="ratio", xlabel=f"{AXIS_NAMES[templates.quantity]} (edges of bins)")
    labels = [f"{value:.3g}" for value in templates.edges]
    ratio.set_xticks(place, labels, rotation=60, ha="right", rotation_mode="anchor")
    handles = [one for axis in axes for one in axis.get_legend_handles_labels()[0]]
    ax.legend(handles=handles, fontsize=9)
    return columns


def _band(ax: Axes, centre: Array | float, width: Array, colour: str, label: str | None = None) -> None:
    low, high, places = centre - width, centre + width, np.arange(len(width) + 1)
    ax.stairs(high, places, baseline=low, fill=True, color=colour, alpha=0.5, linewidth=0, label=label)


def _numbers_of(templates: Templates) -> dict[str, Any]:
    found: dict[str, Any] = {"quantity": templates.quantity, "edges": templates.edges.tolist()}
    for name, sample in templates.samples.items():
        found[name] = {
            "events": sample.events, "value": sample.value.tolist(),
            "statistical_error": np.sqrt(sample.variance).tolist(),
            "mean_over_draws": None if sample.draws is None else sample.draws.mean(0).tolist(),
        }  # fmt: skip
    found["data"] = None if templates.data is None else templates.data.tolist()
    found["samples_of_covariance"] = list(templates.samples)
    found["covariance"] = None if templates.covariance is None else templates.covariance.tolist()
    found["nuisance_parameters"] = len(templates.shifts["background"])
    return found


def search_result(templates: Templates, folder: Path, experiments: int = 0) -> list[str]:
    """The p-value of the data, and that of pseudo-experiments, in sentences and as search.json in `folder`."""
    if templates.signal is None:
        return []
    from normae.search.inference import discovery, pseudo_experiments, uniformity

    sentences, numbers = [], {}
    if templates.data is not None:
        found = discovery(templates)
        numbers["discovery"] = found._asdict()
        seen = f"{found.p_value:.3g} ({found.root:.2f} sigma), signal strength {found.strength:.3g}"
        sentences.append(f"p-value of background only: {seen}")
    if experiments:
        values = pseudo_experiments(templates, experiments)
        test = uniformity(values)
        numbers["pseudo_experiments"] = {"p_values": values.tolist(), **test._asdict()}
        shares = ", ".join(f"{share:.3f} ± {error:.3f} at {at}" for at, (share, error) in test.share_below.items())
        sentences.append(
            f"{experiments} pseudo-experiments of background only: p-values uniform with a Kolmogorov-Smirnov "
            f"probability of {test.ks_p_value:.3f}; shares below {shares}"
        )
    if numbers:
        write_json(folder / "search.json", numbers)
    return sentences
