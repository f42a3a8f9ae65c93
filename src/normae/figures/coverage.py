"""Error bars against the truth: pulls beside a unit Gaussian, and observed against nominal coverage.

A curve above the diagonal is conservative, one below is overconfident. Bands are the spread over independent trainings.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from normae.errors import InputError
from normae.figures.densities import region_labels, region_legend, region_map
from normae.figures.style import DASHES, LEARNED_COLOUR, REGION_COLOURS, TRUE_COLOUR, square
from normae.statistics.arrays import Array, as_vector

CURVE_COLOURS = (LEARNED_COLOUR, "tab:blue", "tab:green", "tab:orange", "tab:purple")
REACH = 5.0  # where the axis of pulls ends


class Curve(NamedTuple):
    """Observed coverage at each level, with shapes (L,): of quantile and of Gaussian intervals.

    `band` is the half-width around the quantiles' curve.
    """

    label: str
    quantile: ArrayLike
    gaussian: ArrayLike
    band: ArrayLike | None = None


def pull_histogram(ax: Axes, pulls: Mapping[str, ArrayLike]) -> Axes:
    """Densities of pulls beside the unit Gaussian, and, dashed, the Gaussian of their mean and width.

    Args:
        pulls: label to pulls with shape (N,); those beyond the axis count in the total, in mean and width, and are
            named.
    """
    edges = np.linspace(-REACH, REACH, 61)
    fine = np.linspace(-REACH, REACH, 301)
    unit = _normal(fine, 0.0, 1.0)
    ax.plot(fine, unit, color=TRUE_COLOUR, linewidth=1.2, label=r"$\mathcal{N}(0, 1)$")
    top = unit.max()
    for (label, values), colour in zip(pulls.items(), CURVE_COLOURS, strict=False):
        t = as_vector(values, "pulls", least=2)
        density = np.histogram(t, edges)[0] / (t.size * (edges[1] - edges[0]))
        outside = float(np.mean(np.abs(t) > REACH))
        share = f"{100 * outside:.0f}" if outside >= 0.01 else f"{100 * outside:.1g}"
        words = rf"$\mu={t.mean():.2f}$, $\sigma={t.std():.2f}$" + (f", {share} % outside" if outside >= 5e-4 else "")
        ax.plot(fine, _normal(fine, t.mean(), t.std()), color=colour, linestyle=DASHES, linewidth=0.9)
        ax.stairs(density, edges, color=colour, linewidth=1.4, label=f"{label}: {words}")
        top = max(top, float(density.max()))
    ax.set(xlim=(-REACH, REACH), ylim=(0, top * (1.22 + 0.13 * len(pulls))), xlabel="pull $t$", ylabel="density")
    ax.legend(loc="upper center", borderaxespad=0.3, labelspacing=0.3).set_in_layout(False)
    return ax


def _normal(t: Array, mean: float, width: float) -> Array:
    density: Array = np.exp(-(((t - mean) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi))
    return density


def coverage_curves(ax: Axes, levels: ArrayLike, curves: Sequence[Curve]) -> Axes:
    """Observed over nominal coverage: quantile intervals solid, Gaussian dashed, the band around the former.

    Args:
        levels: nominal confidence levels with shape (L,).
        curves: one colour each.
    """
    coloured = list(zip(curves, CURVE_COLOURS, strict=False))
    for curve, colour in coloured:
        _curve(ax, levels, curve, colour)
    handles = [Line2D([], [], color=colour, label=curve.label) for curve, colour in coloured]
    return _coverage_frame(ax, levels, curves, handles)


def region_coverage(
    ax: Axes,
    levels: ArrayLike,
    quantile: ArrayLike,
    gaussian: ArrayLike,
    band: ArrayLike | None = None,
    *,
    text: str | None = None,
    legend: bool = True,
) -> Axes:
    """The curves of each region in its colour; regions without events, all NaN, are left out.

    Args:
        levels: with shape (L,).
        quantile, gaussian: observed coverage with shape (R, L).
        band: half-width with shape (R, L).
        text: the title of the legend in the free corner.
        legend: names the regions in a row above the axes.
    """
    rows = [np.asarray(kind, dtype=np.float64) for kind in (quantile, gaussian, band) if kind is not None]
    shown = [region for region, row in enumerate(rows[0]) if not np.isnan(row).all()]
    curves = [Curve(region_labels()[region], *(kind[region] for kind in rows)) for region in shown]
    for region, curve in zip(shown, curves, strict=True):
        _curve(ax, levels, curve, REGION_COLOURS[region])
    if legend:
        region_legend(ax, shown, above=True)
    # A second legend on the same axes would replace the first, were that not kept as an artist of its own.
    if (row := ax.get_legend()) is not None:
        ax.add_artist(row).set_clip_on(False)
    return _coverage_frame(ax, levels, curves, title=text, alignment="left")


def coverage_by_region_maps(
    axes: Any,
    grid: tuple[ArrayLike, ArrayLike, ArrayLike],
    levels: ArrayLike,
    everywhere: Sequence[Curve],
    log_density: Sequence[ArrayLike],
    density: Sequence[ArrayLike],
) -> Any:
    """The paper's figure of appendix C.1: the regions, the coverage of all, and by region that of log p and of p.

    Args:
        axes: with shape (2, 2).
        grid: points along each axis and the region of each, with shapes (N,), (M,) and (N, M).
        levels: with shape (L,).
        everywhere: the curves of all events.
        log_density, density: quantile, Gaussian and, where known, band, each with shape (R, L).
    """
    region_map(axes[0, 0], *grid)
    coverage_curves(axes[0, 1], levels, everywhere)
    for ax, kinds, text in zip(axes[1], (log_density, density), (r"$\log\, p_\theta$", r"$p_\theta$"), strict=True):
        region_coverage(ax, levels, *kinds, text=text, legend=False)
    return axes


def _curve(ax: Axes, levels: ArrayLike, curve: Curve, colour: str) -> None:
    x, quantile, gaussian = (np.asarray(row, dtype=np.float64) for row in (levels, curve.quantile, curve.gaussian))
    if not x.shape == quantile.shape == gaussian.shape:
        raise InputError(f"{curve.label}: expected coverages of shape {x.shape}, of quantiles and Gaussian intervals")
    for values, style in ((quantile, "-"), (gaussian, DASHES)):
        ax.plot(x, values, color=colour, linestyle=style, linewidth=1.4)
    if curve.band is not None:
        half = np.asarray(curve.band, dtype=np.float64)
        low, high = np.clip(quantile - half, 0, 1), np.clip(quantile + half, 0, 1)
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def _coverage_frame(
    ax: Axes, levels: ArrayLike, curves: Sequence[Curve], handles: Sequence[Line2D] = (), **legend: Any
) -> Axes:
    """The diagonal, and a legend where it hides no curve: conservative ones leave the lower right free."""
    observed = np.array([kind for curve in curves for kind in (curve.quantile, curve.gaussian)], dtype=np.float64)
    corner = "lower right" if np.nanmean(observed - np.asarray(levels)) > 0 else "upper left"
    kinds = [
        Line2D([], [], color="0.4", linestyle=style, label=kind)
        for kind, style in (("quantile", "-"), ("Gaussian", DASHES))
    ]
    ax.legend(handles=[*handles, *kinds], loc=corner, labelspacing=0.25, borderaxespad=0.4, **legend)
    ax.plot([0, 1], [0, 1], color=TRUE_COLOUR, linestyle=":", linewidth=1.2, zorder=1)
    ax.set(xlabel="nominal coverage", ylabel="observed coverage")
    return square(ax, 0, 1)
