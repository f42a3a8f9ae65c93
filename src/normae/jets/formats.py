"""The two ragged formats: our own HDF5 file, and the npz files of simulated jets.

Own HDF5 (`format` = "normae-jets", `version` = 1, further attributes say how the jets were made):

    labels (N,) int8, offsets (N + 1,) int64, pt, eta, phi (C,) float32, none compressed

npz: `label`, `count`, `jet` (pT, eta, phi, mass of each jet), and over constituents `pt` (float16), `deta`, `dphi`
(int16) with eta = eta_jet + deta / 20000 and the same for phi.

Each class here is a source: `count` jets, loaded by range as (labels, counts, pt, eta, phi, finite).
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError
from normae.files import atomic_path
from normae.jets.container import UNLABELLED, Jets, offsets_of

FORMAT = "normae-jets"
IMAGES = "normae-images"
VERSION = 1
ANGLE_UNIT = 20000.0


def wrap(phi: NDArray[Any]) -> NDArray[Any]:
    """phi brought into [-pi, pi]."""
    return np.asarray((phi + np.pi) % (2 * np.pi) - np.pi)


def text_of(value: Any) -> str:
    """An attribute as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def check_version(file: h5py.File, newest: int) -> None:
    """Refuse a file of a version that this program does not know."""
    text = text_of(file.attrs.get("version", newest))
    if not text.isdecimal() or not 1 <= int(text) <= newest:
        raise InputError(f"the file has version {text}, but this normae reads versions up to {newest}")


def check_flat(name: str, values: Any, kinds: str) -> None:
    """Refuse what is not a one-dimensional array (or dataset) whose type is one of `kinds` of numpy."""
    if len(values.shape or ()) != 1:
        raise InputError(f"{name!r} has the shape {values.shape}, but one dimension is expected")
    try:
        found = values.dtype
    except (ValueError, TypeError) as error:  # h5py knows no such type of numpy
        raise InputError(f"{name!r} has a type that cannot be read ({error}); the file may be damaged") from error
    if found.kind not in kinds:
        wanted = "real numbers" if "f" in kinds else "integers"
        raise InputError(f"{name!r} has the type {found}, but {wanted} are expected")


def check_datasets(file: h5py.File, kinds: dict[str, str]) -> None:
    """Refuse a file without one of the flat datasets that are named, each with its kinds of type."""
    for name, allowed in kinds.items():
        if not isinstance(file.get(name), h5py.Dataset):
            raise InputError(f"the file has no dataset {name!r}")
        check_flat(name, file[name], allowed)


def read_offsets(file: h5py.File, flat: tuple[str, ...]) -> NDArray[np.int64]:
    """The offsets with shape (N + 1,), which rise from 0 to the length of each of the datasets `flat`."""
    offsets = np.asarray(file["offsets"][:], dtype=np.int64)
    rising = len(offsets) == len(file["labels"]) + 1 and offsets[0] == 0 and (offsets[1:] >= offsets[:-1]).all()
    if not rising or {len(file[name]) for name in flat} != {int(offsets[-1])}:
        raise InputError(f"the offsets do not match the labels or the lengths of {', '.join(flat)}")
    return offsets


def _single(values: NDArray[Any]) -> NDArray[np.float32]:
    """float32; what does not fit becomes infinite, and the reader then finds it."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


class Ragged:
    """Our own HDF5 file."""

    alignment = 1

    def __init__(self, file: h5py.File) -> None:
        check_version(file, VERSION)
        check_datasets(file, {"labels": "biuf", "offsets": "iu", "pt": "iuf", "eta": "iuf", "phi": "iuf"})
        self.file = file
        self.offsets = read_offsets(file, ("pt", "eta", "phi"))
        self.count = len(file["labels"])

    def load(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """Rows start to stop."""
        first, last = self.offsets[start], self.offsets[stop]
        flat = (_single(self.file[name][first:last]) for name in ("pt", "eta", "phi"))
        counts = np.diff(self.offsets[start : stop + 1])
        return (self.file["labels"][start:stop], counts, *flat, np.ones(stop - start, dtype=bool))


class Npz:
    """An npz file of simulated jets; its arrays are small enough to be held whole."""

    alignment = 1

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                missing = [n for n in ("count", "jet", "pt", "deta", "dphi") if n not in arrays]
                if missing:
                    raise InputError(f"the file has no array {missing[0]!r}")
                self.arrays = {name: arrays[name] for name in ("count", "jet", "pt", "deta", "dphi")}
                unknown = np.full(self.arrays["count"].shape[:1], UNLABELLED, dtype=np.int8)
                self.arrays["label"] = arrays.get("label", unknown)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise InputError(f"the npz file is truncated or damaged ({error})") from error
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"the npz file cannot be read: {error}") from error
        self._check()
        self.count = len(self.arrays["label"])
        self.offsets = offsets_of(self.arrays["count"])

    def _check(self) -> None:
        """Refuse arrays whose shapes, types or lengths do not belong together."""
        kinds = {"label": "biuf", "count": "iu", "pt": "iuf", "deta": "iuf", "dphi": "iuf"}
        for name, allowed in kinds.items():
            check_flat(name, self.arrays[name], allowed)
        label, count, jet, pt = (self.arrays[name] for name in ("label", "count", "jet", "pt"))
        if jet.shape != (len(label), 4) or jet.dtype.kind not in "iuf":
            raise InputError(f"'jet' has the shape {jet.shape} and type {jet.dtype}, expected real ({len(label)}, 4)")
        if len(count) != len(label):
            raise InputError(f"'count' has {len(count)} entries, but 'label' has {len(label)}")
        if (wrong := np.flatnonzero((count < 0) | (count > len(pt)))).size:
            raise InputError(f"row {wrong[0]} has a count of {count[wrong[0]]}, but there are {len(pt)} constituents")
        total = int(count.sum(dtype=np.int64))
        for name in ("pt", "deta", "dphi"):
            if len(self.arrays[name]) != total:
                raise InputError(f"{name!r} has {len(self.arrays[name])} entries, but 'count' sums to {total}")

    def load(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """Rows start to stop."""
        flat = slice(self.offsets[start], self.offsets[stop])
        counts = self.arrays["count"][start:stop].astype(np.int64)
        axis = np.repeat(self.arrays["jet"][start:stop, 1:3].astype(np.float64), counts, axis=0)
        with np.errstate(invalid="ignore"):
            eta = axis[:, 0] + self.arrays["deta"][flat] / ANGLE_UNIT
            phi = wrap(axis[:, 1] + self.arrays["dphi"][flat] / ANGLE_UNIT)
        ones = np.ones(stop - start, dtype=bool)
        return (
            self.arrays["label"][start:stop],
            counts,
            _single(self.arrays["pt"][flat]),
            *map(_single, (eta, phi)),
            ones,
        )


class Writer:
    """Our own HDF5 file, appended to jets by jets; `close` writes the offsets."""

    def __init__(self, path: Path, attributes: dict[str, Any] | None = None) -> None:
        self.file = h5py.File(path, "w")
        self.file.attrs.update({"format": FORMAT, "version": VERSION, **(attributes or {})})
        types = {"labels": np.int8, "pt": np.float32, "eta": np.float32, "phi": np.float32}
        for name, kind in types.items():
            self.file.create_dataset(name, shape=(0,), maxshape=(None,), dtype=kind, chunks=(1 << 16,))
        self.counts: list[NDArray[np.int64]] = []

    def append(self, jets: Jets) -> None:
        """Add `jets` at the end."""
        for name in ("labels", "pt", "eta", "phi"):
            values, data = getattr(jets, name), self.file[name]
            data.resize((len(data) + len(values),))
            data[len(data) - len(values) :] = values
        self.counts.append(jets.counts)

    def close(self) -> None:
        """Write the offsets and close the file."""
        counts = np.concatenate(self.counts) if self.counts else np.zeros(0, dtype=np.int64)
        self.file["offsets"] = offsets_of(counts)
        self.file.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.file.close()


def write(path: str | Path, jets: Jets, attributes: dict[str, Any] | None = None) -> None:
    """Write `jets` to `path` in our own HDF5 format, whole or not at all."""
    with atomic_path(path) as temporary, Writer(temporary, attributes) as out:
        out.append(jets)
