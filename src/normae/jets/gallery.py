"""The figures of a file of jets or images, written beside their numbers: images of appendix A, and observables."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normae.errors import refuse
from normae.files import Place, check_new, new_folder
from normae.jets.container import UNLABELLED, Jets
from normae.jets.imaging import PIXEL_ETA, PIXEL_PHI, SIDE, images
from normae.jets.pipeline import file_observables, in_frame, made_of_file, write_columns
from normae.jets.reader import Rows, is_images

CLASSES = {0: "QCD", 1: "top", UNLABELLED: "jets"}
COLOURS = {0: "tab:blue", 1: "tab:red", UNLABELLED: "black"}
FLOOR = 1e-6
AXIS_NAMES = {
    "eta": r"$p_T$-weighted $\eta$", "phi": r"$p_T$-weighted $\phi$", "mass": r"$m_\mathrm{jet}$",
    "tau1": r"$\tau_1$", "tau2": r"$\tau_2$", "tau3": r"$\tau_3$",
}  # fmt: skip


def draw_image(ax: Any, image: NDArray[Any]) -> Any:
    """One image with shape (40, 40) on a logarithmic scale; eta to the right, phi upwards."""
    half = (SIDE / 2 * PIXEL_ETA, SIDE / 2 * PIXEL_PHI)
    norm = LogNorm(vmin=FLOOR, vmax=max(float(image.max()), 10 * FLOOR))
    shown = np.maximum(image, FLOOR)
    drawn = ax.imshow(shown, origin="lower", extent=(-half[0], half[0], -half[1], half[1]), norm=norm, aspect="auto")
    ax.set(xlabel=r"$\eta$", ylabel=r"$\phi$")
    ax.figure.colorbar(drawn, ax=ax, label=r"share of $p_T$")
    return ax


def draw_histogram(ax: Any, labels: NDArray[Any], values: NDArray[Any], name: str) -> Any:
    """One observable with shape (N,), a line for each class that is there, normalized."""
    low, high = np.quantile(values, (0.002, 0.998))
    edges = np.linspace(low, high if high > low else low + 1e-6, int(np.clip(np.sqrt(values.size), 10, 60)) + 1)
    for label, title in CLASSES.items():
        if (chosen := values[labels == label]).size:
            density = np.histogram(chosen, edges)[0] / (chosen.size * np.diff(edges))
            ax.stairs(density, edges, color=COLOURS[label], label=title)
    ax.set(xlabel=AXIS_NAMES.get(name, name), ylabel="normalized")
    return ax


def mean_images(path: Place, rows: Rows = None, **options: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    """For each label the mean image, without filter where a file holds jets, and the first with it, (40, 40)."""

    def pictures(part: Jets | NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return (images(part, sigma=0), images(part)) if isinstance(part, Jets) else (part, part)

    sums: dict[int, NDArray[np.float64]] = {}
    firsts: dict[int, NDArray[np.float32]] = {}
    counts: dict[int, int] = {}
    for labels, (sharp, smooth), _ in made_of_file(pictures, in_frame, path, rows, **options):
        for label in np.unique(labels).tolist():
            chosen = labels == label
            sums[label] = sums.get(label, np.zeros((SIDE, SIDE))) + sharp[chosen, 0].sum(axis=0, dtype=np.float64)
            counts[label] = counts.get(label, 0) + int(chosen.sum())
            firsts.setdefault(label, smooth[np.argmax(chosen), 0])
    return {label: sums[label] / counts[label] for label in sums}, firsts


def save_figures(path: Place, folder: Place, rows: Rows = None, force: bool = False, **options: Any) -> list[Path]:
    """Write images and observables of a file into `folder`, as PNG, PDF and CSV; the others as in `read`; the paths."""
    check_new(folder, force, folder=True)
    means, firsts = mean_images(path, rows, **options)
    refuse(not means, f"{path}: no jets to show")
    columns, _ = file_observables(path, rows, **options)
    pages = {"images": Figure((4.6 * len(means), 8), layout="constrained")}  # of appendix A
    pictures = pages["images"].subplots(2, len(means), squeeze=False)
    for column, label in enumerate(sorted(means)):
        draw_image(pictures[0, column], means[label]).set_title(f"{CLASSES[label]}, mean")
        draw_image(pictures[1, column], firsts[label]).set_title(f"{CLASSES[label]}, one jet")
    pages["observables"] = Figure((9, 10), layout="constrained")
    panels = pages["observables"].subplots(3, 2).ravel()
    for ax, name in zip(panels, AXIS_NAMES, strict=True):
        draw_histogram(ax, columns["label"], columns[name], name)
    panels[2].set_xlabel(f"{AXIS_NAMES['mass']} ({'share of $p_T$' if is_images(path) else 'GeV'})")
    panels[0].legend()
    pixels = {f"{kind}_{label}": m[label].ravel() for kind, m in (("mean", means), ("one", firsts)) for label in m}
    with new_folder(folder, force) as temporary:
        for name, figure in pages.items():
            for suffix, dated in ((".png", {}), (".pdf", {"CreationDate": None})):  # the same bytes at any time
                figure.savefig(temporary / f"{name}{suffix}", dpi=130, metadata=dated)
            write_columns(temporary / f"{name}.csv", pixels if name == "images" else columns)
    return [Path(folder) / f"{name}{suffix}" for name in pages for suffix in (".png", ".pdf", ".csv")]
