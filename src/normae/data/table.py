"""A table: rows with columns that have names, or one array with shape (N, *event) without names.

Every kind of file (`normae.data.tables`) gives its rows in order as `pieces` of whatever length suits it; `chunks`
makes arrays of one length of them, and refuses what is not a finite number, with its column and row.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normae.data.frames import MOST_CATEGORIES, ROUNDS, Piece, categories_of, codes
from normae.errors import InputError, check_memory, check_once, refuse
from normae.tensors import keeps

Floats = NDArray[Any]  # in float32, or in float64 where that is asked for
Kind = Callable[[str], str | None]
Pieces = Callable[[Sequence[str] | None, int, int, int], Iterator[Piece]]
WIDER = ', or train with coordinates.kind = "table", which reads float64'
CHUNK = 1 << 16  # rows that are read at a time


@dataclass(eq=False)
class Table:
    """An open table of a file.

    Args:
        columns: names of the columns, None for one array.
        event: shape of a row; (number of columns,) where they have names.
        kind: what a column holds, in words, where it is not one real number in a row; None where it is.
        pieces: rows start to stop of these columns, in pieces of about `size` rows; of the array where they are None.

    `sources` are all files that hold rows of it, itself first, and `state` is theirs when it was opened.
    `text` says whether a column holds text, and `categories` are those of such columns, whose values then are codes
    (`normae.data.frames`). `index` finds those that are taken only by their names.
    """

    path: Path
    rows: int
    columns: Sequence[str] | None
    event: tuple[int, ...]
    kind: Kind
    pieces: Pieces
    missing: bool = False  # whether NaN is a value
    text: Callable[[str], bool] = lambda _: False
    index: Callable[[], set[str]] = set
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    state: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sources = [self.path]
        self.columns = None if self.columns is None else tuple(self.columns)
        check_once(self.columns or (), str(self.path))

    def _named(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        """`columns`, or all but those of an index where none are named."""
        with reading(self.path):
            index = self.index() if columns is None else set()
        found = tuple(name for name in (self.columns or () if columns is None else columns) if name not in index)
        refuse(not found, f"{self.path}: expected at least one column, got none")
        unnamed = columns is None and "" in found
        refuse(unnamed, f"{self.path}: a column without a name, such as the index of a data frame; name those to use")
        return found

    def select(self, columns: Sequence[str] | None, event: tuple[int, ...] | None = None) -> tuple[str, ...] | None:
        """Those of `columns`, or all, whose rows must have the shape `event`; one that does not fit is refused."""
        if self.columns is None:
            wanted = event if columns is None else (len(columns),)
            if wanted is not None and self.event != tuple(wanted):
                of = "" if columns is None else f" with the columns {', '.join(columns)}"
                raise InputError(f"{self.path}: expected events of shape {tuple(wanted)}{of}, got {self.event}")
            return None
        chosen, known = self._named(columns), set(self.columns)
        if others := [name for name in chosen if name not in known]:
            raise InputError(f"{self.path}: no column {others[0]!r}; the file has {_listed(self.columns)}")
        if columns is None and event is not None and (len(chosen),) != tuple(event):
            got = f"{len(chosen)} columns, {_listed(chosen)}; name those to use"
            raise InputError(f"{self.path}: expected events of shape {tuple(event)}, got {got}")
        for name in chosen:
            with reading(self.path):
                kind = self.kind(name)
            if kind is not None and name not in self.categories:
                raise InputError(f"{self.path}: the column {name!r} holds {kind}, where real numbers are expected")
        return chosen

    def learn(self, columns: Sequence[str] | None) -> None:
        """Find the categories of the columns of text among `columns`; one sentence for a column with too many."""
        for name in filter(self.text, () if self.columns is None else self._named(columns)):
            self.categories[name] = ()  # read as text
            words: Counter[str] = Counter()
            with reading(self.path):
                for piece in self.pieces([name], 0, self.rows, CHUNK):
                    words += Counter(word for word in piece[0] if word is not None)
                    if len(words) > MOST_CATEGORIES:
                        break
            self.know([name], [categories_of(words, f"{self.path}: the column {name!r} holds")])

    def know(self, columns: Sequence[str] | None, categories: Sequence[tuple[str, ...]]) -> None:
        """Those of `columns`, or of all, that have categories hold text; the others hold numbers."""
        pairs = dict(zip(() if self.columns is None else self._named(columns), categories, strict=False))
        self.categories = {name: words for name, words in (self.categories | pairs).items() if words}

    def _coded(self, piece: Piece, columns: Sequence[str]) -> Piece:
        known, begin = self.categories, f"{self.path}: the column"
        both = zip(columns, piece, strict=True)
        return [codes(x, known[name], f"{begin} {name!r} holds") if name in known else x for name, x in both]

    def chunks(
        self, columns: Sequence[str] | None = None, start: int = 0, stop: int | None = None, size: int = CHUNK,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> Iterator[tuple[int, Floats]]:  # fmt: skip
        """(first row, values) of successive runs of `size` rows, the last one shorter; values with shape (n, *event).

        A chunk is a view of one buffer: it lasts until the next one is asked for.
        """
        chosen = self.select(columns)
        stop = self.rows if stop is None else stop
        event = self.event if chosen is None else (len(chosen),)
        with reading(self.path):
            check_memory(min(size, stop - start) * math.prod(event) * np.dtype(dtype).itemsize, f"{self.path}: a chunk")
            buffer = np.empty((min(size, stop - start), *event), dtype=dtype)
            filled, first = 0, start
            for raw in self.pieces(chosen, start, stop, size):
                piece = self._coded(raw, chosen) if chosen and self.categories else raw
                length = len(piece) if isinstance(piece, np.ndarray) else len(piece[0])
                done = 0
                while done < length:
                    count = min(length - done, len(buffer) - filled)
                    rounded = _fill(buffer[filled : filled + count], piece, slice(done, done + count))
                    if rounded is not None:
                        what = f"column {chosen[rounded]!r}" if chosen else "array"
                        wider = WIDER if buffer.dtype == np.float32 else ""
                        rounds = f"whole numbers that {buffer.dtype} {ROUNDS}{wider}"
                        raise InputError(f"{self.path}: the {what} holds {rounds}")
                    filled, done = filled + count, done + count
                    if filled == len(buffer):
                        yield first, self._finite(buffer, chosen, first)
                        first, filled = first + filled, 0
            if filled:
                yield first, self._finite(buffer[:filled], chosen, first)
            if first + filled != stop:
                raise InputError(f"{self.path}: expected rows up to {stop}, got {first + filled}; it is truncated")

    def _finite(self, values: Floats, columns: Sequence[str] | None, first: int) -> Floats:
        # one pass: a sum in float64 finds whatever is not finite
        if np.isfinite(values.sum(dtype=np.float64)) or (self.missing and not np.isinf(values).any()):
            return values
        row = int(np.argmax(~np.isfinite(values).reshape(len(values), -1).all(axis=1)))
        place = "" if columns is None else f" in column {columns[int(np.argmax(~np.isfinite(values[row])))]!r}"
        what = f"NaN, infinity or a number beyond {values.dtype}{place}, the first at row {first + row}"
        how = "remove such rows"
        if np.isnan(values[row]).any():
            how += ', or leave them out of a training: --missing drop, in Python missing="drop"'
        raise InputError(f"{self.path}: {what}; {how}")


def _fill(target: Floats, piece: Piece, rows: slice) -> int | None:
    """Copy rows; the first column with whole numbers that the target cannot hold, None where there is none."""
    kind = target.dtype.type
    with np.errstate(over="ignore", invalid="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        if isinstance(piece, np.ndarray):
            target[...] = piece[rows]
            return None if piece.dtype == kind or keeps(piece[rows], kind) else 0
        for j, column in enumerate(piece):
            target[:, j] = column[rows]
    return next((j for j, column in enumerate(piece) if not keeps(column[rows], kind)), None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def arrow_file(path: str | Path, mode: str = "rb") -> Any:
    """An open file of pyarrow, whose own opening takes only names that are UTF-8."""
    import pyarrow

    return pyarrow.OSFile(os.fsencode(path), mode)


def as_text(path: str | Path) -> str:
    """The name of a file as text that can be written; bytes that are no UTF-8 are escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong within becomes one sentence about the file: a parser of damaged bytes may raise anything."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        more = "; if it is compressed, `pip install 'normae[blosc]'` brings more filters"
        advice = more if "plugin" in reason else ""
        raise InputError(f"{path}: damaged, or not a {path.suffix} file ({reason}){advice}") from None


def not_real(dtype: np.dtype[Any]) -> str | None:
    """What a dtype holds, in words, where it is not real numbers; booleans are 0 and 1."""
    return None if dtype.kind in "biuf" else f"values of type {dtype}"


def check_array(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    refuse(len(shape) < 2, f"{path}: expected events of shape (N, *event), got shape {shape}")
    refuse(not_real(dtype) is not None, f"{path}: expected real numbers, got {not_real(dtype)}")


def array_table(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], rows: Callable[[int, int], Any]) -> Table:
    """One array, of which rows start to stop are `rows(start, stop)`; a structured one has columns."""
    names = dtype.names if len(shape) == 1 else None
    if names is None:
        check_array(path, shape, dtype)

    def pieces(columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        for first in range(start, stop, size):
            values = rows(first, min(first + size, stop))
            yield values if columns is None else [values[name] for name in columns]

    event = shape[1:] if names is None else (len(names),)
    return Table(path, shape[0], names, event, lambda column: not_real(dtype[column]), pieces)


def one_length(path: Path, lengths: Iterable[int]) -> int:
    found = sorted(set(lengths))
    refuse(len(found) != 1, f"{path}: expected columns of one length, got lengths {found}")
    return found[0]


def column_table(
    path: Path, rows: int, names: Sequence[str], kind: Kind, values: Callable[[str, int, int], NDArray[Any]]
) -> Table:
    """Columns, of which rows start to stop are `values(name, start, stop)`."""

    def pieces(columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        for first in range(start, stop, size):
            yield [values(name, first, min(first + size, stop)) for name in columns or ()]

    return Table(path, rows, names, (len(names),), kind, pieces)
