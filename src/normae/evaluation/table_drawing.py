"""The figures of a run on a table."""

import numpy as np

from normae.evaluation.table import TableTest
from normae.evaluation.toy_drawing import draw_training
from normae.figures import column_histograms, figure_style, new_figure, score_histograms
from normae.report import save_figure
from normae.runs.folder import RunFolder

COLUMNS = 12
"""Most columns that are drawn: those in which samples are farthest from rows held out."""


def draw_table(run: RunFolder, test: TableTest) -> None:
    """Scores, columns and the course of the training."""
    with figure_style():
        figure, axes = new_figure(panel=(5.6, 3.8))
        score_histograms(axes[0, 0], test.scores)
        columns = {f"score {kind}": values for kind, values in test.scores.items()}
        save_figure(figure, run.figures, "scores", _padded(columns))
        _draw_columns(run, test)
        draw_training(run)


def _draw_columns(run: RunFolder, test: TableTest) -> None:
    farthest = np.argsort([-distance.value for distance in test.distances])[:COLUMNS]
    across = min(4, len(farthest))
    figure, axes = new_figure(-(-len(farthest) // across), across, panel=(3.3, 2.7))
    texts = [f"distance {test.distances[k]}\nhalves {test.halves[k]}" for k in farthest]
    names = [test.names[k] for k in farthest]
    panels = list(axes.flat)
    column_histograms(panels[: len(farthest)], names, test.held_out[:, farthest], test.sampled[:, farthest], texts)
    for empty in panels[len(farthest) :]:
        empty.set_axis_off()
    kinds = (("held out", test.held_out), ("sampled", test.sampled))
    drawn = {f"{test.names[k]} {kind}": rows[:, k] for kind, rows in kinds for k in farthest}
    save_figure(figure, run.figures, "columns", _padded(drawn))


def _padded(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of one length, for a table of numbers; NaN where a shorter one has ended."""
    longest = max(len(values) for values in columns.values())
    return {
        name: np.concatenate([values.astype(np.float64), np.full(longest - len(values), np.nan)])
        for name, values in columns.items()
    }
