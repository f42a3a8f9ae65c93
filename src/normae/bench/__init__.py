"""Measurements of speed: ours against others and against the machine's own limits, in one run.

They give a table, a JSON file and a picture.
"""

import os
import platform
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from normae.bench.jets import images, jets, scoring
from normae.bench.timing import Result, interleaved, median, on_cpu_clock, ratio
from normae.bench.toy import sampling, toy
from normae.config import choose_device
from normae.errors import require_that
from normae.figures import figure_style, new_figure
from normae.figures.curves import speed_bars
from normae.files import new_folder, write_json
from normae.report import save_figure

__all__ = ["GROUPS", "Result", "bench", "interleaved", "median", "ratio"]
Measurement = Callable[[Result, torch.device, bool, int], None]
GROUPS: dict[str, Measurement] = {one.__name__: one for one in (toy, sampling, scoring, jets, images)}
"""What can be measured, by name: into a result, on a device, whether quickly, and in how many rounds."""
ROUNDS, QUICK_ROUNDS = 9, 3


def bench(
    out: str | Path | None = None, only: str | None = None, quick: bool = False, device: str = "auto",
    rounds: int | None = None, say: Callable[[str], object] = lambda _: None, force: bool = False,
) -> Result:  # fmt: skip
    """Measure, and write bench.json and the picture into `out` where it is given.

    Args:
        only: a key of `GROUPS`; all of them where it is None.
        quick: tiny sizes, to see that everything runs; the numbers mean nothing.
        device: auto, cpu or cuda.
        rounds: how often everything is measured, in turns.
        say: called with one line before each group.
        force: replace what is there.
    """
    require_that(only is None or only in GROUPS, "--only", f"one of {', '.join(GROUPS)}", repr(only))
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    require_that(rounds >= 2, "rounds", "at least 2", rounds)
    place = choose_device(device)
    before, result = os.getloadavg()[0], Result()
    with nullcontext() if out is None else new_folder(out, force) as folder:
        for name in [only] if only else GROUPS:
            say(f"measuring {name}")
            GROUPS[name](result, place, quick, rounds)
        result.machine = _machine(place, quick, rounds, before)
        if folder is not None:
            write(result, folder)
    return result


def write(result: Result, folder: Path) -> None:
    """bench.json, and bench.svg, .pdf and .csv with the ratios: of a floor, the share of it that is reached."""
    numbers = {row.name: {**row.value._asdict(), "unit": row.unit} for row in result.rows}
    times = {name: values.tolist() for name, values in result.times.items()}
    more = {"skipped": result.skipped, "rounds_seconds": times}
    write_json(folder / "bench.json", {"machine": result.machine, "numbers": numbers} | more)
    ratios = [(row.name, *row.value) for row in result.rows if row.unit == "times"]
    floors = [(row.name, *row.value) for row in result.rows if row.unit == "floors"]
    ratios += [(name.replace(" over ", " against "), 1 / v, error / v**2) for name, v, error in floors]
    if not ratios:
        return
    names, values, errors = (list(column) for column in zip(*ratios, strict=True))
    with figure_style():
        figure, axes = new_figure(panel=(8.0, 0.8 + 0.36 * len(ratios)))
        speed_bars(axes[0, 0], names, values, errors)
        save_figure(figure, folder, "bench", {"comparison": names, "times_as_fast": values, "error": errors})


def _machine(device: torch.device, quick: bool, rounds: int, load: float) -> dict[str, Any]:
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else [*names, platform.machine()][0],
        "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "clock": "CPU seconds" if on_cpu_clock(device) else "wall seconds", "load before": round(load, 2),
        "load after": round(os.getloadavg()[0], 2), "python": platform.python_version(), "torch": torch.__version__,
        "rounds": rounds, "quick": quick,
    }  # fmt: skip
