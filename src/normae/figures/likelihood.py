"""Learned against true log-likelihood, in the plane of x = -log p_true and y = -log p_model.

A perfect model lies on y = x. The paper's Delta = (log p_model - log p_true) / log p_true = (y - x) / x, so that
|Delta| = d are the two straight lines y = (1 + d) x and y = (1 - d) x, through the origin, on either side of it.
"""

from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from normae.figures.style import OUTSIDE_COLOUR, REGION_COLOURS, TRUE_COLOUR, colour_bar, square
from normae.statistics import REGION_EDGES, pearson
from normae.statistics.arrays import Array, as_pair


def likelihood_correlation(
    ax: Axes,
    log_true: ArrayLike,
    log_model: ArrayLike,
    regions: ArrayLike | None = None,
    limit: float | None = None,
    text: str | None = None,
) -> Axes:
    """-log p_model over -log p_true for N points; points where either is infinite are left out.

    Args:
        regions: band 0..4 of each point, for its colour; without it the plane shows how many points lie where.
        limit: draws the lines |Delta| = limit.
        text: for the upper left corner; the Pearson correlation if not given.
    """
    true, model = as_pair(log_true, log_model, ("log_true", "log_model"))
    finite = np.isfinite(true) & np.isfinite(model)
    x, y = -true[finite], -model[finite]
    low, high = _limits(x, y)
    if regions is None:
        _counts(ax, x, y, (low, high))
    else:
        _points(ax, x, y, np.asarray(regions).ravel()[finite])
    _lines(ax, (low, high), limit)
    corner = f"Pearson {pearson(x, y).value:.4f}" if text is None else text
    ax.text(0.04, 0.96, corner, transform=ax.transAxes, va="top")
    ax.set(xlabel=r"$-\log\, p_\mathrm{true}(x)$", ylabel=r"$-\log\, p_\theta(x)$")
    return square(ax, low, high)


def _limits(x: Array, y: Array) -> tuple[float, float]:
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    margin = 0.03 * (high - low)
    return float(low - margin), float(high + margin)


def _points(ax: Axes, x: Array, y: Array, bands: Array) -> None:
    for band, colour in enumerate(REGION_COLOURS):
        chosen = bands == band
        ax.scatter(x[chosen], y[chosen], s=1.2, color=colour, linewidths=0, rasterized=True)
    region_legend(ax, [band for band in range(len(REGION_COLOURS)) if (bands == band).any()])


def _counts(ax: Axes, x: Array, y: Array, span: tuple[float, float]) -> None:
    """Occupied cells of a square grid over the plane, coloured by the logarithm of their content."""
    content, edges, _ = np.histogram2d(x, y, bins=140, range=(span, span))
    with np.errstate(divide="ignore"):
        shade = np.ma.masked_invalid(np.log10(content.T))
    mesh = ax.pcolormesh(edges, edges, shade, cmap="viridis", vmin=0, rasterized=True)
    decades = list(range(int(shade.max()) + 1))
    bar = colour_bar(ax, mesh, "points per cell")
    bar.set_ticks(decades, labels=[f"$10^{{{decade}}}$" for decade in decades])


def _lines(ax: Axes, span: tuple[float, float], limit: float | None) -> None:
    ends = np.array(span)
    ax.plot(ends, ends, color=TRUE_COLOUR, linestyle=":", linewidth=1.2)
    if limit is None:
        return
    for slope in (1 - limit, 1 + limit):
        ax.plot(ends, slope * ends, color=OUTSIDE_COLOUR, linewidth=1.0)
    handle = Line2D([], [], color=OUTSIDE_COLOUR, linewidth=1.0, label=rf"$|\Delta| = {100 * limit:g}\,\%$")
    ax.legend(handles=[handle], loc="lower right")


def region_labels() -> list[str]:
    """The bands of -log p_true in words: "< 3", "3–6", ..., "> 25"."""
    between = [f"{low}–{high}" for low, high in pairwise(REGION_EDGES)]
    return [f"< {REGION_EDGES[0]}", *between, f"> {REGION_EDGES[-1]}"]


def region_legend(ax: Axes, bands: list[int], above: bool = False) -> None:
    """Colours and bands, in the lower right corner or in a row above the axes."""
    labels = region_labels()
    handles = [
        Line2D([], [], linestyle="", marker="s", markersize=6, color=REGION_COLOURS[band], label=labels[band])
        for band in bands
    ]
    title = r"$-\log\, p_\mathrm{true}$"
    tight = {"title": title, "handletextpad": 0.1, "handlelength": 1.2, "borderaxespad": 0.3}
    if above:
        ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, columnspacing=0.7, **tight)
    else:
        ax.legend(handles=handles, loc="lower right", labelspacing=0.25, **tight)
