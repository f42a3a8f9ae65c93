"""A study of a run: how it is judged, drawn, reported and described. One class for each kind of data.

`study_of` chooses the class once; who calls `judge`, `page` and `card` does not ask which it is. Here is what all kinds
share, and `evaluate` and `report`, which write what a study says into a run.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from normae.config import Run, read
from normae.dual.output import short_name
from normae.errors import InputError, refuse
from normae.figures import PANEL, figure_style, new_figure
from normae.figures.curves import pretraining_curve
from normae.files import Place, check_new, output, write_json
from normae.report import Check, Comparison, Picture, Report, Status, render, save_figure
from normae.report.page import Columns, markdown_table
from normae.report.paper import PaperValue
from normae.runs.folder import RunFolder, locked
from normae.statistics.arrays import Array, Estimate, line_mean

Metrics = dict[str, Estimate]
Draw = Callable[[], None]
Captions = dict[str, tuple[str, str]]
OPTIONAL = ("pretraining", "training", "generated", "generated-jets")  # figures that a run may lack
COURSE = (
    "Course of the training",
    "Energies of data and of samples in units of T, which meet; the temperature; the share of accepted steps.",
)


class Study(ABC):
    """One kind of run: its folder, and its configuration, which may name another place of the data than the folder."""

    needed: ClassVar[tuple[str, ...]] = ()  # metrics without which there is no page
    own: ClassVar[Mapping[str, str]] = {}  # metrics beside the paper's that a card states, with their words
    stated: ClassVar[Mapping[str, str]] = {}  # metrics among the facts of the page, with their words
    of_jets: ClassVar[bool] = False

    def __init__(self, run: RunFolder, config: Run) -> None:
        self.run, self.config = run, config

    @abstractmethod
    def judge(self, device: str, generated: int | None) -> tuple[Metrics, Draw]:
        """The metrics of the run, and a function that draws its figures."""

    @abstractmethod
    def title(self) -> str:
        """What the model is, in a few words."""

    @abstractmethod
    def summary(self, metrics: Metrics) -> str:
        """The first paragraph of the page."""

    @abstractmethod
    def sample(self) -> dict[str, str]:
        """What it was trained and judged on, by a short name."""

    @abstractmethod
    def checks(self, metrics: Metrics) -> list[Check]:
        """What a reader should know before trusting the result."""

    @abstractmethod
    def captions(self, metrics: Metrics) -> Captions:
        """Title and sentence of each figure."""

    @abstractmethod
    def limits(self) -> str:
        """What the model does not say."""

    def numbers(self, metrics: Metrics) -> dict[str, str | Estimate]:
        """Facts of the page that were measured."""
        return {words: metrics[name] for name, words in self.stated.items() if name in metrics}

    def values(self) -> Sequence[PaperValue]:
        """The paper's values for such a run."""
        return ()

    def choices(self) -> str:
        """A section of the card, with its heading; empty for none."""
        return ""

    def settings(self) -> dict[str, str]:
        """How it was trained, by a short name."""
        config, training, sampling = self.config, self.config.training, self.config.sampling
        first = config.pretraining
        start = f"{first.epochs} epochs, batch {first.batch}, learning rate {first.learning_rate:g}"
        if config.contrast is not None:
            known = "a Gaussian" if config.base is None else "draws of the base"
            start = f"at most {config.contrast.iterations:,} updates of a classification against {known}"
        elif config.start:
            start = f"from {config.start}"
        network = config.network
        body = f"MLP {list(network.hidden)} and its mirror, {network.activation}"
        if network.kind == "conv":
            body = f"convolutional, {network.channels} channels, {network.output} output"
        sphere = " on a sphere" if network.latent_space == "sphere" else ""
        norm = ", spectral normalization" if network.spectral_norm else ""
        found = {"network": f"{body}, {network.latent} latent dimensions{sphere}{norm}", "pretraining": start}
        if training.epochs:
            adapted = f", step adapted to acceptance {sampling.feature.adapt:g}" if sampling.feature.adapt else ""
            length = f"{training.epochs} epochs" if training.iterations is None else f"{training.iterations:,} updates"
            penalties = {"negative-energy penalty": training.negative_penalty, "L2 penalty": training.l2_penalty}
            buffer = f"{sampling.buffer:,} points in {sampling.buffer_space} space"
            words = f"{length}, batch {training.batch}, learning rate {training.learning_rate:g} ({training.schedule})"
            more = [f", {name} {value:g}" for name, value in penalties.items() if value]
            found["training"] = "".join([f"{words}, average {training.average:g}", *more])
            found["latent chain"] = sampling.latent.describe()
            found["feature chain"] = sampling.feature.describe() + adapted
            found["replay buffer"] = f"{buffer}, replay {sampling.replay:g}"
        found["temperature"] = f"{config.temperature.initial:g} ({_trained(config)})"
        return found | ({"posterior": posterior_words(config)} if config.posteriors else {})

    def page(self, metrics: Metrics) -> Report:
        """The report: what ran, whether to trust it, each figure with a sentence, the paper's values beside ours."""
        for one in self.needed:
            refuse(one not in metrics, f"{self.run.metrics}: lacks {one}; run `normae evaluate {self.run.path}` again")
        ran = self.run.read_provenance()
        facts: dict[str, str | Estimate] = {"preset": self.config.name, **self.sample(), **self.settings()}
        if "temperature" in metrics:
            facts["temperature"] = f"{metrics['temperature'].value:.4g} ({_trained(self.config)})"
        facts |= self.numbers(metrics)
        facts["device"] = f"{ran['device']}, backend {ran['backend']}"
        facts["wall time of the training"] = f"{ran['wall_seconds']:.0f} s"
        facts["seed"] = str(self.config.seed)
        facts["versions"] = f"normae {ran['normae']}, torch {ran['torch']}, Python {ran['python']}"
        pictures = []
        for name, (title, sentence) in self.captions(metrics).items():
            path = self.run.figures / f"{name}.svg"
            if path.is_file():
                pictures.append(Picture(title, path.read_text(encoding="utf-8"), sentence))
            elif name not in OPTIONAL:
                raise InputError(f"{path}: missing; run `normae evaluate {self.run.path}` first")
        known = [value for value in self.values() if value.metric in metrics]
        compared = [Comparison(v.title, v.value, metrics[v.metric], v.note) for v in known]
        title = f"{short_name(self.run.path.resolve())}: {self.title()}"
        again = f"normae evaluate {self.run.path} and normae report {self.run.path}"
        footer = f"normae {ran['normae']}, commit {ran['commit'] or 'unknown'}; made again by {again}"
        return Report(title, self.summary(metrics), facts, self.checks(metrics), compared, pictures, footer)

    def card(self, name: str, members: Sequence["Study"], coverage: str) -> str:
        """The model card in Markdown, with the studies of all seeds, and a section on their coverage or nothing."""
        facts, seeds = self.run.read_provenance(), [member.config.seed for member in members]
        digest = facts.get("data_sha256") or "unknown"
        lines, accepted = [one for one in self.run.read_history() if one.get("latent_acceptance") is not None], ""
        if lines:
            latent, feature = lines[-1]["latent_acceptance"], lines[-1]["feature_acceptance"]
            accepted = f"\nAcceptance at the end: latent {latent:.3f}, feature {feature:.3f}."
        which = f" Seeds {seeds} were trained; seed {self.config.seed} ships, and the metrics of all that were\n"
        return f"""# {name}

{self.title()[0].upper()}{self.title()[1:]}; preset `{self.config.name}`.

## Data

{"; ".join(f"{what}: {words}" for what, words in self.sample().items())}
(SHA-256 of the training events {str(digest if isinstance(digest, str) else digest[0])[:16]}...).

## Settings

{chr(10).join(f"- {what}: {words}" for what, words in self.settings().items())}
{self.choices()}
## Training

{facts["wall_seconds"]:.0f} s on {facts["device"]} (backend `{facts["backend"]}`, torch {facts["torch"]},
commit `{facts["commit"]}`), {facts["rollbacks"]} rollbacks.{which + "evaluated are below." if len(seeds) > 1 else ""}\
{accepted}

## Metrics

{metrics_table([member for member in members if member.run.metrics.is_file()])}
{coverage}
## Limits

{self.limits()}
"""

    def health(self, spread: float = 1.0) -> list[Check]:
        """What can be said of any training; `spread` is how far E/T of single events goes."""
        if not (lines := self.lines("training")):
            return [self.stability()]
        tail = lines[-max(4, len(lines) // 10) :]
        gaps = np.array([(line["positive_energy"] - line["negative_energy"]) / line["temperature"] for line in tail])
        gap, error = line_mean(gaps) if len(gaps) > 1 else (float(gaps[0]), 0.0)
        status = graded(abs(gap), max(0.02 * spread, 2 * error), max(0.1 * spread, 5 * error))
        said = f"(E⁺ − E⁻)/T is {gap:+.4f} ± {error:.4f} over the end of the training; it vanishes where samples follow"
        longer = "Train longer (training.epochs, training.iterations), or let the chains walk further"
        meet = Check("energies meet", status, f"{said} the data.", f"{longer} (sampling.feature.steps).")
        return [meet, acceptance_check(lines, self.config), self.stability()]

    def stability(self) -> Check:
        """Whether the training ran away."""
        count = int(self.run.read_provenance()["rollbacks"])
        said = f"It ran away and was rolled back {count} times." if count else "The training never ran away."
        rates = {f"{one['phase']}.learning_rate" for one in self.run.read_history() if "rollback" in one}
        remedy = f"Lower {' and '.join(sorted(rates)) or 'training.learning_rate'}, and look for rows far from others."
        return good_if("stability", not count, said, remedy)

    def lines(self, phase: str) -> list[dict[str, Any]]:
        """The lines of a phase: "training" of an NAE, "contrast" of a start by classification."""
        return [one for one in self.run.read_history() if one["phase"] == phase and "rollback" not in one]


def metrics_table(members: Sequence[Study]) -> str:
    """The paper's values beside those of every member, and what was measured besides, in Markdown."""
    metrics = [member.run.read_metrics() for member in members]
    rows = [["quantity", "paper", *[f"seed {member.config.seed}" for member in members]]]
    named = [(v.metric, v.title, v.value) for v in members[0].values()]
    for metric, title, printed in [*named, *((name, title, "—") for name, title in members[0].own.items())]:
        if any(metric in found for found in metrics):
            ours = [Estimate(**found[metric]) if metric in found else None for found in metrics]
            cells = ["—" if n is None else f"{n.value:,.0f}" if metric == "generated_jets" else str(n) for n in ours]
            rows.append([title, printed, *cells])
    return markdown_table(rows)


def _trained(config: Run) -> str:
    return "trained" if config.temperature.trained else "fixed"


def posterior_words(config: Run) -> str:
    """What the posterior of a Bayesian run is."""
    events = {  # how the members of an ensemble share them
        "all": "all on the same events", "bootstrap": "each on its own bootstrap of the events",
        "half": "in pairs, on the two halves of a random cut of the events",
        "split": "each on its own part of the events",
    }  # fmt: skip
    if config.modes and config.ensemble is not None:
        mean_field = posterior_words(replace(config, ensemble=None))
        return f"mixture of {config.ensemble.members} trainings, {events[config.ensemble.events]}, each a {mean_field}"
    if config.ensemble is not None:
        return f"ensemble of {config.ensemble.members} models, {events[config.ensemble.events]}"
    own = config.bayesian
    assert own is not None
    return f"mean field, {own.layers} weights, prior width {own.prior_width:g}, {own.training} draws"


def graded(value: float, good: float, warning: float) -> Status:
    """Good below one bound, a warning below the other."""
    return "good" if value < good else "warning" if value < warning else "bad"


def good_if(name: str, holds: bool, sentence: str, remedy: str = "") -> Check:
    """A check that is good or a warning."""
    return Check(name, "good" if holds else "warning", sentence, remedy)


def acceptance_check(lines: Sequence[Mapping[str, Any]], config: Run, kind: str = "feature") -> Check:
    """Whether the feature chain, or the latent one, samples, and by which test."""
    accepted, chain = lines[-1][f"{kind}_acceptance"], getattr(config.sampling, kind)
    name = "acceptance" if kind == "feature" else "latent chain"
    if chain.metropolis == "off":
        said = f"The {kind} chain ran without a Metropolis test, so it is not exact."
        remedy = f'Set sampling.{kind}.metropolis = "exact", with a smaller step where it then accepts too little.'
        return good_if(name, False, said, remedy)
    long, short = accepted < 0.3, accepted > 0.95
    advice = "its steps could be longer" if short else "its steps are long" if long else "as it should"
    test = "exact" if chain.exact else "approximate"
    said = f"The {kind} chain accepts {100 * accepted:.1f} % ({advice}); the test is {test}."
    remedy = f"{'Raise' if short else 'Lower'} sampling.{kind}.step_size"
    if kind == "feature":
        remedy += ", or let sampling.feature.adapt = 0.7 choose it"
    return good_if(name, not (long or short), said, f"{remedy}.")


def draw_one(
    run: RunFolder, name: str, columns: Columns, draw: Callable[..., Any], *shown: Any, panel: Any = PANEL, **how: Any
) -> None:
    """Write figures/NAME, one panel that `draw(ax, *shown, **how)` fills, and its numbers, `columns`."""
    figure, axes = new_figure(panel=panel)
    draw(axes[0, 0], *shown, **how)
    save_figure(figure, run.figures, name, columns)


def draw_pretraining(run: RunFolder) -> bool:
    """Write figures/pretraining, and say whether there was something to draw: not for a run that started elsewhere."""
    wanted = ("epoch", "positive_energy", "validation_energy")
    lines = [one for one in run.read_history() if one["phase"] == "pretraining" and all(name in one for name in wanted)]
    if not lines:
        return False
    epoch, train, held = (np.array([line[name] for line in lines]) for name in wanted)
    columns: dict[str, Array] = {"epoch": epoch, "training": train, "validation": held}
    levels = {}
    for name, pair in run.read_provenance().get("baselines", {}).items():
        words = "mean image" if name == "mse_mean_event" else f"{name.split('_')[1]} principal components"
        levels[words] = float(pair["value"])
        columns[name] = np.full(len(epoch), levels[words])
    draw_one(run, "pretraining", columns, pretraining_curve, epoch, train, held, levels)
    return True


def draw_training(study: Study, draw: Callable[[Any, Any], Any], panels: int, names: Sequence[str] = ()) -> None:
    """figures/pretraining, and figures/training by `draw(axes, lines)`; `names` are its columns, by default all."""
    draw_pretraining(study.run)
    lines = study.lines("training")
    if not lines:
        return
    figure, axes = new_figure(1, panels)
    draw(axes[0], lines)
    names = names or [name for name, value in lines[0].items() if isinstance(value, int | float)]
    rows = {name: [line.get(name) for line in lines] for name in names}
    columns = {name: np.array([np.nan if n is None else n for n in row]) for name, row in rows.items()}
    save_figure(figure, study.run.figures, "training", columns)


def study_of(run: RunFolder, data: Place | None = None) -> Study:
    """The study of a run; `data` are other jets than its configuration names. Only the file of its class is read."""
    config = read(run.config)
    place = ("toy_posterior", "BayesianToyStudy") if config.posteriors else ("toy", "ToyStudy")
    if config.classifier is not None:
        place = ("jets", "ClassifierStudy")
    elif config.coordinates.kind == "components":
        place = ("jet_study", "ComponentsStudy")
    elif config.data.jets is not None:
        place = ("jet_study", "JetStudy")
    elif config.data.file is not None:
        place = ("table", "TableStudy")
    kind: type[Study] = getattr(import_module(f"normae.evaluation.{place[0]}"), place[1])
    if data is not None and kind.of_jets:
        config = replace(config, data=replace(config.data, path=str(data)))
    return kind(run, config)


def evaluate(
    path: Place, figures: bool = True, device: str = "auto", generated: int | None = None, data: Place | None = None
) -> Metrics:
    """Write metrics.json and figures/ of the run at `path`, and return the metrics.

    Args:
        figures: whether to draw.
        device: where to compute.
        generated: jets to generate from a run on jets; None for `evaluation.generated` on CUDA and none on a CPU.
        data: jets to judge a run on jets on, a folder or a file, where they are not where the run found them.
    """
    run = RunFolder.existing(path)
    study = study_of(run, data)
    if not study.of_jets and (generated is not None or data is not None):
        raise InputError(f"{path}: --generated and --jets are for runs on jets, and this is not one")
    with locked(run.path):
        metrics, draw = study.judge(device, generated)
        write_json(run.metrics, {name: one._asdict() for name, one in metrics.items()})
        if figures:
            with figure_style():
                draw()
    return metrics


def report(path: Place, force: bool = False) -> Path:
    """Write report.html of the evaluated run at `path` and return where it is; `force` replaces one."""
    run = RunFolder.existing(path)
    check_new(run.report, force)
    study = study_of(run)
    metrics = {name: Estimate(m["value"], m["error"]) for name, m in run.read_metrics().items()}
    with locked(run.path), output(run.report, force) as temporary:
        temporary.write_text(render(study.page(metrics)), encoding="utf-8")
    return run.report
