"""The figures of the dual test: figures 9 and 10 of the paper, the residuals, and the classifier's reliability."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from normae.dual.judge import DualResult, fitted_shift
from normae.figures import (
    Contours,
    RatioSample,
    figure_style,
    new_figure,
    ratio_correlation,
    ratio_histograms,
    ratio_outside_map,
    reliability_diagram,
)
from normae.figures.style import LEARNED_COLOUR, TRUE_COLOUR
from normae.inference import grid_points
from normae.report import save_figure
from normae.statistics import BinnedResiduals, DualRule
from normae.statistics.arrays import Array
from normae.training.reference import ClassifierReference

COLOURS = ("tab:blue", "tab:green")
"""Of A and B."""
CHOICES = {"c0": "$C = 0$", "log_z": r"$C$ from $\log\, Z$", "fit": "$C$ fitted"}
INDEX = {"true": "true", "classifier": "class"}
FIGURES = ("correlation-true", "correlation-classifier", "outside", "distributions", "residuals", "reliability")
"""All that there can be."""
BEYOND = 0.0005
"""Share of the values, on either side, that may lie beyond the axes: single events would set them otherwise."""
MOST_POINTS = 250_000
"""Of a map; more are not seen, and make the files large."""


def draw_dual(result: DualResult, folder: Path) -> list[str]:
    """Write every figure into `folder` and return their names."""
    with figure_style():
        names = [_draw_correlation(result, name, folder) for name in result.against]
        if result.sample.x.shape[1:] == (2,):
            names.append(_draw_outside(result, folder))
        names += [_draw_distributions(result, folder), _draw_residuals(result, folder)]
        if result.classifier is not None:
            names.append(draw_reliability(result.classifier, folder))
    return names


def _draw_correlation(result: DualResult, name: str, folder: Path) -> str:
    found, labels = result.against[name], result.sample.labels
    ratios = dict(result.ratios)
    if result.constant is None:
        ratios["fit"] = ratios["c0"] + fitted_shift(found.log_ratio, ratios["c0"], labels)
    figure, axes = new_figure(1, len(ratios))
    everything = np.concatenate([found.log_ratio, *ratios.values()])
    low, high = np.quantile(everything, (BEYOND, 1 - BEYOND))
    margin = 0.08 * float(high - low)
    span = float(low) - margin, float(high) + margin
    for ax, (choice, ratio) in zip(axes[0], ratios.items(), strict=True):
        comparison = found.comparisons.get(choice, found.best)
        ratio_correlation(ax, found.log_ratio, ratio, labels, result.settings.limit, INDEX[name], text="", span=span)
        text = f"Pearson {comparison.pearson}\n$m$ = {comparison.line.slope}"  # above: events may lie in any corner
        ax.set_title(f"{CHOICES[choice]}\n{text}", fontsize=10)
    columns = {"label": labels.astype(int), "log_r_reference": found.log_ratio}
    save_figure(figure, folder, f"correlation-{name}", columns | _columns(result))
    return f"correlation-{name}"


def _columns(result: DualResult) -> dict[str, Array]:
    return {f"log_r_{choice}": ratio for choice, ratio in result.ratios.items()}


def _draw_outside(result: DualResult, folder: Path) -> str:
    first, x = next(iter(result.against.values())), result.sample.x
    every = -(-len(x) // MOST_POINTS)
    figure, axes = new_figure(1, len(result.ratios))
    for ax, (choice, ratio) in zip(axes[0], result.ratios.items(), strict=True):
        outside = np.abs(ratio - first.log_ratio) >= result.settings.limit
        ratio_outside_map(ax, x[::every], outside[::every], _contours(result), result.settings.limit)
        ax.text(0.04, 0.96, CHOICES[choice], transform=ax.transAxes, va="top")
    columns = {"x1": x[:, 0], "x2": x[:, 1], "label": result.sample.labels.astype(int)}
    save_figure(figure, folder, "outside", columns | {"log_r_reference": first.log_ratio} | _columns(result))
    return "outside"


def _contours(result: DualResult) -> list[Contours]:
    """Of the true densities, where known."""
    if result.densities is None:
        return []
    import torch

    reach = 1.02 * float(np.abs(result.sample.x).max())
    axis = torch.linspace(-reach, reach, 200, dtype=torch.float64)
    points = grid_points(axis, 2).double()
    return [
        Contours(label, colour, axis.numpy(), axis.numpy(), density.log_prob(points).exp().numpy().reshape(200, 200))
        for label, colour, density in zip("AB", COLOURS, result.densities, strict=True)
    ]


def _draw_distributions(result: DualResult, folder: Path) -> str:
    figure, axes = new_figure(1, len(result.distributions))
    columns: dict[str, Array] = {}
    reference = "true" if "true" in result.against else "classifier"
    for ax, (choice, found) in zip(axes[0], result.distributions.items(), strict=True):
        bands = (None, None) if found.band is None else found.band
        rows = zip("AB", COLOURS, found.reference, found.learned, bands, strict=True)
        shown = [RatioSample(f"events of {side}", *values) for side, *values in rows]
        ratio_histograms(ax, found.edges, shown, reference)
        top = max(
            float(found.reference.max()), float((found.learned + (0 if found.band is None else found.band)).max())
        )
        ax.set_ylim(0, 1.35 * top)
        ax.set_title(CHOICES[choice])
        columns |= {"low": found.edges[:-1], "high": found.edges[1:]}
        for k, side in enumerate("ab"):
            columns |= {f"{reference}_{side}": found.reference[k], f"{choice}_{side}": found.learned[k]}
            if found.band is not None:
                columns[f"{choice}_{side}_band"] = found.band[k]
    save_figure(figure, folder, "distributions", columns)
    return "distributions"


def _draw_residuals(result: DualResult, folder: Path) -> str:
    figure, axes = new_figure(1, len(result.against))
    parts = []
    for ax, (name, found) in zip(axes[0], result.against.items(), strict=True):
        edges, centre, residual, error, share = residuals = found.best.residuals
        _residuals(ax, residuals, result.settings.rule, INDEX[name])
        part = {"centre": centre, "residual": residual, "error": error, "low": edges[:-1], "high": edges[1:]}
        parts.append(part | {"share_of_b": share, "reference": np.full(centre.size, name)})
    save_figure(figure, folder, "residuals", _below(parts))
    return "residuals"


def _below(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Columns of several parts, one below the other."""
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _residuals(ax: Axes, residuals: BinnedResiduals, rule: DualRule, index: str) -> None:
    """Mean residual from the line in each bin, blue where A dominates and green where B does, and what is allowed."""
    allowed = rule.residual_tolerance + rule.sigmas * residuals.error
    ax.fill_between(residuals.centre, -allowed, allowed, color="0.9", linewidth=0)
    ax.axhline(0, color=TRUE_COLOUR, linestyle=":", linewidth=1.2)
    for label, colour, chosen in zip("AB", COLOURS, (residuals.share <= 0.5, residuals.share > 0.5), strict=True):
        ax.errorbar(
            residuals.centre[chosen], residuals.residual[chosen], residuals.error[chosen],
            fmt="o", color=colour, markersize=4, linewidth=1.2, label=f"mostly {label}",
        )  # fmt: skip
    reach = 1.2 * float(max(allowed.max(), (np.abs(residuals.residual) + residuals.error).max()))
    handles = [Line2D([], [], color="0.9", linewidth=6, label="allowed"), *ax.get_legend_handles_labels()[0]]
    ax.legend(handles=handles, loc="upper center", ncols=3, columnspacing=0.8, handletextpad=0.3)
    ax.set(
        xlabel=r"$\log\, r_\theta(x)$", ylabel=rf"mean residual of $\log\, r_\mathrm{{{index}}}$",
        ylim=(-reach, 1.25 * reach),
    )  # fmt: skip


def draw_reliability(found: ClassifierReference, folder: Path) -> str:
    """The reliability diagram as trained and as corrected; the figure's name."""
    figure, axes = new_figure(2, 1, height_ratios=(3, 1), sharex=True)
    shown = [("as trained", found.before, "tab:gray", "s")]
    if found.method != "none":
        shown.append((f"corrected ({found.method})", found.after, LEARNED_COLOUR, "o"))
    text = "\n→ ".join(f"ECE {one.error.measured}" for _, one, _, _ in shown)
    parts: list[dict[str, NDArray[Any]]] = []
    for label, measured, colour, marker in shown:
        bins = measured.reliability
        corner = None if parts else text
        reliability_diagram(
            axes[0, 0], bins.predicted, bins.observed, bins.error, label, corner, colour, marker, axes[1, 0]
        )
        columns = {name: getattr(bins, name) for name in ("predicted", "observed", "error", "events")}
        parts.append(columns | {"score": np.full(bins.events.size, label)})
    save_figure(figure, folder, "reliability", _below(parts))
    return "reliability"
