"""`normae info`: what a run folder holds."""

from pathlib import Path
from typing import TYPE_CHECKING

from normae.cli.console import Folder, say

if TYPE_CHECKING:
    from normae.config import Run
    from normae.runs.folder import RunFolder


def info(run: Folder) -> None:
    """Print what a run folder holds and how far its training is.

    Example: normae info runs/toy
    """
    say(describe_run(run))


def describe_run(path: Path) -> str:
    """A few lines about the run, or about each run of a folder with several seeds."""
    from normae.runs.folder import RunFolder

    folder = RunFolder(path)
    if not folder.config.is_file() and folder.members():
        return "\n\n".join(_describe(member) for member in folder.members())
    return _describe(RunFolder.existing(path))


def _describe(run: "RunFolder") -> str:
    from normae.config import read

    config = read(run.config)
    source = config.data.density or config.data.file or f"jets ({config.data.jets})"
    lines = [
        f"{run.path}: {config.name}, seed {config.seed}",
        f"  data           {source}, {config.data.train or 'all other'} training events",
    ]
    if config.classifier is None and config.training.epochs:
        lines += [
            f"  latent chain   {config.sampling.latent.describe()}",
            f"  feature chain  {config.sampling.feature.describe()}",
        ]
    lines.append(f"  state          {_state(run, config)}")
    if run.provenance.is_file():
        facts = run.read_provenance()
        lines.append(f"  trained on     {facts['device']} in {facts['wall_seconds']} s, backend {facts['backend']}")
    if run.metrics.is_file():
        metrics = run.read_metrics()
        lines += [f"  {name:<28} {m['value']:.6g} ± {m['error']:.2g}" for name, m in metrics.items()]
    return "\n".join(lines)


def _state(run: "RunFolder", config: "Run") -> str:
    if run.model.is_file():
        return "evaluated" if run.metrics.is_file() else "trained, not evaluated"
    history = run.read_history()
    if not history:
        return "begun; continue with normae train ... --resume"
    last = history[-1]
    epochs = config.pretraining.epochs if last["phase"] == "pretraining" else config.training.epochs
    if config.classifier is not None:
        epochs = config.classifier.epochs
    done = float(last.get("epoch", 0.0))
    return f"{last['phase']}, epoch {done:.1f} of {epochs}; continue with normae train ... --resume"
