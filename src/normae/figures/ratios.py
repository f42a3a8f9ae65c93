"""Learned log-likelihood ratios beside a reference, the truth or a classifier: figures 9 and 10 of the paper.

In the plane of x = log r_ref and y = log r a perfect pair of models lies on y = x, and |delta log r| = d are the two
lines y = x +- d parallel to it.

Below, the reliability diagram of a classifier: the observed share of label 1 over the mean score, bin by bin.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from normae.errors import InputError
from normae.figures.densities import TIGHT, _counts, _limits, _marker, _plane, scatter_outside
from normae.figures.style import LEARNED_COLOUR, OUTSIDE_COLOUR, TRUE_COLOUR, square
from normae.statistics import balanced_pearson, pearson
from normae.statistics.arrays import as_pair

SIGMA_STYLES = ((1, "-"), (3, "--"))


class Contours(NamedTuple):
    """A density on an even grid, for its 1 and 3 sigma contours: points along each axis, (N,) and (M,), and (N, M).

    `levels` are the density at 1 and at 3 sigma; if not given, exp(-1/2) and exp(-9/2) of the largest.
    """

    label: str
    colour: str
    x: ArrayLike
    y: ArrayLike
    density: ArrayLike
    levels: tuple[float, float] | None = None


class RatioSample(NamedTuple):
    """Densities of log r over the events of one sample, each with shape (B,): reference, learned, and its band."""

    label: str
    colour: str
    reference: ArrayLike
    learned: ArrayLike
    band: ArrayLike | None = None


def ratio_correlation(
    ax: Axes,
    reference: ArrayLike,
    model: ArrayLike,
    labels: ArrayLike | None = None,
    limit: float | None = 1.0,
    reference_name: str = "true",
    text: str | None = None,
    span: tuple[float, float] | None = None,
) -> Axes:
    """How many events lie where in the plane of both log r, each with shape (N,), with the lines |delta log r| = limit.

    Args:
        labels: for a correlation with both classes of equal weight.
        reference_name: index of the horizontal axis, as in log r_true.
        text: for the upper left corner; the Pearson correlation if not given.
        span: limits of both axes; those of the events if not given.
    """
    x, y = as_pair(reference, model, ("reference", "model"))
    low, high = _limits(x, y) if span is None else span
    _counts(ax, x, y, (low, high))
    ends = np.array([low, high])
    ax.plot(ends, ends, color=TRUE_COLOUR, linestyle=":", linewidth=1.2)
    if limit is not None:
        for shift in (-limit, limit):
            ax.plot(ends, ends + shift, color=OUTSIDE_COLOUR, linewidth=1.0)
        handle = Line2D([], [], color=OUTSIDE_COLOUR, linewidth=1.0, label=rf"$|\Delta \log\, r| = {limit:g}$")
        ax.legend(handles=[handle], loc="lower right")
    if text is None:
        found = pearson(x, y) if labels is None else balanced_pearson(x, y, labels)
        text = f"Pearson {found.value:.4f}"
    ax.text(0.04, 0.96, text, transform=ax.transAxes, va="top")
    ax.set(xlabel=rf"$\log\, r_\mathrm{{{reference_name}}}(x)$", ylabel=r"$\log\, r_\theta(x)$")
    return square(ax, low, high)


def ratio_outside_map(
    ax: Axes, points: ArrayLike, outside_mask: ArrayLike, contours: Sequence[Contours] = (), limit: float = 1.0
) -> Axes:
    """Points with shape (N, 2): light grey, and red where |delta log r| >= limit, under 1 and 3 sigma contours.

    Args:
        outside_mask: with shape (N,), which points are red.
        contours: solid at 1 sigma, dashed at 3.
    """
    outside = scatter_outside(ax, points, outside_mask)
    for contour in contours:
        _draw_contours(ax, contour)
    count = f"{int(outside.sum()):,} of {outside.size:,}"
    handles = [_marker(OUTSIDE_COLOUR, rf"$|\Delta \log\, r| \geq {limit:g}$: {count}")]
    handles += [Line2D([], [], color=contour.colour, label=contour.label) for contour in contours]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, **TIGHT)
    return _plane(ax)


def _draw_contours(ax: Axes, contour: Contours) -> None:
    """Solid at 1 sigma, dashed at 3."""
    x, y, density = (np.asarray(values, dtype=np.float64) for values in (contour.x, contour.y, contour.density))
    if density.shape != (x.size, y.size):
        raise InputError(f"{contour.label}: expected a density of shape ({x.size}, {y.size}), got {density.shape}")
    levels = contour.levels or tuple(float(density.max()) * float(np.exp(-(k**2) / 2)) for k, _ in SIGMA_STYLES)
    for level, (_, style) in zip(levels, SIGMA_STYLES, strict=True):
        ax.contour(x, y, density.T, levels=[level], colors=[contour.colour], linestyles=[style], linewidths=1.4)


def ratio_histograms(
    ax: Axes, edges: ArrayLike, samples: Sequence[RatioSample], reference_name: str = "true", log: bool = False
) -> Axes:
    """Densities of log r for each sample: reference as an area with a thin edge, learned as a line with its band.

    Args:
        edges: of the bins of log r, with shape (B + 1,).
        reference_name: what the legend calls the reference.
        log: logarithmic axis of the density.
    """
    cuts = np.asarray(edges, dtype=np.float64)
    top = 0.0
    for sample in samples:
        reference, learned = (np.asarray(values, dtype=np.float64) for values in (sample.reference, sample.learned))
        if reference.shape != (cuts.size - 1,) or learned.shape != reference.shape:
            raise InputError(f"{sample.label}: expected densities of shape ({cuts.size - 1},), got {learned.shape}")
        ax.stairs(reference, cuts, fill=True, color=sample.colour, alpha=0.18)
        ax.stairs(reference, cuts, color=TRUE_COLOUR, linewidth=0.8)
        ax.stairs(learned, cuts, color=sample.colour, linewidth=1.5)
        if sample.band is not None:
            half = np.asarray(sample.band, dtype=np.float64)
            low = np.maximum(learned - half, 0)
            ax.stairs(learned + half, cuts, baseline=low, fill=True, color=sample.colour, alpha=0.45, linewidth=0)
        top = max(top, float(reference.max()), float(learned.max()))
    handles = [Line2D([], [], color=sample.colour, linewidth=1.6, label=sample.label) for sample in samples]
    handles += [
        Line2D([], [], color=TRUE_COLOUR, linewidth=0.8, label=reference_name),
        Line2D([], [], color="0.4", linewidth=1.5, label="learned"),
    ]
    ax.legend(handles=handles, loc="upper center", ncols=2, columnspacing=1.0, labelspacing=0.3)
    if log:
        ax.set_yscale("log")
    ylim = (1e-5 * top, 30 * top) if log else (0, 1.35 * top)
    ax.set(xlim=(cuts[0], cuts[-1]), ylim=ylim, xlabel=r"$\log\, r(x)$", ylabel="density")
    return ax


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
