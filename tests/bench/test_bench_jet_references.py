"""bench/jet_references.py says whether labels side with a density's log r or with classifiers."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from tiny_jets import SAMPLE

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def jet_references(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("jet_references")


def test_the_one_that_knows_gets_all_the_weight(jet_references):
    random = np.random.default_rng(0)
    right = 2 * random.normal(size=20_000)
    labels = (random.random(20_000) < expit(right)).astype(int)
    worse = right + random.normal(size=20_000)
    weight, error = jet_references.joint(right, worse, labels)
    assert abs(weight - 1) < 3 * error
    assert error < 0.05
    weight, error = jet_references.joint(worse, right, labels)
    assert abs(weight) < 3 * error
    assert jet_references.cross_entropy(right, labels) < jet_references.cross_entropy(worse, labels)
    assert jet_references.cross_entropy(np.zeros(2), np.array([0, 1])) == pytest.approx(np.log(2))


def test_the_zoo_beside_classifiers(tmp_path, monkeypatch, capsys, jet_references):
    few = jet_references.Reference("few jets", members=2, jets=100, epochs=2)
    monkeypatch.setattr(jet_references, "REFERENCES", (few,))
    for name in ("train", "val"):
        shutil.copy(SAMPLE, tmp_path / f"{name}.npz")
    (tmp_path / "numbers.json").write_text('{"about": "few jets"}')
    command = ["jet_references.py", tmp_path, tmp_path / "out", "--numbers", tmp_path / "numbers.json"]
    monkeypatch.setattr(sys, "argv", [str(word) for word in command])
    jet_references.main()
    lines = json.loads((tmp_path / "numbers.json").read_text())["rows"]
    names = [line[0] for line in lines]
    assert names == ["few jets", "zoo, mean of three", *(f"zoo, training {k}" for k in range(3))]
    assert 0.9 < float(lines[1][1]) <= 1
    assert lines[0][4] is None
    assert lines[1][5] == lines[0][5], "one reference: its slope on the zoo's log r stands in both lines"
    said = capsys.readouterr().out
    jet_references.main()
    assert capsys.readouterr().out == said
