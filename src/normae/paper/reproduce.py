"""The paper again: figures and tables, theirs beside ours, with models from the zoo or from scratch.

The toy is sections 3.2 to 3.4, jets are section 4 and appendix C.2. Every run is evaluated and reported in its own
folder. Models that are neither in the zoo nor trained are left out, and so is what needs them.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from normae import zoo
from normae.config import read
from normae.dual.judge import DualSettings
from normae.dual.test import dual
from normae.errors import InputError, Interrupted, refuse
from normae.evaluation.evaluate import evaluate, report
from normae.figures import figure_style
from normae.files import atomic_path, check_new, write_json, write_text
from normae.jets import PUBLIC
from normae.paper import jets
from normae.paper.jets import JetModel, Judged, Metrics, Rows
from normae.presets import preset_path
from normae.progress import counted
from normae.report.page import markdown_table
from normae.report.paper import BAYES, DUAL, TOY, PaperValue
from normae.runs.ensemble import gather, made_of
from normae.runs.folder import RunFolder, locked, read_json
from normae.runs.session import train
from normae.runs.writing import Watch
from normae.sources import KINDS, PUBLIC_JETS, jets_path
from normae.statistics import Estimate


@dataclass(frozen=True)
class Settings:
    """How a reproduction is made."""

    scratch: bool = False  # train all models from nothing, instead of taking the zoo's weights; hours on a CPU
    configs: Path | None = None  # folder of the presets for that; by default those of the package or of the clone
    seed: int = 0  # of the new trainings
    device: str = "auto"
    data: Path | None = None  # jets to judge on; NORMAE_JETS where it is None, or the public ones of the package
    generated: int | None = None  # jets to generate with each model, as in `evaluate`
    overrides: tuple[str, ...] = ()  # of the new trainings, "section.key=value"
    paper: bool = False  # the paper's settings and lengths only


@dataclass
class Reproduction:
    """What was made."""

    metrics: dict[str, Metrics] = field(default_factory=dict)  # of every run and dual test, by its name
    tables: dict[str, Rows] = field(default_factory=dict)  # rows of cells by title, the first row a header
    left_out: list[str] = field(default_factory=list)  # models that are neither in the zoo nor trained
    notes: list[str] = field(default_factory=list)  # what could not be made of what was there, and why

    def show(self, tables: dict[str, Rows]) -> None:
        """Tables of jets by name, in the order of the paper; one without a row below its header is not there."""
        self.tables = {title: tables[name] for name, title in jets.TITLES.items() if len(tables.get(name, ())) > 1}

    def numbers(self) -> dict[str, Any]:
        """As JSON holds them."""
        return {name: {of: one._asdict() for of, one in found.items()} for name, found in self.metrics.items()}

    def write(self, out: Path) -> None:
        """table.md with all tables and what is not in them, and table.json with all numbers."""
        pieces = [f"## {title}\n\n{markdown_table(rows)}\n" for title, rows in self.tables.items()]
        if self.left_out:
            pieces.append(f"Not in the zoo, so left out: {', '.join(self.left_out)}.\n")
        pieces += [f"{note}\n" for note in self.notes]
        with locked(out):
            write_text(out / "table.md", "\n".join(pieces))
            write_json(out / "table.json", self.numbers())


def run_of_model(
    name: str, preset: str, overrides: Sequence[str], seed: int, out: Path, settings: Settings, watch: Watch | None
) -> RunFolder:
    """Where a model is: copied from the zoo, or its preset trained, or gone on with; another run there is refused."""
    folder = _folder(name, out, settings)
    if not settings.scratch:
        files = [source for source in zoo.path(name).iterdir() if source.is_file()]
        for source in files:
            target, decisive = folder.path / source.name, source.name in ("config.toml", "model.safetensors")
            if decisive and target.exists() and target.read_bytes() != source.read_bytes():
                raise InputError(f"{folder.path}: holds another run; choose another --out")
        with locked(folder.path):
            for source in files:
                with atomic_path(folder.path / source.name) as temporary:
                    shutil.copyfile(source, temporary)
        return folder
    config = replace(read(preset_path(preset, settings.configs), overrides), seed=seed)
    if not train(config, folder.path, resume=folder.config.exists(), watch=watch):
        raise Interrupted("stopped; the same command goes on where it was")
    return folder


def _folder(name: str, out: Path, settings: Settings) -> RunFolder:
    return RunFolder(out / ("scratch" if settings.scratch else "zoo") / name)


SECTIONS: dict[str, tuple[str, tuple[PaperValue, ...], dict[str, tuple[str, ...]]]] = {
    "toy": ("Section 3.2: the NAE on the two-Gaussian toy", TOY,
            {"paper settings": ("toy-2gauss-nae-paper",), "best": ("toy-2gauss-nae",)}),
    "bayes": ("Section 3.3: the Bayesian NAE on the two-Gaussian toy", BAYES,
              {"paper settings": ("toy-2gauss-bnae-paper",), "best": ("toy-2gauss-bnae",)}),
    "dual": ("Section 3.4: the dual test, log p_1G - log p_2G", DUAL,
             {"NAE": ("toy-2gauss-nae", "toy-1gauss-nae"), "BNAE": ("toy-2gauss-bnae", "toy-1gauss-bnae")}),
}  # fmt: skip
"""Title, values of the paper, and the models of each column by their names in the zoo, two for a dual test."""


def trained_by(name: str, settings: Settings) -> tuple[str, tuple[str, ...]]:
    """The preset that trains a model of a toy, and what is set besides, the settings' own last."""
    preset = f"toy{'-bayes' if 'bnae' in name else ''}-{'paper' if name.endswith('-paper') else 'best'}"
    overrides: tuple[str, ...] = ("data.density=one-gaussian",) if "1gauss" in name else ()
    if name == "toy-1gauss-bnae":  # each member of the ensemble has an eighth of the events, for as many iterations
        overrides += ("ensemble.events=split", "pretraining.epochs=16", "training.epochs=1000")
    return preset, (*overrides, *settings.overrides)


def reproduce(
    what: str, out: str | Path, settings: Settings | None = None, watch: Watch | None = None, force: bool = False
) -> Reproduction:
    """The paper's figures and tables, ours beside them.

    Args:
        what: "toy", "bayes", "dual", "jets" or "all".
        out: a folder that is new, or was begun before; any other one is replaced with `force` only.
        watch: called with everything that happens to a training.
    """
    out, settings, known = Path(out), settings or Settings(), (*SECTIONS, "jets", "all")
    refuse(what not in known, f"reproduce: expected {', '.join(SECTIONS)}, jets or all, got {what!r}")
    places = [f"{part}{kind}/*" for part in ("", "toy/", "jets/") for kind in ("zoo", "scratch")]
    check_new(out, force or any([*out.glob(place)] for place in places), folder=True)  # its runs tell what it began
    if what == "jets":
        return reproduce_jets(out, settings, watch)
    if what == "all":
        return reproduce_all(out, replace(settings, paper=settings.scratch), watch)
    (section, values, chosen), result = SECTIONS[what], Reproduction()
    if settings.paper and what == "dual":
        chosen = {title: tuple(f"{name}-paper" for name in names) for title, names in chosen.items()}
    elif settings.paper:
        chosen = {"paper settings": chosen["paper settings"]}
    for title, names in chosen.items():
        missing = [] if settings.scratch else [name for name in names if name not in zoo.names()]
        result.left_out += missing
        if not missing:
            runs = [run_of_model(n, *trained_by(n, settings), settings.seed, out, settings, watch) for n in names]
            if len(runs) > 1:
                made = dual(runs[0].path, runs[1].path, out / f"dual-{title.lower()}", force=True).metrics
            else:
                made = evaluate(runs[0].path, device=settings.device)
                report(runs[0].path, force=True)
            result.metrics[title] = made
    refuse(not result.metrics, f"{', '.join(sorted(result.left_out))}: not in the zoo; use --from-scratch")
    columns = list(result.metrics.values())
    rows = [["quantity", "paper", *[f"normae, {title}" for title in result.metrics]]]
    for metric, words, printed, _ in values:
        if any(metric in metrics for metrics in columns):
            rows.append([words, printed, *[str(metrics.get(metric, "—")) for metrics in columns]])
    result.tables[section] = rows
    result.write(out)
    return result


def reproduce_all(out: Path, settings: Settings, watch: Watch | None = None) -> Reproduction:
    """The whole paper, part by part, from scratch with the paper's settings; what is done is not made again."""
    whole, made_with = Reproduction(), repr(settings)
    for part in (*SECTIONS, "jets"):
        file = out / "parts" / f"{part}.json"
        kept = read_json(file) if file.is_file() else {}
        if kept.get("settings") != made_with:
            found = reproduce(part, out / ("jets" if part == "jets" else "toy"), settings, watch, force=True)
            kept = {"settings": made_with, "metrics": found.numbers(), "tables": found.tables, "notes": found.notes}
            write_json(file, kept | {"left_out": found.left_out})
        for name, has in kept["metrics"].items():
            whole.metrics[f"{part}: {name}"] = {of: Estimate(**one) for of, one in has.items()}
        whole.tables |= kept["tables"]
        whole.notes += kept["notes"]
        whole.left_out += kept.get("left_out", [])
        whole.write(out)
    return whole


def reproduce_jets(out: Path, settings: Settings, watch: Watch | None = None) -> Reproduction:
    """Make every figure and table of the section into `out`. What cannot be made is said in a note, not an error."""
    folders = _folders(out, settings, watch)
    asked = {name for name, model in jets.models().items() if not settings.paper or model.variant == jets.BEST}
    result = Reproduction(left_out=sorted(asked - {model.name for model in folders}))
    refuse(not folders, f"{', '.join(result.left_out)}: not in the zoo; use --from-scratch")
    folders |= _modes(folders, out, settings)
    if settings.data is None and jets_path(read(next(iter(folders.values())).config).data, judged=True) == PUBLIC:
        result.notes.append(f"The {PUBLIC_JETS}.")
    runs: dict[JetModel, Judged] = {}
    for model, folder in counted("models", list(folders.items())):
        count = None if model == jets.CLASSIFIER or model.begun else settings.generated  # these generate nothing
        runs[model] = Judged(folder, evaluate(folder.path, True, settings.device, count, settings.data))
        report(folder.path, force=True)
    result.metrics |= {model.name: judged.metrics for model, judged in runs.items()}
    tables = {"tagging": jets.tagging_rows(runs), "generated": jets.generated_rows(runs)}
    result.show(tables)
    result.write(out)
    duals = _dual_tests(runs, out, settings, result)
    temperatures = _estimates(runs, duals, settings, result)
    result.metrics |= duals
    result.show(tables | {"ratio": jets.ratio_rows(duals), "temperature": jets.temperature_rows(temperatures)})
    with figure_style():
        jets.draw_section(runs, RunFolder(out).figures)
        if temperatures:
            jets.draw_compared(temperatures, RunFolder(out).figures)
    result.write(out)
    return result


def _folders(out: Path, settings: Settings, watch: Watch | None) -> dict[JetModel, RunFolder]:
    """The runs, trained or copied from the zoo; an autoencoder is inside the run that began with it."""
    folders: dict[JetModel, RunFolder] = {}
    path = [] if settings.data is None else [f"data.path={settings.data}"]
    for name, model in jets.models().items():
        if settings.paper and model.variant != jets.BEST:
            continue  # the models of that name have the paper's settings
        if settings.scratch and model.begun is not None:
            folders[model] = RunFolder(out / "scratch" / model.begun.name / "pretrained")
        elif settings.scratch or name in zoo.names():
            overrides = [] if model == jets.CLASSIFIER else [*model.variant.overrides, *settings.overrides]
            seed = settings.seed + model.variant.seed
            preset = model.preset.replace("-best-", "-paper-") if settings.paper else model.preset
            folders[model] = run_of_model(name, preset, [*overrides, *path], seed, out, settings, watch)
    return folders


def _modes(folders: dict[JetModel, RunFolder], out: Path, settings: Settings) -> dict[JetModel, RunFolder]:
    """One model out of the trainings with different seeds, where all of them are there."""
    found = {}
    for kind in KINDS:
        model, members = JetModel(kind, "BNAE", jets.MODES), [JetModel(kind, "BNAE", seed) for seed in jets.SEEDED]
        if all(member in folders for member in members):
            run = _folder(model.name, out, settings)
            seeds = [folders[member] for member in members]
            if run.path.exists() and not made_of(run, seeds):
                raise InputError(f"{run.path}: an ensemble of other runs; move it away")
            if not run.path.exists():
                gather([seed.path for seed in seeds], run.path, settings.data if settings.scratch else None)
            found[model] = run
    return found


@contextmanager
def _noted(result: Reproduction, what: str) -> Iterator[None]:
    """A note says why something cannot be made: the runs are judged already, and that is kept."""
    try:
        yield
    except InputError as error:
        result.notes.append(f"Left out, {what}: {error}.")


def _dual_tests(runs: jets.Runs, out: Path, settings: Settings, result: Reproduction) -> dict[str, Metrics]:
    """Of the pairs that are there, by title, against the trained classifier where there is one."""
    found: dict[str, Metrics] = {}
    reference = runs[jets.CLASSIFIER].folder.path if jets.CLASSIFIER in runs else None
    for network, variant in counted("dual tests", jets.DUALS):
        pair = jets.pair_of(network, variant)
        if all(model in runs for model in pair):
            a, b = (runs[model].folder.path for model in pair)
            chosen = DualSettings(draws=50 if network == "BNAE" else None, seed=settings.seed)
            folder = out / f"dual-{network.lower()}{variant.end}"
            with _noted(result, f"the dual test of {pair[0].title}"):
                made = dual(a, b, folder, settings.data, chosen, settings.device, reference, force=True)
                found[pair[0].title] = made.metrics
    return found


def _estimates(runs: jets.Runs, duals: dict[str, Metrics], settings: Settings, result: Reproduction) -> jets.Compared:
    """Estimates for some pairs whose dual test tells at which T the slope is 1."""
    pairs: dict[str, jets.ComparedPair] = {}
    for network, variant in jets.ESTIMATED:
        a, b = jets.pair_of(network, variant)
        slope = duals.get(a.title, {}).get("slope_classifier_c0")
        if slope is not None and slope.value > 0:
            pairs[a.title] = (runs[a].folder, runs[b].folder, slope)
    with _noted(result, "the temperatures"):
        return jets.compare_temperatures(pairs, settings.data, settings.device) if pairs else []
    return []
