"""Section 3.2 of the paper again: its figures and table, theirs beside ours, from the zoo or from scratch."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from normae import zoo
from normae.config import preset_path, read
from normae.errors import InputError, Interrupted
from normae.files import atomic_path, write_json, write_text
from normae.runs import RunFolder, locked
from normae.statistics import Estimate
from normae.workflow.evaluate import evaluate
from normae.workflow.paper import TOY, markdown_table
from normae.workflow.reporting import report
from normae.workflow.train import Watch, train

MODELS = {"paper settings": ("toy-2gauss-nae-paper", "toy-paper"), "best": ("toy-2gauss-nae", "toy-best")}

Table = dict[str, dict[str, Estimate]]


def reproduce_toy(
    out: str | Path, scratch: bool = False, configs: Path | None = None, seed: int = 0, watch: Watch | None = None
) -> Table:
    """Evaluate the two toy models, draw every figure, write the table, and return it.

    Args:
        out: folder for the runs, `table.md` and `table.json`.
        scratch: train both from nothing, instead of taking the zoo's weights; hours on a CPU.
        configs: folder of the presets, for `scratch`; by default those of the package or of the clone.
        seed: of the new trainings.
        watch: display of the trainings.
    """
    out = Path(out)
    table: Table = {}
    for title, (name, preset) in MODELS.items():
        folder = RunFolder(out / ("scratch" if scratch else "zoo") / name)
        if scratch:
            _train(folder, preset_path(preset, configs), seed, watch)
        else:
            _copy(name, folder)
        table[title] = evaluate(folder.path)
        report(folder.path)
    write_text(out / "table.md", markdown(table))
    write_json(out / "table.json", {title: _plain(metrics) for title, metrics in table.items()})
    return table


def _train(folder: RunFolder, preset: Path, seed: int, watch: Watch | None) -> None:
    config = replace(read(preset), seed=seed)
    if not train(config, folder.path, resume=folder.config.exists(), watch=watch):
        raise Interrupted("stopped; the same command goes on where it was")


def _copy(name: str, folder: RunFolder) -> None:
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


def _plain(metrics: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: {"value": m.value, "error": m.error} for name, m in metrics.items()}


def rows(table: Table) -> list[list[str]]:
    """The table's cells: quantity, the paper's value, then ours for each model."""
    return [
        [v.title, v.value, *[str(metrics.get(v.metric, "—")) for metrics in table.values()]]
        for v in TOY
        if any(v.metric in metrics for metrics in table.values())
    ]


def header(table: Table) -> Sequence[str]:
    """The table's column titles."""
    return ["quantity", "paper", *[f"normae, {title}" for title in table]]


def markdown(table: Table) -> str:
    """The table as Markdown."""
    return markdown_table([header(table), *rows(table)]) + "\n"
