"""`normae histogram`: binned scores for a search."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normae.cli.console import Columns, Dataset, Device, Run, parse_columns, say, show

if TYPE_CHECKING:
    from normae.search.templates import Templates


def histogram(
    run: Run,
    files: Annotated[list[Path], typer.Argument(help="Background: tables, or files of jets.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.", show_default=False)],
    signal: Annotated[list[Path] | None, typer.Option(help="A file of signal. Any number of times.")] = None,
    observed: Annotated[list[Path] | None, typer.Option(help="A file of observed events. Any number of times.")] = None,
    quantity: Annotated[str, typer.Option(help="score, log_prob or p_value.")] = "score",
    bins: Annotated[str, typer.Option(help="tail, a number of equal bins, or edges 0,1,2.5.")] = "tail",
    quantiles: Annotated[str | None, typer.Option(help="0.5,0.9,0.99: edges at shares of held-out background.")] = None,
    weights: Annotated[str | None, typer.Option(help="Column with the weight of an event.")] = None,
    expected: Annotated[float | None, typer.Option(help="Background events to scale to.")] = None,
    expected_signal: Annotated[float | None, typer.Option(help="Signal events to scale to.")] = None,
    normalization: Annotated[float, typer.Option(help="Relative uncertainty of the background's yield.")] = 0.0,
    draws: Annotated[int, typer.Option(help="Weight draws of a Bayesian run.")] = 100,
    pseudo_experiments: Annotated[
        int, typer.Option(help="Test with so many pseudo-experiments that p-values are uniform.")
    ] = 0,
    columns: Columns = None,
    dataset: Dataset = None,
    device: Device = "auto",
) -> None:
    """Bin scores for a search.

    Writes a pyhf workspace, HEPData tables and a figure, with the covariance over weight draws.

    Example: normae histogram runs/toy background.parquet --signal bump.parquet -o runs/search
    """
    from normae.search.histogram import HistogramSettings
    from normae.search.histogram import histogram as histogram_of

    settings = HistogramSettings(quantity, bins, quantiles, weights, expected, expected_signal, normalization, draws)
    names = parse_columns(columns)
    found, sentences = histogram_of(
        run, files, out, settings, signal or (), observed or (), names, dataset, device, pseudo_experiments
    )
    show((quantity, "background", "signal", "observed"), _rows(found))
    for sentence in sentences:
        say(sentence)
    say(f"Workspace, tables and figure: {out}")


def _rows(found: "Templates") -> list[tuple[str, ...]]:
    """One row for each bin."""
    return [
        (
            f"{found.edges[b]:.4g} to {found.edges[b + 1]:.4g}",
            f"{found.background.value[b]:.5g}",
            "" if found.signal is None else f"{found.signal.value[b]:.4g}",
            "" if found.data is None else f"{found.data[b]:g}",
        )
        for b in range(len(found.edges) - 1)
    ]
