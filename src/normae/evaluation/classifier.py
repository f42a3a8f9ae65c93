"""The study of a supervised classifier of jets: the benchmark of section 4.1, the reliability diagram of section 4.2.

Its score is log r = log p_top - log p_QCD; label 1 is top. What is corrected was corrected on validation jets; the test
jets only measure, before and after.
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from normae.dual.output import draw_reliability
from normae.evaluation import jets
from normae.evaluation.study import Captions, Draw, Metrics, Study
from normae.figures import RocCurve, loss_curves, new_figure
from normae.report import Check, save_figure
from normae.report.paper import PaperValue
from normae.runs.classifier import load_classifier
from normae.runs.folder import RunFolder, read_json
from normae.sources import pieces
from normae.statistics import background_efficiency
from normae.statistics.calibration import calibration
from normae.training.reference import ClassifierReference


class ClassifierStudy(Study):
    """A classifier of jets."""

    needed = ("auc", "rejection_20", "rejection_30", "ece", "ece_perfect")
    own: ClassVar = {
        "ece": "expected calibration error",
        "ece_perfect": "the same of a perfect classifier",
        "ece_corrected": "the same after correction",
    }
    of_jets = True

    def judge(self, device: str, generated: int | None) -> tuple[Metrics, Draw]:  # noqa: ARG002
        """Tagging and calibration on the test jets; the scores are kept."""
        found, labels = classifier_scores(self.run, jets.held_out_jets(self.config), device, self.config.seed)
        metrics = jets.separation(found.log_ratio[labels], found.log_ratio[~labels])
        metrics |= {"ece": found.before.error.measured, "ece_perfect": found.before.error.perfect}
        metrics |= {"cross_entropy": found.before.cross_entropy}
        if found.method != "none":
            metrics |= {"ece_corrected": found.after.error.measured}
            metrics |= {"cross_entropy_corrected": found.after.cross_entropy}
        return metrics, lambda: self._draw(found, labels, metrics)

    def _draw(self, found: ClassifierReference, labels: NDArray[np.bool_], metrics: Metrics) -> None:
        curve = classifier_curve(found.log_ratio, labels, metrics)
        jets.draw_roc(self.run, curve, int((~labels).sum()))
        draw_reliability(found, self.run.figures)
        lines = [line for line in self.run.read_history() if "validation_loss" in line]
        if lines:
            columns = {name: np.array([line[name] for line in lines]) for name in ("epoch", "loss", "validation_loss")}
            figure, axes = new_figure(panel=(4.6, 3.5))
            loss_curves(axes[0, 0], *columns.values())
            save_figure(figure, self.run.figures, "training", columns)

    def title(self) -> str:
        return f"a supervised classifier of top and QCD jets, seed {self.config.seed}"

    def summary(self, metrics: Metrics) -> str:
        corrected = f"; corrected, it is {metrics['ece_corrected']}" if "ece_corrected" in metrics else ""
        return (
            f"A supervised classifier, which knows both classes: AUC {metrics['auc']} on the test jets. Its expected "
            f"calibration error is {metrics['ece']}, where a perfect one would have {metrics['ece_perfect']}"
            f"{corrected}. Calibrated, its log odds are the likelihood ratio that the dual test compares with."
        )

    def sample(self) -> dict[str, str]:
        data = self.config.data
        return {
            "training sample": f"{data.train:,} jets of each class",
            "test sample": f"{data.test:,} jets of each class",
        }

    def settings(self) -> dict[str, str]:
        given = self.config.classifier
        assert given is not None
        return {
            "network": f"the encoder, {self.config.network.channels} channels, one output",
            "training": f"{given.epochs} epochs, batch {given.batch}, learning rate {given.learning_rate:g} "
            f"({given.schedule}), the lowest validation loss kept",
            "input": "images divided by the root mean square pixel of the training sample; the score is corrected on "
            "validation jets where it is not calibrated there",
        }

    def values(self) -> tuple[PaperValue, ...]:
        return jets.tagging_values("supervised", "classifier")

    def checks(self, metrics: Metrics) -> list[Check]:
        found, perfect = metrics.get("ece_corrected", metrics["ece"]), metrics["ece_perfect"]
        good = found.value < perfect.value + 3 * max(perfect.error, 1e-12)
        said = f"The expected calibration error is {found} after correction; a perfect score would have {perfect}."
        return [
            Check("calibration", "good" if good else "warning", said, "Give it more validation jets (data.validation).")
        ]

    def captions(self, metrics: Metrics) -> Captions:  # noqa: ARG002
        return {
            "roc": ("ROC curve", "Top jets kept over QCD jets kept, and the rejection of QCD jets. Dotted: a coin."),
            "reliability": (
                "Reliability",
                "Share of top jets among test jets over the score: on the diagonal the score is the probability."),
            "training": ("Course of the training", "The network with the lowest validation loss is kept."),
        }  # fmt: skip

    def limits(self) -> str:
        return "Its log odds are a likelihood ratio only where both classes have jets and for jets made like these."


def classifier_curve(log_ratio: NDArray[np.float64], labels: NDArray[np.bool_], metrics: Metrics) -> RocCurve:
    """Tops kept over QCD jets kept."""
    share = background_efficiency(log_ratio[labels], log_ratio[~labels], jets.CURVE)
    return RocCurve(f"classifier, AUC {metrics['auc']}", "0.2", jets.CURVE, share, None, "--")


def classifier_scores(
    run: RunFolder, test: jets.JetTest, device: str, seed: int
) -> tuple[ClassifierReference, NDArray[np.bool_]]:
    """log r at the test jets, QCD first, with its calibration; and their labels."""
    key = jets.digest(run, test.digest)
    labels = np.repeat([False, True], [len(test.background), len(test.signal)])
    kept = jets.read_kept(run.scores, key, ("log_ratio", "uncorrected"))
    if kept is None:
        classifier = load_classifier(run.path, device)
        found: dict[str, list[NDArray[np.float64]]] = {"log_ratio": [], "uncorrected": []}
        for events in (test.background, test.signal):
            for x in pieces(events):
                found["log_ratio"].append(classifier.log_ratio(x))
                found["uncorrected"].append(classifier.log_ratio(x, corrected=False))
        kept = {name: np.concatenate(parts) for name, parts in found.items()}
        jets.write_kept(run.scores, key, kept | {"labels": labels})
    before = calibration(kept["uncorrected"], labels, seed)
    method = str(read_json(run.provenance).get("calibration", "none"))
    after = before if method == "none" else calibration(kept["log_ratio"], labels, seed)
    return ClassifierReference(kept["log_ratio"], kept["log_ratio"][None], method, before, after), labels
