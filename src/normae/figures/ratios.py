"""Learned log-likelihood ratios beside a reference, the truth or a classifier: figures 9 and 10 of the paper.

In the plane of x = log r_ref and y = log r a perfect pair of models lies on y = x, and |delta log r| = d are the two
lines y = x +- d parallel to it. Below, the reliability diagram of a classifier, and temperatures.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatterSciNotation
from numpy.typing import ArrayLike

import normae.figures as style
from normae.errors import InputError, refuse, require_that
from normae.statistics import Estimate, SlopeLine, SlopePoint, balanced_pearson, pearson
from normae.statistics.arrays import Array, as_pair
from normae.statistics.calibration import Reliability

ESTIMATE_COLOUR, COMPONENT_COLOUR = "tab:red", "tab:blue"
MARKERS = ("o", "s", "D", "^", "v", "P")
SIDES = {"A": "tab:blue", "B": "tab:green"}  # the colour of each of the two models


def ratio_correlation(
    ax: Axes, reference: ArrayLike, model: ArrayLike, labels: ArrayLike | None = None, limit: float = 1.0,
    reference_name: str = "true", text: str | None = None, span: tuple[float, float] | None = None,
) -> Axes:  # fmt: skip
    """How many events lie where in the plane of both log r, each with shape (N,), with the lines |delta log r| = limit.

    Args:
        labels: for a correlation with both classes of equal weight.
        reference_name: index of the horizontal axis, as in log r_true.
        text: for the upper left corner; the Pearson correlation if not given.
        span: limits of both axes; those of the events if not given.
    """
    x, y = as_pair(reference, model, ("reference", "model"))
    span = span or style.common_limits(x, y)
    style.count_map(ax, x, y, span)
    if text is None:
        found = pearson(x, y) if labels is None else balanced_pearson(x, y, labels)
        text = f"Pearson {found.value:.4f}"
    ax.set(xlabel=rf"$\log\, r_\mathrm{{{reference_name}}}(x)$", ylabel=r"$\log\, r_\theta(x)$")
    return style.diagonal(ax, span, [(1.0, -limit), (1.0, limit)], rf"$|\Delta \log\, r| = {limit:g}$", text)


def ratio_outside_map(
    ax: Axes, points: ArrayLike, outside_mask: ArrayLike, axis: ArrayLike = (),
    densities: Sequence[ArrayLike] = (), limit: float = 1.0,
) -> Axes:  # fmt: skip
    """Points with shape (N, 2): light grey, and red where |delta log r| >= limit, under 1 and 3 sigma contours.

    Args:
        outside_mask: with shape (N,), which points are red.
        densities: of A and B on an even grid with points `axis` (G,) along either axis, each with shape (G, G).
    """
    handles = [style.scatter_outside(ax, points, outside_mask, rf"$|\Delta \log\, r| \geq {limit:g}$")]
    x = np.asarray(axis, dtype=np.float64)
    for (label, colour), density in zip(SIDES.items(), map(np.asarray, densities), strict=False):
        require_that(density.shape == 2 * x.shape, label, f"a density of shape {2 * x.shape}", density.shape)
        for sigmas, line in ((1, "-"), (3, "--")):
            level = float(density.max() * np.exp(-(sigmas**2) / 2))
            ax.contour(x, x, density.T, levels=[level], colors=[colour], linestyles=[line], linewidths=1.4)
        handles.append(Line2D([], [], color=colour, label=label))
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, **style.TIGHT)
    return style.plane(ax)


def ratio_histograms(
    ax: Axes, edges: Array, reference: Array, learned: Array, band: Array | None = None, reference_name: str = "true"
) -> Axes:
    """Densities (2, B) of log r of A and B in bins with edges (B + 1,): the reference an area, ours a line, a band."""
    if not reference.shape == learned.shape == (2, edges.size - 1):
        raise InputError(f"expected densities of shape (2, {edges.size - 1}), got {reference.shape}, {learned.shape}")
    for k, colour in enumerate(SIDES.values()):
        ax.stairs(reference[k], edges, fill=True, color=colour, alpha=0.18)
        ax.stairs(reference[k], edges, color=style.TRUE_COLOUR, linewidth=0.8)
        ax.stairs(learned[k], edges, color=colour, linewidth=1.5)
        style.band_stairs(ax, learned[k], edges, None if band is None else band[k], colour, 0.45)
    top = float(max(reference.max(), (learned if band is None else learned + band).max()))
    handles = [Line2D([], [], color=colour, linewidth=1.6, label=f"events of {side}") for side, colour in SIDES.items()]
    handles.append(Line2D([], [], color=style.TRUE_COLOUR, linewidth=0.8, label=reference_name))
    handles.append(Line2D([], [], color="0.4", linewidth=1.5, label="learned"))
    ax.legend(handles=handles, loc="upper center", ncols=2, columnspacing=1.0, labelspacing=0.3)
    ax.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.35 * top), xlabel=r"$\log\, r(x)$", ylabel="density")
    return ax


def reliability_diagram(
    axes: Sequence[Axes], bins: Reliability, label: str, text: str = "", colour: str = "tab:red", marker: str = "o"
) -> Sequence[Axes]:
    """Points with error bars along the diagonal, and below what they differ by; again on the same axes for others.

    `label` is for the legend, `text` for the upper left corner, as the expected calibration error.
    """
    x, y, dy = bins.predicted, bins.observed, bins.error
    above, below = axes
    if not above.lines:
        above.plot([0, 1], [0, 1], color=style.TRUE_COLOUR, linestyle=":", linewidth=1.2)
        below.axhline(0, color=style.TRUE_COLOUR, linestyle=":", linewidth=1.2)
    reach = max(1.15 * float(np.nanmax(np.abs(y - x) + dy)), below.get_ylim()[1] if below.containers else 0.0)
    for ax, values in ((above, y), (below, y - x)):
        ax.errorbar(x, values, dy, fmt=marker, color=colour, markersize=4, linewidth=1.2, label=label)
    above.set(xlim=(0, 1), ylim=(0, 1), ylabel="observed share of label 1")
    above.tick_params(labelbottom=False)
    above.legend(loc="lower right")
    above.text(0.04, 0.96, text, transform=above.transAxes, va="top")
    below.set(xlim=(0, 1), ylim=(-reach, reach), xlabel="mean predicted probability", ylabel="difference")
    return axes


def temperature_estimates(ax: Axes, estimates: Mapping[str, Estimate], model: float) -> Axes:
    """A point with its error for each estimate by name, open where that is not finite, and a line at the model's."""
    shown = {name: estimate for name, estimate in estimates.items() if estimate.value > 0}
    refuse(not shown, "no estimate of the temperature is positive")
    places = np.arange(len(shown))[::-1]
    values, errors = np.array(list(shown.values())).T
    unsure = None if np.isfinite(errors).all() else "without an error"
    _log_points(ax, values, places.astype(float), errors, (None, unsure), fmt="o", color=ESTIMATE_COLOUR, capsize=3)
    ax.axvline(model, color=style.TRUE_COLOUR, linestyle="--", linewidth=1.2, label="the model's $T$")
    low, high = min(values.min(), model), max(values.max(), model)
    ax.set(xscale="log", xlim=(low / 2, high * 2), ylim=(-0.7, len(shown) - 0.1), xlabel="temperature $T$")
    ax.set_yticks(places, list(shown))
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, ncols=2)
    return ax


class ComparedTemperatures(NamedTuple):
    """Of one model: its T, the T that it should have, and estimates of that by name."""

    name: str
    model: float
    wanted: Estimate
    estimates: Mapping[str, Estimate]


def temperatures_compared(ax: Axes, rows: Sequence[ComparedTemperatures]) -> Axes:
    """Every positive estimate over the T at which m = 1: a line for each model, 10 % shaded; open without an error."""
    names = list(dict.fromkeys(name for row in rows for name in row.estimates))
    places = np.arange(len(rows))[::-1]
    ax.axvspan(0.9, 1.1, color="0.85", linewidth=0, label="within 10 %")
    ax.axvline(1, color=style.TRUE_COLOUR, linestyle="--", linewidth=1.2)
    for k, name in enumerate(names):
        shift = 0.25 - 0.5 * (k + 0.5) / len(names)
        kept = []
        for place, row in zip(places, rows, strict=True):
            if (e := row.estimates.get(name)) is not None and e.value > 0:
                error = np.hypot(e.error / e.value, row.wanted.error / row.wanted.value)
                kept.append((place + shift, e.value / row.wanted.value, float(error)))
        y, value, error = np.array(kept).reshape(-1, 3).T
        look = {"fmt": MARKERS[k % len(MARKERS)], "color": f"C{k}", "capsize": 2}
        _log_points(ax, value, y, value * error, (name, None), **look)
    ax.set(xscale="log", ylim=(-0.7, len(rows) - 0.3), xlabel="estimate of $T$ / temperature at which $m = 1$")
    ax.set_yticks(places, [row.name for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
    return ax


def _log_points(ax: Axes, x: Array, y: Array, error: Array, labels: tuple[str | None, str | None], **look: Any) -> None:
    """Points (N,) with errors along a logarithmic axis, open where the error is not finite; labels of both kinds."""
    known = np.isfinite(error)
    ax.errorbar(x[known], y[known], xerr=_log_bars(x[known], error[known]), label=labels[0], markersize=5, **look)
    ax.errorbar(x[~known], y[~known], markerfacecolor="white", label=labels[1], markersize=5, **look)


def component_temperatures(ax: Axes, estimates: Sequence[Estimate], model: float) -> Axes:
    """The temperature in each principal component of the residuals, the leading first, where it is positive."""
    number = np.arange(1, len(estimates) + 1)
    values, errors = (np.array(column) for column in zip(*estimates, strict=True))
    kept = (values > 0) & np.isfinite(errors)
    bars = _log_bars(values[kept], errors[kept])
    ax.errorbar(number[kept], values[kept], yerr=bars, fmt="o", color=COMPONENT_COLOUR, capsize=2, markersize=4)
    ax.axhline(model, color=style.TRUE_COLOUR, linestyle="--", linewidth=1.2, label="the model's $T$")
    ax.set(xlabel="principal component of the residuals", ylabel="temperature $T$", yscale="log")
    ax.set_xlim(0.3, len(estimates) + 0.7)
    ax.legend()
    return ax


def _log_bars(values: Array, errors: Array) -> Array:
    """Lower and upper bars with shape (2, N) that a logarithmic axis can show."""
    return np.stack([np.minimum(errors, 0.9 * values), errors])


def slope_against_temperature(ax: Axes, points: Sequence[SlopePoint], line: SlopeLine | None, root: Estimate) -> Axes:
    """The slopes m of trainings, `points`, the power law `line` through them, and `root`, where it is 1, as a band."""
    ordered = sorted(points)
    t, m, error = (np.array(column) for column in zip(*((p.temperature, *p.slope) for p in ordered), strict=True))
    low, high = t.min() / 1.5, t.max() * 1.5
    ax.axhline(1, color="0.6", linewidth=1)
    if np.isfinite(root.value) and np.isfinite(root.error):
        low, high = min(low, root.value / 1.5), max(high, root.value * 1.5)
        band = root.value * np.exp(np.array([-1, 1]) * root.error / root.value)
        ax.axvspan(*band, color=ESTIMATE_COLOUR, alpha=0.15, linewidth=0)
        ax.axvline(root.value, color=ESTIMATE_COLOUR, linewidth=1.2, label=f"$m = 1$: $T$ = {root}")
    if line is not None:
        grid = np.geomspace(low, high, 100)
        curve = np.exp(line.level.value + line.slope.value * (np.log(grid) - line.centre))
        ax.plot(grid, curve, color="0.15", linewidth=1.2, label=rf"$m \propto T^{{{line.slope.value:.2f}}}$")
    ax.errorbar(t, m, yerr=error, fmt="o", color=COMPONENT_COLOUR, capsize=3, markersize=5, label="trainings")
    ax.set(xscale="log", xlim=(low, high), xlabel="temperature $T$", ylabel="slope $m$ of the dual test")
    ax.set_ylim(min(0.0, float(m.min()) - 0.1), 1.25 * max(1.2, float(m.max())))
    style.round_ticks(ax.xaxis)
    ax.xaxis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(np.inf, np.inf)))
    ax.legend()
    return ax
