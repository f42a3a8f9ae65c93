"""The commands that make runs, `normae train` and `ensemble`, and that list them, `presets` and `info`."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from normae.cli.console import TrainingDisplay, parse_columns, parse_seeds, say, use_threads
from normae.cli.options import Dataset, Folder, Force, Jets, NewRun, Set, argument, option
from normae.errors import Interrupted, refuse
from normae.presets import describe
from normae.presets import presets as all_presets

if TYPE_CHECKING:
    from normae.runs.folder import RunFolder


def train(
    what: Annotated[str, argument("A table, a file of jets, a preset or a TOML file.", metavar="DATA|PRESET")],
    out: NewRun,
    columns: Annotated[str | None, option("a,b,c: columns of the table; all by default.")] = None,
    dataset: Dataset = None,
    weights: Annotated[str | None, option("Column with the weights of the rows; it is not a feature.")] = None,
    condition: Annotated[str | None, option("a,b: columns to condition on. The model is p(x | a, b).")] = None,
    missing: Annotated[str, option("What to do with rows that have missing values: refuse or drop.")] = "refuse",
    override: Set = None,
    seeds: Annotated[str | None, option("Several seeds, for example 0-7.")] = None,
    resume: Annotated[bool, option("Continue a training that was stopped.", "--resume")] = False,
    start: Annotated[str | None, option("A trained autoencoder to begin with.")] = None,
    minutes: Annotated[float | None, option("Stop after so many minutes; --resume continues.")] = None,
) -> None:
    """Train a model into a run folder.

    For a table (.csv, .parquet, .h5, .root, .npy, .npz) all settings follow from the data.
    They are written to config.toml in the run folder.

    Example: normae train background.parquet -o runs/mine
    """
    from normae.runs.automatic import Wishes
    from normae.runs.door import planned
    from normae.runs.folder import RunFolder
    from normae.runs.session import train as train_run

    override = [*(override or []), *([] if start is None else [f"start={json.dumps(start)}"])]
    refuse(missing not in ("refuse", "drop"), f"--missing: expected refuse or drop, got {missing!r}")
    more: Any = {"weights": weights, "wishes": Wishes(condition=parse_columns(condition) or ()), "missing": missing}
    run, _ = planned(what, out, parse_columns(columns), dataset, None, override, **more)
    use_threads(run.threads)
    with TrainingDisplay() as display:
        finished = train_run(run, out, parse_seeds(seeds), resume, display, minutes)
    if not finished:
        again = shlex.join([*(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
        raise Interrupted(f"stopped; the run is safe. Go on with: normae {again}")
    if failed := RunFolder(out).log_z_failure():
        say(f"Note: log p is known up to a constant only, since log Z was not found. {failed}")
    lacking = run.data.file is not None and run.data.test < 1
    named = next((one.path for one in RunFolder(out).members()), out)  # one of several seeds
    following = f"normae score {named} FILES -o scores.parquet" if lacking else f"normae evaluate {named}"
    say(f"Trained: {out}. Next: {following}")


def presets() -> None:
    """List the presets that normae train takes by name.

    Example: normae presets
    """
    for name, path in sorted(all_presets().items()):
        say(f"{name:<23} {describe(path)}")


def info(run: Folder) -> None:
    """Print what a run folder holds and how far its training is.

    Example: normae info runs/toy
    """
    from normae.runs.folder import RunFolder

    folder = RunFolder(run)
    members = [] if folder.config.is_file() else folder.members()
    say("\n\n".join(describe_run(one) for one in members or [RunFolder.existing(run)]))


def describe_run(run: "RunFolder") -> str:
    """A few lines about a run."""
    from normae.config import read
    from normae.statistics.arrays import Estimate

    config = read(run.config)
    source = config.data.density or config.data.file or f"jets ({config.data.jets})"
    size = f"{config.data.train:,} training events" if config.data.train else "all events but those held out"
    lines = [f"{run.path}: {config.name}, seed {config.seed}", f"  data           {source}, {size}"]
    if config.classifier is None and config.training.epochs:
        chains = {"latent chain ": config.sampling.latent, "feature chain": config.sampling.feature}
        lines += [f"  {name}  {chain.describe()}" for name, chain in chains.items() if chain.steps]
    state = "begun; continue with normae train ... --resume"
    if run.model.is_file():
        state = "evaluated" if run.metrics.is_file() else "trained, not evaluated"
    elif history := run.read_history():
        phase, done = history[-1]["phase"], float(history[-1].get("epoch", 0.0))
        part = config.classifier or (config.pretraining if phase == "pretraining" else config.training)
        state = f"{phase}, epoch {done:.1f} of {part.epochs}; continue with normae train ... --resume"
    lines.append(f"  state          {state}")
    if run.provenance.is_file():
        facts = run.read_provenance()
        lines.append(f"  trained on     {facts['device']} in {facts['wall_seconds']} s, backend {facts['backend']}")
    if run.metrics.is_file():
        lines += [f"  {name:<28} {Estimate(**found)}" for name, found in run.read_metrics().items()]
    return "\n".join(lines)


def ensemble(
    runs: Annotated[list[Path], argument("Run folders or models of the zoo, or one folder of seeds.")],
    out: NewRun, jets: Jets = None, force: Force = False,
) -> None:  # fmt: skip
    """Join runs of different seeds into one model.

    Its error bars come from the spread of the runs. It takes four runs or more, three of jets in components, or two
    Bayesian ones.

    Example: normae ensemble runs/seeds -o runs/ensemble
    """
    from normae.runs.ensemble import gather

    gather(runs, out, jets, force)
    say(f"With error bars: {out}. Next: normae evaluate {out}")
