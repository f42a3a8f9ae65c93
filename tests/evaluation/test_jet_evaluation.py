"""Jet runs judged as a user judges them: tiny models of both classes, a classifier, dual test, zoo, reproduction."""

import json
import math
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm

from normae import zoo
from normae.cli import main
from normae.cli.train import describe_run
from normae.config import Run, read, to_toml
from normae.dual.judge import DualSettings
from normae.dual.test import dual_test, read_labelled_jets, run_reference
from normae.evaluation import jets as jet_evaluation
from normae.evaluation.evaluate import evaluate, metrics_table, report, study_of
from normae.evaluation.jet_study import JetStudy, simple_models
from normae.evaluation.jets import (
    CURVE,
    JetScores,
    generated_jets,
    held_out_jets,
    roc_band,
    tagging_metrics,
)
from normae.inference import BayesianModel, Model
from normae.jets import PUBLIC, public, write
from normae.paper.jets import ESTIMATED, TITLES, models, pair_of
from normae.paper.reproduce import Reproduction, Settings, reproduce
from normae.report.paper import TAGGING
from normae.runs.classifier import load_classifier
from normae.runs.ensemble import gather
from normae.runs.folder import RunFolder, model_digest, read_tensors, write_tensors
from normae.runs.load import load
from normae.runs.session import read_start, train
from normae.sources import load_events
from normae.statistics import Estimate, auc
from normae.statistics.arrays import student
from normae.temperature.estimates import late_mean

CONFIGS = Path(__file__).parents[2] / "configs"
publish = runpy.run_path(str(CONFIGS.parent / "bench" / "publish.py"))["publish"]
SAMPLE = Path(__file__).parents[1] / "jets" / "data" / "sample.npz"
SMALL = ["device=cpu", "data.train=60", "data.test=100", "data.validation=20", "network.channels=2",
         "network.hidden=[8]"]  # fmt: skip
CHAINS = ["pretraining.epochs=2", "pretraining.batch=20", "training.epochs=1", "training.batch=20",
          "sampling.buffer=20", "sampling.latent.steps=2", "sampling.feature.steps=2", "guard.log_every=2",
          "guard.checkpoint_every=2", "guard.largest_gap=1e9", "evaluation.draws=4"]  # fmt: skip


def small(preset: str, folder: Path) -> Run:
    changes = ["classifier.epochs=2", "classifier.batch=20"] if "classifier" in preset else CHAINS
    return read(CONFIGS / f"{preset}.toml", [*SMALL, *changes, f"data.path={folder}"])


@pytest.fixture(scope="module")
def jets(tmp_path_factory) -> Path:
    """A folder of jets; its files are the same, since nothing here says how well a model does."""
    folder = tmp_path_factory.mktemp("jets")
    for name in ("train", "val", "test"):
        (folder / f"{name}.npz").symlink_to(SAMPLE)
    return folder


@pytest.fixture(scope="module")
def runs(jets, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("qcd", "top"):
        for network in ("nae", "bnae"):
            assert train(small(f"jets-paper-{kind}-{network}", jets), folder / f"{kind}-{network}")
    assert train(small("jets-paper-classifier", jets), folder / "classifier")
    return folder


# --- numbers


def test_metrics_of_known_scores():
    """Signal above background by one width; draws that shift both alike have no spread of the AUC."""
    rng = np.random.default_rng(0)
    background, signal = rng.normal(5, 1, 3000), rng.normal(6, 1, 2000)
    one = tagging_metrics(JetScores(background[None].astype(np.float32), signal[None].astype(np.float32), 0.5))
    assert abs(one["auc"].value - 0.7602) < 4 * one["auc"].error
    assert one["score_background"].value == pytest.approx(10, abs=0.1)
    assert "auc_draws" not in one
    shift = np.array([[0.0], [0.1], [0.2]])
    both = JetScores((background + shift).astype(np.float32), (signal + shift).astype(np.float32), 0.5)
    moved = tagging_metrics(both)
    assert moved["auc_draws"].error < 1e-4
    apart = JetScores(background[None].repeat(3, 0).astype(np.float32), (signal + shift).astype(np.float32), 0.5)
    expected = norm.cdf((1 + shift) / np.sqrt(2)).std(ddof=1)
    assert tagging_metrics(apart)["auc_draws"].error == pytest.approx(expected, rel=0.1)
    assert apart.central[0].shape == (2000,)


def test_simple_models_are_those_of_the_images(jets):
    events = held_out_jets(small("jets-paper-qcd-nae", jets)).background
    flat = events.dense().numpy().reshape(len(events), -1).astype(np.float64)
    found = simple_models(events, 5, torch.device("cpu"))
    assert found["mse_mean_image"].value == pytest.approx(flat.var(axis=0).mean(), rel=1e-3)
    left = np.linalg.svd(flat - flat.mean(axis=0), compute_uv=False)[5:]
    assert found["mse_components"].value == pytest.approx((left**2).sum() / flat.size, rel=1e-3)


def test_the_other_class_is_the_signal(jets):
    for kind, label in (("qcd", 0), ("top", 1)):
        test = held_out_jets(small(f"jets-paper-{kind}-nae", jets))
        assert (len(test.background), len(test.signal), test.label) == (100, 100, label)
    both = held_out_jets(small("jets-paper-classifier", jets))
    assert both.label == 0
    assert both.signal.sha256() == test.background.sha256()


def test_one_file_is_judged_on_what_was_held_out():
    config = small("jets-paper-qcd-nae", SAMPLE)
    config = replace(config, data=replace(config.data, train=60, test=20, validation=20))
    test, again = held_out_jets(config), held_out_jets(replace(config, data=replace(config.data, jets="top")))
    assert len(test.background) == len(test.signal) == 20
    assert test.background.sha256() == again.signal.sha256()
    other = held_out_jets(replace(config, data=replace(config.data, test=100)))
    assert len(other.background) == len(other.signal) == 100, "too few to have been trained on, so that all are unseen"


# --- runs


def test_a_bayesian_run_generates_and_has_spreads(runs):
    """Without figures, which are most of the time."""
    metrics = evaluate(runs / "top-bnae", figures=False, device="cpu", generated=70)
    assert metrics["generated_jets"].value == 70
    assert metrics["auc_draws"].error > 0
    assert metrics["wasserstein_mass"].error > 0
    last = json.loads((runs / "top-bnae" / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["negative_energy"].value == pytest.approx(last["negative_energy"], rel=0.5)
    assert metrics["manifold_energy"].value > 0
    assert 0.4 < metrics["auc_generated_images"].value <= 1


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", [pytest.param("qcd-nae", marks=SLOW), pytest.param("top-bnae", marks=SLOW), "qcd-nae/pretrained"]
)
def test_evaluate_and_report(runs, name, monkeypatch):
    path = runs / name
    metrics = evaluate(path, device="cpu", generated=None if "pretrained" in name else 70)
    run, config = RunFolder(path), read(path / "config.toml")
    model, test = load(path), held_out_jets(config)
    bayesian = isinstance(model, BayesianModel)
    scored = [model.energy_draws(x.dense().numpy(), 4).mean(0) if bayesian else model.energy(x.dense().numpy())
              for x in (test.signal, test.background)]  # fmt: skip
    assert metrics["auc"].value == pytest.approx(auc(*scored).value, abs=2e-3)
    assert ("auc_draws" in metrics) == bayesian
    assert ("wasserstein_tau3" in metrics) == ("pretrained" not in name)
    assert json.loads(run.metrics.read_text())["rejection_20"]["value"] == metrics["rejection_20"].value
    drawn = {"roc", "energies", "gallery-anomalous", "gallery-typical", "pretraining"}
    drawn |= set() if "pretrained" in name else {"generated", "generated-jets", "training"}
    assert {p.stem for p in run.figures.glob("*.svg")} == drawn
    levels = (run.figures / "pretraining.csv").read_text().splitlines()[0]
    assert levels == "epoch,training,validation,mse_mean_event,mse_5_components"
    page = report(path).read_text()
    said = [
        words in text for text in (page, describe_run(RunFolder(path))) for words in ("latent chain", "feature chain")
    ]
    assert said == 4 * ["pretrained" not in name], "chains are named where they ran"
    assert "The most anomalous jets" in page
    assert (
        TAGGING[("QCD-tagging", "BNAE") if bayesian else ("top-tagging", "AE" if "pre" in name else "NAE")][0] in page
    )

    def never(*_: object) -> None:
        raise AssertionError("a second evaluation needs no pass through the network")

    monkeypatch.setattr(jet_evaluation, "energies", never)
    monkeypatch.setattr("normae.evaluation.jets.sample_jets", never)
    again = evaluate(path, figures=False, device="cpu")
    assert again == metrics


def test_negatives_above_the_manifold_are_a_warning(runs):
    """Two energies of negatives against one of the manifold; a chain with a test in feature space is not judged so."""
    path = runs / "qcd-nae"
    config, names = read(path / "config.toml"), ("energy_background", "mse_mean_image", "mse_components", "auc")
    metrics = dict.fromkeys(names, Estimate(1.0, 0.1)) | {"manifold_energy": Estimate(1e-6, 1e-8)}

    def judged(energy: float, config: Run) -> str | None:
        checks = JetStudy(RunFolder(path), config).checks(metrics | {"negative_energy": Estimate(energy, 1e-8)})
        return next((check.status for check in checks if check.name == "equilibrium"), None)

    assert judged(0.8e-6, config) == "good"
    assert judged(1.5e-6, config) == "warning"
    exact = replace(config.sampling, feature=replace(config.sampling.feature, metropolis="exact", anneal=False))
    assert judged(1.5e-6, replace(config, sampling=exact)) is None


def test_the_late_mean_is_of_the_last_tenth():
    lines = [training_line(k, float(k)) for k in range(40)]
    first = {"phase": "pretraining", "iteration": 99, "negative_energy": 1e9}
    found = late_mean([first, *lines], "negative_energy")
    assert found == pytest.approx((37.5, student(4) * np.std([36, 37, 38, 39], ddof=1) / 2))
    assert math.isnan(late_mean([first], "negative_energy").value)
    assert math.isnan(late_mean(lines[:1], "negative_energy").error)


def test_the_late_mean_is_without_what_a_rollback_took_back():
    """The lines of a training that ran away stay in the file, also of one that did so at its end, and twice."""
    lines = [training_line(k, float(k)) for k in range(40)]
    ill = [training_line(k, 1e6) for k in range(30, 40)]
    back = [{"phase": "training", "iteration": 29, "rollback": "ran away"}]
    history = [*lines[:30], *ill[:8], *back, *ill[:9], *back, *lines[30:]]
    assert late_mean(history, "negative_energy") == late_mean(lines, "negative_energy")


def training_line(iteration: int, energy: float) -> dict[str, object]:
    return {"phase": "training", "iteration": iteration, "negative_energy": energy}


@pytest.mark.parametrize("why", ["one line", "a cold model"])
def test_chain_energies_without_an_error_are_left_out(runs, tmp_path, why):
    """JSON has no infinity: evaluate and report go on without them."""
    run = RunFolder(shutil.copytree(runs / "qcd-nae", tmp_path / "run"))
    if why == "one line":
        lines = run.history.read_text().splitlines(keepends=True)
        phases = [json.loads(line)["phase"] for line in lines]
        run.history.write_text("".join(lines[: phases.index("training") + 1]))
    else:
        tensors, header = read_tensors(run.model)
        write_tensors(run.model, tensors, header | {"temperature": 1e-16})
    metrics = evaluate(run.path, figures=False, device="cpu")
    assert {"negative_energy", "manifold_energy"} & set(metrics) == (
        {"manifold_energy"} if why == "one line" else {"negative_energy"}
    )
    assert set(run.read_metrics()) == set(metrics)
    study = study_of(run)
    assert "equilibrium" not in [check.name for check in study.checks(metrics)]
    assert ("manifold" in metrics_table([study])) == (why == "one line")


def test_kept_scores_belong_to_weights_and_draws(runs):
    run, config = RunFolder(runs / "qcd-bnae"), read(runs / "qcd-bnae" / "config.toml")
    model, test = load(run.path), held_out_jets(config)
    first = jet_evaluation.jet_scores(run, model, test, 3)
    assert first.background.shape == (3, 100)
    assert jet_evaluation.jet_scores(run, model, test, 4).background.shape == (4, 100)
    run.scores.write_bytes(b"damaged")
    np.testing.assert_array_equal(jet_evaluation.jet_scores(run, model, test, 3).background, first.background)
    assert generated_jets(run, model, test.background, 0, 0) is None, "none are kept and none are asked for"


def test_classifier_run(runs):
    metrics = evaluate(runs / "classifier", device="cpu")
    assert {"auc", "rejection_20", "rejection_30", "ece", "ece_perfect"} <= set(metrics)
    assert {p.stem for p in (runs / "classifier" / "figures").glob("*.svg")} == {"roc", "reliability", "training"}
    assert "0.9728" in report(runs / "classifier").read_text()


# --- the dual test


class Oracle:
    """Calls a jet top by its label: the jets of a file come class after class."""

    correction = None

    def __init__(self, top: np.ndarray) -> None:
        self.top = top

    def log_ratio(self, x: np.ndarray, corrected: bool = True) -> np.ndarray:  # noqa: ARG002
        assert len(x) == len(self.top)
        return np.where(self.top, 2.0, -2.0)


def test_label_1_is_the_class_of_b():
    """Turned round, the jets change places, and so does the sign of the classifier's log r."""
    for b, sign in (("top", 1), ("qcd", -1)):
        sample = read_labelled_jets(SAMPLE, b, 100)
        top = sample.labels if b == "top" else ~sample.labels
        found = run_reference(Oracle(top), sample, b, False, 0)
        np.testing.assert_array_equal(found.log_ratio, np.where(sample.labels, 2.0, -2.0))
        assert sign * found.log_ratio[top].mean() == 2.0
    a, b = read_labelled_jets(SAMPLE, "qcd", 100), read_labelled_jets(SAMPLE, "top", 100)
    np.testing.assert_array_equal(a.x[a.labels], b.x[~b.labels])


def test_dual_of_two_jet_runs(runs, jets):
    settings = DualSettings(draws=3, n_bootstrap=5)
    result = dual_test(runs / "qcd-bnae", runs / "top-bnae", jets, settings, "cpu", runs / "classifier")
    a, b = (load(runs / f"{kind}-bnae") for kind in ("qcd", "top"))
    means = [model.score_draws(result.sample.x, 3).mean(0, dtype=np.float64) for model in (a, b)]
    np.testing.assert_allclose(result.ratios["c0"], means[0] - means[1], atol=1e-6 * means[0].max())
    assert list(result.ratios) == ["c0"], "log Z is not known, so C is fitted"
    assert {"pearson_classifier_c0", "slope_pairs_classifier", "pearson_pairs_classifier"} <= set(result.metrics)
    assert result.metrics["pearson_classifier_c0"].error > 0
    back = dual_test(runs / "top-bnae", runs / "qcd-bnae", jets, settings, "cpu", runs / "classifier")
    assert back.metrics["slope_classifier_c0"].value == pytest.approx(
        result.metrics["slope_classifier_c0"].value, rel=1e-3
    )


def command(monkeypatch, capsys, *arguments: object) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["normae", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dual", "qcd-nae", "qcd-bnae", "--data", "JETS"], "expected one run on QCD jets and one on top jets"),
        (["dual", "qcd-nae", "top-nae", "--data", "JETS", "--reference", "qcd-nae"], "not a classifier"),
        (["evaluate", "qcd-nae", "--data", "nowhere"], "nowhere: no such file or folder of jets"),
        (["reproduce", "jets", "--out", "new", "--data", "JETS"], "not in the zoo; use --from-scratch"),
    ],
)
def test_bad_input_is_one_sentence(runs, jets, monkeypatch, capsys, arguments, message, tmp_path):
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    named = [runs / a if (runs / a).is_dir() else jets if a == "JETS" else a for a in arguments]
    monkeypatch.chdir(tmp_path)
    code, error = command(monkeypatch, capsys, *named)
    assert code == 2, error
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_band_of_a_rejection_is_a_factor():
    """Draws of which one rejects ten times as much as the other: half of log 10 times sqrt 2, at every efficiency."""
    rank = np.arange(1, 20_001) / 20_000
    one, other = (np.log(rank) + np.log(share) for share in (1.0, 0.1))
    scores = JetScores(-np.stack([one, one]).astype(np.float32), -np.stack([one, other]).astype(np.float32), 1.0)
    seen = (CURVE > 0.3) & (CURVE < 0.9)
    assert roc_band(scores)[1][1][seen] == pytest.approx(math.log(10) / math.sqrt(2), rel=0.01)


# --- several trainings in one model


@pytest.fixture(scope="module")
def modes(jets, tmp_path_factory) -> Path:
    """Two BNAEs of each class in one, and the trainings themselves."""
    folder = tmp_path_factory.mktemp("modes")
    for kind in ("qcd", "top"):
        seeds = [folder / f"{kind}-{seed}" for seed in (0, 1)]
        for seed, path in enumerate(seeds):
            assert train(replace(small(f"jets-paper-{kind}-bnae", jets), seed=seed), path)
        gather(seeds, folder / kind)
    return folder


def test_a_mixture_of_jet_runs_is_judged_as_one_density(modes, jets, unrendered):
    metrics = evaluate(modes / "qcd", device="cpu")
    with np.load(modes / "qcd" / "scores.npz") as kept:
        rows = {name: kept[name].astype(np.float64) / metrics["temperature"].value for name in ("signal", "background")}
    central = {name: -logsumexp(-r, axis=0) for name, r in rows.items()}
    assert metrics["auc"].value == pytest.approx(auc(central["signal"], central["background"]).value, abs=1e-9)
    each = [auc(s, b).value for s, b in zip(rows["signal"], rows["background"], strict=True)]
    assert metrics["auc_draws"].value == pytest.approx(np.mean(each))
    assert "negative_energy" not in metrics
    own = [evaluate(modes / f"qcd-{seed}", figures=False, device="cpu")["energy_background"].value for seed in (0, 1)]
    assert metrics["energy_background"].value == pytest.approx(np.mean(own), rel=0.02), "without constants"
    page = report(modes / "qcd").read_text()
    assert "2 trainings" in page
    assert "of the mixture, counting error" in page
    assert "mixture of 2 trainings" in study_of(RunFolder(modes / "qcd")).limits()


def test_the_members_have_the_same_share_of_the_validation_jets(modes, jets):
    held = load_events(small("jets-paper-qcd-bnae", jets).data, 0).validation.dense().numpy()
    header = read_tensors(modes / "qcd" / "model.safetensors")[1]
    members = [load(modes / f"qcd-{seed}") for seed in (0, 1)]
    scores = np.stack([Model(m.autoencoder, m.temperature, m.event, m.sampling).score(held) for m in members])
    log_p = np.array(header["constants"])[:, None] - scores.astype(np.float64)
    assert np.exp(log_p - logsumexp(log_p, axis=0)).mean(1) == pytest.approx([0.5, 0.5], abs=1e-5)


def test_the_dual_test_of_mixtures_takes_their_densities(modes, jets):
    result = dual_test(modes / "qcd", modes / "top", jets, DualSettings(draws=4, classifier=True), "cpu",
                       "jets-classifier")  # fmt: skip
    a, b = (load(modes / kind).score_draws(result.sample.x, 4).astype(np.float64) for kind in ("qcd", "top"))
    assert result.ratios["c0"] == pytest.approx(logsumexp(-b, axis=0) - logsumexp(-a, axis=0), rel=1e-6, abs=1e-5)


# --- zoo and reproduction


def test_the_zoo_s_jet_models_are_small_complete_and_load():
    """Each below a megabyte, with a card; an autoencoder with the weights that an NAE of the preset starts from."""
    shipped = [name for name in zoo.names() if name.startswith("jets-")]
    assert {"jets-qcd-ae", "jets-top-ae", "jets-classifier", "jets-qcd-components"} <= set(shipped)
    assert {name for name in shipped if "components" not in name} <= set(models())
    image = np.full((1, 1, 40, 40), 1 / 1600, dtype=np.float32)
    for name in shipped:
        assert sum(file.stat().st_size for file in zoo.path(name).iterdir()) < 1_000_000, name
        assert zoo.card(name).startswith(f"# {name}\n")
        run = RunFolder(zoo.path(name))
        config = read(run.config)
        assert config.data.path is None
        if config.classifier is not None:
            assert np.isfinite(load_classifier(name).log_ratio(image)).all()
            continue
        assert load(name).score(image)[0] > 0
        if name in models() and models()[name].begun is not None:
            nae = replace(read(models()[name].preset), start=name)
            assert "weights" in read_start(nae, (1, 40, 40))[0], "an NAE's before the division by singular values"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([], "those of the last layer's weights,\nnot of another training"),
        (["bayesian.layers=all", "bayesian.pretraining=shared"], "those of all weights,\nnot of another training"),
    ],
)
def test_a_card_says_which_weights_its_error_bars_are_of(changes, words):
    assert words in JetStudy(RunFolder("."), read(CONFIGS / "jets-paper-qcd-bnae.toml", changes)).limits()


def _check_temperatures(result: Reproduction, out: Path) -> None:
    """A row for each model whose pair has a slope, in units of the temperature at which that would be 1."""
    duals = {name: m["slope_classifier_c0"].value for name, m in result.metrics.items() if "slope_classifier_c0" in m}
    asked = {pair_of(*one)[0].title for one in ESTIMATED}
    networks = [name for name, slope in duals.items() if slope > 0 and name in asked]
    header, *rows = result.tables.get(TITLES["temperature"], [["", "", ""]])
    rows = [row for row in rows if row[0].endswith("jets")]
    assert [row[0] for row in rows] == [f"{name}, {jets} jets" for name in networks for jets in ("QCD", "top")]
    names = {"configurational", "denoising", "components", "latent", "manifold", "equipartition"}
    assert {cell.partition(" / ")[0] for cell in header[3:]} == (names if networks else set())
    assert (out / "figures" / "temperatures.csv").is_file() == bool(networks)


@pytest.mark.slow
def test_publish_and_reproduce(runs, jets, tmp_path, monkeypatch):
    for name, source in {"jets-qcd-nae": "qcd-nae", "jets-top-nae": "top-nae", "jets-qcd-ae": "qcd-nae/pretrained",
                         "jets-classifier": "classifier"}.items():  # fmt: skip
        evaluate(runs / source, figures=False, device="cpu")
        publish(runs / source, 0, tmp_path / "zoo" / name)
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    card = zoo.card("jets-qcd-nae")
    assert "0.9036" in card
    assert "no Metropolis test" in card
    assert "| mean energy of the jets that it was trained on | — |" in card
    for file in (tmp_path / "zoo").rglob("*"):
        assert file.suffix == ".safetensors" or file.is_dir() or str(jets) not in file.read_text(), file
    result = reproduce("jets", tmp_path / "out", Settings(data=jets, device="cpu"))
    assert result.left_out == sorted(set(models()) - set(zoo.names()))
    assert [row[:2] for row in result.tables[TITLES["tagging"]][1:]] == [
        ["top-tagging", "AE"], ["top-tagging", "NAE"], ["QCD-tagging", "NAE"], ["supervised", "classifier"]
    ]  # fmt: skip
    assert result.tables[TITLES["ratio"]][1][1] == "0.851"
    _check_temperatures(result, tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    assert "left out: jets-qcd-ae-paper, jets-qcd-bae" in text
    assert {p.stem for p in (tmp_path / "out" / "figures").glob("*.svg")} >= {"roc-nae", "energies-nae"}
    assert (tmp_path / "out" / "dual-nae" / "report.html").is_file()
    assert Estimate(**json.loads((tmp_path / "out" / "table.json").read_text())["jets-qcd-nae"]["auc"]).error > 0


def test_public_jets_are_enough(tmp_path, monkeypatch):
    """Models of the zoo are judged on a part of the public jets: no other jets are needed.

    Without drawing and without estimates of T, which are most of the time and have tests of their own.
    """
    monkeypatch.delenv("NORMAE_JETS", raising=False)
    write(tmp_path / "public.h5", public()[:240])
    for user in ("sources", "paper.reproduce"):
        monkeypatch.setattr(f"normae.{user}.PUBLIC", tmp_path / "public.h5")
    monkeypatch.setattr(zoo, "names", lambda: ["jets-classifier", "jets-qcd-nae", "jets-top-nae"])
    monkeypatch.setattr("normae.paper.jets.ESTIMATED", ())
    monkeypatch.setattr("normae.temperature.estimates.QUICK_POINTS", 200)
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda self, path, **_: Path(path).write_text("<svg></svg>")
    )
    result = reproduce("jets", tmp_path / "out", Settings(device="cpu"))
    assert [note for note in result.notes if "Left out" in note] == []
    assert "2,000 public ones of the package" in result.notes[0]
    found = {name: result.metrics[name] for name in ("jets-classifier", "jets-qcd-nae", "jets-top-nae")}
    for (name, metrics), whole in zip(found.items(), (0.9805, 0.931, 0.874), strict=True):
        assert abs(metrics["auc"].value - whole) < 3 * metrics["auc"].error, f"{name}: as on all of them"
    assert found["jets-qcd-nae"]["test_background"].value + found["jets-qcd-nae"]["test_signal"].value == 240
    assert result.tables[TITLES["ratio"]][1][1] == "0.851"


@pytest.mark.parametrize("kind", ["qcd", "top"])
def test_the_constants_of_the_zoo_s_mixtures_are_known(kind):
    """They belong to the weights that ship: no validation jets are needed."""
    members = [model_digest(zoo.path(f"jets-{kind}-bnae-seed{k}") / "model.safetensors") for k in range(3)]
    found = zoo.mixture_constants(members)
    assert found is not None
    assert len(found) == 3
    assert max(found) == 0
    assert zoo.mixture_constants(members[::-1]) is None


def test_the_public_jets_are_those_of_the_file():
    jets = public()
    assert ((jets.labels == 0).sum(), (jets.labels == 1).sum()) == (1060, 940)
    assert jets.counts.max() <= 128
    assert PUBLIC.stat().st_size < 1_000_000
    assert "CC BY 4.0" in PUBLIC.with_suffix(".md").read_text()


@pytest.mark.slow
def test_the_zoo_on_all_public_jets(tmp_path, monkeypatch):
    """Every model, as `normae reproduce jets` judges it from a bare installation."""
    monkeypatch.delenv("NORMAE_JETS", raising=False)
    result = reproduce("jets", tmp_path / "out", Settings(device="cpu"))
    assert result.left_out == []
    assert abs(result.metrics["jets-qcd-nae"]["auc"].value - 0.931) < 0.001
    assert abs(result.metrics["jets-top-nae"]["auc"].value - 0.874) < 0.001


@pytest.mark.slow
def test_reproduce_from_scratch(jets, tmp_path):
    """Every model of the section, trained from presets of another folder; a second call trains nothing."""
    (tmp_path / "configs").mkdir()
    for preset in {model.preset for model in models().values()}:
        config = small(preset, jets)
        (tmp_path / "configs" / f"{preset}.toml").write_text(
            to_toml(replace(config, data=replace(config.data, path=None)))
        )
    settings = Settings(data=jets, scratch=True, configs=tmp_path / "configs", device="cpu", generated=70)
    result = reproduce("jets", tmp_path / "out", settings)
    assert result.left_out == []
    named = {(task, network) for task, network, *_ in result.tables[TITLES["tagging"]][1:]}
    again = {(task, f"{network}, paper's settings") for task, network in TAGGING if network in ("AE", "NAE", "BNAE")}
    mixtures = {(task, "BNAE, mixture of 3 trainings") for task in ("top-tagging", "QCD-tagging")}
    mixing = {(task, "NAE, larger latent steps") for task in ("top-tagging", "QCD-tagging")}
    assert named == set(TAGGING) | again | mixtures | mixing
    assert len(result.tables[TITLES["generated"]]) == 7
    pairs = {"AE", "NAE", "BNAE", "NAE, paper's settings", "BNAE, paper's settings", "BNAE, mixture of 3 trainings",
             "NAE, larger latent steps"}  # fmt: skip
    assert set(result.metrics) - set(models()) == pairs | {f"jets-{kind}-bnae-modes" for kind in ("qcd", "top")}
    assert [row[1] for row in result.tables[TITLES["ratio"]]].count("0.851") == 3
    names = {
        "roc-nae",
        "roc-bnae",
        "energies-nae",
        "energies-bnae",
        "generated-nae",
        "generated-bnae",
        "generated-nae-3d",
    }
    _check_temperatures(result, tmp_path / "out")
    assert names <= {p.stem for p in (tmp_path / "out" / "figures").glob("*.svg")}
