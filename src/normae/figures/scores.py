"""Scores: of rows of a table, with their columns; of a distilled network beside the original.

And the bars of a benchmark: how many times as fast, on a logarithmic axis, from 1.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError
from normae.figures.style import density_in, even_edges

Values = NDArray[np.floating]
KIND_COLOURS = {"training": "tab:gray", "held out": "tab:blue", "sampled": "tab:red"}


def score_histograms(ax: Axes, scores: Mapping[str, Values]) -> Axes:
    """Distributions of E/T for kinds of rows, each with shape (N,), on a logarithmic axis."""
    everything = np.concatenate(list(scores.values()))
    edges = np.linspace(everything.min(), np.quantile(everything, 0.9995), 61)
    for kind, values in scores.items():
        ax.stairs(density_in(values, edges), edges, color=KIND_COLOURS[kind], label=kind, linewidth=1.3)
    ax.set(xlabel="score $E/T$", ylabel="normalized", yscale="log", xlim=(edges[0], edges[-1]))
    ax.legend()
    return ax


def column_histograms(
    axes: Sequence[Axes], names: Sequence[str], held_out: Values, sampled: Values, texts: Sequence[str]
) -> Sequence[Axes]:
    """One axis for each of d columns: rows held out, shape (N, d), and rows drawn from the model, shape (M, d)."""
    for k, (ax, name, text) in enumerate(zip(axes, names, texts, strict=True)):
        edges = even_edges(held_out[:, k], 0.002, 40, 1.0)
        for values, kind in ((held_out[:, k], "held out"), (sampled[:, k], "sampled")):
            ax.stairs(density_in(values, edges), edges, color=KIND_COLOURS[kind], label=kind, linewidth=1.3)
        label = "".join(letter if letter.isprintable() else "?" for letter in name).replace("$", r"\$")
        ax.set(xlabel=label, ylabel="normalized", xlim=(edges[0], edges[-1]))
        ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
        ax.text(0.03, 0.97, text, transform=ax.transAxes, va="top", fontsize=8)
    axes[0].legend(loc="upper right", fontsize=8)
    return axes


SAMPLE_COLOURS = ("0.45", "tab:blue", "tab:red")
MOST_POINTS = 2000
SMALLEST_RATE = 1e-3


def score_agreement(
    ax: Axes, original: Mapping[str, ArrayLike], fixed: Mapping[str, ArrayLike]
) -> list[dict[str, NDArray[np.float64]]]:
    """Fixed-point against original score for each sample, with shape (N,); what was drawn, sample by sample."""
    parts = []
    for k, name in reversed(list(enumerate(original))):
        x, y = (np.asarray(values[name], dtype=np.float64)[:MOST_POINTS] for values in (original, fixed))
        ax.plot(x, y, ".", markersize=2, alpha=0.5, color=SAMPLE_COLOURS[k], label=name, rasterized=True)
        parts.append({"sample": np.full(len(x), float(k)), "original": x, "fixed": y})
    end = max(float(np.max(np.asarray(values))) for values in original.values())
    ax.plot([0, end], [0, end], color="0.15", linewidth=0.8)
    ax.set(xlabel=r"original score $\log(1 + E/T)$", ylabel="distilled, fixed point")
    ax.legend(markerscale=5)
    return parts


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


# --- speed


def speed_bars(ax: Axes, labels: Sequence[str], values: ArrayLike, errors: ArrayLike) -> Axes:
    """A bar for each ratio of speeds, the first on top; grey where it is below 1.

    Args:
        labels: what is compared with what.
        values: ratios with shape (n,), positive.
        errors: their errors with shape (n,).
    """
    ratios, widths = np.asarray(values, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    if not len(labels) == len(ratios) == len(widths) or not (ratios > 0).all():
        raise InputError(f"expected a positive ratio and an error for each of {len(labels)} labels")
    places = np.arange(len(labels))[::-1]
    colours = ["tab:blue" if r >= 1 else "0.6" for r in ratios]
    ax.barh(places, ratios - 1, left=1, color=colours, height=0.62)
    ax.errorbar(ratios, places, xerr=widths, fmt="none", ecolor="0.15", elinewidth=1, capsize=2)
    for place, r in zip(places, ratios, strict=True):
        ax.annotate(f"{r:.2g}", (max(r, 1), place), xytext=(8, 0), textcoords="offset points", va="center")
    ax.axvline(1, color="0.15", linewidth=0.8)
    ax.set_xscale("log")
    ax.set_xlim(min(0.5, 0.8 * float(ratios.min())), 2.2 * max(1.0, float(ratios.max())))
    ax.set_yticks(places, labels)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("times as fast")
    return ax
