"""From file to file: what the commands call. Chunk by chunk, so that memory does not grow with the input's tables."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from normae.data import tables
from normae.errors import InputError, refuse
from normae.files import Place, check_new, output
from normae.jets import imaging
from normae.jets.container import UNLABELLED, BadJet, Jets, offsets_of
from normae.jets.imaging import NAMES, THRESHOLD, SparseImages, join_images, observables, sparse_images
from normae.jets.reader import FORMAT, IMAGES, VERSION, Rows, chunks, info, is_images, read_images, row_range

T = TypeVar("T")
Fit = Callable[[Any], NDArray[np.bool_]]
BATCH = 1024  # images that are made dense at a time
SUFFIXES = (".csv", ".parquet", ".npz")


@contextmanager
def writing(path: Place, attributes: Mapping[str, Any] = {}, force: bool = False) -> Iterator[Callable[[Jets], None]]:
    """A function that appends jets to a new file in our own HDF5 format, which appears whole or not at all."""
    counts = [np.zeros(0, dtype=np.int64)]
    with output(path, force) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update({"format": FORMAT, "version": VERSION, **attributes})
        for name, kind in {"labels": np.int8, "pt": np.float32, "eta": np.float32, "phi": np.float32}.items():
            file.create_dataset(name, shape=(0,), maxshape=(None,), dtype=kind, chunks=(1 << 16,))

        def append(jets: Jets) -> None:
            for name in ("labels", "pt", "eta", "phi"):
                values, data = getattr(jets, name), file[name]
                data.resize((len(data) + len(values),))
                data[len(data) - len(values) :] = values
            counts.append(jets.counts)

        yield append
        file["offsets"] = offsets_of(np.concatenate(counts))


def write(path: Place, jets: Jets, attributes: Mapping[str, Any] = {}, force: bool = False) -> None:
    """Write `jets` to `path` in our own HDF5 format, with `attributes`; `force` replaces what is there."""
    with writing(path, attributes, force) as append:
        append(jets)


def write_images(path: Place, images: SparseImages, force: bool = False) -> None:
    """Write sparse images to `path`, whole or not at all."""
    with output(path, force) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update({"format": IMAGES, "version": VERSION})
        for name in ("labels", "offsets", "pixel", "value"):
            file[name] = getattr(images, name)


def convert(
    path: Place, out: Place, rows: Rows = None, *, skip_bad: bool = False, key: str = "table", force: bool = False
) -> tuple[int, int]:
    """Write the jets of any file in our own HDF5 format; how many were written, and skipped.

    Args:
        path, rows, skip_bad, key: as in `read`.
        out: the file to write.
        force: replace what is there.

    >>> from normae import jets
    >>> jets.write("two.h5", jets.from_lists([[[30.0, 0.0, 0.0]], [[10.0, 0.0, 0.2]]]))
    >>> jets.convert("two.h5", "one.h5", rows=1)
    (1, 0)
    """
    check_output(path, out, force)
    written = skipped = 0
    with writing(out, {"source": Path(path).name}, force) as append:
        for part in chunks(path, rows, skip_bad=skip_bad, key=key):
            append(part)
            written, skipped = written + len(part), skipped + part.skipped
    return written, skipped


def convert_images(
    path: Place, out: Place, rows: Rows = None, *, skip_bad: bool = False, key: str = "table",
    dtype: Any = np.float16, force: bool = False,
) -> tuple[int, int]:  # fmt: skip
    """Write sparse images of the jets of a file, values as `dtype`; arguments and what comes back as in `convert`."""
    check_output(path, out, force)
    info(path, key)  # which refuses images
    made = list(made_of_file(lambda jets: sparse_images(jets, dtype), in_frame, path, rows, skip_bad, key))
    images = join_images([part for _, part, _ in made])
    write_images(out, images, force)
    return len(images), sum(bad for *_, bad in made)


def check_output(path: Place, out: Place, force: bool = False) -> None:
    """Refuse to write a file onto its own source, or onto any other, before any work is done."""
    if Path(path).exists() and Path(out).exists() and Path(path).samefile(out):
        raise InputError(f"{out}: the output is the input itself; give it another name")
    check_new(out, force)


def in_frame(part: Jets | NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a jet has a constituent inside the image's frame, with shape (N,); an image has."""
    if not isinstance(part, Jets):
        return np.ones(len(part), dtype=bool)
    return np.asarray(np.diff(imaging.pixelate(imaging.preprocess(part)).offsets) > 0)


def made_of_file(
    make: Callable[[Any], T], fit: Fit, path: Place, rows: Rows = None, skip_bad: bool = False, key: str = "table"
) -> Iterator[tuple[NDArray[Any], T, int]]:
    """(labels, what is made, skipped) of a file, piece by piece; a bad jet or image raises, unless it is skipped.

    `make` takes jets, or dense images with shape (n, 1, 40, 40); `fit` says from which of them it can, with shape (n,).
    """
    done = 0
    for labels, part, dropped in _parts(path, rows, skip_bad, key):
        good = fit(part) if skip_bad else np.ones(len(labels), dtype=bool)
        try:
            made = make(part if good.all() else part[good])
        except BadJet as error:
            row = row_range(rows, sys.maxsize)[0] + done + error.jet
            raise InputError(f"{path}: row {row} {error.problem} (--skip-bad drops such jets)") from error
        done += len(labels)
        yield labels[good], made, dropped + int((~good).sum())


def _parts(path: Place, rows: Rows, skip_bad: bool, key: str) -> Iterator[tuple[NDArray[Any], Any, int]]:
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
    path: Place, rows: Rows = None, *, skip_bad: bool = False, key: str = "table", threshold: float = THRESHOLD
) -> tuple[dict[str, NDArray[Any]], int]:
    """Columns label, eta, phi, mass, tau1, tau2, tau3 of a file of jets or images, and how many were skipped.

    Arguments as in `read`, and `threshold` as in `observables`.
    """
    imaging.check_threshold(threshold)
    make, fit = partial(observables, threshold=threshold), partial(imaging.usable, threshold=threshold)
    made = list(made_of_file(make, fit, path, rows, skip_bad, key))
    parts = [{"label": labels} | found for labels, found, _ in made] or [dict.fromkeys(("label", *NAMES), np.zeros(0))]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return columns, sum(bad for *_, bad in made)


def check_suffix(path: Place) -> None:
    """Refuse a table whose suffix names no known format, before any work is done."""
    refuse(Path(path).suffix not in SUFFIXES, f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")


def write_columns(path: Place, columns: dict[str, NDArray[Any]], force: bool = False) -> None:
    """Write columns of equal length as CSV, Parquet or npz, by the suffix of `path`."""
    check_suffix(path)
    with output(path, force) as temporary:
        tables.write_columns(columns, temporary)


def summary(path: Place, *, skip_bad: bool = False, key: str = "table") -> dict[str, str]:
    """What a file of jets or images holds, as lines to print; each jet is read and checked."""
    if is_images(path):
        images = read_images(path, skip_bad=skip_bad)
        lines = {"format": f"normae-images HDF5, {images.value.dtype}", "images": str(len(images) + images.skipped)}
        lines |= _classes(images.labels)
        lines |= {"filled pixels": f"mean {np.diff(images.offsets).mean():.1f}"} if len(images) else {}
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
