"""The figures of a run on jets: ROC curve, energies, galleries and generated jets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normae.evaluation.jets import CURVE, GeneratedJets, JetScores, roc_band
from normae.evaluation.study import Metrics
from normae.figures import (
    ClassHistogram,
    ObservableSample,
    RocCurve,
    energy_histograms,
    new_figure,
    observable_panels,
    picture_rows,
    roc_curves,
)
from normae.inference import Model
from normae.jets.gallery import CLASSES, COLOURS
from normae.report import save_figure
from normae.runs.folder import RunFolder
from normae.runs.jet_sample import JetTest
from normae.statistics import Estimate, format_estimate
from normae.statistics.arrays import Array

GALLERY = 8
"""Jets of a gallery."""
SMALL = 1.5
"""Inches that one picture is wide."""


def roc_curve_of(label: str, scores: JetScores, signal_label: int, style: str = "-") -> RocCurve:
    """The ROC curve of a run, in the colour of what it tags."""
    central, band = roc_band(scores)
    return RocCurve(label, COLOURS[signal_label], CURVE, central, band, style)


def draw_roc(run: RunFolder, name: str, scores: JetScores, metrics: Metrics, label: int) -> None:
    """Both views of the ROC curve."""
    curve = roc_curve_of(f"{name}, AUC {auc_words(metrics, scores.mixture)}", scores, 1 - label)
    figure, axes = new_figure(1, 2)
    roc_curves(axes[0], [curve], smallest=10 / scores.background.shape[1])
    columns = {"signal_efficiency": curve.signal, "background_efficiency": curve.background}
    if curve.band is not None:
        columns |= {"background_efficiency_sigma": curve.band[0], "log_rejection_sigma": curve.band[1]}
    save_figure(figure, run.figures, "roc", columns)


def auc_words(metrics: Metrics, mixture: bool) -> str:
    """The AUC with the spread over draws where there are any; without, and of a mixture, with its counting error."""
    return str(metrics["auc"] if mixture else metrics.get("auc_draws", metrics["auc"]))


def energy_densities(scores: JetScores, label: int) -> tuple[Array, list[ClassHistogram]]:
    """Even bins in log E/T, and the densities of both classes per unit of log10, with their spread over draws."""
    ends = np.log10([np.quantile(e, (0.001, 0.999)) for e in (scores.background, scores.signal)]) - np.log10(
        scores.temperature
    )
    size = min(scores.background.shape[1], scores.signal.shape[1])
    cuts = np.linspace(ends[:, 0].min(), ends[:, 1].max() + 1e-6, int(np.clip(size**0.5 / 2, 12, 60)) + 1)
    shown = []
    for kind, energy in ((label, scores.background), (1 - label, scores.signal)):
        rows = np.log10(energy.astype(np.float64) / scores.temperature)
        counts = np.stack([np.histogram(row, cuts)[0] / (row.size * (cuts[1] - cuts[0])) for row in rows])
        band = counts.std(axis=0, ddof=1) if scores.bayesian else None
        shown.append(ClassHistogram(kind, counts.mean(axis=0), band))
    return np.asarray(10**cuts), shown


def draw_energies(run: RunFolder, scores: JetScores, label: int) -> None:
    """Distributions of E/T of both classes."""
    edges, shown = energy_densities(scores, label)
    figure, axes = new_figure(panel=(4.6, 3.5))
    energy_histograms(axes[0, 0], edges, shown, label)
    columns: dict[str, Array] = {"low": edges[:-1], "high": edges[1:]}
    for one in shown:
        columns[CLASSES[one.kind].lower()] = one.density
        if one.band is not None:
            columns[f"{CLASSES[one.kind].lower()}_sigma"] = one.band
    save_figure(figure, run.figures, "energies", columns)


# --- pictures of jets


def draw_galleries(run: RunFolder, model: Model, test: JetTest, scores: JetScores) -> None:
    """The most anomalous jets of the test sample, and jets of the class trained on with scores near its median."""
    energy = np.concatenate([scores.background, scores.signal], axis=1) / scores.temperature
    signal, background = scores.central
    central, sigma = np.concatenate([background, signal]), energy.std(axis=0, dtype=np.float64)
    count = scores.background.shape[1]
    middle = np.argsort(np.abs(central[:count] - np.median(central[:count])), kind="stable")
    chosen = {"gallery-anomalous": np.argsort(-central, kind="stable"), "gallery-typical": middle}
    for name, order in chosen.items():
        index = order[:GALLERY]
        titles = [
            f"{CLASSES[test.label if i < count else 1 - test.label]}, $E/T$ =\n{score_words(central[i], sigma[i])}"
            for i in index
        ]
        images = _images(test, index, count)
        _gallery(run, name, images, reconstructed(model, images), titles)


def score_words(value: float, sigma: float) -> str:
    """A score, with its error where there is one."""
    return format_estimate(Estimate(float(value), float(sigma)), 2) if sigma > 0 else f"{value:#.3g}".rstrip(".")


def _images(test: JetTest, index: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """The pictures at `index` of background and then signal, with shape (K, 1, 40, 40)."""
    parts = [(test.background, i) if i < count else (test.signal, i - count) for i in index.tolist()]
    return np.concatenate([events[torch.tensor([i])].numpy() for events, i in parts])


def reconstructed(model: Model, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the network, at the centre of its posterior, makes of images with shape (K, 1, 40, 40)."""
    with torch.no_grad():
        energy = model.energy_function
        made = energy.decode(energy.encode(torch.from_numpy(images).to(model.device)))
    found: NDArray[np.float32] = made.cpu().numpy()
    return found


def _gallery(
    run: RunFolder, name: str, images: NDArray[Any], reconstruction: NDArray[Any], titles: Sequence[str]
) -> None:
    rows = [images[:, 0], reconstruction[:, 0], images[:, 0] - reconstruction[:, 0]]
    names = ["input", "reconstruction", "residual"]
    figure, axes = new_figure(3, 1, panel=(SMALL * len(images), 1.3 * SMALL))
    picture_rows(axes[:, 0], rows, names, titles)
    columns = {
        f"{kind}_{k}": picture.ravel() for kind, row in zip(names, rows, strict=True) for k, picture in enumerate(row)
    }
    save_figure(figure, run.figures, name, columns)


# --- generated jets


def observable_sample(label: int, made: GeneratedJets, metrics: Metrics) -> ObservableSample:
    """One class of the figures of appendix C.2, with a distance for each panel."""
    text = {
        name: f"W = {metrics[f'wasserstein_{name}']} (halves {metrics[f'wasserstein_{name}_truth'].value:.3f})"
        for name in made.generated
    }
    return ObservableSample(label, made.generated, made.truth, text)


def draw_generated(folder: Path, made: dict[int, tuple[GeneratedJets, Metrics]], name: str = "generated") -> None:
    """The six observables of generated and true jets, and some generated ones as pictures, by the class's label."""
    samples = [observable_sample(label, *found) for label, found in sorted(made.items())]
    figure, axes = new_figure(2, 3, panel=(4.0, 3.2))
    observable_panels(axes.ravel(), samples)
    columns: dict[str, list[NDArray[Any]]] = {key: [] for key in ("class", "generated", *samples[0].truth)}
    for sample in samples:
        for flag, values in ((1, sample.generated), (0, sample.truth)):
            size = len(values["mass"])
            columns["class"].append(np.full(size, sample.kind))
            columns["generated"].append(np.full(size, flag))
            for key, column in values.items():
                columns[key].append(column)
    save_figure(figure, folder, name, {key: np.concatenate(column) for key, column in columns.items()})
    for label, (found, _) in made.items():
        figure, axes = new_figure(1, 1, panel=(SMALL * len(found.pictures), 1.3 * SMALL))
        picture_rows(axes[:, 0], [found.pictures], [f"{CLASSES[label]}, generated"], [""] * len(found.pictures))
        pixels = {f"jet_{k}": picture.ravel() for k, picture in enumerate(found.pictures)}
        save_figure(figure, folder, f"{name}-jets" if len(made) == 1 else f"{name}-jets-{CLASSES[label]}", pixels)
