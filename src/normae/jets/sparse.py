"""Sparse storage of jet images: on disk and in memory only the filled pixels, dense and filtered only in the batch.

A normalized image has some 31 (QCD) or 41 (top) filled pixels of 1600. Stored before the Gaussian filter as (pixel
index 40 row + column uint16, value float16) a jet takes 150 bytes instead of 6400; the filter is applied to a batch.

HDF5 (`format` = "normae-images", `version` = 1):

    labels (N,) int8, offsets (N + 1,) int64, pixel (P,) uint16, value (P,) float16 or float32
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError
from normae.files import atomic_path
from normae.jets.container import LABELS, Float32, Int64, Jets, offsets_of
from normae.jets.formats import IMAGES, VERSION, check_datasets, check_version, read_offsets, text_of
from normae.jets.imaging import SIDE, SIGMA, Pixels, dense, gaussian, normalize, pixelate, preprocess
from normae.jets.kernels import map_blocks
from normae.jets.reader import Rows, open_source, row_range

BLOCK = 4096


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
        return gaussian(dense(Pixels(offsets, index, value)), sigma)[:, None]


def merge(pixels: Pixels) -> Pixels:
    """Sum the values of equal pixels of an image; pixels in rising order."""
    flat = pixels.jet() * (SIDE * SIDE) + pixels.pixel
    filled, inverse = np.unique(flat, return_inverse=True)
    counts = np.bincount(filled // (SIDE * SIDE), minlength=len(pixels.offsets) - 1)
    value = np.asarray(np.bincount(inverse, weights=pixels.value, minlength=len(filled)), dtype=np.float64)
    return Pixels(offsets_of(counts), filled % (SIDE * SIDE), value)


def sparse_images(jets: Jets, dtype: Any = np.float16) -> SparseImages:
    """The normalized, unfiltered images of `jets`, values stored as `dtype`."""
    parts: dict[int, SparseImages] = {}

    def work(start: int, block: Jets) -> None:
        offsets, pixel, value = merge(normalize(pixelate(preprocess(block))))
        parts[start] = SparseImages(block.labels, offsets, pixel.astype(np.uint16), value.astype(dtype))

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
        file.attrs.update({"format": IMAGES, "version": VERSION})
        for name in ("labels", "offsets", "pixel", "value"):
            file[name] = getattr(images, name)


def is_images(path: str | Path) -> bool:
    """Whether `path` is a file of sparse images."""
    if not Path(path).is_file() or not h5py.is_hdf5(path):
        return False
    try:
        with h5py.File(path, "r") as file:
            return text_of(file.attrs.get("format")) == IMAGES
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
        with open_source(path):
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
    check_version(file)
    check_datasets(file, {"labels": "biuf", "offsets": "iu", "pixel": "iu", "value": "iuf"})
    offsets = read_offsets(file, ("pixel", "value"))
    start, stop = row_range(rows, len(offsets) - 1)
    offsets = offsets[start : stop + 1]
    first, last = offsets[0], offsets[-1]
    labels, pixel, value = file["labels"][start:stop], file["pixel"][first:last], file["value"][first:last]
    image = np.repeat(np.arange(stop - start), np.diff(offsets))
    bad = _bad_images(labels, image, pixel, value, None if skip_bad else start)
    keep = ~bad[image]
    counts = np.diff(offsets)[~bad]
    labels, pixel = labels[~bad].astype(np.int8), pixel[keep].astype(np.uint16)
    return SparseImages(labels, offsets_of(counts), pixel, value[keep], int(bad.sum()))


def _bad_images(
    labels: NDArray[Any], image: Int64, pixel: NDArray[Any], value: NDArray[Any], first: int | None
) -> NDArray[np.bool_]:
    """Which images are bad, with shape (n,); where `first` is given, the first of them raises, counted from it."""
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
    if first is not None and bad.any():
        row = int(np.argmax(bad))
        reason = next(text for text, found in problems.items() if row in found)
        raise InputError(f"row {first + row} has {reason} (--skip-bad drops such images)")
    return bad
