"""Shared by all tests: one thread, so that results do not depend on the machine, and small configurations."""

import pytest
import torch

from normae.config import Run, structure
from tiny_run import tiny

torch.set_num_threads(1)


@pytest.fixture
def tiny_run() -> Run:
    return structure(tiny())


@pytest.fixture
def make_run():
    def make(**changes: object) -> Run:
        return structure(tiny(**changes))

    return make
