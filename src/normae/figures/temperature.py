"""Temperatures: estimates beside the model's own, and the slope of the dual test against the temperature."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter
from numpy.typing import ArrayLike

from normae.errors import InputError
from normae.statistics import Estimate, SlopeLine, SlopePoint

MODEL_COLOUR = "0.15"
ESTIMATE_COLOUR = "tab:red"
COMPONENT_COLOUR = "tab:blue"
MARKERS = ("o", "s", "D", "^", "v", "P")


def temperature_estimates(ax: Axes, estimates: Mapping[str, Estimate], model: float) -> Axes:
    """A point with its error for each estimate by name, the first on top, and a line at the model's temperature.

    A point without a finite error is open.
    """
    shown = {name: estimate for name, estimate in estimates.items() if estimate.value > 0}
    if not shown:
        raise InputError("no estimate of the temperature is positive")
    places = np.arange(len(shown))[::-1]
    values = np.array([e.value for e in shown.values()])
    errors = np.array([e.error for e in shown.values()])
    known = np.isfinite(errors)
    style: dict[str, Any] = {"fmt": "o", "color": ESTIMATE_COLOUR, "capsize": 3, "markersize": 5}
    ax.errorbar(values[known], places[known], xerr=_log_bars(values[known], errors[known]), **style)
    if not known.all():
        ax.errorbar(values[~known], places[~known], markerfacecolor="white", label="without an error", **style)
    ax.axvline(model, color=MODEL_COLOUR, linestyle="--", linewidth=1.2, label="the model's $T$")
    ax.set_xscale("log")
    low, high = min(values.min(), model), max(values.max(), model)
    ax.set(xlim=(low / 2, high * 2), ylim=(-0.7, len(shown) - 0.1), xlabel="temperature $T$")
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
    """Every estimate over the temperature at which m = 1: a line for each model, the first on top, 10 % shaded.

    Estimates of one model lie side by side. A point without a finite error is open; what is not positive is left out.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.estimates))
    places = np.arange(len(rows))[::-1]
    ax.axvspan(0.9, 1.1, color="0.85", linewidth=0, label="within 10 %")
    ax.axvline(1, color=MODEL_COLOUR, linestyle="--", linewidth=1.2)
    for k, name in enumerate(names):
        shift = 0.25 - 0.5 * (k + 0.5) / len(names)
        shown = [(y + shift, row.estimates.get(name), row.wanted) for y, row in zip(places, rows, strict=True)]
        kept = [(y, e.value / w.value, _relative(e, w)) for y, e, w in shown if e is not None and e.value > 0]
        style: dict[str, Any] = {"fmt": MARKERS[k % len(MARKERS)], "color": f"C{k}", "capsize": 2, "markersize": 5}
        y, value, error = np.array(kept).reshape(-1, 3).T
        known = np.isfinite(error)
        bars = _log_bars(value[known], (value * error)[known])
        ax.errorbar(value[known], y[known], xerr=bars, label=name, **style)
        ax.errorbar(value[~known], y[~known], markerfacecolor="white", **style)
    ax.set(xscale="log", ylim=(-0.7, len(rows) - 0.3), xlabel="estimate of $T$ / temperature at which $m = 1$")
    ax.set_yticks(places, [row.name for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
    return ax


def _relative(estimate: Estimate, wanted: Estimate) -> float:
    return float(np.hypot(estimate.error / estimate.value, wanted.error / wanted.value))


def component_temperatures(ax: Axes, estimates: Sequence[Estimate], model: float) -> Axes:
    """The temperature in each principal component of the residuals, the leading first; what is not positive is left
    out."""
    number = np.arange(1, len(estimates) + 1)
    values, errors = (np.array(column) for column in zip(*estimates, strict=True))
    kept = (values > 0) & np.isfinite(errors)
    bars = _log_bars(values[kept], errors[kept])
    ax.errorbar(number[kept], values[kept], yerr=bars, fmt="o", color=COMPONENT_COLOUR, capsize=2, markersize=4)
    ax.axhline(model, color=MODEL_COLOUR, linestyle="--", linewidth=1.2, label="the model's $T$")
    ax.set(xlabel="principal component of the residuals", ylabel="temperature $T$", yscale="log")
    ax.set_xlim(0.3, len(estimates) + 0.7)
    ax.legend()
    return ax


def _log_bars(values: ArrayLike, errors: ArrayLike) -> np.ndarray:
    """Lower and upper bars with shape (2, N) that a logarithmic axis can show."""
    v, e = np.asarray(values, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    return np.stack([np.minimum(e, 0.9 * v), e])


def slope_against_temperature(ax: Axes, points: Sequence[SlopePoint], line: SlopeLine | None, root: Estimate) -> Axes:
    """The slopes m of trainings, the power law through them, and where it is 1, with its error as a band."""
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
        power = f"{line.slope.value:.2f}"
        ax.plot(grid, curve, color="0.15", linewidth=1.2, label=rf"$m \propto T^{{{power}}}$")
    ax.errorbar(t, m, yerr=error, fmt="o", color=COMPONENT_COLOUR, capsize=3, markersize=5, label="trainings")
    ax.set(xscale="log", xlim=(low, high), xlabel="temperature $T$", ylabel="slope $m$ of the dual test")
    ax.set_ylim(min(0.0, float(m.min()) - 0.1), 1.25 * max(1.2, float(m.max())))
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(np.inf, np.inf)))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend()
    return ax
