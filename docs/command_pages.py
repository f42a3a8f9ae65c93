"""A page for each command, made from its own help when the site is built, with an example and what it printed.

`python docs/command_pages.py FOLDER` writes the pages. The examples run one after another in one folder, so that
a later one finds the run of an earlier one. One that takes too long for a build has a reason instead of an output.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from typer.core import TyperGroup, TyperOption

from normae.cli import app

EXAMPLES = {
    "train": "normae train background.parquet -o runs/mine",
    "presets": "normae presets",
    "evaluate": "normae evaluate runs/mine",
    "info": "normae info runs/mine",
    "report": "normae report runs/mine",
    "score": "normae score runs/mine data.parquet -o scores.parquet",
    "sample": "normae sample runs/mine -n 1000 -o samples.npz",
    "histogram": "normae histogram runs/mine background.parquet --signal data.parquet -o runs/search",
    "export": "normae export runs/mine --onnx -o model.onnx",
    "dual": "normae dual toy-2gauss-nae toy-1gauss-nae --events 5000",
    "temperature estimate": "normae temperature estimate toy-2gauss-nae",
    "spread": "normae spread jets-qcd-bnae-seed0 jets-qcd-bnae-seed1 jets-qcd-bnae-seed2",
    "bench": "normae bench --quick --only toy -o runs/bench",
    "jets convert": "normae jets convert sample.npz -o jets.h5",
    "jets images": "normae jets images jets.h5 -o images.h5",
    "jets observables": "normae jets observables jets.h5 -o observables.csv",
    "jets show": "normae jets show jets.h5",
    "jets info": "normae jets info jets.h5",
}
"""The command line that each page shows with its output, in the order in which they run."""
NOT_RUN = {
    "temperature search": "several trainings",
    "coverage": "sixteen trainings",
    "ensemble": "four trainings",
    "reproduce": "a quarter of an hour",
    "jets generate": "needs Pythia",
}
"""Why the example of a command is shown without an output."""
SAMPLE = Path(__file__).parents[1] / "tests" / "jets" / "data" / "sample.npz"


def commands(command: Any = None, path: str = "") -> dict[str, Any]:
    """All commands that are shown, by the words after `normae`."""
    command = typer.main.get_command(app) if command is None else command
    if not isinstance(command, TyperGroup):
        return {path: command}
    found: dict[str, Any] = {}
    for name in command.list_commands(None):  # type: ignore[arg-type]
        inner = command.commands[name]
        found |= {} if inner.hidden else commands(inner, f"{path} {name}".strip())
    return found


def split_help(command: Any) -> tuple[str, str]:
    """The help of a command without its example, and the example."""
    text, _, example = command.help.partition("Example:")
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text).strip(), " ".join(example.split())


def default(parameter: Any) -> str:
    """What an option is if it is not given."""
    if parameter.required:
        return "needed"
    if isinstance(parameter.default, bool):
        return ("on" if parameter.default else "off") if parameter.secondary_opts else ""
    return "" if parameter.default in (None, ()) else f"`{parameter.default}`"


def rows(command: Any) -> Iterator[str]:
    """A row of a Markdown table for each argument and option."""
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        argument = parameter.metavar or str(parameter.name).upper()
        shown = ", ".join(f"`{name}`" for name in (names if isinstance(parameter, TyperOption) else [argument]))
        if "--help" not in names:
            words = re.sub(r"(?<!\S)(--[\w-]+)", r"`\1`", parameter.help or "")
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in (shown, default(parameter), words)) + " |"


def page(name: str, command: Any, output: str | None) -> str:
    """The page of a command in Markdown."""
    text, example = split_help(command)
    line = EXAMPLES.get(name, example)
    parts = [f"# normae {name}", text, "\n".join(["| | default | |", "| --- | --- | --- |", *rows(command)])]
    if output is None:
        parts.append(f"Example ({NOT_RUN[name]}, so without what it prints):\n\n```\n{line}\n```")
    else:
        parts.append(f"Example, and what it prints:\n\n```text\n$ {line}\n{output.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def prepare(folder: Path) -> None:
    """What the examples take for granted: two tables, and some jets."""
    random = np.random.default_rng(0)
    for name, count, shift in (("background", 5000, 0.0), ("data", 1000, 1.0)):
        pt, eta = 30 + random.exponential(20 + 10 * shift, count), random.normal(0, 1, count)
        mass = 0.3 * pt + random.normal(10, 2, count)
        pq.write_table(pa.table({"pt": pt, "eta": eta, "mass": mass}), folder / f"{name}.parquet")
    (folder / "sample.npz").write_bytes(SAMPLE.read_bytes())


def printed(line: str, folder: Path) -> str:
    """What a command line prints."""
    words = [sys.executable, "-m", *shlex.split(line)]
    environment = os.environ | {"COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{line}: {done.stderr}")
    return done.stdout + done.stderr


def write_pages(out: Path) -> None:
    """Write the pages of all commands."""
    out.mkdir(exist_ok=True)
    found = commands()
    with tempfile.TemporaryDirectory() as scratch:
        prepare(Path(scratch))
        outputs = {name: printed(line, Path(scratch)) for name, line in EXAMPLES.items()}
    for name, command in found.items():
        text = page(name, command, outputs.get(name))
        (out / f"{name.replace(' ', '-')}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
