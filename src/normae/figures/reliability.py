"""The reliability diagram of a classifier: the observed share of label 1 over the mean score, bin by bin."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from normae.errors import InputError
from normae.figures.style import LEARNED_COLOUR, TRUE_COLOUR, square


def reliability_diagram(
    ax: Axes,
    predicted: ArrayLike,
    observed: ArrayLike,
    error: ArrayLike,
    label: str | None = None,
    text: str | None = None,
    colour: str = LEARNED_COLOUR,
    marker: str = "o",
    residual_ax: Axes | None = None,
) -> Axes:
    """Points with error bars along the diagonal; bins without events, NaN, are left out.

    Call it again on the same axes for a second classifier, as after recalibration.

    Args:
        predicted, observed, error: mean score, observed share and its error in each bin, with shape (B,).
        label: for a legend.
        text: for the upper left corner, as the expected calibration error.
        residual_ax: axes below, sharing x, for observed - predicted.
    """
    x, y, dy = (np.asarray(values, dtype=np.float64) for values in (predicted, observed, error))
    if not x.shape == y.shape == dy.shape:
        raise InputError(f"expected bins of one shape, got {x.shape}, {y.shape} and {dy.shape}")
    style: dict[str, Any] = {"fmt": marker, "color": colour, "markersize": 4, "linewidth": 1.2, "label": label}
    if not ax.lines:
        ax.plot([0, 1], [0, 1], color=TRUE_COLOUR, linestyle=":", linewidth=1.2)
    ax.errorbar(x, y, dy, **style)
    ax.set(ylabel="observed share of label 1")
    (ax if residual_ax is None else residual_ax).set_xlabel("mean predicted probability")
    if label is not None:
        ax.legend(loc="lower right")
    if text is not None:
        ax.text(0.04, 0.96, text, transform=ax.transAxes, va="top")
    if residual_ax is None:
        return square(ax, 0, 1)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.tick_params(labelbottom=False)
    _residuals(residual_ax, x, y - x, dy, style)
    return ax


def _residuals(ax: Axes, x: ArrayLike, difference: ArrayLike, error: ArrayLike, style: dict[str, Any]) -> None:
    if not ax.lines:
        ax.axhline(0, color=TRUE_COLOUR, linestyle=":", linewidth=1.2)
    ax.errorbar(x, difference, error, **style)
    reach = 1.15 * float(np.nanmax(np.abs(difference) + np.asarray(error)))
    reach = max(reach, ax.get_ylim()[1] if len(ax.containers) > 1 else 0.0)
    ax.set(xlim=(0, 1), ylim=(-reach, reach), ylabel="difference")
