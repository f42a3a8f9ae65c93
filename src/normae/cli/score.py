"""`normae score`: scores of files of any size."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normae.cli.console import Columns, Dataset, Device, Run, note, parse_columns
from normae.errors import InputError

if TYPE_CHECKING:
    from normae.scoring.score import Doer


def score(
    run: Run,
    files: Annotated[list[Path], typer.Argument(help="Tables, or files of jets.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The .parquet, .csv or .npz file to write.", show_default=False)
    ],
    columns: Columns = None,
    dataset: Dataset = None,
    shard: Annotated[
        str | None, typer.Option(help="i/n: only the i-th of n shares, from 0. A last call without it joins them.")
    ] = None,
    chunk: Annotated[int, typer.Option(help="Rows that are read at a time.")] = 1 << 16,
    device: Device = "auto",
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
    """Score files of any size, in constant memory.

    After a stop the same command does only what is missing.

    Example: normae score runs/toy events.parquet -o scores.parquet
    """
    from normae.scoring.score import open_scorer, parse_shard
    from normae.scoring.score import score as score_files

    parse_shard(shard)
    do = _place(cluster, workers, threads, cluster_options)
    scorer = open_scorer(run, parse_columns(columns), device)
    for sentence in scorer.notes:
        note(f"Note: {sentence}")
    done = score_files(scorer, files, out, shard, chunk, dataset, do)
    for sentence in done.notes:
        note(f"Note: {sentence}")
    note(f"Scores: {out}" if done.whole else f"Shard {shard} of {out} is done; the last call, without --shard, joins")


def _place(cluster: str | None, workers: int | None, threads: int | None, options: Path | None) -> "Doer":
    """Who does the work: this process, or the workers of a cluster."""
    from normae.scoring.cluster import on_cluster, read_options
    from normae.scoring.score import here

    if cluster is not None:
        return on_cluster(cluster, workers, threads, None if options is None else read_options(options))
    for name, value in (("workers", workers), ("threads", threads), ("cluster-options", options)):
        if value is not None:
            raise InputError(f"--{name}: expected --cluster with it")
    return here
