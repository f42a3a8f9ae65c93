"""bench/public_tables.py: its protocol, its statistics on known cases, and that finished fits are not done again."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from normae.errors import InputError

FOLDER = Path(__file__).parents[2] / "bench"
SLOW = ("torch._dynamo", "zuko", "pyod.models.auto_encoder", "pyod.models.deep_svdd", "pyod.models.inne")
SMALL = {"hidden": [8], "start_iterations": 20, "iterations": 5}


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        module = importlib.import_module("public_tables")
        patch.setattr(module, "IMPORTED", [name for name in module.IMPORTED if name not in SLOW])
        yield module


def easy_table(path: Path, normal: int, anomalies: int, columns: int) -> None:
    """Anomalies six widths away in every column."""
    random = np.random.default_rng(0)
    x = random.normal(size=(normal + anomalies, columns))
    x[normal:] += 6
    order = random.permutation(len(x))
    np.savez(path, X=x[order], y=np.repeat([0, 1], [normal, anomalies])[order])


def run(bench, monkeypatch, capsys, *arguments: object) -> str:
    words = ["public_tables.py", *map(str, arguments), "--settings", json.dumps(SMALL)]
    monkeypatch.setattr(sys, "argv", words)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")
    bench.main()
    return capsys.readouterr().out


def test_easy_anomalies_are_found_and_finished_fits_are_not_done_again(bench, tmp_path, capsys, monkeypatch):
    for name, columns in (("a", 2), ("b", 3)):
        easy_table(tmp_path / f"{name}.npz", 80, 10, columns)
    out = tmp_path / "made" / "results.json"
    asked = (tmp_path, "--seeds", 0, "--detectors", "normae,knn,ecod", "-o", out)
    printed = run(bench, monkeypatch, capsys, *asked, "--tables", "a")
    assert "| a |" in printed
    content = json.loads(out.read_text())
    assert [(r["table"], r["detector"]) for r in content["results"]] == [("a", n) for n in ("normae", "knn", "ecod")]
    for result in content["results"]:
        assert result["auc"] > 0.9
        assert (result["train"], result["test"], result["columns"]) == (40, 50, 2)
        assert result["memory_mib"] >= 0
    content["results"][1]["auc"] = 0.25
    out.write_text(json.dumps(content))
    printed = run(bench, monkeypatch, capsys, *asked)
    assert "| a | **1.000** | 0.250 |" in printed
    results = json.loads(out.read_text())["results"]
    assert len(results) == 6
    assert results[:3] == content["results"]
    assert min(r["auc"] for r in results[3:]) > 0.9
    lines = (out.parent / "results_ranks.csv").read_text().splitlines()
    assert lines[0] == "detector,mean_rank,mean_auc,critical_difference"
    assert (out.parent / "results_ranks.png").stat().st_size > 1000
    with pytest.raises(InputError, match="was made with .*'contaminated': False"):
        run(bench, monkeypatch, capsys, *asked, "--contaminated")


def test_a_fit_that_fails_is_a_coin(bench, tmp_path):
    np.savez(tmp_path / "broken.npz", X=np.full((40, 2), np.nan), y=np.repeat([0, 1], 20))
    found = bench.in_process(bench.Job(tmp_path / "broken.npz", 0, "knn", False, {}))
    assert found["auc"] == 0.5
    assert found["failed"].startswith("ValueError: Input X contains NaN")


def test_split_of_one_class(bench):
    x, y = np.arange(26000)[:, None], np.repeat([0, 1], [20000, 6000])
    train, test, labels = bench.split(x, y, 0, contaminated=False)
    assert train.shape == (5000, 1)
    assert labels.tolist() == [0] * 5000 + [1] * 5000
    assert train.max() < 20000
    assert (test[labels == 1] >= 20000).all()
    assert len(np.unique(np.concatenate([train, test]))) == 15000
    other = bench.split(x, y, 1, contaminated=False)
    assert not np.array_equal(train, other.train)
    small = bench.split(x[:21], np.repeat([0, 1], [15, 6]), 0, contaminated=False)
    assert (len(small.train), small.labels.tolist()) == (7, [0] * 8 + [1] * 6)


def test_contaminated_split(bench):
    x, y = np.arange(26000)[:, None], np.repeat([0, 1], [20000, 6000])
    train, test, labels = bench.split(x, y, 0, contaminated=True)
    assert len(train) == 5000
    assert len(test) == 13000
    assert np.mean(train >= 20000) == pytest.approx(6 / 26, abs=0.03)
    assert np.array_equal(labels, (test[:, 0] >= 20000).astype(int))
    assert not np.intersect1d(train, test).size


def test_ranks_by_hand(bench):
    auc = np.array([[0.9, 0.8, 0.7], [0.5, 0.5, 0.4], [0.1, 0.3, 0.2], [0.6, 0.6, 0.6]])
    assert bench.mean_ranks(auc) == pytest.approx([(1 + 1.5 + 3 + 2) / 4, (2 + 1.5 + 1 + 2) / 4, (3 + 3 + 2 + 2) / 4])


def test_critical_difference_of_the_textbook(bench):
    """Demšar's table: q = 2.569 of four groups, 1.960 of two."""
    assert bench.critical_difference(4, 10) == pytest.approx(2.569 * np.sqrt(4 * 5 / 60), abs=1e-3)
    assert bench.critical_difference(4, 10) == pytest.approx(1.483, abs=1e-3)
    assert bench.critical_difference(2, 6) == pytest.approx(1.960 * np.sqrt(1 / 6), abs=1e-3)


def test_groups_that_do_not_differ(bench):
    ranks = np.array([1.0, 3.5, 2.0, 2.6, 9.0])
    assert bench.level_groups(ranks, 1.6) == [(1.0, 2.6), (2.0, 3.5)]
    assert bench.level_groups(ranks, 0.1) == []
    assert bench.level_groups(ranks, 20.0) == [(1.0, 9.0)]


def test_empirical_tails_by_hand(bench):
    """Of four rows and the row itself: 4/5 and 2/5 for 3, 5/5 and 1/5 for 9; the column leans to the right."""
    rows = np.array([[0.0], [1.0], [2.0], [8.0]])
    score = bench.detectors.empirical_tails(rows, 0).score
    assert score(np.array([[3.0], [9.0], [-1.0]])) == pytest.approx(np.log([2 / 5, 1 / 5, 1 / 5]))
