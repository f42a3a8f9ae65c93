"""Arguments and options that several commands have, with one meaning each, and how their texts are read."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from normae.errors import InputError

Run = Annotated[str, typer.Argument(help="A run folder or a model of the zoo.", show_default=False)]
Folder = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
Jets = Annotated[Path | None, typer.Option("--jets", help="A folder or file of jets; NORMAE_JETS if not given.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Seed = Annotated[int, typer.Option("--seed", help="Fixes all random numbers.")]
NewRun = Annotated[Path, typer.Option("--out", "-o", help="The run folder to write.", show_default=False)]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value: change a setting. Any number of times.")
]
Columns = Annotated[str | None, typer.Option("--columns", help="a,b,c: the columns to take, if not those of the run.")]
Dataset = Annotated[
    str | None, typer.Option("--dataset", help="The array of an .npz, group of an HDF5 or tree of a ROOT file.")
]

OLD = {"--output": ("--out",), "--key": ("--dataset",), "--data": ("--jets", "--observed")}
"""Options that had another name, or one name for several things."""


class Command(TyperCommand):
    """A command that still takes the old names of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse with every old name that the command does not have replaced by the new one that it has."""
        known = {name for parameter in self.params for name in parameter.opts}
        new = {old: name for old, names in OLD.items() if old not in known for name in names if name in known}
        words = [word.partition("=") for word in args]
        return super().parse_args(ctx, [new.get(name, name) + equals + value for name, equals, value in words])


def parse_columns(text: str | None) -> list[str] | None:
    """Names such as "a,b,c"."""
    return None if text is None else text.split(",")


def parse_seeds(text: str | None) -> list[int] | None:
    """Seeds such as "0-7", "3" or "0,2,5-7"."""
    if text is None:
        return None
    seeds: list[int] = []
    try:
        for piece in text.split(","):
            first, dash, last = piece.partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise InputError(f"--seeds: expected a list such as 0-7 or 0,2,5, got {text!r}") from None
    if not seeds:
        raise InputError(f"--seeds: expected at least one seed, got {text!r}")
    return seeds


def use_threads(count: int) -> None:
    """Work with as many CPU threads as a run asks for; 0 leaves it to torch."""
    import torch

    if count > 0:
        torch.set_num_threads(count)
