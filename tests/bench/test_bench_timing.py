"""Medians, ratios and turns, on numbers that are known."""

import time

import numpy as np
import pytest
import torch

from normae.bench import interleaved, median, ratio
from normae.bench import timing as timing_module
from normae.bench.timing import TRIES, busy_elsewhere, undisturbed
from normae.errors import InputError


def test_works_run_in_turns_after_a_warm_up():
    calls = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert "".join(calls) == "abababab"
    assert all(len(t) == 3 and (t > 0).all() for t in times.values())


def test_error_of_a_median_covers():
    """Of 400 medians of 25 Gaussian numbers some 68 % are within one error; and a wild round does not count."""
    rng = np.random.default_rng(0)
    estimates = [median(rng.normal(3, 0.5, 25)) for _ in range(400)]
    inside = np.mean([abs(e.value - 3) < e.error for e in estimates])
    assert 0.55 < inside < 0.78
    calm, wild = np.linspace(1, 2, 9), np.linspace(1, 2, 9)
    wild[-1] = 1e6
    assert median(wild) == median(calm)


def test_a_ratio_is_taken_within_rounds():
    """A load that doubles every second round falls on both and cancels."""
    load = np.array([1, 2, 1, 2, 1, 2.0])
    assert ratio(3 * load, load) == (3.0, 0.0)


def test_nothing_to_take_a_median_of():
    with pytest.raises(InputError, match="one or more values"):
        median([])


def test_a_disturbed_time_is_taken_again(monkeypatch):
    """The least disturbed of a few long times counts; a quiet one, or a short one, counts at once."""
    calls = iter([(2.0, 0.5), (1.0, 0.3), (3.0, 0.9), *[(4.0, 0.8)] * (TRIES - 3), (9.0, 0.01), (0.001, 1.0)])
    monkeypatch.setattr(timing_module, "timed", lambda work, device=None: next(calls))
    assert [undisturbed(lambda: None) for _ in range(3)] == [1.0, 9.0, 0.001]


def test_own_work_is_not_elsewhere():
    """The clock of other processes goes on, but not by what this one uses."""
    before = busy_elsewhere()
    assert before >= 0
    assert busy_elsewhere() - before < 1.0


def test_one_thread_on_a_cpu_counts_cpu_seconds():
    """Sleeping costs wall time and no CPU time."""
    seconds = interleaved({"sleep": lambda: time.sleep(0.05)}, 2, torch.device("cpu"))["sleep"]
    wall = interleaved({"sleep": lambda: time.sleep(0.05)}, 2)["sleep"]
    assert torch.get_num_threads() == 1
    assert seconds.max() < 0.04
    assert wall.min() > 0.049
