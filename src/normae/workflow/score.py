"""Scores of files of any size: parts that are written whole or not at all, then joined.

The rows of every file are cut into parts at fixed places, and parts into blocks; a block is what the network sees at
once. Neither depends on how much is read at a time, on which process does a part, or on what was done before a restart,
so that the result does not either, to the last bit. A part is named by a hash of all that its content depends on: a
part that is there is a part that is done.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from numpy.typing import NDArray

from normae import zoo
from normae.config import Run, read
from normae.data import open_table
from normae.data.tables import reading
from normae.errors import InputError, LogZUnknown
from normae.files import atomic_path
from normae.inference import BayesianModel, Model
from normae.jets import Jets, chunks, concatenate, info, read_images, sparse_images
from normae.jets.container import BadJet
from normae.jets.sparse import is_images
from normae.runs import RunFolder, read_tensors
from normae.statistics.tail import tail_probability
from normae.workflow.join import check_suffix, join
from normae.workflow.loading import load
from normae.workflow.sources import load_events

Columns = dict[str, NDArray[Any]]
QUANTILES = {"q16": 0.16, "q50": 0.5, "q84": 0.84}
"""Over weight draws, of log p where it is known and otherwise of the score."""
TABLE_BLOCK, JETS_BLOCK = 1 << 13, 512
"""Events that the network sees at once."""
CHUNK = 1 << 16
"""Rows that are read at a time."""


@dataclass(frozen=True)
class Scorer:
    """A model with what is needed to read files for it and to score them.

    Args:
        model: the model.
        columns: the names of the features of a table; None where they have none.
        jets: whether files hold jets.
        log_z: of the model, with shape (1,), or of each weight draw; None where it is not known.
        background: scores of held-out background in rising order; empty where there is none.
        digest: stands for all that the scores of an event depend on.
        block: events that the network sees at once.
        part: rows of a part; whole blocks.
        notes: what the user should know.
    """

    model: Model
    columns: tuple[str, ...] | None
    jets: bool
    log_z: NDArray[np.float64] | None
    background: NDArray[np.float32]
    digest: str
    block: int = TABLE_BLOCK
    part: int = 64 * TABLE_BLOCK
    notes: list[str] = field(default_factory=list)

    def score(self, x: NDArray[np.float32]) -> Columns:
        """The columns of the result for events with shape (N, *event), block after block."""
        blocks = [self._block(x[start : start + self.block]) for start in range(0, len(x), self.block)]
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}

    def _block(self, x: NDArray[np.float32]) -> Columns:
        if isinstance(self.model, BayesianModel):
            found = bayesian_scores(self.model, x, self.log_z)
        else:
            found = plain_scores(self.model, x, self.log_z)
        if len(self.background):
            found["p_value"], found["p_value_error"] = tail_probability(found["score"], self.background)
        return found


def known_log_z(model: Model) -> NDArray[np.float64] | None:
    """log Z with shape (1,), or of each weight draw with shape (draws,); None where it is not known."""
    try:
        return model.log_z_draws() if isinstance(model, BayesianModel) else np.array([model.log_z.value])
    except LogZUnknown:
        return None


def plain_scores(model: Model, x: NDArray[np.float32], log_z: NDArray[np.float64] | None) -> Columns:
    """`score`, and `log_prob` where log Z is known, each with shape (N,)."""
    score = model.score(x)
    return {"score": score} if log_z is None else {"score": score, "log_prob": -score - np.float32(log_z[0])}


def bayesian_scores(model: BayesianModel, x: NDArray[np.float32], log_z: NDArray[np.float64] | None) -> Columns:
    """Mean, spread and quantiles over the model's fixed weight draws, each with shape (N,)."""
    draws = model.score_draws(x)
    found = {"score": draws.mean(0), "score_std": draws.std(0, ddof=1)}
    name = "score"
    if log_z is not None:
        draws = -draws - log_z[:, None].astype(np.float32)
        found["log_prob"], name = draws.mean(0), "log_prob"
    quantiles = np.quantile(np.ascontiguousarray(draws.T), list(QUANTILES.values()), axis=1)
    return found | {f"{name}_{q}": values.astype(np.float32) for q, values in zip(QUANTILES, quantiles, strict=True)}


# --- the model and its background


def open_scorer(run: str | Path, columns: Sequence[str] | None = None, device: str = "auto") -> Scorer:
    """The scorer of a run folder or a model of the zoo; `columns` are instead of the run's own names."""
    model = load(run, device)
    folder = RunFolder(zoo.path(str(run)) if str(run) in zoo.names() else Path(run))
    config = read(folder.config)
    _, header = read_tensors(folder.model)
    names = columns if columns is not None else header.get("columns")
    jets = config.data.jets is not None
    if names is not None and (jets or model.event != (len(names),)):
        raise InputError(f"{run}: expected columns for events of shape {model.event}, got {len(names)}: {list(names)}")
    weights = hashlib.sha256(folder.model.read_bytes()).hexdigest() + f"/{model.device.type}"
    notes: list[str] = []
    background = np.zeros(0, dtype=np.float32)
    try:
        background = _background(folder, config, model, weights)
    except InputError as error:
        notes.append(f"no p_value: the held-out background cannot be scored ({error})")
    if not len(background) and not notes:
        notes.append("no p_value: the run held no background out (data.test = 0)")
    log_z = known_log_z(model)
    digest = hashlib.sha256(weights.encode() + background.tobytes()).hexdigest()
    block = JETS_BLOCK if jets else TABLE_BLOCK
    part = (32 if jets or isinstance(model, BayesianModel) else 64) * block
    chosen = None if names is None else tuple(names)
    return Scorer(model, chosen, jets, log_z, background, digest, block, part, notes)


def _background(folder: RunFolder, config: Run, model: Model, weights: str) -> NDArray[np.float32]:
    """Scores of the run's test sample in rising order; kept in the run folder where that can be written."""
    if (kept := _kept_background(folder, weights)) is not None:
        return kept
    if config.data.test == 0 and config.data.jets is None:
        return np.zeros(0, dtype=np.float32)
    test = load_events(config.data, config.seed).test
    score = np.concatenate([model.score(piece.numpy()) for piece in torch.split(test, 1 << 13)])
    score.sort()
    if folder.path not in map(zoo.path, zoo.names()):
        with suppress(OSError), atomic_path(folder.background) as temporary:  # where the folder can be written
            np.savez(temporary, score=score, weights=weights)
    return score


def _kept_background(folder: RunFolder, weights: str) -> NDArray[np.float32] | None:
    if not folder.background.is_file():
        return None
    try:
        with folder.background.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
            score = np.asarray(kept["score"], dtype=np.float32)
            return score if str(kept["weights"]) == weights and np.all(score[:-1] <= score[1:]) else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # not one of ours: it is made again
        return None


# --- files and their parts


@dataclass(frozen=True)
class File:
    """A file to score: its name as given, its rows, and what tells it from an earlier state of itself."""

    path: Path
    rows: int
    state: tuple[int, int]
    dataset: str | None = None


@dataclass(frozen=True)
class Part:
    """Rows start to stop of a file, and the name under which their scores are kept."""

    file: File
    start: int
    stop: int
    name: str


def open_file(scorer: Scorer, path: str | Path, dataset: str | None = None) -> File:
    """A file that fits the run; one sentence, with the column, for one that does not."""
    path = Path(path)
    if scorer.jets:
        rows = _count_images(path) if is_images(path) else info(path, dataset or "table").jets
        if rows == 0:
            raise InputError(f"{path}: expected at least one jet")
    else:
        with open_table(path, dataset) as table:
            table.select(scorer.columns, scorer.model.event)
            rows = table.rows
    status = path.stat()
    return File(path, rows, (status.st_size, status.st_mtime_ns), dataset)


def _count_images(path: Path) -> int:
    with reading(path), h5py.File(path, "r") as file:
        return int(file["labels"].shape[0])


def parts_of(scorer: Scorer, files: Sequence[File]) -> list[Part]:
    """All parts of all files, in order."""
    found = []
    for file in files:
        for start in range(0, file.rows, scorer.part):
            stop = min(start + scorer.part, file.rows)
            key = [scorer.digest, scorer.block, scorer.columns, str(file.path), file.state, file.dataset, start, stop]
            name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
            found.append(Part(file, start, stop, f"{name}.parquet"))
    return found


def consecutive(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts that follow each other in one file, together: its rows can be read in one go."""
    runs: list[list[Part]] = []
    for part in parts:
        if runs and runs[-1][-1].file is part.file and runs[-1][-1].stop == part.start:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def score_parts(
    scorer: Scorer, parts: Sequence[Part], chunk: int, watch: Callable[[int], None]
) -> Iterator[tuple[Part, Columns]]:
    """The scores of parts that follow each other in one file; `watch` is told the rows that are done."""
    blocks = scorer.part // scorer.block
    fitting = [n for n in range(1, blocks + 1) if blocks % n == 0 and n * scorer.block <= max(chunk, scorer.block)]
    found: list[Columns] = []
    waiting = iter(parts)
    part = next(waiting)
    row = part.start
    for events in read_events(scorer, part.file, row, parts[-1].stop, fitting[-1] * scorer.block):
        found.append(scorer.score(events))
        watch(len(events))
        row += len(events)
        if row == part.stop:
            rows = np.arange(part.start, part.stop, dtype=np.int64)
            yield part, {"row": rows} | {name: np.concatenate([f[name] for f in found]) for name in found[0]}
            found, part = [], next(waiting, part)


def read_events(scorer: Scorer, file: File, start: int, stop: int, size: int) -> Iterator[NDArray[np.float32]]:
    """Rows start to stop of a file in arrays of `size` events."""
    if not scorer.jets:
        with open_table(file.path, file.dataset) as table:
            columns = table.select(scorer.columns, scorer.model.event)
            for _, events in table.chunks(columns, start, stop, size):
                yield events
    elif is_images(file.path):
        for first in range(start, stop, size):
            yield read_images(file.path, (first, min(first + size, stop))).dense()
    else:
        yield from _jet_images(file, start, stop, size)


def _jet_images(file: File, start: int, stop: int, size: int) -> Iterator[NDArray[np.float32]]:
    """Images with shape (n, 1, 40, 40); the reader's chunks are those of the file, and are cut anew."""
    waiting: list[Jets] = []
    for jets in chunks(file.path, (start, stop), key=file.dataset or "table", size=size):
        waiting.append(jets)
        start += len(jets)
        while (count := sum(map(len, waiting))) >= size or (start == stop and count):
            joined = concatenate(waiting)
            waiting = [joined[size:]] if count > size else []
            yield _images(file, joined[:size], start - count)


def _images(file: File, jets: Jets, first: int) -> NDArray[np.float32]:
    try:
        return sparse_images(jets, first=first).dense()
    except BadJet as error:
        raise InputError(f"{file.path}: row {error.jet} {error.problem}") from None


def write_part(path: Path, part: Part, columns: Columns) -> None:
    """Scores of a part as a Parquet file, whole or not at all."""
    names = pa.DictionaryArray.from_arrays(np.zeros(part.stop - part.start, np.int32), [str(part.file.path)])
    table = pa.table({"file": names, **columns})
    with atomic_path(path) as temporary:
        pyarrow.parquet.write_table(table, temporary, use_dictionary=["file"])


# --- the whole


def parse_shard(text: str | None) -> tuple[int, int]:
    """ "i/n" with 0 <= i < n; all of one shard where it is None."""
    number, slash, count = ("0", "/", "1") if text is None else text.partition("/")
    if not slash or not number.isdecimal() or not count.isdecimal() or not int(number) < int(count):
        raise InputError(f"--shard: expected i/n with i from 0 to n - 1, for example 0/4, got {text!r}")
    return int(number), int(count)


@contextmanager
def parts_folder(out: Path) -> Iterator[Path]:
    """Where the parts of `out` are kept until they are joined; nothing is left where none was written."""
    folder = out.with_name(out.name + ".parts")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def score(
    scorer: Scorer,
    files: Sequence[str | Path],
    out: str | Path,
    shard: str | None = None,
    chunk: int = CHUNK,
    dataset: str | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> bool:
    """Score `files` into `out`, a .parquet, .csv or .npz file.

    Args:
        scorer: the model.
        shard: "i/n" writes only the i-th of n shares of the parts, and joins nothing.
        chunk: rows that are read at a time; it does not change the result.
        dataset: as for `normae.data.open_table`; the pandas key of a file of jets.
        watch: told the rows that are done and all rows of this call.

    Returns:
        Whether `out` was written; False for a shard.
    """
    out = Path(out)
    check_suffix(out)
    number, count = parse_shard(shard)
    if chunk < 1:
        raise InputError(f"--chunk: expected at least 1 row, got {chunk}")
    _check_names(files, out)
    opened = [open_file(scorer, path, dataset) for path in files]
    parts = parts_of(scorer, opened)
    mine = parts[len(parts) * number // count : len(parts) * (number + 1) // count]
    with parts_folder(out) as folder:
        done = 0
        total = sum(part.stop - part.start for part in mine)

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            if watch is not None:
                watch(done, total)

        missing = [part for part in mine if not (folder / part.name).is_file()]
        advance(total - sum(part.stop - part.start for part in missing))
        for run in consecutive(missing):
            for part, columns in score_parts(scorer, run, chunk, advance):
                write_part(folder / part.name, part, columns)
        if shard is not None:
            return False
        join([folder / part.name for part in parts], out)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
    return True


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
