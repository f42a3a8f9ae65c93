"""Measurements of speed: ours against others and against the machine's own limits, in one run."""

from normae.bench.run import GROUPS, bench
from normae.bench.timing import Result, interleaved, median, ratio

__all__ = ["GROUPS", "Result", "bench", "interleaved", "median", "ratio"]
