"""`normae export`: a model as a file that runs without this package."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from normae.errors import InputError

console = Console()


def export(
    run: Annotated[str, typer.Argument(help="A run folder or a model of the zoo.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .onnx file to write.", show_default=False)],
    onnx: Annotated[bool, typer.Option("--onnx", help="Energy, score and log p as an ONNX graph.")] = False,
    draws: Annotated[int, typer.Option(help="Weight draws of a Bayesian run.")] = 100,
    tolerance: Annotated[float, typer.Option(help="On the score, against the model.")] = 1e-3,
) -> None:
    """Write a model as ONNX; it is compared with the run on 1,000 events before the file gets its name."""
    from normae.workflow.export import export_onnx

    if not onnx:
        raise InputError("expected --onnx, which says what to write")
    differences = export_onnx(run, output, draws, tolerance)
    largest = ", ".join(f"{name} {found.largest:.2g}" for name, found in differences.items())
    console.print(f"Checked on 1000 events; largest differences: {largest}", soft_wrap=True, highlight=False)
    console.print(f"Model: {output}", soft_wrap=True, highlight=False, markup=False)
