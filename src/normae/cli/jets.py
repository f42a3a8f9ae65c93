"""`normae jets`: generate, convert, images, observables, show, info."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from normae import jets
from normae.errors import InputError

app = typer.Typer(help="Jets: generate, convert, make images and observables, look at them.", no_args_is_help=True)
console = Console(stderr=True)

Source = Annotated[Path, typer.Argument(help="TopTagging HDF5, npz of simulated jets, or a normae HDF5 file.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write.")]
RowsOption = Annotated[str | None, typer.Option("--rows", help="START:STOP, or the number of rows from the start.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Drop and count bad jets instead of stopping at the first.")]
Key = Annotated[str, typer.Option("--key", help="pandas key of a TopTagging file.")]


class Rate(ProgressColumn):
    """Jets per second."""

    def render(self, task: Task) -> Text:
        """Empty until a first block is done."""
        mean = task.completed / task.elapsed if task.elapsed else 0.0
        rate = task.finished_speed or task.speed or mean
        return Text(f"{rate:.1f} jets/s" if rate else "")


def parse_rows(text: str | None) -> int | slice | None:
    """'1000', '200:300', '200:' or ':300' as rows."""
    if text is None:
        return None
    try:
        if ":" not in text:
            return int(text)
        start, stop = text.split(":")
        return slice(int(start or 0), int(stop) if stop else None)
    except ValueError:
        raise InputError(f"--rows {text!r}: expected START:STOP or a number") from None


def _say(done: str, skipped: int) -> None:
    typer.echo(done + (f", {skipped} bad jets skipped" if skipped else ""), err=True)


@app.command()
def convert(source: Source, out: Out, rows: RowsOption = None, skip_bad: SkipBad = False, key: Key = "table") -> None:
    """Write jets in normae's own ragged HDF5 format."""
    count, skipped = jets.convert(source, out, parse_rows(rows), skip_bad=skip_bad, key=key)
    _say(f"{count} jets in {out}", skipped)


@app.command()
def images(
    source: Source,
    out: Out,
    rows: RowsOption = None,
    skip_bad: SkipBad = False,
    key: Key = "table",
    single: Annotated[bool, typer.Option("--float32", help="Pixel values as float32 instead of float16.")] = False,
) -> None:
    """Write sparse, normalized jet images; the Gaussian filter is applied when a batch is made dense."""
    dtype = np.float32 if single else np.float16
    count, skipped = jets.convert_images(source, out, parse_rows(rows), skip_bad=skip_bad, key=key, dtype=dtype)
    _say(f"{count} images in {out}", skipped)


@app.command()
def observables(
    source: Source,
    out: Out,
    rows: RowsOption = None,
    skip_bad: SkipBad = False,
    key: Key = "table",
    threshold: Annotated[
        float, typer.Option(help="Images only: the intensity that a pixel must exceed.")
    ] = jets.THRESHOLD,
) -> None:
    """Write label, eta, phi, mass, tau1, tau2, tau3 as CSV, Parquet or npz, of jets or of images."""
    jets.check_suffix(out)
    jets.check_output(source, out)
    columns, skipped = jets.file_observables(source, parse_rows(rows), skip_bad=skip_bad, key=key, threshold=threshold)
    jets.write_columns(out, columns)
    _say(f"observables of {len(columns['label'])} jets in {out}", skipped)


@app.command()
def generate(
    kind: Annotated[str, typer.Argument(help="qcd or top.")],
    out: Out,
    count: Annotated[int, typer.Option("-n", help="How many jets.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="The file depends on it alone, not on the workers.")] = 0,
    workers: Annotated[int, typer.Option("--workers", help="Processes.")] = 1,
    mpi: Annotated[
        bool, typer.Option("--mpi/--no-mpi", help="Multi-parton interactions: off as in the paper.")
    ] = False,
    top_mass: Annotated[
        float, typer.Option("--top-mass", help="In GeV; 171 looks more like the public files.")
    ] = 173.0,
) -> None:
    """Generate jets with Pythia and the detector; a run that was stopped takes up where it was."""
    job = jets.Job(jets.Process(kind, mpi, top_mass), count, seed)
    jets.check_run(job, out, workers)
    with Progress(*Progress.get_default_columns(), Rate(), console=console) as bar:
        task = bar.add_task(f"{kind} jets", total=count)
        jets.generate(job, out, workers, lambda done: bar.advance(task, done))
    _say(f"{count} jets in {out}", 0)


@app.command()
def show(
    source: Source,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; SOURCE-figures where not given.")] = None,
    rows: RowsOption = None,
    skip_bad: SkipBad = False,
    key: Key = "table",
) -> None:
    """Draw mean and single images and a page of observables, of jets or of images: PNG, PDF and CSV."""
    folder = out or source.with_name(source.stem + "-figures")
    for path in jets.save_figures(source, folder, parse_rows(rows), skip_bad=skip_bad, key=key):
        typer.echo(path)


@app.command()
def info(source: Source, skip_bad: SkipBad = False, key: Key = "table") -> None:
    """Say what a file holds: format, jets of each class, constituents, pT; every jet is read and checked."""
    for name, value in jets.summary(source, skip_bad=skip_bad, key=key).items():
        typer.echo(f"{name:<24}{value}")
