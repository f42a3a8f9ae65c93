"""`normae spread`: how far the numbers of trainings scatter that differ in their seeds only."""

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

console = Console()


def spread(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Evaluated runs, one folder of seeds, or folders of dual tests.", show_default=False),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file to write.")] = None,
) -> None:
    """Say how far the numbers of trainings scatter that differ in their seeds."""
    from normae.evaluation.spread import spread_of_runs

    found = spread_of_runs(runs, output)
    count = len(next(iter(found.values())).values)
    table = Table(title=f"over {count} trainings")
    for heading in ("number", "mean", "deviation", "stated error", "within it"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "number")
    for name, one in found.items():
        cells = [f"{value:.2g}" if math.isfinite(value) else "" for value in (one.deviation, one.stated, one.within)]
        table.add_row(name, str(one.mean), *cells)
    console.print(table)
    if output is not None:
        console.print(f"Numbers: {output}", soft_wrap=True)
