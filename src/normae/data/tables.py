"""Tables from files of any kind, in chunks of bounded memory: `with open_table(path) as table: table.chunks(...)`.

.npy is mapped into memory piece by piece; a structured array has the columns of its fields. .npz is streamed out of its
archive: one array with shape (N, *event), named `x` or alone, or arrays with shape (N,), which are columns. CSV and
Parquet are streamed by pyarrow. HDF5 has a group of datasets with shape (N,), which are columns; a compound dataset,
whose fields are columns; or one dataset with shape (N, *event). Of ROOT a TTree or an RNTuple is read, by uproot.
"""

import csv
import io
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from normae.data.frames import ROUNDS, Categories, Missing, Piece, Rows, by_name, index_of, is_number, unrounded
from normae.data.hdf5 import hdf5, sources
from normae.data.table import Table, array_table, arrow_file, check_array, column_table, not_real, one_length, reading
from normae.errors import InputError, check_memory, refuse, require
from normae.files import as_cell, check_file, check_unchanged, states
from normae.tensors import WHOLE

BLOCK = 4 << 20  # bytes of a CSV file that are parsed at a time
MOST_HEADER = 4 << 20  # bytes of the header of an array, enough for the names of 100,000 fields
LARGE, PACKED = 1 << 28, 300  # bytes from which an array is large, and times that an archive may hold it smaller


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
    path, suffix = Path(path), Path(path).suffix.lower()
    check_file(path)
    refuse(suffix not in OPENERS, f"{path}: expected a name that ends in {', '.join(OPENERS)}; unpack or convert it")
    with ExitStack() as stack:
        before = states([path])
        with reading(path):
            if suffix in (".h5", ".hdf5") and find_spec("hdf5plugin"):
                import_module("hdf5plugin")  # once imported, HDF5 knows its filters
            table = OPENERS[suffix](path, dataset, stack)
        table.state = before + states(table.sources[1:])
        if table.rows == 0 or 0 in table.event:
            raise InputError(f"{path}: expected at least one event of at least one feature, got an empty table")
        yield table


def read_table(
    path: str | Path, columns: Sequence[str] | None = None, dataset: str | None = None,
    dtype: type[np.floating[Any]] = np.float32,
) -> tuple[NDArray[Any], tuple[str, ...] | None]:  # fmt: skip
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
    found = read_rows(path, columns, dataset, None, dtype=dtype)
    return found.values, found.columns


def read_rows(
    path: str | Path, columns: Sequence[str] | None, dataset: str | None, weights: str | None,
    missing: Missing = "refuse", categories: Categories | None = (), dtype: type[np.floating[Any]] = np.float64,
) -> Rows:  # fmt: skip
    """All rows, with their weights.

    Args:
        path, columns, dataset: as in `read_table`.
        weights: a column, or an array (N,) of an .npz or HDF5 file beside the one that is the table.
        missing: whether rows with NaN are refused or dropped.
        categories: of the columns; None finds those of the columns of text.
    """
    with open_table(path, dataset) as table:
        wanted, named = columns, table.columns is not None
        if named and weights is not None and columns is not None and weights not in columns:
            wanted = [*columns, weights]
        table.missing = missing == "drop"
        table.learn(wanted) if categories is None else table.know(wanted, categories)
        chosen = table.select(wanted)
        event = table.event if chosen is None else (len(chosen),)
        with reading(table.path):
            check_memory(table.rows * math.prod(event) * np.dtype(dtype).itemsize, f"{path}: a table")
            values = np.empty((table.rows, *event), dtype=dtype)
        for first, chunk in table.chunks(chosen, dtype=dtype):
            values[first : first + len(chunk)] = chunk
        kinds = tuple(table.categories.get(name, ()) for name in chosen or ())
        rows = Rows(values, chosen, None, kinds if any(kinds) else ())
        rows = rows.weighted(weights if named or weights is None else beside(table.path, weights), str(path))
        check_unchanged(table.path, table.sources, table.state)
    return rows.whole(str(path)) if missing == "drop" else rows


def write_rows(rows: Rows, path: Path) -> None:
    """Write rows to a file by its suffix: the array x of .npz, with codes; columns of .csv and .parquet."""
    if path.suffix != ".npz" and rows.values.ndim != 2:
        raise InputError(f"expected a name that ends in .npz for events of shape {rows.values.shape[1:]}")
    write_columns({"x": rows.values} if path.suffix == ".npz" else by_name(rows), path)


def write_columns(columns: Mapping[str, Any], path: Path) -> None:
    """Write columns of equal length to a .npz, .csv or .parquet file, by its suffix."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
        return
    import pyarrow.csv
    import pyarrow.parquet

    cell, write = (as_cell, pyarrow.csv.write_csv) if path.suffix == ".csv" else (str, pyarrow.parquet.write_table)
    cells = [[*map(cell, x)] if np.asarray(x).dtype.kind in "OU" else x for x in columns.values()]
    with arrow_file(path, "wb") as file:
        write(pyarrow.table(cells, names=[*map(cell, columns)]), file)


def beside(path: Path, name: str, what: str = "weights") -> NDArray[Any]:
    """The array called `name`, with what it is for, beside the one that is the table."""
    openers: dict[str, Callable[[Path], Any]] = {".npz": np.load, ".h5": h5py.File, ".hdf5": h5py.File}
    if path.suffix.lower() not in openers:
        raise InputError(f"{path}: expected names of columns, one of them {name!r} for the {what}, got an array")
    with reading(path), openers[path.suffix.lower()](path) as file:
        refuse(name not in file, f"{path}: no array {name!r} with {what}; the file has {sorted(file)}")
        sources(path, [file[name]] if isinstance(file, h5py.File) else ())  # none of them is gone
        return np.asarray(file[name][...])


# --- NumPy


class Header(NamedTuple):
    """What an .npy stream says of itself; `offset` bytes come before its values, and `width` bytes are a row."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def width(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def _header(stream: IO[bytes], path: Path, size: int) -> Header:
    """The header at the beginning of `stream`, which must be `size` bytes long as the header says."""
    start = stream.read(12)
    count = 2 if start[6:7] == b"\1" else 4
    length = int.from_bytes(start[8 : 8 + count], "little") - (4 - count)
    refuse(length > MOST_HEADER, f"{path}: expected a header up to {MOST_HEADER} bytes, got {length}")
    header = _parsed(start + stream.read(length))
    if header.dtype.hasobject:  # the words alone take as long as all else
        raise InputError(f"{path}: expected real numbers without pickled objects, got dtype {header.dtype}")
    expected = header.offset + math.prod(header.shape) * header.dtype.itemsize
    if min(header.shape, default=1) < 0 or expected != size:
        raise InputError(f"{path}: expected {expected} bytes for an array of shape {header.shape}, got {size}")
    return header


@lru_cache(maxsize=16)
def _parsed(content: bytes) -> Header:
    """A header from its bytes; kept, since that is slow, and those of 100,000 columns are equal."""
    head = io.BytesIO(content)
    version = np.lib.format.read_magic(head)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(head, max_header_size=MOST_HEADER)
    if version == (3, 0) and dtype.names:  # as version 2, but the names are UTF-8
        dtype.names = tuple(name.encode("latin1").decode() for name in dtype.names)
    return Header(shape, fortran and len(shape) > 1, dtype, head.tell())


def _npy(path: Path, _: str | None, __: ExitStack) -> Table:
    """Only what a piece needs is mapped, so that memory stays bounded."""
    with path.open("rb") as stream:
        header = _header(stream, path, path.stat().st_size)

    def rows(start: int, stop: int) -> NDArray[Any]:
        if header.fortran:  # rows are not together in the file
            return np.memmap(path, header.dtype, "r", header.offset, header.shape, order="F")[start:stop]
        shape = (stop - start, *header.shape[1:])
        return np.memmap(path, header.dtype, "r", header.offset + start * header.width, shape)

    return array_table(path, header.shape, header.dtype, rows)


def _npz(path: Path, dataset: str | None, stack: ExitStack) -> Table:
    """Read from the start of its members to the rows that are asked for; all columns side by side."""
    archive = stack.enter_context(zipfile.ZipFile(path))
    members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
    headers = {}
    for name, member in members.items():
        if member.file_size > max(LARGE, PACKED * member.compress_size):
            many = f"{member.file_size / 1e9:.1f} GB out of {member.compress_size} bytes"
            raise InputError(f"{path}: {name!r} would be {many}; if that is meant, save it without compression")
        with _beginning(archive, member) as stream:
            headers[name] = _header(stream, path, member.file_size)

    def stream_of(name: str, start: int, stop: int, size: int) -> Iterator[NDArray[Any]]:
        header = headers[name]
        with archive.open(members[name]) as stream:
            if header.fortran:  # rows are not together: it is read at once
                check_memory(members[name].file_size, f"{path}: an array in Fortran order")
                yield np.lib.format.read_array(stream, max_header_size=MOST_HEADER)[start:stop]
                return
            for left in range(header.offset + start * header.width, 0, -BLOCK):  # a seek may leave the checksum out
                stream.read(min(left, BLOCK))
            for first in range(start, stop, size):
                count = min(size, stop - first)
                yield np.frombuffer(stream.read(count * header.width), header.dtype).reshape(count, *header.shape[1:])

    def pieces(columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        if columns is None:
            return stream_of(str(array), start, stop, size)
        return zip(*(stream_of(name, start, stop, size) for name in columns), strict=True)

    array = _only_array(headers, dataset, path)
    if array is None:
        rows = one_length(path, (header.shape[0] for header in headers.values()))
        return Table(path, rows, list(headers), (len(headers),), lambda name: not_real(headers[name].dtype), pieces)
    shape = headers[array].shape
    check_array(path, shape, headers[array].dtype)
    return Table(path, shape[0], None, shape[1:], lambda _: None, pieces)


def _beginning(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> AbstractContextManager[IO[bytes]]:
    """A member for its header: of 100,000 that are stored as they are zipfile's own streams take most of the time."""
    file = archive.fp
    if file is not None and member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
        file.seek(member.header_offset)
        local = file.read(30)
        if local[:4] == b"PK\3\4":
            file.seek(int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:], "little"), os.SEEK_CUR)
            return nullcontext(file)
    return archive.open(member)


def _only_array(headers: Mapping[str, Header], dataset: str | None, path: Path) -> str | None:
    """The name of the one array that is the table; None where all arrays are columns."""
    if dataset is not None:
        refuse(dataset not in headers, f"{path}: no array {dataset!r}; the file has {sorted(headers)}")
        return dataset
    if "x" in headers and len(headers["x"].shape) >= 2:
        return "x"
    if not headers or any(len(header.shape) != 1 for header in headers.values()):
        raise InputError(f"{path}: expected an array named x, or columns of shape (N,), got {sorted(headers)}")
    return None


# --- CSV and Parquet


def _cut(
    path: Path, batches: Iterable[Any], first: int, start: int, stop: int, columns: Sequence[str]
) -> Iterator[Piece]:
    """Rows start to stop of Arrow's batches, the first of which begins at row `first`."""
    for batch in batches:
        part = batch.slice(max(start - first, 0), max(stop - max(first, start), 0))
        first += batch.num_rows
        if part.num_rows:
            places = {name: k for k, name in enumerate(part.schema.names)}
            both = [(f"{path}: the column {name!r} holds", part.column(places[name])) for name in columns]
            found = [(begin, one.cast("float64") if str(one.type) == "bool" else one) for begin, one in both]
            yield [unrounded(one.to_numpy(zero_copy_only=False), str(one.type), begin) for begin, one in found]
        if first >= stop:
            return


def _csv(path: Path, _: str | None, __: ExitStack) -> Table:
    """The first line names the columns. To count the rows the file is read once; only reading tells what they hold."""
    from pyarrow import ArrowInvalid

    with path.open(encoding="utf-8-sig", newline="") as stream:
        names = next(csv.reader(stream), [])
    refuse(not names, f"{path}: expected at least one event of at least one feature, got an empty file")

    def pieces(columns: Sequence[str] | None, start: int, stop: int, _: int) -> Iterator[Piece]:
        chosen = list(columns or ())
        try:
            known = dict.fromkeys(table.categories, "string")
            kinds = {name: known.get(name, "bool" if looks(name) == "bool" else "float64") for name in chosen}
            for piece in _cut(path, _csv_batches(path, kinds), 0, start, stop, chosen):
                for name, values in zip(chosen, piece, strict=True):
                    if kinds[name] == "float64" and (np.abs(values) >= WHOLE[np.float64]).any():
                        check_digits(name)
                yield piece
        except ArrowInvalid as error:
            raise InputError(f"{path}: {_csv_problem(str(error), names, chosen)}") from None

    @cache
    def check_digits(name: str) -> None:
        """A number of only digits is an integer, which must keep them; of others as large the digits mean nothing."""
        for batch in _csv_batches(path, {name: "string"}):
            for word in batch.column(0).drop_null().unique().to_pylist():
                if re.fullmatch(r"\s*[+-]?\d+\s*", word) and float(word) not in (int(word), math.inf, -math.inf):
                    raise InputError(f"{path}: the column {name!r} holds whole numbers that float64 {ROUNDS}")

    def looks(name: str) -> str | None:
        return _csv_looks(path, status.st_size, status.st_mtime_ns).get(name)

    status = path.stat()
    table = Table(path, 0, names, (len(names),), lambda _: None, pieces, text=lambda name: looks(name) == "string")
    for name in names:
        refuse(is_number(name), f"{path}: expected names of columns in the first line, got the number {name!r}")
    table.rows = _csv_count(path, names[0], status.st_size, status.st_mtime_ns)
    return table


def _csv_batches(path: Path, kinds: Mapping[str, str]) -> Iterator[Any]:
    """Batches of columns of these kinds; of all columns, of whatever kind they look, where there are none."""
    import pyarrow.csv

    options = pyarrow.csv.ConvertOptions(include_columns=list(kinds), column_types=kinds, strings_can_be_null=True)
    read = pyarrow.csv.ReadOptions(block_size=BLOCK, use_threads=False)
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)  # or a quoted one that ends a block is the end of a row
    with (
        arrow_file(path) as file,
        pyarrow.csv.open_csv(file, read_options=read, parse_options=parse, convert_options=options) as stream,
    ):
        yield from stream


@lru_cache(maxsize=1024)
def _csv_looks(path: Path, *_: int) -> dict[str, str]:
    """Of a file in this state what each column is by its first values; kept, since every opening asks."""
    found = {one.name: str(one.type) for one in next(_csv_batches(path, {})).schema}
    return {name: kind for name, kind in found.items() if kind in ("bool", "string")}


@lru_cache(maxsize=1024)
def _csv_count(path: Path, column: str, *_: int) -> int:
    """Rows of a file in this state; kept, since it takes a pass over the file."""
    return sum(batch.num_rows for batch in _csv_batches(path, {column: "string"}))


def _csv_problem(message: str, names: Sequence[str], chosen: Sequence[str]) -> str:
    """The parser's message, which counts columns, with the column's name."""
    head, colon, rest = message.partition(": ")
    number = head.rpartition("#")[2]
    known = bool(colon) and number.isdigit()
    line = (rest if known else message).splitlines()[0][:160].replace("Row #", "line ")  # lines count from 1
    if not known:
        return line
    name = (names if int(number) < len(names) else chosen)[int(number)]
    return f"the column {name!r} does not hold real numbers ({line}); mend it, or leave it out with --columns"


def _parquet(path: Path, _: str | None, stack: ExitStack) -> Table:
    """Read by row groups in batches. Without a read buffer of its own, pyarrow would hold whole row groups."""
    import pyarrow.parquet
    from pyarrow import types

    source = stack.enter_context(arrow_file(path))
    file = stack.enter_context(pyarrow.parquet.ParquetFile(source, buffer_size=1 << 20, pre_buffer=False))
    schema, metadata = file.schema_arrow, file.metadata
    counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    edges = [0, *accumulate(counts)]

    def type_of(column: str) -> Any:
        found = schema.field(column).type
        return found.value_type if types.is_dictionary(found) else found

    def kind(column: str) -> str | None:
        found = type_of(column)
        real = types.is_integer(found) or types.is_floating(found) or types.is_boolean(found)
        return None if real else f"values of type {found}"

    def pieces(columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        chosen = list(columns or ())
        groups = [i for i in range(len(counts)) if edges[i] < stop and edges[i + 1] > start]
        batches = file.iter_batches(size, groups, columns=list(dict.fromkeys(chosen)), use_threads=False)
        return _cut(path, batches, edges[groups[0]] if groups else stop, start, stop, chosen)

    table = Table(path, metadata.num_rows, schema.names, (len(schema.names),), kind, pieces)
    table.index = lambda: index_of(schema, str(path))
    table.text = lambda column: column in schema.names and str(type_of(column)) in ("string", "large_string")
    if edges[-1] != table.rows or min(counts, default=0) < 0:
        raise InputError(f"{path}: expected {table.rows} rows, got row groups of {counts[:9]} rows")
    return table


# --- ROOT


def _root(path: Path, dataset: str | None, stack: ExitStack) -> Table:
    require("root", "uproot")
    import uproot

    file = stack.enter_context(uproot.open(path))
    kinds = file.classnames()
    known = ["TTree"] + ["ROOT::RNTuple"] * bool(find_spec("uproot.behaviors.RNTuple"))  # older ones cannot read it
    trees = sorted({key.partition(";")[0] for key, kind in kinds.items() if kind in known})
    has = ", ".join(sorted(set(kinds.values()))) or "nothing"
    refuse(not trees, f"{path}: expected a {' or '.join(known)}, the file has {has}")
    refuse(dataset is None and len(trees) != 1, f"{path}: expected one tree, got {trees}; name one")
    refuse(dataset is not None and dataset not in trees, f"{path}: no tree {dataset!r}; the file has {trees}")
    tree = file[dataset or trees[0]]
    found = tree.branches if hasattr(tree, "branches") else tree.fields
    branches = {branch.name: branch for branch in found}  # tree[name] would take a name for a path

    def kind(column: str) -> str | None:
        held = values(column, 0, 0)
        real = held.ndim == 1 and not_real(held.dtype) is None
        return None if real else f"values of type {branches[column].typename}"

    def values(column: str, start: int, stop: int) -> NDArray[Any]:
        return np.asarray(branches[column].array(library="np", entry_start=start, entry_stop=stop))

    return column_table(path, int(tree.num_entries), [branch.name for branch in found], kind, values)


OPENERS: Mapping[str, Callable[[Path, str | None, ExitStack], Table]] = {
    ".npy": _npy, ".npz": _npz, ".csv": _csv, ".parquet": _parquet, ".h5": hdf5, ".hdf5": hdf5, ".root": _root,
}  # fmt: skip
