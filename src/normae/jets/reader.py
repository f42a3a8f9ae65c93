"""Jets from files: one reader for all formats, by row range, in chunks, with bounded memory.

A format is recognized by its content, not by its name. Each chunk is checked before it is passed on: momenta finite,
some pT, |eta| at most 30, label 0 or 1. Constituents without pT are padding and are dropped; the others are put in
order of falling pT.
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError
from normae.files import check_file
from normae.jets.container import LABELS, Jets, falling_order, offsets_of
from normae.jets.formats import FORMAT, IMAGES, Npz, Ragged, Table, text_of
from normae.jets.kernels import in_order
from normae.progress import counted

Rows = int | tuple[int, int] | slice | range | None
CHUNK = 2048
MAX_ETA = 30.0
_REASONS = (
    "",
    "a momentum that is not finite",
    "a label that is not 0 or 1",
    "a negative pT",
    "no energy",
    f"a constituent with |eta| above {MAX_ETA:g}",
)


class Source(Protocol):
    """A file that is open: how many jets it has, and its rows by range."""

    count: int
    alignment: int

    def load(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """labels, counts with shape (n,); pt, eta, phi with shape (C,); finite with shape (n,)."""
        ...


class Info(NamedTuple):
    """What a file says of itself without reading its jets."""

    format: str
    jets: int
    attributes: dict[str, Any]


@contextmanager
def open_source(path: str | Path, key: str = "table") -> Iterator[Source]:
    """The source of a file, whatever its format."""
    path = Path(path)
    try:
        check_file(path)
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic == b"PK\x03\x04":
            yield Npz(path)
            return
        with _hdf5(path, magic) as file:
            yield _in_file(file, key)
    except InputError as error:
        raise error if str(error).startswith(str(path)) else InputError(f"{path}: {error}") from error


@contextmanager
def _hdf5(path: Path, magic: bytes) -> Iterator[h5py.File]:
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        problem = "the HDF5 file is truncated or damaged" if magic == b"\x89HDF" else "neither an HDF5 nor an npz file"
        raise InputError(problem) from error
    with file:
        try:
            yield file
        except (OSError, RuntimeError) as error:
            raise InputError(f"the file is truncated or damaged ({_first_line(error)})") from error


def _in_file(file: h5py.File, key: str) -> Source:
    """The source in an open HDF5 file."""
    try:
        kind = text_of(file.attrs.get("format"))
    except KeyError as error:
        raise InputError(f"the file is truncated or damaged ({_first_line(error)})") from error
    if kind == IMAGES:
        raise InputError("the file holds images already, where jets are expected")
    return Ragged(file) if kind == FORMAT else Table(file, key)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _whole(value: Any, rows: Any) -> int:
    """A border of `rows` as an integer."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InputError(f"rows must be an integer, a slice or (start, stop), got {rows!r}") from None


def row_range(rows: Rows, count: int) -> tuple[int, int]:
    """(start, stop) within `count` jets. An integer means that many from the start; nothing is clamped."""
    start: Any
    stop: Any
    if isinstance(rows, tuple) and len(rows) == 2:
        start, stop = rows
    elif isinstance(rows, slice | range):
        if rows.step not in (None, 1):
            raise InputError(f"rows must be contiguous, got a step of {rows.step}")
        start, stop = 0 if rows.start is None else rows.start, count if rows.stop is None else rows.stop
    else:
        start, stop = 0, count if rows is None else rows
    start, stop = _whole(start, rows), _whole(stop, rows)
    if start < 0 or stop < start:
        raise InputError(f"rows {start}:{stop} is not a range of rows")
    if stop > count:
        raise InputError(f"rows {start}:{stop} asked, but the file has {count} jets")
    return start, stop


def _edges(start: int, stop: int, size: int, alignment: int) -> list[int]:
    """Chunk borders that fall on the file's own chunks, so that none is decompressed twice."""
    step = max(alignment, size // alignment * alignment)
    inner = range((start // step + 1) * step, stop, step)
    return [start, *inner, stop] if stop > start else [start]


def _problems(labels: NDArray[Any], jet: NDArray[Any], flat: tuple[NDArray[Any], ...], finite: NDArray[Any]) -> Any:
    """For each jet an index into the reasons, 0 where the jet is good; shape (n,)."""
    pt = flat[0]
    problem = np.zeros(len(labels), dtype=np.int8)
    problem[jet[(np.abs(flat[1]) > MAX_ETA) & (pt != 0)]] = 5
    problem[np.bincount(jet, weights=np.maximum(pt, 0), minlength=len(labels)) == 0] = 4
    problem[jet[pt < 0]] = 3
    problem[~np.isin(labels, LABELS)] = 2
    problem[~finite] = 1
    for values in flat:
        problem[jet[~np.isfinite(values)]] = 1
    return problem


def _in_order(offsets: NDArray[Any], pt: NDArray[Any]) -> bool:
    """Whether pt never rises within a jet by more than the rounding of px and py."""
    borders, limit = offsets[1:-1], pt[:-1] * np.float32(1 + 1e-6)
    return int((pt[1:] > limit).sum()) == int((pt[borders] > limit[borders - 1]).sum())


def _plainly_good(labels: NDArray[Any], counts: NDArray[Any], flat: tuple[NDArray[Any], ...], finite: Any) -> bool:
    """A quick test that passes only if all jets are good and nothing is padding; a sum finds what is not finite."""
    if len(labels) == 0 or not finite.all() or counts.min() == 0 or not np.isin(labels, LABELS).all():
        return False
    if not (flat[1].min() >= -MAX_ETA and flat[1].max() <= MAX_ETA):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(flat[0].min() > 0 and all(np.isfinite(values.sum()) for values in flat))


def _checked(loaded: tuple[NDArray[Any], ...], start: int, skip_bad: bool) -> Jets:
    """The good jets of a chunk; the first bad one raises unless `skip_bad`."""
    labels, counts, pt, eta, phi, finite = loaded
    bad = np.zeros(len(labels), dtype=bool)
    if not _plainly_good(labels, counts, (pt, eta, phi), finite):
        jet = np.repeat(np.arange(len(labels)), counts)
        problem = _problems(labels, jet, (pt, eta, phi), finite)
        bad = problem > 0
        if bad.any() and not skip_bad:
            row = int(np.argmax(bad))
            raise InputError(f"row {start + row} has {_REASONS[problem[row]]} (--skip-bad drops such jets)")
        keep = (pt > 0) & ~bad[jet]
        counts = np.bincount(jet[keep], minlength=len(labels))
        pt, eta, phi = pt[keep], eta[keep], phi[keep]
    offsets = offsets_of(counts[~bad])
    if not _in_order(offsets, pt):
        order = falling_order(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), pt)
        pt, eta, phi = pt[order], eta[order], phi[order]
    return Jets(labels[~bad].astype(np.int8), offsets, pt, eta, phi, skipped=int(bad.sum()))


def _pieces(path: str | Path, rows: Rows, skip_bad: bool, key: str, size: int) -> Iterator[tuple[float, Jets]]:
    """The jets of a file in chunks of about `size`, each with the share of the rows that are read by then."""
    with open_source(path, key) as source:
        edges = _edges(*row_range(rows, source.count), size, source.alignment)
        parts = in_order(lambda rows: _checked(source.load(*rows), rows[0], skip_bad), pairwise(edges))
        for stop, part in zip(counted("jets", edges[1:]), parts, strict=True):
            yield (stop - edges[0]) / (edges[-1] - edges[0]), part


def chunks(
    path: str | Path, rows: Rows = None, *, skip_bad: bool = False, key: str = "table", size: int = CHUNK
) -> Iterator[Jets]:
    """The jets of a file in chunks of about `size`, in the order of the file."""
    for _, part in _pieces(path, rows, skip_bad, key, size):
        yield part


class _Growing:
    """An array that is filled piece by piece; it is given the room that the pieces so far let expect."""

    def __init__(self, dtype: Any) -> None:
        self.store, self.size = np.empty(0, dtype=dtype), 0

    def extend(self, more: NDArray[Any], share: float) -> None:
        """Append `more`, after which this share of the whole is read."""
        size = self.size + len(more)
        if size > len(self.store):
            room = int(1.03 * size / share) + 1
            if self.size == 0:
                self.store = np.empty(room, dtype=self.store.dtype)
            self.store.resize(room, refcheck=False)
        self.store[self.size : size] = more
        self.size = size

    def done(self) -> NDArray[Any]:
        """The array without the room that was not needed; realloc gives it back in place."""
        self.store.resize(self.size, refcheck=False)
        return self.store


def read(path: str | Path, rows: Rows = None, *, skip_bad: bool = False, key: str = "table") -> Jets:
    """Read jets from a TopTagging HDF5, an npz of simulated jets, or our own HDF5 file.

    Args:
        path: the file; its format is recognized by its content.
        rows: None for all, an integer for the first so many, or a contiguous slice, range or (start, stop).
        skip_bad: drop bad jets and count them in `skipped`, instead of raising at the first.
        key: the pandas key of a TopTagging file.

    >>> from normae.jets import from_lists, read, write
    >>> write("two.h5", from_lists([[[30.0, 0.0, 0.0]], [[10.0, 0.0, 0.2], [20.0, 0.1, 0.0]]]))
    >>> read("two.h5", rows=slice(1, 2)).pt
    array([20., 10.], dtype=float32)
    """
    stores = {"labels": _Growing(np.int8), "counts": _Growing(np.int64)}
    stores |= {name: _Growing(np.float32) for name in ("pt", "eta", "phi")}
    skipped = 0
    for share, part in _pieces(path, rows, skip_bad, key, CHUNK):
        for name, store in stores.items():
            store.extend(getattr(part, name), share)
        skipped += part.skipped
    labels, counts, pt, eta, phi = (store.done() for store in stores.values())
    return Jets(labels, offsets_of(counts), pt, eta, phi, skipped)


def info(path: str | Path, key: str = "table") -> Info:
    """Format, number of jets and attributes of a file, without reading its jets."""
    with open_source(path, key) as source:
        attributes = {k: _plain(v) for k, v in source.file.attrs.items()} if isinstance(source, Ragged) else {}
        name = {Ragged: "normae-jets HDF5", Npz: "npz"}.get(type(source), "TopTagging HDF5 (pandas)")
        return Info(name, source.count, attributes)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
