"""Samples and builders that all tests of jets share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from normae import jets

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture(scope="session")
def sample() -> jets.Jets:
    """100 QCD and 100 top jets."""
    return jets.read(DATA / "sample.npz")


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Write a table in the layout of the public files, with h5py alone and without pandas' attributes."""

    def build(momenta: Any, labels: Any, name: str = "table.h5", **options: Any) -> Path:
        momenta = np.asarray(momenta, dtype=np.float32)
        kind = [("index", "<i8"), ("values_block_0", "<f4", (momenta.shape[1],)), ("values_block_1", "<i8", (2,))]
        rows = np.zeros(len(momenta), dtype=kind)
        rows["values_block_0"] = momenta
        rows["values_block_1"][:, 1] = labels
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("table/table", data=rows, **options)
        return tmp_path / name

    return build


def momenta_of(part: jets.Jets, constituents: int = 200) -> np.ndarray:
    """The columns E, PX, PY, PZ of each constituent, padded with zeros, with shape (N, 4 constituents)."""
    values = np.zeros((len(part), constituents, 4))
    for i, (a, b) in enumerate(zip(part.offsets[:-1], part.offsets[1:], strict=True)):
        pt, eta, phi = (v[a:b].astype(float) for v in (part.pt, part.eta, part.phi))
        columns = (pt * np.cosh(eta), pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta))
        values[i, : b - a] = np.stack(columns, axis=1)
    return values.reshape(len(part), 4 * constituents)


@pytest.fixture(scope="session")
def momenta() -> Callable[..., np.ndarray]:
    return momenta_of
