"""The public TopTagging files, in the layout of pandas, read with h5py alone.

A row holds E_i, PX_i, PY_i, PZ_i of up to 200 constituents, padded with zeros, and the label `is_signal_new`. pandas
keeps the columns in blocks (`values_block_0`, ...) and writes the names of a block's columns as a pickled list into an
attribute. Nothing is unpickled here: the pickle's opcodes are listed, and any opcode that is not part of a plain list
of strings is refused. With massless constituents

    pt = sqrt(px^2 + py^2),    eta = asinh(pz / pt),    phi = atan2(py, px).
"""

import importlib
import pickletools
import re
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError, refuse
from normae.jets.container import UNLABELLED

LABEL = "is_signal_new"
MOMENTA = ("E", "PX", "PY", "PZ")
_STRINGS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING"}
_SILENT = {"MARK", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "STOP", "PROTO", "FRAME", "MEMOIZE"}
_SILENT |= {"PUT", "BINPUT", "LONG_BINPUT"}
_PLUGINS = {32001: "blosc", 32026: "blosc2", 32015: "zstd", 32004: "lz4", 307: "bzip2", 32008: "bitshuffle"}


def strings_of_pickle(data: bytes) -> list[str]:
    """The strings of a pickled flat list of strings, found without unpickling."""
    try:
        opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(data)]
    except Exception as error:  # pickletools raises ValueError, UnicodeError and others on damaged bytes
        raise InputError(f"the column names cannot be parsed ({error})") from error
    for name, _ in opcodes:
        allowed = name in _STRINGS or name in _SILENT
        refuse(not allowed, f"the column names hold the pickle opcode {name}, which is never executed here")
    return [str(argument) for name, argument in opcodes if name in _STRINGS]


class Block(NamedTuple):
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
            raw = pickled.tobytes() if isinstance(pickled, np.ndarray | np.void) else bytes(pickled or b"")
            names = _default_names(width, kind.kind) if pickled is None else strings_of_pickle(raw)
        refuse(len(names) != width, f"the table's field {field!r} has {width} columns, but {len(names)} names")
        blocks.append(Block(table, field, names))
    return blocks


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
            name, way = _PLUGINS.get(code, f"HDF5 filter {code}"), "`pip install 'normae[blosc]'` (hdf5plugin)"
            raise InputError(f"the file is compressed with {name}, which needs {way}") from None


def _momentum_columns(names: list[str]) -> dict[str, slice | list[int]]:
    """Where E_0, E_1, ... stand in `names`, and the same of PX, PY, PZ; a slice where they are evenly spaced."""
    places = {name: i for i, name in enumerate(names)}
    count = max((int(name[2:]) for name in names if re.fullmatch(r"E_\d+", name)), default=-1) + 1
    missing = [f"{c}_{i}" for i in range(max(count, 1)) for c in MOMENTA if f"{c}_{i}" not in places]
    if missing:
        raise InputError(f"the table has no column {missing[0]!r} ({len(missing)} momentum columns are missing)")
    found: dict[str, slice | list[int]] = {}
    for letter in MOMENTA:
        index = [places[f"{letter}_{i}"] for i in range(count)]
        steps = set(np.diff(index).tolist())
        found[letter] = index
        if len(steps) == 1 and (step := steps.pop()) > 0:
            found[letter] = slice(index[0], index[-1] + 1, step)
    return found


class Table:
    """A TopTagging table, a source as those of `reader`."""

    def __init__(self, file: h5py.File, key: str = "table") -> None:
        refuse(key not in file, f"no key {key!r}; the file has {', '.join(sorted(file)) or 'no keys'}")
        node = file[key]
        table = node["table"] if isinstance(node, h5py.Group) and "table" in node else node
        compound = isinstance(table, h5py.Dataset) and table.dtype.names is not None
        blocks = _compound_blocks(table) if compound else _fixed_blocks(node) if isinstance(node, h5py.Group) else []
        refuse(not blocks, f"the key {key!r} holds no pandas table")
        self.compound = compound
        self.momenta = max(blocks, key=lambda block: len(block.names))
        self.slices = _momentum_columns(self.momenta.names)
        self.label = next((block for block in blocks if LABEL in block.names), None)
        for data in {self.momenta.data, (self.label or self.momenta).data}:
            _require_filters(data)
        self.count = int(self.momenta.data.shape[0])
        self.alignment = int(self.momenta.data.chunks[0]) if self.momenta.data.chunks else 1

    def load(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """As that of `reader.Ragged`.

        The sums of the columns tell where the padding of all rows begins, and whether anything is not finite.
        """
        records = None
        if self.compound:
            records = np.empty(stop - start, dtype=self.momenta.data.dtype)
            self.momenta.data.read_direct(records, np.s_[start:stop])
        labels = np.full(stop - start, UNLABELLED, dtype=np.int8)
        if self.label is not None:
            labels = self.label.load(start, stop, records)[:, self.label.names.index(LABEL)].copy()
        values = self.momenta.load(start, stop, records)
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
