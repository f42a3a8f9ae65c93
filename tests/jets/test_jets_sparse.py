"""Sparse images: equal to the dense ones, small on disk, read by range."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from normae import jets
from normae.errors import InputError


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float16, 5e-4)])
def test_dense_batch_is_the_image(dtype: type, tolerance: float, sample: jets.Jets) -> None:
    sparse = jets.sparse_images(sample, dtype)
    assert sparse.value.dtype == dtype
    np.testing.assert_allclose(sparse.dense(), jets.images(sample), atol=tolerance)
    sharp = jets.images(sample[10:20], sigma=0)
    np.testing.assert_allclose(sparse.dense(slice(10, 20), sigma=0), sharp, atol=tolerance)
    assert sparse.dense(slice(5, 5)).shape == (0, 1, 40, 40)


def test_pixels_are_merged(sample: jets.Jets) -> None:
    sparse = jets.sparse_images(sample)
    for a, b in zip(sparse.offsets[:-1], sparse.offsets[1:], strict=True):
        assert (np.diff(sparse.pixel[a:b].astype(int)) > 0).all()


def test_file(tmp_path: Path, sample: jets.Jets) -> None:
    path = tmp_path / "images.h5"
    sparse = jets.sparse_images(sample)
    jets.write_images(path, sparse)
    read = jets.read_images(path, rows=(20, 90))
    np.testing.assert_array_equal(read.labels, sample.labels[20:90])
    np.testing.assert_array_equal(read.dense(), sparse.dense(slice(20, 90)))
    data = sparse.pixel.nbytes + sparse.value.nbytes
    assert data < 200 * 200
    assert path.stat().st_size < 200 * 250


def test_bad_files(tmp_path: Path, data: Path, sample: jets.Jets) -> None:
    with pytest.raises(InputError, match="not a file of jet images"):
        jets.read_images(data / "pandas_table.h5")
    path = tmp_path / "images.h5"
    jets.write_images(path, jets.sparse_images(sample))
    with pytest.raises(InputError, match=r"rows 0:201 asked, but the file has 200"):
        jets.read_images(path, 201)
    with h5py.File(path, "r+") as file:
        file["pixel"][3] = 1600
    with pytest.raises(InputError, match="row 0 has a pixel index outside the 40x40"):
        jets.read_images(path)
    with h5py.File(path, "r+") as file:
        del file["value"]
    with pytest.raises(InputError, match="no dataset 'value'"):
        jets.read_images(path)


WRONG: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "few offsets": ("offsets", lambda a: a[:-3], "the offsets do not match"),
    "falling offsets": ("offsets", lambda a: a[::-1], "the offsets do not match"),
    "early end": ("offsets", lambda a: np.append(a[:-1], a[-1] - 1), "the offsets do not match"),
    "lengths": ("value", lambda a: a[:-1], "the offsets do not match"),
    "text": ("value", lambda a: np.full(len(a), b"a"), "'value' has the type"),
    "label": ("labels", lambda a: np.append(7, a[1:]), "row 0 has a label that is not 0 or 1"),
    "not finite": ("value", lambda a: np.append(a[:-1], np.nan), "row 9 has a value that is negative or not finite"),
    "negative": ("value", lambda a: np.append(a[:-1], -1), "row 9 has a value that is negative or not finite"),
    "pixel": ("pixel", lambda a: np.append(a[:-1], 1600), "row 9 has a pixel index outside"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_datasets(case: str, tmp_path: Path, sample: jets.Jets) -> None:
    name, change, words = WRONG[case]
    path = tmp_path / "images.h5"
    jets.write_images(path, jets.sparse_images(sample[:10]))
    with h5py.File(path, "r+") as file:
        values = change(file[name][:])
        del file[name]
        file[name] = values
    for work in (jets.read_images, jets.summary, jets.file_observables):
        with pytest.raises(InputError, match=f"^{path}: {words}"):
            work(path)  # type: ignore[operator]
    if words.startswith("row"):
        read = jets.read_images(path, skip_bad=True)
        assert (len(read), read.skipped) == (9, 1)
        assert jets.file_observables(path, skip_bad=True)[1] == 1
        assert jets.summary(path, skip_bad=True)["bad images"] == "1"


def test_newer_version(tmp_path: Path, sample: jets.Jets) -> None:
    path = tmp_path / "images.h5"
    jets.write_images(path, jets.sparse_images(sample[:2]))
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 2
    with pytest.raises(InputError, match=r"images\.h5: the file has version 2"):
        jets.read_images(path)
