"""`normae sample`: events from a model."""

from pathlib import Path
from typing import Annotated

import typer

from normae.cli.console import Device, Run, Seed, say
from normae.errors import InputError


def sample(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .npz file to write.", show_default=False)],
    n: Annotated[int, typer.Option("-n", help="Number of events.")] = 10_000,
    seed: Seed = 0,
    latent_steps: Annotated[int | None, typer.Option(help="Length of the latent chain.")] = None,
    feature_steps: Annotated[int | None, typer.Option(help="Length of the feature chain.")] = None,
    device: Device = "auto",
) -> None:
    """Generate events: the array x of an .npz file.

    Example: normae sample runs/toy -n 10000 -o samples.npz
    """
    if out.suffix != ".npz":
        raise InputError(f"--out: expected a name that ends in .npz, got {out}")
    import numpy as np

    from normae.files import atomic_path
    from normae.runs.load import load

    x = load(run, device).sample(n, seed, latent_steps, feature_steps)
    with atomic_path(out) as temporary:
        np.savez(temporary, x=x)
    say(f"{n} events of shape {x.shape[1:]}: {out}")
