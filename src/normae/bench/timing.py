"""Times of several works, taken in turns, their ratios, and the numbers that come of them.

On a machine that others use too, a time means little and a ratio of two times taken one after the other means more. The
works run A B C A B C ..., and a ratio is the median of the ratios within the rounds. The error of a median of n values
of standard deviation s is sqrt(pi/2) s/sqrt(n); s is taken from the median absolute deviation, which is s/1.4826 for a
Gaussian, so that one round that was disturbed does not count.

With one thread on a CPU what counts is the CPU time of this process, which others disturb little. With several, threads
wait for each other, and wall time counts: where the system says how busy it is, a time during which other processes
used more than a tenth of the machine is taken again, a few times at most, and the least disturbed one counts.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError
from normae.statistics import Estimate

Work = Callable[[], object]
Times = dict[str, NDArray[np.float64]]
"""Seconds of each work with shape (rounds,), by name."""


DISTURBED = 0.1  # share of the machine used by others above which a time is taken again
SHORT = 0.2  # seconds below which the system's clock of busy cores is too coarse to tell
TRIES = 6


def interleaved(works: Mapping[str, Work], rounds: int, device: torch.device | None = None) -> Times:
    """Seconds of each work in each of `rounds` rounds, after one round that warms up."""
    times: Times = {name: np.zeros(rounds) for name in works}
    for work in works.values():
        timed(work, device)
    for turn in range(rounds):
        for name, work in works.items():
            times[name][turn] = undisturbed(work, device)
    return times


def timed(work: Work, device: torch.device | None = None) -> tuple[float, float]:
    """Seconds of one call, and the share of the machine that other processes used meanwhile; 0 for CPU seconds."""
    if on_cpu_clock(device):
        start = time.process_time()
        work()
        return time.process_time() - start, 0.0
    _wait(device)
    busy, start = busy_elsewhere(), time.perf_counter()
    work()
    _wait(device)
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


def _wait(device: torch.device | None) -> None:
    """Until a CUDA device has done what it was given."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def median(values: ArrayLike) -> Estimate:
    """Median of values with shape (n,), with its error."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise InputError(f"expected one or more values in one row, got shape {x.shape}")
    middle = float(np.median(x))
    spread = 1.4826 * float(np.median(np.abs(x - middle)))
    return Estimate(middle, math.sqrt(math.pi / 2 / x.size) * spread)


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

    def seconds(self, group: str, times: Times, per: float = 1.0) -> None:
        """A row for each time, divided by `per`, and the times of the rounds."""
        for name, values in times.items():
            self.add(f"{group}: {name}", median(values / per), "s")
            self.times[f"{group}: {name}"] = values / per

    def rates(self, group: str, times: Times, events: int) -> None:
        """A row for each work on `events` events: how many a second; and the times of the rounds."""
        for name, values in times.items():
            self.add(f"{group}: {name}", median(events / values), "1/s")
            self.times[f"{group}: {name}"] = values

    def faster(self, group: str, times: Times, ours: str, *others: str) -> None:
        """How many times as fast as each of the others, where it was timed, is `ours`."""
        for other in others:
            if other in times:
                self.add(f"{group}: {ours} against {other}", ratio(times[other], times[ours]), "times")

    def floors(self, group: str, times: Times, ours: str, *floors: str) -> None:
        """The time of `ours` in units of the time of each floor that was timed."""
        for floor in floors:
            if floor in times:
                self.add(f"{group}: {ours} over {floor}", ratio(times[ours], times[floor]), "floors")

    @contextmanager
    def optional(self) -> Iterator[None]:
        """What is compared with may be missing: that is one line of the report, and no error."""
        try:
            yield
        except Missing as missing:
            self.skipped.append(str(missing))
