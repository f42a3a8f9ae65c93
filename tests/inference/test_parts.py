"""The score as a sum of parts: that it is one, and that the column which is wrong has the largest."""

import numpy as np
import pytest
import torch

import normae
from normae.errors import InputError
from normae.scoring.scorer import open_scorer


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """Three columns in units of their own, the first two on a line."""
    random = np.random.default_rng(0)
    x = random.normal(size=400)
    return np.column_stack([100 * x, x + 0.1 * random.normal(size=400), 5 + random.normal(size=400)])


@pytest.fixture(scope="module")
def model(rows):
    return normae.train(rows, settings=["contrast.iterations=50"])


def test_parts_sum_to_the_score(model, rows):
    parts = model.explain(rows)
    assert parts.shape == rows.shape
    assert np.allclose(parts.sum(1), model.score(rows), atol=1e-3)
    assert isinstance(model.explain(torch.from_numpy(rows)), torch.Tensor)


def test_the_column_that_is_wrong_has_the_largest_part(model, rows):
    usual = model.explain(rows[:50])
    for change, guilty in (([0, 0, 8], [2]), ([0, 1.5, 0], [0, 1])):  # the second is off the line of the first two
        wrong = rows[:50] + change
        parts = model.explain(wrong)
        assert np.isin(parts.argmax(1), guilty).mean() > 0.9
        share = (parts - usual)[:, guilty].sum(1) / (parts - usual).sum(1)
        assert np.median(share) > 0.8


@pytest.mark.parametrize("name", ["toy-1gauss-nae", "toy-1gauss-bnae", "jets-qcd-nae"])
def test_without_a_base(name):
    model = normae.load(name)
    x = np.random.default_rng(1).random((3, *model.event)).astype(np.float32)
    parts = model.explain(x)
    assert parts.shape == x.shape
    assert np.allclose(parts.reshape(3, -1).sum(1), model.score(x), rtol=1e-3, atol=1e-3)
    if name == "toy-1gauss-nae":  # its terms are known
        with torch.no_grad():
            error = (torch.from_numpy(x) - model.autoencoder(torch.from_numpy(x))).square() / (2 * model.temperature)
        assert np.allclose(parts, error.numpy(), rtol=1e-4)


def test_columns_of_a_scored_file(rows, tmp_path):
    normae.train(rows, out=tmp_path / "run", settings=["contrast.iterations=5"])
    scorer = open_scorer(tmp_path / "run", explain=True)
    found = scorer.score(rows[:20])
    parts = [values for name, values in found.items() if name.startswith("part_")]
    assert np.allclose(np.sum(parts, axis=0), found["score"], atol=1e-3)
    assert open_scorer(tmp_path / "run").digest != scorer.digest
    with pytest.raises(InputError, match="expected a model of a table"):
        open_scorer("jets-qcd-nae", explain=True)
