"""Tables in HDF5: a compound dataset has columns, any other is an array, datasets (N,) of one group are columns.

A group may have 100,000 of them, and to open one takes HDF5 itself some twenty microseconds. What is equal to a dataset
that was opened, byte by byte in its header but for where the values lie, holds the same and is not opened. Any other is
opened once, by HDF5's own calls: an object of h5py takes four times as long.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5, h5d, h5g, h5l, h5o, h5p

from normae.data.table import Table, array_table, column_table, not_real, one_length, reading
from normae.errors import InputError, refuse, require_that

NAMES = "utf-8", "surrogateescape"  # of names, which may be any bytes
IN_FILE = h5d.CHUNKED, h5d.COMPACT
MANY, MISSES = 100, 8  # in groups of more datasets headers are compared, until so often few are alike


class Dataset(NamedTuple):
    """What a dataset holds, and whether it is known to lie in the file of its group."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    own: bool


NOTHING = Dataset((), np.dtype(float), False)


def hdf5(path: Path, dataset: str | None, stack: ExitStack) -> Table:
    """The table of a file, or of its group or dataset of this name."""
    file = stack.enter_context(h5py.File(path, "r"))
    if dataset is not None and dataset not in file:
        raise InputError(f"{path}: no group or dataset {dataset!r}; the file has {sorted(file)}")
    node: Any = file if dataset is None else file[dataset]
    if not isinstance(node, h5py.Dataset):
        inside = _datasets(node)
        flat = {name: data for name, data in inside.items() if len(data.shape) == 1 and data.dtype.names is None}
        if flat:
            return _columns(path, node, flat)
        expected = "one dataset, or columns of shape (N,)"
        require_that(len(inside) == 1, str(path), expected, f"{sorted(node)}; name a dataset")
        node = node[next(iter(inside)).encode(*NAMES)]
    table = array_table(path, node.shape, node.dtype, lambda start, stop: node[start:stop])
    table.sources = sources(path, [node])
    return table


def _columns(path: Path, group: Any, datasets: Mapping[str, Dataset]) -> Table:
    rows = one_length(path, {data.shape[0] for data in datasets.values()})
    opened = cache(lambda name: group[name.encode(*NAMES)])  # while it is open, HDF5 keeps what it has unpacked
    kind, values = lambda name: not_real(datasets[name].dtype), lambda name, start, stop: opened(name)[start:stop]
    table = column_table(path, rows, list(datasets), kind, values)
    table.sources = sources(path, (opened(name) for name, data in datasets.items() if not data.own))
    return table


def _datasets(group: Any) -> dict[str, Dataset]:
    """The datasets of a group by their names, in its order; one that is damaged is an error."""
    places: dict[bytes, int | None] = {}  # of headers in the file; None behind a link
    made = h5g.open(group.id, b".").get_create_plist()  # that of a file is another
    tracked = made.get_link_creation_order() & h5p.CRT_ORDER_TRACKED
    order = h5.INDEX_CRT_ORDER if tracked else h5.INDEX_NAME  # as h5py lists them

    def link(name: bytes, of: Any) -> None:
        places[name] = of.u if of.type == h5l.TYPE_HARD else None

    group.id.links.iterate(link, idx_type=order, info=True)
    found, known, misses = dict.fromkeys(places, NOTHING), dict.fromkeys(places, NOTHING), 0
    for name, place in places.items():
        if (same := known[name]) is not NOTHING:
            found[name] = same
            continue
        try:
            data = h5d.open(group.id, name)
        except Exception:
            if (place is None and group.get(name) is None) or not isinstance(h5o.open(group.id, name), h5d.DatasetID):
                continue  # it leads nowhere, or to a group
            raise
        offset = data.get_offset()
        own = place is not None and (offset is not None or data.get_create_plist().get_layout() in IN_FILE)
        found[name] = Dataset(data.shape or (), data.dtype, own)
        if place is not None and offset is not None and len(places) > MANY and misses < MISSES:
            alike = _alike(group, name, offset, places)
            known |= dict.fromkeys(alike, found[name])
            misses += 20 * len(alike) < len(places)
    return {name.decode(*NAMES): data for name, data in found.items() if data is not NOTHING}


def _alike(group: Any, name: bytes, offset: int, places: Mapping[bytes, int | None]) -> list[bytes]:
    """The names whose header is that of `name`, but for the offset of the values, where it can be seen in the file."""
    header, file, place = h5o.get_info(group.id, name).hdr, group.file, places[name]
    size, where = header.space.total, offset.to_bytes(8, "little")
    if file.driver != "sec2" or file.userblock_size or header.nchunks != 1 or place is None:
        return []
    with open(file.filename, "rb", buffering=0) as raw:
        before, *after = os.pread(raw.fileno(), size, place).split(where)
        if len(after) != 1:
            return []
        parts = slice(len(before)), slice(len(before) + len(where), size)
        inside = [(other, at) for other, at in places.items() if at is not None and at < os.fstat(raw.fileno()).st_size]
        blocks = ((other, os.pread(raw.fileno(), size, at)) for other, at in inside)
        return [other for other, block in blocks if [block[part] for part in parts] == [before, *after]]


def sources(path: Path, datasets: Iterable[Any], levels: int = 8) -> list[Path]:
    """A file and those that its datasets are in, at any depth: behind links, virtual ones, or outside of HDF5."""
    refuse(not levels, f"{path}: expected virtual datasets of others that end, got some that lead back to themselves")
    others, shown = [path], dict[Path, set[str]]()  # files, and by file the datasets in it that virtual ones show
    for data in datasets:
        own = Path(data.file.filename)
        others += [own, *(Path(str(entry[0])) for entry in data.external or ())]
        for source in data.virtual_sources() if data.is_virtual else ():
            numbered = "%b" in (source.file_name + source.dset_name).replace("%%", "")
            refuse(numbered, f"{own}: shows {source.file_name}, and HDF5 does not say which are gone; name the files")
            name, inside = source.file_name.replace("%%", "%"), source.dset_name.replace("%%", "%")
            shown.setdefault(own if name == "." else _place(name, own), set()).add(inside)
    for file, names in shown.items():
        with reading(file), h5py.File(file, "r") as opened:
            others += sources(file, [opened[name] for name in names], levels - 1)
    return [path, *(file for file in dict.fromkeys(others) if file.is_file() and not file.samefile(path))]


def _place(name: str, own: Path) -> Path:
    """Where HDF5 finds the file `name` for a virtual dataset in the file `own`; it gives zeros where it finds none."""
    prefixes = map(Path, filter(None, os.environ.get("HDF5_VDS_PREFIX", "").split(":")))
    folders = [*prefixes, own.parent, Path(), own.resolve().parent]
    last = Path(name).name if Path(name).is_absolute() else name  # it may have moved together with `own`
    for place in (Path(folder, one) for one in (name, last) for folder in folders):
        if place.is_file():
            return place
    raise InputError(f"{own}: the file {name}, whose rows it shows, is gone; put it back")
