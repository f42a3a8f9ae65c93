"""Labelled samples for the dual test: label 1 for B, 0 for A; read from a file, or drawn from two known densities."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normae.data.table import reading
from normae.data.tables import read_table
from normae.data.toys import Density
from normae.errors import InputError, refuse
from normae.files import check_file
from normae.statistics.arrays import as_labels, cut_indices
from normae.tensors import stream

WANTED = "give a .npz file with the events as x and their labels, 1 for B and 0 for A, as labels"


class Labelled(NamedTuple):
    """Events with shape (N, *event), and for each whether it is one of B, with shape (N,)."""

    x: NDArray[Any]
    labels: NDArray[np.bool_]

    def take(self, index: NDArray[Any]) -> "Labelled":
        """The events that `index`, whole numbers or booleans, chooses."""
        return Labelled(self.x[index], self.labels[index])


def read_labelled(path: str | Path, event: tuple[int, ...], dtype: type[np.floating[Any]] = np.float32) -> Labelled:
    """The events of shape `event` and the labels of a .npz file with the arrays `x` and `labels`."""
    path = Path(path)
    check_file(path, f"; {WANTED}")
    x, _ = read_table(path, dataset="x", dtype=dtype)
    refuse(x.shape[1:] != tuple(event), f"{path}: expected events of shape {tuple(event)}, got {x.shape[1:]}")
    with reading(path), path.open("rb") as file:
        found = np.load(file, allow_pickle=False)
        refuse(not isinstance(found, np.lib.npyio.NpzFile), f"{path}: a .npy file holds no labels; {WANTED}")
        refuse("labels" not in found, f"{path}: a sample without labels, it holds {', '.join(sorted(found))}; {WANTED}")
        labels = np.asarray(found["labels"])
    if not (np.issubdtype(labels.dtype, np.number) or labels.dtype == np.bool_):
        raise InputError(f"{path}: expected labels 0 and 1, got dtype {labels.dtype}")
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
