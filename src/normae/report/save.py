"""A figure on disk: SVG for the page, PDF for the paper, CSV for whoever wants to draw it again.

Each file appears whole or not at all, and the same figure gives the same bytes: matplotlib's random ids are salted with
the figure's name, and no date is written.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError
from normae.files import atomic_path

MOST_ROWS = 20_000
"""Rows of a CSV beyond which every k-th is kept, k the smallest number that suffices."""
RASTER_DPI = 200


class SavedFigure(NamedTuple):
    """Where the three files of a figure lie."""

    svg: Path
    pdf: Path
    csv: Path


def save_figure(figure: Figure, folder: str | Path, name: str, columns: Mapping[str, ArrayLike]) -> SavedFigure:
    """Write `name`.svg, `name`.pdf and `name`.csv into `folder`.

    Args:
        columns: what the figure shows, each with shape (N,). Of more than 20,000 rows every k-th is written, from the
            first on, and the file's first line, which starts with "#", says so.
    """
    paths = SavedFigure(*(Path(folder) / f"{name}.{suffix}" for suffix in SavedFigure._fields))
    table = _table(columns)
    with mpl.rc_context({"svg.hashsalt": f"normae/{name}", "svg.fonttype": "path", "pdf.fonttype": 42}):
        for path, metadata in ((paths.svg, {"Date": None}), (paths.pdf, {"CreationDate": None})):
            with atomic_path(path) as temporary:
                figure.savefig(temporary, dpi=RASTER_DPI, metadata=metadata)
    with atomic_path(paths.csv) as temporary:
        _write_table(temporary, table)
    return paths


def _table(columns: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
    """The columns as arrays with shape (N,), all of one length."""
    table = {name: np.asarray(values) for name, values in columns.items()}
    shapes = {name: values.shape for name, values in table.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise InputError(f"expected columns of one length, got {shapes}")
    return table


def _write_table(path: Path, table: Mapping[str, NDArray[Any]]) -> None:
    rows = len(next(iter(table.values())))
    every = max(1, -(-rows // MOST_ROWS))
    with path.open("w", encoding="utf-8", newline="") as stream:
        if every > 1:
            stream.write(f"# rows 1, {1 + every}, {1 + 2 * every}, ... (every {every}th) of {rows}\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*(map(_cell, values[::every].tolist()) for values in table.values()), strict=True))


def _cell(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
