"""Rows from what is in memory: arrays, tensors, and data frames of pandas, polars or Arrow, by the names of columns."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError
from normae.tensors import keeps

Missing = Literal["refuse", "drop"]
"""What becomes of rows with missing values, NaN, in a training: they are refused, or left out of it."""
KINDS = {"M": "dates", "m": "time differences", "c": "complex numbers"}
"""Kinds of numpy's types that are not real numbers, in words."""


class Rows(NamedTuple):
    """A table in memory: float64 with shape (N, d), the names of its columns, where they have names, and weights (N,).

    Weights that are all equal are none.
    """

    values: NDArray[np.float64]
    columns: tuple[str, ...] | None
    weights: NDArray[np.float64] | None = None

    def weighted(self, weights: Any, source: str) -> "Rows":
        """With weights: an array with shape (N,), or the name of a column, which then is none of the table any more.

        >>> from normae.data import as_rows
        >>> as_rows([[1, 2], [3, -1]], columns=["a", "w"]).weighted("w", "data")[1:]
        (('a',), array([ 2., -1.]))
        """
        if weights is None:
            return self
        if isinstance(weights, str):
            names = list(self.columns or ())
            if weights not in names:
                raise InputError(f"{source}: no column {weights!r} with weights; there are {names[:12]}")
            rest = [k for k, name in enumerate(names) if name != weights]
            table = Rows(self.values[:, rest], tuple(names[k] for k in rest))
            return table.weighted(self.values[:, names.index(weights)], source)
        found = _real(_array(weights), f"{source}: the array of weights holds")
        if found.shape != self.values.shape[:1]:
            raise InputError(f"{source}: expected a weight for each of {len(self.values)} rows, got {found.shape}")
        found = _finite(found[:, None], ["weights"], source)[:, 0]
        if not found.sum() > 0:
            raise InputError(f"{source}: expected weights with a sum above zero, got {found.sum():.4g}")
        return self._replace(weights=None if (found == found[0]).all() else found)

    def whole(self, source: str) -> "Rows":
        """The rows that have all values; how many have not is logged."""
        kept = ~np.isnan(self.values).reshape(len(self.values), -1).any(axis=1)
        if kept.all():
            return self
        _say(source, int((~kept).sum()), len(self.values))
        return self._replace(values=self.values[kept], weights=None if self.weights is None else self.weights[kept])


@lru_cache(maxsize=16)
def _say(source: str, missing: int, rows: int) -> None:
    """Once, however often a file is read."""
    logging.getLogger(__name__).warning("%s: %d of %d rows with missing values are left out", source, missing, rows)


def column_names(data: Any) -> list[str] | None:
    """The names of the columns of a data frame; None of an array."""
    names = getattr(data, "column_names", None)
    if names is None and hasattr(data, "columns") and not isinstance(data, np.ndarray):
        names = data.columns
    return None if names is None else [str(name) for name in names]


def check_columns(data: Any, name: str = "data") -> None:
    """Refuse a column of a data frame that does not hold real numbers, by its name."""
    for column in column_names(data) or ():
        _real(_column(data, column), f"{name}: the column {column!r} holds")


def as_rows(data: Any, columns: Sequence[str] | None = None, name: str = "data", missing: Missing = "refuse") -> Rows:
    """The rows of an array (N, d) or of a data frame; one sentence that names the column where it holds no numbers.

    Args:
        columns: of a data frame, in this order; of an array, their names.
        missing: whether NaN is refused; if not, `Rows.whole` drops such rows.

    >>> from normae.data import as_rows
    >>> as_rows([[1, 2], [3, 4]], columns=["a", "b"]).columns
    ('a', 'b')
    """
    names = column_names(data)
    if names is None:
        values = _real(_array(data), f"{name}: the array holds")
        if values.ndim != 2:
            raise InputError(f"{name}: expected rows of columns with shape (N, d), got shape {values.shape}")
        if columns is not None and len(columns) != values.shape[1]:
            raise InputError(f"{name}: expected {values.shape[1]} names of columns, got {len(columns)}")
        return Rows(_finite(values, columns, name, missing), None if columns is None else tuple(columns))
    chosen = names if columns is None else list(columns)
    for column in chosen:
        if column not in names:
            raise InputError(f"{name}: no column {column!r}; there are {', '.join(map(repr, names[:12]))}")
    parts = [_real(_column(data, column), f"{name}: the column {column!r} holds") for column in chosen]
    return Rows(_finite(np.stack(parts, axis=1), chosen, name, missing), tuple(chosen))


def _array(data: Any) -> NDArray[Any]:
    return np.asarray(data.detach().cpu() if hasattr(data, "detach") else data)


def _column(data: Any, column: str) -> NDArray[Any]:
    if hasattr(data, "column_names"):
        return np.asarray(data.column(column).to_numpy())
    found = data[column] if column in data.columns else data.iloc[:, [str(c) for c in data.columns].index(column)]
    return np.asarray(found.to_numpy())


def _real(values: NDArray[Any], begin: str) -> NDArray[np.float64]:
    kind = values.dtype.kind
    if kind in "iufb":
        if not keeps(values, np.float64):
            raise InputError(f"{begin} whole numbers beyond 2^53, which float64 rounds; subtract an offset")
        return np.asarray(values, dtype=np.float64)
    if kind == "O":
        try:
            return np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            kind = "U"
    raise InputError(f"{begin} {KINDS.get(kind, 'text')}, where real numbers are expected; leave it out or convert it")


def _finite(
    values: NDArray[np.float64], columns: Sequence[str] | None, name: str, missing: Missing = "refuse"
) -> NDArray[np.float64]:
    spoiled = ~np.isfinite(values) if missing == "refuse" else np.isinf(values)
    if spoiled.any():
        row, place = np.argwhere(spoiled)[0]
        what = "NaN" if np.isnan(values[row, place]) else "infinity"
        raise InputError(
            f"{name}: expected finite numbers, got {what} in row {row}, column "
            f"{columns[place] if columns is not None else int(place)!r}, and NaN or infinity in "
            f"{int(spoiled.any(1).sum())} of {len(values)} rows; fill or remove them first, or "
            'train without such rows, missing="drop"'
        )
    return values if values.flags.writeable else values.copy()
