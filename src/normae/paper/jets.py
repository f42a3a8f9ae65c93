"""Section 4 of the paper and its appendix C.2 again: tagging, likelihood ratio and generated jets, theirs beside ours.

Every run is evaluated and reported in its own folder; what the paper shows side by side is drawn from what these runs
keep. Models that are neither in the zoo nor trained are left out, and so is what needs them.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from normae import zoo
from normae.dual.judge import DualSettings
from normae.dual.test import dual
from normae.errors import InputError
from normae.evaluation.toy import evaluate
from normae.evaluation.toy_page import report
from normae.figures import ComparedTemperatures
from normae.files import write_json, write_text
from normae.jets.substructure import NAMES
from normae.paper.reproduce import Source, copy_model, plain, train_source
from normae.paper.temperature import compare_temperatures, draw_compared, temperature_rows
from normae.presets import preset_path
from normae.report.paper import RATIO, TAGGING, TAGGING_METRICS, markdown_table
from normae.runs.ensemble import gather, made_of
from normae.runs.folder import RunFolder
from normae.runs.writing import Watch
from normae.statistics import Estimate

Metrics = dict[str, Estimate]
CLASSIFIER = "jets-classifier"
STARTS = {"ae": "nae", "bae": "bnae"}
"""Autoencoders are what the trainings of these begin with."""
PAPER = "-paper"
"""Behind the name of a model with all settings of the paper; that of the BAE is ours too."""
PAPER_WORDS = ", paper's settings"
SEEDS = 3
"""Trainings of the BNAE that make one model with several modes, `jets-*-bnae-modes`."""
SEED_SETTINGS = ("training.epochs=25", "training.learning_rate=2.5e-5")
MODES, MODES_WORDS = "-modes", f", mixture of {SEEDS} trainings"
MIXING, MIXING_WORDS = "-mixing", ", larger latent steps"
MIXING_SETTINGS = ("sampling.latent.step_size=4.5e-4", "sampling.latent.noise=0.03")
"""Steps with which the latent chain forgets where it began, so that the manifold's temperature means something."""
DUALS = {"AE": "ae", "NAE": "nae", "BNAE": "bnae", f"NAE{PAPER_WORDS}": "nae-paper",
         f"BNAE{PAPER_WORDS}": "bnae-paper", f"NAE{MIXING_WORDS}": f"nae{MIXING}",
         f"BNAE{MODES_WORDS}": f"bnae{MODES}"}  # fmt: skip
"""Dual tests and the ends of their models' names; that of the autoencoders, which the paper does not have, shows what
the NAE training adds."""
GENERATORS = {"NAE, d_z = 6": "nae", "BNAE, d_z = 6": "bnae", "NAE, d_z = 3": "nae-3d"}
TITLES = {
    "tagging": "Section 4.1: tagging",
    "ratio": "Section 4.2: the dual test, log r = log p_top - log p_QCD, against the classifier",
    "generated": "Appendix C.2: generated jets",
    "temperature": "Which temperature: estimates without a signal sample, over the one at which m = 1",
}


def sources() -> dict[str, Source]:
    """Every model of the section by its name in the zoo, with the preset that trains it."""
    found = {CLASSIFIER: Source(CLASSIFIER, "jets-paper-classifier")}
    for kind in ("qcd", "top"):
        for network in ("ae", "nae", "bae", "bnae", "nae-3d"):
            name = f"jets-{kind}-{network}"
            found[name] = Source(name, f"jets-best-{kind}-{STARTS.get(network, network)}")
        for network in ("ae", "nae", "bnae"):
            name = f"jets-{kind}-{network}{PAPER}"
            found[name] = Source(name, f"jets-paper-{kind}-{STARTS.get(network, network)}")
        mixing = f"jets-{kind}-nae{MIXING}"
        found[mixing] = Source(mixing, f"jets-best-{kind}-nae", MIXING_SETTINGS)
        for name in seed_names(kind):
            found[name] = Source(name, f"jets-best-{kind}-bnae", SEED_SETTINGS)
    return found


def seed_names(kind: str) -> list[str]:
    """The trainings that differ in their seeds."""
    return [f"jets-{kind}-bnae-seed{k}" for k in range(SEEDS)]


def nae_of(name: str) -> str | None:
    """The NAE or BNAE whose training begins with this autoencoder; None for other models."""
    parts = name.split("-")
    return "-".join([*parts[:2], STARTS[parts[2]], *parts[3:]]) if parts[2:] and parts[2] in STARTS else None


@dataclass
class JetReproduction:
    """What was made: metrics of every run by its name, of every dual test by its network, and what was left out."""

    runs: dict[str, Metrics] = field(default_factory=dict)
    duals: dict[str, Metrics] = field(default_factory=dict)
    temperatures: list[ComparedTemperatures] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def tables(self) -> dict[str, list[list[str]]]:
        """By a key of `TITLES`, rows of cells, the first of them a header; tables without a row are not there."""
        found = {
            "tagging": tagging_rows(self.runs),
            "ratio": ratio_rows(self.duals),
            "generated": generated_rows(self.runs),
            "temperature": temperature_rows(self.temperatures),
        }
        return {name: rows for name, rows in found.items() if len(rows) > 1}


class Settings(NamedTuple):
    """How the reproduction is made; see `reproduce_jets`."""

    data: Path | None = None
    scratch: bool = False
    configs: Path | None = None
    seed: int = 0
    device: str = "auto"
    generated: int | None = None
    overrides: tuple[str, ...] = ()


def reproduce_jets(out: str | Path, settings: Settings | None = None, watch: Watch | None = None) -> JetReproduction:
    """Make every figure and table of the section into `out`.

    Args:
        settings: `data`: a folder of jets with train, val and test, NORMAE_JETS where it is None; `scratch`: train all
            models; `configs`: folder of the presets for that, `seed` and `overrides` of the new trainings; `generated`:
            jets to generate with each model, as in `evaluate`.
        watch: display of the trainings.
    """
    out, settings = Path(out), settings or Settings()
    folders = _folders(out, settings, watch)
    result = JetReproduction(left_out=sorted(set(sources()) - set(folders)))
    if not folders:
        raise InputError(f"{', '.join(result.left_out)}: not in the zoo; use --from-scratch")
    folders |= _modes(folders, out, settings)
    for name, folder in folders.items():
        result.runs[name] = evaluate(folder.path, device=settings.device, generated=_generated(name, settings),
                                     data=settings.data)  # fmt: skip
        report(folder.path)
    result.duals = _dual_tests(folders, out, settings)
    result.temperatures = _temperatures(folders, result.duals, settings)
    from normae.paper.figures import draw_section

    draw_section(folders, result.runs, out)
    if result.temperatures:
        draw_compared(result.temperatures, RunFolder(out).figures)
    write_text(out / "table.md", markdown(result))
    write_json(out / "table.json", {name: plain(metrics) for name, metrics in (result.runs | result.duals).items()})
    return result


def _generated(name: str, settings: Settings) -> int | None:
    """A classifier and an autoencoder generate nothing."""
    return None if name == CLASSIFIER or nae_of(name) else settings.generated


def _folders(out: Path, settings: Settings, watch: Watch | None) -> dict[str, RunFolder]:
    """The runs by name, trained or copied from the zoo; an autoencoder is inside the run that began with it."""
    folders: dict[str, RunFolder] = {}
    for name, source in sources().items():
        if not settings.scratch:
            if name in zoo.names():
                folders[name] = RunFolder(out / "zoo" / name)
                copy_model(name, folders[name])
            continue
        if (nae := nae_of(name)) is not None:
            folders[name] = RunFolder(out / "scratch" / nae / "pretrained")
            continue
        folders[name] = RunFolder(out / "scratch" / name)
        path = [] if settings.data is None else [f"data.path={settings.data}"]
        overrides = [*source.overrides, *settings.overrides, *path] if name != CLASSIFIER else path
        seed = settings.seed + next((k for k in range(SEEDS) if name.endswith(f"-seed{k}")), 0)
        train_source(folders[name], preset_path(source.preset, settings.configs), overrides, seed, watch)
    return folders


def _modes(folders: dict[str, RunFolder], out: Path, settings: Settings) -> dict[str, RunFolder]:
    """One model out of the trainings with different seeds, where all of them are there."""
    found = {}
    for kind in ("qcd", "top"):
        if all(name in folders for name in seed_names(kind)):
            name, seeds = f"jets-{kind}-bnae{MODES}", [folders[seed] for seed in seed_names(kind)]
            found[name] = RunFolder(out / ("scratch" if settings.scratch else "zoo") / name)
            if found[name].path.exists() and not made_of(found[name], seeds):
                shutil.rmtree(found[name].path)
            if not found[name].path.exists():
                gather([seed.path for seed in seeds], found[name].path, settings.data)
    return found


def _dual_tests(folders: dict[str, RunFolder], out: Path, settings: Settings) -> dict[str, Metrics]:
    """Of the pairs that are there, against the trained classifier where there is one."""
    found: dict[str, Metrics] = {}
    reference = folders[CLASSIFIER].path if CLASSIFIER in folders else None
    for network, end in DUALS.items():
        names = _pair(end)
        if all(name in folders for name in names):
            a, b = (folders[name].path for name in names)
            chosen = DualSettings(draws=50 if end.startswith("bnae") else None, seed=settings.seed)
            made = dual(a, b, settings.data, out / f"dual-{end}", chosen, settings.device, reference)
            found[network] = made.metrics
    return found


def _pair(end: str) -> tuple[str, str]:
    return f"jets-qcd-{end}", f"jets-top-{end}"


def _temperatures(
    folders: dict[str, RunFolder], duals: dict[str, Metrics], settings: Settings
) -> list[ComparedTemperatures]:
    """Estimates for the pairs whose dual test tells at which T the slope is 1."""
    slopes = {network: metrics["slope_classifier_c0"] for network, metrics in duals.items()}
    slopes = {network: slope for network, slope in slopes.items() if slope.value > 0}
    names = {network: _pair(DUALS[network]) for network in slopes if not network.endswith(MODES_WORDS)}
    pairs = {network: (folders[a], folders[b]) for network, (a, b) in names.items()}
    return compare_temperatures(pairs, slopes, settings.data, settings.device) if pairs else []


# --- tables


def markdown(result: JetReproduction) -> str:
    """All tables as Markdown, and what is not in them."""
    pieces = [f"## {TITLES[name]}\n\n{markdown_table(rows)}\n" for name, rows in result.tables.items()]
    if result.left_out:
        pieces.append(f"Not in the zoo, so left out: {', '.join(result.left_out)}.\n")
    return "\n".join(pieces)


def tagging_rows(runs: dict[str, Metrics]) -> list[list[str]]:
    """The paper's table of section 4.1, each value beside ours."""
    names = {"top-tagging": "qcd", "QCD-tagging": "top"}
    short = {"auc": "AUC", "rejection_20": "1/ε_B(0.2)", "rejection_30": "1/ε_B(0.3)"}
    header = ["task", "network"]
    for metric in TAGGING_METRICS:
        header += [f"{short[metric]}, paper", "ours"]
    rows = [header]
    for (task, network), printed in TAGGING.items():
        name = CLASSIFIER if task == "supervised" else f"jets-{names[task]}-{network.lower()}"
        ends = {"": "", PAPER_WORDS: PAPER, MIXING_WORDS: MIXING, MODES_WORDS: MODES}
        for words, run in ((f"{network}{words}", f"{name}{end}") for words, end in ends.items()):
            if run in runs:
                cells = zip(printed, TAGGING_METRICS, strict=True)
                show = shown_of_modes if run.endswith(MODES) else shown
                rows.append([task, words, *[cell for value, m in cells for cell in (value, show(runs[run], m))]])
    return rows


def shown(metrics: Metrics, name: str) -> str:
    """A number with its counting error; of a Bayesian run the mean and spread over draws, with that error behind."""
    if f"{name}_draws" not in metrics:
        return str(metrics[name])
    return f"{metrics[f'{name}_draws']} (counting ± {metrics[name].error:.2g})"


def shown_of_modes(metrics: Metrics, name: str) -> str:
    """That of the mixture with its counting error, and mean and spread over draws, each of one training."""
    return f"{metrics[name]} (its trainings: {metrics[f'{name}_draws']})"


def ratio_rows(duals: dict[str, Metrics]) -> list[list[str]]:
    """Correlation, slope and constant of section 4.2."""
    titles = {"pearson": "Pearson correlation with log r_class", "slope": "slope m", "constant": "constant C"}
    rows = [["quantity", *[cell for network in duals for cell in (f"{network}, paper", f"{network}, ours")]]]
    for quantity, title in titles.items():
        cells = []
        for network, metrics in duals.items():
            printed = RATIO[network.partition(",")[0]][quantity]
            cells += [printed, str(metrics[f"{quantity}_classifier_c0"])]
        rows.append([title, *cells])
    for quantity, title in titles.items():
        keys = dict.fromkeys(duals, f"{quantity}_pairs_classifier" + ("_c0" if quantity == "constant" else ""))
        if any(keys[n] in duals[n] for n in duals):
            cells = [c for n in duals for c in ("—", str(duals[n].get(keys[n], "—")))]
            rows.append([f"{title}, over all pairs of draws", *cells])
    return rows if duals else []


def generated_rows(runs: dict[str, Metrics]) -> list[list[str]]:
    """Wasserstein distances in standard deviations of the truth, and the AUC of classifiers, for each model."""
    rows = [["model", "trained on", "jets", *NAMES, "halves of the truth", "AUC, observables", "AUC, pictures"]]
    for title, network in GENERATORS.items():
        for kind, words in (("qcd", "QCD"), ("top", "top")):
            metrics = runs.get(f"jets-{kind}-{network}", {})
            if "wasserstein_mass" not in metrics:
                continue
            halves = [metrics[f"wasserstein_{name}_truth"].value for name in NAMES]
            aucs = [str(metrics.get(f"auc_generated_{kind}", "—")) for kind in ("observables", "images")]
            distances = [str(metrics[f"wasserstein_{name}"]) for name in NAMES]
            count = f"{metrics['generated_jets'].value:.0f}"
            rows.append([title, words, count, *distances, f"{min(halves):.3f} to {max(halves):.3f}", *aucs])
    return rows
