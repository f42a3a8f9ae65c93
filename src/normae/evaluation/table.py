"""The study of a run on a table of the user's own, whose density nobody knows: are rows held out as likely as others?

Do samples of the model look like them, column by column and to a classifier? None of it needs a signal.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normae.config import Run
from normae.errors import LogZUnknown, refuse
from normae.evaluation.evaluate import COURSE, Captions, Draw, Metrics, Study, draw_one, draw_training, graded
from normae.figures import new_figure
from normae.figures.curves import column_histograms, loss_curves, score_histograms, training_curves
from normae.inference import Model
from normae.networks.base import RESOLUTION, Base
from normae.report import Check, save_figure
from normae.runs.load import load
from normae.sources import Events
from normae.statistics import Estimate, auc, sample_mean, wasserstein, wasserstein_halves
from normae.statistics.arrays import unweighted
from normae.tensors import stream
from normae.training.two_sample import classifier_test

Rows = NDArray[Any]  # with shape (N, d), float32 or float64
ROWS, SAMPLES = 20_000, 10_000  # most rows of each kind that are looked at, and that are drawn from the model
FEW, TIMES = 2000, 3  # rows held out below which so many classifiers tell samples from them
START = (
    "Course of the training",
    "The loss of the classification of rows against draws of the base, 2 log 2 = 1.386 for a base that is right. The "
    "weights are those with which rows held out were told best.",
)
WIDE = (5.6, 3.8)  # inches of a figure with one panel
LATE = 0.02  # gain of the loss at the end of the start that is no concern
COLUMNS = 12  # most columns that are drawn: those in which samples are farthest from rows held out


class TableStudy(Study):
    """A run on a table."""

    needed = ("mean_score_training", "mean_score_held_out", "auc_overtraining", "auc_samples")
    own: ClassVar = {
        "mean_log_prob_held_out": "mean log p of rows held out",
        "auc_overtraining": "AUC of the score, held-out against training rows",
        "auc_samples": "AUC of a classifier, samples against held-out rows",
    }
    stated: ClassVar = {
        "mean_score_training": "mean score, training", "mean_score_held_out": "mean score, held out",
        "mean_score_sampled": "mean score, sampled", "mean_log_prob_held_out": "mean log p, held out",
    }  # fmt: skip

    def judge(self, device: str, generated: int | None) -> tuple[Metrics, Draw]:  # noqa: ARG002
        """Scores of rows held out, samples, and how far both are from the table."""
        model, events = load(self.run.path, device), self.run.events(self.config)
        test = table_test(model, self.config, events)
        return table_metrics(model, self.config, test), lambda: self._draw(test)

    def _draw(self, test: "TableTest") -> None:
        columns = _padded({f"score {kind}": values for kind, values in test.scores.items()})
        draw_one(self.run, "scores", columns, score_histograms, test.scores, panel=WIDE)
        self._draw_columns(test)
        draw_training(self, training_curves, 3)
        if (lines := self.lines("contrast")) and not self.lines("training"):
            names = ("iteration", "loss", "validation_loss")
            course = {name: np.array([line[name] for line in lines]) for name in names}
            draw_one(self.run, "training", course, loss_curves, *course.values(), "update", panel=WIDE)

    def _start_check(self) -> list[Check]:
        """Whether the start came to its end by itself."""
        lines, given = self.lines("contrast"), self.config.contrast
        if not lines or given is None:
            return []
        losses = [float(line["best_loss"]) for line in lines]
        gain = losses[-(len(losses) // 4) - 1] - losses[-1]
        said = f"In the last quarter of its {lines[-1]['iteration']:,} updates the loss of rows held out fell by"
        said += f" {gain:.4f}, to {losses[-1]:.4f}."
        remedy = f"Give it more updates, --set contrast.iterations={2 * given.iterations}."
        return [Check("learned to the end", graded(gain, LATE, 5 * LATE), said, remedy)]

    def _draw_columns(self, test: "TableTest") -> None:
        farthest = np.argsort([-distance.value for distance in test.distances])[:COLUMNS]
        across = min(4, len(farthest))
        figure, axes = new_figure(-(-len(farthest) // across), across, panel=(3.3, 2.7))
        texts = [f"distance {test.distances[k]}\nhalves {test.halves[k]}" for k in farthest]
        names = [test.names[k] for k in farthest]
        panels = list(axes.flat)
        seen = np.stack([unweighted(test.seen[:, k], test.weights) for k in farthest], axis=1)
        column_histograms(panels[: len(farthest)], names, seen, test.sampled[:, farthest], texts)
        for empty in panels[len(farthest) :]:
            empty.set_axis_off()
        kinds = (("held out", seen), ("sampled", test.sampled[:, farthest]))
        drawn = {f"{name} {kind}": column for kind, part in kinds for name, column in zip(names, part.T, strict=True)}
        save_figure(figure, self.run.figures, "columns", _padded(drawn))

    def title(self) -> str:
        kind = "Bayesian normalized" if self.config.posteriors else "normalized"
        return f"a {kind} autoencoder on a table, seed {self.config.seed}"

    def summary(self, metrics: Metrics) -> str:
        known = "mean_log_prob_held_out" in metrics
        return (
            "The score of a row is E/T in the units of the table, its energy over the temperature: the negative "
            f"log-likelihood of the row, up to log Z, which is {'' if known else 'not '}known. Nobody "
            "knows the density of this table, so the model is judged by rows that were held out: a classifier tells "
            f"samples of the model from them with AUC {metrics['auc_samples']} (0.5: not at all)."
        )

    def sample(self) -> dict[str, str]:
        data = self.config.data
        weighted = f", weighted by {data.weights}" if data.weights else ""
        stopped = f"judged on the {data.validation:,} rows that said when to stop"
        return {"data": f"{data.file}, {f'{data.test:,} rows held out' if data.test else stopped}{weighted}"}

    def checks(self, metrics: Metrics) -> list[Check]:
        """Of the training, overtraining, and samples; E/T of a row of d columns goes up and down by sqrt(d/2)."""
        columns = sum(name.startswith("wasserstein ") for name in metrics)
        trained, sampled = metrics["auc_overtraining"], metrics["auc_samples"]
        status = graded(trained.value - 0.5, max(0.01, 2 * trained.error), 0.05)
        said = f"The score separates held-out from training rows with AUC {trained}; 0.5 is no overtraining."
        remedy = "Train on more rows, for fewer updates (contrast.iterations), or with a smaller network"
        overtraining = Check("overtraining", status, said, f"{remedy} (network.hidden).")
        said = (
            f"A classifier that sees all columns tells samples from held-out rows with AUC {sampled}. Where it "
            "is far from 0.5 the score orders rows, but is not the likelihood of this table."
        )
        remedy = (
            "Train on more rows, or longer (contrast.iterations); look at the figure of the columns for what is not "
            "learned, such as a hard edge or groups of values, and transform these columns first."
        )
        samples = Check("samples look like the table", graded(sampled.value, 0.55, 0.7), said, remedy)
        return [*self.health(max(1.0, (columns / 2) ** 0.5)), *self._start_check(), overtraining, samples]

    def captions(self, metrics: Metrics) -> Captions:  # noqa: ARG002
        return {
            "scores": ("Scores", "Training rows and held-out rows lie on each other where nothing is overtrained; "
                       "samples lie on them where the model has the density of the table."),
            "columns": ("Columns", "Held-out rows and samples of the model, for the columns that differ most. The "
                        "distance is the Wasserstein distance in standard deviations; two halves of the held-out rows "
                        "set the resolution."),
            "training": COURSE if self.lines("training") else START,
        }  # fmt: skip

    def limits(self) -> str:
        return "The score is learned from this table: for rows far outside its range it is an extrapolation."


@dataclass(frozen=True)
class TableTest:
    """Rows with shape (N, d) and their scores E/T with shape (N,), of training, held out, and from the model."""

    names: tuple[str, ...]  # of the d columns
    held_out: Rows
    seen: Rows  # rows held out, with the noise that the training added, if it did
    sampled: Rows
    scores: dict[str, NDArray[np.float32]]
    distances: list[Estimate]  # of samples from rows held out for each column, Wasserstein's, in standard deviations
    halves: list[Estimate]  # the same of two halves of the rows held out
    weights: NDArray[np.float64] | None = None  # of the rows held out; their scores are quantiles of the weighted ones


def table_test(model: Model, config: Run, events: Events) -> TableTest:
    """Score rows of training and held out, draw from the model, and compare column by column."""
    assert isinstance(events.train, Tensor)
    words = f"evaluate needs at least 10 rows that were held out, got {len(events.test)}; train again with more of them"
    refuse(len(model.event) != 1 or len(events.test) < 10, words)
    train, held_out = (part[:ROWS].numpy() for part in (events.train, events.test))
    seen = _with_noise(model, held_out, stream(config.seed, "evaluation/noise"))
    n, given = min(SAMPLES, len(held_out)), config.coordinates.condition
    sampled = model.sample(n, seed=config.seed, condition=held_out[:n, given] if given else None)
    scores = {"training": model.score(train), "held out": model.score(held_out), "sampled": model.score(sampled)}
    weights = None
    if events.weights is not None:
        weights = events.weights.test[:ROWS].numpy()
        scores["training"] = unweighted(scores["training"], events.weights.train[:ROWS])
        scores["held out"] = unweighted(scores["held out"], weights)
    names = events.columns or tuple(f"column {k}" for k in range(model.event[0]))
    generator = stream(config.seed, "evaluation/columns")
    columns = [unweighted(column, weights) for column in seen.T]
    distances = [wasserstein(a, b, generator=generator) for a, b in zip(sampled.T, columns, strict=True)]
    halves = [wasserstein_halves(b, generator=generator) for b in columns]
    return TableTest(names, held_out, seen, sampled, scores, distances, halves, weights)


def _with_noise(model: Model, rows: Rows, generator: torch.Generator) -> Rows:
    """Rows (N, d) with the noise that the training added, or that a base cannot resolve: the density is theirs."""
    coordinates = model.coordinates.to("cpu")
    y = coordinates.forward(torch.from_numpy(rows))
    if isinstance(base := model.autoencoder.base, Base):
        d = base.dimension
        added = torch.randn((len(y), d), generator=generator, dtype=y.dtype) * RESOLUTION
        y[:, :d] += torch.linalg.solve(base.frame.cpu().double(), added.T).T
        noisy = np.asarray(coordinates.inverse(y).numpy())
        return noisy if coordinates.lattice is None else np.where(coordinates.lattice[1] > 0, rows, noisy)
    return np.asarray(coordinates.inverse(coordinates.noisy(y, 1, generator)).numpy())


def table_metrics(model: Model, config: Run, test: TableTest) -> Metrics:
    """The numbers of a test."""
    metrics = {"temperature": Estimate(model.temperature, 0.0)}
    metrics |= {f"mean_score_{kind.replace(' ', '_')}": sample_mean(score) for kind, score in test.scores.items()}
    metrics["auc_overtraining"] = auc(test.scores["held out"], test.scores["training"])
    try:
        metrics["mean_log_prob_held_out"] = sample_mean(unweighted(model.log_prob(test.held_out), test.weights))
        if not config.posteriors:
            metrics["log_z"] = Estimate(model.log_z.value, model.log_z.error)
    except LogZUnknown:
        pass
    if config.posteriors:
        spread, weights = model.rows(test.held_out[:2000]).spread(), test.weights
        metrics["mean_score_std"] = sample_mean(unweighted(spread, None if weights is None else weights[:2000]))
    generator = stream(config.seed, "evaluation/classifier")
    coordinates = model.coordinates.to("cpu")
    seen, sampled = (coordinates.forward(torch.from_numpy(x)).numpy() for x in (test.seen, test.sampled))
    centre, width = seen.mean(0), seen.std(0) + 1e-12
    two = (seen - centre) / width, (sampled - centre) / width
    times = TIMES if len(seen) < FEW else 1
    metrics["auc_samples"] = classifier_test(*two, generator=generator, weights=test.weights, times=times).auc
    for name, distance, half in zip(test.names, test.distances, test.halves, strict=True):
        metrics |= {f"wasserstein {name}": distance, f"wasserstein_halves {name}": half}
    return metrics


def _padded(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of one length, for a table of numbers; NaN where a shorter one has ended."""
    n = max(len(values) for values in columns.values())
    return {k: np.concatenate([v.astype(np.float64), np.full(n - len(v), np.nan)]) for k, v in columns.items()}
