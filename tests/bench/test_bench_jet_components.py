"""bench/jet_components.py trains a pair, judges it, and makes a table and a picture."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from normae.jets import read
from normae.training.two_sample import RatioSettings
from tiny_jets import SAMPLE

BENCH = Path(__file__).parents[2] / "bench"
CHANGES = (
    "data.train=60,data.validation=20,data.test=20,contrast.iterations=20,contrast.batch=20,network.hidden=[8],"
    "coordinates.components.number=3,sampling.buffer=64,training.batch=20,pretraining.batch=20,contrast.draws=500,"
    "contrast.every=10,base.gaussians=2"
)


@pytest.fixture
def jet_components(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("jet_components")


@pytest.fixture
def jet_both(jet_components):
    return importlib.import_module("jet_both")


def test_a_point_of_the_map(tmp_path, capsys, monkeypatch, jet_components, jet_both):
    module = jet_components
    for one in (module, jet_both):
        monkeypatch.setattr(one, "CLASSIFIER", RatioSettings(hidden=(8,), batch=32, max_epochs=2, patience=1))
    monkeypatch.setattr(module, "TOLD", 60)
    jets, out = tmp_path / "jets", tmp_path / "out"
    jets.mkdir()
    for name in ("train", "val", "test"):
        shutil.copy(SAMPLE, jets / f"{name}.npz")

    def call(*words: object, of=module) -> str:
        monkeypatch.setattr(sys, "argv", ["a command", *map(str, words)])
        of.main()
        return capsys.readouterr().out

    call("map", jets, out, "few=0," + CHANGES, "--halves")
    found = json.loads((out / "few-0.json").read_text())
    assert 0.5 < found["auc"] < 1
    with np.load(out / "few-0.npz") as kept:
        ratio, labels = kept["top"] - kept["qcd"], kept["labels"]
    assert found["auc"] == pytest.approx(roc_auc_score(labels, ratio))
    assert -1 < found["agree_qcd"] < 1
    assert {"made", "made_loss", "loss"} <= set(found)
    assert np.isfinite(found["bounds_qcd"])
    assert "|  | few |" in call("show", out, "--figure", tmp_path / "map.svg")
    assert (tmp_path / "map.svg").stat().st_size > 1000
    call("map", jets, out, "few=1," + CHANGES)
    (tmp_path / "numbers.json").write_text('{"about": "few jets"}')
    call("show", out, "--numbers", tmp_path / "numbers.json")
    written = json.loads((tmp_path / "numbers.json").read_text())
    assert written["header"] == ["", "few"]
    assert written["rows"][0][1]["seeds"][0] == pytest.approx(found["auc"], abs=1e-5)
    line = call("show", out, "--map", "--numbers", tmp_path / "numbers.json").splitlines()[2]
    assert line.startswith("| 3 | 0.5 | 0.5 | 60 | 2 | ")
    written = json.loads((tmp_path / "numbers.json").read_text())["rows"][0]
    assert written[5]["value"] == pytest.approx(np.mean([found["auc"], read_auc(out / "few-1.json")]), abs=1e-5)
    monkeypatch.setattr(jet_both, "HELD", 8)
    said = call(jets, out, "few", "--third", SAMPLE, of=jet_both)
    assert [line.split("|")[1].strip() for line in said.splitlines()[2:]] == [
        "tops among QCD jets", f"{SAMPLE.stem} among QCD jets", "QCD jets among tops", f"{SAMPLE.stem} among tops",
    ]  # fmt: skip
    said = call("bars", jets, out, "few", "--figure", tmp_path / "bars.svg")
    shares = [float(cell) for line in said.splitlines() if "| halves" in line for cell in line.split("|")[2:-1]]
    assert len(shares) == 8
    assert all(0 <= share <= 1 for share in shares)
    assert (tmp_path / "bars.svg").stat().st_size > 1000
    assert not (out / "test").exists()
    call("map", jets, out, "few=0," + CHANGES, "--test", "--tagging")
    tagging = json.loads((out / "test" / "few-0.json").read_text())
    assert tagging["top_tagging"] == pytest.approx(found["top_tagging"]), "the same jets are in both files here"
    assert "told_qcd" not in tagging
    assert "The rule takes None." in call("show", out / "test", "--map")
    monkeypatch.setattr(module, "trained", lambda *_: pytest.fail("a point that has its numbers is left as it is"))
    call("map", jets, out, "few=1," + CHANGES)


def read_auc(path: Path) -> float:
    return json.loads(path.read_text())["auc"]


def test_jets_made_anew_keep_their_momentum_and_change_their_width(jet_components):
    jets = read(SAMPLE)
    made = importlib.import_module("jet_made").remade(jets, 0)
    jet = np.repeat(np.arange(len(made)), made.counts)
    assert np.bincount(jet, made.pt) == pytest.approx(600)
    own = (made.counts == jets.counts).nonzero()[0]
    assert 0.3 < len(own) / len(jets) < 0.7
    width = [np.array([np.abs(one[[k]].eta - np.average(one[[k]].eta, weights=one[[k]].pt)).max() for k in own])
             for one in (made, jets)]  # fmt: skip
    factor = width[0] / width[1]
    assert factor.min() > 1 / 3 - 1e-3
    assert factor.max() < 3 + 1e-3
    assert np.std(np.log(factor)) == pytest.approx(np.log(3) / np.sqrt(3), rel=0.2)


def test_the_rule_takes_the_point_that_tells_made_jets_best(jet_components):
    found = {
        name: [{"made_loss": loss} for loss in losses] for name, losses in (("a", (0.6, 0.7)), ("b", (0.62, 0.62)))
    }
    assert jet_components.rule(found | {"c": [{"made": 0.9}]}) == "b"
    assert jet_components.rule({"c": [{"made": 0.9}]}) is None


def test_the_cross_entropy_of_a_known_ratio(jet_components):
    labels = np.resize([0, 1], 200_000)
    ratio = 2.0 * np.random.default_rng(0).normal(labels, 1.0) - 1.0  # twice the right one for widths of 1
    right = jet_components.cross_entropy(ratio / 2, labels)
    assert jet_components.cross_entropy(np.zeros(10), np.resize([0, 1], 10)) == pytest.approx(np.log(2))
    exact = quad(lambda x: norm.pdf(x, 0.5, 1) * np.log1p(np.exp(-x)), -10, 10)[0]
    assert right == pytest.approx(exact, abs=0.003)
    assert jet_components.cross_entropy(ratio, labels) > right + 0.03
