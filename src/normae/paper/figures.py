"""What section 4 shows side by side, from what the runs keep: ROC curves, energies, generated jets of both classes."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from normae.evaluation.classifier import classifier_curve
from normae.evaluation.jet_drawing import auc_words, draw_generated, energy_densities, roc_curve_of
from normae.evaluation.jets import CURVE, JetScores, as_generated, as_scores
from normae.figures import (
    ComparedTemperatures,
    RocCurve,
    energy_histograms,
    new_figure,
    roc_curves,
    temperatures_compared,
)
from normae.jets.gallery import CLASSES
from normae.paper.models import BEST, CLASSIFIER, MODES, SMALL, JetModel, Metrics, Variant
from normae.report import save_figure
from normae.runs.folder import RunFolder
from normae.sources import KINDS
from normae.statistics.arrays import Array


class Judged(NamedTuple):
    """An evaluated run."""

    folder: RunFolder
    metrics: Metrics

    def scores(self) -> JetScores:
        """The energies that it keeps."""
        with np.load(self.folder.scores, allow_pickle=False) as content:
            return as_scores(dict(content), self.metrics["temperature"].value)


Runs = Mapping[JetModel, Judged]


def draw_section(runs: Runs, folder: Path) -> None:
    """Write every figure of the section for which there are runs into a folder."""
    _draw_roc(runs, folder, "roc-nae", {("AE", BEST): "-.", ("NAE", BEST): "-"})
    _draw_roc(runs, folder, "roc-bnae", {("BAE", BEST): "-.", ("BNAE", BEST): "-", ("BNAE", MODES): ":"})
    for network in ("NAE", "BNAE"):
        _draw_energies(runs, folder, network)
    for network, variant in (("NAE", BEST), ("BNAE", BEST), ("NAE", SMALL)):
        _draw_generated(runs, folder, network, variant)


def _draw_roc(runs: Runs, folder: Path, name: str, styles: dict[tuple[str, Variant], str]) -> None:
    """Both tasks before (dash-dotted) and after the NAE training, mixtures of several (dotted), and the classifier."""
    curves: list[RocCurve] = []
    smallest = 1.0
    for label, kind in enumerate(KINDS):
        for (network, variant), style in styles.items():
            if (model := JetModel(kind, network, variant)) in runs:
                scores = runs[model].scores()
                said = "mixture of BNAEs" if scores.mixture else network
                words = f"{said}, {CLASSES[1 - label]}-tagging, AUC {auc_words(runs[model].metrics, scores.mixture)}"
                curves.append(roc_curve_of(words, scores, 1 - label, style))
                smallest = min(smallest, 10 / scores.background.shape[1])
    if not curves:
        return
    if CLASSIFIER in runs:
        with np.load(runs[CLASSIFIER].folder.scores, allow_pickle=False) as content:
            curves.append(classifier_curve(content["log_ratio"], content["labels"], runs[CLASSIFIER].metrics))
    figure, axes = new_figure(1, 2, panel=(4.6, 4.4))
    roc_curves(axes[0], curves, smallest)
    columns: dict[str, Array] = {"signal_efficiency": CURVE}
    columns |= {f"background_efficiency {curve.label}": curve.background for curve in curves}
    save_figure(figure, folder, name, columns)


def _draw_energies(runs: Runs, folder: Path, network: str) -> None:
    """Energies of both classes, trained on QCD (left) and on tops (right)."""
    models = [JetModel(kind, network) for kind in KINDS]
    if not all(model in runs for model in models):
        return
    figure, axes = new_figure(1, 2, panel=(4.6, 3.5))
    columns: dict[str, list[Array]] = {key: [] for key in ("trained_on", "low", "high", "qcd", "top")}
    for label, (ax, model) in enumerate(zip(axes[0], models, strict=True)):
        edges, shown = energy_densities(runs[model].scores(), label)
        energy_histograms(ax, edges, shown, label)
        ax.set_title(f"{network} trained on {CLASSES[label]} jets")
        columns["trained_on"].append(np.full(len(edges) - 1, float(label)))
        columns["low"].append(edges[:-1])
        columns["high"].append(edges[1:])
        for one in shown:
            columns[KINDS[one.kind]].append(one.density)
    save_figure(figure, folder, f"energies-{network.lower()}", {k: np.concatenate(v) for k, v in columns.items()})


def _draw_generated(runs: Runs, folder: Path, network: str, variant: Variant) -> None:
    """Observables of generated and true jets of both classes."""
    made = {}
    for label, kind in enumerate(KINDS):
        model = JetModel(kind, network, variant)
        if model in runs and "wasserstein_mass" in runs[model].metrics:
            with np.load(runs[model].folder.generated, allow_pickle=False) as content:
                made[label] = (as_generated(content), runs[model].metrics)
    if made:
        draw_generated(folder, made, f"generated-{network.lower()}{variant.end}")


def draw_compared(rows: list[ComparedTemperatures], folder: Path) -> None:
    """figures/temperatures: every estimate over the temperature at which m = 1."""
    figure, axes = new_figure(1, 1, panel=(6.2, 1.0 + 0.42 * len(rows)))
    temperatures_compared(axes[0, 0], rows)
    cells = [(row, name, estimate) for row in rows for name, estimate in row.estimates.items()]
    columns = {
        "model": np.array([row.name for row, _, _ in cells]),
        "estimate": np.array([name for _, name, _ in cells]),
        "temperature": np.array([estimate.value for _, _, estimate in cells]),
        "error": np.array([estimate.error for _, _, estimate in cells]),
        "unit_slope": np.array([row.wanted.value for row, _, _ in cells]),
        "unit_slope_error": np.array([row.wanted.error for row, _, _ in cells]),
    }
    save_figure(figure, folder, "temperatures", columns)
