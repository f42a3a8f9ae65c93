"""`normae bench`: how fast, against others and against the machine's limits."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

UNITS = {"times": "times as fast", "floors": "times the floor"}


def bench(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for bench.json and the picture.")] = Path(
        "runs/bench"
    ),
    only: Annotated[str | None, typer.Option(help="toy, sampling, scoring, jets or images.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, to see that everything runs.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    rounds: Annotated[int | None, typer.Option(help="How often everything is measured, in turns.", min=2)] = None,
) -> None:
    """Measure speed against others and against the machine's limits: a table, bench.json and a picture."""
    from normae.bench import bench as measure

    console = Console()
    result = measure(out, only, quick, device, rounds, lambda line: console.print(line, soft_wrap=True))
    table = Table("what", "value", "unit", "wanted", title=f"{result.machine['device']}")
    for row in result.rows:
        table.add_row(row.name, str(row.value), UNITS.get(row.unit, row.unit), row.wanted)
    console.print(table)
    for line in result.skipped:
        console.print(f"Left out: {line}", soft_wrap=True)
    console.print(f"Numbers and picture: {out}", soft_wrap=True)
