"""`normae train` and `normae presets`."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from normae.cli.console import NewRun, Set, parse_seeds, say, use_threads
from normae.errors import Interrupted
from normae.presets import describe
from normae.presets import presets as all_presets


def train(
    what: Annotated[
        str,
        typer.Argument(metavar="DATA|PRESET", help="A table, a file of jets, a preset or a TOML.", show_default=False),
    ],
    out: NewRun,
    columns: Annotated[str | None, typer.Option(help="a,b,c: columns of the table; all by default.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Array of an .npz, group or dataset of an HDF5, tree of a ROOT file.")
    ] = None,
    override: Set = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds side by side, for example 0-7.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a training that was stopped.")] = False,
    start: Annotated[str | None, typer.Option(help="A trained autoencoder to begin with.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes; --resume goes on.")] = None,
) -> None:
    """Train a model into a run folder.

    Of a table (.csv, .parquet, .h5, .root, .npy, .npz) all settings follow from the data. They stand in the run's
    config.toml.

    Example: normae train background.parquet -o runs/mine
    """
    from normae.cli.console import TrainingDisplay
    from normae.runs.door import planned
    from normae.runs.folder import RunFolder
    from normae.runs.session import train as train_run

    override = [*(override or []), *([] if start is None else [f"start={json.dumps(start)}"])]
    run, _ = planned(what, out, None if columns is None else columns.split(","), dataset, None, override)
    use_threads(run.threads)
    with TrainingDisplay() as display:
        finished = train_run(run, out, parse_seeds(seeds), resume, display, minutes)
    if not finished:
        raise Interrupted(
            f"stopped; the run is safe. Go on with: {_again(what, out, columns, dataset, override, seeds, minutes)}"
        )
    if failed := RunFolder(out).log_z_failure():
        say(f"Note: log p is known up to a constant only, since log Z was not found. {failed}")
    lacking = run.data.file is not None and run.data.test < 1 and run.data.test_file is None
    following = f"normae score {out} FILES -o scores.parquet" if lacking else f"normae evaluate {out}"
    say(f"Trained: {out}. Next: {following}")


def _again(
    what: str,
    out: Path,
    columns: str | None,
    dataset: str | None,
    override: list[str],
    seeds: str | None,
    minutes: float | None,
) -> str:
    """The command that continues a training."""
    parts = ["normae", "train", what, "-o", str(out)]
    for name, value in (("--columns", columns), ("--dataset", dataset)):
        parts += [] if value is None else [name, value]
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
