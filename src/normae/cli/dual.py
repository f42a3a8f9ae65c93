"""`normae dual`: do two trained models give the likelihood ratio between what they were trained on?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from normae.dual.judge import DualResult

console = Console()


def dual(
    run_a: Annotated[str, typer.Argument(help="A: a run folder or a model of the zoo.", show_default=False)],
    run_b: Annotated[str, typer.Argument(help="B: a run folder or a model of the zoo.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option(help="A .npz file with x and labels, 1 for B and 0 for A; a folder or file of jets.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="A trained jet classifier, in place of one that is trained here.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; dual/A-B where not given.")] = None,
    draws: Annotated[int | None, typer.Option(help="Weight draws of a Bayesian run; 100 where not given.")] = None,
    events: Annotated[
        int, typer.Option(help="Of each density, drawn where there is no --data; most jets of each class.")
    ] = 100_000,
    seed: Annotated[int, typer.Option(help="Gives all randomness.")] = 0,
    classifier: Annotated[bool, typer.Option(help="Train a classifier as a reference.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Test two models against the likelihood ratio log r = log p_B - log p_A: dual.json, figures/, report.html."""
    from normae.dual.judge import DualSettings
    from normae.dual.output import default_folder, notes
    from normae.dual.test import dual as dual_runs

    folder = output or default_folder(run_a, run_b, data, reference)
    settings = DualSettings(events=events, draws=draws, seed=seed, classifier=classifier)
    result = dual_runs(run_a, run_b, data, folder, settings, device, reference)
    console.print(_table(result))
    for sentence in [*result.verdicts.values(), *notes(result)]:
        console.print(sentence, soft_wrap=True, highlight=False, markup=False)
    console.print(f"Report: {folder / 'report.html'}", soft_wrap=True, highlight=False, markup=False)


def _table(result: "DualResult") -> Table:
    """One column for each reference."""
    found = result.against.values()
    table = Table("log r = log p_B - log p_A", *(f"against {name}" for name in result.against))
    table.add_row("Pearson", *(str(one.best.pearson) for one in found))
    table.add_row("slope m", *(str(one.best.line.slope) for one in found))
    for choice, words in (("c0", "C = 0"), ("log_z", "C from log Z")):
        if choice in result.ratios:
            chosen = [one.comparisons[choice] for one in found]
            table.add_row(f"constant, {words}", *(str(one.line.constant) for one in chosen))
            for side in "ab":
                shares = [getattr(one, f"outside_{side}") for one in chosen]
                table.add_row(f"share of {side.upper()} off by 1, {words}", *map(str, shares))
    table.add_row("verdict", *("passes" if one.passes else "fails" for one in found))
    return table
