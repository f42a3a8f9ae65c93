"""Scores of files of any size: parts that are written whole or not at all, here or on a cluster, then joined."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from normae.errors import InputError
from normae.progress import progress
from normae.scoring.join import check_suffix, join
from normae.scoring.parts import Doer, here, open_file, outside_of, parts_of
from normae.scoring.scorer import Scorer, open_scorer

__all__ = ["CHUNK", "Scored", "Scorer", "open_scorer", "parse_shard", "score"]
CHUNK = 1 << 16
"""Rows that are read at a time."""


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
    check_suffix(out)
    number, count = parse_shard(shard)
    if chunk < 1:
        raise InputError(f"--chunk: expected at least 1 row, got {chunk}")
    _check_names(files, out)
    opened = [open_file(scorer, path, dataset) for path in files]
    parts = parts_of(scorer, opened)
    mine = parts[len(parts) * number // count : len(parts) * (number + 1) // count]
    with parts_folder(out) as folder:
        missing = [part for part in mine if not (folder / part.name).is_file()]
        total, left = (sum(part.stop - part.start for part in some) for some in (mine, missing))
        with progress("scoring", total) as tick:
            tick(total - left)
            do(scorer, missing, folder, chunk, tick)
        notes = scorer.said_of(outside_of(mine, folder))
        if shard is not None:
            return Scored(False, notes)
        join([folder / part.name for part in parts], out)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
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
