"""`normae temperature`: estimates of T from background events alone, and the search for the T with slope 1."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from normae.cli.console import Command, Device, Run, Set, say, show
from normae.errors import InputError, Interrupted

if TYPE_CHECKING:
    from normae.temperature.estimates import Temperatures


class OneWord(TyperGroup):
    """The old form had no word for what to do: TOML files were searched, a run was estimated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the word that is missing."""
        if args and args[0] not in (*self.commands, "--help"):
            args = ["search" if any(word.endswith(".toml") for word in args) else "estimate", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(name="temperature", cls=OneWord, no_args_is_help=True, help="Estimate or search the temperature.")


@app.command(cls=Command)
def estimate(
    run: Run,
    events: Annotated[int, typer.Option(help="Most events to use.", min=1)] = 2000,
    data: Annotated[Path | None, typer.Option(help="Events to use, if not those that the run was trained on.")] = None,
    device: Device = "auto",
) -> None:
    """Estimate the temperature of a run from background alone.

    Example: normae temperature estimate runs/toy
    """
    from normae.temperature.estimates import estimate_temperatures, write_temperatures

    found = estimate_temperatures(run, events, device=device, data=data)
    show(("temperature of", "value", "in units of the model's"), _rows(found), run)
    if Path(run).is_dir():
        say(f"Numbers: {write_temperatures(run, found)}; figures beside it")


def _rows(found: "Temperatures") -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("the model", f"{found.model:.4g}", "1")]
    for name, one in found.estimates.items():
        error = "" if math.isfinite(one.error) else " (error not known)"
        rows.append((name, f"{one}{error}", f"{one.value / found.model:.3g}"))
    rows.append(("mean energy", found.mean_energy, f"{found.mean_energy.value / found.model:.3g}"))
    return [*rows, ("effective dimension", found.dimension, "")]


@app.command(cls=Command)
def search(
    configs: Annotated[
        list[str], typer.Argument(metavar="CONFIG_A CONFIG_B", help="Two presets or TOML files.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the search; needed.")] = None,
    reference: Annotated[str | None, typer.Option(help="A trained classifier of jets to compare with.")] = None,
    start: Annotated[list[str] | None, typer.Option(help="A trained autoencoder of A, and again of B.")] = None,
    override: Set = None,
    trainings: Annotated[int, typer.Option(help="Most temperatures to try.")] = 6,
    epochs: Annotated[int | None, typer.Option(help="Epochs of each training.")] = None,
    first: Annotated[float | None, typer.Option(help="The temperature to begin with.")] = None,
    events: Annotated[int, typer.Option(help="Most events to compare on; 0 for all.")] = 0,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes; the same command goes on.")] = None,
    device: Device = "auto",
) -> None:
    """Search the temperature at which the dual test has slope m = 1.

    Example: normae temperature search jets-paper-qcd-nae jets-paper-top-nae -o runs/search --reference runs/classifier
    """
    from normae.cli.console import TrainingDisplay
    from normae.temperature.search import SearchSettings, read_pair, search_temperature

    starts = (None, None) if not start else tuple(start)
    if len(configs) != 2 or out is None:
        raise InputError(f"expected two configurations and --out, the folder of the search, got {len(configs)}")
    if len(starts) != 2:
        raise InputError(f"--start: expected it twice, for A and for B, got {len(starts)}")
    settings = SearchSettings(trainings=trainings, epochs=epochs, events=events, start=first)
    pair = read_pair(configs, [*(override or []), f"device={json.dumps(device)}"])
    with TrainingDisplay() as display:
        found = search_temperature(pair, out, starts, reference, settings, display, minutes)
    show(("temperature", "slope m"), [(f"{point.temperature:.3g}", point.slope) for point in found.points])
    if not found.finished:
        raise Interrupted("stopped; the search is safe. Go on with the same command")
    say(f"m = 1 at T = {found.temperature}. Numbers and figure: {out}")
