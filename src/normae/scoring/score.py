"""Scores of files of any size: parts that are written whole or not at all, here or on a cluster, then joined.

The rows of every file are cut into parts at fixed places, and parts into blocks; a block is what the network sees at
once. Neither depends on how much is read at a time, on which process does a part, or on what was done before a restart,
so that the result does not either, to the last bit. A part is a file of tensors with its checksum, as a run folder has
them, named by a hash of all that its scores depend on but the events, of which it holds a hash. A part that is there
and passes both is a part that is done; any other is made again.
"""

import hashlib
import json
import logging
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from os.path import realpath  # which takes a link to itself, too
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from numpy.typing import NDArray

from normae.data import open_table
from normae.data.table import arrow_file, as_text, reading
from normae.errors import InputError, refuse
from normae.files import as_cell, atomic_path, check_file, check_new, check_unchanged, clear, lock, make_folder, states
from normae.jets import Jets, chunks, concatenate, info, read_images, sparse_images
from normae.jets.container import BadJet
from normae.jets.reader import is_images
from normae.progress import progress
from normae.runs.folder import read_tensors, write_tensors
from normae.scoring.scorer import Columns, Outside, Scorer, open_scorer
from normae.sources import named
from normae.version import __version__

__all__ = ["CHUNK", "Scored", "Scorer", "open_scorer", "parse_shard", "score"]
log = logging.getLogger(__name__)
CHUNK = 1 << 16  # rows that are read at a time
OWN = r"[0-9a-f]{32}\.safetensors"  # names of parts
ATTEMPTS = 3  # to make parts that are found damaged when they are joined
Watch = Callable[[int], None]  # told the rows that are done


@dataclass(frozen=True)
class File:
    """A file to score: its name as given, its rows, and all files that hold them with their states."""

    path: Path
    rows: int
    sources: tuple[Path, ...]
    state: list[list[int]]
    dataset: str | None


@dataclass(frozen=True)
class Part:
    """Rows start to stop of a file, and the name under which their scores are kept."""

    file: File
    start: int
    stop: int
    name: str


Doer = Callable[[Scorer, Sequence[Part], Path, int, Watch], None]  # writes parts into a folder, so many rows at a time


class BadPart(Exception):
    """A part that is not there, or not as it was written."""


def open_files(scorer: Scorer, paths: Sequence[str | Path], dataset: str | None = None) -> list[File]:
    """Files that fit the run, each given once."""
    refuse(not paths, "expected at least one file")
    for path, count in Counter(map(realpath, paths)).items():
        refuse(count > 1, f"{path}: given twice")
    return [open_file(scorer, path, dataset) for path in paths]


def open_file(scorer: Scorer, path: str | Path, dataset: str | None = None) -> File:
    """A file that fits the run; one sentence, with the column, for one that does not."""
    path = Path(path)
    check_file(path)
    sources, state = [path], states([path])
    if scorer.jets:
        if is_images(path):
            with reading(path), h5py.File(path, "r") as images:
                rows = int(images["labels"].shape[0])
        else:
            rows = info(path, dataset or "table").jets
        refuse(rows == 0, f"{path}: expected at least one jet")
    else:
        with open_table(path, dataset) as table:
            table.know(scorer.columns, scorer.model.categories)
            table.select(scorer.columns, scorer.model.event)
            rows, sources, state = table.rows, table.sources, table.state
    return File(path, rows, tuple(source.absolute() for source in sources), state, dataset)


def parts_of(scorer: Scorer, files: Sequence[File]) -> list[Part]:
    """All parts of all files, in order."""
    found = []
    given = [__version__, scorer.digest, scorer.block, scorer.columns, scorer.model.event_dtype.__name__]
    for file in files:
        for start in range(0, file.rows, scorer.part):
            stop = min(start + scorer.part, file.rows)
            key = json.dumps([*given, str(file.path), file.dataset, start, stop])
            found.append(Part(file, start, stop, f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"))
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
    for part, pieces in _events_of(scorer, parts, chunk):
        found: list[Columns] = []
        outside: list[Outside] = []
        row, seen = part.start, hashlib.sha256()
        for events in pieces:
            seen.update(np.ascontiguousarray(events).data)
            found.append(scorer.score(events))
            outside.append(scorer.outside(events))
            _check_scores(scorer, part.file, row, events, found[-1]["score"])
            row += len(events)
            watch(len(events))
        columns = {name: torch.from_numpy(np.concatenate([f[name] for f in found])) for name in found[0]}
        said = {"name": part.name, "columns": list(columns), "content": seen.hexdigest(), "state": part.file.state}
        write_tensors(folder / part.name, columns, said | {"outside": reduce(Outside.joined, outside)})


def _events_of(scorer: Scorer, parts: Sequence[Part], chunk: int) -> Iterator[tuple[Part, Iterator[NDArray[Any]]]]:
    """Every part with its events, in pieces of whole blocks; parts that follow each other are read in one go."""
    blocks = scorer.part // scorer.block
    most = max(n for n in range(1, blocks + 1) if blocks % n == 0 and n * scorer.block <= max(chunk, scorer.block))
    for run in consecutive(parts):
        pieces = read_events(scorer, run[0].file, run[0].start, run[-1].stop, most * scorer.block)
        for part in run:
            yield part, pieces if part is run[-1] else islice(pieces, blocks // most)


def _check_scores(scorer: Scorer, file: File, first: int, events: NDArray[Any], score: NDArray[np.float32]) -> None:
    """Refuse a score that is not a finite number: an event so far out that its square is beyond float32."""
    if np.isfinite(score).all():
        return
    row = int(np.argmin(np.isfinite(score)))
    place = int(np.argmax(np.abs(events[row]).ravel()))
    holds = f"its {named(scorer.columns, place)} holds {events[row].ravel()[place]:.3g}"
    raise InputError(f"{file.path}: the score of row {first + row} is not a finite number, {holds}; remove such rows")


def read_events(
    scorer: Scorer, file: File, start: int, stop: int, size: int, also: Sequence[str] = ()
) -> Iterator[NDArray[Any]]:
    """Rows start to stop of a file in arrays of `size` events, in the type that the model reads.

    Of a table whose columns have names, more columns come after the model's: those in `also`. A file that is not as it
    was when it was opened is refused, before the first array and after the last.
    """
    check_unchanged(file.path, file.sources, file.state)
    if not scorer.jets:
        with open_table(file.path, file.dataset) as table:
            table.know(scorer.columns, scorer.model.categories)
            columns = table.select(scorer.columns, scorer.model.event)
            more = None if columns is None else [*columns, *also]
            for _, events in table.chunks(more, start, stop, size, scorer.model.event_dtype):
                yield events
    elif is_images(file.path):
        for first in range(start, stop, size):
            yield read_images(file.path, (first, min(first + size, stop))).dense()
    else:
        yield from _jet_images(file, start, stop, size)
    check_unchanged(file.path, file.sources, file.state)


def _jet_images(file: File, start: int, stop: int, size: int) -> Iterator[NDArray[np.float32]]:
    """Images with shape (n, 1, 40, 40); the reader's chunks are those of the file, and are cut anew."""
    waiting: list[Jets] = []
    for jets in chunks(file.path, (start, stop), key=file.dataset or "table", size=size):
        waiting.append(jets)
        start += len(jets)
        while (count := sum(map(len, waiting))) >= size or (start == stop and count):
            joined = concatenate(waiting)
            waiting = [joined[size:]] if count > size else []
            try:
                yield sparse_images(joined[:size]).dense()
            except BadJet as error:
                raise InputError(f"{file.path}: row {start - count + error.jet} {error.problem}") from None


# --- parts


def _read_part(folder: Path, part: Part) -> tuple[Columns, dict[str, Any]]:
    """The columns of a part and what it says of itself; `BadPart` where it is not as it was written."""
    try:
        tensors, said = read_tensors(folder / part.name)
        columns = {name: tensors[name].numpy() for name in said["columns"]}
        if said["name"] != part.name or len(columns["score"]) != part.stop - part.start:
            raise BadPart
    except Exception as error:  # a parser of damaged bytes may raise anything
        raise BadPart(part.name) from error
    return columns, said


def _not_done(scorer: Scorer, parts: Sequence[Part], folder: Path, chunk: int) -> list[Part]:
    """The parts that are still to be made. What is there, but damaged or of other events, is removed."""
    doubtful: dict[str, str] = {}
    for part in parts:
        try:
            _, said = _read_part(folder, part)
            if said["state"] != part.file.state:  # touched or changed: its events tell
                doubtful[part.name] = said["content"]
        except BadPart:
            (folder / part.name).unlink(missing_ok=True)
    for part, pieces in _events_of(scorer, [part for part in parts if part.name in doubtful], chunk):
        seen = hashlib.sha256()
        for events in pieces:
            seen.update(np.ascontiguousarray(events).data)
        if seen.hexdigest() != doubtful[part.name]:
            (folder / part.name).unlink()
    return [part for part in parts if not (folder / part.name).is_file()]


def _outside_of(parts: Sequence[Part], folder: Path) -> dict[str, Outside]:
    """By file, the rows of parts that are outside the range of the training sample, from what is written in them."""
    found: dict[str, Outside] = {}
    for part in parts:
        own, name = Outside(*_read_part(folder, part)[1]["outside"]), as_text(part.file.path)
        found[name] = found[name].joined(own) if name in found else own
    return found


# --- parts joined into one file


def _table(folder: Path, part: Part, plain: bool = False) -> pa.Table:
    """The scores of a part, with the name of the file, `plain` text or not, and the numbers of the rows."""
    rows, name = np.arange(part.start, part.stop, dtype=np.int64), as_text(part.file.path)
    indexed = pa.DictionaryArray.from_arrays(np.zeros(len(rows), np.int32), [name])
    names = pa.repeat(as_cell(name), len(rows)) if plain else indexed
    return pa.table({"file": names, "row": rows, **_read_part(folder, part)[0]})


def _arrow(parts: Sequence[Part], folder: Path, out: Path) -> None:
    plain = out.suffix == ".csv"
    make = pyarrow.csv.CSVWriter if plain else partial(pyarrow.parquet.ParquetWriter, use_dictionary=["file"])
    with arrow_file(out, "wb") as file, make(file, _table(folder, parts[0], plain).schema) as writer:
        for part in parts:
            writer.write_table(_table(folder, part, plain))


def _npz(parts: Sequence[Part], folder: Path, out: Path) -> None:
    """One array for each column; `file` is an index into the array `files`, which has the names."""
    rows = sum(part.stop - part.start for part in parts)
    names = list(dict.fromkeys(as_text(part.file.path) for part in parts))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for field in _table(folder, parts[0]).schema:
            indexed = field.name == "file"
            dtype = np.dtype(np.int32 if indexed else field.type.to_pandas_dtype())
            with archive.open(_member(f"{field.name}.npy"), "w", force_zip64=True) as stream:
                header = {"descr": dtype.str, "fortran_order": False, "shape": (rows,)}
                np.lib.format.write_array_header_1_0(stream, header)
                for part in parts:
                    own = names.index(as_text(part.file.path))
                    values = np.full(part.stop - part.start, own) if indexed else _table(folder, part)[field.name]
                    stream.write(np.asarray(values, dtype).tobytes())
        with archive.open(_member("files.npy"), "w") as stream:
            np.lib.format.write_array(stream, np.array(names), allow_pickle=False)


def _member(name: str) -> zipfile.ZipInfo:
    """With a fixed date, so that the same scores are the same bytes."""
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


WRITERS: Mapping[str, Callable[[Sequence[Part], Path, Path], None]] = {".parquet": _arrow, ".csv": _arrow, ".npz": _npz}


# --- all of it


class Scored(NamedTuple):
    """Whether the output was written, which a shard does not do, and what the user should know of the rows."""

    whole: bool
    notes: list[str]


def parse_shard(text: str | None) -> tuple[int, int]:
    """ "i/n" with 0 <= i < n; all of one shard where it is None."""
    number, slash, count = ("0", "/", "1") if text is None else text.partition("/")
    if not slash or not number.isdecimal() or not count.isdecimal() or not int(number) < int(count):
        raise InputError(f"--shard: expected i/n with i from 0 to n - 1, for example 0/4, got {text!r}")
    return int(number), int(count)


def score(
    scorer: Scorer, files: Sequence[str | Path], out: str | Path, shard: str | None = None, chunk: int = CHUNK,
    dataset: str | None = None, do: Doer = here, force: bool = False,
) -> Scored:  # fmt: skip
    """Score `files` into `out`, a .parquet, .csv or .npz file.

    Args:
        scorer: the model.
        shard: "i/n" writes only the i-th of n shares of the parts, and joins nothing.
        chunk: rows that are read at a time; it does not change the result.
        dataset: as for `normae.data.open_table`; the pandas key of a file of jets.
        do: scores parts and writes them, in this process or elsewhere (`normae.scoring.cluster`).
        force: replace what is there.

    >>> import numpy as np, normae.scoring.score
    >>> np.save("x.npy", [[0.0, 0.0], [3.0, 0.0]])
    >>> scorer = normae.scoring.score.open_scorer("toy-1gauss-nae")
    >>> normae.scoring.score.score(scorer, ["x.npy"], "scores.csv").whole
    True
    """
    out = Path(out)
    refuse(out.suffix not in WRITERS, f"{out}: expected a name that ends in {', '.join(WRITERS)}")
    number, count = parse_shard(shard)
    refuse(chunk < 1, f"--chunk: expected at least 1 row, got {chunk}")
    taken = realpath(out) in map(realpath, files)
    refuse(taken, f"{out}: the output is one of the inputs; give it another name")
    check_new(out, force)
    parts = parts_of(scorer, open_files(scorer, files, dataset))
    mine = parts[len(parts) * number // count : len(parts) * (number + 1) // count]
    folder = out.with_name(out.name + ".parts")
    with lock(out, shared=shard is not None):
        check_new(out, force)
        make_folder(folder)
        try:
            notes = _made(scorer, mine, folder, chunk, do, None if shard is not None else out, force)
            if shard is None:
                clear(folder)
                clear(folder, pattern=OWN)
        finally:
            if not any(folder.iterdir()):
                folder.rmdir()
    return Scored(shard is None, notes)


def _made(
    scorer: Scorer, parts: Sequence[Part], folder: Path, chunk: int, do: Doer, out: Path | None, force: bool
) -> list[str]:
    """Make the parts that are not done and join all of them into `out`, again where one is bad by then."""
    for _ in range(ATTEMPTS):
        there = sum((folder / part.name).exists() for part in parts)
        missing = _not_done(scorer, parts, folder, chunk)
        total, left = (sum(part.stop - part.start for part in some) for some in (parts, missing))
        if bad := there - (len(parts) - len(missing)):
            log.warning("%s: %d of %d parts are damaged, or of other events; they are made again", folder, bad, there)
        with progress("scoring", total) as tick:
            tick(total - left)
            do(scorer, missing, folder, chunk, tick)
        try:
            notes = scorer.said_of(_outside_of(parts, folder))
            if out is not None:
                with atomic_path(out, force) as temporary:
                    WRITERS[out.suffix](parts, folder, temporary)
        except BadPart:
            continue
        return notes
    raise InputError(f"{folder}: parts were damaged {ATTEMPTS} times after they were written; is the disk sound?")
