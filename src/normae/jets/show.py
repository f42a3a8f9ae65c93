"""Figures of jets: the images of appendix A, and a page of observables. Arrays and axes in, axes out."""

from typing import Any

import matplotlib

matplotlib.use("Agg", force=False)
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normae.jets.container import UNLABELLED
from normae.jets.imaging import PIXEL_ETA, PIXEL_PHI, SIDE

CLASSES = {0: "QCD", 1: "top", UNLABELLED: "jets"}
COLOURS = {0: "tab:blue", 1: "tab:red", UNLABELLED: "black"}
FLOOR = 1e-6
AXIS_NAMES = {
    "eta": r"$p_T$-weighted $\eta$",
    "phi": r"$p_T$-weighted $\phi$",
    "mass": r"$m_\mathrm{jet}$",
    "tau1": r"$\tau_1$",
    "tau2": r"$\tau_2$",
    "tau3": r"$\tau_3$",
}


def draw_image(ax: Any, image: NDArray[Any], floor: float = FLOOR) -> Any:
    """One image with shape (40, 40) on a logarithmic scale from `floor`; eta to the right, phi upwards."""
    half = (SIDE / 2 * PIXEL_ETA, SIDE / 2 * PIXEL_PHI)
    norm = LogNorm(vmin=floor, vmax=max(float(image.max()), 10 * floor))
    shown = np.maximum(image, floor)
    drawn = ax.imshow(shown, origin="lower", extent=(-half[0], half[0], -half[1], half[1]), norm=norm, aspect="auto")
    ax.set_xlabel(r"$\eta$")
    ax.set_ylabel(r"$\phi$")
    ax.figure.colorbar(drawn, ax=ax, label=r"share of $p_T$")
    return ax


def draw_histogram(ax: Any, labels: NDArray[Any], values: NDArray[Any], name: str) -> Any:
    """One observable with shape (N,), a line for each class that is there, normalized."""
    low, high = np.quantile(values, (0.002, 0.998))
    bins = int(np.clip(np.sqrt(values.size), 10, 60))
    edges = np.linspace(low, high if high > low else low + 1e-6, bins + 1)
    for label, title in CLASSES.items():
        if (chosen := values[labels == label]).size:
            density = np.histogram(chosen, edges)[0] / (chosen.size * np.diff(edges))
            ax.stairs(density, edges, color=COLOURS[label], label=title)
    ax.set_xlabel(AXIS_NAMES.get(name, name))
    ax.set_ylabel("normalized")
    return ax


def image_page(means: dict[int, NDArray[Any]], singles: dict[int, NDArray[Any]]) -> Figure:
    """The figure of appendix A: for each label the mean image, and below it one jet; images with shape (40, 40)."""
    figure = Figure(figsize=(4.6 * len(means), 8), layout="constrained")
    axes = figure.subplots(2, len(means), squeeze=False)
    for column, label in enumerate(sorted(means)):
        draw_image(axes[0, column], means[label]).set_title(f"{CLASSES[label]}, mean")
        draw_image(axes[1, column], singles[label]).set_title(f"{CLASSES[label]}, one jet")
    return figure


def observables_page(labels: NDArray[Any], columns: dict[str, NDArray[Any]], mass_unit: str = "GeV") -> Figure:
    """Six panels: eta, phi, mass in `mass_unit`, tau1, tau2, tau3 of each class; all arrays with shape (N,)."""
    figure = Figure(figsize=(9, 10), layout="constrained")
    axes = figure.subplots(3, 2).ravel()
    for ax, name in zip(axes, AXIS_NAMES, strict=True):
        draw_histogram(ax, labels, columns[name], name)
    axes[2].set_xlabel(f"{AXIS_NAMES['mass']} ({mass_unit})")
    axes[0].legend()
    return figure
