"""Shared by all tests: one thread, so that results do not depend on the machine, and small configurations."""

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"  # read when torch and numpy are imported; holds for the processes that tests start too

import pytest
import torch
from hypothesis import settings
from matplotlib.backends.backend_pdf import PdfFile

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton's kernels are first imported, by whichever test comes first

from normae.config import Run, structure
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


@pytest.fixture(scope="module")
def pdf_with_fonts():
    """For those that test the files of a figure: they are whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PdfFile, "writeFonts", WRITE_FONTS)
        yield


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
