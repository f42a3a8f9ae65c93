"""`normae reproduce` and `bench`, and `publish`, which puts a run into the zoo that `reproduce` takes models from."""

from pathlib import Path
from typing import Annotated

from normae.cli.console import TrainingDisplay, say, show
from normae.cli.options import Device, Folder, Jets, Set, argument, option

UNITS = {"times": "times as fast", "floors": "times the floor"}


def reproduce(
    what: Annotated[str, argument("toy, bayes, dual, jets or all.")],
    out: Annotated[Path | None, option("Folder for runs, figures and tables.", "--out", "-o")] = None,
    from_scratch: Annotated[bool, option("Train instead of using the zoo.", "--from-scratch")] = False,
    configs: Annotated[Path | None, option("Folder of other presets.")] = None,
    seed: Annotated[int, option("Seed of new trainings.")] = 0,
    jets: Jets = None,
    generated: Annotated[int | None, option("Jets that each model generates.", min=0)] = None,
    device: Device = "auto",
    override: Set = None,
) -> None:
    """Make the paper's figures and tables again, theirs beside ours.

    `all --from-scratch` trains every model of the paper with its settings and lengths, and goes on after a stop.
    --jets and --generated are for jets, --set for new trainings.

    Example: normae reproduce toy
    """
    from normae.paper.reproduce import Settings
    from normae.paper.reproduce import reproduce as make

    out = out or Path("runs") / f"reproduce-{what}"
    settings = Settings(from_scratch, configs, seed, device, jets, generated, tuple(override or ()))
    with TrainingDisplay() as display:
        made = make(what, out, settings, display)
    for title, rows in made.tables.items():
        show(rows[0], rows[1:], title)
    if made.left_out:
        say(f"Not in the zoo, so left out (--from-scratch trains them): {', '.join(made.left_out)}")
    for note in made.notes:
        say(note)
    say(f"Tables: {out / 'table.md'}; figures and reports in the folders beside it")


def publish(
    group: Folder,
    target: Annotated[Path, argument("Folder of the zoo to write.")],
    seed: Annotated[int, option("The seed that ships.")] = 0,
) -> None:
    """Put an evaluated run of a folder of seeds into the zoo, with a card over all seeds."""
    from normae.paper.publish import publish as publish_run

    say(f"Published: {publish_run(group, seed, target)}")


def bench(
    out: Annotated[Path, option("Folder for bench.json and the picture.", "--out", "-o")] = Path("runs/bench"),
    only: Annotated[str | None, option("toy, sampling, scoring, jets or images.")] = None,
    quick: Annotated[bool, option("Tiny sizes, to see that everything runs.", "--quick")] = False,
    device: Device = "auto",
    rounds: Annotated[int | None, option("How often everything is measured, in turns.", min=2)] = None,
) -> None:
    """Measure speed against others and against the machine's limits.

    Example: normae bench --only toy -o runs/bench
    """
    from normae.bench import bench as measure

    result = measure(out, only, quick, device, rounds, say)
    rows = [(row.name, row.value, UNITS.get(row.unit, row.unit)) for row in result.rows]
    show(("what", "value", "unit"), rows, str(result.machine["device"]))
    for line in result.skipped:
        say(f"Left out: {line}")
    say(f"Numbers and picture: {out}")
