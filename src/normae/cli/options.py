"""The options that commands share, with one meaning each."""

from pathlib import Path
from typing import Annotated, Any

import typer


def option(words: str, *names: str, **settings: Any) -> Any:
    """An option with its help."""
    return typer.Option(*names, help=words, **settings)


def argument(words: str, **settings: Any) -> Any:
    """An argument with its help; what it is if not given is not shown."""
    return typer.Argument(help=words, show_default=False, **settings)


Run = Annotated[str, argument("A run folder or a model of the zoo.")]
Folder = Annotated[Path, argument("A run folder.")]
Jets = Annotated[Path | None, option("Jets. Default: $NORMAE_JETS, or, to judge, the public ones.", "--jets")]
Device = Annotated[str, option("auto, cpu or cuda.", "--device")]
Seed = Annotated[int, option("Fixes all random numbers.", "--seed")]
NewRun = Annotated[Path, option("The run folder to write.", "--out", "-o", show_default=False)]
Set = Annotated[list[str] | None, option("section.key=value: change a setting. Any number of times.", "--set")]
Force = Annotated[bool, option("Replace what is there already.", "--force")]
Columns = Annotated[str | None, option("a,b,c: columns to take instead of the run's.", "--columns")]
Dataset = Annotated[str | None, option("The array of an .npz, group of an HDF5 or tree of a ROOT file.", "--dataset")]
