"""Judge a run on a table of the user's own, whose density nobody knows, by what the table itself can tell.

Are rows held out as likely as those of the training? Do samples of the model look like rows held out, column by column
and to a classifier that sees all columns at once? None of it needs a signal.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normae.config import Run
from normae.errors import InputError, LogZUnknown
from normae.inference import BayesianModel, Model
from normae.random import stream
from normae.runs.folder import RunFolder
from normae.sources import Events
from normae.statistics import Estimate, auc, wasserstein, wasserstein_halves
from normae.training.two_sample import classifier_test

Metrics = dict[str, Estimate]
ROWS = 20_000
"""Most rows of each kind that are looked at."""
SAMPLES = 10_000
"""Most rows that are drawn from the model."""


@dataclass(frozen=True)
class TableTest:
    """Rows with shape (N, d) and their scores E/T with shape (N,), of training, held out, and from the model.

    Args:
        names: of the d columns.
        distances: Wasserstein distance of samples from rows held out for each column, in its standard deviations.
        halves: the same of two halves of the rows held out.
    """

    names: tuple[str, ...]
    held_out: NDArray[np.float32]
    sampled: NDArray[np.float32]
    scores: dict[str, NDArray[np.float32]]
    distances: list[Estimate]
    halves: list[Estimate]


def table_test(model: Model, config: Run, events: Events) -> TableTest:
    """Score rows of training and held out, draw from the model, and compare column by column."""
    assert isinstance(events.train, Tensor)
    if len(model.event) != 1 or len(events.test) < 10 or config.data.test < 10:
        raise InputError(
            f"evaluate needs at least 10 rows that were held out, got data.test = {config.data.test}; train again with "
            "more of them"
        )
    train, held_out = (part[:ROWS].numpy() for part in (events.train, events.test))
    sampled = model.sample(min(SAMPLES, len(held_out)), seed=config.seed)
    scores = {"training": model.score(train), "held out": model.score(held_out), "sampled": model.score(sampled)}
    names = events.columns or tuple(f"column {k}" for k in range(model.event[0]))
    generator = stream(config.seed, "evaluation/columns")
    distances = [wasserstein(a, b, generator=generator) for a, b in zip(sampled.T, held_out.T, strict=True)]
    halves = [wasserstein_halves(b, generator=generator) for b in held_out.T]
    return TableTest(names, held_out, sampled, scores, distances, halves)


def table_metrics(model: Model, config: Run, test: TableTest) -> Metrics:
    """The numbers of a test."""
    metrics = {
        "temperature": Estimate(model.temperature, 0.0),
        "mean_score_training": _mean(test.scores["training"]),
        "mean_score_held_out": _mean(test.scores["held out"]),
        "mean_score_sampled": _mean(test.scores["sampled"]),
        "auc_overtraining": auc(test.scores["held out"], test.scores["training"]),
    }
    try:
        metrics["mean_log_prob_held_out"] = _mean(model.log_prob(test.held_out))
        if not isinstance(model, BayesianModel):
            metrics["log_z"] = Estimate(model.log_z.value, model.log_z.error)
    except LogZUnknown:
        pass
    if isinstance(model, BayesianModel):
        metrics["mean_score_std"] = _mean(model.score_draws(test.held_out[:2000]).std(0, ddof=1))
    generator = stream(config.seed, "evaluation/classifier")
    width = test.held_out.std(0) + 1e-12
    told = classifier_test(
        (test.held_out - test.held_out.mean(0)) / width,
        (test.sampled - test.held_out.mean(0)) / width,
        generator=generator,
    )
    metrics["auc_samples"] = told.auc
    for name, distance, half in zip(test.names, test.distances, test.halves, strict=True):
        metrics[f"wasserstein {name}"] = distance
        metrics[f"wasserstein_halves {name}"] = half
    return metrics


def _mean(values: NDArray[np.floating]) -> Estimate:
    x = np.asarray(values, dtype=np.float64)
    return Estimate(float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5))


def evaluate_table(run: RunFolder, config: Run, model: Model, events: Events, figures: bool) -> Metrics:
    """The metrics of a run on a table, and its figures where asked for."""
    test = table_test(model, config, events)
    metrics = table_metrics(model, config, test)
    if figures:
        from normae.evaluation.table_drawing import draw_table

        draw_table(run, test)
    return metrics
