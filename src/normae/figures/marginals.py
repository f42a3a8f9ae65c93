"""Marginal densities, true and learned: p(x_1) = int dx_2 p(x_1, x_2), and the ratio of the two."""

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from normae.figures.style import LEARNED_COLOUR, TRUE_COLOUR
from normae.statistics.arrays import Array

RATIO_FLOOR = 0.01
"""The ratio is drawn where the true density exceeds this share of its maximum."""


def marginal(
    ax: Axes,
    centres: ArrayLike,
    true: ArrayLike,
    learned: ArrayLike,
    band: ArrayLike | None = None,
    label: str = r"$x_1$",
    ratio_ax: Axes | None = None,
) -> Axes:
    """True against learned marginal density, each with shape (N,) at the bin centres, (N,).

    Args:
        band: half-width of the one-sigma band around `learned`, with shape (N,).
        label: of the variable.
        ratio_ax: axes below, sharing x, for learned / true.
    """
    x, truth, model = (np.asarray(values, dtype=np.float64) for values in (centres, true, learned))
    width = None if band is None else np.asarray(band, dtype=np.float64)
    ax.plot(x, truth, color=TRUE_COLOUR, label="true")
    ax.plot(x, model, color=LEARNED_COLOUR, linestyle=(0, (4, 1.5)), label="learned")
    if width is not None:
        ax.fill_between(x, model - width, model + width, color=LEARNED_COLOUR, alpha=0.25, linewidth=0)
    ax.set(xlim=(x[0], x[-1]), ylim=(0, 1.3 * max(truth.max(), model.max())), ylabel="marginal density")
    ax.legend(loc="upper center", ncols=2)
    (ax if ratio_ax is None else ratio_ax).set_xlabel(label)
    if ratio_ax is not None:
        ax.tick_params(labelbottom=False)
        _ratio(ratio_ax, x, truth, model, width)
    return ax


def _ratio(ax: Axes, x: Array, true: Array, learned: Array, band: Array | None) -> None:
    shown = true > RATIO_FLOOR * true.max()
    safe = np.where(shown, true, np.nan)
    ratio = learned / safe
    ax.axhline(1, color=TRUE_COLOUR, linewidth=0.8)
    ax.plot(x, ratio, color=LEARNED_COLOUR)
    if band is not None:
        ax.fill_between(x, ratio - band / safe, ratio + band / safe, color=LEARNED_COLOUR, alpha=0.25, linewidth=0)
    spread = float(np.clip(1.3 * np.nanmax(np.abs(ratio - 1)), 0.05, 1.0))
    ax.set(xlim=(x[0], x[-1]), ylim=(1 - spread, 1 + spread), ylabel="ratio")
