"""CSV and Parquet as tables, streamed by pyarrow."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from normae.data.table import Piece, Table
from normae.errors import InputError

BLOCK = 4 << 20
"""Bytes of a CSV file that are parsed at a time."""


class CsvTable(Table):
    """A CSV file whose first line names the columns. To count the rows it is read once."""

    def __init__(self, path: Path) -> None:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            names = next(csv.reader(stream), [])
        if not names:
            raise InputError(f"{path}: expected at least one event of at least one feature, got an empty file")
        super().__init__(path, 0, names, (len(names),))
        for name in names:
            if _is_number(name):
                raise InputError(f"{path}: expected names of columns in the first line, got the number {name!r}")
        status = path.stat()
        self.rows = _count(path, names[0], status.st_size, status.st_mtime_ns)

    def kind(self, column: str) -> str | None:
        """Only reading tells."""
        del column
        return None

    def pieces(self, columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        """Blocks of the file; what comes before `start` is parsed and left out."""
        del size
        assert columns is not None
        first = 0
        try:
            for batch in _batches(self.path, columns, pa.float64()):
                if first >= stop:
                    return
                part = batch.slice(max(start - first, 0), max(stop - max(first, start), 0))
                first += batch.num_rows
                if part.num_rows:
                    yield [column.to_numpy(zero_copy_only=False) for column in part.columns]
        except pa.ArrowInvalid as error:
            raise InputError(f"{self.path}: {self._named(str(error), columns)}") from None

    def _named(self, message: str, columns: Sequence[str]) -> str:
        """The parser's message, which counts columns, with the column's name."""
        head, colon, rest = message.partition(": ")
        number = head.rpartition("#")[2]
        if colon and number.isdigit() and self.columns is not None:
            names = self.columns if int(number) < len(self.columns) else columns
            return f"the column {names[int(number)]!r} does not hold real numbers ({_line(rest)})"
        return _line(message)


def _line(message: str) -> str:
    """The first line of a message of the parser, whose rows are lines of the file, counted from 1."""
    return message.splitlines()[0][:160].replace("Row #", "line ")


def _batches(path: Path, columns: Sequence[str], kind: pa.DataType) -> Iterator[pa.RecordBatch]:
    options = pyarrow.csv.ConvertOptions(include_columns=list(columns), column_types=dict.fromkeys(columns, kind))
    read = pyarrow.csv.ReadOptions(block_size=BLOCK, use_threads=False)
    with pyarrow.csv.open_csv(path, read_options=read, convert_options=options) as stream:
        yield from stream


@lru_cache(maxsize=1024)
def _count(path: Path, column: str, *state: int) -> int:
    """Rows of a file in this state; kept, since it takes a pass over the file."""
    del state
    return sum(batch.num_rows for batch in _batches(path, [column], pa.string()))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@contextmanager
def open_csv(path: Path, dataset: str | None) -> Iterator[Table]:
    """A CSV file as a table."""
    del dataset
    yield CsvTable(path)


class ParquetTable(Table):
    """A Parquet file, read by row groups in batches."""

    def __init__(self, path: Path, file: pyarrow.parquet.ParquetFile) -> None:
        self.file = file
        self.schema = file.schema_arrow
        super().__init__(path, file.metadata.num_rows, self.schema.names, (len(self.schema.names),))
        counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        if sum(counts) != self.rows or min(counts, default=0) < 0:
            raise InputError(f"{path}: expected {self.rows} rows, got row groups of {counts[:9]} rows")
        self.edges = [0, *accumulate(counts)]

    def kind(self, column: str) -> str | None:
        """The type of a column, where it is not real numbers."""
        kind = self.schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return None if pa.types.is_integer(kind) or pa.types.is_floating(kind) else f"values of type {kind}"

    def pieces(self, columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        """Batches of the row groups that hold the rows."""
        assert columns is not None
        groups = [i for i in range(len(self.edges) - 1) if self.edges[i] < stop and self.edges[i + 1] > start]
        first = self.edges[groups[0]] if groups else stop
        batches = self.file.iter_batches(size, groups, columns=list(dict.fromkeys(columns)), use_threads=False)
        for batch in batches:
            part = batch.slice(max(start - first, 0), max(stop - max(first, start), 0))
            first += batch.num_rows
            if part.num_rows:
                yield [part.column(name).to_numpy(zero_copy_only=False) for name in columns]
            if first >= stop:
                return


@contextmanager
def open_parquet(path: Path, dataset: str | None) -> Iterator[Table]:
    """A Parquet file as a table. Without a read buffer of its own, pyarrow would hold whole row groups."""
    del dataset
    with pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        yield ParquetTable(path, file)
