"""Bayesian runs end to end: train with each posterior, load, evaluate, coverage over trainings, and what is refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import normae
from normae.cli import app
from normae.config import read, structure
from normae.errors import InputError
from normae.evaluation.evaluate import evaluate
from normae.evaluation.toy_posterior import coverage_of_group
from normae.inference import BayesianModel
from normae.runs.folder import read_tensors
from normae.runs.load import build_model
from normae.runs.session import member_events, train
from normae.sources import bootstrapped, halved, in_parts, load_events
from normae.training import TrainingConfig
from tiny_run import tiny

POSTERIORS = {
    "bayesian": {"bayesian": {"layers": "last"}},
    "local": {"bayesian": {"layers": "last", "training": "local"}},
    "ensemble": {"ensemble": {"members": 4}},
}
X = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run with each posterior."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("posteriors")
    for name, changes in POSTERIORS.items():
        train(structure(tiny(**changes)), folder / name)
    return folder


@pytest.mark.parametrize("name", POSTERIORS)
def test_every_posterior_has_normalized_draws(runs, name):
    model = normae.load(runs / name)
    assert isinstance(model, BayesianModel)
    draws = model.log_prob_draws(X, n=20, seed=1)
    assert draws.shape == (20, 20)
    assert (draws.std(0) > 0).all()
    model.cells = 80
    points = np.stack(np.meshgrid(*[(np.arange(80) + 0.5) / 80 * 9 - 4.5] * 2), axis=-1).reshape(-1, 2)
    total = np.exp(normae.load(runs / name).log_prob_draws(points, n=3).astype(np.float64)).sum(1) * (9 / 80) ** 2
    assert np.allclose(total, 1, atol=1e-2)
    assert model.sample(7, feature_steps=2).shape == (7, 2)
    assert np.isfinite(model.draw(torch.Generator().manual_seed(0)).log_prob(X)).all()


def test_evaluate_draws_and_reports(runs):
    name = "bayesian"
    metrics = evaluate(runs / name, figures=True, device="cpu")
    assert {"kl", "pull_width", "coverage_quantile_95", "auc_ideal"} <= set(metrics)
    assert {"auc_classifier_exact", "auc_classifier_recipe"} <= set(metrics)
    for figure in ("uncertainties", "pulls", "coverage", "coverage-regions", "marginal-x1", "test-correlation"):
        assert (runs / name / "figures" / f"{figure}.svg").is_file()
    assert CliRunner().invoke(app, ["report", str(runs / name)]).exit_code == 0
    page = (runs / name / "report.html").read_text()
    assert "Coverage by region" in page
    shares = [100 * one.value for key, one in metrics.items() if "coverage_quantile_68_region" in key]
    assert f"By region of log p the first cover {min(shares):.0f} to {max(shares):.0f} %." in page


def test_members_have_parts_of_the_events_of_their_own():
    config = structure(tiny(ensemble={"members": 4, "events": "split"}))
    events = load_events(config.data, 0)
    parts = [{tuple(row) for row in e.train.tolist()} for e in member_events(config, events)]
    assert {len(part) for part in parts} == {len(events.train) // 4}
    assert len(set.union(*parts)) == 4 * (len(events.train) // 4)
    assert set.union(*parts) <= {tuple(row) for row in events.train.tolist()}
    assert all(torch.equal(e.test, events.test) for e in member_events(config, events))
    everything = member_events(structure(tiny(ensemble={"members": 4, "events": "all"})), events)
    assert all(torch.equal(e.train, events.train) for e in everything)
    with pytest.raises(InputError, match="expected at least an event for each of 4 members, got 3"):
        in_parts(events.with_rows(torch.arange(3)), 4, 0)


def test_members_have_their_own_events_drawn_with_replacement():
    events = load_events(structure(tiny()).data, 0)
    first, second = (bootstrapped(events, seed).train for seed in (0, 1))
    assert first.shape == events.train.shape
    assert not torch.equal(first, second)
    rows = {tuple(row) for row in events.train.tolist()}
    drawn = {tuple(row) for row in first.tolist()}
    assert drawn < rows
    assert len(drawn) / len(rows) == pytest.approx(1 - math.exp(-1), abs=0.1)
    assert torch.equal(bootstrapped(events, 0).train, first)


def test_a_resumed_ensemble_is_the_same(tmp_path):
    config = structure(tiny(ensemble={"members": 4}))
    train(config, tmp_path / "whole")

    def stop(trainer, _):
        trainer.stop = trainer.place[0] == "training" and trainer.place[1] >= 2

    assert not train(config, tmp_path / "parts", watch=stop)
    assert train(config, tmp_path / "parts", resume=True)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert first == second


def test_a_resumed_ensemble_of_a_table_is_the_same(bars_run, tmp_path):
    config = replace(read(bars_run.path / "config.toml"), training=TrainingConfig(epochs=1, iterations=2, batch=64))
    config = replace(config, contrast=replace(config.contrast, iterations=20), guard=replace(config.guard, log_every=5))
    train(config, tmp_path / "whole")

    def stop(trainer, _):
        trainer.stop = trainer.place[1] >= 10

    assert not train(config, tmp_path / "parts", watch=stop)
    assert train(config, tmp_path / "parts", resume=True)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert first == second


def test_a_table_has_no_other_error_bars(bars_run):
    config = read(bars_run.path / "config.toml")
    with pytest.raises(InputError, match=r"halves of its rows; train with --set ensemble.members=8"):
        replace(config, ensemble=replace(config.ensemble, events="bootstrap"))
    tensors, header = read_tensors(bars_run.path / "model.safetensors")
    with pytest.raises(InputError, match="garbles members, expected 4"):
        build_model(config, tensors, header | {"members": header["members"][:3]}, "model")
    with pytest.raises(InputError, match="do not belong to config.toml"):
        build_model(config, {name: t for name, t in tensors.items() if "half.2.base" not in name}, header, "model")


def test_halves():
    events = load_events(structure(tiny()).data, 0)
    whole = {tuple(row) for row in events.train.tolist()}
    (first, rest), (second, _) = ([{tuple(row) for row in h.train.tolist()} for h in halved(events, n)] for n in (0, 1))
    assert first | rest == whole
    assert len(first) == len(rest) == -(-len(whole) // 2)
    assert len(first & rest) == len(whole) % 2
    assert len(first & second) / len(whole) == pytest.approx(0.25, abs=0.06)


def test_coverage_over_trainings(tmp_path):
    train(structure(tiny(bayesian={"layers": "last"})), tmp_path / "group", seeds=[0, 1])
    result = CliRunner().invoke(app, ["coverage", str(tmp_path / "group"), "--device", "cpu"])
    assert result.exit_code == 0
    assert "coverage_quantile_68" in result.output
    numbers = json.loads((tmp_path / "group" / "coverage.json").read_text())
    assert numbers["trainings"]["value"] == 2
    assert "pull_total_width" not in numbers, "two trainings do not give its error"
    assert 0 <= numbers["coverage_quantile_90"]["value"] <= 1
    assert numbers["farthest_training_quantile"]["value"] >= 0
    for figure in ("coverage", "coverage-regions", "pulls"):
        assert (tmp_path / "group" / "figures" / f"{figure}.svg").is_file()


def test_coverage_refuses(tmp_path, tiny_run):
    train(tiny_run, tmp_path / "plain", seeds=[0, 1])
    with pytest.raises(InputError, match="no error bars"):
        coverage_of_group(tmp_path / "plain", "cpu")
    with pytest.raises(InputError, match="at least 2 trainings"):
        coverage_of_group(tmp_path / "plain" / "seed-0", "cpu")
