"""evaluate and report of a run on a table whose density nobody knows."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import normae
from command import command
from normae.cli import app
from normae.config import structure
from normae.data import DENSITIES
from normae.errors import InputError
from normae.evaluation.evaluate import evaluate
from normae.evaluation.table import TableStudy, table_metrics, table_test
from normae.runs.folder import RunFolder
from normae.runs.session import train
from normae.sources import Events
from normae.tensors import stream
from tiny_run import tiny
from tiny_table import NAMES, rows


def judged(shift: float) -> dict:
    """The zoo's model against 1,000 rows of its own density, moved by `shift`."""
    density = DENSITIES["two-gaussians"]()
    x = density.sample(2000, stream(1, "rows")) + shift
    config = structure(tiny(data={"file": "nowhere.npy", "train": 1000, "test": 1000}))
    events = Events(lambda: x[:1000], lambda: None, lambda: x[1000:], columns=lambda: ("mass", "pt"))
    model = normae.load("toy-2gauss-nae")
    return table_metrics(model, config, table_test(model, config, events))


def test_the_right_density_is_not_told_from_its_table():
    found = judged(0.0)
    assert found["auc_overtraining"].value == pytest.approx(0.5, abs=4 * found["auc_overtraining"].error)
    assert found["auc_samples"].value < 0.6
    for column in ("mass", "pt"):
        distance, halves = found[f"wasserstein {column}"], found[f"wasserstein_halves {column}"]
        assert distance.value < 4 * halves.value
    truth = DENSITIES["two-gaussians"]().log_prob(DENSITIES["two-gaussians"]().sample(50_000, stream(2, "x")).double())
    log_prob = found["mean_log_prob_held_out"]
    assert log_prob.value == pytest.approx(float(truth.mean()), abs=4 * log_prob.error)


def test_a_wrong_density_is_told_from_its_table():
    found = judged(0.5)
    assert found["auc_samples"].value > 0.65
    assert found["wasserstein mass"].value > 5 * found["wasserstein_halves mass"].value


@pytest.mark.parametrize("extra", [{}, {"bayesian": {"layers": "last"}}])
def test_the_user_s_path(tmp_path, extra):
    rows = torch.randn(300, 3, generator=stream(0, "rows")).numpy()
    path = tmp_path / "rows.csv"
    np.savetxt(path, rows, delimiter=",", header="a,b,c", comments="")
    data = {"file": str(path), "columns": ["a", "b", "c"], "train": 200, "test": 100}
    train(structure(tiny(data=data) | extra), tmp_path / "run")
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {"auc_samples", "auc_overtraining", "mean_score_held_out", "wasserstein b"} <= set(metrics)
    assert ("mean_score_std" in metrics) == bool(extra)
    for name in ("scores", "columns", "training"):
        assert (tmp_path / "run" / "figures" / f"{name}.svg").is_file()
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
    assert "samples look like the table" in (tmp_path / "run" / "report.html").read_text()


def test_error_bars_of_a_table(bars_run, tmp_path):
    run = shutil.copytree(bars_run.path, tmp_path / "run")
    for name in ("evaluate", "report"):
        done = CliRunner().invoke(app, [name, str(run)])
        assert done.exit_code == 0, done.output
    metrics = json.loads((run / "metrics.json").read_text())
    config = normae.config.read(run / "config.toml")
    held = normae.sources.load_events(config.data, config.seed).test.numpy()
    bars = normae.NormalizedAutoencoder.load(run).score_std(pd.DataFrame(held, columns=NAMES))
    assert metrics["mean_score_std"]["value"] == pytest.approx(bars.mean(), rel=1e-3)
    said = "ensemble of 4 models, in pairs, on the two halves of a random cut of the events"
    assert said in (run / "report.html").read_text()


def test_a_run_that_was_rolled_back_is_told_which_learning_rate_to_lower(tmp_path):
    x, settings = np.random.default_rng(0).normal(size=(300, 3)) ** 3, ["contrast.learning_rate=10"]
    normae.train(x, tmp_path / "run", settings=[*settings, "contrast.iterations=200"])
    run = RunFolder(tmp_path / "run")
    assert run.read_provenance()["rollbacks"]
    remedy = TableStudy(run, normae.config.read(run.config)).stability().remedy
    assert remedy.startswith("Lower contrast.learning_rate, and look")


def test_without_rows_held_out_it_is_one_sentence(tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((100, 2)))
    train(structure(tiny(data={"file": str(tmp_path / "rows.npy"), "train": 100, "test": 0})), tmp_path / "run")
    with pytest.raises(InputError, match=r"at least 10 rows that were held out, got 0"):
        evaluate(tmp_path / "run")


def test_every_command_is_in_the_user_s_units(table_run, tmp_path, capfd):
    """A run in large units: evaluated, reported, told about and sampled from."""
    run = shutil.copytree(table_run.path, tmp_path / "run")
    for name in ("evaluate", "report", "info"):
        assert command(name, run) == 0
    assert command("sample", run, "-n", 500, "-o", tmp_path / "x.npz") == 0
    model, x = normae.load(run), rows(500, seed=1)
    numbers = json.loads((run / "metrics.json").read_text())
    assert abs(numbers["mean_score_held_out"]["value"] - model.score(x).mean()) < 0.5
    assert abs(numbers["mean_log_prob_held_out"]["value"] - model.log_prob(x).mean()) < 0.5
    assert "mean_score_held_out" in capfd.readouterr().out
    with np.load(tmp_path / "x.npz") as sampled:
        assert np.allclose(np.median(sampled["x"], axis=0), np.median(x, axis=0), rtol=0.2, atol=0.3)
