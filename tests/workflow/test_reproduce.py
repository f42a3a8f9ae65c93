"""From evaluated seeds to a zoo, and from the zoo to the paper's table."""

import json

import numpy as np
import pytest

import normae
from normae import zoo
from normae.errors import InputError
from normae.workflow.evaluate import evaluate
from normae.workflow.publish import publish
from normae.workflow.reproduce import reproduce_toy
from normae.workflow.train import train


@pytest.fixture
def small_zoo(tmp_path, monkeypatch, make_run):
    """A zoo whose two toy models are tiny."""
    runs = tmp_path / "runs"
    train(make_run(), runs, seeds=[0, 1])
    for seed in (0, 1):
        evaluate(runs / f"seed-{seed}", figures=False, device="cpu")
    for name in ("toy-2gauss-nae", "toy-2gauss-nae-paper"):
        publish(runs, 0, tmp_path / "zoo" / name)
    monkeypatch.setattr(zoo, "_HERE", tmp_path / "zoo")
    return tmp_path


def test_publish_and_reproduce(small_zoo):
    assert zoo.names() == ["toy-2gauss-nae", "toy-2gauss-nae-paper"]
    card = zoo.card("toy-2gauss-nae")
    assert "| seed 0 | seed 1 |" in card
    assert "0.979" in card
    assert np.isfinite(normae.load("toy-2gauss-nae").log_prob(np.zeros((2, 2)))).all()
    table = reproduce_toy(small_zoo / "out")
    assert set(table) == {"paper settings", "best"}
    text = (small_zoo / "out" / "table.md").read_text()
    assert "| Pearson correlation of log p, grid | 0.979 |" in text
    assert set(json.loads((small_zoo / "out" / "table.json").read_text())) == set(table)
    for name in zoo.names():
        assert (small_zoo / "out" / "zoo" / name / "report.html").is_file()
    assert reproduce_toy(small_zoo / "out"), "once more into the same folder"


def test_publish_needs_the_seed(small_zoo):
    with pytest.raises(InputError, match="no run with seed 7"):
        publish(small_zoo / "runs", 7, small_zoo / "zoo" / "other")
