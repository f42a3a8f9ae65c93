"""The formats of jets: our own HDF5 file, the npz files of simulated jets, and the public TopTagging files.

Own HDF5 (`format` = "normae-jets", `version` = 1, further attributes say how the jets were made):

    labels (N,) int8, offsets (N + 1,) int64, pt, eta, phi (C,) float32, none compressed

npz: `label`, `count`, `jet` (pT, eta, phi, mass of each jet), and over constituents `pt` (float16), `deta`, `dphi`
(int16) with eta = eta_jet + deta / 20000 and the same for phi.

TopTagging, the layout of pandas, read with h5py alone: a row holds E_i, PX_i, PY_i, PZ_i of up to 200 constituents,
padded with zeros, and the label `is_signal_new`. pandas keeps the columns in blocks (`values_block_0`, ...) and writes
the names of a block's columns as a pickled list into an attribute. Nothing is unpickled here: the pickle's opcodes are
listed, and any opcode that is not part of a plain list of strings is refused. With massless constituents

    pt = sqrt(px^2 + py^2),    eta = asinh(pz / pt),    phi = atan2(py, px).

Each class here is a source: `count` jets, loaded by range as (labels, counts, pt, eta, phi, finite).
"""

import importlib
import pickletools
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
LABEL = "is_signal_new"
MOMENTA = ("E", "PX", "PY", "PZ")
_STRINGS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING"}
_SILENT = {"MARK", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "STOP", "PROTO", "FRAME", "MEMOIZE"}
_SILENT |= {"PUT", "BINPUT", "LONG_BINPUT"}
_PLUGINS = {32001: "blosc", 32026: "blosc2", 32015: "zstd", 32004: "lz4", 307: "bzip2", 32008: "bitshuffle"}


def wrap(phi: NDArray[Any]) -> NDArray[Any]:
    """phi brought into [-pi, pi]."""
    return np.asarray((phi + np.pi) % (2 * np.pi) - np.pi)


def text_of(value: Any) -> str:
    """An attribute as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def check_version(file: h5py.File) -> None:
    """Refuse a file of a version that this program does not know."""
    text = text_of(file.attrs.get("version", VERSION))
    if not text.isdecimal() or not 1 <= int(text) <= VERSION:
        raise InputError(f"the file has version {text}, but this normae reads versions up to {VERSION}")


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
        check_version(file)
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


# --- TopTagging


def strings_of_pickle(data: bytes) -> list[str]:
    """The strings of a pickled flat list of strings, found without unpickling."""
    names: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _STRINGS:
                names.append(str(argument))
            elif opcode.name not in _SILENT:
                raise InputError(f"the column names hold the pickle opcode {opcode.name}, which is never executed here")
    except InputError:
        raise
    except Exception as error:  # pickletools raises ValueError, UnicodeError and others on damaged bytes
        raise InputError(f"the column names cannot be parsed ({error})") from error
    return names


@dataclass(frozen=True)
class Block:
    """Some columns of the table: `field` of a compound dataset, or a whole two-dimensional dataset."""

    data: h5py.Dataset
    field: str | None
    names: list[str]

    def load(self, start: int, stop: int, records: NDArray[Any] | None) -> NDArray[Any]:
        """Rows start to stop, with shape (n, columns)."""
        rows = self.data[start:stop] if records is None else records[self.field]
        return np.asarray(rows).reshape(stop - start, len(self.names))


def _default_names(width: int, kind: str) -> list[str]:
    """The order of the public files, for tables that lost their attributes."""
    if kind in "iu":
        return {1: [LABEL], 2: ["ttv", LABEL]}.get(width, [f"unknown_{i}" for i in range(width)])
    if width > 4 and width % 4:
        raise InputError(f"the table names no columns and has {width} of them, which is not four for each constituent")
    names = [f"{c}_{i}" for i in range(width // 4) for c in MOMENTA]
    if width % 800 == 4:
        names[-4:] = ["truthE", "truthPX", "truthPY", "truthPZ"]
    return names + [f"unknown_{i}" for i in range(width - len(names))]


def _compound_blocks(table: h5py.Dataset) -> list[Block]:
    blocks = []
    for field in table.dtype.names or ():
        kind = table.dtype[field].base
        width = int(np.prod(table.dtype[field].shape, dtype=np.int64))
        names = [field]
        if field.startswith("values_block_"):
            pickled = table.attrs.get(f"{field}_kind")
            names = _default_names(width, kind.kind) if pickled is None else strings_of_pickle(_raw(pickled))
        if len(names) != width:
            raise InputError(f"the table's field {field!r} has {width} columns, but {len(names)} names")
        blocks.append(Block(table, field, names))
    return blocks


def _raw(attribute: Any) -> bytes:
    return attribute.tobytes() if isinstance(attribute, np.ndarray | np.void) else bytes(attribute)


def _fixed_blocks(group: h5py.Group) -> list[Block]:
    blocks = []
    for key in group:
        if match := re.fullmatch(r"block(\d+)_values", key):
            if (name := f"block{match[1]}_items") not in group:
                raise InputError(f"the table has no {name!r}, which names its columns")
            items = group[name][:]
            blocks.append(Block(group[key], None, [i.decode() if isinstance(i, bytes) else str(i) for i in items]))
    return blocks


def _require_filters(data: h5py.Dataset) -> None:
    """Load the decompressor of `data`, or say which package brings it."""
    properties = data.id.get_create_plist()
    for i in range(properties.get_nfilters()):
        code = properties.get_filter(i)[0]
        if h5py.h5z.filter_avail(code):
            continue
        try:
            importlib.import_module("hdf5plugin")
        except ImportError:
            name = _PLUGINS.get(code, f"HDF5 filter {code}")
            raise InputError(f"the file is compressed with {name}, which needs `pip install hdf5plugin`") from None


def _columns(names: list[str], letter: str, count: int) -> slice | list[int]:
    """Where `letter`_0 to `letter`_{count-1} stand in `names`; a slice where they are evenly spaced."""
    places = {name: i for i, name in enumerate(names)}
    index = [places[f"{letter}_{i}"] for i in range(count)]
    steps = set(np.diff(index).tolist())
    if len(steps) == 1 and (step := steps.pop()) > 0:
        return slice(index[0], index[-1] + 1, step)
    return index


class Table:
    """A TopTagging table: `count` rows, loaded by range as (labels, counts, pt, eta, phi, finite)."""

    def __init__(self, file: h5py.File, key: str = "table") -> None:
        if key not in file:
            raise InputError(f"no key {key!r}; the file has {', '.join(sorted(file)) or 'no keys'}")
        node = file[key]
        table = node["table"] if isinstance(node, h5py.Group) and "table" in node else node
        compound = isinstance(table, h5py.Dataset) and table.dtype.names is not None
        blocks = _compound_blocks(table) if compound else _fixed_blocks(node) if isinstance(node, h5py.Group) else []
        if not blocks:
            raise InputError(f"the key {key!r} holds no pandas table")
        self.compound = compound
        self.momenta, self.constituents = self._find_momenta(blocks)
        self.label = next((block for block in blocks if LABEL in block.names), None)
        for data in {self.momenta.data, (self.label or self.momenta).data}:
            _require_filters(data)
        self.count = int(self.momenta.data.shape[0])
        self.alignment = int(self.momenta.data.chunks[0]) if self.momenta.data.chunks else 1
        self.slices = {c: _columns(self.momenta.names, c, self.constituents) for c in MOMENTA}

    @staticmethod
    def _find_momenta(blocks: list[Block]) -> tuple[Block, int]:
        block = max(blocks, key=lambda b: len(b.names))
        indices = [int(n[2:]) for n in block.names if re.fullmatch(r"E_\d+", n)]
        count = max(indices, default=-1) + 1
        missing = [f"{c}_{i}" for i in range(max(count, 1)) for c in MOMENTA if f"{c}_{i}" not in set(block.names)]
        if missing:
            raise InputError(f"the table has no column {missing[0]!r} ({len(missing)} momentum columns are missing)")
        return block, count

    def _rows(self, start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Labels with shape (n,) and all columns of the momenta's block, with shape (n, columns)."""
        records = None
        if self.compound:
            records = np.empty(stop - start, dtype=self.momenta.data.dtype)
            self.momenta.data.read_direct(records, np.s_[start:stop])
        labels = np.full(stop - start, UNLABELLED, dtype=np.int8)
        if self.label is not None:
            labels = self.label.load(start, stop, records)[:, self.label.names.index(LABEL)].copy()
        return labels, self.momenta.load(start, stop, records)

    def load(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """Rows start to stop: labels, counts, finite with shape (n,), and pt, eta, phi with shape (C,).

        The sums of the columns tell where the padding of all rows begins, and whether anything is not finite.
        """
        labels, values = self._rows(start, stop)
        with np.errstate(all="ignore"):
            sums = values.sum(axis=0)
            used = np.any([sums[self.slices[c]] != 0 for c in MOMENTA], axis=0)
            width = int(np.max(np.flatnonzero(used), initial=-1)) + 1
            px, py, pz = (values[:, self.slices[c]][:, :width] for c in MOMENTA[1:])
            filled = (px != 0) | (py != 0)
            px, py, pz = (np.asarray(a[filled], dtype=np.float32) for a in (px, py, pz))
            pt = np.sqrt(px * px + py * py)
            eta, phi = np.arcsinh(pz / pt), np.arctan2(py, px)
        finite = np.ones(len(values), dtype=bool)
        if not np.isfinite(sums).all():
            finite = np.all([np.isfinite(values[:, s]).all(axis=1) for s in self.slices.values()], axis=0)
        return labels, filled.sum(axis=1), pt, eta, phi, finite


# --- writing


@contextmanager
def writing(path: str | Path, attributes: dict[str, Any] | None = None) -> Iterator[Callable[[Jets], None]]:
    """A function that appends jets to a new file in our own HDF5 format, which appears whole or not at all."""
    counts = [np.zeros(0, dtype=np.int64)]
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update({"format": FORMAT, "version": VERSION, **(attributes or {})})
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


def write(path: str | Path, jets: Jets, attributes: dict[str, Any] | None = None) -> None:
    """Write `jets` to `path` in our own HDF5 format, whole or not at all."""
    with writing(path, attributes) as append:
        append(jets)
