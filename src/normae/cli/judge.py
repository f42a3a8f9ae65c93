"""The commands that judge: runs, two runs, a temperature, many seeds; the paper's numbers beside ours; and speed."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from normae.cli.console import Command, TrainingDisplay, say, show, use_threads
from normae.cli.options import Device, Folder, Force, Jets, Run, Seed, Set, argument, option
from normae.errors import InputError, Interrupted

if TYPE_CHECKING:
    from normae.dual.judge import DualResult


def evaluate(
    run: Folder,
    figures: Annotated[bool, option("Draw the figures too.")] = True,
    device: Device = "auto",
    generated: Annotated[
        int | None, option("Jets to generate. Default: evaluation.generated on CUDA, none on a CPU.", min=0)
    ] = None,
    jets: Jets = None,
) -> None:
    """Judge a trained run: metrics.json and figures/.

    A toy is compared with its true density, a table with held-out rows.
    A run on jets is judged by how well it tags the other class.

    Example: normae evaluate runs/toy
    """
    from normae.config import read
    from normae.evaluation.evaluate import evaluate as evaluate_run
    from normae.runs.folder import RunFolder

    use_threads(read(RunFolder.existing(run).config).threads)
    show(("metric", "value"), evaluate_run(run, figures, device, generated, jets).items(), str(run))


def report(run: Folder, force: Force = False) -> None:
    """Write report.html, one page about an evaluated run.

    Example: normae report runs/toy
    """
    from normae.evaluation.evaluate import report as report_run

    say(f"Report: {report_run(run, force)}")


def coverage(group: Annotated[Path, argument("A folder of seeds.")], device: Device = "auto") -> None:
    """Test the error bars of many seeds against the truth.

    The folder comes from normae train --seeds 0-15. Writes coverage.json and figures/.

    Example: normae coverage runs/seeds
    """
    from normae.evaluation.toy_posterior import coverage_of_group

    show(("over trainings", "value"), coverage_of_group(group, device).items(), str(group))


def spread(
    runs: Annotated[list[Path], argument("Evaluated runs, one folder of seeds, or dual tests.")],
    out: Annotated[Path | None, option("A JSON file to write.", "--out", "-o")] = None,
    force: Force = False,
) -> None:
    """Show how metrics vary between seeds.

    Example: normae spread runs/seeds
    """
    from normae.evaluation.spread import spread_of_runs

    found = spread_of_runs(runs, out, force)
    rows = [
        (name, one.mean, *(f"{v:.2g}" if math.isfinite(v) else "" for v in (one.deviation, one.stated, one.within)))
        for name, one in found.items()
    ]
    count = len(next(iter(found.values())).values)
    show(("number", "mean", "deviation", "stated error", "within it"), rows, f"over {count} trainings")
    if out is not None:
        say(f"Numbers: {out}")


def dual(
    run_a: Annotated[str, argument("A: a run folder or a model of the zoo.")],
    run_b: Annotated[str, argument("B: a run folder or a model of the zoo.")],
    data: Annotated[Path | None, option("Events to test on: a table with a column label (1 for B), or jets.")] = None,
    reference: Annotated[str | None, option("A trained classifier of jets, instead of a new one.")] = None,
    out: Annotated[Path | None, option("Folder. Default: dual/A-B-on-SAMPLE-by-REFERENCE.", "--out", "-o")] = None,
    draws: Annotated[int | None, option("Weight draws of a Bayesian run; 100 if not given.")] = None,
    events: Annotated[int, option("Events of each density, without --data; most jets of each class.")] = 100_000,
    seed: Seed = 0,
    classifier: Annotated[bool, option("Train a classifier to compare with.")] = True,
    device: Device = "auto", force: Force = False,
) -> None:  # fmt: skip
    """Test the likelihood ratio of two models.

    It is log r = log p_B - log p_A. Writes dual.json, figures/ and report.html.

    Example: normae dual runs/a runs/b --data test.npz
    """
    from normae.config import read
    from normae.dual import test as dual_test
    from normae.dual.judge import DualSettings
    from normae.dual.output import default_folder, notes
    from normae.runs.load import run_of

    sample = dual_test.sample_of(read(run_of(run_a).config), data)
    folder = out or default_folder(run_a, run_b, sample, reference)
    settings = DualSettings(events=events, draws=draws, seed=seed, classifier=classifier)
    result = dual_test.dual(run_a, run_b, folder, sample, settings, device, reference, force)
    show(("log r = log p_B - log p_A", *(f"against {name}" for name in result.against)), _ratios(result))
    for sentence in [*result.verdicts.values(), *notes(result)]:
        say(sentence)
    say(f"Report: {folder / 'report.html'}")


def _ratios(result: "DualResult") -> list[tuple[object, ...]]:
    """One column for each reference."""
    found = result.against.values()
    rows: list[tuple[object, ...]] = [("Pearson", *(one.best.pearson for one in found))]
    rows.append(("slope m", *(one.best.line.slope for one in found)))
    for k, side in enumerate("AB"):
        rows.append((f"Pearson within {side}", *(one.best.within[k].pearson for one in found)))
        rows.append((f"slope m within {side}", *(one.best.within[k].slope for one in found)))
    for choice, words in (("c0", "C = 0"), ("log_z", "C from log Z")):
        if choice in result.ratios:
            chosen = [one.comparisons[choice] for one in found]
            rows.append((f"constant, {words}", *(one.line.constant for one in chosen)))
            for side in "ab":
                shares = [getattr(one, f"outside_{side}") for one in chosen]
                rows.append((f"share of {side.upper()} off by 1, {words}", *shares))
    rows.append(("factor b by labels", *([result.logistic] + [""] * (len(found) - 1))))
    return [*rows, ("verdict", *("passes" if one.passes else "fails" for one in found))]


# --- temperature


class OneWord(TyperGroup):
    """The old form had no word for what to do: TOML files were searched, a run was estimated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["search" if any(word.endswith(".toml") for word in args) else "estimate", *args]
        return super().parse_args(ctx, args)


temperature = typer.Typer(
    name="temperature", cls=OneWord, no_args_is_help=True, help="Estimate or search the temperature."
)


@temperature.command(cls=Command)
def estimate(
    run: Run,
    events: Annotated[int, option("Most events to use.", min=1)] = 2000,
    data: Annotated[Path | None, option("Other events to use. Default: the run's validation or test sample.")] = None,
    device: Device = "auto",
) -> None:
    """Estimate the temperature of a run from background alone.

    Example: normae temperature estimate runs/toy
    """
    from normae.temperature.estimates import estimate_temperatures, write_temperatures

    found = estimate_temperatures(run, events, device=device, data=data)
    rows: list[tuple[object, ...]] = [("the model", f"{found.model:.4g}", "1")]
    for name, one in [*found.estimates.items(), ("mean energy", found.mean_energy)]:
        error = "" if math.isfinite(one.error) else " (error not known)"
        rows.append((name, f"{one}{error}", f"{one.value / found.model:.3g}"))
    rows.append(("effective dimension", found.dimension, ""))
    show(("temperature of", "value", "in units of the model's"), rows, run)
    if Path(run).is_dir():
        say(f"Numbers: {write_temperatures(run, found)}; figures beside it")


@temperature.command(cls=Command)
def search(
    configs: Annotated[list[str], argument("Two presets or TOML files.", metavar="CONFIG_A CONFIG_B")],
    out: Annotated[Path | None, option("Folder of the search; needed.", "--out", "-o")] = None,
    reference: Annotated[str | None, option("A trained classifier of jets to compare with.")] = None,
    start: Annotated[list[str] | None, option("A trained autoencoder. Give it twice: for A, then for B.")] = None,
    override: Set = None,
    trainings: Annotated[int, option("Most temperatures to try.")] = 6,
    epochs: Annotated[int | None, option("Epochs of each training.")] = None,
    first: Annotated[float | None, option("The temperature to begin with.")] = None,
    events: Annotated[int, option("Most events to compare on; 0 for all.")] = 0,
    scatter: Annotated[float | None, option("Scatter of m between trainings: 0.25 for jets, 0.03 for toys.")] = None,
    minutes: Annotated[float | None, option("Stop after so many minutes; the same command goes on.")] = None,
    device: Device = "auto",
) -> None:
    """Search the temperature at which the dual test has slope m = 1.

    Example: normae temperature search jets-paper-qcd-nae jets-paper-top-nae -o runs/search --reference runs/classifier
    """
    from normae.config import read
    from normae.temperature.search import SearchSettings, search_temperature

    starts = (None, None) if not start else tuple(start)
    if len(configs) != 2 or out is None:
        given = f"{len(configs)} and {'no' if out is None else 'a'} folder"
        raise InputError(f"expected two configurations and --out FOLDER, got {given}")
    if len(starts) != 2:
        raise InputError(f"--start: expected it twice, for A and for B, got {len(starts)}")
    settings = SearchSettings(trainings=trainings, epochs=epochs, events=events, start=first, scatter=scatter)
    a, b = (read(config, [*(override or []), f"device={json.dumps(device)}"]) for config in configs)
    with TrainingDisplay() as display:
        found = search_temperature((a, b), out, starts, reference, settings, display, minutes)
    show(("temperature", "slope m"), [(f"{point.temperature:.3g}", point.slope) for point in found.points])
    if not found.finished:
        raise Interrupted("stopped; the search is safe. Go on with the same command")
    say(f"m = 1 at T = {found.temperature}. Numbers and figure: {out}")


# --- the paper, and speed

UNITS = {"times": "times as fast", "floors": "times the floor"}


def reproduce(
    what: Annotated[str, argument("toy, bayes, dual, jets or all.")],
    out: Annotated[Path | None, option("Folder for runs, figures and tables.", "--out", "-o")] = None,
    from_scratch: Annotated[bool, option("Train instead of using the zoo.", "--from-scratch")] = False,
    configs: Annotated[Path | None, option("Folder of other presets.")] = None,
    seed: Annotated[int, option("Seed of new trainings.")] = 0,
    jets: Jets = None,
    generated: Annotated[int | None, option("Jets that each model generates.", min=0)] = None,
    device: Device = "auto", override: Set = None, force: Force = False,
) -> None:  # fmt: skip
    """Make the paper's figures and tables again, beside ours.

    `all --from-scratch` trains every model of the paper with its settings and lengths.
    After a stop the same command continues.
    --jets and --generated are for jets, --set for new trainings.

    Example: normae reproduce toy
    """
    from normae.paper import reproduce as paper

    out = out or Path("runs") / f"reproduce-{what}"
    settings = paper.Settings(from_scratch, configs, seed, device, jets, generated, tuple(override or ()))
    with TrainingDisplay() as display:
        made = paper.reproduce(what, out, settings, display, force)
    for title, rows in made.tables.items():
        show(rows[0], rows[1:], title)
    if made.left_out:
        say(f"Not in the zoo, so left out (--from-scratch trains them): {', '.join(made.left_out)}")
    for note in made.notes:
        say(note)
    say(f"Tables: {out / 'table.md'}; figures and reports in the folders beside it")


def bench(
    out: Annotated[Path, option("Folder for bench.json and the picture.", "--out", "-o")] = Path("runs/bench"),
    only: Annotated[str | None, option("toy, sampling, scoring, jets or images.")] = None,
    quick: Annotated[bool, option("Tiny sizes, to see that everything runs.", "--quick")] = False,
    device: Device = "auto",
    rounds: Annotated[int | None, option("How often everything is measured, in turns.", min=2)] = None,
    force: Force = False,
) -> None:
    """Measure speed against others and against the machine's limits.

    Example: normae bench --only toy -o runs/bench
    """
    from normae.bench import bench as measure

    result = measure(out, only, quick, device, rounds, say, force)
    rows = [(row.name, row.value, UNITS.get(row.unit, row.unit)) for row in result.rows]
    show(("what", "value", "unit"), rows, str(result.machine["device"]))
    for line in result.skipped:
        say(f"Left out: {line}")
    say(f"Numbers and picture: {out}")
