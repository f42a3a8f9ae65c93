"""Labelled samples for the dual test: label 1 for B, 0 for A; read from a file, or drawn from two known densities."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normae.data.frames import Categories
from normae.data.tables import beside, open_table, read_rows, read_table
from normae.data.toys import Density
from normae.errors import InputError, refuse
from normae.files import check_file
from normae.statistics.arrays import as_labels, cut_indices
from normae.tensors import stream


class Labelled(NamedTuple):
    """Events with shape (N, *event), and for each whether it is one of B, with shape (N,)."""

    x: NDArray[Any]
    labels: NDArray[np.bool_]

    def take(self, index: NDArray[Any]) -> "Labelled":
        """The events that `index`, whole numbers or booleans, chooses."""
        return Labelled(self.x[index], self.labels[index])


def read_labelled(
    path: str | Path, event: tuple[int, ...], dtype: type[np.floating[Any]] = np.float32,
    columns: Sequence[str] | None = None, categories: Categories = (),
) -> Labelled:  # fmt: skip
    """Events and labels of a file: arrays `x` and `labels`, or `columns`, by default all, and one called label(s)."""
    path, array = Path(path), False
    check_file(path, "; give a table with a column label, 1 for B and 0 for A, or arrays x and labels in .npz or .h5")
    with suppress(InputError), open_table(path, "x") as table:
        array = table.columns is None
    if array:
        x, labels = read_table(path, dataset="x", dtype=dtype)[0], beside(path, "labels", "labels")
    else:
        with open_table(path) as table:
            names = table.columns or ()
        label = "labels" if "labels" in names else "label"
        chosen = [*(columns or (name for name in names if name != label)), label]
        values = read_rows(path, chosen, None, None, categories=categories, dtype=dtype).values
        x, labels = values[:, :-1], values[:, -1]
    refuse(x.shape[1:] != tuple(event), f"{path}: expected events of shape {tuple(event)}, got {x.shape[1:]}")
    try:
        return Labelled(x, as_labels(labels, len(x)))
    except InputError as error:
        raise type(error)(f"{path}: {error}") from None


def draw_labelled(a: Density, b: Density, n: int, seed: int, name: str) -> Labelled:
    """`n` events of each density; `name` tells independent samples of one seed apart."""
    parts = [density.sample(n, stream(seed, f"dual/{name}/{side}")) for side, density in (("a", a), ("b", b))]
    return Labelled(torch.cat(parts).numpy(), np.repeat([False, True], n))


def cut(sample: Labelled, shares: Sequence[float], seed: int) -> list[Labelled]:
    """Disjoint parts of the sample with these shares of each class, which sum to one, in random order."""
    return [sample.take(index) for index in cut_indices(sample.labels, shares, seed)]
