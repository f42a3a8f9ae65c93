"""Sparse images: equal to the dense ones, small on disk, read by range."""

from pathlib import Path

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
    with pytest.raises(InputError, match="pixel index of 1600"):
        jets.read_images(path)
    with h5py.File(path, "r+") as file:
        del file["value"]
    with pytest.raises(InputError, match="damaged"):
        jets.read_images(path)
