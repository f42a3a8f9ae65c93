"""The command line: all commands in the order in which they are used."""

from collections.abc import Callable
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from normae.cli import jets
from normae.cli.console import Command, common, run
from normae.cli.judge import bench, coverage, dual, evaluate, report, reproduce, spread, temperature
from normae.cli.train import ensemble, info, presets, train
from normae.cli.use import export, histogram, sample, score

PANELS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "Train": (train, presets, info),
    "Judge": (evaluate, report, dual, temperature, coverage, spread),
    "Use": (score, sample, histogram, export),
    "More error bars": (ensemble,),
    "Paper and speed": (reproduce, bench),
    "Jets": (jets.app,),
}


class InOrder(TyperGroup):
    """Commands in the order of `PANELS`; typer has groups last."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The names of all commands."""
        every = [command for commands in PANELS.values() for command in commands]
        return [str(c.info.name if isinstance(c, typer.Typer) else c.__name__) for c in every]


app = typer.Typer(cls=InOrder, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(cls=Command, rich_help_panel=panel)(command)
app.callback()(common)
main = partial(run, app)
