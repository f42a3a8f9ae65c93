"""Tables of every kind of file: the same numbers from each, in chunks of any size; one sentence for what is not one."""

import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normae.data import Rows, open_table, read_rows, read_table
from normae.data.tables import write_rows
from normae.errors import InputError

NAMES = ("pT", "η größe", "a.b", "c")
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def values(rows: int = 1000) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(rows, len(NAMES)))


def write_named(path: Path, x: np.ndarray, names: tuple[str, ...] = NAMES) -> Path:
    """`x` with shape (N, d) as columns of a file of whatever kind the suffix says."""
    columns = {name: x[:, j] for j, name in enumerate(names)}
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".npy":
        record = np.zeros(len(x), dtype=[(name, x.dtype) for name in names])
        for name, column in columns.items():
            record[name] = column
        with warnings.catch_warnings(action="ignore"):  # names beyond Latin-1 need a newer format
            np.save(path, record)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(pa.table(columns), path)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=300)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name, column in columns.items():
                file.create_dataset(name, data=column, chunks=(128,) if len(x) > 128 else None)
    else:
        uproot = pytest.importorskip("uproot")
        with uproot.recreate(path) as file:
            file.mktree("events", {name: column.dtype for name, column in columns.items()}).extend(columns)
    return path


KINDS = [".npy", ".npz", ".csv", ".parquet", ".h5"]


@pytest.mark.parametrize("suffix", [*KINDS, ".root"])
def test_columns_by_name_from_every_kind(tmp_path, suffix):
    x = values()
    names = ("pT", "eta", "ab", "c") if suffix == ".root" else NAMES
    path = write_named(tmp_path / f"t{suffix}", x, names)
    got, columns = read_table(path)
    assert set(columns) == set(names)  # HDF5 has an order of its own
    assert np.array_equal(got[:, [columns.index(name) for name in names]], x.astype(np.float32))
    got, columns = read_table(path, (names[3], names[1]))
    assert columns == (names[3], names[1])
    assert np.array_equal(got, x[:, [3, 1]].astype(np.float32))
    rows = read_rows(path, (names[1],), None, names[0])
    assert rows.columns == (names[1],)
    assert np.array_equal(rows.values[:, 0], x[:, 1])
    assert np.array_equal(rows.weights, x[:, 0])
    with open_table(path) as table:
        assert table.rows == len(x)
        with pytest.raises(InputError, match="no column 'mass'; the file has "):
            table.select(["pT", "mass"])
    with pytest.raises(InputError, match="no column 'mass'; the file has "):  # as a training looks for text
        read_rows(path, ("mass",), None, None, categories=None)


@pytest.mark.parametrize("suffix", KINDS)
@QUICK
@given(start=st.integers(0, 999), length=st.integers(1, 1000), size=st.integers(1, 1100))
def test_chunks_of_any_size_are_the_rows(tmp_path_factory, suffix, start, length, size):
    x, stop = values().astype(np.float32), min(start + length, 1000)
    path = tmp_path_factory.getbasetemp() / f"chunks{suffix}"
    if not path.exists():
        write_named(path, x)
    with open_table(path) as table:
        chunks = [(first, chunk.copy()) for first, chunk in table.chunks(NAMES, start, stop, size)]
    assert [first for first, _ in chunks] == list(range(start, stop, size))
    assert all(len(chunk) == size for _, chunk in chunks[:-1])
    assert np.array_equal(np.concatenate([chunk for _, chunk in chunks]), x[start:stop])


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_weights_beside_an_array(tmp_path, suffix):
    arrays = {"x": values(5), "w": np.array([1.0, 2, -1, 0, 3])}
    path = tmp_path / f"x.{suffix}"
    if suffix == "npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            file.update(arrays)
    rows = read_rows(path, None, "x", "w")
    assert np.array_equal(rows.values, arrays["x"])
    assert np.array_equal(rows.weights, arrays["w"])
    with pytest.raises(InputError, match=r"no array 'weight' with weights; the file has \['w', 'x'\]"):
        read_rows(path, None, "x", "weight")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["npy", "npz", "compressed", "h5"])
def test_arrays_without_names(tmp_path, order, kind):
    x = np.asarray(np.random.default_rng(0).normal(size=(70, 2, 3)), order=order)
    path = tmp_path / f"x.{'npz' if kind == 'compressed' else kind}"
    if kind == "npy":
        np.save(path, x)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file["events"] = x
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(path, x=x, label=np.zeros(70))
    got, columns = read_table(path)
    assert columns is None
    assert np.array_equal(got, x.astype(np.float32))
    with open_table(path) as table:
        assert np.array_equal(next(table.chunks(start=60, size=7))[1], x[60:67].astype(np.float32))
        with pytest.raises(InputError, match=r"expected events of shape \(5,\), got \(2, 3\)"):
            table.select(None, (5,))
        with pytest.raises(InputError, match=r"shape \(2,\) with the columns a, b, got \(2, 3\)"):
            table.select(["a", "b"])


@pytest.mark.parametrize("suffix", [*KINDS, ".root"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_the_first_bad_row_is_named(tmp_path, suffix, bad):
    x, names = values(500), ("a", "b", "c", "d")
    x[321, 2] = x[400, 1] = bad
    path = write_named(tmp_path / f"t{suffix}", x, names)
    with pytest.raises(InputError, match=r"beyond float32 in column 'c', the first at row 321; remove"):
        read_table(path)
    with open_table(path) as table, pytest.raises(InputError, match="the first at row 321;"):
        list(table.chunks(names, 200, 500, 64))


def test_missing_values_are_nan(tmp_path):
    pyarrow.parquet.write_table(pa.table({"a": [1, 2, None], "b": [1.0, 2.0, 3.0]}), tmp_path / "n.parquet")
    (tmp_path / "n.csv").write_text("a,b\n1,2\n,3\n")
    with pytest.raises(InputError, match="in column 'a', the first at row 2"):
        read_table(tmp_path / "n.parquet")
    with pytest.raises(InputError, match="in column 'a', the first at row 1"):
        read_table(tmp_path / "n.csv")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".h5", ".csv"])
def test_a_column_of_text_is_named(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_text("a,wörter\n1,zwei\n3,4\n")
    elif suffix == ".npy":
        np.save(path, np.array([(1.0, "x"), (2.0, "y")], dtype=[("a", "f8"), ("wörter", "U3")]))
    elif suffix == ".npz":
        np.savez(path, a=np.arange(2.0), wörter=np.array(["x", "y"]))
    elif suffix == ".parquet":
        pyarrow.parquet.write_table(pa.table({"a": [1.0, 2.0], "wörter": ["x", "y"]}), path)
    else:
        with h5py.File(path, "w") as file:
            file["a"], file["wörter"] = np.arange(2.0), np.array([b"x", b"y"])
    with pytest.raises(InputError, match="the column 'wörter' "):
        read_table(path)
    assert read_table(path, ["a"])[0].shape == (2, 1)


def test_huge_integers(tmp_path):
    (tmp_path / "h.csv").write_text("a,b\n1,2\n" + "9" * 400 + ",3\n")
    with pytest.raises(InputError, match="beyond float32 in column 'a', the first at row 1"):
        read_table(tmp_path / "h.csv")
    pyarrow.parquet.write_table(pa.table({"a": pa.array([2**64 - 1, 0], pa.uint64())}), tmp_path / "h.parquet")
    with pytest.raises(InputError, match="the column 'a' holds whole numbers that float32 rounds"):
        read_table(tmp_path / "h.parquet")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"9" * 30 + b", 2), }\n"
    (tmp_path / "h.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64))
    with pytest.raises(InputError, match="bytes for an array of shape"):
        read_table(tmp_path / "h.npy")


def test_the_index_of_a_pandas_frame_is_no_feature(tmp_path, caplog):
    """Where columns are named, it is taken; in a CSV file nothing tells it from others, but that it has no name."""
    frame = pandas.DataFrame({"pt": [10.0, 50, 20, 60, 70], "eta": [1.0, 2, 3, 4, 5]})
    for cut, index in ((frame[frame.pt > 40], "__index_level_0__"), (frame.set_index("pt").iloc[1:], "pt")):
        cut.to_parquet(tmp_path / "cut.parquet")
        x, columns = read_table(tmp_path / "cut.parquet")
        assert columns == tuple(cut.columns)
        assert np.array_equal(x, cut)
        assert f"the index of a pandas frame, '{index}', is left out" in caplog.text
        assert read_rows(tmp_path / "cut.parquet", ["eta"], None, index).columns == ("eta",)
        caplog.clear()
        assert read_table(tmp_path / "cut.parquet", [index, "eta"])[1] == (index, "eta")
        assert not caplog.text
    frame[frame.pt > 40].to_csv(tmp_path / "cut.csv")
    for categories in (None, ()):
        with pytest.raises(InputError, match="a column without a name, such as the index of a data frame; name those"):
            read_rows(tmp_path / "cut.csv", None, None, None, categories=categories)
    assert read_table(tmp_path / "cut.csv", ["pt"])[0].tolist() == [[50], [60], [70]]
    for kind in ("parquet", "csv"):
        with pytest.raises(InputError, match="expected at least one column, got none"):
            read_table(tmp_path / f"cut.{kind}", [])
    spoiled = pa.table({"a": [1.0]}).replace_schema_metadata({"pandas": "{"})
    pyarrow.parquet.write_table(spoiled, tmp_path / "spoiled.parquet")
    with pytest.raises(InputError, match="damaged, or not a .parquet file"):
        read_table(tmp_path / "spoiled.parquet")
    assert read_table(tmp_path / "spoiled.parquet", ["a"])[0].tolist() == [[1]]


@pytest.mark.parametrize("suffix", [*KINDS, ".root"])
def test_booleans_are_zero_and_one(tmp_path, suffix):
    x = values(400)[:, :2] > 0
    path = write_named(tmp_path / f"t{suffix}", x, ("a", "b"))
    for categories in (None, ()):  # as a training reads, and as all others
        assert np.array_equal(read_rows(path, None, None, None, categories=categories).values, x)


def test_booleans_that_are_missing(tmp_path):
    pyarrow.parquet.write_table(pa.table({"a": [True, None, False]}), tmp_path / "n.parquet")
    (tmp_path / "n.csv").write_text("a,b\nTrue,1\n,2\nFalse,3\n")
    for name in ("n.parquet", "n.csv"):
        with pytest.raises(InputError, match="in column 'a', the first at row 1"):
            read_table(tmp_path / name)
        assert read_rows(tmp_path / name, ["a"], None, None, "drop", None).values.tolist() == [[1], [0]]


def test_advice_for_whole_numbers_that_are_rounded(tmp_path):
    """A wider type is named where there is one."""
    np.save(tmp_path / "n.npy", np.array([[2**53 + 1, 2]]))
    with pytest.raises(
        InputError, match='float32 rounds, .* or train with coordinates.kind = "table", which reads flo'
    ):
        read_table(tmp_path / "n.npy")
    with pytest.raises(InputError, match="float64 rounds, .*; subtract an offset, or leave it out$"):
        read_table(tmp_path / "n.npy", dtype=np.float64)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "", "got an empty file"),
        ("t.csv", "a,b\n", "got an empty table"),
        ("t.csv", "1,2\n3,4\n", "expected names of columns in the first line, got the number '1'"),
        ("t.csv", "a,a\n3,4\n", "the column 'a' is there more than once"),
        ("t.csv", "a,b\n1,2\n3\n", "Expected 2 columns, got 1"),
        ("t.txt", "a", "expected a name that ends in .npy, .npz, .csv, .parquet, .h5, .hdf5, .root"),
        ("t.parquet", "a,b\n1,2\n", "damaged, or not a .parquet file"),
        ("t.h5", "a,b\n1,2\n", "damaged, or not a .h5 file"),
        ("t.npz", "a,b\n1,2\n", "damaged, or not a .npz file"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_table(tmp_path / name)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / f"none{Path(name).suffix}")


def test_a_choice_must_be_made(tmp_path):
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["one/x"], file["two"] = np.zeros((3, 2)), np.ones((3, 2))
        file["more"] = np.zeros((4, 2))
    with pytest.raises(InputError, match=r"got \['more', 'one', 'two'\]; name a dataset"):
        read_table(tmp_path / "t.h5")
    assert read_table(tmp_path / "t.h5", dataset="two")[0].sum() == 6
    assert read_table(tmp_path / "t.h5", dataset="one")[0].shape == (3, 2)
    with pytest.raises(InputError, match="no group or dataset 'three'"):
        read_table(tmp_path / "t.h5", dataset="three")
    np.savez(tmp_path / "t.npz", a=np.zeros((3, 2)), b=np.ones(3))
    with pytest.raises(InputError, match="expected an array named x"):
        read_table(tmp_path / "t.npz")
    assert read_table(tmp_path / "t.npz", dataset="a")[0].shape == (3, 2)
    np.savez(tmp_path / "u.npz", a=np.zeros(3), b=np.ones(4))
    with pytest.raises(InputError, match="columns of one length"):
        read_table(tmp_path / "u.npz")


def test_a_bomb_is_not_unpacked(tmp_path):
    """A member of an archive that says less than it holds, or more, is refused before it is read."""
    with (
        zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as stream,
    ):
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 2)})
    with pytest.raises(InputError, match="bytes for an array of shape"):
        read_table(tmp_path / "b.npz")


@pytest.mark.parametrize("suffix", KINDS)
@QUICK
@given(data=st.data())
def test_damaged_files_give_one_sentence(tmp_path_factory, suffix, data):
    """Cut anywhere, or with bytes changed: the right numbers, other finite numbers, or one sentence; no other error."""
    folder = tmp_path_factory.mktemp("damaged")
    path = write_named(folder / f"t{suffix}", values(40), ("a", "b", "c", "d"))
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans(), "cut"):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1), "length")]
        cut = True
    else:
        cut = False
        for _ in range(data.draw(st.integers(1, 4), "changes")):
            raw[data.draw(st.integers(0, len(raw) - 1), "place")] = data.draw(st.integers(0, 255), "byte")
    path.write_bytes(raw)
    got, sentence = outcome(path)
    if got is None:
        assert len(sentence.splitlines()) == 1
        assert sentence.startswith(str(path))
    else:
        assert np.isfinite(got).all()
        assert not cut or suffix == ".csv", "a file that was cut is not read"


def test_a_compressed_table_is_read_or_the_extra_is_named(tmp_path):
    """In processes of their own: a filter that was loaded once stays."""
    pytest.importorskip("hdf5plugin")
    write = "h5py.File('t.h5', 'w').create_dataset('x', data=[[1.0, 2.0]] * 1000, **hdf5plugin.Blosc())"
    read = """
from normae.data import tables
found, tables.find_spec = tables.find_spec, lambda name: None
try:
    tables.read_table("t.h5")
except ValueError as error:
    print(error)
tables.find_spec = found
print(tables.read_table("t.h5")[0].sum())
"""

    def python(code):
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True).stdout

    python(f"import h5py, hdf5plugin; {write}")
    refused, total = python(read).splitlines()
    assert "`pip install 'normae[blosc]'`" in refused
    assert total == "3000.0"


def test_a_root_file_without_a_tree(tmp_path):
    uproot = pytest.importorskip("uproot")
    for content, found in (({}, "nothing"), ({"t": "text"}, "TObjString"), ({"t": {"a": np.ones(3)}}, None)):
        path = tmp_path / "t.root"
        with uproot.recreate(path) as file:
            for name, value in content.items():
                file[name] = value
        with uproot.open(path) as file:
            kind = found or next(iter(file.classnames().values()))
        if kind in ("TTree", "ROOT::RNTuple"):  # what uproot makes of a dictionary
            continue
        with pytest.raises(InputError, match=f"expected a TTree.*, the file has {kind}"):
            read_table(path)


def test_a_root_file_with_an_rntuple(tmp_path):
    """What uproot makes of a dictionary by default: columns by their names, and those that are no numbers named."""
    pytest.importorskip("uproot.behaviors.RNTuple")
    import uproot

    path, pt = tmp_path / "t.root", np.random.default_rng(0).normal(size=5)
    with uproot.recreate(path) as file:
        file["events"] = {"pt": pt, "n": np.arange(5), "wide": np.ones((5, 3)), "name": list("abcde")}
    if "ROOT::RNTuple" not in uproot.open(path).classnames().values():
        pytest.skip("this uproot writes a TTree")
    values, names = read_table(path, ["n", "pt"], dtype=np.float64)
    assert names == ("n", "pt")
    assert np.array_equal(values, np.column_stack([np.arange(5), pt]))
    for name in ("wide", "name"):
        with pytest.raises(InputError, match=f"the column '{name}' holds values of type"):
            read_table(path, ["pt", name])


def outcome(path: Path) -> tuple[np.ndarray | None, str]:
    try:
        return read_table(path)[0], ""
    except InputError as error:
        return None, str(error)


@pytest.mark.parametrize("suffix", [*KINDS, ".root"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused(tmp_path_factory, suffix, content):
    if suffix == ".root":
        pytest.importorskip("uproot")
    path = tmp_path_factory.mktemp("bytes") / f"t{suffix}"
    path.write_bytes(content)
    if suffix == ".csv":
        content = b"\xff" + content
        path.write_bytes(content)
    with pytest.raises(InputError):
        read_table(path)


def test_no_cell_is_a_formula_for_a_spreadsheet(tmp_path):
    """Names and words of a CSV file as in that of scores, however two of them are alike then; Parquet runs nothing."""
    values, names = np.array([[-1.5, 0], [2.5, 1]]), ("=A1", "word")
    rows = Rows(values, names, None, ((), ("=cmd|x", "plain")))
    for suffix in ("csv", "parquet"):
        write_rows(rows, tmp_path / f"a.{suffix}")
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines == ['"\'=A1","word"', '-1.5,"\'=cmd|x"', '2.5,"plain"']
    found = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert found == {"=A1": [-1.5, 2.5], "word": ["=cmd|x", "plain"]}
    write_rows(Rows(values, ("=A1", "'=A1")), tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_text().splitlines()[1] == "-1.5,0"
