"""The commands that judge trained runs: `normae evaluate`, `report`, `coverage` and `spread`."""

import math
from pathlib import Path
from typing import Annotated

import typer

from normae.cli.console import Device, Folder, Jets, say, show, use_threads


def evaluate(
    run: Folder,
    figures: Annotated[bool, typer.Option(help="Draw the figures too.")] = True,
    device: Device = "auto",
    generated: Annotated[
        int | None, typer.Option(help="Jets to generate; evaluation.generated on CUDA, none on a CPU.", min=0)
    ] = None,
    jets: Jets = None,
) -> None:
    """Judge a trained run: metrics.json and figures/.

    A toy is compared with its density. A table is judged on rows that were held out. A run on jets tags the other
    class.

    Example: normae evaluate runs/toy
    """
    from normae.config import read
    from normae.evaluation.evaluate import evaluate as evaluate_run
    from normae.runs.folder import RunFolder

    use_threads(read(RunFolder.existing(run).config).threads)
    show(("metric", "value"), evaluate_run(run, figures, device, generated, jets).items(), str(run))


def report(run: Folder) -> None:
    """Write report.html, one page about an evaluated run.

    Example: normae report runs/toy
    """
    from normae.evaluation.evaluate import report as report_run

    say(f"Report: {report_run(run)}")


def coverage(
    group: Annotated[Path, typer.Argument(help="A folder of seeds.", show_default=False)], device: Device = "auto"
) -> None:
    """Test the error bars of many seeds against the truth.

    The folder is one of normae train --seeds 0-15. Writes coverage.json and figures/.

    Example: normae coverage runs/seeds
    """
    from normae.evaluation.coverage import coverage_of_group

    show(("over trainings", "value"), coverage_of_group(group, device).items(), str(group))


def spread(
    runs: Annotated[
        list[Path], typer.Argument(help="Evaluated runs, one folder of seeds, or dual tests.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A JSON file to write.")] = None,
) -> None:
    """Show how metrics vary between seeds.

    Example: normae spread runs/seeds
    """
    from normae.evaluation.spread import spread_of_runs

    found = spread_of_runs(runs, out)
    rows = [
        (name, one.mean, *(f"{v:.2g}" if math.isfinite(v) else "" for v in (one.deviation, one.stated, one.within)))
        for name, one in found.items()
    ]
    count = len(next(iter(found.values())).values)
    show(("number", "mean", "deviation", "stated error", "within it"), rows, f"over {count} trainings")
    if out is not None:
        say(f"Numbers: {out}")
