"""Scores: of rows of a table, with their columns; of a distilled network beside the original; in bins of a search."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.floating]
KIND_COLOURS = {"training": "tab:gray", "held out": "tab:blue", "sampled": "tab:red"}


def score_histograms(ax: Axes, scores: Mapping[str, Values]) -> Axes:
    """Distributions of E/T for kinds of rows, each with shape (N,), on a logarithmic axis."""
    everything = np.concatenate(list(scores.values()))
    edges = np.linspace(everything.min(), np.quantile(everything, 0.9995), 61)
    for kind, values in scores.items():
        _density(ax, values, edges, kind)
    ax.set(xlabel="score $E/T$", ylabel="normalized", yscale="log", xlim=(edges[0], edges[-1]))
    ax.legend()
    return ax


def _density(ax: Axes, values: Values, edges: NDArray[np.float64], kind: str) -> None:
    density = np.histogram(values, edges)[0] / (values.size * np.diff(edges))
    ax.stairs(density, edges, color=KIND_COLOURS[kind], label=kind, linewidth=1.3)


def column_histograms(
    axes: Sequence[Axes], names: Sequence[str], held_out: Values, sampled: Values, texts: Sequence[str]
) -> Sequence[Axes]:
    """One axis for each of d columns: rows held out, shape (N, d), and rows drawn from the model, shape (M, d)."""
    for k, (ax, name, text) in enumerate(zip(axes, names, texts, strict=True)):
        low, high = np.quantile(held_out[:, k], (0.002, 0.998))
        edges = np.linspace(low, high if high > low else low + 1.0, 41)
        for values, kind in ((held_out[:, k], "held out"), (sampled[:, k], "sampled")):
            _density(ax, values, edges, kind)
        ax.set(xlabel=name, ylabel="normalized", xlim=(edges[0], edges[-1]))
        ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
        ax.text(0.03, 0.97, text, transform=ax.transAxes, va="top", fontsize=8)
    axes[0].legend(loc="upper right", fontsize=8)
    return axes


SAMPLE_COLOURS = ("0.45", "tab:blue", "tab:red")
MOST_POINTS = 2000
SMALLEST_RATE = 1e-3


def score_agreement(
    ax: Axes, original: Mapping[str, ArrayLike], fixed: Mapping[str, ArrayLike]
) -> dict[str, NDArray[np.float64]]:
    """Fixed-point against original score for each sample, with shape (N,); what was drawn, by column."""
    names, columns = list(original), {"sample": [], "original": [], "fixed": []}  # type: ignore[var-annotated]
    for k, name in reversed(list(enumerate(names))):
        x, y = (np.asarray(values[name], dtype=np.float64)[:MOST_POINTS] for values in (original, fixed))
        ax.plot(x, y, ".", markersize=2, alpha=0.5, color=SAMPLE_COLOURS[k], label=name, rasterized=True)
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
            ax.plot(rates, kept, style, color=SAMPLE_COLOURS[k], label=f"{name}, {kind}")
    ax.set_xscale("log")
    ax.set(xlabel="share of background kept", ylabel="share of anomalies kept", xlim=(SMALLEST_RATE, 1), ylim=(0, 1.02))
    ax.legend(loc="lower right")
    return ax


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
