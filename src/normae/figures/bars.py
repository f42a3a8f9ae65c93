"""How many times as fast: bars on a logarithmic axis, from 1."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from normae.errors import InputError

FASTER_COLOUR = "tab:blue"
SLOWER_COLOUR = "0.6"


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
    colours = [FASTER_COLOUR if r >= 1 else SLOWER_COLOUR for r in ratios]
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
