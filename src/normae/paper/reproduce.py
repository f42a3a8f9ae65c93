"""The paper again: figures and tables, theirs beside ours, from the zoo or from scratch. Here sections 3.2 to 3.4."""

from pathlib import Path
from typing import NamedTuple

from normae import zoo
from normae.dual.test import dual
from normae.errors import InputError
from normae.evaluation.evaluate import evaluate, report
from normae.paper.jets import reproduce_jets
from normae.paper.models import Metrics, Reproduction, Settings, copy_model, train_preset
from normae.report.paper import BAYES, DUAL, TOY, PaperValue
from normae.runs.folder import RunFolder
from normae.runs.writing import Watch


class ToyModel(NamedTuple):
    """A model: its name in the zoo, its preset, and what is set besides."""

    name: str
    preset: str
    overrides: tuple[str, ...] = ()


class Section(NamedTuple):
    """A section of the paper: its title, its values, and the models of each column, two for a dual test."""

    title: str
    values: tuple[PaperValue, ...]
    models: dict[str, tuple[ToyModel, ...]]


ONE = ("data.density=one-gaussian",)
NAE, NAE_PAPER = ToyModel("toy-2gauss-nae", "toy-best"), ToyModel("toy-2gauss-nae-paper", "toy-paper")
BNAE, BNAE_PAPER = ToyModel("toy-2gauss-bnae", "toy-bayes-best"), ToyModel("toy-2gauss-bnae-paper", "toy-bayes-paper")
NAE_ONE = ToyModel("toy-1gauss-nae", "toy-best", ONE)
SPLIT = ("ensemble.events=split", "pretraining.epochs=16", "training.epochs=1000")
"""An ensemble in which each member has an eighth of the events, for as many iterations."""
BNAE_ONE = ToyModel("toy-1gauss-bnae", "toy-bayes-best", (*ONE, *SPLIT))
SECTIONS = {
    "toy": Section(
        "Section 3.2: the NAE on the two-Gaussian toy", TOY, {"paper settings": (NAE_PAPER,), "best": (NAE,)}
    ),
    "bayes": Section(
        "Section 3.3: the Bayesian NAE on the two-Gaussian toy",
        BAYES,
        {"paper settings": (BNAE_PAPER,), "best": (BNAE,)},
    ),
    "dual": Section(
        "Section 3.4: the dual test, log p_1G - log p_2G", DUAL, {"NAE": (NAE, NAE_ONE), "BNAE": (BNAE, BNAE_ONE)}
    ),
}


def reproduce(what: str, out: str | Path, settings: Settings | None = None, watch: Watch | None = None) -> Reproduction:
    """Make the figures and tables of a part of the paper into `out`, with table.md and table.json.

    Args:
        what: "toy", "bayes", "dual" or "jets".
        watch: display of the trainings.
    """
    out, settings = Path(out), settings or Settings()
    if what == "jets":
        return reproduce_jets(out, settings, watch)
    if what not in SECTIONS:
        raise InputError(f"reproduce: expected {' or '.join(SECTIONS)} or jets, got {what!r}")
    section, result = SECTIONS[what], Reproduction()
    for title, models in section.models.items():
        missing = [] if settings.scratch else [model.name for model in models if model.name not in zoo.names()]
        result.left_out += missing
        if not missing:
            result.metrics[title] = _judged(models, out, title, settings, watch)
    if not result.metrics:
        raise InputError(f"{', '.join(sorted(result.left_out))}: not in the zoo; use --from-scratch")
    columns = list(result.metrics.values())
    result.tables[section.title] = [["quantity", "paper", *[f"normae, {title}" for title in result.metrics]]] + [
        [v.title, v.value, *[str(metrics.get(v.metric, "—")) for metrics in columns]]
        for v in section.values
        if any(v.metric in metrics for metrics in columns)
    ]
    result.write(out)
    return result


def _judged(models: tuple[ToyModel, ...], out: Path, title: str, settings: Settings, watch: Watch | None) -> Metrics:
    """One run against its density, or two in the dual test."""
    folders = [RunFolder(out / ("scratch" if settings.scratch else "zoo") / model.name) for model in models]
    for folder, model in zip(folders, models, strict=True):
        if settings.scratch:
            train_preset(folder, model.preset, model.overrides, settings.seed, settings, watch)
        else:
            copy_model(model.name, folder)
    if len(folders) > 1:
        return dual(folders[0].path, folders[1].path, out=out / f"dual-{title.lower()}").metrics
    metrics = evaluate(folders[0].path, device=settings.device)
    report(folders[0].path)
    return metrics
