"""Maps of the plane: a density, the bands of the true likelihood, and the points where the model is off."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError
from normae.figures.likelihood import region_legend
from normae.figures.style import INSIDE_COLOUR, OUTSIDE_COLOUR, REGION_COLOURS, colour_bar

TIGHT: dict[str, Any] = {"handletextpad": 0.1, "columnspacing": 0.8, "borderaxespad": 0.3}
LABELS = (r"$x_1$", r"$x_2$")


def density_map(
    ax: Axes,
    x: ArrayLike,
    y: ArrayLike,
    density: ArrayLike,
    label: str = r"$p_\theta(x)$",
    log: bool = False,
    largest: float | None = None,
) -> Axes:
    """A function on an even grid as colours, with a colour bar.

    Args:
        x, y: the grid's points along each axis, with shapes (N,) and (M,).
        density: with shape (N, M), `density[i, j]` at (x[i], y[j]).
        log: logarithmic colours over six decades.
        largest: upper end of the colours, to compare two maps.
    """
    values = np.asarray(density)
    top = float(np.nanmax(values)) if largest is None else largest
    norm = LogNorm(1e-6 * top, top, clip=True) if log else Normalize(0, top)
    colour_bar(ax, _image(ax, x, y, values, colormaps["viridis"], norm), label)
    return _plane(ax)


def region_map(ax: Axes, x: ArrayLike, y: ArrayLike, regions: ArrayLike) -> Axes:
    """The bands 0..4 on an even grid, in the colours of `likelihood_correlation`; shapes as in `density_map`."""
    bands = np.asarray(regions)
    norm = Normalize(-0.5, len(REGION_COLOURS) - 0.5)
    _image(ax, x, y, bands, ListedColormap(REGION_COLOURS), norm)
    region_legend(ax, [int(band) for band in np.unique(bands)], above=True)
    return _plane(ax)


def deviation_map(ax: Axes, points: ArrayLike, outside_mask: ArrayLike, limit: float = 0.1) -> Axes:
    """Points with shape (N, 2): light grey, and red where `outside_mask`, with shape (N,), says |Delta| >= limit."""
    events, outside = np.asarray(points), np.asarray(outside_mask, dtype=bool)
    if events.shape != (outside.size, 2):
        raise InputError(f"expected points of shape ({outside.size}, 2), got {events.shape}")
    count, percent = int(outside.sum()), rf"{100 * limit:g}\,\%"
    for chosen, colour, size in ((~outside, INSIDE_COLOUR, 1.0), (outside, OUTSIDE_COLOUR, 4.0)):
        ax.scatter(events[chosen, 0], events[chosen, 1], s=size, color=colour, linewidths=0, rasterized=True)
    labels = (rf"$|\Delta| < {percent}$", rf"$|\Delta| \geq {percent}$: {count:,} of {outside.size:,}")
    handles = [_marker(colour, label) for colour, label in zip((INSIDE_COLOUR, OUTSIDE_COLOUR), labels, strict=True)]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, **TIGHT)
    return _plane(ax)


def _marker(colour: str, label: str) -> Line2D:
    return Line2D([], [], linestyle="", marker="o", markersize=5, color=colour, label=label)


def _image(ax: Axes, x: ArrayLike, y: ArrayLike, values: NDArray[Any], colours: Colormap, norm: Normalize) -> Any:
    """One cell of colour around each point of the grid."""
    across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if values.shape != (across.size, up.size):
        raise InputError(f"expected values on a grid of shape ({across.size}, {up.size}), got {values.shape}")
    extent = (*_edges(across), *_edges(up))
    return ax.imshow(
        values.T, origin="lower", extent=extent, cmap=colours, norm=norm, interpolation="nearest", rasterized=True
    )


def _edges(points: NDArray[np.float64]) -> tuple[float, float]:
    """The outer edges of the cells around evenly spaced points with shape (N,)."""
    steps = np.diff(points)
    if steps.size < 1 or not np.allclose(steps, steps[0], rtol=1e-3):
        raise InputError("expected evenly spaced points along each axis of the grid")
    return float(points[0] - steps[0] / 2), float(points[-1] + steps[0] / 2)


def _plane(ax: Axes) -> Axes:
    ax.set(xlabel=LABELS[0], ylabel=LABELS[1])
    ax.set_aspect("equal", adjustable="box")
    return ax
