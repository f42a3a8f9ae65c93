"""`normae reproduce jets`: section 4 of the paper."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from normae.cli.progress import TrainingDisplay

console = Console()


def reproduce_jets(out: Path, settings: tuple[Any, ...]) -> None:
    """Make every figure and table, and print the tables; `settings` are those of the library call, in order."""
    from normae.paper import jets as work

    with TrainingDisplay(console) as display:
        result = work.reproduce_jets(out, work.Settings(*settings), display)
    for name, rows in result.tables.items():
        table = Table(*rows[0], title=work.TITLES[name])
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    if result.left_out:
        missing = ", ".join(result.left_out)
        console.print(f"Not in the zoo, so left out (--from-scratch trains them): {missing}", soft_wrap=True)
    console.print(f"Tables: {out / 'table.md'}; figures: {out / 'figures'}; reports in the run folders", soft_wrap=True)
