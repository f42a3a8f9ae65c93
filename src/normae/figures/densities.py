"""A density of two features beside the learned one: maps, marginals, and log-likelihood against log-likelihood.

Marginals are p(x_1) = int dx_2 p(x_1, x_2). In the plane of x = -log p_true and y = -log p_model a perfect model lies
on y = x. The paper's Delta = (log p_model - log p_true) / log p_true = (y - x) / x, so that |Delta| = d are the two
straight lines y = (1 + d) x and y = (1 - d) x, through the origin, on either side of it.

Where a Bayesian model is unsure, a figure of section 3.3 has two rows, E/T above and p below. To first order
sigma(p)/<p> = sigma(E/T), so the middle panel above and the right panel below look alike; they share their colours.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

import normae.figures as style
from normae.errors import InputError, refuse
from normae.statistics import REGION_EDGES, pearson
from normae.statistics.arrays import Array, as_pair, as_vector

Limits = tuple[float, float]
Pair = tuple[ArrayLike, ArrayLike]
RATIO_FLOOR = 0.01  # the ratio is drawn where the true density exceeds this share of its maximum
CURVE_COLOURS = (style.LEARNED_COLOUR, "tab:blue", "tab:green", "tab:orange", "tab:purple")
REACH = 5.0  # where the axis of pulls ends
LIMIT_SHARE = 0.002  # share of the cells at either end that a logarithmic colour scale leaves to its end colours


def field_map(
    ax: Axes, x: ArrayLike, y: ArrayLike, field: ArrayLike, label: str, log: bool = False, limits: Limits | None = None
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
    bar = style.colour_bar(ax, drawn, label)
    if log and high / low < 300:
        style.round_ticks(bar.ax.yaxis)
    return style.plane(ax)


def colour_limits(*fields: ArrayLike, log: bool = True) -> Limits:
    """Ends of a colour scale that fields share: from 0, or for a logarithmic one without the outermost cells."""
    values = np.concatenate([np.asarray(field, dtype=np.float64).ravel() for field in fields])
    if not log:
        return 0.0, float(np.nanmax(values))
    positive = values[np.isfinite(values) & (values > 0)]
    refuse(positive.size == 0, "a logarithmic colour scale needs positive values, got none")
    low, high = np.quantile(positive, (LIMIT_SHARE, 1 - LIMIT_SHARE))
    return (float(low), float(high)) if high > 1.01 * low else (0.5 * float(low), 2 * float(high))


def region_map(ax: Axes, x: ArrayLike, y: ArrayLike, regions: ArrayLike) -> Axes:
    """The bands `regions`, 0..4, in the colours of `likelihood_correlation`; x, y and shapes as in `field_map`."""
    bands = np.asarray(regions)
    norm = Normalize(-0.5, len(style.REGION_COLOURS) - 0.5)
    _image(ax, x, y, bands, ListedColormap(style.REGION_COLOURS), norm)
    region_legend(ax, [int(band) for band in np.unique(bands)], above=True)
    return style.plane(ax)


def deviation_map(ax: Axes, points: ArrayLike, outside_mask: ArrayLike) -> Axes:
    """Points with shape (N, 2): light grey, and red where `outside_mask`, with shape (N,), says |Delta| >= 10 %."""
    red = style.scatter_outside(ax, points, outside_mask, r"$|\Delta| \geq 10\,\%$")
    grey = style.marker(style.INSIDE_COLOUR, r"$|\Delta| < 10\,\%$")
    ax.legend(handles=[grey, red], loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, **style.TIGHT)
    return style.plane(ax)


def _image(ax: Axes, x: ArrayLike, y: ArrayLike, values: NDArray[Any], colours: Colormap, norm: Normalize) -> Any:
    """One cell of colour around each point of the grid."""
    axes = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if values.shape != (axes[0].size, axes[1].size):
        raise InputError(f"expected values on a grid of shape ({axes[0].size}, {axes[1].size}), got {values.shape}")
    extent: Any = ()
    for points in axes:
        steps = np.diff(points)
        if steps.size < 1 or not np.allclose(steps, steps[0], rtol=1e-3):
            raise InputError("expected evenly spaced points along each axis of the grid")
        extent += (float(points[0] - steps[0] / 2), float(points[-1] + steps[0] / 2))
    return ax.imshow(
        values.T, origin="lower", extent=extent, cmap=colours, norm=norm, interpolation="nearest", rasterized=True
    )


def likelihood_correlation(
    ax: Axes, log_true: ArrayLike, log_model: ArrayLike, regions: ArrayLike | None = None,
    limit: float | None = None, text: str | None = None,
) -> Axes:  # fmt: skip
    """-log p_model over -log p_true for N points; points where either is infinite are left out.

    Args:
        regions: band 0..4 of each point, for its colour; without it the plane shows how many points lie where.
        limit: draws the lines |Delta| = limit.
        text: for the upper left corner; the Pearson correlation if not given.
    """
    true, model = as_pair(log_true, log_model, ("log_true", "log_model"))
    finite = np.isfinite(true) & np.isfinite(model)
    x, y = -true[finite], -model[finite]
    span = style.common_limits(x, y)
    if regions is None:
        style.count_map(ax, x, y, span)
    else:
        bands = np.asarray(regions).ravel()[finite]
        for band, colour in enumerate(style.REGION_COLOURS):
            chosen = bands == band
            ax.scatter(x[chosen], y[chosen], s=1.2, color=colour, linewidths=0, rasterized=True)
        region_legend(ax, np.unique(bands).tolist())
    lines = [] if limit is None else [(1 - limit, 0.0), (1 + limit, 0.0)]
    corner = f"Pearson {pearson(x, y).value:.4f}" if text is None else text
    ax.set(xlabel=r"$-\log\, p_\mathrm{true}(x)$", ylabel=r"$-\log\, p_\theta(x)$")
    return style.diagonal(ax, span, lines, rf"$|\Delta| = {100 * (limit or 0):g}\,\%$", corner)


def region_labels() -> list[str]:
    """The bands of -log p_true in words: "< 3", "3–6", ..., "> 25"."""
    between = [f"{low}–{high}" for low, high in pairwise(REGION_EDGES)]
    return [f"< {REGION_EDGES[0]}", *between, f"> {REGION_EDGES[-1]}"]


def region_legend(ax: Axes, bands: list[int], above: bool = False) -> None:
    """Colours and bands, in the lower right corner or in a row above the axes."""
    looks: list[dict[str, Any]]
    looks = [{"color": style.REGION_COLOURS[band], "label": region_labels()[band]} for band in bands]
    handles = [Line2D([], [], linestyle="", marker="s", markersize=6, **look) for look in looks]
    place: dict[str, Any] = {"loc": "lower right", "labelspacing": 0.25}
    if above:
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 5, "columnspacing": 0.7}
    title = r"$-\log\, p_\mathrm{true}$"
    ax.legend(handles=handles, title=title, handletextpad=0.1, handlelength=1.2, borderaxespad=0.3, **place)


def marginal(
    axes: Sequence[Axes], centres: ArrayLike, true: ArrayLike, learned: ArrayLike, band: ArrayLike | None = None,
    label: str = r"$x_1$",
) -> Sequence[Axes]:  # fmt: skip
    """True and learned marginal density at bin centres, with the half-width of a band, and below their ratio: (N,)."""
    x, truth, model, half = (np.asarray(values, dtype=np.float64) for values in (centres, true, learned, band))
    above, below = axes
    above.plot(x, truth, color=style.TRUE_COLOUR, label="true")
    above.plot(x, model, color=style.LEARNED_COLOUR, linestyle=style.DASHES, label="learned")
    safe = np.where(truth > RATIO_FLOOR * truth.max(), truth, np.nan)
    ratio = model / safe
    below.axhline(1, color=style.TRUE_COLOUR, linewidth=0.8)
    below.plot(x, ratio, color=style.LEARNED_COLOUR)
    if band is not None:
        for ax, y, width in ((above, model, half), (below, ratio, half / safe)):
            ax.fill_between(x, y - width, y + width, color=style.LEARNED_COLOUR, alpha=0.25, linewidth=0)
    above.set(xlim=(x[0], x[-1]), ylim=(0, 1.3 * max(truth.max(), model.max())), ylabel="marginal density")
    above.legend(loc="upper center", ncols=2)
    above.tick_params(labelbottom=False)
    spread = float(np.clip(1.3 * np.nanmax(np.abs(ratio - 1)), 0.05, 1.0))
    below.set(xlim=(x[0], x[-1]), ylim=(1 - spread, 1 + spread), xlabel=label, ylabel="ratio")
    return axes


def uncertainty_maps(axes: Any, x: ArrayLike, y: ArrayLike, score: Pair, density: Pair) -> Any:
    """Six maps (2, 3) over a grid of x (N,) and y (M,): E/T, its width and relative width above, the same of p below.

    `score` and `density` are mean and standard deviation over draws, each with shape (N, M). Panels of (4.2, 3.3)
    inches have room for the colour bars.
    """
    mean, width, p, p_width = (np.asarray(values, dtype=np.float64) for values in (*score, *density))
    with np.errstate(divide="ignore", invalid="ignore"):
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


# --- error bars against the truth
#
# A curve above the diagonal is conservative, one below is overconfident. Bands are the spread over trainings.


class Curve(NamedTuple):
    """Observed coverage at each level, with shapes (L,): of quantile intervals, with a half-width, and of Gaussian."""

    label: str
    quantile: ArrayLike
    gaussian: ArrayLike
    band: ArrayLike | None = None


def pull_histogram(ax: Axes, pulls: Mapping[str, ArrayLike]) -> Axes:
    """Densities of pulls (N,) by label, the unit Gaussian, and, dashed, that of their mean and width."""
    edges = np.linspace(-REACH, REACH, 61)
    fine = np.linspace(-REACH, REACH, 301)
    unit = _normal(fine, 0.0, 1.0)
    ax.plot(fine, unit, color=style.TRUE_COLOUR, linewidth=1.2, label=r"$\mathcal{N}(0, 1)$")
    top = unit.max()
    for (label, values), colour in zip(pulls.items(), CURVE_COLOURS, strict=False):
        t = as_vector(values, "pulls", least=2)
        density = np.histogram(t, edges)[0] / (t.size * (edges[1] - edges[0]))
        outside = float(np.mean(np.abs(t) > REACH))
        share = f"{100 * outside:.0f}" if outside >= 0.01 else f"{100 * outside:.1g}"
        words = rf"$\mu={t.mean():.2f}$, $\sigma={t.std():.2f}$" + (f", {share} % outside" if outside >= 5e-4 else "")
        ax.plot(fine, _normal(fine, t.mean(), t.std()), color=colour, linestyle=style.DASHES, linewidth=0.9)
        ax.stairs(density, edges, color=colour, linewidth=1.4, label=f"{label}: {words}")
        top = max(top, float(density.max()))
    ax.set(xlim=(-REACH, REACH), ylim=(0, top * (1.22 + 0.13 * len(pulls))), xlabel="pull $t$", ylabel="density")
    ax.legend(loc="upper center", borderaxespad=0.3, labelspacing=0.3).set_in_layout(False)
    return ax


def _normal(t: Array, mean: float, width: float) -> Array:
    return np.asarray(np.exp(-(((t - mean) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi)))


def coverage_curves(ax: Axes, levels: ArrayLike, curves: Sequence[Curve]) -> Axes:
    """Observed coverage over nominal levels (L,): quantile intervals solid, with their band, Gaussian ones dashed."""
    pairs = zip(curves, CURVE_COLOURS, strict=False)
    handles = [Line2D([], [], color=colour, label=curve.label) for curve, colour in pairs]
    return _coverage(ax, levels, curves, CURVE_COLOURS, handles)


def region_coverage(
    ax: Axes, levels: ArrayLike, quantile: ArrayLike, gaussian: ArrayLike, band: ArrayLike | None = None,
    *, text: str | None = None, legend: bool = True,
) -> Axes:  # fmt: skip
    """The curves of each region in its colour; regions without events, all NaN, are left out.

    Args:
        quantile, gaussian, band: coverage at levels (L,), and the half-width of the former, with shape (R, L).
        text: the title of the legend in the free corner; `legend` names the regions in a row above the axes.
    """
    rows = [np.asarray(kind, dtype=np.float64) for kind in (quantile, gaussian, band) if kind is not None]
    shown = [region for region, row in enumerate(rows[0]) if not np.isnan(row).all()]
    curves = [Curve(region_labels()[region], *(kind[region] for kind in rows)) for region in shown]
    if legend:
        region_legend(ax, shown, above=True)
    # A second legend on the same axes would replace the first, were that not kept as an artist of its own.
    if (row := ax.get_legend()) is not None:
        ax.add_artist(row).set_clip_on(False)
    colours = [style.REGION_COLOURS[region] for region in shown]
    return _coverage(ax, levels, curves, colours, title=text, alignment="left")


def _coverage(
    ax: Axes, levels: ArrayLike, curves: Sequence[Curve], colours: Sequence[str], handles: Sequence[Line2D] = (),
    **legend: Any,
) -> Axes:  # fmt: skip
    """Curves, the diagonal, and a legend where it hides no curve: conservative ones leave the lower right free."""
    for curve, colour in zip(curves, colours, strict=False):
        x, quantile, gaussian, half = (np.asarray(row, dtype=np.float64) for row in (levels, *curve[1:]))
        wrong = not x.shape == quantile.shape == gaussian.shape
        refuse(wrong, f"{curve.label}: expected coverages of shape {x.shape}, of quantiles and Gaussian intervals")
        for values, line in ((quantile, "-"), (gaussian, style.DASHES)):
            ax.plot(x, values, color=colour, linestyle=line, linewidth=1.4)
        if curve.band is not None:
            low, high = np.clip(quantile - half, 0, 1), np.clip(quantile + half, 0, 1)
            ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    observed = np.array([kind for curve in curves for kind in (curve.quantile, curve.gaussian)], dtype=np.float64)
    corner = "lower right" if np.nanmean(observed - np.asarray(levels)) > 0 else "upper left"
    lines = {"quantile": "-", "Gaussian": style.DASHES}
    kinds = [Line2D([], [], color="0.4", linestyle=line, label=kind) for kind, line in lines.items()]
    ax.legend(handles=[*handles, *kinds], loc=corner, labelspacing=0.25, borderaxespad=0.4, **legend)
    ax.plot([0, 1], [0, 1], color=style.TRUE_COLOUR, linestyle=":", linewidth=1.2, zorder=1)
    ax.set(xlabel="nominal coverage", ylabel="observed coverage")
    return style.square(ax, 0, 1)
