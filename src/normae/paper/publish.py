"""Put a trained model into the zoo: its run folder without the checkpoint, and a card that states what it is."""

import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from normae.config import Run, read, to_toml
from normae.errors import InputError
from normae.evaluation.jet_card import jet_card
from normae.evaluation.toy_page import posterior_words
from normae.evaluation.toy_posterior import LEVELS
from normae.files import write_json, write_text
from normae.report.paper import BAYES, TOY, markdown_table
from normae.runs.folder import RunFolder
from normae.statistics import Estimate

KEPT_LINES = 200
"""Of the training's history, evenly spaced."""
MOST_BYTES = 900_000
"""Of weights: a model of the zoo stays below a megabyte."""


def publish(group: str | Path, seed: int, target: str | Path) -> Path:
    """Copy the evaluated run of `seed` out of a folder of seeds to `target`, with a card over all that are evaluated.

    A run folder serves too, as a group of one. Paths of this machine stay out of what is copied. What `normae coverage`
    found for the folder is in the card.
    """
    members = RunFolder(group).members() or [RunFolder.existing(group)]
    chosen = [m for m in members if read(m.config).seed == seed]
    if not chosen:
        raise InputError(f"{group}: holds no run with seed {seed}")
    target = Path(target)
    if target.exists() and not (target / "card.md").is_file() and (target.is_file() or any(target.iterdir())):
        raise InputError(f"{target}: expected a new folder or a model of a zoo to replace, got another one")
    chosen[0].read_metrics()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.part") as folder:
        part = RunFolder(Path(folder) / target.name)
        part.path.mkdir()
        _fill(part, chosen[0], members, RunFolder(group))
        if target.exists():
            shutil.rmtree(target)
        part.path.rename(target)
    return target


def _fill(part: RunFolder, run: RunFolder, members: list[RunFolder], group: RunFolder) -> None:
    """Write what belongs to a model of the zoo."""
    jets = read(run.config).data.jets is not None
    for source in (run.config, run.model, run.metrics, run.provenance, *_start(run)):
        shutil.copyfile(source, part.path / source.name)
    write_text(part.path / "metrics.jsonl", _thinned(run))
    if jets:
        _without_paths(run, part)
    name = part.path.name
    write_text(part.path / "card.md", jet_card(name, part, members) if jets else card(name, part, members, group))


def _start(run: RunFolder) -> list[Path]:
    """The weights that an NAE would begin with, of an autoencoder that has them and is small enough for both."""
    if not run.start.is_file() or run.model.stat().st_size + run.start.stat().st_size > MOST_BYTES:
        return []
    return [run.start]


def _without_paths(run: RunFolder, target: RunFolder) -> None:
    """The configuration and provenance of a run on jets without the places where jets and start lay."""
    config, facts = read(run.config), run.read_provenance()
    start = None if config.start is None else Path(config.start).name
    write_text(target.config, to_toml(replace(config, start=start, data=replace(config.data, path=None))))
    if isinstance(facts.get("start"), dict):
        facts["start"] = {name: Path(v).name if name == "run" else v for name, v in facts["start"].items()}
    write_json(target.provenance, facts)


def _thinned(run: RunFolder) -> str:
    lines = run.read_history()
    step = -(-len(lines) // KEPT_LINES)
    return "".join(json.dumps(line) + "\n" for line in lines[step - 1 :: step])


def card(name: str, run: RunFolder, members: list[RunFolder], group: RunFolder) -> str:
    """The model card in Markdown."""
    config, facts = read(run.config), run.read_provenance()
    seeds = [read(m.config).seed for m in members]
    bounds = list(config.sampling.feature.bounds or ())
    kind = "Bayesian normalized" if config.posteriors else "normalized"
    return f"""# {name}

A {kind} autoencoder on the density `{config.data.density}`, preset `{config.name}`{_changes(config)}.

## Data

{config.data.train:,} training events drawn from the density with seed {config.seed}
(SHA-256 {facts["data_sha256"][:16]}...), and {config.data.test:,} test events from another stream of the same seed.

## Settings

{_settings(config)}

## Training

Seeds {seeds} were trained side by side in {facts["wall_seconds"]:.0f} s on {facts["device"]}
(backend `{facts["backend"]}`, torch {facts["torch"]}, commit `{facts["commit"]}`).
Seed {config.seed} ships; the metrics of all that were evaluated are below.{_precision(facts["backend"])}

## Metrics

Each seed has its own training sample and its own test sample. Errors are statistical.

{_table([m for m in members if m.metrics.is_file()])}
{_coverage(group)}
## Limits

Trained on points within about four standard deviations of the peaks: further out the likelihood is an extrapolation.
log p is normalized over the box {bounds} in each coordinate and is not a probability density beyond it.
{_uncertainty(config)}
"""


def _changes(config: Run) -> str:
    """What was set besides the preset, where there is a preset of that name."""
    try:
        preset = tomllib.loads(to_toml(read(config.name)))
    except InputError:
        return ""
    found = tomllib.loads(to_toml(config))
    changed = [
        f"`{table}.{name} = {value}`"
        for table, content in found.items()
        if isinstance(content, dict)
        for name, value in content.items()
        if not isinstance(value, dict) and preset.get(table, {}).get(name) != value
    ]
    return f" with {', '.join(changed)}" if changed else ""


def _coverage(group: RunFolder) -> str:
    """Coverage over the trainings of a group, where it has been judged, as a section."""
    file = group.path / "coverage.json"
    if not file.is_file():
        return ""
    levels = [f"{100 * level:.0f}" for level in LEVELS]
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = {name: Estimate(e["value"], e["error"]) for name, e in content.items()}
        cells = [str(found[f"coverage_quantile_{level}"]) for level in levels]
        cells += [f"{found['farthest_training_quantile'].value:.2f}", str(found["pull_width"])]
        number = found["trainings"].value
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: lacks {error}; run normae coverage again") from None
    rows = [
        ["log p of test events", *[f"{level} %" for level in levels], "farthest training", "pull width"],
        ["coverage", *cells],
    ]
    return f"""
## Do the error bars hold?

Over {number:.0f} independent trainings on independent samples (`normae coverage`), with the error of the mean:

{markdown_table(rows)}
"""


def _uncertainty(config: Run) -> str:
    if not config.posteriors:
        return "The model is deterministic: it gives no uncertainty of its likelihood."
    return (
        f"Error bars: {posterior_words(config)}. The coverage of one training scatters, since its errors are\n"
        "correlated over x; `normae coverage` judges it over several trainings."
    )


def _precision(backend: str) -> str:
    if backend != "fused":
        return ""
    return (
        "\nThe chains ran in the fused kernel: products of fp16 factors summed in float32, and the acceptance ratio in "
        "float32, so\nthat they are exact for an energy that is rounded to 10 bits of mantissa in its hidden layers."
    )


def _settings(config: Run) -> str:
    network, training = config.network, config.training
    lines = [
        f"- network: MLP {list(network.hidden)} and its mirror, {network.activation}, {network.latent} latent units",
        f"- pretraining: {config.pretraining.epochs} epochs, batch {config.pretraining.batch}",
        f"- training: {training.epochs} epochs, batch {training.batch}, learning rate {training.learning_rate:g} "
        f"({training.schedule}), average {training.average:g}",
        f"- latent chain: {config.sampling.latent.describe()}",
        f"- feature chain: {config.sampling.feature.describe()}"
        + (f", step adapted to acceptance {config.sampling.feature.adapt:g}" if config.sampling.feature.adapt else ""),
        f"- buffer: {config.sampling.buffer:,} points in {config.sampling.buffer_space} space, "
        f"replay {config.sampling.replay:g}",
    ]
    return "\n".join(lines)


def _table(members: list[RunFolder]) -> str:
    seeds = [str(read(m.config).seed) for m in members]
    metrics = [m.read_metrics() for m in members]
    rows = [["quantity", "paper", *[f"seed {s}" for s in seeds]]]
    theirs = read(members[0].config).data.density == "two-gaussians"
    for value in BAYES if any("pull_width" in m for m in metrics) else TOY:
        if not any(value.metric in m for m in metrics):
            continue
        pairs = [m.get(value.metric) for m in metrics]
        cells = ["—" if m is None else str(Estimate(m["value"], m["error"])) for m in pairs]
        rows.append([value.title, value.value if theirs else "—", *cells])
    return markdown_table(rows)
