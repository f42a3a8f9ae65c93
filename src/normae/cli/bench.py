"""`normae bench`: how fast, against others and against the machine's limits."""

from pathlib import Path
from typing import Annotated

import typer

from normae.cli.console import Device, say, show

UNITS = {"times": "times as fast", "floors": "times the floor"}


def bench(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for bench.json and the picture.")] = Path(
        "runs/bench"
    ),
    only: Annotated[str | None, typer.Option(help="toy, sampling, scoring, jets or images.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, to see that everything runs.")] = False,
    device: Device = "auto",
    rounds: Annotated[int | None, typer.Option(help="How often everything is measured, in turns.", min=2)] = None,
) -> None:
    """Measure speed against others and against the machine's limits.

    Example: normae bench --only toy -o runs/bench
    """
    from normae.bench import bench as measure

    result = measure(out, only, quick, device, rounds, say)
    rows = [(row.name, row.value, UNITS.get(row.unit, row.unit)) for row in result.rows]
    show(("what", "value", "unit"), rows, str(result.machine["device"]))
    for line in result.skipped:
        say(f"Left out: {line}")
    say(f"Numbers and picture: {out}")
