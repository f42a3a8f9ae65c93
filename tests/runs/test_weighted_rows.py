"""Weighted rows: the model is their density, from every door, with negative weights too."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal as gaussian
from torch import nn

import normae
from command import command
from normae.config import read
from normae.coordinates import TableCoordinates
from normae.data import DENSITIES, Rows
from normae.errors import InputError
from normae.networks.base import BaseConfig, fit_base, smoothed
from normae.runs.automatic import Wishes, automatic_run
from normae.runs.session import prepare, train
from normae.sources import DataConfig, load_events
from normae.statistics.arrays import unweighted
from normae.tensors import by_weight, counts_as
from tiny_jets import SAMPLE

WIDE, NARROW = gaussian([0, 0], [[1, 0], [0, 1]]), gaussian([0.8, -0.5], [[0.5, 0.2], [0.2, 0.6]])
HOLE = gaussian([0.8, -0.5], [[0.15, 0.05], [0.05, 0.2]])
SHARE = 0.3
QUICK = {"start_iterations": 100, "hidden": (16, 16), "random_state": 0}
SETTINGS = ["contrast.iterations=40", "network.hidden=[8]", "contrast.batch=64", "base.gaussians=2"]


def reweighted(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `WIDE` with the weights that make them `NARROW`."""
    x = WIDE.rvs(n, random_state=seed)
    return x, NARROW.pdf(x) / WIDE.pdf(x)


def subtracted(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `NARROW`, and with negative weights of `HOLE`, so that (1 + f) NARROW - f HOLE is left, f = `SHARE`."""
    k = round(n * SHARE / (1 + SHARE))
    x = np.concatenate([NARROW.rvs(n, random_state=1), HOLE.rvs(k, random_state=2)])
    order = np.random.default_rng(3).permutation(n + k)
    return x[order], np.repeat([2.0, -2.0], [n, k])[order]


# --- what the model is


def test_reweighted_rows_give_the_other_density():
    x, w = reweighted(2000)
    points = NARROW.rvs(4000, random_state=9)
    nae = normae.NormalizedAutoencoder(**QUICK).fit(x, sample_weight=w)
    assert np.sqrt(np.mean((nae.score_samples(points) - NARROW.logpdf(points)) ** 2)) < 0.25
    found = nae.sample(10_000, random_state=0)
    assert np.allclose(found.mean(0), NARROW.mean, atol=0.08)
    assert np.allclose(np.cov(found.T), NARROW.cov, atol=0.12)
    below = nae.predict(points) < 0
    assert below.mean() == pytest.approx(nae.contamination, abs=0.04)


def test_negative_weights_take_away():
    x, w = subtracted(3000)
    longer = ["contrast.iterations=800", "contrast.learning_rate=0.005", "network.hidden=[32,32]"]
    model = normae.train(x, weights=w, settings=longer)

    def log_prob(points):
        return np.log((1 + SHARE) * NARROW.pdf(points) - SHARE * HOLE.pdf(points))

    points, centre = NARROW.rvs(4000, random_state=9), np.array([NARROW.mean])
    assert np.sqrt(np.mean((model.log_prob(points) - log_prob(points)) ** 2)) < 0.2
    assert log_prob(centre) < NARROW.logpdf(centre) - 0.9, "half of the density is taken away there"
    assert model.log_prob(centre)[0] == pytest.approx(log_prob(centre), abs=0.5)  # 0.9 without negative weights
    expected = (1 + SHARE) * NARROW.cov - SHARE * HOLE.cov
    assert np.allclose(np.cov(model.sample(10_000, seed=0).T), expected, atol=0.12)


def test_equal_weights_are_none():
    x = WIDE.rvs(100, random_state=0)
    tiny = QUICK | {"start_iterations": 20, "hidden": (4,), "log_z": "never"}
    plain = normae.NormalizedAutoencoder(**tiny).fit(x)
    equal = normae.NormalizedAutoencoder(**tiny).fit(x, sample_weight=np.full(100, 0.1))
    assert np.array_equal(plain.score_samples(x), equal.score_samples(x))
    assert plain.run_["model.safetensors"] == equal.run_["model.safetensors"]
    assert plain.offset_ == equal.offset_


# --- its parts, against rows that are there several times


def test_rows_by_weight():
    assert counts_as(torch.tensor([1.0, 1.0, 0.0, -1.0])) == 1
    assert counts_as(torch.full((7,), 0.3)) == 7
    w = torch.tensor([0.0, 2.0, 1.0, 0.0, 3.0])
    assert by_weight(w, 6).tolist() == [1, 1, 2, 4, 4, 4]
    assert by_weight(w, 2).tolist() == [1, 4]
    assert unweighted([5.0, 4.0, 3.0, 2.0, 1.0], None).tolist() == [5, 4, 3, 2, 1]
    values, weights = np.arange(1000.0), np.where(np.arange(1000) % 5 == 0, -1.0, 1.0)  # 0.6 of them are left
    order = np.random.default_rng(0).permutation(1000)
    found = unweighted(values[order], weights[order])
    assert np.array_equal(found, unweighted(values, weights)), "the order of rows does not matter"
    assert len(found) == 360
    assert np.quantile(found, [0.1, 0.5, 0.9]) == pytest.approx([100, 500, 900], abs=5)


def test_coordinates_and_gaussians_see_a_row_as_often_as_its_weight_says():
    rows = torch.from_numpy(WIDE.rvs(2000, random_state=0) * [1, 30] + [5, 0])
    w = (1.0 + (rows[:, 0] > 5) + (rows[:, 1] > 0)).double()
    again = rows.repeat_interleave(w.long(), dim=0)
    own, repeated = TableCoordinates.of(rows, 1e-3, weights=w), TableCoordinates.of(again, 1e-3)
    for name in ("centre", "width", "mean", "whitening", "low", "high"):
        scale = repeated.width if name in ("centre", "low", "high") else 1
        assert torch.allclose(getattr(own, name) / scale, getattr(repeated, name) / scale, rtol=0.03, atol=0.03)
    y, frame = repeated.forward(rows), repeated.colouring
    base = fit_base(y, frame, BaseConfig(gaussians=1), torch.Generator().manual_seed(0), w)
    expected = (repeated.forward(again) @ frame.T).float()
    covariance = torch.linalg.inv(base.factors[0].T @ base.factors[0])
    assert torch.allclose(base.means[0], expected.mean(0), atol=0.03)
    assert torch.allclose(covariance, expected.T.cov(), atol=0.06)
    assert len(base.centres) == len(base.centres.unique(dim=0)), "kernels are at different rows"
    assert torch.allclose(base.centres.mean(0), expected.mean(0), atol=0.1)


def test_weights_of_the_base_are_positive_means():
    x, w = (torch.from_numpy(part) for part in subtracted(4000))
    positive = smoothed(x, w)
    assert positive.min() >= 0
    assert positive.sum() == pytest.approx(float(w.sum()), rel=0.02)
    near = (x - torch.tensor(NARROW.mean)).square().sum(1) < 0.05
    far = (x - torch.tensor(NARROW.mean)).square().sum(1) > 1
    assert 0 < positive[near].mean() < 0.75 * positive[far].mean()
    assert positive[near].mean() == pytest.approx(float(w[near].mean()), abs=0.25)
    assert torch.equal(smoothed(x, w.abs() + x[:, 0].abs()), w.abs() + x[:, 0].abs())


def test_copies_of_rows_have_copies_of_weights():
    x, w = reweighted(60)
    data = DataConfig(file="data.npz", weights="weights", train=0, test=0, validation=20)
    run = automatic_run(torch.from_numpy(x), data, Wishes(), weights=torch.from_numpy(w))
    run = type(run)(**{**vars(run), "base": None, "coordinates": type(run.coordinates)("table", copies=3)})
    events = load_events(data, 0, Rows(x, None, w))
    seen = prepare(run, events).events
    assert len(seen.train) == len(seen.weights.train) == 120
    assert len(seen.validation) == len(seen.weights.validation)
    assert torch.equal(seen.weights.train, events.weights.train.repeat(3))
    place = {tuple(row): weight for row, weight in zip(x.tolist(), w, strict=True)}
    own = torch.tensor([place[tuple(row)] for row in events.train.tolist()], dtype=torch.float64)
    assert torch.allclose(events.weights.train, own / own.mean()), "weights stay with their rows"


# --- doors


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    x, w = reweighted(2000)
    pd.DataFrame({"a": x[:, 0], "w": w, "b": x[:, 1]}).to_parquet(folder / "rows.parquet")
    change = [word for one in SETTINGS for word in ("--set", one)]
    assert command("train", folder / "rows.parquet", "-o", folder / "run", "--weights", "w", *change) == 0
    return folder


def test_the_column_of_the_weights_is_no_feature(run):
    config = read(run / "run" / "config.toml")
    assert (config.data.weights, config.data.columns) == ("w", ("a", "b"))
    model = normae.load(run / "run")
    assert model.columns == ("a", "b")
    frame = pd.read_parquet(run / "rows.parquet")
    for name, data, weights in (("frame", frame, "w"), ("array", frame[["a", "b"]], frame["w"].to_numpy())):
        other = normae.train(data, run / name, weights=weights, settings=SETTINGS)
        assert np.array_equal(other.score(frame[["a", "b"]].to_numpy()), model.score(frame[["a", "b"]].to_numpy()))
        assert normae.NormalizedAutoencoder.load(run / name).offset_ == pytest.approx(-3.47, abs=0.7)
    assert normae.train(frame, weights="w", columns=["b"], settings=SETTINGS).columns == ("b",)


def test_scores_need_no_weights_and_p_values_are_of_the_weighted_rows(run):
    points = NARROW.rvs(3000, random_state=5)
    pd.DataFrame({"a": points[:, 0], "b": points[:, 1]}).to_csv(run / "new.csv", index=False)
    assert command("score", run / "run", run / "new.csv", "-o", run / "scores.parquet") == 0
    p = pd.read_parquet(run / "scores.parquet")["p_value"]
    assert p.mean() == pytest.approx(0.5, abs=0.06)
    assert (p < 0.1).mean() == pytest.approx(0.1, abs=0.05)


def test_what_is_judged_is_weighted(run):
    assert command("evaluate", run / "run") == 0
    found = {k: v["value"] for k, v in json.loads((run / "run" / "metrics.json").read_text()).items()}
    truth = NARROW.logpdf(NARROW.rvs(50_000, random_state=6)).mean()
    assert found["mean_log_prob_held_out"] == pytest.approx(truth, abs=0.2)
    assert found["auc_samples"] < 0.58
    assert found["auc_overtraining"] == pytest.approx(0.5, abs=0.08)
    assert found["wasserstein a"] < found["wasserstein_halves a"], "two halves of the rows held out differ by more"
    assert command("report", run / "run") == 0
    assert "weighted by w" in (run / "run" / "report.html").read_text()


def test_resume(run):
    config = read(run / "run" / "config.toml")

    def stop(trainer, happening):
        trainer.stop = happening.iteration >= 25

    assert not train(config, run / "parts", watch=stop)
    assert train(config, run / "parts", resume=True)
    assert (run / "parts" / "model.safetensors").read_bytes() == (run / "run" / "model.safetensors").read_bytes()


def test_networks_of_one_s_own(tmp_path):
    """An energy (x - m)^2/2 with m to be found: the mean of the weighted rows."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.centre = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return (x - self.centre).square().sum(1) / 2

    x = np.random.default_rng(0).normal(size=(500, 1))
    energy = Shifted()
    quick = ["contrast.iterations=300", "contrast.learning_rate=0.01", "training.iterations=5"]
    model = normae.train(x, energy=energy, weights=np.exp(x[:, 0]), settings=quick)
    grid = np.linspace(-4, 5, 400)[:, None]
    p = np.exp(model.log_prob(grid))
    assert (p * grid[:, 0]).sum() / p.sum() == pytest.approx(1.0, abs=0.2)


# --- what cannot be


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(5), r"a weight for each of 100 rows, got \(5,\)"),
        (np.zeros(100), "weights with a sum above zero, got 0"),
        (-np.ones(100), "weights with a sum above zero, got -100"),
        (np.full(100, np.nan), "got NaN in row 0, column 'weights'"),
        (np.r_[np.zeros(95), np.ones(5)], "count as at least 10 equal ones.*got 5 of 100 rows"),
        ("mass", "no column 'mass' with weights"),
        (["a"] * 100, "the array of weights holds text"),
    ],
)
def test_weights_that_are_none(weights, message):
    with pytest.raises(InputError, match=message):
        normae.train(WIDE.rvs(100, random_state=0), weights=weights)


def test_where_there_are_no_weights(tmp_path):
    np.save(tmp_path / "x.npy", WIDE.rvs(100, random_state=0))
    with pytest.raises(InputError, match="expected names of columns, one of them 'w'"):
        normae.train(tmp_path / "x.npy", weights="w")
    with pytest.raises(InputError, match="the name of the column with the weights, got an array"):
        normae.train(tmp_path / "x.npy", weights=np.ones(100))
    with pytest.raises(InputError, match=r"weights and condition are of a table; a TOML file names them in \[data\]"):
        normae.train("toy-quick", weights="w")
    with pytest.raises(InputError, match="jets are trained on without weights; leave them out"):
        normae.train(SAMPLE, weights="w")
    with pytest.raises(InputError, match=r"data.weights: expected data.file with it"):
        DataConfig(density=next(iter(DENSITIES)), weights="w")


def test_a_sample_without_positive_sum():
    x, w = WIDE.rvs(100, random_state=0), np.r_[np.full(90, 1.0), np.full(10, -8.5)]
    data = DataConfig(file="data.npz", weights="weights", train=0, test=5, validation=5)
    found = [load_events(data, seed, Rows(x, None, w)) for seed in range(8)]
    with pytest.raises(InputError, match="positive sum, in training, validation and test rows each, got -"):
        [events.weights for events in found]
