"""Rows from what is in memory: arrays, tensors, and data frames of pandas, polars or Arrow, by the names of columns.

A column of text holds categories. Its values become codes, whole numbers from 0 on, the commonest category first: so a
column on a lattice (`normae.lattice`), whose probabilities fall. Text that the training did not have has the code
`UNSEEN`, which cannot occur. Last, the parts of a sample, which cannot overlap.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normae.errors import InputError, check_once, decided, refuse
from normae.tensors import WHOLE, keeps

Missing = Literal["refuse", "drop"]
"""What becomes of rows with missing values, NaN, in a training: they are refused, or left out of it."""
KINDS = {"M": "dates", "m": "time differences", "c": "complex numbers"}  # of numpy's types that are not real numbers
WHOLES = int, np.integer, Decimal
BEYOND = "whole numbers beyond 2^53, which float64 rounds; subtract an offset"
ROUNDS = "rounds, such as times or identifiers; subtract an offset, or leave it out"
Piece = NDArray[Any] | Sequence[NDArray[Any]]  # an array with shape (n, *event), or one with shape (n,) for each column
Categories = tuple[tuple[str, ...], ...]
"""Of each column, in the order of their codes; none of a column of numbers, and () where there is no text at all."""
MOST_CATEGORIES, UNSEEN = 100, -1  # of a column, and the code of text that is none of them


class Rows(NamedTuple):
    """A table in memory: float64 with shape (N, d), the names of its columns, where they have names, and weights (N,).

    Weights that are all equal are none. Text is there as the codes of `categories`.
    """

    values: NDArray[np.float64]
    columns: tuple[str, ...] | None
    weights: NDArray[np.float64] | None = None
    categories: Categories = ()

    def weighted(self, weights: Any, source: str) -> "Rows":
        """With weights: an array with shape (N,), or the name of a column, which then is none of the table any more.

        >>> from normae.data import as_rows
        >>> as_rows([[1, 2], [3, -1]], columns=["a", "w"]).weighted("w", "data")[1:3]
        (('a',), array([ 2., -1.]))
        """
        if weights is None:
            return self
        if isinstance(weights, str):
            names = list(self.columns or ())
            refuse(weights not in names, f"{source}: no column {weights!r} with weights; there are {names[:12]}")
            rest = [k for k, name in enumerate(names) if name != weights]
            kinds = tuple(self.categories[k] for k in rest) if self.categories else ()
            if kinds.count(()) == self.categories.count(()) and self.categories:
                raise InputError(f"{source}: the column {weights!r} holds text, where weights are expected")
            table = Rows(self.values[:, rest], tuple(names[k] for k in rest), None, kinds if any(kinds) else ())
            return table.weighted(self.values[:, names.index(weights)], source)
        found = _real(_array(weights), f"{source}: the array of weights holds")
        if found.shape != self.values.shape[:1]:
            raise InputError(f"{source}: expected a weight for each of {len(self.values)} rows, got {found.shape}")
        found = finite(found[:, None], ["weights"], source)[:, 0]
        refuse(not found.sum() > 0, f"{source}: expected weights with a sum above zero, got {found.sum():.4g}")
        return self._replace(weights=None if (found == found[0]).all() else found)

    def whole(self, source: str) -> "Rows":
        """The rows that have all values; how many have not is logged."""
        kept = ~np.isnan(self.values).any(axis=tuple(range(1, self.values.ndim)))
        if kept.all():
            return self
        missing, rows = int((~kept).sum()), len(self.values)
        decided(f"{source}: {missing} of {rows} rows with missing values are left out")
        return self._replace(values=self.values[kept], weights=None if self.weights is None else self.weights[kept])


def column_names(data: Any) -> list[str] | None:
    """The names of the columns of a data frame; None of an array."""
    lazy, kind = hasattr(type(data), "collect"), type(data).__name__
    refuse(lazy, f"expected a data frame or an array, got a {kind}, which holds no rows yet; call collect() first")
    names = getattr(data, "column_names", None)
    if names is None and hasattr(data, "columns") and not isinstance(data, np.ndarray):
        names = data.columns
    return None if names is None else [str(name) for name in names]


def no_index(data: Any) -> Any:
    """Without the columns of an Arrow table that are the index of the pandas frame it was, which is no feature."""
    index = index_of(data.schema, "data") if hasattr(data, "column_names") else ()
    return data.select([name for name in data.column_names if name not in index]) if index else data


def index_of(schema: Any, source: str) -> set[str]:
    """The columns of an Arrow schema that are the index of a pandas frame; that they are left out is logged."""
    kept = (getattr(schema, "pandas_metadata", None) or {}).get("index_columns", [])
    found = {name for name in kept if isinstance(name, str) and name in schema.names}
    if found:
        named = ", ".join(map(repr, sorted(found)))
        decided(f"{source}: the index of a pandas frame, {named}, is left out; it is taken where columns name it")
    return found


def as_rows(
    data: Any, columns: Sequence[str] | None = None, name: str = "data", missing: Missing = "refuse",
    categories: Categories | None = None,
) -> Rows:  # fmt: skip
    """The rows of an array (N, d) or of a data frame; one sentence that names a column that cannot be taken.

    Args:
        columns: of a data frame, in this order; of an array, their names.
        missing: whether NaN is refused; if not, `Rows.whole` drops such rows.
        categories: of the columns of a data frame, where they are known already.

    >>> from normae.data import as_rows
    >>> as_rows([[1, 2], [3, 4]], columns=["a", "b"]).columns
    ('a', 'b')
    """
    data = no_index(data) if columns is None else data
    names = column_names(data)
    if names is None:
        values = _real(_array(data), f"{name}: the array holds")
        wrong = values.ndim != 2 or values.shape[1] == 0
        refuse(wrong, f"{name}: expected rows of columns with shape (N, d), got shape {values.shape}")
        if columns is not None and len(columns) != values.shape[1]:
            raise InputError(f"{name}: expected {values.shape[1]} names of columns, got {len(columns)}")
        return Rows(finite(values, columns, name, missing), None if columns is None else tuple(columns))
    chosen = names if columns is None else list(columns)
    refuse(not chosen, f"{name}: expected at least one column, got none")
    for column in chosen:
        refuse(column not in names, f"{name}: no column {column!r}; there are {', '.join(map(repr, names[:12]))}")
    check_once([column for column in names if columns is None or column in columns], name)
    known: Sequence[tuple[str, ...] | None] = categories or (None if categories is None else (),) * len(chosen)
    refuse(len(known) != len(chosen), f"{name}: expected {len(known)} columns, got {len(chosen)}: {chosen[:12]}")
    begins = [f"{name}: the column {column!r} holds" for column in chosen]
    found = [_column(data, column, begin) for column, begin in zip(chosen, begins, strict=True)]
    parts = [_coded(*one) for one in zip(found, begins, known, strict=True)]
    kinds = tuple(words for _, words in parts)
    table = finite(np.stack([column for column, _ in parts], axis=1), chosen, name, missing)
    return Rows(table, tuple(chosen), None, kinds if any(kinds) else ())


def _array(data: Any) -> NDArray[Any]:
    return np.asarray(data.detach().cpu() if hasattr(data, "detach") else unmasked(data))


def unmasked(data: Any) -> Any:
    """What is masked of an array becomes NaN, of objects where float64 would round; all else is as it was."""
    if not isinstance(data, np.ma.MaskedArray):
        return data
    known: NDArray[Any] = data.compressed()
    held = known.dtype.kind in "biuf" and keeps(known, np.float64)
    return np.ma.filled(data.astype(np.float64 if held else object), np.nan)


def _column(data: Any, column: str, begin: str) -> NDArray[Any]:
    if hasattr(data, "column_names"):
        kind = str(data.schema.field(column).type)
        return unrounded(data.column(column).to_numpy(zero_copy_only=False), kind, begin)
    found = data[column] if column in data.columns else data.iloc[:, [str(c) for c in data.columns].index(column)]
    kind = str(found.dtype).lower()
    values = np.asarray(found.to_numpy())
    if values.dtype.kind == "O" and hasattr(data, "iloc"):
        values = found.to_numpy(dtype=object, na_value=np.nan)  # pandas.NA is no number
    return unrounded(values, kind, begin)


def unrounded(values: NDArray[Any], kind: str, begin: str) -> NDArray[Any]:
    """Values of a column of this kind; integers became float64 where some are missing, which may have rounded them."""
    if values.dtype.kind == "f" and "int" in kind:
        refuse(bool((np.abs(values) >= WHOLE[np.float64]).any()), f"{begin} {BEYOND}")
    return values


# --- text


def _coded(
    values: NDArray[Any], begin: str, known: tuple[str, ...] | None
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """A column of numbers as it is, of text as codes (N,), and its categories: those `known`, or found where None."""
    text = _text(values) if known is None and values.dtype.kind in "OUT" else None
    words = known or () if text is None else categories_of(Counter(text.drop_null().to_pylist()), begin)
    return (codes(values, words, begin), words) if words else (_real(values, begin), ())


def _text(values: Any) -> Any:
    """An array of Arrow; None where there is more than text and missing values."""
    import pyarrow

    try:
        return pyarrow.array(values, pyarrow.string(), from_pandas=True)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        return None


def categories_of(words: Counter[str], begin: str) -> tuple[str, ...]:
    """Of a column with these words, the commonest first; none where one is a number. `begin` is of a refusal."""
    if any(map(is_number, words)):
        return ()
    if len(words) > min(MOST_CATEGORIES, words.total() // 2):
        many = f"{len(words)} or more different values in {words.total()} rows"
        few = f"at most {MOST_CATEGORIES} categories are expected, each in two rows or more on the average"
        raise InputError(f"{begin} text with {many}, where {few}; leave it out or convert it")
    return tuple(sorted(words, key=lambda word: (-words[word], word)))


def codes(values: Any, categories: Sequence[str], begin: str) -> NDArray[np.float64]:
    """Places of the categories of a column of text, (N,), NaN where it is missing. `begin` is of a refusal."""
    text = _text(values)
    refuse(text is None, f"{begin} no text, where categories are expected, such as {categories[0]!r}")
    words = text.dictionary_encode()
    place = {word: k for k, word in enumerate(categories)}
    found = np.array([*(place.get(word, UNSEEN) for word in words.dictionary.to_pylist()), np.nan])
    return np.asarray(found[words.indices.fill_null(len(found) - 1).to_numpy()])


def is_number(text: str) -> bool:
    """Whether a text is that of a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def by_name(rows: Rows) -> dict[str, NDArray[Any]]:
    """The columns with shape (N,) by their names, text in place of codes."""
    kinds = rows.categories or ((),) * rows.values.shape[1]
    names = rows.columns or tuple(f"column_{k}" for k in range(len(kinds)))  # no numbers, which head no CSV file
    columns = zip(names, kinds, rows.values.T, strict=True)
    return {name: np.array(words, dtype=object)[x.astype(int)] if words else x for name, words, x in columns}


def as_frame(rows: Rows, like: Any) -> Any:
    """A data frame of the kind and with the types of `like`: whole numbers and text as they are there."""
    arrow, columns = hasattr(like, "column_names"), by_name(rows)
    kinds = [str(kind).lower() for kind in (like.schema.types if arrow else like.dtypes)]
    for (name, values), kind in zip(columns.items(), kinds, strict=True):
        if kind.startswith(("int", "uint", "bool")):
            columns[name] = np.maximum(np.rint(values), 0 if kind.startswith("uint") else -np.inf)
    try:
        if arrow:
            import pyarrow as pa

            whole = pa.Table.from_pydict(columns).cast(like.schema)  # older batches have no cast
            return whole if isinstance(like, pa.Table) else (whole.to_batches() or [like[:0]])[0]
        if hasattr(like, "schema"):
            return type(like)(columns).cast(dict(like.schema))
        return type(like)(dict(zip(like.columns, columns.values(), strict=True))).astype(like.dtypes.to_dict())
    except Exception as error:  # each kind of frame has its own for a decimal or a whole number that is too large
        reason = repr(error)[:160]
        raise InputError(f"the types of the data frame cannot hold the rows ({reason}); fit it as float64") from None


# --- numbers


def _real(values: NDArray[Any], begin: str) -> NDArray[np.float64]:
    kind, found = values.dtype.kind, None
    with suppress(TypeError, ValueError, OverflowError):
        found = np.asarray(values, dtype=np.float64) if kind in "iufbO" else None
    if found is None:
        what = KINDS.get(kind, "text")
        raise InputError(f"{begin} {what}, where real numbers are expected; leave it out or convert it")
    big = np.isfinite(found) & (np.abs(found) >= WHOLE[np.float64]) if kind == "O" else ()
    pairs = zip(values[big], found[big], strict=True) if np.any(big) else ()
    rounded = any(isinstance(given, WHOLES) and int(given) != int(taken) for given, taken in pairs)
    refuse(rounded or not keeps(values, np.float64), f"{begin} {BEYOND}")
    return found


def finite(
    values: NDArray[np.float64], columns: Sequence[str] | None, name: str, missing: Missing = "refuse"
) -> NDArray[np.float64]:
    """The values (N, d), which can be written to; one sentence that names the first place with NaN or infinity."""
    spoiled = ~np.isfinite(values) if missing == "refuse" else np.isinf(values)
    if spoiled.any():
        row, place = np.argwhere(spoiled)[0]
        what = "NaN" if np.isnan(values[row, place]) else "infinity"
        column = int(place) if columns is None else columns[place]
        many = f"NaN or infinity in {int(spoiled.any(1).sum())} of {len(values)} rows"
        how = "fill or remove them first" + (', or train without such rows, missing="drop"' if what == "NaN" else "")
        place = f"row {row}, column {column!r}"
        raise InputError(f"{name}: expected finite numbers, got {what} in {place}, and {many}; {how}")
    return values if values.flags.writeable else values.copy()


# --- parts


def split(n: int, sizes: Sequence[int], generator: torch.Generator) -> list[torch.Tensor]:
    """Index sets of the given sizes into `n` events, disjoint by construction.

    All parts are consecutive pieces of one permutation. A sample that is too short is an error, never a shared event.

    >>> import torch, normae.data
    >>> train, test = normae.data.split(10, [8, 2], torch.Generator().manual_seed(0))
    >>> sorted(train.tolist() + test.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    refuse(any(size < 0 for size in sizes), f"expected sizes of at least 0, got {list(sizes)}")
    refuse(sum(sizes) > n, f"expected at least {sum(sizes)} events for parts of {list(sizes)}, got {n}")
    return list(torch.split(torch.randperm(n, generator=generator)[: sum(sizes)], list(sizes)))
