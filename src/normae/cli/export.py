"""`normae export`: a model as a file that runs without this package."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from normae.errors import InputError

console = Console()


def export(
    run: Annotated[str, typer.Argument(help="A run folder or a model of the zoo.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The .onnx file, or the folder, to write.", show_default=False)
    ],
    onnx: Annotated[bool, typer.Option("--onnx", help="Energy, score and log p as an ONNX graph.")] = False,
    trigger: Annotated[
        bool, typer.Option("--trigger", help="A small fixed-point network as an hls4ml project.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Weight draws of a Bayesian run.")] = 100,
    tolerance: Annotated[float, typer.Option(help="ONNX: on the score, against the model.")] = 1e-3,
    signal: Annotated[list[Path] | None, typer.Option(help="Trigger: files of anomalies to compare on.")] = None,
    hidden: Annotated[str, typer.Option(help="Trigger: widths of the hidden layers.")] = "32,16",
    bits: Annotated[int, typer.Option(help="Trigger: of weights, inputs and results.")] = 16,
    epochs: Annotated[int, typer.Option(help="Trigger: of the distillation.")] = 30,
    events: Annotated[int, typer.Option(help="Trigger: background events to distill on.")] = 50_000,
) -> None:
    """Write a model as ONNX, or a small copy of it for a trigger; either is compared with the run before it is kept."""
    if onnx == trigger:
        raise InputError("expected one of --onnx and --trigger, which says what to write")
    if trigger:
        _trigger(run, output, hidden, bits, epochs, events, signal or [])
        return
    from normae.export.onnx import export_onnx

    differences = export_onnx(run, output, draws, tolerance)
    largest = ", ".join(f"{name} {found.largest:.2g}" for name, found in differences.items())
    console.print(f"Checked on 1000 events; largest differences: {largest}", soft_wrap=True, highlight=False)
    console.print(f"Model: {output}", soft_wrap=True, highlight=False, markup=False)


def _trigger(run: str, output: Path, hidden: str, bits: int, epochs: int, events: int, signal: list[Path]) -> None:
    from normae.export.trigger import TriggerSettings, export_trigger

    try:
        widths = tuple(int(piece) for piece in hidden.split(","))
    except ValueError:
        raise InputError(f"--hidden: expected widths such as 32,16, got {hidden!r}") from None
    settings = TriggerSettings(widths, bits, epochs, events)
    report = export_trigger(run, output, settings, signal)
    table = Table("anomalies", "AUC, original", "AUC, fixed point", "loss", "correlation of scores")
    for name in ("noise", "signal"):
        if f"auc_{name}" in report:
            areas, same = report[f"auc_{name}"], report["pearson"][name]
            cells = (f"{cell['value']:.4f} ± {cell['error']:.4f}" for cell in (*_picked(areas), same))
            table.add_row(name, *cells)
    console.print(table)
    found = report["emulation"]
    words = "no compiler to compare with" if found["outputs_that_differ"] is None else "equal in every bit"
    console.print(f"{found['events']} events by {found['by']}: {words}", soft_wrap=True, highlight=False)
    console.print(f"Project and report: {output}", soft_wrap=True, highlight=False, markup=False)


def _picked(areas: dict[str, dict[str, float]]) -> list[dict[str, float]]:
    return [areas[kind] for kind in ("original", "fixed", "loss")]
