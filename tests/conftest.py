"""Shared by all tests: one thread, so that results do not depend on the machine, and small configurations."""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch and numpy are imported, also by processes that tests start

import pytest
import torch
from hypothesis import settings
from matplotlib.backends.backend_pdf import PdfFile
from matplotlib.figure import Figure

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton's kernels are first imported, by whichever test comes first

from normae.config import Run, structure
from normae.errors import decided
from tiny_run import tiny
from tiny_table import TableRun, rows, trained

torch.set_num_threads(1)
settings.register_profile("same", derandomize=True)
settings.register_profile("new")
settings.load_profile(os.environ.get("EXAMPLES", "same"))  # `make fuzz` looks at new examples, `make test` never does
WRITE_FONTS = PdfFile.writeFonts


@pytest.fixture(scope="session", autouse=True)
def pdf_without_fonts():
    """Figures are saved by many tests, and cutting out the letters of a font takes longer than all the rest of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PdfFile, "writeFonts", lambda self: self.writeObject(self.fontObject, {}))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk():
    """Hundreds of small trainings flush twenty files each, and a disk takes its time; tests of that patch it anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True)
def nothing_said():
    """A sentence that is said once is said once in each test, whichever came before."""
    decided.cache_clear()


@pytest.fixture(scope="module")
def pdf_with_fonts():
    """For those that test the files of a figure: they are whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PdfFile, "writeFonts", WRITE_FONTS)
        yield


@pytest.fixture
def unrendered(monkeypatch):
    """Figures are drawn and not rendered, for tests of pages and numbers: files are there, with nothing in them."""
    empty = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: Path(path).write_text(empty))


@pytest.fixture
def tiny_run() -> Run:
    return structure(tiny())


LONGEST = ("runs/test_torchrun", "scoring/test_cluster", "cli/test_commands", "runs/test_bayesian_runs", "estimator/")
"""Files of tests that take tens of seconds, the first to run: what is left for the end then is short."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))


@pytest.fixture
def make_run():
    def make(**changes: object) -> Run:
        return structure(tiny(**changes))

    return make


@pytest.fixture(scope="session")
def bars_run(tmp_path_factory) -> TableRun:
    """The same with error bars: four members, each with half of the rows."""
    return trained(tmp_path_factory.mktemp("bars"), rows(), ("ensemble.members=4", "ensemble.events=half"))


@pytest.fixture(scope="session")
def table_run(tmp_path_factory) -> TableRun:
    """A run on a table in large units; nobody changes it."""
    return trained(tmp_path_factory.mktemp("units"), rows())
