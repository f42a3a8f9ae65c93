"""The floor does the products of an iteration, as many as it says."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from normae.bench.toy import TINY, Floor, Sizes, _sizes
from normae.bench.works import iterations
from normae.config import read
from normae.random import stream

SIZES = Sizes(encoder=(2, 16, 8, 3), decoder=(3, 8, 16, 2), batch=32, latent_steps=2, feature_steps=5)


def test_operations_are_counted_right():
    floor = Floor(SIZES, torch.device("cpu"), stream(0, "floor"))
    for fastest in (False, True):
        with FlopCounterMode(display=False) as counter:
            floor.products(fastest)
        assert counter.get_total_flops() == floor.flop()


def test_the_paper_s_iteration_is_96_gflop():
    sizes = Sizes((2, 128, 128, 128, 3), (3, 128, 128, 128, 2), 2048, 50, 100)
    assert Floor(sizes, torch.device("cpu"), stream(0, "floor")).flop() == pytest.approx(96e9, rel=0.05)


def test_the_trainer_s_iteration_takes_at_least_these_products():
    """It does them all, and little more."""
    run = read("toy-paper", TINY)
    events = torch.randn(500, 2, generator=stream(0, "x"))
    work = iterations(run, events, "explicit", torch.device("cpu"), 1)
    floor = Floor(_sizes(run), torch.device("cpu"), stream(0, "floor"))
    with FlopCounterMode(display=False) as counter:
        work()
    assert 0.99 < counter.get_total_flops() / floor.flop() < 1.05
