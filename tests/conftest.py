"""Shared by all tests: one thread, so that results do not depend on the machine, and small configurations."""

import os

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton's kernels are first imported, by whichever test comes first

from normae.config import Run, structure
from tiny_run import tiny
from tiny_table import TableRun, rows, trained

torch.set_num_threads(1)
settings.register_profile("same", derandomize=True)
settings.register_profile("new")
settings.load_profile(os.environ.get("EXAMPLES", "same"))  # `make fuzz` looks at new examples, `make test` never does


@pytest.fixture
def tiny_run() -> Run:
    return structure(tiny())


@pytest.fixture
def make_run():
    def make(**changes: object) -> Run:
        return structure(tiny(**changes))

    return make


@pytest.fixture(scope="session")
def table_run(tmp_path_factory) -> TableRun:
    """A run on a table in large units; nobody changes it."""
    return trained(tmp_path_factory.mktemp("units"), rows())
