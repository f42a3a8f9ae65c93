"""Sparse images of jets, and from file to file: what the commands call.

On disk and in memory images are sparse: a normalized one has some 31 (QCD) or 41 (top) filled pixels of 1600. Stored
before the Gaussian filter as (pixel index 40 row + column uint16, value float16) a jet takes 150 bytes instead of 6400;
the filter is applied to a batch. HDF5 (`format` = "normae-images", `version` = 1):

    labels (N,) int8, offsets (N + 1,) int64, pixel (P,) uint16, value (P,) float16 or float32

A file goes through chunk by chunk, so that memory does not grow with the input's tables.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from normae.errors import InputError
from normae.files import atomic_path
from normae.jets import imaging, reader
from normae.jets.container import LABELS, UNLABELLED, BadJet, Float32, Int64, Jets, map_blocks, offsets_of
from normae.jets.imaging import NAMES, SIDE, SIGMA, THRESHOLD, check_threshold, observables, pixelate, preprocess
from normae.jets.reader import Rows, chunks, info, row_range, writing

T = TypeVar("T")
BLOCK, BATCH = 4096, 1024  # jets that are made sparse, and images that are made dense, at a time
SUFFIXES = (".csv", ".parquet", ".npz")


@dataclass(frozen=True, eq=False)
class SparseImages:
    """N images with P filled pixels in all: labels with shape (N,), offsets (N + 1,), pixel and value (P,).

    `skipped` is the number of bad images that a reader dropped on the way.
    """

    labels: NDArray[np.int8]
    offsets: Int64
    pixel: NDArray[np.uint16]
    value: NDArray[Any]
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def dense(self, rows: slice | None = None, sigma: float = SIGMA) -> Float32:
        """Filtered images of a run of rows, float32 with shape (n, 1, 40, 40)."""
        start, stop, _ = (rows or slice(None)).indices(len(self))
        first, last = self.offsets[start], self.offsets[max(start, stop)]
        offsets = self.offsets[start : max(start, stop) + 1] - first
        index, value = self.pixel[first:last].astype(np.int64), self.value[first:last].astype(np.float64)
        return imaging.gaussian(imaging.dense(imaging.Pixels(offsets, index, value)), sigma)[:, None]


def sparse_images(jets: Jets, dtype: Any = np.float16) -> SparseImages:
    """The normalized, unfiltered images of `jets`, values stored as `dtype`."""
    parts: dict[int, SparseImages] = {}

    def work(start: int, block: Jets) -> None:
        pixels = imaging.normalize(pixelate(preprocess(block)))
        filled, inverse = np.unique(pixels.jet() * (SIDE * SIDE) + pixels.pixel, return_inverse=True)
        value = np.asarray(np.bincount(inverse, weights=pixels.value, minlength=len(filled)), dtype=dtype)
        offsets = offsets_of(np.bincount(filled // (SIDE * SIDE), minlength=len(block)))
        parts[start] = SparseImages(block.labels, offsets, (filled % (SIDE * SIDE)).astype(np.uint16), value)

    map_blocks(work, jets, BLOCK)
    return join_images([parts[start] for start in sorted(parts)])


def join_images(parts: list[SparseImages]) -> SparseImages:
    """All images of `parts`, in order."""
    if not parts:
        empty = np.zeros(0, dtype=np.int8)
        return SparseImages(empty, np.zeros(1, dtype=np.int64), empty.astype(np.uint16), empty.astype(np.float16))
    offsets = offsets_of(np.concatenate([np.diff(p.offsets) for p in parts]))
    labels, pixel, value = (np.concatenate([getattr(p, n) for p in parts]) for n in ("labels", "pixel", "value"))
    return SparseImages(labels, offsets, pixel, value)


def write_images(path: str | Path, images: SparseImages) -> None:
    """Write sparse images to `path`, whole or not at all."""
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update({"format": reader.IMAGES, "version": reader.VERSION})
        for name in ("labels", "offsets", "pixel", "value"):
            file[name] = getattr(images, name)


def is_images(path: str | Path) -> bool:
    """Whether `path` is a file of sparse images."""
    if not Path(path).is_file() or not h5py.is_hdf5(path):
        return False
    try:
        with h5py.File(path, "r") as file:
            return reader.text_of(file.attrs.get("format")) == reader.IMAGES
    except (KeyError, OSError, RuntimeError):
        return False


def is_jets(path: str | Path) -> bool:
    """Whether `path` is a file of jets or of images of jets, or a folder with such a file called train, by content."""
    path = Path(path)
    if path.is_dir():
        return any(is_jets(file) for file in path.glob("train.*"))
    if is_images(path):
        return True
    try:
        with reader.open_source(path):
            return True
    except InputError:
        return False


def read_images(path: str | Path, rows: Rows = None, *, skip_bad: bool = False) -> SparseImages:
    """Read sparse images, all or a contiguous run of rows; `skip_bad` drops and counts bad ones instead of raising."""
    if not is_images(path):
        raise InputError(f"{path}: not a file of jet images (`normae jets images` writes one)")
    try:
        with h5py.File(path, "r") as file:
            return _load(file, rows, skip_bad)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (KeyError, OSError, RuntimeError) as error:
        raise InputError(f"{path}: the file of images is damaged ({error})") from error


def _load(file: h5py.File, rows: Rows, skip_bad: bool) -> SparseImages:
    """The images of an open file, each of them checked."""
    reader.check_version(file)
    reader.check_datasets(file, {"labels": "biuf", "offsets": "iu", "pixel": "iu", "value": "iuf"})
    offsets = reader.read_offsets(file, ("pixel", "value"))
    start, stop = row_range(rows, len(offsets) - 1)
    offsets = offsets[start : stop + 1]
    first, last = offsets[0], offsets[-1]
    labels, pixel, value = file["labels"][start:stop], file["pixel"][first:last], file["value"][first:last]
    image = np.repeat(np.arange(stop - start), np.diff(offsets))
    with np.errstate(all="ignore"):
        wrong_value = ~np.isfinite(value.astype(np.float32)) | (value < 0)
    problems = {
        "a label that is not 0 or 1": np.flatnonzero(~np.isin(labels, LABELS)),
        f"a pixel index outside the {SIDE}x{SIDE} frame": image[(pixel < 0) | (pixel >= SIDE * SIDE)],
        "a value that is negative or not finite": image[wrong_value],
    }
    bad = np.zeros(len(labels), dtype=bool)
    for found in problems.values():
        bad[found] = True
    if bad.any() and not skip_bad:
        row = int(np.argmax(bad))
        reason = next(text for text, found in problems.items() if row in found)
        raise InputError(f"row {start + row} has {reason} (--skip-bad drops such images)")
    keep, counts = ~bad[image], np.diff(offsets)[~bad]
    labels, pixel = labels[~bad].astype(np.int8), pixel[keep].astype(np.uint16)
    return SparseImages(labels, offsets_of(counts), pixel, value[keep], int(bad.sum()))


# --- from file to file


def convert(
    path: str | Path, out: str | Path, rows: Rows = None, *, skip_bad: bool = False, key: str = "table"
) -> tuple[int, int]:
    """Write the jets of any file in our own format; (jets written, jets skipped)."""
    check_output(path, out)
    written = skipped = 0
    with writing(out, {"source": Path(path).name}) as append:
        for part in chunks(path, rows, skip_bad=skip_bad, key=key):
            append(part)
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
    info(path, key)  # which refuses images
    made = list(made_of_file(lambda jets: sparse_images(jets, dtype), in_frame, path, rows, skip_bad, key))
    images = join_images([part for _, part, _ in made])
    write_images(out, images)
    return len(images), sum(bad for *_, bad in made)


def check_output(path: str | Path, out: str | Path) -> None:
    """Refuse to write a file onto its own source, before any work is done."""
    if Path(path).exists() and Path(out).exists() and Path(path).samefile(out):
        raise InputError(f"{out}: the output is the input itself; give it another name")


def in_frame(part: Jets | NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a jet has a constituent inside the image's frame, with shape (N,); an image has."""
    if not isinstance(part, Jets):
        return np.ones(len(part), dtype=bool)
    return np.asarray(np.diff(pixelate(preprocess(part)).offsets) > 0)


def made_of_file(
    make: Callable[[Any], T],
    usable: Callable[[Any], NDArray[np.bool_]],
    path: str | Path,
    rows: Rows = None,
    skip_bad: bool = False,
    key: str = "table",
) -> Iterator[tuple[NDArray[Any], T, int]]:
    """(labels, what is made, skipped) of a file, piece by piece; a bad jet or image raises, unless it is skipped.

    Args:
        make: from jets, or from dense images with shape (n, 1, 40, 40).
        usable: which of them it can be made from, with shape (n,).
    """
    done = 0
    for labels, part, dropped in _parts(path, rows, skip_bad, key):
        good = usable(part) if skip_bad else np.ones(len(labels), dtype=bool)
        try:
            made = make(part if good.all() else part[good])
        except BadJet as error:
            row = row_range(rows, sys.maxsize)[0] + done + error.jet
            raise InputError(f"{path}: row {row} {error.problem} (--skip-bad drops such jets)") from error
        done += len(labels)
        yield labels[good], made, dropped + int((~good).sum())


def _parts(path: str | Path, rows: Rows, skip_bad: bool, key: str) -> Iterator[tuple[NDArray[Any], Any, int]]:
    """(labels, jets or dense images, skipped) of a file, piece by piece."""
    if not is_images(path):
        for jets in chunks(path, rows, skip_bad=skip_bad, key=key):
            yield jets.labels, jets, jets.skipped
        return
    images = read_images(path, rows, skip_bad=skip_bad)
    for start in range(0, max(len(images), 1), BATCH):
        batch = slice(start, start + BATCH)
        yield images.labels[batch], images.dense(batch), images.skipped if start == 0 else 0


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
    make, fit = partial(observables, threshold=threshold), partial(imaging.usable, threshold=threshold)
    made = list(made_of_file(make, fit, path, rows, skip_bad, key))
    parts = [{"label": labels} | found for labels, found, _ in made] or [dict.fromkeys(("label", *NAMES), np.zeros(0))]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return columns, sum(bad for *_, bad in made)


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
        images = read_images(path, skip_bad=skip_bad)
        counts = np.diff(images.offsets)
        lines = {"format": f"normae-images HDF5, {images.value.dtype}", "images": str(len(images) + images.skipped)}
        lines |= _classes(images.labels)
        lines |= {"filled pixels": f"mean {counts.mean():.1f}"} if len(images) else {}
        return lines | ({"bad images": str(images.skipped)} if skip_bad else {})
    header = info(path, key)
    parts, skipped = [], 0
    for jets in chunks(path, skip_bad=skip_bad, key=key):
        totals = np.add.reduceat(jets.pt, jets.offsets[:-1]) if len(jets) else jets.pt[:0]
        parts.append((jets.labels, jets.counts, totals))
        skipped += jets.skipped
    lines = {"format": header.format, "jets": str(header.jets)}
    if header.jets > skipped:
        labels, counts, totals = (np.concatenate(part) for part in zip(*parts, strict=True))
        lines |= _classes(labels)
        lines["constituents"] = f"{counts.min()} to {counts.max()}, mean {counts.mean():.1f}"
        lines["summed pT (GeV)"] = f"{totals.min():.1f} to {totals.max():.1f}, mean {totals.mean():.1f}"
    lines |= {"bad jets": str(skipped)} if skip_bad else {}
    return lines | {name: str(value) for name, value in header.attributes.items() if name not in ("format", "version")}


def _classes(labels: NDArray[Any]) -> dict[str, str]:
    """How many jets each class has; those without a label where there are some."""
    counts = {"QCD (label 0)": labels == 0, "top (label 1)": labels == 1, "without label": labels == UNLABELLED}
    return {name: str(int(of.sum())) for name, of in counts.items() if name != "without label" or of.any()}
