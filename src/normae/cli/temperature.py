"""`normae temperature`: of a trained run from background events alone, or the root of m(T) = 1 over short trainings."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from normae.cli.progress import TrainingDisplay
from normae.errors import InputError, Interrupted

if TYPE_CHECKING:
    from normae.temperature.estimates import Temperatures

console = Console()


def temperature(
    what: Annotated[list[str], typer.Argument(help="A run, or the configurations of A and B.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder of a search.", show_default=False)] = None,
    reference: Annotated[str | None, typer.Option(help="Classifier of jets that a search is held against.")] = None,
    start: Annotated[list[str] | None, typer.Option(help="Autoencoder of A, and again of B.")] = None,
    override: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, of both.")] = None,
    trainings: Annotated[int, typer.Option(help="Most temperatures of a search.")] = 6,
    epochs: Annotated[int | None, typer.Option(help="Of each training of a search.")] = None,
    first: Annotated[float | None, typer.Option(help="Where a search begins.")] = None,
    events: Annotated[int, typer.Option(help="Most events; 0 for all (a search), 2000 (a run).")] = 0,
    data: Annotated[Path | None, typer.Option(help="Of a run: other events than it was trained on.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop a search after so many minutes.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Estimate the temperature of a RUN without a signal sample, or search it: CONFIG_A CONFIG_B --out FOLDER."""
    if len(what) == 1:
        _estimate(what[0], events or 2000, data, device)
        return
    if len(what) != 2 or out is None:
        raise InputError("expected one run, or two configurations and --out, the folder of the search")
    from normae.temperature.search import SearchSettings, read_pair, search_temperature

    starts = (None, None) if not start else tuple(start)
    if len(starts) != 2:
        raise InputError(f"--start: expected it twice, for A and for B, got {len(starts)}")
    settings = SearchSettings(trainings=trainings, epochs=epochs, events=events, start=first)
    configs = read_pair(what, [*(override or []), f"device={json.dumps(device)}"])
    with TrainingDisplay(console) as display:
        found = search_temperature(configs, out, starts, reference, settings, display, minutes)
    table = Table("temperature", "slope m")
    for point in found.points:
        table.add_row(f"{point.temperature:.3g}", str(point.slope))
    console.print(table)
    if not found.finished:
        raise Interrupted("stopped; the search is safe. Go on with the same command")
    console.print(f"m = 1 at T = {found.temperature}. Numbers and figure: {out}", soft_wrap=True)


def _estimate(run: str, events: int, data: Path | None, device: str) -> None:
    from normae.temperature.estimates import estimate_temperatures, write_temperatures

    found = estimate_temperatures(run, events, device=device, data=data)
    console.print(_table(run, found))
    if Path(run).is_dir():
        console.print(f"Numbers: {write_temperatures(run, found)}; figures beside it", soft_wrap=True)


def _table(run: str, found: "Temperatures") -> Table:
    table = Table("temperature of", "value", "in units of the model's", title=run)
    table.add_row("the model", f"{found.model:.4g}", "1")
    for name, estimate in found.estimates.items():
        error = "" if math.isfinite(estimate.error) else " (error not known)"
        table.add_row(name, f"{estimate}{error}", f"{estimate.value / found.model:.3g}")
    table.add_row("mean energy", str(found.mean_energy), f"{found.mean_energy.value / found.model:.3g}")
    table.add_row("effective dimension", str(found.dimension), "")
    return table
