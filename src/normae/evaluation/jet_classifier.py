"""Judge a supervised classifier of jets: the benchmark of section 4.1 and the reliability diagram of section 4.2.

Its score is log r = log p_top - log p_QCD; label 1 is top. What is corrected was corrected on validation jets; the test
jets only measure, before and after.
"""

import numpy as np
from numpy.typing import NDArray

from normae.config import Run
from normae.evaluation.jets import CURVE, EFFICIENCIES, Metrics, digest, read_kept, write_kept
from normae.runs.classifier import load_classifier
from normae.runs.folder import RunFolder, read_json
from normae.runs.jet_sample import JetTest, held_out_jets, pieces
from normae.statistics import auc, background_efficiency, rejection
from normae.training.reference import ClassifierReference, calibration


def evaluate_classifier(run: RunFolder, config: Run, figures: bool = True, device: str = "auto") -> Metrics:
    """The metrics of a classifier run on the test jets; keeps its scores and draws its figures."""
    test = held_out_jets(config)
    found, labels = classifier_scores(run, test, device, config.seed)
    metrics = {"auc": auc(found.log_ratio[labels], found.log_ratio[~labels])}
    for name, share in EFFICIENCIES.items():
        metrics[name] = rejection(found.log_ratio[labels], found.log_ratio[~labels], share)
    metrics |= {"ece": found.before.error.measured, "ece_perfect": found.before.error.perfect}
    metrics |= {"cross_entropy": found.before.cross_entropy}
    if found.method != "none":
        metrics |= {"ece_corrected": found.after.error.measured, "cross_entropy_corrected": found.after.cross_entropy}
    if figures:
        draw_classifier(run, found, labels, metrics)
    return metrics


def classifier_scores(
    run: RunFolder, test: JetTest, device: str, seed: int
) -> tuple[ClassifierReference, NDArray[np.bool_]]:
    """log r at the test jets, QCD first, with its calibration; and their labels."""
    key = digest(run, test.digest)
    labels = np.repeat([False, True], [len(test.background), len(test.signal)])
    kept = read_kept(run.scores, key, ("log_ratio", "uncorrected"))
    if kept is None:
        classifier = load_classifier(run.path, device)
        rows: dict[str, list[NDArray[np.float64]]] = {"log_ratio": [], "uncorrected": []}
        for events in (test.background, test.signal):
            for x in pieces(events):
                rows["log_ratio"].append(classifier.log_ratio(x))
                rows["uncorrected"].append(classifier.log_ratio(x, corrected=False))
        kept = {name: np.concatenate(parts) for name, parts in rows.items()}
        write_kept(run.scores, key, kept | {"labels": labels})
    before = calibration(kept["uncorrected"], labels, seed)
    method = str(read_json(run.provenance).get("calibration", "none"))
    after = before if method == "none" else calibration(kept["log_ratio"], labels, seed)
    return ClassifierReference(kept["log_ratio"], kept["log_ratio"][None], method, before, after), labels


def draw_classifier(run: RunFolder, found: ClassifierReference, labels: NDArray[np.bool_], metrics: Metrics) -> None:
    """ROC curve, reliability diagram and losses."""
    from normae.dual.drawing import draw_reliability
    from normae.figures import RocCurve, figure_style, loss_curves, new_figure, roc_curves
    from normae.report import save_figure

    with figure_style():
        share = background_efficiency(found.log_ratio[labels], found.log_ratio[~labels], CURVE)
        figure, axes = new_figure(1, 2)
        curve = RocCurve(f"classifier, AUC {metrics['auc']}", "0.2", CURVE, share, None, "--")
        roc_curves(axes[0], [curve], smallest=10 / int((~labels).sum()))
        save_figure(figure, run.figures, "roc", {"signal_efficiency": CURVE, "background_efficiency": share})
        draw_reliability(found, run.figures)
        lines = [line for line in run.read_history() if "validation_loss" in line]
        if lines:
            columns = {name: np.array([line[name] for line in lines]) for name in ("epoch", "loss", "validation_loss")}
            figure, axes = new_figure(panel=(4.6, 3.5))
            loss_curves(axes[0, 0], columns["epoch"], columns["loss"], columns["validation_loss"])
            save_figure(figure, run.figures, "training", columns)
