"""The models of section 4 of the paper, and what it shows of them side by side, from what their runs keep."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normae import zoo
from normae.evaluation.jet_study import draw_generated, energy_densities
from normae.evaluation.jets import CURVE, JetScores, as_generated, as_scores, classifier_curve, roc_curve_of
from normae.figures import new_figure
from normae.figures.jets import RocCurve, energy_histograms, roc_curves
from normae.figures.ratios import ComparedTemperatures, temperatures_compared
from normae.jets.gallery import CLASSES
from normae.jets.imaging import NAMES
from normae.report import save_figure
from normae.report.paper import RATIO, TAGGING, TAGGING_METRICS
from normae.runs.folder import RunFolder
from normae.sources import KINDS, Kind
from normae.statistics.arrays import Array, Estimate
from normae.temperature.estimates import estimate_temperatures

ComparedPair = tuple[RunFolder, RunFolder, Estimate]  # the runs on QCD jets and on tops, and m of their dual test
JETS, POINTS = 200, 20_000  # events of each class of jets, and of a toy density
TOYS = {"toy-1gauss-nae": "one Gaussian", "toy-2gauss-nae": "two Gaussians"}
QUANTITIES = {"pearson": "Pearson", "slope": "slope m"}  # of the dual test, for all jets and for each class
CLASS_COLUMNS = ("QCD only", "tops only")
Compared = list[ComparedTemperatures]
Metrics = dict[str, Estimate]
Rows = list[list[str]]
SEEDS = 3  # trainings of the BNAE that make one model with several modes
BEGINS = {"AE": "NAE", "BAE": "BNAE"}  # autoencoders are what the trainings of these begin with


class Variant(NamedTuple):
    """A way to train."""

    end: str = ""  # of its models' names
    words: str = ""  # in a table
    preset: str = "best"
    overrides: tuple[str, ...] = ()
    seed: int = 0


BEST = Variant()
PAPER = Variant("-paper", ", paper's settings", "paper")  # all settings of the paper; its BAE is ours too
SMALL = Variant("-3d", ", d_z = 3")
MIXING = Variant("-mixing", ", larger latent steps", "best",
                 ("sampling.latent.step_size=4.5e-4", "sampling.latent.noise=0.03"))  # fmt: skip
"""Steps with which the latent chain forgets where it began, so that the manifold's temperature means something."""
SEEDED = tuple(
    Variant(f"-seed{k}", f", seed {k}", "best", ("training.epochs=25", "training.learning_rate=2.5e-5"), k)
    for k in range(SEEDS)
)
MODES = Variant("-modes", f", mixture of {SEEDS} trainings")

DUALS = (("AE", BEST), ("NAE", BEST), ("BNAE", BEST), ("NAE", PAPER), ("BNAE", PAPER), ("NAE", MIXING), ("BNAE", MODES))
"""Networks of the dual tests; that of the autoencoders, which the paper does not have, shows what the training adds."""
ESTIMATED = (("NAE", BEST), ("BNAE", BEST), ("NAE", MIXING))  # whose temperatures are estimated
GENERATORS = {"NAE, d_z = 6": ("NAE", BEST), "BNAE, d_z = 6": ("BNAE", BEST), "NAE, d_z = 3": ("NAE", SMALL)}
TITLES = {
    "tagging": "Section 4.1: tagging",
    "ratio": "Section 4.2: the dual test, log r = log p_top - log p_QCD, against the classifier",
    "generated": "Appendix C.2: generated jets",
    "temperature": "Which temperature: estimates without a signal sample, over the one at which m = 1",
}


class JetModel(NamedTuple):
    """A model of the section: what it was trained on, the network as the paper's table calls it, and how."""

    kind: Kind | None
    network: str
    variant: Variant = BEST

    @property
    def name(self) -> str:
        """In the zoo."""
        return "-".join(["jets", *([self.kind] if self.kind else []), self.network.lower()]) + self.variant.end

    @property
    def title(self) -> str:
        """In a table."""
        return f"{self.network}{self.variant.words}"

    @property
    def begun(self) -> "JetModel | None":
        """The NAE or BNAE whose training begins with this autoencoder; None for other models."""
        return self._replace(network=BEGINS[self.network]) if self.network in BEGINS else None

    @property
    def preset(self) -> str:
        """Trains it."""
        if self.kind is None:
            return "jets-paper-classifier"
        network = BEGINS.get(self.network, self.network).lower()
        return f"jets-{self.variant.preset}-{self.kind}-{network}{SMALL.end if self.variant == SMALL else ''}"


def pair_of(network: str, variant: Variant) -> tuple[JetModel, JetModel]:
    """The models on QCD jets and on tops."""
    return JetModel("qcd", network, variant), JetModel("top", network, variant)


CLASSIFIER = JetModel(None, "classifier")


def models() -> dict[str, JetModel]:
    """Every model that is trained, by its name in the zoo."""
    found = [CLASSIFIER]
    for kind in KINDS:
        found += [JetModel(kind, network) for network in ("AE", "NAE", "BAE", "BNAE")]
        found += [JetModel(kind, "NAE", SMALL)]
        found += [JetModel(kind, network, PAPER) for network in ("AE", "NAE", "BNAE")]
        found += [JetModel(kind, "NAE", MIXING), *(JetModel(kind, "BNAE", seed) for seed in SEEDED)]
    return {model.name: model for model in found}


class Judged(NamedTuple):
    """An evaluated run."""

    folder: RunFolder
    metrics: Metrics

    def scores(self) -> JetScores:
        """The energies that it keeps."""
        return as_scores(self.kept("scores"), self.metrics["temperature"].value)

    def kept(self, name: str) -> dict[str, Any]:
        """The arrays of a file of it, "scores" or "generated"."""
        with np.load(getattr(self.folder, name), allow_pickle=False) as content:
            return dict(content)


Runs = Mapping[JetModel, Judged]


def draw_section(runs: Runs, folder: Path) -> None:
    """Write every figure of the section for which there are runs into a folder."""
    _draw_roc(runs, folder, "roc-nae", {("AE", BEST): "-.", ("NAE", BEST): "-"})
    _draw_roc(runs, folder, "roc-bnae", {("BAE", BEST): "-.", ("BNAE", BEST): "-", ("BNAE", MODES): ":"})
    for network in ("NAE", "BNAE"):  # trained on QCD (left) and on tops (right)
        pair = pair_of(network, BEST)
        if all(model in runs for model in pair):
            figure, axes = new_figure(1, 2, panel=(4.6, 3.5))
            parts = []
            for label, (ax, model) in enumerate(zip(axes[0], pair, strict=True)):
                edges, shown = energy_densities(runs[model].scores(), label)
                energy_histograms(ax, edges, shown, label)
                ax.set_title(f"{network} trained on {CLASSES[label]} jets")
                part = {"trained_on": np.full(len(edges) - 1, float(label)), "low": edges[:-1], "high": edges[1:]}
                parts.append(part | {KINDS[one.kind]: one.density for one in shown})
            save_figure(figure, folder, f"energies-{network.lower()}", parts)
    for network, variant in (("NAE", BEST), ("BNAE", BEST), ("NAE", SMALL)):
        made = {}
        for label, model in enumerate(pair_of(network, variant)):
            if model in runs and "wasserstein_mass" in runs[model].metrics:
                made[label] = (as_generated(runs[model].kept("generated")), runs[model].metrics)
        if made:
            draw_generated(folder, made, f"generated-{network.lower()}{variant.end}")


def _draw_roc(runs: Runs, folder: Path, name: str, styles: dict[tuple[str, Variant], str]) -> None:
    """Both tasks before (dash-dotted) and after the NAE training, mixtures of several (dotted), and the classifier."""
    curves: list[RocCurve] = []
    smallest = 1.0
    for label, kind in enumerate(KINDS):
        for (network, variant), style in styles.items():
            if (model := JetModel(kind, network, variant)) in runs:
                scores = runs[model].scores()
                said = "mixture of BNAEs" if variant == MODES else network
                words = f"{said}, {CLASSES[1 - label]}-tagging, AUC {runs[model].metrics['auc']}"
                curves.append(roc_curve_of(words, scores, 1 - label, style))
                smallest = min(smallest, 10 / scores.background.shape[1])
    if not curves:
        return
    if CLASSIFIER in runs:
        kept = runs[CLASSIFIER].kept("scores")
        curves.append(classifier_curve(kept["log_ratio"], kept["labels"], runs[CLASSIFIER].metrics))
    figure, axes = new_figure(1, 2, panel=(4.6, 4.4))
    roc_curves(axes[0], curves, smallest)
    columns: dict[str, Array] = {"signal_efficiency": CURVE}
    columns |= {f"background_efficiency {curve.label}": curve.background for curve in curves}
    save_figure(figure, folder, name, columns)


def draw_compared(rows: list[ComparedTemperatures], folder: Path) -> None:
    """figures/temperatures: every estimate over the temperature at which m = 1."""
    figure, axes = new_figure(1, 1, panel=(6.2, 1.0 + 0.42 * len(rows)))
    temperatures_compared(axes[0, 0], rows)
    names = ("model", "estimate", "temperature", "error", "unit_slope", "unit_slope_error")
    cells = [(row.name, name, *one, *row.wanted) for row in rows for name, one in row.estimates.items()]
    save_figure(figure, folder, "temperatures", dict(zip(names, zip(*cells, strict=True), strict=True)))


def tagging_rows(runs: Runs) -> Rows:
    """The table of section 4.1, values beside ours; of a Bayesian run mean and spread over draws stand first."""
    short = {"auc": "AUC", "rejection_20": "1/ε_B(0.2)", "rejection_30": "1/ε_B(0.3)"}
    rows = [["task", "network", *[cell for m in TAGGING_METRICS for cell in (f"{short[m]}, paper", "ours")]]]
    trained: dict[str, Kind] = {"top-tagging": "qcd", "QCD-tagging": "top"}
    for (task, network), printed in TAGGING.items():
        for variant in (BEST, PAPER, MIXING, MODES):
            model = JetModel(trained.get(task), network, variant)
            if model in runs:
                rows.append([task, model.title])
                for value, name in zip(printed, TAGGING_METRICS, strict=True):
                    ours, draws = (runs[model].metrics.get(f"{name}{end}") for end in ("", "_draws"))
                    assert ours is not None
                    said = str(ours) if draws is None else f"{draws} (counting ± {ours.error:.2g})"
                    rows[-1] += [value, f"{ours} (its trainings: {draws})" if variant == MODES else said]
    return rows


def ratio_rows(duals: dict[str, Metrics]) -> Rows:
    """Section 4.2: correlation, slope and constant, a row for each pair; ours within each class and by labels too."""
    rows = [["pair", *(cell for words in QUANTITIES.values() for cell in (f"{words}, paper", "ours", *CLASS_COLUMNS))]]
    rows[0] += ["constant C, paper", "ours", "factor b by labels"]
    for title, found in duals.items():
        theirs, row = RATIO[title.partition(",")[0]], [title]
        for quantity in QUANTITIES:
            ours = [found[f"{quantity}{side}_classifier_c0"] for side in ("", "_a", "_b")]
            over = found.get(f"{quantity}_pairs_classifier")
            row += [theirs[quantity], f"{ours[0]}" + ("" if over is None else f" (pairs of draws: {over})")]
            row += map(str, ours[1:])
        rows.append([*row, theirs["constant"], str(found["constant_classifier_c0"]), str(found["logistic_slope"])])
    return rows if duals else []


def generated_rows(runs: Runs) -> Rows:
    """Wasserstein distances in standard deviations of the truth, and the AUC of classifiers, for each model."""
    rows = [["model", "trained on", "jets", *NAMES, "halves of the truth", "AUC, observables", "AUC, pictures"]]
    for title, chosen in GENERATORS.items():
        for model, words in zip(pair_of(*chosen), ("QCD", "top"), strict=True):
            metrics = runs[model].metrics if model in runs else {}
            if "wasserstein_mass" in metrics:
                halves = [metrics[f"wasserstein_{name}_truth"].value for name in NAMES]
                aucs = [str(metrics.get(f"auc_generated_{of}", "—")) for of in ("observables", "images")]
                distances = [str(metrics[f"wasserstein_{name}"]) for name in NAMES]
                count = f"{metrics['generated_jets'].value:.0f}"
                rows.append([title, words, count, *distances, f"{min(halves):.3f} to {max(halves):.3f}", *aucs])
    return rows


def compare_temperatures(pairs: Mapping[str, ComparedPair], data: Path | None, device: str) -> Compared:
    """Which estimate predicts m = 1: a row for each model of each pair, by title, and for each toy of the zoo.

    For a fixed pair of energies with one T the slope m of the dual test is proportional to T, so that it is 1 at T/m.
    For the toy T is learned, and m = 1 with it.
    """
    rows = []
    for title, (*runs, slope) in pairs.items():
        for run, name in zip(runs, ("QCD", "top"), strict=True):
            found = estimate_temperatures(run.path, JETS, device=device, data=data)
            value = found.model / slope.value
            wanted = Estimate(value, value * slope.error / slope.value)
            rows.append(ComparedTemperatures(f"{title}, {name} jets", found.model, wanted, found.estimates))
    for name, words in TOYS.items():
        if name in zoo.names():
            found = estimate_temperatures(name, POINTS, device=device)
            learned = Estimate(found.model, 0.0)
            rows.append(ComparedTemperatures(f"toy NAE, {words}", found.model, learned, found.estimates))
    return rows


def temperature_rows(rows: Compared) -> Rows:
    """T of the model, T at m = 1, and each estimate over the latter."""
    names = list(dict.fromkeys(name for row in rows for name in row.estimates))
    table = [["model", "its T", "T at m = 1", *(f"{name} / T(m = 1)" for name in names)]]
    for row in rows:
        table.append([row.name, f"{row.model:.3g}", str(row.wanted)])
        for name in names:
            value, error = (n / row.wanted.value for n in row.estimates.get(name, (np.nan, np.nan)))
            unsure = f"{value:.2g} (error not known)" if np.isfinite(value) else "—"
            table[-1].append(str(Estimate(value, error)) if np.isfinite(error) else unsure)
    return table
