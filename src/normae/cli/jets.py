"""`normae jets`: generate, convert, images, observables, show, info."""

import time
from pathlib import Path
from typing import Annotated

import typer

import normae
from normae.cli.console import Command, note, say
from normae.cli.options import Force, argument, option
from normae.errors import InputError

app = typer.Typer(name="jets", no_args_is_help=True, help="Generate jets, convert them, and look at them.")

Source = Annotated[Path, argument("TopTagging HDF5, npz of simulated jets, or normae's HDF5.")]
Out = Annotated[Path, option("The file to write.", "--out", "-o", show_default=False)]
Rows = Annotated[str | None, option("START:STOP, or the number of rows from the start.", "--rows")]
Skip = Annotated[bool, option("Drop and count bad jets instead of stopping at the first.", "--skip-bad")]
Group = Annotated[str, option("The group of a TopTagging file that holds the jets.", "--dataset")]


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


def _done(words: str, skipped: int) -> None:
    note(words + (f", {skipped} bad jets skipped" if skipped else ""))


@app.command(cls=Command)
def generate(
    kind: Annotated[str, argument("qcd, top or w.")],
    out: Out,
    count: Annotated[int, option("How many jets.", "-n")] = 1000,
    seed: Annotated[int, option("The file depends on the seed, not on the workers.", "--seed")] = 0,
    workers: Annotated[int, option("Processes.", "--workers")] = 1,
    mpi: Annotated[bool, option("Multi-parton interactions; the paper has none.", "--mpi/--no-mpi")] = False,
    top_mass: Annotated[float, option("In GeV; 171 looks more like the public files.", "--top-mass")] = 173.0,
    force: Force = False,
) -> None:
    """Generate jets with Pythia and a simple detector.

    After a stop the same command continues.

    Example: normae jets generate qcd -n 1000 -o qcd.h5
    """
    begun = time.monotonic()
    normae.jets.generate(normae.jets.Job(normae.jets.Process(kind, mpi, top_mass), count, seed), out, workers, force)
    note(f"{count} jets in {out}, {count / (time.monotonic() - begun):.1f} jets/s")


@app.command(cls=Command)
def convert(
    source: Source, out: Out, rows: Rows = None, skip_bad: Skip = False, dataset: Group = "table", force: Force = False
) -> None:
    """Write jets in normae's own HDF5 format.

    Example: normae jets convert test.h5 -o jets.h5
    """
    count, skipped = normae.jets.convert(source, out, parse_rows(rows), skip_bad=skip_bad, key=dataset, force=force)
    _done(f"{count} jets in {out}", skipped)


@app.command(cls=Command)
def images(
    source: Source, out: Out, rows: Rows = None, skip_bad: Skip = False, dataset: Group = "table",
    single: Annotated[bool, option("Pixel values as float32 instead of float16.", "--float32")] = False,
    force: Force = False,
) -> None:  # fmt: skip
    """Write sparse, normalized images of jets.

    The Gaussian filter is applied when a batch is made dense.

    Example: normae jets images jets.h5 -o images.h5
    """
    kind, chosen = "float32" if single else "float16", parse_rows(rows)
    count, skipped = normae.jets.convert_images(
        source, out, chosen, skip_bad=skip_bad, key=dataset, dtype=kind, force=force
    )
    _done(f"{count} images in {out}", skipped)


@app.command(cls=Command)
def observables(
    source: Source, out: Out, rows: Rows = None, skip_bad: Skip = False, dataset: Group = "table",
    threshold: Annotated[float | None, option("Images only: pixels below it are empty; 1e-5 if not given.")] = None,
    force: Force = False,
) -> None:  # fmt: skip
    """Write label, eta, phi, mass, tau1, tau2, tau3 of jets or images.

    Example: normae jets observables jets.h5 -o observables.csv
    """
    normae.jets.check_suffix(out)
    normae.jets.check_output(source, out, force)
    least, chosen = normae.jets.THRESHOLD if threshold is None else threshold, parse_rows(rows)
    columns, skipped = normae.jets.file_observables(source, chosen, skip_bad=skip_bad, key=dataset, threshold=least)
    normae.jets.write_columns(out, columns, force)
    _done(f"observables of {len(columns['label'])} jets in {out}", skipped)


@app.command(cls=Command)
def show(
    source: Source,
    out: Annotated[Path | None, option("Folder; SOURCE-figures if not given.", "--out", "-o")] = None,
    rows: Rows = None, skip_bad: Skip = False, dataset: Group = "table", force: Force = False,
) -> None:  # fmt: skip
    """Draw images and observables of jets: PNG, PDF and CSV.

    Example: normae jets show jets.h5
    """
    folder = out or source.with_name(source.stem + "-figures")
    for path in normae.jets.save_figures(source, folder, parse_rows(rows), force, skip_bad=skip_bad, key=dataset):
        say(path)


@app.command(cls=Command)
def info(source: Source, skip_bad: Skip = False, dataset: Group = "table") -> None:
    """Print what a file of jets holds. Every jet is read and checked.

    Example: normae jets info jets.h5
    """
    for name, value in normae.jets.summary(source, skip_bad=skip_bad, key=dataset).items():
        say(f"{name:<24}{value}")
