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
from normae.jets.container import Jets, offsets_of

FORMAT = "normae-jets"
VERSION = 1
ANGLE_UNIT = 20000.0


def wrap(phi: NDArray[Any]) -> NDArray[Any]:
    """phi brought into [-pi, pi]."""
    return np.asarray((phi + np.pi) % (2 * np.pi) - np.pi)


class Ragged:
    """Our own HDF5 file."""

    alignment = 1

    def __init__(self, file: h5py.File) -> None:
        for name in ("labels", "offsets", "pt", "eta", "phi"):
            if name not in file:
                raise InputError(f"the file has no dataset {name!r}")
        self.file = file
        self.offsets = np.asarray(file["offsets"][:], dtype=np.int64)
        self.count = len(file["labels"])
        lengths = {len(file[name]) for name in ("pt", "eta", "phi")}
        rising = len(self.offsets) == self.count + 1 and self.offsets[0] == 0 and (np.diff(self.offsets) >= 0).all()
        if not rising or lengths != {int(self.offsets[-1])}:
            raise InputError("the offsets do not match the labels or the constituents")

    def load(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """Rows start to stop."""
        first, last = self.offsets[start], self.offsets[stop]
        flat = (self.file[name][first:last] for name in ("pt", "eta", "phi"))
        counts = np.diff(self.offsets[start : stop + 1])
        return (self.file["labels"][start:stop], counts, *flat, np.ones(stop - start, dtype=bool))


class Npz:
    """An npz file of simulated jets; its arrays are small enough to be held whole."""

    alignment = 1

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                missing = [n for n in ("label", "count", "jet", "pt", "deta", "dphi") if n not in arrays]
                if missing:
                    raise InputError(f"the file has no array {missing[0]!r}")
                self.arrays = {name: arrays[name] for name in ("label", "count", "jet", "pt", "deta", "dphi")}
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise InputError(f"the npz file is truncated or damaged ({error})") from error
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"the npz file cannot be read: {error}") from error
        self.count = len(self.arrays["label"])
        self.offsets = offsets_of(self.arrays["count"])
        lengths = {len(self.arrays[name]) for name in ("pt", "deta", "dphi")}
        if lengths != {int(self.offsets[-1])} or self.arrays["jet"].shape != (self.count, 4):
            raise InputError("the arrays of the npz file do not match each other in length")

    def load(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """Rows start to stop."""
        flat = slice(self.offsets[start], self.offsets[stop])
        counts = self.arrays["count"][start:stop].astype(np.int64)
        axis = np.repeat(self.arrays["jet"][start:stop, 1:3].astype(np.float64), counts, axis=0)
        eta = axis[:, 0] + self.arrays["deta"][flat] / ANGLE_UNIT
        phi = wrap(axis[:, 1] + self.arrays["dphi"][flat] / ANGLE_UNIT)
        pt = self.arrays["pt"][flat].astype(np.float32)
        ones = np.ones(stop - start, dtype=bool)
        return (self.arrays["label"][start:stop], counts, pt, eta.astype(np.float32), phi.astype(np.float32), ones)


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
