"""From evaluated seeds to a zoo, and from the zoo to the paper's table."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import normae
from normae import zoo
from normae.config import read, to_toml
from normae.errors import InputError, Interrupted
from normae.evaluation.evaluate import evaluate
from normae.paper import reproduce as made
from normae.paper.reproduce import Reproduction, Settings, reproduce
from normae.runs.session import train
from tiny_jets import SAMPLE, TINY

SCRIPT = Path(__file__).parents[2] / "bench" / "publish.py"
publish = runpy.run_path(str(SCRIPT))["publish"]


@pytest.fixture
def small_zoo(tmp_path, monkeypatch, make_run):
    """A zoo whose two toy models are tiny."""
    runs = tmp_path / "runs"
    train(make_run(), runs, seeds=[0, 1])
    for seed in (0, 1):
        evaluate(runs / f"seed-{seed}", figures=False, device="cpu")
    for name in ("toy-2gauss-nae", "toy-2gauss-nae-paper"):
        publish(runs, 0, tmp_path / "zoo" / name)
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    return tmp_path


def test_publish_and_reproduce(small_zoo, unrendered):
    assert zoo.names() == ["toy-2gauss-nae", "toy-2gauss-nae-paper"]
    card = zoo.card("toy-2gauss-nae")
    assert "| seed 0 | seed 1 |" in card
    assert "0.979" in card
    assert np.isfinite(normae.load("toy-2gauss-nae").log_prob(np.zeros((2, 2)))).all()
    table = reproduce("toy", small_zoo / "out").metrics
    assert set(table) == {"paper settings", "best"}
    text = (small_zoo / "out" / "table.md").read_text()
    assert "| Pearson correlation of log p, grid | 0.979 |" in text
    assert set(json.loads((small_zoo / "out" / "table.json").read_text())) == set(table)
    for name in zoo.names():
        assert (small_zoo / "out" / "zoo" / name / "report.html").is_file()
    assert reproduce("toy", small_zoo / "out").metrics, "once more into the same folder"
    (small_zoo / "mine").mkdir()
    (small_zoo / "mine" / "table.md").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        reproduce("toy", small_zoo / "mine")
    assert [path.name for path in (small_zoo / "mine").iterdir()] == ["table.md"]
    reproduce("toy", small_zoo / "mine", force=True)
    assert (small_zoo / "mine" / "table.md").read_text() == text


@pytest.fixture
def tiny_presets(tmp_path, make_run):
    """The paper's presets of toys, tiny."""
    (tmp_path / "configs").mkdir()
    for preset, changes in {"toy-paper": {}, "toy-bayes-paper": {"bayesian": {"layers": "last"}}}.items():
        (tmp_path / "configs" / f"{preset}.toml").write_text(to_toml(make_run(name=preset, **changes)))
    return tmp_path / "configs"


def test_the_whole_paper_goes_on_where_it_was(tiny_presets, tmp_path, monkeypatch, unrendered):
    """Stopped in its last part: the same call does that part only. Models have the paper's settings."""
    monkeypatch.setattr(made, "SECTIONS", {"toy": made.SECTIONS["toy"]})
    settings = Settings(scratch=True, configs=tiny_presets, device="cpu", overrides=("training.epochs=1",))
    asked = []

    def jets(out, chosen, watch):
        asked.append(chosen.paper)
        if len(asked) == 1:
            raise Interrupted("stopped")
        return Reproduction(tables={"jets": [["a"], ["1"]]})

    monkeypatch.setattr(made, "reproduce_jets", jets)
    with pytest.raises(Interrupted):
        reproduce("all", tmp_path / "out", settings)
    trained = tmp_path / "out" / "toy" / "scratch"
    assert sorted(path.name for path in trained.iterdir()) == ["toy-2gauss-nae-paper"]
    assert read(trained / "toy-2gauss-nae-paper" / "config.toml").training.epochs == 1
    monkeypatch.setattr(made, "train", None)  # nothing is trained any more
    found = reproduce("all", tmp_path / "out", settings)
    assert asked == [True, True]
    assert [*found.tables][-1] == "jets"
    assert set(found.metrics) == {"toy: paper settings"}
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| Pearson correlation of log p, grid | 0.979 |" in text


@pytest.mark.slow
def test_the_whole_paper_from_scratch(tiny_presets, tmp_path):
    """Every part, tiny: settings and lengths of the presets are the only difference to the real one."""
    for preset in ("qcd-nae", "top-nae", "qcd-bnae", "top-bnae"):
        text = to_toml(read(f"jets-paper-{preset}", TINY))
        (tiny_presets / f"jets-paper-{preset}.toml").write_text(text)
    small = [*(one for one in TINY if one.startswith(("data", "network", "device"))), "classifier.epochs=2"]
    (tiny_presets / "jets-paper-classifier.toml").write_text(to_toml(read("jets-paper-classifier", small)))
    settings = Settings(scratch=True, configs=tiny_presets, device="cpu", data=SAMPLE, generated=0)
    found = reproduce("all", tmp_path / "out", settings)
    assert not found.left_out
    titles = "\n".join(found.tables)
    for section in ("Section 3.2", "Section 3.3", "Section 3.4", "Section 4.1"):
        assert section in titles
    assert {"dual: NAE", "dual: BNAE", "jets: jets-qcd-nae", "jets: jets-top-bnae"} <= set(found.metrics)


@pytest.fixture
def bayesian_zoo(tmp_path, monkeypatch, make_run):
    """A zoo whose two Bayesian models are tiny."""
    runs = tmp_path / "runs"
    bayes = make_run(bayesian={"layers": "last"})
    for name, config in {
        "toy-2gauss-bnae": bayes,
        "toy-1gauss-bnae": replace(bayes, data=replace(bayes.data, density="one-gaussian")),
    }.items():
        train(config, runs / name, seeds=[0])
        evaluate(runs / name / "seed-0", figures=False, device="cpu")
        publish(runs / name, 0, tmp_path / "zoo" / name)
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    return tmp_path


def test_bayes(bayesian_zoo, unrendered):
    tmp_path = bayesian_zoo
    assert "mean field" in zoo.card("toy-2gauss-bnae")
    found = reproduce("bayes", tmp_path / "bayes")
    assert set(found.metrics) == {"best"}
    assert found.left_out == ["toy-2gauss-bnae-paper"]
    assert "coverage of 68 % intervals" in (tmp_path / "bayes" / "table.md").read_text()
    page = (tmp_path / "bayes" / "zoo" / "toy-2gauss-bnae" / "report.html").read_text()
    assert "Bayesian normalized autoencoder" in page
    assert "Coverage by region" in page
    with pytest.raises(InputError, match="expected toy, bayes, dual, jets or all"):
        reproduce("jet", tmp_path / "other")
    with pytest.raises(InputError, match="not in the zoo; use --from-scratch"):
        reproduce("toy", tmp_path / "toy")


@pytest.mark.slow
def test_dual(bayesian_zoo):
    """Slow, since the classifiers of the dual test are trained on 100k events of each density."""
    table = reproduce("dual", bayesian_zoo / "dual").metrics
    assert set(table) == {"BNAE"}
    assert {"pearson_true_c0", "slope_true_c0", "constant_true_log_z"} <= set(table["BNAE"])


def test_the_card_has_the_evaluated_seeds_and_the_coverage_of_the_group(small_zoo):
    (small_zoo / "runs" / "seed-1" / "metrics.json").unlink()
    levels = {f"coverage_quantile_{level}": {"value": level / 100, "error": 0.01} for level in (50, 68, 90, 95)}
    others = {"trainings": 16, "farthest_training_quantile": 0.119, "pull_width": 1.05}
    found = levels | {name: {"value": value, "error": 0.0} for name, value in others.items()}
    (small_zoo / "runs" / "coverage.json").write_text(json.dumps(found))
    card = (publish(small_zoo / "runs", 0, small_zoo / "zoo" / "judged") / "card.md").read_text()
    assert "Seeds [0, 1] were trained" in card
    assert "| seed 0 |" in card
    assert "| seed 1 |" not in card
    assert "Over 16 independent trainings" in card
    assert "| coverage | 0.50 ± 0.01 | 0.68 ± 0.01 | 0.90 ± 0.01 | 0.95 ± 0.01 | 0.12 | 1.05 |" in card
    assert "Do the error bars hold" not in zoo.card("toy-2gauss-nae")
    (small_zoo / "runs" / "coverage.json").write_text("{}")
    with pytest.raises(InputError, match="lacks 'coverage_quantile_50'; run normae coverage again"):
        publish(small_zoo / "runs", 0, small_zoo / "zoo" / "broken")
    assert zoo.names() == ["judged", "toy-2gauss-nae", "toy-2gauss-nae-paper"], "nothing half-written"
    assert not list((small_zoo / "zoo").glob(".*"))


def test_publish_needs_the_seed(small_zoo):
    with pytest.raises(InputError, match="no run with seed 7"):
        publish(small_zoo / "runs", 7, small_zoo / "zoo" / "other")
    with pytest.raises(InputError, match="expected a new folder or a model of a zoo to replace"):
        publish(small_zoo / "runs", 0, small_zoo / "runs")
    assert (small_zoo / "runs" / "seed-0" / "config.toml").is_file()
    (small_zoo / "empty").mkdir()
    assert (publish(small_zoo / "runs", 0, small_zoo / "empty") / "card.md").is_file()
