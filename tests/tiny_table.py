"""A table in units far from one, and a run on it that trains in about three seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

import normae

NAMES = ("pt", "eta", "mass")
SETTINGS = [
    "contrast.iterations=60", "training.iterations=10", "network.hidden=[16,16]", "coordinates.copies=1",
    "log_z.retries=0", "sampling.generation=20",
]  # fmt: skip


class TableRun(NamedTuple):
    """A run folder, its table, and a folder to write to."""

    path: Path
    file: Path
    folder: Path


def rows(count: int = 1000, seed: int = 0) -> np.ndarray:
    """Of `NAMES`: pt and mass in MeV, eta without units; binary fractions, so that an offset takes no digit."""
    random = np.random.default_rng(seed)
    pt, eta = 50e3 + 30e3 * random.exponential(size=count), random.normal(size=count)
    mass = 0.1 * pt + 1e3 * (eta + random.normal(size=count))
    return np.round(np.stack([pt, eta, mass], axis=1) * 2**20) / 2**20


def write(x: np.ndarray, path: Path, names: tuple[str, ...] = NAMES) -> Path:
    """Rows as a Parquet file with the columns `names`."""
    columns = {name: x[:, NAMES.index(name)] for name in names}
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=300)
    return path


def trained(folder: Path, x: np.ndarray, settings: Sequence[str] = (), **more) -> TableRun:
    """A run on a file of rows."""
    file = write(x, folder / "background.parquet")
    normae.train(file, folder / "run", settings=[*SETTINGS, *settings], device="cpu", **more)
    return TableRun(folder / "run", file, folder)
