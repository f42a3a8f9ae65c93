"""The commands of `normae`."""

import json
import logging
import shlex
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from normae import __version__
from normae.cli import dual, jets
from normae.cli.bench import bench
from normae.cli.export import export
from normae.cli.histogram import histogram
from normae.cli.progress import TrainingDisplay
from normae.cli.reproduce_jets import reproduce_jets
from normae.cli.score import score
from normae.cli.show import describe_run
from normae.cli.spread import spread
from normae.cli.temperature import temperature
from normae.config import Run, read
from normae.errors import InputError, Interrupted
from normae.files import atomic_path
from normae.runs.folder import RunFolder
from normae.runs.load import load
from normae.runs.session import train as train_run
from normae.training.parallel import launched_rank

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(jets.app, name="jets")
app.command()(dual.dual)
app.command()(bench)
app.command()(score)
app.command()(export)
app.command()(histogram)
app.command()(temperature)
app.command()(spread)
console = Console(quiet=launched_rank() > 0)


def _version(asked: bool) -> None:
    if asked:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Normalized autoencoders: anomaly scores that are likelihoods."""
    del version
    logging.basicConfig(format="normae: %(message)s")


def use_threads(run: Run) -> None:
    """Work with as many CPU threads as the run asks for."""
    if run.threads > 0:
        torch.set_num_threads(run.threads)


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


Folder = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
JetData = Annotated[Path | None, typer.Option(help="Folder or file of jets; NORMAE_JETS where not given.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A preset or a TOML file of your own.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
    override: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, any number of times.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds side by side, for example 0-7.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a training that was stopped.")] = False,
    start: Annotated[str | None, typer.Option(help="A finished autoencoder, in place of a pretraining.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes; --resume goes on.")] = None,
) -> None:
    """Train a normalized autoencoder, or a jet classifier, into a run folder."""
    override = [*(override or []), *([] if start is None else [f"start={json.dumps(start)}"])]
    run = read(config, override)
    use_threads(run)
    with TrainingDisplay(console) as display:
        finished = train_run(run, out, parse_seeds(seeds), resume, display, minutes)
    if not finished:
        raise Interrupted(f"stopped; the run is safe. Go on with: {_again(config, out, override, seeds, minutes)}")
    lacking = run.data.file is not None and run.data.test < 1
    following = f"normae score {out} FILES -o scores.parquet" if lacking else f"normae evaluate {out}"
    console.print(f"Trained: {out}. Next: {following}", soft_wrap=True)


def _again(config: Path, out: Path, override: list[str], seeds: str | None, minutes: float | None) -> str:
    """The command that continues a training."""
    parts = ["normae", "train", str(config), "--out", str(out)]
    for change in override:
        parts += ["--set", change]
    if seeds is not None:
        parts += ["--seeds", seeds]
    if minutes is not None:
        parts += ["--minutes", f"{minutes:g}"]
    return shlex.join([*parts, "--resume"])


@app.command()
def evaluate(
    run: Folder,
    figures: Annotated[bool, typer.Option(help="Draw the figures too.")] = True,
    device: Device = "auto",
    generated: Annotated[
        int | None, typer.Option(help="Jets to generate; evaluation.generated on CUDA, none on a CPU.", min=0)
    ] = None,
    data: JetData = None,
) -> None:
    """Compare a trained run with its density, or let it tag the other class of jets: metrics.json and figures/."""
    from normae.evaluation.toy import evaluate as evaluate_run

    use_threads(read(RunFolder.existing(run).config))
    metrics = evaluate_run(run, figures, device, generated, data)
    table = Table("metric", "value", title=str(run))
    for name, metric in metrics.items():
        table.add_row(name, str(metric))
    console.print(table)


@app.command()
def coverage(group: Folder, device: Device = "auto") -> None:
    """Judge the error bars of a folder of seeds (train --seeds 0-15) over its trainings: coverage.json and figures/."""
    from normae.evaluation.coverage import coverage_of_group

    numbers = coverage_of_group(group, device)
    table = Table("over trainings", "value", title=str(group))
    for name, number in numbers.items():
        table.add_row(name, str(number))
    console.print(table)


@app.command()
def laplace(
    run: Folder,
    out: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
    layers: Annotated[str, typer.Option(help="last, decoder or all.")] = "all",
    prior_width: Annotated[float, typer.Option(help="Of the weights.")] = 1.0,
    device: Device = "auto",
) -> None:
    """Give a trained deterministic run error bars without another training: the linearized network's posterior."""
    from normae.runs.linearize import linearize

    linearize(run, out, layers, prior_width, device)
    console.print(f"With error bars: {out}. Next: normae evaluate {out}", soft_wrap=True)


@app.command()
def ensemble(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders or models of the zoo, or one folder of seeds.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
    data: JetData = None,
) -> None:
    """Make one model with error bars out of finished runs that differ in their seeds: four, or two Bayesian ones."""
    from normae.runs.ensemble import gather

    gather(runs, out, data)
    console.print(f"With error bars: {out}. Next: normae evaluate {out}", soft_wrap=True)


@app.command()
def report(run: Folder) -> None:
    """Write report.html: one self-contained page about an evaluated run."""
    from normae.evaluation.toy_page import report as report_run

    console.print(f"Report: {report_run(run)}", soft_wrap=True)


@app.command()
def info(run: Folder) -> None:
    """Say what a run folder holds and how far it is."""
    console.print(describe_run(run), soft_wrap=True)


@app.command()
def sample(
    run: Annotated[str, typer.Argument(help="A run folder or a model of the zoo.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .npz file to write.", show_default=False)],
    n: Annotated[int, typer.Option("-n", help="Number of events.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Gives all randomness.")] = 0,
    latent_steps: Annotated[int | None, typer.Option(help="Length of the latent chain.")] = None,
    feature_steps: Annotated[int | None, typer.Option(help="Length of the feature chain.")] = None,
    device: Device = "auto",
) -> None:
    """Generate events from a trained model: the array x of an .npz file."""
    if output.suffix != ".npz":
        raise InputError(f"--output: expected a name that ends in .npz, got {output}")
    x = load(run, device).sample(n, seed, latent_steps, feature_steps)
    with atomic_path(output) as temporary:
        np.savez(temporary, x=x)
    console.print(f"{n} events of shape {x.shape[1:]}: {output}", soft_wrap=True)


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="toy, bayes, dual or jets", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder for runs, figures and table.")] = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Train instead of using the zoo.")] = False,
    configs: Annotated[Path | None, typer.Option(help="Folder of other presets.")] = None,
    seed: Annotated[int, typer.Option(help="Of new trainings.")] = 0,
    data: JetData = None,
    generated: Annotated[int | None, typer.Option(help="Jets that each model generates.", min=0)] = None,
    device: Device = "auto",
    override: Annotated[list[str] | None, typer.Option("--set", help="Of new trainings on jets.")] = None,
) -> None:
    """Make the paper's figures and table again, theirs beside ours."""
    from normae.paper import reproduce as work

    out = out or Path("runs") / f"reproduce-{what}"
    if what == "jets":
        settings = (data, from_scratch, configs, seed, device, generated, tuple(override or ()))
        reproduce_jets(out, settings)
        return
    with TrainingDisplay(console) as display:
        result = work.reproduce(what, out, from_scratch, configs, seed, display)
    table = Table(*work.header(result), title=work.SECTIONS[what].title)
    for row in work.rows(what, result):
        table.add_row(*row)
    console.print(table)
    if missing := work.left_out(what, result):
        console.print(f"Not in the zoo, so left out (--from-scratch trains them): {', '.join(missing)}", soft_wrap=True)
    console.print(f"Table: {out / 'table.md'}; figures and reports in the run folders beside it", soft_wrap=True)


@app.command(hidden=True)
def publish(
    group: Folder,
    target: Annotated[Path, typer.Argument(help="Folder of the zoo to write.", show_default=False)],
    seed: Annotated[int, typer.Option(help="The seed that ships.")] = 0,
) -> None:
    """Put an evaluated run of a folder of seeds into the zoo, with a card over all seeds."""
    from normae.paper.publish import publish as publish_run

    console.print(f"Published: {publish_run(group, seed, target)}", soft_wrap=True)
