"""Files in: formats, row ranges, and every kind of bad input."""

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from normae import jets
from normae.errors import InputError
from normae.jets.reader import _edges
from normae.jets.toptagging import strings_of_pickle
from normae.sources import read_sparse

Build = Callable[..., Any]


def same(a: jets.Jets, b: jets.Jets, tolerance: float = 0.0) -> None:
    np.testing.assert_array_equal(a.labels, b.labels)
    np.testing.assert_array_equal(a.offsets, b.offsets)
    for name in ("pt", "eta", "phi"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=tolerance, atol=tolerance)


def test_npz(sample: jets.Jets, data: Path) -> None:
    assert len(sample) == 200
    assert sample.labels.sum() == 100
    assert sample.pt.dtype == sample.eta.dtype == sample.phi.dtype == np.float32
    with np.load(data / "sample.npz") as arrays:
        axis = arrays["jet"]
    centroid = jets.observables(sample)
    assert np.abs(centroid["eta"] - axis[:, 1]).max() < 0.2
    total = np.add.reduceat(sample.pt, sample.offsets[:-1])
    assert np.abs(total / axis[:, 0] - 1).max() < 0.1


@pytest.mark.parametrize("name", ["pandas_table.h5", "pandas_columns.h5", "pandas_fixed.h5"])
def test_pandas_files(name: str, data: Path, sample: jets.Jets) -> None:
    same(jets.read(data / name), sample[:10], 1e-5)


def test_positional_layout(table: Build, momenta: Build, sample: jets.Jets) -> None:
    path = table(momenta(sample[:30]), sample.labels[:30], chunks=(7,), compression="gzip")
    same(jets.read(path), sample[:30], 1e-5)
    truth = np.concatenate([momenta(sample[:30]), np.full((30, 4), 7.0)], axis=1)
    same(jets.read(table(truth, sample.labels[:30], "truth.h5")), sample[:30], 1e-5)


def test_few_and_unsorted_constituents(table: Build) -> None:
    row = np.zeros((2, 12))
    row[0, 4:8] = [5, 3, 4, 0]  # padding before and after
    row[1, 0:4] = [1, 0, 1, 0]
    row[1, 8:12] = [2, 2, 0, 0]
    read = jets.read(table(row, [0, 1]))
    np.testing.assert_array_equal(read.offsets, [0, 1, 3])
    np.testing.assert_allclose(read.pt, [5, 2, 1])
    np.testing.assert_allclose(read.phi, [np.arctan2(4, 3), 0, np.pi / 2], rtol=1e-6)


def test_own_format_round_trip(tmp_path: Path, sample: jets.Jets) -> None:
    jets.write(tmp_path / "own.h5", sample, {"seed": 3})
    same(jets.read(tmp_path / "own.h5"), sample)
    found = jets.info(tmp_path / "own.h5")
    assert (found.jets, found.attributes["seed"]) == (200, 3)
    jets.write(tmp_path / "none.h5", sample[:0])
    assert len(jets.read(tmp_path / "none.h5")) == 0


@pytest.mark.parametrize("name", ["pandas_table.h5", "sample.npz"])
def test_convert(name: str, data: Path, tmp_path: Path) -> None:
    assert jets.convert(data / name, tmp_path / "out.h5", rows=(2, 9)) == (7, 0)
    same(jets.read(tmp_path / "out.h5"), jets.read(data / name, rows=slice(2, 9)))
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


@pytest.mark.parametrize("rows", [None, 50, (10, 60), slice(10, 60), slice(150, None), range(3, 4), 0])
@pytest.mark.parametrize("kind", ["npz", "own", "table"])
def test_rows(
    kind: str, rows: Any, data: Path, tmp_path: Path, sample: jets.Jets, table: Build, momenta: Build
) -> None:
    path = data / "sample.npz"
    if kind == "own":
        jets.write(tmp_path / "own.h5", sample)
        path = tmp_path / "own.h5"
    elif kind == "table":
        path = table(momenta(sample), sample.labels, chunks=(16,))
    wanted = {int: lambda r: slice(0, r), tuple: lambda r: slice(*r), range: lambda r: slice(r.start, r.stop)}
    rows_slice = wanted.get(type(rows), lambda r: r or slice(None))(rows)
    same(jets.read(path, rows), sample[rows_slice], 1e-5)


@pytest.mark.parametrize("rows", [201, (0, 201), slice(190, 300), (5, 2), slice(-3, None), slice(0, 10, 2)])
def test_rows_beyond_the_end(rows: Any, data: Path) -> None:
    with pytest.raises(InputError, match="rows"):
        jets.read(data / "sample.npz", rows)


def test_chunks_are_the_file(data: Path, sample: jets.Jets) -> None:
    parts = list(jets.chunks(data / "sample.npz", size=33))
    assert [len(p) for p in parts] == [33] * 6 + [2]
    same(jets.concatenate(parts), sample)


def test_chunk_borders_follow_the_file() -> None:
    assert _edges(5, 100, 32, 16) == [5, 32, 64, 96, 100]
    assert _edges(5, 100, 10, 40) == [5, 40, 80, 100]
    assert _edges(7, 7, 10, 1) == [7]


def test_memory_is_bounded(table: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    momenta = np.zeros((20_000, 400))
    momenta[:, :8] = [5, 3, 4, 0, 1, 0, 1, 0]
    path = table(momenta, np.zeros(20_000), chunks=(500,))
    monkeypatch.setattr("normae.jets.reader.CHUNK", 1000)
    tracemalloc.start()
    read = sum(len(part) for part in jets.chunks(path, size=1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == 20_000
    assert peak < path.stat().st_size / 4


def test_a_file_is_not_held_twice(tmp_path: Path) -> None:
    """Only one column at a time is: of pt, eta and phi a third."""
    many = jets.from_lists([[[5.0, 0.1, 0.2]] * 60] * 20_000)
    jets.write(tmp_path / "jets.h5", many)
    tracemalloc.start()
    found = jets.read(tmp_path / "jets.h5")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * sum(part.nbytes for part in (found.pt, found.eta, found.phi, found.offsets))


BAD = {
    "not finite": (3, 5, np.nan),
    "infinite": (3, 6, np.inf),
    "energy not finite": (3, 0, np.nan),
    "padding not finite": (3, 799, np.nan),
}


@pytest.mark.parametrize("case", BAD)
def test_not_finite(case: str, table: Build, momenta: Build, sample: jets.Jets) -> None:
    row, column, value = BAD[case]
    values = momenta(sample[:8])
    values[row, column] = value
    path = table(values, sample.labels[:8])
    with pytest.raises(InputError, match=f"{path}: row 3 has a momentum that is not finite"):
        jets.read(path)
    read = jets.read(path, skip_bad=True)
    assert (len(read), read.skipped) == (7, 1)
    same(read, sample[[0, 1, 2, 4, 5, 6, 7]], 1e-5)


def test_truth_columns_may_be_anything(table: Build, momenta: Build, sample: jets.Jets) -> None:
    values = np.concatenate([momenta(sample[:4]), np.full((4, 4), np.nan)], axis=1)
    same(jets.read(table(values, sample.labels[:4])), sample[:4], 1e-5)


def test_no_energy_and_bad_label(table: Build, momenta: Build, sample: jets.Jets) -> None:
    values, labels = momenta(sample[:6]), sample.labels[:6].copy()
    values[4] = 0
    with pytest.raises(InputError, match="row 4 has no energy"):
        jets.read(table(values, labels))
    labels[2] = 2
    path = table(values, labels)
    with pytest.raises(InputError, match="row 2 has a label that is not 0 or 1"):
        jets.read(path)
    with pytest.raises(InputError, match="row 4 has no energy"):
        jets.read(path, rows=(3, 6))
    assert jets.read(path, skip_bad=True).skipped == 2


def test_ragged_bad_values(tmp_path: Path, sample: jets.Jets) -> None:
    pt = sample.pt.copy()
    pt[sample.offsets[3]] = -1
    pt[sample.offsets[5] : sample.offsets[6]] = 0
    jets.write(tmp_path / "bad.h5", jets.Jets(sample.labels, sample.offsets, pt, sample.eta, sample.phi))
    with pytest.raises(InputError, match="row 3 has a negative pT"):
        jets.read(tmp_path / "bad.h5")
    assert jets.read(tmp_path / "bad.h5", skip_bad=True).skipped == 2


def test_not_a_file_of_jets(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no jets")
    (tmp_path / "empty.h5").write_bytes(b"")
    cases = {"text.h5": "neither an HDF5 nor an npz", "empty.h5": "neither", "none.h5": "no such file"}
    for name, words in cases.items():
        with pytest.raises(InputError, match=words):
            jets.read(tmp_path / name)


def test_wrong_key(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no key 'jets'; the file has table"):
        jets.read(data / "pandas_table.h5", key="jets")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["table"] = np.zeros(3)
    with pytest.raises(InputError, match="no pandas table"):
        jets.read(tmp_path / "other.h5")


def test_missing_columns(tmp_path: Path, data: Path) -> None:
    renamed(data, tmp_path / "missing.h5", "values_block_0_kind", 3)
    with pytest.raises(InputError, match="no column 'PZ_0'"):
        jets.read(tmp_path / "missing.h5")


def renamed(data: Path, path: Path, field: str, column: int) -> None:
    """The table with another name for one of its columns."""
    path.write_bytes((data / "pandas_table.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        attrs = file["table/table"].attrs
        names = strings_of_pickle(bytes(attrs[field]))
        names[column] = "other"
        attrs[field] = np.bytes_(pickle.dumps(names, protocol=0))


def test_files_without_labels(tmp_path: Path, data: Path) -> None:
    """Jets without labels are read, shown and scored; they are refused only where a class is chosen."""
    renamed(data, tmp_path / "table.h5", "values_block_1_kind", 1)
    read, labelled = jets.read(tmp_path / "table.h5"), jets.read(data / "pandas_table.h5")
    np.testing.assert_array_equal(read.pt, labelled.pt)
    with np.load(data / "sample.npz") as arrays:
        np.savez(tmp_path / "sample.npz", **{name: arrays[name] for name in arrays.files if name != "label"})
    for name in ("table.h5", "sample.npz"):
        assert set(jets.read(tmp_path / name).labels) == {-1}
        jets.convert(tmp_path / name, tmp_path / "own.h5", force=True)
        assert jets.summary(tmp_path / "own.h5")["without label"] == str(len(jets.read(tmp_path / name)))
        jets.convert_images(tmp_path / "own.h5", tmp_path / "images.h5", force=True)
        assert set(jets.read_images(tmp_path / "images.h5").labels) == {-1}
    assert jets.save_figures(tmp_path / "own.h5", tmp_path / "figures", 20)
    with pytest.raises(InputError, match="to choose qcd jets by, got jets without labels"):
        read_sparse(tmp_path / "own.h5", "qcd")
    assert "without label" not in jets.summary(data / "sample.npz")


def test_nameless_columns_that_are_not_whole_constituents(
    table: Callable[..., Path], momenta: Callable[..., np.ndarray], sample: jets.Jets
) -> None:
    with pytest.raises(InputError, match="names no columns and has 799 of them"):
        jets.read(table(momenta(sample[:3])[:, :799], [0, 1, 0]))


def test_fixed_layout_without_names(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "nameless.h5"
    path.write_bytes((data / "pandas_fixed.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        del file["table/block0_items"]
    with pytest.raises(InputError, match="no 'block0_items'"):
        jets.read(path)


def test_pickles_are_never_executed(tmp_path: Path, data: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "touched",))

    for protocol in (0, 2, 5):
        assert strings_of_pickle(pickle.dumps(["E_0", "PX_0"], protocol=protocol)) == ["E_0", "PX_0"]
        with pytest.raises(InputError, match="never executed"):
            strings_of_pickle(pickle.dumps([Evil()], protocol=protocol))
    with pytest.raises(InputError, match="cannot be parsed"):
        strings_of_pickle(b"(lp0\nVE_0")
    path = tmp_path / "evil.h5"
    path.write_bytes((data / "pandas_table.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        file["table/table"].attrs["values_block_0_kind"] = np.bytes_(pickle.dumps([Evil()], protocol=0))
    with pytest.raises(InputError, match="never executed"):
        jets.read(path)
    assert not (tmp_path / "touched").exists()


def test_blosc_names_the_package(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(__import__("sys").modules, "hdf5plugin", None)
        without.setattr(h5py.h5z, "filter_avail", lambda code: False)
        words = r"compressed with blosc, which needs `pip install 'normae\[blosc\]'`"
        with pytest.raises(InputError, match=words):
            jets.read(data / "pandas_blosc.h5")
    found, plain = (jets.read(data / f"pandas_{name}.h5") for name in ("blosc", "table"))
    assert np.array_equal(found.pt, plain.pt), "with the extra it is read"


@pytest.mark.parametrize("name", ["pandas_table.h5", "sample.npz", "own.h5"])
def test_truncated(name: str, data: Path, tmp_path: Path, sample: jets.Jets) -> None:
    if name == "own.h5":
        jets.write(tmp_path / "whole.h5", sample)
    whole = (tmp_path / "whole.h5" if name == "own.h5" else data / name).read_bytes()
    for share in (0.2, 0.5, 0.9):
        cut = tmp_path / name
        cut.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(InputError, match="truncated or damaged"):
            jets.read(cut)


def test_damaged_data(data: Path, tmp_path: Path) -> None:
    content = bytearray((data / "pandas_table.h5").read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    (tmp_path / "damaged.h5").write_bytes(content)
    with pytest.raises(InputError):
        jets.read(tmp_path / "damaged.h5")


def test_a_type_that_numpy_does_not_have(tmp_path: Path, sample: jets.Jets) -> None:
    """A float whose exponent counts from elsewhere: one changed byte in a file makes it."""
    jets.write(tmp_path / "own.h5", sample)
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_ebias(127 + 65536)
    with h5py.File(tmp_path / "own.h5", "r+") as file:
        space = h5py.h5s.create_simple((len(file["pt"]),))
        del file["pt"]
        h5py.h5d.create(file.id, b"pt", kind, space)
    with pytest.raises(InputError, match="'pt' has a type that cannot be read .*; the file may be damaged"):
        jets.read(tmp_path / "own.h5")


def test_a_damaged_head(tmp_path: Path, sample: jets.Jets) -> None:
    """Whichever of the first bytes is wrong, among them those of the root group: jets as they were, or one sentence."""
    jets.write(tmp_path / "own.h5", sample)
    whole, said = (tmp_path / "own.h5").read_bytes(), set()
    for place in range(96, 128):
        content = bytearray(whole)
        content[place] = 1
        (tmp_path / "damaged.h5").write_bytes(content)
        try:
            jets.read(tmp_path / "damaged.h5")
        except InputError as error:
            said.add(str(error))
    assert any("unable to determine object type" in text for text in said)


def test_a_sum_beyond_float32(tmp_path: Path, sample: jets.Jets) -> None:
    """Each pt is finite and their sum is not: slow, but no warning, and the jets are read."""
    jets.write(tmp_path / "own.h5", sample)
    with h5py.File(tmp_path / "own.h5", "r+") as file:
        first, last = file["offsets"][:2]
        file["pt"][first:last] = np.linspace(3.2e38, 3e38, last - first, dtype=np.float32)
    assert len(jets.read(tmp_path / "own.h5")) == len(sample)


def test_npz_without_arrays_or_with_objects(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", label=np.zeros(3))
    with pytest.raises(InputError, match="no array 'count'"):
        jets.read(tmp_path / "a.npz")
    names = ("label", "count", "jet", "pt", "deta", "dphi")
    np.savez(tmp_path / "b.npz", **{n: np.array([{}], dtype=object) for n in names})
    with pytest.raises(InputError, match="cannot be read"):
        jets.read(tmp_path / "b.npz")


def test_own_file_with_wrong_offsets(tmp_path: Path, sample: jets.Jets) -> None:
    jets.write(tmp_path / "own.h5", sample)
    with h5py.File(tmp_path / "own.h5", "r+") as file:
        file["offsets"][10] = 10**6
    with pytest.raises(InputError, match="offsets"):
        jets.read(tmp_path / "own.h5")
    with h5py.File(tmp_path / "own.h5", "r+") as file:
        del file["pt"]
    with pytest.raises(InputError, match="no dataset 'pt'"):
        jets.read(tmp_path / "own.h5")


def test_container() -> None:
    made = jets.from_lists([[(1, 0, 0)], [(2, 0, 0), (1, 1, 1)]], labels=[0, 1])
    assert len(made) == 2
    np.testing.assert_array_equal(made[::-1].offsets, [0, 2, 3])
    np.testing.assert_array_equal(made[np.array([False, True])].pt, [2, 1])
    np.testing.assert_array_equal(made[[1, 1]].labels, [1, 1])
    assert len(jets.concatenate([])) == 0
    with pytest.raises(InputError, match="offsets"):
        jets.Jets(made.labels, made.offsets[:-1], made.pt, made.eta, made.phi)
    with pytest.raises(InputError, match="offsets must rise"):
        jets.Jets(made.labels, np.array([0, 5, 3]), made.pt, made.eta, made.phi)


WRONG_NPZ: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "two dimensions": ("label", lambda a: a[:, None], "'label' has the shape"),
    "no dimension": ("count", lambda a: a.sum(), "'count' has the shape"),
    "text": ("label", lambda a: a.astype("U1"), "'label' has the type"),
    "fractional": ("count", lambda a: a + 0.5, "'count' has the type float64, but integers"),
    "complex": ("pt", lambda a: a.astype("c8"), "'pt' has the type complex64"),
    "one jet less": ("count", lambda a: a[:-1], "'count' has 199 entries, but 'label' has 200"),
    "too long": ("dphi", lambda a: np.append(a, 0), "'dphi' has"),
    "negative": ("count", lambda a: np.append(-1, a[1:].astype(int)), "row 0 has a count of -1"),
    "flat jet": ("jet", lambda a: a[:, :3], "'jet' has the shape"),
}


@pytest.mark.parametrize("case", WRONG_NPZ)
def test_npz_arrays_that_do_not_match(case: str, data: Path, tmp_path: Path) -> None:
    name, change, words = WRONG_NPZ[case]
    with np.load(data / "sample.npz") as arrays:
        np.savez(tmp_path / "bad.npz", **{**arrays, name: change(arrays[name])})
    with pytest.raises(InputError, match=f"^{tmp_path / 'bad.npz'}: {words}"):
        jets.read(tmp_path / "bad.npz")


WRONG_OWN: dict[str, tuple[str, Any, str]] = {
    "scalar": ("labels", 3, "'labels' has the shape"),
    "text": ("pt", np.array([b"a"]), "'pt' has the type"),
    "no offsets": ("offsets", np.zeros(0, dtype=int), "the offsets do not match"),
    "fractional offsets": ("offsets", np.zeros(4), "'offsets' has the type float64, but integers"),
    "falling": ("offsets", np.array([0, 2, 1, 3]), "the offsets do not match"),
    "late start": ("offsets", np.array([1, 1, 2, 3]), "the offsets do not match"),
    "early end": ("offsets", np.array([0, 1, 2, 2]), "the offsets do not match"),
    "half a label": ("labels", np.array([0, 0.5, 1]), "row 1 has a label"),
    "too large": ("pt", np.array([1.0, 2.0, 1e300]), "row 2 has a momentum that is not finite"),
}


@pytest.mark.parametrize("case", WRONG_OWN)
def test_own_file_with_wrong_datasets(case: str, tmp_path: Path) -> None:
    name, values, words = WRONG_OWN[case]
    path = tmp_path / "own.h5"
    jets.write(path, jets.from_lists([[(1, 0, 0)]] * 3))
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = values
    with pytest.raises(InputError, match=f"^{path}: {words}"):
        jets.read(path)


def test_newer_version_and_group_for_dataset(tmp_path: Path) -> None:
    path = tmp_path / "own.h5"
    jets.write(path, jets.from_lists([[(1, 0, 0)]]))
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 99
    with pytest.raises(InputError, match="version 99, but this normae reads versions up to 1"):
        jets.read(path)
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 1
        del file["pt"]
        file.create_group("pt")
    with pytest.raises(InputError, match="no dataset 'pt'"):
        jets.read(path)


@pytest.mark.parametrize("kind", ["own", "npz", "table"])
def test_unphysical_eta(kind: str, data: Path, tmp_path: Path, table: Build) -> None:
    path = tmp_path / "far.h5"
    if kind == "own":
        jets.write(path, jets.from_lists([[(1, 0, 0)], [(1, -31, 0)], [(1, 29, 0)]]))
    elif kind == "npz":
        with np.load(data / "sample.npz") as arrays:
            jet = arrays["jet"].copy()
            jet[1, 1] = 800
            path = tmp_path / "far.npz"
            np.savez(path, **{**arrays, "jet": jet})
    else:
        path = table([[1, 1, 0, 0] * 2, [1e20, 0, 1e-6, 1e20] * 2, [1, 0, 1, 0] * 2], [0, 1, 1])
    with pytest.raises(InputError, match=rf"^{path}: row 1 has a constituent with \|eta\| above 30"):
        jets.read(path)
    assert jets.read(path, skip_bad=True).skipped == 1


@pytest.mark.parametrize("rows", ["3", 2.5, (1,), (1, 2, 3), (0, 1.5), slice("a", None), [1, 2], True])
def test_rows_of_a_wrong_type(rows: Any, data: Path) -> None:
    with pytest.raises(InputError, match=r"sample\.npz: rows must be"):
        jets.read(data / "sample.npz", rows)
    assert len(jets.read(data / "sample.npz", np.int64(3))) == 3  # type: ignore[arg-type]
