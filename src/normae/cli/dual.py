"""`normae dual`: do two trained models give the likelihood ratio between what they were trained on?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normae.cli.console import Device, Seed, say, show

if TYPE_CHECKING:
    from normae.dual.judge import DualResult


def dual(
    run_a: Annotated[str, typer.Argument(help="A: a run folder or a model of the zoo.", show_default=False)],
    run_b: Annotated[str, typer.Argument(help="B: a run folder or a model of the zoo.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option(help="Events to test on: an .npz with x and labels (1 for B), or jets.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="A trained classifier of jets, instead of a new one.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; dual/A-B if not given.")] = None,
    draws: Annotated[int | None, typer.Option(help="Weight draws of a Bayesian run; 100 if not given.")] = None,
    events: Annotated[
        int, typer.Option(help="Events of each density if there is no --data; most jets of each class.")
    ] = 100_000,
    seed: Seed = 0,
    classifier: Annotated[bool, typer.Option(help="Train a classifier to compare with.")] = True,
    device: Device = "auto",
) -> None:
    """Test the likelihood ratio of two models.

    It is log r = log p_B - log p_A. Writes dual.json, figures/ and report.html.

    Example: normae dual runs/a runs/b --data test.npz
    """
    from normae.dual.judge import DualSettings
    from normae.dual.output import default_folder, notes
    from normae.dual.test import dual as dual_runs

    folder = out or default_folder(run_a, run_b, data, reference)
    settings = DualSettings(events=events, draws=draws, seed=seed, classifier=classifier)
    result = dual_runs(run_a, run_b, data, folder, settings, device, reference)
    show(("log r = log p_B - log p_A", *(f"against {name}" for name in result.against)), _rows(result))
    for sentence in [*result.verdicts.values(), *notes(result)]:
        say(sentence)
    say(f"Report: {folder / 'report.html'}")


def _rows(result: "DualResult") -> list[tuple[object, ...]]:
    """One column for each reference."""
    found = result.against.values()
    rows: list[tuple[object, ...]] = [
        ("Pearson", *(one.best.pearson for one in found)),
        ("slope m", *(one.best.line.slope for one in found)),
    ]
    for choice, words in (("c0", "C = 0"), ("log_z", "C from log Z")):
        if choice in result.ratios:
            chosen = [one.comparisons[choice] for one in found]
            rows.append((f"constant, {words}", *(one.line.constant for one in chosen)))
            for side in "ab":
                shares = [getattr(one, f"outside_{side}") for one in chosen]
                rows.append((f"share of {side.upper()} off by 1, {words}", *shares))
    return [*rows, ("verdict", *("passes" if one.passes else "fails" for one in found))]
