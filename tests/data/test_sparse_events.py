"""Images stored by their filled pixels, and the training samples that take batches of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from normae import jets
from normae.data import SparseEvents
from normae.errors import InputError
from normae.sources import read_sparse
from normae.training.state import Samples

SIDE = 4


def events(n: int = 5, filled: int = 3, seed: int = 0, filter: torch.Tensor | None = None) -> SparseEvents:
    draw = torch.Generator().manual_seed(seed)
    pixel = torch.stack([torch.randperm(SIDE * SIDE, generator=draw)[:filled] for _ in range(n)]).to(torch.int16)
    return SparseEvents(pixel, torch.rand(n, filled, generator=draw), torch.eye(SIDE) if filter is None else filter)


def test_dense_images_hold_the_values_at_their_pixels():
    sparse = events()
    dense = sparse.dense()
    assert dense.shape == sparse.shape == (5, 1, SIDE, SIDE)
    assert dense.dtype == torch.float32
    expected = torch.zeros(5, SIDE * SIDE)
    for i in range(5):
        expected[i, sparse.pixel[i].long()] = sparse.value[i]
    assert torch.equal(dense.flatten(1), expected)


def test_the_filter_acts_along_both_axes():
    rows = torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    plain, filtered = events().dense(), events(filter=rows).dense()
    torch.testing.assert_close(filtered, torch.einsum("ij,ncjk,lk->ncil", rows, plain, rows))


def test_padding_adds_nothing():
    wide, narrow = events(2, 6), events(3, 2, seed=1)
    both = SparseEvents.joined([wide, narrow])
    assert both.pixel.shape == (5, 6)
    assert torch.equal(both.dense(), torch.cat([wide.dense(), narrow.dense()]))


def test_parts_and_batches():
    sparse = events()
    index = torch.tensor([4, 0, 4])
    assert torch.equal(sparse[index], sparse.dense()[index])
    assert torch.equal(sparse.rows(index).dense(), sparse[index])
    assert torch.equal(sparse.first(2).dense(), sparse.dense()[:2])
    assert sparse[torch.zeros(2, 3, dtype=torch.int64)].shape == (2, 3, 1, SIDE, SIDE)


def test_half_precision_values_become_float32():
    sparse = events()
    half = SparseEvents(sparse.pixel, sparse.value.half(), sparse.filter)
    assert half.dense().dtype == torch.float32
    torch.testing.assert_close(half.dense(), sparse.dense(), rtol=1e-3, atol=0)


def test_the_hash_sees_pixels_and_values():
    a, b = events(), events()
    assert a.sha256() == b.sha256()
    b.value[0, 0] += 1
    assert a.sha256() != b.sha256()
    c = events()
    c.pixel[0] = c.pixel[0].flip(0)
    assert a.sha256() != c.sha256()


def test_samples_of_models_side_by_side():
    samples = Samples([events(seed=0), events(seed=1)], torch.device("cpu"))
    assert (samples.size, samples.event) == (5, (1, SIDE, SIDE))
    batch = samples.take(torch.tensor([[0, 2], [2, 4]]))
    expected = torch.cat([events(seed=0).dense()[[0, 2]], events(seed=1).dense()[[2, 4]]])
    assert torch.equal(batch, expected)
    with pytest.raises(InputError, match="training samples of one shape"):
        Samples([events(5), events(4)], torch.device("cpu"))


def test_images_of_a_file_are_those_of_the_jets_library():
    """Against the dense images that `normae jets images` makes, for jets and for stored images."""
    sample = Path(__file__).parents[1] / "jets" / "data" / "sample.npz"
    images = jets.sparse_images(jets.read(sample))
    for kind, label in (("qcd", 0), ("top", 1)):
        ours = read_sparse(sample, kind)
        expected = images.dense()[images.labels == label]
        assert len(ours) == 100
        assert ours.pixel.dtype == torch.int16
        np.testing.assert_allclose(ours.dense().numpy(), expected, rtol=1e-4, atol=1e-8)
        np.testing.assert_allclose(
            ours.dense().numpy().sum((1, 2, 3)), 1, rtol=0.05
        )  # the filter loses a little at the edge
