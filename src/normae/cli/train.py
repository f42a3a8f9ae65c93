"""`normae train` and `normae presets`."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from normae.cli.console import say
from normae.cli.options import NewRun, Set, parse_seeds, use_threads
from normae.errors import InputError, Interrupted
from normae.presets import describe
from normae.presets import presets as all_presets

TABLES = (".csv", ".parquet", ".h5", ".hdf5", ".root", ".npy", ".npz")


def train(
    what: Annotated[str, typer.Argument(metavar="PRESET", help="A preset or a TOML file.", show_default=False)],
    out: NewRun,
    override: Set = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds side by side, for example 0-7.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a training that was stopped.")] = False,
    start: Annotated[str | None, typer.Option(help="A trained autoencoder to begin with.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes; --resume goes on.")] = None,
) -> None:
    """Train a model into a run folder.

    Example: normae train toy-quick -o runs/toy
    """
    if Path(what).suffix in TABLES and Path(what).exists():
        raise InputError(f"{what}: expected the name of a preset or a TOML file, got a file of data")
    from normae.cli.training import TrainingDisplay
    from normae.config import read
    from normae.runs.session import train as train_run

    override = [*(override or []), *([] if start is None else [f"start={json.dumps(start)}"])]
    run = read(what, override)
    use_threads(run.threads)
    with TrainingDisplay() as display:
        finished = train_run(run, out, parse_seeds(seeds), resume, display, minutes)
    if not finished:
        raise Interrupted(f"stopped; the run is safe. Go on with: {_again(what, out, override, seeds, minutes)}")
    lacking = run.data.file is not None and run.data.test < 1
    following = f"normae score {out} FILES -o scores.parquet" if lacking else f"normae evaluate {out}"
    say(f"Trained: {out}. Next: {following}")


def _again(what: str, out: Path, override: list[str], seeds: str | None, minutes: float | None) -> str:
    """The command that continues a training."""
    parts = ["normae", "train", what, "-o", str(out)]
    for change in override:
        parts += ["--set", change]
    if seeds is not None:
        parts += ["--seeds", seeds]
    if minutes is not None:
        parts += ["--minutes", f"{minutes:g}"]
    return shlex.join([*parts, "--resume"])


def presets() -> None:
    """List the presets that normae train takes by name.

    Example: normae presets
    """
    for name, path in sorted(all_presets().items()):
        say(f"{name:<23} {describe(path)}")
