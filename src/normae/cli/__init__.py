"""The command line: all commands in the order in which they are used, and what an error says and exits with."""

import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from normae.cli import jets
from normae.cli.console import Bars, Command, say
from normae.cli.judge import coverage, dual, evaluate, report, spread, temperature
from normae.cli.paper import bench, publish, reproduce
from normae.cli.train import ensemble, info, laplace, presets, train
from normae.cli.use import export, histogram, sample, score
from normae.errors import ClusterFailed, InputError, Interrupted, LogZDisagreement, TrainingDiverged
from normae.progress import shown_by
from normae.version import __version__

PANELS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "Train": (train, presets, info),
    "Judge": (evaluate, report, dual, temperature, coverage, spread),
    "Use": (score, sample, histogram, export),
    "More error bars": (laplace, ensemble),
    "Paper and speed": (reproduce, bench),
    "Jets": (jets.app,),
}


def _name(command: Any) -> str:
    return str(command.info.name if isinstance(command, typer.Typer) else command.__name__)


class InOrder(TyperGroup):
    """Commands in the order of `PANELS`; typer has groups last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, those without a panel last."""
        shown = [_name(command) for commands in PANELS.values() for command in commands]
        return [*shown, *(name for name in super().list_commands(ctx) if name not in shown)]


app = typer.Typer(cls=InOrder, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(cls=Command, rich_help_panel=panel)(command)
app.command(cls=Command, hidden=True)(publish)


def _version(asked: bool) -> None:
    if asked:
        say(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Normalized autoencoders: anomaly scores that are likelihoods.

    Example: normae train toy-quick -o runs/toy, then normae evaluate runs/toy and normae report runs/toy.
    """
    del version
    logging.basicConfig(format="normae: %(message)s")


def main() -> None:
    """Run the command.

    Bad input is one sentence and exit code 2; a training that diverged, bounds on log Z that disagree or a cluster that
    failed exit code 1; an interruption exit code 130.
    """
    try:
        with shown_by(Bars()):
            app()
    except (InputError, OSError, MemoryError) as error:
        _say(str(error) or type(error).__name__, 2)
    except TrainingDiverged as error:
        _say(f"the training diverged: {error}", 1)
    except ClusterFailed as error:
        _say(f"{error}; parts that are done are kept, and the same command does the rest", 1)
    except LogZDisagreement as error:
        _say(str(error), 1)
    except Interrupted as error:
        _say(str(error), 130)
    except KeyboardInterrupt:
        _say("interrupted", 130)
    except SystemExit as error:
        if error.code == 130:
            _say("interrupted", 130)
        raise


def _say(sentence: str, code: int) -> None:
    print(f"normae: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)
