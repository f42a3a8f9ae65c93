"""A distilled fixed-point score beside the original: event by event, and as a trigger."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

COLOURS = ("0.45", "tab:blue", "tab:red")
MOST_POINTS = 2000
SMALLEST_RATE = 1e-3


def score_agreement(
    ax: Axes, original: Mapping[str, ArrayLike], fixed: Mapping[str, ArrayLike]
) -> dict[str, NDArray[np.float64]]:
    """Fixed-point against original score for each sample, with shape (N,); what was drawn, by column."""
    names, columns = list(original), {"sample": [], "original": [], "fixed": []}  # type: ignore[var-annotated]
    for k, name in reversed(list(enumerate(names))):
        x, y = (np.asarray(values[name], dtype=np.float64)[:MOST_POINTS] for values in (original, fixed))
        ax.plot(x, y, ".", markersize=2, alpha=0.5, color=COLOURS[k], label=name, rasterized=True)
        columns["sample"].append(np.full(len(x), k, dtype=np.float64))
        columns["original"].append(x)
        columns["fixed"].append(y)
    ends = [float(np.concatenate([np.asarray(v) for v in original.values()]).max())]
    ax.plot([0, ends[0]], [0, ends[0]], color="0.15", linewidth=0.8)
    ax.set(xlabel=r"original score $\log(1 + E/T)$", ylabel="distilled, fixed point")
    ax.legend(markerscale=5)
    return {name: np.concatenate(values) for name, values in columns.items()}


def trigger_rates(ax: Axes, original: Mapping[str, ArrayLike], fixed: Mapping[str, ArrayLike]) -> Axes:
    """Share of anomalies kept against share of background kept, of the original and of the fixed-point score."""
    names = list(original)
    rates = np.geomspace(SMALLEST_RATE, 1, 200)
    for k, name in list(enumerate(names))[1:]:
        for scores, style, kind in ((original, "-", "original"), (fixed, "--", "fixed point")):
            cuts = np.quantile(np.asarray(scores[names[0]]), 1 - rates)
            kept = [(np.asarray(scores[name]) > cut).mean() for cut in cuts]
            ax.plot(rates, kept, style, color=COLOURS[k], label=f"{name}, {kind}")
    ax.set_xscale("log")
    ax.set(xlabel="share of background kept", ylabel="share of anomalies kept", xlim=(SMALLEST_RATE, 1), ylim=(0, 1.02))
    ax.legend(loc="lower right")
    return ax
