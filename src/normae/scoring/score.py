"""Scores of files of any size: parts that are written whole or not at all, here or on a cluster, then joined.

The rows of every file are cut into parts at fixed places, and parts into blocks; a block is what the network sees at
once. Neither depends on how much is read at a time, on which process does a part, or on what was done before a restart,
so that the result does not either, to the last bit. A part is a Parquet file, named by a hash of all that its content
depends on: a part that is there is a part that is done.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from normae.data import open_table
from normae.data.table import reading
from normae.errors import InputError
from normae.files import atomic_path
from normae.jets import Jets, chunks, concatenate, info, read_images, sparse_images
from normae.jets.container import BadJet
from normae.jets.reader import is_images
from normae.progress import progress
from normae.scoring.scorer import Columns, Outside, Scorer, open_scorer
from normae.sources import named

__all__ = ["CHUNK", "Scored", "Scorer", "open_scorer", "parse_shard", "score"]
CHUNK = 1 << 16
"""Rows that are read at a time."""
OUTSIDE = "normae.outside"
"""Entry of the metadata of a part: its rows outside the range of the training sample."""
Watch = Callable[[int], None]
"""Told the rows that are done."""


@dataclass(frozen=True)
class File:
    """A file to score: its name as given, its rows, what tells it from an earlier state of itself, and where it is."""

    path: Path
    rows: int
    state: tuple[int, int]
    dataset: str | None
    place: Path


@dataclass(frozen=True)
class Part:
    """Rows start to stop of a file, and the name under which their scores are kept."""

    file: File
    start: int
    stop: int
    name: str


Doer = Callable[[Scorer, Sequence[Part], Path, int, Watch], None]
"""Writes parts into a folder, reading so many rows at a time."""


def open_file(scorer: Scorer, path: str | Path, dataset: str | None = None) -> File:
    """A file that fits the run; one sentence, with the column, for one that does not."""
    path = Path(path)
    if scorer.jets:
        if is_images(path):
            with reading(path), h5py.File(path, "r") as images:
                rows = int(images["labels"].shape[0])
        else:
            rows = info(path, dataset or "table").jets
        if rows == 0:
            raise InputError(f"{path}: expected at least one jet")
    else:
        with open_table(path, dataset) as table:
            table.select(scorer.columns, scorer.model.event)
            rows = table.rows
    return File(path, rows, _state(path), dataset, path)


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def parts_of(scorer: Scorer, files: Sequence[File]) -> list[Part]:
    """All parts of all files, in order."""
    found = []
    for file in files:
        for start in range(0, file.rows, scorer.part):
            stop = min(start + scorer.part, file.rows)
            where = [str(file.path), file.state, file.dataset, start, stop]
            key = [scorer.digest, scorer.block, scorer.columns, scorer.model.event_dtype.__name__, *where]
            name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
            found.append(Part(file, start, stop, f"{name}.parquet"))
    return found


def consecutive(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts that follow each other in one file, together: its rows can be read in one go."""
    runs: list[list[Part]] = []
    for part in parts:
        if runs and runs[-1][-1].file == part.file and runs[-1][-1].stop == part.start:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def here(scorer: Scorer, parts: Sequence[Part], folder: Path, chunk: int, watch: Watch) -> None:
    """Score parts in this process and write them into `folder`."""
    for run in consecutive(parts):
        _score_run(scorer, run, folder, chunk, watch)


def _score_run(scorer: Scorer, parts: Sequence[Part], folder: Path, chunk: int, watch: Watch) -> None:
    """Score parts that follow each other in one file, whose rows are read in one go."""
    file = parts[0].file
    if _state(file.place) != file.state:
        raise InputError(f"{file.place}: changed since the scoring began; call again when it is complete")
    blocks = scorer.part // scorer.block
    fitting = [n for n in range(1, blocks + 1) if blocks % n == 0 and n * scorer.block <= max(chunk, scorer.block)]
    found: list[Columns] = []
    outside: list[Outside] = []
    waiting = iter(parts)
    part = next(waiting)
    row = part.start
    for events in read_events(scorer, file, row, parts[-1].stop, fitting[-1] * scorer.block):
        found.append(scorer.score(events))
        outside.append(scorer.outside(events))
        _check_scores(scorer, file, row, events, found[-1]["score"])
        watch(len(events))
        row += len(events)
        if row == part.stop:
            columns = {name: np.concatenate([f[name] for f in found]) for name in found[0]}
            _write_part(folder, part, columns, reduce(Outside.joined, outside))
            found, outside, part = [], [], next(waiting, part)


def _check_scores(scorer: Scorer, file: File, first: int, events: NDArray[Any], score: NDArray[np.float32]) -> None:
    """Refuse a score that is not a finite number: an event so far out that its square is beyond float32."""
    if np.isfinite(score).all():
        return
    row = int(np.argmin(np.isfinite(score)))
    place = int(np.argmax(np.abs(events[row]).ravel()))
    raise InputError(
        f"{file.place}: the score of row {first + row} is not a finite number, its {named(scorer.columns, place)} "
        f"holds {events[row].ravel()[place]:.3g}; remove such rows"
    )


def read_events(scorer: Scorer, file: File, start: int, stop: int, size: int) -> Iterator[NDArray[Any]]:
    """Rows start to stop of a file in arrays of `size` events, in the type that the model reads."""
    if not scorer.jets:
        with open_table(file.place, file.dataset) as table:
            columns = table.select(scorer.columns, scorer.model.event)
            for _, events in table.chunks(columns, start, stop, size, scorer.model.event_dtype):
                yield events
    elif is_images(file.place):
        for first in range(start, stop, size):
            yield read_images(file.place, (first, min(first + size, stop))).dense()
    else:
        yield from _jet_images(file, start, stop, size)


def _jet_images(file: File, start: int, stop: int, size: int) -> Iterator[NDArray[np.float32]]:
    """Images with shape (n, 1, 40, 40); the reader's chunks are those of the file, and are cut anew."""
    waiting: list[Jets] = []
    for jets in chunks(file.place, (start, stop), key=file.dataset or "table", size=size):
        waiting.append(jets)
        start += len(jets)
        while (count := sum(map(len, waiting))) >= size or (start == stop and count):
            joined = concatenate(waiting)
            waiting = [joined[size:]] if count > size else []
            try:
                yield sparse_images(joined[:size]).dense()
            except BadJet as error:
                raise InputError(f"{file.place}: row {start - count + error.jet} {error.problem}") from None


def _write_part(folder: Path, part: Part, columns: Columns, outside: Outside) -> None:
    rows = np.arange(part.start, part.stop, dtype=np.int64)
    names = pa.DictionaryArray.from_arrays(np.zeros(len(rows), np.int32), [str(part.file.path)])
    table = pa.table({"file": names, "row": rows, **columns}, metadata={OUTSIDE: json.dumps(outside)})
    with atomic_path(folder / part.name) as temporary:
        pyarrow.parquet.write_table(table, temporary, use_dictionary=["file"])


def _outside_of(parts: Sequence[Part], folder: Path) -> dict[str, Outside]:
    """By file, the rows of parts that are outside the range of the training sample, from what is written in them."""
    found: dict[str, Outside] = {}
    for part in parts:
        text = (pyarrow.parquet.read_schema(folder / part.name).metadata or {}).get(OUTSIDE.encode())
        if text is not None:
            own, name = Outside(*json.loads(text)), str(part.file.path)
            found[name] = found[name].joined(own) if name in found else own
    return found


# --- parts joined into one file


def join(parts: Sequence[Path], out: Path) -> None:
    """Write all `parts` in order to `out`, whole or not at all."""
    with atomic_path(out) as temporary:
        WRITERS[out.suffix](parts, temporary)


def _parquet(parts: Sequence[Path], out: Path) -> None:
    schema = pyarrow.parquet.read_schema(parts[0]).remove_metadata()
    with pyarrow.parquet.ParquetWriter(out, schema, use_dictionary=["file"]) as writer:
        for path in parts:
            writer.write_table(pyarrow.parquet.read_table(path))


def _csv(parts: Sequence[Path], out: Path) -> None:
    schema = pyarrow.parquet.read_schema(parts[0])
    schema = schema.set(schema.get_field_index("file"), pa.field("file", pa.string()))
    with pyarrow.csv.CSVWriter(out, schema) as writer:
        for path in parts:
            writer.write_table(pyarrow.parquet.read_table(path).cast(schema))


def _npz(parts: Sequence[Path], out: Path) -> None:
    """One array for each column; `file` is an index into the array `files`, which has the names."""
    rows = sum(pyarrow.parquet.read_metadata(path).num_rows for path in parts)
    names: list[str] = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for field in pyarrow.parquet.read_schema(parts[0]):
            dtype = np.dtype(np.int32) if field.name == "file" else field.type.to_pandas_dtype()
            with archive.open(_member(f"{field.name}.npy"), "w", force_zip64=True) as stream:
                header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (rows,)}
                np.lib.format.write_array_header_1_0(stream, header)
                for path in parts:
                    stream.write(_values(path, field.name, names).astype(dtype).tobytes())
        with archive.open(_member("files.npy"), "w") as stream:
            np.lib.format.write_array(stream, np.array(names), allow_pickle=False)


def _member(name: str) -> zipfile.ZipInfo:
    """With a fixed date, so that the same scores are the same bytes."""
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


def _values(path: Path, column: str, names: list[str]) -> NDArray[Any]:
    values = pyarrow.parquet.read_table(path, columns=[column])[column]
    if column != "file":
        return np.asarray(values.to_numpy())
    name = values[0].as_py()
    if name not in names:
        names.append(name)
    return np.full(len(values), names.index(name))


WRITERS: Mapping[str, Callable[[Sequence[Path], Path], None]] = {".parquet": _parquet, ".csv": _csv, ".npz": _npz}


# --- all of it


class Scored(NamedTuple):
    """What a scoring has done.

    Args:
        whole: whether the output was written; False for a shard.
        notes: what the user should know of the rows, such as how many lie outside the range of the training sample.
    """

    whole: bool
    notes: list[str]


def parse_shard(text: str | None) -> tuple[int, int]:
    """ "i/n" with 0 <= i < n; all of one shard where it is None."""
    number, slash, count = ("0", "/", "1") if text is None else text.partition("/")
    if not slash or not number.isdecimal() or not count.isdecimal() or not int(number) < int(count):
        raise InputError(f"--shard: expected i/n with i from 0 to n - 1, for example 0/4, got {text!r}")
    return int(number), int(count)


def score(
    scorer: Scorer,
    files: Sequence[str | Path],
    out: str | Path,
    shard: str | None = None,
    chunk: int = CHUNK,
    dataset: str | None = None,
    do: Doer = here,
) -> Scored:
    """Score `files` into `out`, a .parquet, .csv or .npz file.

    Args:
        scorer: the model.
        shard: "i/n" writes only the i-th of n shares of the parts, and joins nothing.
        chunk: rows that are read at a time; it does not change the result.
        dataset: as for `normae.data.open_table`; the pandas key of a file of jets.
        do: scores parts and writes them, in this process or elsewhere (`normae.scoring.cluster`).
    """
    out = Path(out)
    if out.suffix not in WRITERS:
        raise InputError(f"{out}: expected a name that ends in {', '.join(WRITERS)}")
    number, count = parse_shard(shard)
    if chunk < 1:
        raise InputError(f"--chunk: expected at least 1 row, got {chunk}")
    _check_names(files, out)
    opened = [open_file(scorer, path, dataset) for path in files]
    parts = parts_of(scorer, opened)
    mine = parts[len(parts) * number // count : len(parts) * (number + 1) // count]
    folder = out.with_name(out.name + ".parts")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        missing = [part for part in mine if not (folder / part.name).is_file()]
        total, left = (sum(part.stop - part.start for part in some) for some in (mine, missing))
        with progress("scoring", total) as tick:
            tick(total - left)
            do(scorer, missing, folder, chunk, tick)
        notes = scorer.said_of(_outside_of(mine, folder))
        if shard is not None:
            return Scored(False, notes)
        join([folder / part.name for part in parts], out)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return Scored(True, notes)


def _check_names(files: Sequence[str | Path], out: Path) -> None:
    if not files:
        raise InputError("expected at least one file to score")
    seen = set()
    for path in map(Path, files):
        if path.resolve() in seen:
            raise InputError(f"{path}: given twice")
        seen.add(path.resolve())
    if out.resolve() in seen:
        raise InputError(f"{out}: the output is one of the inputs; give it another name")
    if out.exists():
        raise InputError(f"{out}: exists already; choose another name, or remove it first")
