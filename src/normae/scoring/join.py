"""Parts of scores, Parquet files with the same columns, joined into one Parquet, CSV or .npz file, part by part."""

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from normae.errors import InputError
from normae.files import atomic_path


def join(parts: Sequence[Path], out: Path) -> None:
    """Write all `parts` in order to `out`, whole or not at all."""
    with atomic_path(out) as temporary:
        WRITERS[out.suffix](parts, temporary)


def check_suffix(out: Path) -> None:
    """Refuse an output whose suffix names no known format, before any work is done."""
    if out.suffix not in WRITERS:
        raise InputError(f"{out}: expected a name that ends in {', '.join(WRITERS)}")


def _tables(parts: Sequence[Path]) -> Iterator[pa.Table]:
    for path in parts:
        yield pyarrow.parquet.read_table(path)


def _parquet(parts: Sequence[Path], out: Path) -> None:
    schema = pyarrow.parquet.read_schema(parts[0]).remove_metadata()
    with pyarrow.parquet.ParquetWriter(out, schema, use_dictionary=["file"]) as writer:
        for table in _tables(parts):
            writer.write_table(table)


def _csv(parts: Sequence[Path], out: Path) -> None:
    schema = _plain(pyarrow.parquet.read_schema(parts[0]))
    with pyarrow.csv.CSVWriter(out, schema) as writer:
        for table in _tables(parts):
            writer.write_table(table.cast(schema))


def _plain(schema: pa.Schema) -> pa.Schema:
    return schema.set(schema.get_field_index("file"), pa.field("file", pa.string()))


def _npz(parts: Sequence[Path], out: Path) -> None:
    """One array for each column; `file` is an index into the array `files`, which has the names."""
    rows = sum(pyarrow.parquet.read_metadata(path).num_rows for path in parts)
    names: list[str] = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for field in pyarrow.parquet.read_schema(parts[0]):
            dtype = np.dtype(np.int32) if field.name == "file" else field.type.to_pandas_dtype()
            with archive.open(_member(f"{field.name}.npy"), "w", force_zip64=True) as stream:
                header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (rows,)}
                np.lib.format.write_array_header_1_0(stream, header)
                for path in parts:
                    stream.write(_values(path, field.name, names).astype(dtype).tobytes())
        with archive.open(_member("files.npy"), "w") as stream:
            np.lib.format.write_array(stream, np.array(names), allow_pickle=False)


def _member(name: str) -> zipfile.ZipInfo:
    """With a fixed date, so that the same scores are the same bytes."""
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


def _values(path: Path, column: str, names: list[str]) -> NDArray[Any]:
    values = pyarrow.parquet.read_table(path, columns=[column])[column]
    if column != "file":
        return np.asarray(values.to_numpy())
    name = values[0].as_py()
    if name not in names:
        names.append(name)
    return np.full(len(values), names.index(name))


WRITERS: Mapping[str, Callable[[Sequence[Path], Path], None]] = {".parquet": _parquet, ".csv": _csv, ".npz": _npz}
