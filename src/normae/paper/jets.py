"""Section 4 of the paper and its appendix C.2 again: tagging, likelihood ratio and generated jets, theirs beside ours.

Every run is evaluated and reported in its own folder; what the paper shows side by side is drawn from what these runs
keep. Models that are neither in the zoo nor trained are left out, and so is what needs them.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from normae import zoo
from normae.dual.judge import DualSettings
from normae.dual.test import dual
from normae.errors import InputError
from normae.evaluation.evaluate import evaluate, report
from normae.figures import ComparedTemperatures, figure_style
from normae.jets.substructure import NAMES
from normae.paper.figures import Judged, draw_compared, draw_section
from normae.paper.models import (
    BEST,
    CLASSIFIER,
    MIXING,
    MODES,
    PAPER,
    SEEDED,
    SMALL,
    JetModel,
    Metrics,
    Reproduction,
    Rows,
    Settings,
    Variant,
    copy_model,
    models,
    train_preset,
)
from normae.report.paper import RATIO, TAGGING, TAGGING_METRICS
from normae.runs.ensemble import gather, made_of
from normae.runs.folder import RunFolder
from normae.runs.writing import Watch
from normae.sources import KINDS, Kind
from normae.statistics import Estimate
from normae.temperature.estimates import estimate_temperatures

T = TypeVar("T")
ComparedPair = tuple[RunFolder, RunFolder, Estimate]
"""The runs on QCD jets and on tops, and m of their dual test."""
JETS, POINTS = 500, 20_000
"""Events of each class of jets, and of a toy density."""
TOYS = {"toy-1gauss-nae": "one Gaussian", "toy-2gauss-nae": "two Gaussians"}
DUALS = (("AE", BEST), ("NAE", BEST), ("BNAE", BEST), ("NAE", PAPER), ("BNAE", PAPER), ("NAE", MIXING), ("BNAE", MODES))
"""Networks of the dual tests; that of the autoencoders, which the paper does not have, shows what the training adds."""
GENERATORS = {"NAE, d_z = 6": ("NAE", BEST), "BNAE, d_z = 6": ("BNAE", BEST), "NAE, d_z = 3": ("NAE", SMALL)}
TITLES = {
    "tagging": "Section 4.1: tagging",
    "ratio": "Section 4.2: the dual test, log r = log p_top - log p_QCD, against the classifier",
    "generated": "Appendix C.2: generated jets",
    "temperature": "Which temperature: estimates without a signal sample, over the one at which m = 1",
}


def reproduce_jets(out: Path, settings: Settings, watch: Watch | None = None) -> Reproduction:
    """Make every figure and table of the section into `out`. What cannot be made is said in a note, not an error."""
    folders = _folders(out, settings, watch)
    result = Reproduction(left_out=sorted(set(models()) - {model.name for model in folders}))
    if not folders:
        raise InputError(f"{', '.join(result.left_out)}: not in the zoo; use --from-scratch")
    folders |= _modes(folders, out, settings)
    runs: dict[JetModel, Judged] = {}
    for model, folder in folders.items():
        count = None if model == CLASSIFIER or model.begun else settings.generated  # these generate nothing
        metrics = evaluate(folder.path, device=settings.device, generated=count, data=settings.data)
        report(folder.path)
        runs[model] = Judged(folder, metrics)
    result.metrics |= {model.name: judged.metrics for model, judged in runs.items()}
    result.tables |= _tables(tagging=tagging_rows(runs), generated=generated_rows(runs))
    result.write(out)
    duals = _dual_tests(runs, out, settings, result)
    temperatures = _temperatures(runs, duals, settings, result)
    result.metrics |= duals
    result.tables |= _tables(ratio=ratio_rows(duals), temperature=temperature_rows(temperatures))
    result.tables = {title: result.tables[title] for title in TITLES.values() if title in result.tables}
    with figure_style():
        draw_section(runs, RunFolder(out).figures)
        if temperatures:
            draw_compared(temperatures, RunFolder(out).figures)
    result.write(out)
    return result


def _folders(out: Path, settings: Settings, watch: Watch | None) -> dict[JetModel, RunFolder]:
    """The runs, trained or copied from the zoo; an autoencoder is inside the run that began with it."""
    folders: dict[JetModel, RunFolder] = {}
    for name, model in models().items():
        if not settings.scratch:
            if name in zoo.names():
                folders[model] = RunFolder(out / "zoo" / name)
                copy_model(name, folders[model])
            continue
        if model.begun is not None:
            folders[model] = RunFolder(out / "scratch" / model.begun.name / "pretrained")
            continue
        folders[model] = RunFolder(out / "scratch" / name)
        path = [] if settings.data is None else [f"data.path={settings.data}"]
        overrides = [] if model == CLASSIFIER else [*model.variant.overrides, *settings.overrides]
        seed = settings.seed + model.variant.seed
        train_preset(folders[model], model.preset, [*overrides, *path], seed, settings, watch)
    return folders


def _modes(folders: dict[JetModel, RunFolder], out: Path, settings: Settings) -> dict[JetModel, RunFolder]:
    """One model out of the trainings with different seeds, where all of them are there."""
    found = {}
    for kind in KINDS:
        model, members = JetModel(kind, "BNAE", MODES), [JetModel(kind, "BNAE", seed) for seed in SEEDED]
        if all(member in folders for member in members):
            run, seeds = RunFolder(out / ("scratch" if settings.scratch else "zoo") / model.name), members
            if run.path.exists() and not made_of(run, [folders[seed] for seed in seeds]):
                shutil.rmtree(run.path)
            if not run.path.exists():
                gather([folders[seed].path for seed in seeds], run.path, settings.data)
            found[model] = run
    return found


def _noted(result: Reproduction, what: str, make: Callable[[], T]) -> T | None:
    """What `make` makes, or a note that says why it cannot: the runs are judged already, and that is kept."""
    try:
        return make()
    except InputError as error:
        result.notes.append(f"Left out, {what}: {error}.")
        return None


def _pair(network: str, variant: Variant) -> tuple[JetModel, JetModel]:
    return JetModel("qcd", network, variant), JetModel("top", network, variant)


def _dual_tests(
    runs: dict[JetModel, Judged], out: Path, settings: Settings, result: Reproduction
) -> dict[str, Metrics]:
    """Of the pairs that are there, by title, against the trained classifier where there is one."""
    found: dict[str, Metrics] = {}
    reference = runs[CLASSIFIER].folder.path if CLASSIFIER in runs else None
    for network, variant in DUALS:
        pair = _pair(network, variant)
        if all(model in runs for model in pair):
            a, b = (runs[model].folder.path for model in pair)
            chosen = DualSettings(draws=50 if network == "BNAE" else None, seed=settings.seed)
            folder = out / f"dual-{network.lower()}{variant.end}"
            made = _noted(result, f"the dual test of {pair[0].title}", lambda: dual(
                a, b, settings.data, folder, chosen, settings.device, reference))  # noqa: B023  # fmt: skip
            found |= {} if made is None else {pair[0].title: made.metrics}
    return found


def _temperatures(
    runs: dict[JetModel, Judged], duals: dict[str, Metrics], settings: Settings, result: Reproduction
) -> list[ComparedTemperatures]:
    """Estimates for the pairs whose dual test tells at which T the slope is 1; a mixture has several T."""
    pairs: dict[str, ComparedPair] = {}
    for network, variant in DUALS:
        a, b = _pair(network, variant)
        slope = duals.get(a.title, {}).get("slope_classifier_c0")
        if slope is not None and slope.value > 0 and variant != MODES:
            pairs[a.title] = (runs[a].folder, runs[b].folder, slope)
    if not pairs:
        return []
    found = _noted(result, "the temperatures", lambda: compare_temperatures(pairs, settings.data, settings.device))
    return found or []


# --- tables


def _tables(**found: Rows) -> dict[str, Rows]:
    """By title; a table without a row below its header is not there."""
    return {TITLES[name]: rows for name, rows in found.items() if len(rows) > 1}


def tagging_rows(runs: dict[JetModel, Judged]) -> Rows:
    """The paper's table of section 4.1, each value beside ours."""
    short = {"auc": "AUC", "rejection_20": "1/ε_B(0.2)", "rejection_30": "1/ε_B(0.3)"}
    rows = [["task", "network", *[cell for m in TAGGING_METRICS for cell in (f"{short[m]}, paper", "ours")]]]
    trained: dict[str, Kind] = {"top-tagging": "qcd", "QCD-tagging": "top"}
    for (task, network), printed in TAGGING.items():
        for variant in (BEST, PAPER, MIXING, MODES):
            model = JetModel(trained.get(task), network, variant)
            if model in runs:
                show = shown_of_modes if variant == MODES else shown
                cells = zip(printed, TAGGING_METRICS, strict=True)
                ours = [cell for value, m in cells for cell in (value, show(runs[model].metrics, m))]
                rows.append([task, model.title, *ours])
    return rows


def shown(metrics: Metrics, name: str) -> str:
    """A number with its counting error; of a Bayesian run the mean and spread over draws, with that error behind."""
    if f"{name}_draws" not in metrics:
        return str(metrics[name])
    return f"{metrics[f'{name}_draws']} (counting ± {metrics[name].error:.2g})"


def shown_of_modes(metrics: Metrics, name: str) -> str:
    """That of the mixture with its counting error, and mean and spread over draws, each of one training."""
    return f"{metrics[name]} (its trainings: {metrics[f'{name}_draws']})"


def ratio_rows(duals: dict[str, Metrics]) -> Rows:
    """Correlation, slope and constant of section 4.2."""
    titles = {"pearson": "Pearson correlation with log r_class", "slope": "slope m", "constant": "constant C"}
    rows = [["quantity", *[cell for title in duals for cell in (f"{title}, paper", f"{title}, ours")]]]
    networks = {title: title.partition(",")[0] for title in duals}
    for quantity, words in titles.items():
        cells = [(RATIO[networks[t]][quantity], str(found[f"{quantity}_classifier_c0"])) for t, found in duals.items()]
        rows.append([words, *[cell for pair in cells for cell in pair]])
    for quantity, words in titles.items():
        key = f"{quantity}_pairs_classifier" + ("_c0" if quantity == "constant" else "")
        if any(key in found for found in duals.values()):
            cells = [("—", str(found.get(key, "—"))) for found in duals.values()]
            rows.append([f"{words}, over all pairs of draws", *[cell for pair in cells for cell in pair]])
    return rows if duals else []


def generated_rows(runs: dict[JetModel, Judged]) -> Rows:
    """Wasserstein distances in standard deviations of the truth, and the AUC of classifiers, for each model."""
    rows = [["model", "trained on", "jets", *NAMES, "halves of the truth", "AUC, observables", "AUC, pictures"]]
    for title, chosen in GENERATORS.items():
        for model, words in zip(_pair(*chosen), ("QCD", "top"), strict=True):
            metrics = runs[model].metrics if model in runs else {}
            if "wasserstein_mass" in metrics:
                halves = [metrics[f"wasserstein_{name}_truth"].value for name in NAMES]
                aucs = [str(metrics.get(f"auc_generated_{of}", "—")) for of in ("observables", "images")]
                distances = [str(metrics[f"wasserstein_{name}"]) for name in NAMES]
                count = f"{metrics['generated_jets'].value:.0f}"
                rows.append([title, words, count, *distances, f"{min(halves):.3f} to {max(halves):.3f}", *aucs])
    return rows


# --- which temperature


def compare_temperatures(
    pairs: Mapping[str, ComparedPair], data: Path | None, device: str
) -> list[ComparedTemperatures]:
    """Which estimate predicts m = 1: a row for each model of each pair, by title, and for each toy of the zoo.

    For a fixed pair of energies with one T the slope m of the dual test is proportional to T, so that it is 1 at T/m.
    That needs the other class; the estimates of `normae temperature estimate` do not. For the toy T is learned, and
    m = 1 with it.
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


def temperature_rows(rows: list[ComparedTemperatures]) -> list[list[str]]:
    """T of the model, T at m = 1, and each estimate over the latter."""
    names = list(dict.fromkeys(name for row in rows for name in row.estimates))
    table = [["model", "its T", "T at m = 1", *(f"{name} / T(m = 1)" for name in names)]]
    for row in rows:
        cells = [_over(row.estimates.get(name), row.wanted.value) for name in names]
        table.append([row.name, f"{row.model:.3g}", str(row.wanted), *cells])
    return table


def _over(estimate: Estimate | None, unit: float) -> str:
    if estimate is None or not np.isfinite(estimate.value):
        return "—"
    if not np.isfinite(estimate.error):
        return f"{estimate.value / unit:.2g} (error not known)"
    return str(Estimate(estimate.value / unit, estimate.error / unit))
