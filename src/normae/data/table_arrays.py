"""NumPy's files as tables: .npy mapped into memory piece by piece, .npz streamed out of its archive.

A structured array has the columns of its fields. An .npz file holds one array with shape (N, *event), named `x` or
alone, or arrays with shape (N,), which are columns.
"""

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normae.data.table import Piece, Table, not_real
from normae.errors import InputError


class Header(NamedTuple):
    """What an .npy stream says of itself; `offset` bytes come before its values."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes], path: Path, size: int) -> Header:
    """The header at the beginning of `stream`, which must be `size` bytes long as the header says."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if version == (3, 0) and dtype.names:  # as version 2, but the names are UTF-8
        dtype.names = tuple(name.encode("latin1").decode() for name in dtype.names)
    if dtype.hasobject:
        raise InputError(f"{path}: expected real numbers without pickled objects, got dtype {dtype}")
    header = Header(shape, fortran, dtype, stream.tell())
    if min(shape, default=1) < 0 or header.size != size:
        raise InputError(f"{path}: expected {header.size} bytes for an array of shape {shape}, got {size}")
    return header


def _check_array(header: Header, path: Path) -> None:
    if len(header.shape) < 2:
        raise InputError(f"{path}: expected events of shape (N, *event), got shape {header.shape}")
    if (kind := not_real(header.dtype)) is not None:
        raise InputError(f"{path}: expected real numbers, got {kind}")


class NpyTable(Table):
    """An .npy file; only what a piece needs is mapped, so that memory stays bounded."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as stream:
            self.header = read_header(stream, path, path.stat().st_size)
        names = self.header.dtype.names
        if names is None or len(self.header.shape) != 1:
            _check_array(self.header, path)
            names = None
        event = self.header.shape[1:] if names is None else (len(names),)
        super().__init__(path, self.header.shape[0], names, event)

    def kind(self, column: str) -> str | None:
        """What a field holds, where it is not real numbers."""
        return not_real(self.header.dtype[column])

    def _mapped(self, start: int, stop: int) -> NDArray[Any]:
        _, fortran, dtype, offset = self.header
        if fortran:  # rows are not together in the file
            return np.memmap(self.path, dtype, "r", offset, self.header.shape, order="F")[start:stop]
        offset += start * math.prod(self.header.shape[1:]) * dtype.itemsize
        return np.memmap(self.path, dtype, "r", offset, (stop - start, *self.header.shape[1:]))

    def pieces(self, columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        """One map for each piece."""
        for first in range(start, stop, size):
            values = self._mapped(first, min(first + size, stop))
            yield values if columns is None else [values[name] for name in columns]


@contextmanager
def open_npy(path: Path, dataset: str | None) -> Iterator[Table]:
    """An .npy file as a table."""
    del dataset
    yield NpyTable(path)


class NpzTable(Table):
    """An .npz file, read from the start of its members to the rows that are asked for."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, dataset: str | None) -> None:
        self.archive = archive
        self.headers = {}
        for member in archive.infolist():
            with archive.open(member) as stream:
                self.headers[member.filename.removesuffix(".npy")] = read_header(stream, path, member.file_size)
        self.array = _only_array(self.headers, dataset, path)
        if self.array is not None:
            header = self.headers[self.array]
            _check_array(header, path)
            super().__init__(path, header.shape[0], None, header.shape[1:])
            return
        rows = {header.shape[0] for header in self.headers.values()}
        if len(rows) != 1:
            raise InputError(f"{path}: expected columns of one length, got lengths {sorted(rows)}")
        super().__init__(path, rows.pop(), list(self.headers), (len(self.headers),))

    def kind(self, column: str) -> str | None:
        """What an array holds, where it is not real numbers."""
        return not_real(self.headers[column].dtype)

    def pieces(self, columns: Sequence[str] | None, start: int, stop: int, size: int) -> Iterator[Piece]:
        """All columns side by side, each from its own stream."""
        with ExitStack() as stack:
            names = [self.array] if columns is None else columns
            streams = [stack.enter_context(_Member(self.archive, str(n), self.headers[str(n)])) for n in names]
            for stream in streams:
                stream.skip(start)
            for first in range(start, stop, size):
                values = [stream.take(min(size, stop - first)) for stream in streams]
                yield values[0] if columns is None else values


def _only_array(headers: dict[str, Header], dataset: str | None, path: Path) -> str | None:
    """The name of the one array that is the table; None where all arrays are columns."""
    if dataset is not None:
        if dataset not in headers:
            raise InputError(f"{path}: no array {dataset!r}; the file has {sorted(headers)}")
        return dataset
    if "x" in headers and len(headers["x"].shape) >= 2:
        return "x"
    if not headers or any(len(header.shape) != 1 for header in headers.values()):
        raise InputError(f"{path}: expected an array named x, or columns of shape (N,), got {sorted(headers)}")
    return None


class _Member:
    """One array of an archive, row after row."""

    def __init__(self, archive: zipfile.ZipFile, name: str, header: Header) -> None:
        member = name if name in archive.namelist() else f"{name}.npy"
        self.header, self.stream = header, archive.open(member)
        self.stream.read(header.offset)
        self.whole: NDArray[Any] | None = None
        if header.fortran and len(header.shape) > 1:  # rows are not together: it is read at once
            self.whole = np.frombuffer(self.stream.read(), header.dtype).reshape(header.shape, order="F")
        self.row = 0

    def __enter__(self) -> "_Member":
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def skip(self, rows: int) -> None:
        """Go past `rows` rows."""
        for first in range(0, rows, 1 << 16):
            self.take(min(1 << 16, rows - first))

    def take(self, rows: int) -> NDArray[Any]:
        """The next `rows` rows."""
        self.row += rows
        if self.whole is not None:
            return self.whole[self.row - rows : self.row]
        event = self.header.shape[1:]
        raw = self.stream.read(rows * math.prod(event) * self.header.dtype.itemsize)
        return np.frombuffer(raw, self.header.dtype).reshape(rows, *event)


@contextmanager
def open_npz(path: Path, dataset: str | None) -> Iterator[Table]:
    """An .npz file as a table."""
    with zipfile.ZipFile(path) as archive:
        yield NpzTable(path, archive, dataset)
