"""The look of the figures: made to be read at 45 % of a page's width, two side by side.

Settings act on what is created while they hold, so a figure is made, drawn and saved inside `with figure_style():`.
Nothing here or in the other files of this folder uses pyplot's current figure, and nothing saves.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

REGION_COLOURS = ("tab:red", "tab:blue", "tab:green", "tab:orange", "tab:purple")
"""Colours of the five bands of -log p_true, from the peak outwards."""
TRUE_COLOUR = "0.15"
LEARNED_COLOUR = "tab:red"
OUTSIDE_COLOUR = "tab:red"
INSIDE_COLOUR = "0.82"
PANEL = (3.9, 3.5)
"""Width and height of one panel in inches."""

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "mathtext.fontset": "dejavusans",
    "font.size": 11,
    "axes.labelsize": 12,
    "axes.titlesize": 12,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.fontsize": 10,
    "legend.title_fontsize": 10,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "axes.grid": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": False,
    "lines.linewidth": 1.6,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.major.pad": 5,
    "ytick.major.pad": 5,
    "xtick.top": True,
    "ytick.right": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 200,
}


def figure_style() -> AbstractContextManager[None]:
    """The package's settings for as long as the context lasts."""
    context: AbstractContextManager[None] = mpl.rc_context(_SETTINGS)
    return context


def new_figure(
    rows: int = 1,
    columns: int = 1,
    panel: tuple[float, float] = PANEL,
    height_ratios: Sequence[float] | None = None,
    sharex: bool = False,
) -> tuple[Figure, Any]:
    """A figure of rows x columns panels of `panel` inches each, and its axes as an array with shape (rows, columns).

    With `height_ratios` the rows share the height of one panel instead, as a plot and its ratio do.
    """
    height = panel[1] * (1 if height_ratios else rows)
    layout = ConstrainedLayoutEngine(hspace=0.02, wspace=0.04)
    figure = Figure(figsize=(panel[0] * columns, height), layout=layout)
    keywords = {"height_ratios": list(height_ratios)} if height_ratios else None
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col" if sharex else False, gridspec_kw=keywords)
    return figure, axes


def colour_bar(ax: Axes, drawn: Any, label: str, width: float = 0.05, extend: str = "neither") -> Any:
    """A colour bar on the right, exactly as high as the axes, and `width` times as wide.

    Args:
        extend: "both" shows by points at its ends that there are values beyond them.
    """
    place = ax.inset_axes((1 + 0.6 * width, 0.0, width, 1.0))
    return ax.figure.colorbar(drawn, cax=place, label=label, extend=extend)


def square(ax: Axes, low: float, high: float) -> Axes:
    """The same limits on both axes, and a square frame."""
    ax.set(xlim=(low, high), ylim=(low, high))
    ax.set_box_aspect(1)
    return ax
