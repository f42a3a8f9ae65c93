"""`normae export`: a model as a file that runs without this package."""

from pathlib import Path
from typing import Annotated

import typer

from normae.cli.console import Run, say, show
from normae.errors import InputError


def export(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .onnx file or folder to write.", show_default=False)],
    onnx: Annotated[bool, typer.Option("--onnx", help="Energy, score and log p as an ONNX graph.")] = False,
    trigger: Annotated[
        bool, typer.Option("--trigger", help="A small fixed-point network as an hls4ml project.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Weight draws of a Bayesian run.")] = 100,
    tolerance: Annotated[float, typer.Option(help="ONNX: largest difference of scores.")] = 1e-3,
    signal: Annotated[
        list[Path] | None, typer.Option(help="Trigger: a file of signal to compare on. Any number of times.")
    ] = None,
    hidden: Annotated[str, typer.Option(help="Trigger: widths of the hidden layers.")] = "32,16",
    bits: Annotated[int, typer.Option(help="Trigger: bits of weights, inputs and results.")] = 16,
    epochs: Annotated[int, typer.Option(help="Trigger: epochs of the distillation.")] = 30,
    events: Annotated[int, typer.Option(help="Trigger: background events to distill on.")] = 50_000,
) -> None:
    """Write a model as ONNX, or as a small network for a trigger.

    Either is compared with the run before it is kept.

    Example: normae export runs/toy --onnx -o model.onnx
    """
    if onnx == trigger:
        raise InputError("expected one of --onnx and --trigger, which says what to write")
    if trigger:
        _trigger(run, out, hidden, bits, epochs, events, signal or [])
        return
    from normae.export.onnx import export_onnx

    differences = export_onnx(run, out, draws, tolerance)
    largest = ", ".join(f"{name} {found.largest:.2g}" for name, found in differences.items())
    say(f"Checked on 1000 events; largest differences: {largest}")
    say(f"Model: {out}")


def _trigger(run: str, out: Path, hidden: str, bits: int, epochs: int, events: int, signal: list[Path]) -> None:
    from normae.export.trigger import TriggerSettings, export_trigger

    try:
        widths = tuple(int(piece) for piece in hidden.split(","))
    except ValueError:
        raise InputError(f"--hidden: expected widths such as 32,16, got {hidden!r}") from None
    report = export_trigger(run, out, TriggerSettings(widths, bits, epochs, events), signal)
    rows = []
    for name in ("noise", "signal"):
        if areas := report.get(f"auc_{name}"):
            cells = (areas["original"], areas["fixed"], areas["loss"], report["pearson"][name])
            rows.append((name, *(f"{cell['value']:.4f} ± {cell['error']:.4f}" for cell in cells)))
    show(("anomalies", "AUC, original", "AUC, fixed point", "loss", "correlation of scores"), rows)
    found = report["emulation"]
    words = "no compiler to compare with" if found["outputs_that_differ"] is None else "equal in every bit"
    say(f"{found['events']} events by {found['by']}: {words}")
    say(f"Project and report: {out}")
