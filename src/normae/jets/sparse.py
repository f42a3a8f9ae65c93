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
from normae.jets.container import Float32, Int64, Jets, offsets_of
from normae.jets.imaging import SIDE, SIGMA, Pixels, dense, gaussian, normalize, pixelate, preprocess
from normae.jets.reader import Rows, row_range
from normae.jets.threads import map_blocks

FORMAT = "normae-images"
VERSION = 1
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class SparseImages:
    """N images with P filled pixels in all: labels with shape (N,), offsets (N + 1,), pixel and value (P,)."""

    labels: NDArray[np.int8]
    offsets: Int64
    pixel: NDArray[np.uint16]
    value: NDArray[Any]

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


def sparse_images(jets: Jets, dtype: Any = np.float16, first: int = 0) -> SparseImages:
    """The normalized, unfiltered images of `jets`, values stored as `dtype`; errors count jets from `first`."""
    parts: dict[int, SparseImages] = {}

    def work(start: int, block: Jets) -> None:
        offsets, pixel, value = merge(normalize(pixelate(preprocess(block))))
        parts[start] = SparseImages(block.labels, offsets, pixel.astype(np.uint16), value.astype(dtype))

    map_blocks(work, jets, BLOCK, first)
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
        file.attrs.update({"format": FORMAT, "version": VERSION})
        for name in ("labels", "offsets", "pixel", "value"):
            file[name] = getattr(images, name)


def is_images(path: str | Path) -> bool:
    """Whether `path` is a file of sparse images."""
    if not Path(path).is_file() or not h5py.is_hdf5(path):
        return False
    try:
        with h5py.File(path, "r") as file:
            return bool(file.attrs.get("format") == FORMAT)
    except OSError:
        return False


def read_images(path: str | Path, rows: Rows = None) -> SparseImages:
    """Read sparse images, all or a contiguous run of rows."""
    if not is_images(path):
        raise InputError(f"{path}: not a file of jet images (`normae jets images` writes one)")
    with h5py.File(path, "r") as file:
        try:
            start, stop = row_range(rows, len(file["labels"]))
            offsets = file["offsets"][start : stop + 1]
            first, last = offsets[0], offsets[-1]
            pixel, value = file["pixel"][first:last], file["value"][first:last]
            images = SparseImages(file["labels"][start:stop], offsets - first, pixel, value)
        except (KeyError, OSError) as error:
            raise InputError(f"{path}: the file of images is damaged ({error})") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    if len(pixel) and int(pixel.max()) >= SIDE * SIDE:
        raise InputError(f"{path}: a pixel index of {pixel.max()} lies outside the {SIDE}x{SIDE} frame")
    return images
