"""The floor does the products of an iteration, as many as it says."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from normae.bench.timing import iterations
from normae.bench.toy import TINY, Floor
from normae.config import read
from normae.tensors import stream

CPU = torch.device("cpu")


def test_operations_are_counted_right():
    changes = ["network.hidden=[16,8]", "training.batch=32", "sampling.latent.steps=2", "sampling.feature.steps=5"]
    floor = Floor(read("toy-paper", [*TINY, *changes]), CPU)
    for fastest in (False, True):
        with FlopCounterMode(display=False) as counter:
            floor.products(fastest)
        assert counter.get_total_flops() == floor.flop()


def test_the_paper_s_iteration_is_96_gflop():
    assert Floor(read("toy-paper"), CPU).flop() == pytest.approx(96e9, rel=0.05)


def test_the_trainer_s_iteration_takes_at_least_these_products():
    """It does them all, and little more."""
    run = read("toy-paper", TINY)
    events = torch.randn(500, 2, generator=stream(0, "x"))
    work = iterations(run, events, "explicit", CPU, 1)
    floor = Floor(run, CPU)
    with FlopCounterMode(display=False) as counter:
        work()
    assert 0.99 < counter.get_total_flops() / floor.flop() < 1.05
