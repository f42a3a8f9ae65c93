"""Array files: what is read, and one clear sentence for what is not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from normae.data import read_events
from normae.errors import InputError


def test_reads_npy_and_npz(tmp_path):
    x = np.arange(12.0).reshape(4, 3)
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "a.npz", x=x)
    for name in ("a.npy", "a.npz"):
        got = read_events(tmp_path / name)
        assert got.shape == (4, 3)
        assert np.array_equal(got.numpy(), x.astype(np.float32))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((0, 2)), "at least one event of at least one feature"),
        (np.zeros((5, 0)), "at least one event of at least one feature"),
        (np.full((2, 2), 1e300), "NaN or infinity in 2 of 2 events"),
        (np.zeros(5), r"shape \(N, \*event\)"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "NaN or infinity in 1 of 2 events, the first at row 0"),
        (np.array([["a", "b"]]), "expected real numbers"),
        (np.zeros((2, 2), dtype=complex), "expected real numbers"),
    ],
)
def test_bad_arrays(tmp_path, content, message):
    np.save(tmp_path / "bad.npy", content)
    with pytest.raises(InputError, match=message):
        read_events(tmp_path / "bad.npy")


def test_bad_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_events(tmp_path / "none.npy")
    np.savez(tmp_path / "y.npz", y=np.zeros((2, 2)))
    with pytest.raises(InputError, match="expected an array named x"):
        read_events(tmp_path / "y.npz")
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="without pickled objects"):
        read_events(tmp_path / "pickled.npy")


@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=400), suffix=st.sampled_from([".npy", ".npz"]))
def test_any_bytes_give_one_sentence(tmp_path_factory, data, suffix):
    path = tmp_path_factory.mktemp("fuzz") / f"f{suffix}"
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_events(path)


@settings(max_examples=30, deadline=None)
@given(
    x=hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=3, max_side=4), elements=st.floats(-9, 9, width=32)),
    cut=st.integers(1, 60),
)
def test_truncated_files(tmp_path_factory, x, cut):
    path = tmp_path_factory.mktemp("cut") / "x.npz"
    np.savez(path, x=x)
    assert np.array_equal(read_events(path).numpy(), x)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError):
        read_events(path)
