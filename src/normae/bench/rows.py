"""The numbers of a benchmark: each with a name, an error and a unit."""

from dataclasses import dataclass, field
from typing import NamedTuple

from normae.bench.timing import Times, median, ratio
from normae.statistics import Estimate


class Row(NamedTuple):
    """One number.

    Args:
        name: "group: what".
        unit: "s", "1/s", "times" (how many times as fast as), "floors" (time in units of a floor), or "".
        wanted: what it should be, in words; empty where nothing is asked.
    """

    name: str
    value: Estimate
    unit: str
    wanted: str = ""


@dataclass
class Report:
    """What one group of measurements found."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    times: Times = field(default_factory=dict)

    def add(self, name: str, value: Estimate, unit: str, wanted: str = "") -> None:
        """One more number."""
        self.rows.append(Row(name, value, unit, wanted))

    def seconds(self, group: str, times: Times, per: float = 1.0) -> None:
        """A row for each time, divided by `per`, and the times of the rounds."""
        for name, values in times.items():
            self.add(f"{group}: {name}", median(values / per), "s")
            self.times[f"{group}: {name}"] = values / per

    def faster(self, group: str, times: Times, ours: str, theirs: str, wanted: str = "") -> None:
        """How many times as fast as `theirs` is `ours`."""
        self.add(f"{group}: {ours} against {theirs}", ratio(times[theirs], times[ours]), "times", wanted)

    def floors(self, group: str, times: Times, ours: str, floor: str, wanted: str = "") -> None:
        """The time of `ours` in units of the time of `floor`."""
        self.add(f"{group}: {ours} over {floor}", ratio(times[ours], times[floor]), "floors", wanted)
