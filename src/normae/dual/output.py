"""What the dual test leaves behind: dual.json, report.html and figures/, among them figures 9 and 10 of the paper."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.lines import Line2D
from numpy.typing import NDArray

import normae.figures as style
from normae.dual.judge import REFERENCES, Against, DualResult, fitted_shift
from normae.figures import ratios
from normae.files import Place, write_json, write_text
from normae.inference import grid_points
from normae.report import Picture, Report, SavedFigure, render, save_figure
from normae.statistics.arrays import Array, Estimate
from normae.training.two_sample import ClassifierReference
from normae.version import __version__

Tested = dict[str, str | None]  # what is tested: run_a, run_b, data, and reference where there is one
CHOICES = {"c0": "$C = 0$", "log_z": r"$C$ from $\log\, Z$", "fit": "$C$ fitted"}
INDEX = {"true": "true", "classifier": "class", "rows": "rows"}
BEYOND = 0.0005  # share of the values, on either side, beyond the axes: single events would set them otherwise
MOST_POINTS = 250_000  # of a map; more are not seen, and make the files large

QUANTITIES = {
    "pearson_pairs": "Pearson correlation over pairs of draws", "pearson_a": "Pearson correlation within A",
    "pearson_b": "Pearson correlation within B", "pearson": "Pearson correlation",
    "slope_pairs": "slope over pairs of draws", "slope_a": "slope m within A", "slope_b": "slope m within B",
    "slope": "slope m",
    "constant_pairs": "constant over pairs of draws", "constant": "constant C",
    "outside_a": "share off, events of A", "outside_b": "share off, events of B", "outside": "share off, all events",
}  # fmt: skip
WORDS = {
    "constant_log_z": "log Z of A minus log Z of B", "log_z_a": "log Z of A", "log_z_b": "log Z of B",
    "temperature_a": "T of A", "temperature_b": "T of B",
    "slope_members_classifier": "slope over the classifiers",
    "slope_members_a_classifier": "the same within A", "slope_members_b_classifier": "the same within B",
    "logistic_slope": "factor b that labels give to log r",
    "classifier_logistic_slope": "factor that labels give to the classifier's log r",
    "classifier_ece": "calibration error (ECE) of the classifier",
    "classifier_ece_perfect": "ECE of a perfect classifier", "classifier_ece_corrected": "ECE after correction",
    "classifier_cross_entropy": "cross-entropy of the classifier",
    "classifier_cross_entropy_corrected": "cross-entropy after correction",
    "classifier_pearson_true": "Pearson correlation of classifier and true ratio",
    "classifier_outside_true": "share of events where the classifier is off",
}  # fmt: skip


def short_name(run: Place) -> str:
    """The last part of a run's path, with the one before for a run of several seeds."""
    path = Path(run)
    name = path.name or path.resolve().name
    return f"{path.parent.name}-{name}" if name.startswith("seed-") and path.parent.name else name


def default_folder(run_a: Place, run_b: Place, data: Place | None = None, reference: Place | None = None) -> Path:
    """dual/ in the current folder, and in it a folder named after the two runs, the sample and the reference."""
    sample = [] if data is None else [f"on-{Path(data).stem}"]
    by = [] if reference is None else [f"by-{short_name(reference)}"]
    return Path("dual") / "-".join([short_name(run_a), short_name(run_b), *sample, *by])


def write_dual(path: Path, result: DualResult, tested: Tested) -> None:
    """Numbers, figures and page into a new folder."""
    content: dict[str, Any] = {name: one._asdict() for name, one in sorted(result.metrics.items())}
    verdicts: dict[str, Any] = {}
    for name, found in result.against.items():
        holds = found.best.verdict
        own = {of: getattr(holds, of) for of in ("passes", "slope_passes", "classes_pass", "linear")}
        own |= {"judged_range": found.judged, "passes_everywhere": found.everywhere.passes}
        verdicts[name] = own | {"sentence": result.verdicts[name]}
    verdicts["labels"] = {"passes": result.calibrated, "sentence": calibration_sentence(result)}
    content |= {"verdicts": verdicts, "notes": notes(result), "tested": tested}
    content["settings"] = {"seed": result.settings.seed, "events": len(result.sample.labels), "normae": __version__}
    write_json(path / "dual.json", content)
    write_text(path / "report.html", render(page(result, draw_dual(result, path / "figures"), tested)))


def notes(result: DualResult) -> list[str]:
    """What a reader should know beside the verdicts, a sentence each."""
    said = [calibration_sentence(result), constant_sentence(result)]
    if result.events:
        said.append(
            f"The file was split: {len(result.sample.labels):,} of its {result.events:,} events test the models, the "
            "others trained and corrected the classifier. A trained one (--reference) leaves all of them for the test."
        )
    if result.classifier is not None:
        said += [result.classifier.sentence, *classifier_limits(result)]
    for name, found in result.against.items():
        if found.pairs is not None:
            slope = result.metrics[f"slope_pairs_{name}"]
            said.append(f"Over all pairs of weight draws the slope against {REFERENCES[name]} is {slope}.")
    return said


def calibration_sentence(result: DualResult) -> str:
    """What labels say of log r by themselves: its scale, and where it is what they say."""
    b, odds, tolerance = result.logistic, result.odds["models"], result.settings.rule.residual_tolerance
    scale = "1 is right" if result.calibrated else f"log r is {'over' if b.value < 1 else 'under'}stated"
    said = f"By labels alone, a logistic fit gives log r the factor b = {b} ({scale})"
    first, last = odds.agrees(tolerance, result.settings.rule.sigmas)
    if first == last:
        return f"{said}; in no bin of log r do labels tell that it is right within {tolerance:g}."
    a, of_b = (f"{100 * share[first:last].sum():.0f} %" for share in (odds.share_a, odds.share_b))
    span = f"from {odds.edges[first]:.2g} to {odds.edges[last]:.2g}"
    said += f"; labels agree with it within {tolerance:g} {span}, where {a} of A and {of_b} of B lie"
    off = np.abs(odds.observed - odds.claimed) - result.settings.rule.sigmas * odds.error
    worst = int(np.argmax(off))
    if off[worst] <= tolerance:
        return f"{said}."
    observed = Estimate(float(odds.observed[worst]), float(odds.error[worst]))
    return f"{said}. Where it says {odds.claimed[worst]:.2g}, labels say {observed}."


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
    own = result.metrics["classifier_logistic_slope"]
    said = [f"Labels give the classifier's own log r the factor {own}; what that is off by is in the errors of m."]
    slope = result.metrics.get("slope_members_classifier")
    over = f"Over the classifiers, each trained on half of the events, the slope is {slope} (their spread)."
    said.append("It is one training, whose scatter is not known." if slope is None else over)
    if judged is not None:
        said.append(
            f"Against it linearity is judged for log r from {judged[0]:.2g} to {judged[1]:.2g}, where both classes "
            f"have events that can tell; over all of the sample the test {whole}."
        )
    if "true" in result.against:
        pearson, outside = (result.metrics[f"classifier_{name}_true"] for name in ("pearson", "outside"))
        said.append(
            f"The classifier's own correlation with the true ratio is {pearson}, and for {100 * outside.value:.2g} % "
            f"of the events it is off by {result.settings.limit:g} or more."
        )
    return said


def page(result: DualResult, pictures: list[Picture], tested: Tested) -> Report:
    """The report of the test."""
    a, b = (short_name(name) for name in result.names)
    said = "they reproduce it" if result.passes else "they do not reproduce it, or not by every reference"
    introduction = (
        "Two models, trained apart, should give the likelihood ratio between B (label 1) and A (label 0), "
        f"log r = log p_B − log p_A: {said}."
    )
    options = [f" --{name} {tested[name]}" for name in ("data", "reference") if tested.get(name) is not None]
    count = int(result.sample.labels.sum())
    facts: dict[str, str | Estimate] = {"A": result.names[0], "B": result.names[1]}
    facts["sample"] = tested["data"] or "drawn from the two densities"
    facts |= {"reference": str(tested["reference"])} if "reference" in tested else {}
    facts["events of A and B in the test"] = f"{len(result.sample.labels) - count:,} and {count:,}"
    facts["seed"] = str(result.settings.seed)
    facts |= {_described(name): value for name, value in result.metrics.items()}
    summary = " ".join([introduction, *result.verdicts.values(), calibration_sentence(result)])
    footer = f"normae {__version__}; made again by normae dual {tested['run_a']} {tested['run_b']}{''.join(options)}"
    title = f"Dual test of A = {a} and B = {b}: {result.outcome}"
    return Report(title, summary, facts, pictures=pictures, footer=footer)


def _described(metric: str) -> str:
    """The name of a metric in words: "slope m, C = 0, against the true ratio" for slope_true_c0."""
    if metric in WORDS:
        return WORDS[metric]
    quantity = next(name for name in QUANTITIES if metric.startswith(name))
    reference, _, choice = metric.removeprefix(f"{quantity}_").partition("_")
    words = {"c0": ", C = 0", "log_z": ", C from log Z", "": ""}[choice]
    return f"{QUANTITIES[quantity]}{words}, against {REFERENCES[reference]}"


def draw_dual(result: DualResult, folder: Path) -> list[Picture]:
    """Write every figure into `folder`, and return them with what to see in them."""
    with style.figure_style():
        pictures = [_draw_correlation(result, name, folder) for name in result.against]
        pictures.append(_draw_calibration(result, folder))
        if result.sample.x.shape[1:] == (2,):
            pictures.append(_draw_outside(result, folder))
        pictures += [_draw_distributions(result, folder), _draw_residuals(result, folder)]
        if result.classifier is not None:
            said = " ".join([result.classifier.sentence, *classifier_limits(result)])
            saved = draw_reliability(result.classifier, folder)
            pictures.append(saved.picture("Is the classifier calibrated?", said))
    return pictures


def _draw_correlation(result: DualResult, name: str, folder: Path) -> Picture:
    found, labels = result.against[name], result.sample.labels
    learned = dict(result.ratios)
    if result.constant is None:
        learned["fit"] = learned["c0"] + fitted_shift(found.log_ratio, learned["c0"], labels)
    figure, axes = style.new_figure(1, len(learned))
    low, high = np.quantile(np.concatenate([found.log_ratio, *learned.values()]), (BEYOND, 1 - BEYOND))
    margin = 0.08 * float(high - low)
    span = float(low) - margin, float(high) + margin
    for ax, (choice, ratio) in zip(axes[0], learned.items(), strict=True):
        comparison, limit = found.comparisons.get(choice, found.best), result.settings.limit
        ratios.ratio_correlation(ax, found.log_ratio, ratio, labels, limit, INDEX[name], text="", span=span)
        rows = {"all": (comparison.pearson, comparison.line.slope)}
        rows |= {side: (one.pearson, one.slope) for side, one in zip("AB", comparison.within, strict=True)}
        text = [f"{of}: Pearson {r.value:.3f}, $m$ = {slope.value:.3f}" for of, (r, slope) in rows.items()]
        # Above: events may lie in any corner.
        ax.set_title("\n".join([CHOICES[choice], *text]), fontsize=10)
    best = found.best
    every, of_a, of_b = (f"{100 * of.value:.2g} %" for of in (best.outside, best.outside_a, best.outside_b))
    more = f" {constant_sentence(result)}" if name == next(iter(result.against)) else ""
    said = (
        f"Events on the dotted diagonal are right; {every} lie outside of the red lines, |Δ log r| ≥ "
        f"{result.settings.limit:g} ({of_a} of A, {of_b} of B). A few events lie beyond the axes.{more}"
    )
    saved = save_figure(figure, folder, f"correlation-{name}", _columns(result, found))
    return saved.picture(f"Learned log r against {REFERENCES[name]}", said)


def _draw_calibration(result: DualResult, folder: Path) -> Picture:
    """Labels in bins of log r: of the models, and of what they are held against."""
    figure, axes = style.new_figure()
    ax, parts = axes[0, 0], []
    colours = {"models": style.LEARNED_COLOUR, "true": style.TRUE_COLOUR, "classifier": "tab:gray", "rows": "tab:brown"}
    for name, odds in result.odds.items():
        points = (odds.claimed, odds.observed, odds.error)
        label = "the models" if name == "models" else REFERENCES[name]
        ax.errorbar(*points, fmt="o" if name == "models" else "s", color=colours[name], markersize=4, label=label)
        columns = {of: column for of, column in odds._asdict().items() if of != "edges"}
        parts.append(columns | {"log_r": np.full(odds.error.size, name)})
    ends = np.array([min(p["claimed"].min() for p in parts), max(p["claimed"].max() for p in parts)], dtype=np.float64)
    width = result.settings.rule.residual_tolerance
    ax.fill_between(ends, ends - width, ends + width, color="0.9", linewidth=0)
    ax.plot(ends, ends, color=style.TRUE_COLOUR, linestyle=":", linewidth=1.2)
    ax.legend(title=f"$b$ = {result.logistic}")
    ax.set(xlabel=r"$\log\, r$ claimed", ylabel=r"$\log\, r$ of the labels")
    said = (
        "In bins of log r: the log of the ratio of labels over the log r that is claimed. On the diagonal log r is "
        f"calibrated, within {width:g} in the grey area. {calibration_sentence(result)}"
    )
    return save_figure(figure, folder, "calibration", parts).picture("Do labels say the same?", said)


def _columns(result: DualResult, against: Against) -> dict[str, Array]:
    columns = {"label": result.sample.labels.astype(int), "log_r_reference": against.log_ratio}
    return columns | {f"log_r_{choice}": ratio for choice, ratio in result.ratios.items()}


def _draw_outside(result: DualResult, folder: Path) -> Picture:
    (name, first), x = next(iter(result.against.items())), result.sample.x
    every = -(-len(x) // MOST_POINTS)
    axis = torch.linspace(-1, 1, 200, dtype=torch.float64) * 1.02 * float(np.abs(x).max())
    grid, known = grid_points(axis, 2).double(), result.densities or ()
    densities = [density.log_prob(grid).exp().numpy().reshape(200, 200) for density in known]
    figure, axes = style.new_figure(1, len(result.ratios))
    for ax, (choice, ratio) in zip(axes[0], result.ratios.items(), strict=True):
        outside = np.abs(ratio - first.log_ratio) >= result.settings.limit
        ratios.ratio_outside_map(ax, x[::every], outside[::every], axis.numpy(), densities, result.settings.limit)
        ax.text(0.04, 0.96, CHOICES[choice], transform=ax.transAxes, va="top")
    saved = save_figure(figure, folder, "outside", {"x1": x[:, 0], "x2": x[:, 1]} | _columns(result, first))
    lines = "; lines: the 1 (solid) and 3 sigma (dashed) contours of the two densities" if known else ""
    said = f"Red: events with |Δ log r| ≥ {result.settings.limit:g} against {REFERENCES[name]}{lines}."
    return saved.picture("Where log r is off", said)


def _draw_distributions(result: DualResult, folder: Path) -> Picture:
    figure, axes = style.new_figure(1, len(result.distributions))
    columns: dict[str, Array] = {}  # of A and of B
    reference = "true" if "true" in result.against else "classifier"
    for ax, (choice, found) in zip(axes[0], result.distributions.items(), strict=True):
        ratios.ratio_histograms(ax, *found, reference)
        ax.set_title(CHOICES[choice])
        columns |= {"low": found.edges[:-1], "high": found.edges[1:]}
        for k, side in enumerate("ab"):
            columns |= {f"{reference}_{side}": found.reference[k], f"{choice}_{side}": found.learned[k]}
            if found.band is not None:
                columns[f"{choice}_{side}_band"] = found.band[k]
    spread = "; bands: the spread over all pairs of weight draws" if found.band is not None else ""
    said = f"Areas: {REFERENCES[next(iter(result.against))]}; lines: the models{spread}."
    return save_figure(figure, folder, "distributions", columns).picture("Distributions of log r", said)


def _draw_residuals(result: DualResult, folder: Path) -> Picture:
    """Mean residual from the line in each bin, blue where A dominates and green where B does, and what is allowed."""
    figure, axes = style.new_figure(1, len(result.against))
    parts, rule = [], result.settings.rule
    for ax, (name, found) in zip(axes[0], result.against.items(), strict=True):
        edges, centre, residual, error, share = found.best.residuals
        allowed = rule.residual_tolerance + rule.sigmas * error
        ax.fill_between(centre, -allowed, allowed, color="0.9", linewidth=0)
        ax.axhline(0, color=style.TRUE_COLOUR, linestyle=":", linewidth=1.2)
        for (label, colour), chosen in zip(ratios.SIDES.items(), (share <= 0.5, share > 0.5), strict=True):
            points = centre[chosen], residual[chosen], error[chosen]
            ax.errorbar(*points, fmt="o", color=colour, markersize=4, linewidth=1.2, label=f"mostly {label}")
        reach = 1.2 * float(max(allowed.max(), (np.abs(residual) + error).max()))
        handles = [Line2D([], [], color="0.9", linewidth=6, label="allowed"), *ax.get_legend_handles_labels()[0]]
        ax.legend(handles=handles, loc="upper center", ncols=3, columnspacing=0.8, handletextpad=0.3)
        ax.set(xlabel=r"$\log\, r_\theta(x)$", ylim=(-reach, 1.25 * reach))
        ax.set_ylabel(rf"mean residual of $\log\, r_\mathrm{{{INDEX[name]}}}$")
        part = {"centre": centre, "residual": residual, "error": error, "low": edges[:-1], "high": edges[1:]}
        parts.append(part | {"share_of_b": share, "reference": np.full(centre.size, name)})
    said = "Mean of the reference minus the line, in bins of equal weight; a point outside of the grey area fails."
    return save_figure(figure, folder, "residuals", parts).picture("Residuals from the fitted line", said)


def draw_reliability(found: ClassifierReference, folder: Path) -> SavedFigure:
    """The reliability diagram as trained and as corrected."""
    figure, axes = style.new_figure(2, 1, height_ratios=(3, 1), sharex=True)
    shown = [("as trained", found.before, "tab:gray", "s")]
    if found.method != "none":
        shown.append((f"corrected ({found.method})", found.after, style.LEARNED_COLOUR, "o"))
    text = "\n→ ".join(f"ECE {one.error.measured}" for _, one, _, _ in shown)
    parts: list[dict[str, NDArray[Any]]] = []
    for label, measured, colour, marker in shown:
        bins = measured.reliability
        ratios.reliability_diagram(axes[:, 0], bins, label, "" if parts else text, colour, marker)
        parts.append(dict(zip(bins._fields[1:], bins[1:], strict=True)) | {"score": np.full(bins.events.size, label)})
    return save_figure(figure, folder, "reliability", parts)
