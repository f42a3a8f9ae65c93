"""Put a trained model into the zoo: its run folder without the checkpoint, and a card that states what it is.

`python bench/publish.py RUNS ZOO/NAME` takes the run of `--seed`, 0 by default, out of a folder of seeds.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from normae.cli.console import run
from normae.config import read, to_toml
from normae.errors import InputError, refuse
from normae.evaluation.evaluate import study_of
from normae.evaluation.toy_posterior import LEVELS, REGION_NAMES
from normae.files import new_folder, write_json, write_text
from normae.report.page import markdown_table
from normae.runs.folder import RunFolder, read_tensors, write_tensors
from normae.scoring.scorer import open_scorer
from normae.statistics import Estimate

MOST_BYTES = 900_000  # of weights: below a megabyte, with those that an NAE would begin with only if so small


def publish(group: str | Path, seed: int, target: str | Path) -> Path:
    """Copy the evaluated run of `seed` out of a folder of seeds to `target`, with a card over all that are evaluated.

    A run folder serves too. Paths of this machine stay out of it; what `normae coverage` found is in the card.
    """
    members = RunFolder(group).members() or [RunFolder.existing(group)]
    chosen = [m for m in members if read(m.config).seed == seed]
    refuse(not chosen, f"{group}: holds no run with seed {seed}")
    target = Path(target)
    if target.exists() and not (target / "card.md").is_file() and (target.is_file() or any(target.iterdir())):
        raise InputError(f"{target}: expected a new folder or a model of a zoo to replace, got another one")
    chosen[0].read_metrics()
    with new_folder(target, force=True) as folder:
        part = RunFolder(folder)
        _fill(part, chosen[0])
        card = study_of(part).card(target.name, [study_of(one) for one in members], _coverage(RunFolder(group)))
        write_text(part.path / "card.md", card)
    return target


def _fill(part: RunFolder, run: RunFolder) -> None:
    """Write what a model of the zoo has beside its card."""
    kept, weights = [run.metrics], [run.model]
    if study_of(run).of_jets and read(run.config).classifier is None:
        open_scorer(run.path)  # which keeps scores of held-out jets: p-values then need no other jets
        kept += [run.background] if run.background.is_file() else []
    if run.start.is_file() and run.model.stat().st_size + run.start.stat().st_size <= MOST_BYTES:
        weights.append(run.start)
    for source in kept:
        shutil.copyfile(source, part.path / source.name)
    lines = run.read_history()
    step = -(-len(lines) // 200)  # evenly spaced
    write_text(part.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines[step - 1 :: step]))
    config, facts = read(run.config), run.read_provenance()  # without the places where jets and start lay
    start = None if config.start is None else Path(config.start).name
    write_text(part.config, to_toml(replace(config, start=start, data=replace(config.data, path=None))))
    if isinstance(facts.get("start"), dict):
        facts["start"] = {name: Path(v).name if name == "run" else v for name, v in facts["start"].items()}
    write_json(part.provenance, facts)
    for source in weights:
        write_tensors(part.path / source.name, *read_tensors(source))


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
    rows = [["log p of test events", *[f"{level} %" for level in levels], "farthest training", "pull width"]]
    rows += [["coverage", *cells]]
    for k, name in enumerate(REGION_NAMES):
        names = [f"coverage_quantile_{level}_region_{k}" for level in levels]
        if all(one in found for one in names):
            rows.append([f"on the grid where −log p is {name}", *(str(found[one]) for one in names), "", ""])
    return f"""
## Do the error bars hold?

Over {number:.0f} independent trainings on independent samples (`normae coverage`), with the error of the mean:

{markdown_table(rows)}
"""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", help="a run folder, or a folder of seeds")
    parser.add_argument("target", help="folder of the zoo to write")
    parser.add_argument("--seed", type=int, default=0, help="the seed that ships")
    given = parser.parse_args(words)
    print(f"Published: {publish(given.runs, given.seed, given.target)}")


if __name__ == "__main__":
    run(main)
