"""What section 4 shows side by side, from what the runs keep: ROC curves, energies, generated jets of both classes."""

from pathlib import Path

import numpy as np

from normae.evaluation.jet_drawing import auc_words, draw_generated, energy_densities, roc_curve_of
from normae.evaluation.jet_generation import OTHERS, GeneratedJets
from normae.evaluation.jets import CURVE, JetScores
from normae.figures import RocCurve, energy_histograms, figure_style, new_figure, roc_curves
from normae.jets.show import CLASSES
from normae.jets.substructure import NAMES
from normae.report import save_figure
from normae.runs.folder import RunFolder
from normae.statistics import Estimate, background_efficiency
from normae.statistics.arrays import Array

Metrics = dict[str, Estimate]
CLASSIFIER = "jets-classifier"
KINDS = ("qcd", "top")


def draw_section(folders: dict[str, RunFolder], runs: dict[str, Metrics], out: Path) -> list[str]:
    """Write every figure of the section for which there are runs into out/figures; their names."""
    target, drawn = RunFolder(out), []
    with figure_style():
        for bayesian in (False, True):
            drawn += _draw_roc(folders, runs, target, bayesian)
            drawn += _draw_energies(folders, runs, target, bayesian)
        for network in ("nae", "bnae", "nae-3d"):
            drawn += _draw_generated(folders, runs, target, network)
    return drawn


def kept_scores(run: RunFolder, metrics: Metrics) -> JetScores:
    """The energies that an evaluated run keeps."""
    with np.load(run.scores, allow_pickle=False) as content:
        shift = content.get("shift")
        return JetScores(content["background"], content["signal"], metrics["temperature"].value, shift)


def kept_generated(run: RunFolder) -> GeneratedJets:
    """The generated jets that an evaluated run keeps."""
    with np.load(run.generated, allow_pickle=False) as content:
        sides = [{name: content[f"{side}_{name}"] for name in NAMES} for side in ("generated", "truth")]
        return GeneratedJets(sides[0], sides[1], *(content[name] for name in OTHERS))


def _draw_roc(folders: dict[str, RunFolder], runs: dict[str, Metrics], target: RunFolder, bayesian: bool) -> list[str]:
    """Both tasks before (dash-dotted) and after the NAE training, mixtures of several (dotted), and the classifier."""
    curves: list[RocCurve] = []
    smallest = 1.0
    styles = {"bae": "-.", "bnae": "-", "bnae-modes": ":"} if bayesian else {"ae": "-.", "nae": "-"}
    for label, kind in enumerate(KINDS):
        for network, style in styles.items():
            if (name := f"jets-{kind}-{network}") in folders:
                scores = kept_scores(folders[name], runs[name])
                said = "mixture of BNAEs" if scores.mixture else network.upper()
                words = f"{said}, {CLASSES[1 - label]}-tagging, AUC {auc_words(runs[name], scores.mixture)}"
                curves.append(roc_curve_of(words, scores, 1 - label, style))
                smallest = min(smallest, 10 / scores.background.shape[1])
    if not curves:
        return []
    if CLASSIFIER in folders:
        curves.append(_classifier_curve(folders[CLASSIFIER], runs[CLASSIFIER]))
    figure, axes = new_figure(1, 2, panel=(4.6, 4.4))
    roc_curves(axes[0], curves, smallest)
    columns: dict[str, Array] = {"signal_efficiency": CURVE}
    for curve in curves:
        columns[f"background_efficiency {curve.label}"] = curve.background
    name = "roc-bnae" if bayesian else "roc-nae"
    save_figure(figure, target.figures, name, columns)
    return [name]


def _classifier_curve(run: RunFolder, metrics: Metrics) -> RocCurve:
    """Tops kept over QCD jets kept."""
    with np.load(run.scores, allow_pickle=False) as content:
        ratio, labels = content["log_ratio"], content["labels"]
    share = background_efficiency(ratio[labels], ratio[~labels], CURVE)
    return RocCurve(f"classifier, AUC {metrics['auc']}", "0.2", CURVE, share, None, "--")


def _draw_energies(
    folders: dict[str, RunFolder], runs: dict[str, Metrics], target: RunFolder, bayesian: bool
) -> list[str]:
    """Energies of both classes, trained on QCD (left) and on tops (right)."""
    network = "bnae" if bayesian else "nae"
    names = [f"jets-{kind}-{network}" for kind in KINDS]
    if not all(name in folders for name in names):
        return []
    figure, axes = new_figure(1, 2, panel=(4.6, 3.5))
    columns: dict[str, list[Array]] = {key: [] for key in ("trained_on", "low", "high", "qcd", "top")}
    for label, (ax, name) in enumerate(zip(axes[0], names, strict=True)):
        edges, shown = energy_densities(kept_scores(folders[name], runs[name]), label)
        energy_histograms(ax, edges, shown, label)
        ax.set_title(f"{network.upper()} trained on {CLASSES[label]} jets")
        columns["trained_on"].append(np.full(len(edges) - 1, float(label)))
        columns["low"].append(edges[:-1])
        columns["high"].append(edges[1:])
        for one in shown:
            columns[KINDS[one.kind]].append(one.density)
    save_figure(figure, target.figures, f"energies-{network}", {k: np.concatenate(v) for k, v in columns.items()})
    return [f"energies-{network}"]


def _draw_generated(
    folders: dict[str, RunFolder], runs: dict[str, Metrics], target: RunFolder, network: str
) -> list[str]:
    """Observables of generated and true jets of both classes."""
    names = {label: f"jets-{kind}-{network}" for label, kind in enumerate(KINDS)}
    made = {
        label: (kept_generated(folders[name]), runs[name])
        for label, name in names.items()
        if "wasserstein_mass" in runs.get(name, {})
    }
    if not made:
        return []
    draw_generated(target, made, f"generated-{network}")
    return [f"generated-{network}"]
