"""Templates of a search: counts in bins of a score, with statistical error and spread over weight draws, and ratios."""

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

STATISTICS_COLOUR, DRAWS_COLOUR, SIGNAL_COLOUR = "0.75", "tab:blue", "tab:red"
NAMES = {"score": "score $E/T$", "log_prob": r"$\log p$", "p_value": "p-value"}


def template_histogram(
    ax: Axes,
    ratio: Axes,
    quantity: str,
    edges: ArrayLike,
    background: ArrayLike,
    variance: ArrayLike,
    spread: ArrayLike | None,
    signal: ArrayLike | None,
    data: ArrayLike | None,
) -> dict[str, NDArray[np.float64]]:
    """Counts above and their ratio to the background below; what was drawn, by column, with shape (B,).

    Bins are drawn equally wide, with their edges as labels, since those at quantiles differ by orders of magnitude.

    Args:
        edges: with shape (B + 1,).
        background, variance: counts and their variance, with shape (B,).
        spread: standard deviation over weight draws, with shape (B,).
        signal: on top of the background, with shape (B,).
        data: with shape (B,).
    """
    edge, n = np.asarray(edges, dtype=np.float64), np.asarray(background, dtype=np.float64)
    place = np.arange(len(edge), dtype=np.float64)
    middle = place[:-1] + 0.5
    error = np.sqrt(np.asarray(variance, dtype=np.float64))
    columns = {"low": edge[:-1], "high": edge[1:], "background": n, "statistical_error": error}
    ax.stairs(n, place, color="0.15", label="background")
    ratio.axhline(1, color="0.15", linewidth=0.8)
    _band(ratio, place, error / n, STATISTICS_COLOUR, "simulation statistics")
    if spread is not None:
        width = np.asarray(spread, dtype=np.float64)
        _band(ax, place, width, DRAWS_COLOUR, None, n)
        _band(ratio, place, width / n, DRAWS_COLOUR, "weight draws")
        columns["spread_over_draws"] = width
    if signal is not None:
        on_top = np.asarray(signal, dtype=np.float64)
        ax.stairs(n + on_top, place, color=SIGNAL_COLOUR, linestyle="--", label="with signal")
        ratio.stairs(1 + on_top / n, place, color=SIGNAL_COLOUR, linestyle="--", baseline=None)
        columns["signal"] = on_top
    if data is not None:
        seen = np.asarray(data, dtype=np.float64)
        for axis, unit in ((ax, np.ones_like(n)), (ratio, n)):
            axis.errorbar(middle, seen / unit, np.sqrt(seen) / unit, fmt="o", ms=3.5, color="0.15", elinewidth=1)
            axis.containers[-1].set_label("data" if axis is ax else None)
        columns["data"] = seen
    ax.set_yscale("log")
    ax.set(ylabel="events in bin", xlim=(0, len(n)), xticks=place, xticklabels=[])
    labels = [f"{value:.3g}" for value in edge]
    ratio.set(xlim=(0, len(n)), ylabel="ratio", xlabel=f"{NAMES[quantity]} (edges of bins)")
    ratio.set_xticks(place, labels, rotation=60, ha="right", rotation_mode="anchor")
    handles = [one for axis in (ax, ratio) for one in axis.get_legend_handles_labels()[0]]
    ax.legend(handles=handles, fontsize=9)
    return columns


def _band(
    ax: Axes,
    place: NDArray[np.float64],
    width: NDArray[np.float64],
    colour: str,
    label: str | None,
    centre: NDArray[np.float64] | float = 1.0,
) -> None:
    low, high = np.broadcast_to(centre - width, width.shape), np.broadcast_to(centre + width, width.shape)
    ax.stairs(high, place, baseline=low, fill=True, color=colour, alpha=0.5, linewidth=0, label=label)
