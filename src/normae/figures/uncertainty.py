"""Where a Bayesian model is unsure: a quantity on the grid, its width over weight draws, and the quotient of the two.

The paper's figure of section 3.3 has two rows, E/T above and p below. To first order sigma(p)/<p> = sigma(E/T), so the
middle panel above and the right panel below look alike; they share their colour scale, so that this can be seen.
"""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike

from normae.errors import InputError
from normae.figures.densities import _image, _plane
from normae.figures.style import colour_bar

LIMIT_SHARE = 0.002
"""Share of the cells at either end that a logarithmic colour scale leaves to its end colours."""


def field_map(
    ax: Axes,
    x: ArrayLike,
    y: ArrayLike,
    field: ArrayLike,
    label: str,
    log: bool = False,
    limits: tuple[float, float] | None = None,
) -> Axes:
    """A positive function on an even grid as colours, with a colour bar; what lies beyond its ends has their colours.

    Args:
        x, y: the grid's points along each axis, with shapes (N,) and (M,).
        field: with shape (N, M), `field[i, j]` at (x[i], y[j]).
        log: logarithmic colours; what is not positive has the lowest.
        limits: ends of the colours; those of the field if not given.
    """
    values = np.asarray(field, dtype=np.float64)
    low, high = colour_limits(values, log=log) if limits is None else limits
    norm = LogNorm(low, high, clip=True) if log else Normalize(low, high)
    drawn = _image(ax, x, y, np.where(values > 0, values, low) if log else values, colormaps["viridis"], norm)
    bar = colour_bar(ax, drawn, label)
    if log and high / low < 300:
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_major_formatter("{x:g}")
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return _plane(ax)


def colour_limits(*fields: ArrayLike, log: bool = True) -> tuple[float, float]:
    """Ends of a colour scale that fields share: from 0, or for a logarithmic one without the outermost cells."""
    values = np.concatenate([np.asarray(field, dtype=np.float64).ravel() for field in fields])
    if not log:
        return 0.0, float(np.nanmax(values))
    positive = values[np.isfinite(values) & (values > 0)]
    if positive.size == 0:
        raise InputError("a logarithmic colour scale needs positive values, got none")
    low, high = np.quantile(positive, (LIMIT_SHARE, 1 - LIMIT_SHARE))
    return (float(low), float(high)) if high > 1.01 * low else (0.5 * float(low), 2 * float(high))


def uncertainty_maps(
    axes: Any,
    x: ArrayLike,
    y: ArrayLike,
    score: tuple[ArrayLike, ArrayLike],
    density: tuple[ArrayLike, ArrayLike],
) -> Any:
    """Six maps: E/T, its width and relative width above, the same of p below.

    Args:
        axes: with shape (2, 3), of panels that are wide enough for a colour bar: (4.2, 3.3) inches.
        x, y: the grid's points along each axis, with shapes (N,) and (M,).
        score, density: mean and standard deviation over the draws of E/T and of p, each with shape (N, M).
    """
    pairs = [tuple(np.asarray(values, dtype=np.float64) for values in pair) for pair in (score, density)]
    with np.errstate(divide="ignore", invalid="ignore"):
        (mean, width), (p, p_width) = pairs
        relative, p_relative = width / mean, p_width / p
    shared = colour_limits(width, p_relative)
    fields = (
        (mean, r"$\langle E/T \rangle$", False, None),
        (width, r"$\sigma(E/T)$", True, shared),
        (relative, r"$\sigma(E/T)\,/\,\langle E/T \rangle$", True, None),
        (p, r"$\langle p_\theta \rangle$", False, None),
        (p_width, r"$\sigma(p_\theta)$", False, None),
        (p_relative, r"$\sigma(p_\theta)\,/\,\langle p_\theta \rangle$", True, shared),
    )
    for ax, (field, label, log, limits) in zip(np.ravel(axes), fields, strict=True):
        field_map(ax, x, y, field, label, log, limits)
    return axes
