"""Figures of a run on a table: scores of rows, and the columns of rows and of samples."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

Values = NDArray[np.floating]
COLOURS = {"training": "tab:gray", "held out": "tab:blue", "sampled": "tab:red"}


def score_histograms(ax: Axes, scores: Mapping[str, Values]) -> Axes:
    """Distributions of E/T for kinds of rows, each with shape (N,), on a logarithmic axis."""
    everything = np.concatenate(list(scores.values()))
    edges = np.linspace(everything.min(), np.quantile(everything, 0.9995), 61)
    for kind, values in scores.items():
        density = np.histogram(values, edges)[0] / (values.size * np.diff(edges))
        ax.stairs(density, edges, color=COLOURS[kind], label=kind, linewidth=1.3)
    ax.set(xlabel="score $E/T$", ylabel="normalized", yscale="log", xlim=(edges[0], edges[-1]))
    ax.legend()
    return ax


def column_histograms(
    axes: Sequence[Axes], names: Sequence[str], held_out: Values, sampled: Values, texts: Sequence[str]
) -> Sequence[Axes]:
    """One axis for each of d columns: rows held out, shape (N, d), and rows drawn from the model, shape (M, d)."""
    for k, (ax, name, text) in enumerate(zip(axes, names, texts, strict=True)):
        low, high = np.quantile(held_out[:, k], (0.002, 0.998))
        edges = np.linspace(low, high if high > low else low + 1.0, 41)
        for values, kind in ((held_out[:, k], "held out"), (sampled[:, k], "sampled")):
            density = np.histogram(values, edges)[0] / (values.size * np.diff(edges))
            ax.stairs(density, edges, color=COLOURS[kind], label=kind, linewidth=1.3)
        ax.set(xlabel=name, ylabel="normalized", xlim=(edges[0], edges[-1]))
        ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
        ax.text(0.03, 0.97, text, transform=ax.transAxes, va="top", fontsize=8)
    axes[0].legend(loc="upper right", fontsize=8)
    return axes
