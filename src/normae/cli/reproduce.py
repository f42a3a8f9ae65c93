"""`normae reproduce`, and `normae publish`, which puts a run into the zoo that it takes models from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from normae.cli.console import say, show
from normae.cli.options import Device, Folder, Jets, Set


def reproduce(
    what: Annotated[str, typer.Argument(help="toy, bayes, dual or jets.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for runs, figures and tables.")] = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Train instead of using the zoo.")] = False,
    configs: Annotated[Path | None, typer.Option(help="Folder of other presets.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of new trainings.")] = 0,
    jets: Jets = None,
    generated: Annotated[int | None, typer.Option(help="Jets that each model generates.", min=0)] = None,
    device: Device = "auto",
    override: Set = None,
) -> None:
    """Make the paper's figures and tables again, theirs beside ours.

    --jets, --generated, --device and --set are for jets.

    Example: normae reproduce toy
    """
    from normae.cli.training import TrainingDisplay
    from normae.paper import jets as section_4
    from normae.paper import reproduce as section_3

    out = out or Path("runs") / f"reproduce-{what}"
    with TrainingDisplay() as display:
        if what == "jets":
            settings = section_4.Settings(jets, from_scratch, configs, seed, device, generated, tuple(override or ()))
            made = section_4.reproduce_jets(out, settings, display)
            tables = {section_4.TITLES[name]: rows for name, rows in made.tables.items()}
            missing: Sequence[str] = made.left_out
        else:
            table = section_3.reproduce(what, out, from_scratch, configs, seed, display)
            tables = {section_3.SECTIONS[what].title: [list(section_3.header(table)), *section_3.rows(what, table)]}
            missing = section_3.left_out(what, table)
    for title, rows in tables.items():
        show(rows[0], rows[1:], title)
    if missing:
        say(f"Not in the zoo, so left out (--from-scratch trains them): {', '.join(missing)}")
    say(f"Tables: {out / 'table.md'}; figures and reports in the folders beside it")


def publish(
    group: Folder,
    target: Annotated[Path, typer.Argument(help="Folder of the zoo to write.", show_default=False)],
    seed: Annotated[int, typer.Option(help="The seed that ships.")] = 0,
) -> None:
    """Put an evaluated run of a folder of seeds into the zoo, with a card over all seeds."""
    from normae.paper.publish import publish as publish_run

    say(f"Published: {publish_run(group, seed, target)}")
