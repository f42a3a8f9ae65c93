"""Jets: ROC curves, energies, generated observables, and pictures of jets.

QCD is blue and top red throughout, as in the paper. Bands are one standard deviation over weight draws.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from normae.errors import require_that
from normae.figures import DASHES, band_stairs, colour_bar, density_in, even_edges, round_ticks
from normae.jets.gallery import AXIS_NAMES, CLASSES, COLOURS
from normae.jets.imaging import PIXEL_ETA, PIXEL_PHI, SIDE
from normae.statistics.arrays import Array

FLOOR = 1e-5  # the least share of pT that a picture shows
GAP = 3  # pixels between two pictures
RESIDUAL_SHARE = 0.998  # of all pixels that the colour scale of residuals covers
SIGNED = {"residual": "difference", "parts": "part of the score"}  # rows of both signs, and what their scale shows


class RocCurve(NamedTuple):
    """Background over signal efficiency, (K,) each, and the widths (2, K) of eps_B and log eps_B over draws."""

    label: str
    colour: str
    signal: Array
    background: Array
    band: Array | None = None
    style: str = "-"


def roc_curves(axes: Sequence[Axes], curves: Sequence[RocCurve], smallest: float) -> Sequence[Axes]:
    """Two axes: signal over background efficiency, and background rejection, up to 1/`smallest`, over signal."""
    plain, rejecting = axes
    plain.plot([0, 1], [0, 1], color="0.6", linestyle=":", linewidth=1.0)
    for curve in curves:
        keywords: dict[str, Any] = {"color": curve.colour, "linestyle": curve.style}
        plain.plot(curve.background, curve.signal, label=curve.label, **keywords)
        seen = (curve.background >= smallest) & (curve.signal > 0)
        inverse = 1 / curve.background[seen]
        rejecting.plot(curve.signal[seen], inverse, label=curve.label, **keywords)
        if curve.band is not None:
            shade: dict[str, Any] = {"color": curve.colour, "alpha": 0.25, "linewidth": 0}
            low, high = curve.background - curve.band[0], curve.background + curve.band[0]
            plain.fill_betweenx(curve.signal, np.maximum(low, 0), np.minimum(high, 1), **shade)
            factor = np.exp(curve.band[1][seen])
            rejecting.fill_between(curve.signal[seen], np.maximum(inverse / factor, 1), inverse * factor, **shade)
    plain.set(xlim=(0, 1), ylim=(0, 1), xlabel=r"background efficiency $\epsilon_B$")
    plain.set_ylabel(r"signal efficiency $\epsilon_S$")
    grid = np.linspace(1e-3, 1, 200)
    rejecting.plot(grid, 1 / grid, color="0.6", linestyle=":", linewidth=1.0)
    rejecting.set(xlim=(0, 1), ylim=(1, 1 / smallest), yscale="log", xlabel=r"signal efficiency $\epsilon_S$")
    rejecting.set_ylabel(r"background rejection $1/\epsilon_B$")
    if len(curves) > 2:
        plain.figure.legend(*plain.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    else:
        plain.legend(loc="best")
    return axes


class ClassHistogram(NamedTuple):
    """The density of one class in bins, with shape (B,), and its band over draws where there is one; label 0 or 1."""

    kind: int
    density: Array
    band: Array | None = None


def energy_histograms(ax: Axes, edges: Array, shown: Sequence[ClassHistogram], trained_on: int) -> Axes:
    """Distributions of E/T of both classes, in bins with edges (B + 1,), on a logarithmic axis."""
    for one in shown:
        colour, words = COLOURS[one.kind], "trained on" if one.kind == trained_on else "signal"
        ax.stairs(one.density, edges, color=colour, label=f"{CLASSES[one.kind]} ({words})")
        band_stairs(ax, one.density, edges, one.band, colour, 0.3)
    top = max(float(one.density.max()) for one in shown)
    ax.set(xscale="log", xlim=(edges[0], edges[-1]), ylim=(0, 1.35 * top), xlabel="energy / temperature $E/T$")
    ax.set_ylabel(r"share of jets per unit of $\log_{10}(E/T)$")
    round_ticks(ax.xaxis)
    ax.legend(loc="upper right")
    return ax


class ObservableSample(NamedTuple):
    """Generated and true values of the observables of one class, by name; label 0 or 1; what is written per panel."""

    kind: int
    generated: Mapping[str, NDArray[Any]]
    truth: Mapping[str, NDArray[Any]]
    text: Mapping[str, str]


def observable_panels(axes: Sequence[Axes], samples: Sequence[ObservableSample]) -> Sequence[Axes]:
    """Six axes in the order of the paper's figures: truth as a solid line, generated jets dashed."""
    for ax, (name, label) in zip(axes, AXIS_NAMES.items(), strict=True):
        everything = np.concatenate([s.truth[name] for s in samples] + [s.generated[name] for s in samples])
        edges = even_edges(everything, 0.003, int(np.clip(np.sqrt(everything.size / len(samples)) / 2, 10, 50)))
        top = 0.0
        for place, sample in enumerate(samples):
            for values, style in ((sample.truth[name], "-"), (sample.generated[name], DASHES)):
                density = density_in(values, edges)
                ax.stairs(density, edges, color=COLOURS[sample.kind], linestyle=style)
                top = max(top, float(density.max()))
            ax.text(0.03, 0.965 - 0.085 * place, sample.text[name], transform=ax.transAxes, va="top", fontsize=9,
                    color=COLOURS[sample.kind])  # fmt: skip
        ax.set(xlim=(edges[0], edges[-1]), ylim=(0, (1.25 + 0.1 * len(samples)) * top), ylabel="normalized")
        ax.set_xlabel(f"{label} (share of $p_T$)" if name == "mass" else label)
    handles = [Line2D([], [], color=COLOURS[s.kind], label=CLASSES[s.kind]) for s in samples]
    styles = {"true": "-", "generated": DASHES}
    handles += [Line2D([], [], color="0.3", linestyle=style, label=name) for name, style in styles.items()]
    axes[0].legend(handles=handles, loc="center left", fontsize=8.5, labelspacing=0.25)
    return axes


def picture_rows(
    axes: Sequence[Axes], rows: Sequence[NDArray[Any]], names: Sequence[str], titles: Sequence[str]
) -> Any:
    """Pictures of jets side by side, eta to the right and phi upwards, on one logarithmic colour scale.

    A row of `SIGNED` has a linear scale of both signs: the energy is the mean of a residual's squares, and on a
    logarithmic one what adds nothing to it would look like what makes it. A few pixels may lie beyond its ends.

    Args:
        rows: R arrays of images with shape (K, 40, 40), with R axes and names, and K titles.
    """
    positive = [images for images, name in zip(rows, names, strict=True) if name not in SIGNED]
    highest = max(float(max(images.max() for images in positive)), 10 * FLOOR)
    for ax, images, name in zip(axes, rows, names, strict=True):
        require_that(images.shape[1:] == (SIDE, SIDE), name, f"images of shape (K, {SIDE}, {SIDE})", images.shape)
        signed = name in SIGNED
        reach = max(float(np.quantile(np.abs(images), RESIDUAL_SHARE)), FLOOR)
        norm = Normalize(-reach, reach) if signed else LogNorm(FLOOR, highest)
        gap = np.full((SIDE, GAP), np.nan)
        pieces = [piece for image in (images if signed else np.maximum(images, FLOOR)) for piece in (image, gap)]
        strip = np.concatenate(pieces[:-1], axis=1, dtype=np.float64)
        drawn = ax.imshow(strip, origin="lower", norm=norm, aspect=PIXEL_PHI / PIXEL_ETA, interpolation="nearest",
                          cmap="RdBu_r" if signed else "viridis")  # fmt: skip
        ax.set(xticks=[], yticks=[])
        ax.set_ylabel(name, fontsize=10)
        ax.spines[:].set_visible(False)
        extend = "both" if signed and np.abs(images).max() > reach else "neither"
        bar = colour_bar(ax, drawn, SIGNED.get(name, r"share of $p_T$"), width=0.012, extend=extend)
        bar.ax.tick_params(labelsize=8)
    for column, title in enumerate(titles):
        axes[0].text(column * (SIDE + GAP) + SIDE / 2, SIDE + 1, title, ha="center", va="bottom", fontsize=9)
    return axes
