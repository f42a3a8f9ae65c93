"""HDF5 and ROOT as tables.

HDF5: a group of datasets with shape (N,), which are columns; a compound dataset, whose fields are columns; or one
dataset with shape (N, *event). ROOT: the branches of a tree, by uproot.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from normae.data.table import Piece, Table, not_real
from normae.errors import InputError


class Hdf5Columns(Table):
    """Datasets with shape (N,) side by side."""

    def __init__(self, path: Path, columns: dict[str, h5py.Dataset]) -> None:
        self.data = columns
        rows = {data.shape[0] for data in columns.values()}
        if len(rows) != 1:
            raise InputError(f"{path}: expected columns of one length, got lengths {sorted(rows)}")
        super().__init__(path, rows.pop(), list(columns), (len(columns),))

    def kind(self, column: str) -> str | None:
        """What a dataset holds, where it is not real numbers."""
        return not_real(self.data[column].dtype)

    def pieces(self, columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        """Slices of every column."""
        assert columns is not None
        for first in range(start, stop, size):
            yield [self.data[name][first : min(first + size, stop)] for name in columns]


class Hdf5Dataset(Table):
    """One dataset: a compound one has columns, any other is an array."""

    def __init__(self, path: Path, data: h5py.Dataset) -> None:
        self.data = data
        names = data.dtype.names if data.ndim == 1 else None
        if names is None and data.ndim < 2:
            raise InputError(f"{path}: expected events of shape (N, *event), got shape {data.shape}")
        if names is None and (kind := not_real(data.dtype)) is not None:
            raise InputError(f"{path}: expected real numbers, got {kind}")
        super().__init__(path, data.shape[0], names, data.shape[1:] if names is None else (len(names),))

    def kind(self, column: str) -> str | None:
        """What a field holds, where it is not real numbers."""
        return not_real(self.data.dtype[column])

    def pieces(self, columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        """Slices of the rows."""
        for first in range(start, stop, size):
            values = self.data[first : min(first + size, stop)]
            yield values if columns is None else [values[name] for name in columns]


def _hdf5_table(path: Path, file: h5py.File, dataset: str | None) -> Table:
    if dataset is not None and dataset not in file:
        raise InputError(f"{path}: no group or dataset {dataset!r}; the file has {sorted(file)}")
    node: Any = file if dataset is None else file[dataset]
    if isinstance(node, h5py.Dataset):
        return Hdf5Dataset(path, node)
    inside = {name: node[name] for name in node if isinstance(node[name], h5py.Dataset)}
    columns = {name: data for name, data in inside.items() if data.ndim == 1 and data.dtype.names is None}
    if columns:
        return Hdf5Columns(path, columns)
    if len(inside) != 1:
        raise InputError(f"{path}: expected one dataset, or columns of shape (N,), got {sorted(node)}; name a dataset")
    return Hdf5Dataset(path, next(iter(inside.values())))


@contextmanager
def open_hdf5(path: Path, dataset: str | None) -> Iterator[Table]:
    """An HDF5 file as a table."""
    with h5py.File(path, "r") as file:
        yield _hdf5_table(path, file, dataset)


class RootTable(Table):
    """A tree of a ROOT file."""

    def __init__(self, path: Path, tree: Any) -> None:
        names = [branch.name for branch in tree.branches]
        super().__init__(path, int(tree.num_entries), names, (len(names),))
        self.branches = dict(zip(names, tree.branches, strict=True))  # tree[name] would take a name for a path

    def kind(self, column: str) -> str | None:
        """What a branch holds, where it is not one real number in a row."""
        found = getattr(self.branches[column].interpretation, "to_dtype", None)
        if found is None or found.shape or found.names:
            return f"values of type {self.branches[column].typename}"
        return not_real(found)

    def pieces(self, columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        """Ranges of entries."""
        assert columns is not None
        for first in range(start, stop, size):
            last = min(first + size, stop)
            found = [self.branches[name].array(library="np", entry_start=first, entry_stop=last) for name in columns]
            yield [np.asarray(values) for values in found]


def _only_tree(path: Path, file: Any, dataset: str | None) -> Any:
    trees = sorted({key.partition(";")[0] for key, kind in file.classnames().items() if kind == "TTree"})
    if dataset is None and len(trees) != 1:
        raise InputError(f"{path}: expected one tree, got {trees}; name one")
    if dataset is not None and dataset not in trees:
        raise InputError(f"{path}: no tree {dataset!r}; the file has {trees}")
    return file[dataset or trees[0]]


@contextmanager
def open_root(path: Path, dataset: str | None) -> Iterator[Table]:
    """A ROOT file as a table."""
    try:
        import uproot
    except ImportError:
        raise InputError(f"{path}: ROOT files need uproot; install it with `pip install 'normae[root]'`") from None
    with uproot.open(path) as file:
        yield RootTable(path, _only_tree(path, file, dataset))
