"""Figures: arrays and axes in, the axes out. Here is their look, made to be read at 45 % of a page's width.

A figure is made, drawn and saved inside `with figure_style():`. Nothing uses pyplot's current figure, nothing saves.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from normae.errors import refuse
from normae.statistics.arrays import Array

REGION_COLOURS = ("tab:red", "tab:blue", "tab:green", "tab:orange", "tab:purple")
"""Colours of the five bands of -log p_true, from the peak outwards."""
TRUE_COLOUR, LEARNED_COLOUR = "0.15", "tab:red"
INSIDE_COLOUR, OUTSIDE_COLOUR = "0.82", "tab:red"
DASHES = (0, (4, 1.5))
TIGHT: dict[str, Any] = {"handletextpad": 0.1, "columnspacing": 0.8, "borderaxespad": 0.3}  # of a legend above the axes
PANEL = (3.9, 3.5)
"""Width and height of one panel in inches."""

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "mathtext.fontset": "dejavusans", "font.size": 11,
    "axes.labelsize": 12, "axes.titlesize": 12, "axes.grid": False, "axes.linewidth": 0.8, "axes.axisbelow": False,
    "xtick.labelsize": 10.5, "xtick.direction": "in", "xtick.major.pad": 5, "xtick.top": True,
    "ytick.labelsize": 10.5, "ytick.direction": "in", "ytick.major.pad": 5, "ytick.right": True,
    "legend.fontsize": 10, "legend.title_fontsize": 10, "legend.frameon": False, "legend.handlelength": 1.6,
    "lines.linewidth": 1.6, "figure.facecolor": "white", "savefig.facecolor": "white", "savefig.dpi": 200,
}  # fmt: skip


def figure_style() -> AbstractContextManager[None]:
    """The package's settings for as long as the context lasts."""
    context: AbstractContextManager[None] = mpl.rc_context(_SETTINGS)
    return context


def new_figure(
    rows: int = 1, columns: int = 1, panel: tuple[float, float] = PANEL,
    height_ratios: Sequence[float] | None = None, sharex: bool = False,
) -> tuple[Figure, Any]:  # fmt: skip
    """A figure of rows x columns panels of `panel` inches each, and its axes as an array with shape (rows, columns).

    With `height_ratios` the rows share the height of one panel instead, as a plot and its ratio do.
    """
    size = panel[0] * columns, panel[1] * (1 if height_ratios else rows)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(hspace=0.02, wspace=0.04))
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=sharex and "col", height_ratios=height_ratios)


def colour_bar(ax: Axes, drawn: Any, label: str, width: float = 0.05, extend: str = "neither") -> Any:
    """A colour bar on the right, as high as the axes and `width` times as wide; `extend` as matplotlib has it."""
    place = ax.inset_axes((1 + 0.6 * width, 0.0, width, 1.0))
    return ax.figure.colorbar(drawn, cax=place, label=label, extend=extend)


def round_ticks(axis: Any) -> None:
    """1, 2 and 5 of each decade of a logarithmic axis, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def square(ax: Axes, low: float, high: float) -> Axes:
    """The same limits on both axes, and a square frame."""
    ax.set(xlim=(low, high), ylim=(low, high))
    ax.set_box_aspect(1)
    return ax


def scatter_outside(ax: Axes, points: ArrayLike, outside_mask: ArrayLike, words: str) -> Line2D:
    """Points with shape (N, 2), those of the mask (N,) larger and red, and counted in the handle for a legend."""
    events, outside = np.asarray(points), np.asarray(outside_mask, dtype=bool)
    refuse(events.shape != (outside.size, 2), f"expected points of shape ({outside.size}, 2), got {events.shape}")
    for chosen, colour, size in ((~outside, INSIDE_COLOUR, 1.0), (outside, OUTSIDE_COLOUR, 4.0)):
        ax.scatter(events[chosen, 0], events[chosen, 1], s=size, color=colour, linewidths=0, rasterized=True)
    return marker(OUTSIDE_COLOUR, f"{words}: {int(outside.sum()):,} of {outside.size:,}")


def marker(colour: str, label: str) -> Line2D:
    """A point for a legend."""
    return Line2D([], [], linestyle="", marker="o", markersize=5, color=colour, label=label)


def band_stairs(ax: Axes, density: Array, edges: Array, band: ArrayLike | None, colour: str, alpha: float) -> None:
    """The band around a histogram with shape (B,), from 0 at the lowest, where there is one."""
    if band is not None:
        half = np.asarray(band, dtype=np.float64)
        low = np.maximum(density - half, 0)
        ax.stairs(density + half, edges, baseline=low, fill=True, color=colour, alpha=alpha, linewidth=0)


def density_in(values: NDArray[Any], edges: Array) -> Array:
    """The share of N values per unit in each bin with `edges` (B + 1,), with shape (B,)."""
    return np.asarray(np.histogram(values, edges)[0] / (values.size * np.diff(edges)))


def even_edges(values: NDArray[Any], tails: float, bins: int, least: float = 1e-6) -> Array:
    """Edges of even bins with shape (bins + 1,) over all of N values but a share `tails` at either end."""
    low, high = np.quantile(values, (tails, 1 - tails))
    return np.linspace(low, high if high > low else low + least, bins + 1)


def plane(ax: Axes) -> Axes:
    """Name the two features, with the same unit on both axes."""
    ax.set(xlabel=r"$x_1$", ylabel=r"$x_2$")
    ax.set_aspect("equal", adjustable="box")
    return ax


def common_limits(x: Array, y: Array) -> tuple[float, float]:
    """Limits of both axes that hold all points, each with shape (N,)."""
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    margin = 0.03 * (high - low)
    return float(low - margin), float(high + margin)


def diagonal(ax: Axes, span: tuple[float, float], lines: Sequence[tuple[float, float]], name: str, text: str) -> Axes:
    """What is right, dotted; red lines on either side, given by slope and shift, with their name; text in a corner."""
    ends = np.array(span)
    ax.plot(ends, ends, color=TRUE_COLOUR, linestyle=":", linewidth=1.2)
    for slope, shift in lines:
        ax.plot(ends, slope * ends + shift, color=OUTSIDE_COLOUR, linewidth=1.0)
    if lines:
        ax.legend(handles=[Line2D([], [], color=OUTSIDE_COLOUR, linewidth=1.0, label=name)], loc="lower right")
    ax.text(0.04, 0.96, text, transform=ax.transAxes, va="top")
    return square(ax, *span)


def count_map(ax: Axes, x: Array, y: Array, span: tuple[float, float]) -> None:
    """Occupied cells of a square grid over the plane, coloured by the logarithm of their content."""
    content, edges, _ = np.histogram2d(x, y, bins=140, range=(span, span))
    with np.errstate(divide="ignore"):
        shade = np.ma.masked_invalid(np.log10(content.T))
    mesh = ax.pcolormesh(edges, edges, shade, cmap="viridis", vmin=0, rasterized=True)
    decades = list(range(int(shade.max()) + 1))
    colour_bar(ax, mesh, "points per cell").set_ticks(decades, labels=[f"$10^{{{decade}}}$" for decade in decades])
