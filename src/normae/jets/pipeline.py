"""From file to file: what the commands call. Chunk by chunk, so that memory does not grow with the input's tables."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from normae.errors import InputError
from normae.files import atomic_path
from normae.jets.container import UNLABELLED, BadJet, Jets
from normae.jets.formats import Writer
from normae.jets.imaging import pixelate, preprocess
from normae.jets.reader import Rows, chunks, info, row_range
from normae.jets.sparse import SparseImages, is_images, join_images, read_images, sparse_images, write_images
from normae.jets.substructure import NAMES, THRESHOLD, check_threshold, observables, usable

BATCH = 1024
SUFFIXES = (".csv", ".parquet", ".npz")


def convert(
    path: str | Path, out: str | Path, rows: Rows = None, *, skip_bad: bool = False, key: str = "table"
) -> tuple[int, int]:
    """Write the jets of any file in our own format; (jets written, jets skipped)."""
    check_output(path, out)
    written = skipped = 0
    with atomic_path(out) as temporary, Writer(temporary, {"source": Path(path).name}) as writer:
        for part in chunks(path, rows, skip_bad=skip_bad, key=key):
            writer.append(part)
            written, skipped = written + len(part), skipped + part.skipped
    return written, skipped


def convert_images(
    path: str | Path,
    out: str | Path,
    rows: Rows = None,
    *,
    skip_bad: bool = False,
    key: str = "table",
    dtype: Any = np.float16,
) -> tuple[int, int]:
    """Write the sparse images of the jets of a file; (images written, jets skipped)."""
    check_output(path, out)
    parts: list[SparseImages] = []
    skipped = done = 0
    for jets in chunks(path, rows, skip_bad=skip_bad, key=key):
        inside = in_frame(jets) if skip_bad else np.ones(len(jets), dtype=bool)
        try:
            parts.append(sparse_images(jets[inside] if not inside.all() else jets, dtype, done))
        except BadJet as error:
            raise bad_row(path, rows, error.jet, error.problem) from error
        done += len(jets)
        skipped += jets.skipped + int((~inside).sum())
    images = join_images(parts)
    write_images(out, images)
    return len(images), skipped


def check_output(path: str | Path, out: str | Path) -> None:
    """Refuse to write a file onto its own source, before any work is done."""
    if Path(path).exists() and Path(out).exists() and Path(path).samefile(out):
        raise InputError(f"{out}: the output is the input itself; give it another name")


def bad_row(path: str | Path, rows: Rows, place: int, problem: str) -> InputError:
    """The error of a jet or image that is bad, at `place` among the `rows` of a file."""
    row = row_range(rows, sys.maxsize)[0] + place
    return InputError(f"{path}: row {row} {problem} (--skip-bad drops such jets)")


def in_frame(jets: Jets) -> NDArray[np.bool_]:
    """Whether a jet has a constituent inside the image's frame, with shape (N,)."""
    return np.asarray(np.diff(pixelate(preprocess(jets)).offsets) > 0)


def parts_of_file(
    path: str | Path, rows: Rows = None, *, skip_bad: bool = False, key: str = "table"
) -> Iterator[tuple[NDArray[Any], Any, int]]:
    """(labels, jets or dense images, skipped) of a file, piece by piece."""
    if not is_images(path):
        for jets in chunks(path, rows, skip_bad=skip_bad, key=key):
            yield jets.labels, jets, jets.skipped
        return
    images = read_images(path, rows, skip_bad=skip_bad)
    for start in range(0, len(images), BATCH):
        batch = slice(start, start + BATCH)
        yield images.labels[batch], images.dense(batch), images.skipped if start == 0 else 0
    if len(images) == 0:
        yield images.labels, images.dense(), images.skipped


def file_observables(
    path: str | Path,
    rows: Rows = None,
    *,
    skip_bad: bool = False,
    key: str = "table",
    threshold: float = THRESHOLD,
) -> tuple[dict[str, NDArray[Any]], int]:
    """Columns label, eta, phi, mass, tau1, tau2, tau3 of a file of jets or of images; and the jets skipped."""
    check_threshold(threshold)
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in ("label", *NAMES)}
    skipped = done = 0
    for labels, part, dropped in parts_of_file(path, rows, skip_bad=skip_bad, key=key):
        good = usable(part, threshold) if skip_bad else np.ones(len(labels), dtype=bool)
        skipped += dropped + int((~good).sum())
        columns["label"].append(labels[good])
        try:
            found = observables(part if good.all() else part[good], threshold)
        except BadJet as error:
            raise bad_row(path, rows, done + error.jet, error.problem) from error
        done += len(labels)
        for name, values in found.items():
            columns[name].append(values)
    return {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in columns.items()}, skipped


def check_suffix(path: str | Path) -> None:
    """Refuse a table whose suffix names no known format, before any work is done."""
    if Path(path).suffix not in SUFFIXES:
        raise InputError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")


def write_columns(path: str | Path, columns: dict[str, NDArray[Any]]) -> None:
    """Write columns of equal length as CSV, Parquet or npz, by the suffix of `path`."""
    check_suffix(path)
    with atomic_path(path) as temporary:
        if temporary.suffix == ".npz":
            np.savez(temporary, **columns)  # type: ignore[arg-type]
        elif temporary.suffix == ".csv":
            pyarrow.csv.write_csv(pa.table(columns), temporary)
        else:
            pyarrow.parquet.write_table(pa.table(columns), temporary)


def summary(path: str | Path, *, skip_bad: bool = False, key: str = "table") -> dict[str, str]:
    """What a file of jets or images holds, as lines to print; each jet is read and checked."""
    if is_images(path):
        return _images_summary(read_images(path, skip_bad=skip_bad), skip_bad)
    header = info(path, key)
    labels, counts, totals = [], [], []
    skipped = 0
    for jets in chunks(path, skip_bad=skip_bad, key=key):
        labels.append(jets.labels)
        counts.append(jets.counts)
        totals.append(np.add.reduceat(jets.pt, jets.offsets[:-1]) if len(jets) else jets.pt[:0])
        skipped += jets.skipped
    lines = {"format": header.format, "jets": str(header.jets)}
    if header.jets > skipped:
        lines |= _numbers(np.concatenate(labels), np.concatenate(counts), np.concatenate(totals))
    lines |= {"bad jets": str(skipped)} if skip_bad else {}
    return lines | {name: str(value) for name, value in header.attributes.items() if name not in ("format", "version")}


def _numbers(labels: NDArray[Any], counts: NDArray[Any], totals: NDArray[Any]) -> dict[str, str]:
    return {
        **_classes(labels),
        "constituents": f"{counts.min()} to {counts.max()}, mean {counts.mean():.1f}",
        "summed pT (GeV)": f"{totals.min():.1f} to {totals.max():.1f}, mean {totals.mean():.1f}",
    }


def _classes(labels: NDArray[Any]) -> dict[str, str]:
    """How many jets each class has; those without a label where there are some."""
    counts = {"QCD (label 0)": labels == 0, "top (label 1)": labels == 1, "without label": labels == UNLABELLED}
    return {name: str(int(of.sum())) for name, of in counts.items() if name != "without label" or of.any()}


def _images_summary(images: SparseImages, skip_bad: bool) -> dict[str, str]:
    counts = np.diff(images.offsets)
    lines = {"format": f"normae-images HDF5, {images.value.dtype}", "images": str(len(images) + images.skipped)}
    lines |= _classes(images.labels)
    lines |= {"filled pixels": f"mean {counts.mean():.1f}"} if len(images) else {}
    return lines | ({"bad images": str(images.skipped)} if skip_bad else {})
