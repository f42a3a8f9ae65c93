"""The commands that give finished runs error bars: `normae laplace` and `normae ensemble`."""

from pathlib import Path
from typing import Annotated

import typer

from normae.cli.console import Device, Folder, Jets, NewRun, say


def laplace(
    run: Folder,
    out: NewRun,
    layers: Annotated[str, typer.Option(help="last, decoder or all.")] = "all",
    prior_width: Annotated[float, typer.Option(help="Width of the prior of the weights.")] = 1.0,
    device: Device = "auto",
) -> None:
    """Give a trained run error bars without another training.

    They come from the posterior of the linearized network.

    Example: normae laplace runs/toy -o runs/toy-laplace
    """
    from normae.runs.linearize import linearize

    linearize(run, out, layers, prior_width, device)
    say(f"With error bars: {out}. Next: normae evaluate {out}")


def ensemble(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders or models of the zoo, or one folder of seeds.", show_default=False)
    ],
    out: NewRun,
    jets: Jets = None,
) -> None:
    """Join runs of different seeds into one model.

    Its error bars come from the spread of the runs. It takes at least four runs, or two Bayesian ones.

    Example: normae ensemble runs/seeds -o runs/ensemble
    """
    from normae.runs.ensemble import gather

    gather(runs, out, jets)
    say(f"With error bars: {out}. Next: normae evaluate {out}")
