"""Measurements of speed: ours against others and against the machine's own limits, in one run."""

from normae.bench.run import GROUPS, Result, bench
from normae.bench.timing import interleaved, median, ratio

__all__ = ["GROUPS", "Result", "bench", "interleaved", "median", "ratio"]
