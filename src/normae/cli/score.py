"""`normae score`: scores of files of any size."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from normae.errors import InputError

if TYPE_CHECKING:
    from normae.scoring.parts import Doer

console = Console(stderr=True)


def score(
    run: Annotated[str, typer.Argument(help="A run folder or a model of the zoo.", show_default=False)],
    files: Annotated[list[Path], typer.Argument(help="Tables, or files of jets.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .parquet, .csv or .npz file to write.", show_default=False)
    ],
    columns: Annotated[
        str | None, typer.Option(help="a,b,c: the columns to take, where the run knows no names or others.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Array of an .npz, group or dataset of an HDF5, tree of a ROOT file.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="i/n: only the i-th of n shares, from 0; join with a last call without it.")
    ] = None,
    chunk: Annotated[int, typer.Option(help="Rows that are read at a time.")] = 1 << 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    cluster: Annotated[
        str | None, typer.Option(help="local, slurm, htcondor, or tcp://HOST:PORT of a dask scheduler.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="With --cluster: how many; local: one for each core.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="With --cluster: CPU threads of a worker; 1 if not given.")
    ] = None,
    cluster_options: Annotated[
        Path | None, typer.Option(help="With --cluster: a TOML file with memory, queue, directives and so on.")
    ] = None,
) -> None:
    """Score files in constant memory; call it again after a stop, and only what is missing is done."""
    from normae.scoring.score import open_scorer, parse_shard
    from normae.scoring.score import score as score_files

    parse_shard(shard)
    do = _place(cluster, workers, threads, cluster_options)
    scorer = open_scorer(run, None if columns is None else columns.split(","), device)
    for note in scorer.notes:
        console.print(f"Note: {note}", soft_wrap=True, highlight=False, markup=False)
    with Progress(
        TextColumn("scoring"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("scoring", total=None)

        def watch(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        whole = score_files(scorer, files, output, shard, chunk, dataset, watch, do)
    done = f"Scores: {output}" if whole else f"Shard {shard} of {output} is done; the last call, without --shard, joins"
    console.print(done, soft_wrap=True, highlight=False, markup=False)


def _place(cluster: str | None, workers: int | None, threads: int | None, options: Path | None) -> "Doer":
    """Who does the work: this process, or the workers of a cluster."""
    from normae.scoring.cluster import on_cluster, read_options
    from normae.scoring.parts import here

    if cluster is not None:
        return on_cluster(cluster, workers, threads, None if options is None else read_options(options))
    for name, value in (("workers", workers), ("threads", threads), ("cluster-options", options)):
        if value is not None:
            raise InputError(f"--{name}: expected --cluster with it")
    return here
