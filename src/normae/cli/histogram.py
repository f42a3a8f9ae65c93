"""`normae histogram`: binned scores for a search."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

console = Console()


def histogram(
    run: Annotated[str, typer.Argument(help="A run folder or a model of the zoo.", show_default=False)],
    files: Annotated[list[Path], typer.Argument(help="Background: tables, or files of jets.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.", show_default=False)],
    signal: Annotated[list[Path] | None, typer.Option(help="Files of a signal; any number of times.")] = None,
    data: Annotated[list[Path] | None, typer.Option(help="Files of what was seen; any number of times.")] = None,
    quantity: Annotated[str, typer.Option(help="score, log_prob or p_value.")] = "score",
    bins: Annotated[str, typer.Option(help="tail, a number of equal bins, or edges 0,1,2.5.")] = "tail",
    quantiles: Annotated[str | None, typer.Option(help="0.5,0.9,0.99: edges at shares of held-out background.")] = None,
    weights: Annotated[str | None, typer.Option(help="Column with the weight of an event.")] = None,
    expected: Annotated[float | None, typer.Option(help="Background events to scale to.")] = None,
    expected_signal: Annotated[float | None, typer.Option(help="Signal events to scale to.")] = None,
    normalization: Annotated[float, typer.Option(help="Relative uncertainty of the background's yield.")] = 0.0,
    draws: Annotated[int, typer.Option(help="Weight draws of a Bayesian run.")] = 100,
    pseudo_experiments: Annotated[
        int, typer.Option(help="Draw so many from the background-only model and test that p-values are uniform.")
    ] = 0,
    columns: Annotated[str | None, typer.Option(help="a,b,c: the columns to take, as in normae score.")] = None,
    dataset: Annotated[str | None, typer.Option(help="As in normae score.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Bin scores with their covariance over weight draws: a pyhf workspace, HEPData tables, a figure."""
    from normae.search.histogram import HistogramSettings
    from normae.search.histogram import histogram as histogram_of

    settings = HistogramSettings(quantity, bins, quantiles, weights, expected, expected_signal, normalization, draws)
    names = None if columns is None else columns.split(",")
    found, sentences = histogram_of(
        run, files, output, settings, signal or (), data or (), names, dataset, device, pseudo_experiments
    )
    table = Table(quantity, "background", "signal", "data")
    for b in range(len(found.edges) - 1):
        sides = f"{found.edges[b]:.4g} to {found.edges[b + 1]:.4g}"
        extra = "" if found.signal is None else f"{found.signal.value[b]:.4g}"
        seen = "" if found.data is None else f"{found.data[b]:g}"
        table.add_row(sides, f"{found.background.value[b]:.5g}", extra, seen)
    console.print(table)
    for sentence in sentences:
        console.print(sentence, soft_wrap=True, highlight=False, markup=False)
    console.print(f"Workspace, tables and figure: {output}", soft_wrap=True, highlight=False, markup=False)
