"""Times of several works, taken in turns, their ratios, the numbers that come of them, and what is timed.

Works run A B C A B C ..., and a ratio is the median of the ratios within the rounds. The error of a median of n values
of standard deviation s is sqrt(pi/2) s/sqrt(n); s is taken from the median absolute deviation, which is s/1.4826 for a
Gaussian, so that one round that was disturbed does not count.

With one thread on a CPU what counts is the CPU time of this process, which others disturb little. With several, threads
wait for each other, and wall time counts: a time during which other processes used more than a tenth of the machine is
taken again, a few times at most, and the least disturbed one counts.

What is timed is iterations of a training, and the plain implementations in the folder `bench/` of the repository.
"""

import math
import os
import runpy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from normae.config import Run
from normae.data import SparseEvents
from normae.energy import Energy
from normae.errors import refuse
from normae.runs.load import untrained
from normae.statistics import Estimate
from normae.training import Schedules, Trainer
from normae.training.backends import choose_backend

Work = Callable[[], object]
Times = dict[str, NDArray[np.float64]]  # seconds of each work with shape (rounds,), by name
BACKENDS = {"cpu": ("reference", "explicit"), "cuda": ("reference", "explicit", "graph", "fused")}
ENDLESS, TRIES = 1_000_000, 6
DISTURBED = 0.1  # share of the machine used by others above which a time is taken again
SHORT = 0.2  # seconds below which the system's clock of busy cores is too coarse to tell


def interleaved(works: Mapping[str, Work], rounds: int, device: torch.device | None = None) -> Times:
    """Seconds of each work in each of `rounds` rounds, after one round that warms up."""
    for work in works.values():
        timed(work, device)
    turns = [[undisturbed(work, device) for work in works.values()] for _ in range(rounds)]
    return dict(zip(works, np.array(turns).T, strict=True))


def timed(work: Work, device: torch.device | None = None) -> tuple[float, float]:
    """Seconds of one call, and the share of the machine that other processes used meanwhile; 0 for CPU seconds."""
    if on_cpu_clock(device):
        start = time.process_time()
        work()
        return time.process_time() - start, 0.0
    wait = torch.cuda.synchronize if device is not None and device.type == "cuda" else lambda _: None
    wait(device)
    busy, start = busy_elsewhere(), time.perf_counter()
    work()
    wait(device)
    seconds = time.perf_counter() - start
    return seconds, (busy_elsewhere() - busy) / (seconds * (os.cpu_count() or 1))


def on_cpu_clock(device: torch.device | None) -> bool:
    """Whether CPU seconds count: on a CPU with one thread."""
    return device is not None and device.type == "cpu" and torch.get_num_threads() == 1


def undisturbed(work: Work, device: torch.device | None = None) -> float:
    """Seconds of the least disturbed of a few calls; of the first one if that was quiet or short."""
    found: list[tuple[float, float]] = []
    for _ in range(TRIES):
        seconds, share = timed(work, device)
        if seconds < SHORT or share < DISTURBED:
            return seconds
        found.append((share, seconds))
    return min(found)[1]


def busy_elsewhere() -> float:
    """CPU seconds of all other processes since the machine started; 0 where the system does not say."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
        user, nice, system, _, _, irq, softirq, steal = map(int, fields[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - time.process_time()


def median(values: ArrayLike) -> Estimate:
    """Median of values with shape (n,), with its error."""
    x = np.asarray(values, dtype=np.float64)
    refuse(x.ndim != 1 or x.size == 0, f"expected one or more values in one row, got shape {x.shape}")
    spread = 1.4826 * float(np.median(np.abs(x - np.median(x))))
    return Estimate(float(np.median(x)), math.sqrt(math.pi / 2 / x.size) * spread)


def ratio(above: ArrayLike, below: ArrayLike) -> Estimate:
    """Median of above/below within the rounds, both with shape (n,), with its error."""
    return median(np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64))


class Missing(Exception):
    """Something to compare with is not installed; one line that says so."""


class Row(NamedTuple):
    """One number, "group: what", in "s", "1/s", "times" (as fast as), "floors" (time in units of a floor), or ""."""

    name: str
    value: Estimate
    unit: str


@dataclass
class Result:
    """What a measurement, or several, found: its numbers, what it left out, the times of the rounds, the machine."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    times: Times = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> Estimate:
        """The number called `name`."""
        return next(row.value for row in self.rows if row.name == name)

    def add(self, name: str, value: Estimate, unit: str) -> None:
        self.rows.append(Row(name, value, unit))

    def compare(
        self, group: str, times: Times, ours: str, *others: str, per: float | Mapping[str, float] = 1, unit: str = "s"
    ) -> None:
        """A row for each work, and how many times as fast as each of the others, where it was timed, is `ours`.

        Args:
            per: what a work does, a number of iterations or of events.
            unit: "s" for the seconds of one of them, "1/s" for how many a second.
        """
        each = {name: values / (per[name] if isinstance(per, Mapping) else per) for name, values in times.items()}
        for name, one in each.items():
            self.add(f"{group}: {name}", median(one if unit == "s" else 1 / one), unit)
            self.times[f"{group}: {name}"] = one if unit == "s" else times[name]
        for other in [name for name in others if name in times]:
            self.add(f"{group}: {ours} against {other}", ratio(each[other], each[ours]), "times")

    @contextmanager
    def optional(self) -> Iterator[None]:
        """What is compared with may be missing: that is one line of the report, and no error."""
        try:
            yield
        except Missing as missing:
            self.skipped.append(str(missing))


# --- what is timed


def backends(run: Run, event: Sequence[int], device: torch.device) -> list[str]:
    """The backends that serve this network on this device, the fastest last."""
    model = untrained(run, event)
    return [n for n in BACKENDS[device.type] if choose_backend(n, model, run.sampling, device).name == n]


def iterations(
    run: Run, events: Tensor | SparseEvents, backend: str, device: torch.device, block: int, pretraining: bool = False
) -> Work:
    """`block` iterations of a training that has just begun."""
    guard = replace(run.guard, log_every=block, checkpoint_every=ENDLESS * block)
    first = replace(run.pretraining, epochs=ENDLESS if pretraining else 0)
    schedules = Schedules(first, replace(run.training, epochs=ENDLESS), run.temperature, guard, run.bayesian)
    sampling = replace(run.sampling, backend=backend)  # type: ignore[arg-type]
    models = [untrained(run, events.shape[1:])]
    samples = [events] if isinstance(events, Tensor) else [events.to(device)]
    trainer = Trainer(models, samples, schedules, sampling, [0], device)  # type: ignore[arg-type]
    happenings = trainer.run()
    next(happenings)
    while not pretraining and trainer.place[0] == "pretraining":
        next(happenings)
    return lambda: next(happenings)


def repeated(work: Work, n: int) -> Work:
    """`work` n times."""
    return lambda: [work() for _ in range(n)]


@torch.no_grad()
def plain_energies(energy: Energy, x: Tensor, batch: int, device: torch.device) -> Tensor:
    """Energies of events on the CPU, by the device and with their way to it and back."""
    return torch.cat([energy(piece.to(device)).cpu() for piece in x.split(batch)])


def plain(name: str) -> SimpleNamespace:
    """What the module `name` of the repository's folder `bench/` has."""
    package = Path(__file__).parent
    places = [package / f"{name}.py", package.parents[2] / "bench" / f"{name}.py"]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise Missing(f"bench/{name}.py is not here; run from a clone of the repository")
    return SimpleNamespace(**runpy.run_path(str(found)))
