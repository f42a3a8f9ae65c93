"""Scores of a run on a table: in the user's units, by name, and with what lies outside the training sample."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from scipy.stats import kstest

import normae
from command import command
from normae.errors import InputError
from normae.scoring.score import Scorer, open_scorer, score
from tiny_run import tiny
from tiny_table import NAMES, rows, trained, write

OFFSET = np.array([0.0, 1e9, 0.0])


def column(path: Path, name: str) -> np.ndarray:
    return pyarrow.parquet.read_table(path)[name].to_numpy()


@pytest.fixture
def scorer(table_run) -> Scorer:
    """With small parts, so that small files have many."""
    return replace(open_scorer(table_run.path, device="cpu"), block=64, part=256)


def test_an_offset_costs_no_digits(table_run, scorer, tmp_path):
    moved = trained(tmp_path, rows() + OFFSET)
    new = rows(500, seed=1)
    score(scorer, [write(new, tmp_path / "new.parquet")], tmp_path / "a.parquet")
    score(open_scorer(moved.path), [write(new + OFFSET, tmp_path / "moved.parquet")], tmp_path / "b.parquet")
    for name in ("score", "log_prob"):
        a, b = column(tmp_path / "a.parquet", name), column(tmp_path / "b.parquet", name)
        assert np.abs(a - b).max() < 3e-5  # of scores around 25, in float32
        assert np.allclose(a, getattr(normae.load(table_run.path), name)(new), rtol=1e-6)


def test_the_first_scoring_of_a_run_is_like_every_later_one(table_run):
    """What is kept of its held-out rows is what was found, so that parts and p-values stay."""
    for kept in table_run.path.glob("background.npz"):
        kept.unlink()
    first, second = (open_scorer(table_run.path, device="cpu") for _ in range(2))
    assert first.background.dtype == np.float32
    assert (first.digest, list(first.background)) == (second.digest, list(second.background))


def test_units_only_shift_the_score(table_run, scorer, tmp_path):
    """The same rows in GeV, trained on: log p changes by the log of the units."""
    other = trained(tmp_path, rows() / [1e3, 1, 1e3])
    new = rows(300, seed=1)
    a, b = normae.load(table_run.path).log_prob(new), normae.load(other.path).log_prob(new / [1e3, 1, 1e3])
    assert np.abs(b - a - 2 * np.log(1e3)).max() < 1e-3


def test_columns_in_any_order(scorer, tmp_path):
    new = rows(300, seed=1)
    score(scorer, [write(new, tmp_path / "a.parquet")], tmp_path / "sa.parquet")
    score(scorer, [write(new, tmp_path / "b.parquet", NAMES[::-1])], tmp_path / "sb.parquet")
    np.save(tmp_path / "c.npy", new)
    score(scorer, [tmp_path / "c.npy"], tmp_path / "sc.parquet")
    found = [column(tmp_path / f"s{name}.parquet", "score") for name in "abc"]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_data_frames_are_taken_by_name(table_run, kind):
    model, new = normae.load(table_run.path), rows(50, seed=1)
    columns = {"label": np.arange(50)} | {name: new[:, NAMES.index(name)] for name in NAMES[::-1]}
    frame = pa.table(columns) if kind == "arrow" else pytest.importorskip(kind).DataFrame(columns)
    for method in (model.score, model.log_prob, lambda x: model.rows(x).score()):
        assert np.array_equal(method(frame), method(new))
    lacking = frame.drop(["eta"]) if kind != "pandas" else frame.drop(columns="eta")
    with pytest.raises(InputError, match="no column 'eta'; there are 'label', 'mass', 'pt'"):
        model.score(lacking)


def test_rows_outside_are_counted_through_parts_shards_and_stops(scorer, tmp_path):
    new = rows(2000, seed=1)
    new[:, 1] = np.clip(new[:, 1], -2, 2)
    new[:412, 0] *= -1
    new[5:8, 1] = 100.0
    file, out = write(new, tmp_path / "new.parquet"), tmp_path / "s.parquet"
    whole = score(scorer, [file], tmp_path / "whole.parquet").notes
    assert len(whole) == 2
    assert whole[0].startswith("412 of 2,000 rows lie outside the range of the training sample in `pt` (5")
    assert whole[1].startswith("3 of 2,000 rows lie outside the range of the training sample in `eta` (")
    first = score(scorer, [file], out, shard="0/2")
    assert "412 of 1,024 rows" in first.notes[0]
    assert score(scorer, [file], out, shard="1/2").notes == []
    done = score(scorer, [file], out, do=lambda _, parts, *more: pytest.fail("done before") if parts else None)
    assert done.notes == whole
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_other_units_are_said_loudly(table_run, scorer, tmp_path, capfd):
    new = rows(300, seed=1)
    good, bad = write(new, tmp_path / "good.parquet"), write(new * [1e-3, 1, 1], tmp_path / "bad.parquet")
    assert score(scorer, [good], tmp_path / "a.parquet").notes == []
    assert command("score", table_run.path, bad, "-o", tmp_path / "b.parquet", "--device", "cpu") == 0
    said = capfd.readouterr().err
    assert "ALL 300 rows lie outside the range of the training sample in `pt`" in said
    assert "same units?" in said
    both = score(scorer, [good, bad], tmp_path / "c.parquet").notes
    assert both[0].startswith(f"{bad}: ALL 300 rows")


def test_other_units_are_said_in_python_too(table_run, caplog):
    """Once a call, however many pieces it has, and by every way to a score; not of a few rows, nor of good ones."""
    model, new = normae.load(table_run.path), rows(9000, seed=1)
    wrong = new * [1e-3, 1, 1]
    said = "ALL rows lie outside the range of the training sample in `pt` ("
    for method in (model.score, model.log_prob):
        for given in (wrong, pd.DataFrame(wrong, columns=NAMES), torch.from_numpy(wrong[:50])):
            method(given)
            assert said in caplog.text
            assert caplog.text.count("same units?") == 1
            caplog.clear()
        few = new.copy()
        few[100:, 0] *= 1e-3  # what is anomalous may lie outside
        for silent in (new, few, wrong[:9]):
            method(silent)
    fixed = new[::-1].copy()
    fixed.flags.writeable = False
    for other in (new[::-1], fixed, new.astype(">f8")[::-1], new.astype(np.longdouble)[::-1]):
        assert np.array_equal(model.score(other), model.score(new)[::-1])
    assert not caplog.records
    for no_rows in (None, "t.csv", wrong[:, :2], wrong.astype(str)):
        with pytest.raises(InputError, match="expected (events of shape|real numbers)"):
            model.score(no_rows)


def test_the_worst_three_columns_are_named(tmp_path):
    """Of a run whose events are taken as they are, too."""
    names = [f"x{k}" for k in range(5)]
    x = np.random.default_rng(0).uniform(-1, 1, size=(2000, 5))
    pyarrow.parquet.write_table(pa.table(dict(zip(names, x.T, strict=True))), tmp_path / "t.parquet")
    content = tiny(data={"file": str(tmp_path / "t.parquet"), "train": 1500, "test": 300})
    normae.runs.session.train(normae.config.structure(content), tmp_path / "run")
    for k in range(5):
        x[: 10 * (k + 1), k] = 3.0
    np.save(tmp_path / "new.npy", x)
    scorer = open_scorer(tmp_path / "run", device="cpu")
    notes = score(scorer, [tmp_path / "new.npy"], tmp_path / "s.parquet").notes
    assert [note.split(" rows")[0] for note in notes[:3]] == ["50 of 2,000", "40 of 2,000", "30 of 2,000"]
    assert "`x4`" in notes[0]
    assert notes[3:] == ["and 2 more columns"]
    for part in (x[:2000], x[:1999], x[:63]):
        found = scorer.outside(part.astype(np.float32))
        assert found.counts == [min(10 * (k + 1), len(part)) for k in range(5)]
        assert np.allclose([found.low, found.high], [part.min(0), part.max(0)])


def test_p_values_are_flat(table_run, scorer, tmp_path):
    """Of rows that are held out, and of new ones, against rows held out."""
    new = write(rows(1000, seed=7), tmp_path / "new.parquet")
    score(scorer, [new], tmp_path / "s.parquet")
    assert len(scorer.background) == 200
    assert kstest(column(tmp_path / "s.parquet", "p_value"), "uniform").statistic < 1.63 * (1 / 1000 + 1 / 200) ** 0.5
    config = normae.config.read(table_run.path / "config.toml")
    held = normae.sources.load_events(config.data, config.seed).test.numpy()
    p = scorer.score(held)["p_value"]
    assert np.allclose(np.sort(p), np.arange(2, 202) / 201, atol=2 / 201)


def test_error_bars(bars_run, tmp_path):
    new = rows(300, seed=1)
    score(open_scorer(bars_run.path), [write(new, tmp_path / "new.parquet")], tmp_path / "s.parquet")
    model, estimator = normae.load(bars_run.path), normae.NormalizedAutoencoder.load(bars_run.path)
    frame = pd.DataFrame(new, columns=NAMES)
    found = {name: column(tmp_path / "s.parquet", name) for name in ("score", "score_std", "log_prob")}
    assert np.allclose(found["score"], model.score_draws(new).mean(0), rtol=1e-5)
    assert np.allclose(found["log_prob"], estimator.score_samples(frame), atol=1e-3)
    assert np.allclose(found["score_std"], estimator.score_std(frame), rtol=1e-3, atol=1e-4)
    assert estimator.score_draws(frame).shape == (4, 300)
