"""Jets and images from files: one reader for all formats, by row range, in chunks, with bounded memory.

A format is recognized by its content, not by its name: our own HDF5, the npz files of simulated jets, and the public
TopTagging files (`toptagging`). Own HDF5 (`format` = "normae-jets", `version` = 1, further attributes say how the jets
were made):

    labels (N,) int8, offsets (N + 1,) int64, pt, eta, phi (C,) float32, none compressed

npz: `label`, `count`, `jet` (pT, eta, phi, mass of each jet), and over constituents `pt` (float16), `deta`, `dphi`
(int16) with eta = eta_jet + deta / 20000 and the same for phi.

A source is a file that is open: `count` jets, loaded by range as (labels, counts, pt, eta, phi, finite). Each chunk is
checked before it is passed on: momenta finite, some pT, |eta| at most 30, label 0 or 1. Constituents without pT are
padding and are dropped; the others are put in order of falling pT.

Sparse images, HDF5 (`format` = "normae-images", `version` = 1):

    labels (N,) int8, offsets (N + 1,) int64, pixel (P,) uint16, value (P,) float16 or float32
"""

import operator
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError, refuse
from normae.files import check_file
from normae.jets.container import LABELS, UNLABELLED, Jets, concatenate, in_order, offsets_of, wrap
from normae.jets.imaging import SIDE, SparseImages
from normae.jets.toptagging import Table
from normae.progress import counted

FORMAT, IMAGES, VERSION = "normae-jets", "normae-images", 1
ANGLE_UNIT, MAX_ETA = 20000.0, 30.0
Rows = int | tuple[int, int] | slice | range | None
CHUNK = 2048
PUBLIC = Path(__file__).parent / "public.npz"


def text_of(value: Any) -> str:
    """An attribute as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def check_flat(name: str, values: Any, kinds: str) -> None:
    """Refuse what is not a one-dimensional array (or dataset) whose type is one of `kinds` of numpy."""
    refuse(len(values.shape or ()) != 1, f"{name!r} has the shape {values.shape}, but one dimension is expected")
    try:
        found = values.dtype
    except (ValueError, TypeError) as error:  # h5py knows no such type of numpy
        raise InputError(f"{name!r} has a type that cannot be read ({error}); the file may be damaged") from error
    if found.kind not in kinds:
        wanted = "real numbers" if "f" in kinds else "integers"
        raise InputError(f"{name!r} has the type {found}, but {wanted} are expected")


class Ragged:
    """Our own HDF5 file: `flat` are the datasets over constituents, or pixels, with the kinds of their types."""

    alignment = 1  # rows that the file compresses together

    def __init__(self, file: h5py.File, flat: dict[str, str]) -> None:
        version = text_of(file.attrs.get("version", VERSION))
        if not version.isdecimal() or not 1 <= int(version) <= VERSION:
            raise InputError(f"the file has version {version}, but this normae reads versions up to {VERSION}")
        for name, allowed in {"labels": "biuf", "offsets": "iu", **flat}.items():
            refuse(not isinstance(file.get(name), h5py.Dataset), f"the file has no dataset {name!r}")
            check_flat(name, file[name], allowed)
        self.file, self.flat, self.count = file, flat, len(file["labels"])
        self.offsets = offsets = np.asarray(file["offsets"][:], dtype=np.int64)
        rising = len(offsets) == self.count + 1 and offsets[0] == 0 and (offsets[1:] >= offsets[:-1]).all()
        if not rising or {len(file[name]) for name in self.flat} != {int(offsets[-1])}:
            raise InputError(f"the offsets do not match the labels or the lengths of {', '.join(self.flat)}")

    def arrays(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """Rows start to stop: labels and counts with shape (n,), and the flat arrays."""
        first, last = self.offsets[start], self.offsets[stop]
        flat = (self.file[name][first:last] for name in self.flat)
        return (self.file["labels"][start:stop], np.diff(self.offsets[start : stop + 1]), *flat)

    def load(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """Rows start to stop: labels, counts with shape (n,), pt, eta, phi with shape (C,), finite with shape (n,)."""
        return (*self.arrays(start, stop), np.ones(stop - start, dtype=bool))


class Npz:
    """An npz file of simulated jets; its arrays are small enough to be held whole."""

    alignment = 1

    def __init__(self, path: Path) -> None:
        needed = ("count", "jet", "pt", "deta", "dphi")
        kinds = {"label": "biuf", "count": "iu", "pt": "iuf", "deta": "iuf", "dphi": "iuf"}
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                self.arrays = {name: arrays[name] for name in (*needed, "label") if name in arrays}
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise InputError(f"the npz file is truncated or damaged ({error})") from error
        except ValueError as error:
            raise InputError(f"the npz file cannot be read: {error}") from error
        for name in needed:
            refuse(name not in self.arrays, f"the file has no array {name!r}")
        self.arrays.setdefault("label", np.full(self.arrays["count"].shape[:1], UNLABELLED, dtype=np.int8))
        for name, allowed in kinds.items():
            check_flat(name, self.arrays[name], allowed)
        label, count, jet, pt = (self.arrays[name] for name in ("label", "count", "jet", "pt"))
        if jet.shape != (len(label), 4) or jet.dtype.kind not in "iuf":
            raise InputError(f"'jet' has the shape {jet.shape} and type {jet.dtype}, expected real ({len(label)}, 4)")
        refuse(len(count) != len(label), f"'count' has {len(count)} entries, but 'label' has {len(label)}")
        if (wrong := np.flatnonzero((count < 0) | (count > len(pt)))).size:
            raise InputError(f"row {wrong[0]} has a count of {count[wrong[0]]}, but there are {len(pt)} constituents")
        total = int(count.sum(dtype=np.int64))
        for name in ("pt", "deta", "dphi"):
            if len(self.arrays[name]) != total:
                raise InputError(f"{name!r} has {len(self.arrays[name])} entries, but 'count' sums to {total}")
        self.count, self.offsets = len(label), offsets_of(count)

    def load(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """As that of `Ragged`."""
        flat = slice(self.offsets[start], self.offsets[stop])
        counts = self.arrays["count"][start:stop].astype(np.int64)
        axis = np.repeat(self.arrays["jet"][start:stop, 1:3].astype(np.float64), counts, axis=0)
        with np.errstate(invalid="ignore"):
            eta = axis[:, 0] + self.arrays["deta"][flat] / ANGLE_UNIT
            phi = wrap(axis[:, 1] + self.arrays["dphi"][flat] / ANGLE_UNIT)
        pt, label = self.arrays["pt"][flat], self.arrays["label"][start:stop]
        return label, counts, pt, eta, phi, np.ones(stop - start, dtype=bool)


Source = Ragged | Npz | Table


class Info(NamedTuple):
    """What a file says of itself without reading its jets."""

    format: str
    jets: int
    attributes: dict[str, Any]


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file is one sentence with its name."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(str(path)):
            raise
        raise InputError(f"{path}: {error}") from error
    except (KeyError, OSError, RuntimeError) as error:
        words = str(error).splitlines() or [type(error).__name__]
        raise InputError(f"{path}: the file is truncated or damaged ({words[0]})") from error


@contextmanager
def open_source(path: str | Path, key: str = "table") -> Iterator[Source]:
    """The source of a file, whatever its format."""
    path = Path(path)
    with _named(path):
        check_file(path)
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic == b"PK\x03\x04":
            yield Npz(path)
            return
        refuse(magic != b"\x89HDF" and not h5py.is_hdf5(path), "neither an HDF5 nor an npz file")
        with h5py.File(path, "r") as file:
            kind = text_of(file.attrs.get("format"))
            refuse(kind == IMAGES, "the file holds images already, where jets are expected")
            yield Ragged(file, dict.fromkeys(("pt", "eta", "phi"), "iuf")) if kind == FORMAT else Table(file, key)


def row_range(rows: Rows, count: int) -> tuple[int, int]:
    """(start, stop) within `count` jets. An integer means that many from the start; nothing is clamped."""
    ends: tuple[Any, Any] = (0, count if rows is None else rows)
    if isinstance(rows, tuple) and len(rows) == 2:
        ends = rows
    elif isinstance(rows, slice | range):
        refuse(rows.step not in (None, 1), f"rows must be contiguous, got a step of {rows.step}")
        ends = (0 if rows.start is None else rows.start, count if rows.stop is None else rows.stop)
    try:
        if any(isinstance(end, bool | np.bool_) for end in ends):
            raise TypeError
        start, stop = map(operator.index, ends)
    except TypeError:
        raise InputError(f"rows must be an integer, a slice or (start, stop), got {rows!r}") from None
    refuse(start < 0 or stop < start, f"rows {start}:{stop} is not a range of rows")
    refuse(stop > count, f"rows {start}:{stop} asked, but the file has {count} jets")
    return start, stop


def _edges(start: int, stop: int, size: int, alignment: int) -> list[int]:
    """Chunk borders that fall on the file's own chunks, so that none is decompressed twice."""
    step = max(alignment, size // alignment * alignment)
    return [start, *range((start // step + 1) * step, stop, step), stop] if stop > start else [start]


def _bad(problems: dict[str, NDArray[Any]], n: int, start: int, things: str | None) -> NDArray[np.bool_]:
    """Which of `n` rows are among those with a problem; the first of them raises where `things` says what they are."""
    bad = np.isin(np.arange(n), np.concatenate(list(problems.values())))
    if bad.any() and things is not None:
        row = int(np.argmax(bad))
        reason = next(text for text, found in problems.items() if row in found)
        raise InputError(f"row {start + row} has {reason} (--skip-bad drops such {things})")
    return bad


def _checked(loaded: tuple[NDArray[Any], ...], start: int, skip_bad: bool) -> Jets:
    """The good jets of a chunk; the first bad one raises unless `skip_bad`."""
    labels, counts, *flat, finite = loaded
    jet, n = np.repeat(np.arange(len(labels)), counts), len(labels)
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is found
        pt, eta, phi = (values.astype(np.float32, copy=False) for values in flat)
    spoiled = jet[~(np.isfinite(pt) & np.isfinite(eta) & np.isfinite(phi))]
    problems = {
        "a momentum that is not finite": np.append(spoiled, np.flatnonzero(~finite)),
        "a label that is not 0 or 1": np.flatnonzero(~np.isin(labels, LABELS)),
        "a negative pT": jet[pt < 0],
        "no energy": np.flatnonzero(np.bincount(jet, weights=np.maximum(pt, 0), minlength=n) == 0),
        f"a constituent with |eta| above {MAX_ETA:g}": jet[(np.abs(eta) > MAX_ETA) & (pt != 0)],
    }
    bad = _bad(problems, n, start, None if skip_bad else "jets")
    keep = (pt > 0) & ~bad[jet]
    if not keep.all():
        counts, (pt, eta, phi) = np.bincount(jet[keep], minlength=n), (a[keep] for a in (pt, eta, phi))
    offsets = offsets_of(counts[~bad])
    borders, limit = offsets[1:-1], pt[:-1] * np.float32(1 + 1e-6)  # rises up to the rounding of px, py
    if (pt[1:] > limit).sum() != (pt[borders] > limit[borders - 1]).sum():
        # The bits of a positive float rise with its value, so one integer key holds jet and pt, and one fast sort does.
        key = np.repeat(np.arange(len(offsets) - 1, dtype=np.uint64) << np.uint64(32), np.diff(offsets))
        order = np.argsort(key | ~pt.view(np.uint32), kind="stable")
        pt, eta, phi = pt[order], eta[order], phi[order]
    return Jets(labels[~bad].astype(np.int8), offsets, pt, eta, phi, skipped=int(bad.sum()))


def chunks(
    path: str | Path, rows: Rows = None, *, skip_bad: bool = False, key: str = "table", size: int = CHUNK
) -> Iterator[Jets]:
    """The jets of a file in chunks of about `size`, in its order; other arguments as in `read`."""
    with open_source(path, key) as source:
        edges = _edges(*row_range(rows, source.count), size, source.alignment)
        parts = in_order(lambda rows: _checked(source.load(*rows), rows[0], skip_bad), pairwise(edges))
        for _, part in zip(counted("jets", edges[1:]), parts, strict=True):
            yield part


def public() -> Jets:
    """2,000 jets of the public TopTagging test file, 1,060 QCD and 940 top, for a last look only.

    By G. Kasieczka, T. Plehn, J. Thompson and M. Russell, https://zenodo.org/records/2603256, licence CC BY 4.0; their
    128 hardest constituents at most.

    >>> import normae
    >>> len(normae.jets.public())
    2000
    """
    return read(PUBLIC)


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
    return concatenate(chunks(path, rows, skip_bad=skip_bad, key=key))


def info(path: str | Path, key: str = "table") -> Info:
    """Format, number of jets and attributes of a file, without reading its jets."""
    with open_source(path, key) as source:
        kept = source.file.attrs.items() if isinstance(source, Ragged) else ()
        attributes = {name: value.item() if isinstance(value, np.generic) else value for name, value in kept}
        name = {Ragged: "normae-jets HDF5", Npz: "npz", Table: "TopTagging HDF5 (pandas)"}[type(source)]
        return Info(name, source.count, attributes)


def is_images(path: str | Path) -> bool:
    """Whether `path` is a file of sparse images."""
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
    refuse(not is_images(path), f"{path}: not a file of jet images (`normae jets images` writes one)")
    with _named(Path(path)), h5py.File(path, "r") as file:
        source = Ragged(file, {"pixel": "iu", "value": "iuf"})
        start, stop = row_range(rows, source.count)
        labels, counts, pixel, value = source.arrays(start, stop)
        image = np.repeat(np.arange(stop - start), counts)
        with np.errstate(all="ignore"):
            wrong_value = ~np.isfinite(value.astype(np.float32)) | (value < 0)
        problems = {
            "a label that is not 0 or 1": np.flatnonzero(~np.isin(labels, LABELS)),
            f"a pixel index outside the {SIDE}x{SIDE} frame": image[(pixel < 0) | (pixel >= SIDE * SIDE)],
            "a value that is negative or not finite": image[wrong_value],
        }
        bad = _bad(problems, len(labels), start, None if skip_bad else "images")
    keep = ~bad[image]
    labels, pixel = labels[~bad].astype(np.int8), pixel[keep].astype(np.uint16)
    return SparseImages(labels, offsets_of(counts[~bad]), pixel, value[keep], int(bad.sum()))
