"""Linear models as a yardstick: exact where the answer is known, and the same for sparse images as for dense ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from normae.data import SparseEvents, linear_errors
from normae.data.images import moments
from normae.errors import InputError


def test_events_in_a_plane_need_two_components():
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    x = 3 + torch.randn(5000, 2, generator=generator, dtype=torch.float64) @ plane
    e0, e1, e2 = linear_errors(x, x, (0, 1, 2))
    assert e0.mean() > e1.mean() > 1e-3
    assert e2.abs().max() < 1e-10
    variance = x.var(0, unbiased=False).mean()
    assert float(e0.mean()) == pytest.approx(float(variance), rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(0, 1000), st.sampled_from([5, 40]))
def test_it_is_sklearn_s_pca(k, seed, d):
    """Also where few of many components are found by another method."""
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(d, d))
    train, held = (generator.normal(size=(n, d)) @ mixing + 2 for n in (300, 50))
    (found,) = linear_errors(torch.from_numpy(train), torch.from_numpy(held), (k,))
    pca = PCA(k).fit(train)
    expected = np.square(held - pca.inverse_transform(pca.transform(held))).mean(1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_sparse_images_are_taken_in_blocks(monkeypatch):
    monkeypatch.setattr("normae.data.images.ROWS", 7)
    generator = torch.Generator().manual_seed(1)
    pixel = torch.stack([torch.randperm(16, generator=generator)[:3] for _ in range(40)]).to(torch.int16)
    images = SparseEvents(pixel, torch.rand(40, 3, generator=generator), torch.eye(4) + 0.1)
    for a, b in zip(moments(images), moments(images.dense()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    sparse, dense = (linear_errors(x, x, (0, 2)) for x in (images, images.dense()))
    torch.testing.assert_close(torch.stack(sparse), torch.stack(dense), rtol=1e-6, atol=1e-9)


def test_too_many_components():
    with pytest.raises(InputError, match="at most 2 components"):
        linear_errors(torch.zeros(3, 2), torch.zeros(3, 2), (3,))
