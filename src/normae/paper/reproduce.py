"""Sections 3.2 to 3.4 of the paper again: figures and table, theirs beside ours, from the zoo or from scratch."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from normae import zoo
from normae.config import read
from normae.errors import InputError, Interrupted
from normae.evaluation.toy import evaluate
from normae.evaluation.toy_page import report
from normae.files import atomic_path, write_json, write_text
from normae.presets import preset_path
from normae.report.paper import BAYES, DUAL, TOY, PaperValue, markdown_table
from normae.runs.folder import RunFolder, locked
from normae.runs.session import train
from normae.runs.writing import Watch
from normae.statistics import Estimate

Table = dict[str, dict[str, Estimate]]


class Source(NamedTuple):
    """A model: its name in the zoo, its preset, and what is set besides."""

    name: str
    preset: str
    overrides: tuple[str, ...] = ()


class Section(NamedTuple):
    """A section of the paper: its title, its values, and by title the zoo's model and the preset, or pairs of them."""

    title: str
    values: tuple[PaperValue, ...]
    models: dict[str, tuple[Source, ...]]


ONE = ("data.density=one-gaussian",)
NAE, NAE_PAPER = Source("toy-2gauss-nae", "toy-best"), Source("toy-2gauss-nae-paper", "toy-paper")
BNAE, BNAE_PAPER = Source("toy-2gauss-bnae", "toy-bayes-best"), Source("toy-2gauss-bnae-paper", "toy-bayes-paper")
NAE_ONE = Source("toy-1gauss-nae", "toy-best", ONE)
SPLIT = ("ensemble.events=split", "pretraining.epochs=16", "training.epochs=1000")
"""An ensemble in which each member has an eighth of the events, for as many iterations."""
BNAE_ONE = Source("toy-1gauss-bnae", "toy-bayes-best", (*ONE, *SPLIT))
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


def reproduce(
    what: str,
    out: str | Path,
    scratch: bool = False,
    configs: Path | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> Table:
    """Make the figures of a section and its table, the paper's values beside ours, and return the table.

    Args:
        what: a key of `SECTIONS`.
        out: folder for the runs, `table.md` and `table.json`.
        scratch: train all models from nothing, instead of taking the zoo's weights; hours on a CPU.
        configs: folder of the presets, for `scratch`; by default those of the package or of the clone.
        seed: of the new trainings.
        watch: display of the trainings.
    """
    if what not in SECTIONS:
        raise InputError(f"reproduce: expected {' or '.join(SECTIONS)} or jets, got {what!r}")
    out, section = Path(out), SECTIONS[what]
    table: Table = {}
    for title, sources in section.models.items():
        if not scratch and any(source.name not in zoo.names() for source in sources):
            continue
        folders = [RunFolder(out / ("scratch" if scratch else "zoo") / source.name) for source in sources]
        for folder, source in zip(folders, sources, strict=True):
            if scratch:
                train_source(folder, preset_path(source.preset, configs), source.overrides, seed, watch)
            else:
                copy_model(source.name, folder)
        table[title] = _judged(folders, out, title)
    if not table:
        missing = sorted({source.name for sources in section.models.values() for source in sources} - set(zoo.names()))
        raise InputError(f"{', '.join(missing)}: not in the zoo; use --from-scratch")
    write_text(out / "table.md", markdown(what, table))
    write_json(out / "table.json", {title: plain(metrics) for title, metrics in table.items()})
    return table


def _judged(folders: list[RunFolder], out: Path, title: str) -> dict[str, Estimate]:
    """One run against its density, or two in the dual test."""
    if len(folders) == 1:
        metrics = evaluate(folders[0].path)
        report(folders[0].path)
        return metrics
    from normae.dual.test import dual

    return dual(folders[0].path, folders[1].path, out=out / f"dual-{title.lower()}").metrics


def train_source(folder: RunFolder, preset: Path, overrides: Sequence[str], seed: int, watch: Watch | None) -> None:
    """Train a preset into a folder, or go on with what is there."""
    config = replace(read(preset, overrides), seed=seed)
    if not train(config, folder.path, resume=folder.config.exists(), watch=watch):
        raise Interrupted("stopped; the same command goes on where it was")


def copy_model(name: str, folder: RunFolder) -> None:
    """Copy a model of the zoo into a run folder; one that holds another run is refused."""
    if name not in zoo.names():
        raise InputError(f"{name}: not in the zoo ({', '.join(zoo.names())}); use --from-scratch")
    files = [source for source in zoo.path(name).iterdir() if source.is_file()]
    for source in files:
        target = folder.path / source.name
        decisive = source.name in ("config.toml", "model.safetensors")
        if decisive and target.exists() and target.read_bytes() != source.read_bytes():
            raise InputError(f"{folder.path}: holds another run; choose another --out")
    with locked(folder.path):
        for source in files:
            with atomic_path(folder.path / source.name) as temporary:
                shutil.copyfile(source, temporary)


def plain(metrics: Mapping[str, Estimate]) -> dict[str, Any]:
    """Metrics as JSON holds them."""
    return {name: {"value": m.value, "error": m.error} for name, m in metrics.items()}


def rows(what: str, table: Table) -> list[list[str]]:
    """The table's cells: quantity, the paper's value, then ours for each model."""
    return [
        [v.title, v.value, *[str(metrics.get(v.metric, "—")) for metrics in table.values()]]
        for v in SECTIONS[what].values
        if any(v.metric in metrics for metrics in table.values())
    ]


def header(table: Table) -> Sequence[str]:
    """The table's column titles."""
    return ["quantity", "paper", *[f"normae, {title}" for title in table]]


def left_out(what: str, table: Table) -> list[str]:
    """Models of a section that are not in the zoo, so that only a training makes them."""
    sources = SECTIONS[what].models
    return sorted({s.name for title in sources if title not in table for s in sources[title]} - set(zoo.names()))


def markdown(what: str, table: Table) -> str:
    """The table as Markdown."""
    return markdown_table([header(table), *rows(what, table)]) + "\n"
