"""Tables from files of any kind: which file is which kind, and all rows of one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from normae.data.table import Floats, Table, reading
from normae.errors import InputError
from normae.files import check_file

Opener = Callable[[Path, str | None], AbstractContextManager[Table]]


def _openers() -> Mapping[str, Opener]:
    from normae.data import table_arrays, table_arrow, table_trees

    return {
        ".npy": table_arrays.open_npy,
        ".npz": table_arrays.open_npz,
        ".csv": table_arrow.open_csv,
        ".parquet": table_arrow.open_parquet,
        ".h5": table_trees.open_hdf5,
        ".hdf5": table_trees.open_hdf5,
        ".root": table_trees.open_root,
    }


def is_table(path: str | Path) -> bool:
    """Whether a name is that of a file which `open_table` reads."""
    return Path(path).suffix.lower() in _openers()


@contextmanager
def open_table(path: str | Path, dataset: str | None = None) -> Iterator[Table]:
    """The table of a file: .npy, .npz, .csv, .parquet, .h5, .hdf5 or .root.

    Args:
        dataset: the array of an .npz file, the group or dataset of an HDF5 file, the tree of a ROOT file; where it is
            None there must be no choice.

    >>> import numpy as np, normae.data
    >>> np.savez("rows.npz", x=np.arange(6.0).reshape(3, 2))
    >>> with normae.data.open_table("rows.npz") as table:
    ...     [(first, chunk.tolist()) for first, chunk in table.chunks(size=2)]
    [(0, [[0.0, 1.0], [2.0, 3.0]]), (2, [[4.0, 5.0]])]
    """
    path = Path(path)
    openers = _openers()
    check_file(path)
    if path.suffix.lower() not in openers:
        raise InputError(f"{path}: expected a name that ends in {', '.join(openers)}")
    with reading(path):
        manager = openers[path.suffix.lower()](path, dataset)
        table = manager.__enter__()
    try:
        if table.rows == 0 or 0 in table.event:
            raise InputError(f"{path}: expected at least one event of at least one feature, got an empty table")
        yield table
    finally:
        manager.__exit__(None, None, None)


def read_table(
    path: str | Path,
    columns: Sequence[str] | None = None,
    dataset: str | None = None,
    dtype: type[np.floating[Any]] = np.float32,
) -> tuple[Floats, tuple[str, ...] | None]:
    """All rows of a table with shape (N, *event), and the names of the columns, where they have names.

    Args:
        path, dataset: as in `open_table`.
        columns: names of those to read, in this order; None takes all.
        dtype: of the rows, float32 or float64.

    >>> import numpy as np, normae.data
    >>> np.savetxt("rows.csv", [[1, 2], [3, 4]], delimiter=",", header="a,b", comments="")
    >>> normae.data.read_table("rows.csv", columns=["b"])[0].tolist()
    [[2.0], [4.0]]
    """
    with open_table(path, dataset) as table:
        chosen = table.select(columns)
        event = table.event if chosen is None else (len(chosen),)
        with reading(table.path):
            values = np.empty((table.rows, *event), dtype=dtype)
        for first, chunk in table.chunks(chosen, dtype=dtype):
            values[first : first + len(chunk)] = chunk
        return values, chosen
