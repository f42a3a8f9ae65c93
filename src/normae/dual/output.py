"""What the dual test leaves behind: a folder with dual.json, figures/ and report.html."""

from itertools import product
from pathlib import Path
from typing import Any

from normae.dual.drawing import FIGURES, draw_dual
from normae.dual.judge import REFERENCES, DualResult
from normae.errors import InputError
from normae.files import write_json, write_text
from normae.report import Fact, Picture, Report, SavedFigure, render
from normae.runs.folder import locked, read_json
from normae.statistics import Estimate
from normae.version import __version__


def short_name(run: str | Path) -> str:
    """The last part of a run's path, with the one before for a run of several seeds."""
    path = Path(run)
    name = path.name or path.resolve().name
    return f"{path.parent.name}-{name}" if name.startswith("seed-") and path.parent.name else name


def default_folder(
    run_a: str | Path, run_b: str | Path, data: str | Path | None = None, reference: str | Path | None = None
) -> Path:
    """dual/ in the current folder, and in it a folder named after the two runs, the sample and the reference."""
    sample = [] if data is None else [f"on-{Path(data).stem}"]
    by = [] if reference is None else [f"by-{short_name(reference)}"]
    return Path("dual") / "-".join([short_name(run_a), short_name(run_b), *sample, *by])


class DualFolder:
    """The folder of one dual test.

    Args:
        path: where it is or will be.
        run_a, run_b, data, reference: what is tested; a folder with the test of something else is never touched.
    """

    def __init__(
        self,
        path: Path,
        run_a: str | Path,
        run_b: str | Path,
        data: str | Path | None,
        reference: str | Path | None = None,
    ) -> None:
        self.path = path
        self.tested = {"run_a": str(run_a), "run_b": str(run_b), "data": None if data is None else str(data)}
        self.tested |= {} if reference is None else {"reference": str(reference)}

    def check(self) -> None:
        """One clear sentence if the folder holds anything but an earlier test of the same."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: a file, not a folder; choose another with -o")
        if not self.path.is_dir() or not any(not p.name.startswith(".") for p in self.path.iterdir()):
            return
        if not (self.path / "dual.json").is_file():
            raise InputError(f"{self.path}: exists and is not the folder of a dual test; choose another with -o")
        content = read_json(self.path / "dual.json")
        if not isinstance(content, dict) or content.get("tested") != self.tested:
            raise InputError(f"{self.path}: holds another dual test; choose another folder with -o")

    def write(self, result: DualResult) -> None:
        """Numbers first, then figures, those of an earlier test removed, and page."""
        with locked(self.path):
            write_json(self.path / "dual.json", self._content(result))
            figures = self.path / "figures"
            for name, suffix in product(FIGURES, SavedFigure._fields):
                (figures / f"{name}.{suffix}").unlink(missing_ok=True)
            names = draw_dual(result, figures)
            write_text(self.path / "report.html", render(page(result, figures, names, self.tested)))

    def _content(self, result: DualResult) -> dict[str, Any]:
        metrics = {name: {"value": m.value, "error": m.error} for name, m in sorted(result.metrics.items())}
        verdicts = {
            name: {
                "passes": found.passes,
                "slope_passes": found.best.verdict.slope_passes,
                "linear": found.best.verdict.linear,
                "judged_range": found.judged,
                "passes_everywhere": found.everywhere.passes,
                "sentence": result.verdicts[name],
            }
            for name, found in result.against.items()
        }
        settings = {"seed": result.settings.seed, "events": len(result.sample.labels), "normae": __version__}
        return {**metrics, "verdicts": verdicts, "notes": notes(result), "tested": self.tested, "settings": settings}


def notes(result: DualResult) -> list[str]:
    """What a reader should know beside the verdicts, a sentence each."""
    said = [constant_sentence(result)]
    if result.classifier is not None:
        said += [result.classifier.sentence, *classifier_limits(result)]
    for name, found in result.against.items():
        if found.pairs is not None:
            slope = result.metrics[f"slope_pairs_{name}"]
            said.append(f"Over all pairs of weight draws the slope against {REFERENCES[name]} is {slope}.")
    return said


def constant_sentence(result: DualResult) -> str:
    """What C from log Z is worth against the first reference, or that it is not known."""
    name, found = next(iter(result.against.items()))
    free = found.comparisons["c0"].line.constant
    if result.constant is None:
        return f"log Z is not known for both models, so that C is fitted: with C = 0 the line has the constant {free}."
    left = found.comparisons["log_z"].line.constant
    return (
        f"C from the two log Z is {result.constant.value:.4f}: with it the line against {REFERENCES[name]} has the "
        f"constant {left}, 0 for models that are right; with C = 0 it has {free}."
    )


def classifier_limits(result: DualResult) -> list[str]:
    """Where the classifier is judged, and how far it is from the truth where that is known."""
    found = result.against["classifier"]
    judged, whole = found.judged, "passes" if found.everywhere.passes else "fails"
    said = ["The classifier is one training, so that its own error is in none of the errors here."]
    if "slope_members_classifier" in result.metrics:
        slope = result.metrics["slope_members_classifier"]
        said = [f"Over the classifiers, each trained on half of the events, the slope is {slope} (their spread)."]
    if judged is not None:
        said.append(
            f"Against it linearity is judged for log r from {judged[0]:.2g} to {judged[1]:.2g}, where both classes "
            f"have events that can tell; over all of the sample the test {whole}."
        )
    if "true" in result.against:
        pearson, outside = (result.metrics[f"classifier_{name}_true"] for name in ("pearson", "outside"))
        said.append(
            f"The classifier's own correlation with the true ratio is {pearson}, and for {_percent(outside)} of the "
            f"events it is off by {result.settings.limit:g} or more."
        )
    return said


# --- the page


def page(result: DualResult, figures: Path, names: list[str], tested: dict[str, str | None]) -> Report:
    """The report of the test; `names` are the figures that were drawn."""
    a, b = (short_name(name) for name in result.names)
    options = [f" --{name} {tested[name]}" for name in ("data", "reference") if tested.get(name) is not None]
    command = f"normae dual {tested['run_a']} {tested['run_b']}{''.join(options)}"
    return Report(
        title=f"Dual test of A = {a} and B = {b}: {result.outcome}",
        summary=" ".join([_introduction(result), *result.verdicts.values()]),
        facts=_facts(result, tested),
        pictures=[
            Picture(title, (figures / f"{name}.svg").read_text(encoding="utf-8"), sentence)
            for name in names
            for title, sentence in [_caption(result, name)]
        ],
        footer=f"normae {__version__}; made again by {command}",
    )


def _introduction(result: DualResult) -> str:
    said = {True: "they reproduce it", False: "they do not reproduce it, or not by every reference"}[result.passes]
    return (
        "Two models, trained apart, should give the likelihood ratio between B (label 1) and A (label 0), "
        f"log r = log p_B − log p_A: {said}."
    )


def _facts(result: DualResult, tested: dict[str, str | None]) -> list[Fact]:
    count = int(result.sample.labels.sum())
    facts = [
        Fact("A", result.names[0]),
        Fact("B", result.names[1]),
        Fact(
            "sample", tested["data"] or ("drawn from the two densities" if result.densities else "the jets of A's run")
        ),
        *([Fact("reference", str(tested["reference"]))] if "reference" in tested else []),
        Fact("events of A and B in the test", f"{len(result.sample.labels) - count:,} and {count:,}"),
        Fact("seed", str(result.settings.seed)),
    ]
    return facts + [Fact(describe(name), value) for name, value in result.metrics.items()]


QUANTITIES = {
    "pearson_pairs": "Pearson correlation over pairs of draws", "pearson": "Pearson correlation",
    "slope_pairs": "slope over pairs of draws", "slope": "slope m",
    "constant_pairs": "constant over pairs of draws", "constant": "constant C",
    "outside_a": "share off, events of A", "outside_b": "share off, events of B", "outside": "share off, all events",
}  # fmt: skip
WORDS = {
    "constant_log_z": "log Z of A minus log Z of B", "log_z_a": "log Z of A", "log_z_b": "log Z of B",
    "temperature_a": "T of A", "temperature_b": "T of B",
    "slope_members_classifier": "slope over the classifiers",
    "classifier_ece": "calibration error (ECE) of the classifier",
    "classifier_ece_perfect": "ECE of a perfect classifier",
    "classifier_ece_corrected": "ECE after correction",
    "classifier_cross_entropy": "cross-entropy of the classifier",
    "classifier_cross_entropy_corrected": "cross-entropy after correction",
    "classifier_pearson_true": "Pearson correlation of classifier and true ratio",
    "classifier_outside_true": "share of events where the classifier is off",
}  # fmt: skip


def describe(metric: str) -> str:
    """The name of a metric in words: "slope m, C = 0, against the true ratio" for slope_true_c0."""
    if metric in WORDS:
        return WORDS[metric]
    quantity = next(name for name in QUANTITIES if metric.startswith(name))
    reference, _, choice = metric.removeprefix(f"{quantity}_").partition("_")
    words = {"c0": ", C = 0", "log_z": ", C from log Z", "": ""}[choice]
    return f"{QUANTITIES[quantity]}{words}, against {REFERENCES[reference]}"


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.2g} %"


def _caption(result: DualResult, name: str) -> tuple[str, str]:
    """Title and sentence of a figure."""
    kind, _, reference = name.partition("-")
    first, limit = next(iter(result.against)), f"|Δ log r| ≥ {result.settings.limit:g}"
    if kind == "correlation":
        found = result.against[reference].best
        shares = f"{_percent(found.outside_a)} of A, {_percent(found.outside_b)} of B"
        more = f" {constant_sentence(result)}" if reference == first else ""
        return (
            f"Learned log r against {REFERENCES[reference]}",
            f"Events on the dotted diagonal are right; {_percent(found.outside)} lie outside of the red lines, {limit} "
            f"({shares}). A few events lie beyond the axes.{more}",
        )
    if kind == "outside":
        lines = "; lines: the 1 (solid) and 3 sigma (dashed) contours of the two densities" if result.densities else ""
        return "Where log r is off", f"Red: events with {limit} against {REFERENCES[first]}{lines}."
    if kind == "distributions":
        band = next(iter(result.distributions.values())).band is not None
        bands = "; bands: the spread over all pairs of weight draws" if band else ""
        return "Distributions of log r", f"Areas: {REFERENCES[first]}; lines: the models{bands}."
    if kind == "residuals":
        said = "Mean of the reference minus the line, in bins of equal weight; a point outside of the grey area fails."
        return "Residuals from the fitted line", said
    assert result.classifier is not None
    return "Is the classifier calibrated?", " ".join([result.classifier.sentence, *classifier_limits(result)])
